"""PowerInfer's ``.gpuidx`` files: which neurons of each layer a GPU has.

    write_gpuidx("x.gpuidx", split, vram_bytes=8 << 30)
    index = read_gpuidx("x.gpuidx")
    check_split(index, n_layer=32, n_ff=11008).up[3]

For each layer, in this order: ``blk.{i}.gpu_idx`` {n_ff}, 1 where the neuron is on the GPU, and
``blk.{i}.gpu_bucket`` {k}, the ids of those. PowerInfer finds tensors by their position. Where rows
of down are placed apart from those of up, Q-Infer's form with two more tensors of a layer is
written (``gpu_idx_down``, ``gpu_bucket_down``); both are read, by name.
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
_KEY = "split.key"  # PowerInfer does not look at it
_AGAIN = "recreate it with `reset=True`"


@dataclass(frozen=True, eq=False)
class GPUIndex:
    """A file's content.

    Attributes:
        vram_bytes: the budget that it was made for.
        key: of what it was made from; empty in the files of others.
    """

    path: Path
    split: NeuronSplit
    vram_bytes: int
    key: str


def write_gpuidx(
    path: str | os.PathLike[str], split: NeuronSplit, vram_bytes: int, key: str = ""
) -> None:
    """Write a file that PowerInfer (without ``joint``: Q-Infer) reads.

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
    """Read and check a file of either form.

    Raises:
        GGUFError: it is no legal file.
        ModelError: it is none of these, or what it says of a layer does not agree with itself.
    """
    with GGUFFile(path, mmap=False) as file:
        if file.get_str("general.architecture", "") != ARCHITECTURE:
            raise ModelError(f"{file.path}: is a model, not a .gpuidx file of neurons on a GPU")
        n_layer = file.get_int(_BLOCKS)
        suffixes = ("", "_down") if "blk.0.gpu_idx_down" in file.tensors else ("",)
        wanted = len(suffixes) * 2 * n_layer
        if len(file.tensors) != wanted or not n_layer:
            raise ModelError(
                f"{file.path}: {len(file.tensors)} tensors, {n_layer} layers have {wanted}; "
                f"{_AGAIN}"
            )
        sets = [[_read(file, i, suffix) for i in range(n_layer)] for suffix in suffixes]
        n_ff = file.tensors["blk.0.gpu_idx"].ne[0]
        split = NeuronSplit(n_ff, tuple(sets[0]), tuple(sets[-1]))
        vram, key = file.get_int(_VRAM), file.get_str(_KEY, "")
        return GPUIndex(Path(path), split, vram, key)


def check_split(index: GPUIndex, n_layer: int, n_ff: int) -> NeuronSplit:
    """The split, if it is of a model of these sizes. Raises: ModelError."""
    split = index.split
    if (len(split.up), split.n_ff) != (n_layer, n_ff):
        raise ModelError(
            f"{index.path}: is of {len(split.up)} layers of {split.n_ff} neurons, the model has "
            f"{n_layer} of {n_ff}: it belongs to another model; {_AGAIN}"
        )
    return split


def cached_split(
    path: Path, key: str, vram_bytes: int, make: Callable[[], NeuronSplit], *, reset: bool = False
) -> tuple[NeuronSplit, bool]:
    """What a file says if it was made from the same; else what ``make`` gives, written there.

    Args:
        key: a digest of everything that the split depends on.
        reset: recreate it in any case.

    Returns:
        The split, and whether it was there.

    Raises:
        ModelError: the file was made by another program, whose work is not overwritten.
        GGUFError: it is damaged, or cannot be written.
    """
    if path.exists() and not reset:
        index = read_gpuidx(path)
        if index.key == key:
            return index.split, True
        if not index.key:
            raise ModelError(
                f"{path}: was made by another program, for {index.vram_bytes / 2**30:.2f} GiB: "
                "use it as it is with `given=PATH`, or replace it with `reset=True`"
            )
    split = make()
    write_gpuidx(path, split, vram_bytes, key)
    return split, False


def _read(file: GGUFFile, i: int, suffix: str) -> Ids:
    """The bucket of a layer, which its marks must confirm."""
    names = f"blk.{i}.gpu_idx{suffix}", f"blk.{i}.gpu_bucket{suffix}"
    for name in names:
        info = file.tensors.get(name)
        if info is None or info.type != GGMLType.I32 or info.ne[1:] != (1, 1, 1):
            what = "is missing" if info is None else f"is {info.type.name} {list(info.ne)}"
            raise ModelError(f"{file.path}: tensor '{name}' {what}, want I32 [n]; {_AGAIN}")
    marks, bucket = (file.tensor_bytes(name).view(np.int32).copy() for name in names)
    n_ff = file.tensors["blk.0.gpu_idx"].ne[0]
    if marks.size != n_ff:
        raise ModelError(f"{file.path}: '{names[0]}' has {marks.size} neurons, layer 0 has {n_ff}")
    if bucket.size and not 0 <= bucket.min() <= bucket.max() < n_ff:
        raise ModelError(
            f"{file.path}: '{names[1]}' names neuron {bucket.min()} to {bucket.max()} of 0 to "
            f"{n_ff - 1}; {_AGAIN}"
        )
    here = np.zeros(n_ff, np.int32)
    here[bucket] = 1
    if here.sum() != bucket.size or not np.array_equal(here, marks):
        raise ModelError(
            f"{file.path}: '{names[1]}' names {bucket.size} neurons, '{names[0]}' marks "
            f"{np.count_nonzero(marks)}, and they are not the same; {_AGAIN}"
        )
    return bucket
