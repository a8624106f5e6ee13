"""Tiny checkpoints of ``chatglm``: of GLM-4 as transformers has it, and of ChatGLM's own code."""

from __future__ import annotations

VARIANTS = {
    "chatglm_glm4": {
        "architectures": ["GlmForCausalLM"],
        "model_type": "glm",
        "hidden_size": 64,
        "intermediate_size": 160,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "max_position_embeddings": 256,
        "vocab_size": 512,
        "rms_norm_eps": 1e-5,
        "attention_bias": True,
        "partial_rotary_factor": 0.5,
        "rope_theta": 10000.0,
        "pad_token_id": 0,
    },
    "chatglm": {
        "architectures": ["ChatGLMModel"],
        "model_type": "chatglm",
        "hidden_size": 64,
        "ffn_hidden_size": 160,
        "num_layers": 3,
        "num_attention_heads": 4,
        "multi_query_attention": True,
        "multi_query_group_num": 2,
        "kv_channels": 16,
        "seq_length": 256,
        "vocab_size": 512,
        "padded_vocab_size": 512,
        "layernorm_epsilon": 1.5625e-07,
        "rope_ratio": 50,
        "add_qkv_bias": True,
        "add_bias_linear": False,
        "post_layer_norm": True,
        "rmsnorm": True,
    },
}
SHAPES = {
    "chatglm": {
        "transformer.embedding.word_embeddings.weight": [512, 64],
        "transformer.encoder.layers.{i}.input_layernorm.weight": [64],
        "transformer.encoder.layers.{i}.self_attention.query_key_value.weight": [128, 64],
        "transformer.encoder.layers.{i}.self_attention.query_key_value.bias": [128],
        "transformer.encoder.layers.{i}.self_attention.dense.weight": [64, 64],
        "transformer.encoder.layers.{i}.post_attention_layernorm.weight": [64],
        "transformer.encoder.layers.{i}.mlp.dense_h_to_4h.weight": [320, 64],
        "transformer.encoder.layers.{i}.mlp.dense_4h_to_h.weight": [64, 160],
        "transformer.encoder.final_layernorm.weight": [64],
        "transformer.output_layer.weight": [512, 64],
    }
}
LLAMA_CPP = ("chatglm", "chatglm_glm4")
DIFFERENT = {"chatglm_glm4": ("context_length",)}  # llama.cpp writes the embedding's size
