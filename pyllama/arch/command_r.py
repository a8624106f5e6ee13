"""Command R: parallel attention and SwiGLU with one layer norm without bias, scaled logits.

Command R+ normalizes queries and keys, with weights for each head.
Source: Cohere 2024, "Command R"; llama.cpp, ``llm_build_command_r``.
"""

from __future__ import annotations

from functools import partial

from pyggml.tensor import Tensor

from ..graph.builder import GraphBuilder
from ..graph.decoder import layer_norm_decoder
from ..graph.tensors import GATED_FFN, OUTPUT, QKV, tensors, without
from ..hparams import Key, Values
from ..mapping.rules import Config, Convert, Keys, base_keys
from . import qwen2

NAME = "command-r"

HPARAMS: Values = {
    "norm_eps": Key("attention.layer_norm_epsilon"),
    "logit_scale": Key("logit_scale", 1.0),
}

TENSORS = tensors(
    {
        "blk.{i}.attn_norm.weight": ("n_embd",),
        **QKV,
        "blk.{i}.attn_q_norm.weight?": ("head_dim", "n_head"),
        "blk.{i}.attn_k_norm.weight?": ("head_dim", "n_head_kv"),
        "blk.{i}.attn_output.*?": ("n_embd_out", "n_embd"),
        **GATED_FFN,
        **OUTPUT,
    }
)


def qkv(b: GraphBuilder, x: Tensor, i: int, eps: float = 0.0) -> tuple[Tensor, Tensor, Tensor]:
    """``b.qkv`` with optional layer norms of queries and keys, whose weights differ between heads.

    Args:
        eps: of these norms; 0: the model's.

    Shape:
        as of ``GraphBuilder.project_qkv``
    """
    q, k, v = b.project_qkv(x, i)
    if f"blk.{i}.attn_q_norm.weight" in b.weights:
        q = b.layer_norm(q, f"blk.{i}.attn_q_norm", f"Qcur_normed-{i}", eps)
    if f"blk.{i}.attn_k_norm.weight" in b.weights:
        k = b.layer_norm(k, f"blk.{i}.attn_k_norm", f"Kcur_normed-{i}", eps)
    return q, k, v


build_graph = partial(layer_norm_decoder, act="silu", qkv=qkv)


def keys(config: Config) -> Keys:
    """The keys of Cohere's models."""
    context = config.get("model_max_length") or config["max_position_embeddings"]
    return (
        {"rope.scaling.type": "none"}
        | base_keys(config, "silu")
        | {"logit_scale": float(config["logit_scale"]), "context_length": int(context)}
    )


CONVERT = Convert(
    models=("CohereForCausalLM",),
    tensors={
        **without(qwen2.CONVERT.tensors, "post_attention"),
        "model.layers.{i}.self_attn.o_proj.*": "blk.{i}.attn_output.*",
        "model.layers.{i}.self_attn.q_norm.weight": "blk.{i}.attn_q_norm.weight",
        "model.layers.{i}.self_attn.k_norm.weight": "blk.{i}.attn_k_norm.weight",
    },
    defaults={
        "layer_norm_eps": 1e-5,
        "logit_scale": 0.0625,
        "rope_theta": 500000.0,
        "tie_word_embeddings": True,
    },
    keys=keys,
)
