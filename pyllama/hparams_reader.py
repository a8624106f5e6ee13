"""Reads the hyperparameters of a model from GGUF metadata, and checks them.

    hp = read_hparams(file, n_vocab, arch_of(file).HPARAMS)
    hp.n_embd, hp.n_layer, hp.head_dim             # 576, 30, 64

A file is untrusted: every value is in its range before a size or a loop depends on it.
Source: llama.cpp, ``llama_model_base::load_hparams``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

import numpy as np

from pyggml.gguf import GGUFFile

from .activation import ACTS, HEAD_ACTS
from .errors import ModelError
from .hparams import (
    BY_ROUTER,
    COMPRESS_RATIOS,
    GATINGS,
    KEYS,
    PER_LAYER_KEYS,
    POOLINGS,
    ROPE_SCALINGS,
    HParams,
    Key,
    Values,
)

_TYPES = {field.name: str(field.type) for field in fields(HParams)}
# Far above those of real models; bounds allocations and loops for damaged files.
_RANGES = {
    "n_layer": (1, 4096),
    "n_embd": (1, 1 << 20),
    "n_ff_arr": (1, 1 << 22),
    "n_ff_exp": (1, 1 << 22),
    "n_head_arr": (1, 1 << 14),
    "n_head_kv_arr": (1, 1 << 14),
    "n_ctx_train": (1, 1 << 30),
    "n_vocab": (1, 1 << 24),
    "head_dim_arr": (1, 1 << 14),
    "head_dim_v_arr": (1, 1 << 14),
    "n_rot_arr": (0, 1 << 14),
    "rope_orig_ctx": (0, 1 << 30),
    "n_swa": (0, 1 << 30),
    "swa_period": (0, 4096),
    "n_expert": (0, 4096),
    "n_expert_groups": (0, 4096),
    "n_group_used": (0, 4096),
    "expert_gating": (0, len(GATINGS) - 1),
    "n_dense_lead": (0, 4096),
    "n_layer_nextn": (0, 4096),
    "moe_period": (0, 4096),
    "n_layer_kv": (0, 4096),
    "n_embd_token": (0, 1 << 20),
    "block_size": (0, 1024),
    "n_cls_out": (1, 1 << 20),
    "n_embd_projected": (0, 1 << 20),
    "dense_2_feat_out": (0, 1 << 20),
    "dense_3_feat_out": (0, 1 << 20),
    "pooling_type": (0, len(POOLINGS) - 1),
    "head_pooling": (-1, POOLINGS.index("last")),
}
_FLOATS = (  # positive; positive or 0
    ("norm_eps", "rope_freq_base", "rope_attn_factor", "yarn_attn_factor", "yarn_beta_fast",
     "yarn_beta_slow", "expert_weights_scale", "embedding_scale", "residual_scale",
     "logit_scale"),
    ("rope_freq_base_swa", "attn_scale", "attn_logit_softcap", "final_logit_softcap",
     "max_alibi_bias", "clamp_kqv", "situ_beta", "situ_up_beta"),
)  # fmt: skip
_MAX_LIST = 4096  # numbers in an array of any length
_MIN_FLOAT, _MAX_FLOAT = 1e-30, 1e30  # float32 can hold the value and its inverse; excludes NaN


def read_hparams(file: GGUFFile, n_vocab: int, of_arch: Values) -> HParams:
    """The hyperparameters of a file.

    Args:
        of_arch: ``HPARAMS`` of the file's architecture.

    Raises:
        ModelError, GGUFError: a key is missing, or has a wrong type or an illegal value.
    """
    arch = file.get_str("general.architecture")
    declared = {**KEYS, **of_arch}
    got: dict[str, Any] = {"arch": arch, "n_vocab": n_vocab}
    for name, value in declared.items():
        value = KEYS.get(name, value) if callable(value) else value  # the function may use it
        if name != "swa_period" and not callable(value):
            got[name] = _read(file, arch, name, value) if isinstance(value, Key) else value
    got["learned_positions"] = "position_embd.weight" in file.tensors
    n_layer = got["n_layer"] = _n_layer(file, arch)
    _check_range(file, "n_layer", n_layer)  # the length of arrays
    if got.get("expert_layers") == BY_ROUTER:
        routers = (f"blk.{i}.ffn_gate_inp.weight" for i in range(n_layer))
        got["expert_layers"] = tuple(router in file.tensors for router in routers)
    got |= _read_windows(file, arch, declared, n_layer)
    for name, key_name in PER_LAYER_KEYS.items():
        default = got["n_head_arr"] if name == "n_head_kv_arr" else None
        if name == "n_ff_arr" and got["n_expert"] and declared.get("empty_layers"):
            default = (0,) * n_layer  # in Qwen3.5-MoE all layers have experts
        got[name] = _read_layers(file, f"{arch}.{key_name}", n_layer, default)
        some = tuple(n for n in got[name] if n or not declared.get("empty_layers"))
        _check_range(file, name, some)
    got |= _read_heads(file, arch, got)
    linear = file.get_float(f"{arch}.rope.scale_linear", 1.0)  # key of files from 2023
    factor = file.get_float(f"{arch}.rope.scaling.factor", linear)
    _check_float(file, "rope.scaling.factor", factor)
    got["rope_freq_scale"] = 1.0 if got["rope_scaling"] == "none" else 1.0 / factor
    labels = file.get_strings(f"{arch}.classifier.output_labels", None)
    got["n_cls_out"] = len(labels) if labels is not None and len(labels) else 1
    for name, value in declared.items():
        if callable(value):
            got[name] = value(got)
    if got["n_expert"] and "n_ff_exp" not in got:
        sizes = set(got["n_ff_arr"])
        same = sizes.pop() if len(sizes) == 1 else 0
        got["n_ff_exp"] = file.get_int(f"{arch}.expert_feed_forward_length", same)
        _check_range(file, "n_ff_exp", got["n_ff_exp"])
    known = {f.name for f in fields(HParams)}
    own = sorted(declared.keys() - known - {"n_rot"})  # sorted for ``Model.fingerprint``
    got["own"] = {name: got.pop(name) for name in own}
    hp = HParams(**got)
    if hp.n_expert and not hp.ffn_beside_experts:
        n_ff = [0 if hp.has_experts(i) else n for i, n in enumerate(hp.n_ff_arr)]
        hp = replace(hp, n_ff_arr=tuple(n_ff))
    _check_sizes(file, hp)
    _check_heads(file, hp, of_arch)
    _check_choices(file, hp)
    return hp


def _read(file: GGUFFile, arch: str, name: str, key: Key) -> Any:
    """The value of a hyperparameter's key."""
    getters: Mapping[str, Any] = {
        "int": file.get_int, "float": file.get_float, "str": file.get_str, "bool": file.get_bool,
    }  # fmt: skip
    if key.type is list:
        return _read_list(file, f"{arch}.{key.name}")
    default = () if key.default is None else (key.default,)
    own = key.type if key.default is None else type(key.default)
    kind = _TYPES.get(name, own.__name__)
    if key.type is tuple:
        n_layer, real = _n_layer(file, arch), isinstance(key.default, float)
        filled = None if key.default is None else (key.default,) * n_layer
        name = f"{arch}.{key.name}" if key.prefixed else key.name
        values = _read_layers(file, name, n_layer, filled, "f" if real else "biu")
        low, high = (-math.inf, _MAX_FLOAT) if real else (0, 1 << 30)  # -inf in Gemma 3n
        for x in values:
            _check(file, low <= x <= high, f"{key.name} = {x}", f"{low} to {high}")
        return values
    value = getters[kind](f"{arch}.{key.name}" if key.prefixed else key.name, *default)
    if name not in _TYPES and kind in ("int", "float"):
        low, high = (0, 1 << 30) if kind == "int" else (-_MAX_FLOAT, _MAX_FLOAT)
        _check(file, low <= value <= high, f"{key.name} = {value}", f"{low} to {high}")
    return value


def _read_list(file: GGUFFile, key: str) -> list[int]:
    """Whole numbers from 0 on, not by layer; none where the file lacks the key."""
    values = file.metadata.get(key, np.empty(0, np.int64))
    numbers: list[int] = []
    if isinstance(values, np.ndarray) and values.dtype.kind in "iu" and values.size <= _MAX_LIST:
        numbers = values.tolist()
    else:
        _check(file, False, f"{key} {values!s:.40}", f"an array of up to {_MAX_LIST} numbers")
    _check(file, min(numbers, default=0) >= 0, f"{key} with {min(numbers, default=0)}", "0 or more")
    return numbers


def _read_windows(file: GGUFFile, arch: str, declared: Values, n_layer: int) -> dict[str, Any]:
    """Which layers have a window, from the number of a period or an array of layers.

    With ``swa_dense_first``, the first of every period has full attention, not the last.
    """
    period = declared.get("swa_period", 1)
    if not isinstance(period, Key):
        return {} if callable(period) else {"swa_period": period}
    values = file.metadata.get(f"{arch}.{period.name}")
    if not isinstance(values, np.ndarray):
        n = _read(file, arch, "swa_period", period)
        if declared.get("swa_dense_first"):
            return {"swa_layers": tuple(i % max(n, 1) != 0 for i in range(n_layer))}
        return {"swa_period": n}
    return {"swa_layers": tuple(map(bool, _by_layer(file, arch, period.name, values, n_layer)))}


def _n_layer(file: GGUFFile, arch: str) -> int:
    """The number of layers, not counting layers of multi-token prediction.

    Where an encoder and a decoder have different numbers, the larger one. A head for another model
    may have no other layers.
    """
    nextn = file.get_int(f"{arch}.nextn_predict_layers", 0)
    n_decoder = file.get_int(f"{arch}.decoder_block_count", 0)
    n = max(file.get_int(f"{arch}.block_count"), n_decoder)
    return n if n == nextn else n - nextn


def _by_layer(
    file: GGUFFile, arch: str, name: str, values: np.ndarray, n_layer: int
) -> tuple[Any, ...]:
    """The values of an array for each layer; drafting layers may have values too.

    Those of compression also where the file does not have these layers.
    """
    n, n_all = values.size, file.get_int(f"{arch}.block_count")
    wanted = f"one for each of {n_layer} layers"
    fits = n in (n_layer, n_all) or (n > n_layer and name == COMPRESS_RATIOS)
    _check(file, fits, f"{n} values of {name}", wanted)
    return tuple(values.tolist()[:n_layer])


def _read_heads(file: GGUFFile, arch: str, got: dict[str, Any]) -> dict[str, Any]:
    """Columns of keys, of values and of rope in the heads of each layer.

    Layers with a window have other ones if the file has keys that end in ``_swa``.
    """
    n_layer, fixed = got["n_layer"], got.pop("n_rot", None)
    sliding = got.get("swa_layers") or (False,) * n_layer

    def sizes(key: str, default: int) -> tuple[int, ...]:
        full = file.get_int(f"{arch}.{key}", default)
        windowed = file.get_int(f"{arch}.{key}_swa", full)
        return tuple(windowed if slides else full for slides in sliding)

    keys = sizes("attention.key_length", got["n_embd"] // max(got["n_head_arr"][0], 1))
    rotated = sizes("rope.dimension_count", keys[0]) if fixed is None else (fixed,) * n_layer
    return {
        "head_dim_arr": keys,
        "head_dim_v_arr": sizes("attention.value_length", keys[0]),
        "n_rot_arr": rotated,
    }


def _read_layers(
    file: GGUFFile, key: str, n_layer: int, default: tuple[Any, ...] | None, kinds: str = "iu"
) -> tuple[Any, ...]:
    """A number of each layer: the same for all, or an array; ``kinds`` as of NumPy's dtypes.

    Source: llama.cpp, ``get_key_or_arr``.
    """
    if default is not None and key not in file.metadata:
        return default
    values = file.metadata.get(key)
    if not isinstance(values, np.ndarray) or values.dtype.kind not in kinds:
        return ((file.get_float if kinds == "f" else file.get_int)(key),) * n_layer
    arch = file.get_str("general.architecture")
    return _by_layer(file, arch, key.removeprefix(f"{arch}."), values, n_layer)


def _check_sizes(file: GGUFFile, hp: HParams) -> None:
    for name in _RANGES:
        if name not in PER_LAYER_KEYS and name != "n_ff_exp":  # checked when they were read
            _check_range(file, name, getattr(hp, name))
    for names, zero in zip(_FLOATS, (False, True), strict=True):
        for name in names:
            if not (zero and getattr(hp, name) == 0):
                _check_float(file, name, getattr(hp, name))
    if hp.n_expert:
        used = f"{hp.n_expert_used} of {hp.n_expert} experts used"
        _check(file, 1 <= hp.n_expert_used <= hp.n_expert, used, "1 to all of them")
        groups = f"{hp.n_expert} experts in {hp.n_expert_groups} groups"
        _check(file, hp.n_expert % max(hp.n_expert_groups, 1) == 0, groups, "equal groups")
    kinds = {bool(hp.window(i)) for i in range(hp.n_layer_kv or hp.n_layer)}
    for i in range(hp.n_layer):
        shared = f"no keys and values before layer {hp.n_layer_kv} that layer {i} could use"
        _check(file, bool(hp.window(i)) in kinds, shared, "a layer of the same window")


def _check_heads(file: GGUFFile, hp: HParams, of_arch: Values) -> None:
    for n_head, n_head_kv in zip(hp.n_head_arr, hp.n_head_kv_arr, strict=True):
        _check(
            file, not n_head_kv or (n_head > 0 and n_head % n_head_kv == 0),
            f"{n_head} heads over {n_head_kv} key-value heads", "a multiple",
        )  # fmt: skip
    no_rope = hp.max_alibi_bias or of_arch.get("n_rot") == 0
    for n_rot, head_dim in {*zip(hp.n_rot_arr, hp.head_dim_arr, strict=True)}:
        _check(
            file, n_rot > 0 or bool(no_rope),
            "no rotated columns", "rope or ALiBi for positions",
        )  # fmt: skip
        _check(
            file, n_rot <= head_dim and n_rot % 2 == 0,
            f"{n_rot} of {head_dim} columns of a head rotated", "an even number up to all",
        )  # fmt: skip


def _check_choices(file: GGUFFile, hp: HParams) -> None:
    averages = hp.causal and POOLINGS[hp.head_pooling] in ("none", "mean")
    _check(file, not averages, f"classifier.pooling_type = {hp.head_pooling}", "another")
    for what, value, choices in (
        ("rope scaling", hp.rope_scaling, ROPE_SCALINGS),
        ("hidden_act", hp.hidden_act, ("", *ACTS)),
        ("classifier.activation", hp.head_act, HEAD_ACTS),
    ):
        _check(file, value in choices, f"{what} {value!r}", f"one of {choices}")
    problem = yarn_problem(hp)
    _check(file, not problem, problem, "a rope that can be computed")


def yarn_problem(hp: HParams) -> str:
    """The reason why YaRN cannot be computed, or an empty string."""
    if not abs(hp.yarn_ext_factor) <= _MAX_FLOAT:
        return f"yarn_ext_factor {hp.yarn_ext_factor}"
    base = min(hp.rope_freq_base, hp.rope_freq_base_swa or hp.rope_freq_base)
    if hp.rope(0)["ext_factor"] and base <= 1:  # its logarithm divides
        return f"yarn and rope.freq_base {base}"
    return ""


def _check(file: GGUFFile, ok: bool, got: str, wanted: str) -> None:
    if not ok:
        arch = file.get_str("general.architecture")
        raise ModelError(
            f"{file.path}: {arch} model with {got}, want {wanted}; the metadata is damaged, "
            f"or this variant is not supported"
        )


def _check_range(file: GGUFFile, name: str, values: int | tuple[int, ...]) -> None:
    low, high = _RANGES[name]
    for value in values if isinstance(values, tuple) else (values,):
        got = f"{PER_LAYER_KEYS.get(name, name)} = {value}"
        _check(file, low <= value <= high, got, f"{low} to {high}")


def _check_float(file: GGUFFile, name: str, value: float) -> None:
    ok = _MIN_FLOAT <= value <= _MAX_FLOAT
    _check(file, ok, f"{name} = {value}", f"{_MIN_FLOAT:g} to {_MAX_FLOAT:g}")
