"""Cut a graph into splits, each for one backend, with copies of tensors it cannot reach.

    assignment = assign(graph, backends, bufts, pins, is_given)
    made = cut(graph, assignment, in_order(graph, assignment))
    made.splits[0].copies                          # of what the split reads in other memory
    made.work                                      # copies and splits in the order of execution
    made.whole                                     # the same as a graph, for planning

The user's graph is not changed: a cut has headers of its own (``twin``), whose sources are the
copies, if any. A copy is made once for each content of a tensor and each kind of memory, for all
splits that read it. Inputs lie side by side in one staging tensor, so each device gets them all in
one copy. A result that a device computes for the CPU is copied by the device, right after the split
that computes it, so that the CPU can wait for this copy while the device goes on.
Source: ggml, ``ggml_backend_sched_split_graph`` (pass 5).
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from ..cgraph import CGraph
from ..dtype import GGMLType
from ..rounding import round_up
from ..tensor import BufferType, Flag, Tensor
from .assign import Assignment, runs


@dataclass(eq=False)
class DeviceCopy:
    """A copy of ``src``, in other memory, to ``dst``, which a split reads.

    Attributes:
        backend: index of the backend whose queue makes it.
        after: the split that it is made right after; None: right before the split that reads it.
    """

    src: Tensor
    dst: Tensor
    backend: int
    after: Split | None


@dataclass(eq=False)
class Split:
    """A run of nodes that one backend computes.

    Attributes:
        backend: index of the backend.
        copies: of what its nodes read, made before they run.
        nodes: the user's tensors, including views.
    """

    backend: int
    copies: list[DeviceCopy] = field(default_factory=list)
    nodes: list[Tensor] = field(default_factory=list)


@dataclass(eq=False)
class Cut:
    """The splits of a graph, with headers for copies and nodes.

    Attributes:
        splits: in order.
        work: the splits and their copies in the order of execution.
        twin: our header for each tensor of the user's graph.
        whole: our headers in the order of execution, including copies.
        homes: the headers to be allocated, by buffer type.
        windows: views of copies, allocated after them.
        assignment: what it was made from.
    """

    splits: list[Split]
    work: list[Split | DeviceCopy]
    twin: dict[Tensor, Tensor]
    whole: CGraph
    homes: dict[BufferType, set[Tensor]]
    windows: list[Tensor]
    assignment: Assignment

    def part(self, nodes: list[Tensor]) -> CGraph:
        """The graph for some nodes of a split, without those that need no kernel."""
        return self.whole.part([self.twin[n] for n in nodes if runs(n)])


def cut(graph: CGraph, assignment: Assignment, splits: list[Split]) -> Cut:
    """Connect the splits of a graph by copies; see ``in_order`` and ``stages.by_stage``."""
    cutter = _Cutter(assignment, graph)
    leafs = [cutter.twin_of(leaf) for leaf in graph.leafs]
    for split in splits:
        for node in split.nodes:
            cutter.connect(split, node)
    work = _with_copies(splits)
    nodes: list[Tensor] = []
    for item in work:
        nodes += [item.dst] if isinstance(item, DeviceCopy) else map(cutter.twin_of, item.nodes)
    whole = CGraph.in_order(nodes, leafs)
    return Cut(splits, work, cutter.twin, whole, cutter.homes(), cutter.windows, assignment)


def in_order(graph: CGraph, assignment: Assignment) -> list[Split]:
    """The splits of a graph in its own order: one wherever the backend changes."""
    splits: list[Split] = []
    waiting: list[Tensor] = []  # views before the first split
    for node in graph.nodes:
        backend = assignment.node.get(node)
        if backend is not None and (not splits or splits[-1].backend != backend):
            splits.append(Split(backend, nodes=waiting))
            waiting = []
        (splits[-1].nodes if splits else waiting).append(node)
    if waiting:  # a graph of views only
        splits.append(Split(len(assignment.backends) - 1, nodes=waiting))
    return splits


def _with_copies(splits: list[Split]) -> list[Split | DeviceCopy]:
    """Splits and copies in the order of execution.

    Inputs are copied first: the host may write the next ones while a split waits for other copies.
    """
    after: dict[Split, list[DeviceCopy]] = {split: [] for split in splits}
    for split in splits:
        for copy in split.copies:
            if copy.after is not None:
                after[copy.after].append(copy)
    work: list[Split | DeviceCopy] = []
    for split in splits:
        before = [copy for copy in split.copies if copy.after is None]
        before.sort(key=lambda copy: copy.src.op is not None)
        work += [*before, split, *after[split]]
    return work


class _Cutter:
    """Creates headers and copies, split by split."""

    def __init__(self, assignment: Assignment, graph: CGraph) -> None:
        self.assignment = assignment
        self._staging, self._staged = _stage(graph, assignment)
        self.twin: dict[Tensor, Tensor] = {}
        self.windows: list[Tensor] = []
        self._writes: Counter[Tensor] = Counter()  # number of writes so far, by root
        self._writer: dict[Tensor, Split] = {}  # the split that wrote a root last
        self._copies: dict[tuple[Tensor, int, BufferType], list[DeviceCopy]] = {}
        self._names: Counter[str] = Counter()

    def twin_of(self, tensor: Tensor) -> Tensor:
        """Our header of a tensor; ``connect`` sets its sources."""
        known = self.twin.get(tensor)
        if known is not None:
            return known
        twin = Tensor(tensor.type, tensor.ne, tensor.nb)
        twin.op, twin.op_params = tensor.op, tensor.op_params
        twin.flags, twin.name = tensor.flags, tensor.name
        if tensor in self._staged:
            twin.view_src, twin.view_offs = self._staging, self._staged[tensor]
        elif tensor.view_src is not None:
            root = self.twin_of(tensor.view_src)
            twin.view_src, twin.view_offs = root, tensor.view_offs
            if root.view_src is not None:  # an input
                twin.view_src, twin.view_offs = root.view_src, root.view_offs + tensor.view_offs
        if self.assignment.is_given(tensor.root):
            twin.buffer, twin.data = tensor.buffer, tensor.data
        self.twin[tensor] = twin
        return twin

    def connect(self, split: Split, node: Tensor) -> None:
        """Set the sources of our header of a node: copies where the split needs them."""
        twin = self.twin_of(node)
        if runs(node):
            twin.src = tuple(None if s is None else self._reachable(split, s) for s in node.src)
            written = self._staging if node.root in self._staged else node.root
            self._writer[written] = split
            if node.view_src is not None:
                self._writes[written] += 1
        else:
            twin.src = tuple(None if s is None else self.twin_of(s) for s in node.src)

    def _reachable(self, split: Split, source: Tensor) -> Tensor:
        """The source itself, or a copy.

        A split never writes to memory that it cannot reach, so a copy made before it has the right
        content for all of its nodes.
        """
        a, twin = self.assignment, self.twin_of(source)
        if source.nelements == 0 or a.reaches(split.backend, source):
            return twin
        name, root = a.backends[split.backend].name, source.root
        staged = root in self._staged
        root, copied = (self._staging, self._staging) if staged else (root, twin)
        key = (root, self._writes[root], a.bufts[split.backend])
        copies = self._copies.setdefault(key, [])
        for copy in copies:
            first = twin.view_offs - copy.src.view_offs
            if first >= 0 and first + twin.nbytes <= copy.src.nbytes:
                return self._window(copy.dst, twin, first)
        dst = Tensor(copied.type, copied.ne, copied.nb)
        name = f"{name}#{copied.name}"
        dst.set_name(f"{name}#{self._names[name]}")
        self._names[name] += 1
        dst.src = (copied,)
        copies.append(
            DeviceCopy(copied, dst, *self._copied_by(split, source, self._writer.get(root)))
        )
        split.copies.append(copies[-1])
        return self._window(dst, twin, twin.view_offs) if staged else dst

    def _copied_by(
        self, split: Split, source: Tensor, writer: Split | None
    ) -> tuple[int, Split | None]:
        """The backend that copies a source for a split, and the split that it does so after."""
        a = self.assignment
        if a.queues(split.backend):
            return split.backend, None
        owners = (i for i in range(len(a.backends)) if a.queues(i) and a.reaches(i, source))
        owner = next(owners, split.backend)
        if writer is not None and a.queues(writer.backend):
            return writer.backend, writer
        return owner, None

    def _window(self, copy: Tensor, like: Tensor, first: int) -> Tensor:
        """A view of a copy with the sizes of ``like``; the copy itself if it has them."""
        if (copy.type, copy.ne, copy.nb, 0) == (like.type, like.ne, like.nb, first):
            return copy
        window = Tensor(like.type, like.ne, like.nb)
        window.view_src, window.view_offs = copy, first
        self.windows.append(window.set_name(copy.name))
        return window

    def homes(self) -> dict[BufferType, set[Tensor]]:
        """The headers to be allocated, by buffer type; see ``Cut``."""
        homes: dict[BufferType, set[Tensor]] = {}
        for tensor, twin in self.twin.items():
            if tensor in self._staged:
                twin = self._staging
            if tensor.view_src is None and not self.assignment.is_given(tensor):
                buft = self.assignment.buft(tensor)
                assert buft is not None
                homes.setdefault(buft, set()).add(twin)
        for (_, _, buft), copies in self._copies.items():
            homes.setdefault(buft, set()).update(copy.dst for copy in copies)
        return homes


def _stage(graph: CGraph, a: Assignment) -> tuple[Tensor, dict[Tensor, int]]:
    """(a tensor for all inputs in the last backend's memory, the first byte of each input)."""
    last = len(a.backends) - 1
    alignment = a.bufts[last].alignment
    offsets: dict[Tensor, int] = {}
    size = 0
    for leaf in graph.leafs:
        if leaf.flags & Flag.INPUT and leaf.view_src is None and a.home.get(leaf) == last:
            offsets[leaf] = size
            size += round_up(leaf.nbytes, alignment)
    staging = Tensor(GGMLType.I8, (max(size, 1), 1, 1, 1)).set_name("inputs").set_input()
    return staging, offsets
