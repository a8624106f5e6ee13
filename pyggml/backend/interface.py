"""What a backend is: the protocol that the scheduler and graph compute talk to.

    backend = init_backend("cpu", n_threads=2)
    buffer = backend.buffer_type().alloc_buffer(1 << 20)
    backend.graph_compute(graph)
    backend.close()

A backend computes the nodes of an allocated graph in order (or in any order with the same result).
``graph_compute`` blocks until the results are in memory, unless the backend has ``synchronize``;
calls from several threads wait for each other.

Two abilities are optional, each a protocol of its own: a ``CompilingBackend`` prepares a graph once
and runs it many times; an ``AsyncBackend`` returns from a compute when the work is queued.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, Protocol, runtime_checkable

from ..buffer import BufferType
from ..cgraph import CGraph
from ..tensor import Tensor


@dataclass(frozen=True)
class Device:
    """Where a backend computes."""

    name: str
    description: str
    kind: Literal["cpu", "gpu"]
    memory: int = 0  # bytes in all, 0 = not known


class Backend(Protocol):
    """Computes graphs on one device."""

    name: str

    @property
    def device(self) -> Device: ...

    def buffer_type(self) -> BufferType:
        """The layout that all kernels of this backend read and write."""
        ...

    def supports_buft(self, buft: BufferType) -> bool:
        """Whether kernels of this backend read and write buffers of that type where they are."""
        ...

    def supports_op(self, node: Tensor) -> bool:
        """Whether this backend computes a node of this op with these types and strides."""
        ...

    def graph_compute(self, graph: CGraph) -> None:
        """Compute all nodes of an allocated graph.

        Raises:
            UnsupportedOp: a node that has no kernel here.
            ComputeError: a node failed; the message names it.
            Aborted: ``abort()`` or Ctrl-C.
        """
        ...

    def close(self) -> None:
        """Release threads and memory; a second call does nothing."""
        ...


@runtime_checkable
class CompilingBackend(Protocol):
    """A backend that can prepare an allocated graph, to run it many times."""

    def compile(self, graph: CGraph) -> Any:
        """The graph in the backend's own form. Raises: UnsupportedOp."""
        ...

    def run(self, program: Any) -> None:
        """Run what ``compile`` made. Raises: as ``graph_compute``."""
        ...


@runtime_checkable
class AsyncBackend(Protocol):
    """A backend whose computes (``graph_compute``, ``run``) return when the work is queued.

    Queued work runs in order. Whoever reads or overwrites memory of this backend synchronizes
    first; the scheduler does.
    """

    def synchronize(self) -> None:
        """Wait for all queued work. Raises: as ``graph_compute``, for any of it."""
        ...


class BackendFactory(Protocol):
    """Starts a backend: what ``register_backend`` and the entry points take."""

    def __call__(self, *, n_threads: int | None = None) -> Backend:
        """``n_threads`` None is the backend's own choice; backends without threads ignore it."""
        ...
