"""FLASH_ATTN_BACK: tiles of 64 queries by 64 keys, whose scores are computed again.

Two launches, each with its own sums, so that no thread adds to another's result. The first takes
64 queries of a head, and all keys after each other: the gradient of the queries, by a running
maximum as in the forward pass, and for each query the logarithm of its sum. The second takes 64
keys of a KV head, and all queries of its heads: the gradients of keys and values. Tiles that a mask
hides are skipped. Tiles and the order of sums depend on sizes alone: so the bits are those of any
number of threads.
"""

from __future__ import annotations

from .....compiler.jit import inline, kernel
from .....dtype import GGMLType
from .....ops.rows.softmax import alibi_steps
from .....rounding import ceil_div, round_up
from .....tensor import Tensor
from ...abi import (
    DST,
    SRC0,
    SRC1,
    SRC2,
    SRC3,
    SRC4,
    SRC5,
    SRC6,
    SRC7,
    data,
    f32_ptr,
    first_row,
    load_f32,
    nb,
    ne,
    nrows,
    params_of,
)
from ...compile.lowering import CpuLowering, lowers
from ...simd.element import F32, load_f16, zero_run
from ...simd.math import INF, ONE, ZERO, exp_f32, log_f32, tanh_f32
from ...simd.plain_rows import TABLE_BYTES, set_row_pointers
from ...simd.total import dot_f32, max_f32, total_f32
from ...weights.layout import ROWS
from ..matrix.panels import COLUMN_BYTES, TILE_BYTES, pack_row, panel_tiles, times_panels
from ..matrix.weights import PACK, pack_group, weight_traits
from .attention import Attention, bias, checked_rows, list_begin, list_end, sequence_of

_TILE = 64  # queries, and keys
_ROW = 4 * _TILE  # bytes of a row of scores
_PANEL = COLUMN_BYTES * _TILE  # bytes of a panel of as many rows
Y, DY = SRC5, SRC7  # in the places of cells and branches; other sources as in FLASH_ATTN_EXT


@inline
def sees(node, t0, n_tokens, head, stream, first, n):
    """Whether any of the tokens attends to any of the keys; a mask hides keys by -inf."""
    p = params_of(node, Attention)
    ranges, masks, f16 = data(node, SRC6), data(node, SRC3), p.f16_mask
    found = ranges == 0 and masks == 0
    for t in range(t0, t0 + n_tokens):
        if found:
            break
        if ranges != 0:
            start = first - sequence_of(node, t)
            found = max(list_begin(node, t), start) < min(list_end(node, t), start + n)
        else:
            mask = masks + t * nb(node, SRC3, 1) + head % ne(node, SRC3, 2) * nb(node, SRC3, 2)
            mask += stream % ne(node, SRC3, 3) * nb(node, SRC3, 3)
            for j in range(first, first + n):
                x = load_f16(mask + 2 * j) if f16 != 0 else load_f32(mask + 4 * j)
                if x > -INF:
                    found = True
                    break
    return found


@inline
def pack_transposed(traits, x, stride, rows, n, table, out):
    """Pack rows of n elements as panels [n][16], 16 rows each: a matrix whose columns they are."""
    for r in range(0, rows, ROWS):
        set_row_pointers(table, x, stride, r, rows)
        pack_group(traits, table, n, out + r // ROWS * COLUMN_BYTES * n)


@inline
def products(node, traits, q, dy, rows, keys, values, n, scratch, scores, grads):
    """The products of a tile: of queries and keys to ``scores``, of dy and values to ``grads``.

    Args:
        rows: number of queries; n: of keys.
    """
    hd, hdv = ne(node, SRC0, 0), ne(node, SRC2, 0)
    times_panels(
        traits, q, nb(node, SRC0, 1), rows, keys, COLUMN_BYTES * hd, hd, n, scratch, scores, _ROW, 0
    )
    times_panels(
        traits, dy, nb(node, DY, 2), rows, values, COLUMN_BYTES * hdv, hdv, n, scratch, grads,
        _ROW, 0,
    )  # fmt: skip


@inline
def bias_row(node, s, slopes, t, head, stream, first, n):
    """Compute scores of a row of products, in place: ``bias``, and -inf outside of the range.

    Args:
        slopes: gets the slope of the soft cap at each score, if there is one.
        first: the first of the keys.
    """
    p = params_of(node, Attention)
    scale, cap = p.scale, p.softcap
    x, y = f32_ptr(s), f32_ptr(slopes)
    if cap != 0:
        for j in range(n):
            bent = tanh_f32(x[j] * scale / cap)
            y[j] = ONE - bent * bent
    place = first - sequence_of(node, t)  # of the first key in the token's text
    bias(node, s, t, head, 0, stream, place, n)
    if data(node, SRC6) != 0:
        begin, end = list_begin(node, t), list_end(node, t)
        for j in range(min(n, max(0, begin - place))):
            x[j] = -INF
        for j in range(max(0, end - place) if begin < end else 0, n):
            x[j] = -INF


@inline
def score_gradient(node, g, slopes, n):
    """Multiply a row of gradients, in place, by the scale and the slope of the soft cap."""
    p = params_of(node, Attention)
    scale, cap = p.scale, p.softcap
    x, y = f32_ptr(g), f32_ptr(slopes)
    for j in range(n):
        x[j] *= scale
    if cap != 0:
        for j in range(n):
            x[j] *= y[j]


@kernel
def flash_attn_back_q(node, chunk, n_chunks, scratch):
    """The gradient of q, and (logarithm of the sum, dy y) of each row at ``partials``."""
    p = params_of(node, Attention)
    traits, stats = p.traits, p.partials
    hd, n_tokens, n_head = ne(node, SRC0, 0), ne(node, SRC0, 1), ne(node, SRC0, 2)
    n_keys, hdv = ne(node, SRC1, 1), ne(node, SRC2, 0)
    n_rep = n_head // ne(node, SRC1, 2)
    batch = ne(node, SRC0, 3) // ne(node, SRC1, 3)
    hd16 = (hd + 15) // 16 * 16
    table = scratch + TILE_BYTES
    keys = table + TABLE_BYTES  # transposed, then values, then keys again as rows
    values = keys + _ROW * hd
    key_rows = values + _ROW * hdv
    scores = key_rows + _ROW * hd16
    grads = scores + _ROW * _TILE
    slopes = grads + _ROW * _TILE
    row_stats = f32_ptr(slopes + _ROW)  # maximum, sum, dy y
    sums = slopes + 4 * _ROW
    blocks = (n_tokens + _TILE - 1) // _TILE
    units = blocks * n_head * ne(node, SRC0, 3)
    for u in range(first_row(units, chunk, n_chunks), first_row(units, chunk + 1, n_chunks)):
        head, stream = u // blocks % n_head, u // blocks // n_head
        t0 = u % blocks * _TILE
        rows = min(_TILE, n_tokens - t0)
        kv_head, kv_stream = head // n_rep, stream // batch
        k = data(node, SRC1) + kv_head * nb(node, SRC1, 2) + kv_stream * nb(node, SRC1, 3)
        v = data(node, SRC2) + kv_head * nb(node, SRC2, 2) + kv_stream * nb(node, SRC2, 3)
        q = data(node, SRC0) + head * nb(node, SRC0, 2) + stream * nb(node, SRC0, 3)
        q += t0 * nb(node, SRC0, 1)
        y = data(node, Y) + head * nb(node, Y, 1) + t0 * nb(node, Y, 2) + stream * nb(node, Y, 3)
        dy = data(node, DY) + head * nb(node, DY, 1) + stream * nb(node, DY, 3)
        dy += t0 * nb(node, DY, 2)
        for i in range(rows):
            sinks = data(node, SRC4)
            row_stats[i] = f32_ptr(sinks)[head] if sinks != 0 else -INF
            row_stats[_TILE + i] = ONE if sinks != 0 else ZERO
            row_stats[2 * _TILE + i] = dot_f32(
                F32, y + i * nb(node, Y, 2), dy + i * nb(node, DY, 2), hdv
            )
            zero_run(sums + i * 4 * hd16, hd16)
        for first in range(0, n_keys, _TILE):
            n = min(_TILE, n_keys - first)
            if not sees(node, t0, rows, head, stream, first, n):
                continue
            key, value = k + first * nb(node, SRC1, 1), v + first * nb(node, SRC2, 1)
            pack_transposed(traits, key, nb(node, SRC1, 1), n, hd, table, keys)
            pack_transposed(traits, value, nb(node, SRC2, 1), n, hdv, table, values)
            for j in range(n):
                pack_row(key + j * nb(node, SRC1, 1), key_rows + j * COLUMN_BYTES, _PANEL, hd)
            products(node, traits, q, dy, rows, keys, values, n, scratch, scores, grads)
            for i in range(rows):
                s, g = scores + i * _ROW, grads + i * _ROW
                bias_row(node, s, slopes, t0 + i, head, stream, first, n)
                top = max(row_stats[i], max_f32(s, n))
                if top == -INF:
                    zero_run(g, n)
                    continue
                x, d, mean = f32_ptr(s), f32_ptr(g), row_stats[2 * _TILE + i]
                before = exp_f32(row_stats[i] - top)
                for j in range(n):
                    x[j] = exp_f32(x[j] - top)
                row_stats[i] = top
                row_stats[_TILE + i] = row_stats[_TILE + i] * before + total_f32(s, n)
                for j in range(n):
                    d[j] = x[j] * (d[j] - mean)
                score_gradient(node, g, slopes, n)
                total = f32_ptr(sums + i * 4 * hd16)
                for c in range(hd):
                    total[c] *= before
            times_panels(
                traits, grads, _ROW, rows, key_rows, _PANEL, n, hd, scratch, sums, 4 * hd16, 1
            )
        row = (stream * n_head + head) * n_tokens + t0
        for i in range(rows):
            total, factor, log_sum = row_stats[_TILE + i], ZERO, INF  # INF: exp(score - INF) is 0
            if total != ZERO:
                factor, log_sum = ONE / total, row_stats[i] + log_f32(total)
            out, x = f32_ptr(data(node, DST) + 4 * hd * (row + i)), f32_ptr(sums + i * 4 * hd16)
            for c in range(hd):
                out[c] = x[c] * factor
            saved = f32_ptr(stats + 8 * (row + i))
            saved[0], saved[1] = log_sum, row_stats[2 * _TILE + i]


@kernel
def flash_attn_back_kv(node, chunk, n_chunks, scratch):
    """The gradients of k and v; ``partials`` has the statistics of each row."""
    p = params_of(node, Attention)
    traits, stats = p.traits, p.partials
    hd, n_tokens, n_head = ne(node, SRC0, 0), ne(node, SRC0, 1), ne(node, SRC0, 2)
    n_keys, n_kv_head, hdv = ne(node, SRC1, 1), ne(node, SRC1, 2), ne(node, SRC2, 0)
    n_rep = n_head // n_kv_head
    batch = ne(node, SRC0, 3) // ne(node, SRC1, 3)
    hd16 = (hd + 15) // 16 * 16
    table = scratch + TILE_BYTES
    keys = table + TABLE_BYTES  # transposed, then values
    values = keys + _ROW * hd
    scores = values + _ROW * hdv
    grads = scores + _ROW * _TILE
    slopes = grads + _ROW * _TILE
    by_key = slopes + _ROW  # probabilities, then gradients of scores: [keys][queries]
    grads_by_key = by_key + _ROW * _TILE
    query_rows = grads_by_key + _ROW * _TILE
    dy_rows = query_rows + _ROW * hd16
    dk_0 = data(node, DST) + 4 * hd * nrows(node, SRC0)
    dv_0 = dk_0 + 4 * hd * nrows(node, SRC1)
    blocks = (n_keys + _TILE - 1) // _TILE
    units = blocks * n_kv_head * ne(node, SRC1, 3)
    for u in range(first_row(units, chunk, n_chunks), first_row(units, chunk + 1, n_chunks)):
        kv_head, kv_stream = u // blocks % n_kv_head, u // blocks // n_kv_head
        first = u % blocks * _TILE
        n = min(_TILE, n_keys - first)
        k = data(node, SRC1) + kv_head * nb(node, SRC1, 2) + kv_stream * nb(node, SRC1, 3)
        v = data(node, SRC2) + kv_head * nb(node, SRC2, 2) + kv_stream * nb(node, SRC2, 3)
        k, v = k + first * nb(node, SRC1, 1), v + first * nb(node, SRC2, 1)
        pack_transposed(traits, k, nb(node, SRC1, 1), n, hd, table, keys)
        pack_transposed(traits, v, nb(node, SRC2, 1), n, hdv, table, values)
        row = (kv_stream * n_kv_head + kv_head) * n_keys + first
        dk, dv = dk_0 + 4 * hd * row, dv_0 + 4 * hdv * row
        added = 0
        for part in range(batch * n_rep):
            stream, head = kv_stream * batch + part // n_rep, kv_head * n_rep + part % n_rep
            for t0 in range(0, n_tokens, _TILE):
                rows = min(_TILE, n_tokens - t0)
                if not sees(node, t0, rows, head, stream, first, n):
                    continue
                q = data(node, SRC0) + head * nb(node, SRC0, 2) + stream * nb(node, SRC0, 3)
                q += t0 * nb(node, SRC0, 1)
                dy = data(node, DY) + head * nb(node, DY, 1) + stream * nb(node, DY, 3)
                dy += t0 * nb(node, DY, 2)
                products(node, traits, q, dy, rows, keys, values, n, scratch, scores, grads)
                saved = f32_ptr(stats + 8 * ((stream * n_head + head) * n_tokens + t0))
                for i in range(rows):
                    s, g = scores + i * _ROW, grads + i * _ROW
                    bias_row(node, s, slopes, t0 + i, head, stream, first, n)
                    x, d = f32_ptr(s), f32_ptr(g)
                    log_sum, mean = saved[2 * i], saved[2 * i + 1]
                    for j in range(n):
                        x[j] = exp_f32(x[j] - log_sum)
                    for j in range(n):
                        d[j] = x[j] * (d[j] - mean)
                    score_gradient(node, g, slopes, n)
                    for j in range(n):
                        f32_ptr(by_key + j * _ROW)[i] = x[j]
                        f32_ptr(grads_by_key + j * _ROW)[i] = d[j]
                    pack_row(q + i * nb(node, SRC0, 1), query_rows + i * COLUMN_BYTES, _PANEL, hd)
                    pack_row(dy + i * nb(node, DY, 2), dy_rows + i * COLUMN_BYTES, _PANEL, hdv)
                times_panels(
                    traits, grads_by_key, _ROW, n, query_rows, _PANEL, rows, hd, scratch,
                    dk, 4 * hd, added,
                )  # fmt: skip
                times_panels(
                    traits, by_key, _ROW, n, dy_rows, _PANEL, rows, hdv, scratch,
                    dv, 4 * hdv, added,
                )  # fmt: skip
                added = 1
        if added == 0:
            zero_run(dk, n * hd)
            zero_run(dv, n * hdv)


@lowers("FLASH_ATTN_BACK")
def _lower_flash_attn_back(lowering: CpuLowering, node: Tensor) -> None:
    q, k, v, y, dy, mask, sinks, rows, distances = node.src
    hd, hdv, p = q.ne[0], v.ne[0], node.op_params
    n2, step_0, step_1 = alibi_steps(q.ne[2], p["max_bias"])
    floats = Tensor(GGMLType.F32, q.ne)
    checked = [] if rows is None else [checked_rows(lowering, node, None, rows, None)]
    stats = lowering.take(8 * max(1, q.nrows))
    params = Attention(
        scale=p["scale"],
        bias_0=2.0**step_0 if p["max_bias"] else 0.0,
        bias_1=2.0**step_1 if p["max_bias"] else 0.0,
        n_head_log2=n2,
        softcap=p["logit_softcap"],
        tokens=_TILE,
        splits=1,
        partials=stats.address,
        quantize=0,
        f16_mask=mask is not None and mask.type is GGMLType.F16,
        direct_rows=0,
        codes=0,
        tiles=0,
        bias_scale=p["bias_scale"],
        traits=weight_traits(lowering, floats, PACK, *panel_tiles()),
    )
    padded = round_up(hd, ROWS) + round_up(hdv, ROWS)
    scratch = TILE_BYTES + TABLE_BYTES + _ROW * (4 * _TILE + 4 + hd + hdv + padded)
    src = (q, k, v, mask, sinks, y, rows, dy, distances)
    tiles, key_tiles = ceil_div(q.ne[1], _TILE), ceil_div(k.ne[1], _TILE)
    most = 16 * lowering.n_threads
    lowering.launch(
        flash_attn_back_q,
        node,
        params,
        min(tiles * q.ne[2] * q.ne[3], most),
        src=src,
        work=checked,
        scratch=scratch + _ROW * round_up(hd, ROWS),
    )
    launch = lowering.launches[-1]
    launch.writes.append(stats.use(len(lowering.launches) - 1))
    lowering.launch(
        flash_attn_back_kv,
        node,
        params,
        min(key_tiles * k.ne[2] * k.ne[3], most),
        src=src,
        work=[stats],
        scratch=scratch,
    )
