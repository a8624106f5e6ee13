"""Random adapters of a model file, and the file with them merged into its matrices.

terms = random_terms(adaptable, rank=4, seed=1)
path = write_lora(tmp_path / "a.gguf", "llama", terms, alpha=8)
merged = merge(tmp_path / "m.gguf", model_path, [(terms, 8 / 4 * 0.5)])
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from pyggml.dtype import GGMLType
from pyggml.gguf import GGUFFile, write_gguf
from pyggml.quants import dequantize
from pyllama import Model
from pyllama.runtime.loader import adaptable_tensors

EMBEDDING = "token_embd.weight"
Terms = Mapping[str, tuple[np.ndarray, np.ndarray]]  # A and B, in NumPy's order


def adaptable(model: Model) -> dict[str, tuple[int, ...]]:
    """The matrices of a model that adapters may change, with (n_in, n_out, n_expert)."""
    sizes = adaptable_tensors(model.arch, model.hparams, model.weights)
    return {name: ne for name, ne in sizes.items() if not name.startswith("l_out")}


def random_terms(
    sizes: Mapping[str, tuple[int, ...]], n_vocab: int, rank: int = 4, seed: int = 0,
    size: float = 0.3,
) -> dict[str, tuple[np.ndarray, np.ndarray]]:  # fmt: skip
    """A and B for each of some tensors."""
    rng = np.random.default_rng(seed)

    def draw(*shape: int) -> np.ndarray:
        return (rng.uniform(-1, 1, shape) * size**0.5 / shape[-1] ** 0.5).astype(np.float32)

    made = {}
    for name, (n_in, n_out, n_expert, *_) in sizes.items():
        experts = (n_expert,) if n_expert > 1 else ()
        a = draw(n_vocab, rank) if name == EMBEDDING else draw(*experts, rank, n_in)
        made[name] = a, draw(*experts, n_out, rank)
    return made


def write_lora(path: Path, arch: str, terms: Terms, alpha: float = 4.0, **metadata: Any) -> Path:
    """An adapter's file; ``metadata`` with underscores for dots, None drops a key."""
    keys: dict[str, Any] = {
        "general.architecture": arch, "general.type": "adapter", "adapter.type": "lora",
        "adapter.lora.alpha": np.float32(alpha),
    }  # fmt: skip
    keys |= {name.replace("__", "."): value for name, value in metadata.items()}
    tensors = {
        f"{name}.{part}": x
        for name, pair in terms.items()
        for part, x in zip(("lora_a", "lora_b"), pair, strict=True)
    }
    write_gguf(path, {key: value for key, value in keys.items() if value is not None}, tensors)
    return path


def merge(path: Path, base: Path, changes: Sequence[tuple[Terms, float]]) -> Path:
    """The file ``base`` with F32 matrices plus each change times its factor."""
    file = GGUFFile(base)
    tensors: dict[str, Any] = {}
    for name, info in file.tensors.items():
        shape = info.ne[: info.n_dims][::-1]
        if info.type is GGMLType.I32:  # no weights, but numbers of experts
            tensors[name] = file.tensor_bytes(name), info.type, shape[::-1]
            continue
        tensors[name] = dequantize(file.tensor_bytes(name), info.type).reshape(shape)
    tied = "output.weight" not in tensors
    if tied and any({EMBEDDING, "output.weight"} & terms.keys() for terms, _ in changes):
        tensors["output.weight"] = tensors[EMBEDDING].copy()
    for terms, factor in changes:
        for name, (a, b) in terms.items():
            change = b.astype(np.float64) @ (a.T if name == EMBEDDING else a)
            x = tensors[name]
            tensors[name] = (x + factor * (change.T if name == EMBEDDING else change)).astype("f4")
    write_gguf(path, file.typed_metadata(), tensors)
    return path


def write_vector(path: Path, n_embd: int, n_layer: int, seed: int = 0, **directions: Any) -> Path:
    """A control vector's file, with a random direction for each layer but the first."""
    rng = np.random.default_rng(seed)
    tensors: dict[str, Any] = {
        f"direction.{i}": rng.standard_normal(n_embd).astype(np.float32) for i in range(1, n_layer)
    }
    keys = {
        "general.architecture": "controlvector",
        "controlvector.model_hint": "llama",
        "controlvector.layer_count": np.int32(n_layer - 1),
    }
    write_gguf(path, keys, tensors | directions)
    return path
