"""The memory plan as a picture: a rectangle for each block, by offset and lifetime."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings

import pyggml as ops
from pyggml.alloc import GraphAllocator
from pyggml.buffer import HOST
from pyggml.cgraph import CGraph
from pyggml.context import Context
from pyggml.dtype import GGMLType
from pyggml.errors import PyggmlError
from pyggml.viz import memory_svg

from .graphs import llama_graph, random_graphs

SVG = "{http://www.w3.org/2000/svg}"


def blocks(text: str) -> list[ElementTree.Element]:
    root = ElementTree.fromstring(text.encode("utf-8"))
    return [g for g in root.iter(f"{SVG}g") if g.get("class") == "block"]


def chain() -> CGraph:
    """x is kept; a + b in place, then a product that needs memory of its own."""
    ctx = Context(no_alloc=True)
    x = ctx.new_tensor_1d(GGMLType.F32, 64).set_name("x").set_input()
    a = ops.silu(ctx, x).set_name("a")
    b = ops.silu(ctx, a).set_name('b"<')
    graph = CGraph()
    graph.build_forward_expand(ops.mul(ctx, ops.scale(ctx, b, 2.0), b).set_name("c"))
    return graph


def test_rectangles_are_the_plans_blocks() -> None:
    graph = chain()
    plan = GraphAllocator(HOST).plan(graph)
    drawn = blocks(memory_svg(plan, graph, title="chain"))
    assert len(drawn) == len(plan.blocks)
    for block, group in zip(plan.blocks, drawn, strict=True):
        rect = group.find(f"{SVG}rect")
        title = group.find(f"{SVG}title")
        assert rect is not None and title is not None and title.text
        assert f"{block.size:,} bytes at {block.offset:,}" in title.text
        assert float(rect.get("height", 0)) == pytest.approx(640 * block.size / plan.size, abs=0.02)
        bars = [p for p in group.iter(f"{SVG}path") if p.get("class") == "bar"]
        assert len(bars) == len(block.tensors) - 1
    assert any(len(b.tensors) > 1 for b in plan.blocks)


def test_a_range_of_layers_and_numbers_for_a_page(tmp_path: Path) -> None:
    graph = llama_graph(3)
    plan = GraphAllocator(HOST).plan(graph)
    index = {t: i for i, t in enumerate(graph.nodes)}
    whole = memory_svg(plan, graph, index=index)
    part = memory_svg(plan, graph, tmp_path / "x.svg", layers=(1, 2), index=index)
    assert 0 < len(blocks(part)) < len(blocks(whole)) == len(plan.blocks)
    assert (tmp_path / "x.svg").read_text(encoding="utf-8") == part
    assert "layer 1" in part and "layer 2" not in part
    assert any(group.get("data-n") for group in blocks(part))
    assert memory_svg(plan, graph, index=index) == whole


def test_a_graph_without_nodes() -> None:
    with pytest.raises(PyggmlError, match="without nodes"):
        memory_svg(GraphAllocator(HOST).plan(CGraph()), CGraph())


@settings(max_examples=30, suppress_health_check=[HealthCheck.too_slow])
@given(graph=random_graphs())
def test_any_graph(graph: CGraph) -> None:
    plan = GraphAllocator(HOST).plan(graph)
    assert len(blocks(memory_svg(plan, graph, title='<"&'))) <= len(plan.blocks)
