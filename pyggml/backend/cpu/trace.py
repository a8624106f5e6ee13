"""When each chunk of a program ran, and on which thread.

    runs = trace(program, repeats=5)
    runs[0].wall_ns, runs[0].launches[3].launch.name, runs[0].start_ns[7], runs[0].thread[7]

A traced program is a copy of the program with another table of launches: their kernel reads the
cycle counter, calls the real kernel and reads the counter again. So an untraced run has no
overhead, and a traced one about 0.1 us per chunk. The program runs on its current inputs.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Iterator

import numpy as np
import numpy.typing as npt

from ...errors import ComputeError
from ..trace import RunTrace, TracedLaunch
from .loop import (
    H_LAUNCHES,
    H_N_PHASES,
    H_PHASES,
    HEADER_WORDS,
    L_KERNEL,
    L_NODE,
    L_STRIDE,
    LAUNCH_WORDS,
    P_LAUNCH,
    P_LAUNCHES,
    PHASE_WORDS,
    STAMP_WORDS,
    read_cycles,
    traced_chunk,
)  # fmt: skip
from .lowering import Launch
from .pool import get_pool
from .program import Program, in_table

_ALIGN_S = 0.005  # time, at least, over which the two clocks are compared

Longs = npt.NDArray[np.int64]


class _TracedProgram:
    """A copy of a program that records stamps; implements ``pool.Runnable``."""

    def __init__(self, program: Program) -> None:
        self.n_threads, self.scratch_bytes = program.n_threads, program.scratch_bytes
        self.seconds = float("inf")
        self.launches: list[TracedLaunch] = []
        self._keep: list[object] = [program]
        self._segments: list[tuple[Callable[[], None] | None, int]] = []
        order = _launches(program)
        n_chunks = sum(launch.chunks for part, _ in order for launch, _ in part)
        self.stamps: Longs = np.zeros((n_chunks, STAMP_WORDS), np.int64)
        first = phase_number = 0
        for launches, header in order:
            begin = first
            for launch, phase in launches:
                self.launches.append(TracedLaunch(launch, phase_number + phase, first))
                first += launch.chunks
            phase_number += 1 + max(phase for _, phase in launches)
            if header == 0:
                self._segments.append((self._call(launches[0][0], begin), 0))
            else:
                self._segments.append(
                    (None, self._encode(header, [la for la, _ in launches], begin))
                )
        replicas = {
            la for _, phases, _ in program.parts() for phase in phases for la in phase.replicas
        }
        self.launches.sort(key=lambda traced: (traced.phase, traced.launch not in replicas))

    def segments(self) -> Iterator[tuple[Callable[[], None] | None, int]]:
        """See ``Program.segments``."""
        yield from self._segments

    def _call(self, launch: Launch, at: int) -> Callable[[], None]:
        def call() -> None:
            assert launch.python is not None
            begin = read_cycles()
            launch.python()
            self.stamps[at] = begin, read_cycles(), 0

        return call

    def _encode(self, header: int, launches: list[Launch], first: int) -> int:
        """The address of a copy of a header whose launches run ``traced_chunk``."""
        words = _words(header, HEADER_WORDS).copy()
        last = _words(int(words[H_PHASES]), PHASE_WORDS * int(words[H_N_PHASES]))[-PHASE_WORDS:]
        shared = int(last[P_LAUNCH] + last[P_LAUNCHES])  # the following ones are replicas
        n, threads = len(launches), np.arange(self.n_threads)
        table = _words(int(words[H_LAUNCHES]), n * LAUNCH_WORDS).reshape(n, -1).copy()
        records = np.zeros((n, self.n_threads, 3), np.int64)
        records[:, :, 0] = table[:, L_KERNEL, None]
        records[:, :, 1] = table[:, L_NODE, None] + table[:, L_STRIDE, None] * threads
        starts = first + np.cumsum([0, *(launch.chunks for launch in launches)])[:-1]
        own = np.where(np.arange(n)[:, None] < shared, 0, threads)
        records[:, :, 2] = self.stamps.ctypes.data + 8 * STAMP_WORDS * (starts[:, None] + own)
        table[:, L_KERNEL] = traced_chunk.address
        table[:, L_NODE] = records.ctypes.data + records.strides[0] * np.arange(n)
        table[:, L_STRIDE] = records.strides[1]
        words[H_LAUNCHES] = table.ctypes.data
        self._keep.append((table, records, words))
        return int(words.ctypes.data)


def trace(program: Program, repeats: int = 1) -> list[RunTrace]:
    """The traces of some runs of a program, on the inputs of its last run.

    Raises:
        ComputeError: this machine has no cycle counter, or a kernel failed.
        Aborted: the compute was stopped.
    """
    traced, pool = _TracedProgram(program), get_pool()
    runs: list[tuple[Longs, list[int]]] = []
    before = time.perf_counter_ns(), read_cycles()
    for _ in range(repeats):
        traced.stamps[:] = 0
        pool.run(traced)
        runs.append((traced.stamps.copy(), pool.scratch_addresses()))
    while time.perf_counter_ns() - before[0] < 1e9 * _ALIGN_S:
        pass
    elapsed, counted = time.perf_counter_ns() - before[0], read_cycles() - before[1]
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


def _launches(program: Program) -> list[tuple[list[tuple[Launch, int]], int]]:
    """(launches with their phases, header) of each part; header 0: a Python callable."""
    python = iter([launch for launch in program.launches if launch.python is not None])
    return [
        ([(next(python), 0)], 0) if call is not None else (in_table(phases), header)
        for call, phases, header in program.parts()
    ]


def _words(address: int, n: int) -> Longs:
    return np.ctypeslib.as_array((ctypes.c_int64 * n).from_address(address))
