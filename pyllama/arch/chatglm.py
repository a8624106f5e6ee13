"""ChatGLM and GLM-4: LLaMA's layers with gate and up in one matrix, rope of half a head.

Source: Zeng et al. 2024, "ChatGLM: A Family of Large Language Models from GLM-130B to GLM-4 All
Tools"; llama.cpp, ``llm_build_chatglm``.
"""

from __future__ import annotations

from ..graph.tensors import OUTPUT, QKV, tensors, without
from ..hparams import Values
from ..mapping.rules import Config, Convert, Keys, base_keys, check_config, float32
from . import llama

HPARAMS: Values = {}

TENSORS = tensors(
    {
        "blk.{i}.attn_norm.weight": ("n_embd",),
        **QKV,
        "blk.{i}.attn_output.weight": ("n_embd_out", "n_embd"),
        "blk.{i}.ffn_norm.weight": ("n_embd",),
        "blk.{i}.ffn_up.weight": ("n_embd", "2*n_ff"),  # gate and up
        "blk.{i}.ffn_down.weight": ("n_ff", "n_embd"),
        **OUTPUT,
    }
)
build_graph = llama.build_graph


def _keys(config: Config) -> Keys:
    check_config(
        config, post_layer_norm=True, rmsnorm=True, add_bias_linear=False,
        apply_residual_connection_post_layernorm=False,
    )  # fmt: skip
    keys = base_keys(config, "silu")
    head_dim = int(config.get("kv_channels") or 0) or keys.get("attention.key_length")
    if head_dim is None:
        head_dim = keys["embedding_length"] // keys["attention.head_count"]
    if config.get("multi_query_group_num"):
        keys["attention.head_count_kv"] = int(config["multi_query_group_num"])
    for key, name in (
        ("context_length", "seq_length"),
        ("attention.layer_norm_rms_epsilon", "layernorm_epsilon"),
    ):
        if config.get(name) is not None:
            keys[key] = float32(config[name]) if "epsilon" in key else int(config[name])
    base = 10000.0 * float(config.get("rope_ratio") or 1)
    return {"rope.dimension_count": head_dim // 2, "rope.freq_base": base} | keys


_HF = {
    **without(llama.CONVERT.tensors, ".mlp."),
    "model.layers.{i}.mlp.gate_up_proj.weight": "blk.{i}.ffn_up.weight",
    "model.layers.{i}.mlp.down_proj.weight": "blk.{i}.ffn_down.weight",
}
_THUDM = {
    "embedding.word_embeddings.weight": "token_embd.weight",
    "encoder.layers.{i}.input_layernorm.weight": "blk.{i}.attn_norm.weight",
    "encoder.layers.{i}.self_attention.query_key_value.*": "blk.{i}.attn_qkv.*",
    "encoder.layers.{i}.self_attention.dense.weight": "blk.{i}.attn_output.weight",
    "encoder.layers.{i}.post_attention_layernorm.weight": "blk.{i}.ffn_norm.weight",
    "encoder.layers.{i}.mlp.dense_h_to_4h.weight": "blk.{i}.ffn_up.weight",
    "encoder.layers.{i}.mlp.dense_4h_to_h.weight": "blk.{i}.ffn_down.weight",
    "encoder.final_layernorm.weight": "output_norm.weight",
    "output_layer.weight": "output.weight",
}
CONVERT = Convert(
    models=("GlmForCausalLM", "ChatGLMModel", "ChatGLMForConditionalGeneration"),
    tensors=_HF | {f"transformer.{name}": x for name, x in _THUDM.items()},
    keys=_keys,
    of_class={
        "GlmForCausalLM": {"head_dim": 128, "num_key_value_heads": 2, "rms_norm_eps": 1.5625e-7}
    },
    ignored=("*.rotary_emb.inv_freq", "*.rotary_pos_emb.inv_freq"),
)
