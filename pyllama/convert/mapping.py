"""What an architecture says about its checkpoints: names, keys, and tensors that change.

    CONVERT = Convert(
        models=("GPT2LMHeadModel",),
        tensors={"transformer.wte.weight": "token_embd.weight", ...},
        keys=lambda config: base_keys(config) | {"attention.layer_norm_epsilon": 1e-5},
    )

Only declarations and pure functions of arrays: reading and writing files is ``conversion``'s.
Names of keys are llama.cpp's, without ``{arch}.``.
Source: llama.cpp, ``convert_hf_to_gguf.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import ModelError
from ..files.budget import shown
from .rope import Config as Config
from .rope import rope_factors, rope_keys

Array = npt.NDArray[Any]
Tensors = dict[str, Array]


def _unchanged(name: str, x: Array, config: Config) -> Tensors:
    return {name: x}


@dataclass(frozen=True)
class Convert:
    """How checkpoints of an architecture are converted.

    Attributes:
        models: the classes that config.json's ``architectures`` may name.
        tensors: checkpoint's name -> GGUF's name. ``{i}`` is the layer; ``{e}`` an expert, whose
            matrices are stacked into one tensor; ``*`` stands for ``weight`` and ``bias``.
        keys: the metadata of config.json, without ``{arch}.``.
        change: the tensors that one of the checkpoint's (float32, under its new name; an expert's
            before it is stacked) becomes. It must not write to what it is given, and names and
            shapes must not depend on the layer.
        extra: tensors that are made of config.json alone.
        defaults: what config.json leaves out where it is as usual.
        ignored: patterns of names that are not needed (``fnmatch``).
        other_media: patterns of names that are not of the text part.
        prefix: what some checkpoints leave out at the beginning of every name.
        add_bos: whether a text begins with BOS where the tokenizer's files do not say.
        relu: whether the feed-forward part's activation is ReLU where ``keys`` do not say.
    """

    models: tuple[str, ...]
    tensors: Mapping[str, str]
    keys: Callable[[Config], dict[str, Any]]
    change: Callable[[str, Array, Config], Tensors] = _unchanged
    extra: Callable[[Config], Tensors] = rope_factors
    defaults: Mapping[str, Any] = field(default_factory=dict)
    ignored: tuple[str, ...] = ("*.rotary_emb.inv_freq", "*.attn.masked_bias")
    other_media: tuple[str, ...] = ()
    prefix: str = ""
    add_bos: bool | None = None
    relu: bool = False


# GGUF's key -> the names that configs have for it
_SYNONYMS: Mapping[str, tuple[str, ...]] = {
    "context_length": ("max_position_embeddings", "n_positions", "n_ctx", "max_seq_len"),
    "embedding_length": ("hidden_size", "n_embd", "d_model"),
    "block_count": ("num_hidden_layers", "n_layer", "n_layers", "num_layers"),
    "feed_forward_length": ("intermediate_size", "ffn_dim", "n_inner", "ffn_hidden_size"),
    "attention.head_count": ("num_attention_heads", "n_head", "n_heads"),
    "attention.head_count_kv": ("num_key_value_heads",),
    "expert_count": ("num_local_experts", "num_experts"),
    "expert_used_count": ("num_experts_per_tok",),
    "expert_feed_forward_length": ("moe_intermediate_size",),
    "attention.key_length": ("head_dim",),
    "attention.layer_norm_rms_epsilon": ("rms_norm_eps",),
    "attention.layer_norm_epsilon": ("layer_norm_eps", "layer_norm_epsilon", "norm_epsilon"),
    "vocab_size": ("vocab_size",),
}


def base_keys(config: Config) -> dict[str, Any]:
    """The keys that most architectures read, where config.json has them under a usual name."""
    keys: dict[str, Any] = {}
    for key, names in _SYNONYMS.items():
        value = next((config[name] for name in names if config.get(name) is not None), None)
        if value is not None:
            keys[key] = float32(value) if key.endswith("epsilon") else int(value)
    if "attention.key_length" in keys:
        keys["attention.value_length"] = keys["attention.key_length"]
    return keys | rope_keys(config)


def float32(value: Any) -> np.float32:
    """A number of config.json. Raises: ValueError: it is none, or 32 bits cannot hold it."""
    number = float(value)
    if not abs(number) <= float(np.finfo(np.float32).max):  # NaN is not
        raise ValueError(f"{shown(value)} is no number that 32 bits hold")
    return np.float32(number)


def kv_heads(config: Config) -> int:
    """Heads of keys and values."""
    return int(config.get("num_key_value_heads") or config["num_attention_heads"])


def interleave_rope(x: Array, n_head: int) -> Array:
    """Rows of a query or key matrix (or its bias) for rope on neighbours.

    Checkpoints rotate the two halves of a head; ``llama`` in GGUF rotates neighbours.

    Shape:
        NumPy order, x [n_head * head_dim, ...] -> the same
    """
    if n_head < 1 or x.shape[0] % (2 * n_head):
        raise ModelError(f"{x.shape[0]} rows do not divide into {n_head} heads of even size")
    halves = x.reshape(n_head, 2, -1, *x.shape[1:])  # [n_head, 2, head_dim / 2, ...]
    return halves.swapaxes(1, 2).reshape(x.shape)


_ACTS = {  # Hugging Face's names of activations -> ``UNARY``'s
    "gelu": "gelu_erf",
    "gelu_fast": "gelu",
    "gelu_new": "gelu",
    "gelu_pytorch_tanh": "gelu",
    "quick_gelu": "gelu_quick",
    "relu": "relu",
    "relu2": "relu_sqr",
    "silu": "silu",
    "swish": "silu",
}


def hidden_act(config: Config, usual: str) -> dict[str, str]:
    """The key of the feed-forward part's activation, where it is not the architecture's usual one.

    Args:
        usual: a kind of ``UNARY``; also what a config that says nothing has.

    Raises:
        ModelError: the activation is unknown.
    """
    names = ("hidden_act", "hidden_activation", "activation_function", "activation")
    given = next((config[name] for name in names if config.get(name) is not None), None)
    if given is not None and given not in _ACTS:
        raise ModelError(
            f"config.json: activation {shown(given)} is not supported; there are: "
            f"{', '.join(_ACTS)}"
        )
    act = usual if given is None else _ACTS[given]
    return {} if act == usual else {"hidden_act": act}


def check_config(config: Config, **wanted: Any) -> None:
    """Refuse a variant: what config.json says must be as wanted, or missing. Raises: ModelError."""
    for name, value in wanted.items():
        got = config.get(name)
        if got is not None and got != value:
            raise ModelError(
                f"config.json: {name} is {shown(got)}, want {value!r}; this variant is not "
                "supported"
            )


def regroup_qkv(x: Array, n_head: int, n_head_kv: int) -> Array:
    """Rows of a fused matrix (or bias), so that all queries come first, then keys, then values.

    Checkpoints have a group for each head of keys: its queries, its key, its value.

    Shape:
        NumPy order, x [(n_head + 2 * n_head_kv) * head_dim, ...] -> the same
    """
    heads = n_head + 2 * n_head_kv
    if min(n_head, n_head_kv) < 1 or n_head % n_head_kv or x.shape[0] % heads:
        raise ModelError(
            f"{x.shape[0]} rows do not divide into {n_head} heads of queries and {n_head_kv} of "
            "keys and of values"
        )
    groups = x.reshape(n_head_kv, heads // n_head_kv, -1, *x.shape[1:])
    parts = groups[:, :-2], groups[:, -2], groups[:, -1]
    return np.concatenate([part.reshape(-1, *x.shape[1:]) for part in parts])
