"""A tiny model with rows of whole super-blocks, and its importance matrix.

path, weights = write_tiny(tmp_path / "x.gguf")
digest(path)                                   # of the tensors' data
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import numpy as np

from pyggml.dtype import GGMLType
from pyggml.gguf import GGUFFile
from pyllama.quantize import Importance
from pyllama.quantize.importance import ImportanceEntry

from ..models import Spec, random_weights, write_model

SPEC = Spec(n_layer=2, n_embd=256, n_ff=256, n_head=4, n_head_kv=2, head_dim=64, tied=False)
Weights = dict[str, np.ndarray]


def write_tiny(
    path: Path, type: GGMLType = GGMLType.F32, metadata: dict[str, Any] | None = None
) -> tuple[Path, Weights]:
    """Write the model; return its path and the importance of each matrix's columns."""
    made = random_weights(SPEC)
    rng = np.random.default_rng(1)
    importance = {
        name: (100 * rng.random(x.shape[1]) ** 4).astype(np.float32)
        for name, x in made.items()
        if x.ndim == 2 and name != "token_embd.weight"
    }
    return write_model(path, SPEC, made, type, metadata), importance


def importance_of(weights: Weights) -> Importance:
    """The weights as an importance matrix of one chunk."""
    entries = {name: ImportanceEntry(x[None], np.ones(1)) for name, x in weights.items()}
    return Importance(entries, ["text.txt"], n_chunks=1, chunk_size=1)


def digest(path: Path) -> str:
    """SHA-256 of the tensor data, hexadecimal."""
    with GGUFFile(path) as file:
        return hashlib.sha256(path.read_bytes()[file.data_offset :]).hexdigest()
