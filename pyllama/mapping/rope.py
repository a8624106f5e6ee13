"""Converts the RoPE parameters of config.json to GGUF keys and tensors of frequency factors.

    rope_keys({"rope_theta": 1e6, "rope_scaling": {"type": "linear", "factor": 4}})
    rope_factors(config)                           # {"rope_freqs.weight": ...} for llama-3

Reads ``rope_theta`` and ``rope_scaling`` as well as transformers 5's ``rope_parameters``, which may
have an entry for each kind of layer.
Source: transformers, ``modeling_rope_utils.py``; llama.cpp, ``convert_hf_to_gguf.py``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import ModelError
from ..inputs.budget import shown

Config = Mapping[str, Any]  # a parsed config.json
_MAX_PAIRS = 1 << 13  # rotated pairs of a head; a damaged size must not fill the memory


def rope_keys(config: Config) -> dict[str, Any]:
    """Return the ``rope.*`` keys, {} if config.json has no RoPE parameters."""
    params, sliding = _parameters(config), _sliding(config)
    keys: dict[str, Any] = {}
    theta = _theta(config, params)
    if theta:
        keys["rope.freq_base"] = float(theta)
    if sliding.get("rope_theta"):
        keys["rope.freq_base_swa"] = float(sliding["rope_theta"])
    if rotated_fraction(config) is not None:
        keys["rope.dimension_count"] = _n_rot(config)
    if params.get("mrope_section"):  # of time, height and width
        keys["rope.dimension_sections"] = [*map(int, params["mrope_section"]), 0, 0, 0, 0][:4]
    kind = _kind(params)
    if kind in ("linear", "yarn"):
        keys |= {"rope.scaling.type": kind, "rope.scaling.factor": _factor(config, params)}
    if kind == "yarn":
        keys |= _yarn(config, params)
    if kind == "longrope":
        original = _original(config, params)
        keys["rope.scaling.type"] = kind
        keys["rope.scaling.original_context_length"] = original
        factor = _factor(config, params)
        longer = math.log(factor) / math.log(original) if factor > 1 else 0.0
        keys["rope.scaling.attn_factor"] = math.sqrt(1 + longer)
        if params.get("attention_factor") is not None:
            keys["rope.scaling.attn_factor"] = float(params["attention_factor"])
    return keys


def rope_factors(config: Config) -> dict[str, npt.NDArray[np.float32]]:
    """Return the tensors of frequency factors: one for llama-3, two for longrope, else none.

    Raises:
        ModelError: the parameters are invalid.
    """
    try:
        return _factors(config, _parameters(config))
    except ModelError:
        raise
    except (KeyError, TypeError, ValueError, ZeroDivisionError, OverflowError) as error:
        raise ModelError(f"the RoPE parameters are invalid: {error!s:.200}") from None


def _factors(config: Config, params: Config) -> dict[str, npt.NDArray[np.float32]]:
    kind, n = _kind(params), _n_rot(config) // 2
    if kind in ("llama3", "longrope") and not 0 < n <= _MAX_PAIRS:
        raise ModelError(f"RoPE rotates {n} pairs of a head, must be 1 to {_MAX_PAIRS}")
    if kind == "llama3":
        return {"rope_freqs.weight": _llama3(config, params, n)}
    factors = {}
    for name in ("long", "short") if kind == "longrope" else ():
        with np.errstate(over="ignore"):  # values beyond float32 become infinite, checked below
            values = np.array(params.get(f"{name}_factor"), np.float32).reshape(-1)
        if len(values) != n:
            raise ModelError(f"RoPE's {name}_factor has {len(values)} values, must have {n}")
        if not (np.isfinite(values) & (values > 0)).all():
            raise ModelError(f"RoPE's {name}_factor has values that are not greater than 0")
        factors[f"rope_factors_{name}.weight"] = values
    return factors


def _parameters(config: Config) -> Config:
    """Return the parameters of layers with full attention."""
    params = _mapping(config.get("rope_parameters") or config.get("rope_scaling") or {})
    return _mapping(params.get("full_attention", params))


def _mapping(params: Any) -> Config:
    if not isinstance(params, Mapping):
        raise ModelError(f"the RoPE parameters are {shown(params)}, must be an object")
    return params


def _sliding(config: Config) -> Config:
    """Return the parameters of layers with sliding-window attention, if they are separate."""
    params = _mapping(config.get("rope_parameters") or {})
    local = {"rope_theta": config.get("rope_local_base_freq")}
    own = _mapping(params.get("sliding_attention") or local)
    if _kind(own) != "default":
        raise ModelError(
            f"rope_type of sliding-window layers is {shown(_kind(own))}, must be 'default'"
        )
    return own


def _kind(params: Config) -> str:
    kind = params.get("rope_type") or params.get("type") or "default"
    # dynamic: no scaling in the trained context; mrope: of text the same as without sections
    renamed = {"su": "longrope", "dynamic": "default", "mrope": "default"}
    kind = renamed.get(kind, kind)
    if kind not in ("default", "linear", "yarn", "longrope", "llama3"):
        raise ModelError(
            f"rope_type {shown(kind)} is not supported; supported are default, linear, dynamic, "
            "yarn, longrope, llama3"
        )
    return str(kind)


def _theta(config: Config, params: Config) -> Any:
    return params.get("rope_theta") or config.get("rope_theta") or config.get("rotary_emb_base")


def rotated_fraction(config: Config) -> float | None:
    """Return the rotated fraction of a head, None if config.json has none."""
    params = _parameters(config)
    for value in (
        params.get("partial_rotary_factor"),
        config.get("partial_rotary_factor"),
        config.get("rotary_pct"),
    ):
        if value is not None:
            return float(value)
    return None


def _n_rot(config: Config) -> int:
    heads = config.get("num_attention_heads") or 1
    head_dim = config.get("head_dim") or int(config.get("hidden_size") or 0) // heads
    fraction = rotated_fraction(config)
    return int(head_dim * (1.0 if fraction is None else fraction))


def _original(config: Config, params: Config) -> int:
    name = "original_max_position_embeddings"  # transformers prefers the top-level value
    return int(config.get(name) or params.get(name) or config["max_position_embeddings"])


def _factor(config: Config, params: Config) -> float:
    given = params.get("factor")
    return float(given or config["max_position_embeddings"] / _original(config, params))


def _yarn(config: Config, params: Config) -> dict[str, Any]:
    factor = _factor(config, params)
    keys: dict[str, Any] = {"rope.scaling.original_context_length": _original(config, params)}
    if not params.get("truncate", True):  # a key of ours; llama.cpp always rounds the ramp
        keys["rope.scaling.yarn_truncate"] = False
    for name in ("beta_fast", "beta_slow"):
        if params.get(name):
            keys[f"rope.scaling.yarn_{name}"] = float(params[name])
    length = params.get("attention_factor")
    if length is None and params.get("mscale") and params.get("mscale_all_dim"):
        length = _length(factor, params["mscale"]) / _length(factor, params["mscale_all_dim"])
    if length is not None:  # ROPE multiplies by 1 + 0.1 ln(factor) itself
        keys["rope.scaling.attn_factor"] = float(length) / (1 + 0.1 * math.log(factor))
    return keys


def _length(factor: float, scale: float) -> float:
    """Return the scale of queries and keys for a context ``factor`` (YaRN, equation 22)."""
    return 1.0 if factor <= 1 else 0.1 * scale * math.log(factor) + 1


def _llama3(config: Config, params: Config, n: int) -> npt.NDArray[np.float32]:
    """Return frequency factors: 1 for short wavelengths, ``factor`` for long ones, smooth between.

    Shape:
        [n]
    """
    base = float(_theta(config, params) or 10000.0)
    factor, original = float(params.get("factor") or 8.0), _original(config, params)
    low = float(params.get("low_freq_factor") or 1.0)
    high = float(params.get("high_freq_factor") or 4.0)
    if not (all(1e-30 <= x <= 1e30 for x in (base, factor, original, low, high)) and high > low):
        raise ValueError(f"base {base}, factor {factor}, frequencies from {low} to {high}")
    # rotations of each pair within the original context
    rotations = original / (2 * math.pi * base ** (np.arange(n) / n))
    smooth = np.clip((rotations - low) / (high - low), 0, 1)
    return (1 / ((1 - smooth) / factor + smooth)).astype(np.float32)
