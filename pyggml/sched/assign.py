"""Choose a backend for each node, and for the memory of tensors that have none yet.

    bufts = buffer_types(backends)
    assignment = assign(graph, backends, bufts, pins={}, is_given=lambda root: root.data != 0)
    assignment.node[tensor]                        # index into backends
    assignment.buft(tensor)                        # the buffer type of the tensor's memory

Existing memory decides first: a node that writes into it goes to a backend that can reach it. Then
come the user's pins, then the weights that a node reads, then its neighbours. A lower index is a
higher priority; the last backend takes the nodes that no other supports. Where a device has a
source in its memory and no kernel for the node, the log says so, once for each op.
Source: ggml, ``ggml_backend_sched_split_graph`` (passes 1 to 4).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import lru_cache

from ..backend.interface import Backend
from ..buffer import HOST
from ..cgraph import CGraph
from ..errors import UnsupportedOp
from ..tensor import BufferType, Flag, Tensor

_log = logging.getLogger("pyggml")
_TABLES = ("ROPE",)  # ops whose given source is a small table, which decides nothing


def runs(node: Tensor) -> bool:
    """Whether the node needs a kernel."""
    return node.op is not None and not node.op.is_view and node.nelements > 0


def buffer_types(backends: Sequence[Backend]) -> tuple[BufferType, ...]:
    """The type of the memory that each backend's results are in.

    Those of the CPU are in memory that the first device copies fastest with, as in llama.cpp.
    """
    own = [backend.buffer_type() for backend in backends]
    staging = next((b.staging_type() for b in backends if b.device.is_async), HOST)
    on_host = [b for b, buft in zip(backends, own, strict=True) if buft is own[-1]]
    if staging is HOST or not all(b.supports_buft(staging) for b in on_host):
        return (*own,)
    return tuple(staging if buft is own[-1] else buft for buft in own)


class Assignment:
    """The backends of a graph's nodes and tensors.

    Attributes:
        bufts: the type of the memory of each backend's results.
        node: index of the backend for each node that runs.
        home: index of the backend whose memory a tensor without memory gets (no views).
    """

    def __init__(
        self,
        backends: Sequence[Backend],
        bufts: Sequence[BufferType],
        is_given: Callable[[Tensor], bool],
    ) -> None:
        self.backends, self.bufts = backends, bufts
        self.is_given = is_given
        self.node: dict[Tensor, int] = {}
        self.home: dict[Tensor, int] = {}

    def buft(self, tensor: Tensor) -> BufferType | None:
        """The buffer type of the tensor's memory, existing or planned; None if not known yet."""
        root = tensor.root
        if self.is_given(root):
            assert root.buffer is not None
            return root.buffer.buft
        home = self.home.get(root)
        return None if home is None else self.bufts[home]

    def reaches(self, backend: int, tensor: Tensor) -> bool:
        """Whether a backend can use the tensor's memory without a copy."""
        buft = self.buft(tensor)
        return buft is not None and self.backends[backend].supports_buft(buft)

    def queues(self, backend: int) -> bool:
        """Whether a backend may still compute when ``Program.enqueue`` has returned."""
        return self.backends[backend].device.is_async


def assign(
    graph: CGraph,
    backends: Sequence[Backend],
    bufts: Sequence[BufferType],
    pins: Mapping[Tensor, int],
    is_given: Callable[[Tensor], bool],
) -> Assignment:
    """Choose a backend for every node that runs, and a home for every tensor without memory.

    Args:
        bufts: see ``buffer_types``.
        pins: the backends that the user asks for; ignored where they are not possible.
        is_given: whether a root has memory that must stay.

    Raises:
        UnsupportedOp: no backend computes a node, or none that reaches the memory it writes.
    """
    a = Assignment(backends, bufts, is_given)
    nodes = [n for n in graph.nodes if runs(n)]
    able = {n: _able(a, n) for n in nodes}
    leafs = _homeless(a, graph)
    for leaf in leafs:
        if leaf in pins or leaf.flags & Flag.INPUT:
            a.home[leaf] = pins.get(leaf, len(backends) - 1)
    for node in nodes:
        choice = _fixed(a, node, able[node], pins)
        if choice is not None:
            a.node[node] = choice
    everyone = range(len(backends))
    apart = [i for i in everyone if not backends[i].supports_buft(bufts[-1])]  # as ggml's GPUs
    for spreading in (apart, everyone):
        for order in (nodes, nodes[::-1]):
            _spread(a, order, able, spreading)
    for node in nodes:
        _settle(a, node, able[node], pins)
    for node in nodes:
        for source in node.src:
            root = None if source is None else source.root
            if root in leafs:
                a.home.setdefault(root, a.node[node])
    for leaf in leafs:
        a.home.setdefault(leaf, len(backends) - 1)
    _settle_writers(a, nodes, able)
    if any(map(a.queues, everyone)):
        for node in nodes:
            if not a.queues(a.node[node]) and pins.get(node) != a.node[node]:
                _tell_of_refusal(a, node)
    return a


def _tell_of_refusal(a: Assignment, node: Tensor) -> None:
    """Log a node of the CPU that a device with one of its sources does not compute."""
    for source in node.src:
        where = None if source is None else _device_of(a, source)
        if where is not None and not a.backends[where].supports_op(node):
            assert node.op is not None
            _say_once(a.backends[where].name, node.op.name, a.backends[a.node[node]].name)


def _device_of(a: Assignment, source: Tensor) -> int | None:
    """The device that computes a tensor, or has it in its memory."""
    root = source.root
    computes = a.node.get(source, a.node.get(root))
    if computes is None:
        computes = next((i for i in range(len(a.backends)) if a.reaches(i, root)), None)
    return computes if computes is not None and a.queues(computes) else None


@lru_cache(maxsize=1024)
def _say_once(device: str, op: str, other: str) -> None:
    _log.warning(
        "%s has no kernel for %s of some types or sizes of this graph: %s computes it, on copies",
        device, op, other,
    )  # fmt: skip


def _written(node: Tensor) -> Tensor:
    """The tensor that decides where a node runs, since the node writes it."""
    updated = node.op.updated(node) if node.op is not None else ()
    return updated[0] if updated else node


def _able(a: Assignment, node: Tensor) -> list[int]:
    """The backends that support the node and can write to its memory, if it has any."""
    assert node.op is not None
    written = _written(node)
    root = written.root
    given = a.is_given(root)
    found = [
        i
        for i, backend in enumerate(a.backends)
        if backend.supports_op(node) and (not given or a.reaches(i, written))
    ]
    if found:
        return found
    names = ", ".join(b.name for b in a.backends)
    buft = a.buft(root)
    where = "" if buft is None else f" in the {buft.name} memory of '{root.name}'"
    raise UnsupportedOp(
        f"no backend ({names}) computes '{node.name}' = {node.op.name} -> {node.type.name}{where}; "
        "add one that does, such as reference, as the last"
    )


def _homeless(a: Assignment, graph: CGraph) -> dict[Tensor, None]:
    """Roots without memory that no node computes, in order."""
    tensors = (*graph.leafs, *(n for n in graph.nodes if n.view_src is None and not runs(n)))
    return {t.root: None for t in tensors if not a.is_given(t.root)}


def _fixed(
    a: Assignment, node: Tensor, able: Sequence[int], pins: Mapping[Tensor, int]
) -> int | None:
    """The backend of a node that memory, pins or weights decide; None for a free one."""
    if pins.get(node, -1) in able:
        return pins[node]
    assert node.op is not None
    if a.is_given(_written(node).root):
        return able[0]
    if node.op.name in _TABLES:
        return None
    given = [s for s in node.src if s is not None and is_weight(a, s.root)]
    for source in sorted(given, key=lambda s: -s.nbytes):
        for i in able:
            if a.reaches(i, source):
                return i
    return None


def is_weight(a: Assignment, root: Tensor) -> bool:
    """Whether it is a weight or a cache: it has memory, and no node computes it."""
    return root.op is None and a.is_given(root)


def _spread(
    a: Assignment,
    nodes: Iterable[Tensor],
    able: Mapping[Tensor, Sequence[int]],
    spreading: Collection[int],
) -> None:
    """Give free nodes the backend of the previous node, if it is allowed and supports them."""
    current = -1
    for node in nodes:
        mine = a.node.get(node)
        if mine is not None:
            current = mine if mine in spreading else -1
        elif current in able[node]:
            a.node[node] = current


def _settle(a: Assignment, node: Tensor, able: Sequence[int], pins: Mapping[Tensor, int]) -> None:
    """Choose for a node that is still free; move others to a better backend of the same memory."""
    sources = [s for s in node.src if s is not None]
    mine = a.node.get(node)
    if mine is None:
        mine = max(able, key=lambda i: (sum(a.reaches(i, s) for s in sources), -i))
    elif pins.get(node) != mine:
        better = (i for i in able if i < mine and a.bufts[i] is a.bufts[mine])
        reached = [s for s in sources if a.reaches(mine, s)]
        mine = next((i for i in better if all(a.reaches(i, s) for s in reached)), mine)
    a.node[node] = mine
    if node.view_src is None and not a.is_given(node):
        a.home[node] = mine


def _settle_writers(
    a: Assignment, nodes: Sequence[Tensor], able: Mapping[Tensor, Sequence[int]]
) -> None:
    """Ensure that nodes that write into another tensor's memory can reach it."""
    writers: dict[Tensor, list[Tensor]] = {}
    for node in nodes:
        root = node.root
        if root is not node and not a.is_given(root):
            writers.setdefault(root, []).append(node)
    for root, family in writers.items():
        own = [root] if runs(root) else []
        for home in (a.home[root], *range(len(a.backends))):
            choices = [_who(a, n, able[n], a.bufts[home]) for n in (*own, *family)]
            if None not in choices:
                break
        else:
            names = ", ".join(f"'{n.name}'" for n in (*own, *family))
            raise UnsupportedOp(f"{names} share memory, and no memory serves a backend for each")
        a.home[root] = home
        for node, choice in zip((*own, *family), choices, strict=True):
            assert choice is not None
            a.node[node] = choice


def _who(a: Assignment, node: Tensor, able: Sequence[int], buft: BufferType) -> int | None:
    """A backend for a node that writes into memory of a type: its own one if possible."""
    reach = [i for i in able if a.backends[i].supports_buft(buft)]
    return a.node[node] if a.node[node] in reach else next(iter(reach), None)
