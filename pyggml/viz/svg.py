"""Draws a graph as SVG text, without dependencies.

    graph_svg(graph, "graph.svg", title="one token", layers=(0, 2))

``html`` embeds the same drawing; colours are CSS classes, to allow a dark theme.
"""

from __future__ import annotations

import html
import os
from collections.abc import Iterator, Sequence
from typing import Unpack

from ..cgraph import CGraph
from ..files import written
from .drawing import LINE, Drawing, DrawnBox
from .label import printable
from .layout import BLOCK_GAP, LayoutBlock, Point
from .options import Options
from .picture import Picture
from .style import Look

_MARGIN = 24.0
_CSS = """\
svg{background:#fff;font-family:ui-monospace,Menlo,Consolas,'DejaVu Sans Mono',monospace}
text{font-size:10px;fill:#212529}.name{font-size:11px;font-weight:600}
.frame{fill:#f8f9fa;stroke:#ced4da}.title{font-size:12px;fill:#6c757d}
.e{fill:none;stroke:#868e96}.e.v{stroke-dasharray:4 3}.tip{fill:#868e96}
.view rect,.stub rect{stroke-dasharray:4 3}.stub rect{fill:#fff;stroke:#868e96}
.out rect{stroke-width:3}.heading{font-size:16px;font-weight:600}
"""


def graph_svg(
    graph: CGraph, path: str | os.PathLike[str] | None = None, **options: Unpack[Options]
) -> str:
    """Draw a graph as SVG.

    Args:
        path: also write the text to this file.
        options: as of ``graph_dump_dot``; see ``Options``.

    Raises:
        PyggmlError: as ``graph_dump_dot``.
        OSError: the file cannot be written.
    """
    drawing = Drawing(Picture(graph, **options))
    looks = list(drawing.looks())
    width, height = drawing.layout.size
    head = 66.0 if drawing.picture.title else 40.0
    legend, legend_width = _legend(drawing)
    width = max(width, legend_width) + 2 * _MARGIN
    height += head + 2 * _MARGIN
    text = "\n".join(
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height:.0f}" '
            f'viewBox="0 0 {width:.0f} {height:.0f}">',
            f"<style>{_CSS}{look_css(looks)}</style>",
            f'<text class="heading" x="{_MARGIN}" y="36">{escape(drawing.picture.title)}</text>',
            f'<g transform="translate({_MARGIN},{head - 20:.0f})">{legend}</g>',
            f'<g transform="translate({width / 2:.1f},{head + _MARGIN:.1f})">',
            *body(drawing, looks),
            "</g>",
            "</svg>",
            "",
        )
    )
    return written(text, path)


def escape(text: str) -> str:
    """Return text escaped for an element or an attribute."""
    return html.escape(printable(text))


def look_css(looks: Sequence[Look], prefix: str = ".k") -> str:
    """Return a CSS rule for each look: ``.k0`` is the first."""
    return "".join(
        f"{prefix}{i}{{fill:{look.paint.fill};stroke:{look.paint.line}}}\n"
        for i, look in enumerate(looks)
    )


def body(drawing: Drawing, looks: Sequence[Look]) -> Iterator[str]:
    """Yield a group for each block from top to bottom; x is relative to the axis."""
    classes = {look: i for i, look in enumerate(looks)}
    blocks = drawing.layout.blocks
    views = {
        (a.source, a.reader)
        for a in drawing.picture.arrows
        if a.edge.reader.op is not None and a.edge.reader.op.is_view
    }
    for i, block in enumerate(blocks):
        yield (
            f'<g class="block" id="b{i}" transform="translate(0,{block.y:.1f})"'
            f' data-y="{block.y:.1f}" data-h="{block.height:.1f}">'
        )
        if i:
            yield from _links(drawing, blocks[i - 1], block)
        yield '<g class="inside">'
        yield from _frame(drawing, block)
        for route in block.routes:
            source = drawing.index[route.source]
            reader = "" if route.reader is None else f' data-r="{drawing.index[route.reader]}"'
            view = " v" if (route.source, route.reader) in views else ""
            yield f'<path class="e{view}" data-s="{source}"{reader} d="{_curve(route.points)}"/>'
            if route.reader is not None:
                x, y = route.points[-1]
                yield f'<path class="tip" d="M{x:.1f} {y:.1f}l-3 -6h6z"/>'
        for id in block.boxes:
            place, box = block.places[id], drawing.boxes[drawing.index[id]]
            yield from _box(box, place.x, place.y, classes)
        yield "</g></g>"
    yield from _against(drawing)


def _links(drawing: Drawing, upper: LayoutBlock, lower: LayoutBlock) -> Iterator[str]:
    """Yield the edges in the gap above a block."""
    for source, x in lower.top.items():
        x0 = upper.bottom[source]
        yield (
            f'<path class="e link" data-s="{drawing.index[source]}" data-x="{x0:.1f} {x:.1f}" '
            f'd="{_curve([(x0, -BLOCK_GAP), (x, 0.0)])}"/>'
        )


def _frame(drawing: Drawing, block: LayoutBlock) -> Iterator[str]:
    layer, picture = block.layer, drawing.picture
    if layer is None or layer not in picture.frames:
        return
    yield (
        f'<rect class="frame" x="{block.x0:.1f}" y="0" width="{block.x1 - block.x0:.1f}" '
        f'height="{block.height:.1f}" rx="8"/>'
        f'<text class="title" x="{block.x0 + 12:.1f}" y="20">{escape(picture.frames[layer])}</text>'
    )


def _box(box: DrawnBox, x: float, y: float, classes: dict[Look, int]) -> Iterator[str]:
    left, top = x - box.width / 2, y - box.height / 2
    look = "" if box.look is None else f' class="k{classes[box.look]}"'
    round_corner = 2 if box.kind in ("leaf", "state") else 7
    kind = f"{box.kind} out" if box.output else box.kind
    yield (
        f'<g class="n {kind}" data-n="{box.index}"><rect{look} x="{left:.1f}" y="{top:.1f}" '
        f'width="{box.width:.1f}" height="{box.height:.1f}" rx="{round_corner}"/>'
    )
    if box.kind in ("state", "folded"):  # a second line at the top marks special boxes
        yield f'<path{look} d="M{left:.1f} {top + 3:.1f}h{box.width:.1f}"/>'
    for i, line in enumerate(box.lines):
        style = ' class="name"' if i == 0 else ""
        at = top + 15 + LINE * i
        yield f'<text{style} x="{left + 8:.1f}" y="{at:.1f}">{escape(line)}</text>'
    yield "</g>"


def _against(drawing: Drawing) -> Iterator[str]:
    """Yield backward edges as arcs on the right side."""
    at: dict[str, Point] = {}
    for block in drawing.layout.blocks:
        for id, place in block.places.items():
            at[id] = place.x + place.width / 2, block.y + place.y
    for source, reader in drawing.layout.against:
        (x0, y0), (x1, y1) = at[source], at[reader]
        far = max(x0, x1) + 60
        yield (
            f'<path class="e against" data-s="{drawing.index[source]}" '
            f'data-r="{drawing.index[reader]}" d="M{x0:.1f} {y0:.1f}C{far:.1f} {y0:.1f} '
            f'{far:.1f} {y1:.1f} {x1:.1f} {y1:.1f}"/>'
        )


def _curve(points: Sequence[Point]) -> str:
    """Return a path: straight within ranks, curved between them."""
    (x, y), *rest = points
    d = f"M{x:.1f} {y:.1f}"
    for to_x, to_y in rest:
        if abs(to_x - x) < 0.05:
            d += f"V{to_y:.1f}"
        else:
            middle = (y + to_y) / 2
            d += f"C{x:.1f} {middle:.1f} {to_x:.1f} {middle:.1f} {to_x:.1f} {to_y:.1f}"
        x, y = to_x, to_y
    return d


def _legend(drawing: Drawing) -> tuple[str, float]:
    x, parts = 0.0, []
    for i, (look, n) in enumerate(drawing.looks().items()):
        text = f"{look.name}: {n}"
        parts.append(
            f'<rect class="k{i}" x="{x:.0f}" y="0" width="14" height="14" rx="3"/>'
            f'<text x="{x + 19:.0f}" y="11">{escape(text)}</text>'
        )
        x += 19 + 6.1 * len(text) + 18
    return "".join(parts), x
