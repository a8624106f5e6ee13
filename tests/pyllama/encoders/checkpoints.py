"""Tiny checkpoints of encoders, recreated from recorded files.

    folder = write_checkpoint(tmp_path / name, name)

tests/data/encoders/<variant>.npz has the names and shapes of the parameters, which follow from
their names, and what transformers computed with them; ``record.py`` writes it.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ..arch.checkpoints import DATA, Shapes, shapes_of, weights, write_safetensors
from .variants import ENCODERS, FILES

_TOKENIZERS = {
    "distilbert": "bert",
    "gemma3_text": "gemma",
    "embedding_gemma2": "gemma",
    "embedding_gemma2_text": "gemma",
    "llama_bidirec": "roberta",
    "nomic_bert": "bert",
    "modernbert": "roberta",
    "eurobert": "roberta",
    "umt5": "t5",
    "neobert": "bert",
    "jina_embeddings_v3": "xlm-roberta",
    "nomic-bert-moe": "xlm-roberta",
}  # of variants or model types that have another model type's; else their own


def recorded(name: str) -> dict[str, np.ndarray]:
    """The file of a variant that ``record.py`` wrote."""
    with np.load(DATA / "encoders" / f"{name}.npz") as file:
        return dict(file)


def parts(record: Mapping[str, np.ndarray], what: str) -> list[np.ndarray]:
    """``tokens`` or ``hidden`` of each text of a record."""
    return np.split(record[what], np.cumsum(record["lengths"])[:-1])


def write_checkpoint(folder: Path, name: str) -> Path:
    """The folder of a variant: config.json, weights, a tokenizer of 512 tokens, and modules."""
    return write_files(folder, name, shapes_of(recorded(name)))


def write_files(folder: Path, name: str, shapes: Shapes) -> Path:
    """The folder of a variant with weights of these shapes."""
    config = dict(ENCODERS[name])
    folder.mkdir(parents=True, exist_ok=True)
    files: dict[str, Any] = {"config.json": config, **FILES.get(name, {})}
    for file, content in files.items():
        (folder / file).parent.mkdir(exist_ok=True)
        (folder / file).write_text(json.dumps(content))
    for module, layer in dense_layers(name):
        write_safetensors(folder / module / "model.safetensors", layer)
    kind = config["model_type"]
    write_safetensors(folder / "model.safetensors", weights(kind, shapes, 1.0))
    tokenizer = _TOKENIZERS.get(name) or _TOKENIZERS.get(kind, kind)
    shutil.copytree(DATA / "tokenizer" / tokenizer, folder, dirs_exist_ok=True)
    return folder


def dense_layers(name: str) -> list[tuple[str, dict[str, np.ndarray]]]:
    """The folders and weights of the dense layers after a variant's pooling."""
    found = []
    for module in FILES.get(name, {}).get("modules.json", ()):
        if module["type"].endswith(".Dense"):
            sizes = FILES[name][f"{module['path']}/config.json"]
            shape = sizes["out_features"], sizes["in_features"]
            shapes: dict[str, tuple[int, ...]] = {"linear.weight": shape}
            if sizes["bias"]:
                shapes["linear.bias"] = shape[:1]
            found.append((module["path"], weights("", shapes, 1.0)))
    return found
