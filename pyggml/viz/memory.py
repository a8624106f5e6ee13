"""Draws a memory plan: addresses against the order of nodes.

    memory_svg(GraphAllocator(HOST).plan(graph), graph, "memory.svg", title="one token")

A rectangle is a block of memory: its addresses, from the node that computes it to its last reader.
A bar inside a rectangle marks a node that is computed in place of an earlier tensor.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from itertools import accumulate

from ..alloc.gallocr import Block, Plan
from ..cgraph import CGraph
from ..errors import PyggmlError
from ..files import written
from ..rounding import ceil_div
from ..tensor import Tensor
from .scope import Scope
from .style import Look, by_family
from .svg import escape, look_css

_W, _H = 1500.0, 640.0  # of the plotted area
_LEFT, _TOP = 90.0, 86.0
_CUT = 3.0  # blocks higher than this multiple of the others are clipped
_CSS = """\
.mem{font-family:ui-monospace,Menlo,Consolas,'DejaVu Sans Mono',monospace}
.mem text{font-size:11px;fill:#212529}.mem .heading{font-size:16px;font-weight:600}
.mem .axis{stroke:#adb5bd;fill:none}.mem .faint{stroke:#dee2e6}.mem .quiet{fill:#6c757d}
.mem .kept{stroke-dasharray:5 3}.mem .bar{stroke:#212529}
.mem .size{stroke:#c92a2a;stroke-width:1.5}.mem .peak{stroke:#1971c2;stroke-dasharray:6 4}
.mem .live{fill:#fbf3e4;stroke:#e3cfa6}.mem .said{font-size:9px}
"""


def memory_svg(
    plan: Plan,
    graph: CGraph,
    path: str | os.PathLike[str] | None = None,
    *,
    title: str = "",
    layers: tuple[int, int] | None = None,
    index: Mapping[Tensor, int] | None = None,
) -> str:
    """Draw the plan of a graph.

    Args:
        path: also write the text to this file.
        layers: ``(a, b)`` shows only the nodes of layers a to b - 1.
        index: numbers of tensors, written as ``data-n`` (for a page).

    Raises:
        PyggmlError: no tensor is in ``layers``, or the graph has no nodes.
        OSError: the file cannot be written.
    """
    drawing = _Memory(plan, graph, layers, index or {})
    height = _TOP + _H + 70
    text = "\n".join(
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" class="mem" width="{_LEFT + _W + 40:.0f}" '
            f'height="{height:.0f}" viewBox="0 0 {_LEFT + _W + 40:.0f} {height:.0f}">',
            f"<style>{_CSS}{look_css(drawing.looks, '.mem .m')}</style>",
            *drawing.lines(title),
            "</svg>",
            "",
        )
    )
    return written(text, path)


class _Memory:
    """Draws rectangles, axes and lines."""

    def __init__(
        self,
        plan: Plan,
        graph: CGraph,
        layers: tuple[int, int] | None,
        index: Mapping[Tensor, int],
    ) -> None:
        self._plan, self._graph, self._index = plan, graph, index
        self._scope = Scope(graph, layers)
        self._number = {t: i for i, t in enumerate(graph.nodes)}
        steps = [i for i, t in enumerate(graph.nodes) if self._scope.inside(t)]
        if not steps:
            raise PyggmlError("a graph without nodes has no memory to draw")
        self._first, self._end = steps[0], steps[-1] + 1
        shown = [b for b in plan.blocks if b.end >= self._first and b.start < self._end]
        ends = sorted(b.offset + b.size for b in shown)
        most = ends[int(0.97 * (len(ends) - 1))] if ends else 1
        self._cut = (
            bool(ends) and ends[-1] > _CUT * most
        )  # a few blocks are much larger than the others
        self._high = 1.25 * most if self._cut else ends[-1] if ends else 1
        self._shown = shown
        painter = by_family(self._scope.written, graph.backward)
        self._look = {block: painter(block.tensors[0]) for block in plan.blocks}
        self.looks: list[Look] = sorted(set(self._look.values()))

    def _x(self, step: float) -> float:
        inside = min(max(step, self._first), self._end) - self._first
        return _LEFT + _W * inside / (self._end - self._first)

    def _y(self, address: float) -> float:
        return _TOP + _H * (1 - min(address / max(self._high, 1), 1.0))

    def lines(self, title: str) -> Iterator[str]:
        """Return the whole picture."""
        plan = self._plan
        total = sum(t.nbytes for b in plan.blocks for t in b.tensors)
        chains = sum(len(b.tensors) - 1 for b in plan.blocks)
        yield f'<text class="heading" x="20" y="30">{escape(title or "Memory plan")}</text>'
        yield (
            f'<text class="quiet" x="20" y="48">{n_bytes(plan.size)} planned for '
            f"{len(plan.blocks)} blocks; at the peak {n_bytes(plan.peak_live_bytes)} are alive; "
            f"without reuse {n_bytes(total)}. {chains} nodes are computed in place (thick bars). "
            "Dashed: kept throughout. Sand behind: bytes alive.</text>"
        )
        yield from self._legend()
        yield from self._axes()
        yield self._live()
        for block in self._shown:
            yield from self._block(block)
        yield from self._sizes()

    def _legend(self) -> Iterator[str]:
        x = 20.0
        for i, look in enumerate(self.looks):
            yield (
                f'<rect class="m{i}" x="{x:.0f}" y="58" width="13" height="13" rx="2"/>'
                f'<text x="{x + 18:.0f}" y="69">{escape(look.name)}</text>'
            )
            x += 36 + 6.8 * len(look.name)

    def _axes(self) -> Iterator[str]:
        bottom = _TOP + _H
        for i in range(5):
            address = self._high * i / 4
            y = self._y(address)
            yield f'<path class="faint" d="M{_LEFT} {y:.1f}h{_W}"/>'
            at = f'x="{_LEFT - 8}" y="{y + 4:.1f}"'
            yield f'<text class="quiet" text-anchor="end" {at}>{n_bytes(address)}</text>'
        n = self._end - self._first
        for step in range(self._first, self._end, max(1, ceil_div(n, 15))):
            name = str(step) if n > 60 else f"{step} {self._graph.nodes[step].name}"
            yield (
                f'<text class="quiet" x="{self._x(step):.1f}" y="{bottom + 14}">'
                f"{escape(name if len(name) < 14 else name[:13] + '…')}</text>"
            )
        last = None
        for step in range(self._first, self._end):
            layer = self._scope.layer(self._graph.nodes[step])
            if layer != last and layer is not None:
                x = self._x(step)
                yield f'<path class="faint" d="M{x:.1f} {_TOP}V{bottom + 36}"/>'
                said = f"layer {layer}" if n < 200 else str(layer)
                yield f'<text class="quiet" x="{x + 3:.1f}" y="{bottom + 32}">{said}</text>'
            last = layer
        yield f'<path class="axis" d="M{_LEFT} {_TOP}V{bottom}h{_W}"/>'
        caption = "nodes in order of execution; below: layers"
        yield f'<text class="quiet" x="{_LEFT}" y="{bottom + 56}">{caption}</text>'

    def _block(self, block: Block) -> Iterator[str]:
        x0, x1 = self._x(block.start), self._x(block.end + 1)
        y0, y1 = self._y(block.offset + block.size), self._y(block.offset)
        kept = " kept" if block.end > len(self._graph.nodes) else ""
        number = self._index.get(block.tensors[-1])
        data = "" if number is None else f' data-n="{number}"'
        yield (
            f'<g class="block"{data}><title>{escape(self._told(block))}</title>'
            f'<rect class="m{self.looks.index(self._look[block])}{kept}" x="{x0:.2f}" '
            f'y="{y0:.2f}" width="{x1 - x0:.2f}" height="{max(y1 - y0, 0.8):.2f}"/>'
        )
        wide = min(2.0, 0.4 * _W / (self._end - self._first))
        starts = [block.start, *(self._number[t] for t in block.tensors[1:])]
        for i, (tensor, start) in enumerate(zip(block.tensors, starts, strict=True)):
            left = self._x(start)
            if i and self._first <= start < self._end:
                at = f'd="M{left:.2f} {y0:.2f}V{y1:.2f}"'
                yield f'<path class="bar" stroke-width="{wide:.2g}" {at}/>'
            right = x1 if tensor is block.tensors[-1] else self._x(starts[i + 1])
            said = f"{'▸ ' if i else ''}{tensor.name}"
            if y1 - y0 >= 11 and right - left > 5.6 * len(said) + 6:
                at = f'x="{left + 4:.1f}" y="{(y0 + y1) / 2 + 3:.1f}"'
                yield f'<text class="said" {at}>{escape(said)}</text>'
        yield "</g>"

    def _told(self, block: Block) -> str:
        """Return the tooltip of a rectangle."""
        start = "before the first node" if block.start < 0 else f"node {block.start}"
        end = "the end" if block.end > len(self._graph.nodes) else f"node {block.end}"
        chain = ", then in place ".join(t.name for t in block.tensors)
        return f"{chain}: {block.size:,} bytes at {block.offset:,}, alive from {start} to {end}"

    def _live(self) -> str:
        """Return the live bytes at each node, as an area."""
        n, plan = len(self._graph.nodes), self._plan
        change = [0] * (n + 1)
        for block in plan.blocks:
            change[max(block.start, 0)] += block.size
            change[min(block.end, n - 1) + 1] -= block.size
        live = list(accumulate(change))
        points = "".join(
            f"V{self._y(live[i]):.1f}H{self._x(i + 1):.1f}" for i in range(self._first, self._end)
        )
        return f'<path class="live" d="M{_LEFT} {_TOP + _H}{points}V{_TOP + _H}z"/>'

    def _sizes(self) -> Iterator[str]:
        """Return lines at the plan's size and at the peak of live bytes, if visible."""
        size, peak = self._plan.size, self._plan.peak_live_bytes
        lines = [("size", size, "plan" if size > peak else "plan, and peak of what is alive:")]
        lines += [("peak", peak, "peak of what is alive")] * (size > peak)
        for kind, address, name in lines:
            if address > self._high and not self._cut:
                continue
            name = f"axis is cut; {name}" if self._cut else name
            y = self._y(address)
            yield f'<path class="{kind}" d="M{_LEFT} {y:.1f}h{_W}"/>'
            above = y - 4 if kind == "size" else y + 13
            yield (
                f'<text text-anchor="end" x="{_LEFT + _W - 4}" y="{above:.1f}">'
                f"{name} {n_bytes(address)}</text>"
            )


def n_bytes(n: float) -> str:
    """Return a size such as ``1.5 MiB``."""
    if n >= 2**20:
        return f"{n / 2**20:.1f} MiB"
    return f"{n / 2**10:.1f} KiB" if n >= 2**10 else f"{n:.0f} B"
