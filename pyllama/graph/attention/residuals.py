"""Attention residuals: a part of a layer reads a softmax over the outputs of blocks of layers.

    cur = attend_blocks(b, blocks, x, f"blk.{i}.attn_res_score", i)
    blocks = append_block(b, blocks, x)            # where a block of layers begins

A block's output is the residual stream at its end. The scores are products of a weight with the
normed terms; the sum is of the terms themselves.
Source: Kimi Team 2026, "Attention Residuals"; llama.cpp, ``llama_model_kimi_k3::graph::res_mix``.
"""

from __future__ import annotations

from functools import partial, reduce

import pyggml as ops
from pyggml.tensor import Tensor

from ..builder import GraphBuilder


def append_block(b: GraphBuilder, blocks: Tensor | None, x: Tensor) -> Tensor:
    """The outputs of all blocks so far.

    Shape:
        blocks [n_embd * n_blocks, T], x [n_embd, T] -> [n_embd * (n_blocks + 1), T]
    """
    return x if blocks is None else ops.concat(b.ctx, blocks, x, 0)


def attend_blocks(b: GraphBuilder, blocks: Tensor | None, x: Tensor, prefix: str, i: int) -> Tensor:
    """The sum of the blocks' outputs and the residual stream, weighted by the softmax of scores.

    Args:
        blocks: from `append_block`; None in the first block, whose sum is ``x``.
        prefix: of the weight's name.
        i: the layer, for names of nodes.

    Shape:
        x [n_embd, T] -> the same
    """
    if blocks is None:
        return x
    ctx, (n_embd, n_tokens) = b.ctx, x.ne[:2]
    terms = append_block(b, blocks, x)
    n = terms.ne[0] // n_embd
    terms = ops.reshape_3d(ctx, terms, n_embd, n, n_tokens)
    scores = ops.sum_rows(ctx, b.rms_norm(terms, prefix, f"res_norm-{i}"))  # [1, n, T]
    probs = ops.soft_max(ctx, ops.reshape_2d(ctx, scores, n, n_tokens)).set_name(f"res_probs-{i}")
    terms = ops.mul(ctx, terms, ops.reshape_3d(ctx, probs, 1, n, n_tokens))
    size, row = terms.nb[1:3]
    parts = [ops.view_2d(ctx, terms, n_embd, n_tokens, row, k * size) for k in range(n)]
    return reduce(partial(ops.add, ctx), parts).set_name(f"res_mix-{i}")
