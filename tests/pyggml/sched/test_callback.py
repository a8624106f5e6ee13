"""Eval callbacks, and the state after a compute that ended early."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import pyggml as ops
from pyggml.backend.cpu.backend import CpuBackend
from pyggml.context import Context
from pyggml.dtype import GGMLType
from pyggml.errors import ComputeError
from pyggml.sched import Sched, to_numpy
from pyggml.tensor import Tensor

from .fake_device import DeferredDevice, FakeDevice, HostOnly
from .graphs import chain, graph_of, input_of, prefer

F32 = GGMLType.F32


def test_false_ends_the_compute() -> None:
    _, x, graph, nodes = chain("CFCFC")
    fake = FakeDevice({"SCALE"})
    sched = Sched([fake, HostOnly()])
    prefer(sched, graph)
    sched.alloc_graph(graph)
    x.set(np.ones(256))
    calls: list[tuple[str, bool]] = []

    def callback(node: Tensor, ask: bool) -> bool:
        calls.append((node.name, ask))
        return ask and node.name == "n1"

    sched.set_eval_callback(callback)
    sched.graph_compute(graph)
    assert calls == [("n0", True), ("n1", True), ("n1", False)]
    assert fake.compiled == [["SCALE"]]
    sched.set_eval_callback(None)
    sched.graph_compute(graph)
    assert (to_numpy(nodes[-1]) == 1.5**2).all()


def test_a_watched_node_is_not_fused_away() -> None:
    ctx = Context(no_alloc=True)
    x = input_of(ctx)
    norm = ops.rms_norm(ctx, x)
    graph = graph_of(ops.mul(ctx, norm, x))
    sched = Sched([CpuBackend(1)])
    sched.alloc_graph(graph)
    x.set(np.arange(256))
    seen = []

    def callback(node: Tensor, ask: bool) -> bool:
        if not ask:
            seen.append(to_numpy(node)[0, 0])
        return node is norm

    sched.set_eval_callback(callback)
    sched.graph_compute(graph)
    rows = np.arange(256.0).reshape(4, 64)
    want = rows / np.sqrt((rows**2).mean(axis=1, keepdims=True) + 1e-5)
    np.testing.assert_allclose(seen[0], want, rtol=1e-5)


def test_an_error_leaves_nothing_in_the_queue() -> None:
    ctx = Context(no_alloc=True)

    def fail(dst: npt.NDArray[Any], x: npt.NDArray[Any]) -> None:
        raise ComputeError("on purpose")

    x, y = input_of(ctx), input_of(ctx, name="y")
    graph = graph_of(ops.scale(ctx, x, 2.0), ops.map_custom(ctx, fail, y))
    device = DeferredDevice()
    sched = Sched([device, HostOnly()])
    sched.set_tensor_backend(graph.nodes[0], device)
    sched.alloc_graph(graph)
    for tensor in (x, y):
        tensor.set(np.ones(256))
    with pytest.raises(ComputeError, match="on purpose"):
        sched.graph_compute(graph)
    assert not device.deferred.waiting
