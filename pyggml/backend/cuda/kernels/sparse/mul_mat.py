"""MUL_MAT_SPARSE: dot products of the rows whose neurons are active, zeros for the others.

As MUL_MAT of few tokens (``matmul``), with a row a warp or a block: it reads its neuron's scores
and then nothing else if no token needs it. More than 8 tokens are several launches.
Access: scores of a row, one word a token; the rows that are needed as in ``matmul``.
"""

from functools import cache

from numba import cuda, float32, int32, int64, uint32

from .....dtype import GGMLType
from .....rounding import ceil_div
from .....tensor import Tensor
from ...driver import Grid
from ...intrin import store_f32
from ...kernel import U8, GpuKernel, f32, i32, i64, kernel
from ...lowering import GpuLowering, blocks, lowers
from ..elementwise.fill import fill_kernel
from ..matrix.matmul import (
    WARPS,
    LaunchShape,
    operands,
    row_dots,
    row_sums,
    split_of,
    start_type,
    token_chunks,
)
from ..matrix.weights import reads_weight
from .active import BUCKET, neuron_of, placement_of, score_of

ACTIVE = 8  # the launch is made for about one active row in so many


def shape_of(tokens: int, split: int) -> LaunchShape:
    """One row a warp or more warps, since other rows may be inactive."""
    return LaunchShape(tokens, 1, {1: 4, 4: 2, 8: 1}[tokens], split)


@cache
def mul_mat_sparse(
    type: GGMLType, x_type: GGMLType | None, vector: bool, shape: LaunchShape
) -> GpuKernel:
    """The kernel of a format: of planes (``x_type`` is None), or of elements."""
    n_tokens, split, block_rows = shape.tokens, shape.split, shape.block_rows
    dots, sum_up = row_dots(type, x_type, vector, shape), row_sums(shape)
    x_start, elements = start_type(x_type), "_elements" if x_type is not None else ""
    name = f"mul_mat_sparse_{type.name.lower()}{'_x8' * vector}{elements}"

    @kernel(f"{name}_{shape.name}", threads=32 * WARPS, max_registers=shape.max_registers)
    def sparse(
        w: U8, x: U8, y: U8, n: i32, rows: i32, n_neurons: i32, high: i64, steps: i64,
        scales: i64, x_high: i64, d: i64, sums: i64, w1: i64, x1: i64, first: i32,
        tokens: i32, y1: i64, scores: U8, scores1: i64, placed: U8, placement: i32,
        threshold: f32, error: U8, code: i32,
    ):  # fmt: skip
        """A row a warp, or more warps, for up to 8 tokens from ``first`` on; see ``operands``."""
        lane, warp = int32(cuda.threadIdx.x & 31), int32(cuda.threadIdx.x >> 5)
        row = int32(cuda.blockIdx.x) * block_rows + warp // split
        neuron = int32(-1)
        if row < rows:
            neuron = neuron_of(row, placed, placement)
        out, needed = int32(row), uint32(0)
        if placement == BUCKET:
            out = neuron
        if out >= n_neurons:
            out = int32(-1)  # reported below
        if neuron != -1:
            for t in range(n_tokens):
                if t < tokens:
                    at = (first + t) * scores1
                    if score_of(neuron, scores, at, n_neurons, error, code) >= threshold:
                        needed |= uint32(1 << t)
        if out < 0:
            needed = uint32(0)
        acc = cuda.local.array(n_tokens, float32)
        for t in range(n_tokens):
            acc[t] = float32(0)
        if needed != uint32(0):
            starts = cuda.local.array(1, int64)
            starts[0] = row * w1
            x_starts = cuda.local.array(n_tokens, x_start)
            for t in range(n_tokens):
                x_starts[t] = (first + min(t, tokens - 1)) * x1
            lane_first = (warp % split) * 32 + lane
            dots(w, starts, x, x_starts, lane_first, n, high, steps, scales, x_high, d, sums, acc)
        if split > 1 or needed != uint32(0):
            sum_up(acc, warp)
        if lane == 0 and warp % split == 0 and row < rows and out >= 0:
            for t in range(n_tokens):
                if t < tokens:
                    v = acc[t] if needed & uint32(1 << t) else float32(0)
                    store_f32(y, (first + t) * y1 + int64(out) * 4, v)

    return sparse


def _supports(node: Tensor) -> bool:
    return reads_weight(node.src[0])


@lowers("MUL_MAT_SPARSE", _supports)
def _lower_mul_mat_sparse(lowering: GpuLowering, node: Tensor) -> None:
    a, b = node.src[:2]
    x_type, vector, turns, values = operands(lowering, a, b, 1)
    values |= placement_of(lowering, node)
    if node.op_params["bucket"]:
        zeros = fill_kernel(GGMLType.F32)(y=node, n=node.nelements, start=0.0, step=0.0)
        lowering.launch(zeros, blocks(node.nelements))
    if not a.ne[1]:
        return
    split = split_of(lowering, a.ne[1] // ACTIVE, turns)
    for first, n, size in token_chunks(b.ne[1]):
        shape = shape_of(size, split)
        call = mul_mat_sparse(a.type, x_type, vector, shape)(
            y=node, rows=a.ne[1], n_neurons=node.ne[0], first=first, tokens=n, **values
        )
        lowering.launch(call, Grid(ceil_div(a.ne[1], shape.block_rows)))
