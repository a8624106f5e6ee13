"""Tiny checkpoints of ``deepseek``."""

from __future__ import annotations

from . import llama

VARIANTS = {
    "deepseek": {
        "architectures": ["DeepseekForCausalLM"],
        "model_type": "deepseek",
        "hidden_size": 64,
        "intermediate_size": 160,
        "moe_intermediate_size": 48,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 256,
        "vocab_size": 512,
        "rms_norm_eps": 1e-6,
        "n_shared_experts": 2,
        "n_routed_experts": 8,
        "num_experts_per_tok": 3,
        "moe_layer_freq": 1,
        "first_k_dense_replace": 1,
        "norm_topk_prob": False,
        "scoring_func": "softmax",
        "rope_theta": 10000.0,
        "rope_scaling": None,
    }
}
SHAPES = {
    "deepseek": {
        **llama.ATTENTION,
        "model.layers.0.mlp.gate_proj.weight": [160, 64],
        "model.layers.0.mlp.up_proj.weight": [160, 64],
        "model.layers.0.mlp.down_proj.weight": [64, 160],
        **{
            f"model.layers.{i}.mlp.{name}.weight": shape
            for i in (1, 2)
            for name, shape in {
                "gate": [8, 64],
                "experts.{e}.gate_proj": [48, 64],
                "experts.{e}.up_proj": [48, 64],
                "experts.{e}.down_proj": [64, 48],
                "shared_experts.gate_proj": [96, 64],
                "shared_experts.up_proj": [96, 64],
                "shared_experts.down_proj": [64, 96],
            }.items()
        },
    }
}

LLAMA_CPP = ("deepseek",)
