"""Hugging Face folders of trained models, for pyllama-convert."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt


def write_folder(
    tensors: Mapping[str, npt.NDArray[Any]], config: Mapping[str, Any], folder: Path
) -> None:
    """Write ``model.safetensors``, ``config.json`` and ``tokenizer_config.json``."""
    from safetensors.numpy import save_file

    arrays = {name: np.ascontiguousarray(x) for name, x in tensors.items()}
    save_file(arrays, folder / "model.safetensors", {"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config, indent=1))
    about = {"tokenizer_class": "LlamaTokenizer", "add_bos_token": True, "add_eos_token": False,
             "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}  # fmt: skip
    (folder / "tokenizer_config.json").write_text(json.dumps(about, indent=1))
