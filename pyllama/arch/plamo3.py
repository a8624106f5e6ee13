"""PLaMo 3: Gemma 3's norms and windows, one matrix for Q, K and V and one for gate and up.

Norms after the parts have no ``.weight`` in their names.
Source: Preferred Networks 2025, "PLaMo 3"; llama.cpp, ``llama_model_plamo3``.
"""

from __future__ import annotations

from functools import partial

from ..graph.tensors import without
from ..hparams import Values, window_values
from ..mapping.rules import Array, Config, Convert, Keys, Tensors, base_keys, check_config
from . import gemma3, phi3

HPARAMS: Values = {
    "rope_neox": True,
    **window_values(8, 0, base=10000.0),
}

TENSORS = {
    **without(phi3.TENSORS, "rope_f"),
    "blk.{i}.attn_q_norm.weight": ("head_dim",),
    "blk.{i}.attn_k_norm.weight": ("head_dim",),
    "blk.{i}.post_attention_norm": ("n_embd",),
    "blk.{i}.post_ffw_norm": ("n_embd",),
}
_OFFSETS = {"post_attention_norm": 1 / 5, "post_ffw_norm": 1 / 5**1.5}  # others add 1

build_graph = partial(gemma3.decoder, act="silu")


def _keys(config: Config) -> Keys:
    check_config(config, full_attention_idx=None)
    local = config.get("rope_local_theta")
    keys = base_keys({**config, "rope_local_base_freq": local}, "silu")
    keys["vocab_size"] = int(config["vocab_size"])
    window = config.get("window_size") or config.get("sliding_window")
    if window is not None:
        keys["attention.sliding_window"] = int(window)
        keys["attention.sliding_window_pattern"] = int(config["sliding_window_pattern"])
    return keys


def _change(name: str, x: Array, config: Config) -> Tensors:
    """Norms of checkpoints are differences from a constant."""
    if "norm" in name:
        x = x + x.dtype.type(_OFFSETS.get(name.rpartition(".")[2], 1.0))
    return {name: x}


_LAYER = "model.layers.layers.{i}"
CONVERT = Convert(
    models=("Plamo3ForCausalLM", "PLaMo3ForCausalLM"),
    tensors={
        "model.embed_tokens.weight": "token_embd.weight",
        f"{_LAYER}.pre_mixer_norm.weight": "blk.{i}.attn_norm.weight",
        f"{_LAYER}.mixer.qkv_proj.weight": "blk.{i}.attn_qkv.weight",
        f"{_LAYER}.mixer.q_norm.weight": "blk.{i}.attn_q_norm.weight",
        f"{_LAYER}.mixer.k_norm.weight": "blk.{i}.attn_k_norm.weight",
        f"{_LAYER}.mixer.o_proj.weight": "blk.{i}.attn_output.weight",
        f"{_LAYER}.post_mixer_norm.weight": "blk.{i}.post_attention_norm",
        f"{_LAYER}.pre_mlp_norm.weight": "blk.{i}.ffn_norm.weight",
        f"{_LAYER}.mlp.gate_up_proj.weight": "blk.{i}.ffn_up.weight",
        f"{_LAYER}.mlp.down_proj.weight": "blk.{i}.ffn_down.weight",
        f"{_LAYER}.post_mlp_norm.weight": "blk.{i}.post_ffw_norm",
        "model.norm.weight": "output_norm.weight",
        "lm_head.weight": "output.weight",
    },
    keys=_keys,
    change=_change,
)
