"""The beam searches that ``record_beams.py`` records and ``test_beam_search.py`` compares."""

from __future__ import annotations

from typing import Any

VARIANTS: dict[str, list[int]] = {"llama": [2], "gpt2": [2], "gemma3": [2]}
"""Checkpoints of ``arch/variants/``, and the ids of end tokens that their vocabularies name."""

CASES: list[dict[str, Any]] = [
    {"beam_width": 4, "max_tokens": 10},
    {"beam_width": 4, "max_tokens": 10, "length_penalty": 0.0},
    {"beam_width": 3, "max_tokens": 8, "length_penalty": 2.0},
    {"beam_width": 3, "max_tokens": 8, "length_penalty": -1.0},
    {"beam_width": 2, "max_tokens": 12, "temperature": 0.7},
    {"beam_width": 4, "max_tokens": 10, "ignore_eos": True},
    {"beam_width": 2, "max_tokens": 1},
]
"""Arguments of `BeamSearchParams`."""
