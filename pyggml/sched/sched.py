"""The scheduler: graphs on several backends, each with memory of its own.

    sched = Sched([gpu, cpu, reference])           # a lower index is preferred
    sched.reserve(largest_graph)                   # the one allocation
    schedule = sched.compile(graph)                # assigns, cuts, plans, lowers
    x.set(values)
    schedule.run()                                 # again and again: allocates nothing

Many schedules may be alive. They share the memory that was reserved, so run one at a time and write
its inputs again after another one ran. ``set_tensor_backend``, ``alloc_graph`` and
``graph_compute`` are ggml's interface to the same: one graph at a time.

The user's graph keeps its sources and is given addresses. ``run`` blocks until the results are
there. Not thread-safe.
Source: ggml, ``ggml_backend_sched`` (names and meaning).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy.typing as npt

from ..alloc import GraphAllocator
from ..alloc.gallocr import Plan
from ..backend.interface import Backend, Program
from ..backend.trace import RunTrace
from ..buffer import BufferType
from ..cgraph import CGraph
from ..context import place_view
from ..errors import BackendError, PyggmlError
from ..tensor import Tensor
from .assign import assign, runs
from .split import Cut, Split, cut
from .values import to_numpy

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
        self._current: Schedule | None = None
        # Kinds of memory that the queued work of a device may read or write. A CPU queues nothing.
        self._touched: dict[int, set[BufferType]] = {
            i: set() for i, backend in enumerate(backends) if backend.device.kind != "cpu"
        }

    @property
    def n_splits(self) -> int:
        """Splits of the graph that is allocated."""
        return len(self.splits)

    @property
    def n_copies(self) -> int:
        """Tensors that one compute copies from one backend's memory to another's."""
        return sum(len(split.copies) for split in self.splits)

    @property
    def splits(self) -> tuple[Split, ...]:
        """The splits of the graph that is allocated, in order."""
        return () if self._current is None else self._current.splits

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
        return None if self._current is None else self._current.backend_of(tensor)

    def set_eval_callback(self, callback: EvalCallback | None) -> None:
        """Let ``callback(node, ask)`` look at the nodes of every run; None ends that.

        It is asked for each node in order (``ask`` True) whether it wants it. If so, everything up
        to the node is computed, then it is called again (``ask`` False) and may read the node's
        memory; False ends the compute. Nodes in between run as they would otherwise, fused too.
        """
        self._callback = callback

    def reserve(self, graph: CGraph) -> None:
        """Make the memory of all backends large enough for ``graph``, the worst case.

        Raises:
            AllocError: no memory. UnsupportedOp: as ``compile``.
        """
        made = self._cut(graph, self._pins)
        if made is None:
            self._allocator(self.backends[0].buffer_type()).reserve(graph)
            return
        for buft, homes in made.homes.items():
            self._allocator(buft).reserve(made.whole, homes)

    def compile(
        self,
        graph: CGraph,
        *,
        wishes: Mapping[Tensor, Backend] | None = None,
        n_threads: int | None = None,
        interruptible: bool = True,
    ) -> Schedule:
        """Assign and cut a graph, give memory to all its tensors that have none, and lower it.

        Args:
            wishes: see ``set_tensor_backend``; for this graph only.
            n_threads, interruptible: as for ``Backend.compile``.

        Raises:
            AllocError: no memory.
            UnsupportedOp: no backend computes a node, or none that reaches the memory it writes.
        """
        pins = {tensor: self._index(backend) for tensor, backend in (wishes or {}).items()}
        made = self._place(graph, pins, n_threads=n_threads, interruptible=interruptible)
        if self._callback is None:
            made.lower()
        return made

    def alloc_graph(self, graph: CGraph) -> None:
        """Assign, cut and allocate a graph for ``graph_compute``; one allocated before is given up.

        Raises:
            AllocError, UnsupportedOp: as ``compile``.
        """
        self.synchronize()
        self._current = None
        self._current = self._place(graph, self._pins)

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
        if self._current is None or not self._current.is_of(graph):
            self.alloc_graph(graph)
        assert self._current is not None
        self._current.enqueue()

    def synchronize(self) -> None:
        """Wait for all queued work. Raises: as ``graph_compute``."""
        for i, bufts in self._touched.items():
            if bufts:
                bufts.clear()
                self.backends[i].queue.synchronize()

    def abort(self) -> None:
        """Stop what runs, from any thread; ``run`` raises Aborted."""
        for backend in self.backends:
            backend.queue.abort()

    def reset(self) -> None:
        """Forget wishes and graph; the memory is kept for the next one."""
        self.synchronize()
        self._pins.clear()
        self._current = None

    def _index(self, backend: Backend) -> int:
        for i, known in enumerate(self.backends):
            if known is backend:
                return i
        names = ", ".join(b.name for b in self.backends)
        raise BackendError(f"backend '{backend.name}' is not of this scheduler, which has {names}")

    def _place(self, graph: CGraph, pins: Mapping[Tensor, int], **options: Any) -> Schedule:
        made = self._cut(graph, pins)
        if made is None:
            self._allocator(self.backends[0].buffer_type()).alloc_graph(graph)
            return Schedule(self, graph, None, (Split(0, [], graph.nodes),), options)
        for buft, homes in made.homes.items():
            self._allocator(buft).alloc_graph(made.whole, homes)
        for window in made.windows:
            place_view(window)
        for tensor, twin in made.twin.items():
            place_view(twin)
            tensor.buffer, tensor.data = twin.buffer, twin.data
        return Schedule(self, graph, made, tuple(made.splits), options)

    def _cut(self, graph: CGraph, pins: Mapping[Tensor, int]) -> Cut | None:
        """The splits of a graph; None where one backend reaches all memory there is."""
        if len(self.backends) == 1:
            bufts = {leaf.buffer.buft for leaf in graph.leafs if leaf.buffer is not None}
            if all(map(self.backends[0].supports_buft, bufts)):
                return None

        def is_given(root: Tensor) -> bool:
            return root.data != 0 and not any(a.owns(root) for a in self._allocators.values())

        return cut(graph, assign(graph, self.backends, pins, is_given))

    def _allocator(self, buft: BufferType) -> GraphAllocator:
        return self._allocators.setdefault(buft, GraphAllocator(buft))

    def _order(self, backend: int, reaches: Callable[[BufferType], bool]) -> None:
        """Let a backend's next work wait for all queued work on memory that it reaches too."""
        queue = self.backends[backend].queue
        for i, bufts in self._touched.items():
            if i != backend and any(map(reaches, bufts)):
                queue.wait(self.backends[i].queue.record())


class Schedule:
    """A graph that is ready to run; see ``Sched.compile``.

    Attributes:
        splits: nodes in a row that one backend computes, and the copies made before.
    """

    def __init__(
        self,
        sched: Sched,
        graph: CGraph,
        made: Cut | None,
        splits: tuple[Split, ...],
        options: dict[str, Any],
    ) -> None:
        self.splits = splits
        self._sched, self._graph, self._cut, self._options = sched, graph, made, options
        self._size = _size(graph)
        self._programs: dict[tuple[int, int, int], Program | None] = {}
        self._only: Program | None = None  # the whole of it, on a backend that blocks

    def lower(self) -> None:
        """Compile all splits; ``run`` does it where this was not called. Raises: UnsupportedOp."""
        made = self.programs
        blocks = all(split.backend not in self._sched._touched for split in self.splits)
        if len(made) == len(self.splits) == 1 and blocks and not self.splits[0].copies:
            self._only = made[0]

    @property
    def programs(self) -> list[Program]:
        """The programs of the splits that run something. Raises: UnsupportedOp."""
        made = [self._program(i, 0, len(split.nodes)) for i, split in enumerate(self.splits)]
        return [program for program in made if program is not None]

    def is_of(self, graph: CGraph) -> bool:
        """Whether it was made of a graph, and no node has come since."""
        return graph is self._graph and _size(graph) == self._size

    def plan(self) -> Plan:
        """Where intermediate results are in the last backend's memory."""
        sched = self._sched
        allocator = sched._allocator(sched.backends[-1].buffer_type())
        if self._cut is None:
            return allocator.plan(self._graph)
        return allocator.plan(self._cut.whole, self._cut.homes.get(allocator.buft, set()))

    def backend_of(self, tensor: Tensor) -> Backend | None:
        """Who computes a node, or whose memory holds a view or leaf; None of another graph's."""
        backends = self._sched.backends
        if self._cut is None:
            return backends[0]
        if tensor not in self._cut.twin:
            return None
        a = self._cut.assignment
        found = a.node.get(tensor, a.home.get(tensor.root))
        if found is None:
            reach = (i for i in range(len(backends)) if a.reaches(i, tensor))
            found = next(reach, None)
        return None if found is None else backends[found]

    def run(self) -> None:
        """Compute all nodes and wait for them.

        Raises:
            UnsupportedOp, ComputeError, Aborted: as ``Backend.graph_compute``.
        """
        sched = self._sched
        if self._only is not None and sched._callback is None:
            self._only.enqueue()
        else:
            self.enqueue()
            sched.synchronize()

    def enqueue(self) -> None:
        """``run`` without the wait at its end: see ``Sched.synchronize``."""
        sched = self._sched
        try:
            for i, split in enumerate(self.splits):
                self._prepare(split)
                if sched._callback is None:
                    self._run(i, 0, len(split.nodes))
                elif not self._run_watched(i, sched._callback):
                    break
        except BaseException:
            for i, bufts in sched._touched.items():  # nothing may be left that writes here
                bufts.clear()
                with contextlib.suppress(PyggmlError):
                    sched.backends[i].queue.synchronize()
            raise

    def read(self, tensor: Tensor) -> npt.NDArray[Any]:
        """A copy of a tensor's values after a run: see ``to_numpy``."""
        return to_numpy(tensor)

    def trace(self, repeats: int = 1) -> list[RunTrace]:
        """When each node ran, on the inputs of the last run.

        Raises:
            BackendError: the graph is cut into several splits.
            ComputeError, Aborted: as ``Program.trace``.
        """
        if self._only is None:
            raise BackendError(
                f"the graph runs in {len(self.splits)} splits on several backends: only one that "
                "runs on the CPU in one piece can be traced"
            )
        return self._only.trace(repeats)

    def _prepare(self, split: Split) -> None:
        """Everything that must have happened before a split runs: waits and copies."""
        sched, i = self._sched, split.backend
        backend = sched.backends[i]
        sched._order(i, backend.supports_buft)
        for copy in split.copies:
            assert copy.src.buffer is not None and copy.dst.buffer is not None
            bufts = {copy.src.buffer.buft, copy.dst.buffer.buft}
            sched._order(i, bufts.__contains__)
            backend.queue.copy(copy.src, copy.dst)
            if i in sched._touched:
                sched._touched[i] |= bufts

    def _program(self, i: int, first: int, end: int) -> Program | None:
        """The nodes ``first`` up to, not with, ``end`` of split ``i``; None if nothing runs."""
        key = i, first, end
        if key not in self._programs:
            split = self.splits[i]
            nodes = [node for node in split.nodes[first:end] if runs(node)]
            made = None
            if nodes:
                if self._cut is not None:
                    part = self._cut.part(nodes)
                elif end - first == len(self._graph.nodes):
                    part = self._graph
                else:
                    part = self._graph.part(nodes)
                backend = self._sched.backends[split.backend]
                made = backend.compile(part, **self._options)
            self._programs[key] = made
        return self._programs[key]

    def _run(self, i: int, first: int, end: int) -> None:
        """Run the nodes ``first`` up to, not with, ``end`` of split ``i``."""
        program, sched = self._program(i, first, end), self._sched
        if program is None:
            return
        backend = self.splits[i].backend
        if backend in sched._touched:
            sched._touched[backend].add(sched.backends[backend].buffer_type())
        program.enqueue()

    def _run_watched(self, i: int, callback: EvalCallback) -> bool:
        """Run a split up to each node that the callback wants; False if it says stop."""
        nodes = self.splits[i].nodes
        first = 0
        for end, node in enumerate(nodes, 1):
            if callback(node, True):
                self._run(i, first, end)
                self._sched.synchronize()
                first = end
                if not callback(node, False):
                    return False
        self._run(i, first, len(nodes))
        return True


def _size(graph: CGraph) -> tuple[int, int]:
    return len(graph.nodes), len(graph.leafs)
