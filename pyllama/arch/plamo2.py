"""PLaMo 2: Mamba 2 with B, C and dt projected from x and normed; attention in every n-th layer.

Norms after the parts, as in PLaMo 3, and those of B, C and dt have no ``.weight`` in their names.
Source: Preferred Networks 2025, "PLaMo 2"; llama.cpp, ``llama_model_plamo2``.
"""

from __future__ import annotations

import numpy as np

import pyggml as ops
from pyggml.tensor import Tensor

from ..graph import hybrid
from ..graph.builder import GraphBuilder
from ..graph.ffn import ffn
from ..graph.mamba import SSM, causal_conv
from ..graph.tensors import OUTPUT, only_in
from ..hparams import Got, Values
from ..mapping.rules import Array, Config, Convert, Keys, Tensors, base_keys
from . import mamba, plamo3


def _states(got: Got) -> dict[str, tuple[int, ...]]:
    head_dim = got["d_inner"] // max(got["dt_rank"], 1)
    return {
        "conv": (got["d_inner"], got["d_conv"] - 1),
        "ssm": (got["d_state"], head_dim, got["dt_rank"]),
    }


def _n_dt(got: Got) -> int:
    return max(64, int(got["n_embd"]) // 16)


HPARAMS: Values = {
    **SSM,  # ``dt_rank`` is the number of heads
    **hybrid.KINDS,
    "rope_neox": True,
    "n_dt": _n_dt,
    "n_ssm_x": lambda got: _n_dt(got) + 2 * got["d_state"],
    "states": hybrid.states_where_recurrent(_states),
}

TENSORS = {
    "blk.{i}.attn_norm.weight": ("n_embd",),
    **only_in(
        "recurs",
        {
            "blk.{i}.ssm_in.weight": ("n_embd", "n_ssm_in"),
            "blk.{i}.ssm_conv1d.weight": ("d_conv", "d_inner"),
            "blk.{i}.ssm_x.weight": ("d_inner", "n_ssm_x"),
            "blk.{i}.ssm_b_norm": ("d_state",),
            "blk.{i}.ssm_c_norm": ("d_state",),
            "blk.{i}.ssm_dt_norm": ("n_dt",),
            "blk.{i}.ssm_dt.weight": ("n_dt", "dt_rank"),
            "blk.{i}.ssm_dt.bias": ("dt_rank",),
            "blk.{i}.ssm_a": ("dt_rank",),
            "blk.{i}.ssm_d": ("dt_rank",),
            "blk.{i}.ssm_out.weight": ("d_inner", "n_embd"),
        },
    ),
    **only_in(
        "attends",
        {
            "blk.{i}.attn_qkv.weight": ("n_embd", "n_embd_qkv"),
            "blk.{i}.attn_q_norm.weight": ("head_dim", "n_head"),
            "blk.{i}.attn_k_norm.weight": ("head_dim", "n_head_kv"),
            "blk.{i}.attn_output.weight": ("n_embd_out", "n_embd"),
        },
    ),
    "blk.{i}.post_attention_norm": ("n_embd",),
    "blk.{i}.ffn_norm.weight": ("n_embd",),
    "blk.{i}.ffn_up.weight": ("n_embd", "2*n_ff"),
    "blk.{i}.ffn_down.weight": ("n_ff", "n_embd"),
    "blk.{i}.post_ffw_norm": ("n_embd",),
    **OUTPUT,
}


def build_graph(b: GraphBuilder) -> Tensor:
    """The graph of one ubatch; returns the logits [n_vocab, n_outputs]."""
    inp, mixer = b.embed("token_embd.weight"), hybrid.attention_or(_mamba)  # [n_embd, T]
    for i in range(b.hparams.n_layer):
        cur = mixer(b, b.rms_norm(inp, f"blk.{i}.attn_norm", f"attn_norm-{i}"), i)
        cur, inp = b.select_outputs(i, cur, inp)
        cur = b.rms_norm(cur, f"blk.{i}.post_attention_norm", f"attn_post_norm-{i}")
        inp = ops.add(b.ctx, cur, inp).set_name(f"sa_out-{i}")
        cur = ffn(b, b.rms_norm(inp, f"blk.{i}.ffn_norm", f"ffn_norm-{i}"), i, "silu")
        cur = b.rms_norm(cur, f"blk.{i}.post_ffw_norm", f"ffn_post_norm-{i}")
        inp = ops.add(b.ctx, cur, inp).set_name(f"l_out-{i}")
    return b.output(b.rms_norm(inp, "output_norm", "result_norm"))


def _mamba(b: GraphBuilder, x: Tensor, i: int) -> Tensor:
    ctx, own, T = b.ctx, b.hparams.own, b.n_tokens
    n, n_head, d_state, n_dt = (own[k] for k in ("d_inner", "dt_rank", "d_state", "n_dt"))
    head_dim = n // n_head
    zx = b.linear(x, f"blk.{i}.ssm_in", f"ssm_in-{i}")  # of each head z, then x
    z, u = (
        ops.cont(ctx, ops.view_3d(ctx, zx, (head_dim, n_head, T), (8 * head_dim, zx.nb[1]), first))
        for first in (0, 4 * head_dim)
    )
    u = causal_conv(b, ops.reshape_2d(ctx, u, n, T), i)
    parts = b.linear(u, f"blk.{i}.ssm_x", f"ssm_x-{i}")  # [2 d_state + n_dt, T]
    B, C, dt = (
        b.rms_norm(
            ops.view_2d(ctx, parts, size, T, parts.nb[1], 4 * first),
            f"blk.{i}.ssm_{name}_norm", f"ssm_{name}_norm-{i}",
        )
        for name, size, first in (("b", d_state, 0), ("c", d_state, d_state),
                                  ("dt", n_dt, 2 * d_state))
    )  # fmt: skip
    dt = b.linear(dt, f"blk.{i}.ssm_dt", f"ssm_dt-{i}")  # [n_head, T]
    heads = ops.reshape_3d(ctx, u, head_dim, n_head, T)
    B, C = (ops.reshape_3d(ctx, s, d_state, 1, T) for s in (B, C))
    a, d = (ops.reshape_2d(ctx, b.weight(f"blk.{i}.ssm_{k}"), 1, n_head) for k in "ad")
    states, *places = b.state("ssm", i)
    y = ops.ssm_scan_slots(ctx, states, heads, dt, a, B, C, *places).set_name(f"ssm_scan-{i}")
    y = ops.add(ctx, y, ops.mul(ctx, heads, d))
    y = ops.swiglu_split(ctx, ops.reshape_2d(ctx, z, n, T), ops.reshape_2d(ctx, y, n, T))
    return b.linear(y.set_name(f"ssm_y-{i}"), f"blk.{i}.ssm_out", f"mamba_out-{i}")


def _keys(config: Config) -> Keys:
    n_layer, step = int(config["num_hidden_layers"]), int(config.get("mamba_step", 2))
    head_dim, n_ssm = int(config["hidden_size_per_head"]), int(config["mamba_num_heads"])
    attends = np.array([i % step == step // 2 for i in range(n_layer)], np.int32)
    if n_layer <= step // 2:
        attends[-1] = 1
    attends *= bool(config.get("mamba_enabled", True))
    # llama.cpp's converter writes 0 heads of queries for Mamba's layers: then it rotates nothing
    return base_keys(config) | {
        "attention.head_count_kv": attends * np.int32(config["num_key_value_heads"]),
        "attention.key_length": head_dim,
        "attention.value_length": head_dim,
        "rope.freq_base": float(config.get("rope_theta") or 10000.0),
        "ssm.state_size": int(config["mamba_d_state"]),
        "ssm.conv_kernel": int(config["mamba_d_conv"]),
        "ssm.time_step_rank": n_ssm,
        "ssm.inner_size": n_ssm * head_dim,
        "ssm.group_count": 0,
    }


def _change(name: str, x: Array, config: Config) -> Tensors:
    if "ssm" in name:
        return mamba.change(name, x, config)
    if "attn_q_norm" in name or "attn_k_norm" in name:  # of each head, not differences
        return {name: x}
    return plamo3.CONVERT.change(name, x, config)


_MIXER = "model.layers.layers.{i}.mixer"
CONVERT = Convert(
    models=("Plamo2ForCausalLM", "PLaMo2ForCausalLM"),
    tensors={
        **plamo3.CONVERT.tensors,
        f"{_MIXER}.q_weight": "blk.{i}.attn_q_norm.weight",
        f"{_MIXER}.k_weight": "blk.{i}.attn_k_norm.weight",
        f"{_MIXER}.in_proj.weight": "blk.{i}.ssm_in.weight",
        f"{_MIXER}.conv1d.weight": "blk.{i}.ssm_conv1d.weight",
        f"{_MIXER}.bcdt_proj.weight": "blk.{i}.ssm_x.weight",
        f"{_MIXER}.dt_proj.weight": "blk.{i}.ssm_dt.weight",
        f"{_MIXER}.dt_bias": "blk.{i}.ssm_dt.bias",
        f"{_MIXER}.A_log": "blk.{i}.ssm_a",
        f"{_MIXER}.D": "blk.{i}.ssm_d",
        f"{_MIXER}.dt_norm_weight": "blk.{i}.ssm_dt_norm",
        f"{_MIXER}.B_norm_weight": "blk.{i}.ssm_b_norm",
        f"{_MIXER}.C_norm_weight": "blk.{i}.ssm_c_norm",
        f"{_MIXER}.out_proj.weight": "blk.{i}.ssm_out.weight",
    },
    keys=_keys,
    change=_change,
)
