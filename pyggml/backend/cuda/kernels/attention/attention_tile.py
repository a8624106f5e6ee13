"""FLASH_ATTN_EXT of many tokens: tiles of query rows times keys, by tensor cores.

    if tileable(lowering.device, shape):
        attend_tiles(lowering, shape, values, splits)

A query row is a token and one of the query heads of a KV head, so that all rows of a block read
the same keys. A block takes ``ROWS`` rows, a warp 16 of them; queries, scores and sums of values
are fragments of ``mma``. Tokens of a block are cut into runs of one list (sequence and branch), of
which begin and end are read on the device. A run goes over its keys in tiles that begin at
multiples of their size in the list, so that a token's bits do not depend on other tokens. The
blocks with the last tokens, which have the most keys, start first.

The columns of wide heads are cut into 4 slices. Then the warps of a block have the same 16 rows and
a slice each: a part of all scores, which they add in shared memory, and their columns of the sums.
So a thread needs no more registers than for ``NARROW`` columns, and a tile is read once for 16
heads. A run's keys may be divided into splits, of which ``attention_merge`` merges the states.

    columns of a key       |  warp 0  |  warp 1  |  warp 2  |  warp 3  |
    score of 16 x 16 pairs    part 0  +  part 1  +  part 2  +  part 3     (each warp adds all)
    columns of a value     |  warp 0  |  warp 1  |  warp 2  |  warp 3  |

Keys and values are multiplied as F16, or as BF16, where queries and weights are split in two terms
to keep 16 bits. Quantized ones become F16 as they are copied. A tile's values are copied to shared
memory while scores are computed, the next tile's keys while values are summed (``cp.async``; from
capability 8.0 on). Values that are the first columns of their keys, as in multi-head latent
attention, are not copied: then there are two tiles of keys. Rows in shared memory are 16 bytes
longer than their elements, so that ``ldmatrix`` meets no bank twice.

A block has at most 42 KiB of static shared memory. Of 576 columns of keys and 512 of values these
are a tile of both (35 KiB) or two of keys (37 KiB), and 4 KiB of parts of scores. Before capability
9.0 more registers are in use: queries stay in shared memory (18 KiB), and a tile's values are
copied over its keys (18 KiB).

Source: Dao, "FlashAttention-2".
"""

import math
from collections.abc import Mapping
from functools import cache
from typing import Any

from numba import cuda, float32, int32, int64, uint32

from .....dtype import GGMLType
from .....rounding import ceil_div, round_up
from .....tensor import Tensor
from ...codec import element_loader
from ...driver import DeviceInfo, Grid
from ...intrin import (
    bits_to_float,
    commit_copies,
    copy_async_16,
    device,
    divide,
    exp2,
    float_to_bits,
    floats_to_halves,
    global_address,
    load_f32,
    load_i32,
    load_matrices,
    load_matrices_transposed,
    load_shared_f32,
    load_u32x4,
    mma_bf16,
    mma_f16,
    mma_f16_75,
    shared_address,
    store_f32,
    store_i32,
    store_shared_f32,
    store_shared_u32x4,
    u32,
    wait_copies_0,
)
from ...kernel import U8, GpuKernel, f32, i32, i64, kernel
from ...lowering import GpuLowering
from ..rows.softmax import alibi_slope
from ..warp import FULL
from .attention_chunk import (
    LOG2E_F32,
    LOWEST,
    ONE,
    THREADS,
    ZERO,
    AttentionForm,
    chunk_loader,
    finite,
    in_lists,
)

ROWS = 64  # of a block
BF16 = GGMLType.BF16
NARROW = 128  # columns of a head whose sums a warp keeps: more would not fit the registers
MAX_KEY, MAX_VALUE = 576, 512  # columns of a head: more would not fit the shared memory
NEVER = 0x7FFFFFFF


@device
def high_halves(a, b):
    """Two floats cut to BF16, the first one's bits low; and what was cut off."""
    x, y = float_to_bits(a), float_to_bits(b)
    mask = uint32(0xFFFF0000)
    rest_a = a - bits_to_float(u32(x & mask))
    rest_b = b - bits_to_float(u32(y & mask))
    return u32((x >> uint32(16)) | (y & mask)), rest_a, rest_b


@cache
def row_copier(type: GGMLType, n: int, padded: int, asynchronous: bool) -> Any:
    """A device function that copies 8 elements of a row to shared memory as F16 (or BF16).

    (address in shared memory, pointer, offset of the row, j, whether it is to be read)

    Args:
        padded: columns in shared memory; those after the row's ``n`` are 0.
    """
    load_8, exact = chunk_loader(type, n, True), type in (GGMLType.F16, BF16)

    @device
    def copy_bytes_async(target, pointer, row, j, there):
        if j < padded:
            there = there and j < n
            at = row + int64(2) * j if there else int64(0)
            copy_async_16(target, global_address(pointer, at), int32(16 if there else 0))

    @device
    def copy_bytes(target, pointer, row, j, there):
        a, b, c, d = uint32(0), uint32(0), uint32(0), uint32(0)
        if there and j < n:
            a, b, c, d = load_u32x4(pointer, row + int64(2) * j)
        if j < padded:
            store_shared_u32x4(target, a, b, c, d)

    @device
    def convert(target, pointer, row, j, there):
        a, b, c, d = uint32(0), uint32(0), uint32(0), uint32(0)
        if there and j < n:
            x0, x1, x2, x3, x4, x5, x6, x7 = load_8(pointer, row, j)
            a, b = floats_to_halves(x0, x1), floats_to_halves(x2, x3)
            c, d = floats_to_halves(x4, x5), floats_to_halves(x6, x7)
        if j < padded:
            store_shared_u32x4(target, a, b, c, d)

    return copy_bytes_async if exact and asynchronous else copy_bytes if exact else convert


def n_slices(shape: AttentionForm) -> int:
    """Parts of the columns of a head, a warp each; as many warps have the same query rows."""
    return 4 if max(shape.hd, shape.hdv) > NARROW else 1


def tile_rows(shape: AttentionForm) -> int:
    """Query rows of a block."""
    return ROWS // n_slices(shape)


def tile_keys(shape: AttentionForm) -> int:
    """Keys of a tile: as registers allow, or shared memory where there are several slices."""
    widest = round_up(max(shape.hd, shape.hdv), 16)
    return 16 if n_slices(shape) > 1 else 64 if widest <= 64 else 32


@cache
def tile_kernel(shape: AttentionForm, turing: bool, kept: bool, inside: bool) -> GpuKernel:
    """The kernel.

    Args:
        turing: it is for a device of capability 7.5.
        kept: queries (of two terms the lower one) stay in shared memory, for want of registers.
        inside: values are the first columns of the keys' rows; of several slices, and not ``kept``.
    """
    slices = n_slices(shape)
    hd, hdv = round_up(shape.hd, 16 * slices), round_up(shape.hdv, 16 * slices)
    hd_real, hdv_real = shape.hd, shape.hdv
    listed, branched, masked = shape.listed, shape.branched, shape.mask is not None
    capped, alibi = shape.softcap, shape.alibi
    split_k, split_v, asynchronous = shape.k is BF16, shape.v is BF16, not turing
    mma_k = mma_bf16 if split_k else mma_f16_75 if turing else mma_f16
    mma_v = mma_bf16 if split_v else mma_f16_75 if turing else mma_f16
    k_stride = 2 * hd + 16
    v_stride = k_stride if inside else 2 * hdv + 16
    n_keys, n_rows = tile_keys(shape), tile_rows(shape)
    # threads that copy a row, a power of two, and rows of queries that the block copies at once
    k_bits, v_bits = (min(5, (n // 8 - 1).bit_length()) for n in (hd, hdv))
    k_rows = THREADS >> k_bits
    k_chunks, v_chunks = ceil_div(hd, 8 << k_bits), ceil_div(hdv, 8 << v_bits)  # of a thread
    load_8 = chunk_loader(GGMLType.F32, hd_real, False)
    copy_k = row_copier(shape.k, hd_real, hd, asynchronous)
    copy_v = row_copier(shape.v, hdv_real, hdv, asynchronous)
    load_mask = element_loader(shape.mask if masked else GGMLType.F32)
    n_steps, n_columns, n_out = hd // slices // 16, n_keys // 8, hdv // slices // 8
    n_parts = 2 if split_k else 1  # terms of a query
    n_query, n_score, n_sum = 4 * n_steps, 4 * n_columns, 4 * n_out
    single = kept and slices > 1  # values are copied over the keys, for want of shared memory
    n_tile = n_keys * (max(k_stride, v_stride) if single else k_stride + v_stride)  # bytes
    n_queries = n_rows * k_stride
    n_first = n_tile + n_queries if kept else max(n_tile, n_queries)
    n_parts_bytes = 4 * THREADS * n_score if slices > 1 else 0  # of the warps' parts of scores
    n_words = (n_first + n_parts_bytes) // 4
    suffix = "_kept" * kept + "_inside" * inside + "_75" * turing

    @device
    def entry_of(i, cells, branches, list_at, branch_at, cut, word):
        """Word 0 (the cell) or 1 (its position) of an entry of the list."""
        if not listed:
            return int32(i)
        if branched and i >= cut:
            return load_i32(branches, branch_at + int64(i - cut) * 8 + 4 * word)
        return load_i32(cells, list_at + int64(i) * 8 + 4 * word)

    @device
    def cell_of(i, cells, branches, list_at, branch_at, cut, n_kv, error, code):
        """The cell of an entry; 0 after an error, if there is no such cell."""
        cell = entry_of(i, cells, branches, list_at, branch_at, cut, 0)
        if listed and (cell < 0 or cell >= n_kv):
            store_i32(error, 0, code)
            return int32(0)
        return cell

    def copier(copy: Any, bits: int, chunks: int, stride: int) -> Any:
        """A device function that copies the rows of a tile's entries to shared memory."""
        n_at_once, columns = THREADS >> bits, 8 << bits

        @device
        def copy_tile(
            target, pointer, base, row_bytes, first, low, high,
            cells, branches, list_at, branch_at, cut, n_kv, error, code,
        ):  # fmt: skip
            thread = int32(cuda.threadIdx.x)
            row, column = int32(thread >> bits), int32((thread & ((1 << bits) - 1)) * 8)
            for c in range(n_keys // n_at_once):
                r = int32(row + c * n_at_once)
                i = int32(first + r)
                there = i >= low and i < high
                cell = int32(0)
                if there:
                    cell = cell_of(i, cells, branches, list_at, branch_at, cut, n_kv, error, code)
                for e in range(chunks):
                    j = int32(column + e * columns)
                    at = u32(target + u32(r * stride + 2 * j))
                    copy(at, pointer, base + cell * row_bytes, j, there)

        return copy_tile

    copy_keys = copier(copy_k, k_bits, k_chunks, k_stride)
    copy_values = copier(copy_v, v_bits, v_chunks, v_stride)

    @kernel(f"attention_tile_{shape.name}{suffix}", threads=THREADS, max_registers=255, unroll=True)
    def attention_tile(
        q: U8, k: U8, v: U8, m: U8, sinks: U8, cells: U8, rows: U8, branches: U8, y: U8,
        parts: U8, n_splits: i32, values: i64,
        n_tokens: i32, n_kv: i32, n_rep: i32, r3: i32, q1: i64, q2: i64, q3: i64, k1: i64,
        k2: i64, k3: i64, v1: i64, v2: i64, v3: i64, y1: i64, y2: i64, y3: i64, m_ne2: i32,
        m_ne3: i32, m1: i64, m2: i64, m3: i64, cells2: i64, branches2: i64, rows1: i64,
        scale: f32, softcap: f32, n2: i32, step_0: f32, step_1: f32, bias_scale: f32,
        has_sinks: i32, n_seq: i32, n_list: i32, n_entries: i32, n_branches: i32, error: U8,
        code: i32,
    ):  # fmt: skip
        queries_at = shared_address(cuda.shared.array(n_words, uint32, 16))
        keys_at = u32(queries_at + uint32(n_queries if kept else 0))
        values_at = u32(keys_at + uint32(0 if inside or single else n_keys * k_stride))
        score_parts_at = u32(queries_at + uint32(n_first) + u32(4 * int32(cuda.threadIdx.x & 31)))
        key_positions = cuda.shared.array(n_keys, int32)
        thread = int32(cuda.threadIdx.x)
        lane, warp = int32(thread & 31), int32(thread >> 5)
        kv_head, i3 = int32(cuda.blockIdx.y), int32(cuda.blockIdx.z)
        kv_3 = divide(i3, r3)
        k_at, v_at = kv_head * k2 + kv_3 * k3, kv_head * v2 + kv_3 * v3
        all_rows = int32(n_tokens * n_rep)
        block, split = int32(int32(cuda.gridDim.x) - 1 - int32(cuda.blockIdx.x)), int32(0)
        if slices > 1:
            block = divide(block, n_splits)
            split = int32(int32(cuda.gridDim.x) - 1 - int32(cuda.blockIdx.x) - block * n_splits)
        row_0 = int32(block * n_rows)
        warp_row = int32(divide(warp, slices) * 16)
        slice_ = int32(warp & (slices - 1))

        k_row, k_column = thread >> k_bits, int32((thread & ((1 << k_bits) - 1)) * 8)

        # queries, through the memory of the keys, or into their own
        query = cuda.local.array(n_query, uint32)
        query_low = cuda.local.array(n_query, uint32)
        matrix_q = u32(
            queries_at + u32((warp_row + (lane & 15)) * k_stride) + u32((lane >> 4) * 16)
        )
        matrix_q = u32(matrix_q + u32(slice_ * (32 * n_steps)))
        for part in range(n_parts):
            for c in range(n_rows // k_rows * k_chunks):
                r = int32(k_row + c // k_chunks * k_rows)
                j = int32(k_column + c % k_chunks * (8 << k_bits))
                a, b, d, e = uint32(0), uint32(0), uint32(0), uint32(0)
                if row_0 + r < all_rows and j < hd_real:
                    i1 = divide(row_0 + r, n_rep)
                    head = kv_head * n_rep + (row_0 + r - i1 * n_rep)
                    x0, x1, x2, x3, x4, x5, x6, x7 = load_8(q, i1 * q1 + head * q2 + i3 * q3, j)
                    x0, x1, x2, x3 = x0 * scale, x1 * scale, x2 * scale, x3 * scale
                    x4, x5, x6, x7 = x4 * scale, x5 * scale, x6 * scale, x7 * scale
                    if split_k:
                        a, x0, x1 = high_halves(x0, x1)
                        b, x2, x3 = high_halves(x2, x3)
                        d, x4, x5 = high_halves(x4, x5)
                        e, x6, x7 = high_halves(x6, x7)
                        if part == 1:
                            a, x0, x1 = high_halves(x0, x1)
                            b, x2, x3 = high_halves(x2, x3)
                            d, x4, x5 = high_halves(x4, x5)
                            e, x6, x7 = high_halves(x6, x7)
                    else:
                        a, b = floats_to_halves(x0, x1), floats_to_halves(x2, x3)
                        d, e = floats_to_halves(x4, x5), floats_to_halves(x6, x7)
                if j < hd:
                    store_shared_u32x4(u32(queries_at + u32(r * k_stride + 2 * j)), a, b, d, e)
            cuda.syncthreads()
            for s in range(0 if kept and part == n_parts - 1 else n_steps):
                w0, w1, w2, w3 = load_matrices(u32(matrix_q + uint32(32 * s)))
                if part == 0:
                    query[4 * s], query[4 * s + 1] = w0, w1
                    query[4 * s + 2], query[4 * s + 3] = w2, w3
                else:
                    query_low[4 * s], query_low[4 * s + 1] = w0, w1
                    query_low[4 * s + 2], query_low[4 * s + 3] = w2, w3
            cuda.syncthreads()

        # this thread's two rows: a and b
        first_token = divide(row_0, n_rep)
        count = int32(row_0 + n_rows if row_0 + n_rows < all_rows else all_rows)
        count = int32(divide(count - 1, n_rep) + 1 - first_token)
        row_a = int32(row_0 + warp_row + (lane >> 2))
        row_b = int32(row_a + 8)
        there_a, there_b = row_a < all_rows, row_b < all_rows
        row_a, row_b = (row_a if there_a else int32(0)), (row_b if there_b else int32(0))
        token_a, token_b = divide(row_a, n_rep), divide(row_b, n_rep)
        head_a = int32(kv_head * n_rep + (row_a - token_a * n_rep))
        head_b = int32(kv_head * n_rep + (row_b - token_b * n_rep))
        begin_a, begin_b, end_a, end_b = int32(0), int32(0), int32(n_kv), int32(n_kv)
        position_a, position_b = int32(0), int32(0)
        if listed:
            begin_a, end_a = (
                load_i32(rows, token_a * rows1 + 4),
                load_i32(rows, token_a * rows1 + 8),
            )
            begin_b, end_b = (
                load_i32(rows, token_b * rows1 + 4),
                load_i32(rows, token_b * rows1 + 8),
            )
            position_a = load_i32(rows, token_a * rows1 + 12)
            position_b = load_i32(rows, token_b * rows1 + 12)
        slope_a, slope_b, mask_a, mask_b = ONE, ONE, int64(0), int64(0)
        if alibi:
            slope_a = alibi_slope(head_a, n2, step_0, step_1) * bias_scale
            slope_b = alibi_slope(head_b, n2, step_0, step_1) * bias_scale
        if masked:
            at = int32(i3 - divide(i3, m_ne3) * m_ne3) * m3
            mask_a = token_a * m1 + int32(head_a - divide(head_a, m_ne2) * m_ne2) * m2 + at
            mask_b = token_b * m1 + int32(head_b - divide(head_b, m_ne2) * m_ne2) * m2 + at

        # the block's tokens `lane` and `lane` + 32, for runs
        list_0, list_1, branch_0, branch_1 = int32(0), int32(0), int32(0), int32(0)
        cut_0, cut_1 = int32(NEVER), int32(NEVER)
        low_0, low_1, high_0, high_1 = int32(0), int32(0), int32(n_kv), int32(n_kv)
        if listed:
            if lane < count:
                at = (first_token + lane) * rows1
                list_0, low_0 = load_i32(rows, at), load_i32(rows, at + 4)
                high_0 = load_i32(rows, at + 8)
                if branched:
                    branch_0 = load_i32(rows, at + 20)
                    cut_0 = load_i32(rows, at + 16) if branch_0 != 0 else int32(NEVER)
                if low_0 < high_0 and not in_lists(
                    list_0, low_0, high_0, cut_0, branch_0, n_seq, n_list, n_entries, n_branches
                ):
                    store_i32(error, 0, code)
                    high_0 = low_0
            if n_rows > 32 and lane + 32 < count:
                at = (first_token + lane + 32) * rows1
                list_1, low_1 = load_i32(rows, at), load_i32(rows, at + 4)
                high_1 = load_i32(rows, at + 8)
                if branched:
                    branch_1 = load_i32(rows, at + 20)
                    cut_1 = load_i32(rows, at + 16) if branch_1 != 0 else int32(NEVER)
                if low_1 < high_1 and not in_lists(
                    list_1, low_1, high_1, cut_1, branch_1, n_seq, n_list, n_entries, n_branches
                ):
                    store_i32(error, 0, code)
                    high_1 = low_1

        sums = cuda.local.array(n_sum, float32)
        scores = cuda.local.array(n_score, float32)
        for i in range(n_sum):
            sums[i] = ZERO
        top_a, top_b, total_a, total_b = LOWEST, LOWEST, ZERO, ZERO
        matrix = u32(keys_at + u32(((lane & 7) + (lane >> 4) * 8) * k_stride))
        matrix = u32(matrix + u32(((lane >> 3) & 1) * 16) + u32(slice_ * (32 * n_steps)))
        matrix_v = u32(values_at + u32((lane & 15) * v_stride))
        matrix_v = u32(matrix_v + u32((lane >> 4) * 16) + u32(slice_ * (16 * n_out)))
        tile = uint32(0)  # of the keys, where two tiles of them are in shared memory

        start = int32(0)
        while start < count:
            stop, low, high = int32(count), int32(0), int32(n_kv)
            list_at, branch_at, cut = int64(0), int64(0), int32(NEVER)
            if listed:
                at = start & 31
                sequence = cuda.shfl_sync(FULL, list_0 if start < 32 else list_1, at)
                branch = cuda.shfl_sync(FULL, branch_0 if start < 32 else branch_1, at)
                cut = cuda.shfl_sync(FULL, cut_0 if start < 32 else cut_1, at)
                other_0 = list_0 != sequence or branch_0 != branch or cut_0 != cut
                other_1 = list_1 != sequence or branch_1 != branch or cut_1 != cut
                others_0 = cuda.ballot_sync(FULL, lane > start and lane < count and other_0)
                others_1 = cuda.ballot_sync(
                    FULL, lane + 32 > start and lane + 32 < count and other_1
                )
                if others_0 != 0:
                    stop = int32(cuda.ffs(others_0) - 1)
                elif others_1 != 0:
                    stop = int32(cuda.ffs(others_1) + 31)
                low, high = int32(NEVER), int32(0)
                if lane >= start and lane < stop and high_0 > low_0:
                    low, high = low_0, high_0
                if lane + 32 >= start and lane + 32 < stop and high_1 > low_1:
                    low, high = (low_1 if low_1 < low else low), (high_1 if high_1 > high else high)
                d = 16
                while d > 0:
                    x = cuda.shfl_xor_sync(FULL, low, d)
                    low = x if x < low else low
                    x = cuda.shfl_xor_sync(FULL, high, d)
                    high = x if x > high else high
                    d >>= 1
                list_at, branch_at = sequence * cells2, (branch - 1) * branches2
            mine_a = there_a and token_a - first_token >= start and token_a - first_token < stop
            mine_b = there_b and token_b - first_token >= start and token_b - first_token < stop
            from_a, from_b = (
                begin_a if mine_a else int32(NEVER),
                begin_b if mine_b else int32(NEVER),
            )
            first = int32(low & -n_keys)
            if slices > 1 and first < high:
                per = divide(int32(divide(int32(high - first - 1), n_splits) + n_keys), n_keys)
                begin = int64(first) + int64(split) * (per * n_keys)
                end = begin + per * n_keys
                high = int32(end) if end < high else high
                first = int32(begin) if begin < high else high
            if first < high:
                copy_keys(
                    u32(keys_at + tile), k, k_at, k1, first, low, high,
                    cells, branches, list_at, branch_at, cut, n_kv, error, code,
                )  # fmt: skip
                if asynchronous:
                    commit_copies()
            while first < high:
                if alibi and listed and thread < n_keys:
                    i = int32(first + thread)
                    if i >= low and i < high:
                        key_positions[thread] = entry_of(
                            i, cells, branches, list_at, branch_at, cut, 1
                        )
                if asynchronous:
                    wait_copies_0()
                cuda.syncthreads()  # keys are there, and no warp reads values any more
                later = int32(first + n_keys)
                if inside and later < high:
                    copy_keys(
                        u32(keys_at + uint32(n_keys * k_stride) - tile), k, k_at, k1, later, low,
                        high, cells, branches, list_at, branch_at, cut, n_kv, error, code,
                    )  # fmt: skip
                if not inside and not single:
                    copy_values(
                        values_at, v, v_at, v1, first, low, high,
                        cells, branches, list_at, branch_at, cut, n_kv, error, code,
                    )  # fmt: skip
                if asynchronous:
                    commit_copies()
                for s in range(n_steps):
                    if kept and not split_k:
                        q0, qa, qb, qc = load_matrices(u32(matrix_q + uint32(32 * s)))
                    else:
                        q0, qa = query[4 * s], query[4 * s + 1]
                        qb, qc = query[4 * s + 2], query[4 * s + 3]
                    l0, la, lb, lc = uint32(0), uint32(0), uint32(0), uint32(0)
                    if split_k and kept:
                        l0, la, lb, lc = load_matrices(u32(matrix_q + uint32(32 * s)))
                    elif split_k:
                        l0, la = query_low[4 * s], query_low[4 * s + 1]
                        lb, lc = query_low[4 * s + 2], query_low[4 * s + 3]
                    for c in range(n_columns // 2):
                        w0, w1, w2, w3 = load_matrices(
                            u32(matrix + tile + uint32(16 * k_stride * c + 32 * s))
                        )
                        s0, s1, s2, s3, t0, t1, t2, t3 = (
                            ZERO, ZERO, ZERO, ZERO, ZERO, ZERO, ZERO, ZERO,
                        )  # fmt: skip
                        if s > 0:
                            s0, s1 = scores[8 * c], scores[8 * c + 1]
                            s2, s3 = scores[8 * c + 2], scores[8 * c + 3]
                            t0, t1 = scores[8 * c + 4], scores[8 * c + 5]
                            t2, t3 = scores[8 * c + 6], scores[8 * c + 7]
                        s0, s1, s2, s3 = mma_k(q0, qa, qb, qc, w0, w1, s0, s1, s2, s3)
                        t0, t1, t2, t3 = mma_k(q0, qa, qb, qc, w2, w3, t0, t1, t2, t3)
                        if split_k:
                            s0, s1, s2, s3 = mma_k(l0, la, lb, lc, w0, w1, s0, s1, s2, s3)
                            t0, t1, t2, t3 = mma_k(l0, la, lb, lc, w2, w3, t0, t1, t2, t3)
                        scores[8 * c], scores[8 * c + 1] = s0, s1
                        scores[8 * c + 2], scores[8 * c + 3] = s2, s3
                        scores[8 * c + 4], scores[8 * c + 5] = t0, t1
                        scores[8 * c + 6], scores[8 * c + 7] = t2, t3
                if slices > 1:
                    for i in range(n_score):
                        at = u32(score_parts_at + u32((warp * n_score + i) * 128))
                        store_shared_f32(at, scores[i])
                    cuda.syncthreads()  # all slices' parts are there, and no warp reads keys
                    if single:
                        copy_values(
                            values_at, v, v_at, v1, first, low, high,
                            cells, branches, list_at, branch_at, cut, n_kv, error, code,
                        )  # fmt: skip
                        if asynchronous:
                            commit_copies()
                    for i in range(n_score):
                        at = u32(score_parts_at + u32(((warp - slice_) * n_score + i) * 128))
                        scores[i] = load_shared_f32(at)
                        for w in range(1, slices):
                            scores[i] += load_shared_f32(u32(at + uint32(w * n_score * 128)))
                new_a, new_b = top_a, top_b
                for c in range(n_columns):
                    for e in range(2):
                        i = int32(first + 8 * c + 2 * (lane & 3) + e)
                        sa, sb = scores[4 * c + e], scores[4 * c + 2 + e]
                        if capped:
                            sa, sb = softcap * math.tanh(sa), softcap * math.tanh(sb)
                        if alibi and listed:
                            place = key_positions[i - first]
                            sa -= slope_a * abs(float32(int32(position_a - place)))
                            sb -= slope_b * abs(float32(int32(position_b - place)))
                        if masked and i < n_kv:
                            sa += slope_a * (load_mask(m, mask_a, i) * LOG2E_F32)
                            sb += slope_b * (load_mask(m, mask_b, i) * LOG2E_F32)
                        sa = sa if i >= from_a and i < end_a else LOWEST
                        sb = sb if i >= from_b and i < end_b else LOWEST
                        new_a = sa if sa > new_a else new_a
                        new_b = sb if sb > new_b else new_b
                        scores[4 * c + e], scores[4 * c + 2 + e] = sa, sb
                for d in range(1, 3):
                    x = cuda.shfl_xor_sync(FULL, new_a, d)
                    new_a = x if x > new_a else new_a
                    x = cuda.shfl_xor_sync(FULL, new_b, d)
                    new_b = x if x > new_b else new_b
                base_a, base_b = finite(new_a), finite(new_b)
                factor_a, factor_b = exp2(top_a - base_a), exp2(top_b - base_b)
                top_a, top_b = new_a, new_b
                total_a, total_b = total_a * factor_a, total_b * factor_b
                for i in range(n_score):
                    of_a = (i & 2) == 0
                    p = exp2(scores[i] - (base_a if of_a else base_b))
                    if of_a:
                        total_a += p
                    else:
                        total_b += p
                    scores[i] = p
                for i in range(n_out):
                    sums[4 * i] *= factor_a
                    sums[4 * i + 1] *= factor_a
                    sums[4 * i + 2] *= factor_b
                    sums[4 * i + 3] *= factor_b
                if not inside:
                    if asynchronous:
                        wait_copies_0()
                    cuda.syncthreads()  # values are there, and no warp reads keys any more
                if not inside and not single and later < high:
                    copy_keys(
                        keys_at, k, k_at, k1, later, low, high,
                        cells, branches, list_at, branch_at, cut, n_kv, error, code,
                    )  # fmt: skip
                    if asynchronous:
                        commit_copies()
                for s in range(n_keys // 16):
                    x0, x1, x2, x3 = (
                        scores[8 * s], scores[8 * s + 1], scores[8 * s + 2], scores[8 * s + 3],
                    )  # fmt: skip
                    x4, x5, x6, x7 = (
                        scores[8 * s + 4], scores[8 * s + 5], scores[8 * s + 6], scores[8 * s + 7],
                    )  # fmt: skip
                    b0, b1, b2, b3 = uint32(0), uint32(0), uint32(0), uint32(0)
                    if split_v:
                        a0, x0, x1 = high_halves(x0, x1)
                        a1, x2, x3 = high_halves(x2, x3)
                        a2, x4, x5 = high_halves(x4, x5)
                        a3, x6, x7 = high_halves(x6, x7)
                        b0, x0, x1 = high_halves(x0, x1)
                        b1, x2, x3 = high_halves(x2, x3)
                        b2, x4, x5 = high_halves(x4, x5)
                        b3, x6, x7 = high_halves(x6, x7)
                    else:
                        a0, a1 = floats_to_halves(x0, x1), floats_to_halves(x2, x3)
                        a2, a3 = floats_to_halves(x4, x5), floats_to_halves(x6, x7)
                    for c in range(n_out // 2):
                        w0, w1, w2, w3 = load_matrices_transposed(
                            u32(matrix_v + tile + uint32(16 * v_stride * s + 32 * c))
                        )
                        s0, s1, s2, s3 = mma_v(
                            a0, a1, a2, a3, w0, w1, sums[8 * c], sums[8 * c + 1],
                            sums[8 * c + 2], sums[8 * c + 3],
                        )  # fmt: skip
                        t0, t1, t2, t3 = mma_v(
                            a0, a1, a2, a3, w2, w3, sums[8 * c + 4], sums[8 * c + 5],
                            sums[8 * c + 6], sums[8 * c + 7],
                        )  # fmt: skip
                        if split_v:
                            s0, s1, s2, s3 = mma_v(b0, b1, b2, b3, w0, w1, s0, s1, s2, s3)
                            t0, t1, t2, t3 = mma_v(b0, b1, b2, b3, w2, w3, t0, t1, t2, t3)
                        sums[8 * c], sums[8 * c + 1] = s0, s1
                        sums[8 * c + 2], sums[8 * c + 3] = s2, s3
                        sums[8 * c + 4], sums[8 * c + 5] = t0, t1
                        sums[8 * c + 6], sums[8 * c + 7] = t2, t3
                if single:
                    cuda.syncthreads()  # no warp reads values any more
                    if later < high:
                        copy_keys(
                            keys_at, k, k_at, k1, later, low, high,
                            cells, branches, list_at, branch_at, cut, n_kv, error, code,
                        )  # fmt: skip
                        if asynchronous:
                            commit_copies()
                first = later
                if inside:
                    tile = u32(uint32(n_keys * k_stride) - tile)
            cuda.syncthreads()  # no warp reads values of this run any more
            start = stop

        for d in range(1, 3):
            total_a += cuda.shfl_xor_sync(FULL, total_a, d)
            total_b += cuda.shfl_xor_sync(FULL, total_b, d)
        factor_a, factor_b = ONE, ONE
        d_0 = int32(slice_ * (8 * n_out))
        if slices > 1 and n_splits > 1:
            n_head = int32(n_rep * cuda.gridDim.y)
            part_a = ((int64(i3) * n_tokens + token_a) * n_head + head_a) * n_splits + split
            part_b = ((int64(i3) * n_tokens + token_b) * n_head + head_b) * n_splits + split
            if slice_ == 0 and (lane & 3) == 0:
                if there_a:
                    store_f32(parts, part_a * 8, top_a)
                    store_f32(parts, part_a * 8 + 4, total_a)
                if there_b:
                    store_f32(parts, part_b * 8, top_b)
                    store_f32(parts, part_b * 8 + 4, total_b)
            for i in range(n_out):
                d = int32(d_0 + 8 * i + 2 * (lane & 3))
                if d < hdv_real:
                    if there_a:
                        at = values + (part_a * hdv_real + d) * 4
                        store_f32(parts, at, sums[4 * i])
                        store_f32(parts, at + 4, sums[4 * i + 1])
                    if there_b:
                        at = values + (part_b * hdv_real + d) * 4
                        store_f32(parts, at, sums[4 * i + 2])
                        store_f32(parts, at + 4, sums[4 * i + 3])
            return
        if has_sinks != 0:
            sink = load_f32(sinks, head_a * 4) * LOG2E_F32
            new_a = sink if sink > top_a else top_a
            factor_a = exp2(top_a - finite(new_a))
            total_a = total_a * factor_a + exp2(sink - finite(new_a))
            sink = load_f32(sinks, head_b * 4) * LOG2E_F32
            new_b = sink if sink > top_b else top_b
            factor_b = exp2(top_b - finite(new_b))
            total_b = total_b * factor_b + exp2(sink - finite(new_b))
        factor_a = ZERO if total_a == ZERO else factor_a / total_a
        factor_b = ZERO if total_b == ZERO else factor_b / total_b
        at_a = head_a * y1 + token_a * y2 + i3 * y3
        at_b = head_b * y1 + token_b * y2 + i3 * y3
        for i in range(n_out):
            d = int32(d_0 + 8 * i + 2 * (lane & 3))
            if d < hdv_real:
                if there_a:
                    store_f32(y, at_a + 4 * d, sums[4 * i] * factor_a)
                    store_f32(y, at_a + 4 * d + 4, sums[4 * i + 1] * factor_a)
                if there_b:
                    store_f32(y, at_b + 4 * d, sums[4 * i + 2] * factor_b)
                    store_f32(y, at_b + 4 * d + 4, sums[4 * i + 3] * factor_b)

    return attention_tile


def tileable(device: DeviceInfo, shape: AttentionForm) -> bool:
    """Whether types, sizes and the device allow tiles; ranges of keys are mostly F32 anyway."""
    types = (shape.k, shape.v)
    bf16_from = (8, 0) if n_slices(shape) == 1 else (9, 0)  # else two terms need too many registers
    return (
        device.cc >= (bf16_from if BF16 in types else (7, 5))
        and shape.aligned
        and not (shape.ranged or shape.biased)
        and min(shape.hd, shape.hdv) > 16
        and (max(shape.hd, shape.hdv) <= NARROW or max(shape.hd, shape.hdv) > 256)
        and shape.hd <= MAX_KEY
        and shape.hdv <= MAX_VALUE
        and GGMLType.F32 not in types
    )


def attend_tiles(
    lowering: GpuLowering,
    shape: AttentionForm,
    values: Mapping[str, Any],
    splits: Mapping[str, Any],
) -> None:
    """Launch the kernel for all tokens of a node.

    Args:
        splits: ``n_splits``, ``parts`` and ``values`` as ``decode_kernel`` has them; one split of a
            head of one slice.
    """
    q, k, v = (values[name] for name in "qkv")
    cc, slices = lowering.device.cc, n_slices(shape)
    kept = cc < (9, 0) and max(shape.hd, shape.hdv) > 64
    inside = slices > 1 and not kept and not shape.alibi and _has_values(k, v)
    call = tile_kernel(shape, cc < (8, 0), kept, inside)(**values, **splits)
    blocks = ceil_div(q.ne[1] * values["n_rep"], tile_rows(shape))
    lowering.launch(call, Grid(blocks * splits["n_splits"], k.ne[2], q.ne[3]))


def _has_values(k: Tensor, v: Tensor) -> bool:
    """Whether a value is the first columns of its key, as in multi-head latent attention."""
    same = k.root is v.root and k.data == v.data and k.type is v.type
    return same and k.nb[1:] == v.nb[1:] and v.ne[0] <= k.ne[0]
