"""Encoder layers with norms after attention and feed-forward part, as in BERT.

    return post_norm_encoder(b, "gelu_erf")

Tokens attend to all of their text, or to a window of it; nothing is kept from one ubatch to the
next. The result is the embeddings of the tokens in ``out_ids``.
"""

from __future__ import annotations

import pyggml as ops
from pyggml.tensor import Tensor

from .builder import GraphBuilder
from .decoder import QKVOf
from .ffn import ffn


def post_norm_encoder(b: GraphBuilder, act: str, qkv: QKVOf = GraphBuilder.qkv) -> Tensor:
    """All layers, with a layer norm after attention and one after the feed-forward part.

    Types and, if the model has them, learned positions of tokens are added to the embedding; the
    sum is normalized. Queries and keys are rotated if the model has rope. With ``attn_norm_2``, the
    layer's input is added to the norm after attention, and the sum normalized.

    Args:
        act: of the feed-forward part, which has a gate if the model has one.
        qkv: computes the queries, keys and values of a layer.

    Shape:
        -> [n_embd, n_embeddings]
    """
    inp = b.add_token_types(b.embed("token_embd.weight"))  # [n_embd, T]
    if "position_embd.weight" in b.weights:
        inp = b.add_positions(inp)
    inp = b.layer_norm(inp, "token_embd_norm", "inp_norm")
    for i in range(b.hparams.n_layer):
        q, k, v = qkv(b, inp, i)
        cur = b.attention(b.rope(q, f"Qcur-{i}", i), b.rope(k, f"Kcur-{i}", i), v, i)
        cur, inp = b.select_outputs(i, cur, inp)  # of wanted embeddings
        cur = b.linear(cur, f"blk.{i}.attn_output", f"attn_out-{i}", residual=inp)
        cur = b.layer_norm(cur, f"blk.{i}.attn_output_norm", f"attn_out_norm-{i}")
        if f"blk.{i}.attn_norm_2.weight" in b.weights:
            cur = ops.add(b.ctx, cur, inp).set_name(f"attn_out_norm_res-{i}")
            cur = b.layer_norm(cur, f"blk.{i}.attn_norm_2", f"attn_norm_2-{i}")
        cur = ffn(b, cur, i, act, residual=cur)
        inp = b.layer_norm(cur, f"blk.{i}.layer_output_norm", f"l_out-{i}")
    return b.output(inp)
