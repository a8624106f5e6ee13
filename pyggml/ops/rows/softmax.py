"""Softmax over rows with mask, scale, ALiBi and sinks: SOFT_MAX, and its gradient SOFT_MAX_BACK.

    p = soft_max_ext(ctx, kq, mask, 1 / sqrt(n_embd_head), 0.0)

Source: ggml, ``ggml_soft_max_ext``; Press et al., "Train Short, Test Long" (ALiBi).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ...context import Context
from ...tensor import Tensor
from ..op import (
    F16,
    F32,
    Arg,
    Array,
    OpBuilders,
    Out,
    arg,
    case,
    define_op,
    require,
    require_rows,
    require_type,
    same,
    source,
)

__all__ = ["soft_max", "soft_max_ext", "soft_max_ext_back"]


def alibi_steps(n_head: int, max_bias: float) -> tuple[int, float, float]:
    """(n2, a, b): slopes are 2^(a (h + 1)), but 2^(b (2 (h - n2) + 1)) of the heads from n2 on."""
    n2 = 1 << (n_head.bit_length() - 1)
    return n2, -max_bias / n2, -max_bias / 2 / n2


def alibi_slopes(n_head: int, max_bias: float) -> npt.NDArray[np.float32]:
    """The factor on the mask for each head; ones when ``max_bias`` is 0."""
    if max_bias == 0:
        return np.ones(n_head, np.float32)
    n2, a, b = alibi_steps(n_head, max_bias)
    slopes = [2.0 ** (a * (h + 1) if h < n2 else b * (2 * (h - n2) + 1)) for h in range(n_head)]
    return np.array(slopes, np.float32)


def check_mask(op: str, mask: Tensor, ne: tuple[int, ...]) -> None:
    """Check that ``mask`` fits scores of the sizes ``ne`` = [keys, queries, heads, batch].

    Raises:
        ShapeError, TypeMismatch: with the op's name.
    """
    require_type(op, "mask", mask, (F32, F16))
    require_rows(op, "mask", mask)
    require(
        mask.ne[0] == ne[0]
        and mask.ne[1] >= ne[1]
        and min(mask.ne) > 0
        and ne[2] % mask.ne[2] == 0
        and ne[3] % mask.ne[3] == 0,
        op,
        f"mask {mask.ne} must be [{ne[0]}, at least {ne[1]}, divisor of {ne[2]}, "
        f"divisor of {ne[3]}]",
    )


def check_sinks(op: str, sinks: Tensor, n_head: int) -> None:
    """Check that ``sinks`` has a number for each head. Raises: ShapeError, TypeMismatch."""
    require_type(op, "sinks", sinks, (F32,))
    require(
        sinks.ne == (n_head, 1, 1, 1) and sinks.is_contiguous(),
        op,
        f"sinks {sinks.ne} must be one number for each of {n_head} heads",
    )


def masked(scores: Array, mask: Array | None, slopes: Array) -> Array:
    """``scores + slope * mask``, arrays [batch, heads, queries, keys]."""
    if mask is None:
        return scores
    batch, heads, n, _ = scores.shape
    mask = np.tile(mask[:, :, :n], (batch // mask.shape[0], heads // mask.shape[1], 1, 1))
    out: Array = scores + slopes[:, None, None] * mask
    return out


def softmax(scores: Array, sinks: Array | None) -> Array:
    """Softmax over the last axis of [batch, heads, queries, keys]; zeros where all is -inf."""
    top = scores.max(axis=-1, keepdims=True, initial=-np.inf)
    if sinks is not None:
        sinks = sinks.reshape(1, -1, 1, 1)
        top = np.maximum(top, sinks)
    top = np.where(np.isfinite(top), top, 0)
    p = np.exp(scores - top, dtype=np.float64)
    total = p.sum(axis=-1, keepdims=True)
    if sinks is not None:
        total = total + np.exp(sinks - top)
    out: Array = p / np.where(total == 0, 1, total)
    return out


def _infer(
    x: Tensor, mask: Tensor | None, sinks: Tensor | None, scale: float, max_bias: float
) -> Out:
    op = "SOFT_MAX"
    if mask is not None:
        check_mask(op, mask, x.ne)
    if sinks is not None:
        check_sinks(op, sinks, x.ne[2])
    require(
        max_bias == 0 or (max_bias > 0 and mask is not None),
        op,
        f"max_bias is {max_bias}, want 0, or more than 0 with a mask (positions for ALiBi)",
    )
    return same(x)


def _soft_max(
    x: Array, mask: Array | None, sinks: Array | None, scale: float, max_bias: float
) -> Array:
    return softmax(masked(x * np.float32(scale), mask, alibi_slopes(x.shape[1], max_bias)), sinks)


def causal_mask(*ne: int, type: object = F32, hidden_row: bool = False) -> Arg:
    """A test mask: 0 up to the diagonal, -inf after it (``hidden_row``: also all of row 0)."""

    def values(rng: np.random.Generator) -> Array:
        mask = np.where(np.tri(ne[1], ne[0], ne[0] - ne[1]) > 0, np.float32(0), -np.inf)
        if hidden_row:
            mask[0] = -np.inf
        return np.broadcast_to(mask, ne[::-1]).astype(np.float32)

    return Arg(ne, type, values=values)  # type: ignore[arg-type]


def _gradient_of_sinks(ops: OpBuilders, y: Tensor, dy: Tensor) -> Tensor:
    """``-p dot(y, dy)`` summed over the rows of a head, where the sink's p is ``1 - sum(y)``."""
    sinks = y.src[2]
    assert sinks is not None
    minus_p = ops.scale(ops.sum_rows(y), s=1.0, b=-1.0)  # [1, queries, heads, batch]
    terms = ops.mul(ops.sum_rows(ops.mul(y, dy)), minus_p)
    return ops.reshape(ops.repeat_back(terms, ne=(1, 1, y.ne[2], 1)), ne=sinks.ne)


SOFT_MAX = define_op(
    "SOFT_MAX",
    src={"x": source(F32), "mask?": None, "sinks?": None},
    params={"scale": 1.0, "max_bias": 0.0},
    infer=_infer,
    reference=_soft_max,
    cases=lambda: [
        case(arg(1)),
        case(arg(65, 17, 3, 2)),
        case(arg(17, 3, low=-90, high=90), scale=1.0),
        case(arg(64, 3, 5, permute=(0, 2, 1, 3)), scale=0.125),
        case(arg(65, 17, 3, 2), causal_mask(65, 17), scale=0.125),
        case(arg(65, 17, 4, 6), arg(65, 20, 2, 3), scale=0.5),
        case(arg(65, 17, 3), causal_mask(65, 17, type=F16), scale=0.125),
        case(arg(17, 5, 3), causal_mask(17, 5, hidden_row=True)),
        case(arg(33, 5, 12), arg(33, 5, type=F16), scale=0.125, max_bias=8.0),
        case(arg(33, 5, 8), None, arg(8), scale=0.125),
        case(arg(33, 5, 9), causal_mask(33, 5, hidden_row=True), arg(9), scale=0.125, max_bias=8.0),
        case(arg(512, 1, 9), arg(512, 1), scale=0.125, perf=True),
        case(arg(512, 512, 9), causal_mask(512, 512, type=F16), scale=0.125, perf=True),
    ],
    inplace_ok=True,
    max_nmse=1e-6,
    doc="Softmax of `scale * x + slope * mask` over rows; zeros where all is masked.",
    gradients={
        "x": lambda ops, y, dy: ops.soft_max_back(dy, y, scale=y.op_params["scale"]),
        "sinks": _gradient_of_sinks,
    },
)


def _infer_back(dy: Tensor, y: Tensor, scale: float) -> Out:
    require(dy.ne == y.ne, "SOFT_MAX_BACK", f"dy {dy.ne} must have the sizes of y {y.ne}")
    return same(dy)


def _soft_max_back(dy: Array, y: Array, scale: float) -> Array:
    dy = dy.astype(np.float64)
    out: Array = scale * y * (dy - np.sum(dy * y, axis=-1, keepdims=True))
    return out


SOFT_MAX_BACK = define_op(
    "SOFT_MAX_BACK",
    src={"dy": source(F32), "y": source(F32)},
    params={"scale": 1.0},
    infer=_infer_back,
    reference=_soft_max_back,
    cases=lambda: [
        case(arg(1), arg(1, low=0)),
        case(arg(65, 17, 3, 2), arg(65, 17, 3, 2, low=0), scale=0.125),
        case(arg(64, 3, 5, permute=(0, 2, 1, 3)), arg(64, 5, 3, low=0), scale=2.0),
        case(arg(64, 5, 3), arg(64, 3, 5, low=0, permute=(0, 2, 1, 3))),
        case(arg(512, 512, 9), arg(512, 512, 9, low=0), scale=0.125, perf=True),
    ],
    inplace_ok=True,
    max_nmse=1e-6,
    doc="The gradient of `x`, where `dy` is that of `y`, the softmax of `scale * x`.",
)


def soft_max_ext_back(ctx: Context, dy: Tensor, y: Tensor, scale: float = 1.0) -> Tensor:
    """The gradient of ``x``, where ``dy`` is that of ``y = soft_max_ext(x, mask, scale)``.

    It needs no mask: masked elements are 0 in ``y``.

    Shape:
        dy and y F32 of one size -> the same

    Raises:
        ShapeError, TypeMismatch: sizes or types do not fit.
    """
    return SOFT_MAX_BACK.build(ctx, dy, y, scale=float(scale))


def soft_max(ctx: Context, x: Tensor) -> Tensor:
    """Softmax of each row; F32 of any shape."""
    return SOFT_MAX.build(ctx, x)


def soft_max_ext(
    ctx: Context,
    x: Tensor,
    mask: Tensor | None,
    scale: float = 1.0,
    max_bias: float = 0.0,
    *,
    sinks: Tensor | None = None,
) -> Tensor:
    """Softmax of ``scale * x + slope * mask`` over each row; a fully masked row gives zeros.

    Args:
        max_bias: ALiBi's largest bias; 0 makes every head's slope 1.
        sinks: a score for each head that takes part in the sum but has no column.

    Shape:
        x F32 [n_kv, n_tokens, n_head, ne3], mask F32 or F16 [n_kv, >= n_tokens, divisor of
        n_head, divisor of ne3], sinks F32 [n_head] -> x's
    """
    return SOFT_MAX.build(ctx, x, mask, sinks, scale=float(scale), max_bias=float(max_bias))
