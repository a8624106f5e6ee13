"""A program: an allocated graph as arrays of addresses that the pool walks without Python.

    program = compile_program(graph, 2, get_pool().error_slot, WorkStore())
    get_pool().run(program)

A program is parts that run in order: Python callables, and compiled ones. In these, launches are
grouped into phases. A launch runs in the first phase after those that it depends on,
that is, with which its bytes conflict (read after write, write after read, write after write; work
memory included). So independent nodes (Q, K and V; gate and up) share a phase, and the only barrier
is the end of a phase. Small launches of one row are run by each thread for itself (``replicate``).
All kernels are compiled or loaded when a program is made; it keeps its buffers and kernels alive.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import accumulate

import numpy as np
import numpy.typing as npt

from ....buffer import zeroed
from ....cgraph import CGraph
from ....rounding import ceil_div
from ...common.memory import Range
from . import loop
from .lowering import CpuLaunch, CpuLowering
from .replicate import (
    ReplicaUse,
    ReplicaUses,
    replicate_small,
    slot_offsets,
    thread_records,
)
from .work import WorkMemory, WorkStore

Longs = npt.NDArray[np.int64]
_MAX_CHUNKS, _MAX_PHASES = loop.MAX_CHUNKS, loop.MAX_PHASES


class _Hazards:
    """The last phases that read and wrote each piece of memory.

    A piece lies between neighbouring ends of the ranges that launches access.
    """

    def __init__(self, launches: list[CpuLaunch]) -> None:
        ends = {x for launch in launches for r in (*launch.reads, *launch.writes) for x in r}
        self._number = {address: i for i, address in enumerate(sorted(ends))}
        self._wrote, self._read = [-1] * len(ends), [-1] * len(ends)

    def place(self, launch: CpuLaunch) -> int:
        """The first phase in which the launch may run, after noting its accesses."""
        reads = [self._pieces(r) for r in launch.reads]
        writes = [self._pieces(r) for r in launch.writes]
        before = [max(self._wrote[pieces], default=-1) for pieces in (*reads, *writes)]
        before += [max(self._read[pieces], default=-1) for pieces in writes]
        phase = max(before) + 1
        for pieces in reads:
            self._read[pieces] = [max(last, phase) for last in self._read[pieces]]
        for pieces in writes:
            self._wrote[pieces] = [phase] * (pieces.stop - pieces.start)
        return phase

    def _pieces(self, r: Range) -> slice:
        return slice(self._number[r[0]], self._number[r[1]])


@dataclass(eq=False)
class Phase:
    """Launches that may run at the same time, and replicas that each thread runs before them."""

    launches: list[CpuLaunch] = field(default_factory=list)
    replicas: list[CpuLaunch] = field(default_factory=list)

    @property
    def chunks(self) -> int:
        return sum(launch.chunks for launch in self.launches)

    def add(self, launch: CpuLaunch, uses: ReplicaUses) -> None:
        """Add a launch and the replicas that it reads."""
        self.launches.append(launch)
        for _, use in sorted(uses.items()):
            if use.launch not in self.replicas:
                self.replicas.append(use.launch)


# A Python callable, or phases and the address of their header; the others are None, empty and 0.
Part = tuple[Callable[[], None] | None, list[Phase], int]


class PhaseTable:
    """A compiled graph for the pool, in parts that run in order; see ``compile_program``."""

    def __init__(self, lowering: CpuLowering, error_slot: int, *, sequential: bool = False) -> None:
        lowering.compile()
        self.scratch_bytes = lowering.scratch_bytes
        self.n_threads = lowering.n_threads
        self.seconds = float("inf")  # of the last run
        self.interruptible = True
        self.launches = lowering.launches
        self._records: list[tuple[Longs, list[int], list[CpuLaunch]]] = []  # see `launch_at`
        self._keep: list[object] = [lowering.graph, lowering.work.memory()]
        launches, uses = lowering.launches, dict[CpuLaunch, ReplicaUses]()
        if lowering.fusion and not sequential:
            launches, uses = replicate_small(launches, lowering.graph, self.n_threads)
        self.parts: list[Part] = []
        run: list[CpuLaunch] = []
        for launch in launches:
            if launch.python is None:
                run.append(launch)
                continue
            self._add(run, error_slot, sequential, uses)
            self.parts.append((launch.python, [], 0))
            run = []
        self._add(run, error_slot, sequential, uses)

    @property
    def phases(self) -> list[Phase]:
        """All phases in order."""
        return [phase for _, phases, _ in self.parts for phase in phases]

    def _add(
        self,
        launches: list[CpuLaunch],
        error_slot: int,
        sequential: bool,
        uses: dict[CpuLaunch, ReplicaUses],
    ) -> None:
        """Add the parts of launches between two Python callables."""
        if not launches:
            return
        hazards = _Hazards(launches)
        phases: list[Phase] = []
        for i, launch in enumerate(launches):
            at = i if sequential else hazards.place(launch)
            if at == len(phases):
                phases.append(Phase())
            phases[at].add(launch, uses.get(launch, {}))
        phases = [made for phase in phases for made in _small_enough(phase, uses)]
        for i in range(0, len(phases), _MAX_PHASES):
            some = phases[i : i + _MAX_PHASES]
            self.parts.append((None, some, self._encode(some, uses, error_slot)))

    def launch_at(self, record: int) -> CpuLaunch | None:
        """The launch that has the record at an address."""
        for records, first_bytes, launches in self._records:
            offset = record - int(records.ctypes.data)
            if 0 <= offset < records.nbytes:
                return launches[bisect_right(first_bytes, offset) - 1]
        return None

    def _encode(
        self, phases: list[Phase], uses: Mapping[CpuLaunch, ReplicaUses], error_slot: int
    ) -> int:
        launches = [launch for launch, _ in in_table(phases)]
        sizes = np.array([len(phase.launches) for phase in phases])
        chunks = np.array([phase.chunks for phase in phases])
        first = np.cumsum(sizes) - sizes
        slots = {
            use.launch: slot
            for phase in phases
            for launch in phase.launches
            for slot, use in uses.get(launch, {}).items()
        }
        own = {launch: {slot: ReplicaUse(launch, launch.writes)} for launch, slot in slots.items()}
        number = {launch: i for i, launch in enumerate(launches)}
        *offsets, size = slot_offsets(slots)
        memory = [zeroed(size) for _ in range(self.n_threads)]
        places = np.add.outer(offsets, [m.ctypes.data for m in memory]).astype(np.int64)
        made_records = [
            thread_records(la, uses.get(la, {}) | own.get(la, {}), places, error_slot)
            for la in launches
        ]
        records = np.concatenate([one.reshape(-1) for one in made_records])
        first_bytes = list(accumulate((one.nbytes for one in made_records), initial=0))[:-1]
        base = int(records.ctypes.data)
        rows = []
        for launch, one, first_byte in zip(launches, made_records, first_bytes, strict=True):
            assert launch.kernel is not None
            stride = one.strides[0] if len(one) > 1 else 0
            replicas = [0] * loop.SLOTS
            for slot, use in uses.get(launch, {}).items():
                replicas[slot] = number[use.launch]
            n_chunks = launch.whole or launch.chunks
            rows.append((launch.kernel.address, base + first_byte, n_chunks, stride, *replicas))
        table = np.array(rows, np.int64)  # [launches, LAUNCH_WORDS]
        self._records.append((records, first_bytes, launches))
        self._keep.append([launch.node.buffer for launch in launches])
        shared = launches[: sizes.sum()]
        begins = shares(np.array([launch.chunks for launch in shared]), first, self.n_threads)
        begins += np.array([launch.first for launch in shared])[:, None]
        counts = np.add.reduceat(np.diff(begins, axis=1), first)
        phase_words = np.stack([first, sizes, chunks], axis=1).astype(np.int64)
        header = np.zeros(loop.HEADER_WORDS, np.int64)
        header[loop.H_N_PHASES] = len(phases)
        arrays = {
            loop.H_PHASES: phase_words,
            loop.H_LAUNCHES: table,
            loop.H_COUNTS: counts,
            loop.H_BEGINS: begins,
        }
        for word, array in arrays.items():
            header[word] = array.ctypes.data
        self._keep.append((arrays, memory, header))
        return int(header.ctypes.data)


def _small_enough(phase: Phase, uses: dict[CpuLaunch, ReplicaUses]) -> Iterator[Phase]:
    """A phase as one or several, none of more chunks than the loop can count.

    Args:
        uses: gets the replicas of launches that are cut.
    """
    if phase.chunks <= _MAX_CHUNKS:
        yield phase
        return
    made, left = Phase(), _MAX_CHUNKS
    for launch in phase.launches:
        begin = 0
        while begin < launch.chunks:
            n = min(left, launch.chunks - begin)
            piece = launch
            if n < launch.chunks:
                piece = replace(launch, chunks=n, first=begin, whole=launch.chunks)
            uses[piece] = uses.get(launch, {})
            made.add(piece, uses[piece])
            begin, left = begin + n, left - n
            if left == 0:
                yield made
                made, left = Phase(), _MAX_CHUNKS
    if made.launches:
        yield made


def in_table(phases: list[Phase]) -> list[tuple[CpuLaunch, int]]:
    """Launches with their phases, in the order of the table: replicas after all others."""
    shared = [(launch, i) for i, phase in enumerate(phases) for launch in phase.launches]
    replicas = [(launch, i) for i, phase in enumerate(phases) for launch in phase.replicas]
    return shared + list({launch: (launch, i) for launch, i in reversed(replicas)}.values())[::-1]


def shares(chunks: Longs, first: Longs, n: int) -> Longs:
    """The shares of threads in the chunks of each launch: thread t has chunks [t] up to [t + 1].

    The shares of a launch are equal. Launches of a phase with fewer chunks than threads are shared
    out together.

    Args:
        chunks: of each launch.
        first: the first launch of each phase.
        n: threads.

    Returns:
        int64[launches, n + 1].
    """
    threads = np.arange(n + 1)
    begins: Longs = ceil_div(chunks[:, None] * threads, n)
    few = np.where(chunks < n, chunks, 0)
    before = np.cumsum(few) - few
    sizes = np.diff(np.append(first, len(chunks)))
    before -= np.repeat(before[first], sizes)
    total = np.repeat(np.add.reduceat(few, first), sizes)[:, None]
    dealt = np.where(total < n, threads, ceil_div(total * threads, n)) - before[:, None]
    few_begins = np.clip(dealt, 0, chunks[:, None])
    return np.where(chunks[:, None] < n, few_begins, begins)


def compile_program(
    graph: CGraph,
    n_threads: int,
    error_slot: int,
    store: WorkStore,
    *,
    fusion: bool = True,
    sequential: bool = False,
) -> PhaseTable:
    """Lower an allocated graph.

    Args:
        fusion: let kernels take several adjacent nodes at once.
        sequential: one launch per phase, in the graph's order (for tests).

    Raises:
        UnsupportedOp: a node that no kernel takes.
    """
    lowering = CpuLowering(graph, n_threads, WorkMemory(store), fusion)
    lowering.run()
    return PhaseTable(lowering, error_slot, sequential=sequential)
