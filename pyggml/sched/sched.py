"""The scheduler: graphs on several backends, each with memory of its own.

    sched = Sched([gpu, cpu, reference])           # a lower index is preferred
    sched.reserve(largest_graph)                   # the only allocation
    schedule = sched.compile(graph)                # assigns, splits, plans, lowers
    x.set(values)
    schedule.run()                                 # again and again: allocates nothing

Many schedules may exist. They share the reserved memory, so run one at a time, and write its inputs
again after another one ran. ``set_tensor_backend``, ``alloc_graph`` and ``graph_compute`` are the
interface of ggml, for one graph at a time.

``compile`` orders nodes so that devices and the CPU work at the same time (``stages.py``), unless a
callback is set; ``alloc_graph`` keeps the order of the graph, as ggml does. The user's graph keeps
its sources and gets addresses. ``run`` blocks until the results are computed. Not thread-safe.
Source: ggml, ``ggml_backend_sched`` (names and meaning).
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ..alloc import GraphAllocator
from ..alloc.gallocr import Plan
from ..backend.interface import Backend, DeviceEvent, Program, StopToken
from ..backend.trace import RunTrace
from ..cgraph import CGraph
from ..context import place_view
from ..errors import BackendError, PyggmlError
from ..quants import to_float
from ..tensor import BufferType, Tensor
from .assign import assign, buffer_types, runs
from .split import Cut, DeviceCopy, Split, cut, in_order
from .stages import by_stage
from .steps import Step, make_steps

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
        if backends[-1].device.is_async:
            raise BackendError(
                f"the last backend is '{backends[-1].name}' on a {backends[-1].device.kind}; it "
                "must be one on the CPU, such as cpu or reference"
            )
        self.backends = tuple(backends)
        self._allocators: dict[BufferType, GraphAllocator] = {}
        self._pins: dict[Tensor, int] = {}
        self._callback: EvalCallback | None = None
        self._current: Schedule | None = None
        self._bufts = buffer_types(backends)
        self._queueing = {i for i, b in enumerate(backends) if b.device.is_async}
        self._busy: set[int] = set()  # backends that may have queued work
        self._in_flight: Schedule | None = None  # whose work that is
        self._runs: set[StopToken] = set()  # those that may not have ended

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

    @property
    def queues_work(self) -> bool:
        """Whether a device may still compute when ``Schedule.enqueue`` has returned."""
        return bool(self._queueing)

    def buffer_size(self, backend: Backend) -> int:
        """Bytes for intermediate results in the backend's memory."""
        allocator = self._allocators.get(self._bufts[self._index(backend)])
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
        for overlap in (False, True):  # the orders of alloc_graph and of compile
            made = self._cut(graph, self._pins, overlap)
            if made is None:
                self._allocator(self._bufts[0]).reserve(graph)
                return
            for buft, homes in made.homes.items():
                self._allocator(buft).reserve(made.whole, homes)

    def sizes(self, graph: CGraph) -> dict[BufferType, int]:
        """The bytes that ``compile`` would allocate for ``graph`` alone, by buffer type.

        Work memory of kernels (``Backend.work_bytes``) is included.

        Raises:
            UnsupportedOp: as ``compile``.
        """
        made = self._cut(graph, self._pins, overlap=True)
        if made is None:
            buft = self._bufts[0]
            size = self._allocator(buft).plan(graph).size
            return {buft: size + self.backends[0].work_bytes([graph])}
        sizes = Counter(
            {
                buft: self._allocator(buft).plan(made.whole, homes).size
                for buft, homes in made.homes.items()
            }
        )
        for i, backend in enumerate(self.backends):
            splits = [split for split in made.splits if split.backend == i]
            parts = [made.part(split.nodes) for split in splits if any(map(runs, split.nodes))]
            if parts:
                sizes[backend.buffer_type()] += backend.work_bytes(parts)
        return dict(sizes)

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
        made = self._place(
            graph, pinned, self._callback is None, n_threads=n_threads, interruptible=interruptible
        )
        if self._callback is None:
            made.lower()
        return made

    def prepare(self, graph: CGraph, *, pins: Mapping[Tensor, Backend] | None = None) -> None:
        """Reserve memory for a graph and compile its kernels, without making its programs.

        A later ``compile`` of a graph that is not larger and has the same kernels does neither.
        Args, Raises: as ``compile``.
        """
        pinned = {tensor: self._index(backend) for tensor, backend in (pins or {}).items()}
        self._place(graph, pinned, self._callback is None).prepare()

    def alloc_graph(self, graph: CGraph) -> None:
        """Assign, split and allocate a graph for ``graph_compute``, in place of the previous one.

        Raises:
            AllocError, UnsupportedOp: as ``compile``.
        """
        self.synchronize()
        self._current = None
        self._current = self._place(graph, self._pins, overlap=False)

    def graph_compute(self, graph: CGraph) -> None:
        """Compute all nodes and wait for them; allocates only if ``graph`` has changed.

        Raises:
            AllocError: no memory.
            UnsupportedOp, ComputeError, Aborted: as ``Backend.graph_compute``.
        """
        if self._current is None or not self._current.is_of(graph):
            self.alloc_graph(graph)
        assert self._current is not None
        self._current.run()

    def synchronize(self) -> None:
        """Wait for all queued work. Raises: as ``graph_compute``."""
        self._in_flight = None
        try:
            self._wait()
        finally:
            runs, self._runs = self._runs, set()
        for stop in runs:
            stop.check()

    def drain(self) -> None:
        """Wait until no queued work is left that could still write, whatever became of it."""
        with contextlib.suppress(PyggmlError):
            self.synchronize()

    def abort(self) -> None:
        """Stop the runs that have begun and not ended, from any thread.

        Waiting for them raises Aborted. What a device has been given is not interrupted, but
        nothing more is given to it. If nothing runs, nothing happens, now or later.
        """
        for stop in tuple(self._runs):
            stop.stop()

    def _wait(self) -> None:
        """Wait for all queues. Raises: ComputeError: the first one."""
        first: PyggmlError | None = None
        for i in tuple(self._busy):
            try:
                self.backends[i].queue.synchronize()
            except PyggmlError as error:
                first = first or error
            self._busy.discard(i)
        if first is not None:
            raise first

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

    def _place(
        self, graph: CGraph, pins: Mapping[Tensor, int], overlap: bool, **options: Any
    ) -> Schedule:
        made = self._cut(graph, pins, overlap)
        if made is None:
            self._allocator(self._bufts[0]).alloc_graph(graph)
            split = Split(0, [], graph.nodes)
            return Schedule(self, graph, None, (split,), (Step(0, split),), options)
        for buft, homes in made.homes.items():
            self._allocator(buft).alloc_graph(made.whole, homes)
        for window in made.windows:
            place_view(window)
        for tensor, twin in made.twin.items():
            place_view(twin)
            tensor.buffer, tensor.data = twin.buffer, twin.data
        steps = make_steps(made, self._queueing)
        return Schedule(self, graph, made, tuple(made.splits), steps, options)

    def _cut(self, graph: CGraph, pins: Mapping[Tensor, int], overlap: bool) -> Cut | None:
        """The splits of a graph; None if one backend runs all and reaches all memory.

        Args:
            overlap: order nodes so that devices and the CPU work at the same time.
        """
        if len(self.backends) == 1:
            bufts = {leaf.buffer.buft for leaf in graph.leafs if leaf.buffer is not None}
            if all(map(self.backends[0].supports_buft, bufts)):
                return None

        def is_given(root: Tensor) -> bool:
            return root.data != 0 and not any(a.owns(root) for a in self._allocators.values())

        assignment = assign(graph, self.backends, self._bufts, pins, is_given)
        order = by_stage if overlap and self._queueing else in_order
        return cut(graph, assignment, order(graph, assignment))

    def _allocator(self, buft: BufferType) -> GraphAllocator:
        return self._allocators.setdefault(buft, GraphAllocator(buft))

    def _begin(self, schedule: Schedule) -> None:
        """Wait for queued work of other schedules, which share the memory."""
        if self._queueing and self._in_flight is not schedule:
            self.synchronize()
            schedule._events = {}
            self._in_flight = schedule


class Schedule:
    """A graph that is ready to run; see ``Sched.compile``.

    Attributes:
        splits: runs of nodes, each of one backend, with the copies that it reads.
        steps: splits and copies on the queues of backends, in order, and what they wait for.
    """

    def __init__(
        self,
        sched: Sched,
        graph: CGraph,
        made: Cut | None,
        splits: tuple[Split, ...],
        steps: tuple[Step, ...],
        options: dict[str, Any],
    ) -> None:
        self.splits, self.steps = splits, steps
        self._sched, self._graph, self._cut, self._options = sched, graph, made, options
        self._size = _size(graph)
        self._programs: dict[tuple[Split, int, int], Program | None] = {}
        self._only: Program | None = None  # all of it, if there is one backend, which blocks
        self._events: dict[int, DeviceEvent] = {}  # of the last run, by step, if it is in flight

    def lower(self) -> None:
        """Compile all splits, which else the first ``run`` does. Raises: UnsupportedOp."""
        made = self.programs
        blocks = all(split.backend not in self._sched._queueing for split in self.splits)
        if len(made) == len(self.splits) == 1 and blocks and not self.splits[0].copies:
            self._only = made[0]

    def prepare(self) -> None:
        """Compile the kernels of all splits. Raises: UnsupportedOp."""
        for split in self.splits:
            part = self._part(split, 0, len(split.nodes))
            if part is not None:
                self._sched.backends[split.backend].prepare(part)

    @property
    def programs(self) -> list[Program]:
        """The programs of all splits that have nodes to run. Raises: UnsupportedOp."""
        made = [self._program(split, 0, len(split.nodes)) for split in self.splits]
        return [program for program in made if program is not None]

    def is_of(self, graph: CGraph) -> bool:
        """Whether it was made of ``graph``, and no node was added since."""
        return graph is self._graph and _size(graph) == self._size

    def plan(self) -> Plan:
        """The plan of intermediate results in the last backend's memory."""
        sched = self._sched
        allocator = sched._allocator(sched._bufts[-1])
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
            if sched._busy:  # with work of other schedules
                sched.synchronize()
            stop = StopToken()
            sched._runs.add(stop)
            try:
                self._only.enqueue(stop)
            finally:
                sched._runs.discard(stop)
        else:
            self.enqueue()
            sched.synchronize()

    def enqueue(self) -> None:
        """Like ``run`` without waiting for the results: see ``Sched.synchronize``.

        Queued work of this schedule goes on beside that of the next ``enqueue`` as far as their
        memory allows. Call ``wait_inputs`` before writing the next inputs.

        Raises:
            UnsupportedOp, ComputeError, Aborted: as ``run``; no work is left in a queue.
        """
        sched, stop = self._sched, StopToken()
        try:
            sched._begin(self)
            sched._runs.add(stop)
            last, self._events = self._events, {}
            for i, step in enumerate(self.steps):
                self._wait(step, last)
                stop.check()
                if not self._do(step.work, step.backend, stop):
                    break
                if step.marked:
                    self._events[i] = sched.backends[step.backend].queue.record()
            if not sched._busy:
                sched._runs.discard(stop)
        except BaseException:
            self._events = {}
            sched.drain()
            raise

    def wait_inputs(self) -> None:
        """Wait until the inputs may be written, while a queued run of this schedule goes on.

        Raises: as ``run``.
        """
        self._sched._begin(self)
        self._wait(self.steps[0], self._events)

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

    def _wait(self, step: Step, last: Mapping[int, DeviceEvent]) -> None:
        """Let a step begin after those that use its memory, of this run and of the last one."""
        queue = self._sched.backends[step.backend].queue
        for i in step.after_last:
            if i in last:
                queue.wait(last[i])
        for i in step.after:
            queue.wait(self._events[i])

    def _do(self, work: Split | DeviceCopy | None, backend: int, stop: StopToken) -> bool:
        """Run a split or make a copy; False if a callback stops the compute."""
        sched = self._sched
        if work is None:
            return True
        if isinstance(work, DeviceCopy):
            if backend in sched._queueing:
                sched._busy.add(backend)
            sched.backends[backend].queue.copy(work.src, work.dst)
            return True
        if sched._callback is not None:
            return self._run_watched(work, sched._callback, stop)
        self._run(work, 0, len(work.nodes), stop)
        return True

    def _program(self, split: Split, first: int, end: int) -> Program | None:
        """The program of nodes [first, end) of a split; None if no node runs."""
        key = split, first, end
        if key not in self._programs:
            part, backend = self._part(*key), self._sched.backends[split.backend]
            made = None if part is None else backend.compile(part, **self._options)
            self._programs[key] = made
        return self._programs[key]

    def _part(self, split: Split, first: int, end: int) -> CGraph | None:
        """The graph of nodes [first, end) of a split; None if no node runs."""
        nodes = [node for node in split.nodes[first:end] if runs(node)]
        if not nodes:
            return None
        if self._cut is not None:
            return self._cut.part(nodes)
        return self._graph if end - first == len(self._graph.nodes) else self._graph.part(nodes)

    def _run(self, split: Split, first: int, end: int, stop: StopToken) -> None:
        """Run the nodes [first, end) of a split."""
        program = self._program(split, first, end)
        if program is not None:
            if split.backend in self._sched._queueing:
                self._sched._busy.add(split.backend)
            program.enqueue(stop)

    def _run_watched(self, split: Split, callback: EvalCallback, stop: StopToken) -> bool:
        """Run a split up to each node that the callback wants; False if it stops the compute."""
        first = 0
        for end, node in enumerate(split.nodes, 1):
            if callback(node, True):
                self._run(split, first, end, stop)
                self._sched._wait()
                first = end
                if not callback(node, False):
                    return False
                stop.check()
        self._run(split, first, len(split.nodes), stop)
        return True


def _size(graph: CGraph) -> tuple[int, int]:
    return len(graph.nodes), len(graph.leafs)


def to_numpy(tensor: Tensor) -> npt.NDArray[Any]:
    """A copy of a tensor's values, wherever it lives: see ``quants.to_float``.

    Synchronize backends that queue their work first.
    """
    return np.array(to_float(tensor), order="C")
