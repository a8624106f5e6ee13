"""PaddleOCR-VL (text): ERNIE 4.5's graph, with multi-section rope on halves.

The sections of rope differ for images only: a token of text has one position in all of them.
Source: Baidu 2025, "PaddleOCR-VL"; llama.cpp, ``llama_model_paddleocr``.
"""

from __future__ import annotations

from dataclasses import replace

from ..hparams import Values
from ..mapping.rules import OTHER_MEDIA
from . import ernie4_5

HPARAMS: Values = {"rope_neox": True}

TENSORS = ernie4_5.TENSORS

build_graph = ernie4_5.build_graph

CONVERT = replace(
    ernie4_5.CONVERT,
    models=("PaddleOCRVLForConditionalGeneration",),
    other_media=(*OTHER_MEDIA, "mlp_AR.*", "model.projector.*"),
)
