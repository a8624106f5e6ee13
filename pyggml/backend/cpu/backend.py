"""The CPU backend: graphs as programs of Numba kernels, on a pool of threads.

    backend = CpuBackend(n_threads=2)
    backend.graph_compute(graph)                   # lowers, runs
    program = backend.compile(graph); backend.run(program)      # lowers once, runs many times

Thread-safe: computes of one process queue on the pool. Nothing is allocated while a program runs.
"""

from __future__ import annotations

import platform
import threading

from ... import env
from ...buffer import HOST, BufferType, HostBufferType
from ...cgraph import CGraph
from ...errors import ComputeError
from ...host import default_threads
from ...tensor import Tensor
from ..interface import Device
from . import kernels as kernels  # registers the lowerings
from .buffer import RepackBufferType
from .lowering import LOWER, SUPPORTS, reads_layout
from .pool import get_pool
from .program import Program, compile_program
from .selftest import ensure_isa
from .work import WorkStore


class CpuBackend:
    """Runs graphs on this process's thread pool.

    Args:
        n_threads: threads of a compute; None for min(affinity, cgroup quota, physical cores).
        fusion: let kernels take several nodes at once (``PYGGML_FUSION=0`` forbids it).
    """

    name = "cpu"

    def __init__(self, n_threads: int | None = None, *, fusion: bool = True) -> None:
        ensure_isa()
        self.n_threads = default_threads() if n_threads is None else max(1, n_threads)
        self.fusion = fusion and env.FUSION.enabled()
        self._store = WorkStore()
        self._inside: set[int] = set()  # threads that run a program here

    @property
    def device(self) -> Device:
        return Device("CPU", platform.processor() or platform.machine(), "cpu")

    def buffer_type(self) -> BufferType:
        return HOST

    def supports_buft(self, buft: BufferType) -> bool:
        return isinstance(buft, (HostBufferType, RepackBufferType))

    def supports_op(self, node: Tensor) -> bool:
        """Whether a kernel takes this node's types and strides."""
        if node.op is None or node.op.is_view:
            return True
        return node.op.name in LOWER and reads_layout(node) and SUPPORTS[node.op.name](node)

    def compile(self, graph: CGraph, n_threads: int | None = None) -> Program:
        """Lower an allocated graph to a program. Raises: UnsupportedOp."""
        return compile_program(
            graph,
            n_threads or self.n_threads,
            get_pool().error_slot,
            self._store,
            fusion=self.fusion,
            sequential=env.KEEP_BARRIERS.enabled(),
        )

    def run(self, program: Program) -> None:
        """Run a program. Raises: Aborted, ComputeError."""
        thread = threading.get_ident()
        if thread in self._inside:  # its work memory is in use
            raise ComputeError(
                "a Python callable of a graph computes on the backend that runs it; "
                "give it a backend of its own"
            )
        self._inside.add(thread)
        try:
            get_pool().run(program)
        finally:
            self._inside.discard(thread)

    def graph_compute(self, graph: CGraph) -> None:
        """Lower and run. Raises: UnsupportedOp, Aborted, ComputeError."""
        self.run(self.compile(graph))

    def close(self) -> None:
        """Nothing to do: the pool belongs to the process."""

    def abort(self) -> None:
        """Stop the running compute, from any thread."""
        get_pool().abort()
