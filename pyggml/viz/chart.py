"""Draws charts (lines, bands, bars) as SVG text, without dependencies.

    chart = Chart("Union of tokens", "tokens", "neurons needed", log2=True, percent=True)
    chart.band([1, 2, 4], low, high, "all layers").line([1, 2, 4], mean, "mean")
    charts_svg([chart], "union.svg", title="x.gguf")

Several charts are drawn in rows of two. Values that are not finite leave a gap. If x values have
names, bars are horizontal, one name below the other.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from ..files import written
from .style import FAMILIES
from .svg import escape

_W, _H = 460.0, 240.0  # of the plotted area
_LEFT, _TOP, _RIGHT, _BOTTOM = 64.0, 46.0, 24.0, 62.0  # margins
_HEAD = 56.0
_BAR, _GAP, _CHAR = 12.0, 7.0, 6.7  # horizontal bar, gap, character width
_NAME = 40  # displayed characters of a name
_COLORS = [FAMILIES[name] for name in ("matmul", "rope", "norm", "attention", "weight", "cache")]
_CSS = """\
.chart{font-family:ui-monospace,Menlo,Consolas,'DejaVu Sans Mono',monospace;background:#fff}
.chart text{font-size:11px;fill:#212529}.chart .heading{font-size:16px;font-weight:600}
.chart .title{font-size:13px;font-weight:600}.chart .quiet{fill:#6c757d}
.chart .axis{stroke:#adb5bd;fill:none}.chart .faint{stroke:#e9ecef}
.chart .line{fill:none;stroke-width:2;stroke-linejoin:round}.chart .band{opacity:.8}
"""
Numbers = Sequence[float]


@dataclass
class _Series:
    kind: str  # line, band or bars
    xs: list[float]
    low: list[float]
    high: list[float]
    name: str
    color: int


@dataclass
class Chart:
    """One pair of axes.

    Args:
        log2: a logarithmic x axis with ticks at powers of two.
        percent: y values are shares, and are written as percentages.
        names: labels of x = 0, 1, ...; the series are then horizontal bars with their values.
        y_range: range of the y axis; None: from 0 or the minimum, if negative, to the maximum.
    """

    title: str
    x: str
    y: str
    log2: bool = False
    percent: bool = False
    y_range: tuple[float, float] | None = None
    names: Sequence[str] = ()
    series: list[_Series] = field(default_factory=list)
    _n_colors: int = 0

    def line(self, xs: Numbers, ys: Numbers, name: str = "", color: int | None = None) -> Chart:
        """Add points joined by lines; return the chart.

        Args:
            color: index of a colour, to use the same in several charts; None: the next.
        """
        return self._add("line", xs, ys, ys, name, color)

    def band(self, xs: Numbers, low: Numbers, high: Numbers, name: str = "") -> Chart:
        """Add the area from ``low`` to ``high``, in the next line's colour; return the chart."""
        return self._add("band", xs, low, high, name)

    def bars(self, xs: Numbers, ys: Numbers, name: str = "", color: int | None = None) -> Chart:
        """Add a bar for each x (consecutive integers), next to other series'; return the chart.

        Args:
            color: as for `line`.
        """
        return self._add("bars", xs, [0.0] * len(ys), ys, name, color)

    def value_range(self) -> tuple[float, float]:
        """The range of the value axis; never empty."""
        ys = [v for s in self.series for v in (*s.low, *s.high) if math.isfinite(v)] or [0.0, 1.0]
        low, high = self.y_range or (min(0.0, *ys), max(ys))
        return low, high + (high == low) * 1.0

    def _add(
        self, kind: str, xs: Numbers, low: Numbers, high: Numbers, name: str,
        color: int | None = None,
    ) -> Chart:  # fmt: skip
        x, a, b = ([float(v) for v in row] for row in (xs, low, high))
        number = self._n_colors if color is None else color
        self.series.append(_Series(kind, x, a, b, name, number % len(_COLORS)))
        self._n_colors += kind != "band"
        return self


def charts_svg(
    charts: Sequence[Chart],
    path: str | os.PathLike[str] | None = None,
    *,
    title: str = "",
    columns: int = 2,
) -> str:
    """Draw charts in rows.

    Args:
        path: also write the text to this file.

    Raises:
        OSError: the file cannot be written.
    """
    columns = min(columns, len(charts))
    drawn = [(_NamedBars if chart.names else _Axes)(chart) for chart in charts]
    rows = [drawn[i : i + columns] for i in range(0, len(drawn), columns)]
    wide = _LEFT + _W + _RIGHT
    highs = [_TOP + max(axes.height for axes in row) + _BOTTOM for row in rows]
    width, height = columns * wide, _HEAD + sum(highs)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" class="chart" width="{width:.0f}" '
        f'height="{height:.0f}" viewBox="0 0 {width:.0f} {height:.0f}">',
        f'<style>{_CSS}</style><text class="heading" x="20" y="32">{escape(title)}</text>',
    ]
    y = _HEAD + _TOP
    for row, high in zip(rows, highs, strict=True):
        for i, axes in enumerate(row):
            place = f"translate({i * wide + _LEFT:.0f},{y:.0f})"
            parts += [f'<g transform="{place}">', *axes.drawn(), "</g>"]
        y += high
    text = "\n".join((*parts, "</svg>", ""))
    return written(text, path)


class _Axes:
    """Maps values to coordinates."""

    height = _H

    def __init__(self, chart: Chart) -> None:
        self.chart = chart
        xs = [self._scaled(x) for s in chart.series for x in s.xs] or [0.0]
        self.bars = [s for s in chart.series if s.kind == "bars"]
        half = 0.5 if self.bars else 0.0
        self.x0, self.x1 = min(xs) - half, max(xs) + half
        self.x1 += (self.x1 == self.x0) * 1.0
        self.y0, self.y1 = chart.value_range()

    def _scaled(self, x: float) -> float:
        return math.log2(x) if self.chart.log2 else x

    def _at(self, x: float, y: float) -> tuple[float, float]:
        right = (self._scaled(x) - self.x0) / (self.x1 - self.x0)
        up = (min(max(y, self.y0), self.y1) - self.y0) / (self.y1 - self.y0)
        return _W * right, _H * (1 - up)

    def drawn(self) -> Iterator[str]:
        """Return the SVG of one chart."""
        chart = self.chart
        yield _title(chart)
        yield _quiet(0, -9, chart.y, "start")
        yield _quiet(_W, _H + 32, chart.x, "end")
        yield from self._ticks()
        for series in chart.series:
            yield from self._series(series)
        yield f'<path class="axis" d="M0 0V{_H}H{_W}"/>'
        yield from _legend(chart, _H)

    def _ticks(self) -> Iterator[str]:
        for value in ticks(self.y0, self.y1):
            _, y = self._at(1.0, value)
            yield f'<path class="faint" d="M0 {y:.1f}H{_W}"/>'
            yield _quiet(-7, y + 4, _text(self.chart, value), "end")
        if self.chart.log2:
            values = [2.0**k for k in range(math.ceil(self.x0), math.floor(self.x1) + 1)]
        else:
            whole = all(x == int(x) for s in self.chart.series for x in s.xs)
            values = [v for v in ticks(self.x0, self.x1, 8) if v == int(v) or not whole]
        for value in values:
            x, _ = self._at(value, self.y0)
            yield _quiet(x, _H + 16, f"{value:g}", "middle")

    def _series(self, s: _Series) -> Iterator[str]:
        paint = _COLORS[s.color]
        if s.kind == "bars":
            width = max(0.6, 0.8 * _W / (self.x1 - self.x0) / len(self.bars))
            shift = (self.bars.index(s) - (len(self.bars) - 1) / 2) * width
            for x, y in zip(s.xs, s.high, strict=True):
                if math.isfinite(y):
                    at, top = self._at(x, y)
                    yield (
                        f'<rect x="{at + shift - width / 2:.1f}" y="{top:.1f}" width="{width:.1f}" '
                        f'height="{_H - top:.1f}" fill="{paint.line}"/>'
                    )
            return
        high = [self._at(x, y) for x, y in zip(s.xs, s.high, strict=True) if math.isfinite(y)]
        if s.kind == "band":
            low = [self._at(x, y) for x, y in zip(s.xs, s.low, strict=True) if math.isfinite(y)]
            yield f'<path class="band" fill="{paint.fill}" d="{_path(high + low[::-1])}z"/>'
            return
        yield f'<path class="line" stroke="{paint.line}" d="{_path(high)}"/>'
        if len(high) <= 40:
            for x, y in high:
                yield f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{paint.line}"/>'


class _NamedBars:
    """A chart of horizontal bars with names."""

    def __init__(self, chart: Chart) -> None:
        self.chart = chart
        self.low, self.high = chart.value_range()
        self.names = [n if len(n) <= _NAME else n[: _NAME - 1] + "\N{HORIZONTAL ELLIPSIS}"
                      for n in chart.names]  # fmt: skip
        self.left = _CHAR * max(map(len, self.names)) - _LEFT + 2 * _GAP
        self.row = _BAR * len(chart.series) + _GAP
        self.height = self.row * len(chart.names)

    def _right(self, value: float) -> float:
        share = (min(max(value, self.low), self.high) - self.low) / (self.high - self.low)
        return (
            self.left + (_W - 40 - self.left) * share
        )  # leaves space for the value after the longest bar

    def drawn(self) -> Iterator[str]:
        """Return the SVG of one chart."""
        chart, zero = self.chart, self._right(0)
        yield _title(chart)
        for value in ticks(self.low, self.high):
            x = self._right(value)
            yield f'<path class="faint" d="M{x:.1f} 0V{self.height:.1f}"/>'
            yield _quiet(x, self.height + 16, _text(chart, value), "middle")
        yield _quiet(_W, self.height + 32, chart.y, "end")
        for i, name in enumerate(self.names):
            yield _quiet(self.left - _GAP, (i + 0.5) * self.row + 4, name, "end")
        for k, s in enumerate(chart.series):
            for x, value in zip(s.xs, s.high, strict=True):
                if math.isfinite(value):
                    top, end = x * self.row + _GAP / 2 + k * _BAR, self._right(value)
                    yield (
                        f'<rect x="{min(zero, end):.1f}" y="{top:.1f}" height="{_BAR - 1:.1f}" '
                        f'width="{abs(end - zero):.1f}" fill="{_COLORS[s.color].line}"/>'
                    )
                    number = f"{100 * value:.0f} %" if chart.percent else f"{value:.3g}"
                    yield _quiet(max(zero, end) + 4, top + _BAR - 2, number, "start")
        yield f'<path class="axis" d="M{zero:.1f} 0V{self.height:.1f}"/>'
        yield from _legend(chart, self.height)


def _title(chart: Chart) -> str:
    return f'<text class="title" x="0" y="-26">{escape(chart.title)}</text>'


def _text(chart: Chart, value: float) -> str:
    return f"{100 * value:g} %" if chart.percent else f"{value:g}"


def _legend(chart: Chart, height: float) -> Iterator[str]:
    x = 0.0
    for s in chart.series:
        if not s.name:
            continue
        paint = _COLORS[s.color]
        fill = paint.fill if s.kind == "band" else paint.line
        yield (
            f'<rect x="{x:.0f}" y="{height + 42:.0f}" width="12" height="12" rx="2" fill="{fill}"/>'
            f'<text x="{x + 17:.0f}" y="{height + 52:.0f}">{escape(s.name)}</text>'
        )
        x += 36 + 6.8 * len(s.name)


def ticks(low: float, high: float, n: int = 5) -> list[float]:
    """Return about ``n`` round values from ``low`` to ``high``."""
    step = 10 ** math.floor(math.log10((high - low) / n))
    step *= next(k for k in (1, 2, 5, 10) if k * step * n >= 0.999 * (high - low))
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [round(k * step, 12) for k in range(first, last + 1)]


def _quiet(x: float, y: float, text: str, anchor: str) -> str:
    at = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"'
    return f'<text class="quiet" {at}>{escape(text)}</text>'


def _path(points: Sequence[tuple[float, float]]) -> str:
    return "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in points) if points else "M0 0"
