"""MUL_MAT_ID: rows times the matrices of the experts that a token chose.

Access: as MUL_MAT of one token (``matmul``), for each use of an expert; the kernel reads which. An
id that is out of range sets the queue's error.
"""

from functools import cache

from numba import cuda, float32, int32, int64

from .....dtype import GGMLType
from .....rounding import ceil_div
from .....tensor import Tensor
from ...driver import Grid
from ...intrin import divide, load_f32, load_i32, store_f32, store_i32
from ...kernel import U8, GpuKernel, f32, i32, i64, kernel
from ...lowering import GpuLowering, lowers
from .matmul import WARPS, LaunchShape, operands, row_dots, row_sums, shape_of, split_of, start_type
from .weights import reads_weight


@cache
def mat_vec_id(
    type: GGMLType, x_type: GGMLType | None, vector: bool, shape: LaunchShape, scored: bool = False
) -> GpuKernel:
    """The kernel of a format: of planes (``x_type`` is None), or of elements.

    Args:
        scored: rows have scores; those below the threshold are not read, their results are 0.
    """
    dots, sum_up = row_dots(type, x_type, vector, shape), row_sums(shape)
    split, block_rows, x_start = shape.split, shape.block_rows, start_type(x_type)
    elements = "_elements" if x_type is not None else ""
    name = f"mul_mat_id{'_sparse' * scored}_{type.name.lower()}{'_x8' * vector}{elements}"

    @kernel(f"{name}_{shape.name}", threads=32 * WARPS, max_registers=shape.max_registers)
    def mul_mat_id(
        w: U8, x: U8, ids: U8, y: U8, n: i32, rows: i32, n_experts: i32, n_used: i32, n_b: i32,
        high: i64, steps: i64, scales: i64, x_high: i64, d: i64, sums: i64, w1: i64, w2: i64,
        x1: i64, x2: i64, ids0: i64, ids1: i64, y1: i64, y2: i64, row_blocks: i32, scores: U8,
        scores1: i64, scores2: i64, threshold: f32, error: U8, code: i32,
    ):  # fmt: skip
        """``row_blocks`` blocks for each use of all tokens; see ``operands``."""
        lane, warp = int32(cuda.threadIdx.x & 31), int32(cuda.threadIdx.x >> 5)
        use = divide(cuda.blockIdx.x, row_blocks)
        row = int32(int32(cuda.blockIdx.x) - use * row_blocks) * block_rows + warp // split
        token = divide(use, n_used)
        use = int32(use - token * n_used)
        expert = load_i32(ids, use * ids0 + token * ids1)
        if expert < 0 or expert >= n_experts:
            if lane == 0:
                store_i32(error, 0, code)
            return
        if split == 1 and row >= rows:
            return
        acc = cuda.local.array(1, float32)
        starts = cuda.local.array(1, int64)
        acc[0] = float32(0)
        starts[0] = expert * w2 + min(row, rows - 1) * w1
        x_starts = cuda.local.array(1, x_start)
        x_starts[0] = (use % n_b) * x1 + token * x2
        first = (warp % split) * 32 + lane
        needed = True
        if scored:
            at = use * scores1 + token * scores2
            score = load_f32(scores, at + int64(4) * min(row, rows - 1))
            if score != score:
                store_i32(error, 0, int32(-code))
            needed = score >= threshold
        if needed:
            dots(w, starts, x, x_starts, first, n, high, steps, scales, x_high, d, sums, acc)
        sum_up(acc, warp)
        if lane == 0 and warp % split == 0 and row < rows:
            store_f32(y, use * y1 + token * y2 + int64(row) * 4, acc[0])

    return mul_mat_id


def supports_experts(node: Tensor) -> bool:
    """Whether ``launch_experts`` takes a node."""
    a, b, ids = node.src[:3]
    fits = a.ne[1] * ids.nelements < 1 << 31  # blocks, at most
    return node.src[-1] is None and reads_weight(a) and b.is_contiguous_rows() and fits


@lowers("MUL_MAT_ID", supports_experts)
def _lower_mul_mat_id(lowering: GpuLowering, node: Tensor) -> None:
    launch_experts(lowering, node)


def launch_experts(
    lowering: GpuLowering, node: Tensor, scores: Tensor | None = None, threshold: float = 0.0
) -> None:
    """Launch a product with chosen experts; ``scores``: of its rows."""
    a, b, ids = node.src[:3]
    x_type, vector, turns, values = operands(lowering, a, b, 2)
    split = split_of(lowering, a.ne[1] * ids.ne[0], turns)
    shape = shape_of(1, split, a.type, planes=x_type is None)
    row_blocks = ceil_div(a.ne[1], shape.block_rows)
    call = mat_vec_id(a.type, x_type, vector, shape, scores is not None)(
        ids=ids, y=node, rows=a.ne[1], n_experts=a.ne[2], n_used=ids.ne[0], n_b=b.ne[1],
        row_blocks=row_blocks, scores=scores, threshold=threshold, error=lowering.error,
        code=lowering.error_code(node), **values,
    )  # fmt: skip
    lowering.launch(call, Grid(row_blocks * ids.nelements))
