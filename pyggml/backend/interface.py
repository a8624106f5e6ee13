"""What a backend is: the protocol that the scheduler and graph compute talk to.

    backend = init_backend("cpu", n_threads=2)
    buffer = backend.buffer_type().alloc_buffer(1 << 20)
    backend.graph_compute(graph)
    backend.close()

A backend computes the nodes of an allocated graph in order (or in any order with the same result).
``graph_compute`` blocks until the results are in memory; calls from several threads wait for each
other.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

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


class BackendFactory(Protocol):
    """Starts a backend: what ``register_backend`` and the entry points take."""

    def __call__(self, *, n_threads: int | None = None) -> Backend:
        """``n_threads`` None is the backend's own choice; backends without threads ignore it."""
        ...
