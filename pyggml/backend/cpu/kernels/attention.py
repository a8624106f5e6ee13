"""FLASH_ATTN_EXT: one pass over the keys in fixed chunks of 256, for one token and for prompts.

For prompts, the keys and values of a chunk are laid out as columns of 16 in thread scratch,
float32, and shared by all query rows that read them (a block of tokens times the heads of one KV
head); one token reads them where they lie. Each chunk ends in (max, sum, values) of its own, and
chunks are merged in order, so the bits do not depend on how tokens or chunks are spread: a few
tokens split the chunks over threads and merge them in a second launch.
"""

from __future__ import annotations

from functools import cache

import numpy as np

from ....dtype import GGMLType
from ....jit import Kernel, inline, inline_strict, kernel
from ....tensor import Tensor
from ..abi import (
    DST,
    SRC0,
    SRC1,
    SRC2,
    SRC3,
    SRC4,
    SRC5,
    SRC6,
    data,
    f32_ptr,
    float_param,
    i32_ptr,
    i64_ptr,
    int_param,
    load_f32,
    nb,
    ne,
)  # fmt: skip
from ..lowering import Lowering, lowers
from ..simd.attend import score_cells, score_tile, weigh_cells
from ..simd.half import load_f16
from ..simd.math import exp_f32, tanh_f32
from ..simd.tile import float_tile, transpose_8x8, widen_8
from .quantize import quantize_row

CHUNK = 256  # keys
_ROWS = 64  # query rows of a block, about
_SPLIT_TOKENS = 8  # up to so many tokens split their chunks over threads
_F16, _F32 = int(GGMLType.F16), int(GGMLType.F32)
_S_STRIDE = 4 * CHUNK
SCALE, BIAS_0, BIAS_1, N_HEAD_LOG2, SOFTCAP, TOKENS, SPLITS, PARTIAL, QUANTIZE, F16_MASK = range(10)


@inline
def _begin(node, t):  # type: ignore[no-untyped-def]
    rows = data(node, SRC6)
    return i32_ptr(rows + t * nb(node, SRC6, 1))[1] if rows != 0 else 0


@inline
def _end(node, t):  # type: ignore[no-untyped-def]
    rows = data(node, SRC6)
    return i32_ptr(rows + t * nb(node, SRC6, 1))[2] if rows != 0 else ne(node, SRC1, 1)


@inline
def _sequence(node, t):  # type: ignore[no-untyped-def]
    rows = data(node, SRC6)
    return i32_ptr(rows + t * nb(node, SRC6, 1))[0] if rows != 0 else 0


@inline
def _find_cells(node, sequence, first, n, out):  # type: ignore[no-untyped-def]
    """The rows of ``n`` keys in the cache, as int64; the last is repeated up to a multiple of 8."""
    rows = i64_ptr(out)
    cells = data(node, SRC5)
    if cells == 0:
        for j in range(n):
            rows[j] = first + j
    else:
        pairs = i32_ptr(cells + sequence * nb(node, SRC5, 2) + first * nb(node, SRC5, 1))
        for j in range(n):
            rows[j] = pairs[2 * j]
    for j in range(n, (n + 7) // 8 * 8):
        rows[j] = rows[n - 1]


@inline
def _pack(kind, k, nb_k, v, nb_v, cells, n, hd, hdv, keys, values):  # type: ignore[no-untyped-def]
    """Keys as ``keys[n/16][d][16]``, values as ``values[d/16][256][16]``, float32."""
    size = 2 if kind == _F16 else 4
    rows = i64_ptr(cells)
    for j in range(0, n, 8):
        a0, a1, a2, a3 = (
            k + rows[j] * nb_k, k + rows[j + 1] * nb_k,
            k + rows[j + 2] * nb_k, k + rows[j + 3] * nb_k,
        )  # fmt: skip
        a4, a5, a6, a7 = (
            k + rows[j + 4] * nb_k, k + rows[j + 5] * nb_k,
            k + rows[j + 6] * nb_k, k + rows[j + 7] * nb_k,
        )  # fmt: skip
        out = keys + j // 16 * 64 * hd + j % 16 * 4
        for d in range(0, hd, 8):
            o = size * d
            transpose_8x8(kind, a0 + o, a1 + o, a2 + o, a3 + o, a4 + o, a5 + o, a6 + o, a7 + o,
                          out + 64 * d, 64)  # fmt: skip
    for j in range(n):
        source, out = v + rows[j] * nb_v, values + 64 * j
        for d in range(0, hdv, 8):
            widen_8(kind, source + size * d, out + d // 16 * 64 * CHUNK + d % 16 * 4)
        if hdv % 16 != 0:
            tail = f32_ptr(out + hdv // 16 * 64 * CHUNK + 32)
            for d in range(8):
                tail[d] = np.float32(0)


@inline
def _bias(node, s, t, head, sequence, stream, first, n):  # type: ignore[no-untyped-def]
    """Scale, soft-cap, ALiBi and mask on one row of raw scores."""
    scale, cap = float_param(node, SCALE), float_param(node, SOFTCAP)
    x = f32_ptr(s)
    for j in range(n):
        x[j] *= scale
    if cap != 0:
        for j in range(n):
            x[j] = cap * tanh_f32(x[j] / cap)
    slope = np.float32(1)
    m0, n2 = float_param(node, BIAS_0), int_param(node, N_HEAD_LOG2)
    if m0 != 0:
        if head < n2:
            slope = np.float32(m0 ** np.float32(head + 1))
        else:
            slope = np.float32(float_param(node, BIAS_1) ** np.float32(2 * (head - n2) + 1))
        if data(node, SRC6) != 0:
            p = i32_ptr(data(node, SRC6) + t * nb(node, SRC6, 1))[3]
            cells = i32_ptr(data(node, SRC5) + sequence * nb(node, SRC5, 2))
            for j in range(n):
                x[j] -= slope * np.float32(abs(p - cells[2 * (first + j) + 1]))
    if data(node, SRC3) != 0:
        mask = data(node, SRC3) + t * nb(node, SRC3, 1)
        mask += (head % ne(node, SRC3, 2)) * nb(node, SRC3, 2)
        mask += (stream % ne(node, SRC3, 3)) * nb(node, SRC3, 3)
        if int_param(node, F16_MASK) != 0:
            for j in range(n):
                x[j] += slope * load_f16(mask + 2 * (first + j))
        else:
            for j in range(n):
                x[j] += slope * load_f32(mask + 4 * (first + j))


@inline
def _softmax(s, lo, hi, n):  # type: ignore[no-untyped-def]
    """exp(s - max) over [lo, hi), zeros elsewhere below ``n``; the maximum and the sum.

    ``n`` is a multiple of 64, so the vectorised sum takes the same order for every row.
    """
    x = f32_ptr(s)
    top = np.float32(-np.inf)
    for j in range(lo, hi):
        top = max(top, x[j])
    if top == np.float32(-np.inf):
        for j in range(n):
            x[j] = np.float32(0)
        return top, np.float32(0)
    for j in range(lo):
        x[j] = np.float32(-np.inf)
    for j in range(hi, n):
        x[j] = np.float32(-np.inf)
    for j in range(n):
        x[j] = exp_f32(x[j] - top)
    total = np.float32(0)
    for j in range(n):
        total += x[j]
    return top, total


@inline_strict
def _merge(state, top, total, values, hdv):  # type: ignore[no-untyped-def]
    """Add a chunk's (max, sum, values) to a row's; ``state`` is max, sum, values."""
    if top == np.float32(-np.inf):
        return
    y = f32_ptr(state)
    x = f32_ptr(values)
    new = max(y[0], top)
    before = exp_f32(y[0] - new)
    now = exp_f32(top - new)
    y[0] = new
    y[1] = y[1] * before + total * now
    for d in range(hdv):
        y[2 + d] = y[2 + d] * before + x[d] * now


@inline_strict
def _finish(node, state, t, head, stream, hdv):  # type: ignore[no-untyped-def]
    """Write a row: values over sum, with the head's sink in the sum."""
    x = f32_ptr(state)
    scale, total = np.float32(1), x[1]
    if data(node, SRC4) != 0:
        sink = f32_ptr(data(node, SRC4))[head]
        new = max(x[0], sink)
        scale = exp_f32(x[0] - new)
        total = total * scale + exp_f32(sink - new)
    y = f32_ptr(
        data(node, DST) + head * nb(node, DST, 1) + t * nb(node, DST, 2) + stream * nb(node, DST, 3)
    )
    factor = np.float32(0) if total == 0 else scale / total
    for d in range(hdv):
        y[d] = x[2 + d] * factor


@inline_strict
def _clear(state, hdv):  # type: ignore[no-untyped-def]
    y = f32_ptr(state)
    y[0] = np.float32(-np.inf)
    for d in range(1, hdv + 2):
        y[d] = np.float32(0)


@inline_strict
def _score_packed(rows, q, d, keys, n, scores):  # type: ignore[no-untyped-def]
    for j in range(0, n, 16):
        k, s = keys + 4 * d * j, scores + 4 * j
        if rows == 4:
            score_tile(4, q, 4 * d, k, d, s, _S_STRIDE)
        elif rows == 3:
            score_tile(3, q, 4 * d, k, d, s, _S_STRIDE)
        elif rows == 2:
            score_tile(2, q, 4 * d, k, d, s, _S_STRIDE)
        else:
            score_tile(1, q, 4 * d, k, d, s, _S_STRIDE)


@inline_strict
def _score_direct(kind, rows, q, d, k, nb_k, cells, n, s, v, nb_v, lines):  # type: ignore[no-untyped-def]
    s_row = _S_STRIDE
    if rows == 4:
        score_cells(kind, 4, q, 4 * d, k, nb_k, cells, n, d, s, s_row, v, nb_v, lines)
    elif rows == 3:
        score_cells(kind, 3, q, 4 * d, k, nb_k, cells, n, d, s, s_row, v, nb_v, lines)
    elif rows == 2:
        score_cells(kind, 2, q, 4 * d, k, nb_k, cells, n, d, s, s_row, v, nb_v, lines)
    else:
        score_cells(kind, 1, q, 4 * d, k, nb_k, cells, n, d, s, s_row, v, nb_v, lines)


@inline_strict
def _weigh_packed(rows, p, values, n, sums, padded):  # type: ignore[no-untyped-def]
    for d in range(0, padded, 16):
        v, out = values + 4 * CHUNK * d, sums + 4 * d
        if rows == 4:
            float_tile(_F32, 4, v, 64, p, _S_STRIDE, out, 4 * padded, n)
        elif rows == 3:
            float_tile(_F32, 3, v, 64, p, _S_STRIDE, out, 4 * padded, n)
        elif rows == 2:
            float_tile(_F32, 2, v, 64, p, _S_STRIDE, out, 4 * padded, n)
        else:
            float_tile(_F32, 1, v, 64, p, _S_STRIDE, out, 4 * padded, n)


@inline_strict
def _weigh_direct(kind, rows, p, v, nb_v, cells, n, hdv, sums, padded):  # type: ignore[no-untyped-def]
    size = 2 if kind == _F16 else 4
    for d in range(0, hdv, 32):
        x, out = v + size * d, sums + 4 * d
        if rows == 4:
            weigh_cells(kind, 4, p, _S_STRIDE, x, nb_v, cells, n, out, 4 * padded)
        elif rows == 3:
            weigh_cells(kind, 3, p, _S_STRIDE, x, nb_v, cells, n, out, 4 * padded)
        elif rows == 2:
            weigh_cells(kind, 2, p, _S_STRIDE, x, nb_v, cells, n, out, 4 * padded)
        else:
            weigh_cells(kind, 1, p, _S_STRIDE, x, nb_v, cells, n, out, 4 * padded)


@cache
def flash_attn_kernel(kind: int, direct: bool) -> Kernel:
    """The kernel for a type of cache; ``direct`` reads few rows' keys where they lie."""
    size = 2 if kind == _F16 else 4

    def flash_attn(node, chunk, n_chunks, scratch):  # type: ignore[no-untyped-def]
        n_tokens, n_kv_head = ne(node, SRC0, 1), ne(node, SRC1, 2)
        n_rep = ne(node, SRC0, 2) // n_kv_head
        hd, hdv = ne(node, SRC0, 0), ne(node, SRC2, 0)
        padded = (hdv + 15) // 16 * 16
        block, splits = int_param(node, TOKENS), int_param(node, SPLITS)
        partial = int_param(node, PARTIAL)
        blocks = (n_tokens + block - 1) // block
        split, rest = chunk % splits, chunk // splits
        kv_head, rest = rest % n_kv_head, rest // n_kv_head
        stream = rest // blocks
        kv_stream = stream // (ne(node, SRC0, 3) // ne(node, SRC1, 3))
        k = data(node, SRC1) + kv_head * nb(node, SRC1, 2) + kv_stream * nb(node, SRC1, 3)
        v = data(node, SRC2) + kv_head * nb(node, SRC2, 2) + kv_stream * nb(node, SRC2, 3)
        nb_k, nb_v = nb(node, SRC1, 1), nb(node, SRC2, 1)
        cells = scratch
        scores = cells + 8 * CHUNK
        sums = scores + 4 * _S_STRIDE
        queries = sums + 16 * padded + 256  # behind the maxima and sums of a tile
        states = queries + block * n_rep * 4 * hd
        state_bytes = 4 * (hdv + 2)
        keys = (states + block * n_rep * state_bytes + 63) // 64 * 64
        values = keys + hd * _S_STRIDE
        tops = f32_ptr(sums + 16 * padded)  # maxima of at most 4 rows, then their sums
        t = rest % blocks * block
        stop = min(n_tokens, t + block)
        while t < stop:
            sequence = _sequence(node, t)
            lo, hi, after = _begin(node, t), _end(node, t), t + 1
            while after < stop and _sequence(node, after) == sequence:
                if _end(node, after) > _begin(node, after):
                    lo = min(lo, _begin(node, after)) if hi > lo else _begin(node, after)
                    hi = max(hi, _end(node, after))
                after += 1
            n_rows = (after - t) * n_rep
            for r in range(n_rows):
                head = kv_head * n_rep + r % n_rep
                x = data(node, SRC0) + (t + r // n_rep) * nb(node, SRC0, 1)
                x += head * nb(node, SRC0, 2) + stream * nb(node, SRC0, 3)
                y = queries + r * 4 * hd
                for d in range(hd):
                    f32_ptr(y)[d] = f32_ptr(x)[d]
                _clear(states + r * state_bytes, hdv)
            for c in range(lo // CHUNK, (hi + CHUNK - 1) // CHUNK):
                if c % splits != split:
                    continue
                first = c * CHUNK
                n_keys = min(CHUNK, hi - first)
                _find_cells(node, sequence, first, n_keys, cells)
                if not direct:
                    _pack(kind, k, nb_k, v, nb_v, cells, n_keys, hd, hdv, keys, values)
                for r in range(0, n_rows, 4):
                    rows = min(4, n_rows - r)
                    n = np.int64(0)
                    for i in range(rows):
                        n = max(n, min(n_keys, _end(node, t + (r + i) // n_rep) - first))
                    query = queries + r * 4 * hd
                    n64 = (n + 63) // 64 * 64
                    if n > 0 and direct:
                        lines = hdv * size // 64 if r == 0 else 0
                        _score_direct(
                            kind, rows, query, hd, k, nb_k, cells, n, scores, v, nb_v, lines
                        )
                    elif n > 0:
                        _score_packed(rows, query, hd, keys, n, scores)
                    for i in range(rows if n > 0 else 0):
                        token, head = t + (r + i) // n_rep, kv_head * n_rep + (r + i) % n_rep
                        s = scores + i * _S_STRIDE
                        begin = max(_begin(node, token) - first, 0)
                        end = min(_end(node, token) - first, n)
                        _bias(node, s, token, head, sequence, stream, first, n)
                        tops[i], tops[4 + i] = _softmax(s, begin, max(begin, end), n64)
                    if n > 0 and direct:
                        _weigh_direct(kind, rows, scores, v, nb_v, cells, n, hdv, sums, padded)
                    elif n > 0:
                        _weigh_packed(rows, scores, values, n, sums, padded)
                    for i in range(rows):
                        token, head = t + (r + i) // n_rep, kv_head * n_rep + (r + i) % n_rep
                        state = states + (r + i) * state_bytes
                        if partial != 0:
                            state = _partial(node, stream, token, head, c, state_bytes)
                            _clear(state, hdv)
                        if n > 0:
                            _merge(state, tops[i], tops[4 + i], sums + i * 4 * padded, hdv)
            if partial == 0:
                for r in range(n_rows):
                    head = kv_head * n_rep + r % n_rep
                    _finish(node, states + r * state_bytes, t + r // n_rep, head, stream, hdv)
            t = after

    made = kernel(flash_attn)
    made.name = f"flash_attn_{GGMLType(kind).name.lower()}{'_direct' if direct else ''}"
    return made


@inline
def _partial(node, stream, token, head, chunk, state_bytes):  # type: ignore[no-untyped-def]
    """Where the split form keeps a row's state of one chunk."""
    keys = ne(node, SRC5, 1) if data(node, SRC5) != 0 else ne(node, SRC1, 1)
    row = (stream * ne(node, SRC0, 1) + token) * ne(node, SRC0, 2) + head
    n_chunks = (keys + CHUNK - 1) // CHUNK
    return int_param(node, PARTIAL) + (row * n_chunks + chunk) * state_bytes


@kernel
def flash_attn_merge(node, chunk, n_chunks, scratch):  # type: ignore[no-untyped-def]
    """One token: merge its chunks in order; then quantize the row if a matmul wants it."""
    n_tokens, n_head, hdv = ne(node, SRC0, 1), ne(node, SRC0, 2), ne(node, SRC2, 0)
    token, stream = chunk % n_tokens, chunk // n_tokens
    state_bytes = 4 * (hdv + 2)
    lo, hi = _begin(node, token), _end(node, token)
    for head in range(n_head):
        _clear(scratch, hdv)
        if hi > lo:
            for c in range(lo // CHUNK, (hi + CHUNK - 1) // CHUNK):
                part = _partial(node, stream, token, head, c, state_bytes)
                x = f32_ptr(part)
                _merge(scratch, x[0], x[1], part + 8, hdv)
        _finish(node, scratch, token, head, stream, hdv)
    if int_param(node, QUANTIZE) != 0:
        n = n_head * hdv
        row = data(node, DST) + token * nb(node, DST, 2) + stream * nb(node, DST, 3)
        quantize_row(row, int_param(node, QUANTIZE) + chunk * (n // 32) * 40, n)


def _supports(node: Tensor) -> bool:
    q, k, v, mask = node.src[:4]
    assert q is not None and k is not None and v is not None
    return (
        q.type is GGMLType.F32
        and k.type is v.type
        and k.type in (GGMLType.F16, GGMLType.F32)
        and all(t.is_contiguous_rows() for t in (q, k, v))
        and q.ne[0] % 8 == 0
        and v.ne[0] % 8 == 0
        and k.ne[2] == v.ne[2]
        and (mask is None or mask.type in (GGMLType.F16, GGMLType.F32))
    )


@lowers("FLASH_ATTN_EXT", _supports)
def _lower_flash_attn(low: Lowering, node: Tensor) -> None:
    q, k, v, mask, _, cells, _ = node.src
    assert q is not None and k is not None and v is not None
    n_tokens, n_head, n_streams = q.ne[1:]
    n_kv_head, hd, hdv = k.ne[2], q.ne[0], v.ne[0]
    n_rep, padded = n_head // n_kv_head, -(-hdv // 16) * 16
    n_chunks = -(-(cells.ne[1] if cells is not None else k.ne[1]) // CHUNK)
    max_bias, n2 = node.op_params["max_bias"], 1 << (n_head.bit_length() - 1)
    partial_bytes = n_streams * n_tokens * n_head * n_chunks * 4 * (hdv + 2)
    split = n_tokens <= _SPLIT_TOKENS and n_chunks > 1 and partial_bytes <= 1 << 26
    block = n_tokens if split else max(1, min(n_tokens, _ROWS // n_rep))
    splits = -(-4 * low.n_threads // n_kv_head) if split else 1
    splits = min(splits, n_chunks)
    partial = low.work.take(partial_bytes, len(low.launches)) if split else None
    params = [
        float(node.op_params["scale"]),
        2.0 ** (-max_bias / n2) if max_bias else 0.0,
        2.0 ** (-max_bias / 2 / n2) if max_bias else 0.0,
        n2,
        float(node.op_params["logit_softcap"]),
        block,
        splits,
        partial.address if partial else 0,
        0,
        int(mask is not None and mask.type is GGMLType.F16),
    ]
    direct = n_tokens == 1 and hdv % 32 == 0
    scratch = 8 * CHUNK + 4 * (
        4 * CHUNK + 4 * padded + 64 + block * n_rep * (hd + hdv + 2) + 16
        + (0 if direct else CHUNK * (hd + padded))
    )  # fmt: skip
    blocks = -(-n_tokens // block)
    made = flash_attn_kernel(int(k.type), direct)
    launch = low.launch(
        made, node, params, splits * n_kv_head * blocks * n_streams, scratch=scratch
    )
    if partial:
        launch.writes = [partial.use(len(low.launches) - 1)]
        merge = low.launch(
            flash_attn_merge, node, params, n_tokens * n_streams, work=[partial], scratch=scratch
        )
        if n_head * hdv % 32 == 0:
            merge.quantize_param = QUANTIZE
