"""Small launches that each thread runs for itself, right before what needs their result.

    kept, uses = replicate_small(launches, graph, n_threads)
    records = thread_records(launch, uses.get(launch), memory, error_slot)

The norm of a single row takes less time than the barriers around it, during which no thread reads
weights. So where only a few launches read its result, it leaves the order: a thread runs it into
memory of its own when it begins one of those launches, whose records name that memory, thread by
thread.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from ...cgraph import CGraph
from ...tensor import Tensor
from .abi import DST, SRC0, TENSOR_WORDS, integer_places, record
from .lowering import Launch, Range, byte_range, meet

_ALIGN = 64


@dataclass(frozen=True, eq=False)
class ReplicaUse:
    """What a launch reads of a replicated one.

    Attributes:
        launch: the replicated one; its ``chunks`` count the threads.
        ranges: byte ranges it writes that are still intact when the reader runs.
    """

    launch: Launch
    ranges: list[Range]


def replica_bytes(launch: Launch) -> int:
    """Bytes of its own that a thread needs for what a replicated launch writes."""
    return sum(_aligned(r) for r in launch.writes)


def _aligned(r: Range) -> int:
    return -(-(r[1] - r[0]) // _ALIGN) * _ALIGN


def replicate_small(
    launches: list[Launch], graph: CGraph, n_threads: int
) -> tuple[list[Launch], dict[Launch, ReplicaUse]]:
    """Take launches that threads may run for themselves out of the order.

    Returns:
        The launches that stay, with the reads of those that were taken; and the readers' uses.
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
        node = launch.node
        if not _writes_node(launch):
            return True
        return node.view_src is None and all(map(only_read_here, (node, *views.get(node, ()))))

    uses: dict[Launch, ReplicaUse] = {}
    taken: set[Launch] = set()
    for i in range(len(launches) - 1, -1, -1):
        launch = launches[i]
        if launch.replicate == 0 or not only_for_launches(launch):
            continue
        readers = _readers(launches, i)
        if not readers or not taken.isdisjoint(readers):
            continue
        if any(r in uses or r.chunks > launch.replicate for r in readers):
            continue
        made = replace(launch, chunks=n_threads)
        for reader, ranges in readers.items():
            uses[reader] = ReplicaUse(made, ranges)
            reader.reads = [r for r in reader.reads if not meet([r], ranges)] + launch.reads
        taken.add(launch)
    return [launch for launch in launches if launch not in taken], uses


def _writes_node(launch: Launch) -> bool:
    """Whether it writes its node, not mere work memory."""
    return byte_range(launch.node) in launch.writes


def _readers(launches: list[Launch], i: int) -> dict[Launch, list[Range]]:
    """The launches that read what launch ``i`` writes, with the ranges that they read.

    None, if it may not run as late as they do.
    """
    launch = launches[i]
    node = launch.node if _writes_node(launch) else None
    readers: dict[Launch, list[Range]] = {}
    alive = launch.writes
    overwritten = False  # whether a launch up to here writes what it reads
    for later in launches[i + 1 :]:
        overwritten = overwritten or meet(launch.reads, later.writes)
        if meet(later.reads, alive):
            if overwritten or not _may_move(later, alive):
                return {}
            readers[later] = [r for r in alive if meet(later.reads, [r])]
        if node is not None and (later.node is node or later.node.view_src is node):
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
    launch: Launch, use: ReplicaUse | None, memory: list[int], error_slot: int
) -> npt.NDArray[np.int64]:
    """The records of a launch, one for each thread where it uses threads' own memory.

    Shape: int64[1 or threads, words].

    Args:
        use: what it reads of a replicated launch; of that one itself, all that it writes.
        memory: the address of each thread's own memory.
    """
    words = record(error_slot, launch.params, launch.node, launch.src)
    if use is None:
        return words[None]
    records = np.repeat(words[None], len(memory), axis=0)
    at = integer_places(type(launch.params))
    at = [*at, DST] if launch is use.launch else [*at, *range(SRC0, len(words), TENSOR_WORDS)]
    found, mine = words.tolist(), np.array(memory)
    for r in use.launch.writes:
        for word in at:
            if r in use.ranges and r[0] <= found[word] < r[1]:
                records[:, word] += mine - r[0]
        mine += _aligned(r)
    return records
