"""MUL_MAT_SIGNS: signs that agree, counted."""

from __future__ import annotations

from ....jit import kernel
from ....tensor import Tensor
from ..abi import DST, SRC0, SRC1, data, f32_bits, f32_ptr, first_row, i32_ptr, nb, ne
from ..lowering import Lowering, lowers


@kernel
def mul_mat_signs(node, chunk, n_chunks, scratch):  # type: ignore[no-untyped-def]
    """A range of rows, for all tokens."""
    n, m = ne(node, SRC1, 0), ne(node, DST, 0)
    for t in range(ne(node, DST, 1)):
        x = f32_ptr(data(node, SRC1) + t * nb(node, SRC1, 1))
        y = f32_ptr(data(node, DST) + t * nb(node, DST, 1))
        for r in range(first_row(m, chunk, n_chunks), first_row(m, chunk + 1, n_chunks)):
            words = i32_ptr(data(node, SRC0) + r * nb(node, SRC0, 1))
            total = 0
            for i in range(n):
                differ = (words[i >> 5] >> (i & 31) ^ (f32_bits(x[i]) >> 31)) & 1
                total += 1 - 2 * differ
            y[r] = total


@lowers("MUL_MAT_SIGNS")
def _lower_mul_mat_signs(low: Lowering, node: Tensor) -> None:
    low.launch(mul_mat_signs, node, (), max(1, min(node.ne[0], 8 * low.n_threads)))
