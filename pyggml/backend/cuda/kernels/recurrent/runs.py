"""The runs of a recurrent op, and how a block of threads carries rows of a state through one.

    shape = row_shape(n)                            # n: elements of a row
    rows = row_functions(shape)                     # device functions
    lowering.launch(call, row_grid(node, shape, n_groups, n_rows))

A row of a state is divided among 16 or 32 lanes, each of which keeps ``per_lane`` elements of
``ROWS`` rows in registers over all tokens of a run: element j of a lane is number
``j lanes + lane`` of the row. Rows belong to groups (a head, or heads with common inputs), and the
rows of a block to one group. A grid has a row of blocks for each run, and one for the padding.
``ops.recurrent.runs`` has the rules of runs and slots; a number out of range sets the queue's
error, and nothing is read by it.
"""

from functools import cache
from typing import Any, NamedTuple

from numba import cuda, float32, int32, int64

from .....rounding import ceil_div
from .....tensor import Tensor
from ...driver import Grid
from ...intrin import device, divide, load_f32, load_i32, store_f32
from ...lowering import GpuLowering
from ..warp import FULL

THREADS = 128
REGISTERS = 255  # of a thread, at most: there are few blocks, and before 8.0 addresses take many
ROWS = 2  # of a lane: their sums over lanes overlap
MAX_ROW = 256  # elements
ZERO = float32(0)


@device
def run_of(runs, r, n_runs, n_tokens, n_slots):
    """(first token, tokens, slot of the state before them) of run ``r``, the padding the last.

    The first token is -1 if a number is out of range.
    """
    if r < n_runs:
        at = int64(12) * r
        first, n, slot = load_i32(runs, at), load_i32(runs, at + 4), load_i32(runs, at + 8)
        legal = n <= 0 or (first >= 0 and n <= n_tokens - first and slot < n_slots)
        return first if legal else int32(-1), n, slot
    end = int32(0)
    for k in range(n_runs):
        n = load_i32(runs, int64(12) * k + 4)
        if n > 0:
            end = int32(load_i32(runs, int64(12) * k) + n)
    legal = end >= 0 and end <= n_tokens
    return end if legal else int32(-1), int32(n_tokens - end), int32(-1)


@device
def _exchanged(a, b, by):
    """Two values, each added to that of the lane whose number differs by a bit."""
    return a + cuda.shfl_xor_sync(FULL, a, by), b + cuda.shfl_xor_sync(FULL, b, by)


class RowShape(NamedTuple):
    """How rows of a state are divided; the constants of a kernel."""

    lanes: int  # of a row
    per_lane: int  # elements of a row

    @property
    def held(self) -> int:
        """Elements of a lane."""
        return ROWS * self.per_lane

    @property
    def per_block(self) -> int:
        """Rows of a block."""
        return THREADS // self.lanes * ROWS

    @property
    def suffix(self) -> str:
        """What kernels' names end with."""
        return f"_{self.lanes}x{self.per_lane}"


def row_shape(n: int) -> RowShape:
    """The shape for rows of ``n`` elements, at most ``MAX_ROW``."""
    lanes = 16 if n <= MAX_ROW // 2 else 32
    return RowShape(lanes, 1 << (ceil_div(n, lanes) - 1).bit_length())


class RowFunctions(NamedTuple):
    """Device functions for rows of a shape.

    Attributes:
        place: (tiles) -> the group of this block, the first row of this lane in it, the lane.
        load_vector: (x, at, lane, n, v, first) loads the lane's elements of a row of F32 at a byte
            offset into ``v`` from element ``first`` on.
        load_rows: (states, at, step, row_step, lane, n, row, n_rows, s) loads the lane's elements
            of its rows. ``at``: index of the group's first element, negative for a state of zeros;
            ``step`` and ``row_step``: between elements and rows.
        store_rows: the same arguments; stores them.
        sum_rows: (v) adds ``v[ROWS]`` over the lanes of a row, for all of these.
        clear: (y, at, token_bytes, n_tokens, lane, row, n_rows) writes zeros as the results of the
            lane's rows of some tokens.
    """

    place: Any
    load_vector: Any
    load_rows: Any
    store_rows: Any
    sum_rows: Any
    clear: Any


@cache
def row_functions(shape: RowShape) -> RowFunctions:
    """The device functions of a shape."""
    lanes, per_lane = shape
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
            v[first + j] = load_f32(x, at + int64(4) * i) if i < n else ZERO

    @device
    def load_rows(states, at, step, row_step, lane, n, row, n_rows, s):
        for r in range(ROWS):
            for j in range(per_lane):
                i, e = int32(j * lanes + lane), ZERO
                if at >= 0 and i < n and row + r < n_rows:
                    e = states[at + int64(row + r) * row_step + int64(i) * step]
                s[r * per_lane + j] = e

    @device
    def store_rows(states, at, step, row_step, lane, n, row, n_rows, s):
        for r in range(ROWS):
            for j in range(per_lane):
                i = int32(j * lanes + lane)
                if i < n and row + r < n_rows:
                    states[at + int64(row + r) * row_step + int64(i) * step] = s[r * per_lane + j]

    @device
    def sum_rows(v):
        a, b = v[0], v[1]
        if lanes == 32:
            a, b = _exchanged(a, b, 16)
        a, b = _exchanged(a, b, 8)
        a, b = _exchanged(a, b, 4)
        a, b = _exchanged(a, b, 2)
        v[0], v[1] = _exchanged(a, b, 1)

    @device
    def clear(y, at, token_bytes, n_tokens, lane, row, n_rows):
        if lane < ROWS and row + lane < n_rows:
            for t in range(n_tokens):
                store_f32(y, at + t * token_bytes + int64(4) * (row + lane), ZERO)

    return RowFunctions(place, load_vector, load_rows, store_rows, sum_rows, clear)


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
