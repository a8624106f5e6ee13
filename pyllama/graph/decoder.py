"""The layers of models with layer norms, from GPT-2 to StarCoder2.

return layer_norm_decoder(b, b.embed("token_embd.weight"), "gelu")
"""

from __future__ import annotations

from collections.abc import Callable

from pyggml.tensor import Tensor

from .builder import GraphBuilder
from .ffn import ffn

QKVOf = Callable[[GraphBuilder, Tensor, int], tuple[Tensor, Tensor, Tensor]]


def layer_norm_decoder(
    b: GraphBuilder, inp: Tensor, act: str, parallel: bool = False, qkv: QKVOf = GraphBuilder.qkv
) -> Tensor:
    """All layers and the output.

    Without ``ffn_norm``, attention and feed-forward part of a layer are parallel and share a norm.
    Without ``attn_norm``, attention reads the layer's input.

    Args:
        inp: the embeddings, with positions where they are learned.
        act: of the feed-forward part, which has a gate if the model has one.
        parallel: with ``ffn_norm``, it normalizes the layer's input, not attention's output.
        qkv: computes the queries, keys and values of a layer from its normed input.

    Shape:
        inp [n_embd, T] -> [n_vocab, n_outputs]
    """
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
