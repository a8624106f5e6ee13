"""The record that a kernel reads: one node of a program as int64 words, and how to read it.

    @kernel
    def copy_f32(node, chunk, n_chunks, scratch):
        n = ne(node, DST, 0)
        x, y = f32_ptr(data(node, SRC0)), f32_ptr(data(node, DST))

Words: 0 the address of the error slot, 1..15 op parameters (integers, addresses, or the bits of a
float64), then nine words for the result and for each source: data, ne[4], nb[4]. A missing
optional source has data 0. Kernels may be called for any chunk in any order and on any thread;
chunks of one node never write the same byte. ``scratch`` is memory of the calling thread.
Every function here is for jitted code.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from ...jit import inline
from ...pointers import f32_ptr as f32_ptr
from ...pointers import f64_ptr as f64_ptr
from ...pointers import i32_ptr as i32_ptr
from ...pointers import i64_ptr as i64_ptr
from ...pointers import u8_ptr as u8_ptr
from ...pointers import u16_ptr as u16_ptr
from ...tensor import Tensor

PARAMS = 1  # first word of the op parameters
N_PARAMS = 15
TENSORS = PARAMS + N_PARAMS
TENSOR_WORDS = 9
DST, SRC0, SRC1, SRC2, SRC3, SRC4, SRC5, SRC6 = (TENSORS + TENSOR_WORDS * i for i in range(8))
N_HEADER = TENSORS + TENSOR_WORDS

BAD_INDEX, BAD_SCORE, BAD_VALUE = 1, 2, 3
ERRORS = {  # set_error's codes
    BAD_INDEX: "an index lies outside of its table (GET_ROWS, SET_ROWS, MUL_MAT_ID, ADD_ID)",
    BAD_SCORE: "a sparse score is not a number (MUL_MAT_SPARSE, AXPY)",
    BAD_VALUE: "a value to quantize is NaN or infinite",
}

i8, i16, i32, i64 = (ir.IntType(n) for n in (8, 16, 32, 64))
f16, f32, f64 = ir.HalfType(), ir.FloatType(), ir.DoubleType()


def record(
    error_slot: int, params: Sequence[int | float], dst: Tensor, src: Sequence[Tensor | None]
) -> npt.NDArray[np.int64]:
    """The words of one node.

    Args:
        params: at most 15 integers, or floats that the kernel reads with ``float_param``.
    """
    assert len(params) <= N_PARAMS
    words = np.zeros(TENSORS + TENSOR_WORDS * (1 + len(src)), np.int64)
    words[0] = error_slot
    for i, p in enumerate(params):
        words[PARAMS + i] = np.float64(p).view(np.int64) if isinstance(p, float) else p
    at = TENSORS
    for t in (dst, *src):
        if t is not None:
            words[at : at + TENSOR_WORDS] = (t.data, *t.ne, *t.nb)
        at += TENSOR_WORDS
    return words


def _loader(numba_type: types.Type, llvm_type: ir.Type) -> Any:
    """An intrinsic that loads one value from an address of any alignment."""

    @intrinsic
    def load(typingctx: Any, address: Any) -> Any:
        def codegen(context: Any, b: Any, sig: Any, args: Any) -> Any:
            value = b.load(b.inttoptr(args[0], llvm_type.as_pointer()))
            value.align = 1
            return value

        return numba_type(types.int64), codegen

    return load


load_i64 = _loader(types.int64, i64)
load_f64 = _loader(types.float64, f64)
load_i32 = _loader(types.int32, i32)
load_f32 = _loader(types.float32, f32)


@intrinsic
def bits_f32(typingctx: Any, x: Any) -> Any:
    """The float32 that has these 32 bits."""

    def codegen(context: Any, b: Any, sig: Any, args: Any) -> Any:
        return b.bitcast(args[0], f32)

    return types.float32(types.int32), codegen


@intrinsic
def f32_bits(typingctx: Any, x: Any) -> Any:
    """The 32 bits of a float32."""

    def codegen(context: Any, b: Any, sig: Any, args: Any) -> Any:
        return b.bitcast(args[0], i32)

    return types.int32(types.float32), codegen


def word_reader(first: int, n_places: int, numba_type: Any = types.int64) -> Any:
    """An intrinsic that loads a word: number ``first`` plus all arguments but the address.

    Places are literals mostly, for each of which Numba would compile a jitted function anew.
    """

    def codegen(context: Any, b: Any, sig: Any, args: Any) -> Any:
        node, *places = args
        word = ir.Constant(i64, first)
        for place in places:
            word = b.add(word, place)
        loaded = i64 if numba_type is types.int64 else f64
        address = b.add(node, b.shl(word, ir.Constant(i64, 3)))
        value = b.load(b.inttoptr(address, loaded.as_pointer()))
        return value if loaded is i64 else b.fptrunc(value, f32)

    signature = numba_type(*[types.int64] * (1 + n_places))

    @intrinsic
    def one(typingctx: Any, node: Any, place: Any) -> Any:
        return signature, codegen

    @intrinsic
    def two(typingctx: Any, node: Any, place: Any, i: Any) -> Any:
        return signature, codegen

    return one if n_places == 1 else two


# For jitted code: op parameter i as an int64, and as a float32: int_param(node, i);
int_param, float_param = word_reader(PARAMS, 1), word_reader(PARAMS, 1, types.float32)
# of a tensor (DST, SRC0, ...): the address of its first element, data(node, SRC0); its elements
# and its stride in bytes in dimension i, ne(node, SRC0, i).
data, ne, nb = word_reader(0, 1), word_reader(1, 2), word_reader(5, 2)


@inline
def nrows(node, tensor):  # type: ignore[no-untyped-def]
    """Rows of ``tensor``: the product of all dimensions but the first."""
    return ne(node, tensor, 1) * ne(node, tensor, 2) * ne(node, tensor, 3)


@inline
def row_address(node, tensor, row):  # type: ignore[no-untyped-def]
    """Address of row ``row`` (counted over dimensions 1 to 3) of a tensor of any strides."""
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
def first_row(rows, chunk, n_chunks):  # type: ignore[no-untyped-def]
    """First row of a chunk; the next chunk's first row is its end."""
    return rows * chunk // n_chunks


@inline
def set_error(node, code):  # type: ignore[no-untyped-def]
    """Report a code of ``ERRORS``; the compute ends with it."""
    i64_ptr(load_i64(node))[0] = code
