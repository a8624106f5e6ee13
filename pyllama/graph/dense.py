"""The hidden activations of a dense or gated feed-forward part.

hidden = ffn_hidden(b, x, i, "silu", "")       # [n_ff, T]
"""

from __future__ import annotations

from pyggml.tensor import Tensor

from ..activation import GLU_OF, activate, gated
from .builder import GraphBuilder


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
