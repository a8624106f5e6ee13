"""OpenELM: LLaMA's graph with norms of the heads of queries and keys; layers differ in size.

Source: Mehta et al. 2024, "OpenELM: An Efficient Language Model Family with Open Training and
Inference Framework"; llama.cpp, ``llm_build_openelm``.
"""

from __future__ import annotations

import numpy as np

from ..graph.tensors import GATED_FFN
from ..hparams import Values
from ..mapping.rules import Array, Config, Convert, Keys, Tensors, check_config
from . import llama

HPARAMS: Values = {"rope_neox": True}

TENSORS = {
    "blk.{i}.attn_norm.weight": ("n_embd",),
    "blk.{i}.attn_qkv.weight": ("n_embd", "n_embd_qkv"),
    "blk.{i}.attn_q_norm.weight": ("head_dim",),
    "blk.{i}.attn_k_norm.weight": ("head_dim",),
    "blk.{i}.attn_output.weight": ("n_embd_out", "n_embd"),
    "blk.{i}.ffn_norm.weight": ("n_embd",),
    **GATED_FFN,
    "output_norm.weight": ("n_embd",),
    "token_embd.weight": ("n_embd", "n_vocab"),
}
build_graph = llama.build_graph


def _n_ff(n_embd: int, multiplier: float, divisor: int) -> int:
    """Neurons of a layer. Source: Apple, ``make_divisible`` of OpenELM's configuration."""
    n = multiplier * n_embd
    rounded = max(divisor, int(n + divisor / 2) // divisor * divisor)
    return rounded + divisor if rounded < 0.9 * n else rounded


def _keys(config: Config) -> Keys:
    check_config(
        config, share_input_output_layers=True, normalize_qk_projections=True, ffn_with_glu=True,
        activation_fn_name="swish",
    )  # fmt: skip
    n_embd, head_dim = int(config["model_dim"]), int(config["head_dim"])
    sizes = [_n_ff(n_embd, float(m), config["ffn_dim_divisor"]) for m in config["ffn_multipliers"]]
    return {
        "block_count": int(config["num_transformer_layers"]),
        "context_length": int(config["max_context_length"]),
        "embedding_length": n_embd,
        "feed_forward_length": np.array(sizes, np.int32),
        "attention.head_count": np.array(config["num_query_heads"], np.int32),
        "attention.head_count_kv": np.array(config["num_kv_heads"], np.int32),
        "attention.key_length": head_dim,
        "attention.value_length": head_dim,
        "attention.layer_norm_rms_epsilon": np.float32(1e-6),
        "rope.dimension_count": head_dim,
        "rope.freq_base": float(config["rope_freq_constant"]),
    }


def _change(name: str, x: Array, config: Config) -> Tensors:
    if "ffn_gate_up" not in name:
        return {name: x}
    gate, up = np.split(x, 2)
    return {name.replace("gate_up", "gate"): gate, name.replace("gate_up", "up"): up}


CONVERT = Convert(
    models=("OpenELMForCausalLM",),
    tensors={
        "transformer.token_embeddings.weight": "token_embd.weight",
        "transformer.layers.{i}.attn_norm.weight": "blk.{i}.attn_norm.weight",
        "transformer.layers.{i}.attn.qkv_proj.weight": "blk.{i}.attn_qkv.weight",
        "transformer.layers.{i}.attn.q_norm.weight": "blk.{i}.attn_q_norm.weight",
        "transformer.layers.{i}.attn.k_norm.weight": "blk.{i}.attn_k_norm.weight",
        "transformer.layers.{i}.attn.out_proj.weight": "blk.{i}.attn_output.weight",
        "transformer.layers.{i}.ffn_norm.weight": "blk.{i}.ffn_norm.weight",
        "transformer.layers.{i}.ffn.proj_1.weight": "blk.{i}.ffn_gate_up.weight",
        "transformer.layers.{i}.ffn.proj_2.weight": "blk.{i}.ffn_down.weight",
        "transformer.norm.weight": "output_norm.weight",
    },
    keys=_keys,
    change=_change,
)
