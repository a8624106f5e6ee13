"""DOT text: ggml's example to the letter, layers, colours, and any graph with any names."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import pyggml as ops
from pyggml.alloc import GraphAllocator
from pyggml.buffer import HOST
from pyggml.cgraph import CGraph
from pyggml.context import Context
from pyggml.dtype import GGMLType
from pyggml.errors import PyggmlError
from pyggml.ops.op import OPS
from pyggml.tensor import Flag
from pyggml.viz import NodeTime, graph_dump_dot, graph_print
from pyggml.viz.style import _FAMILY_OF_OP, FAMILIES

from ..alloc.strategies import Recipe, build, recipes
from .grammar import parse
from .graphs import llama_graph, matmul_graph, random_graphs

MATMUL = r"""
  "a" [label="a\nf32 [2, 4]", shape=box, fontsize=9, fillcolor="#ffdeeb", color="#d6336c", tooltip="a\nf32 [2, 4], 32 bytes"]
  "b" [label="b\nf32 [2, 3]", shape=box, fontsize=9, fillcolor="#ffdeeb", color="#d6336c", tooltip="b\nf32 [2, 3], 24 bytes"]
  "node_0" [label="{node_0|{0|X*Y|f32 [4, 3]}}", fillcolor="#d0ebff", color="#1971c2", tooltip="node_0\nMUL_MAT\nf32 [4, 3], 48 bytes"]
  "a" -> "node_0" [label=" src 0"]
  "b" -> "node_0" [label=" src 1"]
}
"""  # noqa: E501


def n_sources(graph: CGraph) -> int:
    return sum(s is not None for node in graph.nodes for s in node.src)


def test_ggmls_matmul_example() -> None:
    text = graph_dump_dot(matmul_graph(), title="matmul")
    assert text.startswith("digraph ggml {\n") and text.endswith(MATMUL)
    legend = parse(text).attributes["label"]
    assert "<b>matmul</b>" in legend and "weight 2<" in legend and "matmul 1<" in legend


def test_the_same_text_for_a_graph_built_again(tmp_path: Path) -> None:
    text = graph_dump_dot(llama_graph(), tmp_path / "x.dot")
    assert graph_dump_dot(llama_graph()) == text
    assert (tmp_path / "x.dot").read_text(encoding="utf-8") == text
    assert [p.name for p in tmp_path.iterdir()] == ["x.dot"]  # nothing temporary is left


def test_layers_are_frames_and_shared_leafs_are_drawn_in_each() -> None:
    graph = llama_graph()
    text = graph_dump_dot(graph)
    dot = parse(text)
    assert text.count("->") == len(dot.edges) == n_sources(graph)
    assert list(dot.frames) == ["cluster_layer_0", "cluster_layer_1"]
    layer = dot.frames["cluster_layer_1"]
    assert layer >= {
        '"blk.1.ffn_up.weight"', '"ffn_up-1"', '"cache_k_l1"', '"cache_k_l1 (view)"', '"inp_pos@1"',
        '"attn_inp_kq_mask@1"', '"node_56"', '"kqv_out-1"',
    }  # fmt: skip
    assert ('"inp_pos@1"', '"Qcur_rope-1"', {"label": " src 1"}) in dot.edges
    outside = dot.boxes.keys() - dot.frames["cluster_layer_0"] - layer
    assert outside == {
        '"token_embd.weight@inp_embd"', '"token_embd.weight@result_output"', '"inp_tokens"',
        '"inp_embd"', '"norm_result_norm"', '"output_norm.weight"', '"result_norm"',
        '"result_output"',
    }  # fmt: skip
    flat = parse(graph_dump_dot(graph, cluster_layers=False))
    assert not flat.frames and len(flat.boxes) == len(graph.nodes) + len(graph.leafs)
    assert len(flat.edges) == n_sources(graph)


def test_a_range_of_layers_ends_in_stubs() -> None:
    dot = parse(graph_dump_dot(llama_graph(3), layers=(1, 2)))
    assert list(dot.frames) == ["cluster_layer_1"]
    stubs = {id for id, box in dot.boxes.items() if "dashed" in box.get("style", "")}
    stubs -= dot.frames["cluster_layer_1"]
    assert stubs == dot.boxes.keys() - dot.frames["cluster_layer_1"]
    assert stubs == {'"l_out-0"', '"norm_attn_norm-2"', '"ffn_inp-2"'}
    assert '"inp_pos"' in dot.frames["cluster_layer_1"]
    assert {e[:2] for e in dot.edges} >= {
        ('"l_out-0"', '"ffn_inp-1"'), ('"l_out-1"', '"ffn_inp-2"'),
    }  # fmt: skip
    assert parse(graph_dump_dot(llama_graph(3), layers=(1, 99))).frames.keys() == {
        "cluster_layer_1", "cluster_layer_2",
    }  # fmt: skip


def test_layers_that_the_graph_does_not_have() -> None:
    with pytest.raises(PyggmlError, match="7:9; the graph has layers 0:2"):
        graph_dump_dot(llama_graph(), layers=(7, 9))
    with pytest.raises(PyggmlError, match="no names that end in"):
        graph_dump_dot(matmul_graph(), layers=(0, 1))


def test_families_have_colours_and_views_are_dashed() -> None:
    boxes = parse(graph_dump_dot(llama_graph())).boxes
    kinds = (
        "Qcur-0", "attn_norm-0", "norm_attn_norm-0", "Qcur_rope-0", "kqv-0", "cache_k_l0",
        "cache_k_l0 (view)", "kqv_out-0", "inp_pos@0", "blk.0.attn_q.weight", "inp_embd",
    )  # fmt: skip
    assert len({boxes[f'"{kind}"']["fillcolor"] for kind in kinds}) == len(kinds)
    assert boxes['"kqv_out-0"']["style"] == "filled,dashed"
    assert boxes['"cache_k_l0"']["shape"] == "cylinder"
    assert boxes['"result_output"']["penwidth"] == "3"
    assert boxes['"node_27"']["label"] == "{node_27|{27|swiglu(a, b)|f32 [1536, 5]}}"
    assert boxes['"kqv-0"']["label"].startswith("{kqv-0|{19|flash_attn_ext(q, k, v, mask)|f32 [64,")
    assert r"memory of kqv-0 at 0 bytes" in boxes['"kqv_out-0"']["tooltip"]


def test_families_name_existing_ops() -> None:
    assert set(_FAMILY_OF_OP) <= set(OPS) and set(_FAMILY_OF_OP.values()) <= set(FAMILIES)
    assert _FAMILY_OF_OP["CONV_2D"] == _FAMILY_OF_OP["POOL_2D"] == "convolution"


def test_weights_inside_their_readers() -> None:
    graph = llama_graph()
    dot = parse(graph_dump_dot(graph, show_weights=False))
    assert not [id for id in dot.boxes if "weight" in id]
    assert dot.boxes['"ffn_up-0"']["label"].endswith("|blk.0.ffn_up.weight q4_0 [576, 1536]}")
    assert len(dot.edges) == n_sources(graph) - 21  # 9 a layer, embedding twice, last norm


def test_colours_by_buffer() -> None:
    ctx = Context()
    weight = ctx.new_tensor_2d(GGMLType.F32, 4, 4).set_name("w")
    given = Context(no_alloc=True)
    x = given.new_tensor_1d(GGMLType.F32, 4).set_name("x").set_input()
    y = ops.mul_mat(given, weight, x)
    z = ops.reshape_2d(given, y, 2, 2).set_name("z")
    graph = CGraph()
    graph.build_forward_expand(z)
    before = graph_dump_dot(graph, color="buffer")
    assert ">weights, " in before and "not allocated 3<" in before
    GraphAllocator(HOST).alloc_graph(graph)
    text = graph_dump_dot(graph, color="buffer")
    boxes = parse(text).boxes
    assert ">compute, " in text and "not allocated" not in text
    assert boxes['"x"']["color"] == boxes['"node_0"']["color"] == boxes['"z"']["color"]
    assert boxes['"w"']["color"] != boxes['"x"']["color"]
    assert boxes['"node_0"']["label"].endswith("|compute}")
    with pytest.raises(PyggmlError, match="'mood', want one of family, backend, split, buffer"):
        graph_dump_dot(graph, color="mood")  # type: ignore[typeddict-item]


def test_names_are_escaped() -> None:
    ctx = Context(no_alloc=True)
    a = ctx.new_tensor_1d(GGMLType.F32, 4).set_name('say "hi"\n\\N {a|b} <x->y> &')
    graph = CGraph()
    graph.build_forward_expand(ops.silu(ctx, a).set_name("same"))
    graph.build_forward_expand(ops.relu(ctx, a).set_name("same"))
    text = graph_dump_dot(graph, title="<&-->\n")
    escaped = r"say \"hi\"\\n\\N \{a\|b\} &lt;x-&gt;y&gt; &amp;"
    assert f'[label="{escaped}\\nf32 [4]"' in text and "<b>&lt;&amp;--&gt;\\n</b>" in text
    assert text.count("->") == 2
    assert '"same#2"' in parse(text).boxes


def test_a_function_as_parameter_has_a_name_and_no_address() -> None:
    def clip(dst: object, x: object) -> None: ...

    ctx = Context(no_alloc=True)
    graph = CGraph()
    graph.build_forward_expand(ops.map_custom(ctx, clip, ctx.new_tensor_1d(GGMLType.F32, 4)))
    text = graph_dump_dot(graph)
    assert "clip(x0)" in text and "fun=clip" in text and "0x" not in text


def test_parameters_and_unread_leafs() -> None:
    ctx = Context(no_alloc=True)
    w, x = (ctx.new_tensor_1d(GGMLType.F32, 4).set_name(name) for name in "wx")
    w.flags |= Flag.PARAM
    graph = CGraph()
    graph.build_forward_expand(ops.mul(ctx, w, w))
    graph.build_forward_expand(x)
    for show_weights in (True, False):
        dot = parse(graph_dump_dot(graph, show_weights=show_weights))
        assert dot.boxes.keys() == {'"w"', '"node_1"', '"x"'} and len(dot.edges) == 2
    assert "param" in dot.boxes['"w"']["tooltip"]


def test_a_part_of_a_graph() -> None:
    """A split by hand: sources that the graph does not hold are stubs."""
    whole, part = llama_graph(1), CGraph()
    part.nodes = whole.nodes[10:14]
    dot = parse(graph_dump_dot(part))
    assert len(dot.edges) == n_sources(part)
    assert len(dot.boxes) > 4 and graph_dump_dot(CGraph()).count("->") == 0


@settings(suppress_health_check=[HealthCheck.too_slow], max_examples=40)
@given(graph=random_graphs(), color=st.sampled_from(["family", "buffer"]), frames=st.booleans())
def test_any_graph_has_a_line_for_each_edge(graph: CGraph, color: str, frames: bool) -> None:
    text = graph_dump_dot(graph, color=color, cluster_layers=frames)  # type: ignore[arg-type]
    assert text.count("->") == len(parse(text).edges) == n_sources(graph)
    assert sum("->" in line for line in text.splitlines()) == n_sources(graph)
    text.encode("utf-8")


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(recipe=recipes())
def test_a_graph_built_again_gives_the_same_text(recipe: Recipe) -> None:
    first, again = build(recipe).graph, build(recipe).graph
    text = graph_dump_dot(first)
    assert graph_dump_dot(again) == text and graph_print(again) == graph_print(first)
    assert text.count("->") == len(parse(text).edges) == n_sources(first)


def test_a_graph_without_nodes_has_no_legend() -> None:
    assert "<table" not in graph_dump_dot(CGraph())
    assert "<b>none</b>" in graph_dump_dot(CGraph(), title="none")


@pytest.mark.skipif(shutil.which("dot") is None, reason="graphviz is not installed")
@settings(max_examples=15, suppress_health_check=[HealthCheck.too_slow])
@given(graph=random_graphs())
def test_graphviz_reads_any_graph(graph: CGraph) -> None:
    text = graph_dump_dot(graph, title='<"&\n\\')
    done = subprocess.run(["dot", "-Tdot"], input=text.encode(), capture_output=True, check=True)
    assert not done.stderr and done.stdout.count(b"->") == n_sources(graph)


@pytest.mark.skipif(shutil.which("dot") is None, reason="graphviz is not installed")
@settings(max_examples=15, suppress_health_check=[HealthCheck.too_slow])
@given(graph=random_graphs(), fold=st.sampled_from(["layers", "repeats"]))
def test_graphviz_reads_folded_graphs_with_times(graph: CGraph, fold: str) -> None:
    last = graph.nodes[-1]
    times = {last: NodeTime(1e3, 1e3, 0.5, 1, ('"k<|>',), tuple(graph.nodes[:-1]))}
    text = graph_dump_dot(graph, fold=fold, times=times)  # type: ignore[arg-type]
    done = subprocess.run(["dot", "-Tdot"], input=text.encode(), capture_output=True, check=True)
    assert not done.stderr and done.stdout.count(b"->") == len(parse(text).edges)
