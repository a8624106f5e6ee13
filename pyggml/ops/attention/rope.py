"""Rotary position embedding: ROPE, with frequency factors and YaRN, and its gradient ROPE_BACK.

    q = rope_ext(ctx, q, pos, None, n_dims=64, freq_base=10000.0)

An angle is the position times a power of the base, computed by repeated float32 multiplication, so
that every backend has the same bits. ``rope_tables`` is this rule, for tests.
Source: Su et al., "RoFormer", equation 34; Peng et al., "YaRN"; ggml, ``ggml_rope_ext``.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from functools import partial
from math import ceil, floor, log, pi
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ...context import Context
from ...errors import ShapeError
from ...tensor import Tensor
from ..op import (
    F16,
    F32,
    FLOATS,
    I32,
    Arg,
    Array,
    Case,
    Op,
    Out,
    arg,
    case,
    define_op,
    half_nmse,
    require,
    require_rows,
    require_type,
    same,
)

__all__ = ["RopeMode", "rope", "rope_ext", "rope_ext_back"]


class RopeMode(IntEnum):
    """The elements that form pairs (ggml's ids)."""

    NORMAL = 0  # neighbours: 2i and 2i + 1
    NEOX = 2  # halves: i and i + n_dims / 2


_PARAMS: Mapping[str, Any] = {
    "n_dims": 0,
    "mode": RopeMode.NORMAL,
    "n_ctx_orig": 0,
    "freq_base": 10000.0,
    "freq_scale": 1.0,
    "ext_factor": 0.0,
    "attn_factor": 1.0,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "truncate": True,
}


def yarn_corr_dims(
    n_dims: int, n_ctx_orig: int, freq_base: float, beta_fast: float, beta_slow: float,
    truncate: bool = True,
) -> tuple[float, float]:  # fmt: skip
    """The pairs between which YaRN goes from extrapolation to interpolation.

    Args:
        truncate: round them outwards to whole pairs, as the paper's code and ggml do.
    """

    def corr_dim(beta: float) -> float:
        return n_dims * log(n_ctx_orig / (beta * 2 * pi)) / (2 * log(freq_base))

    low, high = corr_dim(beta_fast), corr_dim(beta_slow)
    if truncate:
        low, high = floor(low), ceil(high)
    return max(0.0, low), min(n_dims - 1.0, high)


def rope_theta_scale(n_dims: int, freq_base: float) -> np.float32:
    """The float32 factor from the angle of one pair to the next, equal on all machines."""
    # NumPy's float32 power differs by an ulp with AVX-512, which large positions multiply
    return np.float32(float(np.float32(freq_base)) ** float(np.float32(-2.0 / n_dims)))


class RopeValues(NamedTuple):
    """The constants of a ROPE node's angles: pair i has ``position * theta_scale^i``.

    Attributes:
        ramp_low, ramp_span: YaRN mixes by ``clip((i - ramp_low) / ramp_span, 0, 1)``.
        magnitude: of cosines and sines.
    """

    theta_scale: np.float32
    ramp_low: float
    ramp_span: float
    magnitude: np.float32


def rope_values(params: Mapping[str, Any]) -> RopeValues:
    """The values of a ROPE with these parameters; those of the ramp matter only for YaRN."""
    p, low, high = params, 0.0, 0.0
    magnitude = np.float32(p["attn_factor"])
    if p["ext_factor"] != 0:
        low, high = yarn_corr_dims(
            p["n_dims"], p["n_ctx_orig"], p["freq_base"], p["beta_fast"], p["beta_slow"],
            p["truncate"],
        )  # fmt: skip
        magnitude *= np.float32(1 + 0.1 * np.log(1 / p["freq_scale"]))
    scale = rope_theta_scale(p["n_dims"], p["freq_base"])
    return RopeValues(scale, low, max(0.001, high - low), magnitude)


def rope_tables(
    pos: Array, freqs: Array | None, params: Mapping[str, Any]
) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
    """Cosines and sines (times the magnitude), float32 ``[len(pos), n_dims / 2]`` each."""
    half = params["n_dims"] // 2
    ext, freq_scale = np.float32(params["ext_factor"]), np.float32(params["freq_scale"])
    values = rope_values(params)
    powers: npt.NDArray[np.float32] = np.full(half, values.theta_scale, np.float32)
    powers[:1] = 1
    np.multiply.accumulate(powers, out=powers)
    theta = pos.astype(np.float32)[:, None] * powers
    if freqs is not None:
        np.divide(theta, freqs[:half], out=theta)
    angle: npt.NDArray[np.float32] = theta * freq_scale
    if ext != 0:
        ramp = (np.arange(half) - values.ramp_low) / values.ramp_span
        mix = ((1 - np.clip(ramp, 0, 1)) * ext).astype(np.float32)
        angle = angle * (1 - mix) + theta * mix
    return np.cos(angle) * values.magnitude, np.sin(angle) * values.magnitude


def _infer(x: Tensor, pos: Tensor, freqs: Tensor | None, **params: Any) -> Out:
    op, n_dims = "ROPE", params["n_dims"]
    require_type(op, "x", x, FLOATS)
    require_type(op, "pos", pos, (I32,))
    require_rows(op, "x", x)
    require_rows(op, "pos", pos)
    require(
        0 < n_dims <= x.ne[0] and n_dims % 2 == 0,
        op,
        f"n_dims is {n_dims}, want an even number up to the row's {x.ne[0]}",
    )
    if pos.ne != (x.ne[2], 1, 1, 1):
        raise ShapeError(
            f"{op}: pos {pos.ne} must be one position for each of the {x.ne[2]} tokens (ne[2] of "
            f"x {x.ne})"
        )
    require(
        params["mode"] in (RopeMode.NORMAL, RopeMode.NEOX),
        op,
        f"mode is {params['mode']}, want 0 (normal) or 2 (neox)",
    )
    require(
        params["ext_factor"] == 0 or params["n_ctx_orig"] > 0,
        op,
        f"ext_factor {params['ext_factor']} (YaRN) needs n_ctx_orig, got {params['n_ctx_orig']}",
    )
    if freqs is not None:
        require_type(op, "freqs", freqs, (F32,))
        require(
            freqs.ne[0] >= n_dims // 2 and freqs.is_contiguous(),
            op,
            f"freqs {freqs.ne} must be contiguous with at least n_dims / 2 = {n_dims // 2} factors",
        )
    return same(x)


def _rotate(sign: int, x: Array, pos: Array, freqs: Array | None, **params: Any) -> Array:
    n_dims = params["n_dims"]
    cos, sin = rope_tables(pos.reshape(-1), None if freqs is None else freqs.reshape(-1), params)
    cos, sin = cos[:, None, :], sign * sin[:, None, :]  # [T, 1, n_dims / 2]
    if params["mode"] == RopeMode.NEOX:
        first, second = slice(0, n_dims // 2), slice(n_dims // 2, n_dims)
    else:
        first, second = slice(0, n_dims, 2), slice(1, n_dims, 2)
    out = x.copy()
    a, b = x[..., first], x[..., second]
    out[..., first] = a * cos - b * sin
    out[..., second] = a * sin + b * cos
    return out


def _pos(n: int, high: int = 512) -> Arg:
    return arg(n, type=I32, low=0, high=high)


def _cases() -> list[Case]:
    freqs = arg(32, low=0.9, high=4.0)
    yarn: dict[str, Any] = {
        "n_ctx_orig": 512,
        "freq_scale": 0.25,
        "ext_factor": 1.0,
        "attn_factor": 1.2,
    }
    cases = [case(arg(2, 1, 1), _pos(1), n_dims=2)]
    for mode in RopeMode:
        cases += [
            case(arg(64, 9, 1), _pos(1), n_dims=64, mode=mode),
            case(arg(64, 3, 17), _pos(17), n_dims=64, mode=mode),
            case(arg(64, 3, 5, 2), _pos(5), n_dims=32, mode=mode),
            case(arg(65, 3, 5), _pos(5), n_dims=34, mode=mode),
            case(arg(64, 5, 3, permute=(0, 2, 1, 3)), _pos(5), n_dims=64, mode=mode),
            case(arg(64, 3, 5), _pos(5), freqs, n_dims=64, mode=mode, freq_base=500000.0),
            case(arg(64, 3, 5), _pos(5, 4000), None, n_dims=64, mode=mode, **yarn),
            case(arg(64, 3, 5), _pos(5), freqs, n_dims=48, mode=mode, **yarn),
            case(arg(64, 3, 5), _pos(5), n_dims=64, mode=mode, truncate=False, **yarn),
            case(arg(64, 3, 5), _pos(5), n_dims=64, mode=mode, freq_scale=0.5),
            case(arg(64, 3, 5), _pos(5, 1 << 24), n_dims=64, mode=mode),
            case(arg(64, 3, 5, type=F16), _pos(5), n_dims=64, mode=mode),
            case(arg(64, 9, 1), _pos(1), n_dims=64, mode=mode, perf=True),
            case(arg(64, 9, 512), _pos(512), n_dims=64, mode=mode, perf=True),
        ]
    return cases


ROPE = define_op(
    "ROPE",
    src=("x", "pos", "freqs?"),
    params=_PARAMS,
    infer=_infer,
    reference=partial(_rotate, 1),
    cases=_cases,
    inplace_ok=True,
    max_nmse=half_nmse,
    doc="Rotates pairs of elements by angles that grow with the token's position.",
    gradients={"x": lambda ops, y, dy: ops.rope_back(dy, *y.src[1:], **y.op_params)},
)

ROPE_BACK = define_op(
    "ROPE_BACK",
    src=("dy", "pos", "freqs?"),
    params=_PARAMS,
    infer=_infer,
    reference=partial(_rotate, -1),
    cases=_cases,
    inplace_ok=True,
    max_nmse=half_nmse,
    doc="Rotates pairs of elements back by the angles of ROPE: its gradient.",
    gradients={"dy": lambda ops, y, dy: ops.rope(dy, *y.src[1:], **y.op_params)},
)


def rope(ctx: Context, x: Tensor, pos: Tensor, n_dims: int, mode: int = RopeMode.NORMAL) -> Tensor:
    """``rope_ext`` with ggml's defaults: base 10000, no scaling."""
    return rope_ext(ctx, x, pos, None, n_dims=n_dims, mode=mode)


def rope_ext(
    ctx: Context, x: Tensor, pos: Tensor, freqs: Tensor | None = None, **params: Any
) -> Tensor:
    """Rotate the first ``n_dims`` elements of each row by its token's position.

    Args:
        pos: the position of each token.
        freqs: divisors of the pairs' angles (llama-3's ``rope_freqs``).
        params: ``n_dims``, ``mode`` (``RopeMode``), ``n_ctx_orig``, ``freq_base``,
            ``freq_scale``, ``ext_factor``, ``attn_factor``, ``beta_fast``, ``beta_slow``,
            with ggml's meaning and defaults; ``ext_factor`` other than 0 is YaRN, whose ramp
            ``truncate`` rounds to whole pairs (see ``yarn_corr_dims``).

    Shape:
        x F32 or F16 [n_embd_head, n_head, n_tokens, ne3], pos I32 [n_tokens],
        freqs F32 [n_dims / 2] -> x's

    Raises:
        ShapeError, TypeMismatch: sizes, types or parameters do not fit.
    """
    return _build(ROPE, ctx, x, pos, freqs, params)


def rope_ext_back(
    ctx: Context, dy: Tensor, pos: Tensor, freqs: Tensor | None = None, **params: Any
) -> Tensor:
    """The gradient of ``x``, where ``dy`` is that of ``rope_ext(x, pos, freqs, **params)``.

    Shape:
        dy and the result as x of ``rope_ext``, pos and freqs as there

    Raises:
        ShapeError, TypeMismatch: sizes, types or parameters do not fit.
    """
    return _build(ROPE_BACK, ctx, dy, pos, freqs, params)


def _build(
    op: Op, ctx: Context, x: Tensor, pos: Tensor, freqs: Tensor | None, params: dict[str, Any]
) -> Tensor:
    params["mode"] = RopeMode(m) if (m := params.get("mode", 0)) in (0, 2) else m
    return op.build(ctx, x, pos, freqs, **params)
