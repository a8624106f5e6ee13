"""DeepSeek-V3.2: DeepSeek-V3 with an indexer that chooses the keys of each token (DSA).

Source: DeepSeek-AI 2025, "DeepSeek-V3.2"; llama.cpp, ``llama_model_deepseek32``.
"""

from __future__ import annotations

from ..graph.attention import indexer
from ..hparams import Values
from ..mapping.rules import Config, Convert, Keys, Nextn
from . import deepseek2

HPARAMS: Values = {**deepseek2.HPARAMS, **indexer.HPARAMS}

TENSORS = {**deepseek2.TENSORS, **indexer.TENSORS}

MTP = Nextn()

build_graph = deepseek2.build_graph


def keys(config: Config) -> Keys:
    """The keys of latent attention with an indexer."""
    return deepseek2.latent_keys(config, "sigmoid") | {
        "attention.indexer.head_count": int(config["index_n_heads"]),
        "attention.indexer.key_length": int(config["index_head_dim"]),
        "attention.indexer.top_k": int(config["index_topk"]),
        "nextn_predict_layers": 0,  # unless the checkpoint has them
    }


CONVERT = Convert(
    models=("DeepseekV32ForCausalLM",),
    tensors={
        **deepseek2.NAMES,
        "model.layers.{i}.self_attn.indexer.wq_b.weight": "blk.{i}.indexer.attn_q_b.weight",
        "model.layers.{i}.self_attn.indexer.wk.weight": "blk.{i}.indexer.attn_k.weight",
        "model.layers.{i}.self_attn.indexer.k_norm.*": "blk.{i}.indexer.k_norm.*",
        "model.layers.{i}.self_attn.indexer.weights_proj.weight": "blk.{i}.indexer.proj.weight",
    },
    keys=keys,
    change=deepseek2.change_latent,
    defaults={"rms_norm_eps": 1e-6},
)
