"""Charts: points are where they should be, and the text is SVG."""

from __future__ import annotations

import itertools
import math
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyggml.viz.chart import Chart, charts_svg, ticks

SVG = "{http://www.w3.org/2000/svg}"


def points(text: str) -> list[tuple[float, float]]:
    circles = ElementTree.fromstring(text).iter(f"{SVG}circle")
    return [(float(c.get("cx", "")), float(c.get("cy", ""))) for c in circles]


def test_points_are_where_their_values_are(tmp_path: Path) -> None:
    chart = Chart("a <title>", "x", "y", y_range=(0, 1)).line([0, 1, 4], [0, 0.25, 1], "name")
    text = charts_svg([chart], tmp_path / "x.svg", title="all & more")
    (x0, y0), (x1, y1), (x2, y2) = points(text)
    assert (x1 - x0) / (x2 - x0) == pytest.approx(0.25) and (y0 - y1) / (y0 - y2) == 0.25
    assert (tmp_path / "x.svg").read_text() == text
    assert "a &lt;title&gt;" in text and "all &amp; more" in text and ">name<" in text


def test_powers_of_two_are_evenly_spaced() -> None:
    chart = Chart("", "", "", log2=True).line([1, 2, 4, 8], [1] * 4)
    xs = [x for x, _ in points(charts_svg([chart]))]
    steps = [b - a for a, b in itertools.pairwise(xs)]
    assert steps == pytest.approx([steps[0]] * 3, abs=0.1)


def test_bars_bands_and_gaps() -> None:
    chart = Chart("t", "layer", "", percent=True).bars([0, 1, 2], [0.5, math.nan, 1.0])
    chart.band([0, 1], [0.1, 0.2], [0.3, 0.4], "band").line([0, 1, 2], [math.nan] * 3)
    text = charts_svg([chart])
    bars = [float(h) for h in re.findall(r'<rect [^>]*height="([\d.]+)" fill="#1971c2"', text)]
    assert len(bars) == 2 and bars[1] == pytest.approx(2 * bars[0])
    assert "nan" not in text and "100 %" in text and "0.5<" not in text  # layers are whole


def test_empty_and_constant_charts() -> None:
    ElementTree.fromstring(charts_svg([Chart("a", "", ""), Chart("b", "", "").line([3], [7])]))
    assert charts_svg([Chart(str(i), "", "") for i in range(3)]).count("<g ") == 3


@given(st.floats(-1e6, 1e6), st.floats(1e-3, 1e6))
def test_ticks_are_round_and_inside(low: float, size: float) -> None:
    found = ticks(low, low + size)
    assert all(low - 1e-6 * size <= t <= low + size * (1 + 1e-6) for t in found)
    assert 1 <= len(found) <= 11


def test_named_bars_are_horizontal_rows() -> None:
    chart = Chart("t", "", "", names=["one", "two <>"])
    text = charts_svg([chart.bars([0, 1], [1, math.nan], "a").bars([0, 1], [2.5, 1], "b")])
    found = re.findall(r'<rect x="[-\d.]+" y="([\d.]+)" height="([\d.]+)" width="([\d.]+)"', text)
    bars = sorted((float(y), float(height), float(width)) for y, height, width in found)
    assert [width / bars[0][2] for *_, width in bars] == pytest.approx([1, 2.5, 1], rel=1e-3)
    for (y, height, _), (following, *_) in itertools.pairwise(bars):
        assert y + height <= following
    assert ">one</text>" in text and ">two &lt;&gt;</text>" in text
    assert ">2.5</text>" in text and "nan" not in text
    first = Chart("t", "", "", names=["one"]).bars([0], [1], "b", color=1)
    assert charts_svg([first]).count("#e8590c") == text.count("#e8590c") - 1


def test_a_chart_of_many_names_is_taller() -> None:
    few, many = (Chart("", "", "", names=["x"] * n).bars(range(n), [1] * n) for n in (2, 40))
    heights = [float(re.findall(r'height="(\d+)" view', charts_svg([c]))[0]) for c in (few, many)]
    assert heights[1] - heights[0] == pytest.approx(38 * 19, abs=1)
    both = ElementTree.fromstring(charts_svg([few, many, few], columns=2))
    assert float(both.attrib["height"]) == pytest.approx(heights[1] + heights[0] - 56, abs=2)


@pytest.mark.parametrize("values", [[-1.0, -2.0], [0.0, 0.0], [-1.0, 2.0], [math.nan, math.inf]])
@pytest.mark.parametrize("y_range", [None, (1.0, 1.0)])
def test_rows_of_any_values(values: list[float], y_range: tuple[float, float] | None) -> None:
    chart = Chart("", "", "", names=["a", "x" * 200], y_range=y_range).bars([0, 1], values)
    text = charts_svg([chart])
    widths = [float(w) for w in re.findall(r'<rect [^>]*width="([-\d.]+)"', text)]
    assert len(widths) == sum(map(math.isfinite, values)) and all(w >= 0 for w in widths)
    assert "x" * 39 + "\N{HORIZONTAL ELLIPSIS}" in text and "x" * 41 not in text
