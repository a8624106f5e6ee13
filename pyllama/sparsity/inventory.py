"""What of a model needs a GPU's memory, in bytes: dense tensors by level, and rows of neurons.

    needs = inventory(file, hparams, n_ctx=4096)
    needs.items[0]                                 # Item("attention", layer=0, names, nbytes)
    needs.rows.nbytes(3, 2048, 2048)               # of 2048 neurons of layer 3

Only the file's header is read. Every tensor is counted with the padding that it has in a buffer.
Source: PowerInfer, ``llama.cpp``, ``tensor_offloading_levels``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from pyggml.buffer import ALIGNMENT
from pyggml.dtype import GGMLType, row_size
from pyggml.gguf import GGUFFile, TensorInfo

from ..errors import ModelError
from ..hparams import HParams
from ..memory import window_cells

ATTENTION, PREDICTOR, FFN_IO = "attention", "predictor", "ffn norms"
OUTPUT, KV, FFN = "output", "KV cache", "FFN rows"
LEVELS = (ATTENTION, PREDICTOR, FFN_IO, OUTPUT, KV, FFN)  # in the order in which they get memory
_ROWS = ("ffn_gate", "ffn_up", "ffn_down_t", "ffn_down")
_LAYER = re.compile(r"blk\.(\d+)\.([^.]+)\.(.+)")


class Item(NamedTuple):
    """Tensors that are placed together or not at all; ``layer`` -1 is none."""

    level: str
    layer: int
    names: tuple[str, ...]
    nbytes: int


@dataclass(frozen=True)
class NeuronRows:
    """Bytes of neurons, of each layer.

    Attributes:
        n_ff: neurons of a layer.
        up: row sizes of the matrices that are read by the same neurons: up, and gate if any.
        down: row size of the transposed down matrix.
    """

    n_ff: int
    up: tuple[tuple[int, ...], ...]
    down: tuple[int, ...]

    def nbytes(self, layer: int, n_up: int, n_down: int) -> int:
        """Exact bytes on a GPU of rows of ``n_up`` neurons of up (and gate), ``n_down`` of down.

        Buckets of ids are included; a matrix that is there as a whole needs none.
        """
        sizes = [n_up * row for row in self.up[layer]] + [n_down * self.down[layer]]
        sizes += [4 * n for n in {n_up, n_down} if n < self.n_ff]  # the hottest: equal if as many
        return sum(map(padded, sizes))

    def of_one(self, layer: int) -> int:
        """Bytes of one neuron's rows."""
        return sum(self.up[layer]) + self.down[layer]


@dataclass(frozen=True)
class Inventory:
    """Everything that may be placed, dense items in the order of ``LEVELS``."""

    items: tuple[Item, ...]
    rows: NeuronRows


def padded(nbytes: int) -> int:
    """Bytes with the gap to the next tensor."""
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


def inventory(
    file: GGUFFile,
    hparams: HParams,
    n_ctx: int,
    type_k: GGMLType = GGMLType.F16,
    type_v: GGMLType = GGMLType.F16,
) -> Inventory:
    """What a model needs.

    Embeddings, positions and rope's factors stay with the host. A model without ``output.weight``
    needs a copy of its embedding for the output.

    Args:
        n_ctx: cells of the KV cache.

    Raises:
        ModelError: it has experts, or a layer has no such matrices.
    """
    if hparams.n_expert:
        raise ModelError(f"{file.path}: neurons of experts cannot be placed; use a dense model")
    groups: dict[tuple[str, int], list[TensorInfo]] = {}
    for info in file.tensors.values():
        level, layer = _level(info.name)
        if level not in (FFN, ""):
            groups.setdefault((level, layer), []).append(info)
    if "output.weight" not in file.tensors:
        groups.setdefault((OUTPUT, -1), []).append(file.tensors["token_embd.weight"])
    items = [
        Item(level, layer, tuple(t.name for t in infos), sum(padded(t.nbytes) for t in infos))
        for (level, layer), infos in groups.items()
    ]
    items += _caches(hparams, n_ctx, {"k": type_k, "v": type_v})
    items.sort(key=lambda item: (LEVELS.index(item.level), item.layer))
    up, down = [], []
    for i in range(hparams.n_layer):
        parts = (
            ("ffn_gate", "ffn_up") if f"blk.{i}.ffn_gate.weight" in file.tensors else ("ffn_up",)
        )
        up.append(tuple(_row(file, f"blk.{i}.{part}.weight", hparams.n_embd) for part in parts))
        down.append(_down_row(file, i, hparams.n_embd))
    return Inventory(tuple(items), NeuronRows(hparams.n_ff, tuple(up), tuple(down)))


def _level(name: str) -> tuple[str, int]:
    """(level, layer) of a tensor; no level for what the host keeps."""
    found = _LAYER.fullmatch(name)
    if found is None:
        return (OUTPUT if name.startswith(("output", "project_out")) else ""), -1
    layer, part, kind = int(found[1]), found[2], found[3]
    if part in _ROWS and kind == "weight":
        return FFN, layer
    if part in ("fc1", "fc2"):
        return PREDICTOR, layer
    return (ATTENTION if "attn" in part or "attention" in part else FFN_IO), layer


def _caches(hp: HParams, n_ctx: int, types: Mapping[str, GGMLType]) -> Iterator[Item]:
    row = sum(row_size(type, hp.head_dim) for type in types.values()) * hp.n_head_kv
    for i in range(hp.n_layer):
        window = hp.window(i)
        n_cells = min(n_ctx, window_cells(window, 1, 512, True)) if window else n_ctx
        yield Item(KV, i, tuple(f"cache_{x}_l{i}" for x in types), padded(row * n_cells))


def _row(file: GGUFFile, name: str, n: int) -> int:
    info = file.tensors.get(name)
    if info is None or info.ne[0] != n:
        has = "is missing" if info is None else f"has rows of {info.ne[0]}, want {n}"
        raise ModelError(f"{file.path}: tensor '{name}' {has}; its neurons cannot be placed")
    return row_size(info.type, n)


def _down_row(file: GGUFFile, i: int, n_embd: int) -> int:
    """Of the transposed matrix, which a plain file gets when it is loaded."""
    info = file.tensors.get(f"blk.{i}.ffn_down.weight")
    if info is None:
        return _row(file, f"blk.{i}.ffn_down_t.weight", n_embd)
    return row_size(GGMLType.F16 if info.type.is_quantized else info.type, n_embd)
