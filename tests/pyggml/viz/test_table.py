"""graph_print: ggml's table with types, names and sources."""

from __future__ import annotations

from pyggml import add, rope
from pyggml.context import Context
from pyggml.dtype import GGMLType
from pyggml.viz import graph_print

from .graphs import CGraph, llama_graph, matmul_graph

MATMUL = """\
=== GRAPH ===
n_nodes = 1
 -   0: [     4,     3,     1]          MUL_MAT     f32 node_0 (@0, @1)
n_leafs = 2
 -   0: [     2,     4,     1]             NONE     f32 a
 -   1: [     2,     3,     1]             NONE     f32 b
========================================"""


def test_ggmls_matmul_example() -> None:
    assert graph_print(matmul_graph()) == MATMUL


def test_one_line_for_each_tensor() -> None:
    graph = llama_graph()
    lines = graph_print(graph).splitlines()
    assert len(lines) == len(graph.nodes) + len(graph.leafs) + 4
    assert any("FLASH_ATTN_EXT" in line and "kqv-0" in line and ", -, -)" in line for line in lines)


def test_odd_names_absent_sources_and_four_dimensions() -> None:
    ctx = Context(no_alloc=True)
    x = ctx.new_tensor_4d(GGMLType.F32, 4, 3, 2, 5).set_name("a\nb")
    pos = ctx.new_tensor_1d(GGMLType.I32, 2).set_name("pos")
    graph = CGraph()
    graph.build_forward_expand(add(ctx, rope(ctx, x, pos, 4), x).set_name("sum"))
    text = graph_print(graph)
    assert "[     4,     3,     2,     5]" in text and "(@0, @1, -)" in text and "(%0, @0)" in text
    assert "a\\nb" in text
