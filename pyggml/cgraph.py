"""A compute graph: nodes in execution order, and the leafs that they read.

    gf = CGraph()
    gf.build_forward_expand(result)
    [node.op.name for node in gf.nodes]

``build_forward_expand`` appends in depth-first post-order over the sources, so the order of calls
decides the order of execution. Building a graph computes and allocates nothing.
Source: ggml, ``ggml_build_forward_expand``.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from .tensor import Flag, Tensor


class CGraph:
    """Nodes (computed) and leafs (given) reachable from the expanded tensors.

    Attributes:
        n_forward: the number of nodes before the backward part, see ``backward.py``; None without.
        grads: the gradient of each forward tensor that has one.
        grad_accs: the tensor with memory to which a forward tensor's gradient is added.
    """

    def __init__(self) -> None:
        self.nodes: list[Tensor] = []
        self.leafs: list[Tensor] = []
        self.n_forward: int | None = None
        self.grads: dict[Tensor, Tensor] = {}
        self.grad_accs: dict[Tensor, Tensor] = {}
        self._use_counts: dict[Tensor, int] = {}  # also the set of visited tensors

    def __len__(self) -> int:
        return len(self.nodes)

    def __iter__(self) -> Iterator[Tensor]:
        return iter(self.nodes)

    def build_forward_expand(self, tensor: Tensor) -> None:
        """Append ``tensor`` and everything it needs that the graph does not have yet."""
        counts = self._use_counts
        if tensor in counts:
            return
        counts[tensor] = 0
        stack = [(tensor, iter(tensor.src))]
        while stack:  # an explicit stack: long chains must not meet Python's recursion limit
            parent, sources = stack[-1]
            for source in sources:
                if source is None:
                    continue
                seen = source in counts
                counts[source] = counts.get(source, 0) + 1
                if not seen:
                    stack.append((source, iter(source.src)))
                    break
            else:
                stack.pop()
                self._append(parent)

    @classmethod
    def in_order(cls, nodes: list[Tensor], leafs: list[Tensor]) -> CGraph:
        """A graph of just these tensors, the nodes in this order."""
        graph = cls()
        graph.nodes, graph.leafs = nodes, leafs
        graph._use_counts = dict.fromkeys((*leafs, *nodes), 0)
        for node in nodes:
            for source in _sources(node):
                graph._use_counts[source] = graph._use_counts.get(source, 0) + 1
        return graph

    def part(self, nodes: list[Tensor]) -> CGraph:
        """A graph of only these nodes, for which ``use_count`` still counts all readers.

        Source: ggml, ``ggml_graph_view``.
        """
        graph = CGraph()
        graph.nodes, graph.leafs, graph._use_counts = nodes, self.leafs, self._use_counts
        return graph

    def use_count(self, tensor: Tensor) -> int:
        """How many times nodes of the graph read ``tensor`` as a source."""
        return self._use_counts.get(tensor, 0)

    def get_tensor(self, name: str) -> Tensor | None:
        """The first leaf or node of that name."""
        return next((t for t in (*self.leafs, *self.nodes) if t.name == name), None)

    def get_grad(self, tensor: Tensor) -> Tensor | None:
        """The gradient of a forward tensor; None if it has none."""
        return self.grads.get(tensor)

    def get_grad_acc(self, tensor: Tensor) -> Tensor | None:
        """The memory that gradients of a forward tensor are added to."""
        return self.grad_accs.get(tensor)

    @property
    def backward(self) -> list[Tensor]:
        """The nodes of the backward part and of the optimizer."""
        return [] if self.n_forward is None else self.nodes[self.n_forward :]

    def reset(self) -> None:
        """Set accumulated gradients to 0 (those of losses to 1), and the optimizer's moments to 0.

        Source: ggml, ``ggml_graph_reset``.
        """
        for tensor, acc in self.grad_accs.items():
            acc.set(np.full(acc.shape, float(bool(tensor.flags & Flag.LOSS)), np.float32))
        for node in self.nodes:
            if node.op is not None and node.op.name.startswith("OPT_STEP_"):
                for moment in node.op.updated(node):
                    moment.set(np.zeros(moment.shape, np.float32))

    def _append(self, tensor: Tensor) -> None:
        if tensor.op is None and not tensor.flags & Flag.PARAM:
            tensor.name = tensor.name or f"leaf_{len(self.leafs)}"
            self.leafs.append(tensor)
        else:
            tensor.name = tensor.name or f"node_{len(self.nodes)}"
            self.nodes.append(tensor)


def _sources(tensor: Tensor) -> Iterator[Tensor]:
    return (s for s in tensor.src if s is not None)
