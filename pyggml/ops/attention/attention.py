"""Attention in one op: FLASH_ATTN_EXT, with a dense mask, lists of cells or ranges of keys.

    kqv = flash_attn_ext(ctx, q, k, v, mask, scale)                      # dense, as in ggml
    kqv = flash_attn_cells(ctx, q, k, v, cells, rows, scale)             # indexed (ours)
    kqv = flash_attn_ranges(ctx, q, k, v, rows, scale)                   # without a cache (ours)

*Dense* mode is ggml's: every query is multiplied by all ``n_kv`` keys, and a mask of 0 and -inf (or
ALiBi distances) is added to the scores.

*Indexed* mode has no mask. ``cells`` I32 [2, n_list, n_seq] lists for each sequence the cells that
hold its keys, as (cell, position) ordered by position; entries after the end are not read. ``rows``
I32 [4, n_tokens] is (seq, begin, end, pos) for each token: it attends to the entries ``begin <= i <
end`` of list ``seq``. So begin and end express causality and sliding windows, and the cost grows
with the keys attended to, not with the cache. ``begin == end`` gives zeros (padded tokens). ALiBi's
bias is ``-slope * |pos - position of the key|``. All of this is data, so one program serves every
state of the cache.

With ``branches`` I32 [2, n_entries, n_branches], ``rows`` is I32 [6, n_tokens] of (seq, begin, end,
pos, cut, branch), and branch 0 is a token as above. Branch b > 0 continues list ``seq`` after its
first ``cut`` entries, a multiple of 256, by list b - 1 of ``branches``: entry i >= cut is
``branches[b - 1][i - cut]``. So the branches of a tree share what is before the cut. No token's end
exceeds n_list.

*Ranges* are for many texts without a cache, one after the other: there are no lists, and ``rows``
I32 [4, n_tokens] is (first, begin, end, pos), where ``first`` is the key of the text's first token.
A token attends to the keys ``first + i`` for ``begin <= i < end``, which have the positions i. So a
text's results do not depend on its place among others.

With lists or ranges, ``distances`` F32 [2 D + 1, n_head] are biases by the distance of a key: that
of a key d positions after the token is entry D + d of its head, which is the first or the last one
for distances beyond D (T5). They are added to the scaled scores.

Backends check this, and that entries are cells: of each sequence those from the least begin to the
greatest end of its tokens, of each branch those up to the greatest end. A token with ``begin >=
end`` may have any numbers.

Source: Dao et al., "FlashAttention-2"; ggml, ``ggml_flash_attn_ext``.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from math import prod
from typing import Any

import numpy as np

from ...context import Context
from ...dtype import GGMLType
from ...errors import UnsupportedOp
from ...tensor import Tensor, strides
from ..op import (
    F16,
    F32,
    I32,
    Arg,
    Array,
    Case,
    Cost,
    OpBuilders,
    Out,
    arg,
    case,
    define_op,
    require,
    require_rows,
    require_type,
)
from ..rows.softmax import alibi_slopes, causal_mask, check_mask, check_sinks, masked, softmax
from .lists import branched_lists, check_lists, check_tables, entries_of, listed, token_rows

__all__ = ["flash_attn_cells", "flash_attn_ext", "flash_attn_ranges"]

_OP = "FLASH_ATTN_EXT"
BF16, Q8_0, Q4_0, Q5_1 = (GGMLType[name] for name in ("BF16", "Q8_0", "Q4_0", "Q5_1"))
KV_TYPES = (  # of keys and of values, which may differ
    F16, F32, BF16, Q8_0, Q4_0, GGMLType.Q4_1, GGMLType.Q5_0, Q5_1, GGMLType.IQ4_NL,
)  # fmt: skip
_MOST = KV_TYPES[:5]  # those with cases of every size


def _infer(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    sinks: Tensor | None,
    cells: Tensor | None,
    rows: Tensor | None,
    branches: Tensor | None,
    distances: Tensor | None,
    **params: float,
) -> Out:
    require_type(_OP, "q", q, (F32,))
    for name, x in (("k", k), ("v", v)):
        require_type(_OP, name, x, KV_TYPES)
    for name, x in (("q", q), ("k", k), ("v", v)):
        require_rows(_OP, name, x)
    require(
        k.ne[0] == q.ne[0] and k.ne[1:] == v.ne[1:],
        _OP,
        f"q {q.ne}, k {k.ne}, v {v.ne}: rows of q and k must be as long, and k and v agree "
        "in ne[1:]",
    )
    require(
        min(k.ne) > 0 and q.ne[2] % k.ne[2] == 0 and q.ne[3] % k.ne[3] == 0,
        _OP,
        f"ne[2:] of q {q.ne[2:]} (heads, batch) must be multiples of k's {k.ne[2:]}",
    )
    if mask is not None:
        check_mask(_OP, mask, (k.ne[1], *q.ne[1:]))
    if sinks is not None:
        check_sinks(_OP, sinks, q.ne[2])
    if not (cells is rows is branches is None):
        _check_tables(q, k, mask, cells, rows, branches)
    if distances is not None:
        require_type(_OP, "distances", distances, (F32,))
        shape = distances.ne[0] % 2 == 1 and distances.ne[1:] == (q.ne[2], 1, 1)
        require(
            rows is not None and shape and distances.is_contiguous(),
            _OP,
            f"distances {distances.ne} must be [2 D + 1, {q.ne[2]}] without gaps, and need rows",
        )
    require(
        params["max_bias"] == 0 or (params["max_bias"] > 0 and not (mask is None and rows is None)),
        _OP,
        f"max_bias is {params['max_bias']}, want 0, or more than 0 with a mask or rows",
    )
    return Out(F32, (v.ne[0], q.ne[2], q.ne[1], q.ne[3]))


def _check_tables(
    q: Tensor,
    k: Tensor,
    mask: Tensor | None,
    cells: Tensor | None,
    rows: Tensor | None,
    branches: Tensor | None,
) -> None:
    listed = cells is not None or branches is None
    require(
        rows is not None and listed and mask is None,
        _OP,
        "cells and rows come together, or rows alone; branches need both, and none has a mask",
    )
    assert rows is not None
    check_tables(_OP, q.ne[1], cells, rows, branches)
    require(q.ne[3] == k.ne[3] == 1, _OP, f"rows need ne[3] == 1, got q {q.ne}, k {k.ne}")


def _scores(q: Array, k: Array, scale: float, logit_softcap: float) -> Array:
    scores: Array = np.matmul(q, k.swapaxes(-1, -2)) * scale
    return logit_softcap * np.tanh(scores / logit_softcap) if logit_softcap else scores


def _flash_attn(
    q: Array,
    k: Array,
    v: Array,
    mask: Array | None,
    sinks: Array | None,
    cells: Array | None,
    rows: Array | None,
    branches: Array | None,
    distances: Array | None,
    scale: float,
    max_bias: float,
    logit_softcap: float,
    bias_scale: float,
) -> Array:
    q, k, v = (x.astype(np.float64) for x in (q, k, v))
    batch, heads = q.shape[0] // k.shape[0], q.shape[1] // k.shape[1]
    k, v = (x.repeat(batch, axis=0).repeat(heads, axis=1) for x in (k, v))
    slopes = alibi_slopes(q.shape[1], max_bias) * bias_scale
    if rows is None:
        p = softmax(masked(_scores(q, k, scale, logit_softcap), mask, slopes), sinks)
        attended: Array = np.matmul(p, v)
        return attended.swapaxes(1, 2)  # [S, T, nh, hdv]
    if cells is None:
        _check_ranges(k.shape[2], rows[0, 0])
    else:
        check_lists(k.shape[2], cells[0], rows[0, 0], None if branches is None else branches[0])
    out = np.zeros((1, q.shape[2], q.shape[1], v.shape[3]))  # [1, T, nh, hdv]
    for t, row in enumerate(rows[0, 0]):
        first, begin, end, pos = row[:4]
        if begin >= end:
            continue
        if cells is None:
            key_pos = np.arange(begin, end)
            cell = first + key_pos
        else:
            cell, key_pos = entries_of(row, cells[0], None if branches is None else branches[0]).T
        scores = _scores(q[:, :, t : t + 1], k[:, :, cell], scale, logit_softcap)
        if max_bias:
            scores = scores - slopes[:, None, None] * np.abs(pos - key_pos)
        if distances is not None:
            farthest = distances.shape[-1] // 2
            to = np.clip(key_pos - pos, -farthest, farthest) + farthest
            scores = scores + distances[0, 0][:, None, to]
        out[:, t] = np.matmul(softmax(scores, sinks), v[:, :, cell])[:, :, 0]
    return out


def _check_ranges(n_keys: int, rows: Array) -> None:
    """Raise IndexError for a range outside of the keys."""
    for t, (first, begin, end, _) in enumerate(rows):
        if begin < end and (first < 0 or begin < 0 or end > n_keys - first):
            raise IndexError(
                f"token {t}: keys {begin}..{end - 1} after key {first}; there are {n_keys}"
            )


def _cost(node: Tensor) -> Cost:
    q, k, v, *_ = node.src
    assert q is not None and k is not None and v is not None
    macs = q.ne[1] * q.ne[2] * q.ne[3] * k.ne[1] * (q.ne[0] + v.ne[0])  # indexed: at most
    return Cost(node.nbytes + q.nbytes + k.nbytes + v.nbytes, macs)


def _dense(hd: int, T: int, nh: int, nkv: int, n_kv: int, **kw: Any) -> Case:
    S, type, perf = kw.pop("S", 1), kw.pop("type", F16), kw.pop("perf", False)
    mask, sinks = kw.pop("mask", None), kw.pop("sinks", None)
    k = arg(hd, nkv, n_kv, S, type=type, permute=(0, 2, 1, 3))
    v = replace(k, ne=(kw.pop("hdv", hd), *k.ne[1:]), type=kw.pop("type_v", type))
    q = arg(hd, nh, T, S, permute=(0, 2, 1, 3))
    return case(q, k, v, mask, sinks, scale=hd**-0.5, perf=perf, **kw)


def _indexed(hd: int, T: int, nh: int, nkv: int, n: tuple[int, int, int], **kw: Any) -> Case:
    """``n`` = entries of a list, cells of the cache, sequences."""
    n_list, n_cells, n_seq = n
    type, perf, sinks = kw.pop("type", F16), kw.pop("perf", False), kw.pop("sinks", None)
    k = arg(hd, nkv, n_cells, type=type, permute=(0, 2, 1, 3))
    v = replace(k, ne=(kw.pop("hdv", hd), *k.ne[1:]), type=kw.pop("type_v", type))
    q = arg(hd, nh, T, permute=(0, 2, 1, 3))
    lists = (listed(*n), token_rows(T, n_list, n_seq, kw.pop("window", 1 << 30)))
    far = kw.pop("farthest", None)
    distances = None if far is None else arg(2 * far + 1, nh, low=-3, high=3)
    sources = (q, k, v, None, sinks, *lists, None, distances)
    return case(*sources, scale=hd**-0.5, perf=perf, **kw)


def _tree(hd: int, T: int, nh: int, nkv: int, n: tuple[int, int], **kw: Any) -> Case:
    """``n`` = entries of the prefix, cells of the cache; see ``branched_lists``."""
    type, tables = kw.pop("type", F16), branched_lists(T, *n, kw.pop("window", 1 << 30))
    k = arg(hd, nkv, n[1], type=type, permute=(0, 2, 1, 3))
    q = arg(hd, nh, T, permute=(0, 2, 1, 3))
    return case(q, k, k, None, None, *tables, scale=hd**-0.5, **kw)


def _texts(hd: int, lengths: tuple[int, ...], nh: int, nkv: int, **kw: Any) -> Case:
    """Texts of these lengths, one after the other, and two tokens of padding.

    Keys and values are columns of one tensor, as of a fused matrix.
    """
    window, n = kw.pop("window", 1 << 30), sum(lengths) + 2
    perf, hdv = kw.pop("perf", False), kw.pop("hdv", hd)
    table = np.zeros((n, 4))
    starts = np.cumsum((0, *lengths))
    for first, length in zip(starts, lengths, strict=False):
        i = np.arange(length)
        begin, end = np.maximum(i - window // 2, 0), np.minimum(i + window // 2 + 1, length)
        table[first : first + length] = np.stack([0 * i + first, begin, end, i], -1)
    rows = Arg((4, n), I32, values=lambda rng: table)
    q, k, v = (
        arg(d, heads, n, permute=(0, 2, 1, 3)) for d, heads in ((hd, nh), (hd, nkv), (hdv, nkv))
    )
    far = kw.pop("farthest", None)
    distances = None if far is None else arg(2 * far + 1, nh, low=-3, high=3)
    sources = (q, k, v, None, kw.pop("sinks", None), None, rows, None, distances)
    return case(*sources, scale=hd**-0.5, perf=perf, **kw)


_ALIBI = arg(33, 5, low=-8, high=0)


def _cases() -> list[Case]:
    return [
        case(arg(1), arg(1), arg(1), scale=1.0),
        case(arg(64, 3, 4), arg(64, 17, 2), arg(48, 17, 2), scale=0.125),
        case(arg(17, 3, 4, 2), arg(17, 65, 2, 1), arg(17, 65, 2, 1), scale=0.2),
        *(
            _dense(64, T, 9, 3, n_kv, mask=causal_mask(n_kv, T, type=F16), type=type)
            for type in _MOST
            for T, n_kv in ((1, 1), (1, 17), (1, 300), (3, 65), (17, 65), (33, 513))
        ),
        _dense(64, 5, 4, 4, 33, mask=causal_mask(33, 5)),
        *(
            _dense(20, T, 4, 2, n_kv, mask=causal_mask(n_kv, T, hidden_row=True), type=F32, **kw)
            for T, n_kv, kw in (
                (9, 9, {"hdv": 12}),
                (3, 70, {"logit_softcap": 2.0}),
                (70, 40, {"sinks": arg(4)}),
            )
        ),
        _dense(20, 5, 12, 3, 17, mask=arg(17, 5, low=-8, high=0), max_bias=8.0, type=F32),
        _dense(80, 5, 4, 2, 33, mask=arg(33, 5, 2, 2), S=2),
        _dense(128, 5, 4, 1, 33, mask=causal_mask(33, 8, type=F16)),
        _dense(64, 5, 9, 3, 33, mask=causal_mask(33, 5, hidden_row=True)),
        _dense(64, 5, 12, 3, 33, mask=_ALIBI, max_bias=8.0),
        _dense(64, 5, 9, 3, 33, mask=causal_mask(33, 5), logit_softcap=2.0),
        _dense(64, 5, 9, 3, 33, mask=causal_mask(33, 5, hidden_row=True), sinks=arg(9)),
        *(
            _indexed(64, T, 9, 3, (n_list, 600, 1), type=type)
            for type in _MOST
            for T, n_list in ((1, 1), (1, 17), (1, 300), (2, 65), (9, 257), (33, 513))
        ),
        *(
            _indexed(64, T, 9, 3, (n, 600, 1), type=t)
            for t in KV_TYPES[len(_MOST) :]
            for T, n in ((1, 300), (9, 65))
        ),
        *(_indexed(64, 65, 9, 3, (300, 600, 1), type=t) for t in KV_TYPES),
        _indexed(64, 7, 4, 4, (40, 130, 3)),
        _indexed(80, 7, 4, 2, (40, 130, 3), window=16),
        _indexed(64, 7, 12, 3, (40, 130, 2), max_bias=8.0),
        _indexed(64, 7, 12, 3, (40, 130, 2), max_bias=8.0, bias_scale=0.125),
        _indexed(64, 7, 9, 3, (40, 130, 2), logit_softcap=2.0),
        _indexed(64, 7, 9, 3, (40, 130, 2), sinks=arg(9), window=16),
        _indexed(80, 40, 12, 3, (140, 300, 2), max_bias=8.0, sinks=arg(12), window=70),
        _indexed(128, 20, 4, 2, (140, 300, 1), logit_softcap=2.0, type_v=BF16),
        _dense(
            96, 20, 8, 2, 70, mask=causal_mask(70, 20, hidden_row=True), max_bias=8.0, type=Q8_0
        ),
        *(
            _indexed(64, T, 9, 3, (40, 130, 3), type=type, type_v=type_v)
            for type, type_v in (
                (Q8_0, F16),
                (BF16, Q8_0),
                (F32, BF16),
                (Q4_0, F16),
                (Q8_0, Q4_0),
                (Q5_1, Q4_0),
            )
            for T in (1, 12)
        ),
        *(_indexed(hd, 7, 4, 2, (40, 130, 2), type=type) for hd in (20, 33) for type in (F16, F32)),
        *(
            _indexed(100, T, 4, 2, (40, 130, 2), type=type)
            for T in (1, 7)
            for type in (F16, F32, BF16)
        ),
        _indexed(33, 1, 4, 2, (40, 130, 2), type=BF16),
        _dense(96, 9, 8, 2, 300, mask=causal_mask(300, 9), type=Q8_0),
        _indexed(64, 8, 9, 3, (300, 2400, 8), type=Q8_0),
        *(  # latent attention, expanded and absorbed
            _indexed(192, T, 4, 4, (300, 400, 1), hdv=128, type=type)
            for T, type in ((1, F16), (5, Q8_0))
        ),
        *(
            _indexed(576, T, nh, 1, (300, 400, 1), hdv=512, type=type)
            for T, nh, type in ((1, 16, F16), (1, 128, F16), (3, 16, Q8_0), (20, 16, F16))
        ),
        _dense(576, 3, 16, 1, 70, hdv=512, mask=causal_mask(70, 3, type=F16)),
        *(
            _indexed(576, T, 20, 1, (300, 400, 1), hdv=512, type=type, **kw)
            for T, type, kw in (
                (1, F16, {"sinks": arg(20)}),
                (3, Q8_0, {"logit_softcap": 2.0}),
                (5, F32, {"logit_softcap": 2.0, "sinks": arg(20), "window": 200}),
            )
        ),
        *(  # wide heads, as many tokens and cells as an emulator takes
            _indexed(hd, T, nh, 1, (n, n, 1), hdv=hdv, **kw)
            for hd, hdv, T, nh, n, kw in (
                (320, 256, 2, 2, 5, {"type": F32, "sinks": arg(2)}),
                (576, 512, 1, 16, 28, {}),
                (576, 512, 2, 16, 30, {"logit_softcap": 2.0, "sinks": arg(16)}),
                (576, 512, 2, 5, 28, {"type": Q8_0, "type_v": F16}),
                (576, 512, 17, 1, 28, {"type": BF16}),
                (512, 512, 20, 1, 30, {"logit_softcap": 2.0, "sinks": arg(1)}),
                (320, 256, 17, 3, 40, {"type": Q8_0, "max_bias": 8.0, "window": 20}),
            )
        ),
        _dense(512, 18, 1, 1, 14, hdv=320, mask=causal_mask(14, 18, hidden_row=True), type=Q4_0),
        *(
            _tree(64, T, 9, 3, (prefix, 900), type=type)
            for type in (F16, Q8_0)
            for T, prefix in ((5, 100), (8, 300), (17, 254), (40, 512))
        ),
        _tree(64, 9, 12, 3, (260, 400), max_bias=8.0, window=30),
        *(
            _texts(hd, lengths, nh, nkv)
            for hd, nh, nkv in ((32, 12, 12), (64, 4, 2), (20, 3, 3))
            for lengths in ((1,), (7, 1, 12), (70, 200, 33), (300, 5, 520))
        ),
        _texts(64, (70, 300, 40), 12, 12, window=64),
        _texts(64, (70, 9, 300), 12, 3, max_bias=8.0, window=30),
        _texts(32, (70, 9, 300), 12, 3, max_bias=8.0, hdv=48),
        _texts(64, (3, 40, 9), 4, 4, logit_softcap=2.0, sinks=arg(4)),
        *(
            _texts(32, (70, 1, 300), 4, 2, window=window, farthest=far)
            for far, window in ((0, 1 << 30), (3, 1 << 30), (128, 40), (400, 1 << 30))
        ),
        _indexed(32, 3, 4, 2, (9, 12, 1), farthest=3),
        _indexed(64, 40, 6, 3, (140, 300, 2), farthest=20),
        _indexed(64, 1, 6, 3, (300, 600, 1), farthest=128),
        *(_texts(32, (n,) * (512 // n), 12, 12, perf=True) for n in (32, 64, 256)),
        _tree(33, 9, 4, 2, (300, 400), type=F32),
        _tree(64, 16, 9, 3, (2000, 2048), perf=True),
        _indexed(64, 1, 9, 3, (512, 2048, 1), perf=True),
        *(_indexed(64, 1, 9, 3, (512, 2048, 1), type=type, perf=True) for type in (Q8_0, Q4_0)),
        _indexed(64, 8, 9, 3, (256, 2048, 8), perf=True),
        *(_indexed(576, 1, nh, 1, (4096, 4096, 1), hdv=512, perf=True) for nh in (16, 128)),
        _indexed(64, 512, 9, 3, (512, 2048, 1), perf=True),
        _dense(64, 512, 9, 3, 512, mask=causal_mask(512, 512, type=F16), perf=True),
    ]


def _all_gradients(ops: OpBuilders, y: Tensor, dy: Tensor) -> Tensor:
    """The gradients of q, k and v, concatenated."""
    q, k, v, mask, sinks, cells, rows, _, distances = y.src
    if cells is not None:
        raise UnsupportedOp(f"{_OP}: lists of cells have no gradient; use a mask or ranges")
    k, v = (x if x is None or x.type is F32 else ops.cpy(x, type=F32) for x in (k, v))
    out: Tensor = ops.flash_attn_back(q, k, v, y, dy, mask, sinks, rows, distances, **y.op_params)
    return out


def _gradient(source: int, ops: OpBuilders, y: Tensor, dy: Tensor) -> Tensor:
    """The gradient of q (source 0), k (1) or v (2): a view of all gradients."""
    sizes = [x.ne for x in y.src[:3] if x is not None]
    start, ne = sum(map(prod, sizes[:source])), sizes[source]
    all_three = ops.once(_all_gradients, y, dy)
    part: Tensor = ops.view(all_three, ne=ne, nb=strides(F32, ne), offset=4 * start)
    return part


FLASH_ATTN_EXT = define_op(
    _OP,
    src=("q", "k", "v", "mask?", "sinks?", "cells?", "rows?", "branches?", "distances?"),
    params={"scale": 1.0, "max_bias": 0.0, "logit_softcap": 0.0, "bias_scale": 1.0},
    infer=_infer,
    reference=_flash_attn,
    cases=_cases,
    max_nmse=lambda node: 1e-5 if node.src[1].type == GGMLType.F16 else 1e-6,
    cost=_cost,
    doc="`softmax(scale * q k + mask) v` for each head, with a mask, lists of cells or ranges.",
    gradients={name: partial(_gradient, i) for i, name in enumerate(("q", "k", "v"))},
)


def flash_attn_ext(
    ctx: Context,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    scale: float,
    max_bias: float = 0.0,
    logit_softcap: float = 0.0,
    *,
    sinks: Tensor | None = None,
) -> Tensor:
    """Attention with a dense mask.

    Args:
        mask: added to the scaled scores (times the head's slope), None attends to all keys.
        max_bias: ALiBi's largest bias; 0 makes every head's slope 1.
        logit_softcap: scores become ``c * tanh(score / c)`` before the mask; 0 is off.
        sinks: a score for each head that takes part in the sum but has no value.

    Shape:
        q F32 [hd, T, nh, S], k [hd, n_kv, nkv, S'] and v [hdv, n_kv, nkv, S'] of ``KV_TYPES``
        (not transposed; any strides with rows without gaps), mask as in ``soft_max_ext``,
        sinks F32 [nh] -> F32 [hdv, nh, T, S]
    """
    return FLASH_ATTN_EXT.build(
        ctx, q, k, v, mask, sinks, **_params(scale, max_bias, logit_softcap)
    )


def flash_attn_cells(
    ctx: Context,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cells: Tensor,
    rows: Tensor,
    scale: float,
    max_bias: float = 0.0,
    logit_softcap: float = 0.0,
    *,
    sinks: Tensor | None = None,
    branches: Tensor | None = None,
    distances: Tensor | None = None,
    bias_scale: float = 1.0,
) -> Tensor:
    """Attention over lists of cells (see the module): other arguments as ``flash_attn_ext``.

    Args:
        branches: lists of the tokens that follow a branch of a tree; ``rows`` then is I32 [6, T].
        distances: F32 [2 D + 1, nh], biases by the distance of a key (see the module).
        bias_scale: a factor of ALiBi's bias, where a model scales it as it scales scores.

    Shape:
        q F32 [hd, T, nh], k [hd, n_cells, nkv] and v [hdv, n_cells, nkv] of ``KV_TYPES``,
        cells I32 [2, n_list, n_seq], rows I32 [4, T], branches I32 [2, n_entries, n_branches]
        -> F32 [hdv, nh, T]
    """
    return FLASH_ATTN_EXT.build(
        ctx, q, k, v, None, sinks, cells, rows, branches, distances,
        **_params(scale, max_bias, logit_softcap), bias_scale=float(bias_scale),
    )  # fmt: skip


def flash_attn_ranges(
    ctx: Context,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    rows: Tensor,
    scale: float,
    max_bias: float = 0.0,
    logit_softcap: float = 0.0,
    *,
    sinks: Tensor | None = None,
    distances: Tensor | None = None,
    bias_scale: float = 1.0,
) -> Tensor:
    """Attention of each token to a range of keys (see the module), as ``flash_attn_cells``.

    Shape:
        q F32 [hd, T, nh], k [hd, n_kv, nkv] and v [hdv, n_kv, nkv] of ``KV_TYPES``, rows I32 [4, T]
        -> F32 [hdv, nh, T]
    """
    return FLASH_ATTN_EXT.build(
        ctx, q, k, v, None, sinks, None, rows, None, distances,
        **_params(scale, max_bias, logit_softcap), bias_scale=float(bias_scale),
    )  # fmt: skip


def _params(scale: float, max_bias: float, logit_softcap: float) -> dict[str, float]:
    return {
        "scale": float(scale),
        "max_bias": float(max_bias),
        "logit_softcap": float(logit_softcap),
    }
