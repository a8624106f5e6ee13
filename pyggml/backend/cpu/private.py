"""Small launches that each thread runs for itself, right before what needs their result.

    kept, needs = privatise(launches, graph, n_threads)
    records = thread_records(launch, needs.get(launch), memory, error_slot)

The norm of a single row takes less time than the barriers around it, during which nobody reads
weights. So where nobody but a few launches wants its result, it loses its place in the order: a
thread runs it into memory of its own when it begins to work on one of those, whose records name
that memory, thread by thread.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from ...cgraph import CGraph
from ...tensor import Tensor
from .abi import DST, PARAMS, SRC0, TENSOR_WORDS, record
from .lowering import Launch, Range, byte_range

_ALIGN = 64


@dataclass(frozen=True, eq=False)
class Private:
    """A launch of which each thread has its own; ``launch.chunks`` counts the threads."""

    launch: Launch

    def places(self) -> list[tuple[Range, int]]:
        """What it would write, were it shared, and where in private memory that is."""
        sizes = [-(-(end - start) // _ALIGN) * _ALIGN for start, end in self.launch.writes]
        return [(r, sum(sizes[:i])) for i, r in enumerate(self.launch.writes)]

    @property
    def size(self) -> int:
        """Bytes of private memory that a thread needs."""
        return sum(end - start + _ALIGN for start, end in self.launch.writes)


@dataclass(frozen=True, eq=False)
class Need:
    """What a launch reads of a private one: the ranges that are not yet somebody else's then."""

    private: Private
    ranges: list[Range]


def privatise(
    launches: list[Launch], graph: CGraph, n_threads: int
) -> tuple[list[Launch], dict[Launch, Need]]:
    """Take launches that may be private out of the order.

    Returns:
        What stays, with the reads of what was taken; and what each of the readers needs.
    """
    inside = Counter(s for node in graph.nodes for s in node.src if s is not None)
    looked_at = {s for node in graph.nodes[-1:] for s in node.src}  # by eval callbacks, at a split
    views: dict[Tensor, list[Tensor]] = {}
    for node in graph.nodes:
        if node.view_src is not None:
            views.setdefault(node.view_src, []).append(node)

    def only_read_here(tensor: Tensor) -> bool:
        counted = graph.use_count(tensor) == inside[tensor] > 0
        return counted and not tensor.flags and tensor not in looked_at

    needs: dict[Launch, Need] = {}
    taken: set[Launch] = set()
    for i in range(len(launches) - 1, -1, -1):
        launch = launches[i]
        if launch.private == 0 or launch.dst.view_src is not None:
            continue
        if not all(map(only_read_here, (launch.dst, *views.get(launch.dst, ())))):
            continue
        readers = _readers(launches, i)
        if not readers or not taken.isdisjoint(readers):
            continue
        if any(r in needs or r.chunks > launch.private for r in readers):
            continue
        made = Private(replace(launch, chunks=n_threads))
        for reader, ranges in readers.items():
            needs[reader] = Need(made, ranges)
            reader.reads = [r for r in reader.reads if not _meet([r], ranges)] + launch.reads
        taken.add(launch)
    return [launch for launch in launches if launch not in taken], needs


def _readers(launches: list[Launch], i: int) -> dict[Launch, list[Range]]:
    """The launches that read what launch ``i`` writes, and what of it; none, if it may not run as
    late as they do."""
    launch = launches[i]
    readers: dict[Launch, list[Range]] = {}
    alive = launch.writes
    overwritten = False  # what it reads, by somebody up to here
    for later in launches[i + 1 :]:
        overwritten = overwritten or _meet(launch.reads, later.writes)
        if _meet(later.reads, alive):
            if overwritten or not _may_move(later, alive):
                return {}
            readers[later] = [r for r in alive if _meet(later.reads, [r])]
        if later.dst is launch.dst or later.dst.view_src is launch.dst:
            return {}
        if _meet(alive, later.writes):  # their memory is used again
            alive = [r for r in alive if not _meet([r], later.writes)]
            if not alive:
                break
    return readers


def _may_move(reader: Launch, ranges: list[Range]) -> bool:
    """Whether all that a launch reads of some ranges can be given other addresses."""
    sources = [byte_range(s) for s in reader.src if s is not None and s.nelements]
    return all(
        any(a <= start and end <= b for a, b in ranges)
        for start, end in sources
        if _meet([(start, end)], ranges)
    )


def _meet(some: list[Range], others: list[Range]) -> bool:
    """Whether any two of them overlap."""
    for start, end in some:
        for first, last in others:
            if start < last and first < end:
                return True
    return False


def thread_records(
    launch: Launch, need: Need | None, memory: list[int], error_slot: int
) -> npt.NDArray[np.int64]:
    """The records of a launch: one, or where it meets private memory one for each thread.

    Args:
        need: of a private launch, all that it writes.
        memory: the address of each thread's private memory.
    """
    words = record(error_slot, launch.params, launch.dst, launch.src)
    if need is None:
        return words[None]
    records = np.repeat(words[None], len(memory), axis=0)
    at = [PARAMS + k for k, p in enumerate(launch.params) if not isinstance(p, float)]
    at += [DST] if launch is need.private.launch else range(SRC0, len(words), TENSOR_WORDS)
    found, mine = words.tolist(), np.array(memory)
    for (start, end), offset in need.private.places():
        for word in at:
            if (start, end) in need.ranges and start <= found[word] < end:
                records[:, word] += mine + (offset - start)
    return records
