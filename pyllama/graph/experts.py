"""Mixture of experts: a feed-forward part of which each token uses a few experts.

    cur = experts(b, x, i, "silu")                 # [n_embd, T]

The router (``ffn_gate_inp``) scores the experts. The outputs of the top-k experts are summed with
the softmax of the scores as weights, renormalized if the model says so.
Source: Jiang et al. 2024, "Mixtral of Experts", section 2.1; llama.cpp, ``build_moe_ffn``.
"""

from __future__ import annotations

from functools import partial, reduce

import pyggml as ops
from pyggml.tensor import Tensor

from ..activation import GLU_OF, gated
from .builder import GraphBuilder

_MIN_SUM = 6.103515625e-5  # the smallest normal float16, lower bound of the divisor in llama.cpp


def experts(b: GraphBuilder, x: Tensor, i: int, act: str) -> Tensor:
    """The weighted output of each token's experts in layer ``i``.

    Shape:
        x [n_embd, T] -> [n_embd, T]
    """
    ctx, (n_embd, n_tokens) = b.ctx, x.ne[:2]
    chosen, weights = _route(b, x, i)
    x = ops.reshape_3d(ctx, x, n_embd, 1, n_tokens)

    def apply(part: str, x: Tensor) -> Tensor:
        matrices = b.weights[f"blk.{i}.ffn_{part}_exps.weight"]
        return ops.mul_mat_id(ctx, matrices, x, chosen).set_name(f"ffn_moe_{part}-{i}")

    gate, up = apply("gate", x), apply("up", x)  # [n_ff_exp, n_expert_used, T]
    cur = gated(ctx, gate, up, act).set_name(f"ffn_moe_{GLU_OF.get(act, act)}-{i}")
    cur = ops.mul(ctx, apply("down", cur), weights)  # [n_embd, n_expert_used, T]
    cur = cur.set_name(f"ffn_moe_weighted-{i}")
    parts = [
        ops.view_2d(ctx, cur, n_embd, n_tokens, cur.nb[2], u * cur.nb[1])
        for u in range(b.hparams.n_expert_used)
    ]
    return reduce(partial(ops.add, ctx), parts).set_name(f"ffn_moe_out-{i}")


def _route(b: GraphBuilder, x: Tensor, i: int) -> tuple[Tensor, Tensor]:
    """The experts of each token, I32 [n_expert_used, T], and their weights [1, n_used, T]."""
    ctx, hp, n_tokens = b.ctx, b.hparams, x.ne[1]
    scores = b.linear(x, f"blk.{i}.ffn_gate_inp", f"ffn_moe_logits-{i}")  # [n_expert, T]
    probs = ops.soft_max(ctx, scores).set_name(f"ffn_moe_probs-{i}")
    chosen = ops.top_k(ctx, probs, hp.n_expert_used).set_name(f"ffn_moe_topk-{i}")
    probs = ops.reshape_3d(ctx, probs, 1, hp.n_expert, n_tokens)
    weights = ops.get_rows(ctx, probs, chosen)  # [1, n_expert_used, T]
    if hp.expert_weights_norm:
        weights = ops.reshape_2d(ctx, weights, hp.n_expert_used, n_tokens)
        total = ops.clamp(ctx, ops.sum_rows(ctx, weights), _MIN_SUM, float("inf"))  # [1, T]
        weights = ops.div(ctx, weights, total)
        weights = ops.reshape_3d(ctx, weights, 1, hp.n_expert_used, n_tokens)
    if hp.expert_weights_scale != 1:
        weights = ops.scale(ctx, weights, hp.expert_weights_scale)
    return chosen, weights.set_name(f"ffn_moe_weights-{i}")
