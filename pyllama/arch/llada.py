"""LLaDA: LLaMA without causality, a diffusion language model.

Source: Nie et al. 2025, "Large Language Diffusion Models"; llama.cpp, ``llama_model_llada``.
"""

from __future__ import annotations

from ..graph.tensors import EXPERTS, without
from ..hparams import DIFFUSION, Values
from ..mapping.rules import Array, Config, Convert, Keys, Tensors, check_config, float32
from . import llama

HPARAMS: Values = DIFFUSION
TENSORS = without(llama.TENSORS, *EXPERTS)
build_graph = llama.build_graph


def _as_llama(config: Config) -> Config:
    """The configuration with the names of LLaMA's."""
    n_head = int(config["n_heads"])
    return {
        "architectures": config["architectures"],
        "vocab_size": config["vocab_size"],
        "hidden_size": config["d_model"],
        "num_hidden_layers": config["n_layers"],
        "num_attention_heads": n_head,
        "num_key_value_heads": config.get("n_kv_heads") or n_head,
        "intermediate_size": config.get("mlp_hidden_size")
        or config["mlp_ratio"] * config["d_model"],
        "max_position_embeddings": config["max_sequence_length"],
        "rms_norm_eps": config["rms_norm_eps"],
        "rope_theta": config["rope_theta"],
    }


def _keys(config: Config) -> Keys:
    check_config(
        config, block_type="llama", layer_norm_type="rms", activation_type="silu", rope=True,
        alibi=False, attention_layer_norm=False, input_emb_norm=False, scale_logits=False,
        multi_query_attention=False,
    )  # fmt: skip
    return llama.keys(_as_llama(config)) | {
        "attention.causal": False,
        "diffusion.shift_logits": False,
    }


def _change(name: str, x: Array, config: Config) -> Tensors:
    return llama.change(name, x, _as_llama(config))


_BLOCK = "model.transformer.blocks.{i}"
CONVERT = Convert(
    models=("LLaDAModelLM",),
    tensors={
        "model.transformer.wte.weight": "token_embd.weight",
        f"{_BLOCK}.attn_norm.weight": "blk.{i}.attn_norm.weight",
        f"{_BLOCK}.q_proj.*": "blk.{i}.attn_q.*",
        f"{_BLOCK}.k_proj.*": "blk.{i}.attn_k.*",
        f"{_BLOCK}.v_proj.*": "blk.{i}.attn_v.*",
        f"{_BLOCK}.attn_out.*": "blk.{i}.attn_output.*",
        f"{_BLOCK}.ff_norm.weight": "blk.{i}.ffn_norm.weight",
        f"{_BLOCK}.ff_proj.*": "blk.{i}.ffn_gate.*",
        f"{_BLOCK}.up_proj.*": "blk.{i}.ffn_up.*",
        f"{_BLOCK}.ff_out.*": "blk.{i}.ffn_down.*",
        "model.transformer.ln_f.weight": "output_norm.weight",
        "model.transformer.ff_out.weight": "output.weight",
    },
    keys=_keys,
    change=_change,
    defaults={"rms_norm_eps": float32(1e-5), "mlp_ratio": 4, "rope_theta": 10000.0},
    add_bos=True,
)
