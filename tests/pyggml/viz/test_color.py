"""Colours of nodes; the labels have the same information."""

from __future__ import annotations

import pytest

from pyggml.errors import PyggmlError
from pyggml.viz import NodeTime, graph_dump_dot, graph_svg

from .grammar import parse
from .graphs import llama_graph


def test_backends_and_splits() -> None:
    graph = llama_graph(2)
    number = {t: i for i, t in enumerate(graph.nodes)}
    half = len(graph.nodes) // 2

    def backend_of(tensor: object) -> str:
        return "CUDA0" if number.get(tensor, 0) >= half else "CPU"  # type: ignore[call-overload]

    for text in (
        graph_dump_dot(graph, color="backend", backend_of=backend_of),
        graph_svg(graph, color="backend", backend_of=backend_of),
    ):
        assert "CUDA0" in text and "CPU" in text
    boxes = parse(graph_dump_dot(graph, color="backend", backend_of=backend_of)).boxes
    assert boxes['"Qcur-0"']["label"].endswith("|CPU}")
    assert boxes['"result_output"']["label"].endswith("|CUDA0}")
    assert boxes['"Qcur-0"']["fillcolor"] != boxes['"result_output"']["fillcolor"]
    text = graph_dump_dot(graph, color="split", split_of=lambda t: int(number.get(t, 0) >= half))
    assert parse(text).boxes['"result_output"']["label"].endswith("|split 1}")


@pytest.mark.parametrize("color", ["backend", "split", "time"])
def test_missing_arguments_of_a_colour(color: str) -> None:
    with pytest.raises(PyggmlError, match=f"color='{color}' needs "):
        graph_dump_dot(llama_graph(), color=color)  # type: ignore[arg-type]


def test_times_are_a_heat_map_that_names_fused_nodes() -> None:
    graph = llama_graph(1)
    glu = next(node for node in graph.nodes if node.op and node.op.name == "GLU")
    gate, up = (graph.get_tensor(f"ffn_{n}-0") for n in ("gate", "up"))
    assert gate is not None and up is not None
    times = {glu: NodeTime(5e6, 9e6, 0.5, 8, ("glu",), (gate, up))}
    boxes = parse(graph_dump_dot(graph, times=times)).boxes
    assert boxes[f'"{glu.name}"']["label"].endswith("|5.00 ms, 50.0 %}")
    assert boxes['"ffn_up-0"']["label"].endswith(f"|in {glu.name}}}")
    colours = {boxes[f'"{n}"']["fillcolor"] for n in (glu.name, "ffn_up-0")}
    assert len(colours) == 2
    by_family = parse(graph_dump_dot(graph, times=times, color="family")).boxes
    assert by_family['"ffn_up-0"']["label"].endswith("|f32 [1536, 5]}}")
