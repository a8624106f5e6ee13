"""MUL_MAT_SIGNS: the number of equal signs of a row and the activations, minus the unequal ones.

A first launch packs the activations' signs as bits; a row is then XOR and a bit count, 64 columns
at a time. Access: rows of bits front to back, once for up to 64 tokens.
"""

from __future__ import annotations

from typing import NamedTuple

from .....compiler.jit import kernel
from .....rounding import ceil_div
from .....tensor import Tensor
from ...abi import DST, SRC0, SRC1, data, f32_ptr, first_row, i32_ptr, i64_ptr, nb, ne, params_of
from ...compile.lowering import CpuLowering, lowers
from ...simd.axpy import count_bits
from ...simd.element import I32, load_elem

_CHUNK_WORDS = 1 << 14  # of bits, times tokens


class Signs(NamedTuple):
    """The values of MUL_MAT_SIGNS."""

    signs: int  # address of the bits of the activations


@kernel
def pack_signs(node, chunk, n_chunks, scratch):
    """Write the sign bits of a range of tokens, padded with zeros to words of 64."""
    n, words = ne(node, SRC1, 0), (ne(node, SRC1, 0) + 63) // 64
    tokens = ne(node, SRC1, 1)
    for t in range(first_row(tokens, chunk, n_chunks), first_row(tokens, chunk + 1, n_chunks)):
        x, out = data(node, SRC1) + t * nb(node, SRC1, 1), i64_ptr(params_of(node, Signs).signs)
        for w in range(words):
            bits = 0
            for i in range(min(64, n - 64 * w)):
                bits |= ((load_elem(I32, x, 64 * w + i) >> 31) & 1) << i
            out[t * words + w] = bits


@kernel
def mul_mat_signs(node, chunk, n_chunks, scratch):
    """A range of rows, for all tokens."""
    n, m, tokens = ne(node, SRC1, 0), ne(node, DST, 0), ne(node, DST, 1)
    words, whole = (n + 63) // 64, ne(node, SRC0, 0) // 2  # whole: words of 64 that a row has
    signs = i64_ptr(params_of(node, Signs).signs)
    for r in range(first_row(m, chunk, n_chunks), first_row(m, chunk + 1, n_chunks)):
        row = data(node, SRC0) + r * nb(node, SRC0, 1)
        bits, last = i64_ptr(row), i32_ptr(row)
        for t in range(tokens):
            differ = 0
            for w in range(whole):
                differ += count_bits(bits[w] ^ signs[t * words + w])
            if whole < words:  # 32 bits are left
                rest = (last[2 * whole] ^ signs[t * words + whole]) & 0xFFFFFFFF
                differ += count_bits(rest)
            f32_ptr(data(node, DST) + t * nb(node, DST, 1))[r] = n - 2 * differ


@lowers("MUL_MAT_SIGNS")
def _lower_mul_mat_signs(lowering: CpuLowering, node: Tensor) -> None:
    x = node.src[1]
    words = ceil_div(x.ne[0], 64)
    key = ("signs", x)
    signs = lowering.known(key, x)
    if signs is None:
        signs = lowering.take(8 * words * x.ne[1])
        chunks = min(x.ne[1], 8 * lowering.n_threads)
        lowering.launch(pack_signs, node, Signs(signs.address), chunks, reads=(x,), writes=signs)
        lowering.remember(key, signs)
    chunks = max(
        1, min(node.ne[0], node.nelements * words // _CHUNK_WORDS, 16 * lowering.n_threads)
    )
    lowering.launch(mul_mat_signs, node, Signs(signs.address), chunks, work=[signs])
