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
from ..matrix.matmul import (
    WARPS,
    LaunchShape,
    float_dots,
    plane_dots,
    reads_vectors,
    row_sums,
    split_of,
    token_chunks,
)
from ..matrix.quantize import quantized
from ..matrix.weights import has_planes, planes_in, reads_weight
from .active import BUCKET, neuron_of, placement_of, score_of

ACTIVE = 8  # the launch is made for about one active row in so many


@kernel()
def fill_zero(y: U8, n: i64):
    """Set ``n`` float32 to 0."""
    i = int64(cuda.blockIdx.x) * cuda.blockDim.x + cuda.threadIdx.x
    if i < n:
        store_f32(y, 4 * i, float32(0))


def shape_of(tokens: int, split: int) -> LaunchShape:
    """One row a warp or more warps, since other rows may be inactive."""
    return LaunchShape(tokens, 1, {1: 4, 4: 2, 8: 1}[tokens], split)


@cache
def mul_mat_sparse(type: GGMLType, planes: bool, vector: bool, shape: LaunchShape) -> GpuKernel:
    """The kernel of a format: of planes, or of elements."""
    n_tokens, split, block_rows = shape.tokens, shape.split, shape.block_rows
    dots = plane_dots(type, shape) if planes else float_dots(type, GGMLType.F32, vector, shape)
    sum_up = row_sums(shape)
    name = f"mul_mat_sparse_{type.name.lower()}{'_x8' * vector}{'_elements' * (not planes)}"

    @kernel(f"{name}_{shape.name}", threads=32 * WARPS, max_registers=shape.max_registers)
    def sparse(
        w: U8, x: U8, y: U8, n: i32, rows: i32, n_neurons: i32, high: i64, steps: i64,
        step_scales: i64, x_high: i64, d: i64, sums: i64, w1: i64, x1: i64, first: i32,
        tokens: i32, y1: i64, scores: U8, scores1: i64, placed: U8, placement: i32,
        threshold: f32, error: U8, code: i32,
    ):  # fmt: skip
        """``n``: groups, or columns, of a row; ``w1`` and ``x1``: bytes between rows."""
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
            lane_first = (warp % split) * 32 + lane
            if planes:
                starts[0] = int64(row) * n
                x_groups = cuda.local.array(n_tokens, int32)
                for t in range(n_tokens):
                    x_groups[t] = (first + min(t, tokens - 1)) * n
                dots(
                    w, starts, x, x_groups, lane_first, n, high, steps, step_scales, x_high, d,
                    sums, acc,
                )  # fmt: skip
            else:
                starts[0] = row * w1
                x_starts = cuda.local.array(n_tokens, int64)
                for t in range(n_tokens):
                    x_starts[t] = (first + min(t, tokens - 1)) * x1
                dots(w, starts, x, x_starts, lane_first, n, acc)
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
    bucket = bool(node.op_params["bucket"])
    common = placement_of(lowering, node)
    common |= {"y": node, "rows": a.ne[1], "n_neurons": node.ne[0], "y1": node.nb[1]}
    planes, vector = has_planes(a), False
    if planes:
        w, at = planes_in(lowering, a)
        x, q8 = quantized(lowering, b)
        common |= {
            "w": w, "x": x, "n": a.ne[0] // 32, "high": at.high, "steps": at.steps,
            "step_scales": at.scales, "x_high": q8.high, "d": q8.d, "sums": q8.sums,
            "w1": 0, "x1": 0,
        }  # fmt: skip
        turns = a.ne[0] // 1024
    else:
        vector = reads_vectors(a, b)
        common |= {
            "w": a, "x": b, "n": a.ne[0], "high": 0, "steps": 0, "step_scales": 0, "x_high": 0,
            "d": 0, "sums": 0, "w1": a.nb[1], "x1": b.nb[1],
        }  # fmt: skip
        turns = a.ne[0] // (256 if vector else 32)
    if bucket:
        lowering.launch(fill_zero(y=node, n=node.nelements), blocks(node.nelements))
    if not a.ne[1]:
        return
    split = split_of(lowering, a.ne[1] // ACTIVE, turns)
    for first, n, size in token_chunks(b.ne[1]):
        shape = shape_of(size, split)
        call = mul_mat_sparse(a.type, planes, vector, shape)
        lowering.launch(
            call(first=first, tokens=n, **common), Grid(ceil_div(a.ne[1], shape.block_rows))
        )
