"""Lays out a picture: assigns boxes to blocks and computes their sizes.

    drawing = Drawing(Picture(graph))
    drawing.boxes[3].lines, drawing.layout.size    # text of a box; width and height in pixels

Text is monospaced, so that widths are known without measuring.
"""

from __future__ import annotations

import unicodedata
from dataclasses import dataclass

from ..tensor import Flag
from .boxes import Box
from .dot import look_of
from .label import printable
from .layout import Layout, LayoutBlock, lay_out
from .picture import Picture
from .style import Look, shape, symbol

CHAR, LINE = 6.1, 14.0  # width of a 10 px monospace character; line height
NAME_CHAR = 6.7  # width of an 11 px character
_LONGEST = 60  # characters of a line


@dataclass(frozen=True)
class DrawnBox:
    """The appearance of the box number ``index``.

    Attributes:
        lines: the first is the name.
        kind: ``node``, ``view``, ``leaf``, ``state`` (memory that nodes write into), ``stub`` or
            ``folded``.
    """

    index: int
    id: str
    box: Box
    look: Look | None
    kind: str
    lines: tuple[str, ...]
    output: bool
    width: float
    height: float


class Drawing:
    """Boxes with coordinates.

    Attributes:
        boxes: in order of execution, leafs before their first reader.
        index: index of each box, by id; box_of: index of the box of a tensor.
        layout: the coordinates.
    """

    def __init__(self, picture: Picture) -> None:
        self.picture = picture
        self.boxes = [_drawn(picture, i, id) for i, id in enumerate(picture.boxes)]
        self.index = {box.id: box.index for box in self.boxes}
        self.box_of = {t: box.index for box in self.boxes for t in box.box.members}
        sizes = {box.id: (box.width, box.height) for box in self.boxes}
        arrows = [(a.source, a.reader) for a in picture.arrows]
        self.layout: Layout = lay_out(sizes, arrows, _blocks(picture))

    def looks(self) -> dict[Look, int]:
        """The legend: looks in order, and the number of boxes of each."""
        counts = dict.fromkeys(self.picture.coloring.scale, 0)
        for box in self.boxes:
            if box.look is not None:
                counts[box.look] = counts.get(box.look, 0) + 1
        return dict(sorted(counts.items()))


def _drawn(picture: Picture, index: int, id: str) -> DrawnBox:
    box = picture.boxes[id]
    tensor = box.tensor
    if box.folded is not None:
        kind, lines = "folded", picture.summary(box)
    elif box.stub:
        kind, lines = "stub", [tensor.name, shape(tensor)]
    elif tensor.op is None:
        kind = "state" if tensor in picture.scope.written else "leaf"
        lines = [tensor.name, shape(tensor), picture.tag(box)]
    else:
        kind = "view" if tensor.op.is_view else "node"
        what = f"{picture.number.get(tensor, '')} · {symbol(tensor)} · {shape(tensor)}"
        weights = [f"{w.name} {shape(w)}" for w in picture.weights.get(tensor, [])]
        lines = [tensor.name, what, *weights, picture.tag(box)]
    said = tuple(_short(printable(line)) for i, line in enumerate(lines) if line or not i)
    width = max(NAME_CHAR * _columns(said[0]), *(CHAR * _columns(line) for line in said), 40.0)
    output = bool(tensor.flags & Flag.OUTPUT) and box.folded is None
    look = None if box.stub else look_of(picture, box)
    return DrawnBox(index, id, box, look, kind, said, output, width + 16, LINE * len(said) + 8)


def _blocks(picture: Picture) -> list[LayoutBlock]:
    """Return the blocks in order: layers, and between them boxes outside of layers."""
    row: dict[str, float] = {}
    sources: dict[str, list[str]] = {}
    readers: dict[str, list[str]] = {}
    for arrow in picture.arrows:
        sources.setdefault(arrow.reader, []).append(arrow.source)
        readers.setdefault(arrow.source, []).append(arrow.reader)
    for id, box in picture.boxes.items():
        if box.layer is not None and picture.framed:
            row[id] = 2 * box.layer
            continue
        before = [row[s] for s in sources.get(id, []) if s in row]
        last = max(before, default=-1.0)  # odd: between layers
        row[id] = last if last % 2 else last + 1
    for id in reversed(picture.boxes):
        box = picture.boxes[id]
        outside = box.layer is None or not picture.framed
        if outside and not sources.get(id) and readers.get(id):
            first = min(row[r] for r in readers[id])
            row[id] = first if first % 2 else first - 1
    found: dict[float, LayoutBlock] = {}
    for id in picture.boxes:
        layer = int(row[id]) // 2 if row[id] % 2 == 0 else None
        found.setdefault(row[id], LayoutBlock(layer, [])).boxes.append(id)
    return [found[r] for r in sorted(found)]


def _columns(text: str) -> int:
    return sum(2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text)


def _short(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 12]}…{text[-11:]}"
