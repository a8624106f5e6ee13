"""Activations of the feed-forward part, with and without a gate.

    y = activate(ctx, up, "relu_sqr")              # relu(up) ** 2
    y = gated(ctx, gate, up, "silu")               # silu(gate) * up

``ACTS`` are activations of UNARY, and ``relu_sqr``, which is two nodes.
Source: So et al. 2021, "Primer", for squared ReLU; llama.cpp, ``LLM_FFN_RELU_SQR``.
"""

from __future__ import annotations

import numpy as np

import pyggml as ops
from pyggml.context import Context
from pyggml.ops.elementwise.glu import ACTIVATIONS
from pyggml.tensor import Tensor

GLU_OF = {act: kind for kind, act in ACTIVATIONS.items()}
RELU_SQR = "relu_sqr"
ACTS = (*GLU_OF, RELU_SQR)
HEAD_ACTS = ("tanh", "relu", "gelu_erf")  # of classifiers' dense layers
RELU_LIKE = ("relu", RELU_SQR)  # zero for negative inputs
POSITIVE = float(np.finfo(np.float32).smallest_subnormal)  # x >= POSITIVE means x > 0
SWIGLU_OAI = "swiglu_oai"  # of gpt-oss: only with a gate
SITU = "situ"  # of Kimi-K3: only with a gate
_OAI_ALPHA, _OAI_LIMIT = 1.702, 7.0


def activate(ctx: Context, x: Tensor, act: str) -> Tensor:
    """``act(x)``."""
    if act == RELU_SQR:
        return ops.sqr(ctx, ops.relu(ctx, x))
    return ops.unary(ctx, x, act)


def gated(ctx: Context, gate: Tensor, up: Tensor, act: str) -> Tensor:
    """``act(gate) * up``."""
    if act == SWIGLU_OAI:
        return ops.swiglu_oai(ctx, gate, up, _OAI_ALPHA, _OAI_LIMIT)
    if act in GLU_OF:
        return ops.glu_split(ctx, gate, up, GLU_OF[act])
    return ops.mul(ctx, activate(ctx, gate, act), up)


def situ(ctx: Context, gate: Tensor, up: Tensor, beta: float, up_beta: float) -> Tensor:
    """``limit(gate, beta) * sigmoid(gate) * limit(up, up_beta)``: SwiGLU within smooth limits.

    Here ``limit(x, beta)`` is ``beta * tanh(x / beta)``, or ``x`` if ``beta`` is 0.
    Source: Kimi Team 2026, "Kimi K3"; llama.cpp, ``LLM_FFN_SITU``.
    """
    act = ops.mul(ctx, _limit(ctx, gate, beta), ops.sigmoid(ctx, gate))
    return ops.mul(ctx, act, _limit(ctx, up, up_beta))


def _limit(ctx: Context, x: Tensor, beta: float) -> Tensor:
    if not beta:
        return x
    return ops.scale(ctx, ops.unary(ctx, ops.scale(ctx, x, 1 / beta), "tanh"), beta)


def hidden_name(act: str) -> str:
    """The activation's name in the names of gated nodes: ``swiglu`` for ``silu``."""
    return GLU_OF.get(act, act)
