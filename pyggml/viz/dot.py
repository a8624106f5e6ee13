"""A compute graph as DOT text, graphviz's language: the same text on every run.

    graph_dump_dot(graph, "graph.dot", title="one token")
    text = graph_dump_dot(graph, layers=(0, 2))    # layers 0 and 1, stubs where edges leave

A box shows a tensor's name, symbol, type and sizes (ne order); an edge leads from a source to its
reader. Ids are names, never addresses, so two dumps can be compared with ``diff``. Reads the
graph, computes nothing.
Source: ggml, ``ggml_graph_dump_dot``: records, symbols, pink leafs, ``src N`` at the edges.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from typing import Literal, NamedTuple

from ..cgraph import CGraph
from ..errors import PyggmlError
from ..files import replacing
from ..tensor import Flag, Tensor
from .label import leaf_label, legend, node_label, printable, tooltip
from .scope import Edge, Scope
from .style import Painter, by_buffer, by_family, family

_FONT = 'fontname="Helvetica,Arial,sans-serif"'
_HEAD = f"""\
digraph ggml {{
  graph [rankdir=TB, newrank=true, nodesep=0.25, ranksep=0.35, labelloc=t, {_FONT}, fontsize=12]
  node [shape=Mrecord, style=filled, {_FONT}, fontsize=11, height=0.3, margin="0.12,0.04"]
  edge [arrowsize=0.6, color="#495057", {_FONT}, fontsize=8, fontcolor="#868e96"]"""
_FRAME = 'style="rounded,filled", fillcolor="#f8f9fa", color="#ced4da", fontcolor="#868e96"'
_STUB = 'shape=box, style="rounded,dashed", color="#868e96", fontcolor="#6c757d", fontsize=9'
_VIEW = 'style="filled,dashed", fontcolor="#6c757d"'
_TO_VIEW = 'style=dashed, color="#adb5bd"'


def graph_dump_dot(
    graph: CGraph,
    path: str | os.PathLike[str] | None = None,
    *,
    color: Literal["family", "buffer"] = "family",
    layers: tuple[int, int] | None = None,
    title: str = "",
    show_weights: bool = True,
    cluster_layers: bool = True,
) -> str:
    """Draw a graph as DOT.

    Args:
        path: also write the text to this file.
        color: boxes by op family, or by the buffer that holds their data.
        layers: ``(a, b)`` keeps layers a up to, not with, b; a tensor outside that an edge leads
            to or from becomes a stub.
        show_weights: draw weights as boxes; otherwise as a line in the box that reads them.
        cluster_layers: frame each layer, and draw a leaf that many layers read once in each.

    Returns:
        The text, a line for each box and for each edge; the whole graph has an edge for each
        source of each node.

    Raises:
        PyggmlError: no tensor is in ``layers``, or ``color`` is neither of the two.
        OSError: the file cannot be written.
    """
    scope = Scope(graph, layers)
    if color == "family":
        painter = by_family(scope.written)
    elif color == "buffer":
        painter = by_buffer((*graph.leafs, *graph.nodes))
    else:
        raise PyggmlError(f"color is {color!r}, want 'family' or 'buffer'")
    picture = _Picture(graph, scope, show_weights, cluster_layers)
    text = "\n".join((_HEAD, *picture.lines(title, painter), "}", ""))
    if path is not None:
        with replacing(path) as temporary:
            temporary.write_text(text, "utf-8")
    return text


class _Box(NamedTuple):
    tensor: Tensor
    layer: int | None  # the frame that it is drawn in
    stub: bool  # outside of the drawn layers


class _Picture:
    """Boxes by id, and edges, in order of execution."""

    def __init__(self, graph: CGraph, scope: Scope, show_weights: bool, frames: bool) -> None:
        self._scope, self._frames = scope, frames
        self._number = {t: i for i, t in enumerate(graph.nodes)}
        self._ids: dict[tuple[Tensor, str], str] = {}
        self._boxes: dict[str, _Box] = {}
        self._edges: list[tuple[str, str, Edge]] = []
        self._folded: dict[Tensor, list[Tensor]] = {}  # weights drawn inside their reader
        self._places: dict[Tensor, set[str]] = {}  # where leafs outside of layers are read
        edges: dict[Tensor, list[Edge]] = {}
        folds = set() if show_weights else {t for t in graph.leafs if self._is_weight(t)}
        for edge in scope.edges:
            if edge.source in folds:
                self._folded.setdefault(edge.reader, []).append(edge.source)
                continue
            edges.setdefault(edge.reader, []).append(edge)
            if scope.shared(edge.source):
                self._places.setdefault(edge.source, set()).add(self._place(edge.reader))
        for node in graph.nodes:
            read = edges.get(node, [])
            sources = [self._box(edge.source, node) for edge in read]
            if read or scope.inside(node):
                reader = self._box(node, node)
                self._edges += zip(sources, (reader,) * len(read), read, strict=True)
        read_leafs = {edge.source for edge in scope.edges}
        for leaf in graph.leafs:
            if leaf not in read_leafs and scope.inside(leaf):
                self._box(leaf, leaf)

    def _is_weight(self, tensor: Tensor) -> bool:
        return family(tensor, self._scope.written) == "weight"

    def _place(self, reader: Tensor) -> str:
        layer = self._scope.layer(reader)
        return reader.name if layer is None else str(layer)

    def _box(self, tensor: Tensor, reader: Tensor) -> str:
        """The id of a tensor's box; a leaf that several layers read has one in each."""
        layer, copy = self._scope.layer(tensor), ""
        if self._frames and tensor in self._places:
            layer = self._scope.layer(reader)
            copy = f"@{self._place(reader)}" if len(self._places[tensor]) > 1 else ""
        if (tensor, copy) not in self._ids:
            name = id = re.sub(r'["\\<>]', "_", printable(tensor.name + copy))
            n = 1
            while id in self._boxes:
                n += 1
                id = f"{name}#{n}"
            stub = not (self._scope.inside(tensor) or self._scope.shared(tensor))
            self._ids[tensor, copy] = id
            self._boxes[id] = _Box(tensor, None if stub else layer, stub)
        return self._ids[tensor, copy]

    def lines(self, title: str, painter: Painter) -> Iterator[str]:
        """The body: legend, boxes layer by layer, edges."""
        drawn = dict.fromkeys(box.tensor for box in self._boxes.values() if not box.stub)
        yield f"  label=<{legend(title, [painter(t) for t in drawn])}>"
        frames: dict[int | None, list[str]] = {None: []}
        for id, box in self._boxes.items():
            frame = box.layer if self._frames else None
            frames.setdefault(frame, []).append(f'"{id}" [{self._attributes(box, painter)}]')
        yield from (f"  {line}" for line in frames.pop(None))
        for layer, lines in frames.items():
            yield f"  subgraph cluster_layer_{layer} {{"
            yield f'    graph [label="layer {layer}", labeljust=l, {_FRAME}]'
            yield from (f"    {line}" for line in lines)
            yield "  }"
        for source, reader, edge in self._edges:
            yield f'  "{source}" -> "{reader}"{_edge_attributes(edge)}'

    def _attributes(self, box: _Box, painter: Painter) -> str:
        tensor = box.tensor
        if box.stub:
            return f'label="{leaf_label(tensor)}", {_STUB}'
        fill, line = painter(tensor).paint
        looks = f'fillcolor="{fill}", color="{line}"'
        if tensor.flags & Flag.OUTPUT:
            looks += ", penwidth=3"
        if tensor.op is None:
            form = "cylinder" if tensor in self._scope.written else "box"
            text, style = leaf_label(tensor), f"shape={form}, fontsize=9, {looks}"
        else:
            text = node_label(tensor, self._number[tensor], self._folded.get(tensor, []))
            style = f"{_VIEW}, {looks}" if tensor.op.is_view else looks
        return f'label="{text}", {style}, tooltip="{tooltip(tensor)}"'


def _edge_attributes(edge: Edge) -> str:
    several = sum(source is not None for source in edge.reader.src) > 1
    attributes = [f'label=" src {edge.k}"'] * several
    if edge.reader.op is not None and edge.reader.op.is_view:
        attributes.append(_TO_VIEW)
    return f" [{', '.join(attributes)}]" if attributes else ""
