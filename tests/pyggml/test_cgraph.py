"""Graphs: order, leafs, use counts, names and the topology key."""

from __future__ import annotations

import pytest

from pyggml import add, mul, scale, silu
from pyggml.cgraph import CGraph
from pyggml.context import Context
from pyggml.dtype import GGMLType
from pyggml.tensor import Flag, Tensor

F32 = GGMLType.F32


def vector(ctx: Context, name: str = "", n: int = 4) -> Tensor:
    return ctx.new_tensor_1d(F32, n).set_name(name)


def test_order_is_depth_first_over_the_sources() -> None:
    ctx = Context(no_alloc=True)
    a, b = vector(ctx, "a"), vector(ctx, "b")
    left, right = scale(ctx, a, 2), silu(ctx, b)
    y = mul(ctx, left, right)
    z = add(ctx, y, left)
    graph = CGraph()
    graph.build_forward_expand(z)
    assert graph.nodes == [left, right, y, z] == list(graph)
    assert graph.leafs == [a, b] and len(graph) == 4
    assert [graph.use_count(t) for t in (a, left, y, z)] == [1, 2, 1, 0]


def test_order_of_expansions_is_order_of_execution() -> None:
    ctx = Context(no_alloc=True)
    a = vector(ctx)
    first, second = scale(ctx, a, 2), scale(ctx, a, 3)
    y = add(ctx, first, second)
    graph = CGraph()
    graph.build_forward_expand(second)
    graph.build_forward_expand(y)
    graph.build_forward_expand(y)
    assert graph.nodes == [second, first, y]
    assert graph.use_count(second) == 1 and graph.use_count(a) == 2
    assert graph.use_count(vector(ctx)) == 0


def test_names_and_lookup() -> None:
    ctx = Context(no_alloc=True)
    a = vector(ctx)
    y = silu(ctx, scale(ctx, a, 2)).set_name("out")
    graph = CGraph()
    graph.build_forward_expand(y)
    assert [t.name for t in (*graph.leafs, *graph.nodes)] == ["leaf_0", "node_0", "out"]
    assert graph.get_tensor("out") is y and graph.get_tensor("leaf_0") is a
    assert graph.get_tensor("nope") is None


def test_same_source_twice_and_parameters() -> None:
    ctx = Context(no_alloc=True)
    w = vector(ctx, "w")
    w.flags |= Flag.PARAM
    y = mul(ctx, w, w)
    graph = CGraph()
    graph.build_forward_expand(y)
    assert graph.use_count(w) == 2
    assert graph.nodes == [w, y] and graph.leafs == []


def test_long_chains_do_not_recurse() -> None:
    ctx = Context(no_alloc=True)
    x = vector(ctx)
    for _ in range(3000):
        x = scale(ctx, x, 1.0)
    graph = CGraph()
    graph.build_forward_expand(x)
    assert len(graph) == 3000


@pytest.mark.parametrize("name", ["", "x"])
def test_graph_building_keeps_given_names(name: str) -> None:
    t = vector(Context(no_alloc=True), name)
    graph = CGraph()
    graph.build_forward_expand(t)
    assert t.name == (name or "leaf_0")
