"""The reference backend: runs a graph with each op's NumPy function.

    init_backend("reference").graph_compute(graph)

It is the living specification and the debugger: slow, single-threaded, and short enough to be read
at once. It computes every op in every type that ``pyggml.quants`` knows.
"""

from __future__ import annotations

import numpy as np

from ...buffer import HOST, BufferType, HostBufferType
from ...cgraph import CGraph
from ...errors import AllocError, ComputeError, PyggmlError
from ...ops.custom import MAP_CUSTOM, is_kernel
from ...ops.op import Array
from ...quants import BLOCK_TYPES, from_float, get_blocks, set_blocks, to_float
from ...tensor import Tensor
from ..interface import Device


class ReferenceBackend:
    """NumPy on the host."""

    name = "reference"
    device = Device("reference", "NumPy", "cpu")

    def __init__(self, *, n_threads: int | None = None) -> None:
        pass

    def buffer_type(self) -> BufferType:
        return HOST

    def supports_buft(self, buft: BufferType) -> bool:
        return isinstance(buft, HostBufferType)

    def supports_op(self, node: Tensor) -> bool:
        if node.op is MAP_CUSTOM and is_kernel(node.op_params["fun"]):
            return False
        tensors = (node, *(s for s in node.src if s is not None))
        return all(not t.type.is_quantized or t.type in BLOCK_TYPES for t in tensors)

    def graph_compute(self, graph: CGraph) -> None:
        for node in graph:
            compute_node(node)

    def close(self) -> None:
        pass


def compute_node(node: Tensor) -> None:
    """Compute one node from its sources' memory.

    Raises:
        AllocError: the node or a source has no memory.
        ComputeError: the reference function failed, with its exception as the cause.
    """
    if node.op is None or node.op.reference is None:
        return
    for t in (node, *node.src):
        if t is not None and t.data == 0:
            raise AllocError(f"{_where(node)}: '{t.name}' {t.ne} has no data: allocate it first")
    try:
        sources = [None if s is None else to_float(s) for s in node.src]
        result = node.op.reference(*sources, **node.op_params)
        store(node, result)
    except PyggmlError as e:
        raise type(e)(f"{_where(node)}: {e}") from e
    except (ArithmeticError, AssertionError, LookupError, TypeError, ValueError) as e:
        if node.op is MAP_CUSTOM:  # the user's own exception stays what it is
            raise
        raise ComputeError(f"{_where(node)}: {type(e).__name__}: {e}") from e


def store(node: Tensor, result: Array) -> None:
    """Write a result into a node. Rows of a quantized view that did not change keep their bytes."""
    if node.view_src is not None and node.type.is_quantized:
        # quantizing again what was dequantized need not give the same bytes
        old, before = to_float(node), get_blocks(node).copy()
        changed = ~np.all(old == result, axis=-1)
        from_float(node, np.where(changed[..., None], result, 0))
        set_blocks(node, np.where(changed[..., None], get_blocks(node), before))
    else:
        from_float(node, result)


def _where(node: Tensor) -> str:
    sources = ", ".join(f"'{s.name}' {list(s.ne)}" for s in node.src if s is not None)
    return f"node '{node.name}' = {node.op.name if node.op else None}({sources})"
