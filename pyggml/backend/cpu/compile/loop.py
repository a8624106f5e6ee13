"""The loop that all threads of the pool run: claim a chunk, run it, open the next phase.

    work(control, me, epoch, *host.yield_addresses())      # nogil; see ``pool``

Jitted code over the control block, whose words lie on cache lines of their own.
"""

from __future__ import annotations

from numba import types

from ....compiler.jit import inline, jitted, kernel
from ..abi import i64_ptr
from ..atomics import atomic_add, atomic_cas, atomic_load, atomic_store, call_address, cycles, pause

# Control block: byte offsets of its words, each on a 64-byte line of its own. STOP is the address
# of a word that is not 0 once the run is to stop.
STATE, TODO, STOP, ERROR, QUIT, PROGRAM, N_THREADS, PROFILE, SPINS, LOOK, SCRATCH = (
    64 * i for i in range(11)
)
MAX_THREADS = 512
QUEUES = SCRATCH + 8 * MAX_THREADS  # a line per thread: its claim word, role and chunks
MADE = QUEUES + 64 * MAX_THREADS  # a line per thread: the replica it ran last in each slot
CONTROL_BYTES = MADE + 64 * MAX_THREADS
# The claim word: 27 bits of epoch, 16 of phase, 20 of chunks left.
MAX_CHUNKS, MAX_PHASES = (1 << 20) - 1, (1 << 16) - 2
END = (1 << 16) - 1  # the phase number of a finished run
# Words of a program's header (see program.py), of a phase and of a launch.
H_PHASES, H_N_PHASES, H_LAUNCHES, H_COUNTS, H_BEGINS = range(5)
HEADER_WORDS = 5
P_LAUNCH, P_LAUNCHES, P_CHUNKS = range(3)  # first launch, number of launches, of chunks
PHASE_WORDS = 3
# Addresses of kernel and record; chunks; bytes from one thread's record to the next, 0 if there is
# one for all; for each slot the number of the replica to run before, or 0.
L_KERNEL, L_NODE, L_CHUNKS, L_STRIDE, L_REPLICAS = range(5)
SLOTS = 4  # pieces of a thread's own memory, each with the result of a replica
LAUNCH_WORDS = L_REPLICAS + SLOTS

YIELDS = 100  # yields before sleeping
PARK_AFTER = 60  # sleeps of ~20 us or more before a worker parks


@inline
def claim_word(epoch, phase, left):
    """The claim word."""
    return (epoch << 36) | (phase << 20) | left


@inline
def _open_phase(ctl, me, epoch, phase):
    """Publish a phase, or the end of the run after the last phase."""
    header = i64_ptr(atomic_load(ctl + PROGRAM))
    times = atomic_load(ctl + PROFILE)
    if times != 0:
        i64_ptr(times)[phase] = cycles()
    stop = atomic_load(atomic_load(ctl + STOP)) | atomic_load(ctl + ERROR)
    if stop != 0 or phase >= header[H_N_PHASES]:
        atomic_store(ctl + STATE, claim_word(epoch, END, 0))
        return
    chunks = i64_ptr(header[H_PHASES] + 8 * PHASE_WORDS * phase)[P_CHUNKS]
    atomic_store(ctl + TODO, chunks)
    n = atomic_load(ctl + N_THREADS)
    counts = i64_ptr(header[H_COUNTS] + 8 * n * phase)
    first = me if chunks < n else 0  # with few chunks, the opening thread has the first
    for role in range(n):
        if counts[role] != 0:  # only these: the phase may end with the last queue written
            thread = role + first
            if thread >= n:
                thread -= n
            queue = ctl + QUEUES + 64 * thread
            i64_ptr(queue)[1] = role
            i64_ptr(queue)[2] = counts[role]
            atomic_store(queue, claim_word(epoch, phase, counts[role]))


@inline
def _run_chunk(ctl, queue, claim, me):
    """Run a claimed chunk, after the replicas that it reads and this thread has not run already."""
    header = i64_ptr(atomic_load(ctl + PROGRAM))
    n = atomic_load(ctl + N_THREADS)
    scratch = i64_ptr(ctl + SCRATCH)[me]
    role = i64_ptr(queue)[1]
    i = i64_ptr(queue)[2] - (claim & MAX_CHUNKS)  # place in the thread's share
    epoch = claim >> 36
    entry = i64_ptr(header[H_PHASES] + 8 * PHASE_WORDS * ((claim >> 20) & END))
    number = entry[P_LAUNCH]
    begins = header[H_BEGINS] + 8 * ((n + 1) * number + role)
    share = i64_ptr(begins)[1] - i64_ptr(begins)[0]
    while i >= share:
        i -= share
        number += 1
        begins += 8 * (n + 1)
        share = i64_ptr(begins)[1] - i64_ptr(begins)[0]
    launch = i64_ptr(header[H_LAUNCHES] + 8 * LAUNCH_WORDS * number)
    made = i64_ptr(ctl + MADE + 64 * me)
    for slot in range(SLOTS):
        needs = launch[L_REPLICAS + slot] + 0
        word = (epoch << 32) | needs
        if needs != 0 and made[slot] != word:
            first = i64_ptr(header[H_LAUNCHES] + 8 * LAUNCH_WORDS * needs)
            call_address(first[L_KERNEL], (first[L_NODE] + me * first[L_STRIDE], 0, 1, scratch))
            made[slot] = word
    node = launch[L_NODE] + me * launch[L_STRIDE]
    call_address(launch[L_KERNEL], (node, i64_ptr(begins)[0] + i, launch[L_CHUNKS], scratch))


@inline
def _other_queue(ctl, me, n):
    """The queue of another thread that is not empty, or 0."""
    for k in range(1, n):
        thread = me + k
        if thread >= n:
            thread -= n
        queue = ctl + QUEUES + 64 * thread
        if atomic_load(queue) & MAX_CHUNKS != 0:
            return queue
    return 0


@jitted(types.int64(*[types.int64] * 5))
def work(ctl, me, epoch, sched_yield, usleep):
    """Claim and run chunks.

    The caller (``me`` 0) returns at the end of the run ``epoch``, a worker after some time without
    work. A thread takes the chunks of its own queue, then those left in others'. The caller opens
    the run in here, so that a Python exception cannot leave a run open.
    """
    if me == 0:
        atomic_store(ctl + STATE, claim_word(epoch, 0, 0))
        _open_phase(ctl, me, epoch, 0)
    idle, spins, look = 0, atomic_load(ctl + SPINS), atomic_load(ctl + LOOK)
    next_look = 0  # idle round in which to look at others' queues next
    own = ctl + QUEUES + 64 * me
    done = last = 0  # chunks run but not yet subtracted from TODO; the last claim
    while True:
        queue, claim = own, atomic_load(own)
        if claim & MAX_CHUNKS == 0:
            if done != 0:
                over = atomic_add(ctl + TODO, -done) == done
                done = 0
                if over:
                    _open_phase(ctl, me, last >> 36, ((last >> 20) & END) + 1)
                    continue
            if idle >= next_look or idle >= spins:
                next_look = idle + look
                queue = _other_queue(ctl, me, atomic_load(ctl + N_THREADS))
                claim = atomic_load(queue) if queue != 0 else 0
        if claim & MAX_CHUNKS != 0 and me < atomic_load(ctl + N_THREADS):
            if atomic_cas(queue, claim, claim - 1):
                _run_chunk(ctl, queue, claim, me)
                idle, next_look, last = 0, 0, claim
                done += 1
            continue
        state = atomic_load(ctl + STATE)
        if me == 0:
            if state == claim_word(epoch, END, 0):
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
            (state >> 20) & END != END and me < atomic_load(ctl + N_THREADS)
        ):
            call_address(usleep, (20, 0, 0, 0))
        else:
            return 0  # a worker, between runs or in a run of fewer threads


STAMP_WORDS = 3  # begin, end, scratch address (which tells the thread)


@kernel
def traced_chunk(node, chunk, n_chunks, scratch):
    """Call the kernel at ``node[0]`` with the record at ``node[1]``; stamps go to ``node[2]``."""
    words = i64_ptr(node)
    stamps = i64_ptr(words[2] + 8 * STAMP_WORDS * chunk)
    begin = cycles()
    call_address(words[0], (words[1], chunk, n_chunks, scratch))
    stamps[1] = cycles()
    stamps[0] = begin
    stamps[2] = scratch


@jitted(types.int64())
def read_cycles():
    """The value of the cycle counter, for Python."""
    return cycles()
