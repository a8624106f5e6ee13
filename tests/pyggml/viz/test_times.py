"""Times and traces of real runs: sums of times, and a lane for each thread."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import pyggml as ops
from pyggml.alloc import GraphAllocator
from pyggml.backend.cpu.backend import CpuBackend
from pyggml.backend.trace import RunTrace, TracedLaunch
from pyggml.buffer import HOST
from pyggml.cgraph import CGraph
from pyggml.context import Context
from pyggml.dtype import GGMLType
from pyggml.tensor import Tensor
from pyggml.viz import node_times, times_table, trace_json, write_trace
from pyggml.viz.times import fused_into


def graph_of(*names: str) -> list[Tensor]:
    ctx = Context(no_alloc=True)
    x = ctx.new_tensor_1d(GGMLType.F32, 4)
    return [ops.silu(ctx, x).set_name(name) for name in names]


def run_of(launches: list[tuple[tuple[Tensor, ...], int, list[tuple[float, float, int]]]]) -> Any:
    """A run by hand: (nodes, phase, (start, end, thread) of each chunk)."""
    made, times = [], []
    for nodes, phase, chunks in launches:
        name = f"k_{nodes[-1].name}"
        launch: Any = SimpleNamespace(name=name, node=nodes[-1], nodes=nodes, chunks=len(chunks))
        made.append(TracedLaunch(launch, phase, len(times)))
        times += chunks
    start, end, thread = (np.array(column) for column in zip(*times, strict=True))
    return RunTrace(tuple(made), start, end, thread, 2)


def test_the_time_of_a_phase_is_shared_out() -> None:
    a, b, c, gate = graph_of("a", "b", "c", "gate")
    run = run_of([
        ((a,), 0, [(0.0, 30.0, 0)]),  # beside b, from 0 to 40
        ((b,), 0, [(0.0, 5.0, 1), (5.0, 10.0, 1)]),
        ((gate, c), 1, [(40.0, 50.0, 0), (40.0, 60.0, 1)]),
    ])  # fmt: skip
    times = node_times([run])
    assert [times[t].ns for t in (a, b, c)] == pytest.approx([30.0, 10.0, 20.0])
    assert [times[t].busy_ns for t in (a, b, c)] == pytest.approx([30.0, 10.0, 30.0])
    assert sum(t.ns for t in times.values()) == pytest.approx(run.wall_ns)
    assert sum(t.share for t in times.values()) == pytest.approx(1.0)
    assert times[b].chunks == 2 and times[c].kernels == ("k_c",) and times[c].fused == (gate,)
    assert fused_into(times) == {gate: c} and gate not in times
    assert "c  " in times_table(times) and "(with gate)" in times_table(times)


def real_program() -> tuple[Any, CGraph]:
    ctx, graph = Context(no_alloc=True), CGraph()
    w = ctx.new_tensor_1d(GGMLType.F32, 512).set_name("w").set_input()
    x = ctx.new_tensor_2d(GGMLType.F32, 512, 256).set_name("x").set_input()
    normed = ops.mul(ctx, ops.rms_norm(ctx, x).set_name("norm"), w).set_name("normed")
    graph.build_forward_expand(ops.add(ctx, ops.silu(ctx, normed), x).set_name("sum"))
    GraphAllocator(HOST).alloc_graph(graph)
    w.set(np.ones(512))
    x.set(np.random.default_rng(0).standard_normal((256, 512)))
    return CpuBackend(2).compile(graph), graph


def test_a_traced_run_has_the_same_bits_and_names_fused_nodes() -> None:
    program, graph = real_program()
    result = graph.nodes[-1]
    program.enqueue()
    want = result.numpy().copy()
    result.numpy()[...] = 0
    runs = program.trace(repeats=3)
    assert (result.numpy() == want).all() and len(runs) == 3
    for run in runs:
        assert (run.end_ns >= run.start_ns).all() and set(run.thread) <= {0, 1}
        assert len(run.start_ns) == sum(la.launch.chunks for la in run.launches)
        ends = [run.end_ns[la.first : la.first + la.launch.chunks].max() for la in run.launches]
        starts = [run.start_ns[la.first : la.first + la.launch.chunks].min() for la in run.launches]
        for i, la in enumerate(run.launches):
            assert all(ends[k] <= starts[i] for k in range(i) if run.launches[k].phase < la.phase)
    times = node_times(runs)
    by_name = {t.name: time for t, time in times.items()}
    assert [t.name for t in by_name["normed"].fused] == ["norm"] and "sum" in by_name
    program.enqueue()  # tracing leaves the program unchanged
    assert (result.numpy() == want).all()


def test_python_nodes_are_traced() -> None:
    ctx, graph = Context(no_alloc=True), CGraph()
    x = ctx.new_tensor_1d(GGMLType.F32, 8).set_name("x").set_input()

    def twice(dst: Any, src: Any) -> None:
        dst[...] = 2 * src

    y = ops.map_custom(ctx, twice, ops.silu(ctx, x)).set_name("twice")
    graph.build_forward_expand(ops.silu(ctx, y).set_name("end"))
    GraphAllocator(HOST).alloc_graph(graph)
    x.set(np.ones(8))
    run = CpuBackend(1).compile(graph).trace()[0]
    assert [la.phase for la in run.launches] == [0, 1, 2]
    assert '"kernel": "Python"' in trace_json(run)
    assert {t.name for t in node_times([run])} >= {"twice", "end"}


def test_a_trace_is_json_with_a_lane_for_each_thread(tmp_path: Path) -> None:
    program, graph = real_program()
    graph.nodes[-1].set_name('</script>"\n\ud800')
    run = program.trace()[0]
    write_trace(tmp_path / "x.json", run, "title")
    data = json.loads((tmp_path / "x.json").read_text(encoding="utf-8"))
    assert data == json.loads(trace_json(run, "title"))
    events = data["traceEvents"]
    lanes = [e["tid"] for e in events if e["name"] == "thread_name"]
    chunks = [e for e in events if e["ph"] == "X"]
    assert lanes == [0, 1] and {e["tid"] for e in chunks} <= set(lanes)
    assert len(chunks) == len(run.start_ns) and all(e["dur"] >= 0 <= e["ts"] for e in chunks)
    for lane in lanes:  # a thread does one thing at a time
        mine = sorted((e["ts"], e["ts"] + e["dur"]) for e in chunks if e["tid"] == lane)
        assert all(a[1] <= b[0] + 0.002 for a, b in itertools.pairwise(mine))
    assert any(e["args"]["chunk"].startswith("2 of ") for e in chunks)
    assert any(e["args"].get("fused") == "norm" for e in chunks)
