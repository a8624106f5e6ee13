"""Qwen3-VL-MoE (text): Qwen3-MoE, with multi-section rope.

Source: Bai et al. 2025, "Qwen3-VL Technical Report"; llama.cpp, ``llama_model_qwen3vlmoe``.
"""

from __future__ import annotations

from ..hparams import Values
from ..mapping.rules import OTHER_MEDIA, Convert
from . import qwen2moe, qwen3moe, qwen3vl

HPARAMS: Values = qwen3moe.HPARAMS

TENSORS = qwen3moe.TENSORS

build_graph = qwen3moe.build_graph

CONVERT = Convert(
    models=("Qwen3VLMoeForConditionalGeneration", "Qwen3OmniMoeForConditionalGeneration"),
    tensors=qwen3moe.CONVERT.tensors,
    other_media=(*OTHER_MEDIA, "talker.*", "code2wav.*"),
    keys=qwen3vl.keys_of_text(qwen3moe.CONVERT.keys),
    change=qwen2moe.split_experts,
    defaults={"num_experts_per_tok": 4, "rms_norm_eps": 1e-6, "rope_theta": 500000.0},
)
