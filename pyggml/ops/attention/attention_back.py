"""FLASH_ATTN_BACK: the gradients of attention in one op, which keeps no matrix of scores.

    grads = flash_attn_back(ctx, q, k, v, y, dy, mask, scale)   # of q, k and v, concatenated

The scores are computed again, a tile of queries and keys at a time.
Source: Dao, "FlashAttention-2", algorithm 2; ggml, ``ggml_flash_attn_back`` (the form of the
result; ours has a mask, grouped heads and FLASH_ATTN_EXT's ranges of keys).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ...context import Context
from ...tensor import Tensor
from ..op import F16, F32, I32, Arg, Array, Case, Cost, Out, arg, case, define_op, require, source
from ..rows.softmax import alibi_slopes, causal_mask, check_mask, check_sinks, masked, softmax

__all__ = ["flash_attn_back"]

_OP = "FLASH_ATTN_BACK"


def _infer(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    y: Tensor,
    dy: Tensor,
    mask: Tensor | None,
    sinks: Tensor | None,
    rows: Tensor | None,
    distances: Tensor | None,
    **params: float,
) -> Out:
    require(
        k.ne[0] == q.ne[0] and k.ne[1:] == v.ne[1:] and min(k.ne) > 0,
        _OP,
        f"rows of q {q.ne} and k {k.ne} must be as long, and k and v {v.ne} agree in ne[1:]",
    )
    require(
        q.ne[2] % k.ne[2] == 0 and q.ne[3] % k.ne[3] == 0,
        _OP,
        f"ne[2:] of q {q.ne[2:]} (heads, batch) must be multiples of k's {k.ne[2:]}",
    )
    want = (v.ne[0], q.ne[2], q.ne[1], q.ne[3])
    require(y.ne == dy.ne == want, _OP, f"y {y.ne} and dy {dy.ne} must be {want}")
    if mask is not None:
        check_mask(_OP, mask, (k.ne[1], *q.ne[1:]))
    if sinks is not None:
        check_sinks(_OP, sinks, q.ne[2])
    if rows is not None:
        require(
            mask is None and rows.ne == (4, q.ne[1], 1, 1) and q.ne[3] == 1,
            _OP,
            f"rows {rows.ne} must be [4, {q.ne[1]}], without a mask and with one batch",
        )
    if distances is not None:
        shape = distances.ne[0] % 2 == 1 and distances.ne[1:] == (q.ne[2], 1, 1)
        require(
            rows is not None and shape, _OP, f"distances {distances.ne} must be [odd, {q.ne[2]}]"
        )
    return Out(F32, (q.nelements + k.nelements + v.nelements, 1, 1, 1))


def _range_bias(rows: Array, n_keys: int, slopes: Array, distances: Array | None) -> Array:
    """The bias of scores [heads, tokens, keys]: by distance, -inf outside of a token's range."""
    first, begin, end, pos = rows[0, 0].T[..., None]
    place = np.arange(n_keys) - first  # of each key in the token's text
    bias = -slopes[:, None, None] * np.abs(pos - place)
    if distances is not None:
        far = distances.shape[-1] // 2
        bias = bias + distances[0, 0][:, np.clip(place - pos, -far, far) + far]
    return np.where((begin <= place) & (place < end), bias, -np.inf)


def _flash_attn_back(
    q: Array,
    k: Array,
    v: Array,
    y: Array,
    dy: Array,
    mask: Array | None,
    sinks: Array | None,
    rows: Array | None,
    distances: Array | None,
    scale: float,
    max_bias: float,
    logit_softcap: float,
    bias_scale: float,
) -> Array:
    q, k, v, y, dy = (x.astype(np.float64) for x in (q, k, v, y, dy))
    batch, heads = q.shape[0] // k.shape[0], q.shape[1] // k.shape[1]
    k, v = (x.repeat(batch, axis=0).repeat(heads, axis=1) for x in (k, v))
    y, dy = (x.swapaxes(1, 2) for x in (y, dy))  # [S, nh, T, hdv]
    scores, slope = np.matmul(q, k.swapaxes(2, 3)) * scale, 1.0  # slope: of the soft cap
    if logit_softcap:
        scores = logit_softcap * np.tanh(scores / logit_softcap)
        slope = 1 - (scores / logit_softcap) ** 2
    slopes = alibi_slopes(q.shape[1], max_bias) * bias_scale
    if rows is None:
        scores = masked(scores, mask, slopes)
    else:
        scores = scores + _range_bias(rows, k.shape[2], slopes * (max_bias > 0), distances)
    p = softmax(scores, sinks)
    ds = p * (np.matmul(dy, v.swapaxes(2, 3)) - np.sum(dy * y, axis=-1, keepdims=True))
    ds = ds * slope * scale
    dk, dv = np.matmul(ds.swapaxes(2, 3), q), np.matmul(p.swapaxes(2, 3), dy)
    groups = (q.shape[0] // batch, batch, q.shape[1] // heads, heads)
    sums = (x.reshape(*groups, *x.shape[2:]).sum(axis=(1, 3)) for x in (dk, dv))
    out = np.concatenate([x.ravel() for x in (np.matmul(ds, k), *sums)])
    return out.reshape(1, 1, 1, -1)


def _case(
    hd: int, T: int, nh: int, nkv: int, n_kv: int, mask: Arg | None = None, **kw: Any
) -> Case:
    S, hdv, perf = kw.pop("S", 1), kw.pop("hdv", hd), kw.pop("perf", False)
    q = arg(hd, nh, T, S, permute=(0, 2, 1, 3))
    k, v = (arg(d, nkv, n_kv, kw.get("S_kv", S), permute=(0, 2, 1, 3)) for d in (hd, hdv))
    kw.pop("S_kv", None)
    out, sinks = arg(hdv, nh, T, S), kw.pop("sinks", None)
    return case(q, k, v, out, out, mask, sinks, scale=hd**-0.5, perf=perf, **kw)


def _texts(hd: int, lengths: tuple[int, ...], nh: int, nkv: int, **kw: Any) -> Case:
    """Causal texts of these lengths, one after the other, and two tokens of padding."""
    n, window, far = sum(lengths) + 2, kw.pop("window", 1 << 30), kw.pop("farthest", None)
    table = np.zeros((n, 4))
    for first, length in zip(np.cumsum((0, *lengths)), lengths, strict=False):
        i = np.arange(length)
        begin = np.maximum(i - window, 0)
        table[first : first + length] = np.stack([0 * i + first, begin, i + 1, i], -1)
    rows = Arg((4, n), I32, values=lambda rng: table)
    distances = None if far is None else arg(2 * far + 1, nh)
    q, k = (arg(hd, heads, n, permute=(0, 2, 1, 3)) for heads in (nh, nkv))
    out = arg(hd, nh, n)
    return case(q, k, k, out, out, None, None, rows, distances, scale=hd**-0.5, **kw)


FLASH_ATTN_BACK = define_op(
    _OP,
    src={
        "q": source(F32),
        "k": source(F32),
        "v": source(F32),
        "y": source(F32),
        "dy": source(F32),
        "mask?": None,
        "sinks?": None,
        "rows?": source(I32),
        "distances?": source(F32),
    },
    params={"scale": 1.0, "max_bias": 0.0, "logit_softcap": 0.0, "bias_scale": 1.0},
    infer=_infer,
    reference=_flash_attn_back,
    cases=lambda: [
        _case(1, 1, 1, 1, 1),
        _case(20, 5, 4, 2, 17),
        _case(64, 3, 4, 2, 65, hdv=48),
        _case(33, 70, 2, 2, 130, mask=causal_mask(130, 70)),
        _case(64, 150, 3, 1, 150, mask=causal_mask(150, 150, type=F16)),  # tiles that are hidden
        _case(32, 9, 4, 2, 33, mask=causal_mask(33, 9, hidden_row=True), S=2),
        _case(32, 9, 4, 2, 33, mask=arg(33, 9, 2, 2), S=4, S_kv=2),
        _case(32, 5, 12, 3, 33, mask=arg(33, 5, low=-8, high=0), max_bias=8.0),
        _case(32, 5, 9, 3, 33, mask=causal_mask(33, 5), logit_softcap=2.0),
        _case(32, 5, 9, 3, 33, mask=causal_mask(33, 5, hidden_row=True), sinks=arg(9)),
        _texts(32, (7, 1, 12), 4, 2),
        _texts(32, (70, 9, 150), 12, 3, max_bias=8.0, window=30, bias_scale=0.5),
        _texts(20, (70, 200), 3, 3, farthest=20, logit_softcap=3.0),
        _case(64, 256, 8, 4, 256, mask=causal_mask(256, 256), S=4, perf=True),
        _texts(64, (256,) * 4, 8, 4, perf=True),
    ],
    max_nmse=1e-6,
    cost=lambda node: Cost(
        2 * node.nbytes,
        7 * node.src[4].nelements * node.src[1].ne[1],  # matmuls with each tile of scores, at most
    ),
    doc="The gradients of `q`, `k`, `v`, concatenated; `dy` is that of the attention's result `y`.",
)


def flash_attn_back(
    ctx: Context,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    y: Tensor,
    dy: Tensor,
    mask: Tensor | None,
    scale: float,
    max_bias: float = 0.0,
    logit_softcap: float = 0.0,
    *,
    sinks: Tensor | None = None,
) -> Tensor:
    """The gradients of q, k and v, where ``dy`` is that of ``y = flash_attn_ext(q, k, v, ...)``.

    They are concatenated, each in ne order without gaps, so that a view of the result with the
    sizes of q is the gradient of q.

    Shape:
        q F32 [hd, T, nh, S], k F32 [hd, n_kv, nkv, S'], v F32 [hdv, n_kv, nkv, S'], y and dy F32
        [hdv, nh, T, S], mask as in ``flash_attn_ext`` -> F32 [elements of q, k and v]

    Raises:
        ShapeError, TypeMismatch: sizes or types do not fit, or rows have gaps.
    """
    return FLASH_ATTN_BACK.build(
        ctx, q, k, v, y, dy, mask, sinks, scale=float(scale), max_bias=float(max_bias),
        logit_softcap=float(logit_softcap),
    )  # fmt: skip
