"""Qwen2-VL and Qwen2.5-VL (text): Qwen2, with multi-section rope.

The sections of rope differ for images only: a token of text has one position in all of them.
Source: Bai et al. 2025, "Qwen2.5-VL Technical Report"; llama.cpp, ``llama_model_qwen2vl``.
"""

from __future__ import annotations

from ..hparams import Values
from ..mapping.rules import OTHER_MEDIA, Convert
from . import qwen2

HPARAMS: Values = qwen2.HPARAMS

TENSORS = qwen2.TENSORS

build_graph = qwen2.build_graph

CONVERT = Convert(
    models=(
        "Qwen2VLForConditionalGeneration",
        "Qwen2VLModel",
        "Qwen2_5_VLForConditionalGeneration",
        "Qwen2_5OmniModel",
        "Qwen2_5OmniForConditionalGeneration",
    ),
    tensors=qwen2.CONVERT.tensors,
    keys=qwen2.keys,
    other_media=(*OTHER_MEDIA, "talker.*", "token2wav.*"),
    defaults={"rope_theta": 1000000.0},
    prefix="model.",
)
