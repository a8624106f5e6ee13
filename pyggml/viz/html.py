"""Draws a graph as a self-contained HTML page: no network, server or Graphviz.

    graph_html(graph, "graph.html", title="one token", plan=plan, times=times)

Pan, zoom, search by name, click for the details of a node; layers fold; tabs show the memory plan
and the slowest nodes, if given. The same graph gives the same file, except for times.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from importlib import resources
from typing import Any, Unpack

from ..alloc.gallocr import Plan
from ..cgraph import CGraph
from ..files import written
from ..tensor import Flag, Tensor
from .color import time_tag
from .drawing import Drawing, DrawnBox
from .label import plain, printable
from .layout import LayoutBlock
from .memory import memory_svg
from .options import Options
from .picture import Picture
from .style import Look, shape, symbol
from .svg import body, escape
from .times import NodeTime, duration, fused_into, summed

_TOP_NODES = 200  # rows in the table of times


def graph_html(
    graph: CGraph,
    path: str | os.PathLike[str] | None = None,
    *,
    plan: Plan | None = None,
    **options: Unpack[Options],
) -> str:
    """Draw a graph as a page.

    Args:
        path: also write the text to this file.
        plan: the memory plan of the graph, for the memory tab and the details.
        options: as of ``graph_dump_dot``; see ``Options``. ``fold="layers"`` opens the page with
            its layers folded; they unfold there.

    Raises:
        PyggmlError: as ``graph_dump_dot``.
        OSError: the file cannot be written.
    """
    folded = options.get("fold") == "layers"
    if folded:
        options = {**options, "fold": "none"}
    drawing = Drawing(Picture(graph, **options))
    text = _page(drawing, plan, folded, options.get("layers"))
    return written(text, path)


def _page(drawing: Drawing, plan: Plan | None, folded: bool, layers: tuple[int, int] | None) -> str:
    picture, looks = drawing.picture, list(drawing.looks())
    title = picture.title or "Compute graph"
    memory = (
        "" if plan is None
        else memory_svg(plan, picture.graph, title=" ", layers=layers, index=drawing.box_of)
    )  # fmt: skip
    table = _table(drawing)
    tabs = [("graph", "Graph")]
    tabs += [("memory", "Memory")] * bool(memory) + [("times", "Times")] * bool(picture.times)
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escape(title)}</title>
<style>
{_file("page.css")}{_css(looks)}</style>
</head>
<body>
<header>
<div class="heads"><h1>{escape(title)}</h1><p>{escape(_summary(drawing, plan))}</p></div>
<nav role="tablist" aria-label="Views">{"".join(_tab(i, *tab) for i, tab in enumerate(tabs))}</nav>
<div class="find" role="search"><input id="search" type="search" placeholder="Search names  ( / )"
 aria-label="Search nodes by name" autocomplete="off" spellcheck="false">
<output id="found" for="search"></output></div>
<div class="tools"><button id="fold" title="Fold or unfold all layers">Fold layers</button>
<button id="out" title="Zoom out ( - )" aria-label="Zoom out">−</button>
<button id="in" title="Zoom in ( + )" aria-label="Zoom in">+</button>
<button id="fit" title="Show everything ( 0 )">Fit</button>
<button id="theme" title="Light or dark" aria-label="Light or dark">◐</button></div>
</header>
<ul class="legend" aria-label="Legend">{"".join(_legend(drawing))}</ul>
<main>
<section id="tab-graph" role="tabpanel" aria-labelledby="for-graph">
<svg id="graph" class="stage" tabindex="0" role="application"
 aria-label="The graph. Arrow keys walk along edges, slash searches."
 data-folded="{int(folded)}"><g class="camera">
{chr(10).join(body(drawing, looks))}
</g></svg></section>
<section id="tab-memory" role="tabpanel" aria-labelledby="for-memory" hidden>{memory}</section>
<section id="tab-times" role="tabpanel" aria-labelledby="for-times" hidden>{table}</section>
<aside id="details" aria-live="polite" aria-label="Details"></aside>
</main>
<script type="application/json" id="data">{_data(drawing, plan)}</script>
<script>{page_script()}</script>
</body>
</html>
"""


def page_script() -> str:
    """Return the text of a page's script element, equal in all pages (for policies by hash)."""
    return f"\n{_file('page.js')}"


def _file(name: str) -> str:
    return resources.files(__package__).joinpath(name).read_text(encoding="utf-8")


def _css(looks: list[Look]) -> str:
    return "".join(
        f".k{i}{{--f:{look.paint.fill};--l:{look.paint.line}}}\n" for i, look in enumerate(looks)
    )


def _tab(i: int, id: str, name: str) -> str:
    chosen = "true" if i == 0 else "false"
    return (
        f'<button role="tab" id="for-{id}" aria-controls="tab-{id}" aria-selected="{chosen}">'
        f"{name}</button>"
    )


def _legend(drawing: Drawing) -> Iterator[str]:
    for i, (look, n) in enumerate(drawing.looks().items()):
        yield (
            f'<li><button data-k="{i}" title="Show where"><i class="k{i}"></i>'
            f"{escape(look.name)} <b>{n}</b></button></li>"
        )
    yield '<li class="hint"><i class="dash"></i>view or stub</li>'
    yield '<li class="hint"><i class="thick"></i>output</li>'
    yield '<li class="hint"><i class="double"></i>written in place, such as a cache</li>'


def _summary(drawing: Drawing, plan: Plan | None) -> str:
    graph, times = drawing.picture.graph, drawing.picture.times
    said = [f"{len(graph.nodes)} nodes", f"{len(graph.leafs)} leafs"]
    if plan is not None:
        said.append(f"{plan.size:,} bytes planned")
    if times:
        said.append(f"{duration(sum(t.ns for t in times.values()))} in all")
    return ", ".join(said)


def _table(drawing: Drawing) -> str:
    """Return the table of the slowest nodes."""
    times = drawing.picture.times
    if not times:
        return ""
    rows = sorted(times.items(), key=lambda item: -item[1].ns)[:_TOP_NODES]
    most = rows[0][1].share or 1.0
    lines = [_row(i, node, time, most, drawing.box_of) for i, (node, time) in enumerate(rows, 1)]
    total = sum(t.ns for t in times.values())
    more = f"The slowest {len(rows)} of {len(times)} that" if len(rows) < len(times) else "All that"
    return (
        f'<div class="scroll"><p>{more} have a time of their own. A node’s time is its share of '
        f"the wall time while it ran beside others; all add up to {duration(total)}. The time of "
        "fused nodes is with the one they are fused into.</p><table><thead><tr><th>#<th>Node"
        "<th>Time<th>Share<th>Chunks<th>Kernels<th>Fused into it</tr></thead>"
        f"<tbody>{''.join(lines)}</tbody></table></div>"
    )


def _row(i: int, node: Tensor, time: NodeTime, most: float, index: dict[Tensor, int]) -> str:
    name = escape(node.name)
    if node in index:
        name = f'<button class="go" data-n="{index[node]}">{name}</button>'
    fused = ", ".join(escape(t.name) for t in time.fused)
    kernels = " + ".join(escape(k) for k in dict.fromkeys(time.kernels))
    return (
        f"<tr><td>{i}<td>{name}<td>{duration(time.ns)}<td><meter max={most:.6f} "
        f"value={time.share:.6f}></meter> {100 * time.share:.2f} %<td>{time.chunks}"
        f"<td>{kernels}<td>{fused}</tr>\n"
    )


def _data(drawing: Drawing, plan: Plan | None) -> str:
    """Return the details as JSON, escaped for embedding in a script element."""
    offsets = {} if plan is None else plan.offsets
    holders = fused_into(drawing.picture.times)
    blocks = {id: i for i, block in enumerate(drawing.layout.blocks) for id in block.boxes}
    sources: list[list[tuple[str, int]]] = [[] for _ in drawing.boxes]
    for arrow in drawing.picture.arrows:
        op, k = arrow.edge.reader.op, arrow.edge.k
        name = op.src[k].removesuffix("?") if op is not None and k < len(op.src) else f"src {k}"
        sources[drawing.index[arrow.reader]].append((name, drawing.index[arrow.source]))
    looks = {look: i for i, look in enumerate(drawing.looks())}
    nodes = [
        {
            "name": printable(box.box.tensor.name),
            "facts": list(_facts(drawing, box, offsets, holders)),
            "src": sources[box.index],
            "block": blocks[box.id],
            "look": looks[box.look] if box.look else -1,
        }
        for box in drawing.boxes
    ]
    frames = [_folded(drawing, block) for block in drawing.layout.blocks]
    text = json.dumps({"nodes": nodes, "blocks": frames}, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _folded(drawing: Drawing, block: LayoutBlock) -> dict[str, Any]:
    """Return the look of a folded layer."""
    picture, heat = drawing.picture, drawing.picture.coloring.heat
    members = [t for id in block.boxes for t in picture.boxes[id].members]
    said = f"{sum(t.op is not None and not t.op.is_view for t in members)} nodes"
    parts = [picture.times[t] for t in members if t in picture.times]
    time = summed(parts)
    return {
        "layer": block.layer,
        "x0": round(block.x0, 1),
        "x1": round(block.x1, 1),
        "said": f"{said}, {time_tag(time)}" if parts else said,
        "paint": heat(time).paint if heat is not None and parts else None,
    }


def _facts(
    drawing: Drawing,
    box: DrawnBox,
    offsets: dict[Tensor, int],
    holders: dict[Tensor, Tensor],
) -> Iterator[tuple[str, str]]:
    """Return the rows of the details."""
    tensor, picture = box.box.tensor, drawing.picture
    if tensor.op is not None:
        yield "node", f"{picture.number.get(tensor, 'of another graph')}"
        yield "op", f"{tensor.op.name}: {symbol(tensor)}"
        for name, value in tensor.op_params.items():
            yield name, printable(plain(value))
    else:
        yield "kind", "leaf" if not tensor.flags & Flag.INPUT else "input"
    yield "type", tensor.type.name.lower()
    yield "shape", f"{list(tensor.ne)} (ne order)"
    yield (
        "strides",
        f"{list(tensor.nb)} bytes" + ("" if tensor.is_contiguous() else ", not contiguous"),
    )
    yield "bytes", f"{tensor.nbytes:,}"
    yield from _memory_facts(tensor, offsets)
    if tensor.flags:
        yield "flags", ", ".join(str(f.name).lower() for f in Flag if f & tensor.flags)
    for weight in picture.weights.get(tensor, []):
        yield "weight", printable(f"{weight.name} {shape(weight)}")
    if len(box.box.members) > 1:
        yield "drawn once for", f"{len(box.box.members)} tensors"
    time = picture.time_of(box.box)
    if time is not None:
        yield "time", f"{duration(time.ns)}, {100 * time.share:.2f} % of the run"
        yield "thread time", f"{duration(time.busy_ns)} in {time.chunks} chunks"
        yield "kernels", " + ".join(dict.fromkeys(time.kernels))
        if time.fused:
            yield "fused into it", printable(", ".join(t.name for t in time.fused))
    elif tensor in holders:
        yield "time", printable(f"in {holders[tensor].name}, which it is fused into")


def _memory_facts(tensor: Tensor, offsets: dict[Tensor, int]) -> Iterator[tuple[str, Any]]:
    root = tensor.view_src or tensor
    if tensor.view_src is not None:
        yield "view of", printable(f"{root.name} at {tensor.view_offs:,} bytes")
    if root.buffer is not None:
        yield "buffer", f"{root.buffer.buft.name}, {root.buffer.size:,} bytes"
    if root in offsets:
        yield "planned at", f"{offsets[root]:,} bytes from the compute buffer's start"
