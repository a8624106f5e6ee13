"""Tiny checkpoints of ``deepseek2-ocr``."""

from __future__ import annotations

NAME = "deepseek2-ocr"

VARIANTS = {
    "deepseek2-ocr": {
        "architectures": ["DeepseekOCRForCausalLM"],
        "model_type": "deepseek_vl_v2",
        "hidden_size": 64,
        "intermediate_size": 160,
        "moe_intermediate_size": 96,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "max_position_embeddings": 256,
        "vocab_size": 512,
        "rms_norm_eps": 1e-6,
        "first_k_dense_replace": 1,
        "n_routed_experts": 4,
        "n_shared_experts": 2,
        "num_experts_per_tok": 2,
        "topk_method": "greedy",
        "use_mla": False,
        "q_lora_rank": None,
        "kv_lora_rank": None,
        "qk_nope_head_dim": 0,
        "qk_rope_head_dim": 0,
        "v_head_dim": 0,
    },
}

LLAMA_CPP = ("deepseek2-ocr",)


def _of_layer(i: int) -> dict[str, list[int]]:
    mlps = {"mlp": 160} if i == 0 else {f"mlp.experts.{e}": 96 for e in range(4)}
    if i > 0:
        mlps["mlp.shared_experts"] = 192
    shapes = {
        "input_layernorm.weight": [64],
        **{f"self_attn.{part}_proj.weight": [64, 64] for part in "qkvo"},
        "post_attention_layernorm.weight": [64],
        **({"mlp.gate.weight": [4, 64]} if i > 0 else {}),
        **{
            f"{mlp}.{part}_proj.weight": [64, n] if part == "down" else [n, 64]
            for mlp, n in mlps.items()
            for part in ("gate", "up", "down")
        },
    }
    return {f"model.layers.{i}.{name}": shape for name, shape in shapes.items()}


SHAPES = {
    "deepseek2-ocr": {
        "model.embed_tokens.weight": [512, 64],
        **_of_layer(0),
        **_of_layer(1),
        **_of_layer(2),
        "model.norm.weight": [64],
        "lm_head.weight": [512, 64],
    },
}
