"""GLM-5.3: Kimi's delta attention in most layers, latent attention without positions in others.

Residual streams are mixed by hyper-connections (mHC). The layers of attention have an indexer that
chooses groups of keys, by means with gates.
Source: Zhipu AI 2026, "GLM-5.3-Flash"; llama.cpp, ``llama_model_glm5_next``.
"""

from __future__ import annotations

import numpy as np

import pyggml as ops
from pyggml.tensor import Tensor

from ..errors import ModelError
from ..graph import hyper_connections as hc
from ..graph.attention import indexer
from ..graph.attention.mla import check_absorbed, n_nope
from ..graph.builder import GraphBuilder
from ..graph.delta_net import kimi_delta, kimi_states_of
from ..graph.dense import SWIGLU_LIMITS
from ..graph.ffn import ffn
from ..graph.mamba import Sizes
from ..graph.tensors import without
from ..hparams import SIGMOID_ROUTER, Got, Key, Values
from ..mapping.rules import (
    Array,
    Config,
    Convert,
    Keys,
    Tensors,
    check_config,
    float32,
)
from . import deepseek32, kimi_linear

NAME = "glm5-next"


def _n_nope(got: Got) -> int:
    check_absorbed(got, got["n_lora_kv"])
    return n_nope(got, got["n_key_mla"])


def _states(got: Got) -> tuple[Sizes, ...]:
    if not got["has_tail"]:
        raise ModelError(
            f"{got['arch']} model whose tokens do not attend to the last ones before a whole "
            "group; this variant is not supported"
        )
    layers = zip(got["recurs"], indexer.pooled_states(got), strict=True)
    return tuple({**(kimi_states_of(got) if recurs else {}), **pooled} for recurs, pooled in layers)


def _indexer_layers(got: Got) -> tuple[int, ...]:
    """The layers of attention whose indexer is not that of an earlier one."""
    return tuple(a * x for a, x in zip(got["attends"], got["indexer_types"], strict=True))


HPARAMS: Values = {
    **without(kimi_linear.HPARAMS, "nope_layers", "states"),
    **hc.MIXING_HPARAMS,
    **SWIGLU_LIMITS,
    **SIGMOID_ROUTER,
    "n_rot": 0,
    "n_key_mla": Key("attention.key_length_mla"),
    "n_nope": _n_nope,
    "latent_eps": lambda got: got["norm_eps"],
    "lowest_decay": Key("kda.gate_lower_bound", 0.0),
    "has_tail": Key("attention.indexer.kpool_select_tail", True),
    **indexer.HPARAMS,
    "n_pool": Key("attention.indexer.kpool"),
    "indexer_types": Key("attention.indexer.types", 1, tuple),
    "indexer_layers": _indexer_layers,
    "states": _states,
}

TENSORS = {
    **kimi_linear.TENSORS,
    "blk.{i}.ssm_a": ("recurs*n_head",),
    **indexer.POOL_TENSORS,
    **without(hc.MIXING_TENSORS, "output_hc"),
}


def build_graph(b: GraphBuilder) -> Tensor:
    """The graph of one ubatch; returns the logits [n_vocab, n_outputs]."""
    streams = hc.start_streams(b, b.embed("token_embd.weight"))  # [n_embd, n_hc, T]
    for i in range(b.hparams.n_layer):
        x, streams, gate = hc.read_mixed(b, streams, f"blk.{i}.hc_attn", i)
        x = b.rms_norm(x, f"blk.{i}.attn_norm", f"attn_norm-{i}")
        mixer = kimi_linear.latent if b.hparams.n_head_kv_arr[i] else kimi_delta
        streams = hc.write_streams(b, mixer(b, x, i), streams, gate)
        x, streams, gate = hc.read_mixed(b, streams, f"blk.{i}.hc_ffn", i)
        cur = ffn(b, b.rms_norm(x, f"blk.{i}.ffn_norm", f"ffn_norm-{i}"), i, "silu")
        streams = hc.write_streams(b, cur, streams, gate).set_name(f"l_out-{i}")
    n_embd, n_hc, n_tokens = streams.ne[:3]
    flat = b.of_outputs(ops.reshape_2d(b.ctx, streams, n_embd * n_hc, n_tokens))
    streams = ops.reshape_3d(b.ctx, flat, n_embd, n_hc, flat.ne[1])
    return b.output(b.rms_norm(hc.mean_stream(b, streams), "output_norm", "result_norm"))


def _keys(config: Config) -> Keys:
    linear, n_layer = config["linear_attn_config"], int(config["num_hidden_layers"])
    check_config(linear, num_heads=config["num_attention_heads"], safe_gate=True)
    check_config(config, mla_use_nope=True, qk_rope_head_dim=0, mhc=True)
    keys = deepseek32.keys({**config, "head_dim": None}) | {
        "attention.head_count_kv": [int(x != "linear_attention") for x in config["layer_types"]],
        "attention.layer_norm_epsilon": float32(1e-6),  # of the indexer's keys
        "attention.indexer.kpool": int(config["index_kpool"]),
        "attention.indexer.kpool_select_tail": bool(
            config.get("index_kpool_always_select_tail", True)
        ),
        "ssm.conv_kernel": int(linear["short_conv_kernel_size"]),
        "kda.head_dim": int(linear["head_dim"]),
        "hyper_connection.count": int(config["hc_mult"]),
        "hyper_connection.sinkhorn_iterations": int(config["hc_sinkhorn_iters"]),
        "hyper_connection.epsilon": float32(config["hc_eps"]),
    }
    if linear.get("gate_lower_bound") is not None:
        keys["kda.gate_lower_bound"] = float32(linear["gate_lower_bound"])
    if config.get("indexer_types"):
        keys["attention.indexer.types"] = [kind == "full" for kind in config["indexer_types"]]
    if config.get("swiglu_limit") is not None:
        limits = np.full(n_layer, float(config["swiglu_limit"]), np.float32)
        keys |= {"swiglu_clamp_exp": limits, "swiglu_clamp_shexp": limits}
    return keys


def _change(name: str, x: Array, config: Config) -> Tensors:
    return kimi_linear.CONVERT.change(name, x, {**config, "rope_interleave": True})


_LAYER = "model.layers.{i}"
_INDEXER = f"{_LAYER}.self_attn.indexer.index_kpool_compress"
CONVERT = Convert(
    models=("Glm5NextForConditionalGeneration",),
    tensors={
        **deepseek32.CONVERT.tensors,
        **{k: x for k, x in kimi_linear.CONVERT.tensors.items() if ".self_attn." in k},
        f"{_INDEXER}_gate": "blk.{i}.indexer_compressor_gate.weight",
        f"{_INDEXER}_ape": "blk.{i}.indexer_compressor_ape.weight",
        **{
            f"{_LAYER}.hc_{part}_{name}": f"blk.{{i}}.hc_{part}_{name}.weight"
            for part in ("attn", "ffn")
            for name in ("fn", "base", "scale")
        },
    },
    keys=_keys,
    change=_change,
    defaults={
        "rms_norm_eps": 1e-5,
        "norm_topk_prob": True,
        "routed_scaling_factor": 2.5,
        "swiglu_limit": 10.0,
        "hc_mult": 4,
        "hc_eps": 1e-6,
        "hc_sinkhorn_iters": 20,
        "index_kpool": 16,
    },
)
