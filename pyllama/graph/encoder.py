"""The layers of encoders: BERT and those that share parts of it.

    inp = b.add_token_types(b.embed("token_embd.weight"))
    return post_norm_encoder(b, b.layer_norm(inp, "token_embd_norm", "inp_norm"), "gelu_erf")

Tokens attend to all of their text, or to a window of it; nothing is kept from one ubatch to the
next. The result is the embeddings of the tokens in ``out_ids``.
"""

from __future__ import annotations

from pyggml.tensor import Tensor

from .builder import GraphBuilder
from .ffn import ffn


def post_norm_encoder(b: GraphBuilder, inp: Tensor, act: str) -> Tensor:
    """All layers, with a layer norm after attention and one after the feed-forward part.

    Queries and keys are rotated if the model has rope.

    Args:
        act: of the feed-forward part, which has a gate if the model has one.

    Shape:
        inp [n_embd, T] -> [n_embd, n_embeddings]
    """
    for i in range(b.hparams.n_layer):
        cur = b.self_attention(inp, i)
        cur, inp = b.select_outputs(i, cur, inp)  # of wanted embeddings
        cur = b.linear(cur, f"blk.{i}.attn_output", f"attn_out-{i}", residual=inp)
        inp = b.layer_norm(cur, f"blk.{i}.attn_output_norm", f"attn_out_norm-{i}")
        cur = ffn(b, inp, i, act, residual=inp)
        inp = b.layer_norm(cur, f"blk.{i}.layer_output_norm", f"l_out-{i}")
    return b.output(inp)
