"""Layered graph layout: coordinates of boxes and edges, without Graphviz.

    layout = lay_out(sizes, arrows, blocks)
    layout.blocks[0].places["ffn_up-0"].x          # x of the centre, relative to the block's axis

A picture is a column of blocks: each layer, and the nodes before, between and after layers. Inside
a block the rank of a box is the longest path to it (of a leaf: one above its first reader); ranks
are ordered by barycentres, and boxes placed as near to their neighbours' mean as the order allows.
An edge that passes ranks or blocks gets a place in each, shared by all readers of its source.
The same input gives the same output.
Source: Sugiyama, Tagawa and Toda 1981 (layered drawings); pool-adjacent-violators for coordinates.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from .places import Place, best_places, link, ordered, straighten

GAP_X, GAP_Y, BLOCK_GAP, PAD = 16.0, 30.0, 44.0, 18.0
TITLE = 22.0  # height of a frame's title
_SWEEPS = 8

Size = tuple[float, float]
Point = tuple[float, float]


@dataclass(eq=False)
class Route:
    """An edge inside a block: from a source (or the top) to a reader (or the bottom)."""

    source: str
    reader: str | None
    points: list[Point]


@dataclass(eq=False)
class LayoutBlock:
    """A row of the column.

    Attributes:
        layer: the layer that the frame belongs to; None outside of layers.
        top, bottom: x of edges that enter and leave, by source.
        x0, x1: left and right side, relative to the axis; ``y`` is its top in the picture.
    """

    layer: int | None
    boxes: list[str]
    places: dict[str, Place] = field(default_factory=dict)
    routes: list[Route] = field(default_factory=list)
    top: dict[str, float] = field(default_factory=dict)
    bottom: dict[str, float] = field(default_factory=dict)
    x0: float = 0.0
    x1: float = 0.0
    y: float = 0.0
    height: float = 0.0


@dataclass(eq=False)
class Layout:
    """Blocks from top to bottom, and backward edges (source, reader), which are rare."""

    blocks: list[LayoutBlock]
    against: list[tuple[str, str]]

    @property
    def size(self) -> Size:
        """Width (the axis is in the middle) and height."""
        half = max((max(-b.x0, b.x1) for b in self.blocks), default=0.0)
        last = self.blocks[-1] if self.blocks else None
        return 2 * half, last.y + last.height if last else 0.0


def lay_out(
    sizes: Mapping[str, Size], arrows: Iterable[tuple[str, str]], blocks: Sequence[LayoutBlock]
) -> Layout:
    """Compute the layout.

    Args:
        sizes: width and height of each box.
        arrows: (source, reader); duplicates count once.
        blocks: from top to bottom, with their boxes; receive the coordinates.
    """
    row = {id: i for i, block in enumerate(blocks) for id in block.boxes}
    order = {id: i for i, id in enumerate(sizes)}
    readers: dict[str, dict[int, list[str]]] = {}
    against: list[tuple[str, str]] = []
    for source, reader in dict.fromkeys(arrows):
        forward = row[source] < row[reader] or (
            row[source] == row[reader] and order[source] < order[reader]
        )
        if forward:
            readers.setdefault(source, {}).setdefault(row[reader], []).append(reader)
        else:
            against.append((source, reader))
    alive: dict[str, float] = {}  # x of edges from the blocks above
    y = 0.0
    for i, block in enumerate(blocks):
        nets = {
            s: (by_row.get(i, []), max(by_row) > i)
            for s, by_row in readers.items()
            if s in alive or row[s] == i
        }
        _Levels(block, sizes, nets, alive).place()
        alive = dict(block.bottom)
        block.y = y
        y += block.height + BLOCK_GAP
    return Layout(list(blocks), against)


class _Levels:
    """The layout of one block."""

    def __init__(
        self,
        block: LayoutBlock,
        sizes: Mapping[str, Size],
        nets: Mapping[str, tuple[list[str], bool]],
        alive: Mapping[str, float],
    ) -> None:
        self._block, self._nets, self._alive = block, nets, alive
        rank = self._ranks()
        self._last = max(rank.values(), default=0) + 1
        self._rows: list[list[Place]] = [[] for _ in range(self._last + 1)]
        for id in block.boxes:
            place = Place(id, rank[id], *sizes[id])
            block.places[id] = place
            self._rows[rank[id]].append(place)
        self._chains = {source: self._chain(source, rank) for source in nets}

    def _ranks(self) -> dict[str, int]:
        rank = dict.fromkeys(self._block.boxes, 1)
        fed = {r for readers, _ in self._nets.values() for r in readers}
        for id in self._block.boxes:  # in topological order
            for reader in self._nets.get(id, ([], False))[0]:
                rank[reader] = max(rank[reader], rank[id] + 1)
        for id in reversed(self._block.boxes):
            readers = self._nets.get(id, ([], False))[0]
            if id not in fed and readers:
                rank[id] = min(rank[r] for r in readers) - 1
        return rank

    def _chain(self, source: str, rank: dict[str, int]) -> list[Place]:
        """Return the places of a source's edges by rank, linked to its readers."""
        readers, leaves = self._nets[source]
        first = rank.get(source, 0)
        last = self._last if leaves else max((rank[r] for r in readers), default=first) - 1
        chain: list[Place] = []
        for r in range(first, last + 1):
            if r == first and source in rank:
                place = self._block.places[source]
            else:
                place = Place(source, r, 0.0, 0.0)
                self._rows[r].append(place)
            if chain:
                link(chain[-1], place)
            chain.append(place)
        for reader in readers:
            link(chain[rank[reader] - 1 - first], self._block.places[reader])
        return chain

    def place(self) -> None:
        """Compute order, coordinates and routes."""
        block, rows = self._block, self._rows
        rows[0].sort(key=lambda p: self._alive[p.source])
        ordered(rows, _SWEEPS)
        for port in rows[0]:
            port.x = self._alive[port.source]
        best_places(rows, _SWEEPS, GAP_X)
        straighten(rows, GAP_X)
        y = PAD + (TITLE if block.layer is not None else 0.0)
        for row in rows[1:-1]:
            height = max((p.height for p in row), default=0.0)
            for place in row:
                place.y = y + height / 2
            y += height + GAP_Y
        block.height = max(y - GAP_Y, 0.0) + PAD
        for place in rows[0]:
            block.top[place.source] = place.x
        for place in rows[-1]:
            place.y = block.height
            block.bottom[place.source] = place.x
        places = [p for row in rows for p in row]
        block.x0 = min((p.x - p.width / 2 for p in places), default=0.0) - PAD
        block.x1 = max((p.x + p.width / 2 for p in places), default=0.0) + PAD
        self._route()

    def _route(self) -> None:
        entries = _entries(self._block.places.values())
        for source, (readers, leaves) in self._nets.items():
            chain = self._chains[source]
            points = [point for place in chain for point in self._through(place)]
            if source in self._block.places:
                points = points[1:]  # it starts at the lower side of its box
            at = {place.rank: i for i, place in enumerate(chain)}
            for reader in readers:
                place = self._block.places[reader]
                skip = source in self._block.places
                n = 2 * (at[place.rank - 1] + 1) - skip
                x = entries[place][self._chains[source][at[place.rank - 1]]]
                end = (x, place.y - place.height / 2)
                self._block.routes.append(Route(source, reader, [*points[:n], end]))
            if leaves:
                self._block.routes.append(Route(source, None, points[:-1]))

    def _through(self, place: Place) -> list[Point]:
        """Return the points where an edge enters and leaves a rank."""
        if place.width:
            return [
                (place.x, place.y - place.height / 2), (place.x, place.y + place.height / 2),
            ]  # fmt: skip
        row = self._rows[place.rank]
        half = max((p.height for p in row), default=0.0) / 2
        return [(place.x, place.y - half), (place.x, place.y + half)]


def _entries(places: Iterable[Place]) -> dict[Place, dict[Place, float]]:
    """Return the end points of edges on the upper side of each box, from left to right."""
    entries: dict[Place, dict[Place, float]] = {}
    for place in places:
        above = sorted(place.above, key=lambda p: p.x)
        step = min(20.0, place.width / (len(above) + 1))
        first = place.x - step * (len(above) - 1) / 2
        entries[place] = {p: first + step * i for i, p in enumerate(above)}
    return entries
