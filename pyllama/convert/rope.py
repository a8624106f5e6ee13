"""Rotary position embedding in config.json, as GGUF has it: keys, and tables of factors.

    rope_keys({"rope_theta": 1e6, "rope_scaling": {"type": "linear", "factor": 4}})
    rope_factors(config)                           # {"rope_freqs.weight": ...} for llama-3

Both spellings are read: ``rope_theta`` and ``rope_scaling``, and transformers 5's
``rope_parameters``, which may have a part for each kind of layer.
Source: transformers, ``modeling_rope_utils.py``; llama.cpp, ``convert_hf_to_gguf.py``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import ModelError
from ..files.budget import shown

Config = Mapping[str, Any]  # a parsed config.json
_MOST_PAIRS = 1 << 13  # far beyond any head: a damaged size must not fill the memory


def rope_keys(config: Config) -> dict[str, Any]:
    """The ``rope.*`` keys; none where config.json says nothing of rope."""
    params, sliding = _parameters(config), _sliding(config)
    keys: dict[str, Any] = {}
    theta = params.get("rope_theta") or config.get("rope_theta") or config.get("rotary_emb_base")
    if theta:
        keys["rope.freq_base"] = float(theta)
    if sliding.get("rope_theta"):
        keys["rope.freq_base_swa"] = float(sliding["rope_theta"])
    if _fraction(config) is not None:
        keys["rope.dimension_count"] = _n_rot(config)
    kind = _kind(params)
    if kind in ("linear", "yarn"):
        keys |= {"rope.scaling.type": kind, "rope.scaling.factor": _factor(config, params)}
    if kind == "yarn":
        keys |= _yarn(config, params)
    if kind == "longrope":
        original = _original(config, params)
        keys["rope.scaling.type"] = kind
        keys["rope.scaling.original_context_length"] = original
        keys["rope.scaling.attn_factor"] = _longrope_length(_factor(config, params), original)
        if params.get("attention_factor") is not None:
            keys["rope.scaling.attn_factor"] = float(params["attention_factor"])
    return keys


def rope_factors(config: Config) -> dict[str, npt.NDArray[np.float32]]:
    """The tensors of divisors of rope's angles: llama-3's one, longrope's two, or none.

    Raises:
        ModelError: the parameters make no sense.
    """
    try:
        return _factors(config, _parameters(config))
    except ModelError:
        raise
    except (KeyError, TypeError, ValueError, ZeroDivisionError, OverflowError) as error:
        raise ModelError(f"rope's parameters make no sense: {error!s:.200}") from None


def _factors(config: Config, params: Config) -> dict[str, npt.NDArray[np.float32]]:
    kind, n = _kind(params), _n_rot(config) // 2
    if kind in ("llama3", "longrope") and not 0 < n <= _MOST_PAIRS:
        raise ModelError(f"rope turns {n} pairs of a head, want 1 to {_MOST_PAIRS}")
    if kind == "llama3":
        return {"rope_freqs.weight": _llama3(config, params, n)}
    factors = {}
    for name in ("long", "short") if kind == "longrope" else ():
        with np.errstate(over="ignore"):  # beyond float32 is infinite
            values = np.array(params.get(f"{name}_factor"), np.float32).reshape(-1)
        if len(values) != n:
            raise ModelError(f"rope's {name}_factor has {len(values)} values, want {n}")
        if not (np.isfinite(values) & (values > 0)).all():
            raise ModelError(f"rope's {name}_factor has values that are not larger than 0")
        factors[f"rope_factors_{name}.weight"] = values
    return factors


def _parameters(config: Config) -> Config:
    """The parameters of layers that see everything."""
    params = _mapping(config.get("rope_parameters") or config.get("rope_scaling") or {})
    return _mapping(params.get("full_attention", params))


def _mapping(params: Any) -> Config:
    if not isinstance(params, Mapping):
        raise ModelError(f"rope's parameters are {shown(params)}, want names and values")
    return params


def _sliding(config: Config) -> Config:
    """The parameters of layers with a window, where they have some of their own."""
    params = _mapping(config.get("rope_parameters") or {})
    local = {"rope_theta": config.get("rope_local_base_freq")}
    own = _mapping(params.get("sliding_attention") or local)
    if _kind(own) != "default":
        raise ModelError(f"rope_type {shown(_kind(own))} in layers with a window, want 'default'")
    return own


def _kind(params: Config) -> str:
    kind = params.get("rope_type") or params.get("type") or "default"
    known = {"su": "longrope", "dynamic": "default"}  # dynamic: the same up to the trained context
    kind = known.get(kind, kind)
    if kind not in ("default", "linear", "yarn", "longrope", "llama3"):
        raise ModelError(
            f"rope_type {shown(kind)} is not supported; there are: default, linear, dynamic, yarn, "
            "longrope, llama3"
        )
    return str(kind)


def _fraction(config: Config) -> float | None:
    """The part of a head that turns, where config.json says it."""
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
    fraction = _fraction(config)
    return int(head_dim * (1.0 if fraction is None else fraction))


def _original(config: Config, params: Config) -> int:
    name = "original_max_position_embeddings"  # config's own comes first in transformers
    return int(config.get(name) or params.get(name) or config["max_position_embeddings"])


def _factor(config: Config, params: Config) -> float:
    given = params.get("factor")
    return float(given or config["max_position_embeddings"] / _original(config, params))


def _longrope_length(factor: float, original: int) -> float:
    return 1.0 if factor <= 1 else math.sqrt(1 + math.log(factor) / math.log(original))


def _yarn(config: Config, params: Config) -> dict[str, Any]:
    if not params.get("truncate", True):
        raise ModelError("rope's truncate is false, which GGUF has no key for")
    factor = _factor(config, params)
    keys: dict[str, Any] = {"rope.scaling.original_context_length": _original(config, params)}
    for name in ("beta_fast", "beta_slow"):
        if params.get(name):
            keys[f"rope.scaling.yarn_{name}"] = float(params[name])
    length = params.get("attention_factor")
    if length is None and params.get("mscale") and params.get("mscale_all_dim"):
        length = _length(factor, params["mscale"]) / _length(factor, params["mscale_all_dim"])
    if length is not None:  # times what ROPE makes of the factor itself
        keys["rope.scaling.attn_factor"] = float(length) / (1 + 0.1 * math.log(factor))
    return keys


def _length(factor: float, scale: float) -> float:
    """How much longer queries and keys become, by ``factor`` (YaRN, equation 22)."""
    return 1.0 if factor <= 1 else 0.1 * scale * math.log(factor) + 1


def _llama3(config: Config, params: Config, n: int) -> npt.NDArray[np.float32]:
    """1 for short wavelengths, ``factor`` for long ones, a smooth way between them."""
    base = float(params.get("rope_theta") or config.get("rope_theta") or 10000.0)
    factor, original = float(params.get("factor") or 8.0), _original(config, params)
    low = float(params.get("low_freq_factor") or 1.0)
    high = float(params.get("high_freq_factor") or 4.0)
    if not (all(1e-30 <= x <= 1e30 for x in (base, factor, original, low, high)) and high > low):
        raise ValueError(f"base {base}, factor {factor}, frequencies from {low} to {high}")
    turns = original / (2 * math.pi * base ** (np.arange(n) / n))  # within the original context
    smooth = np.clip((turns - low) / (high - low), 0, 1)
    return (1 / ((1 - smooth) / factor + smooth)).astype(np.float32)
