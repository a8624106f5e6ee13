"""GroveMoE: Qwen3's attention; experts in groups, each with a smaller one for the experts' output.

Source: Wu et al. 2025, "Grove MoE"; llama.cpp, ``llama_model_grovemoe``.
"""

from __future__ import annotations

from functools import partial

import pyggml as ops
from pyggml.dtype import GGMLType
from pyggml.tensor import Tensor

from ..errors import ModelError
from ..graph.builder import GraphBuilder
from ..graph.decoder import pre_norm_decoder
from ..graph.experts import Route, expert_weights, mix_experts
from ..graph.tensors import without
from ..hparams import Got, Key, Values
from ..mapping.rules import Config, Convert, Keys, float32
from . import qwen2moe, qwen3, qwen3moe


def _n_chunk(got: Got) -> int:
    """The number of groups. Raises: ModelError: groups are not of equal sizes."""
    n, size = got["n_expert"], got["n_group_experts"]
    if size < 1 or n % size:
        raise ModelError(f"grovemoe model with {n} experts in groups of {size}, want equal groups")
    return int(n // size)


HPARAMS: Values = {
    **qwen3moe.HPARAMS,
    "n_group_experts": Key("experts_per_group"),
    "group_scale": Key("expert_group_scale", type=float),
    "n_ff_chunk_key": Key("expert_chunk_feed_forward_length", 0),
    "n_ff_chunk": lambda got: got["n_ff_chunk_key"] or got["head_dim_arr"][0],
    "n_chunk": _n_chunk,
}

TENSORS = {
    **without(qwen3moe.TENSORS, "rope_f"),
    "blk.{i}.ffn_gate_chexps.weight": ("n_embd", "n_ff_chunk", "n_chunk"),
    "blk.{i}.ffn_up_chexps.weight": ("n_embd", "n_ff_chunk", "n_chunk"),
    "blk.{i}.ffn_down_chexps.weight": ("n_ff_chunk", "n_embd", "n_chunk"),
}


def _experts(b: GraphBuilder, x: Tensor, i: int, residual: Tensor) -> Tensor:
    """The output of each token's experts, what their groups' experts make of it, the residual."""
    ctx, hp = b.ctx, b.hparams
    logits = b.linear(x, f"blk.{i}.ffn_gate_inp", f"ffn_moe_logits-{i}")  # [n_expert, T]
    probs = ops.soft_max(ctx, logits)
    chosen = ops.top_k(ctx, logits, hp.n_expert_used)
    out = mix_experts(b, x, i, "silu", Route(chosen, expert_weights(b, probs, chosen)))
    chosen = ops.top_k(ctx, logits, min(hp.n_expert_used, hp.size("n_chunk")))
    share = 1 / hp.size("n_group_experts")
    groups = ops.scale_bias(ctx, ops.cast(ctx, chosen, GGMLType.F32), share, 0.5 * share)
    groups = ops.cast(ctx, groups, GGMLType.I32)
    # weighted by the group's number among experts, as llama.cpp does
    route = Route(groups, expert_weights(b, probs, groups))
    more = mix_experts(b, out, i, "silu", route, "chexps")
    more = ops.scale(ctx, more, hp.own["group_scale"])
    return ops.add(ctx, ops.add(ctx, out, more), residual)


build_graph = partial(pre_norm_decoder, feed_forward=_experts)


def _keys(config: Config) -> Keys:
    return qwen3moe.CONVERT.keys(config) | {  # not in config.json
        "expert_chunk_feed_forward_length": int(config.get("head_dim") or 128),
        "experts_per_group": 2,
        "expert_group_scale": float32(0.05),
    }


_CHUNK = "model.layers.{i}.mlp.chunk_experts.{e}"
CONVERT = Convert(
    models=("GroveMoeForCausalLM", "modeling_grove_moe.GroveMoeForCausalLM"),
    tensors={
        **qwen3.CONVERT.tensors,
        **qwen2moe.ROUTED,
        **{
            f"{_CHUNK}.{part}_proj.weight": f"blk.{{i}}.ffn_{part}_chexps.weight"
            for part in ("gate", "up", "down")
        },
    },
    keys=_keys,
    ignored=(*Convert.ignored, "*.expert_bias"),
)
