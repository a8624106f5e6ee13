"""Tiny checkpoints of ``falcon``."""

from __future__ import annotations

VARIANTS = {
    "falcon_7b": {
        "architectures": ["FalconForCausalLM"],
        "model_type": "falcon",
        "hidden_size": 64,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "max_position_embeddings": 256,
        "vocab_size": 512,
        "multi_query": True,
        "bos_token_id": 0,
        "eos_token_id": 0,
    },
}
VARIANTS["falcon_40b"] = VARIANTS["falcon_7b"] | {
    "new_decoder_architecture": True,
    "num_kv_heads": 2,
}
VARIANTS["falcon_11b"] = VARIANTS["falcon_40b"] | {
    "num_ln_in_parallel_attn": 1,
    "ffn_hidden_size": 160,
}
VARIANTS["falcon_rw"] = VARIANTS["falcon_7b"] | {
    "multi_query": False,
    "parallel_attn": False,
    "bias": True,
    "alibi": True,
}
VARIANTS["falcon_relu"] = VARIANTS["falcon_rw"] | {
    "parallel_attn": True,
    "alibi": False,
    "activation": "relu",
}

LLAMA_CPP = (
    "falcon_11b",
    "falcon_40b",
    "falcon_7b",
)

# llama.cpp writes a fixed context length, 4 * n_embd, and a layout that no code reads
DIFFERENT = {
    "falcon_40b": ("context_length", "tensor_data_layout"),
    "falcon_11b": ("context_length", "tensor_data_layout", "feed_forward_length"),
}
