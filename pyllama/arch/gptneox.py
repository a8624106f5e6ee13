"""GPT-NeoX and Pythia: layer norm, rope of a part of each head, one matrix for q, k and v, GELU.

Attention and feed-forward part are parallel (``parallel_residual``) or sequential.
Source: Black et al. 2022, "GPT-NeoX-20B"; llama.cpp, ``llm_build_gptneox``.
"""

from __future__ import annotations

from pyggml.tensor import Tensor

from ..graph.builder import ROPE_FACTORS, GraphBuilder
from ..graph.decoder import layer_norm_decoder
from ..graph.tensors import tensors
from ..hparams import Key, Values
from ..mapping.rules import Array, Config, Convert, Keys, Tensors, base_keys, regroup_qkv

HPARAMS: Values = {
    "norm_eps": Key("attention.layer_norm_epsilon"),
    "parallel_residual": Key("use_parallel_residual", True),
    "rope_neox": True,
}

TENSORS = tensors(
    {
        "blk.{i}.attn_norm.*": ("n_embd",),
        "blk.{i}.attn_qkv.*?": ("n_embd", "n_embd_qkv"),
        "blk.{i}.attn_output.*?": ("n_embd_out", "n_embd"),
        "blk.{i}.ffn_norm.*": ("n_embd",),
        "blk.{i}.ffn_up.*": ("n_embd", "n_ff"),
        "blk.{i}.ffn_down.*": ("n_ff", "n_embd"),
        **ROPE_FACTORS,
        "output_norm.*": ("n_embd",),
        "token_embd.weight": ("n_embd", "n_vocab"),
        "output.weight?": ("n_embd", "n_vocab"),
    }
)


def build_graph(b: GraphBuilder) -> Tensor:
    """The graph of one ubatch; returns the logits [n_vocab, n_outputs]."""
    return layer_norm_decoder(b, "gelu", parallel=b.hparams.parallel_residual)


def _keys(config: Config) -> Keys:
    parallel = {"use_parallel_residual": bool(config.get("use_parallel_residual", True))}
    return base_keys(config, "gelu") | parallel


def _change(name: str, x: Array, config: Config) -> Tensors:
    heads = config["num_attention_heads"]
    return {name: regroup_qkv(x, heads, heads) if ".attn_qkv." in name else x}


CONVERT = Convert(
    models=("GPTNeoXForCausalLM",),
    tensors={
        "gpt_neox.embed_in.weight": "token_embd.weight",
        "gpt_neox.layers.{i}.input_layernorm.*": "blk.{i}.attn_norm.*",
        "gpt_neox.layers.{i}.attention.query_key_value.*": "blk.{i}.attn_qkv.*",
        "gpt_neox.layers.{i}.attention.dense.*": "blk.{i}.attn_output.*",
        "gpt_neox.layers.{i}.post_attention_layernorm.*": "blk.{i}.ffn_norm.*",
        "gpt_neox.layers.{i}.mlp.dense_h_to_4h.*": "blk.{i}.ffn_up.*",
        "gpt_neox.layers.{i}.mlp.dense_4h_to_h.*": "blk.{i}.ffn_down.*",
        "gpt_neox.final_layer_norm.*": "output_norm.*",
        "embed_out.weight": "output.weight",
        "lm_head.weight": "output.weight",
    },
    keys=_keys,
    change=_change,
    defaults={"hidden_act": "gelu", "layer_norm_eps": 1e-5, "rotary_pct": 0.25},
    ignored=("*.rotary_emb.inv_freq", "*.attention.bias", "*.attention.masked_bias"),
)
