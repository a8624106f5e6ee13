"""The lowerings of a backend: one for each op, and those of patterns of adjacent nodes.

    LOWERINGS: Lowerings[Lowering] = Lowerings("CUDA backend", "use the CPU")
    lowers, fuses = LOWERINGS.lowers, LOWERINGS.fuses

    @lowers("SCALE", supports=all_f32)
    def lower_scale(lowering, node): ...

    n_nodes = LOWERINGS.lower_next(lowering, nodes, i)   # in the backend's ``Lowering.run``

Kernel files register at import. The kinds of launches are the backends'.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, NamedTuple, Protocol, TypeVar

from ...cgraph import CGraph
from ...dtype import GGMLType
from ...errors import UnsupportedOp
from ...tensor import Tensor


class GraphLowering(Protocol):
    """What ``Lowerings`` needs of a backend's lowering.

    Attributes:
        graph: the graph that is lowered.
        fusion: let kernels take several adjacent nodes at once.
    """

    graph: CGraph
    fusion: bool


LoweringT = TypeVar("LoweringT", bound=GraphLowering)
Lower = Callable[[LoweringT, Tensor], None]
Supports = Callable[[Tensor], bool]
Fuse = Callable[..., bool]


class Pattern(NamedTuple):
    """Ops of adjacent nodes, and the lowering of them all; see ``Lowerings.fuses``."""

    ops: tuple[str, ...]
    stored: int
    lower: Fuse


class Lowerings(Generic[LoweringT]):
    """The lowerings of a backend.

    Args:
        backend: its name in errors.
        advice: what to do about a node without a kernel.
        takes: what holds for all nodes that it takes.

    Attributes:
        lower, supports: by op.
        patterns: by their first op, in order of registration.
    """

    def __init__(self, backend: str, advice: str, takes: Supports = lambda node: True) -> None:
        self._backend, self._advice, self._takes = backend, advice, takes
        self.lower: dict[str, Lower[LoweringT]] = {}
        self.supports: dict[str, Supports] = {}
        self.patterns: dict[str, list[Pattern]] = {}

    def lowers(
        self, op: str, supports: Supports = lambda node: True
    ) -> Callable[[Lower[LoweringT]], Lower[LoweringT]]:
        """Register the lowering of an op; ``supports`` says which types and strides it takes."""

        def register(lower: Lower[LoweringT]) -> Lower[LoweringT]:
            self.lower[op], self.supports[op] = lower, supports
            return lower

        return register

    def fuses(self, *ops: str, stored: int = 0) -> Callable[[Fuse], Fuse]:
        """Register the lowering of adjacent nodes, ``lower(lowering, *nodes)``; False refuses.

        Each node but the last is read once, by a later node of the pattern, and is not an output.
        That need not hold for the first ``stored`` nodes, whose results the lowering stores.
        """

        def register(lower: Fuse) -> Fuse:
            self.patterns.setdefault(ops[0], []).append(Pattern(ops, stored, lower))
            return lower

        return register

    def supports_node(self, node: Tensor) -> bool:
        """Whether there is a kernel for a node's op, types and strides."""
        assert node.op is not None
        name = node.op.name
        return name in self.lower and self._takes(node) and self.supports[name](node)

    def lower_next(self, lowering: LoweringT, nodes: list[Tensor], i: int) -> int:
        """Lower node ``i``, with those after it if they are a pattern; returns how many.

        Args:
            nodes: those to be computed (``computed``).

        Raises:
            UnsupportedOp: there is no kernel for it.
        """
        node = nodes[i]
        assert node.op is not None
        patterns = self.patterns.get(node.op.name, ()) if lowering.fusion else ()
        longest = max((len(pattern.ops) for pattern in patterns), default=0)
        names = tuple(n.op.name for n in nodes[i : i + longest] if n.op)
        for ops, stored, lower in patterns:
            if names[: len(ops)] == ops:
                group = nodes[i : i + len(ops)]
                if _is_private(lowering.graph, group, stored) and lower(lowering, *group):
                    return len(ops)
        if not self.supports_node(node):
            sources = ", ".join(f"{s.type.name}{list(s.ne)}" for s in node.src if s is not None)
            raise UnsupportedOp(
                f"{self._backend}: no kernel for '{node.name}' = {node.op.name}({sources}) -> "
                f"{node.type.name}; {self._advice}"
            )
        self.lower[node.op.name](lowering, node)
        return 1


def _is_private(graph: CGraph, group: list[Tensor], stored: int) -> bool:
    """Whether the results in a pattern are not read after it; see ``Lowerings.fuses``."""
    return all(
        (k < stored or (graph.use_count(n) == 1 and not n.flags))
        and any(n in later.src for later in group[k + 1 :])
        for k, n in enumerate(group[:-1])
    )


def computed(graph: CGraph) -> list[Tensor]:
    """The nodes for which something runs: not views, not without elements."""
    return [n for n in graph.nodes if n.op and not n.op.is_view and n.nelements]


def all_f32(node: Tensor) -> bool:
    """Whether the result and all sources are F32 with gap-free rows."""
    tensors = [node, *(s for s in node.src if s is not None)]
    return all(t.type is GGMLType.F32 and t.is_contiguous_rows() for t in tensors)
