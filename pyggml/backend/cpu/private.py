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
from .lowering import Launch, Range, byte_range, meet

_ALIGN = 64


@dataclass(frozen=True, eq=False)
class Need:
    """What a launch reads of a private one.

    Attributes:
        launch: the private one; its ``chunks`` count the threads.
        ranges: what it writes and nobody has overwritten when the reader's turn comes.
    """

    launch: Launch
    ranges: list[Range]


def private_bytes(launch: Launch) -> int:
    """Bytes of its own that a thread needs for what a private launch writes."""
    return sum(_aligned(r) for r in launch.writes)


def _aligned(r: Range) -> int:
    return -(-(r[1] - r[0]) // _ALIGN) * _ALIGN


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

    def only_for_launches(launch: Launch) -> bool:
        dst = launch.dst
        if not _writes_node(launch):
            return True
        return dst.view_src is None and all(map(only_read_here, (dst, *views.get(dst, ()))))

    needs: dict[Launch, Need] = {}
    taken: set[Launch] = set()
    for i in range(len(launches) - 1, -1, -1):
        launch = launches[i]
        if launch.private == 0 or not only_for_launches(launch):
            continue
        readers = _readers(launches, i)
        if not readers or not taken.isdisjoint(readers):
            continue
        if any(r in needs or r.chunks > launch.private for r in readers):
            continue
        made = replace(launch, chunks=n_threads)
        for reader, ranges in readers.items():
            needs[reader] = Need(made, ranges)
            reader.reads = [r for r in reader.reads if not meet([r], ranges)] + launch.reads
        taken.add(launch)
    return [launch for launch in launches if launch not in taken], needs


def _writes_node(launch: Launch) -> bool:
    """Whether it writes its node, not mere work memory."""
    return byte_range(launch.dst) in launch.writes


def _readers(launches: list[Launch], i: int) -> dict[Launch, list[Range]]:
    """The launches that read what launch ``i`` writes, and what of it; none, if it may not run as
    late as they do."""
    launch = launches[i]
    node = launch.dst if _writes_node(launch) else None
    readers: dict[Launch, list[Range]] = {}
    alive = launch.writes
    overwritten = False  # what it reads, by somebody up to here
    for later in launches[i + 1 :]:
        overwritten = overwritten or meet(launch.reads, later.writes)
        if meet(later.reads, alive):
            if overwritten or not _may_move(later, alive):
                return {}
            readers[later] = [r for r in alive if meet(later.reads, [r])]
        if node is not None and (later.dst is node or later.dst.view_src is node):
            return {}
        if meet(alive, later.writes):  # their memory is used again
            alive = [r for r in alive if not meet([r], later.writes)]
            if not alive:
                break
    return readers


def _may_move(reader: Launch, ranges: list[Range]) -> bool:
    """Whether all that a launch reads of some ranges can be given other addresses."""
    sources = [byte_range(s) for s in reader.src if s is not None and s.nelements]
    return all(
        any(a <= start and end <= b for a, b in ranges)
        for start, end in sources
        if meet([(start, end)], ranges)
    )


def thread_records(
    launch: Launch, need: Need | None, memory: list[int], error_slot: int
) -> npt.NDArray[np.int64]:
    """The records of a launch, int64[1 or threads, words]: one for each thread where it meets
    private memory.

    Args:
        need: what it reads of a private launch; of that one itself, all that it writes.
        memory: the address of each thread's private memory.
    """
    words = record(error_slot, launch.params, launch.dst, launch.src)
    if need is None:
        return words[None]
    records = np.repeat(words[None], len(memory), axis=0)
    at = [PARAMS + k for k, p in enumerate(launch.params) if not isinstance(p, float)]
    at += [DST] if launch is need.launch else range(SRC0, len(words), TENSOR_WORDS)
    found, mine = words.tolist(), np.array(memory)
    for r in need.launch.writes:
        for word in at:
            if r in need.ranges and r[0] <= found[word] < r[1]:
                records[:, word] += mine - r[0]
        mine += _aligned(r)
    return records
