"""MUL_MAT of up to 8 tokens: dot products of weights' rows with tokens' rows.

Quantized weights are read as planes (``planes``), 16 bytes a lane, and multiplied with int8
activations by ``dp4a``; float weights with activations as they are. A weight is read once for all
tokens of a launch. More tokens are multiplied by tensor cores: ``mat_mat``. Weights in ggml's own
layout are converted into planes first, in work memory: a loader gives planes, tests and odd graphs
do not. Quantized weights without planes are read element by element.

Access: a warp has one row, or several if there are several tokens, which then read the activations
once for these rows; lane l has every 32nd group of 32 columns (floats: every 32nd 8 columns), and
several loads of 16 bytes are under way at once. If the rows alone do not occupy the device, 2 or 4
warps of a block share a row's columns. A token's sums do not depend on the number of tokens.
"""

import math
from functools import cache
from typing import Any, NamedTuple

from numba import cuda, float32, int32, int64, uint32

from .....dtype import GGMLType
from .....rounding import ceil_div
from .....tensor import Tensor
from ...codec import FLOAT_TYPES, eight_loader, element_loader
from ...driver import Grid
from ...intrin import device, divide, dot4_ss, dot4_us, load_f32, load_i32, load_u32x4, store_f32
from ...kernel import U8, GpuKernel, i32, i64, kernel
from ...lowering import GpuLowering, lowers
from ..warp import warp_sum
from . import mat_mat
from .quantize import is_aligned, quantized
from .weights import group_reader, has_planes, planes_in, reads_weight

MAX_TOKENS = 8  # of a launch of the kernels here
WARPS = 4  # of a block


class LaunchShape(NamedTuple):
    """How a launch cuts its work.

    Attributes:
        tokens: of the launch, at most.
        rows: of a warp.
        at_once: groups whose loads are issued before the first is used.
        split: warps that share a row's columns: 1, 2 or 4.
    """

    tokens: int
    rows: int
    at_once: int
    split: int

    @property
    def max_registers(self) -> int:
        return 168 if self.tokens >= 4 else 128

    @property
    def name(self) -> str:
        return f"{self.tokens}" + f"_split{self.split}" * (self.split > 1)

    @property
    def block_rows(self) -> int:
        return WARPS // self.split * self.rows


def shape_of(tokens: int, split: int, type: GGMLType, *, planes: bool) -> LaunchShape:
    """The shape for up to 8 tokens; floats and rows with two scales a group take more registers."""
    light = planes and not group_reader(type).two_scales
    rows, at_once = {1: (1, 4), 4: (2, 2), 8: (4 if light else 2, 1)}[tokens]
    return LaunchShape(tokens, rows, at_once, split)


def split_of(lowering: GpuLowering, rows: int, turns: int) -> int:
    """How many warps share a row.

    Args:
        rows: of all matrices.
        turns: loads of a lane that has the whole row.
    """
    split = 1
    while split < WARPS and rows * split < 32 * lowering.device.n_sm and turns >= 2 * split:
        split *= 2
    return split


def token_chunks(n_tokens: int) -> list[tuple[int, int, int]]:
    """(first token, number of tokens, tokens that the kernel is made for) of each launch."""
    found, done = [], 0
    while done < n_tokens:
        n = min(MAX_TOKENS, n_tokens - done)
        found.append((done, n, next(size for size in (1, 4, 8) if size >= n)))
        done += n
    return found


@cache
def plane_dots(type: GGMLType, shape: LaunchShape) -> Any:
    """A device function that adds a lane's share of some rows' dot products to ``acc``.

    (w, first group of each row, x, first group of each token, first group of the lane, groups of a
    row, offsets of planes of w and x, acc)
    """
    reader = group_reader(type)
    load_codes, unpack = reader.load_codes, reader.unpack
    load_steps, scales = reader.load_steps, reader.scales
    n_tokens, n_rows, stride = shape.tokens, shape.rows, 32 * shape.split
    two_scales, has_minima, zero = reader.two_scales, reader.has_minima, reader.zero
    needs_sums = has_minima or zero != 0
    dot4 = dot4_ss if reader.signed else dot4_us

    def batch_of(at_once: int) -> Any:
        n_raw, n_bits = 8 * at_once * n_rows, 2 * at_once * n_rows
        n_words, n_factors = 8 * n_rows, 4 * n_rows

        @device
        def batch(w, starts, x, tokens, g, high, steps, scale_at, x_high, d, sums, acc):
            raw = cuda.local.array(n_raw, uint32)
            bits = cuda.local.array(n_bits, uint32)
            words = cuda.local.array(n_words, uint32)
            factors = cuda.local.array(n_factors, float32)
            for u in range(at_once):
                for r in range(n_rows):
                    gw = starts[r] + (g + u * stride)
                    c, k = 8 * (u * n_rows + r), 2 * (u * n_rows + r)
                    (
                        raw[c], raw[c + 1], raw[c + 2], raw[c + 3],
                        raw[c + 4], raw[c + 5], raw[c + 6], raw[c + 7],
                    ) = load_codes(w, gw, high)  # fmt: skip
                    bits[k], bits[k + 1] = load_steps(w, gw, steps, scale_at)
            for u in range(at_once):
                for r in range(n_rows):
                    c, k, i = 8 * (u * n_rows + r), 2 * (u * n_rows + r), 8 * r
                    (
                        words[i], words[i + 1], words[i + 2], words[i + 3],
                        words[i + 4], words[i + 5], words[i + 6], words[i + 7],
                    ) = unpack(
                        raw[c], raw[c + 1], raw[c + 2], raw[c + 3],
                        raw[c + 4], raw[c + 5], raw[c + 6], raw[c + 7],
                    )  # fmt: skip
                    s0, s1, m0, m1 = scales(bits[k], bits[k + 1])
                    factors[4 * r], factors[4 * r + 1] = s0, s1
                    factors[4 * r + 2], factors[4 * r + 3] = m0, m1
                for t in range(n_tokens):
                    gx = int64(int32(tokens[t] + (g + u * stride)))
                    x0, x1, x2, x3 = load_u32x4(x, gx * 16)
                    x4, x5, x6, x7 = load_u32x4(x, x_high + gx * 16)
                    dx = load_f32(x, d + gx * 4)
                    sum_0, sum_1 = int32(0), int32(0)
                    if needs_sums:
                        both = load_i32(x, sums + gx * 4)
                        sum_0, sum_1 = int32(int32(both << 16) >> 16), int32(both >> 16)
                    for r in range(n_rows):
                        i = 8 * r
                        low = dot4(words[i], x0, int32(-zero * sum_0))
                        low = dot4(words[i + 1], x1, low)
                        low = dot4(words[i + 2], x2, low)
                        low = dot4(words[i + 3], x3, low)
                        if two_scales:
                            up = dot4(words[i + 4], x4, int32(-zero * sum_1))
                        else:
                            up = dot4(words[i + 4], x4, int32(low - zero * sum_1))
                        up = dot4(words[i + 5], x5, up)
                        up = dot4(words[i + 6], x6, up)
                        up = dot4(words[i + 7], x7, up)
                        v = factors[4 * r + 1] * float32(up)
                        if two_scales:
                            v = cuda.fma(factors[4 * r], float32(low), v)
                        if has_minima and two_scales:
                            v = cuda.fma(factors[4 * r + 2], float32(sum_0), v)
                            v = cuda.fma(factors[4 * r + 3], float32(sum_1), v)
                        elif has_minima:
                            v = cuda.fma(factors[4 * r + 2], float32(int32(sum_0 + sum_1)), v)
                        acc[t * n_rows + r] = cuda.fma(dx, v, acc[t * n_rows + r])

        return batch

    several, one, at_once = batch_of(shape.at_once), batch_of(1), shape.at_once

    @device
    def dots(w, starts, x, tokens, g, n_groups, high, steps, scales, x_high, d, sums, acc):
        if at_once > 1:
            while g + (at_once - 1) * stride < n_groups:
                several(w, starts, x, tokens, g, high, steps, scales, x_high, d, sums, acc)
                g += at_once * stride
        while g < n_groups:
            one(w, starts, x, tokens, g, high, steps, scales, x_high, d, sums, acc)
            g += stride

    return dots


@cache
def float_dots(type: GGMLType, x_type: GGMLType, vector: bool, shape: LaunchShape) -> Any:
    """A device function that adds a lane's share of some rows' dot products to ``acc``.

    (w, byte offset of each row, x, byte offset of each token's row, the lane's number among those
    of a row, columns, the unused offsets of planes, acc). ``vector``: rows are aligned to 16 bytes,
    with a multiple of 8 columns.
    """
    load, load_x = element_loader(type), element_loader(x_type)
    n_tokens, n_rows, stride = shape.tokens, shape.rows, 32 * shape.split

    if not vector:

        @device
        def dots_of_elements(w, starts, x, tokens, lane, n, high, steps, scales, xh, d, sums, acc):
            j = lane
            while j < n:
                for r in range(n_rows):
                    v = load(w, starts[r], j)
                    for t in range(n_tokens):
                        i = t * n_rows + r
                        acc[i] = cuda.fma(v, load_x(x, tokens[t], j), acc[i])
                j += stride

        return dots_of_elements

    load_8, load_x_8 = eight_loader(type), eight_loader(x_type)

    def batch_of(at_once: int) -> Any:
        n_values = 8 * at_once * n_rows

        @device
        def batch(w, starts, x, tokens, j, acc):
            v = cuda.local.array(n_values, float32)
            for u in range(at_once):
                for r in range(n_rows):
                    c = 8 * (u * n_rows + r)
                    (
                        v[c], v[c + 1], v[c + 2], v[c + 3], v[c + 4], v[c + 5], v[c + 6], v[c + 7]
                    ) = load_8(w, starts[r], j + 8 * stride * u)  # fmt: skip
            for u in range(at_once):
                for t in range(n_tokens):
                    x0, x1, x2, x3, x4, x5, x6, x7 = load_x_8(x, tokens[t], j + 8 * stride * u)
                    for r in range(n_rows):
                        c, a = 8 * (u * n_rows + r), acc[t * n_rows + r]
                        a = cuda.fma(v[c], x0, a)
                        a = cuda.fma(v[c + 1], x1, a)
                        a = cuda.fma(v[c + 2], x2, a)
                        a = cuda.fma(v[c + 3], x3, a)
                        a = cuda.fma(v[c + 4], x4, a)
                        a = cuda.fma(v[c + 5], x5, a)
                        a = cuda.fma(v[c + 6], x6, a)
                        acc[t * n_rows + r] = cuda.fma(v[c + 7], x7, a)

        return batch

    several, one, at_once = batch_of(shape.at_once), batch_of(1), shape.at_once

    @device
    def dots(w, starts, x, tokens, lane, n, high, steps, scales, x_high, d, sums, acc):
        j = lane * 8
        if at_once > 1:
            while j + 8 * stride * (at_once - 1) < n:
                several(w, starts, x, tokens, j, acc)
                j += 8 * stride * at_once
        while j < n:
            one(w, starts, x, tokens, j, acc)
            j += 8 * stride

    return dots


@cache
def row_sums(shape: LaunchShape) -> Any:
    """A device function: the sums of ``acc`` over the lanes that share rows, in each first lane."""
    n, split = shape.tokens * shape.rows, shape.split

    @device
    def sum_up(acc, warp):
        for i in range(n):
            acc[i] = warp_sum(acc[i])
        if split > 1:
            parts = cuda.shared.array((WARPS, n), float32)
            if cuda.threadIdx.x & 31 == 0:
                for i in range(n):
                    parts[warp, i] = acc[i]
            cuda.syncthreads()
            if warp % split == 0 and cuda.threadIdx.x & 31 == 0:
                for i in range(n):
                    v = parts[warp, i]
                    for k in range(1, split):
                        v += parts[warp + k, i]
                    acc[i] = v

    return sum_up


def row_dots(type: GGMLType, x_type: GGMLType | None, vector: bool, shape: LaunchShape) -> Any:
    """``plane_dots`` if ``x_type`` is None, else ``float_dots``."""
    return plane_dots(type, shape) if x_type is None else float_dots(type, x_type, vector, shape)


def start_type(x_type: GGMLType | None) -> Any:
    """The type of where a token's row starts: groups of planes, or bytes."""
    return int32 if x_type is None else int64


@cache
def mat_vec(type: GGMLType, x_type: GGMLType | None, vector: bool, shape: LaunchShape) -> GpuKernel:
    """The kernel of a format in planes (``x_type`` is None), or of float types."""
    dots, sum_up = row_dots(type, x_type, vector, shape), row_sums(shape)
    n_tokens, n_rows, split, block_rows = shape.tokens, shape.rows, shape.split, shape.block_rows
    n_sums, x_start = n_tokens * n_rows, start_type(x_type)
    types = type.name.lower() + (f"_{x_type.name.lower()}" if x_type is not None else "")

    @kernel(
        f"mul_mat_vec_{types}{'_x8' * vector}_{shape.name}",
        threads=32 * WARPS,
        max_registers=shape.max_registers,
    )
    def mul_mat_vec(
        w: U8, x: U8, y: U8, n: i32, rows: i32, high: i64, steps: i64, scales: i64, x_high: i64,
        d: i64, sums: i64, w1: i64, w2: i64, w3: i64, x1: i64, x2: i64, x3: i64, first: i32,
        tokens: i32, ne12: i32, r2: i32, r3: i32, y1: i64, y2: i64,
    ):  # fmt: skip
        """``tokens`` tokens from ``first`` on, times a block's rows; see ``operands``."""
        lane, warp = int32(cuda.threadIdx.x & 31), int32(cuda.threadIdx.x >> 5)
        row = int32(cuda.blockIdx.x) * block_rows + warp // split * n_rows
        if split == 1 and row >= rows:
            return
        i3 = divide(cuda.blockIdx.y, ne12)
        i2 = int32(cuda.blockIdx.y - i3 * ne12)
        starts = cuda.local.array(n_rows, int64)
        for r in range(n_rows):
            starts[r] = divide(i3, r3) * w3 + divide(i2, r2) * w2 + min(row + r, rows - 1) * w1
        x_starts = cuda.local.array(n_tokens, x_start)
        for t in range(n_tokens):
            x_starts[t] = i3 * x3 + i2 * x2 + (first + min(t, tokens - 1)) * x1
        acc = cuda.local.array(n_sums, float32)
        for i in range(n_sums):
            acc[i] = float32(0)
        at = (warp % split) * 32 + lane
        dots(w, starts, x, x_starts, at, n, high, steps, scales, x_high, d, sums, acc)
        sum_up(acc, warp)
        if lane == 0 and warp % split == 0:
            # a result is a tensor of its own, without gaps: y3 is ne12 * y2
            to = int32(cuda.blockIdx.y) * y2 + first * y1 + int64(row) * 4
            for t in range(n_tokens):
                for r in range(n_rows):
                    if t < tokens and row + r < rows:
                        store_f32(y, to + t * y1 + 4 * r, acc[t * n_rows + r])

    return mul_mat_vec


class Operands(NamedTuple):
    """A weight and activations as kernels read them.

    Attributes:
        x_type: None if both are read as planes.
        turns: loads of a lane that has a whole row.
        values: of the kernel's parameters; ``n``, ``w1`` to ``w3`` and ``x1`` to ``x3``, the
            distances of rows and matrices, are groups of planes, or columns and bytes.
    """

    x_type: GGMLType | None
    vector: bool
    turns: int
    values: dict[str, Any]


def operands(lowering: GpuLowering, a: Tensor, b: Tensor, dims: int) -> Operands:
    """The operands of a kernel that has the distances of ``dims`` dimensions."""
    if not has_planes(a):
        vector = a.type in FLOAT_TYPES and a.ne[0] % 8 == 0 and is_aligned(a) and is_aligned(b)
        values: dict[str, Any] = {"w": a, "x": b, "n": a.ne[0]}
        values |= dict.fromkeys(("high", "steps", "scales", "x_high", "d", "sums"), 0)
        return Operands(b.type, vector, a.ne[0] // (256 if vector else 32), values)
    w, at = planes_in(lowering, a)
    x, q8 = quantized(lowering, b)
    n = a.ne[0] // 32
    values = {
        "w": w, "x": x, "n": n, "high": at.high, "steps": at.steps, "scales": at.scales,
        "x_high": q8.high, "d": q8.d, "sums": q8.sums,
    }  # fmt: skip
    for i in range(1, dims + 1):
        values |= {f"w{i}": n * math.prod(a.ne[1:i]), f"x{i}": n * math.prod(b.ne[1:i])}
    return Operands(None, False, a.ne[0] // 1024, values)


def _supports(node: Tensor) -> bool:
    a, b = node.src[:2]
    known_x = b.type in FLOAT_TYPES and b.is_contiguous_rows()
    return known_x and reads_weight(a) and b.ne[2] * b.ne[3] < 1 << 16


@lowers("MUL_MAT", _supports)
def _lower_mul_mat(lowering: GpuLowering, node: Tensor) -> None:
    a, b = node.src[:2]
    if b.ne[1] > MAX_TOKENS and lowering.device.cc >= mat_mat.TENSOR_CORES:
        mat_mat.multiply(lowering, node)
        return
    batches = b.ne[2] * b.ne[3]
    x_type, vector, turns, values = operands(lowering, a, b, 3)
    split = split_of(lowering, a.ne[1] * batches, turns)
    for first, n, size in token_chunks(b.ne[1]):
        shape = shape_of(size, split, a.type, planes=x_type is None)
        call = mat_vec(a.type, x_type, vector, shape)(
            first=first, tokens=n, **mat_mat.result_of(node), **values
        )
        lowering.launch(call, Grid(ceil_div(a.ne[1], shape.block_rows), batches))
