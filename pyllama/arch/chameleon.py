"""Chameleon (text): LLaMA with layer norms of the heads of queries and keys.

In the model of 34B, norms follow attention and feed-forward part (``swin_norm``).
Tokens of images have logits that are never chosen, so that only text is made.
Source: Chameleon Team 2024, "Chameleon: Mixed-Modal Early-Fusion Foundation Models"; llama.cpp,
``llama_model_chameleon``.
"""

from __future__ import annotations

import pyggml as ops
from pyggml.tensor import Tensor

from ..graph.builder import EXCLUDED, GraphBuilder
from ..graph.decoder import pre_norm_decoder
from ..graph.ffn import ffn
from ..graph.tensors import OUTPUT, QKV, tensors
from ..hparams import Key, Values
from ..mapping.rules import Array, Config, Convert, Keys, Tensors, interleave_rope
from . import command_r, llama

FIRST_IMAGE_TOKEN, END_OF_IMAGE_TOKENS = 4, 8196
_QK_EPS = 1e-5

HPARAMS: Values = {"swin_norm": Key("swin_norm", False)}

TENSORS = tensors(
    {
        "blk.{i}.attn_norm.weight": ("n_embd",),
        **QKV,
        "blk.{i}.attn_q_norm.weight": ("head_dim", "n_head"),
        "blk.{i}.attn_q_norm.bias?": ("head_dim", "n_head"),
        "blk.{i}.attn_k_norm.weight": ("head_dim", "n_head_kv"),
        "blk.{i}.attn_k_norm.bias?": ("head_dim", "n_head_kv"),
        "blk.{i}.attn_output.*?": ("n_embd_out", "n_embd"),
        "blk.{i}.ffn_norm.weight": ("n_embd",),
        "blk.{i}.ffn_gate.*?": ("n_embd", "n_ff"),
        "blk.{i}.ffn_up.*?": ("n_embd", "n_ff"),
        "blk.{i}.ffn_down.*?": ("n_ff", "n_embd"),
        **OUTPUT,
    }
)


def build_graph(b: GraphBuilder) -> Tensor:
    """The graph of one ubatch; returns the logits [n_vocab, n_outputs]."""
    result = _swin(b) if b.hparams.own["swin_norm"] else pre_norm_decoder(b, _attention)
    if b.logits is None or result.ne[0] < END_OF_IMAGE_TOKENS:
        return result
    n, row = END_OF_IMAGE_TOKENS - FIRST_IMAGE_TOKEN, result.nb[1]
    offset = FIRST_IMAGE_TOKEN * result.nb[0]
    images = ops.view_2d(b.ctx, result, n, result.ne[1], row, offset)
    images = ops.clamp(b.ctx, images, EXCLUDED, EXCLUDED).set_name("img_logits")
    b.logits = ops.set_2d(b.ctx, result, images, row, offset).set_name("result_text")
    return b.logits


def _attention(b: GraphBuilder, x: Tensor, i: int) -> Tensor:
    q, k, v = command_r.qkv(b, x, i, _QK_EPS)
    return b.attention(b.rope(q, f"Qcur-{i}", i), b.rope(k, f"Kcur-{i}", i), v, i)


def _swin(b: GraphBuilder) -> Tensor:
    """All layers and the logits with norms after attention and feed-forward part."""
    inp = b.embed("token_embd.weight")  # [n_embd, T]
    for i in range(b.hparams.n_layer):
        cur, inp = b.select_outputs(i, _attention(b, inp, i), inp)
        cur = b.linear(cur, f"blk.{i}.attn_output", f"attn_out-{i}")
        cur = b.rms_norm(cur, f"blk.{i}.attn_norm", f"attn_norm-{i}")
        inp = ops.add(b.ctx, cur, inp).set_name(f"ffn_inp-{i}")
        cur = b.rms_norm(ffn(b, inp, i, "silu"), f"blk.{i}.ffn_norm", f"ffn_norm-{i}")
        inp = b.layer_output(ops.add(b.ctx, cur, inp), i)
    return b.output(b.rms_norm(inp, "output_norm", "result_norm"))


def _keys(config: Config) -> Keys:
    return llama.keys(config) | {"swin_norm": bool(config.get("swin_norm"))}


def _change(name: str, x: Array, config: Config) -> Tensors:
    if "_norm." in name and x.ndim == 2:  # of the heads of queries or keys
        return {name: interleave_rope(x.reshape(-1), len(x)).reshape(x.shape)}
    return llama.change(name, x, config)


CONVERT = Convert(
    models=("ChameleonForConditionalGeneration", "ChameleonForCausalLM"),
    tensors={
        **llama.CONVERT.tensors,
        "model.layers.{i}.self_attn.q_norm.*": "blk.{i}.attn_q_norm.*",
        "model.layers.{i}.self_attn.k_norm.*": "blk.{i}.attn_k_norm.*",
    },
    keys=_keys,
    change=_change,
    defaults={"num_key_value_heads": 32},
    other_media=("model.vqmodel.*",),
)
