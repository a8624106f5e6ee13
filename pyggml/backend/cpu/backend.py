"""The CPU backend: graphs as programs of Numba kernels, on a pool of threads.

    backend = CpuBackend(n_threads=2)
    backend.graph_compute(graph)                   # lowers, runs
    program = backend.compile(graph)               # lowers once ...
    program.enqueue()                              # ... and runs many times; done on return

Thread-safe: computes of one process queue on the pool. Nothing is allocated while a program runs.
"""

from __future__ import annotations

import platform
import threading
from collections.abc import Iterable, Iterator, Sequence

from ... import env, host
from ...buffer import HOST, HostBufferType
from ...cgraph import CGraph
from ...compiler.jit import CpuKernel
from ...errors import ComputeError
from ...tensor import BufferType, Tensor
from ..interface import (
    Backend,
    Bytes,
    Device,
    HostQueue,
    MatrixWriter,
    StopToken,
    WeightLayout,
    WeightUse,
)
from ..trace import RunTrace
from . import kernels as kernels  # it registers the lowerings
from .codec import DECODED
from .compile.lowering import LOWERINGS, READS_INTERLEAVED, CpuLowering
from .compile.program import PhaseTable, compile_program
from .compile.work import WorkMemory, WorkStore
from .run.pool import get_pool
from .selftest import ensure_isa
from .tuning import report
from .weights.buffer import REPACK, RepackBufferType
from .weights.layout import INTERLEAVED


class CpuProgram:
    """A lowered graph; see ``CpuBackend.compile``.

    Attributes:
        program: its phases and launches.
    """

    def __init__(self, program: PhaseTable, inside: set[int]) -> None:
        self.program, self._inside, self._pool = program, inside, get_pool()
        self._calls_python = any(python is not None for python, _, _ in program.parts)

    def enqueue(self, stop: StopToken | None = None) -> None:
        """Run, and return when all results are in memory. Raises: Aborted, ComputeError."""
        inside = self._inside
        # in a Python callable of the program: its work memory is in use
        if inside and threading.get_ident() in inside:
            raise ComputeError(
                "a Python callable of a graph computes on the backend that runs it; "
                "give it a backend of its own"
            )
        if not self._calls_python:
            return self._pool.run(self.program, stop)
        thread = threading.get_ident()
        try:
            inside.add(thread)  # within: Ctrl-C may follow it
            self._pool.run(self.program, stop)
        finally:
            inside.discard(thread)

    def trace(self, repeats: int = 1) -> list[RunTrace]:
        """Traces of new runs on the current inputs. Raises: ComputeError, Aborted."""
        from .run.trace import trace

        return trace(self.program, repeats)


class CpuBackend(Backend):
    """Runs graphs on this process's thread pool.

    Args:
        n_threads: threads of a compute; None for min(affinity, cgroup quota, physical cores).
        fusion: let kernels take several nodes at once (``PYGGML_FUSION=0`` forbids it).
    """

    name = "cpu"

    def __init__(self, n_threads: int | None = None, *, fusion: bool = True) -> None:
        ensure_isa()
        self.n_threads = host.default_threads() if n_threads is None else max(1, n_threads)
        self.fusion = fusion and env.FUSION.enabled()
        self.queue = HostQueue()
        self._store = WorkStore()
        self._inside: set[int] = set()  # ids of threads that run a program

    @property
    def device(self) -> Device:
        return Device("CPU", platform.processor() or platform.machine(), "cpu")

    def memory(self) -> tuple[int, int] | None:
        """(bytes available without swapping, all bytes) of the machine's memory."""
        free, total = host.available_memory(), host.total_memory()
        return None if free is None or total is None else (free, total)

    def buffer_type(self) -> BufferType:
        return HOST

    def layouts(self, use: WeightUse) -> Sequence[WeightLayout]:
        """The interleaved layout, if all ops that read the weight support it, then ggml's."""
        is_decoded = use.type in INTERLEAVED or int(use.type) in DECODED
        if use.type.is_quantized and not is_decoded:
            return ()
        tensor = Tensor(use.type, use.ne)
        plain = WeightLayout(HOST, tensor.nbytes)
        if not REPACK.accepts(tensor) or not use.ops or not use.ops <= READS_INTERLEAVED.keys():
            return (plain,)
        return WeightLayout(REPACK, REPACK.alloc_size(tensor)), plain

    def set_weights(self, weights: Iterable[tuple[Tensor, Bytes]]) -> Iterator[int]:
        """Write weights, interleaving on all threads. Yields the bytes done so far."""
        from .repack import repack

        plain: list[tuple[Tensor, Bytes]] = []
        interleaved: list[tuple[Tensor, Bytes]] = []
        for tensor, data in weights:
            assert tensor.buffer is not None
            (interleaved if tensor.buffer.buft is REPACK else plain).append((tensor, data))
        done = 0
        for done in super().set_weights(plain):
            yield done
        for n in repack(self.run_launches, self.n_threads, interleaved):
            yield done + n

    def matrix_writer(self, weight: Tensor) -> MatrixWriter:
        """A function that writes one matrix of a weight, interleaving it on the calling thread."""
        from .repack import matrix_writer

        assert weight.buffer is not None
        if weight.buffer.buft is REPACK:
            return matrix_writer(weight)
        return super().matrix_writer(weight)

    def supports_buft(self, buft: BufferType) -> bool:
        return isinstance(buft, (HostBufferType, RepackBufferType))

    def supports_op(self, node: Tensor) -> bool:
        if node.op is None or node.op.is_view:
            return True
        return LOWERINGS.supports_node(node)

    def compile(
        self, graph: CGraph, *, n_threads: int | None = None, interruptible: bool = True
    ) -> CpuProgram:
        """Lower an allocated graph to a program. Raises: UnsupportedOp."""
        phases = compile_program(
            graph,
            n_threads or self.n_threads,
            get_pool().error_slot,
            self._store,
            fusion=self.fusion,
            sequential=env.KEEP_BARRIERS.enabled(),
        )
        phases.interruptible = interruptible
        return CpuProgram(phases, self._inside)

    def prepare(self, graph: CGraph) -> None:
        """Compile the kernels of an allocated graph. Raises: UnsupportedOp."""
        self._lowered(graph).compile()

    def kernels(self, graph: CGraph) -> list[CpuKernel]:
        """The kernels that an allocated graph needs; compiles none. Raises: UnsupportedOp."""
        return self._lowered(graph).kernels()

    def _lowered(self, graph: CGraph) -> CpuLowering:
        lowering = CpuLowering(graph, self.n_threads, WorkMemory(self._store), self.fusion)
        lowering.run()
        return lowering

    def run_launches(self, lowering: CpuLowering) -> None:
        """Run launches that belong to no graph. Raises: Aborted, ComputeError."""
        CpuProgram(PhaseTable(lowering, get_pool().error_slot), self._inside).enqueue()

    def report(self) -> str:
        return report()
