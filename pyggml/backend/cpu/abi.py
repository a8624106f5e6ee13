"""The record that a kernel reads: one node of a program as int64 words, and how to read it.

    class Scale(NamedTuple):                       # the op parameters of one kernel
        s: float                                   # float32 in the kernel; ints are int64

    @kernel
    def scale_f32(node, chunk, n_chunks, scratch):
        n, s = ne(node, DST, 0), params_of(node, Scale).s
        x, y = f32_ptr(data(node, SRC0)), f32_ptr(data(node, DST))

    lowering.launch(scale_f32, node, Scale(s=2.0))      # in a lowering

Words: 0 the address of the error slot, 1..15 op parameters in the order of the fields (integers,
addresses, or the bits of a float64), then nine words for the result and for each source: data,
ne[4], nb[4]. A missing optional source has data 0. Kernels may be called for any chunk in any order
and on any thread; chunks of one node never write the same byte. ``scratch`` is memory of the
calling thread.
Everything but ``record`` is for jitted code.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from struct import Struct
from typing import Any, NamedTuple, get_type_hints

import numpy as np
import numpy.typing as npt
from llvmlite import ir
from numba import types
from numba.extending import infer_getattr, lower_getattr_generic, models, register_model

from ...compiler.jit import inline, intrinsic_from_ir
from ...compiler.numba_internals import templates
from ...compiler.pointers import f32_ptr as f32_ptr
from ...compiler.pointers import f64_ptr as f64_ptr
from ...compiler.pointers import i32_ptr as i32_ptr
from ...compiler.pointers import i64_ptr as i64_ptr
from ...compiler.pointers import u8_ptr as u8_ptr
from ...compiler.pointers import u16_ptr as u16_ptr
from ...tensor import Tensor

PARAMS = 1  # first word of the op parameters
N_PARAMS = 15
TENSORS = PARAMS + N_PARAMS
TENSOR_WORDS = 9
_FIRST = tuple(TENSORS + TENSOR_WORDS * i for i in range(11))
DST, SRC0, SRC1, SRC2, SRC3, SRC4, SRC5, SRC6, SRC7, SRC8, SRC9 = _FIRST
_MISSING = (0,) * TENSOR_WORDS

CODE_BITS = 8  # of the error slot; the others are the address of the record
BAD_INDEX, BAD_SCORE, BAD_VALUE = 1, 2, 3
ERRORS = {  # set_error's codes
    BAD_INDEX: "an index lies outside of its table",
    BAD_SCORE: "a sparse score is not a number",
    BAD_VALUE: "a value to quantize is NaN or infinite",
}

i8, i16, i32, i64 = (ir.IntType(n) for n in (8, 16, 32, 64))
f16, f32, f64 = ir.HalfType(), ir.FloatType(), ir.DoubleType()


def record(
    error_slot: int, params: NamedTuple, dst: Tensor, src: Sequence[Tensor | None]
) -> npt.NDArray[np.int64]:
    """The words of a record.

    Args:
        params: at most 15 numbers, which the kernel reads with ``params_of``.
    """
    values: list[int | float] = [error_slot, *params]
    for t in (dst, *src):
        values += (t.data, *t.ne, *t.nb) if t is not None else _MISSING
    words = np.empty(TENSORS + TENSOR_WORDS * (1 + len(src)), np.int64)
    _packer(type(params), 1 + len(src)).pack_into(words.data, 0, *values)
    return words


@cache
def _packer(fields: type, n_tensors: int) -> Struct:
    """The packer of a record's words; every float is stored as float64."""
    hints = field_types(fields).values()
    assert len(hints) <= N_PARAMS
    codes = "".join("q" if hint is int else "d" for hint in hints)
    unused = 8 * (N_PARAMS - len(hints))
    return Struct(f"=q{codes}{unused}x{TENSOR_WORDS * n_tensors}q")


@cache
def integer_places(fields: type) -> list[int]:
    """The word numbers of a NamedTuple's integers, some of which are addresses."""
    hints = field_types(fields).values()
    return [PARAMS + i for i, hint in enumerate(hints) if hint is int]


@cache
def field_types(fields: type) -> dict[str, Any]:
    """The type of each field of a NamedTuple: int, float or ``np.float64``."""
    return get_type_hints(fields)


_NUMBA_TYPES = {int: types.int64, float: types.float32, np.float64: types.float64}


class Params(types.Type):
    """Numba's type of a node whose op parameters are read as the fields of a NamedTuple."""

    def __init__(self, fields: type) -> None:
        self.fields = fields
        super().__init__(f"Params[{fields.__module__}.{fields.__qualname__}]")

    @property
    def key(self) -> type:
        return self.fields


@register_model(Params)
class _ParamsModel(models.PrimitiveModel):
    """An int64, the node's address; fields are loaded where they are read."""

    def __init__(self, dmm: Any, fe_type: Any) -> None:
        super().__init__(dmm, fe_type, i64)


@intrinsic_from_ir(typed=lambda node, fields: Params(fields.instance_class)(types.int64, fields))
def params_of(b: Any, node: Any, fields: Any) -> Any:
    """The op parameters of a node as a NamedTuple's fields: ``params_of(node, Scale).s``.

    An int is an int64, a float a float32, ``np.float64`` a float64.
    """
    return node


@infer_getattr
class _ParamsFields(templates.AttributeTemplate):
    key = Params

    def generic_resolve(self, typ: Any, attr: str) -> Any:
        return _NUMBA_TYPES.get(field_types(typ.fields).get(attr))


@lower_getattr_generic(Params)
def _load_field(context: Any, b: Any, typ: Any, node: Any, attr: str) -> Any:
    hint = field_types(typ.fields)[attr]
    place = ir.Constant(i64, PARAMS + typ.fields._fields.index(attr))
    address = b.add(node, b.shl(place, ir.Constant(i64, 3)))
    loaded = i64 if hint is int else f64
    value = b.load(b.inttoptr(address, loaded.as_pointer()))
    return b.fptrunc(value, f32) if hint is float else value


def _loader(numba_type: types.Type, llvm_type: ir.Type) -> Any:
    """An intrinsic that loads one value from an address of any alignment."""

    @intrinsic_from_ir(result=numba_type)
    def load(b: Any, address: Any) -> Any:
        value = b.load(b.inttoptr(address, llvm_type.as_pointer()))
        value.align = 1
        return value

    return load


load_i64 = _loader(types.int64, i64)
load_f32 = _loader(types.float32, f32)


@intrinsic_from_ir(result=types.float32, args=(types.int32,))
def bits_f32(b: Any, x: Any) -> Any:
    """The float32 that has these 32 bits."""
    return b.bitcast(x, f32)


@intrinsic_from_ir(result=types.int32, args=(types.float32,))
def f32_bits(b: Any, x: Any) -> Any:
    """The 32 bits of a float32."""
    return b.bitcast(x, i32)


def word_reader(first: int, n_places: int) -> Any:
    """An intrinsic that loads the int64 word with the number ``first`` plus its other arguments.

    An intrinsic, since a jitted function would be compiled for each literal argument.
    """

    def word(b: Any, node: Any, *places: Any) -> Any:
        number = ir.Constant(i64, first)
        for place in places:
            number = b.add(number, place)
        address = b.add(node, b.shl(number, ir.Constant(i64, 3)))
        return b.load(b.inttoptr(address, i64.as_pointer()))

    @intrinsic_from_ir(result=types.int64)
    def one(b: Any, node: Any, place: Any) -> Any:
        return word(b, node, place)

    @intrinsic_from_ir(result=types.int64)
    def two(b: Any, node: Any, place: Any, i: Any) -> Any:
        return word(b, node, place, i)

    return one if n_places == 1 else two


# Of a tensor (DST, SRC0, ...): the address of its first element, data(node, SRC0); its elements
# and its stride in bytes in dimension i, ne(node, SRC0, i).
data, ne, nb = word_reader(0, 1), word_reader(1, 2), word_reader(5, 2)


@inline
def nrows(node, tensor):
    """The number of rows of ``tensor``: the product of all dimensions but the first."""
    return ne(node, tensor, 1) * ne(node, tensor, 2) * ne(node, tensor, 3)


@inline
def row_address(node, tensor, row):
    """The address of row ``row`` (counted over dimensions 1 to 3) of a tensor with any strides."""
    ne1, ne2 = ne(node, tensor, 1), ne(node, tensor, 2)
    i1, rest = row % ne1, row // ne1
    i2, i3 = rest % ne2, rest // ne2
    return (
        data(node, tensor)
        + i1 * nb(node, tensor, 1)
        + i2 * nb(node, tensor, 2)
        + i3 * nb(node, tensor, 3)
    )


@inline
def first_row(rows, chunk, n_chunks):
    """The first row of a chunk, which ends before that of the next chunk."""
    return rows * chunk // n_chunks


@inline
def set_error(node, code):
    """Report a code of ``ERRORS``: the compute stops and raises it, with the node's name."""
    i64_ptr(load_i64(node))[0] = (node << CODE_BITS) | code
