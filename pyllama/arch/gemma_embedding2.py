"""EmbeddingGemma 2 (text): Gemma 4 without causality, windows on both sides, a projected output.

Per-layer embeddings are projections of the token's embedding alone.
Source: Google 2026, "EmbeddingGemma 2"; llama.cpp, ``llama_model_gemma_embedding2``.
"""

from __future__ import annotations

from ..errors import ModelError
from ..graph.tensors import without
from ..hparams import Key, Values
from ..inputs.budget import shown
from ..mapping.rules import Config, Convert, Keys
from . import gemma3, gemma4

NAME = "gemma-embedding2"
HPARAMS: Values = {
    **gemma4.HPARAMS,
    "encoder": True,
    "causal": False,
    "swa_symmetric": True,
    "n_embd_projected": Key("embedding_length_out"),
}

TENSORS = {
    **without(
        gemma4.TENSORS,
        "_exps",
        "ffw_norm_",
        "ffn_gate_inp",
        "per_layer_token",
        "rope_freqs",
        "output.weight?",
    ),
    "output.weight": ("n_embd", "n_embd_projected"),
}

build_graph = gemma4.build_graph


def _keys(config: Config) -> Keys:
    for rope in config["rope_parameters"].values():
        if (kind := rope.get("rope_type", "default")) != "default":
            raise ModelError(f"config.json: rope_type is {shown(kind)}, must be 'default'")
    n_layer = int(config["num_hidden_layers"])
    kinds = config.get("layer_types") or [
        "full_attention" if (i + 1) % 6 == 0 else "sliding_attention" for i in range(n_layer)
    ]
    kinds = [*kinds[:-1], "full_attention"]  # transformers changes the last one, too
    wide = {} if config.get("per_layer_config") else _WIDE
    return gemma4.keys({**wide, **config, "layer_types": kinds}) | {
        "attention.sliding_window": 2 * int(config["sliding_window"]),
        "attention.causal": False,
        "embedding_length_out": int(config["embedding_dim"]),
    }


_WIDE = {"global_head_dim": 512, "num_global_key_value_heads": 1}  # of full layers
_LAYER = "model.layers.{i}"
CONVERT = Convert(
    models=("EmbeddingGemma2Model", "EmbeddingGemma2TextModel"),
    tensors={
        **gemma3.NAMES,
        f"{_LAYER}.layer_scalar": "blk.{i}.layer_output_scale.weight",
        f"{_LAYER}.ple_block.per_layer_input_gate.weight": "blk.{i}.inp_gate.weight",
        f"{_LAYER}.ple_block.per_layer_projection.weight": "blk.{i}.proj.weight",
        f"{_LAYER}.ple_block.post_per_layer_input_norm.weight": "blk.{i}.post_norm.weight",
        "model.ple.per_layer_model_projection.weight": "per_layer_model_proj.weight",
        "model.ple.per_layer_projection_norm.weight": "per_layer_proj_norm.weight",
        "model.embedding_projection.weight": "output.weight",
    },
    keys=_keys,
    prefix="model.",
    other_media=gemma4.MEDIA,
    defaults={
        "vocab_size": 262144,
        "hidden_size": 512,
        "intermediate_size": 2048,
        "num_hidden_layers": 24,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 256,
        "max_position_embeddings": 262144,
        "rms_norm_eps": 1e-6,
        "sliding_window": 512,
        "hidden_size_per_layer_input": 512,
        "embedding_dim": 768,
        "rope_parameters": {
            "full_attention": {"rope_theta": 1000000.0},
            "sliding_attention": {"rope_theta": 10000.0},
        },
    },
)
