"""MiniMax-M3 (text): norms of heads, SwiGLU with limits, shared experts, attention to some blocks.

Source: MiniMax 2026, "MiniMax-M3"; llama.cpp, ``llama_model_minimax_m3``.
"""

from __future__ import annotations

from functools import partial

from pyggml.tensor import Tensor

from ..activation import SWIGLU_OAI
from ..graph.attention.indexer import BLOCK_HPARAMS, BLOCK_TENSORS, choose_blocks
from ..graph.builder import GraphBuilder
from ..graph.decoder import pre_norm_decoder
from ..graph.ffn import ffn
from ..graph.tensors import DEEPSEEK_EXPERTS, without
from ..hparams import GATINGS, SHARED_SIZES, SIGMOID_ROUTER, Key, Values
from ..mapping.rules import OTHER_MEDIA, Config, Convert, Keys, base_keys, check_config, float32
from . import gemma3, minimax_m2, qwen3

NAME = "minimax-m3"

HPARAMS: Values = {
    "rope_neox": True,
    **SHARED_SIZES,
    "n_shared": Key("expert_shared_count"),
    **SIGMOID_ROUTER,
    **BLOCK_HPARAMS,
}

TENSORS = {**without(qwen3.TENSORS, "rope_f"), **DEEPSEEK_EXPERTS, **BLOCK_TENSORS}


def build_graph(b: GraphBuilder) -> Tensor:
    """The graph of one ubatch; returns the logits [n_vocab, n_outputs]."""
    return pre_norm_decoder(b, _attention, partial(ffn, act=SWIGLU_OAI))


def _attention(b: GraphBuilder, x: Tensor, i: int) -> Tensor:
    chosen = choose_blocks(b, x, i)
    q, k, v = b.qkv(x, i)
    q, k = b.rope(q, f"Qcur-{i}", i), b.rope(k, f"Kcur-{i}", i)
    return b.attention(q, k, v, i, chosen=chosen)


def _keys(config: Config) -> Keys:
    sparse, kinds = config["sparse_attention_config"], config["moe_layer_freq"]
    check_config(
        config, scoring_func="sigmoid", swiglu_alpha=1.702, swiglu_limit=7.0,
        moe_layer_freq=sorted(kinds),  # dense layers come first
    )  # fmt: skip
    n_exp = int(config["intermediate_size"])
    return base_keys({**config, "intermediate_size": config["dense_intermediate_size"]}) | {
        "rope.dimension_count": int(config["rotary_dim"]),
        "expert_feed_forward_length": n_exp,
        "expert_shared_count": int(config["n_shared_experts"]),
        "expert_weights_scale": float32(config["routed_scaling_factor"]),
        "expert_weights_norm": True,
        "expert_gating_func": GATINGS.index("sigmoid"),
        "leading_dense_block_count": kinds.count(0),
        "attention.indexer.head_count": int(sparse["sparse_num_index_heads"]),
        "attention.indexer.key_length": int(sparse["sparse_index_dim"]),
        "attention.indexer.top_k": int(sparse["sparse_topk_blocks"]),
        "attention.indexer.block_size": int(sparse["sparse_block_size"]),
        "attention.indexer.local_blocks": int(sparse["sparse_local_block"]),
    }


_LAYER = "model.layers.{i}"
CONVERT = Convert(
    models=("MiniMaxM3SparseForCausalLM", "MiniMaxM3SparseForConditionalGeneration"),
    tensors={
            **minimax_m2.CONVERT.tensors,
            **{
                f"{_LAYER}.block_sparse_moe.shared_experts.{part}_proj.weight":
                f"blk.{{i}}.ffn_{part}_shexp.weight"
                for part in ("gate", "up", "down")
            },
            **{
                f"{_LAYER}.self_attn.index_{part}.weight": f"blk.{{i}}.indexer.{part}.weight"
                for part in ("q_proj", "k_proj", "q_norm", "k_norm")
            },
        },
    other_media=(*OTHER_MEDIA, "patch_merge_mlp.*"),
    keys=_keys,
    defaults={"rms_norm_eps": 1e-6, "rope_theta": 5000000.0},
    change=gemma3.add_one,
)  # fmt: skip
