"""The layers of Mamba 1 and 2, which other architectures have between layers of attention.

    cur = mamba2(b, b.rms_norm(inp, f"blk.{i}.attn_norm", f"attn_norm-{i}"), i)

Their sizes are an architecture's own hyperparameters, ``SSM`` or ``SSM2``; ``states_of`` and
``states2_of`` follow from them. Projections are in the order of the literature: gate z, then x, B
and C, which are convolved, then dt.
Source: Gu and Dao 2023, "Mamba"; Dao and Gu 2024, "Transformers are SSMs"; llama.cpp,
``llm_build_mamba_base``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import pyggml as ops
from pyggml.tensor import Tensor

from ..hparams import Got, Key, Values
from .builder import GraphBuilder

SSM: Values = {
    "d_conv": Key("ssm.conv_kernel"),
    "d_inner": Key("ssm.inner_size"),
    "d_state": Key("ssm.state_size"),
    "dt_rank": Key("ssm.time_step_rank"),
    "n_ssm_in": lambda got: 2 * got["d_inner"],
    "n_ssm_x": lambda got: got["dt_rank"] + 2 * got["d_state"],
}
SSM2: Values = {
    "d_conv": Key("ssm.conv_kernel"),
    "d_inner": Key("ssm.inner_size"),
    "d_state": Key("ssm.state_size"),
    "dt_rank": Key("ssm.time_step_rank"),  # number of heads
    "n_group": Key("ssm.group_count"),
    "dt_min": Key("ssm.time_step_min", 0.0),
    "dt_max": Key("ssm.time_step_max", 0.0),  # 0: unlimited
    "n_ssm_conv": lambda got: got["d_inner"] + 2 * got["n_group"] * got["d_state"],
    "n_ssm_in": lambda got: got["d_inner"] + got["n_ssm_conv"] + got["dt_rank"],
    "d_group": lambda got: got["d_inner"] // max(got["n_group"], 1),
}
SSM_TENSORS = {
    "blk.{i}.ssm_in.*?": ("n_embd", "n_ssm_in"),
    "blk.{i}.ssm_conv1d.weight": ("d_conv", "d_inner"),
    "blk.{i}.ssm_conv1d.bias?": ("d_inner",),
    "blk.{i}.ssm_x.weight": ("d_inner", "n_ssm_x"),
    "blk.{i}.ssm_dt.weight": ("dt_rank", "d_inner"),
    "blk.{i}.ssm_dt.bias": ("d_inner",),
    "blk.{i}.ssm_a": ("d_state", "d_inner"),
    "blk.{i}.ssm_d": ("d_inner",),
    "blk.{i}.ssm_out.*?": ("d_inner", "n_embd"),
}
SSM2_TENSORS = {
    "blk.{i}.ssm_in.*?": ("n_embd", "n_ssm_in"),
    "blk.{i}.ssm_conv1d.*?": ("d_conv", "n_ssm_conv"),
    "blk.{i}.ssm_dt.bias": ("dt_rank",),
    "blk.{i}.ssm_a": ("1", "dt_rank"),
    "blk.{i}.ssm_d": ("1", "dt_rank"),
    "blk.{i}.ssm_norm.weight?": ("d_group", "n_group"),
    "blk.{i}.ssm_out.*?": ("d_inner", "n_embd"),
}
Sizes = Mapping[str, tuple[int, ...]]


def states_of(got: Got) -> Sizes:
    """The sizes of a layer's states of Mamba 1."""
    return {
        "conv": (got["d_inner"], got["d_conv"] - 1),
        "ssm": (got["d_state"], 1, got["d_inner"]),
    }


def states2_of(got: Got) -> Sizes:
    """The sizes of a layer's states of Mamba 2."""
    return {
        "conv": (got["n_ssm_conv"], got["d_conv"] - 1),
        "ssm": (got["d_state"], got["d_inner"] // max(got["dt_rank"], 1), got["dt_rank"]),
    }


def mamba(b: GraphBuilder, x: Tensor, i: int) -> Tensor:
    """The Mamba-1 part of layer ``i``, from its normed input to its output projection.

    Shape:
        x [n_embd, T] -> [n_embd, T]
    """
    ctx, own, T = b.ctx, b.hparams.own, b.n_tokens
    n, d_state, dt_rank = own["d_inner"], own["d_state"], own["dt_rank"]
    xz = b.linear(x, f"blk.{i}.ssm_in", f"ssm_in-{i}")  # [2 d_inner, T]
    u, z = (ops.view_2d(ctx, xz, n, T, xz.nb[1], 4 * n * k) for k in (0, 1))
    u = causal_conv(b, u, i)
    parts = b.linear(u, f"blk.{i}.ssm_x", f"ssm_x-{i}")  # [dt_rank + 2 d_state, T]
    firsts = (0, dt_rank, dt_rank + d_state)
    dt, B, C = (
        ops.view_2d(ctx, parts, size, T, parts.nb[1], 4 * first)
        for size, first in zip((dt_rank, d_state, d_state), firsts, strict=True)
    )
    dt, B, C = (_normed(b, part, name, i) for part, name in ((dt, "dt"), (B, "b"), (C, "c")))
    dt = b.linear(dt, f"blk.{i}.ssm_dt", f"ssm_dt-{i}")  # [d_inner, T]
    heads = ops.view_3d(ctx, u, (1, n, T), (4, u.nb[1]))
    B, C = (ops.view_3d(ctx, s, (d_state, 1, T), (s.nb[1], s.nb[1])) for s in (B, C))
    y = ssm_scan(b, heads, dt, B, C, i)  # [1, d_inner, T]
    y = ops.reshape_2d(ctx, y, n, T)
    y = ops.add(ctx, y, ops.mul(ctx, u, b.weight(f"blk.{i}.ssm_d")))
    y = ops.swiglu_split(ctx, z, y).set_name(f"ssm_y-{i}")
    return b.linear(y, f"blk.{i}.ssm_out", f"mamba_out-{i}")


def _normed(b: GraphBuilder, x: Tensor, name: str, i: int) -> Tensor:
    """``dt``, ``B`` or ``C``, with an RMS norm where the model has one."""
    prefix = f"blk.{i}.ssm_{name}_norm"
    if f"{prefix}.weight" in b.weights:
        return b.rms_norm(x, prefix, f"ssm_{name}_norm-{i}")
    if b.hparams.own.get("normed_dt_b_c"):  # FalconMamba: without weights
        eps = b.hparams.own["dt_b_c_eps"] or b.hparams.norm_eps
        return ops.rms_norm(b.ctx, x, eps).set_name(f"ssm_{name}_norm-{i}")
    return x


def mamba2(b: GraphBuilder, x: Tensor, i: int) -> Tensor:
    """The Mamba-2 part of layer ``i``, from its normed input to its output projection.

    Shape:
        x [n_embd, T] -> [n_embd, T]
    """
    ctx, own, T = b.ctx, b.hparams.own, b.n_tokens
    n, d_state, n_head, n_group = (own[k] for k in ("d_inner", "d_state", "dt_rank", "n_group"))
    head_dim, n_conv = n // n_head, own["n_ssm_conv"]
    parts = b.linear(x, f"blk.{i}.ssm_in", f"ssm_in-{i}")  # [n_ssm_in, T]
    z, xBC, dt = (
        ops.view_2d(ctx, parts, size, T, parts.nb[1], 4 * first)
        for size, first in ((n, 0), (n_conv, n), (n_head, n + n_conv))
    )
    xBC = causal_conv(b, xBC, i)
    row = xBC.nb[1]
    heads = ops.view_3d(ctx, xBC, (head_dim, n_head, T), (4 * head_dim, row))
    B, C = (
        ops.view_3d(ctx, xBC, (d_state, n_group, T), (4 * d_state, row), 4 * first)
        for first in (n, n + n_group * d_state)
    )
    dt = _limited(b, ops.add(ctx, dt, b.weight(f"blk.{i}.ssm_dt.bias")))
    y = ssm_scan(b, heads, dt, B, C, i)  # [head_dim, n_head, T]
    y = ops.add(ctx, y, ops.mul(ctx, heads, b.weight(f"blk.{i}.ssm_d")))
    z = ops.view_3d(ctx, z, (head_dim, n_head, T), (4 * head_dim, z.nb[1]))
    y = ops.mul(ctx, y, ops.silu(ctx, z))
    y = ops.reshape_2d(ctx, y, n, T).set_name(f"ssm_y-{i}")
    if f"blk.{i}.ssm_norm.weight" in b.weights:
        y = ops.reshape_3d(ctx, y, n // n_group, n_group, T)
        y = ops.reshape_2d(ctx, b.rms_norm(y, f"blk.{i}.ssm_norm", f"ssm_norm-{i}"), n, T)
    return b.linear(y, f"blk.{i}.ssm_out", f"mamba_out-{i}")


def _limited(b: GraphBuilder, dt: Tensor) -> Tensor:
    """``dt`` whose softplus, the time step, is within the model's limits."""
    low, high = b.hparams.own["dt_min"], b.hparams.own["dt_max"]
    if not low and not high:
        return dt
    low, high = (y + math.log(-math.expm1(-y)) if y else end  # inverse of softplus
                 for y, end in ((low, -math.inf), (high, math.inf)))  # fmt: skip
    return ops.clamp(b.ctx, dt, low, high)


def causal_conv(b: GraphBuilder, x: Tensor, i: int, part: str = "") -> Tensor:
    """SiLU of the causal convolution of a layer's channels, after the tokens before.

    Args:
        part: ending of the names of its weight and state, where a layer has several.

    Shape:
        x [channels, T] -> the same
    """
    weight = b.weight(f"blk.{i}.ssm_conv1d{part}.weight")
    if weight.ne[1] == 1:  # the input's channels, in files of Kimi-Linear
        weight = ops.reshape_2d(b.ctx, weight, weight.ne[0], x.ne[0])
    x = ops.ssm_conv_slots(b.ctx, x, weight, *b.state(f"conv{part}", i))
    bias = b.weights.get(f"blk.{i}.ssm_conv1d{part}.bias")
    if bias is not None:
        x = ops.add(b.ctx, x.set_name(f"ssm_conv-{i}"), bias)
    return ops.silu(b.ctx, x).set_name(f"ssm_conv{part}_silu-{i}")


def ssm_scan(b: GraphBuilder, x: Tensor, dt: Tensor, B: Tensor, C: Tensor, i: int) -> Tensor:
    """The scan of a layer of Mamba 1 or 2 (see ``ssm_scan_slots``).

    Shape:
        x [head_dim, n_head, T], dt [n_head, T], B and C [d_state, n_group, T]
        -> [head_dim, n_head, T]
    """
    states, *places = b.state("ssm", i)
    y = ops.ssm_scan_slots(b.ctx, states, x, dt, b.weight(f"blk.{i}.ssm_a"), B, C, *places)
    return y.set_name(f"ssm_scan-{i}")
