"""AFMoE (Trinity): gated attention, norms before and after each part, rope in windowed layers.

Source: Arcee AI 2025, "Trinity"; llama.cpp, ``llama_model_afmoe``.
"""

from __future__ import annotations

import math
from functools import partial

from ..graph.tensors import DEEPSEEK_EXPERTS, without
from ..hparams import GATINGS, Key, Values
from ..mapping.rules import Config, Convert, Keys, check_config, float32
from . import exaone_moe, gemma3, llama, qwen2moe

HPARAMS: Values = {
    **exaone_moe.HPARAMS,
    "n_swa": Key("attention.sliding_window", 0),
    "n_shared": Key("expert_shared_count"),
    "n_ff_exp": Key("expert_feed_forward_length", 0),
    "embedding_scale": lambda got: math.sqrt(got["n_embd"]),
    "n_ff_shexp": lambda got: got["n_shared"] * got["n_ff_exp"],
}

TENSORS = {
    **without(gemma3.TENSORS, "rope_f"),
    "blk.{i}.attn_gate.weight": ("n_embd", "n_embd_out"),
    **DEEPSEEK_EXPERTS,
}

build_graph = partial(gemma3.decoder, act="silu", gate="sigmoid")


def _keys(config: Config) -> Keys:
    check_config(config, mup_enabled=True, attention_bias=False)
    n = int(config.get("global_attn_every_n_layers") or 4)
    kinds = config.get("layer_types")
    slides = (
        [kind == "sliding_attention" for kind in kinds]
        if kinds
        else [(i + 1) % n != 0 for i in range(int(config["num_hidden_layers"]))]
    )
    keys = llama.keys(config) | {
        "attention.sliding_window": int(config["sliding_window"]),
        "expert_shared_count": int(config["num_shared_experts"]),
        "leading_dense_block_count": int(config["num_dense_layers"]),
        "expert_gating_func": GATINGS.index("sigmoid"),
        "expert_weights_scale": float32(config["route_scale"]),
        "expert_weights_norm": bool(config.get("route_norm", True)),
    }
    if slides != [i % 4 != 3 for i in range(len(slides))]:  # llama.cpp's default
        keys["attention.sliding_window_pattern"] = slides
    return keys


CONVERT = Convert(
    models=("AfmoeForCausalLM",),
    tensors={
        **gemma3.NAMES,
        **qwen2moe.DEEPSEEK,
        "model.layers.{i}.self_attn.gate_proj.weight": "blk.{i}.attn_gate.weight",
        "model.layers.{i}.pre_mlp_layernorm.weight": "blk.{i}.ffn_norm.weight",
        "model.layers.{i}.post_mlp_layernorm.weight": "blk.{i}.post_ffw_norm.weight",
        "model.layers.{i}.mlp.router.gate.weight": "blk.{i}.ffn_gate_inp.weight",
        "model.layers.{i}.mlp.expert_bias": "blk.{i}.exp_probs_b.bias",
    },
    keys=_keys,
    defaults={"head_dim": 128, "mup_enabled": False, "sliding_window": 1024},
)
