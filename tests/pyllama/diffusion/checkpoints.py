"""Tiny checkpoints of diffusion language models, recreated from recorded files.

    folder = write_checkpoint(tmp_path / name, name)

tests/data/diffusion/<variant>.npz has the names and shapes of the parameters in transformers, and
what that computed with them; ``record.py`` writes it.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from ..arch.checkpoints import DATA, Shapes, shapes_of, weights, write_files
from .variants import REFERENCE, RENAMED, VARIANTS

ARCH = {name: arch for arch, configs in VARIANTS.items() for name in configs}


def recorded(name: str) -> dict[str, np.ndarray]:
    """The file of a variant that ``record.py`` wrote."""
    with np.load(DATA / "diffusion" / f"{name}.npz") as file:
        return dict(file)


def write_checkpoint(folder: Path, name: str) -> Path:
    """The folder of a variant: config.json, weights, and a tokenizer of 512 tokens."""
    record = recorded(name)
    return write_with(folder, name, shapes_of(record), float(record["scale"]))


def write_with(folder: Path, name: str, shapes: Shapes, scale: float) -> Path:
    """The folder of a variant with weights of these shapes; ``scale`` as of ``weights``."""
    made = {}
    for theirs, x in weights(REFERENCE[name]["model_type"], shapes, scale).items():
        for part, other in RENAMED.get(name, {}).items():
            theirs = theirs.replace(part, other)
        made[theirs] = x
    return write_files(folder, dict(VARIANTS[ARCH[name]][name]), made)
