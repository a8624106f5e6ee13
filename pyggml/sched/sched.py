"""The scheduler: graphs on several backends, each with memory of its own.

    sched = Sched([gpu, cpu, reference])           # a lower index is preferred
    sched.reserve(largest_graph)                   # the only allocation
    schedule = sched.compile(graph)                # assigns, splits, plans, lowers
    x.set(values)
    schedule.run()                                 # again and again: allocates nothing

Many schedules may exist. They share the reserved memory, so run one at a time, and write its inputs
again after another one ran. ``set_tensor_backend``, ``alloc_graph`` and ``graph_compute`` are the
interface of ggml, for one graph at a time.

The user's graph keeps its sources and gets addresses. ``run`` blocks until the results are
computed. Not thread-safe.
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
        # Buffer types that queued work of a device may read or write. A CPU queues nothing.
        self._touched: dict[int, set[BufferType]] = {
            i: set() for i, backend in enumerate(backends) if backend.device.kind != "cpu"
        }

    @property
    def n_splits(self) -> int:
        """Splits of the graph that is allocated."""
        return len(self.splits)

    @property
    def n_copies(self) -> int:
        """The number of copies from one backend's memory to another's in a compute."""
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
        """Ask for ``backend`` to compute a node or to hold a leaf, from the next allocation on.

        Ignored if it is not possible: the backend does not support the op, or cannot reach existing
        memory that the node writes. Views follow their roots.

        Raises:
            BackendError: not one of this scheduler's.
        """
        self._pins[tensor] = self._index(backend)

    def get_tensor_backend(self, tensor: Tensor) -> Backend | None:
        """The backend that computes a node or holds a view or leaf; None before allocation."""
        return None if self._current is None else self._current.backend_of(tensor)

    def set_eval_callback(self, callback: EvalCallback | None) -> None:
        """Call ``callback(node, ask)`` for the nodes of every run; None removes it.

        With ``ask`` True it returns whether it wants the node. If so, everything up to the node is
        computed, and the callback is called with ``ask`` False: it may read the node's memory, and
        returns False to stop the compute. Nodes in between run as usual, also fused.
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

    def sizes(self, graph: CGraph) -> dict[BufferType, int]:
        """The bytes that ``reserve`` would allocate for ``graph`` alone, by buffer type.

        Raises:
            UnsupportedOp: as ``compile``.
        """
        made = self._cut(graph, self._pins)
        if made is None:
            buft = self.backends[0].buffer_type()
            return {buft: self._allocator(buft).plan(graph).size}
        return {
            buft: self._allocator(buft).plan(made.whole, homes).size
            for buft, homes in made.homes.items()
        }

    def compile(
        self,
        graph: CGraph,
        *,
        pins: Mapping[Tensor, Backend] | None = None,
        n_threads: int | None = None,
        interruptible: bool = True,
    ) -> Schedule:
        """Assign and split a graph, allocate its tensors without memory, and lower it.

        Args:
            pins: nodes and their backends, as by ``set_tensor_backend``, for this graph only.
            n_threads, interruptible: as for ``Backend.compile``.

        Raises:
            AllocError: no memory.
            UnsupportedOp: no backend computes a node, or none that reaches the memory it writes.
        """
        pinned = {tensor: self._index(backend) for tensor, backend in (pins or {}).items()}
        made = self._place(graph, pinned, n_threads=n_threads, interruptible=interruptible)
        if self._callback is None:
            made.lower()
        return made

    def alloc_graph(self, graph: CGraph) -> None:
        """Assign, split and allocate a graph for ``graph_compute``, in place of the previous one.

        Raises:
            AllocError, UnsupportedOp: as ``compile``.
        """
        self.synchronize()
        self._current = None
        self._current = self._place(graph, self._pins)

    def graph_compute(self, graph: CGraph) -> None:
        """Compute all nodes and wait for them; allocates only if ``graph`` has changed.

        Raises:
            AllocError: no memory.
            UnsupportedOp, ComputeError, Aborted: as ``Backend.graph_compute``.
        """
        self.graph_compute_async(graph)
        self.synchronize()

    def graph_compute_async(self, graph: CGraph) -> None:
        """Like ``graph_compute``, but may return before the results are computed.

        Call ``synchronize`` before reading results or writing inputs. With an eval callback, or if
        all backends block, all is computed on return.
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
        """Stop the running compute, from any thread; ``run`` raises Aborted."""
        for backend in self.backends:
            backend.queue.abort()

    def reset(self) -> None:
        """Forget pinned nodes and the graph; the memory is kept."""
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
        """The splits of a graph; None if one backend runs all and reaches all memory."""
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
        """Make a backend's next work wait for queued work on memory that it also reaches."""
        queue = self.backends[backend].queue
        for i, bufts in self._touched.items():
            if i != backend and any(map(reaches, bufts)):
                queue.wait(self.backends[i].queue.record())


class Schedule:
    """A graph that is ready to run; see ``Sched.compile``.

    Attributes:
        splits: runs of nodes, each of one backend, with the copies made before.
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
        self._only: Program | None = None  # all of it, if there is one backend, which blocks

    def lower(self) -> None:
        """Compile all splits, which else the first ``run`` does. Raises: UnsupportedOp."""
        made = self.programs
        blocks = all(split.backend not in self._sched._touched for split in self.splits)
        if len(made) == len(self.splits) == 1 and blocks and not self.splits[0].copies:
            self._only = made[0]

    @property
    def programs(self) -> list[Program]:
        """The programs of all splits that have nodes to run. Raises: UnsupportedOp."""
        made = [self._program(i, 0, len(split.nodes)) for i, split in enumerate(self.splits)]
        return [program for program in made if program is not None]

    def is_of(self, graph: CGraph) -> bool:
        """Whether it was made of ``graph``, and no node was added since."""
        return graph is self._graph and _size(graph) == self._size

    def plan(self) -> Plan:
        """The plan of intermediate results in the last backend's memory."""
        sched = self._sched
        allocator = sched._allocator(sched.backends[-1].buffer_type())
        if self._cut is None:
            return allocator.plan(self._graph)
        return allocator.plan(self._cut.whole, self._cut.homes.get(allocator.buft, set()))

    def backend_of(self, tensor: Tensor) -> Backend | None:
        """The backend that computes a node or holds a view or leaf; None if not of this graph."""
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
        """Like ``run`` without waiting for the results: see ``Sched.synchronize``."""
        sched = self._sched
        try:
            for i, split in enumerate(self.splits):
                self._prepare(split)
                if sched._callback is None:
                    self._run(i, 0, len(split.nodes))
                elif not self._run_watched(i, sched._callback):
                    break
        except BaseException:
            for i, bufts in sched._touched.items():  # no queued work may still write here
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
        """Wait and copy before a split runs."""
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
        """The program of nodes [first, end) of split ``i``; None if no node runs."""
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
        """Run the nodes [first, end) of split ``i``."""
        program, sched = self._program(i, first, end), self._sched
        if program is None:
            return
        backend = self.splits[i].backend
        if backend in sched._touched:
            sched._touched[backend].add(sched.backends[backend].buffer_type())
        program.enqueue()

    def _run_watched(self, i: int, callback: EvalCallback) -> bool:
        """Run a split up to each node that the callback wants; False if it stops the compute."""
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
