"""When each chunk of a program ran, and on which thread; and the time of each phase.

    runs = trace(program, repeats=5)
    runs[0].wall_ns, runs[0].launches[3].launch.name, runs[0].start_ns[7], runs[0].thread[7]
    for row in profile(program, repeats=20):
        print(row.label, row.ns, row.bytes / row.ns)     # nanoseconds, GB/s

A profile is timed with the core's cycle counter between phases, so nothing is slowed down or cut.
A traced program is the same program with another table of launches, whose kernel stamps the cycle
counter, calls the real one and stamps again. So an untraced run pays nothing, and a traced one
about 0.1 us a chunk. Runs a program again on the inputs that it has.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ....errors import ComputeError
from ...trace import RunTrace, TracedLaunch
from ..compile import loop
from ..compile.lowering import CpuLaunch
from ..compile.program import Part, Phase, PhaseTable, in_table
from .pool import get_pool

_ALIGN_S = 0.005  # the least time between two looks at both clocks

Longs = npt.NDArray[np.int64]


class _TracedProgram:
    """A program with stamps; what ``Pool.run`` needs of one."""

    def __init__(self, program: PhaseTable) -> None:
        self.n_threads, self.scratch_bytes = program.n_threads, program.scratch_bytes
        self.seconds, self.interruptible = float("inf"), True
        self.launches: list[TracedLaunch] = []
        self._keep: list[object] = []
        self._program = program
        self.parts: list[Part] = []
        order = _launches(program)
        n_chunks = sum(launch.chunks for part, _ in order for launch, _ in part)
        self.stamps: Longs = np.zeros((n_chunks, loop.STAMP_WORDS), np.int64)
        first = phase_number = 0
        for launches, header in order:
            begin = first
            for launch, phase in launches:
                self.launches.append(TracedLaunch(launch, phase_number + phase, first))
                first += launch.chunks
            phase_number += 1 + max(phase for _, phase in launches)
            if header == 0:
                self.parts.append((self._call(launches[0][0], begin), [], 0))
            else:
                encoded = self._encode(header, [la for la, _ in launches], begin)
                self.parts.append((None, [], encoded))
        replicas = {
            la for _, phases, _ in program.parts for phase in phases for la in phase.replicas
        }
        self.launches.sort(key=lambda traced: (traced.phase, traced.launch not in replicas))

    def launch_at(self, record: int) -> CpuLaunch | None:
        """The program's launch: its records are those of the program."""
        return self._program.launch_at(record)

    def _call(self, launch: CpuLaunch, at: int) -> Callable[[], None]:
        def call() -> None:
            assert launch.python is not None
            begin = loop.read_cycles()
            launch.python()
            self.stamps[at] = begin, loop.read_cycles(), 0

        return call

    def _encode(self, header: int, launches: list[CpuLaunch], first: int) -> int:
        """A header like ``header`` whose launches go through ``traced_chunk``."""
        words = _words(header, loop.HEADER_WORDS).copy()
        n_phases = int(words[loop.H_N_PHASES])
        last = _words(int(words[loop.H_PHASES]), loop.PHASE_WORDS * n_phases)[-loop.PHASE_WORDS :]
        shared = int(last[loop.P_LAUNCH] + last[loop.P_LAUNCHES])  # each thread runs the others
        n, threads = len(launches), np.arange(self.n_threads)
        table = _words(int(words[loop.H_LAUNCHES]), n * loop.LAUNCH_WORDS).reshape(n, -1).copy()
        records = np.zeros((n, self.n_threads, 3), np.int64)
        records[:, :, 0] = table[:, loop.L_KERNEL, None]
        records[:, :, 1] = table[:, loop.L_NODE, None] + table[:, loop.L_STRIDE, None] * threads
        starts = first + np.cumsum([0, *(launch.chunks for launch in launches)])[:-1]
        starts -= np.array([launch.first for launch in launches])  # of a launch that was cut
        own = np.where(np.arange(n)[:, None] < shared, 0, threads)
        records[:, :, 2] = self.stamps.ctypes.data + 8 * loop.STAMP_WORDS * (starts[:, None] + own)
        table[:, loop.L_KERNEL] = loop.traced_chunk.address
        table[:, loop.L_NODE] = records.ctypes.data + records.strides[0] * np.arange(n)
        table[:, loop.L_STRIDE] = records.strides[1]
        words[loop.H_LAUNCHES] = table.ctypes.data
        self._keep.append((table, records, words))
        return int(words.ctypes.data)


def trace(program: PhaseTable, repeats: int = 1) -> list[RunTrace]:
    """Run a program some times, on the inputs of its last run.

    Raises:
        ComputeError: this machine has no cycle counter, or a kernel failed.
        Aborted: the compute was stopped.
    """
    traced, pool = _TracedProgram(program), get_pool()
    runs: list[tuple[Longs, list[int]]] = []
    before = time.perf_counter_ns(), loop.read_cycles()
    for _ in range(repeats):
        traced.stamps[:] = 0
        pool.run(traced)
        runs.append((traced.stamps.copy(), pool.scratch_addresses()))
    while time.perf_counter_ns() - before[0] < 1e9 * _ALIGN_S:
        pass
    elapsed, counted = time.perf_counter_ns() - before[0], loop.read_cycles() - before[1]
    if counted <= 0:
        raise ComputeError("this machine has no cycle counter that a program may read: no trace")
    return [_run_trace(traced, program.n_threads, *run, elapsed / counted) for run in runs]


def _run_trace(
    traced: _TracedProgram, n_threads: int, stamps: Longs, scratch: list[int], ns: float
) -> RunTrace:
    ran = stamps[:, 1] != 0
    origin = int(stamps[ran, 0].min()) if ran.any() else 0
    times = np.where(ran[:, None], stamps[:, :2] - origin, 0) * ns
    numbers = {address: i for i, address in enumerate(scratch)} | {0: 0}
    thread = np.array([numbers.get(int(s), 0) for s in stamps[:, 2]], np.int64)
    thread[~ran] = -1
    return RunTrace(
        tuple(traced.launches), times[:, 0].copy(), times[:, 1].copy(), thread, n_threads
    )


def _launches(program: PhaseTable) -> list[tuple[list[tuple[CpuLaunch, int]], int]]:
    """Launches and their phases, of each part, and the part's header (0: a Python callable)."""
    python = iter([launch for launch in program.launches if launch.python is not None])
    return [
        ([(next(python), 0)], 0) if call is not None else (in_table(phases), header)
        for call, phases, header in program.parts
    ]


def _words(address: int, n: int) -> Longs:
    return np.ctypeslib.as_array((ctypes.c_int64 * n).from_address(address))


@dataclass(frozen=True)
class PhaseTime:
    """The median time of one phase."""

    phase: Phase
    ns: float

    @property
    def label(self) -> str:
        """Kernels and the first node, such as ``mul_mat_q4_1_x16*3 Qcur-0``."""
        names = [launch.name for launch in (*self.phase.replicas, *self.phase.launches)]
        count = {n: names.count(n) for n in names}
        return " + ".join(n if k == 1 else f"{n}*{k}" for n, k in count.items())

    @property
    def bytes(self) -> int:
        """Weights and activations that its matmuls read."""
        return sum(s.nbytes for la in self.phase.launches for s in la.src if s is not None)

    @property
    def macs(self) -> int:
        """Multiply-adds of its matmuls."""
        return sum(
            la.node.nelements * la.src[0].ne[0] * (2 if "glu" in la.name else 1)
            for la in self.phase.launches
            if la.streams is not None and la.src[0] is not None
        )


def profile(program: PhaseTable, repeats: int = 20) -> list[PhaseTime]:
    """Run the program some times; the median time of each phase of its compiled parts."""
    pool = get_pool()
    runs = [np.concatenate(pool.profile(program)) for _ in range(repeats)]
    medians = np.median(np.stack(runs), axis=0)
    return [PhaseTime(p, float(ns)) for p, ns in zip(program.phases, medians, strict=True)]
