"""Tiny checkpoints of every architecture, recreated from recorded files.

    for name in variants(): folder = write_checkpoint(tmp_path / name, name)

``variants/`` has the configurations. tests/data/arch/<variant>.npz has the names and shapes of the
parameters and what the reference computed with them; ``record.py`` writes it. The parameters follow
from their names, so no weights are stored.
"""

from __future__ import annotations

import json
import math
import shutil
import zlib
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np

from pyllama.arch import arch_names, get_arch
from pyllama.convert import convert
from pyllama.mapping.rules import base_keys

from ...tiers import only
from .variants import VARIANTS

DATA = Path(__file__).parents[2] / "data"
N_VOCAB, EVERY = 512, 4  # logits are recorded of every fourth token
_SENTENCEPIECE = {  # model types
    "llama", "mistral", "mixtral", "turbosparsemixtral", "bamboo", "gemma3", "gemma3_text"
}  # fmt: skip
_TOKENIZER_FILES = {"llama": ("tokenizer.model",), "gpt2": ("vocab.json", "merges.txt")}
Shapes = Mapping[str, tuple[int, ...]]


def variants() -> dict[str, tuple[str, dict[str, Any]]]:
    """Architecture and config.json of each variant, by name."""
    found: dict[str, tuple[str, dict[str, Any]]] = {}
    for arch in arch_names():
        for name, config in VARIANTS.get(arch, {}).items():  # encoders have tests of their own
            assert name not in found, f"two variants are called {name}"
            found[name] = arch, dict(config)
    return found


@cache
def firsts() -> dict[str, str]:
    """The architectures, by the name of the first variant of each."""
    found = {arch: name for name, (arch, _) in reversed(variants().items())}
    return {name: arch for arch, name in sorted(found.items())}


@cache
def own_graphs() -> dict[str, str]:
    """One architecture for each graph: the one whose file defines it, or the first that has it."""
    graphs: dict[tuple[Any, ...], str] = {}
    for name, arch in firsts().items():
        module = get_arch(arch)
        graph: Any = module.build_graph
        parts = (graph,)
        if isinstance(graph, partial):
            parts = (graph.func, *graph.args, *graph.keywords.values())
        is_own = any(getattr(part, "__module__", "") == module.__name__ for part in parts)  # type: ignore[attr-defined]
        if is_own or parts not in graphs:
            graphs[parts] = name
    return {name: firsts()[name] for name in sorted(graphs.values())}


def recorded(name: str) -> dict[str, np.ndarray]:
    """The file of a variant that ``record.py`` wrote."""
    with np.load(DATA / "arch" / f"{name}.npz") as file:
        return dict(file)


def shapes_of(record: Mapping[str, np.ndarray]) -> dict[str, tuple[int, ...]]:
    """Parameters' shapes by name."""
    found: dict[str, list[int]] = json.loads(str(record["shapes"]))
    return {name: tuple(shape) for name, shape in found.items()}


def weights(kind: str, shapes: Shapes, scale: float) -> dict[str, np.ndarray]:
    """A checkpoint's parameters, float32, each from a generator that its name seeds.

    Biases and the weights of norms are random too, so nothing that is forgotten goes unnoticed.
    Norms of Gemma up to 3, Step-3.5, MiniMax-M3 and Qwen from Qwen3-Next on add 1 to their weights.

    Args:
        kind: the model type.
        scale: of the embedding and the output matrix, which decides how far logits spread.
    """
    made = {}
    adding = ("gemma", "step3p", "minimax_m3", "qwen3_next", "qwen3_5", "qwen4")
    add_one = kind.startswith(adding) and not kind.startswith(("gemma3n", "gemma4"))
    for name, shape in shapes.items():
        rng = np.random.default_rng(zlib.crc32(name.encode()))
        if hashes := _of_hashes(name, shapes, rng):
            made[name] = hashes[0]
            continue
        x = rng.uniform(-1, 1, shape)
        if name.endswith("tid2eid"):  # other experts for each token, of 8
            made[name] = x.argsort(axis=1)[:, : shape[1]] + np.arange(shape[0])[:, None] % 6
            continue
        if len(shape) > 1:
            # one row of scores: as of a matrix, their softmax would choose one term
            n = shape[-1] if name.endswith("_res_proj.weight") else min(shape[-2:])
            x *= np.sqrt(3 / n) * (scale if N_VOCAB in shape else 1.0)
        elif name.endswith(("dt_bias", "dt_proj.bias")):
            x = x - 3  # time steps of 0.02 to 0.13, as in trained models
        else:
            adds_one = add_one and not name.endswith("linear_attn.norm.weight")
            x = x / 2 + (0 if name.endswith("bias") or adds_one else 1)
        made[name] = x.astype(np.float32)
    return made


def _of_hashes(name: str, shapes: Shapes, rng: np.random.Generator) -> list[np.ndarray]:
    """The constants of hashes of n-grams, whose heads share a table's rows; empty for others."""
    n = math.prod(shapes[name])
    if name.endswith("layer_multipliers"):
        return [rng.integers(0, 1 << 44, n) * 2 + 1]
    rows = sum(shape[0] for k, shape in shapes.items() if ".ngram_embedding." in k) // n
    if name.endswith("ngram_heads_vocab_sizes"):
        return [rows - np.arange(n)]
    return [rows * np.arange(n)] if name.endswith("ngram_heads_offsets") else []


def write_safetensors(path: Path, tensors: Mapping[str, np.ndarray]) -> None:
    """Tensors in Hugging Face's format: a length, a header in JSON, the bytes."""
    types = {"float32": "F32", "int64": "I64", "bool": "BOOL"}
    header, offset = {}, 0
    for name, x in tensors.items():
        end = offset + x.nbytes
        header[name] = {
            "dtype": types[x.dtype.name],
            "shape": list(x.shape),
            "data_offsets": [offset, end],
        }
        offset = end
    text = json.dumps(header).encode()
    data = b"".join(x.tobytes() for x in tensors.values())
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)


def long_but(names: Iterable[str], by_default: Collection[str]) -> list[Any]:
    """Names as a test's parameters; all but those that run by default have the marker ``long``."""
    return only(sorted({*names, *by_default}), by_default)


def conversions(root: Path, write: Callable[[Path, str], Path]) -> Callable[..., Path]:
    """A function that makes a variant's checkpoint once, and each conversion of it once."""

    def converted(name: str, outtype: str = "f32") -> Path:
        if not (root / name).exists():
            write(root / name, name)
        path = root / f"{name}-{outtype}.gguf"
        if not path.exists():
            convert(root / name, path, outtype)
        return path

    return converted


def expand(patterns: Mapping[str, list[int]], config: Mapping[str, Any]) -> Shapes:
    """Shapes by name, with the numbers of layers and experts in place of ``{i}`` and ``{e}``."""
    found: dict[str, tuple[int, ...]] = {}
    keys = base_keys(config.get("text_config", config))
    for pattern, shape in patterns.items():
        layers = keys["block_count"] if "{i}" in pattern else 1
        experts = keys["expert_count"] if "{e}" in pattern else 1
        for i in range(layers):
            for e in range(experts):
                found[pattern.replace("{i}", str(i)).replace("{e}", str(e))] = tuple(shape)
    return found


def write_checkpoint(folder: Path, name: str) -> Path:
    """The folder of a variant: config.json, weights, and a tokenizer of 512 tokens."""
    _, config = variants()[name]
    record = recorded(name)
    made = weights(config["model_type"], shapes_of(record), float(record["scale"]))
    return write_files(folder, config, made)


def write_files(folder: Path, config: dict[str, Any], made: Mapping[str, np.ndarray]) -> Path:
    """The folder of a checkpoint with these weights."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config))
    write_safetensors(folder / "model.safetensors", made)
    tokenizer = "llama" if config.get("model_type") in _SENTENCEPIECE else "gpt2"
    for file in _TOKENIZER_FILES[tokenizer]:
        shutil.copy(DATA / "tokenizer" / tokenizer / file, folder)
    return folder
