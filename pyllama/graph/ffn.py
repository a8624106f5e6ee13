"""The feed-forward part of a layer: dense, gated, a mixture of experts, or a registered variant.

    cur = ffn(b, cur, i, "silu", residual=inp)     # [n_embd, T]

Shapes are in ne order; T is the number of tokens of the ubatch.
"""

from __future__ import annotations

from pyggml import ops
from pyggml.tensor import Tensor

from ..activation import GLU_OF, activate, gated
from .builder import GraphBuilder
from .experts import experts
from .variants import variant_ffn


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
    if b.hparams.n_expert:
        y = experts(b, x, i, act)
    else:
        inputs = (t for t in (pred_in, residual, x) if t is not None)
        built = variant_ffn(b, x, i, act, up_act, next(inputs))
        if built is None:
            hidden = ffn_hidden(b, x, i, act, up_act)
            return b.linear(hidden, f"blk.{i}.ffn_down", f"ffn_out-{i}", residual=residual)
        y = built
    return y if residual is None else ops.add(b.ctx, y, residual).set_name(f"ffn_res-{i}")


def ffn_hidden(b: GraphBuilder, x: Tensor, i: int, act: str, up_act: str) -> Tensor:
    """The hidden activations of a dense feed-forward part, the input of its down matrix.

    Shape:
        x [n_embd, T] -> [n_ff, T]
    """
    ctx, gate = b.ctx, None
    if f"blk.{i}.ffn_gate.weight" in b.weights:
        gate = b.linear(x, f"blk.{i}.ffn_gate", f"ffn_gate-{i}")
    up = b.linear(x, f"blk.{i}.ffn_up", f"ffn_up-{i}")
    if gate is None:
        return activate(ctx, up, act).set_name(f"ffn_{act}-{i}")
    if up_act:
        up = activate(ctx, up, up_act).set_name(f"ffn_up_{up_act}-{i}")
    return gated(ctx, gate, up, act).set_name(f"ffn_{GLU_OF.get(act, act)}-{i}")
