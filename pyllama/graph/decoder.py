"""The layers of most models: with RMS norms before each part, or with layer norms.

build_graph = partial(layer_norm_decoder, act="gelu")
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from pyggml.tensor import Tensor

from .builder import GraphBuilder
from .ffn import ffn

SWIGLU = partial(ffn, act="silu")
Part = Callable[[GraphBuilder, Tensor, int], Tensor]
QKVOf = Callable[[GraphBuilder, Tensor, int], tuple[Tensor, Tensor, Tensor]]


def pre_norm_decoder(
    b: GraphBuilder, attention: Part = GraphBuilder.self_attention,
    feed_forward: Callable[..., Tensor] = SWIGLU, ffn_norm: str = "ffn_norm",
    output_norm: str = "output_norm",
) -> Tensor:  # fmt: skip
    """All layers and the output of models with RMS norms.

    Args:
        attention: from a layer's normed input to the output of all heads, [n_embd_out, T].
        feed_forward: called as ``ffn``, with ``residual``.
        ffn_norm, output_norm: the names of these norms.

    Shape:
        -> [n_vocab, n_outputs]
    """
    inp = b.embed("token_embd.weight")  # [n_embd, T]
    for i in range(b.hparams.n_layer):
        cur = attention(b, b.rms_norm(inp, f"blk.{i}.attn_norm", f"attn_norm-{i}"), i)
        cur, inp = b.select_outputs(i, cur, inp)  # of wanted logits
        cur = b.linear(cur, f"blk.{i}.attn_output", f"attn_out-{i}", residual=inp)
        inp = cur.set_name(f"ffn_inp-{i}")
        cur = b.rms_norm(inp, f"blk.{i}.{ffn_norm}", f"ffn_norm-{i}")
        inp = b.layer_output(feed_forward(b, cur, i, residual=inp), i)
    return b.output(b.rms_norm(inp, output_norm, "result_norm"))


def layer_norm_decoder(
    b: GraphBuilder, act: str, inp: Tensor | None = None, parallel: bool = False,
    qkv: QKVOf = GraphBuilder.qkv,
) -> Tensor:  # fmt: skip
    """All layers and the output of models with layer norms, from GPT-2 to StarCoder2.

    Without ``ffn_norm``, attention and feed-forward part of a layer are parallel and share a norm.
    Without ``attn_norm``, attention reads the layer's input.

    Args:
        act: of the feed-forward part, which has a gate if the model has one.
        inp: the embeddings, such as those with learned positions; None for the tokens'.
        parallel: with ``ffn_norm``, it normalizes the layer's input, not attention's output.
        qkv: computes the queries, keys and values of a layer from its normed input.

    Shape:
        inp [n_embd, T] -> [n_vocab, n_outputs]
    """
    if inp is None:
        inp = b.embed("token_embd.weight")  # [n_embd, T]
    for i in range(b.hparams.n_layer):
        norm = inp
        if f"blk.{i}.attn_norm.weight" in b.weights:
            norm = b.layer_norm(inp, f"blk.{i}.attn_norm", f"attn_norm-{i}")
        q, k, v = qkv(b, norm, i)
        cur = b.attention(b.rope(q, f"Qcur-{i}", i), b.rope(k, f"Kcur-{i}", i), v, i)
        cur, inp, norm = b.select_outputs(i, cur, inp, norm)  # of wanted logits
        out = b.linear(cur, f"blk.{i}.attn_output", f"attn_out-{i}", residual=inp)
        if f"blk.{i}.ffn_norm.weight" in b.weights:
            norm = b.layer_norm(inp if parallel else out, f"blk.{i}.ffn_norm", f"ffn_norm-{i}")
        inp = b.layer_output(ffn(b, norm, i, act, residual=out), i)
    return b.output(b.layer_norm(inp, "output_norm", "result_norm"))
