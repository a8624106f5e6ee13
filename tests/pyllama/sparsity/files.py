"""Sparse model files as PowerInfer's converters write them, made from our files.

    path = sparse_file(tmp_path, "bamboo")                     # predictors, PWRI
    plain, _ = dense_file(tmp_path, "bamboo")                  # the dense file

The variants are those of ``arch/variants/``. Predictors are random with a seed from their names,
like weights (see ``arch.checkpoints``); only torch's results are stored (``record.py``).
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from pyggml.dtype import GGMLType
from pyggml.gguf import GGUFFile, write_gguf
from pyggml.quants import dequantize, quantize
from pyllama.convert import convert

from ..arch.checkpoints import DATA, write_checkpoint

VARIANTS = ("llama_relu", "bamboo", "opt", "falcon_relu")
RANKS = (24, 40, 8)  # of the predictors of three layers
N_LAYER = len(RANKS)
Weights = dict[str, np.ndarray]


def recorded(name: str) -> dict[str, np.ndarray]:
    """The results of torch for a variant, stored by ``record.py``."""
    with np.load(DATA / "sparse" / f"{name}.npz") as file:
        return dict(file)


def predictors(n_embd: int, n_ff: int) -> Weights:
    """Random predictors of three layers, with NumPy's order of dimensions."""
    made = {}
    for i, rank in enumerate(RANKS):
        for name, shape in ((f"blk.{i}.fc1.weight", (rank, n_embd)),
                            (f"blk.{i}.fc2.weight", (n_ff, rank))):  # fmt: skip
            rng = np.random.default_rng(zlib.crc32(name.encode()))
            made[name] = rng.standard_normal(shape).astype(np.float32) / np.float32(shape[1] ** 0.5)
    return made


def dense_file(folder: Path, name: str) -> Path:
    """The variant, converted to F32."""
    path = folder / f"{name}.gguf"
    if not path.exists():
        convert(write_checkpoint(folder / name, name), path, "f32")
    return path


def read(path: Path) -> tuple[dict[str, Any], Weights]:
    """Return the metadata of a file, and its weights in float32."""
    with GGUFFile(path) as file:
        return dict(file.typed_metadata()), {
            name: dequantize(file.tensor_bytes(name), t.type).reshape(t.ne[: t.n_dims][::-1]).copy()
            for name, t in file.tensors.items()
        }


def write(
    path: Path,
    metadata: Mapping[str, Any],
    weights: Mapping[str, np.ndarray],
    type: GGMLType = GGMLType.F32,
    magic: bytes = b"PWRI",
) -> Path:
    """Write a file with its matrices in ``type``, those with short rows in F16."""
    tensors: dict[str, Any] = {}
    for name, x in weights.items():
        kind = GGMLType.F16 if x.shape[-1] % type.block_size else type
        tensors[name] = x if x.ndim == 1 else (quantize(x, kind), kind, x.shape[::-1])
    write_gguf(path, {k: v for k, v in metadata.items() if v is not None}, tensors)
    path.write_bytes(magic + path.read_bytes()[4:])
    return path


def as_powerinfer(metadata: dict[str, Any], weights: Weights) -> tuple[dict[str, Any], Weights]:
    """Apply the changes of PowerInfer's converters: down transposed, and those for OPT."""
    changed = {}
    for name, x in weights.items():
        if name.endswith("ffn_down.weight"):
            name, x = name.replace("ffn_down", "ffn_down_t"), np.ascontiguousarray(x.T)
        elif name.endswith("ffn_down.bias") and metadata["general.architecture"] == "opt":
            name = name.replace("ffn_down", "ffn_down_t")
        elif name == "position_embd.weight":
            x = np.concatenate([np.full((2, x.shape[1]), 7, np.float32), x])
        changed[name] = x
    metadata = {**metadata, f"{metadata['general.architecture']}.hidden_act": None}
    if metadata["general.architecture"] == "opt":
        metadata |= {
            "opt.attention.layer_norm_epsilon": None,
            "tokenizer.ggml.add_bos_token": None,
            "opt.context_length": 2050,
        }
    return metadata, changed


def sparse_file(
    folder: Path,
    name: str,
    type: GGMLType = GGMLType.F32,
    change: Callable[[dict[str, Any], Weights], None] = lambda metadata, weights: None,
) -> Path:
    """Write the variant with predictors in PowerInfer's format; ``change`` may damage it first."""
    metadata, weights = as_powerinfer(*read(dense_file(folder, name)))
    n_ff, n_embd = weights["blk.0.ffn_up.weight"].shape
    weights |= predictors(n_embd, n_ff)
    metadata["powerinfer.sparse_threshold"] = np.float32(recorded(name)["threshold"])
    change(metadata, weights)
    return write(folder / f"{name}-{type.name}.powerinfer.gguf", metadata, weights, type)
