"""The runs of a recurrent op, and how a block of threads carries rows of a state through one.

    shape = row_shape(n, n_rows)                    # of rows of n elements
    carry = carrier(shape, size, fetch, step)       # the work of a kernel's block
    grid, tiles = row_grid(node, shape, n_groups, n_rows)

A row of a state is divided among 16 or 32 lanes, each of which keeps ``per_lane`` elements of
``ROWS`` rows in registers over all tokens of a run: element j of a lane is number
``j lanes + lane`` of the row. Rows belong to groups (a head, or heads with common inputs), and the
rows of a block to one group. A grid has a row of blocks for each run, and one for the padding.
``ops.recurrent.runs`` has the rules of runs and slots; a number out of range sets the queue's
error, and nothing is read by it.
"""

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

from numba import cuda, float32, int32, int64

from .....rounding import ceil_div
from .....tensor import Tensor
from ...driver import Grid
from ...intrin import device, divide, load_f32, load_i32, store_f32, store_i32
from ...kernel import GpuKernel
from ...lowering import GpuLowering
from ..warp import FULL

THREADS = 128
REGISTERS = 255  # of a thread, at most: there are few blocks, and before 8.0 addresses take many
ROWS = 2  # of a lane: their sums over lanes overlap
MAX_ROW, MAX_HEAD = 256, 128  # elements of a row; of one in S x S for a head
ZERO = float32(0)


@device
def run_of(runs, r, n_runs, n_tokens, n_slots):
    """(first token, tokens, slot of the state before them) of run ``r``, the padding the last.

    The first token is -1 if a number is out of range.
    """
    if r < n_runs:
        at = int64(12) * r
        first, n, slot = load_i32(runs, at), load_i32(runs, at + 4), load_i32(runs, at + 8)
        if n <= 0:
            return int32(0), int32(0), int32(-1)
        legal = first >= 0 and n <= n_tokens - first and slot < n_slots
        return first if legal else int32(-1), n, slot
    end = int32(0)
    for k in range(n_runs):
        n = load_i32(runs, int64(12) * k + 4)
        if n > 0:
            end = int32(load_i32(runs, int64(12) * k) + n)
    legal = end >= 0 and end <= n_tokens
    return end if legal else int32(-1), int32(n_tokens - end), int32(-1)


class RowShape(NamedTuple):
    """How rows of a state are divided; the constants of a kernel."""

    lanes: int  # of a row
    per_lane: int  # elements of a row
    full: bool  # all lanes have elements of so many rows, so that none needs a check

    @property
    def per_block(self) -> int:
        """Rows of a block."""
        return THREADS // self.lanes * ROWS

    @property
    def suffix(self) -> str:
        """What kernels' names end with."""
        return f"_{self.lanes}x{self.per_lane}" + "_full" * self.full


def row_shape(n: int, n_rows: int) -> RowShape:
    """The shape for groups of ``n_rows`` rows of ``n`` elements, at most ``MAX_ROW``.

    Before capability 8.0, eight elements with checks take too many registers.
    """
    lanes = 32 if n > 64 and n != 128 else 16
    shape = RowShape(lanes, 1 << (ceil_div(n, lanes) - 1).bit_length(), False)
    full = n == lanes * shape.per_lane and n_rows % shape.per_block == 0
    return shape._replace(full=full)


class RowFunctions(NamedTuple):
    """Device functions for rows of a shape.

    Attributes:
        place: (tiles) -> the group of this block, the first row of this lane in it, the lane.
        load_vector: (x, at, lane, n, v, first) loads the lane's elements of a row of ``n`` F32 at a
            byte offset into ``v`` from element ``first`` on.
        row_of: (row, r, n_rows) -> the number of a lane's row ``r``, or of the group's last one.
        load_rows: (x, at, row, n_rows, v, first) loads an element for each of the lane's rows.
        sum_rows: (v) adds ``v[ROWS]`` over the lanes of a row, for all of these.
    """

    place: Any
    load_vector: Any
    row_of: Any
    load_rows: Any
    sum_rows: Any


@cache
def row_functions(shape: RowShape) -> RowFunctions:
    """The device functions of a shape."""
    lanes, per_lane, full = shape
    shift, per_block = lanes.bit_length() - 1, shape.per_block

    @device
    def place(tiles):
        t = int32(cuda.threadIdx.x)
        group = divide(cuda.blockIdx.x, tiles)
        tile = int32(int32(cuda.blockIdx.x) - group * tiles)
        return group, int32(tile * per_block + (t >> shift) * ROWS), int32(t & (lanes - 1))

    @device
    def load_vector(x, at, lane, n, v, first):
        for j in range(per_lane):
            i = int32(j * lanes + lane)
            v[first + j] = load_f32(x, at + int64(4) * i) if full or i < n else ZERO

    @device
    def row_of(row, r, n_rows):
        return int32(row + r if full or row + r < n_rows else n_rows - 1)

    @device
    def load_rows(x, at, row, n_rows, v, first):
        for r in range(ROWS):
            v[first + r] = load_f32(x, at + int64(4) * row_of(row, r, n_rows))

    @device
    def sum_rows(v):
        a, b = v[0], v[1]
        if lanes == 32:
            a, b = _exchanged(a, b, 16)
        a, b = _exchanged(a, b, 8)
        a, b = _exchanged(a, b, 4)
        a, b = _exchanged(a, b, 2)
        v[0], v[1] = _exchanged(a, b, 1)

    return RowFunctions(place, load_vector, row_of, load_rows, sum_rows)


@device
def _exchanged(a, b, by):
    """Two values, each added to that of the lane whose number differs by a bit."""
    return a + cuda.shfl_xor_sync(FULL, a, by), b + cuda.shfl_xor_sync(FULL, b, by)


def carrier(shape: RowShape, size: int, fetch: Any, step: Any, by_columns: bool = False) -> Any:
    """The device function that carries rows through all tokens of the block's run.

        carry(places, state, result, rows, inputs)

    ``places``: (runs, slots, n_runs, n_tokens, n_slots, error, code). ``state``: (states, index of
    the group's first element in a slot, elements of a slot). ``result``: (y, byte offset of the
    group's rows in a token's result, bytes of a token). ``rows``: (elements of a row, rows of the
    group, first row of the lane, lane). The inputs of the next token are fetched before a token's
    sums, so that a prompt does not wait for them.

    Args:
        size: float32 numbers of a lane that are the inputs of a token.
        fetch: (inputs, rows, t, v) loads the inputs of token ``t`` into ``v[size]``.
        step: (inputs, v, s, y) updates a lane's elements ``s`` by a token's inputs, row after row,
            and writes the results of its ``ROWS`` rows to ``y``, the same in all lanes of a row.
        by_columns: the elements of a row are columns of the state.
    """
    lanes, per_lane, full = shape
    held = ROWS * per_lane

    @device
    def has(j, r, rows):
        """Whether a lane has element ``j`` of its row ``r``."""
        n, n_rows, row, lane = rows
        return full or (j * lanes + lane < n and row + r < n_rows)

    @device
    def index(at, j, r, rows):
        """The index of that element in the states."""
        n, _, row, lane = rows
        i = int64(lane) + j * lanes
        return at + i * n + (row + r) if by_columns else at + int64(row + r) * n + i

    @device
    def carry(places, state, result, rows, inputs):
        runs, slots, n_runs, n_tokens, n_slots, error, code = places
        states, top, slot_size = state
        y, y0, y1 = result
        _, n_rows, row, lane = rows
        first, count, before = run_of(runs, int32(cuda.blockIdx.y), n_runs, n_tokens, n_slots)
        if first < 0:
            if cuda.threadIdx.x == 0:
                store_i32(error, 0, code)
            return
        s, sums = cuda.local.array(held, float32), cuda.local.array(ROWS, float32)
        now, coming = cuda.local.array(size, float32), cuda.local.array(size, float32)
        is_padding = cuda.blockIdx.y == n_runs
        for r in range(ROWS):
            sums[r] = ZERO
            for j in range(per_lane):
                s[r * per_lane + j] = ZERO
        if before >= 0:
            for r in range(ROWS):
                for j in range(per_lane):
                    if has(j, r, rows):
                        s[r * per_lane + j] = states[index(before * slot_size + top, j, r, rows)]
        slot = int32(-1)
        for k in range(-1, count):
            for i in range(size):
                now[i] = coming[i]
            t, target = int64(first) + k, slot
            if k + 1 < count and not is_padding:
                fetch(inputs, rows, t + 1, coming)
                slot = load_i32(slots, 4 * (t + 1))
            if k >= 0:
                if not is_padding:
                    step(inputs, now, s, sums)
                for r in range(ROWS):
                    if lane == 0 and (full or row + r < n_rows):
                        store_f32(y, t * y1 + y0 + int64(4) * (row + r), sums[r])
                if target >= n_slots:
                    store_i32(error, 0, code)
                elif target >= 0:
                    for r in range(ROWS):
                        for j in range(per_lane):
                            if has(j, r, rows):
                                at = index(target * slot_size + top, j, r, rows)
                                states[at] = s[r * per_lane + j]

    return carry


def row_grid(node: Tensor, shape: RowShape, n_groups: int, n_rows: int) -> tuple[Grid, int]:
    """The grid of a node, and how many of its blocks are those of a group.

    Args:
        n_rows: of a group.
    """
    tiles = ceil_div(n_rows, shape.per_block)
    return Grid(n_groups * tiles, node.src[-2].ne[1] + 1), tiles


def run_values(lowering: GpuLowering, node: Tensor, n_tokens: int, n_slots: int) -> dict[str, Any]:
    """The values of a kernel's parameters for runs, slots and errors."""
    runs, slots = node.src[-2:]
    return {
        "runs": runs, "slots": slots, "n_runs": runs.ne[1], "n_tokens": n_tokens,
        "n_slots": n_slots, "error": lowering.error, "code": lowering.error_code(node),
    }  # fmt: skip


def has_runs(node: Tensor) -> bool:
    """Whether a node has runs, and its other sources gap-free rows of F32."""
    floats = [t for t in node.src[:-2] if t is not None]
    return node.src[-1] is not None and all(map(Tensor.is_contiguous_rows, floats))


def supports_heads(node: Tensor) -> bool:
    """Whether ``launch_heads`` takes a node."""
    return has_runs(node) and node.ne[0] <= MAX_HEAD


def launch_heads(
    lowering: GpuLowering, node: Tensor, kernel_of: Callable[[RowShape], GpuKernel], **values: Any
) -> None:
    """Launch the kernel of a node whose result is [S, H, T] and whose state is S x S for a head.

    Args:
        values: of the kernel's other parameters, ``states`` among them.
    """
    n, n_head, n_tokens = node.ne[:3]
    shape = row_shape(n, n)
    grid, tiles = row_grid(node, shape, n_head, n)
    n_slots = values["states"].nelements // (n * n * n_head)
    call = kernel_of(shape)(
        y=node, n=n, n_head=n_head, tiles=tiles, **values,
        **run_values(lowering, node, n_tokens, n_slots),
    )  # fmt: skip
    lowering.launch(call, grid)
