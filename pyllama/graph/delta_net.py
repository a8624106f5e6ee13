"""Gated delta nets: layers of linear attention with the delta rule.

    cur = delta_net(b, b.rms_norm(inp, f"blk.{i}.attn_norm", f"attn_norm-{i}"), i)
    cur = kimi_delta(b, b.rms_norm(inp, f"blk.{i}.attn_norm", f"attn_norm-{i}"), i)

Queries, keys and values are convolved over time; queries and keys of a head have unit length. A
head of keys has several of values. Files of Qwen3-Next have those of a head of keys next to each
other (0, 0, 1, 1), those of Qwen3.5 do not (0, 1, 0, 1), which is the order of the op. In
Kimi-Linear each column of the state has a decay of its own.
Source: Yang et al. 2024, "Gated Delta Networks"; Kimi Team 2025, "Kimi Linear"; llama.cpp,
``llama_model_qwen3next``, ``llama_model_qwen35`` and ``llama_model_kimi_linear``.
"""

from __future__ import annotations

import math

import pyggml as ops
from pyggml.tensor import Tensor

from ..errors import ModelError
from ..hparams import Got, Key, Values
from .builder import GraphBuilder
from .mamba import Sizes, causal_conv

DELTA_NET: Values = {
    "d_conv": Key("ssm.conv_kernel"),
    "d_inner": Key("ssm.inner_size"),
    "d_state": Key("ssm.state_size"),  # columns of a head
    "dt_rank": Key("ssm.time_step_rank"),  # heads of values
    "n_group": Key("ssm.group_count"),  # heads of queries, and of keys
    "n_delta_qkv": lambda got: 2 * got["n_group"] * got["d_state"] + got["d_inner"],
}
DELTA_NET_TENSORS = {
    "blk.{i}.attn_qkv.weight": ("n_embd", "n_delta_qkv"),
    "blk.{i}.attn_gate.weight": ("n_embd", "d_inner"),
    "blk.{i}.ssm_conv1d.weight": ("d_conv", "n_delta_qkv"),
    "blk.{i}.ssm_dt.bias": ("dt_rank",),
    "blk.{i}.ssm_a": ("dt_rank",),
    "blk.{i}.ssm_norm.weight": ("d_state",),
    "blk.{i}.ssm_out.weight": ("d_inner", "n_embd"),
}
KIMI_DELTA: Values = {
    "d_conv": Key("ssm.conv_kernel"),
    "n_kda": Key("kda.head_dim"),
    "n_kda_all": lambda got: got["n_kda"] * got["n_head_arr"][0],
    "one": 1,
}
KIMI_DELTA_TENSORS = {
    "blk.{i}.attn_q.weight": ("n_embd", "n_kda_all"),
    "blk.{i}.attn_k.weight": ("n_embd", "n_kda_all"),
    "blk.{i}.attn_v.weight": ("n_embd", "n_kda_all"),
    "blk.{i}.ssm_conv1d_q.weight": ("d_conv", "one", "n_kda_all"),
    "blk.{i}.ssm_conv1d_k.weight": ("d_conv", "one", "n_kda_all"),
    "blk.{i}.ssm_conv1d_v.weight": ("d_conv", "one", "n_kda_all"),
    "blk.{i}.ssm_f_a.weight": ("n_embd", "n_kda"),
    "blk.{i}.ssm_f_b.weight": ("n_kda", "n_kda_all"),
    "blk.{i}.ssm_dt.bias": ("n_kda_all",),
    "blk.{i}.ssm_a": ("one", "n_head"),
    "blk.{i}.ssm_beta.weight": ("n_embd", "n_head"),
    "blk.{i}.ssm_g_a.weight": ("n_embd", "n_kda"),
    "blk.{i}.ssm_g_b.weight": ("n_kda", "n_kda_all"),
    "blk.{i}.ssm_norm.weight": ("n_kda",),
    "blk.{i}.attn_output.weight": ("n_kda_all", "n_embd"),
}
_UNIT_EPS = 1e-6  # added to the squared length of queries and keys, whatever norms add


def states_of(got: Got) -> Sizes:
    """The sizes of a layer's states. Raises: ModelError: sizes do not fit."""
    n, n_head, n_group = got["d_state"], got["dt_rank"], got["n_group"]
    if got["d_inner"] != n * n_head or not n_group or n_head % n_group:
        raise ModelError(
            f"{got['arch']} model with {n_group} heads of keys of {n} columns, {n_head} heads of "
            f"values and {got['d_inner']} columns of values, want a multiple of heads, of the same "
            "columns; the metadata is damaged, or this variant is not supported"
        )
    return {"conv": (got["n_delta_qkv"], got["d_conv"] - 1), "delta": (n, n, n_head)}


def kimi_states_of(got: Got) -> Sizes:
    """The sizes of a layer's states in Kimi-Linear."""
    n, before = got["n_kda"], (got["n_kda_all"], got["d_conv"] - 1)
    convs = {f"conv_{part}": before for part in "qkv"}
    return {**convs, "delta": (n, n, got["n_head_arr"][0])}


def delta_net(b: GraphBuilder, x: Tensor, i: int) -> Tensor:
    """The delta net of layer ``i``, from its normed input to its output projection.

    Shape:
        x [n_embd, T] -> the same
    """
    ctx, own, T = b.ctx, b.hparams.own, b.n_tokens
    n, n_head, n_group = (own[name] for name in ("d_state", "dt_rank", "n_group"))
    qkv = b.linear(x, f"blk.{i}.attn_qkv", f"linear_attn_qkv_mixed-{i}")
    z = b.linear(x, f"blk.{i}.attn_gate", f"z-{i}")  # [n n_head, T]
    beta, alpha = _beta_and_alpha(b, x, i)  # [n_head, T]
    alpha = ops.softplus(ctx, ops.add(ctx, alpha, b.weight(f"blk.{i}.ssm_dt.bias")))
    decay = ops.mul(ctx, alpha, b.weight(f"blk.{i}.ssm_a")).set_name(f"gate-{i}")
    qkv = causal_conv(b, qkv, i)
    q, k, v = (
        ops.view_3d(ctx, qkv, (n, heads, T), (4 * n, qkv.nb[1]), 4 * n * first)
        for heads, first in ((n_group, 0), (n_group, n_group), (n_head, 2 * n_group))
    )
    q, k = _unit(b, q), _unit(b, k)
    if f"blk.{i}.ssm_ba.weight" in b.weights:
        q, k = (repeat_each(b, part, n_head // n_group) for part in (q, k))
    decay, beta = (ops.reshape_3d(ctx, part, 1, n_head, T) for part in (decay, beta))
    y = ops.gated_delta_net_slots(ctx, q, k, v, decay, beta, *b.state("delta", i))
    y = b.rms_norm(y.set_name(f"linear_attn-{i}"), f"blk.{i}.ssm_norm", f"ssm_norm-{i}")
    gate = ops.unary(ctx, ops.reshape_3d(ctx, z, n, n_head, T), own.get("delta_gate", "silu"))
    y = ops.mul(ctx, y, gate)
    y = ops.reshape_2d(ctx, y, n * n_head, T).set_name(f"linear_attn_gated-{i}")
    return b.linear(y, f"blk.{i}.ssm_out", f"linear_attn_out-{i}")


def _beta_and_alpha(b: GraphBuilder, x: Tensor, i: int) -> tuple[Tensor, Tensor]:
    """beta, a factor of the delta rule, and the input of the decay, of each token.

    Shape:
        x [n_embd, T] -> [n_head, T] each
    """
    ctx, own, T = b.ctx, b.hparams.own, b.n_tokens
    n_head, n_group = own["dt_rank"], own["n_group"]
    if f"blk.{i}.ssm_ba.weight" not in b.weights:
        beta = b.linear(x, f"blk.{i}.ssm_beta", f"beta-{i}")
        return ops.sigmoid(ctx, beta), b.linear(x, f"blk.{i}.ssm_alpha", f"alpha-{i}")
    both = b.linear(x, f"blk.{i}.ssm_ba", f"linear_attn_mixed_ba-{i}")  # by heads of keys
    n = n_head // n_group
    beta, alpha = (
        ops.cont(ctx, ops.view_3d(ctx, both, (n, n_group, T), (8 * n, both.nb[1]), 4 * n * part))
        for part in (0, 1)
    )
    beta, alpha = (ops.reshape_2d(ctx, part, n_head, T) for part in (beta, alpha))
    return ops.sigmoid(ctx, beta), alpha


def kimi_delta(b: GraphBuilder, x: Tensor, i: int) -> Tensor:
    """Kimi's delta attention of layer ``i``, from its normed input to its output projection.

    Shape:
        x [n_embd, T] -> the same
    """
    ctx, hp, T = b.ctx, b.hparams, b.n_tokens
    n, n_head = hp.size("n_kda"), hp.of_layer(i).n_head

    def heads(part: str) -> Tensor:  # [n, n_head, T]
        rows = b.linear(x, f"blk.{i}.attn_{part}", f"{part.upper()}cur-{i}")
        return ops.reshape_3d(ctx, causal_conv(b, rows, i, f"_{part}"), n, n_head, T)

    def projected(part: str) -> Tensor:  # [n n_head, T]; by a matrix, or two of low rank
        rows = x
        for name in (part, f"{part}_a", f"{part}_b"):
            if f"blk.{i}.ssm_{name}.weight" in b.weights:
                rows = b.linear(rows, f"blk.{i}.ssm_{name}", f"{name}-{i}")
        return rows

    q, k, v = (heads(part) for part in "qkv")
    decay = ops.add(ctx, projected("f"), b.weight(f"blk.{i}.ssm_dt.bias"))
    a = ops.reshape_2d(ctx, b.weight(f"blk.{i}.ssm_a"), 1, n_head)
    if lowest := hp.own.get("lowest_decay", 0.0):  # the logarithm of the decay is from there to 0
        decay = ops.mul(ctx, ops.reshape_3d(ctx, decay, n, n_head, T), ops.abs(ctx, a))
        decay = ops.scale(ctx, ops.sigmoid(ctx, decay), lowest)
    else:
        decay = ops.reshape_3d(ctx, ops.softplus(ctx, decay), n, n_head, T)
        decay = ops.mul(ctx, decay, a)
    decay.set_name(f"kda_g1-{i}")
    beta = ops.sigmoid(ctx, b.linear(x, f"blk.{i}.ssm_beta", f"kda_beta-{i}"))
    beta = ops.reshape_3d(ctx, beta, 1, n_head, T)
    q, k = _unit(b, q), _unit(b, k)
    y = ops.gated_delta_net_slots(ctx, q, k, v, decay, beta, *b.state("delta", i))
    y = b.rms_norm(y.set_name(f"kda-{i}"), f"blk.{i}.ssm_norm", f"kda_normed-{i}")
    gate = ops.reshape_3d(ctx, ops.sigmoid(ctx, projected("g")), n, n_head, T)
    y = ops.reshape_2d(ctx, ops.mul(ctx, y, gate), n * n_head, T).set_name(f"kda_gated-{i}")
    return b.linear(y, f"blk.{i}.attn_output", f"kda_out-{i}")


def _unit(b: GraphBuilder, x: Tensor) -> Tensor:
    """Each row divided by its length.

    Shape:
        x [n, n_head, T] -> the same
    """
    n = x.ne[0]
    return ops.scale(b.ctx, ops.rms_norm(b.ctx, x, _UNIT_EPS / n), 1 / math.sqrt(n))


def repeat_each(b: GraphBuilder, x: Tensor, times: int) -> Tensor:
    """Each head several times: [n, n_head, T] -> [n, times n_head, T]."""
    if times == 1:
        return x
    n, n_head, T = x.ne[:3]
    x = ops.repeat_4d(b.ctx, ops.reshape_4d(b.ctx, x, n, 1, n_head, T), n, times, n_head, T)
    return ops.reshape_3d(b.ctx, x, n, times * n_head, T)
