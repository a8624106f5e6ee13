"""The reference backend: runs a graph with each op's NumPy function.

    init_backend("reference").graph_compute(graph)

It is the living specification and the debugger: slow, single-threaded, and short enough to be read
at once. It computes every op in every type that ``pyggml.quants`` knows.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ...buffer import HOST, HostBufferType
from ...cgraph import CGraph
from ...errors import AllocError, ComputeError, PyggmlError
from ...ops.custom import MAP_CUSTOM, is_kernel
from ...ops.op import Array
from ...quants import BLOCK_TYPES, from_float, get_blocks, set_blocks, to_float
from ...tensor import BufferType, Tensor
from ..interface import Backend, Device, HostQueue, StopToken, WeightLayout, WeightUse
from ..trace import RunTrace, TracedLaunch


@dataclass(frozen=True)
class _NodeLaunch:
    """A node that was computed, as traces show it."""

    node: Tensor
    chunks: int = 1

    @property
    def name(self) -> str:
        return self.node.op.name.lower() if self.node.op else ""

    @property
    def nodes(self) -> tuple[Tensor, ...]:
        return (self.node,)


class ReferenceProgram:
    """The nodes of a graph, to be computed one after the other."""

    def __init__(self, nodes: list[Tensor]) -> None:
        self._nodes = nodes

    def enqueue(self, stop: StopToken | None = None) -> None:
        """Compute all nodes, until ``stop``. Raises: Aborted, and as ``compute_node``."""
        for node in self._nodes:
            compute_node(node)
            if stop is not None:
                stop.check()

    def trace(self, repeats: int = 1) -> list[RunTrace]:
        """The time of each node. Raises: as ``enqueue``."""
        nodes = [n for n in self._nodes if n.op is not None and not n.op.is_view]
        launches = tuple(TracedLaunch(_NodeLaunch(node), i, i) for i, node in enumerate(nodes))
        runs = []
        for _ in range(repeats):
            stamps = [time.perf_counter_ns()]
            for node in nodes:
                compute_node(node)
                stamps.append(time.perf_counter_ns())
            times = np.array(stamps, np.float64) - stamps[0]
            thread = np.zeros(len(nodes), np.int64)
            runs.append(RunTrace(launches, times[:-1], times[1:], thread, 1))
        return runs


class ReferenceBackend(Backend):
    """NumPy on the host."""

    name = "reference"

    def __init__(self, *, n_threads: int | None = None) -> None:
        self.queue = HostQueue()

    @property
    def device(self) -> Device:
        return Device("reference", "NumPy", "cpu")

    def buffer_type(self) -> BufferType:
        return HOST

    def layouts(self, use: WeightUse) -> Sequence[WeightLayout]:
        """ggml's, for all formats that ``pyggml.quants`` knows."""
        known = not use.type.is_quantized or use.type in BLOCK_TYPES
        return super().layouts(use) if known else ()

    def supports_buft(self, buft: BufferType) -> bool:
        return isinstance(buft, HostBufferType)

    def supports_op(self, node: Tensor) -> bool:
        if node.op is MAP_CUSTOM and is_kernel(node.op_params["fun"]):
            return False
        tensors = (node, *(s for s in node.src if s is not None))
        return all(not t.type.is_quantized or t.type in BLOCK_TYPES for t in tensors)

    def compile(
        self, graph: CGraph, *, n_threads: int | None = None, interruptible: bool = True
    ) -> ReferenceProgram:
        """The nodes of the graph: there is nothing to prepare."""
        return ReferenceProgram(list(graph))


def compute_node(node: Tensor) -> None:
    """Compute one node from its sources' memory.

    Raises:
        AllocError: the node or a source has no memory.
        ComputeError: the reference function failed, with its exception as the cause.
    """
    if node.op is None or node.op.reference is None:
        return
    for t in (node, *node.src):
        if t is not None and t.data == 0:
            raise AllocError(f"{_where(node)}: '{t.name}' {t.ne} has no data: allocate it first")
    try:
        sources = [None if s is None else to_float(s) for s in node.src]
        result = node.op.reference(*sources, **node.op_params)
        updated = node.op.updated(node)
        if updated:
            result, *contents = result
            for tensor, content in zip(updated, contents, strict=True):
                store(tensor, content)
        store(node, result)
    except PyggmlError as e:
        raise type(e)(f"{_where(node)}: {e}") from e
    except (ArithmeticError, AssertionError, LookupError, TypeError, ValueError) as e:
        if node.op is MAP_CUSTOM:  # the user's own exception stays what it is
            raise
        raise ComputeError(f"{_where(node)}: {type(e).__name__}: {e}") from e


def store(node: Tensor, result: Array) -> None:
    """Write a result into a node. Rows of a quantized view that did not change keep their bytes."""
    if node.view_src is not None and node.type.is_quantized:
        # quantizing again what was dequantized need not give the same bytes
        old, before = to_float(node), get_blocks(node).copy()
        changed = ~np.all(old == result, axis=-1)
        from_float(node, np.where(changed[..., None], result, 0))
        set_blocks(node, np.where(changed[..., None], get_blocks(node), before))
    else:
        from_float(node, result)


def _where(node: Tensor) -> str:
    sources = ", ".join(f"'{s.name}' {list(s.ne)}" for s in node.src if s is not None)
    return f"node '{node.name}' = {node.op.name if node.op else None}({sources})"
