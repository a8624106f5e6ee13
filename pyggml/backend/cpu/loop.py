"""The loop that all threads of the pool run: claim a chunk, run it, open the next phase.

    work(control, me, epoch, *osapi.yield_addresses())      # nogil; see ``pool``

Jitted code over the control block, whose words lie on cache lines of their own.
"""

from __future__ import annotations

from numba import types

from ...jit import compiled, inline
from .abi import i64_ptr
from .atomics import atomic_add, atomic_cas, atomic_load, atomic_store, call_address, cycles, pause

# Control block: one 64-byte line a word, by byte offset.
CLAIM, TODO, ABORT, ERROR, QUIT, PROGRAM, N_THREADS, PROFILE, SPINS, SCRATCH = (
    64 * i for i in range(10)
)
MAX_THREADS = 512
CONTROL_BYTES = SCRATCH + 8 * MAX_THREADS  # the last line begins a table: scratch of each thread
# The claim word: 27 bits of epoch, 16 of phase, 20 of chunks left.
MAX_CHUNKS, MAX_PHASES = (1 << 20) - 1, (1 << 16) - 2
END = (1 << 16) - 1  # the phase number of a finished run
# Words of a program's header (see program.py).
H_PHASES, H_N_PHASES, H_LAUNCHES = 0, 1, 2
PHASE_WORDS, LAUNCH_WORDS = 3, 4  # (first launch, launches, chunks); (address, node, chunks, first)

# A thread's pause instructions before it yields: longer than Python takes between two tokens.
DEFAULT_SPINS = 10000
YIELDS = 100  # yields before sleeping
PARK_AFTER = 60  # sleeps of ~20 us or more before a worker parks


@inline
def pack(epoch, phase, left):  # type: ignore[no-untyped-def]
    """The claim word."""
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
        atomic_store(ctl + CLAIM, pack(epoch, END, 0))
        return
    chunks = i64_ptr(header[H_PHASES] + 8 * PHASE_WORDS * phase)[2]
    atomic_store(ctl + TODO, chunks)
    atomic_store(ctl + CLAIM, pack(epoch, phase, chunks))


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
            call_address(words[0], (words[1], chunk - words[3], words[2], scratch))
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
    idle, spins = 0, atomic_load(ctl + SPINS)
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
            if claim == pack(epoch, END, 0):
                return 0
            idle = min(idle, spins + YIELDS)  # the caller never parks
        elif atomic_load(ctl + QUIT) != 0:
            return 1
        idle += 1
        if idle < spins:
            pause()
        elif idle < spins + YIELDS:
            call_address(sched_yield, (0, 0, 0, 0))
        elif idle < spins + YIELDS + PARK_AFTER or (
            (claim >> 20) & END != END and me < atomic_load(ctl + N_THREADS)
        ):
            call_address(usleep, (20, 0, 0, 0))
        else:
            return 0  # only a worker, between runs or in one that does not want it
