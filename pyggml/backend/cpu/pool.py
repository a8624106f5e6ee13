"""The thread pool: runs a program of kernels on the caller and its workers.

    pool = get_pool()
    pool.run(program, n_threads=2)                 # blocks; other callers queue

One pool per process. A program is a list of phases, a phase a list of chunks that may run at the
same time. Threads claim chunks one by one from a single 64-bit word (epoch, phase, chunks left), so
a thread that is not running holds nothing and blocks nobody; whoever finishes the last chunk of a
phase opens the next one. An idle thread spins, then yields, then sleeps; a worker that has found
nothing for a millisecond parks on a Python lock until the next run.
"""

from __future__ import annotations

import atexit
import os
import threading
import time
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from numba import types

from ...buffer import zeroed
from ...errors import Aborted, ComputeError
from ...jit import compiled, inline
from . import osapi
from .abi import i64_ptr
from .atomics import atomic_add, atomic_cas, atomic_load, atomic_store, call_address, cycles, pause
from .interrupt import Watcher

if TYPE_CHECKING:
    from .program import Program

# Control block: one 64-byte line a word, by byte offset.
CLAIM, TODO, ABORT, ERROR, QUIT, PROGRAM, N_THREADS, PROFILE, SCRATCH = (64 * i for i in range(9))
MAX_THREADS = 512
CONTROL_BYTES = SCRATCH + 8 * MAX_THREADS  # the last line begins a table: scratch of each thread
# The claim word: 27 bits of epoch, 16 of phase, 20 of chunks left.
MAX_CHUNKS, MAX_PHASES = (1 << 20) - 1, (1 << 16) - 2
END = (1 << 16) - 1  # the phase number of a finished run
# Words of a program's header (see program.py).
H_PHASES, H_N_PHASES, H_LAUNCHES = 0, 1, 2
PHASE_WORDS, LAUNCH_WORDS = 3, 4  # (first launch, launches, chunks); (address, node, chunks, first)

SPINS = 2000  # pause instructions before yielding the core
YIELDS = 100  # yields before sleeping
PARK_AFTER = 60  # sleeps of ~20 us or more before a worker parks


@inline
def _pack(epoch, phase, left):  # type: ignore[no-untyped-def]
    return (epoch << 36) | (phase << 20) | left


@inline
def _open_phase(ctl, epoch, phase):  # type: ignore[no-untyped-def]
    """Publish a phase, or the end of the run."""
    header = i64_ptr(atomic_load(ctl + PROGRAM))
    times = atomic_load(ctl + PROFILE)
    if times != 0:
        i64_ptr(times)[phase] = cycles()
    stop = atomic_load(ctl + ABORT) | atomic_load(ctl + ERROR)
    if stop != 0 or phase >= header[H_N_PHASES]:
        atomic_store(ctl + CLAIM, _pack(epoch, END, 0))
        return
    chunks = i64_ptr(header[H_PHASES] + 8 * PHASE_WORDS * phase)[2]
    atomic_store(ctl + TODO, chunks)
    atomic_store(ctl + CLAIM, _pack(epoch, phase, chunks))


@inline
def _run_chunk(ctl, phase, left, me):  # type: ignore[no-untyped-def]
    header = i64_ptr(atomic_load(ctl + PROGRAM))
    entry = i64_ptr(header[H_PHASES] + 8 * PHASE_WORDS * phase)
    scratch = i64_ptr(ctl + SCRATCH)[me]
    chunk = entry[2] - left
    launch = header[H_LAUNCHES] + 8 * LAUNCH_WORDS * entry[0]
    for _ in range(entry[1]):
        words = i64_ptr(launch)
        if chunk < words[3] + words[2]:
            call_address(words[0], words[1], chunk - words[3], words[2], scratch)
            return
        launch += 8 * LAUNCH_WORDS


@compiled(types.int64(*[types.int64] * 5))
def work(ctl, me, epoch, sched_yield, usleep):  # type: ignore[no-untyped-def]
    """Claim and run chunks: the caller (``me`` 0) from begin to end of the run ``epoch``, a worker
    until nothing comes for a while.

    The caller opens the run in here, so no Python exception can leave it open behind its back.
    """
    if me == 0:
        _open_phase(ctl, epoch, 0)
    idle = 0
    while True:
        claim = atomic_load(ctl + CLAIM)
        left = claim & MAX_CHUNKS
        if left != 0 and me < atomic_load(ctl + N_THREADS):
            if not atomic_cas(ctl + CLAIM, claim, claim - 1):
                continue
            idle = 0
            phase = (claim >> 20) & END
            _run_chunk(ctl, phase, left, me)
            if atomic_add(ctl + TODO, -1) == 1:
                _open_phase(ctl, claim >> 36, phase + 1)
            continue
        if me == 0:
            if claim == _pack(epoch, END, 0):
                return 0
            idle = min(idle, SPINS + YIELDS)  # the caller never parks
        elif atomic_load(ctl + QUIT) != 0:
            return 1
        idle += 1
        if idle < SPINS:
            pause()
        elif idle < SPINS + YIELDS:
            call_address(sched_yield, 0, 0, 0, 0)
        elif idle < SPINS + YIELDS + PARK_AFTER or (claim >> 20) & END != END:
            call_address(usleep, 20, 0, 0, 0)
        else:
            return 0  # only a worker, and only between runs


class Pool:
    """Workers and the control block that they share with the caller."""

    def __init__(self) -> None:
        self._control = zeroed(CONTROL_BYTES)
        self._words = self._control.view(np.int64)[:: 64 // 8]
        self._scratch_table = self._control[SCRATCH:].view(np.int64)
        self.control = int(self._control.ctypes.data)
        self.error_slot = self.control + ERROR
        self._scratch: list[npt.NDArray[np.uint8]] = []
        self.reset()
        atexit.register(self.close)

    def reset(self) -> None:
        """No workers and no run, as after a fork; the control block that programs know stays."""
        self._lock = threading.RLock()
        self._workers: list[_Worker] = []
        self._watcher = Watcher(lambda: self._set(ABORT, 1))
        self._control[:SCRATCH] = 0
        self._epoch = 1
        self.open = False  # a run begins or goes on: workers do not park
        self._set(CLAIM, _pack.py_func(self._epoch, END, 0))

    def _set(self, offset: int, value: int) -> None:
        self._words[offset // 64] = value

    def abort(self) -> None:
        """Stop the running compute (from any thread); it raises Aborted."""
        self._set(ABORT, 1)

    def run(self, program: Program, n_threads: int) -> None:
        """Run a program to its end. Raises: Aborted, ComputeError."""
        n_threads = min(n_threads, MAX_THREADS)
        with self._lock:
            self._prepare(program, n_threads)
            for first, header in program.segments():
                self._run_segment(first, header, n_threads)

    def profile(self, program: Program, n_threads: int) -> list[npt.NDArray[np.float64]]:
        """Run once; for each compiled part the nanoseconds of its phases (from the cycle counter)."""
        times = []
        with self._lock:
            self._prepare(program, n_threads)
            for (python, header), n_phases in zip(
                program.segments(), program.phase_counts(), strict=True
            ):
                stamps = np.zeros(n_phases + 1, np.int64)
                self._set(PROFILE, int(stamps.ctypes.data))
                start = time.perf_counter_ns()
                try:
                    self._run_segment(python, header, n_threads)
                finally:
                    self._set(PROFILE, 0)
                elapsed = time.perf_counter_ns() - start
                if python is None:
                    cycles = np.diff(stamps).astype(np.float64)
                    times.append(cycles * elapsed / max(1.0, cycles.sum()))
        return times

    def _prepare(self, program: Program, n_threads: int) -> None:
        while len(self._scratch) < n_threads:
            self._scratch.append(zeroed(64))
        for i in range(n_threads):
            if self._scratch[i].nbytes < program.scratch_bytes:
                self._scratch[i] = zeroed(program.scratch_bytes)
            self._scratch_table[i] = self._scratch[i].ctypes.data
        for i in range(len(self._workers) + 1, n_threads):
            self._workers.append(_Worker(self, i))
        self._set(ERROR, 0)
        self._set(ABORT, 0)

    def _run_segment(self, first: Any, header: int, n_threads: int) -> None:
        """Run compiled phases (``header``), or a Python callable (``first``)."""
        if first is not None:
            first()
            return
        self._epoch = (self._epoch + 1) & ((1 << 27) - 1)
        self._set(PROGRAM, header)
        self._set(N_THREADS, n_threads)
        with self._watcher:
            self.open = True
            try:
                for worker in self._workers[: n_threads - 1]:
                    worker.wake()
                work(self.control, 0, self._epoch, *osapi.yield_addresses())
            finally:
                self.open = False
        if self._words[ERROR // 64]:
            raise ComputeError(f"a kernel reported error {self._words[ERROR // 64]}")
        if self._words[ABORT // 64]:
            raise Aborted("the compute was aborted")

    def close(self) -> None:
        """Stop and join the workers."""
        self._set(QUIT, 1)
        for worker in self._workers:
            worker.wake()
        for worker in self._workers:
            worker.thread.join(1.0)
        self._workers = []


class _Worker:
    """A daemon thread that works while there is work and parks on a lock when there is none."""

    def __init__(self, pool: Pool, index: int) -> None:
        self._pool = pool
        self._index = index
        self._parked = False
        self._bell = threading.Semaphore(0)
        self.thread = threading.Thread(target=self._loop, daemon=True, name=f"pyggml-{index}")
        self.thread.start()

    def wake(self) -> None:
        if self._parked:
            self._parked = False
            self._bell.release()

    def _loop(self) -> None:
        pool, yields = self._pool, osapi.yield_addresses()
        while True:
            if work(pool.control, self._index, 0, *yields):
                return
            self._parked = True
            if pool.open or pool._words[QUIT // 64]:
                self._parked = False  # a run began in between: its caller may not have seen us
                continue
            self._bell.acquire()


_pool: Pool | None = None
_pool_lock = threading.Lock()


def get_pool() -> Pool:
    """The process's pool; a forked child has it without its workers."""
    global _pool
    with _pool_lock:
        if _pool is None:
            _pool = Pool()
        return _pool


def _after_fork() -> None:
    global _pool_lock
    _pool_lock = threading.Lock()
    if _pool is not None:
        _pool.reset()  # not a new one: programs hold its address


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
