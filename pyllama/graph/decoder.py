"""The layers of models with layer norms, from GPT-2 to StarCoder2.

return layer_norm_decoder(b, b.embed("token_embd.weight"), "gelu")
"""

from __future__ import annotations

from pyggml.tensor import Tensor

from .builder import GraphBuilder
from .ffn import ffn


def layer_norm_decoder(b: GraphBuilder, inp: Tensor, act: str, parallel: bool = False) -> Tensor:
    """All layers and the output.

    Args:
        inp: the embeddings, with positions where they are learned.
        act: of the feed-forward part, which has a gate if the model has one.
        parallel: both parts of a layer read its input.

    Shape:
        inp [n_embd, T] -> [n_vocab, n_outputs]
    """
    n_layer = b.hparams.n_layer
    for i in range(n_layer):
        cur = b.layer_norm(inp, f"blk.{i}.attn_norm", f"attn_norm-{i}")
        q, k, v = b.qkv(cur, i)
        cur = b.attention(b.rope(q, f"Qcur-{i}", i), b.rope(k, f"Kcur-{i}", i), v, i)
        if i == n_layer - 1:  # the rest is for tokens whose logits are wanted
            cur, inp = b.select_outputs(cur), b.select_outputs(inp)
        out = b.linear(cur, f"blk.{i}.attn_output", f"attn_out-{i}", residual=inp)
        cur = b.layer_norm(inp if parallel else out, f"blk.{i}.ffn_norm", f"ffn_norm-{i}")
        inp = ffn(b, cur, i, act, residual=out).set_name(f"l_out-{i}")
    return b.output(b.layer_norm(inp, "output_norm", "result_norm"))
