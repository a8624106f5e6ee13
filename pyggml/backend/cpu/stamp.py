"""The kernel that times another: cycle counter, real kernel, cycle counter.

    record = [kernel.address, node_record, stamps]           # of ``traced_chunk``; see ``trace``

Writes three words a chunk, 0.1 us; the pool's loop knows nothing of it.
"""

from __future__ import annotations

from numba import types

from ...jit import compiled, kernel
from .abi import i64_ptr
from .atomics import call_address, cycles

STAMP_WORDS = 3  # begin, end, scratch: scratch memory tells the thread


@kernel
def traced_chunk(node, chunk, n_chunks, scratch):  # type: ignore[no-untyped-def]
    """Call the kernel at ``node[0]`` for the node at ``node[1]``; stamps to ``node[2]``."""
    words = i64_ptr(node)
    stamps = i64_ptr(words[2] + 8 * STAMP_WORDS * chunk)
    begin = cycles()
    call_address(words[0], (words[1], chunk, n_chunks, scratch))
    stamps[1] = cycles()
    stamps[0] = begin
    stamps[2] = scratch


@compiled(types.int64())
def read_cycles():  # type: ignore[no-untyped-def]
    """The cycle counter, for Python."""
    return cycles()
