"""Compute a graph whose tensors have memory, in one call.

    graph = CGraph()
    graph.build_forward_expand(mul_mat(ctx, a, b))
    graph_compute_with_ctx(ctx, graph, n_threads=2)

Blocks until the results are in memory. For many computes start a backend once and keep it.
"""

from __future__ import annotations

from .backend.interface import Backend
from .backend.registry import init_backend
from .cgraph import CGraph
from .context import Context
from .errors import AllocError


def graph_compute_with_ctx(
    ctx: Context, graph: CGraph, n_threads: int = 1, backend: str | Backend | None = None
) -> None:
    """Compute all nodes of ``graph``.

    Args:
        ctx: the context that owns the graph's data (``no_alloc`` contexts need a graph allocator
            first).
        n_threads: for a backend that is started here.
        backend: a running backend, or a name ("cpu" if None; "reference" is the slow NumPy one).

    Raises:
        AllocError: a node has no memory.
        UnsupportedOp, ComputeError, Aborted: as ``Backend.graph_compute``.
    """
    missing = next((t for t in graph if t.data == 0 and t.nelements), None)
    if missing is not None:
        hint = "the context has no_alloc=True: " if ctx.no_alloc else ""
        raise AllocError(
            f"'{missing.name}' {missing.ne} has no data: {hint}allocate the graph first"
        )
    if backend is not None and not isinstance(backend, str):
        backend.graph_compute(graph)
        return
    started = init_backend(backend or "cpu", n_threads=n_threads)
    try:
        started.graph_compute(graph)
    finally:
        started.close()
