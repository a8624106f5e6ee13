"""GPU memory needed by each part of a model: dense tensors by level, and rows of neurons.

    needs = inventory(file, hparams, n_ctx=4096)
    needs.items[0]                                 # Item("attention", layer=0, names, nbytes)
    needs.rows.nbytes(3, 2048, 2048)               # of 2048 neurons of layer 3

Only the file's header is read. The sizes of tensors include the padding in a buffer.
Source: PowerInfer, ``llama.cpp``, ``tensor_offloading_levels``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from pyggml.buffer import ALIGNMENT
from pyggml.dtype import GGMLType, row_size
from pyggml.gguf import GGUFFile
from pyggml.rounding import round_up

from ..arch import get_arch
from ..errors import ModelError
from ..graph.sparse.weights import plan_weights
from ..hparams import HParams
from ..kv.cache import cached_layers, cell_bytes
from ..kv.memory import window_cells
from ..runtime.loader import check_tensors

ATTENTION, SCORES, FFN_IO = "attention", "scores", "ffn norms"
OUTPUT, KV, FFN = "output", "KV cache", "FFN rows"
LEVELS = (ATTENTION, SCORES, FFN_IO, OUTPUT, KV, FFN)  # in order of priority
_LAYER = re.compile(r"blk\.(\d+)\.([^.]+)(?:\.(.+))?")


class PlacedItem(NamedTuple):
    """Tensors that are placed together; ``layer`` is -1 outside of layers."""

    level: str
    layer: int
    names: tuple[str, ...]
    nbytes: int


@dataclass(frozen=True)
class NeuronRows:
    """Row sizes of the FFN matrices, by layer.

    Attributes:
        n_ff: neurons per layer.
        up: row sizes of up, and of gate if any, without a matrix that every token reads in full.
        down: row size of the transposed down matrix.
        types: types of up and down in the first layer.
    """

    n_ff: int
    up: tuple[tuple[int, ...], ...]
    down: tuple[int, ...]
    types: tuple[GGMLType, GGMLType] = (GGMLType.F16, GGMLType.F16)

    def nbytes(self, layer: int, n_up: int, n_down: int) -> int:
        """Return the GPU memory of ``n_up`` rows of up and gate, and ``n_down`` of down.

        Includes the buckets of ids, which a complete matrix does not need.
        """
        sizes = [n_up * row for row in self.up[layer]] + [n_down * self.down[layer]]
        # up and down share a bucket if they have the same number of (hottest) neurons
        sizes += [4 * n for n in {n_up, n_down} if n < self.n_ff]
        return sum(map(padded, sizes))

    def of_one(self, layer: int) -> int:
        """Return the size of one neuron's rows."""
        return sum(self.up[layer]) + self.down[layer]


@dataclass(frozen=True)
class Inventory:
    """Everything that can be placed; ``items`` are in the order of ``LEVELS``."""

    items: tuple[PlacedItem, ...]
    rows: NeuronRows


def padded(nbytes: int) -> int:
    """Return a size rounded up to the alignment of tensors."""
    return round_up(nbytes, ALIGNMENT)


def inventory(
    file: GGUFFile,
    hparams: HParams,
    n_ctx: int,
    type_k: GGMLType = GGMLType.F16,
    type_v: GGMLType = GGMLType.F16,
) -> Inventory:
    """Return the memory that a model needs with the sources in ``hparams``.

    Embeddings, positions and RoPE factors stay on the host. A model with tied embeddings needs a
    copy of the embedding for the output. Tensors that compute scores are dense: predictors, and the
    gates of ``exact``.

    Args:
        file: after ``normalize_powerinfer_metadata``.
        n_ctx: cells of the KV cache.

    Raises:
        ModelError: tensors are missing, or a layer computes all neurons.
    """
    infos = check_tensors(file, get_arch(hparams.arch).TENSORS, hparams)
    plan = plan_weights(infos, hparams)
    sizes = {t.name: t.nbytes for t in infos.values() if t.name not in plan.unread}
    sizes |= plan.derived_sizes
    types = {t.name: t.type for t in infos.values()}
    types |= {name: type for one in plan.derived for name, type, _ in one.tensors}
    up = [_by_rows(file, hparams, i, sizes) for i in range(hparams.n_layer)]
    down = [f"blk.{i}.ffn_down_t.weight" for i in range(hparams.n_layer)]
    by_rows = {*down, *(name for names in up for name in names)}
    groups: dict[tuple[str, int], list[str]] = {}
    for name in sizes.keys() - by_rows:
        groups.setdefault(_level(name), []).append(name)
    if "output.weight" not in sizes:
        groups.setdefault((OUTPUT, -1), []).append("token_embd.weight")
    items = [
        PlacedItem(level, layer, tuple(sorted(names)), sum(padded(sizes[name]) for name in names))
        for (level, layer), names in groups.items()
        if level
    ]
    items += _caches(hparams, n_ctx, {"k": type_k, "v": type_v})
    items.sort(key=lambda item: (LEVELS.index(item.level), item.layer))
    rows = NeuronRows(
        hparams.n_ff,
        tuple(tuple(row_size(types[name], hparams.n_embd) for name in names) for names in up),
        tuple(row_size(types[name], hparams.n_embd) for name in down),
        (types["blk.0.ffn_up.weight"], types[down[0]]),
    )
    return Inventory(tuple(items), rows)


def _by_rows(file: GGUFFile, hparams: HParams, i: int, sizes: Mapping[str, int]) -> list[str]:
    """Return the matrices read by rows, without down. Raises: ModelError."""
    source = hparams.source(i)
    if hparams.n_expert or source in ("off", "topk"):
        raise ModelError(
            f"{file.path}: layer {i} computes all of its neurons, so there are no hot neurons to "
            "place; use a sparse source, such as `sparse='exact'` for ReLU"
        )
    names = [f"blk.{i}.ffn_{part}.weight" for part in ("gate", "up")]
    names = [name for name in names if name in sizes]
    return names[1:] if source == "exact" else names  # exact computes the first in full


def _level(name: str) -> tuple[str, int]:
    """Return (level, layer) of a dense tensor; an empty level for tensors that stay on the host."""
    found = _LAYER.fullmatch(name)
    if found is None:
        return (OUTPUT if name.startswith(("output", "project_out")) else ""), -1
    layer, part, kind = int(found[1]), found[2], found[3]
    if "attn" in part or "attention" in part:
        return ATTENTION, layer
    return (FFN_IO if "norm" in part or kind == "bias" else SCORES), layer


def _caches(hp: HParams, n_ctx: int, types: Mapping[str, GGMLType]) -> Iterator[PlacedItem]:
    for i in cached_layers(hp):
        window = hp.window(i)
        n_cells = min(n_ctx, window_cells(window, 1, 512, True)) if window else n_ctx
        yield PlacedItem(
            KV,
            i,
            tuple(f"cache_{x}_l{i}" for x in types),
            padded(cell_bytes(hp, i, types["k"], types["v"]) * n_cells),
        )
