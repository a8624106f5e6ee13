"""LORA: the changes of rows by their adapters, in two launches.

The first one multiplies rows of A with rows of x, into work memory. The second one adds the columns
of B (floats), times these products and ``scale gain``. Elements of A, of any type, are read one by
one, of floats eight at once. Adapters whose scale is 0 for a row are not read. Spans that do not
ascend to the rank, and ids that are out of range, set the queue's error.

Access: a warp has a row of A and a row of x, as in MUL_MAT of one token (``matmul``). A thread has
an element of the result: the 16 threads of a panel read its columns of B one after the other.
"""

from functools import cache
from typing import Any

from numba import cuda, float32, int32, int64

from .....dtype import GGMLType
from .....ops.matrix.lora import PANEL
from .....rounding import ceil_div
from .....tensor import Tensor
from ...codec import FLOAT_TYPES, decodable, element_loader
from ...driver import Grid
from ...intrin import device, divide, load_f32, load_i32, store_f32, store_i32
from ...kernel import U8, GpuKernel, i32, i64, kernel
from ...lowering import GpuLowering, lowers
from .matmul import WARPS, float_dots, row_sums, shape_of
from .quantize import is_aligned

F32 = GGMLType.F32
ZERO = float32(0)
_WIDE = 128  # elements of a block of ``lora_changes``


@device
def _matrix_of(ids, row, n_experts):
    """The number of a row's matrix, 0 without experts; -1: there is none."""
    if n_experts == 0:
        return int32(0)
    expert = load_i32(ids, int64(4) * row)
    return expert if expert >= 0 and expert < n_experts else int32(-1)


@device
def _row_of(row, ne1, x_ne1, x1, x2):
    """The byte offset of the row of x for a row of the result."""
    i2 = divide(row, ne1)
    i1 = int32(row - i2 * ne1)
    return int32(i1 - divide(i1, x_ne1) * x_ne1) * x1 + i2 * x2


@cache
def products_kernel(type: GGMLType, vector: bool) -> GpuKernel:
    """The kernel of a type of A; ``vector``: see ``float_dots``."""
    shape = shape_of(1, 1, type, planes=False)
    dots, sum_up = float_dots(type, F32, vector, shape), row_sums(shape)

    @kernel(f"lora_products_{type.name.lower()}{'_x8' * vector}", threads=32 * WARPS)
    def lora_products(
        a: U8, x: U8, ids: U8, scales: U8, spans: U8, h: U8, k: i32, rank: i32, n: i32, ne1: i32,
        per_token: i32, n_experts: i32, x_ne1: i32, a1: i64, a2: i64, x1: i64, x2: i64, blocks: i32,
    ):  # fmt: skip
        """``blocks`` blocks for each row of the result, a warp for each row of A."""
        lane, warp = int32(cuda.threadIdx.x & 31), int32(cuda.threadIdx.x >> 5)
        row = divide(cuda.blockIdx.x, blocks)
        r = int32(int32(cuda.blockIdx.x) - row * blocks) * WARPS + warp
        j = int32(0)
        while j < n and load_i32(spans, int64(4) * (j + 1)) <= r:
            j += int32(1)
        matrix = _matrix_of(ids, row, n_experts)
        if r >= rank or j >= n or matrix < 0:
            return
        if load_f32(scales, (int64(divide(row, per_token)) * n + j) * 4) == ZERO:
            return
        acc = cuda.local.array(1, float32)
        starts, x_starts = cuda.local.array(1, int64), cuda.local.array(1, int64)
        acc[0] = ZERO
        starts[0] = matrix * a2 + r * a1
        x_starts[0] = _row_of(row, ne1, x_ne1, x1, x2)
        dots(a, starts, x, x_starts, lane, k, 0, 0, 0, 0, 0, 0, acc)
        sum_up(acc, warp)
        if lane == 0:
            store_f32(h, (int64(row) * rank + r) * 4, acc[0])

    return lora_products


@cache
def changes_kernel(type: GGMLType, ones: bool) -> GpuKernel:
    """The kernel of a type of B; ``ones``: the products with A are ones."""
    load = element_loader(type)

    @kernel(f"lora_changes_{type.name.lower()}{'_ones' * ones}", threads=_WIDE)
    def lora_changes(
        y: U8, z: U8, b: U8, h: U8, ids: U8, scales: U8, spans: U8, gains: U8, m: i32, rank: i32,
        n: i32, ne1: i32, per_token: i32, n_experts: i32, b2: i64, h_ne1: i32, h1: i64, h2: i64,
        y1: i64, y2: i64, z1: i64, z2: i64, blocks: i32, error: U8, code: i32,
    ):  # fmt: skip
        """``blocks`` blocks for each row of the result."""
        row = divide(cuda.blockIdx.x, blocks)
        i = int32(int32(cuda.blockIdx.x) - row * blocks) * _WIDE + int32(cuda.threadIdx.x)
        panel, panels = i // PANEL, (m + PANEL - 1) // PANEL
        scale_at = int64(divide(row, per_token)) * n * 4
        h_at, matrix = _row_of(row, ne1, h_ne1, h1, h2), _matrix_of(ids, row, n_experts)
        legal, total = matrix >= 0, ZERO
        first = load_i32(spans, 0)
        legal = legal and first == 0
        for j in range(n):
            end = load_i32(spans, int64(4) * (j + 1))
            legal = legal and first <= end and end <= rank
            scale = load_f32(scales, scale_at + int64(4) * j)
            if legal and i < m and scale != ZERO:
                at = (int64(first) * panels + int64(panel) * (end - first)) * PANEL + i % PANEL
                part = ZERO
                for c in range(end - first):
                    v = load(b, matrix * b2, at + int64(PANEL) * c)
                    if not ones:
                        v *= load_f32(h, h_at + int64(4) * (first + c))
                    part += v
                total += scale * load_f32(gains, int64(4) * j) * part
            first = end
        if not (legal and first == rank):
            if cuda.threadIdx.x == 0:
                store_i32(error, 0, code)
            return
        if i < m:
            i2 = divide(row, ne1)
            i1 = int32(row - i2 * ne1)
            v = load_f32(y, i1 * y1 + i2 * y2 + int64(4) * i)
            store_f32(z, i1 * z1 + i2 * z2 + int64(4) * i, v + total)

    return lora_changes


def _rank(node: Tensor) -> int:
    """Columns of the B of all adapters."""
    b = node.src[1]
    assert b is not None
    return b.ne[0] * b.ne[1] // (PANEL * ceil_div(node.ne[0], PANEL))


def _supports(node: Tensor) -> bool:
    y, b, _, _, _, a, x, _ = node.src
    assert y is not None and b is not None
    n_blocks = node.nrows * max(ceil_div(node.ne[0], _WIDE), ceil_div(_rank(node), WARPS))
    rows = all(t is None or t.is_contiguous_rows() for t in (y, x))
    # B of Q8_0 lies in blocks, made for the CPU's int8 products: adapters have floats on a GPU.
    types = b.type in FLOAT_TYPES and (a is None or decodable(a.type))
    return types and rows and n_blocks < 1 << 31


@lowers("LORA", _supports)
def _lower_lora(lowering: GpuLowering, node: Tensor) -> None:
    y, b, scales, spans, gains, a, x, ids = node.src
    rank, n_rows = _rank(node), node.nrows
    rows = {
        "ids": ids, "scales": scales, "spans": spans, "rank": rank, "n": scales.ne[0],
        "ne1": node.ne[1], "per_token": n_rows // scales.ne[1],
        "n_experts": 0 if ids is None else b.ne[2],
    }  # fmt: skip
    factors: dict[str, Any] = {"h": x}
    if a is not None and rank > 0:
        vector = a.type in FLOAT_TYPES and a.ne[0] % 8 == 0 and is_aligned(a) and is_aligned(x)
        work, blocks = lowering.take(4 * rank * n_rows), ceil_div(rank, WARPS)
        call = products_kernel(a.type, vector)(a=a, x=x, h=work, k=a.ne[0], blocks=blocks, **rows)
        lowering.launch(call, Grid(blocks * n_rows))
        one = 4 * rank
        factors = {"h": work, "h_ne1": node.ne[1], "h1": one, "h2": one * node.ne[1]}
    blocks = ceil_div(node.ne[0], _WIDE)
    call = changes_kernel(b.type, x is None)(
        y=y, z=node, b=b, gains=gains, m=node.ne[0], blocks=blocks, error=lowering.error,
        code=lowering.error_code(node), **factors, **rows,
    )  # fmt: skip
    lowering.launch(call, Grid(blocks * n_rows))
