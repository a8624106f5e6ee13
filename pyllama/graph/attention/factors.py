"""Factors of attention: a gate on its output, and a temperature of its queries.

    cur = attention_gate(b, b.attention(q, k, v, i), x, i, "sigmoid")
    cur = attention_of_gated_queries(b, x, i)
    q = ops.mul(ctx, q, attn_temperature(b, 0.1, every=8192))    # q [head_dim, n_head, T]

Source: Qiu et al. 2025, "Gated Attention for Large Language Models"; Nakanishi 2025,
"Scalable-Softmax Is Superior for Attention"; llama.cpp, ``wqkv_gate`` and
``llm_graph_input_attn_temp``.
"""

from __future__ import annotations

import pyggml as ops
from pyggml.dtype import GGMLType
from pyggml.tensor import Tensor

from ..builder import GraphBuilder


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


def attention_of_gated_queries(
    b: GraphBuilder, x: Tensor, i: int, chosen: Tensor | None = None
) -> Tensor:
    """The attention of layer ``i`` whose ``attn_q`` also makes the gates, after each head's query.

    From its normed input to its output projection.

    Args:
        chosen: as of ``GraphBuilder.attention``.

    Source: llama.cpp, ``llama_model_qwen3next::build_layer_attn``.

    Shape:
        x [n_embd, T] -> the same
    """
    ctx, hp, n_tokens = b.ctx, b.hparams.of_layer(i), b.n_tokens
    n, n_head = hp.head_dim, hp.n_head
    both = b.linear(x, f"blk.{i}.attn_q", f"Qcur_full-{i}")  # [2 * head_dim * n_head, T]
    q, gate = (
        ops.view_3d(ctx, both, (n, n_head, n_tokens), (8 * n, both.nb[1]), 4 * n * part)
        for part in (0, 1)
    )
    k, v = (
        ops.reshape_3d(
            ctx, b.linear(x, f"blk.{i}.attn_{part}", f"{name}-{i}"), n, hp.n_head_kv, n_tokens
        )
        for part, name in (("k", "Kcur"), ("v", "Vcur"))
    )
    q = b.rms_norm(q, f"blk.{i}.attn_q_norm", f"Qcur_normed-{i}")
    k = b.rms_norm(k, f"blk.{i}.attn_k_norm", f"Kcur_normed-{i}")
    out = b.attention(b.rope(q, f"Qcur-{i}", i), b.rope(k, f"Kcur-{i}", i), v, i, chosen=chosen)
    gate = ops.sigmoid(ctx, ops.cont(ctx, gate))
    out = ops.mul(ctx, out, ops.reshape_2d(ctx, gate, n * n_head, n_tokens))
    return b.linear(out.set_name(f"attn_gated-{i}"), f"blk.{i}.attn_output", f"attn_out-{i}")


def attn_temperature(b: GraphBuilder, scale: float, every: int, offset: int = 0) -> Tensor:
    """The factor ``1 + scale * log(1 + floor((position + offset) / every))`` of each token.

    Queries grow with the logarithm of their position.

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
