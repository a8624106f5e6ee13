"""Phi-3 and Phi-4: LLaMA's graph with one matrix for queries, keys and values, one for gate and up.

Rope may rotate a part of each head (Phi-4-mini) and have factors for long contexts (longrope).
Source: Abdin et al. 2024, "Phi-3 Technical Report"; llama.cpp, ``llm_build_phi3``, which ignores
the window.
"""

from __future__ import annotations

from ..graph.builder import ROPE_FACTORS
from ..graph.tensors import OUTPUT, without
from ..hparams import Key, Values
from ..mapping.rules import Config, Convert, Keys, base_keys
from . import llama, qwen2

HPARAMS: Values = {
    "rope_neox": True,
    "n_swa": Key("attention.sliding_window", 0),
    "swa_period": 0,
}

TENSORS = {
    "blk.{i}.attn_norm.weight": ("n_embd",),
    "blk.{i}.attn_qkv.weight": ("n_embd", "n_embd_qkv"),
    "blk.{i}.attn_output.weight": ("n_embd_out", "n_embd"),
    "blk.{i}.ffn_norm.weight": ("n_embd",),
    "blk.{i}.ffn_up.weight": ("n_embd", "2*n_ff"),
    "blk.{i}.ffn_down.weight": ("n_ff", "n_embd"),
    **ROPE_FACTORS,
    **OUTPUT,
}

build_graph = llama.build_graph


def _keys(config: Config) -> Keys:
    original = config.get("original_max_position_embeddings") or config["max_position_embeddings"]
    keys = {
        "rope.dimension_count": config["hidden_size"] // config["num_attention_heads"],
        "rope.scaling.original_context_length": int(original),
        "attention.sliding_window": int(config.get("sliding_window") or 0),
    }
    return keys | base_keys(config, "silu")


CONVERT = Convert(
    models=("Phi3ForCausalLM", "Phi4ForCausalLMV"),
    tensors={
        **without(qwen2.CONVERT.tensors, "_proj.*", ".mlp."),
        "model.layers.{i}.self_attn.qkv_proj.weight": "blk.{i}.attn_qkv.weight",
        "model.layers.{i}.mlp.gate_up_proj.weight": "blk.{i}.ffn_up.weight",
        "model.layers.{i}.mlp.down_proj.weight": "blk.{i}.ffn_down.weight",
    },
    defaults={"original_max_position_embeddings": 4096, "rope_theta": 10000.0},
    keys=_keys,
)
