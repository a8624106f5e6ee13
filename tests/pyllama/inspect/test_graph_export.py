"""Pictures of a model's graph, from the header alone and deterministic."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pyggml.errors import AllocError
from pyggml.viz import graph_dump_dot, graph_html
from pyllama import Context, Model
from pyllama.errors import ModelError
from pyllama.inspect.graph_export import drawn_graph, model_graph
from pyllama.inspect.graph_profile import profiled_graph

from ..models import Spec, random_weights, write_model


@pytest.fixture
def path(tmp_path: Path) -> Path:
    spec = Spec()
    return write_model(tmp_path / "x.gguf", spec, random_weights(spec))


def graph_dot(path: Path, n_tokens: int = 1, **options: Any) -> str:
    return graph_dump_dot(drawn_graph(path, n_tokens).graph, **options)


def test_drawn_graph_equals_the_executed_graph(path: Path) -> None:
    running = Context(Model.load(path), n_ctx=32).graph(n_tokens=3).graph
    drawn = model_graph(path, n_tokens=3)
    assert [(n.op.name if n.op else "", n.name, n.type) for n in drawn.nodes] == [
        (n.op.name if n.op else "", n.name, n.type) for n in running.nodes
    ]
    assert all(t.buffer is None for t in drawn.nodes if t.view_src is None)


def test_nodes_have_llama_cpp_names(path: Path) -> None:
    names = {t.name for t in (*model_graph(path).nodes, *model_graph(path).leafs)}
    layers = ("attn_norm", "Qcur", "Kcur", "Vcur", "kqv_out", "ffn_inp", "ffn_norm", "ffn_swiglu")
    assert names >= {f"{name}-{i}" for name in (*layers, "ffn_out", "l_out") for i in range(2)} | {
        "inp_tokens", "inp_embd", "inp_pos", "inp_out_ids", "result_norm", "result_output",
    }  # fmt: skip


@pytest.mark.parametrize("color", ["family", "buffer"])
def test_dot_is_deterministic(path: Path, color: str) -> None:
    first = graph_dot(path, color=color)
    assert graph_dot(path, color=color) == first and first.count("->") > 30
    assert "result_output" in first and first.lstrip().startswith("digraph")
    one_layer = graph_dot(path, layers=(1, 2))
    assert "ffn_out-1" in one_layer and "ffn_out-0" not in one_layer
    assert graph_dot(path, n_tokens=2) != first


def test_buffer_colors_name_their_content(path: Path) -> None:
    text = graph_dot(path, color="buffer")
    for role in ("weights", "kv cache", "compute"):
        assert f">{role}, " in text
    assert "not allocated" not in text
    drawn = drawn_graph(path, n_tokens=2)
    assert drawn.plan.size and all(t.buffer is not None for t in drawn.graph.nodes)
    weight = drawn.graph.get_tensor("blk.0.ffn_up.weight")
    assert weight is not None and weight.buffer is not None and weight.buffer.mem is None
    with pytest.raises(AllocError, match="only drawn"):
        weight.bytes()


def test_html_is_deterministic(path: Path) -> None:
    pages = [
        graph_html(drawn.graph, plan=drawn.plan, title=drawn.title)
        for drawn in (drawn_graph(path), drawn_graph(path))
    ]
    assert pages[0] == pages[1] and "x.gguf, 1 token" in pages[0]


@pytest.mark.parametrize("n_tokens", [1, 5])
def test_times_of_a_real_run(path: Path, n_tokens: int) -> None:
    drawn = profiled_graph(Model.load(path), path, n_tokens=n_tokens, depth=3, n_threads=2)
    assert drawn.times is not None and len(drawn.runs) >= 3
    assert set(drawn.times) <= set(drawn.graph.nodes)
    assert sum(t.share for t in drawn.times.values()) == pytest.approx(1.0)
    fused = {t.name for time in drawn.times.values() for t in time.fused}
    timed = {t.name for t in drawn.times}
    computed = {n.name for n in drawn.graph.nodes if n.op and not n.op.is_view}
    assert timed | fused == computed and "norm-0" in fused
    assert drawn.runs[0].n_threads == 2 and "at depth 3, 2 threads" in drawn.title
    assert "us, " in graph_dump_dot(drawn.graph, times=drawn.times)
    assert drawn.plan.offsets


def test_a_missing_tensor_is_refused(tmp_path: Path) -> None:
    spec = Spec()
    weights = random_weights(spec)
    del weights["blk.1.ffn_up.weight"]
    with pytest.raises(ModelError, match=r"blk\.1\.ffn_up\.weight"):
        model_graph(write_model(tmp_path / "x.gguf", spec, weights))


@pytest.mark.model
def test_the_demo_model(demo_model: Path) -> None:
    text = graph_dot(demo_model)
    assert text.count("->") > 500 and graph_dot(demo_model) == text
