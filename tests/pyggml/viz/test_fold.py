"""Folding: one box for each layer, or equal layers drawn once."""

from __future__ import annotations

import itertools

import pytest

from pyggml.errors import PyggmlError
from pyggml.viz import NodeTime, graph_dump_dot, graph_svg
from pyggml.viz.picture import Picture

from .grammar import parse
from .graphs import llama_graph


def test_each_layer_is_a_box() -> None:
    dot = parse(graph_dump_dot(llama_graph(3), fold="layers"))
    layers = [f'"layer {i}"' for i in range(3)]
    assert [id for id in dot.boxes if id.startswith('"layer')] == layers and not dot.frames
    assert "19 nodes, 9 weights of" in dot.boxes['"layer 0"']["label"]
    ends = [edge[:2] for edge in dot.edges]
    assert set(itertools.pairwise(layers)) <= set(ends)
    assert ('"inp_embd"', '"layer 0"') in ends and ('"layer 2"', '"norm_result_norm"') in ends
    assert ends.count(('"layer 0"', '"layer 1"')) == 1


def test_layers_that_are_alike_are_drawn_once() -> None:
    graph = llama_graph(4)
    picture = Picture(graph, fold="repeats")
    assert picture.frames == {0: "layers 0 to 3: ×4, alike, drawn once; each reads the one before"}
    one = Picture(llama_graph(1))
    assert len(picture.boxes) == len(one.boxes) and len(picture.arrows) == len(one.arrows)
    assert len(picture.boxes["ffn_up-0"].members) == 4
    dot = parse(graph_dump_dot(graph, fold="repeats"))
    assert list(dot.frames) == ["cluster_layer_0"]


def test_a_layer_that_differs_ends_the_run() -> None:
    graph = llama_graph(4)
    node = graph.get_tensor("norm_ffn_norm-2")
    assert node is not None
    node.op_params = {**node.op_params, "eps": 0.5}
    titles = Picture(graph, fold="repeats").frames
    assert [t.split(":")[0] for t in titles.values()] == ["layers 0 to 1", "layer 2", "layer 3"]


def test_times_of_folded_layers_sum_up() -> None:
    graph = llama_graph(2)
    times = {
        node: NodeTime(1000.0, 2000.0, 0.25, 4, ("k",), ())
        for node in graph.nodes
        if node.name.startswith("ffn_up")
    }
    assert "1.0 us, 25.0 %" in graph_dump_dot(graph, fold="layers", times=times)
    assert "2.0 us, 50.0 %" in graph_dump_dot(graph, fold="repeats", times=times)
    assert "2.0 us, 50.0 %" in graph_svg(graph, fold="repeats", times=times)


def test_names_like_those_of_folded_layers() -> None:
    graph = llama_graph(1)
    graph.nodes[0].set_name("layer 0")
    assert {"layer 0", "layer 0#2"} <= Picture(graph, fold="layers").boxes.keys()


def test_an_unknown_fold_option() -> None:
    with pytest.raises(PyggmlError, match="fold is 'half', want one of none, layers, repeats"):
        graph_dump_dot(llama_graph(), fold="half")  # type: ignore[arg-type]
