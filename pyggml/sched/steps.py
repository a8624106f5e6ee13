"""The steps of a schedule: programs and copies on the queues of backends, and what each waits for.

    steps = make_steps(made, range(2))             # backends 0 and 1 queue their work
    for j in steps[5].after:                       # steps of other queues
        queue.wait(events[j])

A queue keeps its own order. A step waits for a step of another queue if both use the same bytes and
one of them writes, which is known once all tensors have addresses; the waits are found then, not in
each run. A CPU's work is done when it is enqueued, so nothing waits for it, and what the CPU has
waited for is done for all later steps of any queue.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from ..tensor import Tensor
from .assign import runs
from .split import Cut, DeviceCopy, Split


@dataclass(eq=False)
class Step:
    """A split or a copy on a backend's queue.

    Attributes:
        backend: index of the backend.
        work: None where the caller writes the inputs.
        after: indices of steps of this run that must be done before.
        after_last: indices of steps of the schedule's last run that must be done before, if that
            was not waited for.
        marked: whether another step waits for this one.
    """

    backend: int
    work: Split | DeviceCopy | None
    after: tuple[int, ...] = ()
    after_last: tuple[int, ...] = ()
    marked: bool = False


def make_steps(made: Cut, queueing: Collection[int]) -> tuple[Step, ...]:
    """The steps of a run whose tensors have addresses; the first is the caller's.

    Args:
        queueing: indices of the backends that queue their work.
    """
    host = len(made.assignment.backends) - 1
    steps = [Step(host, None), *(Step(item.backend, item) for item in made.work)]
    used = [list(_uses(made, step.work)) for step in steps]
    waits = _Waits(host + 1, queueing)
    n = len(steps)
    for i, uses in enumerate(used):
        steps[i].after = waits.find(i, steps[i].backend, uses)
    for i, uses in enumerate(used):  # another run, right after
        found = waits.find(n + i, steps[i].backend, uses)
        steps[i].after_last = tuple(j for j in found if j < n)
    for i in {j for step in steps for j in (*step.after, *step.after_last)}:
        steps[i].marked = True
    return tuple(steps)


class _Use(NamedTuple):
    """Bytes that a step reads or writes."""

    buffer: int  # id
    start: int
    end: int
    writes: bool


class _Open(NamedTuple):
    """A use by a step that may not be done yet."""

    step: int
    backend: int
    use: _Use


class _Waits:
    """Finds what each step must wait for, step by step in the order of execution."""

    def __init__(self, n_backends: int, queueing: Collection[int]) -> None:
        self._queueing = queueing
        self._open: dict[int, list[_Open]] = {}  # by buffer
        # known[i][j]: the last step of backend j that is done before any later one of backend i
        self._known = [[-1] * n_backends for _ in range(n_backends)]

    def find(self, step: int, backend: int, uses: list[_Use]) -> tuple[int, ...]:
        """The steps that must be done before the next step: at most one of each other queue."""
        known, last = self._known[backend], dict[int, int]()
        for use in uses:
            for other in self._open.get(use.buffer, ()):
                if other.step > known[other.backend] and other.backend != backend:
                    meets = other.use.start < use.end and use.start < other.use.end
                    if meets and (use.writes or other.use.writes):
                        last[other.backend] = max(last.get(other.backend, -1), other.step)
        self._learn(backend, last)
        if backend in self._queueing:
            for use in uses:
                self._open.setdefault(use.buffer, []).append(_Open(step, backend, use))
        return tuple(sorted(last.values()))

    def _learn(self, backend: int, last: dict[int, int]) -> None:
        """Remember what a backend waits for; what the CPU waits for is done for all."""
        waits = [self._known[backend]] if backend in self._queueing else self._known
        for known in waits:
            for other, step in last.items():
                known[other] = max(known[other], step)
        if last and backend not in self._queueing:
            for buffer, found in self._open.items():
                self._open[buffer] = [o for o in found if o.step > last.get(o.backend, -1)]


def _uses(made: Cut, work: Split | DeviceCopy | None) -> Iterator[_Use]:
    """The memory that a step uses: whole tensors, not only the views of them that it looks at."""
    written: set[Tensor] = set()
    read: set[Tensor] = set()
    if work is None:
        leafs = (made.twin[leaf].root for leaf in made.twin if leaf.op is None)
        own = {tensor for homes in made.homes.values() for tensor in homes}
        written = {root for root in leafs if root in own}
    elif isinstance(work, DeviceCopy):
        written, read = {work.dst.root}, {work.src.root}
    else:
        for node in filter(runs, work.nodes):
            twin = made.twin[node]
            written.add(twin.root)
            if node.op is not None:
                written.update(t.root for t in node.op.updated(twin))
            read.update(s.root for s in twin.src if s is not None)
    for roots, writes in ((written, True), (read - written, False)):
        for root in roots:
            if root.buffer is not None:
                size = max(root.nbytes, root.buffer.buft.alloc_size(root))
                yield _Use(id(root.buffer), root.data, root.data + size, writes)
