"""MUL_MAT of more than 8 tokens: tiles of rows and tokens, by tensor cores.

    multiply(lowering, node)                            # or False: see ``matmul``

F16 and BF16 weights are multiplied with activations of the same type (``quantize.halved``), all
other types that can be decoded as F16, and planes as int8 with int8 activations, whose sums are
scaled for each group of 32 columns. Sums are float32 throughout. F32 weights are multiplied without
tensor cores. A result's sum has the same order in every tile.

Access: a block copies the cells of 16 bytes of its rows and tokens to shared memory with
``cp.async``, two steps ahead of the one that it multiplies. A cell of row r and place c (in the
step) is at c * rows + (r ^ swizzle(c)), so that neither the copies, where neighbours have other
places, nor ``ldmatrix``, where they have other rows, meet in a bank. Codes of 4 bits stay packed
in shared memory: lane i of 4 multiplies word i of a row's cell, its low halves with the group's
first 16 columns. Capability 7.5 has neither ``cp.async`` nor these shapes of ``mma``: there are
loads and stores, and smaller shapes of the same layout.
"""

from functools import cache
from typing import Any, NamedTuple

import numpy as np
from numba import cuda, float32, int32, int64, uint32

from .....dtype import GGMLType
from .....rounding import ceil_div
from .....tensor import Tensor
from ... import intrin
from ...codec import FLOAT_TYPES, element_loader
from ...driver import Grid
from ...intrin import (
    bits_to_float,
    commit_copies,
    device,
    divide,
    float_to_bits,
    float_to_half,
    global_address,
    load_f32,
    load_f32x4,
    load_matrices,
    load_shared_f32,
    load_shared_f32x2,
    load_shared_f32x4,
    load_shared_i32x2,
    load_shared_u32,
    load_shared_u32x2,
    load_u32,
    load_u32x2,
    load_u32x4,
    shared_address,
    store_f32,
    store_shared_f32,
    store_shared_u32,
    store_shared_u32x2,
    store_shared_u32x4,
    u32,
    wait_copies_0,
    wait_copies_1,
)
from ...kernel import U8, GpuKernel, i32, i64, kernel
from ...lowering import GpuLowering
from ...planes import known_planes
from .quantize import halved, is_aligned, quantized
from .weights import group_reader, has_planes, planes_in, word_unpacker

ZERO = np.uint32(0)
TENSOR_CORES = (7, 5)  # the first capability whose shapes are used here
_SHARED = 48 << 10  # bytes that every device gives a block without being asked
_MAGIC = 0x4B400000  # 1.5 * 2^23: float32 bits that count by ones


class Tile(NamedTuple):
    """A block's part of the result, and how its warps share it.

    Attributes:
        rows, tokens: of a block.
        by_rows, by_tokens: warps along each.
    """

    rows: int
    tokens: int
    by_rows: int
    by_tokens: int

    @property
    def name(self) -> str:
        return f"{self.rows}x{self.tokens}"

    @property
    def threads(self) -> int:
        return 32 * self.by_rows * self.by_tokens

    @property
    def warp_rows(self) -> int:
        """Pieces of 16 rows of a warp."""
        return self.rows // self.by_rows // 16

    @property
    def warp_tokens(self) -> int:
        """Pieces of 8 tokens of a warp, an even number."""
        return self.tokens // self.by_tokens // 8


NARROW, MIDDLE, SQUARE = Tile(64, 16, 4, 1), Tile(64, 32, 4, 1), Tile(64, 64, 2, 2)
LARGE = Tile(128, 128, 2, 4)


def tile_of(lowering: GpuLowering, rows: int, tokens: int, batches: int) -> Tile:
    """The tile for so many tokens: large ones read less if they are enough for the device."""
    if tokens <= 32:
        return NARROW if tokens <= 16 else MIDDLE
    blocks = ceil_div(rows, LARGE.rows) * ceil_div(tokens, LARGE.tokens) * batches
    return LARGE if tokens > 64 and blocks >= lowering.device.n_sm else SQUARE


def _copier(n: int, turing: bool) -> Any:
    """A device function that copies ``n`` bytes to shared memory, or writes zeros.

    (address in shared memory, pointer, offset, whether it is to be read)
    """
    asynchronous = {4: intrin.copy_async_4, 8: intrin.copy_async_8, 16: intrin.copy_async_16}[n]

    @device
    def copy(target, pointer, offset, there):
        asynchronous(target, global_address(pointer, offset), int32(n if there else 0))

    load, store, zeros = {
        4: (load_u32, store_shared_u32, ZERO),
        8: (load_u32x2, store_shared_u32x2, (ZERO,) * 2),
        16: (load_u32x4, store_shared_u32x4, (ZERO,) * 4),
    }[n]

    @device
    def copy_now(target, pointer, offset, there):
        words = zeros
        if there:
            words = load(pointer, offset)
        store(target, words)

    return copy_now if turing else copy


def _barriers(turing: bool) -> tuple[Any, Any, Any]:
    """Device functions: close a group of copies; wait for all but the last; wait for all."""

    @device
    def nothing():
        pass

    return (nothing,) * 3 if turing else (commit_copies, wait_copies_1, wait_copies_0)


@cache
def mat_mat_halves(type: GGMLType, vector: bool, tile: Tile, turing: bool) -> GpuKernel:
    """The kernel of weights that are multiplied as F16 or BF16.

    Args:
        vector: weights of 16 bits whose rows are aligned to 16 bytes, with a multiple of 8 columns;
            else any type, element by element.
    """
    bf16 = type is GGMLType.BF16
    mma = intrin.mma_bf16 if bf16 else intrin.mma_f16_75 if turing else intrin.mma_f16
    load = element_loader(type)
    copy = _copier(16, turing)
    commit, wait_but_one, _ = _barriers(turing)
    rows_of, tokens_of, threads = tile.rows, tile.tokens, tile.threads
    by_tokens, n_i, n_j = tile.by_tokens, tile.warp_rows, tile.warp_tokens
    x_at, step_bytes = 64 * rows_of, 64 * (rows_of + tokens_of)
    n_words, n_acc, n_b = 3 * step_bytes // 4, 4 * n_i * n_j, 2 * n_j
    w_cells, x_cells = ceil_div(4 * rows_of, threads), ceil_div(4 * tokens_of, threads)
    exact_x = 4 * tokens_of % threads == 0

    @device
    def pair_of(w, at, j, n):
        """Elements j and j + 1 as one word."""
        a = load(w, at, j) if j < n else float32(0)
        b = load(w, at, j + 1) if j + 1 < n else float32(0)
        if bf16:
            return u32((float_to_bits(a) >> uint32(16)) | (float_to_bits(b) & 0xFFFF0000))
        return u32(uint32(float_to_half(a)) | (uint32(float_to_half(b)) << uint32(16)))

    @device
    def copy_step(base, w, w_base, w1, row0, rows, x, x_base, token0, tokens, k0, n, padded):
        thread = int32(cuda.threadIdx.x)
        for i in range(w_cells):
            at = thread + i * threads
            row, cell = at >> 2, at & 3
            k = k0 + cell * 8
            target = u32(base + (cell * rows_of + (row ^ (cell << 1))) * 16)
            start = w_base + min(row0 + row, rows - 1) * w1
            if vector:
                copy(target, w, start + 2 * (k if k < n else 0), k < n)
            else:
                store_shared_u32x4(
                    target, pair_of(w, start, k, n), pair_of(w, start, k + 2, n),
                    pair_of(w, start, k + 4, n), pair_of(w, start, k + 6, n),
                )  # fmt: skip
        for i in range(x_cells):
            at = thread + i * threads
            row, cell = at >> 2, at & 3
            k = k0 + cell * 8
            if exact_x or row < tokens_of:
                target = u32(base + x_at + (cell * tokens_of + (row ^ (cell << 1))) * 16)
                start = (x_base + min(token0 + row, tokens - 1)) * (2 * padded)
                copy(target, x, start + 2 * (k if k < padded else 0), k < padded)

    @device
    def multiply_step(base, warp_row, warp_token, lane, acc):
        b = cuda.local.array(n_b, uint32)
        for half in range(2):
            cell = 2 * half + ((lane >> 3) & 1)
            at = base + x_at + cell * (16 * tokens_of)
            token = ((lane & 7) ^ (cell << 1)) + ((lane >> 4) << 3) + warp_token
            for j in range(n_j // 2):
                b[4 * j], b[4 * j + 1], b[4 * j + 2], b[4 * j + 3] = load_matrices(
                    u32(at + (token + 16 * j) * 16)
                )
            cell = 2 * half + (lane >> 4)
            at = base + cell * (16 * rows_of)
            row = ((lane & 7) ^ (cell << 1)) + (lane & 8) + warp_row
            for i in range(n_i):
                a0, a1, a2, a3 = load_matrices(u32(at + (row + 16 * i) * 16))
                for j in range(n_j):
                    c = 4 * (i * n_j + j)
                    acc[c], acc[c + 1], acc[c + 2], acc[c + 3] = mma(
                        a0, a1, a2, a3, b[2 * j], b[2 * j + 1],
                        acc[c], acc[c + 1], acc[c + 2], acc[c + 3],
                    )  # fmt: skip

    name = f"mul_mat_{type.name.lower()}{'_elements' * (not vector)}_{tile.name}{'_75' * turing}"

    @kernel(name, threads=threads, max_registers=128)
    def mul_mat(
        w: U8, x: U8, y: U8, n: i32, padded: i32, rows: i32, tokens: i32, w1: i64, w2: i64,
        w3: i64, factors: i64, ne12: i32, r2: i32, r3: i32, y1: i64, y2: i64, y3: i64,
    ):  # fmt: skip
        """Row tile ``blockIdx.y``; token tile ``blockIdx.x``: neighbours read the same weights."""
        shared = shared_address(cuda.shared.array(n_words, uint32, 16))
        thread = int32(cuda.threadIdx.x)
        lane, warp = thread & 31, thread >> 5
        warp_row, warp_token = warp // by_tokens * (16 * n_i), warp % by_tokens * (8 * n_j)
        token0, row0 = int32(cuda.blockIdx.x) * tokens_of, int32(cuda.blockIdx.y) * rows_of
        i3 = divide(cuda.blockIdx.z, ne12)
        i2 = int32(cuda.blockIdx.z - i3 * ne12)
        w_base, x_base = divide(i3, r3) * w3 + divide(i2, r2) * w2, int64(i3 * ne12 + i2) * tokens
        acc = cuda.local.array(n_acc, float32)
        for i in range(n_acc):
            acc[i] = float32(0)
        steps = (n + 31) // 32
        for s in range(2):
            if s < steps:
                base = shared + s * step_bytes
                copy_step(
                    base, w, w_base, w1, row0, rows, x, x_base, token0, tokens, 32 * s, n, padded
                )
            commit()
        now, later = int32(0), int32(2)
        for s in range(steps):
            wait_but_one()
            cuda.syncthreads()
            if s + 2 < steps:
                base, k0 = shared + later * step_bytes, int32(32 * (s + 2))
                copy_step(base, w, w_base, w1, row0, rows, x, x_base, token0, tokens, k0, n, padded)
            commit()
            multiply_step(shared + now * step_bytes, warp_row, warp_token, lane, acc)
            now = int32(now + 1 if now < 2 else 0)
            later = int32(later + 1 if later < 2 else 0)
        y_base = i3 * y3 + i2 * y2
        for j in range(n_j):
            for k in range(2):
                token = token0 + warp_token + 8 * j + 2 * (lane & 3) + k
                if token < tokens:
                    factor = float32(1)
                    if not bf16:
                        factor = load_f32(x, factors + (x_base + token) * 4)
                    for i in range(n_i):
                        for h in range(2):
                            row = row0 + warp_row + 16 * i + 8 * h + (lane >> 2)
                            if row < rows:
                                v = acc[4 * (i * n_j + j) + 2 * h + k] * factor
                                store_f32(y, y_base + token * y1 + int64(row) * 4, v)

    return mul_mat


class _Places(NamedTuple):
    """Where the parts of a step of planes are in shared memory, in bytes; codes begin at 0.

    Attributes:
        scales: s0, s1, m0, m1 of each row and group, as far as they are used.
        x: the cells of activations; d, sums: of each token and group.
    """

    high: int
    scales: tuple[int, int, int, int]
    x: int
    d: int
    sums: int
    end: int

    @staticmethod
    def of(type: GGMLType, tile: Tile) -> "_Places":
        planes, reader = known_planes(type), group_reader(type)
        used = (True, reader.two_scales, reader.has_minima, reader.has_minima and reader.two_scales)
        at = [2 * tile.rows * planes.code_bytes]
        for size in (
            2 * tile.rows * planes.high_bytes,
            *(8 * tile.rows * one for one in used),
            64 * tile.tokens,
            8 * tile.tokens,
            8 * tile.tokens * reader.has_minima,
        ):
            at.append(at[-1] + size)
        high, s0, s1, m0, m1, x, d, sums, end = at
        return _Places(high, (s0, s1, m0, m1), x, d, sums, end)


@cache
def mat_mat_planes(type: GGMLType, tile: Tile, turing: bool) -> GpuKernel:
    """The kernel of a format in planes: a step is two groups of 32 columns."""
    reader, planes = group_reader(type), known_planes(type)
    load_steps, scales_of, centre = reader.load_steps, reader.scales, reader.centre
    two_scales, has_minima, zero = reader.two_scales, reader.has_minima, reader.zero
    wide, high_bytes = planes.code_bytes == 32, planes.high_bytes
    unpack_word = word_unpacker(high_bytes)
    mma = intrin.mma_s8_75 if turing else intrin.mma_s8
    mma_16 = intrin.mma_s8_16_75 if turing else intrin.mma_s8_16
    copy, copy_4 = _copier(16, turing), _copier(4, turing)
    copy_high = _copier(high_bytes, turing) if high_bytes else copy
    commit, wait_but_one, wait_all = _barriers(turing)
    rows_of, tokens_of, threads = tile.rows, tile.tokens, tile.threads
    by_tokens, n_i, n_j = tile.by_tokens, tile.warp_rows, tile.warp_tokens
    assert threads == 2 * rows_of  # a thread reads the scales of a row and group
    high_at, (s0_at, s1_at, m0_at, m1_at), x_at, d_at, sums_at, step_bytes = _Places.of(type, tile)
    three = 3 * step_bytes <= _SHARED
    ahead, n_buffers = (2, 3) if three else (1, 2)
    n_words, n_acc = n_buffers * step_bytes // 4, 4 * n_i * n_j
    n_b, n_raw, n_d = 2 * n_j, 4 * n_i, 2 * n_j
    in_row, row_shift = (4, 2) if wide else (2, 1)  # cells of a row
    w_cells = in_row * rows_of // threads
    x_cells, exact_x = ceil_div(4 * tokens_of, threads), 4 * tokens_of % threads == 0
    d_words, exact_d = ceil_div(2 * tokens_of, threads), 2 * tokens_of % threads == 0
    swizzle = 3 - row_shift  # a cell's rows are exchanged by its place, shifted so much

    @device
    def copy_step(
        base, w, w_row, row0, rows, x, token, token0, tokens, g0, n_groups, high, x_high, d, sums
    ):
        thread = int32(cuda.threadIdx.x)
        for i in range(w_cells):
            at = thread + i * threads
            row, cell = at >> row_shift, at & (in_row - 1)
            g = g0 + (cell >> 1 if wide else cell)
            there = g < n_groups
            group = (w_row + min(row0 + row, rows - 1)) * n_groups + (g if there else 0)
            target = u32(base + (cell * rows_of + (row ^ (cell << swizzle))) * 16)
            if wide:
                copy(target, w, group * 32 + (cell & 1) * 16, there)
            else:
                copy(target, w, group * 16, there)
                if high_bytes > 0:
                    target = u32(base + high_at + (cell * rows_of + row) * high_bytes)
                    copy_high(target, w, high + group * high_bytes, there)
        for i in range(x_cells):
            at = thread + i * threads
            row, cell = at >> 2, at & 3
            if exact_x or row < tokens_of:
                g = g0 + (cell >> 1)
                there = g < n_groups
                group = (token + min(token0 + row, tokens - 1)) * n_groups + (g if there else 0)
                target = u32(base + x_at + (cell * tokens_of + (row ^ (cell << 1))) * 16)
                copy(target, x, group * 16 + (x_high if cell & 1 else 0), there)
        for i in range(d_words):
            at = thread + i * threads
            row, cell = at >> 1, at & 1
            if exact_d or row < tokens_of:
                there = g0 + cell < n_groups
                group = (token + min(token0 + row, tokens - 1)) * n_groups
                group += g0 + cell if there else 0
                target = (cell * tokens_of + row) * 4
                copy_4(u32(base + d_at + target), x, d + group * 4, there)
                if has_minima:
                    copy_4(u32(base + sums_at + target), x, sums + group * 4, there)

    @device
    def load_scales(w, w_row, row0, rows, g0, n_groups, steps, scales):
        """The bits of this thread's row and group; zeros after the last group."""
        thread = int32(cuda.threadIdx.x)
        g, bits, step_bits = g0 + (thread & 1), uint32(0), uint32(0)
        if g < n_groups:
            group = (w_row + min(row0 + (thread >> 1), rows - 1)) * n_groups + g
            bits, step_bits = load_steps(w, group, steps, scales)
        return bits, step_bits

    @device
    def store_scales(base, bits, step_bits):
        thread = int32(cuda.threadIdx.x)
        s0, s1, m0, m1 = scales_of(bits, step_bits)
        at = base + ((thread & 1) * rows_of + (thread >> 1)) * 4
        store_shared_f32(u32(at + s0_at), s0)
        if two_scales:
            store_shared_f32(u32(at + s1_at), s1)
        if has_minima:
            store_shared_f32(u32(at + m0_at), m0)
            if two_scales:
                store_shared_f32(u32(at + m1_at), m1)

    @device
    def as_float(c):
        """A sum that began at the magic number; cheaper than a conversion."""
        return bits_to_float(u32(c)) - float32(12582912)

    @device
    def accumulate(acc, at, c, c_up, s0, s1, m0, m1, d, sum_0, sum_1):
        v = s0 * as_float(c)
        if two_scales:
            v = cuda.fma(s1, as_float(c_up), v)
        if has_minima and two_scales:
            v = cuda.fma(m0, float32(sum_0), v)
            v = cuda.fma(m1, float32(sum_1), v)
        elif has_minima:
            v = cuda.fma(m0, float32(int32(sum_0 + sum_1)), v)
        acc[at] = cuda.fma(d, v, acc[at])

    @device
    def row_scales(base, at):
        s0 = load_shared_f32(u32(base + s0_at + at))
        s1, m0, m1 = s0, float32(0), float32(0)
        if two_scales:
            s1 = load_shared_f32(u32(base + s1_at + at))
        if has_minima:
            m0 = load_shared_f32(u32(base + m0_at + at))
            m1 = m0
            if two_scales:
                m1 = load_shared_f32(u32(base + m1_at + at))
        return s0, s1, m0, m1

    @device
    def operands(base, at, w, lane):
        """Words i and 4 + i of a row's group, of which ``w`` is word i of the packed codes."""
        h, k = uint32(0), uint32(0)
        if high_bytes == 4:
            h = load_shared_u32(u32(base + high_at + at * 4))
        elif high_bytes == 8:
            h, k = load_shared_u32x2(u32(base + high_at + at * 8))
        a, b = unpack_word(w, h, k, lane & 3)
        if zero != 0:
            return centre(a), centre(b)
        return a, b

    @device
    def multiply_step(base, warp_row, warp_token, lane, acc):
        raw = cuda.local.array(n_raw, uint32)
        b = cuda.local.array(n_b, uint32)
        ds = cuda.local.array(n_d, float32)
        xs = cuda.local.array(n_d, int32)
        if not wide:
            cell = lane >> 4  # the group
            row = ((lane & 7) ^ (cell << swizzle)) + (lane & 8) + warp_row
            at = base + cell * (16 * rows_of)
            for i in range(n_i):
                r = 4 * i
                raw[r], raw[r + 1], raw[r + 2], raw[r + 3] = load_matrices(
                    u32(at + (row + 16 * i) * 16)
                )
        for g in range(2):
            cell = 2 * g + ((lane >> 3) & 1)
            token = ((lane & 7) ^ (cell << 1)) + ((lane >> 4) << 3) + warp_token
            at = base + x_at + cell * (16 * tokens_of)
            for j in range(n_j // 2):
                b[4 * j], b[4 * j + 1], b[4 * j + 2], b[4 * j + 3] = load_matrices(
                    u32(at + (token + 16 * j) * 16)
                )
            for j in range(n_j):
                at = (g * tokens_of + warp_token + 8 * j + 2 * (lane & 3)) * 4
                ds[2 * j], ds[2 * j + 1] = load_shared_f32x2(u32(base + d_at + at))
                if has_minima:
                    xs[2 * j], xs[2 * j + 1] = load_shared_i32x2(u32(base + sums_at + at))
            for i in range(n_i):
                row = g * rows_of + warp_row + 16 * i + (lane >> 2)
                if wide:
                    cell = 2 * g + (lane >> 4)
                    line = ((lane & 7) ^ (cell << swizzle)) + (lane & 8) + warp_row + 16 * i
                    a0, a1, a2, a3 = load_matrices(u32(base + (cell * rows_of + line) * 16))
                else:
                    a0, a2 = operands(base, row, raw[4 * i + 2 * g], lane)
                    a1, a3 = operands(base, row + 8, raw[4 * i + 2 * g + 1], lane)
                p0, p1, q0, q1 = row_scales(base, row * 4)
                t0, t1, n0, n1 = row_scales(base, row * 4 + 32)
                for j in range(n_j):
                    if two_scales:
                        c0, c1, c2, c3 = mma_16(a0, a1, b[2 * j], int32(_MAGIC))
                        e0, e1, e2, e3 = mma_16(a2, a3, b[2 * j + 1], int32(_MAGIC))
                    else:
                        c0, c1, c2, c3 = mma(a0, a1, a2, a3, b[2 * j], b[2 * j + 1], int32(_MAGIC))
                        e0, e1, e2, e3 = c0, c1, c2, c3
                    u0, u1, v0, v1 = int32(0), int32(0), int32(0), int32(0)
                    if has_minima:
                        u0, u1 = int32(int32(xs[2 * j] << 16) >> 16), int32(xs[2 * j] >> 16)
                        v0 = int32(int32(xs[2 * j + 1] << 16) >> 16)
                        v1 = int32(xs[2 * j + 1] >> 16)
                    c = 4 * (i * n_j + j)
                    accumulate(acc, c, c0, e0, p0, p1, q0, q1, ds[2 * j], u0, u1)
                    accumulate(acc, c + 1, c1, e1, p0, p1, q0, q1, ds[2 * j + 1], v0, v1)
                    accumulate(acc, c + 2, c2, e2, t0, t1, n0, n1, ds[2 * j], u0, u1)
                    accumulate(acc, c + 3, c3, e3, t0, t1, n0, n1, ds[2 * j + 1], v0, v1)

    @kernel(
        f"mul_mat_{type.name.lower()}_{tile.name}{'_75' * turing}",
        threads=threads,
        max_registers=255 if tile == LARGE else 168,
    )
    def mul_mat(
        w: U8, x: U8, y: U8, n_groups: i32, rows: i32, tokens: i32, high: i64, steps: i64,
        scales: i64, x_high: i64, d: i64, sums: i64, ne12: i32, ne02: i32, r2: i32, r3: i32,
        y1: i64, y2: i64, y3: i64,
    ):  # fmt: skip
        """Row tile ``blockIdx.y``; token tile ``blockIdx.x``: neighbours read the same weights."""
        shared = shared_address(cuda.shared.array(n_words, uint32, 16))
        thread = int32(cuda.threadIdx.x)
        lane, warp = thread & 31, thread >> 5
        warp_row, warp_token = warp // by_tokens * (16 * n_i), warp % by_tokens * (8 * n_j)
        token0, row0 = int32(cuda.blockIdx.x) * tokens_of, int32(cuda.blockIdx.y) * rows_of
        i3 = divide(cuda.blockIdx.z, ne12)
        i2 = int32(cuda.blockIdx.z - i3 * ne12)
        w_row = int64(divide(i3, r3) * ne02 + divide(i2, r2)) * rows
        token = int64(i3 * ne12 + i2) * tokens
        acc = cuda.local.array(n_acc, float32)
        for i in range(n_acc):
            acc[i] = float32(0)
        n_steps = (n_groups + 1) // 2
        for s in range(ahead):
            if s < n_steps:
                base = shared + s * step_bytes
                copy_step(
                    base, w, w_row, row0, rows, x, token, token0, tokens, 2 * s, n_groups, high,
                    x_high, d, sums,
                )  # fmt: skip
                bits, more = load_scales(w, w_row, row0, rows, 2 * s, n_groups, steps, scales)
                store_scales(base, bits, more)
            commit()
        now, later = int32(0), int32(ahead)
        for s in range(n_steps):
            if three:
                wait_but_one()
            else:
                wait_all()
            cuda.syncthreads()
            bits, more = uint32(0), uint32(0)
            base, g0 = shared + later * step_bytes, int32(2 * (s + ahead))
            if s + ahead < n_steps:
                copy_step(
                    base, w, w_row, row0, rows, x, token, token0, tokens, g0, n_groups, high,
                    x_high, d, sums,
                )  # fmt: skip
                bits, more = load_scales(w, w_row, row0, rows, g0, n_groups, steps, scales)
            commit()
            multiply_step(shared + now * step_bytes, warp_row, warp_token, lane, acc)
            if s + ahead < n_steps:
                store_scales(base, bits, more)
            now = int32(now + 1 if now < n_buffers - 1 else 0)
            later = int32(later + 1 if later < n_buffers - 1 else 0)
        y_base = i3 * y3 + i2 * y2
        for j in range(n_j):
            for k in range(2):
                at = token0 + warp_token + 8 * j + 2 * (lane & 3) + k
                if at < tokens:
                    for i in range(n_i):
                        for h in range(2):
                            row = row0 + warp_row + 16 * i + 8 * h + (lane >> 2)
                            if row < rows:
                                v = acc[4 * (i * n_j + j) + 2 * h + k]
                                store_f32(y, y_base + at * y1 + int64(row) * 4, v)

    return mul_mat


_SIDE, _DEPTH, _WIDE = 64, 16, 68  # of FMA tiles; words of a line in shared memory


@cache
def mat_mat_fma(type: GGMLType, x_type: GGMLType, vector: bool) -> GpuKernel:
    """The kernel without tensor cores: 64 rows and tokens, of which a thread has 4 by 4.

    Args:
        vector: both are F32, with rows that are aligned to 16 bytes and multiples of 4 columns.
    """
    load, load_x = element_loader(type), element_loader(x_type)

    @device
    def copy_tile(base, p, start, k, n, load_one):
        """Four columns of a row, into lines of columns."""
        if vector:
            a, b, c, d = float32(0), float32(0), float32(0), float32(0)
            if k < n:
                a, b, c, d = load_f32x4(p, start + 4 * k)
        else:
            a = load_one(p, start, k) if k < n else float32(0)
            b = load_one(p, start, k + 1) if k + 1 < n else float32(0)
            c = load_one(p, start, k + 2) if k + 2 < n else float32(0)
            d = load_one(p, start, k + 3) if k + 3 < n else float32(0)
        store_shared_f32(u32(base), a)
        store_shared_f32(u32(base + 4 * _WIDE), b)
        store_shared_f32(u32(base + 8 * _WIDE), c)
        store_shared_f32(u32(base + 12 * _WIDE), d)

    n_words = 2 * _DEPTH * _WIDE

    @kernel(f"mul_mat_fma_{type.name.lower()}_{x_type.name.lower()}{'_x4' * vector}", threads=256)
    def mul_mat(
        w: U8, x: U8, y: U8, n: i32, rows: i32, tokens: i32, w1: i64, w2: i64, w3: i64, x1: i64,
        x2: i64, x3: i64, ne12: i32, r2: i32, r3: i32, y1: i64, y2: i64, y3: i64,
    ):  # fmt: skip
        shared = shared_address(cuda.shared.array(n_words, uint32, 16))
        thread = int32(cuda.threadIdx.x)
        token0, row0 = int32(cuda.blockIdx.x) * _SIDE, int32(cuda.blockIdx.y) * _SIDE
        i3 = divide(cuda.blockIdx.z, ne12)
        i2 = int32(cuda.blockIdx.z - i3 * ne12)
        line, k = thread >> 2, (thread & 3) * 4
        w_start = divide(i3, r3) * w3 + divide(i2, r2) * w2 + min(row0 + line, rows - 1) * w1
        x_start = i3 * x3 + i2 * x2 + min(token0 + line, tokens - 1) * x1
        x_shared = u32(shared + 4 * _DEPTH * _WIDE)
        target = (k * _WIDE + line) * 4
        acc = cuda.local.array(16, float32)
        a = cuda.local.array(4, float32)
        b = cuda.local.array(4, float32)
        for i in range(16):
            acc[i] = float32(0)
        row, token = (thread & 15) * 4, (thread >> 4) * 4
        while k < n + (thread & 3) * 4:
            copy_tile(shared + target, w, w_start, k, n, load)
            copy_tile(x_shared + target, x, x_start, k, n, load_x)
            cuda.syncthreads()
            for j in range(_DEPTH):
                at = j * (4 * _WIDE)
                a[0], a[1], a[2], a[3] = load_shared_f32x4(u32(shared + at + row * 4))
                b[0], b[1], b[2], b[3] = load_shared_f32x4(u32(x_shared + at + token * 4))
                for t in range(4):
                    for r in range(4):
                        acc[4 * t + r] = cuda.fma(a[r], b[t], acc[4 * t + r])
            cuda.syncthreads()
            k += _DEPTH
        for t in range(4):
            for r in range(4):
                if row0 + row + r < rows and token0 + token + t < tokens:
                    at = i3 * y3 + i2 * y2 + (token0 + token + t) * y1
                    store_f32(y, at + int64(row0 + row + r) * 4, acc[4 * t + r])

    return mul_mat


def result_of(node: Tensor) -> dict[str, Any]:
    """The values of the parameters for the result of a MUL_MAT and the broadcast of its weight."""
    a, b = node.src[:2]
    return {
        "y": node, "rows": a.ne[1], "ne12": b.ne[2], "r2": b.ne[2] // a.ne[2],
        "r3": b.ne[3] // a.ne[3],
    }  # fmt: skip


def multiply(lowering: GpuLowering, node: Tensor) -> None:
    """Add the launches of a MUL_MAT of any number of tokens."""
    a, b = node.src[:2]
    batches, turing = b.ne[2] * b.ne[3], lowering.device.cc < (8, 0)
    common = result_of(node) | {"tokens": b.ne[1]}
    if a.type is GGMLType.F32 or (turing and a.type is GGMLType.BF16):
        vector = a.type is b.type is GGMLType.F32 and a.ne[0] % 4 == 0
        vector = vector and is_aligned(a) and is_aligned(b)
        call = mat_mat_fma(a.type, b.type, vector)(w=a, x=b, n=a.ne[0], **common)
        lowering.launch(call, Grid(ceil_div(b.ne[1], _SIDE), ceil_div(a.ne[1], _SIDE), batches))
        return
    tile = tile_of(lowering, a.ne[1], b.ne[1], batches)
    if has_planes(a) and tile == LARGE and group_reader(a.type).needs_many_registers:
        tile = SQUARE
    grid = Grid(ceil_div(b.ne[1], tile.tokens), ceil_div(a.ne[1], tile.rows), batches)
    if has_planes(a):
        w, at = planes_in(lowering, a)
        x, q8 = quantized(lowering, b)
        call = mat_mat_planes(a.type, tile, turing)(
            w=w, x=x, n_groups=a.ne[0] // 32, high=at.high, steps=at.steps, scales=at.scales,
            x_high=q8.high, d=q8.d, sums=q8.sums, ne02=a.ne[2], **common,
        )  # fmt: skip
    else:
        x, halves = halved(lowering, b, GGMLType.BF16 if a.type is GGMLType.BF16 else GGMLType.F16)
        vector = a.type in FLOAT_TYPES and a.ne[0] % 8 == 0 and is_aligned(a)
        call = mat_mat_halves(a.type, vector, tile, turing)(
            w=a, x=x, n=a.ne[0], padded=halves.padded, factors=halves.scales, **common
        )
    lowering.launch(call, grid)
