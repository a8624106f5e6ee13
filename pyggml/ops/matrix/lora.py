"""Low-rank adapters of many requests in one batch: LORA_SHRINK and LORA_EXPAND.

    h = lora_shrink(ctx, a, x, scales, spans)      # A x, for the adapters that a token has
    y = lora_expand(ctx, y, b, scales, spans, gains, h)    # y + sum of scale gain B (A x)

The matrices of all adapters are stacked: rows ``spans[j]`` to ``spans[j + 1]`` of ``a`` and of
``b`` are those of adapter j. Spans ascend from 0 to the number of rows, which backends check.
``scales[j, t]`` is the factor of adapter j for token t; 0: token t does not use it, and nothing of
it is read. A token without adapters keeps its bits.
Source: Hu et al. 2021, "LoRA"; Chen et al. 2023, "Punica", for products gathered by row; Sheng et
al. 2023, "S-LoRA".
"""

from __future__ import annotations

import numpy as np

from ...context import Context
from ...tensor import Tensor
from ..op import F16, F32, I32, Arg, Array, Case, Cost, Out, arg, case, define_op, require, source

__all__ = ["lora_expand", "lora_shrink"]


def _check(
    op: str, low: Tensor, rows: Tensor, scales: Tensor, spans: Tensor, ids: Tensor | None
) -> None:
    """Check the matrices against rows [.., n, T] of T tokens, and which adapter has which rows."""
    n, n_tokens = scales.ne[:2]
    require(scales.is_contiguous() and scales.ne[2:] == (1, 1), op, f"scales {scales.ne}")
    require(
        spans.ne == (n + 1, 1, 1, 1) and spans.is_contiguous(), op,
        f"spans {spans.ne}, want [{n + 1}] for the scales {scales.ne} of {n} adapters",
    )  # fmt: skip
    n_rows = rows.nrows
    require(
        rows.ne[3] == 1 and n_rows % max(n_tokens, 1) == 0, op,
        f"{n_rows} rows {rows.ne} are not a multiple of the {n_tokens} tokens of the scales",
    )  # fmt: skip
    if ids is None:
        require(low.ne[2:] == (1, 1), op, f"several matrices {low.ne} need ids")
    else:
        require(
            low.ne[3] == 1 and ids.ne[1:] == (n_tokens, 1, 1) and ids.is_contiguous(), op,
            f"ids {ids.ne}, want [n_used, {n_tokens}] without gaps",
        )  # fmt: skip


def _infer_shrink(a: Tensor, x: Tensor, scales: Tensor, spans: Tensor, ids: Tensor | None) -> Out:
    op = "LORA_SHRINK"
    require(a.ne[0] == x.ne[0], op, f"rows of a {a.ne} and x {x.ne} must be of one length")
    _check(op, a, x, scales, spans, ids)
    if ids is None:
        return Out(F32, (a.ne[1], *x.ne[1:]))
    require(
        x.ne[2] == ids.ne[1] and ids.ne[0] % x.ne[1] == 0, op,
        f"ids {ids.ne} must be [a multiple of {x.ne[1]}, {x.ne[2]}] for x {x.ne}",
    )  # fmt: skip
    return Out(F32, (a.ne[1], ids.ne[0], x.ne[2], 1))


def _of_rows(scales: Array, spans: Array, n_rows: int, rank: int) -> Array:
    """The scale of each row of the matrices for each row of a tensor: [n_rows, rank]."""
    ranks = np.diff(spans[0, 0, 0])
    if spans[0, 0, 0, 0] or ranks.min(initial=0) < 0 or ranks.sum() != rank:
        raise IndexError(f"spans {spans[0, 0, 0].tolist()} of {rank} rows")
    by_rank = np.repeat(scales[0, 0], ranks, axis=1)  # [n_tokens, rank]
    return np.repeat(by_rank, n_rows // len(by_rank), axis=0)


def _shrink(a: Array, x: Array, scales: Array, spans: Array, ids: Array | None) -> Array:
    if ids is None:
        rows = x.reshape(-1, x.shape[3]).astype(np.float64)
        h = rows @ a[0, 0].T.astype(np.float64)
        shape = (*x.shape[:3], a.shape[2])
    else:
        chosen = ids[0, 0]  # [n_tokens, n_used]
        x = np.tile(x[0], (1, chosen.shape[1] // x.shape[2], 1))
        h = np.einsum("turk,tuk->tur", a[0][chosen].astype(np.float64), x).reshape(-1, a.shape[2])
        shape = (1, *chosen.shape, a.shape[2])
    return np.where(_of_rows(scales, spans, len(h), a.shape[2]) != 0, h, 0).reshape(shape)


def _infer_expand(
    y: Tensor, b: Tensor, scales: Tensor, spans: Tensor, gains: Tensor, h: Tensor | None,
    ids: Tensor | None,
) -> Out:  # fmt: skip
    op = "LORA_EXPAND"
    require(b.ne[0] == y.ne[0], op, f"rows of b {b.ne} and y {y.ne} must be of one length")
    _check(op, b, y, scales, spans, ids)
    n = scales.ne[0]
    require(gains.ne == (n, 1, 1, 1) and gains.is_contiguous(), op, f"gains {gains.ne}, want [{n}]")
    require(
        h is None or (h.ne == (b.ne[1], *y.ne[1:]) and h.is_contiguous()), op,
        f"h {h.ne if h else ()}, want [{b.ne[1]}] for each row of y {y.ne}",
    )  # fmt: skip
    require(ids is None or ids.ne[:2] == y.ne[1:3], op, f"ids {ids.ne if ids else ()}, y {y.ne}")
    return Out(F32, y.ne)


def _expand(
    y: Array, b: Array, scales: Array, spans: Array, gains: Array, h: Array | None,
    ids: Array | None,
) -> Array:  # fmt: skip
    rows = y.reshape(-1, y.shape[3])
    factors = _of_rows(scales * gains, spans, len(rows), b.shape[2]).astype(np.float64)
    if h is not None:
        factors = np.where(factors != 0, factors * h.reshape(factors.shape), 0)
    if ids is None:
        change = factors @ b[0, 0].astype(np.float64)
    else:
        change = np.einsum("nr,nrm->nm", factors, b[0][ids.reshape(-1)].astype(np.float64))
    total: Array = (rows + change).reshape(y.shape)
    return total


def _cost(node: Tensor) -> Cost:
    """As if every token had one adapter."""
    low, scales = node.src[1 if node.op is LORA_EXPAND else 0], node.src[2]
    assert low is not None and scales is not None
    n = max(1, scales.ne[0])
    return Cost(2 * node.nbytes + low.nbytes, node.nrows * low.ne[0] * low.ne[1] // n)


def _adapters(n_tokens: int, *ranks: int) -> tuple[Arg, Arg]:
    """Scales, 0 for a part of the tokens and adapters, and the spans of adapters of some ranks."""

    def scales(rng: np.random.Generator) -> Array:
        drawn = rng.uniform(0.5, 2, (n_tokens, len(ranks)))
        return np.where(rng.random(drawn.shape) < 0.6, drawn, 0)

    spans = np.cumsum((0, *ranks))
    return (
        Arg((len(ranks), n_tokens), F32, values=scales),
        Arg((len(ranks) + 1,), I32, values=lambda rng: spans),
    )


def _chosen(n_used: int, n_tokens: int, n_expert: int) -> Arg:
    return arg(n_used, n_tokens, type=I32, low=0, high=n_expert)


def _shrinks(k: int, n_tokens: int, *ranks: int, kind: object = F32, perf: bool = False) -> Case:
    a = arg(k, sum(ranks), type=kind)
    return case(a, arg(k, n_tokens), *_adapters(n_tokens, *ranks), perf=perf)


LORA_SHRINK = define_op(
    "LORA_SHRINK",
    src={
        "a": source(F32, F16),
        "x": source(F32),
        "scales": source(F32),
        "spans": source(I32),
        "ids?": source(I32),
    },
    infer=_infer_shrink,
    reference=_shrink,
    cases=lambda: [
        _shrinks(1, 1, 1),
        _shrinks(65, 1, 16),
        *(_shrinks(k, 7, 16, 0, 8, 5, kind=kind) for k in (33, 128) for kind in (F32, F16)),
        _shrinks(577, 45, 16, 64, kind=F16),
        case(arg(64, 9), arg(64, 3, 5), *_adapters(5, 4, 5)),
        case(arg(64, 9), arg(64, 5, 3, permute=(0, 2, 1, 3)), *_adapters(5, 4, 5)),
        *(
            case(arg(65, 9, 4, type=kind), arg(65, n, 5), *_adapters(5, 4, 5), _chosen(2, 5, 4))
            for n, kind in ((1, F32), (2, F16))
        ),
        *(_shrinks(4096, n, 16, kind=F16, perf=True) for n in (1, 16, 512)),
    ],
    cost=_cost,
    doc="Products of `x` with the rows of `a` of each token's adapters; 0 for other rows.",
)


def lora_shrink(
    ctx: Context, a: Tensor, x: Tensor, scales: Tensor, spans: Tensor, ids: Tensor | None = None
) -> Tensor:
    """``A x`` for the adapters that each token has, 0 for the others.

    Args:
        ids: of experts: the matrix of each row.

    Shape:
        a F32 or F16 [k, rank], or with ids [k, rank, n_expert]; x F32 [k, n, T]; scales F32
        [n_adapters, T]; spans I32 [n_adapters + 1]; ids I32 [n_used, T], where n divides n_used ->
        F32 [rank, n, T], or [rank, n_used, T]. ``n`` may be left out, or rows be [k, n T].

    Raises:
        ShapeError, TypeMismatch: sizes or types do not fit, or rows have gaps.
    """
    return LORA_SHRINK.build(ctx, a, x, scales, spans, ids)


def _expands(m: int, n_tokens: int, *ranks: int, kind: object = F32, perf: bool = False) -> Case:
    rank, adapters = sum(ranks), _adapters(n_tokens, *ranks)
    return case(
        arg(m, n_tokens), arg(m, rank, type=kind), *adapters, arg(len(ranks)), arg(rank, n_tokens),
        perf=perf,
    )  # fmt: skip


LORA_EXPAND = define_op(
    "LORA_EXPAND",
    src={
        "y": source(F32),
        "b": source(F32, F16),
        "scales": source(F32),
        "spans": source(I32),
        "gains": source(F32),
        "h?": source(F32),
        "ids?": source(I32),
    },
    infer=_infer_expand,
    reference=_expand,
    cases=lambda: [
        _expands(1, 1, 1),
        _expands(65, 1, 16),
        *(_expands(m, 7, 16, 0, 8, 5, kind=kind) for m in (33, 128) for kind in (F32, F16)),
        _expands(577, 45, 16, 64, kind=F16),
        case(arg(65, 7), arg(65, 2), *_adapters(7, 1, 1), arg(2)),
        case(arg(64, 3, 5), arg(64, 9), *_adapters(5, 4, 5), arg(2), arg(9, 3, 5)),
        *(
            case(
                arg(65, 2, 5), arg(65, 9, 4, type=kind), *_adapters(5, 4, 5), arg(2), arg(9, 2, 5),
                _chosen(2, 5, 4),
            )
            for kind in (F32, F16)
        ),
        *(_expands(4096, n, 16, kind=F16, perf=True) for n in (1, 16, 512)),
    ],
    inplace_ok=True,
    cost=_cost,
    doc="Adds to `y` the rows of `b` of each token's adapters, times `h`, `scales` and `gains`.",
)  # fmt: skip


def lora_expand(
    ctx: Context, y: Tensor, b: Tensor, scales: Tensor, spans: Tensor, gains: Tensor,
    h: Tensor | None = None, ids: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """``y`` plus, for each adapter j of a token, ``scales[j, t] gains[j] B h``.

    Args:
        h: from ``lora_shrink``; None for ones.
        ids: of experts: the matrix of each row.

    Shape:
        y F32 [m, n, T]; b F32 or F16 [m, rank], or with ids [m, rank, n_expert]: the columns of the
        adapters' matrices as rows; scales F32 [n_adapters, T]; spans I32 [n_adapters + 1]; gains
        F32 [n_adapters]; h F32 [rank, n, T]; ids I32 [n, T] -> y's

    Raises:
        ShapeError, TypeMismatch: sizes or types do not fit, or rows have gaps.
    """
    return LORA_EXPAND.build(ctx, y, b, scales, spans, gains, h, ids)
