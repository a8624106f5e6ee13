"""Order the nodes of a graph so that its backends can work at the same time.

    splits = by_stage(graph, assignment)           # of one stage: devices first, then the CPU

Each backend keeps its nodes in the order of the graph. In a *stage* it computes the next ones that
depend on nothing of another backend in the same stage, so a device's split is enqueued first and
runs while the CPU computes its own. With neurons of a layer on both (time goes down):

    GPU: attention, predictor
    GPU: its neurons                    CPU: its neurons
    GPU: sum, next attention, predictor
    GPU: its neurons                    CPU: its neurons

A stage of a backend ends early if another backend could begin meanwhile: the GPU's neurons above
need nothing of the CPU, but if they were in the first stage, the CPU would wait for them.
Dependencies are those of data and of memory: a node that writes into a tensor comes after all
earlier nodes that read or write it, also through views, and before all later ones.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..cgraph import CGraph
from ..tensor import Tensor
from .assign import Assignment, is_weight, runs
from .split import Split


def by_stage(graph: CGraph, a: Assignment) -> list[Split]:
    """The splits of a graph in an order in which independent ones of several backends overlap."""
    order = _Order(graph, a)
    splits = order.splits() or [Split(len(a.backends) - 1)]
    split_of = {node: split for split in splits for node in split.nodes}
    home: dict[Tensor, Split] = {}  # the split that wrote a tensor last
    for split in splits:
        split.nodes = []
    for node in graph.nodes:  # with views, each where its tensor was written
        if node in split_of:
            home[node.root] = split_of[node]
        home.get(node.root, splits[0]).nodes.append(node)
    return splits


class _Order:
    """Takes the nodes of each backend, stage by stage."""

    def __init__(self, graph: CGraph, a: Assignment) -> None:
        self._assignment = a
        self._before = _dependencies(graph)
        # Devices come first: their work is enqueued before the CPU computes.
        backends = sorted({*a.node.values()}, key=lambda i: (not a.queues(i), i))
        self._left = {i: [n for n in self._before if a.node[n] == i] for i in backends}
        self._written = {node.root for node in self._before}
        self._done: set[Tensor] = set()

    def splits(self) -> list[Split]:
        """The splits in order, without views."""
        splits: list[Split] = []
        while any(self._left.values()):
            ready = {i: self._ready(nodes, self._done) for i, nodes in self._left.items()}
            taken = {i: nodes[: self._enough(i, ready)] for i, nodes in ready.items() if nodes}
            for i, nodes in taken.items():
                splits.append(Split(i, nodes=nodes))
                self._left[i] = self._left[i][len(nodes) :]
                self._done.update(nodes)
        return splits

    def _ready(self, nodes: Sequence[Tensor], done: set[Tensor]) -> list[Tensor]:
        """The first nodes, up to one that depends on neither ``done`` nor each other."""
        found: dict[Tensor, None] = {}
        for node in nodes:
            if not all(other in done or other in found for other in self._before[node]):
                break
            found[node] = None
        return list(found)

    def _enough(self, backend: int, ready: dict[int, list[Tensor]]) -> int:
        """How many of a backend's ready nodes it computes in this stage.

        Fewer than all if another backend can compute products with weights after them, while this
        one computes its own: smaller work is not worth another split.
        """
        mine = {node: i for i, node in enumerate(ready[backend], 1)}
        done = self._done.union(*ready.values())
        enough = 0
        for i, nodes in self._left.items():
            if i != backend:
                begun = self._ready(nodes[len(ready[i]) :], done)
                last = next((n for n, node in enumerate(begun, 1) if self._has_weight(node)), 0)
                needs = [mine.get(n, 0) for node in begun[:last] for n in self._before[node]]
                enough = max(enough, *needs, 0)
        rest = ready[backend][enough:]
        return enough if enough and any(map(self._has_weight, rest)) else len(mine)

    def _has_weight(self, node: Tensor) -> bool:
        """Whether a node reads a matrix that no node writes."""
        matrices = (s.root for s in node.src if s is not None and s.ne[1] > 1)
        return any(is_weight(self._assignment, m) and m not in self._written for m in matrices)


def _dependencies(graph: CGraph) -> dict[Tensor, set[Tensor]]:
    """The nodes that must run before each node that runs, in the order of the graph."""
    before: dict[Tensor, set[Tensor]] = {}
    writer: dict[Tensor, Tensor] = {}  # of a root, the last one
    readers: dict[Tensor, list[Tensor]] = {}  # of a root, since then
    for node in filter(runs, graph.nodes):
        roots = {s.root for s in node.src if s is not None}
        before[node] = {writer[root] for root in (*roots, node.root) if root in writer}
        before[node].update(readers.pop(node.root, ()))
        for root in roots:
            readers.setdefault(root, []).append(node)
        writer[node.root] = node
        before[node].discard(node)
    return before
