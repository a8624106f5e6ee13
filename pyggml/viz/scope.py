"""Selects the tensors of a picture, and finds their layers.

    scope = Scope(graph, layers=(0, 2))            # layers 0 and 1
    scope.layer(node)                              # 3 of `ffn_up-3`, None outside of layers
    scope.inside(node)                             # whether it belongs to the drawn layers
    scope.edges                                    # with at least one end inside

Layers are read from llama.cpp's names: `ffn_up-3`, `blk.3.ffn_up.weight`, `cache_k_l3`. A tensor
without a name belongs to the first layer that reads it; an unread one to its sources' last.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import NamedTuple

from ..cgraph import CGraph
from ..errors import PyggmlError
from ..tensor import Tensor

# blk.3.attn_q.weight | cache_k_l3, cache_k_l3 (view) | ffn_up-3, Qcur-3 (roped), Qcur-3_b
_LAYER = re.compile(r"^blk\.(\d+)\.|_l(\d+)(?![\w.])|-(\d+)(?=$|[ _#])")
_UNNAMED = re.compile(r"^((node|leaf)_\d+( \(.*\))?)?$")


class Edge(NamedTuple):
    """``source`` is ``reader.src[k]``."""

    source: Tensor
    reader: Tensor
    k: int


class Scope:
    """The drawn part of a graph.

    Attributes:
        edges: the drawn edges, in order of execution.
        written: the leafs that nodes write into, such as a KV cache.

    Args:
        layers: ``(a, b)`` means layers a to b - 1; None means all.

    Raises:
        PyggmlError: no tensor of the graph is in those layers.
    """

    def __init__(self, graph: CGraph, layers: tuple[int, int] | None) -> None:
        self._layers = layers
        self._layer = _layers_by_name((*graph.leafs, *graph.nodes))
        _infer_layers(graph, self._layer)
        self._check(layers)
        self.written = {
            t.view_src for t in graph.nodes if t.op and not t.op.is_view and t.view_src is not None
        } & set(graph.leafs)
        self.edges = [
            Edge(source, node, k)
            for node in graph.nodes
            for k, source in enumerate(node.src)
            if source is not None and (self.inside(node) or self.inside(source))
        ]

    def _check(self, layers: tuple[int, int] | None) -> None:
        found = sorted({i for i in self._layer.values() if i is not None})
        if layers is None or any(layers[0] <= i < layers[1] for i in found):
            return
        has = f"layers {found[0]}:{found[-1] + 1}" if found else "no names that end in a layer's -0"
        raise PyggmlError(f"no tensor is in layers {layers[0]}:{layers[1]}; the graph has {has}")

    def layer(self, tensor: Tensor) -> int | None:
        """Return the layer of a tensor, None outside of layers."""
        return self._layer.get(tensor)

    def inside(self, tensor: Tensor) -> bool:
        """Return whether a tensor belongs to the drawn layers."""
        if self._layers is None:
            return tensor in self._layer
        layer = self.layer(tensor)
        return layer is not None and self._layers[0] <= layer < self._layers[1]

    def shared(self, tensor: Tensor) -> bool:
        """Return whether a tensor is a leaf outside of layers, such as the positions."""
        return tensor.op is None and self._layer.get(tensor, -1) is None


def _layers_by_name(tensors: Collection[Tensor]) -> dict[Tensor, int | None]:
    layers: dict[Tensor, int | None] = {}
    for tensor in tensors:
        match = _LAYER.search(tensor.name)
        layers[tensor] = int(next(filter(None, match.groups()))) if match else None
    return layers


def _infer_layers(graph: CGraph, layers: dict[Tensor, int | None]) -> None:
    """Assign layers to unnamed tensors, from the end, so that chains of them work."""
    readers: dict[Tensor, set[int | None]] = {t: set() for t in layers}
    for tensor in (*reversed(graph.nodes), *graph.leafs):
        if _UNNAMED.match(tensor.name):
            of_readers = readers[tensor]
            first = min((i for i in of_readers if i is not None), default=None)
            if tensor.op is None and len(of_readers) > 1:
                first = None  # a leaf read by several layers
            elif not of_readers:
                sources = (layers.get(s) for s in tensor.src if s is not None)
                first = max((i for i in sources if i is not None), default=None)
            layers[tensor] = first
        for source in tensor.src:
            if source in readers:
                readers[source].add(layers[tensor])
