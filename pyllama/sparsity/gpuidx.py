"""PowerInfer's ``.gpuidx`` files: the neurons of each layer that are on the GPU.

    write_gpuidx("x.gpuidx", split, vram_bytes=8 << 30)
    index = read_gpuidx("x.gpuidx")
    check_split(index, n_layer=32, n_ff=11008).up[3]

For each layer, in this order: ``blk.{i}.gpu_idx`` {n_ff}, 1 for neurons on the GPU, and
``blk.{i}.gpu_bucket`` {k}, their ids. PowerInfer reads tensors by position. If rows of down are
placed independently of those of up, Q-Infer's format with two more tensors per layer is written
(``gpu_idx_down``, ``gpu_bucket_down``). Both formats are read, by name.
Source: PowerInfer, ``export_split.py``; Q-Infer, ``qinfer-py/qinfer/export_split.py``.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from pyggml.dtype import GGMLType
from pyggml.gguf import GGUFFile, write_gguf
from pyggml.gguf.magic import POWERINFER

from ..errors import ModelError
from .placement import Ids, NeuronSplit

ARCHITECTURE = "generic.gpu_index"
_BLOCKS = f"{ARCHITECTURE}.block_count"
_VRAM = "split.vram_capacity"
_KEY = "split.key"  # ours; PowerInfer ignores it
_AGAIN = "recreate it with `reset=True`"


@dataclass(frozen=True, eq=False)
class GPUIndex:
    """The content of a file.

    Attributes:
        vram_bytes: the memory budget of the split.
        key: digest of the inputs of the split; empty in files of other programs.
    """

    path: Path
    split: NeuronSplit
    vram_bytes: int
    key: str


def write_gpuidx(
    path: str | os.PathLike[str], split: NeuronSplit, vram_bytes: int, key: str = ""
) -> None:
    """Write a file in PowerInfer's format, or Q-Infer's if the split is not ``joint``.

    Raises:
        GGUFError: it cannot be written.
    """
    tensors = {}
    for i, (up, down) in enumerate(zip(split.up, split.down, strict=True)):
        for ids, suffix in [(up, "")] if split.joint else [(up, ""), (down, "_down")]:
            marks = np.zeros(split.n_ff, np.int32)
            marks[ids] = 1
            tensors[f"blk.{i}.gpu_idx{suffix}"] = marks
            tensors[f"blk.{i}.gpu_bucket{suffix}"] = ids.astype(np.int32)
    metadata = {
        "general.architecture": ARCHITECTURE,
        _BLOCKS: np.uint32(len(split.up)),
        _VRAM: np.uint64(vram_bytes),
    } | ({_KEY: key} if key else {})
    write_gguf(path, metadata, tensors, magic=POWERINFER)


def read_gpuidx(path: str | os.PathLike[str]) -> GPUIndex:
    """Read, check and return a file of either format.

    Raises:
        GGUFError: it is not a valid GGUF file.
        ModelError: it is not a .gpuidx file, or its tensors are inconsistent.
    """
    with GGUFFile(path, mmap=False) as file:
        if file.get_str("general.architecture", "") != ARCHITECTURE:
            raise ModelError(f"{file.path}: is a model, not a .gpuidx file")
        n_layer = file.get_int(_BLOCKS)
        suffixes = ("", "_down") if "blk.0.gpu_idx_down" in file.tensors else ("",)
        n_tensors = len(suffixes) * 2 * n_layer
        if len(file.tensors) != n_tensors or not n_layer:
            raise ModelError(
                f"{file.path}: {len(file.tensors)} tensors, {n_layer} layers have {n_tensors}; "
                f"{_AGAIN}"
            )
        sets = [[_read(file, i, suffix) for i in range(n_layer)] for suffix in suffixes]
        n_ff = file.tensors["blk.0.gpu_idx"].ne[0]
        split = NeuronSplit(n_ff, tuple(sets[0]), tuple(sets[-1]))
        vram, key = file.get_int(_VRAM), file.get_str(_KEY, "")
        return GPUIndex(Path(path), split, vram, key)


def check_split(index: GPUIndex, n_layer: int, n_ff: int) -> NeuronSplit:
    """Return the split of an index. Raises: ModelError: it does not fit the model's sizes."""
    split = index.split
    if (len(split.up), split.n_ff) != (n_layer, n_ff):
        raise ModelError(
            f"{index.path}: has {len(split.up)} layers of {split.n_ff} neurons, the model has "
            f"{n_layer} of {n_ff}: it belongs to another model; {_AGAIN}"
        )
    return split


def cached_split(
    path: Path, key: str, vram_bytes: int, make: Callable[[], NeuronSplit], *, reset: bool = False
) -> tuple[NeuronSplit, bool]:
    """Return the split in a file with the same key; otherwise compute and save it.

    Args:
        key: digest of everything that the split depends on.
        make: computes the split.
        reset: recreate the file in any case.

    Returns:
        The split, and whether it was read from the file.

    Raises:
        ModelError: the file was written by another program, and is not overwritten.
        GGUFError: it is damaged, or cannot be written.
    """
    if path.exists() and not reset:
        index = read_gpuidx(path)
        if index.key == key:
            return index.split, True
        if not index.key:
            raise ModelError(
                f"{path}: was written by another program, for {index.vram_bytes / 2**30:.2f} GiB: "
                "use it unchanged with `given=PATH`, or replace it with `reset=True`"
            )
    split = make()
    write_gpuidx(path, split, vram_bytes, key)
    return split, False


def _read(file: GGUFFile, i: int, suffix: str) -> Ids:
    """Return the bucket of a layer. Raises: ModelError: it does not agree with ``gpu_idx``."""
    names = f"blk.{i}.gpu_idx{suffix}", f"blk.{i}.gpu_bucket{suffix}"
    for name in names:
        info = file.tensors.get(name)
        if info is None or info.type != GGMLType.I32 or info.ne[1:] != (1, 1, 1):
            problem = "is missing" if info is None else f"is {info.type.name} {list(info.ne)}"
            raise ModelError(f"{file.path}: tensor '{name}' {problem}, must be I32 [n]; {_AGAIN}")
    marks, bucket = (file.tensor_bytes(name).view(np.int32).copy() for name in names)
    n_ff = file.tensors["blk.0.gpu_idx"].ne[0]
    if marks.size != n_ff:
        raise ModelError(f"{file.path}: '{names[0]}' has {marks.size} neurons, layer 0 has {n_ff}")
    if bucket.size and not 0 <= bucket.min() <= bucket.max() < n_ff:
        raise ModelError(
            f"{file.path}: '{names[1]}' has neurons {bucket.min()} to {bucket.max()}, must be in "
            f"0 to {n_ff - 1}; {_AGAIN}"
        )
    in_bucket = np.zeros(n_ff, np.int32)
    in_bucket[bucket] = 1
    if in_bucket.sum() != bucket.size or not np.array_equal(in_bucket, marks):
        raise ModelError(
            f"{file.path}: '{names[1]}' lists {bucket.size} neurons, '{names[0]}' marks "
            f"{np.count_nonzero(marks)}, and they differ; {_AGAIN}"
        )
    return bucket
