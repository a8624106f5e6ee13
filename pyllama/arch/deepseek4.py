"""DeepSeek-V4: compressed keys and values, hyper-connections, experts chosen by token at first.

Each token attends to a window and to rows that stand for 4 or for 128 tokens; an indexer chooses
those of 4. Layers of multi-token prediction and images are left out.
Source: DeepSeek-AI 2026, "DeepSeek-V4"; llama.cpp, ``llama_model_deepseek4``.
"""

from __future__ import annotations

from typing import Any

import numpy as np

import pyggml as ops
from pyggml.tensor import Tensor

from ..errors import ModelError
from ..graph import hyper_connections as hc
from ..graph.attention import compressed as attention
from ..graph.builder import GraphBuilder
from ..graph.dense import SWIGLU_LIMITS
from ..graph.ffn import ffn
from ..graph.tensors import DEEPSEEK_EXPERTS, OUTPUT
from ..hparams import COMPRESS_RATIOS, SHARED_SIZES, Key, Values
from ..mapping.rules import Config, Convert, Keys, base_keys, check_config, float32

HPARAMS: Values = {
    **attention.HPARAMS,
    **hc.MIXING_HPARAMS,
    **SHARED_SIZES,
    **SWIGLU_LIMITS,
    "empty_layers": True,  # files have no number of dense neurons
    "expert_weights_norm": Key("expert_weights_norm", False),
    "n_hash_layer": Key("hash_layer_count", 0),
    "n_hashed": lambda got: tuple(
        got["n_expert_used"] * (i < got["n_hash_layer"]) for i in range(got["n_layer"])
    ),
}

TENSORS = {
    **hc.MIXING_TENSORS,
    "blk.{i}.attn_norm.weight": ("n_embd",),
    **attention.TENSORS,
    "blk.{i}.ffn_norm.weight": ("n_embd",),
    "blk.{i}.ffn_gate_tid2eid.weight": ("n_hashed", "n_vocab"),
    **DEEPSEEK_EXPERTS,
    "blk.{i}.exp_probs_b_vl.bias?": ("n_expert",),  # for tokens of images
    **OUTPUT,
}


def build_graph(b: GraphBuilder) -> Tensor:
    """The graph of one ubatch; returns the logits [n_vocab, n_outputs]."""
    streams = hc.start_streams(b, b.embed("token_embd.weight"))  # [n_embd, n_hc, T]
    for i in range(b.hparams.n_layer):
        x, streams, gate = hc.read_mixed(b, streams, f"blk.{i}.hc_attn", i)
        x = b.rms_norm(x, f"blk.{i}.attn_norm", f"attn_norm-{i}")
        cur = attention.compressed_attention(b, x, i)
        streams = hc.write_streams(b, cur, streams, gate)
        x, streams, gate = hc.read_mixed(b, streams, f"blk.{i}.hc_ffn", i)
        cur = ffn(b, b.rms_norm(x, f"blk.{i}.ffn_norm", f"ffn_norm-{i}"), i, "silu")
        streams = hc.write_streams(b, cur, streams, gate).set_name(f"l_out-{i}")
    n_embd, n_hc, n_tokens = streams.ne[:3]
    flat = b.of_outputs(ops.reshape_2d(b.ctx, streams, n_embd * n_hc, n_tokens))
    streams = ops.reshape_3d(b.ctx, flat, n_embd, n_hc, flat.ne[1])
    return b.output(b.rms_norm(hc.merge_streams(b, streams), "output_norm", "result_norm"))


_WINDOW, _CHOSEN, _ALL = (  # kinds of layers, by their rows
    "sliding_attention", "compressed_sparse_attention", "heavily_compressed_attention",
)  # fmt: skip


def _ratios(config: Config) -> list[int]:
    """How many tokens become one row, by layer; layers of multi-token prediction may follow."""
    rates = {_WINDOW: 0, _CHOSEN: 4, _ALL: 128, **(config.get("compress_rates") or {})}
    for name, kind in (("compress_rate_csa", _CHOSEN), ("compress_rate_hca", _ALL)):
        rates[kind] = config.get(name) or rates[kind]
    check_config(rates, **{_CHOSEN: 4})
    kinds, n = config.get("layer_types"), int(config["num_hidden_layers"])
    if kinds is None and config.get("compress_ratios") is not None:
        kinds = [{0: _WINDOW, 4: _CHOSEN}.get(ratio, _ALL) for ratio in config["compress_ratios"]]
    if kinds is None:
        kinds = [_CHOSEN if i > 2 and i % 2 else _ALL for i in range(n)]
    return [int(rates[kind]) for kind in kinds]


def _n_hash_layers(config: Config) -> int:
    kinds = config.get("mlp_layer_types")
    if kinds is None:
        return int(config.get("num_hash_layers", 3))
    check_config(config, mlp_layer_types=sorted(kinds))  # those with a hash come first
    return int(kinds.count("hash_moe"))


def _rope(config: Config) -> dict[str, Any]:
    """The configuration with the rope of layers without rows, and the scaling of the others."""
    given: Config = config.get("rope_parameters") or config.get("rope_scaling") or {}
    rows: Config = given.get("compress", given)
    main: Config = given.get("main", {})
    if main.get("rope_type", "default") != "default" or rows.get("attention_factor", 1.0) != 1:
        raise ModelError("rope is scaled in layers without compressed rows, or scales their length")
    own = ("rope_theta", "attention_factor", "partial_rotary_factor", "mscale", "mscale_all_dim")
    return {
        **config,
        "rope_theta": main.get("rope_theta") or config.get("rope_theta") or 10000.0,
        "rope_parameters": {name: x for name, x in rows.items() if name not in own},
        "compress_rope_theta": rows.get("rope_theta") if "main" in given
        else config.get("compress_rope_theta", 160000.0),
    }  # fmt: skip


def _keys(config: Config) -> Keys:
    check_config(config, num_key_value_heads=1)
    config = _rope(config)
    n_layer, n = int(config["num_hidden_layers"]), int(config["head_dim"])
    part = config.get("partial_rotary_factor")
    n_rot = config.get("qk_rope_head_dim", n / 8) if part is None else n * part
    limits = np.full(n_layer, float(config["swiglu_limit"]), np.float32)
    gating = {"sqrtsoftplus": 4, "sigmoid": 2, "softmax": 1}[config["scoring_func"]]
    return base_keys(config, "silu") | {
        "embedding_length_out": int(config["hidden_size"]) * int(config["hc_mult"]),
        "rope.dimension_count": int(n_rot),
        "attention.q_lora_rank": int(config["q_lora_rank"]),
        "attention.sliding_window": int(config["sliding_window"]),
        "attention.output_group_count": int(config["o_groups"]),
        "attention.output_lora_rank": int(config["o_lora_rank"]),
        COMPRESS_RATIOS: np.array(_ratios(config), np.int32),
        "attention.compress_rope_freq_base": float32(config["compress_rope_theta"]),
        "attention.indexer.head_count": int(config["index_n_heads"]),
        "attention.indexer.key_length": int(config["index_head_dim"]),
        "attention.indexer.top_k": int(config["index_topk"]),
        "expert_shared_count": int(config["n_shared_experts"]),
        "expert_weights_scale": float32(config["routed_scaling_factor"]),
        "expert_weights_norm": bool(config["norm_topk_prob"]),
        "expert_gating_func": gating,
        "swiglu_clamp_exp": limits,
        "swiglu_clamp_shexp": limits,
        "hyper_connection.count": int(config["hc_mult"]),
        "hyper_connection.sinkhorn_iterations": int(config["hc_sinkhorn_iters"]),
        "hyper_connection.epsilon": float32(config["hc_eps"]),
        "hash_layer_count": min(_n_hash_layers(config), n_layer),
    }


_LAYER, _ATTENTION = "model.layers.{i}", "model.layers.{i}.attn"
_EXPERT_PARTS = {"w1": "gate", "w2": "down", "w3": "up"}
CONVERT = Convert(
    models=("DeepseekV4ForCausalLM",),
    tensors={
        "model.embed.weight": "token_embd.weight",
        "model.embed_tokens.weight": "token_embd.weight",
        "model.norm.weight": "output_norm.weight",
        "model.head.weight": "output.weight",
        "head.weight": "output.weight",
        **{
            f"model.hc_head{sep}{part}": f"output_hc_{part}.weight"
            for part in ("fn", "base", "scale")
            for sep in ("_", ".hc_")
        },
        **{
            f"{_LAYER}.hc_{where}_{part}": f"blk.{{i}}.hc_{where}_{part}.weight"
            for where in ("attn", "ffn")
            for part in ("fn", "base", "scale")
        },
        f"{_LAYER}.attn_norm.weight": "blk.{i}.attn_norm.weight",
        f"{_LAYER}.ffn_norm.weight": "blk.{i}.ffn_norm.weight",
        f"{_ATTENTION}.attn_sink": "blk.{i}.attn_sinks.weight",
        f"{_ATTENTION}.wq_a.weight": "blk.{i}.attn_q_a.weight",
        f"{_ATTENTION}.wq_b.weight": "blk.{i}.attn_q_b.weight",
        f"{_ATTENTION}.q_norm.weight": "blk.{i}.attn_q_a_norm.weight",
        f"{_ATTENTION}.wkv.weight": "blk.{i}.attn_kv.weight",
        f"{_ATTENTION}.kv_norm.weight": "blk.{i}.attn_kv_a_norm.weight",
        f"{_ATTENTION}.norm.weight": "blk.{i}.attn_kv_a_norm.weight",
        f"{_ATTENTION}.wo_a.weight": "blk.{i}.attn_output_a.weight",
        f"{_ATTENTION}.wo_b.weight": "blk.{i}.attn_output_b.weight",
        f"{_ATTENTION}.indexer.wq_b.weight": "blk.{i}.indexer.attn_q_b.weight",
        f"{_ATTENTION}.indexer.weights_proj.weight": "blk.{i}.indexer.proj.weight",
        **{
            f"{_ATTENTION}.{theirs}.{part}": f"blk.{{i}}.{ours}_{name}.weight"
            for theirs, ours in (("compressor", "attn_compressor"),
                                 ("indexer.compressor", "indexer_compressor"))
            for part, name in (("wkv.weight", "kv"), ("wgate.weight", "gate"), ("ape", "ape"),
                               ("norm.weight", "norm"))
        },
        f"{_LAYER}.ffn.gate.weight": "blk.{i}.ffn_gate_inp.weight",
        f"{_LAYER}.ffn.gate.bias": "blk.{i}.exp_probs_b.bias",
        f"{_LAYER}.ffn.gate.bias_vl": "blk.{i}.exp_probs_b_vl.bias",
        f"{_LAYER}.ffn.gate.tid2eid": "blk.{i}.ffn_gate_tid2eid.weight",
        **{
            f"{_LAYER}.ffn.{theirs}.{part}.weight": f"blk.{{i}}.ffn_{name}_{ours}.weight"
            for theirs, ours in (("experts.{e}", "exps"), ("shared_experts", "shexp"))
            for part, name in _EXPERT_PARTS.items()
        },
    },
    keys=_keys,
    prefix="model.",
    defaults={
        "rms_norm_eps": 1e-6,
        "num_key_value_heads": 1,
        "norm_topk_prob": True,
        "scoring_func": "sqrtsoftplus",
        "swiglu_limit": 10.0,
        "sliding_window": 128,
        "hc_mult": 4,
        "hc_sinkhorn_iters": 20,
        "hc_eps": 1e-6,
    },
    ignored=(*Convert.ignored, "mtp.*", "model.mtp.*"),
    other_media=("aligner.*", "image_*", "vision.*"),
)  # fmt: skip
