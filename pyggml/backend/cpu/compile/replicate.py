"""Replication of small launches: each thread runs them for itself, before it reads their result.

    kept, uses = replicate_small(launches, graph, n_threads)
    records = thread_records(launch, uses.get(launch, {}), places, error_slot)

The norm of a single row takes less time than the barriers around it, during which no thread reads
weights. So if its result is only read by launches, it is taken out of the phases: each thread runs
it into memory of its own before its first chunk of a launch that reads it. The records of such
launches exist once per thread, with the address of that thread's memory. A replica may read others,
as the products of an adapter's A read a norm: a thread's memory has slots, and it runs the replicas
that a launch reads in their order.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Set
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
import numpy.typing as npt

from ....cgraph import CGraph
from ....rounding import round_up
from ....tensor import Tensor
from ...common.memory import Range, any_overlap, byte_range
from ..abi import DST, SRC0, TENSOR_WORDS, integer_places, record
from .loop import SLOTS
from .lowering import CpuLaunch

_ALIGN = 64


@dataclass(frozen=True, eq=False)
class ReplicaUse:
    """A replica that a launch reads.

    Attributes:
        launch: the replicated launch; its ``chunks`` is the number of threads.
        ranges: byte ranges it writes that are still intact when the reader runs.
    """

    launch: CpuLaunch
    ranges: list[Range]


ReplicaUses = dict[int, ReplicaUse]  # by slot, in the order in which a thread runs them


def slot_offsets(replicas: Mapping[CpuLaunch, int]) -> list[int]:
    """Where the slots begin in a thread's memory, and its bytes.

    Args:
        replicas: the slot of each.
    """
    sizes = [0] * SLOTS
    for launch, slot in replicas.items():
        sizes[slot] = max(sizes[slot], sum(map(_aligned, launch.writes)))
    return list(accumulate(sizes, initial=0))


def _aligned(r: Range) -> int:
    return round_up(r[1] - r[0], _ALIGN)


def replicate_small(
    launches: list[CpuLaunch], graph: CGraph, n_threads: int
) -> tuple[list[CpuLaunch], dict[CpuLaunch, ReplicaUses]]:
    """Take small launches that each thread can run for itself out of the list.

    Returns:
        The remaining launches, whose reads now include those of their replicas; and the replicas
        that each launch reads, itself or through others.
    """
    inside = Counter(s for node in graph.nodes for s in node.src if s is not None)
    # eval callbacks may read the sources of a split's last node
    looked_at = {s for node in graph.nodes[-1:] for s in node.src}
    views: dict[Tensor, list[Tensor]] = {}
    for node in graph.nodes:
        if node.view_src is not None:
            views.setdefault(node.view_src, []).append(node)

    def only_read_here(tensor: Tensor) -> bool:
        counted = graph.use_count(tensor) == inside[tensor] > 0
        return counted and not tensor.flags and tensor not in looked_at

    def only_for_launches(launch: CpuLaunch) -> bool:
        node = launch.node
        if not _writes_node(launch):
            return True
        return node.view_src is None and all(map(only_read_here, (node, *views.get(node, ()))))

    uses: dict[CpuLaunch, ReplicaUses] = {}
    slots: dict[CpuLaunch, int] = {}
    users: dict[CpuLaunch, Set[CpuLaunch]] = {}  # of each replica, the launches that read it
    for i in range(len(launches) - 1, -1, -1):
        launch = launches[i]
        if launch.replicate == 0 or not only_for_launches(launch):
            continue
        # a launch that reads a replica already has its reads, so it is among these too
        readers = _readers(launches, i)
        if not readers or any(r.chunks > launch.replicate for r in readers if r not in slots):
            continue
        # launches that read it through a replica must be among its readers, which they are not if
        # that replica wrote over it
        if any(not users[r] <= readers.keys() for r in readers if r in slots):
            continue
        end = min(slots.get(r, SLOTS) for r in readers)
        free = set(range(end)).difference(*(uses.get(r, ()) for r in readers))
        if not free:
            continue
        slots[launch] = slot = max(free)
        users[launch] = readers.keys()
        launch.chunks = n_threads
        for reader, ranges in readers.items():
            uses.setdefault(reader, {})[slot] = ReplicaUse(launch, ranges)
            reader.reads = [r for r in reader.reads if not any_overlap([r], ranges)] + launch.reads
    return [launch for launch in launches if launch not in slots], uses


def _writes_node(launch: CpuLaunch) -> bool:
    """Whether it writes its node, not only work memory."""
    return byte_range(launch.node) in launch.writes


def _readers(launches: list[CpuLaunch], i: int) -> dict[CpuLaunch, list[Range]]:
    """The launches that read the result of launch ``i``, with the byte ranges that they read.

    Empty if the launch cannot be moved to its readers.
    """
    launch = launches[i]
    node = launch.node if _writes_node(launch) else None
    readers: dict[CpuLaunch, list[Range]] = {}
    alive = launch.writes
    overwritten = False  # whether an earlier reader or other launch overwrites its sources
    cut = False  # whether a Python callable comes between: it may read, and ends the part
    for later in launches[i + 1 :]:
        overwritten = overwritten or any_overlap(launch.reads, later.writes)
        cut = cut or later.python is not None
        if any_overlap(later.reads, alive):
            if overwritten or cut or not _may_move(later, alive):
                return {}
            readers[later] = [r for r in alive if any_overlap(later.reads, [r])]
        if node is not None and _writes_node(later) and node in (later.node, later.node.view_src):
            return {}
        if any_overlap(alive, later.writes):  # the memory is reused
            alive = [r for r in alive if not any_overlap([r], later.writes)]
            if not alive:
                break
    return readers


def _may_move(reader: CpuLaunch, ranges: list[Range]) -> bool:
    """Whether the addresses of all that a launch reads in some ranges can be replaced."""
    sources = [byte_range(s) for s in reader.src if s is not None and s.nelements]
    return all(
        any(a <= start and end <= b for a, b in ranges)
        for start, end in sources
        if any_overlap([(start, end)], ranges)
    )


def thread_records(
    launch: CpuLaunch, uses: ReplicaUses, places: npt.NDArray[np.int64], error_slot: int
) -> npt.NDArray[np.int64]:
    """The records of a launch: one, or one per thread if it uses the threads' own memory.

    Shape: int64[1 or threads, words].

    Args:
        uses: the replicas that it reads; of a replica itself also the ranges that it writes.
        places: int64[SLOTS, threads], the addresses of the slots.
    """
    words = record(error_slot, launch.params, launch.node, launch.src)
    if not uses:
        return words[None]
    records = np.repeat(words[None], places.shape[1], axis=0)
    integers, found = integer_places(type(launch.params)), words.tolist()
    for slot, use in uses.items():
        own = launch is use.launch
        at, offset = [*integers, *([DST] if own else range(SRC0, len(words), TENSOR_WORDS))], 0
        for r in use.launch.writes:
            for word in at if r in use.ranges else ():
                if r[0] <= found[word] < r[1]:
                    records[:, word] += places[slot] + (offset - r[0])
            offset += _aligned(r)
    return records
