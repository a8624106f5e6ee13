"""The layout: nothing overlaps, edges end at their boxes, and any graph can be drawn."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pyggml.cgraph import CGraph
from pyggml.viz import graph_svg
from pyggml.viz.drawing import Drawing
from pyggml.viz.options import FOLDS
from pyggml.viz.picture import Picture

from .graphs import llama_graph, random_graphs

SVG = "{http://www.w3.org/2000/svg}"


def check(drawing: Drawing) -> None:
    """No two boxes of a block meet, all lie inside of it, and edges go down from box to box."""
    bottom = 0.0
    for block in drawing.layout.blocks:
        assert block.y >= bottom
        bottom = block.y + block.height
        places = list(block.places.values())
        for i, a in enumerate(places):
            assert block.x0 <= a.x - a.width / 2 and a.x + a.width / 2 <= block.x1
            assert a.y - a.height / 2 >= 0 and a.y + a.height / 2 <= block.height
            for b in places[:i]:
                apart_x = abs(a.x - b.x) >= (a.width + b.width) / 2 - 1e-6
                apart_y = abs(a.y - b.y) >= (a.height + b.height) / 2 - 1e-6
                assert apart_x or apart_y, (a.source, b.source)
        for route in block.routes:
            ys = [y for _, y in route.points]
            assert ys == sorted(ys)
            if route.reader is not None:
                place = block.places[route.reader]
                x, y = route.points[-1]
                assert abs(x - place.x) <= place.width / 2 and y == place.y - place.height / 2


def test_a_llama_is_a_column_of_layers() -> None:
    drawing = Drawing(Picture(llama_graph(3)))
    assert [block.layer for block in drawing.layout.blocks] == [None, 0, 1, 2, None]
    assert not drawing.layout.against
    check(drawing)
    first, second = drawing.layout.blocks[1:3]
    assert [p.rank for p in first.places.values()] == [p.rank for p in second.places.values()]


def test_every_edge_ends_once() -> None:
    graph = llama_graph(2)
    picture = Picture(graph)
    root = ElementTree.fromstring(graph_svg(graph, title="x"))
    ends = {
        (p.get("data-s"), p.get("data-r"))
        for p in root.iter(f"{SVG}path")
        if p.get("data-r") is not None
    }
    assert len(ends) == len({(a.source, a.reader) for a in picture.arrows})
    boxes = [g for g in root.iter(f"{SVG}g") if g.get("data-n") is not None]
    assert len(boxes) == len(picture.boxes)


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(graph=random_graphs(), fold=st.sampled_from(FOLDS), frames=st.booleans())
def test_any_graph(graph: CGraph, fold: str, frames: bool) -> None:
    drawing = Drawing(Picture(graph, fold=fold, cluster_layers=frames))  # type: ignore[arg-type]
    check(drawing)
    placed = [id for block in drawing.layout.blocks for id in block.places]
    assert sorted(placed) == sorted(drawing.picture.boxes)
    routes = {
        (r.source, r.reader)
        for b in drawing.layout.blocks
        for r in b.routes
        if r.reader is not None
    }
    arrows = {(a.source, a.reader) for a in drawing.picture.arrows}
    assert routes | set(drawing.layout.against) == arrows
    text = graph_svg(graph, title='<"&\n\ud800', fold=fold, cluster_layers=frames)  # type: ignore[arg-type]
    ElementTree.fromstring(text.encode("utf-8"))


def test_the_same_text_and_a_whole_file(tmp_path: Path) -> None:
    text = graph_svg(llama_graph(), tmp_path / "x.svg", layers=(0, 1), title="one layer")
    assert graph_svg(llama_graph(), layers=(0, 1), title="one layer") == text
    assert (tmp_path / "x.svg").read_text(encoding="utf-8") == text
    assert "one layer" in text and "layer 0" in text


def test_an_empty_graph() -> None:
    ElementTree.fromstring(graph_svg(CGraph()))
