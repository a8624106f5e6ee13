"""dots3-note: latent attention with a gate for each head, of other sizes in layers with a window.

In the others an indexer chooses the keys of each token (DSA), as in ``deepseek32``.
Source: Dots Studio 2026, "dots3-note"; llama.cpp, ``llama_model_dots3note``.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np

from pyggml.tensor import Tensor

from ..graph.attention.factors import attention_gate
from ..graph.attention.mla import check_absorbed, latent_attention, n_nope
from ..graph.builder import GraphBuilder
from ..graph.decoder import pre_norm_decoder
from ..hparams import Got, Key, Values, window_values
from ..mapping.rules import (
    Array,
    Config,
    Convert,
    Keys,
    Tensors,
    check_config,
    rope_halves,
    window_keys,
)
from . import deepseek2, deepseek32


def _by_kind(full: str, windowed: str) -> Any:
    """A size of each layer, by its name in layers without a window and with one."""
    return lambda got: tuple(got[windowed if slides else full] for slides in got["swa_layers"])


def _n_nope(got: Got) -> tuple[int, ...]:
    for i, n_lora in enumerate(got["n_lora_kv"]):
        check_absorbed(got, n_lora, i)
    n_keys = got["n_key_mla"], got["n_key_mla_swa"]
    return tuple(n_nope(got, n_keys[slides], i) for i, slides in enumerate(got["swa_layers"]))


HPARAMS: Values = {
    **deepseek32.HPARAMS,
    **window_values(4),
    "swa_dense_first": True,
    "rope_freq_base_swa": Key("rope.freq_base_swa"),
    "n_lora_full": Key("attention.kv_lora_rank"),
    "n_lora_swa": Key("attention.kv_lora_rank_swa"),
    "n_key_mla": Key("attention.key_length_mla", type=int),
    "n_key_mla_swa": Key("attention.key_length_mla_swa"),
    "n_value_mla_swa": Key("attention.value_length_mla_swa"),
    "n_lora_kv": _by_kind("n_lora_full", "n_lora_swa"),
    "n_nope": _n_nope,
    "n_key": _by_kind("n_key_mla", "n_key_mla_swa"),
    "n_value": _by_kind("n_value_mla", "n_value_mla_swa"),
    "n_lora_absorbed": lambda got: got["n_lora_kv"],
    "n_kv_a": lambda got: got["head_dim_arr"],
    "attn_scale": 0.0,
    "attn_scales": lambda got: tuple(1 / math.sqrt(n) for n in got["n_key"]),
    "latent_eps": lambda got: got["norm_eps"],
}

TENSORS = {
    **deepseek32.TENSORS,
    "blk.{i}.attn_k_norm.weight": ("n_rot",),
    "blk.{i}.attn_gate.weight": ("n_embd", "n_head"),
}


def _attention(b: GraphBuilder, x: Tensor, i: int) -> Tensor:
    return attention_gate(b, latent_attention(b, x, i), x, i, "sigmoid")


build_graph = partial(pre_norm_decoder, attention=_attention)


def _of_layer(config: Config, i: int) -> Config:
    """The config with the sizes of layer ``i``."""
    if config["layer_types"][i] != "sliding_attention":
        return config
    own = {k.removeprefix("swa_"): x for k, x in config.items() if k.startswith("swa_")}
    return {**config, **own}


def _keys(config: Config) -> Keys:
    n_layer = int(config["num_hidden_layers"])
    check_config(
        config, use_dsa=True, k_rope_only_layernorm=True, normalization="RMSNorm",
        final_norm="RMSNorm", topk_method="noaux_tc", n_group=1, topk_group=1,
        use_dynamic_rsf=False, moe_gating_fp32=False, attention_gate_type="headwise",
        swa_attention_gate_type="headwise", attention_bias=False, mlp_bias=False,
        swa_q_lora_rank=config["q_lora_rank"], swa_qk_rope_head_dim=config["qk_rope_head_dim"],
        moe_shared_expert_intermediate_size=config["moe_intermediate_size"],
    )  # fmt: skip
    kinds = [_of_layer(config, i) for i in range(n_layer)]
    windowed = {**config, **{k.removeprefix("swa_"): x for k, x in config.items()}}
    return (
        deepseek32.keys({**config, "rope_local_base_freq": config["swa_rope_theta"]})
        | window_keys({**config, "sliding_window": config["sliding_window_size"]}, 4)
        | {
            "attention.head_count": [int(kind["num_attention_heads"]) for kind in kinds],
            **{
                f"{key}_swa": n
                for key, n in deepseek2.absorbed_keys(windowed).items()
                if key not in ("attention.q_lora_rank", "rope.dimension_count")
            },
            "attention.indexer.types": [kind is config for kind in kinds],
        }
    )


def _change(name: str, x: Array, config: Config) -> Tensors:
    """As of DeepSeek-V3; the norms of compressed rows with the factor that follows them.

    Rows of the indexer are in the order for rope on halves, which llama.cpp has; transformers
    rotates adjacent pairs.
    """
    if not name.startswith("blk."):
        return {name: x}
    if ".indexer." in name and "proj" not in name:
        heads = x.reshape(-1, config["index_head_dim"], *x.shape[1:])
        rotated, rest = np.split(heads, [config["qk_rope_head_dim"]], axis=1)
        halves = rope_halves(rotated.reshape(-1, *x.shape[1:]), len(heads)).reshape(rotated.shape)
        return {name: np.concatenate([halves, rest], axis=1).reshape(x.shape)}
    of_layer = _of_layer(config, int(name.split(".")[1]))
    for part, rank in (("attn_q_a_norm", "q_lora_rank"), ("attn_kv_a_norm", "kv_lora_rank")):
        if part in name and config["apply_mla_qkv_lora_rescale"]:
            return {name: x * math.sqrt(config["hidden_size"] / of_layer[rank])}
    return deepseek2.change_latent(name, x, of_layer)


_ATTENTION = "model.layers.{i}.self_attn"
CONVERT = Convert(
    models=(
        "Dots3NoteForCausalLM",
        "Dots3NoteForConditionalGeneration",
        "Dots3NoteTextForCausalLM",
    ),
    tensors={
        **deepseek32.CONVERT.tensors,
        f"{_ATTENTION}.k_rope_only_layernorm.weight": "blk.{i}.attn_k_norm.weight",
        f"{_ATTENTION}.g_proj.weight": "blk.{i}.attn_gate.weight",
    },
    other_media=("vision_encoder.*", "audio_encoder.*"),
    keys=_keys,
    change=_change,
    defaults={
        "rms_norm_eps": 1e-5,
        "rope_theta": 80_000_000.0,
        "swa_rope_theta": 50_000.0,
        "sliding_window_size": 512,
        "first_k_dense_replace": 1,
        "norm_topk_prob": True,
    },
)
