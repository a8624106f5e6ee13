"""Qwen3.8 (Qwen4-Exp): Qwen3.5-MoE's layers with hyper-connections and embeddings of n-grams.

The layers of attention have an indexer that chooses groups of keys by their means (QSA).
Source: Qwen Team 2026, "Qwen3.8"; llama.cpp, ``llama_model_qwen4exp``.
"""

from __future__ import annotations

from functools import partial

import numpy as np

import pyggml as ops
from pyggml.tensor import Tensor

from ..errors import ModelError
from ..graph import hyper_connections as hc
from ..graph import ngram
from ..graph.attention.factors import attention_of_gated_queries
from ..graph.attention.indexer import BLOCK_TENSORS, choose_groups, pooled_states
from ..graph.builder import GraphBuilder
from ..graph.delta_net import delta_net, states_of
from ..graph.ffn import ffn
from ..graph.mamba import Sizes
from ..graph.tensors import without
from ..hparams import Got, Key, Values
from ..mapping.rules import Array, Config, Convert, Keys, Tensors, check_config
from . import qwen3next, qwen35, qwen35moe

_RATIOS = "attention.compress_ratios"


def _states(got: Got) -> tuple[Sizes, ...]:
    layers = zip(got["recurs"], got["has_grams"], pooled_states(got), strict=True)
    return tuple(
        {
            **(states_of(got) if recurs else {}),
            **(ngram.states_of(got) if has_grams else {}),
            **pooled,
        }
        for recurs, has_grams, pooled in layers
    )


def _n_pool(got: Got) -> int:
    """Tokens of a group, of which files have a number for each layer."""
    sizes = {*got["ratios"]} - {0}
    if len(sizes) > 1:
        raise ModelError(
            f"{got['arch']} model with groups of {sorted(sizes)} keys, want one size; this variant "
            "is not supported"
        )
    return int(sizes.pop()) if sizes else 1


def _indexer_layers(got: Got) -> tuple[int, ...]:
    """The layers with groups; a file without any has llama.cpp's mistake, and short contexts."""
    return tuple(int(n > 0) for n in got["ratios"]) if any(got["ratios"]) else ()


def _in_attention(name: str, got: Got) -> tuple[int, ...]:
    return tuple(got[name] * attends for attends in got["attends"])


HPARAMS: Values = {
    **without(qwen3next.HPARAMS, "states"),
    **hc.GATED_HPARAMS,
    **ngram.HPARAMS,
    "delta_gate": "sigmoid",
    "n_sparse_keys": Key("attention.indexer.top_k"),
    "n_indexer_head": Key("attention.indexer.head_count"),
    "n_indexer_key": Key("attention.indexer.key_length"),
    "ratios": Key(_RATIOS, 0, tuple),
    "n_pool": _n_pool,
    "indexer_layers": _indexer_layers,
    "n_index_head": partial(_in_attention, "n_indexer_head"),
    "n_index_key": partial(_in_attention, "n_indexer_key"),
    "indexer_neox": True,
    "indexer_rope_last": False,
    "states": _states,
}

TENSORS = {
    **without(qwen35moe.TENSORS, "attn_norm", "post_attention_norm", "output_norm"),
    **ngram.TENSORS,
    **hc.GATED_TENSORS,
    **BLOCK_TENSORS,
}


def _attention(b: GraphBuilder, x: Tensor, i: int) -> Tensor:
    return attention_of_gated_queries(b, x, i, choose_groups(b, x, i))


def build_graph(b: GraphBuilder) -> Tensor:
    """The graph of one ubatch; returns the logits [n_vocab, n_outputs]."""
    streams = hc.start_streams(b, b.embed("token_embd.weight"))  # [n_embd, n_hc, T]
    for i in range(b.hparams.n_layer):
        if b.hparams.own["has_grams"][i]:
            streams = ops.add(b.ctx, streams, ngram.ngram_embedding(b, streams, i))
        x, gate = hc.read_gated(b, streams, f"blk.{i}.hc_attn", i)
        mixer = _attention if b.hparams.n_head_kv_arr[i] else delta_net
        streams = hc.write_streams(b, mixer(b, x, i), streams, gate)
        x, gate = hc.read_gated(b, streams, f"blk.{i}.hc_ffn", i)
        streams = hc.write_streams(b, ffn(b, x, i, "silu"), streams, gate)
        streams = streams.set_name(f"l_out-{i}")
    n_embd, n_hc, n_tokens = streams.ne[:3]
    flat = b.of_outputs(ops.reshape_2d(b.ctx, streams, n_embd * n_hc, n_tokens))
    streams = ops.reshape_3d(b.ctx, flat, n_embd, n_hc, flat.ne[1])
    return b.output(hc.merge_gated(b, streams).set_name("result_norm"))


def _keys(config: Config) -> Keys:
    layers = [int(i) - 1 for i in config.get("ple_layer_ids") or ()]
    gate = config.get("output_gate_type") or config.get("hidden_act")
    check_config({"output_gate_type": gate}, output_gate_type="sigmoid")
    check_config({**config, "PLE layers": len(layers[1:])}, indexer_kv_heads=1, **{"PLE layers": 0})
    ratio = int(config["indexer_compress_ratio"])
    keys = qwen35moe.CONVERT.keys(config)
    recurs = keys["attention.recurrent_layers"]
    keys |= {
        "hyper_connection.count": int(config["hc_count"]),
        "hyper_connection.low_rank": int(config["hc_lowrank"]),
        "attention.indexer.head_count": int(config["indexer_n_heads"]),
        "attention.indexer.key_length": int(config["indexer_head_dim"]),
        "attention.indexer.top_k": int(config["indexer_budget"]),
        _RATIOS: [0 if x else ratio for x in recurs],
    }
    if not layers:
        return keys
    n_head = (int(config["ngram_size"]) - 1) * int(config["heads_per_ngram"])
    end = config["eos_token_id"]
    image = config.get("image_token_id")
    return keys | {
        "ple.layers": np.array(layers, np.int32),
        "ple.ngram_size": int(config["ngram_size"]),
        "ple.heads_per_ngram": int(config["heads_per_ngram"]),
        "ple.conv_kernel": int(config["ple_conv_kernel_size"]),
        "ple.eos_token_id": int(end[0] if isinstance(end, list) else end),
        "embedding_length_per_layer_input": int(
            config.get("ple_embed_dim") or config["hidden_size"]
        ) // n_head,
        **({} if image is None else {"ple.image_token_id": int(image)}),
    }  # fmt: skip


def _change(name: str, x: Array, config: Config) -> Tensors:
    """As of Qwen3.5-MoE; the indexer's queries and keys apart."""
    if ".ple_norm" in name:
        return {name: x + 1}
    if name.endswith("ple_conv1d.weight"):
        return {name: x[:, 0]}
    if name.endswith("indexer.qk"):
        q, k = np.split(x, [config["indexer_n_heads"] * config["indexer_head_dim"]])
        return {name.replace("qk", "q_proj.weight"): q, name.replace("qk", "k_proj.weight"): k}
    return qwen35moe.CONVERT.change(name, x, config)


_LAYER, _HASHES = "model.layers.{i}", "model.layers.{i}.ple.ple_embedding"
_MIXER = {
    "hc_norm": "norm",
    "input_mix_weight_down": "down",
    "input_mix_weight_up": "up",
    "block_inject_weight": "inject",
}
CONVERT = Convert(
    models=("Qwen4ExpForCausalLM", "Qwen4ExpForConditionalGeneration"),
    tensors={
        **qwen35.NAMES,
        **qwen3next.EXPERT_NAMES,
        f"{_LAYER}.mlp.experts.gate_up_proj": "blk.{i}.ffn_gate_up_exps.weight",
        f"{_LAYER}.mlp.experts.down_proj": "blk.{i}.ffn_down_exps.weight",
        f"{_LAYER}.self_attn.indexer.index_qk_proj.weight": "blk.{i}.indexer.qk",
        f"{_LAYER}.self_attn.indexer.q_layernorm.weight": "blk.{i}.indexer.q_norm.weight",
        f"{_LAYER}.self_attn.indexer.k_layernorm.weight": "blk.{i}.indexer.k_norm.weight",
        **{
            f"{theirs}.{part}.weight": f"{ours}_{name}.weight"
            for theirs, ours in (
                (f"{_LAYER}.attn_hyper_connection", "blk.{i}.hc_attn"),
                (f"{_LAYER}.mlp_hyper_connection", "blk.{i}.hc_ffn"),
                ("model.hyper_connection_mixer", "output_hc"),
            )
            for part, name in _MIXER.items()
        },
        **{
            f"{_LAYER}.ple.{theirs}.weight": f"blk.{{i}}.ple_{ours}.weight"
            for theirs, ours in (
                ("key_proj", "key"),
                ("value_proj", "value"),
                ("norm_key", "norm_key"),
                ("norm_query", "norm_query"),
                ("norm_conv", "norm_conv"),
                ("conv1d", "conv1d"),
            )
        },
        f"{_HASHES}.ngram_embedding.shard_{{e}}.weight": "per_layer_token_embd.weight[+]",
    },
    arrays={
        f"{_HASHES}.layer_multipliers": "qwen4exp.ple.layer_multipliers",
        f"{_HASHES}.ngram_heads_offsets": "qwen4exp.ple.head_offsets",
        f"{_HASHES}.ngram_heads_vocab_sizes": "qwen4exp.ple.head_vocab_sizes",
    },
    ignored=(
        *Convert.ignored,
        "*.ple_embedding.layer_multipliers",
        "*.ple_embedding.ngram_heads_*",
    ),
    keys=_keys,
    change=_change,
    defaults={
        "hc_count": 4,
        "hc_lowrank": 320,
        "ngram_size": 3,
        "heads_per_ngram": 8,
        "ple_conv_kernel_size": 4,
    },
)
