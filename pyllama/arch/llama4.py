"""Llama 4 (text): chunked attention, layers without rope, experts in every n-th layer.

Three of four layers attend within chunks of positions; the fourth attends to all, without rope,
with an attention temperature. The router's weights multiply the experts' inputs.
Source: Meta 2025, "The Llama 4 herd"; llama.cpp, ``llama_model_llama4``.
"""

from __future__ import annotations

import pyggml as ops
from pyggml.tensor import Tensor

from ..graph.attention.factors import attn_temperature
from ..graph.builder import ROPE_FACTORS, GraphBuilder
from ..graph.decoder import pre_norm_decoder
from ..graph.experts import experts, shared_experts
from ..graph.ffn import ffn
from ..graph.tensors import ATTENTION, EXPERTS, GATED_FFN, OUTPUT
from ..hparams import GATINGS, Key, Values, window_values
from ..mapping.rules import Config, Convert, Keys, base_keys, check_config
from . import qwen2, qwen2moe

_PERIOD, _CHUNK, _WITHOUT_NORMS = 4, 8192, 128  # the 128 experts' model normalizes no heads

HPARAMS: Values = {
    **window_values(_PERIOD, _CHUNK),
    "swa_chunked": True,
    "nope_layers": lambda got: tuple(
        bool(got["n_swa"]) and i % _PERIOD == _PERIOD - 1 for i in range(got["n_layer"])
    ),
    "temperature": Key("attention.temperature_scale", 0.1),
    "temperature_length": Key("attention.temperature_length", _CHUNK),
    "moe_period": Key("interleave_moe_layer_step", 1),
    "expert_gating": GATINGS.index("sigmoid"),
    "expert_weights_norm": False,
}

TENSORS = {
    **ATTENTION,
    "blk.{i}.ffn_norm.weight": ("n_embd",),
    **GATED_FFN,
    **EXPERTS,
    "blk.{i}.ffn_gate_shexp.weight": ("n_embd", "n_ff_exp"),
    "blk.{i}.ffn_up_shexp.weight": ("n_embd", "n_ff_exp"),
    "blk.{i}.ffn_down_shexp.weight": ("n_ff_exp", "n_embd"),
    **ROPE_FACTORS,
    **OUTPUT,
}


def build_graph(b: GraphBuilder) -> Tensor:
    """The graph of one ubatch; returns the logits [n_vocab, n_outputs]."""
    hp, ctx, own = b.hparams, b.ctx, b.hparams.own
    temperature = attn_temperature(b, own["temperature"], own["temperature_length"], offset=1)

    def attention(b: GraphBuilder, x: Tensor, i: int) -> Tensor:
        q, k, v = b.qkv(x, i)
        if hp.nope_layers[i]:
            q = ops.mul(ctx, q, temperature)
        else:
            q, k = b.rope(q, f"Qcur-{i}", i), b.rope(k, f"Kcur-{i}", i)
            if hp.n_expert != _WITHOUT_NORMS:
                q, k = (ops.rms_norm(ctx, x, hp.norm_eps) for x in (q, k))
        return b.attention(q, k, v, i)

    return pre_norm_decoder(b, attention, _ffn)


def _ffn(b: GraphBuilder, x: Tensor, i: int, residual: Tensor) -> Tensor:
    if not b.hparams.has_experts(i):
        return ffn(b, x, i, "silu", residual=residual)
    act = b.hparams.hidden_act or "silu"
    routed = experts(b, x, i, act, weigh_inputs=True)
    return ops.add(b.ctx, ops.add(b.ctx, routed, shared_experts(b, x, i, act)), residual)


def _keys(config: Config) -> Keys:
    layers = range(int(config["num_hidden_layers"]))
    step = int(config.get("interleave_moe_layer_step") or 1)
    kinds = config.get("layer_types")
    windowed = not kinds or set(kinds) != {"full_attention"}
    rope = [int(not windowed or i % _PERIOD != _PERIOD - 1) for i in layers]
    check_config(
        config,
        attention_bias=False,
        no_rope_layers=rope if config.get("no_rope_layers") else None,
        moe_layers=[i for i in layers if i % step == step - 1],
        use_qk_norm=config["num_local_experts"] != _WITHOUT_NORMS,
        attn_temperature_tuning=True,
        layer_types=[("full", "chunked")[windowed and x] + "_attention" for x in rope],
    )
    if not config.get("no_rope_layers"):
        check_config(config, no_rope_layer_interval=_PERIOD)
    keys = base_keys(config, "silu")
    keys["rope.dimension_count"] = keys["attention.key_length"]
    keys["feed_forward_length"] = int(config["intermediate_size_mlp"])
    keys["expert_feed_forward_length"] = int(config["intermediate_size"])
    keys["interleave_moe_layer_step"] = step
    if float(config.get("attn_scale", 0.1)) != 0.1:
        keys["attention.temperature_scale"] = float(config["attn_scale"])
    if config.get("floor_scale", _CHUNK) != _CHUNK:
        keys["attention.temperature_length"] = int(config["floor_scale"])
    chunk = int(config.get("attention_chunk_size") or _CHUNK) if windowed else 0
    return keys if chunk == _CHUNK else keys | {"attention.sliding_window": chunk}


_MLP = {**qwen2.CONVERT.tensors, **qwen2moe.shared("shared_expert")}
_NAMES = {
    **{name.replace("mlp", "feed_forward"): x for name, x in _MLP.items()},
    "model.layers.{i}.feed_forward.router.weight": "blk.{i}.ffn_gate_inp.weight",
    "model.layers.{i}.feed_forward.experts.gate_up_proj": "blk.{i}.ffn_gate_up_exps.weight",
    "model.layers.{i}.feed_forward.experts.down_proj": "blk.{i}.ffn_down_exps.weight",
}
CONVERT = Convert(
    models=("Llama4ForCausalLM", "Llama4ForConditionalGeneration"),
    tensors=_NAMES,
    keys=_keys,
    change=qwen2moe.split_experts,
    defaults={"head_dim": 128, "num_experts_per_tok": 1, "rope_theta": 500000.0},
)
