"""Low-rank adapters of many requests in one batch: LORA.

    y = lora(ctx, y, b, scales, spans, gains, a, x)    # y + sum of scale gain B (A x)

The matrices of all adapters are stacked: rows ``spans[j]`` to ``spans[j + 1]`` of ``a``, and as
many columns of B, are those of adapter j. Spans ascend from 0 to the rank, which backends check.
``scales[j, t]`` is the factor of adapter j for token t; 0: token t does not use it, and nothing of
it is read. A token without adapters keeps its bits.
Source: Hu et al. 2021, "LoRA"; Chen et al. 2023, "Punica", for products gathered by row; Sheng et
al. 2023, "S-LoRA".
"""

from __future__ import annotations

import numpy as np

from ...context import Context
from ...dtype import GGMLType
from ...rounding import ceil_div
from ...tensor import Tensor
from ..op import F16, F32, I32, Arg, Array, Case, Cost, Out, arg, case, define_op, require, source

__all__ = ["lora"]

PANEL = 16  # rows of B that lie side by side, column after column
Q8_0 = GGMLType.Q8_0


def pieces(rank: int) -> list[int]:
    """The sizes of the pieces of columns of a B of Q8_0: 32, .., then 16, 8 and 4."""
    return [32] * (rank // 32) + [size for size in (16, 8, 4) if rank & size]


def fits_blocks(rank: int, m: int) -> bool:
    """Whether a B of m rows can be Q8_0: whole blocks for each of its pieces."""
    panels = ceil_div(m, PANEL)
    return rank % 4 == 0 and all(panels % (32 // size) == 0 for size in pieces(rank))


def _infer(
    y: Tensor, b: Tensor, scales: Tensor, spans: Tensor, gains: Tensor, a: Tensor | None,
    x: Tensor | None, ids: Tensor | None,
) -> Out:  # fmt: skip
    op, (n, n_tokens), panels = "LORA", scales.ne[:2], ceil_div(y.ne[0], PANEL)
    width = max(PANEL, b.type.block_size)
    rank = b.ne[1] * width // (PANEL * panels)
    require(scales.is_contiguous() and scales.ne[2:] == (1, 1), op, f"scales {scales.ne}")
    for name, values, want in (("spans", spans, n + 1), ("gains", gains, n)):
        require(
            values.ne == (want, 1, 1, 1) and values.is_contiguous(), op,
            f"{name} {values.ne}, want [{want}] for the scales {scales.ne} of {n} adapters",
        )  # fmt: skip
    require(
        y.ne[3] == 1 and y.nrows % max(n_tokens, 1) == 0, op,
        f"the rows of y {y.ne} are not a multiple of the {n_tokens} tokens of the scales",
    )  # fmt: skip
    require(
        b.ne[0] == width and b.ne[1] * width == PANEL * rank * panels and b.ne[3] == 1, op,
        f"b {b.ne}, want [{width}, n] with n * {width} = {PANEL * panels} rank for y {y.ne}",
    )  # fmt: skip
    require(b.is_contiguous(), op, f"b {b.ne} has gaps")
    require(a is None or x is not None, op, "a needs x")
    if x is not None:
        k = rank if a is None else a.ne[0]
        require(x.ne[0] == k and x.ne[3] == 1, op, f"x {x.ne}, want rows of {k}")
    if a is not None:
        require(a.ne[1] == rank, op, f"a {a.ne} and b {b.ne} must be of one rank")
    n_expert = b.ne[2]
    require(a is None or (a.ne[2:] == (n_expert, 1) and a.is_contiguous()), op, f"a, b {b.ne}")
    if ids is None:
        require(n_expert == 1, op, f"several matrices b {b.ne} need ids")
        require(x is None or x.ne[1:] == y.ne[1:], op, f"x {x.ne if x else ()}, y {y.ne}")
    else:
        require(
            ids.ne == (*y.ne[1:3], 1, 1) and ids.is_contiguous() and ids.ne[1] == n_tokens, op,
            f"ids {ids.ne}, want {list(y.ne[1:3])} without gaps for {n_tokens} tokens",
        )  # fmt: skip
        require(
            x is None or (x.ne[2] == ids.ne[1] and ids.ne[0] % x.ne[1] == 0), op,
            f"ids {ids.ne} must be [a multiple of n, T] for x {x.ne if x else ()}",
        )  # fmt: skip
    return Out(F32, y.ne)


def _factors(scales: Array, spans: Array, n_rows: int, rank: int) -> Array:
    """The factor of each row of the stacked matrices for each row of a tensor: [n_rows, rank]."""
    ranks = np.diff(spans[0, 0, 0])
    if spans[0, 0, 0, 0] or ranks.min(initial=0) < 0 or ranks.sum() != rank:
        raise IndexError(f"spans {spans[0, 0, 0].tolist()} of {rank} rows")
    by_rank = np.repeat(scales[0, 0], ranks, axis=1)  # [n_tokens, rank]
    return np.repeat(by_rank, n_rows // len(by_rank), axis=0).astype(np.float64)


def _columns(b: Array, spans: Array, panels: int) -> Array:
    """The columns of B of all adapters: [n_expert, rank, m rounded up]."""
    in_blocks, n_expert, columns = b.shape[2] != PANEL, len(b), []
    b = b.reshape(n_expert, -1)
    for first, rank in zip(spans[:-1], np.diff(spans), strict=True):
        start = first * panels * PANEL
        for size in pieces(rank) if in_blocks else [rank]:
            part = b[:, start : start + size * panels * PANEL]
            start += part.shape[1]
            if in_blocks:  # [block of panels, row, panel, column]
                part = part.reshape(n_expert, -1, PANEL, 32 // size, size).transpose(0, 4, 1, 3, 2)
            else:
                part = part.reshape(n_expert, panels, size, PANEL).swapaxes(1, 2)
            columns.append(part.reshape(n_expert, size, panels * PANEL))
    return np.concatenate(columns, 1)


def _lora(
    y: Array, b: Array, scales: Array, spans: Array, gains: Array, a: Array | None,
    x: Array | None, ids: Array | None,
) -> Array:  # fmt: skip
    rows = y.reshape(-1, y.shape[3])
    expert = np.zeros(len(rows), int) if ids is None else ids.reshape(-1)
    columns = _columns(b[0], spans[0, 0, 0], -(-y.shape[3] // PANEL))[..., : y.shape[3]]
    h = np.ones((len(rows), columns.shape[1]))
    if x is not None:
        if ids is not None:
            x = np.tile(x[0], (1, y.shape[2] // x.shape[2], 1))
        h = x.reshape(len(rows), -1).astype(np.float64)
    if a is not None:
        h = np.einsum("nrk,nk->nr", a[0][expert].astype(np.float64), h)
    factors = _factors(scales * gains, spans, *h.shape)
    h = np.where(factors != 0, factors * h, 0)
    total: Array = rows + np.einsum("nr,nrm->nm", h, columns[expert].astype(np.float64))
    return total.reshape(y.shape)


def _cost(node: Tensor) -> Cost:
    """As if every token had one adapter."""
    matrices = [node.src[i] for i in (1, 5)]
    n = max(1, node.src[2].ne[0])  # type: ignore[union-attr]
    elements = sum(t.nelements for t in matrices if t is not None)
    n_bytes = sum(t.nbytes for t in matrices if t is not None)
    return Cost(2 * node.nbytes + n_bytes, node.nrows * elements // n)


def _adapters(n_tokens: int, *ranks: int) -> tuple[Arg, Arg, Arg]:
    """Scales, 0 for a part of the tokens and adapters; spans of adapters of some ranks; gains."""

    def scales(rng: np.random.Generator) -> Array:
        drawn = rng.uniform(0.5, 2, (n_tokens, len(ranks)))
        return np.where(rng.random(drawn.shape) < 0.6, drawn, 0)

    spans = np.cumsum((0, *ranks))
    return (
        Arg((len(ranks), n_tokens), F32, values=scales),
        Arg((len(ranks) + 1,), I32, values=lambda rng: spans),
        arg(len(ranks)),
    )


def _case(
    k: int, m: int, n_tokens: int, *ranks: int, kind: GGMLType = F32, a: GGMLType | None = None,
    perf: bool = False,
) -> Case:  # fmt: skip
    """A matrix of m rows and k columns; ``kind``: of B, and of A unless it is given."""
    rank = sum(ranks)
    width = max(PANEL, kind.block_size)
    return case(
        arg(m, n_tokens), arg(width, PANEL * rank * ceil_div(m, PANEL) // width, type=kind),
        *_adapters(n_tokens, *ranks), arg(k, rank, type=a or kind), arg(k, n_tokens), perf=perf,
    )  # fmt: skip


def _expert_case(n: int, kind: GGMLType) -> Case:
    """Two of four experts for each of five tokens, with ``n`` rows of x each."""
    chosen, width = arg(2, 5, type=I32, low=0, high=4), max(PANEL, kind.block_size)
    m, ranks = (128, (4, 8)) if kind is Q8_0 else (65, (4, 6))
    b = arg(width, sum(ranks) * PANEL * ceil_div(m, PANEL) // width, 4, type=kind)
    a = arg(96, sum(ranks), 4, type=kind)
    return case(arg(m, 2, 5), b, *_adapters(5, *ranks), a, arg(96, n, 5), chosen)


def _cases() -> list[Case]:
    low = arg(PANEL, 45)
    return [
        _case(1, 1, 1, 1),
        _case(65, 65, 1, 16),
        *(_case(k, 48, 7, 16, 0, 8, 5, kind=t) for k in (33, 128) for t in (F32, F16)),
        _case(577, 577, 45, 16, 64, kind=F16),
        _case(96, 64, 1, 16, kind=Q8_0),
        _case(96, 128, 5, 4, 0, 60, 8, 12, kind=Q8_0),
        _case(576, 33, 9, 16, 3, 40, kind=F16, a=Q8_0),
        case(arg(65, 7), arg(PANEL, 10), *_adapters(7, 1, 1)),
        case(arg(65, 5), low, *_adapters(5, 4, 5), None, arg(9, 5)),
        case(arg(65, 3, 5), low, *_adapters(5, 4, 5), arg(64, 9), arg(64, 3, 5)),
        case(
            arg(65, 3, 5), low, *_adapters(5, 4, 5), arg(64, 9),
            arg(64, 5, 3, permute=(0, 2, 1, 3)),
        ),
        *(_expert_case(n, kind) for n, kind in ((1, F32), (2, F16), (1, Q8_0))),
        *(_case(4096, 4096, n, 16, kind=Q8_0, perf=True) for n in (1, 16, 512)),
    ]  # fmt: skip


LORA = define_op(
    "LORA",
    src={
        "y": source(F32),
        "b": source(F32, F16, Q8_0),
        "scales": source(F32),
        "spans": source(I32),
        "gains": source(F32),
        "a?": source(F32, F16, Q8_0),
        "x?": source(F32),
        "ids?": source(I32),
    },
    infer=_infer,
    reference=_lora,
    cases=_cases,
    inplace_ok=True,
    max_nmse=lambda node: 5e-4 if node.src[5] is not None and node.src[5].type is Q8_0 else 1e-7,
    cost=_cost,
    doc="Adds to `y` the products of `x` with the low-rank matrices of each token's adapters.",
)


def lora(
    ctx: Context, y: Tensor, b: Tensor, scales: Tensor, spans: Tensor, gains: Tensor,
    a: Tensor | None = None, x: Tensor | None = None, ids: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """``y`` plus, for each adapter j of a token, ``scales[j, t] gains[j] B (A x)``.

    Args:
        b: for each adapter the panels of 16 rows of its B, each with its columns one after the
            other. Of Q8_0, for each of its ``pieces`` of s columns a matrix of blocks: 16 rows of
            them for 32 / s panels, of which block r has row r of each (``fits_blocks``).
        a: None: ``x`` has the products with A.
        x: None: the products with A are ones, so that the columns of B are added.
        ids: of experts: the matrix of each row.

    Shape:
        y F32 [m, n, T]; b F32 or F16 [16, rank * panels], where panels is m / 16 rounded up, or
        Q8_0 [32, rank * panels / 2], with ids [.., .., n_expert]; scales F32 [n_adapters, T];
        spans I32 [n_adapters + 1]; gains F32 [n_adapters]; a F32, F16 or Q8_0 [k, rank], or with
        ids [k, rank, n_expert]; x F32 [k, n, T], with ids [k, n', T], where n' divides n; ids I32
        [n, T] -> y's. ``n`` may be left out, or rows be [m, n T].

    Raises:
        ShapeError, TypeMismatch: sizes or types do not fit, or rows have gaps.
    """
    return LORA.build(ctx, y, b, scales, spans, gains, a, x, ids)
