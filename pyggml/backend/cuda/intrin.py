"""Device functions that Numba has no name for.

    w0, w1, w2, w3 = load_u32x4(weights, offset)   # 16 bytes at once; offset in bytes
    total = dot4_ss(w0, x0, total)                 # four int8 products

A load is an LLVM load of memory that no kernel writes while this one runs: never inline assembly,
which LLVM would move before the ``if`` that guards it. The tests' simulator has a Python twin of
each, but not of tensor cores and shared memory by address.
"""

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.cuda import cgutils, jit
from numba.cuda.extending import intrinsic

_I8, _I16, _I32, _I64 = ir.IntType(8), ir.IntType(16), ir.IntType(32), ir.IntType(64)
_FLOAT, _VOID = ir.FloatType(), ir.VoidType()
_LLVM = {
    types.uint8: _I8,
    types.int8: _I8,
    types.uint16: _I16,
    types.uint32: _I32,
    types.int32: _I32,
    types.int64: _I64,
    types.float32: _FLOAT,
}
_DTYPE = {t: np.dtype(str(t)) for t in _LLVM}


def device(function: Callable[..., Any]) -> Any:
    """A function that kernels call; it is inlined."""
    return jit(device=True, forceinline=True)(function)


def _at(builder: Any, signature: Any, args: Any, llvm: Any, space: int = 1) -> Any:
    """The pointer to elements of a type at a byte offset of a pointer."""
    offset = args[1]
    if offset.type.width < 64:
        extend = builder.sext if signature.args[1].signed else builder.zext
        offset = extend(offset, _I64)
    bytes_ = builder.bitcast(args[0], _I8.as_pointer())
    there = builder.bitcast(builder.gep(bytes_, [offset]), llvm.as_pointer())
    return builder.addrspacecast(there, llvm.as_pointer(space)) if space else there


def _loaded(builder: Any, type: Any, n: int, place: Callable[[Any], Any], constant: bool) -> Any:
    """A load of ``n`` elements, aligned to all of them: a value, or a tuple of them.

    Args:
        place: the pointer to an LLVM type.
        constant: nothing writes that memory while the kernel runs.
    """
    kind = _LLVM[type] if n == 1 else ir.VectorType(_LLVM[type], n)
    value = builder.load(place(kind), align=n * _DTYPE[type].itemsize)
    if constant:
        value.set_metadata("invariant.load", builder.module.add_metadata([]))
    if n == 1:
        return value
    return cgutils.pack_array(builder, [builder.extract_element(value, _I32(i)) for i in range(n)])


def _stored(builder: Any, type: Any, parts: list[Any], n: int, place: Callable[[Any], Any]) -> None:
    """A store of ``n`` elements, aligned to all of them; they may be a tuple."""
    while isinstance(parts[0].type, ir.LiteralStructType | ir.ArrayType):
        parts = [builder.extract_value(parts[0], i) for i in range(len(parts[0].type))]
    whole = parts[0]
    if n > 1:
        whole = ir.Constant(ir.VectorType(_LLVM[type], n), ir.Undefined)
        for i, part in enumerate(parts):
            whole = builder.insert_element(whole, part, _I32(i))
    builder.store(whole, place(whole.type), align=n * _DTYPE[type].itemsize)


def _are(values: tuple[Any, ...], type: Any, n: int) -> bool:
    """Whether values, or those of the only tuple, are ``n`` of a type."""
    if len(values) == 1 and isinstance(values[0], tuple | types.UniTuple):
        values = tuple(values[0])
    return len(values) == n and all(v == type for v in values)


def _load(type: Any, n: int = 1) -> Any:
    """A load of ``n`` elements, aligned to all of them, from a byte offset."""
    result = type if n == 1 else types.UniTuple(type, n)

    def load(typingctx, pointer, offset):
        if not (isinstance(pointer, types.CPointer) and isinstance(offset, types.Integer)):
            return None

        def codegen(context, builder, signature, args):
            place = partial(_at, builder, signature, args)
            return _loaded(builder, type, n, place, constant=True)

        return result(pointer, offset), codegen

    return intrinsic(load)


load_u8, load_u16, load_u32 = _load(types.uint8), _load(types.uint16), _load(types.uint32)
load_i8, load_i32, load_f32 = _load(types.int8), _load(types.int32), _load(types.float32)
load_i64 = _load(types.int64)
load_u32x2, load_u32x4 = _load(types.uint32, 2), _load(types.uint32, 4)
load_f32x2, load_f32x4 = _load(types.float32, 2), _load(types.float32, 4)


def _store(type: Any, n: int = 1) -> Any:
    """A store of ``n`` elements, aligned to all of them, at a byte offset."""

    def store(typingctx, pointer, offset, *values):
        if not _are(values, type, n):
            return None

        def codegen(context, builder, signature, args):
            _stored(builder, type, list(args[2:]), n, partial(_at, builder, signature, args))
            return context.get_dummy_value()

        return types.void(pointer, offset, types.StarArgTuple(values)), codegen

    return intrinsic(store)


store_u8, store_u16, store_u32 = _store(types.uint8), _store(types.uint16), _store(types.uint32)
store_f32, store_f32x4 = _store(types.float32), _store(types.float32, 4)
store_u32x2, store_u32x4 = _store(types.uint32, 2), _store(types.uint32, 4)
store_i32, store_i64 = _store(types.int32), _store(types.int64)


_LETTERS = {  # of LLVM's constraints
    types.uint16: "h",
    types.uint32: "r",
    types.int32: "r",
    types.int64: "l",
    types.float32: "f",
}


def assembly(
    text: str, result: Any, *arguments: Any, effects: bool = False, memory: bool = False,
    early: bool = False,
) -> Any:  # fmt: skip
    """A function of one piece of PTX.

    Args:
        result: its Numba type, or a tuple of them.
        effects: it concerns other threads, so it must stay where it is.
        memory: it touches memory, so it must too.
        early: results are written before all arguments are read.
    """
    several = isinstance(result, tuple)
    results = result if several else (result,) if result in _LLVM else ()
    given = types.Tuple(result) if several else result
    llvm: Any = ir.LiteralStructType([_LLVM[t] for t in result]) if several else _LLVM.get(result)
    llvm = _VOID if llvm is None else llvm
    kind = ir.FunctionType(llvm, [_LLVM[t] for t in arguments])
    constraints = ["=" + "&" * early + _LETTERS[t] for t in results]
    constraints += [*map(_LETTERS.__getitem__, arguments), *["~{memory}"] * memory]
    code = ir.InlineAsm(kind, text, ",".join(constraints), side_effect=effects or memory)

    def define(typingctx, *types_given):  # type: ignore[no-untyped-def]
        if any(
            t != want and not isinstance(t, types.IntegerLiteral)
            for t, want in zip(types_given, arguments, strict=True)
        ):
            return None

        def codegen(context, builder, signature, args):  # type: ignore[no-untyped-def]
            made = builder.call(code, list(args))
            if not several:
                return context.get_dummy_value() if llvm is _VOID else made
            parts = [builder.extract_value(made, i) for i in range(len(result))]
            return context.make_tuple(builder, given, parts)

        return given(*arguments), codegen

    names = ("typingctx", *(f"a{i}" for i in range(len(arguments))))
    kinds = [inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD) for name in names]
    define.__signature__ = inspect.Signature(kinds)  # type: ignore[attr-defined]
    return intrinsic(define)


_U16, _U32, _S32, _F32 = types.uint16, types.uint32, types.int32, types.float32
_S64 = types.int64

half_to_float = assembly("cvt.f32.f16 $0, $1;", _F32, _U16)
float_to_half = assembly("cvt.rn.f16.f32 $0, $1;", _U16, _F32)
halves_to_floats = assembly(
    "{ .reg .b16 l, h; mov.b32 {l, h}, $2; cvt.f32.f16 $0, l; cvt.f32.f16 $1, h; }",
    (_F32, _F32),
    _U32,
)
floats_to_halves = assembly(  # the first one's bits are the low ones
    "{ .reg .b16 l, h; cvt.rn.f16.f32 l, $1; cvt.rn.f16.f32 h, $2; mov.b32 $0, {l, h}; }",
    _U32,
    _F32,
    _F32,
)
dot4_us = assembly("dp4a.u32.s32 $0, $1, $2, $3;", _S32, _U32, _U32, _S32)
dot4_ss = assembly("dp4a.s32.s32 $0, $1, $2, $3;", _S32, _U32, _U32, _S32)
fma = assembly("fma.rn.f32 $0, $1, $2, $3;", _F32, _F32, _F32, _F32)
mul_rounded = assembly("mul.rn.f32 $0, $1, $2;", _F32, _F32, _F32)
rsqrt = assembly("rsqrt.approx.f32 $0, $1;", _F32, _F32)
exp2 = assembly("ex2.approx.f32 $0, $1;", _F32, _F32)
bits_to_float = assembly("mov.b32 $0, $1;", _F32, _U32)
float_to_bits = assembly("mov.b32 $0, $1;", _U32, _F32)

# Tensor cores: D[16, 8] = A[16, k] B[k, 8] + C, a warp at once. Lane l has, of A, rows l / 4 and
# l / 4 + 8; of B and its result, column l / 4, and columns 2 (l % 4) and the next. A's and B's
# operands are those that ``load_matrices`` gives. No twins: a lane of the simulator does not see
# the others' operands, so kernels with them run on the emulator only. Compute capability 7.5 has
# smaller shapes of the same layout: the functions named ``_75`` issue several of them.

_D4, _A4 = "{$0, $1, $2, $3}", "{$4, $5, $6, $7}"


def _mma_float(text: str, *, early: bool = False) -> Any:
    floats = (_F32,) * 4
    return assembly(text, floats, *[_U32] * 6, *floats, effects=True, early=early)


def _mma_int(text: str, n_words: int, *, early: bool = False) -> Any:
    return assembly(text, (_S32,) * 4, *[_U32] * n_words, _S32, effects=True, early=early)


_16, _C4 = "mma.sync.aligned.m16n8k16.row.col", "{$10, $11, $12, $13}"
mma_f16 = _mma_float(f"{_16}.f32.f16.f16.f32 {_D4}, {_A4}, {{$8, $9}}, {_C4};")
mma_bf16 = _mma_float(f"{_16}.f32.bf16.bf16.f32 {_D4}, {_A4}, {{$8, $9}}, {_C4};")
_HALF = "mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32"
mma_f16_75 = _mma_float(
    f"{_HALF} {_D4}, {{$4, $5}}, {{$8}}, {_C4};\n{_HALF} {_D4}, {{$6, $7}}, {{$9}}, {_D4};",
    early=True,
)
mma_s8 = _mma_int(  # k = 32
    f"mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {_D4}, {_A4}, {{$8, $9}}, "
    "{$10, $10, $10, $10};",
    6,
)
mma_s8_16 = _mma_int(  # k = 16
    f"{_16}.s32.s8.s8.s32 {_D4}, {{$4, $5}}, {{$6}}, {{$7, $7, $7, $7}};", 3
)
_EIGHT = "mma.sync.aligned.m8n8k16.row.col.s32.s8.s8.s32"
mma_s8_75 = _mma_int(
    f"{_EIGHT} {{$0, $1}}, {{$4}}, {{$8}}, {{$10, $10}};\n"
    f"{_EIGHT} {{$2, $3}}, {{$5}}, {{$8}}, {{$10, $10}};\n"
    f"{_EIGHT} {{$0, $1}}, {{$6}}, {{$9}}, {{$0, $1}};\n"
    f"{_EIGHT} {{$2, $3}}, {{$7}}, {{$9}}, {{$2, $3}};",
    6,
    early=True,
)
mma_s8_16_75 = _mma_int(
    f"{_EIGHT} {{$0, $1}}, {{$4}}, {{$6}}, {{$7, $7}};\n"
    f"{_EIGHT} {{$2, $3}}, {{$5}}, {{$6}}, {{$7, $7}};",
    3,
    early=True,
)


def _load_matrices(kind: str) -> Any:
    text = f"ldmatrix.sync.aligned.m8n8.x4{kind}.shared.b16 {_D4}, [$4];"
    return assembly(text, (_U32,) * 4, _U32, memory=True)


# Four matrices of 8 rows of 16 bytes; lane l gives the address in shared memory of row l % 8 of
# matrix l / 8, and gets word l % 4 of row l / 4 of each; or, each matrix transposed, column l / 4,
# rows 2 (l % 4) and next.
load_matrices, load_matrices_transposed = _load_matrices(""), _load_matrices(".trans")


# Shared memory by address: what ``cp.async`` and ``ldmatrix`` take.


@intrinsic
def shared_address(typingctx, array):  # type: ignore[no-untyped-def]
    """The address of a shared array, as uint32."""
    if not isinstance(array, types.Array):
        return None

    def codegen(context, builder, signature, args):  # type: ignore[no-untyped-def]
        data = context.make_array(signature.args[0])(context, builder, value=args[0]).data
        there = builder.addrspacecast(builder.bitcast(data, _I8.as_pointer()), _I8.as_pointer(3))
        return builder.ptrtoint(there, _I32)

    return types.uint32(array), codegen


@intrinsic
def global_address(typingctx, pointer, offset):  # type: ignore[no-untyped-def]
    """The address of a byte of the device's memory, as int64."""
    if not (isinstance(pointer, types.CPointer) and isinstance(offset, types.Integer)):
        return None

    def codegen(context, builder, signature, args):  # type: ignore[no-untyped-def]
        return builder.ptrtoint(_at(builder, signature, args, _I8), _I64)

    return types.int64(pointer, offset), codegen


def _shared_at(builder: Any, address: Any, llvm: Any) -> Any:
    return builder.inttoptr(address, llvm.as_pointer(3))


def _load_shared(type: Any, n: int = 1) -> Any:
    """A load of ``n`` elements, aligned to all of them, from an address in shared memory."""
    result = type if n == 1 else types.UniTuple(type, n)

    def load(typingctx, address):  # type: ignore[no-untyped-def]
        if address != types.uint32:
            return None

        def codegen(context, builder, signature, args):  # type: ignore[no-untyped-def]
            place = partial(_shared_at, builder, args[0])
            return _loaded(builder, type, n, place, constant=False)

        return result(address), codegen

    return intrinsic(load)


load_shared_u32, load_shared_f32 = _load_shared(types.uint32), _load_shared(types.float32)
load_shared_i32x2, load_shared_f32x2 = _load_shared(types.int32, 2), _load_shared(types.float32, 2)
load_shared_u32x2 = _load_shared(types.uint32, 2)
load_shared_f32x4 = _load_shared(types.float32, 4)


def _store_shared(type: Any, n: int = 1) -> Any:
    """A store of ``n`` elements, aligned to all of them, at an address in shared memory."""

    def store(typingctx, address, *values):  # type: ignore[no-untyped-def]
        if address != types.uint32 or not _are(values, type, n):
            return None

        def codegen(context, builder, signature, args):  # type: ignore[no-untyped-def]
            _stored(builder, type, list(args[1:]), n, partial(_shared_at, builder, args[0]))
            return context.get_dummy_value()

        return types.void(address, types.StarArgTuple(values)), codegen

    return intrinsic(store)


store_shared_u32, store_shared_f32 = _store_shared(types.uint32), _store_shared(types.float32)
store_shared_u32x2 = _store_shared(types.uint32, 2)
store_shared_u32x4 = _store_shared(types.uint32, 4)


def _copy_async(n: int) -> Any:
    """A copy of ``n`` bytes from the device's memory (int64) to shared memory (uint32).

    The third argument is how many bytes are read; the rest are zeros. Data are there for this
    thread after ``wait_copies``, for the others after a barrier too. From capability 8.0 on.
    """
    text = f"cp.async.{'cg' if n == 16 else 'ca'}.shared.global [$0], [$1], {n}, $2;"
    return assembly(text, types.void, _U32, _S64, _S32, memory=True)


copy_async_16, copy_async_8, copy_async_4 = map(_copy_async, (16, 8, 4))
commit_copies = assembly("cp.async.commit_group;", types.void, memory=True)
wait_copies_0 = assembly("cp.async.wait_group 0;", types.void, memory=True)
# all but the last committed group
wait_copies_1 = assembly("cp.async.wait_group 1;", types.void, memory=True)


@intrinsic
def u32(typingctx, x):
    """The low 32 bits of an integer."""
    if not isinstance(x, types.Integer):
        return None

    def codegen(context, builder, signature, args):
        (value,) = args
        if value.type.width > 32:
            return builder.trunc(value, _I32)
        if value.type.width < 32:
            return (builder.sext if signature.args[0].signed else builder.zext)(value, _I32)
        return value

    return types.uint32(x), codegen


@intrinsic
def divide(typingctx, a, b):  # type: ignore[no-untyped-def]
    """The int32 quotient of two int32 that are not negative; ``//`` would divide 64 bits."""
    if not (isinstance(a, types.Integer) and isinstance(b, types.Integer)):
        return None

    def codegen(context, builder, signature, args):  # type: ignore[no-untyped-def]
        narrow = [builder.trunc(x, _I32) if x.type.width > 32 else x for x in args]
        return builder.udiv(*narrow)

    return types.int32(a, b), codegen
