"""The thread pool: runs a program of kernels on the caller and its workers.

    pool = get_pool()
    pool.run(program)                              # blocks; other callers queue

A process has one pool. A program is a list of phases, a phase a list of chunks that may run at the
same time. Each thread claims the chunks of its share one by one from a 64-bit word (epoch,
phase, chunks left), then chunks left in the shares of others, so a thread that does not get CPU
time blocks nobody. The thread that finishes the last chunk of a phase opens the next phase. An idle
thread spins, then yields, then sleeps; a worker without work for a millisecond parks on a Python
lock until the next run.
"""

from __future__ import annotations

import atexit
import os
import threading
import time
from typing import TYPE_CHECKING, Protocol

import numpy as np
import numpy.typing as npt

from .... import host
from ....buffer import zeroed
from ....errors import AllocError, ComputeError
from ...interface import StopToken
from ..abi import CODE_BITS, ERRORS
from ..compile import loop
from ..tuning import Tuning, tuning
from .interrupt import Watcher

if TYPE_CHECKING:
    from ..compile.lowering import CpuLaunch
    from ..compile.program import Part, PhaseTable


_PROGRAM, _N_THREADS, _STOP, _ERROR = (
    offset // 64 for offset in (loop.PROGRAM, loop.N_THREADS, loop.STOP, loop.ERROR)
)
_LONG_S = 0.05  # programs that take longer can be interrupted by Ctrl-C


class Runnable(Protocol):
    """A program, traced or not."""

    n_threads: int
    scratch_bytes: int
    seconds: float
    interruptible: bool
    parts: list[Part]

    def launch_at(self, record: int) -> CpuLaunch | None:
        """The launch that has a record at an address."""
        ...


class Pool:
    """Workers and the control block that they share with the caller."""

    def __init__(self) -> None:
        self._control = zeroed(loop.CONTROL_BYTES)
        self._words = self._control.data.cast("q")[:: 64 // 8]  # faster than NumPy's items
        self._scratch_table = self._control[loop.SCRATCH :].view(np.int64)
        self.control = int(self._control.ctypes.data)
        self.error_slot = self.control + loop.ERROR
        self._scratch: list[npt.NDArray[np.uint8]] = []
        self.reset()
        atexit.register(self.close)

    def reset(self) -> None:
        """Forget workers and run, as after a fork. The control block stays: programs know it."""
        self._lock = threading.RLock()
        self._workers: list[_Worker] = []
        self._yields = host.yield_addresses()
        self._ready = 0, 0  # (threads with scratch, bytes of it)
        self._watcher = Watcher(self._interrupt)
        self._watched: StopToken | None = None  # of the main thread's run
        self._control[:] = 0  # also the claims of a run during the fork
        self._epoch = 1
        self.open = 0  # threads of the current run, which do not park
        self._set(loop.STATE, loop.claim_word.py_func(self._epoch, loop.END, 0))
        self._tuning: Tuning | None = None
        self._options: host.ThreadOptions | None = None

    def _set(self, offset: int, value: int) -> None:
        self._words[offset // 64] = value

    def _interrupt(self) -> None:
        watched = self._watched
        if watched is not None:
            watched.stop()

    def scratch_addresses(self) -> list[int]:
        """The addresses of all threads' scratch memory, the caller's first."""
        return [int(s.ctypes.data) for s in self._scratch]

    def run(self, program: Runnable, stop: StopToken | None = None) -> None:
        """Run a program to its end, or until it is stopped. Raises: Aborted, ComputeError."""
        stop = StopToken() if stop is None else stop
        with self._lock:
            self._prepare(program)
            start = time.perf_counter()
            # a program that is known to be short needs no watcher: Ctrl-C waits for its end
            watch = program.seconds > _LONG_S and program.interruptible
            for part in program.parts:
                self._run_part(program, part, stop, watch)
            program.seconds = time.perf_counter() - start

    def profile(self, program: PhaseTable) -> list[npt.NDArray[np.float64]]:
        """The nanoseconds of each phase of a run, by the cycle counter, for each compiled part."""
        times = []
        with self._lock:
            self._prepare(program)
            for part in program.parts:
                python, phases, _ = part
                stamps = np.zeros(len(phases) + 1, np.int64)
                self._set(loop.PROFILE, int(stamps.ctypes.data))
                start = time.perf_counter_ns()
                try:
                    self._run_part(program, part, StopToken(), True)
                finally:
                    self._set(loop.PROFILE, 0)
                elapsed = time.perf_counter_ns() - start
                if python is None:
                    cycles = np.diff(stamps).astype(np.float64)
                    times.append(cycles * elapsed / max(1.0, cycles.sum()))
        return times

    def _prepare(self, program: Runnable) -> None:
        n_threads = program.n_threads
        ready_threads, ready_bytes = self._ready
        if n_threads > ready_threads or program.scratch_bytes > ready_bytes:
            n, size = max(n_threads, ready_threads), max(program.scratch_bytes, ready_bytes)
            self._ready = 0, 0  # in case of an interrupt before all of it is done
            self._scratch = [zeroed(size) for _ in range(n)]
            self._scratch_table[:n] = self.scratch_addresses()
            for i in range(len(self._workers) + 1, n):
                self._workers.append(_Worker(self, i))
                try:
                    self._workers[-1].thread.start()  # listed first: never started twice
                except RuntimeError as error:
                    del self._workers[-1]
                    raise AllocError(
                        f"thread {i + 1} of {n} cannot be started ({error}): use fewer threads "
                        "(`n_threads`), or allow more memory or processes (ulimit -v, -u)"
                    ) from None
            self._ready = n, size
        values, options = tuning(), host.thread_options()
        if values is not self._tuning or options is not self._options:
            self._tuning, self._options = values, options
            self._set(loop.SPINS, values.spins * options.poll // 50)
            self._set(loop.LOOK, values.look)
        self._words[_ERROR] = 0

    def _run_part(self, program: Runnable, part: Part, stop: StopToken, watch: bool) -> None:
        """Run compiled phases or a Python callable."""
        (first, _, header), n_threads = part, program.n_threads
        if first is not None:
            first()
            stop.check()
            return
        words, self._epoch = self._words, (self._epoch + 1) & ((1 << 27) - 1)
        words[_PROGRAM], words[_N_THREADS], words[_STOP] = header, n_threads, stop.address
        if watch and threading.current_thread() is threading.main_thread():
            self._watched = stop
        with self._watcher if watch else self._lock:  # this thread has the lock already
            self.open = n_threads
            try:
                for worker in self._workers[: n_threads - 1]:
                    worker.wake()
                loop.work(self.control, 0, self._epoch, *self._yields)
            finally:
                self.open = 0
                self._watched = None
        if error := words[_ERROR]:
            words[_ERROR] = 0  # a callable may have handled an error of its own
            raise ComputeError(_message(program.launch_at(error >> CODE_BITS), error))
        stop.check()

    def close(self) -> None:
        """Stop and join the workers."""
        self._set(loop.QUIT, 1)
        for worker in self._workers:
            worker.wake()
        for worker in self._workers:
            if worker.thread.is_alive():
                worker.thread.join(1.0)
        self._workers = []


def _message(launch: CpuLaunch | None, error: int) -> str:
    """What went wrong, and in which node: several, if they are fused; none outside of graphs."""
    what = ERRORS[error & ((1 << CODE_BITS) - 1)]
    if launch is None or not launch.nodes:
        return what
    where = ", ".join(f"'{node.name}' = {node.op.name}" for node in launch.nodes if node.op)
    return f"{where}: {what}"


class _Worker:
    """A daemon thread that runs chunks, and parks on a lock when there are none."""

    def __init__(self, pool: Pool, index: int) -> None:
        self._pool = pool
        self._index = index
        self._parked = False
        self._bell = threading.Semaphore(0)
        self.thread = threading.Thread(target=self._loop, daemon=True, name=f"pyggml-{index}")

    def wake(self) -> None:
        if self._parked:
            self._parked = False
            self._bell.release()

    def _loop(self) -> None:
        pool, yields = self._pool, host.yield_addresses()
        cpus = host.thread_options().cpu(self._index)
        if cpus:
            host.set_cpus(cpus)
        while True:
            if loop.work(pool.control, self._index, 0, *yields):
                return
            self._parked = True
            if self._index < pool.open or pool._words[loop.QUIT // 64]:
                self._parked = False  # a run began meanwhile and may have missed it
                continue
            self._bell.acquire()


_pool: Pool | None = None
_pool_lock = threading.Lock()


def get_pool() -> Pool:
    """The pool of the process. A forked child keeps it, without its workers."""
    global _pool
    if _pool is not None:
        return _pool
    with _pool_lock:
        if _pool is None:
            _pool = Pool()
        return _pool


def _after_fork() -> None:
    global _pool_lock
    _pool_lock = threading.Lock()
    if _pool is not None:
        _pool.reset()  # not a new pool: programs have its address


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
