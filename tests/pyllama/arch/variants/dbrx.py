"""Tiny checkpoints of ``dbrx``."""

from __future__ import annotations

VARIANTS = {
    "dbrx": {
        "architectures": ["DbrxForCausalLM"],
        "model_type": "dbrx",
        "d_model": 64,
        "n_heads": 4,
        "n_layers": 3,
        "max_seq_len": 256,
        "vocab_size": 512,
        "attn_config": {"clip_qkv": 2.0, "kv_n_heads": 2, "rope_theta": 10000.0},
        "ffn_config": {
            "ffn_act_fn": {"name": "silu"},
            "ffn_hidden_size": 96,
            "moe_num_experts": 8,
            "moe_top_k": 3,
            "moe_normalize_expert_weights": 1.0,
        },
        "tie_word_embeddings": False,
    }
}

LLAMA_CPP = ("dbrx",)
