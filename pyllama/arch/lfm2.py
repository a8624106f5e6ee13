"""LFM2: short convolutions with gates in most layers, attention in the others.

Source: Liquid AI 2025, "LFM2 Technical Report"; llama.cpp, ``llama_model_lfm2``.
"""

from __future__ import annotations

from functools import partial

from ..graph import hybrid
from ..graph.builder import ROPE_FACTORS
from ..graph.short_conv import SHORT_CONV, short_conv, states_of
from ..graph.tensors import GATED_FFN, OUTPUT, only_in, without
from ..hparams import Key, Values
from ..mapping.rules import (
    Array,
    Config,
    Convert,
    Keys,
    base_keys,
    check_config,
    float32,
)

HPARAMS: Values = {
    **hybrid.KINDS,
    "rope_neox": True,
    "d_conv": Key("shortconv.l_cache"),
    "states": hybrid.states_where_recurrent(states_of),
}

TENSORS = {
    "blk.{i}.attn_norm.weight": ("n_embd",),
    **without(hybrid.ATTENTION, "bias"),
    "blk.{i}.attn_q_norm.weight": ("attends*head_dim",),
    "blk.{i}.attn_k_norm.weight": ("attends*head_dim",),
    **only_in("recurs", SHORT_CONV),
    "blk.{i}.ffn_norm.weight": ("n_embd",),
    **GATED_FFN,
    **ROPE_FACTORS,
    "token_embd_norm.weight": ("n_embd",),  # after the last layer, in spite of its name
    **without(OUTPUT, "output_norm"),
}

build_graph = partial(
    hybrid.decoder, mixer=hybrid.attention_or(short_conv), output_norm="token_embd_norm"
)


def keys(config: Config) -> Keys:
    """The keys that LFM2 has with and without experts."""
    check_config(config, conv_bias=False)
    n, heads = config["num_hidden_layers"], int(config["num_key_value_heads"])
    kinds = config.get("layer_types") or [
        "full_attention" if i in (config.get("full_attn_idxs") or range(n)) else "conv"
        for i in range(n)
    ]
    return base_keys(config) | {
        "attention.layer_norm_rms_epsilon": float32(config.get("norm_eps", 1e-5)),
        "attention.head_count_kv": [0 if kind == "conv" else heads for kind in kinds],
        "shortconv.l_cache": int(config.get("conv_L_cache", 3)),
    }


def _keys(config: Config) -> Keys:
    n_ff = int(config.get("block_ff_dim") or config["intermediate_size"])
    if config.get("block_auto_adjust_ff_dim", True):
        n_ff = int(2 * n_ff / 3)
        if config.get("block_ffn_dim_multiplier", 1.0) is not None:
            every = int(config.get("block_multiple_of", 256))
            n_ff = int(config.get("block_ffn_dim_multiplier", 1.0) * n_ff)
            n_ff = -(n_ff // -every) * every
    return keys(config) | {"feed_forward_length": n_ff}


def change(name: str, x: Array, config: Config) -> dict[str, Array]:
    """Convolutions without the dimension of input channels."""
    return {name: x[:, 0] if name.endswith("shortconv.conv.weight") else x}


NAMES = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.layers.{i}.operator_norm.weight": "blk.{i}.attn_norm.weight",
    "model.layers.{i}.self_attn.q_proj.weight": "blk.{i}.attn_q.weight",
    "model.layers.{i}.self_attn.k_proj.weight": "blk.{i}.attn_k.weight",
    "model.layers.{i}.self_attn.v_proj.weight": "blk.{i}.attn_v.weight",
    "model.layers.{i}.self_attn.q_layernorm.weight": "blk.{i}.attn_q_norm.weight",
    "model.layers.{i}.self_attn.k_layernorm.weight": "blk.{i}.attn_k_norm.weight",
    "model.layers.{i}.self_attn.out_proj.weight": "blk.{i}.attn_output.weight",
    "model.layers.{i}.conv.in_proj.weight": "blk.{i}.shortconv.in_proj.weight",
    "model.layers.{i}.conv.conv.weight": "blk.{i}.shortconv.conv.weight",
    "model.layers.{i}.conv.out_proj.weight": "blk.{i}.shortconv.out_proj.weight",
    "model.layers.{i}.ffn_norm.weight": "blk.{i}.ffn_norm.weight",
    "model.layers.{i}.feed_forward.w1.weight": "blk.{i}.ffn_gate.weight",
    "model.layers.{i}.feed_forward.w3.weight": "blk.{i}.ffn_up.weight",
    "model.layers.{i}.feed_forward.w2.weight": "blk.{i}.ffn_down.weight",
    "model.embedding_norm.weight": "token_embd_norm.weight",
    "lm_head.weight": "output.weight",
}

CONVERT = Convert(
    models=("Lfm2ForCausalLM", "LFM2ForCausalLM", "Lfm2Model", "Lfm2VlForConditionalGeneration"),
    tensors=NAMES,
    keys=_keys,
    change=change,
    prefix="model.",
)
