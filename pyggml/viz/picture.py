"""The boxes and edges of a picture, without coordinates.

    picture = Picture(graph, layers=(0, 2))
    picture.boxes["ffn_up-0"].tensor               # in order of execution
    picture.arrows[0].source, picture.arrows[0].reader

Ids are names, never addresses, so pictures of the same graph are equal.
"""

from __future__ import annotations

import re
from collections.abc import Container
from dataclasses import replace
from typing import Unpack

from ..cgraph import CGraph
from ..errors import PyggmlError
from ..tensor import Tensor
from .boxes import Arrow, Box, Group
from .color import Coloring, coloring, time_tag
from .fold import groups
from .label import printable
from .options import FOLDS, Options
from .scope import Edge, Scope
from .style import family
from .times import NodeTime, Times, summed


class Picture:
    """The drawn part of a graph.

    Attributes:
        boxes: by id; arrows: in order of execution.
        frames: the title of each frame, by layer.
        weights: the weights that are drawn inside their reader.

    Raises:
        PyggmlError: no tensor is in ``layers``, or an option has no such value.
    """

    def __init__(self, graph: CGraph, **options: Unpack[Options]) -> None:
        fold = options.get("fold", "none")
        if fold not in FOLDS:
            raise PyggmlError(f"fold is {fold!r}, want one of {', '.join(FOLDS)}")
        self.title = options.get("title", "")
        self.graph = graph
        self.scope = Scope(graph, options.get("layers"))
        self.framed = options.get("cluster_layers", True)
        self.times: Times = options.get("times") or {}
        self.number = {t: i for i, t in enumerate(graph.nodes)}
        self.boxes: dict[str, Box] = {}
        self.arrows: list[Arrow] = []
        self.weights: dict[Tensor, list[Tensor]] = {}
        self._ids: dict[tuple[Tensor, str], str] = {}
        self._places: dict[Tensor, set[str]] = {}  # layers that read a leaf outside of layers
        self.coloring: Coloring = coloring(graph, self.scope.written, options)
        self._draw(options.get("show_weights", True))
        layers = dict.fromkeys(box.layer for box in self.boxes.values())
        self.frames = {i: f"layer {i}" for i in layers if i is not None}
        if fold != "none":
            self._fold(once=fold == "repeats")

    def time_of(self, box: Box) -> NodeTime | None:
        """Return the total time of a box's nodes, None if none was run."""
        parts = [self.times[t] for t in box.members if t in self.times]
        return summed(parts) if parts else None

    def tag(self, box: Box) -> str:
        """Return the meaning of a box's colour as text."""
        time = self.time_of(box)
        if self.coloring.heat is not None and time is not None:
            return time_tag(time)
        return "" if box.folded else self.coloring.tag(box.tensor)

    def summary(self, box: Box) -> list[str]:
        """Return the text of a folded layer's box."""
        nodes = sum(t.op is not None and not t.op.is_view for t in box.members)
        weights = {t for t in box.members if self._is_weight(t)}
        weights |= {w for t in box.members for w in self.weights.get(t, [])}
        size = sum(t.nbytes for t in weights) / 2**20
        lines = [
            f"layer {box.layer}",
            f"{nodes} nodes, {len(weights)} weights of {size:.1f} MiB",
        ]
        return [*lines, *filter(None, [self.tag(box)])]

    def _draw(self, show_weights: bool) -> None:
        graph, scope = self.graph, self.scope
        edges: dict[Tensor, list[Edge]] = {}
        folds = set() if show_weights else {t for t in graph.leafs if self._is_weight(t)}
        for edge in scope.edges:
            if edge.source in folds:
                self.weights.setdefault(edge.reader, []).append(edge.source)
                continue
            edges.setdefault(edge.reader, []).append(edge)
            if scope.shared(edge.source):
                self._places.setdefault(edge.source, set()).add(self._place(edge.reader))
        for node in graph.nodes:
            read = edges.get(node, [])
            sources = [self._box(edge.source, node) for edge in read]
            if read or scope.inside(node):
                reader = self._box(node, node)
                self.arrows += (
                    Arrow(s, reader, edge) for s, edge in zip(sources, read, strict=True)
                )
        read_leafs = {edge.source for edge in scope.edges}
        for leaf in graph.leafs:
            if leaf not in read_leafs and scope.inside(leaf):
                self._box(leaf, leaf)

    def _is_weight(self, tensor: Tensor) -> bool:
        return family(tensor, self.scope.written) == "weight"

    def _place(self, reader: Tensor) -> str:
        layer = self.scope.layer(reader)
        return reader.name if layer is None else str(layer)

    def _box(self, tensor: Tensor, reader: Tensor) -> str:
        """Return the id of a tensor's box; a leaf read by several layers has a box in each."""
        layer, copy = self.scope.layer(tensor), ""
        if self.framed and tensor in self._places:
            layer = self.scope.layer(reader)
            copy = f"@{self._place(reader)}" if len(self._places[tensor]) > 1 else ""
        if (tensor, copy) not in self._ids:
            id = _unique(re.sub(r'["\\<>]', "_", printable(tensor.name + copy)), self.boxes)
            stub = not (self.scope.inside(tensor) or self.scope.shared(tensor))
            self._ids[tensor, copy] = id
            self.boxes[id] = Box((tensor,), None if stub else layer, stub)
        return self._ids[tensor, copy]

    def _fold(self, once: bool) -> None:
        """Fold layers: one box per layer, or the boxes of the first of identical layers."""
        found = groups(self.boxes, self.arrows, once=once)
        become: dict[str, str] = {}
        boxes: dict[str, Box] = {}
        members: dict[str, list[Tensor]] = {}
        names: dict[int, str] = {}
        for id, box in self.boxes.items():
            group = None if box.layer is None else found.get(box.layer)
            if group is None:
                become[id] = id
            elif once:
                become[id] = group.twin[id]
            else:
                first = group.layers[0]
                if first not in names:
                    names[first] = _unique(f"layer {first}", self.boxes)
                become[id] = names[first]
                box = replace(box, folded=group)
            boxes.setdefault(become[id], box)
            members.setdefault(become[id], []).extend(box.members)
        self.boxes = {i: replace(box, members=tuple(members[i])) for i, box in boxes.items()}
        self.frames = {group.layers[0]: group.title for group in found.values()} if once else {}
        self._fold_arrows(become, found)

    def _fold_arrows(self, become: dict[str, str], found: dict[int, Group]) -> None:
        arrows: dict[tuple[str, str, int], Arrow] = {}
        layer = self.scope.layer
        for arrow in self.arrows:
            source, reader = become[arrow.source], become[arrow.reader]
            a, b = layer(arrow.edge.source), layer(arrow.edge.reader)
            group = None if a is None else found.get(a)
            same = group is not None and a != b and b in group.layers
            if source != reader and not same:
                k = -1 if self.boxes[source].folded and self.boxes[reader].folded else arrow.edge.k
                arrows.setdefault((source, reader, k), Arrow(source, reader, arrow.edge))
        self.arrows = list(arrows.values())


def _unique(name: str, taken: Container[str]) -> str:
    id, n = name, 1
    while id in taken:
        n += 1
        id = f"{name}#{n}"
    return id
