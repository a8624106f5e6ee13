"""The parts of RWKV 6 and 7: time mixing, channel mixing, and the decoders of both.

    cur, first = time_mix7(b, b.layer_norm(inp, f"blk.{i}.attn_norm", f"attn_norm-{i}"), i, first)

A mix is the token's row, moved towards the row of the token before by a learned factor for each
column. The states of a layer are the last rows and, for each head, a matrix [key, value].
Source: Peng et al. 2024, "Eagle and Finch"; Peng et al. 2025, "RWKV-7 Goose"; llama.cpp,
``llm_build_rwkv7_base``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pyggml as ops
from pyggml.tensor import Tensor

from ..hparams import Got, Key, Values
from .builder import GraphBuilder
from .delta_net import repeat_each
from .ffn import ffn

GROUP_EPS = 64e-5  # of the norm of heads
MAX_DECAY = 0.606531  # exp(-0.5)

States = tuple[Mapping[str, tuple[int, ...]], ...]  # sizes by layer and name
# A layer's normed input, its number and the first layer's values; returns also these
TimeMix = Callable[[GraphBuilder, Tensor, int, Tensor | None], tuple[Tensor, Tensor | None]]


def states(*shifts: str) -> Callable[[Got], States]:
    """The states of all layers; ``shifts`` are the names of those with a token's row."""

    def of_layers(got: Got) -> States:
        sizes = dict.fromkeys(shifts, (got["n_embd"],))
        return ({**sizes, "wkv": (got["n_embd"] * got["head_size"],)},) * int(got["n_layer"])

    return of_layers


RWKV: Values = {
    "empty_layers": True,  # no layer has heads of attention
    "n_rot": 0,
    "head_size": Key("wkv.head_size"),
    "one": 1,
}
RWKV7: Values = {
    **RWKV,
    "n_lora_w": Key("attention.decay_lora_rank"),
    "n_lora_a": Key("attention.iclr_lora_rank"),
    "n_lora_value": Key("attention.value_residual_mix_lora_rank"),
    "n_lora_g": Key("attention.gate_lora_rank", 0),
    # tensors of the first layer have the sizes of ``a`` and are not used
    "n_lora_v": lambda got: (got["n_lora_a"],) + (got["n_lora_value"],) * (got["n_layer"] - 1),
    "n_mixes": lambda got: 6 if got["n_lora_g"] else 5,
}
TIME_MIX7 = {
    "blk.{i}.time_mix_lerp_fused.weight": ("n_embd", "one", "one", "n_mixes"),
    "blk.{i}.time_mix_receptance.weight": ("n_embd", "n_embd"),
    "blk.{i}.time_mix_key.weight": ("n_embd", "n_embd"),
    "blk.{i}.time_mix_value.weight": ("n_embd", "n_embd"),
    **{
        f"blk.{{i}}.time_mix_{part}{k}.weight": sizes
        for part in "wavg"
        for k, sizes in enumerate(
            (("n_embd",), ("n_embd", f"n_lora_{part}"), (f"n_lora_{part}", "n_embd"))
        )
        if (part, k) != ("g", 0)
    },
    **{f"blk.{{i}}.time_mix_{part}.weight": ("n_embd",) for part in ("k_k", "k_a", "r_k")},
    "blk.{i}.time_mix_output.weight": ("n_embd", "n_embd"),
}
RWKV6: Values = {
    **RWKV,
    "n_lora_mix": Key("time_mix_extra_dim"),
    "n_lora_decay": Key("time_decay_extra_dim"),
    "n_mixes": 5,
    "n_mix_rows": lambda got: 5 * got["n_lora_mix"],
}
TIME_MIX6 = {
    "blk.{i}.time_mix_lerp_x.weight": ("n_embd",),
    "blk.{i}.time_mix_w1.weight": ("n_embd", "n_mix_rows"),
    "blk.{i}.time_mix_w2.weight": ("n_lora_mix", "n_embd", "n_mixes"),
    "blk.{i}.time_mix_lerp_fused.weight": ("n_embd", "one", "one", "n_mixes"),
    "blk.{i}.time_mix_receptance.weight": ("n_embd", "n_embd"),
    "blk.{i}.time_mix_key.weight": ("n_embd", "n_embd"),
    "blk.{i}.time_mix_value.weight": ("n_embd", "n_embd"),
    "blk.{i}.time_mix_gate.weight": ("n_embd", "n_embd"),
    "blk.{i}.time_mix_decay_w1.weight": ("n_embd", "n_lora_decay"),
    "blk.{i}.time_mix_decay_w2.weight": ("n_lora_decay", "n_embd"),
    "blk.{i}.time_mix_decay.weight": ("n_embd",),
    "blk.{i}.time_mix_output.weight": ("n_embd", "n_embd"),
}
NORMED = {  # of the decoder with layer norms
    "token_embd_norm.*": ("n_embd",),
    "blk.{i}.attn_norm.*": ("n_embd",),
    "blk.{i}.attn_norm_2.*": ("n_embd",),
    "blk.{i}.time_mix_ln.*": ("n_embd",),
    "blk.{i}.channel_mix_lerp_k.weight": ("n_embd",),
    "blk.{i}.channel_mix_key.weight": ("n_embd", "n_ff"),
    "blk.{i}.channel_mix_value.weight": ("n_ff", "n_embd"),
    "output_norm.*": ("n_embd",),
    "token_embd.weight": ("n_embd", "n_vocab"),
    "output.weight": ("n_embd", "n_vocab"),
}


def decoder(b: GraphBuilder, time_mix: TimeMix) -> Tensor:
    """All layers and the logits of RWKV: layer norms, channel mixing."""
    inp = b.layer_norm(b.embed("token_embd.weight"), "token_embd_norm", "inp_norm")  # [n_embd, T]
    first: Tensor | None = None
    for i in range(b.hparams.n_layer):
        cur = b.layer_norm(inp, f"blk.{i}.attn_norm", f"attn_norm-{i}")
        cur, first = time_mix(b, cur, i, first)
        inp = ops.add(b.ctx, cur, inp).set_name(f"ffn_inp-{i}")
        cur = b.layer_norm(inp, f"blk.{i}.attn_norm_2", f"ffn_norm-{i}")
        before = _token_before(b, cur, "ffn_shift", i)
        cur, before, inp = b.select_outputs(i, cur, before, inp)
        inp = b.layer_output(ops.add(b.ctx, channel_mix(b, cur, before, i), inp), i)
        period = b.hparams.own.get("rescale_period", 0)
        if period and (i + 1) % period == 0:  # later layers' outputs are halved in the file
            inp = ops.scale(b.ctx, inp, 0.5).set_name(f"l_out_rescaled-{i}")
    return b.output(b.layer_norm(inp, "output_norm", "result_norm"))


def llama_decoder(b: GraphBuilder, time_mix: TimeMix) -> Tensor:
    """All layers and the logits of LLaMA's decoder with time mixing in place of attention."""
    inp = b.embed("token_embd.weight")  # [n_embd, T]
    first: Tensor | None = None
    for i in range(b.hparams.n_layer):
        cur = b.rms_norm(inp, f"blk.{i}.attn_norm", f"attn_norm-{i}")
        cur, first = time_mix(b, cur, i, first)
        cur, inp = b.select_outputs(i, cur, inp)
        inp = ops.add(b.ctx, cur, inp).set_name(f"ffn_inp-{i}")
        cur = b.rms_norm(inp, f"blk.{i}.ffn_norm", f"ffn_norm-{i}")
        inp = b.layer_output(ffn(b, cur, i, "silu", residual=inp), i)
    return b.output(b.rms_norm(inp, "output_norm", "result_norm"))


def channel_mix(b: GraphBuilder, x: Tensor, before: Tensor, i: int) -> Tensor:
    """The feed-forward part of layer ``i``: squared ReLU of a mix; in RWKV 6 with a gate.

    Shape:
        x and ``before``, the rows of the tokens before, [n_embd, T] -> the same
    """
    ctx, dx, prefix = b.ctx, ops.sub(b.ctx, before, x), f"blk.{i}.channel_mix"
    (xk,) = _mixes(b, x, dx, f"{prefix}_lerp_k.weight")
    k = b.linear(xk, f"{prefix}_key", f"channel_mix_key-{i}")  # [n_ff, T]
    k = ops.sqr(ctx, ops.relu(ctx, k))
    y = b.linear(k, f"{prefix}_value", f"ffn_out-{i}")
    if f"{prefix}_receptance.weight" not in b.weights:
        return y
    (xr,) = _mixes(b, x, dx, f"{prefix}_lerp_r.weight")
    r = b.linear(xr, f"{prefix}_receptance", f"channel_mix_receptance-{i}")
    return ops.mul(ctx, ops.sigmoid(ctx, r), y)


def time_mix7(
    b: GraphBuilder, x: Tensor, i: int, first: Tensor | None
) -> tuple[Tensor, Tensor | None]:
    """The time mixing of layer ``i`` of RWKV 7, and the values of the first layer.

    Shape:
        x [n_embd, T] -> [n_embd, T]
    """
    ctx = b.ctx
    dx = ops.sub(ctx, _token_before(b, x, "att_shift", i), x)
    xr, xw, xk, xv, xa, *xg = _mixes(b, x, dx, f"blk.{i}.time_mix_lerp_fused.weight")
    r, k, v = (
        b.linear(y, f"blk.{i}.time_mix_{part}", f"{part}-{i}")
        for y, part in ((xr, "receptance"), (xk, "key"), (xv, "value"))
    )  # [n_embd, T]
    w = ops.sigmoid(ctx, _lora(b, xw, i, "w", "tanh"))
    w = ops.exp(ctx, ops.scale(ctx, w, -MAX_DECAY))
    if first is None:
        first = v
    else:
        share = ops.sigmoid(ctx, _lora(b, xv, i, "v"))
        v = ops.add(ctx, v, ops.mul(ctx, ops.sub(ctx, first, v), share))
    a = ops.sigmoid(ctx, _lora(b, xa, i, "a"))
    kk = ops.mul(ctx, k, b.weight(f"blk.{i}.time_mix_k_k.weight"))
    ka = ops.mul(ctx, k, b.weight(f"blk.{i}.time_mix_k_a.weight"))
    k = ops.add(ctx, k, ops.sub(ctx, ops.mul(ctx, a, ka), ka))
    r, w, k, v_heads, a, kk = (_heads(b, y) for y in (r, w, k, v, a, kk))  # [S, H, T]
    kk = ops.l2_norm(ctx, kk, 1e-12)
    y = ops.rwkv_wkv7_slots(
        ctx, r, w, k, v_heads, ops.neg(ctx, kk), ops.mul(ctx, kk, a), *b.state("wkv", i)
    ).set_name(f"wkv-{i}")
    y = norm_heads(b, y, i)
    r_k = ops.reshape_2d(ctx, b.weight(f"blk.{i}.time_mix_r_k.weight"), *r.ne[:2])
    own = ops.sum_rows(ctx, ops.mul(ctx, ops.mul(ctx, k, r), r_k))  # [1, H, T]
    y = ops.add(ctx, y, ops.reshape_2d(ctx, ops.mul(ctx, v_heads, own), *x.ne[:2]))
    if xg:
        y = ops.mul(ctx, y, _lora(b, xg[0], i, "g", "sigmoid"))
    return b.linear(y, f"blk.{i}.time_mix_output", f"time_mix_out-{i}"), first


def time_mix6(b: GraphBuilder, x: Tensor, i: int, first: Tensor | None) -> tuple[Tensor, None]:
    """The time mixing of layer ``i`` of RWKV 6: how far rows are mixed depends on the token.

    Without ``time_mix_first`` it is gated linear attention, whose keys and values may be shared by
    several heads.

    Shape:
        x [n_embd, T] -> [n_embd, T]
    """
    ctx, prefix = b.ctx, f"blk.{i}.time_mix"
    xr, xw, xk, xv, xg = _mixes6(b, x, i)
    r, k, v, g = (
        b.linear(y, f"{prefix}_{part}", f"{part}-{i}")
        for y, part in ((xr, "receptance"), (xk, "key"), (xv, "value"), (xg, "gate"))
    )
    w = ops.tanh(ctx, b.linear(xw, f"{prefix}_decay_w1", f"w1-{i}"))
    w = b.linear(w, f"{prefix}_decay_w2", f"w2-{i}")
    w = ops.exp(ctx, ops.add(ctx, w, b.weight(f"{prefix}_decay.weight")))
    r, w, k, v = (_heads(b, y) for y in (r, ops.exp(ctx, ops.neg(ctx, w)), k, v))  # [S, H, T]
    u = b.weights.get(f"{prefix}_first.weight")
    if u is None:
        k, v = (repeat_each(b, y, r.ne[1] // y.ne[1]) for y in (k, v))
        k = ops.sub(ctx, k, ops.mul(ctx, k, w))
        scale = b.hparams.own["head_size"] ** -0.5
        y = ops.gated_linear_attn_slots(ctx, k, v, r, w, *b.state("wkv", i), scale)
    else:
        y = ops.rwkv_wkv6_slots(ctx, k, v, r, u, w, *b.state("wkv", i))
    y = norm_heads(b, y.set_name(f"wkv-{i}"), i)
    y = ops.mul(ctx, y, ops.sigmoid(ctx, g) if u is None else ops.silu(ctx, g))
    return b.linear(y, f"{prefix}_output", f"time_mix_out-{i}"), None


def _mixes6(b: GraphBuilder, x: Tensor, i: int) -> list[Tensor]:
    """The mixes for r, w, k, v and g, in this order: [n_embd, T]."""
    ctx, prefix, (n, T) = b.ctx, f"blk.{i}.time_mix", x.ne[:2]
    dx = ops.sub(ctx, _token_before(b, x, "att_shift", i), x)
    (xx,) = _mixes(b, x, dx, f"{prefix}_lerp_x.weight")
    low = ops.tanh(ctx, b.linear(xx, f"{prefix}_w1", f"mix_w1-{i}"))  # [5 rank, T]
    w2, factors = b.weight(f"{prefix}_w2.weight"), b.weight(f"{prefix}_lerp_fused.weight")
    rank = w2.ne[0]
    low = ops.view_3d(ctx, low, (rank, T, 5), (low.nb[1], 4 * rank))
    moves = ops.mul_mat(ctx, w2, low).set_name(f"mix_w2-{i}")  # [n_embd, T, 5]
    found = []
    for part in "rwkvg":
        k = "wkvrg".index(part)
        move = ops.view_2d(ctx, moves, n, T, moves.nb[1], k * moves.nb[2])
        move = ops.add(ctx, move, ops.view_1d(ctx, factors, n, k * factors.nb[3]))
        found.append(ops.add(ctx, ops.mul(ctx, move, dx), x))
    return found


def norm_heads(b: GraphBuilder, y: Tensor, i: int) -> Tensor:
    """The layer norm of each head, where the layer has weights for it: [S, H, T] -> [S H, T]."""
    ctx, (S, H, T) = b.ctx, y.ne[:3]
    weight, bias = (b.weights.get(f"blk.{i}.time_mix_ln.{end}") for end in ("weight", "bias"))
    if weight is None or bias is None:
        return ops.reshape_2d(ctx, y, S * H, T)
    y = ops.reshape_2d(ctx, ops.norm(ctx, y, GROUP_EPS), S * H, T)
    return ops.add(ctx, ops.mul(ctx, y, weight), bias).set_name(f"time_mix_ln-{i}")


def _token_before(b: GraphBuilder, x: Tensor, name: str, i: int) -> Tensor:
    """The rows of the tokens before: [n_embd, T]."""
    return ops.token_shift(b.ctx, x, *b.state(name, i)).set_name(f"{name}-{i}")


def _mixes(b: GraphBuilder, x: Tensor, dx: Tensor, weight: str) -> list[Tensor]:
    """``x + factor * dx`` for each row of factors of a tensor [n_embd, 1, 1, n]."""
    factors = b.weight(weight)
    rows = (ops.view_1d(b.ctx, factors, x.ne[0], k * factors.nb[3]) for k in range(factors.ne[3]))
    return [ops.add(b.ctx, ops.mul(b.ctx, dx, row), x) for row in rows]


def _lora(b: GraphBuilder, x: Tensor, i: int, part: str, act: str = "") -> Tensor:
    """``W2 act(W1 x)``, plus ``w0`` if the part has one: [n_embd, T] -> the same."""
    prefix = f"blk.{i}.time_mix_{part}"
    x = b.linear(x, f"{prefix}1", f"{part}1-{i}")
    x = b.linear(ops.unary(b.ctx, x, act) if act else x, f"{prefix}2", f"{part}2-{i}")
    bias = b.weights.get(f"{prefix}0.weight")
    return x if bias is None else ops.add(b.ctx, x, bias)


def _heads(b: GraphBuilder, x: Tensor) -> Tensor:
    """The heads of rows: [S H, T] -> [S, H, T]."""
    S = b.hparams.own["head_size"]
    return ops.reshape_3d(b.ctx, x, S, x.ne[0] // S, x.ne[1])
