"""Tiny checkpoints of ``llama4``."""

from __future__ import annotations

from typing import Any

_TEXT: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 48,
    "intermediate_size_mlp": 160,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 256,
    "vocab_size": 512,
    "rms_norm_eps": 1e-5,
    "num_local_experts": 8,
    "num_experts_per_tok": 1,
    "rope_theta": 500000.0,
}
VARIANTS = {
    "llama4": {
        "architectures": ["Llama4ForCausalLM"],
        "model_type": "llama4_text",
        **_TEXT,
        "rope_scaling": {
            "rope_type": "llama3",
            "factor": 16.0,
            "high_freq_factor": 1.0,
            "low_freq_factor": 0.5,
            "original_max_position_embeddings": 64,
        },
    },
    "llama4_chunks": {  # windows and temperatures within 40 tokens
        "architectures": ["Llama4ForCausalLM"],
        "model_type": "llama4_text",
        **_TEXT,
        "attention_chunk_size": 16,
        "floor_scale": 8,
        "attn_scale": 0.3,
        "num_experts_per_tok": 2,
    },
    "llama4_gelu": {
        "architectures": ["Llama4ForCausalLM"],
        "model_type": "llama4_text",
        **{k: x for k, x in _TEXT.items() if k != "rope_theta"},
        "hidden_act": "gelu_pytorch_tanh",
    },
    "llama4_128e": {
        "architectures": ["Llama4ForConditionalGeneration"],
        "model_type": "llama4",
        "text_config": {
            "model_type": "llama4_text",
            **_TEXT,
            "intermediate_size": 16,
            "num_local_experts": 128,
            "interleave_moe_layer_step": 2,
            "use_qk_norm": False,
        },
        "vision_config": {
            "hidden_size": 16,
            "intermediate_size": 64,
            "num_hidden_layers": 1,
            "num_attention_heads": 2,
            "image_size": 16,
            "patch_size": 8,
            "vision_output_dim": 16,
            "projector_input_dim": 16,
            "projector_output_dim": 16,
        },
    },
}

LLAMA_CPP = ("llama4", "llama4_128e")
