"""AXPY: the sum of a matrix's rows, each times its neuron's value, where the neuron is active.

The rows are cut into segments. A block has a segment and a range of columns: it lists the segment's
rows that have a value (active, and not 0) in shared memory, by ballots and sums of their counts,
and its warps take the listed rows in turn; then the warps' sums are added in order. A second launch
adds the segments. So a token's sums depend on its own values only, whatever the other tokens of up
to 8 are.

Access: a lane reads 16 columns of planes (8 bytes, or 16 if codes have 8 bits), 8 columns of floats
(16 bytes), or one of anything else; four rows of a warp are under way at once.
"""

from functools import cache
from typing import Any, NamedTuple

from numba import cuda, float32, int32, int64, uint32

from .....dtype import GGMLType
from .....rounding import ceil_div
from .....tensor import Tensor
from ...codec import FLOAT_TYPES, eight_loader, element_loader
from ...driver import Grid
from ...intrin import (
    device,
    divide,
    load_f32,
    load_i32,
    load_u32,
    load_u32x2,
    load_u32x4,
    store_f32,
    store_i32,
    u32,
)
from ...kernel import U8, GpuKernel, f32, i32, i64, kernel
from ...lowering import GpuLowering, blocks, lowers
from ...planes import known_planes
from ..matrix.matmul import MAX_TOKENS
from ..matrix.quantize import is_aligned
from ..matrix.weights import group_reader, has_planes, planes_in, reads_weight, word_unpacker
from ..warp import FULL
from .active import neuron_of, placement_of, score_of

WARPS = 8  # of a block
THREADS = 32 * WARPS
AT_ONCE = 4  # rows of a warp whose loads are issued before the first is used
MIN_SEGMENT = 2 * THREADS  # rows


class AxpyColumns(NamedTuple):
    """How a lane reads its columns of a row.

    Attributes:
        n: their number.
        n_raw: words of ``load``'s result.
        load: (w, row, lane's unit, raw, first word, row's bytes, offsets of planes) fills ``raw``.
        add: (raw, first word, x, unit, acc) adds x times the columns to ``acc``.
        place: (unit, i) -> the column of element i of ``acc``.
    """

    n: int
    n_raw: int
    load: Any
    add: Any
    place: Any


@cache
def float_columns(type: GGMLType, vector: bool) -> AxpyColumns:
    """8 columns of floats, or one column of any type that can be decoded."""
    load_element, n = element_loader(type), 8 if vector else 1
    load_8 = eight_loader(type) if vector else load_element

    @device
    def load(w, row, unit, raw, c, w1, high, steps, scales):
        if vector:
            (
                raw[c], raw[c + 1], raw[c + 2], raw[c + 3],
                raw[c + 4], raw[c + 5], raw[c + 6], raw[c + 7],
            ) = load_8(w, row * w1, unit * 8)  # fmt: skip
        else:
            raw[c] = load_element(w, row * w1, unit)

    @device
    def add(raw, c, x, unit, acc):
        for i in range(n):
            acc[i] = cuda.fma(x, raw[c + i], acc[i])

    @device
    def place(unit, i):
        return unit * n + i

    return AxpyColumns(n, n, load, add, place)


@cache
def plane_columns(type: GGMLType) -> AxpyColumns:
    """16 columns of planes: half of the group's words, 8 columns of each half or 16 of one."""
    reader, planes = group_reader(type), known_planes(type)
    wide, high_bytes = planes.code_bytes == 32, planes.high_bytes
    load_steps, scales_of, signed = reader.load_steps, reader.scales, reader.signed
    unpack_word, zero = word_unpacker(high_bytes), reader.zero

    @device
    def load(w, row, unit, raw, c, n_groups, high, steps, scales):
        g = row * n_groups + (unit >> 1)
        half = unit & 1
        if wide:
            raw[c], raw[c + 1], raw[c + 2], raw[c + 3] = load_u32x4(w, g * 32 + half * 16)
        else:
            raw[c], raw[c + 1] = load_u32x2(w, g * 16 + half * 8)
            if high_bytes == 4:
                raw[c + 2] = load_u32(w, high + g * 4)
            elif high_bytes == 8:
                raw[c + 2], raw[c + 3] = load_u32x2(w, high + g * 8)
        raw[c + 4], raw[c + 5] = load_steps(w, g, steps, scales)

    @device
    def four(word, s, m, acc, i):
        """acc[i:i+4] += s * codes + m"""
        for k in range(4):
            code = int32((word >> uint32(8 * k)) & uint32(255))
            if signed:
                code = (code ^ 128) - 128
            acc[i + k] += cuda.fma(s, float32(int32(code - zero)), m)

    @device
    def add(raw, c, x, unit, acc):
        s0, s1, m0, m1 = scales_of(raw[c + 4], raw[c + 5])
        s0, s1, m0, m1 = x * s0, x * s1, x * m0, x * m1
        if wide:
            four(raw[c], s0, m0, acc, 0)
            four(raw[c + 1], s0, m0, acc, 4)
            four(raw[c + 2], s0, m0, acc, 8)
            four(raw[c + 3], s0, m0, acc, 12)
        else:
            shift = 2 * (unit & 1)
            a0, b0 = unpack_word(raw[c], raw[c + 2], raw[c + 3], shift)
            a1, b1 = unpack_word(raw[c + 1], raw[c + 2], raw[c + 3], shift + 1)
            four(a0, s0, m0, acc, 0)
            four(a1, s0, m0, acc, 4)
            four(b0, s1, m1, acc, 8)
            four(b1, s1, m1, acc, 12)

    @device
    def place(unit, i):
        if wide:
            return unit * 16 + i
        return (unit >> 1) * 32 + (unit & 1) * 8 + (i & 7) + ((i >> 3) << 4)

    return AxpyColumns(16, 6, load, add, place)


@cache
def axpy_kernel(type: GGMLType, planes: bool, vector: bool, chosen: bool = False) -> GpuKernel:
    """The kernel of a format: of planes, or of elements.

    Args:
        chosen: a use of an expert takes a token's place, and its rows are those of a matrix.
    """
    columns = plane_columns(type) if planes else float_columns(type, vector)
    n, n_raw, load, add, place = columns
    n_all_raw = AT_ONCE * n_raw
    raw_type = uint32 if planes else float32
    share = 32 * n  # columns of a warp
    kind = f"{type.name.lower()}{'_x8' * vector}{'_elements' * (not planes)}"

    @kernel(f"axpy_{'id_' * chosen}{kind}", threads=THREADS, max_registers=128)
    def axpy(
        w: U8, x: U8, y: U8, n_columns: i32, n_rows: i32, n_neurons: i32, segment: i32, w1: i64,
        high: i64, steps: i64, step_scales: i64, x1: i64, y1: i64, y2: i64, scores: U8,
        scores1: i64, placed: U8, placement: i32, threshold: f32, ids: U8, ids0: i64, ids1: i64,
        n_used: i32, n_experts: i32, error: U8, code: i32,
    ):  # fmt: skip
        """Segment ``blockIdx.y`` of ``segment`` rows, for token ``blockIdx.z``.

        ``w1``: bytes, or groups, of a row; ``y1``, ``y2``: bytes between tokens and segments.
        """
        rows = cuda.shared.array(THREADS, int32)
        values = cuda.shared.array(THREADS, float32)
        counts = cuda.shared.array(WARPS, int32)
        sums = cuda.shared.array((WARPS, share), float32)
        thread = int32(cuda.threadIdx.x)
        lane, warp, token = thread & 31, thread >> 5, int32(cuda.blockIdx.z)
        top = int64(0)
        if chosen:
            of_token = divide(token, n_used)
            expert = load_i32(ids, int32(token - of_token * n_used) * ids0 + of_token * ids1)
            if expert < 0 or expert >= n_experts:
                if thread == 0:
                    store_i32(error, 0, code)
                return
            top = int64(expert) * n_rows
        unit = int32(cuda.blockIdx.x) * 32 + lane
        inside = unit * n < n_columns
        acc = cuda.local.array(n, float32)
        raw = cuda.local.array(n_all_raw, raw_type)
        for i in range(n):
            acc[i] = float32(0)
        first = int32(cuda.blockIdx.y) * segment
        end = min(first + segment, n_rows)
        while first < end:
            row, value = int32(first + thread), float32(0)
            if row < end:
                neuron = neuron_of(row, placed, placement)
                if neuron != -1:
                    at = token * scores1 if scores1 >= 0 else int64(-1)
                    known = neuron >= 0 and neuron < n_neurons
                    score = score_of(neuron, scores, at, n_neurons, error, code)
                    if score >= threshold and known:
                        value = load_f32(x, token * x1 + int64(4) * neuron)
            active = value != float32(0)  # NaN is
            bits = u32(cuda.ballot_sync(FULL, active))
            if lane == 0:
                counts[warp] = int32(cuda.popc(bits))
            cuda.syncthreads()
            place_of, total = int32(0), int32(0)
            for k in range(WARPS):
                if k < warp:
                    place_of += counts[k]
                total += counts[k]
            if active:
                below = u32(bits & u32((1 << lane) - 1))
                place_of += int32(cuda.popc(below))
                rows[place_of] = row
                values[place_of] = value
            cuda.syncthreads()
            if inside:
                i = warp
                while i + (AT_ONCE - 1) * WARPS < total:
                    for k in range(AT_ONCE):
                        at_row = top + rows[i + k * WARPS]
                        load(w, at_row, unit, raw, k * n_raw, w1, high, steps, step_scales)
                    for k in range(AT_ONCE):
                        add(raw, k * n_raw, values[i + k * WARPS], unit, acc)
                    i += AT_ONCE * WARPS
                while i < total:
                    load(w, top + rows[i], unit, raw, 0, w1, high, steps, step_scales)
                    add(raw, 0, values[i], unit, acc)
                    i += WARPS
            cuda.syncthreads()
            first += THREADS
        for i in range(n):
            sums[warp, i * 32 + lane] = acc[i]
        cuda.syncthreads()
        j = thread
        while j < share:
            v = sums[0, j]
            for k in range(1, WARPS):
                v += sums[k, j]
            column = place(int32(cuda.blockIdx.x) * 32 + (j & 31), j >> 5)
            if column < n_columns:
                at = token * y1 + int64(cuda.blockIdx.y) * y2 + int64(column) * 4
                store_f32(y, at, v)
            j += THREADS

    return axpy


@kernel()
def add_segments(x: U8, y: U8, n: i32, n_segments: i32, x1: i64, x2: i64, y1: i64):
    """The sum of a token's segments; ``x1``, ``x2``: bytes between tokens and segments."""
    j = int32(cuda.blockIdx.x * cuda.blockDim.x + cuda.threadIdx.x)
    token = int64(cuda.blockIdx.y)
    if j < n:
        v = float32(0)
        for s in range(n_segments):
            v += load_f32(x, token * x1 + s * x2 + int64(j) * 4)
        store_f32(y, token * y1 + int64(j) * 4, v)


def n_segments(n_sm: int, rows: int, columns: int, per_block: int, tokens: int) -> int:
    """In how many segments rows are cut: as many as occupy the device."""
    tokens = 1 if tokens <= MAX_TOKENS else tokens
    wanted = ceil_div(2 * n_sm, ceil_div(columns, per_block) * tokens)
    return max(1, min(wanted, ceil_div(rows, MIN_SEGMENT)))


@cache
def _most_sums(n_sm: int, rows: int, columns: int, per_block: int, tokens: int) -> int:
    """The most sums of segments that any number of tokens up to ``tokens`` has to add."""
    numbers = ((n, n_segments(n_sm, rows, columns, per_block, n)) for n in range(1, tokens + 1))
    return max((n * segments for n, segments in numbers if segments > 1), default=0)


def _supports(node: Tensor) -> bool:
    return reads_weight(node.src[0]) and node.ne[1] < 1 << 16


@lowers("AXPY", _supports)
def _lower_axpy(lowering: GpuLowering, node: Tensor) -> None:
    launch_axpy(lowering, node, placement_of(lowering, node))


def launch_axpy(
    lowering: GpuLowering, node: Tensor, common: dict[str, Any], ids: Tensor | None = None
) -> None:
    """Launch sums of rows.

    Args:
        common: of scores and placement (``placement_of``).
        ids: the experts whose rows are summed, for each use of a token; None: there is one matrix.
    """
    a, b = node.src[:2]
    n, rows, tokens = a.ne[0], a.ne[1], b.ne[1] * b.ne[2]
    planes, chosen = has_planes(a), ids is not None
    common |= {"x": b, "n_columns": n, "n_rows": rows, "n_neurons": b.ne[0]}
    common |= {"ids": ids, "n_used": b.ne[1], "n_experts": a.ne[2]}
    if planes:
        w, at = planes_in(lowering, a)
        common |= {"w": w, "w1": n // 32}
        common |= {"high": at.high, "steps": at.steps, "step_scales": at.scales}
        make = axpy_kernel(a.type, True, False, chosen)
        per_block = 32 * plane_columns(a.type).n
    else:
        vector = a.type in FLOAT_TYPES and n % 8 == 0 and is_aligned(a)
        common |= {"w": a, "high": 0, "steps": 0, "step_scales": 0}
        make = axpy_kernel(a.type, False, vector, chosen)
        per_block = 32 * float_columns(a.type, vector).n
    size = lowering.device.n_sm, rows, n, per_block, tokens
    lowering.reserve(4 * n * _most_sums(*size))
    segments = n_segments(*size)
    grid = Grid(ceil_div(n, per_block), segments, tokens)
    segment = ceil_div(max(rows, 1), segments)
    if segments == 1:
        lowering.launch(make(y=node, segment=segment, y2=0, **common), grid)
        return
    work = lowering.take(4 * n * tokens * segments)
    call = make(y=work, segment=segment, y1=4 * n * segments, y2=4 * n, **common)
    lowering.launch(call, grid)
    total = add_segments(x=work, y=node, n=n, n_segments=segments, x1=4 * n * segments, x2=4 * n)
    lowering.launch(total, Grid(blocks(n).x, tokens))
