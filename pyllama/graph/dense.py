"""The hidden activations of a dense or gated feed-forward part.

hidden = ffn_hidden(b, x, i, "silu", "")       # [n_ff, T]
"""

from __future__ import annotations

import pyggml as ops
from pyggml.tensor import Tensor

from ..activation import GLU_OF, SITU, activate, gated, hidden_name, situ
from ..hparams import Key, Values
from .builder import GraphBuilder

SWIGLU_LIMITS: Values = {  # of experts, and of other parts, by layer; 0: unlimited
    "limit_exp": Key("swiglu_clamp_exp", 0.0, tuple),
    "limit_shexp": Key("swiglu_clamp_shexp", 0.0, tuple),
}


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
        if act in GLU_OF:
            return ops.glu(ctx, up, GLU_OF[act]).set_name(f"ffn_{hidden_name(act)}{suffix}-{i}")
        gate, up = (
            ops.cont(ctx, ops.view_2d(ctx, up, down.ne[0], up.ne[1], up.nb[1], start * up.nb[0]))
            for start in (0, down.ne[0])
        )
    if gate is None:
        return activate(ctx, up, act).set_name(f"ffn_{act}-{i}")
    if up_act:
        up = activate(ctx, up, up_act).set_name(f"ffn_up_{up_act}-{i}")
    return glu(b, gate, up, act, i, "limit_shexp").set_name(f"ffn_{hidden_name(act)}{suffix}-{i}")


def glu(b: GraphBuilder, gate: Tensor, up: Tensor, act: str, i: int, limit: str) -> Tensor:
    """``act(gate) * up``, both limited in models with ``SWIGLU_LIMITS``: up on both sides.

    With ``limit_after``, ``act(gate)`` is limited, else ``gate``.

    Args:
        limit: the name of the limit.

    Source: llama.cpp, ``swiglu_clamp_exp``; OpenAI 2025, "gpt-oss-120b & gpt-oss-20b Model Card".
    """
    if act == SITU:
        return situ(b.ctx, gate, up, b.hparams.situ_beta, b.hparams.situ_up_beta)
    own = b.hparams.of_layer(i).own
    top = own.get(limit, 0.0)
    if top <= 0:
        return gated(b.ctx, gate, up, act)
    if not own.get("limit_after"):
        return ops.swiglu_clamp(b.ctx, gate, up, top)
    gate = ops.clamp(b.ctx, activate(b.ctx, gate, act), float("-inf"), top)
    return ops.mul(b.ctx, gate, ops.clamp(b.ctx, up, -top, top))
