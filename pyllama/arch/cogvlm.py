"""CogVLM (text): LLaMA's graph with one matrix for Q, K and V, and rope on halves.

Matrices for images are in the file, and not used.
Source: Wang et al. 2023, "CogVLM"; llama.cpp, ``llama_model_cogvlm``.
"""

from __future__ import annotations

from ..graph.builder import ROPE_FACTORS
from ..graph.tensors import GATED_FFN, OUTPUT, without
from ..hparams import Values
from ..mapping.rules import Convert
from . import llama, qwen2

HPARAMS: Values = {"rope_neox": True}

_FFN = {name.replace("ffn_", "vis_") + "?": sizes for name, sizes in GATED_FFN.items()}
TENSORS = {
    "blk.{i}.attn_norm.weight": ("n_embd",),
    "blk.{i}.attn_qkv.weight": ("n_embd", "n_embd_qkv"),
    "blk.{i}.attn_output.weight": ("n_embd_out", "n_embd"),
    "blk.{i}.ffn_norm.weight": ("n_embd",),
    **GATED_FFN,
    "blk.{i}.vis_attn_qkv.weight?": ("n_embd", "n_embd_qkv"),
    "blk.{i}.vis_attn_output.weight?": ("n_embd_out", "n_embd"),
    **_FFN,
    **ROPE_FACTORS,
    **OUTPUT,
}

build_graph = llama.build_graph

_LAYER = "model.layers.{i}"
CONVERT = Convert(
    models=("CogVLMForCausalLM",),
    tensors={
        **without(qwen2.CONVERT.tensors, "_proj."),
        **{
            f"{_LAYER}.{theirs}.weight": f"blk.{{i}}.{ours}.weight"
            for kind, attn, ffn in (("language", "attn_", "ffn_"), ("vision", "vis_attn_", "vis_"))
            for theirs, ours in (
                (f"self_attn.{kind}_expert_query_key_value", f"{attn}qkv"),
                (f"self_attn.{kind}_expert_dense", f"{attn}output"),
                *((f"mlp.{kind}_mlp.{x}_proj", f"{ffn}{x}") for x in ("gate", "up", "down")),
            )
        },
    },
    keys=llama.keys,
    other_media=("model.vision.*",),
)
