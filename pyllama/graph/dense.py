"""The hidden activations of a dense or gated feed-forward part.

hidden = ffn_hidden(b, x, i, "silu", "")       # [n_ff, T]
"""

from __future__ import annotations

import pyggml as ops
from pyggml.tensor import Tensor

from ..activation import GLU_OF, activate, gated, hidden_name
from .builder import GraphBuilder


def ffn_hidden(
    b: GraphBuilder, x: Tensor, i: int, act: str, up_act: str, suffix: str = ""
) -> Tensor:
    """The hidden activations of a dense feed-forward part, the input of its down matrix.

    Without ``ffn_gate``, an ``ffn_up`` of twice the rows that ``ffn_down`` takes has the gate's
    first.

    Args:
        suffix: of the tensors' names, ``_shexp`` for shared experts.

    Shape:
        x [n_embd, T] -> [n_ff, T]
    """
    ctx, gate = b.ctx, None
    if f"blk.{i}.ffn_gate{suffix}.weight" in b.weights:
        gate = b.linear(x, f"blk.{i}.ffn_gate{suffix}", f"ffn_gate{suffix}-{i}")
    up = b.linear(x, f"blk.{i}.ffn_up{suffix}", f"ffn_up{suffix}-{i}")
    down = b.weights.get(f"blk.{i}.ffn_down{suffix}.weight")
    if gate is None and down is not None and up.ne[0] == 2 * down.ne[0]:
        return ops.glu(ctx, up, GLU_OF[act]).set_name(f"ffn_{hidden_name(act)}{suffix}-{i}")
    if gate is None:
        return activate(ctx, up, act).set_name(f"ffn_{act}-{i}")
    if up_act:
        up = activate(ctx, up, up_act).set_name(f"ffn_up_{up_act}-{i}")
    return gated(ctx, gate, up, act).set_name(f"ffn_{hidden_name(act)}{suffix}-{i}")
