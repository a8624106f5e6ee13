"""A model's graph with the times of real runs.

    drawn = profiled_graph(model, "x.gguf", n_tokens=1, depth=512)
    drawn.times[drawn.graph.nodes[-1]].us

Decodes ``depth`` tokens, then times the decode of ``n_tokens`` more, again and again in place.
"""

from __future__ import annotations

import os

from pyggml.viz import node_times

from ..core.batch import Batch
from ..core.context import Context
from ..core.decode_graph import bucket
from ..core.model import Model
from .graph_export import DrawnGraph, title_of

_RUN_S = 0.4  # about as long, all runs together


def profiled_graph(
    model: Model,
    path: str | os.PathLike[str],
    *,
    n_tokens: int = 1,
    depth: int = 0,
    n_threads: int | None = None,
) -> DrawnGraph:
    """Run a model and draw what ran.

    Args:
        n_tokens: of the decode that is timed; its graph may be padded to more.
        depth: tokens in the cache before it.

    Returns:
        The graph, its plan, traces of the faster half of 5 to 100 runs, and the times of its
        nodes.

    Raises:
        AllocError: the context does not fit into memory.
        ComputeError: this machine has no cycle counter.
    """
    context = Context(
        model,
        n_ctx=depth + n_tokens,
        n_batch=depth + n_tokens,
        n_ubatch=max(n_tokens, 512),
        n_threads=n_threads,
    )
    n_vocab = model.hparams.n_vocab
    tokens = [(7919 * i + 1) % n_vocab for i in range(depth + n_tokens)]  # any that differ
    if depth:
        context.decode(Batch(tokens[:depth]))
    context.decode(Batch(tokens[depth:]))
    ran = context.last_graph
    graph, schedule = ran.builder.graph, ran.schedule
    first = schedule.trace()[0]
    repeats = min(100, max(5, int(_RUN_S * 1e9 / max(first.wall_ns, 1.0))))
    runs = schedule.trace(repeats)
    title = f"{title_of(path, n_tokens)} behind {depth}, {first.n_threads} threads"
    if bucket(n_tokens) != n_tokens:
        title += f", padded to {bucket(n_tokens)}"
    plan = schedule.plan()
    runs.sort(key=lambda run: run.wall_ns)
    runs = runs[: (len(runs) + 1) // 2]  # other processes stretch a run, never shrink it
    middle = runs.pop(len(runs) // 2)  # the first one is the median: what a trace shows
    return DrawnGraph(graph, plan, title, (middle, *runs), node_times([middle, *runs]))
