"""SOLVE_TRI: each column of B on its own, 32 of them at a time.

Access: A and the columns' part of X again and again, from L1 or L2.
"""

from __future__ import annotations

from .....compiler.jit import kernel
from .....tensor import Tensor
from ....common.lowering import all_f32
from ...abi import DST, SRC0, SRC1, data, first_row, nb, ne, params_of
from ...compile.lowering import CpuLowering, lowers
from ...simd.triangular import solve_columns
from ..span import BLOCK, Parts, columns


@kernel
def solve_tri_f32(node, chunk, n_chunks, scratch):
    """Parts of the columns of one system after another."""
    parts, n, k = params_of(node, Parts).parts, ne(node, SRC0, 0), ne(node, DST, 0)
    n2 = ne(node, DST, 2)
    units = n2 * ne(node, DST, 3) * parts
    for u in range(first_row(units, chunk, n_chunks), first_row(units, chunk + 1, n_chunks)):
        system = u // parts
        begin, end = columns(k, u - system * parts, parts)
        i3 = system // n2
        i2 = system - i3 * n2
        a = data(node, SRC0) + i2 * nb(node, SRC0, 2) + i3 * nb(node, SRC0, 3)
        b = data(node, SRC1) + i2 * nb(node, SRC1, 2) + i3 * nb(node, SRC1, 3) + 4 * begin
        x = data(node, DST) + i2 * nb(node, DST, 2) + i3 * nb(node, DST, 3) + 4 * begin
        solve_columns(a, b, x, n, 4 * k, end - begin)


@lowers("SOLVE_TRI", all_f32)
def _lower_solve_tri(lowering: CpuLowering, node: Tensor) -> None:
    n, k = node.src[0].ne[0], node.ne[0]
    systems = node.ne[2] * node.ne[3]
    parts = max(1, min(k // BLOCK, -(-4 * lowering.n_threads // systems)))
    macs = n * node.nelements // 2
    chunks = max(1, min(systems * parts, macs >> 15, 8 * lowering.n_threads))
    lowering.launch(solve_tri_f32, node, Parts(parts), chunks)
