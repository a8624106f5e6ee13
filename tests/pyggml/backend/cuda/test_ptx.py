"""The emulator: each family of instructions against NumPy, and what it must find."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

pytest.importorskip("numba_cuda")
pytest.importorskip("greenlet")

from .memory import KernelFault, Memory
from .ptx import Program, bf16_to_f32, f32_to_bf16

Array = npt.NDArray[Any]
N = 96
RNG = np.random.default_rng(0)
_BITS = {"f": "b", "u": "b", "s": "b", "b": "b"}
_REGISTER = {"16": "%h", "32": "%r", "64": "%d"}


def assemble(body: str, n_pointers: int, *, outside: str = "") -> bytes:
    """PTX of an entry ``k`` with pointers in %d1, %d2, ...; %d0 is the number of the thread."""
    parameters = ",".join(f".param .u64 p{i}" for i in range(n_pointers))
    loads = "".join(f"ld.param.u64 %d{i + 1}, [p{i}];\n" for i in range(n_pointers))
    return f"""
.version 9.0
.target sm_80
.address_size 64
{outside}
.visible .entry k({parameters})
{{
    .reg .pred %p<20>; .reg .b16 %h<40>; .reg .b32 %r<60>; .reg .b64 %d<60>;
    {loads}
    mov.u32 %r0, %tid.x; mov.u32 %r1, %ctaid.x; mov.u32 %r2, %ntid.x;
    mad.lo.s32 %r3, %r1, %r2, %r0; cvt.u64.u32 %d0, %r3;
    {body}
    ret;
}}
""".encode()


def run(
    code: bytes, arrays: Sequence[Array], *, blocks: int = 1, threads: int = N, shared: int = 0
) -> list[Array]:
    """The arrays after a launch with their addresses."""
    memory = Memory(1 << 30)
    spaces = [memory.alloc(max(1, a.nbytes)) for a in arrays]
    for space, array in zip(spaces, arrays, strict=True):
        space.bytes[: array.nbytes] = np.ascontiguousarray(array).view(np.uint8).reshape(-1)
    program = Program(code)
    program.launch(memory, (blocks, 1, 1), threads, [s.base for s in spaces], shared)
    memory.check()
    return [s.view(a.dtype).reshape(a.shape) for s, a in zip(spaces, arrays, strict=True)]


def compute(instruction: str, result: str, *operands: tuple[str, Array]) -> Array:
    """An instruction for each lane: ``{0}`` is its target, ``{1}`` and so on its operands."""
    body, names = "", []
    for i, (type_, values) in enumerate(operands, 1):
        bits = type_[1:]
        name = f"{_REGISTER[bits]}{20 + i}"
        names.append(name)
        body += f"mad.lo.u64 %d50, %d0, {values.dtype.itemsize}, %d{i + 1};\n"
        body += f"ld.global.b{bits} {name}, [%d50];\n"
    if result == "pred":
        body += instruction.format("%p1", *names) + "\nselp.u32 %r20, 1, 0, %p1;\n"
        bits, name = "32", "%r20"
    else:
        bits = result[1:]
        name = f"{_REGISTER[bits]}20"
        body += instruction.format(name, *names) + "\n"
    body += f"mad.lo.u64 %d51, %d0, {int(bits) // 8}, %d1;\nst.global.b{bits} [%d51], {name};\n"
    kinds: Any = {"f": np.dtype(f"f{int(bits) // 8}"), "s": np.dtype(f"i{int(bits) // 8}")}
    out = np.zeros(N, kinds.get(result[0], np.dtype(f"u{int(bits) // 8}")))
    values = run(assemble(body, 1 + len(operands)), [out, *[v for _, v in operands]])[0]
    return values.astype(bool) if result == "pred" else values


def _integers(dtype: Any, seed: int = 0) -> Array:
    limits = np.iinfo(dtype)
    values = np.random.default_rng(seed).integers(limits.min, limits.max, N, dtype, endpoint=True)
    values[:6] = [limits.min, limits.max, 0, 1, 2, limits.max // 2]
    return values


def _floats(dtype: Any = np.float32, seed: int = 0) -> Array:
    values = np.random.default_rng(seed).standard_normal(N).astype(dtype) * dtype(20)
    values[:6] = [0, -0.0, 1, np.inf, -np.inf, np.nan]
    return values


A32, B32, C32 = (_integers(np.uint32, i) for i in range(3))
S32, T32 = _integers(np.int32, 3), _integers(np.int32, 4)
A64, B64, S64 = _integers(np.uint64, 5), _integers(np.uint64, 6), _integers(np.int64, 7)
A16, S16 = _integers(np.uint16, 8), _integers(np.int16, 9)
F, G, H = _floats(), np.roll(_floats(seed=1), 3), np.roll(_floats(seed=2), 9)
D, E = _floats(np.float64, 3), np.roll(_floats(np.float64, 4), 3)
HALF, HALVES = _floats(np.float16, 5), np.roll(_floats(np.float16, 6), 3)
SHIFT = (np.arange(N) % 70).astype(np.uint32)
SMALL = np.arange(N, dtype=np.uint32) % 33
U = ("u32", A32)
V = ("u32", B32)


def _python(f: Callable[..., int], bits: int, *arrays: Array) -> Array:
    """Python's unbounded integers, cut to some bits."""
    values = [f(*map(int, v)) & ((1 << bits) - 1) for v in zip(*arrays, strict=True)]
    return np.array(values, np.dtype(f"u{bits // 8}"))


def _bytes(x: int) -> list[int]:
    return [x >> 8 * i & 255 for i in range(4)]


def _prmt(x: int, y: int, select: int) -> int:
    pool, result = _bytes(x) + _bytes(y), 0
    for i in range(4):
        nibble = select >> 4 * i & 15
        byte = pool[nibble & 7]
        result |= ((255 if byte & 128 else 0) if nibble & 8 else byte) << 8 * i
    return result


def _trunc_div(x: int, y: int) -> int:
    return 0 if y == 0 else (abs(x) // abs(y)) * (1 if (x < 0) == (y < 0) else -1)


def _signed(x: int, bits: int) -> int:
    return x - (1 << bits) if x >> bits - 1 else x


def _bfe(x: int, at: int, n: int) -> int:
    end = min(at + n, 32)
    size = max(0, end - at)
    return (x & 0xFFFFFFFF) >> at & ((1 << size) - 1) if size else 0


def _dot(x: int, y: int, z: int, signed: bool) -> int:
    first = [_signed(b, 8) for b in _bytes(x)] if signed else _bytes(x)
    return z + sum(p * _signed(q, 8) for p, q in zip(first, _bytes(y), strict=True))


def _f32_to_int(x: Array, rounding: Any, dtype: Any) -> Array:
    limits = np.iinfo(dtype)
    wide = np.nan_to_num(rounding(x.astype(np.float64)), posinf=1e30, neginf=-1e30)
    return np.clip(wide, limits.min, limits.max).astype(np.int64).astype(dtype)


NONZERO = np.where(B32 == 0, 7, B32).astype(np.uint32)
SNONZERO = np.where(T32 == 0, -7, T32).astype(np.int32)
INTEGER_CASES: list[tuple[str, str, list[tuple[str, Array]], Array]] = [
    ("add.u32 {0}, {1}, {2};", "u32", [U, V], A32 + B32),
    ("sub.s64 {0}, {1}, {2};", "u64", [("u64", A64), ("u64", B64)], A64 - B64),
    ("add.s16 {0}, {1}, {2};", "u16", [("u16", A16), ("u16", A16)], A16 + A16),
    ("mul.lo.s32 {0}, {1}, {2};", "u32", [U, V], A32 * B32),
    ("mul.hi.u32 {0}, {1}, {2};", "u32", [U, V], _python(lambda x, y: x * y >> 32, 32, A32, B32)),
    (
        "mul.hi.s32 {0}, {1}, {2};",
        "u32",
        [("s32", S32), ("s32", T32)],
        _python(lambda x, y: x * y >> 32, 32, S32, T32),
    ),
    (
        "mul.hi.u64 {0}, {1}, {2};",
        "u64",
        [("u64", A64), ("u64", B64)],
        _python(lambda x, y: x * y >> 64, 64, A64, B64),
    ),
    (
        "mul.hi.s64 {0}, {1}, {2};",
        "u64",
        [("s64", S64), ("s64", B64.view(np.int64))],
        _python(lambda x, y: x * y >> 64, 64, S64, B64.view(np.int64)),
    ),
    (
        "mul.wide.s32 {0}, {1}, {2};",
        "u64",
        [("s32", S32), ("s32", T32)],
        _python(lambda x, y: x * y, 64, S32, T32),
    ),
    ("mad.lo.s32 {0}, {1}, {2}, {3};", "u32", [U, V, ("u32", C32)], A32 * B32 + C32),
    (
        "mad.wide.u32 {0}, {1}, {2}, {3};",
        "u64",
        [U, V, ("u64", A64)],
        _python(lambda x, y, z: x * y + z, 64, A32, B32, A64),
    ),
    ("div.u32 {0}, {1}, {2};", "u32", [U, ("u32", NONZERO)], A32 // NONZERO),
    (
        "div.s32 {0}, {1}, {2};",
        "u32",
        [("s32", S32), ("s32", SNONZERO)],
        _python(_trunc_div, 32, S32, SNONZERO),
    ),
    (
        "rem.s32 {0}, {1}, {2};",
        "u32",
        [("s32", S32), ("s32", SNONZERO)],
        _python(lambda x, y: x - y * _trunc_div(x, y), 32, S32, SNONZERO),
    ),
    ("min.s32 {0}, {1}, {2};", "s32", [("s32", S32), ("s32", T32)], np.minimum(S32, T32)),
    ("max.u32 {0}, {1}, {2};", "u32", [U, V], np.maximum(A32, B32)),
    ("abs.s32 {0}, {1};", "s32", [("s32", S32)], np.abs(S32)),
    ("neg.s32 {0}, {1};", "s32", [("s32", S32)], -S32),
    ("and.b32 {0}, {1}, 0x0F0F0F0F;", "u32", [U], A32 & np.uint32(0x0F0F0F0F)),
    ("or.b64 {0}, {1}, {2};", "u64", [("u64", A64), ("u64", B64)], A64 | B64),
    ("xor.b32 {0}, {1}, -1;", "u32", [U], ~A32),
    ("not.b16 {0}, {1};", "u16", [("u16", A16)], ~A16),
    (
        "shl.b32 {0}, {1}, {2};",
        "u32",
        [U, ("u32", SHIFT)],
        _python(lambda x, n: x << n, 32, A32, SHIFT),
    ),
    (
        "shr.u64 {0}, {1}, {2};",
        "u64",
        [("u64", A64), ("u32", SHIFT)],
        _python(lambda x, n: x >> n, 64, A64, SHIFT),
    ),
    (
        "shr.s32 {0}, {1}, {2};",
        "u32",
        [("s32", S32), ("u32", SHIFT)],
        _python(lambda x, n: x >> n, 32, S32, SHIFT),
    ),
    (
        "shf.l.wrap.b32 {0}, {1}, {2}, {3};",
        "u32",
        [U, V, ("u32", SHIFT)],
        _python(lambda x, y, n: (y << 32 | x) << (n & 31) >> 32, 32, A32, B32, SHIFT),
    ),
    (
        "shf.r.clamp.b32 {0}, {1}, {2}, {3};",
        "u32",
        [U, V, ("u32", SHIFT)],
        _python(lambda x, y, n: (y << 32 | x) >> min(n, 32), 32, A32, B32, SHIFT),
    ),
    ("popc.b32 {0}, {1};", "u32", [U], _python(int.bit_count, 32, A32)),
    ("popc.b64 {0}, {1};", "u32", [("u64", A64)], _python(int.bit_count, 32, A64)),
    ("clz.b32 {0}, {1};", "u32", [U], _python(lambda x: 32 - x.bit_length(), 32, A32)),
    ("clz.b64 {0}, {1};", "u32", [("u64", A64)], _python(lambda x: 64 - x.bit_length(), 32, A64)),
    ("bfind.u32 {0}, {1};", "u32", [U], _python(lambda x: x.bit_length() - 1, 32, A32)),
    ("brev.b32 {0}, {1};", "u32", [U], _python(lambda x: int(f"{x:032b}"[::-1], 2), 32, A32)),
    (
        "bfe.u32 {0}, {1}, {2}, {3};",
        "u32",
        [U, ("u32", SMALL), ("u32", SMALL[::-1].copy())],
        _python(_bfe, 32, A32, SMALL, SMALL[::-1]),
    ),
    (
        "bfe.s32 {0}, {1}, 5, 9;",
        "u32",
        [("s32", S32)],
        _python(lambda x: _signed((x & 0xFFFFFFFF) >> 5 & 511, 9), 32, S32),
    ),
    (
        "bfi.b32 {0}, {1}, {2}, 7, 12;",
        "u32",
        [U, V],
        _python(lambda x, y: y & ~(0xFFF << 7) | (x & 0xFFF) << 7, 32, A32, B32),
    ),
    (
        "bfi.b64 {0}, {1}, {2}, 32, 32;",
        "u64",
        [("u64", A64), ("u64", B64)],
        _python(lambda x, y: y & 0xFFFFFFFF | x << 32, 64, A64, B64),
    ),
    (
        "prmt.b32 {0}, {1}, {2}, {3};",
        "u32",
        [U, V, ("u32", C32)],
        _python(_prmt, 32, A32, B32, C32),
    ),
    (
        "lop3.b32 {0}, {1}, {2}, {3}, 0xEA;",
        "u32",
        [U, V, ("u32", C32)],
        (A32 & B32) | C32,
    ),
    (
        "dp4a.u32.s32 {0}, {1}, {2}, {3};",
        "u32",
        [U, V, ("s32", S32)],
        _python(lambda x, y, z: _dot(x, y, z, False), 32, A32, B32, S32),
    ),
    (
        "dp4a.s32.s32 {0}, {1}, {2}, {3};",
        "u32",
        [U, V, ("s32", S32)],
        _python(lambda x, y, z: _dot(x, y, z, True), 32, A32, B32, S32),
    ),
    ("setp.lt.s32 {0}, {1}, {2};", "pred", [("s32", S32), ("s32", T32)], S32 < T32),
    ("setp.ge.u64 {0}, {1}, {2};", "pred", [("u64", A64), ("u64", B64)], A64 >= B64),
    (
        "setp.eq.s32 %p2, {1}, {1}; setp.gt.and.s32 {0}, {1}, {2}, !%p2;",
        "pred",
        [("s32", S32), ("s32", T32)],
        np.zeros(N, bool),
    ),
    (
        "setp.lt.u32 %p3, {1}, {2}; selp.b32 {0}, {1}, {2}, %p3;",
        "u32",
        [U, V],
        np.minimum(A32, B32),
    ),
    (
        "{{ .reg .b32 lo, hi; mov.b64 {{lo, hi}}, {1}; mov.b64 {0}, {{hi, lo}}; }}",
        "u64",
        [("u64", A64)],
        (A64 << np.uint64(32)) | (A64 >> np.uint64(32)),
    ),
    (
        "add.cc.u32 %r40, {1}, {2}; addc.u32 {0}, {1}, 0;",
        "u32",
        [U, V],
        _python(lambda x, y: x + (x + y >> 32), 32, A32, B32),
    ),
    (
        "mad.lo.cc.u32 %r40, {1}, {2}, {3}; madc.hi.u32 {0}, {1}, {2}, 0;",
        "u32",
        [U, V, ("u32", C32)],
        _python(lambda x, y, z: x * y + z >> 32, 32, A32, B32, C32),
    ),
    (
        "sub.cc.u32 %r40, {1}, {2}; subc.u32 {0}, 0, 0;",
        "u32",
        [U, V],
        _python(lambda x, y: -1 if x < y else 0, 32, A32, B32),
    ),
    ("cvt.s64.s32 {0}, {1};", "s64", [("s32", S32)], S32.astype(np.int64)),
    ("cvt.u32.u64 {0}, {1};", "u32", [("u64", A64)], A64.astype(np.uint32)),
    ("cvt.s32.s8 {0}, {1};", "s32", [("s32", S32)], S32.astype(np.int8).astype(np.int32)),
    ("cvt.u16.u8 {0}, {1};", "u16", [U], (A32 & np.uint32(255)).astype(np.uint16)),
    ("cvt.sat.s8.s32 {0}, {1};", "s32", [("s32", S32)], np.clip(S32, -128, 127)),
    ("cvt.rni.s32.f32 {0}, {1};", "s32", [("f32", F)], _f32_to_int(F, np.rint, np.int32)),
    ("cvt.rzi.u32.f32 {0}, {1};", "u32", [("f32", F)], _f32_to_int(F, np.trunc, np.uint32)),
    (
        "cvt.rmi.s64.f64 {0}, {1};",
        "s64",
        [("f64", D[6:].repeat(2)[:N])],
        np.floor(D[6:].repeat(2)[:N]).astype(np.int64),
    ),
]


@pytest.mark.parametrize("case", INTEGER_CASES, ids=lambda c: c[0].split("{")[0].strip() + c[1])
def test_integer_instructions(case: Any) -> None:
    text, result, operands, expected = case
    np.testing.assert_array_equal(compute(text, result, *operands), expected)


def _fma(x: Array, y: Array, z: Array) -> Array:
    return (x.astype(np.float64) * y + z).astype(x.dtype)


with np.errstate(all="ignore"):
    FLOAT_CASES: list[tuple[str, str, list[tuple[str, Array]], Array]] = [
        ("add.rn.f32 {0}, {1}, {2};", "f32", [("f32", F), ("f32", G)], F + G),
        ("sub.f64 {0}, {1}, {2};", "f64", [("f64", D), ("f64", E)], D - E),
        ("mul.rn.f32 {0}, {1}, 0f40000000;", "f32", [("f32", F)], F * np.float32(2)),
        (
            "fma.rn.f32 {0}, {1}, {2}, {3};",
            "f32",
            [("f32", F), ("f32", G), ("f32", H)],
            _fma(F, G, H),
        ),
        ("div.rn.f32 {0}, {1}, {2};", "f32", [("f32", F), ("f32", G)], F / G),
        ("min.f32 {0}, {1}, {2};", "f32", [("f32", F), ("f32", G)], np.fmin(F, G)),
        ("max.NaN.f32 {0}, {1}, {2};", "f32", [("f32", F), ("f32", G)], np.maximum(F, G)),
        ("abs.f32 {0}, {1};", "f32", [("f32", F)], np.abs(F)),
        ("neg.f32 {0}, {1};", "f32", [("f32", F)], -F),
        ("copysign.f32 {0}, {1}, {2};", "f32", [("f32", F), ("f32", G)], np.copysign(G, F)),
        ("sqrt.rn.f32 {0}, {1};", "f32", [("f32", F)], np.sqrt(F)),
        (
            "rsqrt.approx.f32 {0}, {1};",
            "f32",
            [("f32", F)],
            (1 / np.sqrt(F.astype(np.float64))).astype(np.float32),
        ),
        ("rcp.approx.ftz.f32 {0}, {1};", "f32", [("f32", F)], 1 / F),
        (
            "ex2.approx.f32 {0}, {1};",
            "f32",
            [("f32", F)],
            np.exp2(F.astype(np.float64)).astype(np.float32),
        ),
        (
            "lg2.approx.f32 {0}, {1};",
            "f32",
            [("f32", F)],
            np.log2(F.astype(np.float64)).astype(np.float32),
        ),
        (
            "tanh.approx.f32 {0}, {1};",
            "f32",
            [("f32", F)],
            np.tanh(F.astype(np.float64)).astype(np.float32),
        ),
        (
            "sin.approx.f32 {0}, {1};",
            "f32",
            [("f32", F)],
            np.sin(F.astype(np.float64)).astype(np.float32),
        ),
        ("cvt.rn.f16.f32 {0}, {1};", "f16", [("f32", F)], F.astype(np.float16)),
        ("cvt.f32.f16 {0}, {1};", "f32", [("f16", HALF)], HALF.astype(np.float32)),
        ("cvt.rn.f32.s32 {0}, {1};", "f32", [("s32", S32)], S32.astype(np.float32)),
        ("cvt.rn.f32.u64 {0}, {1};", "f32", [("u64", A64)], A64.astype(np.float32)),
        ("cvt.rn.f32.f64 {0}, {1};", "f32", [("f64", D)], D.astype(np.float32)),
        ("cvt.f64.f32 {0}, {1};", "f64", [("f32", F)], F.astype(np.float64)),
        ("cvt.rmi.f32.f32 {0}, {1};", "f32", [("f32", F)], np.floor(F)),
        ("cvt.sat.f32.f32 {0}, {1};", "f32", [("f32", F)], np.clip(np.nan_to_num(F), 0, 1)),
        (
            "{{ .reg .b16 l, h; mov.b32 {{l, h}}, {1}; cvt.f32.f16 {0}, h; }}",
            "f32",
            [("u32", A32 & np.uint32(0x7BFF7BFF))],
            (A32 & np.uint32(0x7BFF7BFF)).view(np.float16)[1::2].astype(np.float32),
        ),
        ("mul.f16 {0}, {1}, {2};", "f16", [("f16", HALF), ("f16", HALVES)], HALF * HALVES),
        (
            "fma.rn.f16 {0}, {1}, {2}, {2};",
            "f16",
            [("f16", HALF), ("f16", HALVES)],
            _fma(HALF, HALVES, HALVES),
        ),
        ("setp.lt.f32 {0}, {1}, {2};", "pred", [("f32", F), ("f32", G)], F < G),
        ("setp.ltu.f32 {0}, {1}, {2};", "pred", [("f32", F), ("f32", G)], ~(F >= G)),
        ("setp.ne.f32 {0}, {1}, {2};", "pred", [("f32", F), ("f32", G)], (F < G) | (F > G)),
        ("setp.neu.f32 {0}, {1}, {2};", "pred", [("f32", F), ("f32", G)], F != G),
        (
            "setp.num.f32 {0}, {1}, {2};",
            "pred",
            [("f32", F), ("f32", G)],
            ~(np.isnan(F) | np.isnan(G)),
        ),
    ]


@pytest.mark.parametrize("case", FLOAT_CASES, ids=lambda c: c[0].split("{")[0].strip() + c[1])
def test_float_instructions(case: Any) -> None:
    text, result, operands, expected = case
    np.testing.assert_array_equal(compute(text, result, *operands), expected)


def test_rounding_modes() -> None:
    exact = F[6:].astype(np.float64) * G[6:]
    for mode, holds in (("rm", np.less_equal), ("rp", np.greater_equal)):
        text = f"mul.{mode}.f32 {{0}}, {{1}}, {{2}};"
        rounded = compute(text, "f32", ("f32", F), ("f32", G))[6:]
        rounded, values = rounded[np.isfinite(exact)], exact[np.isfinite(exact)]
        assert holds(rounded, values).all() and (rounded != values).any()
        assert (np.abs(rounded - values) <= np.spacing(np.abs(rounded))).all()


def test_packed_halves_and_bf16() -> None:
    x, y = HALF[:N].repeat(2).view(np.uint32), HALVES.repeat(2).view(np.uint32)
    result = compute("fma.rn.f16x2 {0}, {1}, {2}, {1};", "u32", ("u32", x), ("u32", y))
    with np.errstate(all="ignore"):
        expected = _fma(HALF, HALVES, HALF)
    np.testing.assert_array_equal(result.view(np.float16)[::2], expected)

    bits = compute("cvt.rn.bf16.f32 {0}, {1};", "u16", ("f32", F))
    np.testing.assert_array_equal(bits[:5], F[:5].view(np.uint32) >> 16)
    assert np.abs(bf16_to_f32(bits)[6:] / F[6:] - 1).max() <= 2.0**-8
    np.testing.assert_array_equal(
        compute("cvt.f32.bf16 {0}, {1};", "f32", ("u16", bits))[6:], bf16_to_f32(bits)[6:]
    )
    pair = compute("cvt.rn.bf16x2.f32 {0}, {1}, {2};", "u32", ("f32", F), ("f32", G))
    np.testing.assert_array_equal(pair & 0xFFFF, f32_to_bf16(G))
    np.testing.assert_array_equal(pair >> 16, f32_to_bf16(F))


# Memory


def test_vectors_of_memory_and_all_spaces() -> None:
    """Data through registers, shared and local memory, and generic addresses of each."""
    x = RNG.integers(0, 1 << 32, 4 * N, np.uint32)
    code = assemble(
        """
        .local .align 16 .b8 depot[32];
        mad.lo.u64 %d10, %d0, 16, %d2;
        ld.global.nc.v4.u32 {%r10, %r11, %r12, %r13}, [%d10];
        mov.u64 %d11, depot; cvta.local.u64 %d12, %d11;
        st.local.v2.u32 [%d11+16], {%r10, %r11};
        ld.v2.u32 {%r14, %r15}, [%d12+16];
        mov.u64 %d13, smem; shl.b64 %d14, %d0, 3; add.u64 %d13, %d13, %d14;
        st.shared.v2.b32 [%d13], {%r12, %r13};
        cvta.shared.u64 %d15, %d13;
        bar.sync 0;
        ld.u32 %r16, [%d15+4]; ld.shared.u32 %r17, [%d13];
        mad.lo.u64 %d16, %d0, 16, %d1;
        st.global.v4.u32 [%d16], {%r14, %r15, %r17, %r16};
        """,
        2,
        outside=f".shared .align 8 .b8 smem[{8 * N}];",
    )
    out, _ = run(code, [np.zeros_like(x), x])
    np.testing.assert_array_equal(out, x)


def test_constants_in_memory() -> None:
    outside = ".global .align 4 .b8 table[8] = {1, 2, 3, 4, 5, 6, 7, 8};"
    code = assemble(
        "mov.u64 %d10, table; ld.global.u32 %r10, [%d10+4]; st.global.u32 [%d1], %r10;",
        1,
        outside=outside,
    )
    (out,) = run(code, [np.zeros(1, np.uint32)])
    assert out[0] == 0x08070605


@pytest.mark.parametrize("space", ["global", "shared"])
def test_atomics_of_lanes_with_equal_addresses(space: str) -> None:
    """Each lane gets a value of its own, and the sum is whole."""
    target = "%d1" if space == "global" else "%d20"
    code = assemble(
        f"""
        mov.u64 %d20, smem; setp.eq.u32 %p1, %r0, 0;
        mov.u32 %r19, 0; @%p1 st.shared.u32 [%d20], %r19; bar.sync 0;
        atom.{space}.add.u32 %r10, [{target}], 3;
        red.{space}.max.s32 [{target}+4], %r0;
        bar.sync 0;
        mad.lo.u64 %d10, %d0, 4, %d2; st.global.u32 [%d10], %r10;
        """,
        2,
        outside=".shared .align 4 .b8 smem[8];",
    )
    total, seen = run(code, [np.zeros(2, np.uint32), np.zeros(2 * N, np.uint32)], blocks=2)
    if space == "global":
        assert list(total) == [6 * N, N - 1]
        assert sorted(seen) == list(range(0, 6 * N, 3))
    else:
        assert sorted(seen[:N]) == list(range(0, 3 * N, 3)) == sorted(seen[N:])


def test_compare_and_swap() -> None:
    code = assemble(
        "add.u32 %r11, %r0, 1; atom.global.cas.b32 %r10, [%d1], %r0, %r11;"
        "mad.lo.u64 %d10, %d0, 4, %d2; st.global.u32 [%d10], %r10;",
        2,
    )
    end, seen = run(code, [np.zeros(1, np.uint32), np.zeros(N, np.uint32)])
    assert end[0] == N
    np.testing.assert_array_equal(seen, np.arange(N))


def test_copies_arrive_at_the_wait() -> None:
    """Data of cp.async are not there before the wait for their group."""
    x = RNG.integers(0, 1 << 32, 8 * N, np.uint32)

    def code(wait: str) -> bytes:
        return assemble(
            f"""
            mov.u64 %d10, smem; mad.lo.u64 %d10, %d0, 32, %d10; mad.lo.u64 %d11, %d0, 32, %d2;
            cp.async.cg.shared.global [%d10], [%d11], 16; cp.async.commit_group;
            cp.async.ca.shared.global [%d10+16], [%d11+16], 16, 8; cp.async.commit_group;
            {wait}
            ld.shared.v4.u32 {{%r10, %r11, %r12, %r13}}, [%d10];
            ld.shared.v4.u32 {{%r14, %r15, %r16, %r17}}, [%d10+16];
            mad.lo.u64 %d12, %d0, 32, %d1;
            st.global.v4.u32 [%d12], {{%r10, %r11, %r12, %r13}};
            st.global.v4.u32 [%d12+16], {{%r14, %r15, %r16, %r17}};
            """,
            2,
            outside=f".shared .align 16 .b8 smem[{32 * N}];",
        )

    expected = x.reshape(N, 8).copy()
    expected[:, 6:] = 0
    for wait in ("cp.async.wait_all;", "cp.async.wait_group 0;"):
        out = run(code(wait), [np.zeros_like(x), x])[0].reshape(N, 8)
        np.testing.assert_array_equal(out, expected)
    out = run(code("cp.async.wait_group 1;"), [np.zeros_like(x), x])[0].reshape(N, 8)
    np.testing.assert_array_equal(out[:, :4], expected[:, :4])
    assert (out[:, 4:] == 0xFFFFFFFF).all()


def test_copies_of_another_warp_need_a_barrier_after_the_wait() -> None:
    def code(before: str, after: str) -> bytes:
        return assemble(
            f"""
            mov.u64 %d10, smem; mad.lo.u64 %d11, %d0, 16, %d10; mad.lo.u64 %d12, %d0, 16, %d1;
            cp.async.cg.shared.global [%d11], [%d12], 16; {before} cp.async.wait_all; {after}
            sub.u64 %d13, 63, %d0; mad.lo.u64 %d13, %d13, 16, %d10;
            ld.shared.u32 %r10, [%d13]; st.global.u32 [%d12], %r10;
            """,
            1,
            outside=".shared .align 16 .b8 smem[1024];",
        )

    x = np.arange(256, dtype=np.uint32)
    (out,) = run(code("", "bar.sync 0;"), [x], threads=64)
    np.testing.assert_array_equal(out[::4], x[::-4] - 3)
    with pytest.raises(KernelFault, match="race: it reads"):
        run(code("bar.sync 0;", ""), [x], threads=64)


# Lanes


def _lanes(text: str, x: Array, threads: int = N) -> Array:
    """%r10 is x of the lane; %r20 is the result."""
    code = assemble(
        f"""
        mad.lo.u64 %d10, %d0, 4, %d2; ld.global.u32 %r10, [%d10]; mov.u32 %r11, %laneid;
        {text}
        mad.lo.u64 %d11, %d0, 4, %d1; st.global.u32 [%d11], %r20;
        """,
        2,
    )
    return run(code, [np.zeros_like(x), x], threads=threads)[0]


@pytest.mark.parametrize(
    ("text", "source"),
    [
        ("shfl.sync.bfly.b32 %r20|%p1, %r10, 5, 31, -1;", lambda i: i ^ 5),
        ("shfl.sync.up.b32 %r20, %r10, 3, 0, -1;", lambda i: i - 3 if i >= 3 else i),
        ("shfl.sync.down.b32 %r20, %r10, 4, 31, -1;", lambda i: i + 4 if i < 28 else i),
        ("shfl.sync.idx.b32 %r20, %r10, 7, 31, -1;", lambda i: 7),
        ("shfl.sync.down.b32 %r20, %r10, 2, 0x1807, -1;", lambda i: i + 2 if i % 8 < 6 else i),
        ("sub.u32 %r12, 31, %r11; shfl.sync.idx.b32 %r20, %r10, %r12, 31, -1;", lambda i: 31 - i),
    ],
)
def test_shuffles(text: str, source: Any) -> None:
    expected = [A32[32 * (i // 32) + source(i % 32)] for i in range(N)]
    np.testing.assert_array_equal(_lanes(text, A32), expected)


def test_votes_and_matches() -> None:
    x = (np.arange(N, dtype=np.uint32) * 7) % 5
    warps = x.reshape(-1, 32)
    odd = "and.b32 %r13, %r10, 1; setp.eq.u32 %p1, %r13, 1;"
    ballot = [(np.uint64(1) << np.flatnonzero(w % 2).astype(np.uint64)).sum() for w in warps]
    np.testing.assert_array_equal(
        _lanes(odd + "vote.sync.ballot.b32 %r20, %p1, -1;", x)[::32], ballot
    )
    text = odd + "vote.sync.any.pred %p2, %p1, -1; selp.u32 %r20, 1, 0, %p2;"
    assert _lanes(text, x).all() and not _lanes(text, x * np.uint32(2)).any()
    text = odd + "vote.sync.all.pred %p2, !%p1, -1; selp.u32 %r20, 1, 0, %p2;"
    assert not _lanes(text, x).any() and _lanes(text, x * np.uint32(2)).all()
    match = [sum(1 << k for k in range(32) if w[k] == w[i]) for w in warps for i in range(32)]
    np.testing.assert_array_equal(_lanes("match.any.sync.b32 %r20, %r10, -1;", x), match)
    np.testing.assert_array_equal(
        _lanes("redux.sync.add.s32 %r20, %r10, -1;", x), warps.sum(1).repeat(32)
    )
    # Half of the lanes, in a branch of their own.
    text = """
        mov.u32 %r20, 0; setp.ge.u32 %p3, %r11, 16; @%p3 bra AFTER;
        shfl.sync.bfly.b32 %r20, %r10, 8, 31, 0xFFFF;
        AFTER: add.u32 %r20, %r20, 0;
    """
    expected = np.where(np.arange(N) % 32 < 16, x[np.arange(N) ^ 8], 0)
    np.testing.assert_array_equal(_lanes(text, x), expected)


def test_divergent_loops_meet_again() -> None:
    """Each lane runs a loop of its own length, and all meet at a barrier after it."""
    text = """
        mov.u32 %r20, 0; mov.u32 %r21, 0;
        LOOP: setp.ge.u32 %p1, %r21, %r10; @%p1 bra DONE;
        add.u32 %r20, %r20, %r21; add.u32 %r21, %r21, 1; bra LOOP;
        DONE: bar.sync 0; shfl.sync.bfly.b32 %r20, %r20, 1, 31, -1;
    """
    x = RNG.integers(0, 20, N, np.uint32)
    expected = (x * (x - np.uint32(1)) // 2 * (x > 0))[np.arange(N) ^ 1]
    np.testing.assert_array_equal(_lanes(text, x), expected)


def test_barriers_that_count() -> None:
    text = "setp.lt.u32 %p1, %r10, 3; bar.red.popc.u32 %r20, 0, %p1;"
    x = np.arange(80, dtype=np.uint32) % 7
    assert (_lanes(text, x, threads=80) == np.count_nonzero(x < 3)).all()


def _fragment(x: Array, each: int) -> Array:
    """Registers [register, lane] of a left operand [m, k], by the PTX manual's drawing."""
    m, k = x.shape
    registers = []
    for column in range(0, k, 4 * each):
        for row in range(0, m, 8):
            part = np.ascontiguousarray(x[row : row + 8, column : column + 4 * each])
            registers.append(part.view(np.uint32).reshape(-1))
    return np.array(registers)


@pytest.mark.parametrize(
    ("shape", "kinds", "dtype"),
    [
        ("m16n8k16", "f32.f16.f16.f32", np.float16),
        ("m16n8k8", "f32.f16.f16.f32", np.float16),
        ("m16n8k16", "f32.bf16.bf16.f32", np.uint16),
        ("m16n8k32", "s32.s8.s8.s32", np.int8),
        ("m16n8k16", "s32.s8.s8.s32", np.int8),
        ("m8n8k16", "s32.u8.s8.s32", np.int8),
    ],
)
def test_mma(shape: str, kinds: str, dtype: Any) -> None:
    m, k = int(shape[1:].split("n")[0]), int(shape.split("k")[1])
    rng = np.random.default_rng(1)
    integer = kinds.startswith("s32")
    if dtype == np.float16:
        a, b = (rng.standard_normal(s).astype(dtype) for s in ((m, k), (k, 8)))
        fa, fb = a.astype(np.float64), b.astype(np.float64)
    elif integer:
        a, b = (rng.integers(-128, 128, s).astype(dtype) for s in ((m, k), (k, 8)))
        fa, fb = (a.view(np.uint8) if "u8" in kinds else a).astype(int), b.astype(int)
    else:
        a, b = (f32_to_bf16(rng.standard_normal(s).astype(np.float32)) for s in ((m, k), (k, 8)))
        fa, fb = bf16_to_f32(a).astype(np.float64), bf16_to_f32(b).astype(np.float64)
    out = np.float32 if not integer else np.int32
    c = rng.integers(-50, 50, (m, 8)).astype(out)
    each = 4 // a.dtype.itemsize
    left, right = _fragment(a, each), _fragment(np.ascontiguousarray(b.T), each)
    start = np.stack(
        [
            c.reshape(m // 8, 8, 4, 2)[i, :, :, j].reshape(-1)
            for i in range(m // 8)
            for j in range(2)
        ]
    )
    body, operands = "", []
    for operand, (matrix, first) in enumerate(((left, 10), (right, 20), (start, 30))):
        for r in range(len(matrix)):
            body += f"mad.lo.u64 %d20, %d0, 4, %d{operand + 2};"
            body += f"ld.global.b32 %r{first + r}, [%d20+{128 * r}];\n"
        operands.append("{" + ", ".join(f"%r{first + r}" for r in range(len(matrix))) + "}")
    results = "{" + ", ".join(f"%r{40 + r}" for r in range(len(start))) + "}"
    body += f"mma.sync.aligned.{shape}.row.col.{kinds} {results}, {', '.join(operands)};\n"
    for r in range(len(start)):
        body += f"mad.lo.u64 %d20, %d0, 4, %d1; st.global.b32 [%d20+{128 * r}], %r{40 + r};\n"
    result = run(assemble(body, 4), [np.zeros_like(start), left, right, start], threads=32)[0]
    expected = (fa @ fb + c).astype(out)
    got = np.stack(
        [result[2 * (i // 8) + j % 2][4 * (i % 8) + j // 2] for i in range(m) for j in range(8)]
    ).reshape(m, 8)
    np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("n", [1, 2, 4])
@pytest.mark.parametrize("transposed", [False, True])
def test_ldmatrix(n: int, transposed: bool) -> None:
    x = np.arange(4 * 64, dtype=np.uint16).reshape(4, 8, 8)
    registers = ", ".join(f"%r{10 + i}" for i in range(n))
    stores = "".join(f"st.global.u32 [%d12+{128 * i}], %r{10 + i};" for i in range(n))
    code = assemble(
        f"""
        mov.u64 %d10, smem; mad.lo.u64 %d10, %d0, 16, %d10; mad.lo.u64 %d11, %d0, 16, %d2;
        ld.global.v2.u64 {{%d20, %d21}}, [%d11]; st.shared.v2.u64 [%d10], {{%d20, %d21}};
        bar.warp.sync -1;
        ldmatrix.sync.aligned.m8n8.x{n}{".trans" if transposed else ""}.shared.b16
            {{{registers}}}, [%d10];
        mad.lo.u64 %d12, %d0, 4, %d1; {stores}
        """,
        2,
        outside=".shared .align 16 .b8 smem[512];",
    )
    out = run(code, [np.zeros((n, 8, 4, 2), np.uint16), x], threads=32)[0]
    expected = x.transpose(0, 2, 1) if transposed else x
    np.testing.assert_array_equal(out.reshape(n, 8, 8), expected[:n])


# What it must find


def _fault(body: str, match: str, **more: Any) -> None:
    with pytest.raises(KernelFault, match=match):
        run(assemble(body, 1), [np.zeros(N, np.uint32)], **more)


def test_faults_say_where() -> None:
    """Kernel, instruction, block, thread and address, of accesses outside and misaligned."""
    load = "mad.lo.u64 %d10, %d0, 4, %d1; ld.global.u32 %r10, [%d10];"
    _fault(
        load, r"k: access .* byte 384 of .*'ld\.global\.u32.*block \(1, 0, 0\), thread 0", blocks=2
    )
    _fault("add.u64 %d10, %d1, 2; st.global.u32 [%d10], %r0;", "4 bytes .* not aligned.*thread 0")
    _fault("mov.u64 %d10, 64; ld.global.u32 %r10, [%d10];", "before all allocations")
    _fault("mov.u64 %d10, 0; ld.shared.u32 %r10, [%d10];", "byte 0 of 0 of shared memory")
    _fault("frob.b32 %r10, %r11;", "it is not emulated: 'frob")
    _fault("add.u32 %r10, %r11, %q1;", "register %q1 is not emulated")


def test_divergence_is_found() -> None:
    half = "setp.lt.u32 %p1, %r0, 40; @%p1 bra ONE; "
    _fault(
        half + "bar.sync 0; bra END; ONE: bar.sync 0; END: mov.u32 %r10, 0;",
        "divergent barrier: 'bar.sync 0' has (40|56) threads",
    )
    lane = "mov.u32 %r11, %laneid; setp.lt.u32 %p1, %r11, 16; @%p1 bra ONE; "
    _fault(
        lane + "shfl.sync.idx.b32 %r10, %r0, 0, 31, 0xFFFF0000; ONE: mov.u32 %r10, 0;",
        "shuffle from a lane that takes no part",
    )
    _fault(
        lane + "shfl.sync.idx.b32 %r10, %r0, 0, 31, 0xFFFF; ONE: mov.u32 %r10, 0;",
        "not in its own mask",
    )
    _fault(
        lane + "vote.sync.any.pred %p2, %p1, -1; bra END; ONE: bar.sync 0; END: membar.cta;",
        "divergent barrier",
    )


def test_shared_memory_starts_as_nan_and_is_of_a_block() -> None:
    code = assemble(
        "mov.u64 %d10, smem; ld.shared.f32 %r10, [%d10]; bar.sync 0; st.shared.u32 [%d10], %r1;"
        "mad.lo.u64 %d11, %d0, 4, %d1; st.global.u32 [%d11], %r10;",
        1,
        outside=".extern .shared .align 4 .b8 smem[];",
    )
    (out,) = run(code, [np.zeros(3 * N, np.float32)], blocks=3, shared=16)
    assert np.isnan(out).all()
