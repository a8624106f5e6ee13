"""Draws a compute graph as Graphviz DOT; the text is deterministic.

    graph_dump_dot(graph, "graph.dot", title="one token")
    text = graph_dump_dot(graph, layers=(0, 2))    # layers 0 and 1, stubs where edges leave

A box shows a tensor's name, symbol, type and sizes (ne order); an edge leads from a source to its
reader. Ids are names, never addresses, so two dumps can be compared with ``diff``. Reads the
graph, computes nothing.
Source: ggml, ``ggml_graph_dump_dot``: records, symbols, pink leafs, ``src N`` at the edges.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Unpack

from ..cgraph import CGraph
from ..files import written
from ..tensor import Flag
from .boxes import Arrow, Box
from .label import escape, leaf_label, legend, node_label, tooltip
from .options import Options
from .picture import Picture
from .style import Look, Paint

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


FOLDED = Look(98, "folded layer", Paint("#ffffff", "#495057"))


def graph_dump_dot(
    graph: CGraph,
    path: str | os.PathLike[str] | None = None,
    **options: Unpack[Options],
) -> str:
    """Draw a graph as DOT.

    Args:
        path: also write the text to this file.
        options: ``title``, ``color``, ``layers``, ``fold``, ``show_weights``, ``cluster_layers``,
            ``backend_of``, ``split_of``, ``times``; see ``Options``.

    Returns:
        The text, a line for each box and for each edge; the whole graph, unfolded, has an edge for
        each source of each node.

    Raises:
        PyggmlError: no tensor is in ``layers``, or an option has no such value.
        OSError: the file cannot be written.
    """
    picture = Picture(graph, **options)
    text = "\n".join((_HEAD, *_lines(picture), "}", ""))
    return written(text, path)


def look_of(picture: Picture, box: Box) -> Look:
    """Return the colour attributes of a box."""
    colors, time = picture.coloring, picture.time_of(box)
    if colors.heat is not None and time is not None:
        return colors.heat(time)
    return FOLDED if box.folded else colors.painter(box.tensor)


def _lines(picture: Picture) -> Iterator[str]:
    """Yield the body: legend, boxes by layer, edges."""
    drawn = {box.members[0]: box for box in picture.boxes.values() if not box.stub}
    looks = [look_of(picture, box) for box in drawn.values()]
    yield f"  label=<{legend(picture.title, looks)}>"
    frames: dict[int | None, list[str]] = {None: []}
    for id, box in picture.boxes.items():
        frame = box.layer if picture.framed and box.layer in picture.frames else None
        frames.setdefault(frame, []).append(f'"{id}" [{_attributes(picture, box)}]')
    yield from (f"  {line}" for line in frames.pop(None))
    for layer, lines in frames.items():
        assert layer is not None
        yield f"  subgraph cluster_layer_{layer} {{"
        yield f'    graph [label="{picture.frames[layer]}", labeljust=l, {_FRAME}]'
        yield from (f"    {line}" for line in lines)
        yield "  }"
    for arrow in picture.arrows:
        yield f'  "{arrow.source}" -> "{arrow.reader}"{_edge_attributes(picture, arrow)}'


def _attributes(picture: Picture, box: Box) -> str:
    tensor = box.tensor
    if box.stub:
        return f'label="{leaf_label(tensor)}", {_STUB}'
    fill, line = look_of(picture, box).paint
    looks = f'fillcolor="{fill}", color="{line}"'
    if box.folded is not None:
        text = "\\n".join(map(escape, picture.summary(box)))
        return f'label="{text}", shape=box3d, {looks}'
    if tensor.flags & Flag.OUTPUT:
        looks += ", penwidth=3"
    tag = picture.tag(box)
    if tensor.op is None:
        form = "cylinder" if tensor in picture.scope.written else "box"
        text, style = leaf_label(tensor, tag), f"shape={form}, fontsize=9, {looks}"
    else:
        weights = picture.weights.get(tensor, [])
        text = node_label(tensor, picture.number[tensor], weights, tag)
        style = f"{_VIEW}, {looks}" if tensor.op.is_view else looks
    return f'label="{text}", {style}, tooltip="{tooltip(tensor)}"'


def _edge_attributes(picture: Picture, arrow: Arrow) -> str:
    source, reader = picture.boxes[arrow.source], arrow.edge.reader
    plain = source.folded is not None or picture.boxes[arrow.reader].folded is not None
    several = not plain and sum(s is not None for s in reader.src) > 1
    attributes = [f'label=" src {arrow.edge.k}"'] * several
    if not plain and reader.op is not None and reader.op.is_view:
        attributes.append(_TO_VIEW)
    return f" [{', '.join(attributes)}]" if attributes else ""
