"""Divides a sparse model among several GPUs: each has some layers, with their hot neurons.

    shares = divide(backends, hparams.n_layer, offload)    # by tensor_split, or by free memory
    placed = [share.place(needs, budget, neurons) for share, budget in zip(shares, budgets)]
    Model.load(path, devices=gpus, placement=Placements(tuple(placed)))

In its layers, a GPU has dense tensors, keys and values, and neurons by the rules of ``placement``;
the last one that has layers also has the output. The CPU computes the other neurons of all layers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from pyggml.backend.interface import Backend

from ..runtime.devices import Offload, gpus_of, layer_devices
from .inventory import Inventory, NeuronRows
from .placement import Ids, NeuronChooser, NeuronSplit, Placement, empty_split, place


@dataclass(frozen=True)
class Share:
    """The part of a model that one GPU has.

    Attributes:
        layers: in order; of ``n_layer`` layers of the model.
        has_output: whether it has the output.
    """

    layers: tuple[int, ...]
    n_layer: int
    has_output: bool

    def needs(self, whole: Inventory) -> Inventory:
        """The memory that the part needs; rows are those of its layers alone."""
        rows, layers = whole.rows, self.layers
        items = tuple(
            item
            for item in whole.items
            if item.layer in layers or (item.layer < 0 and self.has_output)
        )
        up = tuple(rows.up[i] for i in layers)
        down = tuple(rows.down[i] for i in layers)
        return Inventory(items, NeuronRows(rows.n_ff, up, down, rows.types))

    def of_split(self, split: NeuronSplit) -> NeuronSplit:
        """The neurons of its layers."""
        up, down = (tuple(x[i] for i in self.layers) for x in (split.up, split.down))
        return NeuronSplit(split.n_ff, up, down)

    def place(
        self, whole: Inventory, nbytes: int, neurons: NeuronChooser | None, compute_bytes: int
    ) -> Placement:
        """The placement of the part in a model of ``n_layer`` layers.

        Args:
            neurons: chooses neurons of its layers alone.
        """
        placed = place(self.needs(whole), nbytes, neurons, compute_bytes=compute_bytes)
        sizes = dict(zip(self.layers, placed.ffn_bytes, strict=True))
        split = merged([(self, placed.split)], self.n_layer, whole.rows.n_ff)
        ffn_bytes = tuple(sizes.get(i, 0) for i in range(self.n_layer))
        return replace(placed, split=split, ffn_bytes=ffn_bytes)


@dataclass(frozen=True, eq=False)
class Placements:
    """What is on each of several GPUs, in their order."""

    parts: tuple[Placement, ...]


def divide(backends: Sequence[Backend], n_layer: int, offload: Offload) -> list[Share]:
    """The share of each GPU in a model that is divided as an offload of all layers is."""
    owners = layer_devices(backends, n_layer, replace(offload, n_gpu_layers=-1))
    return [
        Share(tuple(i for i in range(n_layer) if owners[i] is gpu), n_layer, owners[-1] is gpu)
        for gpu in gpus_of(backends)
    ]


def merged(splits: Sequence[tuple[Share, NeuronSplit]], n_layer: int, n_ff: int) -> NeuronSplit:
    """One split of a whole model, from those of the layers of shares."""
    none = empty_split(n_layer, n_ff)
    up: list[Ids] = list(none.up)
    down: list[Ids] = list(none.down)
    for share, split in splits:
        for k, i in enumerate(share.layers):
            up[i], down[i] = split.up[k], split.down[k]
    return NeuronSplit(n_ff, tuple(up), tuple(down))
