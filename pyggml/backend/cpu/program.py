"""A program: an allocated graph as arrays of addresses that the pool walks without Python.

    program = compile_program(graph, n_threads=2, pool=get_pool(), store=WorkStore())
    pool.run(program, 2)

Launches become phases: a launch runs one phase after the last one that it depends on, where depends
means overlapping bytes of memory (read after write, write after read, write after write; work
memory included). So nodes that do not touch each other (Q, K and V; gate and up) share a phase, and
each phase boundary is the only barrier. A program keeps its buffers and kernels alive.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ...cgraph import CGraph
from ...errors import UnsupportedOp
from .abi import record
from .lowering import Launch, Lowering, Range
from .work import WorkMemory, WorkStore

_MAX_PHASES = (1 << 16) - 2  # what fits the pool's claim word
_MAX_CHUNKS = (1 << 20) - 1
_GRANULES = 8192  # dependency tracking cuts each span of memory into about this many pieces


class _Hazards:
    """The last phase that read and wrote each piece of memory."""

    def __init__(self, launches: list[Launch]) -> None:
        spans = _merge([r for launch in launches for r in (*launch.reads, *launch.writes)])
        self._starts = [start for start, _ in spans]
        self._shift = [max(6, ((end - start) // _GRANULES).bit_length()) for start, end in spans]
        sizes = [
            ((end - start) >> shift) + 1
            for (start, end), shift in zip(spans, self._shift, strict=True)
        ]
        self._wrote = [np.full(n, -1, np.int32) for n in sizes]
        self._read = [np.full(n, -1, np.int32) for n in sizes]

    def place(self, launch: Launch) -> int:
        """The first phase in which the launch may run; its own accesses are noted."""
        reads = [self._locate(r) for r in launch.reads]
        writes = [self._locate(r) for r in launch.writes]
        phase = 0
        for i, part in (*reads, *writes):
            phase = max(phase, int(self._wrote[i][part].max()) + 1)
        for i, part in writes:
            phase = max(phase, int(self._read[i][part].max()) + 1)
        for i, part in reads:
            np.maximum(self._read[i][part], phase, out=self._read[i][part])
        for i, part in writes:
            self._wrote[i][part] = phase
        return phase

    def _locate(self, r: Range) -> tuple[int, slice]:
        i = bisect_right(self._starts, r[0]) - 1
        start, shift = self._starts[i], self._shift[i]
        return i, slice((r[0] - start) >> shift, ((r[1] - 1 - start) >> shift) + 1)


def _merge(ranges: list[Range]) -> list[Range]:
    """Overlapping or touching ranges as one, in order of address."""
    spans: list[Range] = []
    for start, end in sorted(set(ranges)):
        if spans and start <= spans[-1][1]:
            spans[-1] = spans[-1][0], max(end, spans[-1][1])
        else:
            spans.append((start, end))
    return spans


@dataclass(eq=False)
class Phase:
    """Launches that may run at the same time."""

    launches: list[Launch]

    @property
    def chunks(self) -> int:
        return sum(launch.chunks for launch in self.launches)


class Program:
    """What the pool runs; see ``compile_program``."""

    def __init__(self, lowering: Lowering, error_slot: int, *, sequential: bool = False) -> None:
        self.scratch_bytes = lowering.scratch_bytes
        self.n_threads = lowering.n_threads
        self.seconds = float("inf")  # what the last run took
        self.launches = lowering.launches
        self._keep: list[object] = [lowering.graph, lowering.work.memory()]
        self._parts: list[tuple[Callable[[], None] | None, list[Phase], int]] = []
        run: list[Launch] = []
        for launch in lowering.launches:
            if launch.python is None:
                run.append(launch)
                continue
            self._add(run, error_slot, sequential)
            self._parts.append((launch.python, [], 0))
            run = []
        self._add(run, error_slot, sequential)

    @property
    def phases(self) -> list[Phase]:
        """All phases in order."""
        return [phase for _, phases, _ in self._parts for phase in phases]

    def phase_counts(self) -> list[int]:
        """Phases of each part."""
        return [len(phases) for _, phases, _ in self._parts]

    def parts(self) -> Iterator[tuple[Callable[[], None] | None, list[Phase], int]]:
        """A Python callable, or phases and their header, in order."""
        yield from self._parts

    def segments(self) -> Iterator[tuple[Callable[[], None] | None, int]]:
        """Parts to run in order: a Python callable, or the header of compiled phases."""
        for python, _, header in self._parts:
            yield python, header

    def _add(self, launches: list[Launch], error_slot: int, sequential: bool) -> None:
        if not launches:
            return
        hazards = _Hazards(launches)
        phases: list[Phase] = []
        for i, launch in enumerate(launches):
            at = i if sequential else hazards.place(launch)
            if at == len(phases):
                phases.append(Phase([]))
            phases[at].launches.append(launch)
        if len(phases) > _MAX_PHASES:
            raise UnsupportedOp(f"a graph of {len(phases)} phases: the limit is {_MAX_PHASES}")
        self._parts.append((None, phases, self._encode(phases, error_slot)))

    def _encode(self, phases: list[Phase], error_slot: int) -> int:
        phase_words = np.zeros((len(phases), 3), np.int64)
        launch_words: list[tuple[int, int, int, int]] = []
        records: list[npt.NDArray[np.int64]] = []
        for i, phase in enumerate(phases):
            if phase.chunks > _MAX_CHUNKS:
                raise UnsupportedOp(f"a phase of {phase.chunks} chunks: the limit is {_MAX_CHUNKS}")
            phase_words[i] = len(launch_words), len(phase.launches), phase.chunks
            first = 0
            for launch in phase.launches:
                assert launch.kernel is not None
                words = record(error_slot, launch.params, launch.dst, launch.src)
                records.append(words)
                launch_words.append(
                    (launch.kernel.address, words.ctypes.data, launch.chunks, first)
                )
                self._keep.append((launch.kernel, launch.dst.buffer))
                first += launch.chunks
        table = np.array(launch_words, np.int64)
        header = np.array([phase_words.ctypes.data, len(phases), table.ctypes.data], np.int64)
        self._keep.append((phase_words, table, records, header))
        return int(header.ctypes.data)


def compile_program(
    graph: CGraph,
    n_threads: int,
    error_slot: int,
    store: WorkStore,
    *,
    fusion: bool = True,
    sequential: bool = False,
) -> Program:
    """Lower an allocated graph.

    Args:
        fusion: let kernels take several adjacent nodes at once.
        sequential: one launch a phase, in the graph's order (for tests).

    Raises:
        UnsupportedOp: a node that no kernel takes.
    """
    lowering = Lowering(graph, n_threads, WorkMemory(store), fusion)
    lowering.run()
    return Program(lowering, error_slot, sequential=sequential)
