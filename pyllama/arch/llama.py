"""LLaMA: RMS norm, rotary attention with grouped keys and values, SwiGLU.

Also Mistral, SmolLM, TinyLlama and others that GGUF files call ``llama``. Biases are optional.
Without ``output.weight`` the embedding is tied. With ``expert_count`` the feed-forward part is a
mixture of experts (Mixtral).
Source: Touvron et al. 2023, "LLaMA"; Jiang et al. 2023, "Mistral 7B"; llama.cpp,
``llm_build_llama``.
"""

from __future__ import annotations

from functools import partial

import pyggml as ops
from pyggml.tensor import Tensor

from ..graph.attention.factors import attention_gate
from ..graph.builder import ROPE_FACTORS, GraphBuilder
from ..graph.decoder import pre_norm_decoder
from ..graph.ffn import ffn
from ..graph.tensors import EXPERTS, OUTPUT, QKV, tensors
from ..hparams import Key, Values
from ..mapping.rules import (
    HF_QKV,
    OTHER_MEDIA,
    Array,
    Config,
    Convert,
    Keys,
    Tensors,
    base_keys,
    head_columns,
    interleave_rope,
    kv_heads,
    split_qkv,
)

HPARAMS: Values = {"n_swa": Key("attention.sliding_window", 0), "swa_period": 0}

TENSORS = tensors(
    {  # a layer's weights in the order of their use
        "blk.{i}.attn_norm.weight": ("n_embd",),
        **QKV,
        "blk.{i}.attn_output.*?": ("n_embd_out", "n_embd"),
        "blk.{i}.ffn_norm.weight": ("n_embd",),
        "blk.{i}.ffn_gate.*?": ("n_embd", "n_ff"),
        "blk.{i}.ffn_up.*?": ("n_embd", "n_ff"),
        "blk.{i}.ffn_down.*?": ("n_ff", "n_embd"),
        **EXPERTS,
        **ROPE_FACTORS,
        **OUTPUT,
    }
)


def decoder(
    b: GraphBuilder, act: str, up_act: str = "", temperature: Tensor | None = None,
    ffn_norm: str = "ffn_norm", gate: str = "",
) -> Tensor:  # fmt: skip
    """All layers and the logits of models with RMS norms.

    Args:
        act, up_act: activations, see ``graph.ffn.ffn``.
        temperature: a factor of each token's queries, or None.
        ffn_norm: the name of the feed-forward part's norm.
        gate: activation of the gate on attention's output (``attention_gate``); empty for none.

    Shape:
        temperature [1, 1, T] -> [n_vocab, n_outputs]
    """

    def attention(b: GraphBuilder, x: Tensor, i: int) -> Tensor:
        q, k, v = b.qkv(x, i)
        q, k = b.rope(q, f"Qcur-{i}", i), b.rope(k, f"Kcur-{i}", i)
        if temperature is not None:
            q = ops.mul(b.ctx, q, temperature).set_name(f"Qcur_attn_temp_scaled-{i}")
        cur = b.attention(q, k, v, i)
        return attention_gate(b, cur, x, i, gate) if gate else cur

    return pre_norm_decoder(b, attention, partial(ffn, act=act, up_act=up_act), ffn_norm)


build_graph = partial(decoder, act="silu")

_PLAIN = (
    ["LlamaForCausalLM"],
    ["LlamaModel"],
)  # have no sliding window, even if config.json has one


def keys(config: Config, act: str = "silu") -> Keys:
    """The keys of LLaMA, and of architectures with the same config.json.

    Args:
        act: the activation that the graph has by default.
    """
    head_dim = head_columns(config)
    found = {
        "vocab_size": config["vocab_size"],
        "rope.dimension_count": head_dim,
        "attention.key_length": head_dim,
        "attention.value_length": head_dim,
    }
    found |= base_keys(config, act)
    if config.get("sliding_window") and config.get("architectures") not in _PLAIN:
        found["attention.sliding_window"] = int(config["sliding_window"])
    return found


PTH_LAYOUT = {"tensor_data_layout": "Meta AI original pth"}  # rope on adjacent pairs


def change(name: str, x: Array, config: Config) -> Tensors:
    """Order the rows of queries and keys for rope on adjacent pairs."""
    heads = {"attn_q": config["num_attention_heads"], "attn_k": kv_heads(config)}
    part = name.split(".")[-2]
    return {name: interleave_rope(x, heads[part]) if part in heads else x}


def change_fused(name: str, x: Array, config: Config) -> Tensors:
    """``change`` of a matrix that has all of Q first, then K, then V."""
    parts = split_qkv(name, x, int(config["num_attention_heads"]), kv_heads(config))
    return {k: v for part in parts.items() for k, v in change(*part, config).items()}


def _accepts(config: Config) -> bool:
    if "LlavaForConditionalGeneration" in config["architectures"]:  # of any text model
        return config.get("model_type") in ("llava", "llama", "mistral", "pixtral")
    return not config.get("draft_vocab_size")  # eagle3


_LLAVA = {  # config.json of LLaVA has only what differs from LLaMA 7B
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "max_position_embeddings": 2048,
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "rms_norm_eps": 1e-6,
}
CONVERT = Convert(
    models=(
        "LlamaForCausalLM",
        "LLaMAForCausalLM",  # of the first conversions
        "LlamaModel",
        "InternLM3ForCausalLM",
        "JanusForConditionalGeneration",
        "LlavaForConditionalGeneration",
        "VLlama3ForCausalLM",  # of SmolVLM
        "VoxtralForConditionalGeneration",
        "IQuestCoderForCausalLM",
        "MistralForCausalLM",
        "MistralModel",
        "MixtralForCausalLM",
    ),
    tensors={
        "model.embed_tokens.weight": "token_embd.weight",
        "model.layers.{i}.input_layernorm.weight": "blk.{i}.attn_norm.weight",
        **HF_QKV,
        "model.layers.{i}.self_attn.o_proj.*": "blk.{i}.attn_output.*",
        "model.layers.{i}.post_attention_layernorm.weight": "blk.{i}.ffn_norm.weight",
        "model.layers.{i}.mlp.gate_proj.*": "blk.{i}.ffn_gate.*",
        "model.layers.{i}.mlp.up_proj.*": "blk.{i}.ffn_up.*",
        "model.layers.{i}.mlp.down_proj.*": "blk.{i}.ffn_down.*",
        "model.layers.{i}.block_sparse_moe.gate.weight": "blk.{i}.ffn_gate_inp.weight",
        "model.layers.{i}.block_sparse_moe.experts.{e}.w1.weight": "blk.{i}.ffn_gate_exps.weight",
        "model.layers.{i}.block_sparse_moe.experts.{e}.w2.weight": "blk.{i}.ffn_down_exps.weight",
        "model.layers.{i}.block_sparse_moe.experts.{e}.w3.weight": "blk.{i}.ffn_up_exps.weight",
        "model.norm.weight": "output_norm.weight",
        "lm_head.weight": "output.weight",
    },
    keys=keys,
    change=change,
    of_class={
        "LlamaForCausalLM": {"rms_norm_eps": 1e-6},
        "LlavaForConditionalGeneration": _LLAVA,
        "VLlama3ForCausalLM": {"num_attention_heads": 32},
        "MistralForCausalLM": {
            "num_key_value_heads": 8,
            "rms_norm_eps": 1e-6,
            "sliding_window": 4096,
        },
        "MixtralForCausalLM": {
            "num_experts_per_tok": 2,
            "num_key_value_heads": 8,
            "rope_theta": 1000000.0,
        },
    },
    prefix="model.",
    other_media=(
        *OTHER_MEDIA,
        "model.aligner.*",
        "model.connector.*",
        "model.generation_*",
        "model.vqmodel.*",
        "*image_newline",
    ),
    accepts=_accepts,
)
