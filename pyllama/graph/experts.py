"""Mixture of experts: a feed-forward part of which each token uses a few experts.

    cur = experts(b, x, i, "silu")                 # [n_embd, T]
    cur = ops.add(ctx, cur, shared_experts(b, x, i, "silu"))

The router (``ffn_gate_inp``) scores the experts; the outputs of the best ones are summed with
weights that follow from the scores. What a model's router does is in its hyperparameters (gating,
norm and scale of the weights, groups) and in its tensors (biases, ``exp_probs_b``, and
``ffn_gate_tid2eid``, a table of each token's experts).
Source: Jiang et al. 2024, "Mixtral of Experts", section 2.1; DeepSeek-AI 2024, "DeepSeek-V2",
section 2.1.2, for groups, and "DeepSeek-V3", section 2.1.2, for their scores and the bias of the
choice; Roller et al. 2021, "Hash Layers For Large Sparse Models"; llama.cpp, ``build_moe_ffn``.
"""

from __future__ import annotations

from functools import partial, reduce
from typing import NamedTuple

import pyggml as ops
from pyggml.dtype import GGMLType
from pyggml.tensor import Tensor

from ..activation import POSITIVE, activate, hidden_name
from ..hparams import GATINGS, HParams
from .builder import EXCLUDED, GraphBuilder
from .dense import ffn_hidden, glu
from .sparse.ffn import check_relu

# Only excludes 0, as in transformers. llama.cpp's bound, the smallest normal float16, makes weights
# of experts smaller that a bias chose although the router gives them almost nothing.
_MIN_SUM = 1e-20


def experts(
    b: GraphBuilder, x: Tensor, i: int, act: str, router_in: Tensor | None = None,
    weigh_inputs: bool = False, up_act: str = "",
) -> Tensor:  # fmt: skip
    """The weighted output of each token's experts in layer ``i``.

    Args:
        act: of the gate, or of ``up`` without one.
        router_in: what the router scores; None for ``x``.
        weigh_inputs: see ``Route``.
        up_act: activation of ``up`` in gated experts; empty for none.

    Shape:
        x, router_in [n_embd, T] -> [n_embd, T]
    """
    router_in = x if router_in is None else router_in
    chosen, weights = _route(b, router_in, i)
    return mix_experts(b, x, i, act, Route(chosen, weights, weigh_inputs, router_in), up_act=up_act)


class Route(NamedTuple):
    """The experts of each token.

    Attributes:
        chosen: their numbers, I32 [n_used, T].
        weights: of their outputs, [1, n_used, T].
        weigh_inputs: the weights are those of their inputs (Llama 4).
        router_in: input of the router, [n_embd, T], from which the next layer's choice is guessed.
    """

    chosen: Tensor
    weights: Tensor
    weigh_inputs: bool = False
    router_in: Tensor | None = None


def mix_experts(
    b: GraphBuilder, x: Tensor, i: int, act: str, route: Route, kind: str = "exps",
    up_act: str = "",
) -> Tensor:  # fmt: skip
    """The weighted output of the chosen experts.

    In a layer with a fetcher, the matrices are the slots of a cache, and the fetcher runs before.
    In a sparse layer, rows of ``up`` and ``down`` are read of neurons with a positive gate only.

    Args:
        kind: ending of their matrices' names.
        up_act: see ``experts``.

    Shape:
        x [n_embd, T] -> the same

    Raises:
        ModelError: the layer is sparse and the activation is not ReLU.
    """
    ctx, (n_embd, n_tokens) = b.ctx, x.ne[:2]
    chosen, weights, weigh_inputs, router_in = route
    slots = _slots(b, i, chosen, router_in) if kind == "exps" else None  # I32 [n_expert]
    n_used = chosen.ne[0]
    x = ops.reshape_3d(ctx, x, n_embd, 1, n_tokens)
    if weigh_inputs:
        x = ops.mul(ctx, ops.repeat_4d(ctx, x, n_embd, n_used, n_tokens, 1), weights)

    is_sparse = kind == "exps" and b.hparams.source(i) == "exact"
    if is_sparse:
        check_relu(b, act)

    def apply(part: str, x: Tensor, scores: Tensor | None = None) -> Tensor:
        name = f"blk.{i}.ffn_{part}_{kind}"
        if f"{name}_t.weight" in b.weights:  # rows of neurons
            y = ops.axpy_id(ctx, b.weight(f"{name}_t.weight"), x, chosen, slots)
        elif scores is not None:
            up = b.weight(f"{name}.weight")
            y = ops.mul_mat_id_sparse(ctx, up, x, chosen, scores, POSITIVE, slots)
        else:
            y = ops.mul_mat_id(ctx, b.weight(f"{name}.weight"), x, chosen, slots)
        y.set_name(f"ffn_moe_{part}-{i}")
        scale = b.weights.get(f"blk.{i}.ffn_{part}_{kind}.scale")  # [n_expert]
        if scale is not None:
            flat = ops.reshape_1d(ctx, chosen, n_used * n_tokens)
            scales = ops.get_rows(ctx, ops.reshape_2d(ctx, scale, 1, scale.ne[0]), flat)
            scales = ops.reshape_3d(ctx, scales, 1, n_used, n_tokens)
            y = ops.mul(ctx, y, scales).set_name(f"ffn_moe_{part}_s-{i}")
        y = b.adapt_experts(y, x, f"blk.{i}.ffn_{part}_{kind}.weight", chosen)
        bias = b.weights.get(f"blk.{i}.ffn_{part}_{kind}.bias")
        return y if bias is None else ops.add_id(ctx, y, bias, chosen)

    if f"blk.{i}.ffn_gate_up_{kind}.weight" in b.weights:
        both = apply("gate_up", x)  # [2 * n_ff_exp, n_expert_used, T]
        n_ff = both.ne[0] // 2
        gate, up = (
            ops.view_3d(ctx, both, (n_ff, *both.ne[1:3]), both.nb[1:3], part * n_ff * both.nb[0])
            for part in (0, 1)
        )
        cur = glu(b, gate, up, act, i, "limit_exp")
    elif f"blk.{i}.ffn_gate_{kind}.weight" in b.weights:
        gate = apply("gate", x)  # [n_ff_exp, n_expert_used, T]
        up = apply("up", x, gate if is_sparse else None)
        up = activate(ctx, up, up_act) if up_act else up
        cur = glu(b, gate, up, act, i, "limit_exp")
    else:
        cur = activate(ctx, apply("up", x), act)
    cur = apply("down", cur.set_name(f"ffn_moe_{hidden_name(act)}-{i}"))
    if not weigh_inputs:
        cur = ops.mul(ctx, cur, weights)  # [n_embd, n_expert_used, T]
    cur = cur.set_name(f"ffn_moe_weighted-{i}")
    parts = [
        ops.view_2d(ctx, cur, n_embd, n_tokens, cur.nb[2], u * cur.nb[1]) for u in range(n_used)
    ]
    return reduce(partial(ops.add, ctx), parts).set_name(f"ffn_moe_out-{i}")


def _slots(b: GraphBuilder, i: int, chosen: Tensor, router_in: Tensor | None) -> Tensor | None:
    """The slot of each chosen expert of a layer, I32 [n_expert]; None if the layer has no fetcher.

    The fetcher also gets a guess for the next layer that has one: what its router would choose now.
    """
    if i not in b.fetchers:
        return None
    after = min((j for j in b.fetchers if i < j < b.hparams.n_layer), default=None)
    guess: tuple[Tensor, ...] = ()
    if after is not None and router_in is not None:
        ranked = _ranked(b, router_in, after, f"ffn_moe_guess_{{}}-{i}")[1]
        guess = (ops.top_k(b.ctx, ranked, b.hparams.n_expert_used).set_name(f"ffn_moe_guess-{i}"),)
    ne, fetch = (b.hparams.n_expert,), b.fetchers[i]
    slots = ops.map_custom(b.ctx, fetch, chosen, *guess, ne=ne, type=GGMLType.I32)
    return slots.set_name(f"ffn_moe_slots-{i}")


def shared_experts(b: GraphBuilder, x: Tensor, i: int, act: str) -> Tensor:
    """The output of the experts that every token uses, scaled by their own gate if there is one.

    Shape:
        x [n_embd, T] -> [n_embd, T]
    """
    hidden = ffn_hidden(b, x, i, act, "", suffix="_shexp")
    out = b.linear(hidden, f"blk.{i}.ffn_down_shexp", f"ffn_shexp-{i}")
    if f"blk.{i}.ffn_gate_inp_shexp.weight" in b.weights:
        score = b.linear(x, f"blk.{i}.ffn_gate_inp_shexp", f"shared_expert_gate-{i}")  # [1, T]
        out = ops.mul(b.ctx, out, ops.sigmoid(b.ctx, score)).set_name(f"ffn_shexp_gated-{i}")
    return out


def latent_experts(b: GraphBuilder, x: Tensor, i: int, act: str, kind: str) -> Tensor:
    """LatentMoE: routed experts of a projection of ``x``, plus shared ones of ``x`` itself.

    A variant may lack the projection, the norm of the experts' output, or shared experts.
    Source: NVIDIA 2025, "Nemotron 3"; Kimi Team 2026, "Kimi K3"; llama.cpp,
    ``llama_model_kimi_k3::graph::build_latent_moe``.

    Args:
        kind: of the projections' names: ``ffn_{kind}_down``, ``ffn_{kind}_up``.

    Shape:
        x [n_embd, T] -> [n_embd, T]
    """
    prefix, inner = f"blk.{i}.ffn_{kind}", x
    if f"{prefix}_down.weight" in b.weights:
        inner = b.linear(x, f"{prefix}_down", f"ffn_{kind}_down-{i}")  # [n_latent, T]
    y = experts(b, inner, i, act, router_in=x)
    if f"{prefix}_norm.weight" in b.weights:
        y = b.rms_norm(y, f"{prefix}_norm", f"ffn_{kind}_norm-{i}")
    if inner is not x:
        y = b.linear(y, f"{prefix}_up", f"ffn_{kind}_up-{i}")
    if f"blk.{i}.ffn_down_shexp.weight" in b.weights:
        y = ops.add(b.ctx, y, shared_experts(b, x, i, act))
    return y.set_name(f"ffn_out-{i}")


def _route(b: GraphBuilder, x: Tensor, i: int) -> tuple[Tensor, Tensor]:
    """The experts of each token, I32 [n_expert_used, T], and their weights [1, n_used, T]."""
    probs, ranked = _ranked(b, x, i, f"ffn_moe_{{}}-{i}")
    if b.hparams.router_jitter:
        return _sparse_mixer(b, probs, i)
    table = b.weights.get(f"blk.{i}.ffn_gate_tid2eid.weight")  # I32 [n_used, n_vocab]
    if table is None:
        chosen = ops.top_k(b.ctx, ranked, b.hparams.n_expert_used)
    else:  # a hash of the token chooses them, the router only weighs them
        chosen = ops.get_rows(b.ctx, table, b.tokens)
    chosen = chosen.set_name(f"ffn_moe_topk-{i}")
    weights = expert_weights(b, probs, chosen).set_name(f"ffn_moe_weights-{i}")
    return chosen, weights


def _ranked(b: GraphBuilder, x: Tensor, i: int, name: str) -> tuple[Tensor, Tensor]:
    """The probabilities of layer ``i``'s experts, and the scores by which its router ranks them.

    Scores are probabilities plus a bias, with experts of weak groups masked, if a model has these.

    Args:
        name: of the nodes, with ``{}`` for the kind of each.

    Shape:
        x [n_embd, T] -> both [n_expert, T]
    """
    ctx, hp = b.ctx, b.hparams
    gating = GATINGS[hp.expert_gating]
    logits = b.linear(x, f"blk.{i}.ffn_gate_inp", name.format("logits"))  # [n_expert, T]
    if hp.router_jitter:
        return logits, logits
    if gating == "softmax":
        probs = ops.soft_max(ctx, logits)
    elif gating == "sigmoid":
        probs = ops.sigmoid(ctx, logits)
    elif gating == "sqrt_softplus":
        probs = ops.sqrt(ctx, ops.softplus(ctx, logits))
    else:  # softmax_weight: of the chosen ones only
        probs = logits
    ranked = probs.set_name(name.format("probs"))
    bias_name = f"blk.{i}.exp_probs_b"
    bias = b.weights.get(f"{bias_name}.bias", b.weights.get(bias_name))  # without ending in Hy3
    if bias is not None:  # decides which experts, not with which weights
        ranked = ops.add(ctx, ranked, bias).set_name(name.format("probs_biased"))
    if hp.n_expert_groups > 1:
        ranked = _mask_groups(b, ranked, hp).set_name(name.format("probs_masked"))
    return probs, ranked


def expert_weights(b: GraphBuilder, probs: Tensor, chosen: Tensor) -> Tensor:
    """The weights of the chosen experts by what the router gives to each.

    Shape:
        probs [n_expert, T], chosen I32 [n_used, T] -> [1, n_used, T]
    """
    ctx, hp, (n_used, n_tokens) = b.ctx, b.hparams, chosen.ne[:2]
    probs = ops.reshape_3d(ctx, probs, 1, hp.n_expert, n_tokens)
    weights = ops.get_rows(ctx, probs, chosen)  # [1, n_used, T]
    weights = ops.reshape_2d(ctx, weights, n_used, n_tokens)
    if GATINGS[hp.expert_gating] == "softmax_weight":
        weights = ops.soft_max(ctx, weights)
    if hp.expert_weights_norm:
        total = ops.clamp(ctx, ops.sum_rows(ctx, weights), _MIN_SUM, float("inf"))  # [1, T]
        weights = ops.div(ctx, weights, total)
    weights = ops.reshape_3d(ctx, weights, 1, n_used, n_tokens)
    if hp.expert_weights_scale != 1:
        weights = ops.scale(ctx, weights, hp.expert_weights_scale)
    return weights


def _sparse_mixer(b: GraphBuilder, logits: Tensor, i: int) -> tuple[Tensor, Tensor]:
    """SparseMixer: each expert's weight is its share among those that could have been drawn for it.

    These are the experts that are not better, and not farther below it than the jitter of training
    reaches; for the first they are all near the best one.
    Source: Liu et al. 2023, "Sparse Backpropagation for MoE Training"; transformers,
    ``sparsemixer`` of ``modeling_phimoe``.

    Shape:
        logits [n_expert, T] -> as of `_route`
    """
    ctx, hp, (n_expert, n_tokens) = b.ctx, b.hparams, logits.ne[:2]
    n_used = hp.n_expert_used
    chosen = ops.top_k(ctx, logits, n_used).set_name(f"ffn_moe_topk-{i}")
    rows = ops.reshape_3d(ctx, logits, 1, n_expert, n_tokens)
    best = ops.get_rows(ctx, rows, chosen)  # [1, n_used, T]
    rows = ops.reshape_3d(ctx, logits, n_expert, 1, n_tokens)
    rows = ops.repeat_4d(ctx, rows, n_expert, n_used, n_tokens, 1)
    ahead = ops.sub(ctx, rows, best)  # [n_expert, n_used, T], positive for better experts
    reach = ops.add(ctx, ops.relu(ctx, ops.sub(ctx, ops.abs(ctx, rows), best)), best)
    reach = ops.scale(ctx, reach, -2 * hp.router_jitter)  # of max(|logit|, best)
    out = ops.add(ctx, ops.step(ctx, ahead), ops.step(ctx, ops.sub(ctx, reach, ahead)))
    probs = ops.soft_max(ctx, ops.add(ctx, ahead, ops.scale(ctx, out, EXCLUDED)))
    probs = ops.reshape_3d(ctx, probs, 1, n_expert, n_used * n_tokens)
    at = ops.reshape_2d(ctx, chosen, 1, n_used * n_tokens)
    weights = ops.reshape_3d(ctx, ops.get_rows(ctx, probs, at), 1, n_used, n_tokens)
    return chosen, weights.set_name(f"ffn_moe_weights-{i}")


def _mask_groups(b: GraphBuilder, probs: Tensor, hp: HParams) -> Tensor:
    """``probs`` with -inf for the experts outside of each token's best groups.

    A group's score is that of its best expert, without softmax gating the sum of the best two.

    Shape:
        probs [n_expert, T] -> the same
    """
    ctx, n_groups, n_tokens = b.ctx, hp.n_expert_groups, probs.ne[1]
    n_in_group = hp.n_expert // n_groups
    n_best = 1 if GATINGS[hp.expert_gating] == "softmax" else 2
    groups = ops.reshape_3d(ctx, probs, n_in_group, n_groups, n_tokens)
    best = ops.top_k(ctx, groups, n_best)  # [n_best, n_groups, T]
    scores = ops.get_rows(ctx, ops.reshape_4d(ctx, groups, 1, n_in_group, n_groups, n_tokens), best)
    scores = ops.sum_rows(ctx, ops.reshape_3d(ctx, scores, n_best, n_groups, n_tokens))
    scores = ops.reshape_2d(ctx, scores, n_groups, n_tokens)
    chosen = ops.top_k(ctx, scores, hp.n_group_used)  # [n_group_used, T]
    kept = ops.get_rows(ctx, groups, chosen)  # [n_in_group, n_group_used, T]
    nothing = ops.fill(ctx, groups, float("-inf"))
    return ops.reshape_2d(ctx, ops.set_rows(ctx, nothing, kept, chosen), hp.n_expert, n_tokens)
