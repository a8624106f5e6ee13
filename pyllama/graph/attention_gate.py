"""A gate on the output of attention: a factor of each head, or of each element.

    cur = attention_gate(b, b.attention(q, k, v, i), x, i, "sigmoid")

Source: Qiu et al. 2025, "Gated Attention for Large Language Models"; llama.cpp, ``wqkv_gate``.
"""

from __future__ import annotations

import pyggml as ops
from pyggml.tensor import Tensor

from .builder import GraphBuilder


def attention_gate(b: GraphBuilder, out: Tensor, x: Tensor, i: int, act: str) -> Tensor:
    """``out * act(attn_gate @ x)``; the rows of ``attn_gate`` are heads or elements.

    Shape:
        out [n_embd_out, T], x [n_embd, T] of the layer's norm -> [n_embd_out, T]
    """
    ctx, (n_out, n_tokens) = b.ctx, out.ne[:2]
    gate = ops.unary(ctx, b.linear(x, f"blk.{i}.attn_gate", f"attn_gate-{i}"), act)
    n_gates = gate.ne[0]
    if n_gates < n_out:
        out = ops.reshape_3d(ctx, out, n_out // n_gates, n_gates, n_tokens)
        gate = ops.reshape_3d(ctx, gate, 1, n_gates, n_tokens)
    out = ops.reshape_2d(ctx, ops.mul(ctx, out, gate), n_out, n_tokens)
    return out.set_name(f"attn_gated-{i}")
