"""SSM_CONV, with a bias and SiLU after it, and TOKEN_SHIFT: each channel over time.

A thread has a channel of ``CHUNK`` tokens of a run, whose window stays in registers. The state
after a run may replace the one before it, which the run's first chunk reads: so that chunk writes
it, and the others write those of tokens in between.
Access: adjacent threads, adjacent channels; a row is read once, and a few rows before each chunk.
"""

from functools import cache

from numba import cuda, float32, int32, int64

from .....dtype import GGMLType
from .....rounding import ceil_div
from .....tensor import Tensor
from ....common.memory import overlap
from ...driver import Grid
from ...intrin import load_f32, load_i32, store_f32, store_i32
from ...kernel import F32, U8, GpuKernel, i32, i64, kernel
from ...lowering import GpuLowering, fuses, lowers
from ..elementwise.elementwise import FUNCTIONS
from .runs import THREADS, ZERO, has_runs, run_of, run_values

CHUNK = 16  # tokens of a thread
MAX_WIDTH = 16  # of a convolution, at most ``CHUNK``


@cache
def conv_kernel(width: int, biased: bool, silu: bool) -> GpuKernel:
    """The kernel of a convolution over ``width`` tokens; of width 2 without weights: TOKEN_SHIFT.

    Args:
        width: 0 for TOKEN_SHIFT.
    """
    shifts = width == 0
    width = 2 if shifts else width
    past = width - 1  # rows of a state
    activation = FUNCTIONS["silu"]
    name = "token_shift" if shifts else f"ssm_conv_{width}" + "_add" * biased + "_silu" * silu

    @kernel(name, threads=THREADS)
    def conv(
        x: U8, c: U8, b: U8, states: F32, y: U8, runs: U8, slots: U8, channels: i32, n_tokens: i32,
        n_runs: i32, n_slots: i32, x1: i64, y1: i64, error: U8, code: i32,
    ):  # fmt: skip
        i, r = int32(cuda.grid(1)), int32(cuda.blockIdx.y)
        begin = int32(int32(cuda.blockIdx.z) * CHUNK)
        first, n, before = run_of(runs, r, n_runs, n_tokens, n_slots)
        if first < 0:
            if cuda.threadIdx.x == 0:
                store_i32(error, 0, code)
            return
        if i >= channels or begin >= n:
            return
        end, column = int32(min(begin + CHUNK, n)), int64(4) * i
        is_padding = r == n_runs
        w, window = cuda.local.array(width, float32), cuda.local.array(width, float32)
        for j in range(width):
            w[j], window[j] = ZERO, ZERO
            if not shifts:
                w[j] = load_f32(c, column * width + 4 * j)
        bias = load_f32(b, column) if biased else ZERO
        for j in range(past):
            t = begin - past + j  # before the run: a row of the state
            if t >= 0 and not is_padding:
                window[1 + j] = load_f32(x, (first + t) * x1 + column)
            elif before >= 0:
                window[1 + j] = states[(int64(before) * past + (t + past)) * channels + i]
        for k in range(begin, end):
            t = int64(first) + k
            for j in range(past):
                window[j] = window[j + 1]
            window[past] = ZERO if is_padding else load_f32(x, t * x1 + column)
            total = window[0] if shifts else ZERO
            if not shifts:
                for j in range(width):
                    total += w[j] * window[j]
            if biased:
                total += bias
            if silu:
                total = activation(total, ZERO, ZERO, ZERO, ZERO)
            store_f32(y, t * y1 + column, total)
            slot = int32(-1) if is_padding else load_i32(slots, 4 * t)
            if slot >= n_slots:
                store_i32(error, 0, code)
            elif slot >= 0 and (k + 1 < n or begin == 0):
                for j in range(past):
                    states[(int64(slot) * past + j) * channels + i] = window[1 + j]
        if begin == 0 and end < n and not is_padding:
            slot = load_i32(slots, int64(4) * (first + n - 1))
            if slot >= 0 and slot < n_slots:
                for j in range(past):
                    v = load_f32(x, (int64(first) + n - past + j) * x1 + column)
                    states[(int64(slot) * past + j) * channels + i] = v

    return conv


def _supports_conv(node: Tensor) -> bool:
    return has_runs(node) and node.src[1].ne[0] <= MAX_WIDTH


def _launch(
    lowering: GpuLowering, node: Tensor, dst: Tensor, bias: Tensor | None = None,
    silu: bool = False,
) -> None:  # fmt: skip
    shifts = node.op.name == "TOKEN_SHIFT"
    x, c = node.src[0], None if shifts else node.src[1]
    (states,) = node.op.updated(node)
    channels, n_tokens = x.ne[:2]
    width = 0 if c is None else c.ne[0]
    call = conv_kernel(width, bias is not None, silu)(
        x=x, c=c, b=bias, states=states, y=dst, channels=channels,
        **run_values(lowering, node, n_tokens, states.ne[1 if shifts else 2]),
    )  # fmt: skip
    grid = Grid(ceil_div(channels, THREADS), node.src[-2].ne[1] + 1, ceil_div(n_tokens, CHUNK))
    lowering.launch(call, grid)


@lowers("TOKEN_SHIFT", has_runs)
@lowers("SSM_CONV", _supports_conv)
def _lower_conv(lowering: GpuLowering, node: Tensor) -> None:
    _launch(lowering, node, node)


@fuses("SSM_CONV", "ADD", "UNARY")  # registered before the shorter pattern
@fuses("SSM_CONV", "UNARY")
def _lower_conv_silu(lowering: GpuLowering, conv: Tensor, *more: Tensor) -> bool:
    """The convolution of runs, a bias and SiLU in one launch."""
    silu, before, bias = more[-1], conv, None
    if not _supports_conv(conv) or silu.op_params["kind"] != "silu":
        return False
    if len(more) == 2:
        before, bias = more[0], more[0].src[1]
        row = (conv.ne[0], 1, 1, 1)
        if before.src[0] is not conv or bias.ne != row or not bias.is_contiguous():
            return False
    used = (*conv.src, bias)
    if silu.src[0] is not before or any(s is not None and overlap(silu, s) for s in used):
        return False
    if any(t is not None and t.type is not GGMLType.F32 for t in (silu, before, bias)):
        return False
    _launch(lowering, conv, silu, bias, silu=True)
    return True
