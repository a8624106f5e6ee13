"""The feed-forward part of a layer: dense, gated, a mixture of experts, or sparse.

    cur = ffn(b, cur, i, "silu", residual=inp)     # [n_embd, T]

Shapes are in ne order; T is the number of tokens of the ubatch.
"""

from __future__ import annotations

import pyggml as ops
from pyggml.tensor import Tensor

from .builder import GraphBuilder
from .dense import ffn_hidden
from .experts import experts, shared_experts
from .sparse.ffn import down, predict_next, sparse_ffn


def ffn(
    b: GraphBuilder, x: Tensor, i: int, act: str, residual: Tensor | None = None,
    up_act: str = "", pred_in: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """The feed-forward part of layer ``i``, plus the residual if given.

    ``down(act(up(x)))`` without a gate, ``down(act(gate(x)) * up(x))`` with one.

    Args:
        act: one of ``ACTS``; the model's metadata or the context may override it.
        up_act: activation of ``up(x)`` in a gated layer; empty for none.
        pred_in: input of the predictors of active neurons; None for the residual, or ``x``
            without a residual.

    Shape:
        x, residual, pred_in [n_embd, T] -> [n_embd, T]
    """
    act = b.hparams.hidden_act or act
    predictor_input = next(t for t in (pred_in, residual, x) if t is not None)
    predict_next(b, predictor_input, i)
    if b.hparams.has_experts(i):
        y = experts(b, x, i, act, up_act=up_act)
        if f"blk.{i}.ffn_down_shexp.weight" in b.weights:
            y = ops.add(b.ctx, y, shared_experts(b, x, i, act))
    elif b.hparams.source(i) != "off":
        y = sparse_ffn(b, x, i, act, up_act, predictor_input)
    elif f"blk.{i}.ffn_down_t.weight" in b.weights:  # a sparse file, computed densely
        y = down(b, ffn_hidden(b, x, i, act, up_act), i)
    else:
        hidden = ffn_hidden(b, x, i, act, up_act)
        return b.linear(hidden, f"blk.{i}.ffn_down", f"ffn_out-{i}", residual=residual)
    return y if residual is None else b.add_residual(y, residual, f"ffn-{i}")
