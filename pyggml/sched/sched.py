"""The scheduler: one graph on several backends, each with memory of its own.

    sched = Sched([gpu, cpu, reference])           # a lower index is preferred
    sched.set_tensor_backend(node, cpu)            # optional wishes, before alloc_graph
    sched.alloc_graph(graph)                       # assigns, cuts, plans, allocates
    x.set(values)
    sched.graph_compute(graph)                     # again and again: allocates and lowers nothing

The user's graph keeps its sources and is given addresses, so it may be read, computed and scheduled
again. Graphs scheduled in turn share memory: write the inputs again after another one ran.
``graph_compute`` blocks until the results are there; it is not thread-safe.
Source: ggml, ``ggml_backend_sched`` (names and meaning).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

from ..alloc import GraphAllocator
from ..backend.interface import AsyncBackend, Backend, CompilingBackend
from ..buffer import BufferType
from ..cgraph import CGraph
from ..context import place_view
from ..errors import BackendError, PyggmlError
from ..tensor import Tensor
from .assign import assign, root_of, runs
from .split import Schedule, Split, cut
from .transfer import transfer

EvalCallback = Callable[[Tensor, bool], bool]
MAX_BACKENDS = 16


class Sched:
    """Runs graphs on several backends.

    Args:
        backends: the preferred first. The last one's device is a CPU; it takes what no other does
            and holds the inputs, so the reference backend is a good last one.

    Raises:
        BackendError: none or too many backends, or the last is no CPU.
    """

    def __init__(self, backends: Sequence[Backend]) -> None:
        if not 1 <= len(backends) <= MAX_BACKENDS:
            raise BackendError(f"a scheduler takes 1 to {MAX_BACKENDS} backends: {len(backends)}")
        if backends[-1].device.kind != "cpu":
            raise BackendError(
                f"the last backend is '{backends[-1].name}' on a {backends[-1].device.kind}; it "
                "must be one on the CPU, such as cpu or reference"
            )
        self.backends = tuple(backends)
        self._allocators: dict[BufferType, GraphAllocator] = {}
        self._pins: dict[Tensor, int] = {}
        self._callback: EvalCallback | None = None
        self._graph: CGraph | None = None
        self._size = (0, 0)
        self._schedule: Schedule | None = None
        self._programs: dict[tuple[int, int, int], Any] = {}
        self._busy: set[int] = set()

    @property
    def n_splits(self) -> int:
        """Splits of the graph that is allocated."""
        return 0 if self._schedule is None else len(self._schedule.splits)

    @property
    def n_copies(self) -> int:
        """Tensors that one compute copies from one backend's memory to another's."""
        return 0 if self._schedule is None else sum(len(s.copies) for s in self._schedule.splits)

    @property
    def splits(self) -> tuple[Split, ...]:
        """The splits of the graph that is allocated, in order."""
        return () if self._schedule is None else tuple(self._schedule.splits)

    def buffer_size(self, backend: Backend) -> int:
        """Bytes for intermediate results in the backend's memory."""
        allocator = self._allocators.get(backend.buffer_type())
        return 0 if allocator is None else allocator.buffer_size

    def set_tensor_backend(self, tensor: Tensor, backend: Backend) -> None:
        """Wish that ``backend`` computes a node, or holds a leaf; the next allocation heeds it.

        A wish that cannot be met is passed over: the op is not supported there, or the node writes
        into memory that exists and the backend does not reach. Views follow what they look into.

        Raises:
            BackendError: not one of this scheduler's.
        """
        self._pins[tensor] = self._index(backend)

    def get_tensor_backend(self, tensor: Tensor) -> Backend | None:
        """Who computes a node, or whose memory holds a view or leaf; None before allocation."""
        if self._schedule is None or tensor not in self._schedule.twin:
            return None
        a = self._schedule.assignment
        found = a.node.get(tensor, a.home.get(root_of(tensor)))
        if found is None:
            reach = (i for i in range(len(self.backends)) if a.reaches(i, tensor))
            found = next(reach, None)
        return None if found is None else self.backends[found]

    def set_eval_callback(self, callback: EvalCallback | None) -> None:
        """Let ``callback(node, ask)`` look at nodes; None ends that.

        It is asked for each node in order (``ask`` True) whether it wants it. If so, everything up
        to the node is computed, then it is called again (``ask`` False) and may read the node's
        memory; False ends the compute. Nodes in between run as they would otherwise, fused too.
        """
        self._callback = callback

    def reserve(self, graph: CGraph) -> None:
        """Make the memory of all backends large enough for ``graph``, the worst case.

        Raises:
            AllocError: no memory. UnsupportedOp: as ``alloc_graph``.
        """
        schedule = self._cut(graph)
        for buft, homes in schedule.homes.items():
            self._allocator(buft).reserve(schedule.whole, homes)

    def alloc_graph(self, graph: CGraph) -> None:
        """Assign and cut a graph, and give memory to all its tensors that have none of their own.

        Raises:
            AllocError: no memory.
            UnsupportedOp: no backend computes a node, or none that reaches the memory it writes.
        """
        schedule = self._cut(graph)
        self._drop()
        for buft, homes in schedule.homes.items():
            self._allocator(buft).alloc_graph(schedule.whole, homes)
        for window in schedule.windows:
            place_view(window)
        for tensor, twin in schedule.twin.items():
            place_view(twin)
            tensor.buffer, tensor.data = twin.buffer, twin.data
        self._graph, self._size, self._schedule = graph, _size(graph), schedule

    def graph_compute(self, graph: CGraph) -> None:
        """Compute all nodes, and wait for them; allocates only if ``graph`` is another than before.

        Raises:
            AllocError: no memory.
            UnsupportedOp, ComputeError, Aborted: as ``Backend.graph_compute``.
        """
        self.graph_compute_async(graph)
        self.synchronize()

    def graph_compute_async(self, graph: CGraph) -> None:
        """The same, but work may still be queued when it returns: ``synchronize`` before
        reading results or writing inputs.

        With an eval callback, or where all backends block, nothing is left to wait for.
        """
        if graph is not self._graph or _size(graph) != self._size:
            self.alloc_graph(graph)
        assert self._schedule is not None
        try:
            for i, split in enumerate(self._schedule.splits):
                self._prepare(split)
                if self._callback is None:
                    self._run(i, 0, len(split.nodes))
                elif not self._run_watched(i, self._callback):
                    break
        except BaseException:
            for i in self._busy.copy():  # nothing may be left that writes into this memory
                with contextlib.suppress(PyggmlError):
                    self._wait(i)
            raise

    def synchronize(self) -> None:
        """Wait for all queued work. Raises: as ``graph_compute``."""
        for i in self._busy.copy():
            self._wait(i)

    def reset(self) -> None:
        """Forget wishes and graph; the memory is kept for the next one."""
        self._pins.clear()
        self._drop()

    def _index(self, backend: Backend) -> int:
        for i, known in enumerate(self.backends):
            if known is backend:
                return i
        names = ", ".join(b.name for b in self.backends)
        raise BackendError(f"backend '{backend.name}' is not of this scheduler, which has {names}")

    def _drop(self) -> None:
        self.synchronize()
        self._graph = self._schedule = None
        self._programs.clear()

    def _cut(self, graph: CGraph) -> Schedule:
        def is_given(root: Tensor) -> bool:
            return root.data != 0 and not any(a.owns(root) for a in self._allocators.values())

        return cut(graph, assign(graph, self.backends, self._pins, is_given))

    def _allocator(self, buft: BufferType) -> GraphAllocator:
        return self._allocators.setdefault(buft, GraphAllocator(buft))

    def _prepare(self, split: Split) -> None:
        """Everything that must have happened before a split runs: waits and copies."""
        mine = self.backends[split.backend]
        for i in self._busy - {split.backend}:
            other = self.backends[i]
            if mine.supports_buft(other.buffer_type()) or other.supports_buft(mine.buffer_type()):
                self._wait(i)  # memory in common
        for copy in split.copies:
            for tensor in (copy.src, copy.dst):  # queued work may write the one, read the other
                assert tensor.buffer is not None
                for i in self._busy.copy():
                    if self.backends[i].supports_buft(tensor.buffer.buft):
                        self._wait(i)
            transfer(copy.src, copy.dst)

    def _run(self, i: int, first: int, end: int) -> None:
        """Run the nodes ``first`` up to, not with, ``end`` of split ``i``."""
        assert self._schedule is not None
        split = self._schedule.splits[i]
        nodes = split.nodes[first:end]
        if not any(map(runs, nodes)):
            return
        backend, key = self.backends[split.backend], (i, first, end)
        made = self._programs.get(key)
        if made is None:
            made = self._schedule.part(nodes)
            if isinstance(backend, CompilingBackend):
                made = backend.compile(made)
            self._programs[key] = made
        if isinstance(backend, AsyncBackend):
            self._busy.add(split.backend)
        if isinstance(backend, CompilingBackend):
            backend.run(made)
        else:
            backend.graph_compute(made)

    def _run_watched(self, i: int, callback: EvalCallback) -> bool:
        """Run a split up to each node that the callback wants; False if it says stop."""
        assert self._schedule is not None
        nodes = self._schedule.splits[i].nodes
        first = 0
        for end, node in enumerate(nodes, 1):
            if callback(node, True):
                self._run(i, first, end)
                self.synchronize()
                first = end
                if not callback(node, False):
                    return False
        self._run(i, first, len(nodes))
        return True

    def _wait(self, i: int) -> None:
        self._busy.discard(i)
        backend = self.backends[i]
        assert isinstance(backend, AsyncBackend)
        backend.synchronize()


def _size(graph: CGraph) -> tuple[int, int]:
    return len(graph.nodes), len(graph.leafs)
