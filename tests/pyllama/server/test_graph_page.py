"""The data of the graph page, on a small model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pyggml.dtype import GGMLType
from pyggml.errors import BackendError
from pyllama import Batch, Context, Model
from pyllama.server.page import graph_page
from pyllama.server.page.graph_page import GraphQuery, draw_graph, graph_drawing, graph_json

from ..models import Spec, random_weights, write_model


@pytest.fixture
def context(tmp_path: Path) -> Context:
    spec = Spec()
    path = write_model(tmp_path / "x.gguf", spec, random_weights(spec))
    return Context(Model.load(path), n_ctx=64, type_k=GGMLType.F32, type_v=GGMLType.F32)


def test_json_has_the_nodes_with_their_layers_and_times(context: Context) -> None:
    context.decode(Batch([1, 2, 3]))
    before = context.kv.caches[0].seq_pos_max(0), context.logits.copy()
    plain, timed = GraphQuery(), GraphQuery(times=True, depth=1000)
    data = [json.loads(graph_json(draw_graph(context, q), q)) for q in (plain, timed)]
    assert data[0]["total_us"] is None and data[1]["total_us"] > 0
    for d in data:
        names = {n["name"]: n for n in d["nodes"]}
        up = names["ffn_up-1"]
        assert (up["label"], up["layer"], up["symbol"]) == ("ffn_up", 1, "X*Y")
        assert up["bytes"] > 0 and names["result_output"]["layer"] is None
    by_time = [n for n in data[1]["nodes"] if n["us"] is not None]
    assert sum(n["us"] for n in by_time) == pytest.approx(data[1]["total_us"], rel=1e-3)
    holder = next(n for n in by_time if "ffn_up-1" in n["fused"] or n["name"] == "ffn_up-1")
    assert holder["family"] == "matmul" and holder["kernels"] and holder["bytes"] > 0
    assert before[0] == context.kv.caches[0].seq_pos_max(0)  # the server's cells are untouched
    assert (before[1] == context.logits).all()


def test_drawings_are_pages(context: Context) -> None:
    text = graph_drawing(draw_graph(context, GraphQuery(tokens=3)))
    assert text.startswith("<!DOCTYPE html>") and 'data-folded="1"' in text


def test_without_times_the_reason_is_in_the_title(
    context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*args: object, **options: object) -> None:
        raise BackendError("two devices")

    monkeypatch.setattr(graph_page, "profiled_graph", fail)
    drawn = draw_graph(context, GraphQuery(times=True))
    assert drawn.times is None and drawn.title.endswith("(no times: two devices)")


@pytest.mark.parametrize(
    "fields", [{"tokens": "0"}, {"tokens": "513"}, {"depth": "-1"}, {"times": "x"}, {"depth": "１"}]
)
def test_queries_are_checked(fields: dict[str, str]) -> None:
    with pytest.raises(ValueError, match=next(iter(fields))):
        GraphQuery.read(fields)
    assert GraphQuery.read({"tokens": "8", "times": "1"}) == GraphQuery(8, 128, True)
