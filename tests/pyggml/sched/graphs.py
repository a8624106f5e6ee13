"""Small graphs for tests of the scheduler.

ctx, x, graph, nodes = chain("FFCC")           # two SCALE nodes, two CONT nodes
prefer(sched, graph)                           # the first backend for all nodes it supports
move(weight, device)                           # into the device's memory
"""

from __future__ import annotations

import pyggml as ops
from pyggml.cgraph import CGraph
from pyggml.context import Context
from pyggml.dtype import GGMLType
from pyggml.sched import Sched
from pyggml.tensor import Tensor

from .fake_device import FakeDevice

F32 = GGMLType.F32


def input_of(ctx: Context, n: int = 64, name: str = "x") -> Tensor:
    return ctx.new_tensor_2d(F32, n, 4).set_input().set_name(name)


def graph_of(*results: Tensor) -> CGraph:
    graph = CGraph()
    for result in results:
        graph.build_forward_expand(result)
    return graph


def prefer(sched: Sched, graph: CGraph) -> None:
    """Assign all nodes that it supports to the first backend."""
    for node in graph.nodes:
        sched.set_tensor_backend(node, sched.backends[0])


def chain(kinds: str) -> tuple[Context, Tensor, CGraph, list[Tensor]]:
    """A chain with one node for each letter; F nodes are SCALE, C nodes are CONT."""
    ctx = Context(no_alloc=True)
    x = first = input_of(ctx)
    nodes = []
    for i, kind in enumerate(kinds):
        x = (ops.scale(ctx, x, 1.5) if kind == "F" else ops.cont(ctx, x)).set_name(f"n{i}")
        nodes.append(x)
    return ctx, first, graph_of(x), nodes


def move(tensor: Tensor, device: FakeDevice) -> None:
    """Move a tensor with memory to the device."""
    data = tensor.bytes().copy()
    tensor.buffer = device.buffer_type().alloc_buffer(tensor.nbytes)
    tensor.data = tensor.buffer.base
    tensor.buffer.set_tensor(tensor, data)
