"""Declarations of how an architecture's checkpoints map to GGUF: tensor names, keys, changes.

    CONVERT = Convert(
        models=("GPT2LMHeadModel",),
        tensors={"transformer.wte.weight": "token_embd.weight", ...},
        keys=lambda config: base_keys(config, "gelu") | {"attention.layer_norm_epsilon": 1e-5},
    )

Contains only declarations and pure functions of arrays; ``conversion`` reads and writes files.
Key names are llama.cpp's, without ``{arch}.``.
Source: llama.cpp, ``convert_hf_to_gguf.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ..errors import ModelError
from ..hparams import Values
from ..inputs.budget import shown
from .rope import Config as Config
from .rope import rope_factors, rope_keys
from .rope import rotated_fraction as rotated_fraction

Array = npt.NDArray[Any]
Tensors = dict[str, Array]
Keys = dict[str, Any]  # of GGUF, without the architecture's name -> value


OTHER_MEDIA = (  # usual names of parts for images and sounds
    "*audio_tower.*",
    "*mm_projector.*",
    "*multi_modal_projector.*",
    "*vision_model.*",
    "*vision_tower.*",
    "*visual.*",
)


def _unchanged(name: str, x: Array, config: Config) -> Tensors:
    return {name: x}


@dataclass(frozen=True)
class Convert:
    """How to convert the checkpoints of an architecture.

    Attributes:
        models: class names accepted in ``architectures`` of config.json.
        tensors: checkpoint name -> GGUF name, without the names of modules around a text model
            (``language_model.``). ``{i}`` is the layer; ``{j}`` one of a second stack,
            whose layers follow those of the first in the file; ``{e}`` an expert, whose matrices
            are stacked into one tensor, as are tensors whose GGUF name ends with their number
            (``[0]``); those whose name ends with ``[+]`` are concatenated. ``*`` stands for
            ``weight`` and ``bias``.
        first_stack: the number of layers before the second stack, from config.json.
        accepts: whether the architecture takes a checkpoint of these classes, for classes that
            several architectures share.
        keys: computes metadata from config.json, without ``{arch}.``; keys that begin with
            ``tokenizer.`` replace those of the vocabulary, those with ``diffusion.`` are whole.
        change: maps a checkpoint tensor (float32, under its GGUF name; a single expert before
            stacking) to one or more GGUF tensors. Must not write to its input; names and shapes
            must not depend on the layer. Where it returns views of whole rows, MXFP4 is kept.
        extra: computes additional tensors from config.json.
        defaults: values that transformers assumes where config.json lacks them.
        of_class: those of a class in ``models`` that differ, by its name.
        values: checkpoint name of a single number -> its key as it is in the file; with ``{i}``,
            the key of the array of all layers' numbers.
        arrays: checkpoint name of an array of whole numbers -> its key.
        ignored: patterns of tensors that are not needed (``fnmatch``).
        products: GGUF names of vectors that are the product of two tensors (``[0]``, ``[1]``).
        rename: returns the GGUF name of a tensor, where it depends on config.json (on the kind of a
            layer), from the name that ``tensors`` has.
        shared: GGUF names of tensors that a checkpoint may have under several names; the first one
            is taken.
        other_media: patterns of vision and audio tensors.
        prefix: prefix of tensor names that some checkpoints omit.
        add_bos: whether to add BOS if the tokenizer's files do not say.
        relu: whether the FFN's activation is ReLU if ``keys`` do not say.
        drafts: whether the checkpoint is a head that drafts for another model and uses its
            vocabulary; the functions get config.json of that model as ``config["target"]`` and the
            names of the checkpoint's tensors as ``config["tensor_names"]``.
    """

    models: tuple[str, ...]
    tensors: Mapping[str, str]
    keys: Callable[[Config], Keys]
    change: Callable[[str, Array, Config], Tensors] = _unchanged
    extra: Callable[[Config], Tensors] = rope_factors
    defaults: Mapping[str, Any] = field(default_factory=dict)
    of_class: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    values: Mapping[str, str] = field(default_factory=dict)
    arrays: Mapping[str, str] = field(default_factory=dict)
    ignored: tuple[str, ...] = ("*.rotary_emb.inv_freq", "*.attn.masked_bias")
    products: tuple[str, ...] = ()
    rename: Callable[[str, Config], str] = lambda name, config: name
    shared: tuple[str, ...] = ()
    other_media: tuple[str, ...] = OTHER_MEDIA
    prefix: str = ""
    add_bos: bool | None = None
    relu: bool = False
    accepts: Callable[[Config], bool] = lambda config: True
    first_stack: Callable[[Config], int] = lambda config: 0
    drafts: bool = False

    def complete(self, config: Config) -> dict[str, Any]:
        """Return config.json with the defaults of its class."""
        classes = map(str, config.get("architectures") or ())
        own = next((self.of_class[name] for name in classes if name in self.of_class), {})
        return {**self.defaults, **own, **config}


class Nextn(NamedTuple):
    """How layers of multi-token prediction differ from those of the decoder.

    Attributes:
        hparams: hyperparameters of such a layer as a model of its own, as in ``HPARAMS``.
        tensors: weights that only such a layer has, as in ``TENSORS``.
        names: beginnings of the names of its tensors in checkpoints -> those of the decoder's; with
            the number in front (``1.norm.``) where ``n_parts`` is more than 1.
        layer: the values of such a layer in arrays with one for each layer, by key, from
            config.json and the layer's number among them (from 0); other arrays repeat the value of
            the decoder's last layer.
        n_parts: layers of the checkpoint that are one layer of the file.
    """

    hparams: Values = MappingProxyType({})
    tensors: Mapping[str, tuple[str, ...]] = MappingProxyType({})
    names: Mapping[str, str] = MappingProxyType({})
    layer: Callable[[Config, int], Mapping[str, Any]] = lambda config, i: {}
    n_parts: int = 1


def layer_kind(config: Config, i: int) -> str:
    """The kind of attention of layer ``i`` (from 0) of multi-token prediction.

    ``layer_types`` may have these layers after the decoder's; else it is that of its last layer.
    """
    kinds: list[str] = config["layer_types"]
    return kinds[min(int(config["num_hidden_layers"]) + i, len(kinds) - 1)]


# GGUF key -> names of the same value in config.json
_SYNONYMS: Mapping[str, tuple[str, ...]] = {
    "context_length": (
        "max_position_embeddings", "n_positions", "n_ctx", "max_seq_len", "max_sequence_length",
    ),
    "embedding_length": ("hidden_size", "n_embd", "d_model"),
    "block_count": ("num_hidden_layers", "n_layer", "n_layers", "num_layers"),
    "feed_forward_length": ("intermediate_size", "ffn_dim", "n_inner", "ffn_hidden_size"),
    "attention.head_count": ("num_attention_heads", "n_head", "n_heads"),
    "attention.head_count_kv": ("num_key_value_heads",),
    "expert_count": ("num_local_experts", "num_experts", "n_routed_experts"),
    "expert_used_count": ("num_experts_per_tok",),
    "expert_feed_forward_length": ("moe_intermediate_size",),
    "attention.key_length": ("head_dim",),
    "attention.layer_norm_rms_epsilon": ("rms_norm_eps",),
    "attention.layer_norm_epsilon": ("layer_norm_eps", "layer_norm_epsilon", "norm_epsilon"),
    "vocab_size": ("vocab_size",),
}  # fmt: skip


def base_keys(config: Config, act: str = "") -> Keys:
    """Return the keys that most architectures need, as far as config.json has them.

    Args:
        act: with ``hidden_act``, of which it is the usual activation; empty for without.

    Raises:
        ModelError: the activation is unknown.
    """
    keys: Keys = {}
    for key, names in _SYNONYMS.items():
        value = next((config[name] for name in names if config.get(name) is not None), None)
        if value is not None:
            keys[key] = float32(value) if key.endswith("epsilon") else int(value)
    if "attention.key_length" in keys:
        keys["attention.value_length"] = keys["attention.key_length"]
    if config.get("is_causal") is False:  # of decoders that became encoders (gte-Qwen2)
        keys["attention.causal"] = False
    return keys | rope_keys(config) | (hidden_act(config, act) if act else {})


def float32(value: Any) -> np.float32:
    """Return a number as float32. Raises: ValueError: not a number, or out of float32's range."""
    number = float(value)
    if not abs(number) <= float(np.finfo(np.float32).max):  # also true for NaN
        raise ValueError(f"{shown(value)} is not a number in the range of float32")
    return np.float32(number)


def kv_heads(config: Config) -> int:
    """Return the number of KV heads."""
    return int(config.get("num_key_value_heads") or config["num_attention_heads"])


def head_columns(config: Config) -> int:
    """Return the columns of a head of queries."""
    return int(config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"])


def interleave_rope(x: Array, n_head: int) -> Array:
    """Reorder the rows of a Q or K matrix (or bias) for RoPE on adjacent pairs.

    Checkpoints rotate pairs (i, i + d/2) of a head; ``llama`` in GGUF rotates pairs (2i, 2i + 1).

    Shape:
        NumPy order, x [n_head * head_dim, ...] -> the same
    """
    if n_head < 1 or x.shape[0] % (2 * n_head):
        raise ModelError(f"{x.shape[0]} rows are not {n_head} heads of an even size")
    halves = x.reshape(n_head, 2, -1, *x.shape[1:])  # [n_head, 2, head_dim / 2, ...]
    return halves.swapaxes(1, 2).reshape(x.shape)


def window_keys(config: Config, period: int) -> Keys:
    """Return the keys of a sliding window and of the layers that have one, {} without a window.

    Args:
        period: without ``layer_types`` and ``sliding_window_pattern``, every ``period``-th layer
            has full attention. The pattern is such a number or a string: ``LLLG``.

    Raises:
        ModelError: a layer has another kind of attention.
    """
    if config.get("sliding_window") is None:
        return {}
    pattern, n_layer = config.get("sliding_window_pattern"), int(config["num_hidden_layers"])
    if config.get("layer_types"):
        kinds = config["layer_types"][:n_layer]  # those of multi-token prediction may follow
        if others := {*kinds} - {"sliding_attention", "full_attention"}:
            raise ModelError(f"config.json: layer_types has {shown(others.pop())}, not supported")
        slides = [kind == "sliding_attention" for kind in kinds]
    elif isinstance(pattern, str):
        slides = [pattern[i % len(pattern)] == "L" for i in range(n_layer)]
    else:
        slides = [(i + 1) % int(pattern or period) != 0 for i in range(n_layer)]
    return {
        "attention.sliding_window": int(config["sliding_window"]),
        "attention.sliding_window_pattern": slides,
    }


def rope_halves(x: Array, n_head: int) -> Array:
    """Undo ``interleave_rope``, for checkpoints that rotate adjacent pairs.

    Shape:
        NumPy order, x [n_head * head_dim, ...] -> the same
    """
    if n_head < 1 or x.shape[0] % (2 * n_head):
        raise ModelError(f"{x.shape[0]} rows are not {n_head} heads of an even size")
    pairs = x.reshape(n_head, -1, 2, *x.shape[1:])  # [n_head, head_dim / 2, 2, ...]
    return pairs.swapaxes(1, 2).reshape(x.shape)


HF_QKV = {  # names of most of Hugging Face's models
    "model.layers.{i}.self_attn.q_proj.*": "blk.{i}.attn_q.*",
    "model.layers.{i}.self_attn.k_proj.*": "blk.{i}.attn_k.*",
    "model.layers.{i}.self_attn.v_proj.*": "blk.{i}.attn_v.*",
}
HF_MLP = {
    "model.layers.{i}.mlp.gate_proj.weight": "blk.{i}.ffn_gate.weight",
    "model.layers.{i}.mlp.up_proj.weight": "blk.{i}.ffn_up.weight",
    "model.layers.{i}.mlp.down_proj.weight": "blk.{i}.ffn_down.weight",
}
_ACTS = {  # Hugging Face's names of activations -> kinds of ``UNARY``
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
    """Return the key of the FFN's activation, {} if it is the architecture's usual one.

    Args:
        usual: the architecture's default, a kind of ``UNARY``.

    Raises:
        ModelError: the activation is unknown.
    """
    names = ("hidden_act", "hidden_activation", "activation_function", "activation")
    given = next((config[name] for name in names if config.get(name) is not None), None)
    if given is not None and given not in _ACTS:
        raise ModelError(
            f"config.json: activation {shown(given)} is not supported; supported are "
            f"{', '.join(_ACTS)}"
        )
    act = usual if given is None else _ACTS[given]
    return {} if act == usual else {"hidden_act": act}


def check_config(config: Config, **required: Any) -> None:
    """Check that values of config.json are as required or missing.

    Raises:
        ModelError: a value differs, so this variant is not supported.
    """
    for name, value in required.items():
        got = config.get(name)
        if got is not None and got != value:
            raise ModelError(
                f"config.json: {name} is {shown(got)}, must be {value!r}; this variant is not "
                "supported"
            )


def regroup_qkv(x: Array, n_head: int, n_head_kv: int) -> Array:
    """Reorder the rows of a fused QKV matrix (or bias): all of Q first, then K, then V.

    In the checkpoint they are grouped by KV head: its Q heads, its K head, its V head.

    Shape:
        NumPy order, x [(n_head + 2 * n_head_kv) * head_dim, ...] -> the same
    """
    heads = n_head + 2 * n_head_kv
    if min(n_head, n_head_kv) < 1 or n_head % n_head_kv or x.shape[0] % heads:
        raise ModelError(
            f"{x.shape[0]} rows cannot be divided into {n_head} Q heads and {n_head_kv} K and V "
            "heads"
        )
    groups = x.reshape(n_head_kv, heads // n_head_kv, -1, *x.shape[1:])
    parts = groups[:, :-2], groups[:, -2], groups[:, -1]
    return np.concatenate([part.reshape(-1, *x.shape[1:]) for part in parts])


def split_qkv(name: str, x: Array, n_head: int, n_head_kv: int) -> Tensors:
    """Return Q, K and V of a fused matrix (or bias) that has all of Q first, then K, then V.

    Args:
        name: of the fused tensor: ``blk.0.attn_qkv.weight``.

    Shape:
        NumPy order, x [(n_head + 2 * n_head_kv) * head_dim, ...]
    """
    heads = n_head + 2 * n_head_kv
    if min(n_head, n_head_kv) < 1 or x.shape[0] % heads:
        raise ModelError(
            f"{x.shape[0]} rows are not {n_head} Q heads and {n_head_kv} K and V heads"
        )
    head_dim = x.shape[0] // heads
    parts = np.split(x, [n_head * head_dim, (n_head + n_head_kv) * head_dim])
    names = (name.replace("attn_qkv", f"attn_{part}") for part in "qkv")
    return dict(zip(names, parts, strict=True))
