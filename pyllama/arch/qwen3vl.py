"""Qwen3-VL (text): Qwen3, with multi-section rope.

Images add embeddings after the first layers too (``n_deepstack_layers``); text does not.
Source: Bai et al. 2025, "Qwen3-VL Technical Report"; llama.cpp, ``llama_model_qwen3vl``.
"""

from __future__ import annotations

from collections.abc import Callable

from ..hparams import Values
from ..mapping.rules import Config, Convert, Keys
from . import qwen2, qwen3

HPARAMS: Values = qwen2.HPARAMS

TENSORS = qwen3.TENSORS

build_graph = qwen3.build_graph


def keys_of_text(
    keys_of: Callable[[Config], Keys],
) -> Callable[[Config], Keys]:
    """The keys of a text model, and the number of layers that take embeddings of images."""

    def keys(config: Config) -> Keys:
        vision = config.get("vision_config") or {}
        n = len(vision.get("deepstack_visual_indexes") or ())
        return {**keys_of(config), "n_deepstack_layers": n}

    return keys


CONVERT = Convert(
    models=("Qwen3VLForConditionalGeneration", "Qwen3ASRForConditionalGeneration"),
    tensors=qwen3.CONVERT.tensors,
    keys=keys_of_text(qwen3.CONVERT.keys),
    defaults={"head_dim": 128, "rms_norm_eps": 1e-6, "rope_theta": 500000.0},
)
