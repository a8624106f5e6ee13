"""Attention temperature: queries grow with the logarithm of their position.

q = ops.mul(ctx, q, attn_temperature(b, 0.1, every=8192))    # q [head_dim, n_head, T]

Source: Nakanishi 2025, "Scalable-Softmax Is Superior for Attention"; llama.cpp,
``llm_graph_input_attn_temp``.
"""

from __future__ import annotations

import pyggml as ops
from pyggml.dtype import GGMLType
from pyggml.tensor import Tensor

from .builder import GraphBuilder


def attn_temperature(b: GraphBuilder, scale: float, every: int, offset: int = 0) -> Tensor:
    """The factor ``1 + scale * log(1 + floor((position + offset) / every))`` of each token.

    Shape:
        F32 [1, 1, T]
    """
    ctx = b.ctx
    x = ops.cast(ctx, b.positions, GGMLType.F32)
    # half a position more: rounding does not cross a multiple of `every`
    x = ops.scale_bias(ctx, x, 1 / every, (offset + 0.5) / every)
    x = ops.log(ctx, ops.scale_bias(ctx, ops.floor(ctx, x), 1.0, 1.0))
    x = ops.scale_bias(ctx, x, scale, 1.0)
    return ops.reshape_3d(ctx, x, 1, 1, b.n_tokens).set_name("inp_attn_scale")
