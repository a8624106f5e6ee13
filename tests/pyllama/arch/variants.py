"""Configurations of tiny checkpoints: the variants of each architecture that the tests convert.

    VARIANTS["llama"]["mixtral"]                   # a config.json

``record.py`` records what transformers computes with each; docs/architectures.md lists them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 160,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "vocab_size": 512,
    "rms_norm_eps": 1e-6,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
}
_MISTRAL = {
    **_LLAMA,
    "architectures": ["MistralForCausalLM"],
    "model_type": "mistral",
    "sliding_window": None,
}


def _scaled(**rope: Any) -> dict[str, Any]:
    return {**_LLAMA, "rope_parameters": {"rope_theta": 10000.0, **rope}}


LLAMA = {
    "llama": _LLAMA,
    "llama_biases": {
        **_LLAMA,
        "attention_bias": True,
        "mlp_bias": True,
        "tie_word_embeddings": True,
        "head_dim": 32,
    },
    "llama_relu": {**_LLAMA, "hidden_act": "relu", "num_key_value_heads": 4},
    "llama_relu2": {**_LLAMA, "hidden_act": "relu2"},
    "llama_linear": _scaled(rope_type="linear", factor=4.0),
    "llama_dynamic": _scaled(rope_type="dynamic", factor=2.0),
    "llama_llama3": _scaled(
        rope_type="llama3",
        factor=8.0,
        low_freq_factor=1.0,
        high_freq_factor=4.0,
        original_max_position_embeddings=32,
    ),
    "llama_yarn": _scaled(rope_type="yarn", factor=8.0, original_max_position_embeddings=32),
    "llama_yarn_attention": _scaled(
        rope_type="yarn",
        factor=4.0,
        original_max_position_embeddings=64,
        attention_factor=0.7,
        beta_fast=4.0,
        beta_slow=0.5,
    ),
    "llama_longrope": _scaled(
        rope_type="longrope",
        factor=16.0,
        original_max_position_embeddings=16,
        long_factor=[1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0],
        short_factor=[1.0, 1.0, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6],
    ),
    "llama_longrope_sizes": {
        **_scaled(
            rope_type="longrope",
            factor=4.0,
            original_max_position_embeddings=64,
            long_factor=[1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0],
            short_factor=[1.0, 1.0, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6],
        ),
        "original_max_position_embeddings": 16,
    },
    "mistral": {**_MISTRAL, "sliding_window": 16},
    "mixtral": {
        **_MISTRAL,
        "architectures": ["MixtralForCausalLM"],
        "model_type": "mixtral",
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
    },
}

BAMBOO = {
    "bamboo": LLAMA["llama"]
    | {"architectures": ["BambooForCausalLM"], "model_type": "bamboo", "hidden_act": "relu"}
}

BLOOM = {
    "bloom": {
        "architectures": ["BloomForCausalLM"],
        "model_type": "bloom",
        "hidden_size": 64,
        "n_layer": 3,
        "n_head": 4,
        "vocab_size": 512,
        "bos_token_id": 0,
        "eos_token_id": 2,
    },
}
BLOOM["bloom_6_heads"] = BLOOM["bloom"] | {
    "hidden_size": 96,
    "n_head": 6,
}  # no power of two: slopes

FALCON = {
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
FALCON["falcon_40b"] = FALCON["falcon_7b"] | {"new_decoder_architecture": True, "num_kv_heads": 2}
FALCON["falcon_11b"] = FALCON["falcon_40b"] | {"num_ln_in_parallel_attn": 1, "ffn_hidden_size": 160}
FALCON["falcon_rw"] = FALCON["falcon_7b"] | {
    "multi_query": False,
    "parallel_attn": False,
    "bias": True,
    "alibi": True,
}
FALCON["falcon_relu"] = FALCON["falcon_rw"] | {
    "parallel_attn": True,
    "alibi": False,
    "activation": "relu",
}

_GEMMA3: dict[str, Any] = {
    "architectures": ["Gemma3ForCausalLM"],
    "model_type": "gemma3_text",
    "hidden_size": 64,
    "intermediate_size": 160,
    "num_hidden_layers": 7,
    "num_attention_heads": 4,
    "num_key_value_heads": 1,
    "head_dim": 32,
    "max_position_embeddings": 256,
    "vocab_size": 512,
    "hidden_activation": "gelu_pytorch_tanh",
    "rms_norm_eps": 1e-6,
    "sliding_window": 16,
    "query_pre_attn_scalar": 32,
}
GEMMA3 = {
    "gemma3": {**_GEMMA3, "rope_theta": 1000000.0, "rope_local_base_freq": 10000.0},
    "gemma3_capped": {
        **_GEMMA3,
        "num_hidden_layers": 3,
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        "query_pre_attn_scalar": 20,
        "final_logit_softcapping": 3.0,
        "rope_parameters": {
            "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1000000.0},
            "sliding_attention": {"rope_type": "default", "rope_theta": 5000.0},
        },
    },
    "gemma3_vision": {
        "architectures": ["Gemma3ForConditionalGeneration"],
        "model_type": "gemma3",
        "text_config": {
            "model_type": "gemma3_text",
            "hidden_size": 64,
            "intermediate_size": 160,
            "num_hidden_layers": 7,
            "head_dim": 32,
            "vocab_size": 512,
            "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
            "sliding_window": 16,
        },
        "vision_config": {
            "model_type": "siglip_vision_model",
            "hidden_size": 16,
            "intermediate_size": 24,
            "num_hidden_layers": 1,
            "num_attention_heads": 2,
            "image_size": 16,
            "patch_size": 8,
        },
        "mm_tokens_per_image": 1,
    },
}

GPT2 = {
    "gpt2": {
        "architectures": ["GPT2LMHeadModel"],
        "model_type": "gpt2",
        "n_embd": 64,
        "n_layer": 3,
        "n_head": 4,
        "n_positions": 256,
        "vocab_size": 512,
        "bos_token_id": 0,
        "eos_token_id": 0,
    },
}
GPT2["gpt2_unscaled"] = GPT2["gpt2"] | {
    "scale_attn_weights": False,
    "activation_function": "relu",
    "n_inner": 160,
    "tie_word_embeddings": False,
}

_GPTNEOX = {
    "architectures": ["GPTNeoXForCausalLM"],
    "model_type": "gpt_neox",
    "hidden_size": 64,
    "intermediate_size": 160,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "max_position_embeddings": 256,
    "vocab_size": 512,
    "hidden_act": "gelu",
    "layer_norm_eps": 1e-5,
    "rotary_emb_base": 10000,
    "rotary_pct": 0.25,
    "use_parallel_residual": True,
}
GPTNEOX = {
    "gptneox": _GPTNEOX,
    "gptneox_sequential": {**_GPTNEOX, "use_parallel_residual": False, "rotary_pct": 1.0},
    "gptneox_no_biases": {**_GPTNEOX, "attention_bias": False, "hidden_act": "gelu_new"},
}

MPT = {
    "mpt": {
        "architectures": ["MptForCausalLM"],
        "model_type": "mpt",
        "d_model": 64,
        "n_heads": 4,
        "n_layers": 3,
        "max_seq_len": 256,
        "vocab_size": 512,
        "attn_config": {"clip_qkv": 0.7},
    },
}
MPT["mpt_6_heads"] = MPT["mpt"] | {
    "d_model": 96,
    "n_heads": 6,
    "attn_config": {"softmax_scale": 0.5},
}

OPT = {
    "opt": {
        "architectures": ["OPTForCausalLM"],
        "model_type": "opt",
        "hidden_size": 64,
        "word_embed_proj_dim": 64,
        "ffn_dim": 256,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "max_position_embeddings": 256,
        "vocab_size": 512,
        "bos_token_id": 2,
        "eos_token_id": 2,
    },
}
OPT["opt_post_norm"] = OPT["opt"] | {"word_embed_proj_dim": 32, "do_layer_norm_before": False}
OPT["opt_no_bias"] = OPT["opt"] | {"enable_bias": False, "activation_function": "gelu"}

PHI2 = {
    "phi2": {
        "architectures": ["PhiForCausalLM"],
        "model_type": "phi",
        "hidden_size": 64,
        "intermediate_size": 160,
        "num_hidden_layers": 3,
        "num_attention_heads": 2,
        "max_position_embeddings": 256,
        "vocab_size": 512,
        "hidden_act": "gelu_new",
        "layer_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "partial_rotary_factor": 0.5,
    },
}

_QWEN2 = {
    "architectures": ["Qwen2ForCausalLM"],
    "model_type": "qwen2",
    "hidden_size": 64,
    "intermediate_size": 160,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "vocab_size": 512,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-6,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1000000.0},
}
QWEN2 = {
    "qwen2": {**_QWEN2, "tie_word_embeddings": False},
    "qwen2_tied": {**_QWEN2, "tie_word_embeddings": True},
}

_QWEN3 = {
    **QWEN2["qwen2"],
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "head_dim": 32,
}
QWEN3 = {
    "qwen3": _QWEN3,
    "qwen3_biases": {**_QWEN3, "attention_bias": True, "tie_word_embeddings": True},
}

QWEN3MOE = {
    "qwen3moe": {
        **QWEN3["qwen3"],
        "architectures": ["Qwen3MoeForCausalLM"],
        "model_type": "qwen3_moe",
        "num_experts": 8,
        "num_experts_per_tok": 3,
        "moe_intermediate_size": 96,
        "norm_topk_prob": True,
    },
}

VARIANTS: Mapping[str, Mapping[str, Mapping[str, Any]]] = {
    "bamboo": BAMBOO,
    "bloom": BLOOM,
    "falcon": FALCON,
    "gemma3": GEMMA3,
    "gpt2": GPT2,
    "gptneox": GPTNEOX,
    "llama": LLAMA,
    "mpt": MPT,
    "opt": OPT,
    "phi2": PHI2,
    "qwen2": QWEN2,
    "qwen3": QWEN3,
    "qwen3moe": QWEN3MOE,
}
