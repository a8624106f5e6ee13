"""Prints a graph as a text table, one line per node and leaf.

    print(graph_print(graph))

Source: ggml, ``ggml_graph_print``; type, name and sources are ours.
"""

from __future__ import annotations

from ..cgraph import CGraph
from ..tensor import Flag, Tensor
from .label import printable

_RULE = "=" * 40


def graph_print(graph: CGraph) -> str:
    """The nodes in execution order, then the leafs; ``x`` marks a parameter.

    A source is written as its number with ``%`` for a node and ``@`` for a leaf.

    Returns:
        Text without a final newline.
    """
    numbers = {t: f"%{i}" for i, t in enumerate(graph.nodes)}
    numbers |= {t: f"@{i}" for i, t in enumerate(graph.leafs)}
    lines = ["=== GRAPH ===", f"n_nodes = {len(graph.nodes)}"]
    lines += [_line(i, t, numbers) for i, t in enumerate(graph.nodes)]
    lines.append(f"n_leafs = {len(graph.leafs)}")
    lines += [_line(i, t, numbers) for i, t in enumerate(graph.leafs)]
    return "\n".join((*lines, _RULE))


def _line(i: int, tensor: Tensor, numbers: dict[Tensor, str]) -> str:
    ne = ", ".join(f"{n:5}" for n in tensor.ne[: max(3, tensor.n_dims)])
    op = tensor.op.name if tensor.op else "NONE"
    mark = "x" if tensor.flags & Flag.PARAM else " "
    sources = ", ".join("-" if s is None else numbers.get(s, printable(s.name)) for s in tensor.src)
    line = (
        f" - {i:3}: [ {ne}] {op:>16} {mark} {tensor.type.name.lower():>5} {printable(tensor.name)}"
    )
    return f"{line} ({sources})" if sources else line
