"""Profiles a model's graph: times of its nodes in real runs.

    drawn = profiled_graph(model, "x.gguf", n_tokens=1, depth=512)
    drawn.times[drawn.graph.nodes[-1]].us

Decodes ``depth`` tokens, then repeats the decode of ``n_tokens`` more at the same position.
"""

from __future__ import annotations

import os
import time

from pyggml.dtype import GGMLType
from pyggml.viz import node_times

from ..runtime.batch import Batch
from ..runtime.context import Context
from ..runtime.decode_graph import bucket
from ..runtime.model import Model
from .graph_export import DrawnGraph, graph_title

_RUN_S = 0.4  # approximate total time of all runs


def profiled_graph(
    model: Model,
    path: str | os.PathLike[str],
    *,
    n_tokens: int = 1,
    depth: int = 0,
    n_threads: int | None = None,
    type_k: GGMLType = GGMLType.F16,
    type_v: GGMLType = GGMLType.F16,
    n_prompt: int = 512,
    pause_s: float = 0.0,
) -> DrawnGraph:
    """Run a model and return its graph with times.

    Args:
        n_tokens: batch size of the timed decode; its graph may be padded.
        depth: tokens in the KV cache before it.
        type_k, type_v: types of keys and values in it.
        n_prompt: tokens of the cache that are evaluated at a time.
        pause_s: seconds after each run, in which other contexts may compute.

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
        type_k=type_k,
        type_v=type_v,
        n_threads=n_threads,
    )
    n_vocab = model.hparams.n_vocab
    tokens = [(7919 * i + 1) % n_vocab for i in range(depth + n_tokens)]  # arbitrary ids
    for i in range(0, depth, n_prompt):
        context.decode(Batch(tokens[i : min(i + n_prompt, depth)]))
        time.sleep(pause_s)
    context.decode(Batch(tokens[depth:]))
    ran = context.last_graph
    graph, schedule = ran.builder.graph, ran.schedule
    first = schedule.trace()[0]
    repeats = min(100, max(5, int(_RUN_S * 1e9 / max(first.wall_ns, 1.0))))
    runs = []
    for _ in range(repeats):
        time.sleep(pause_s)
        runs += schedule.trace()
    title = f"{graph_title(path, n_tokens)} at depth {depth}, {first.n_threads} threads"
    if bucket(n_tokens) != n_tokens:
        title += f", padded to {bucket(n_tokens)}"
    plan = schedule.plan()
    runs.sort(key=lambda run: run.wall_ns)
    runs = runs[: (len(runs) + 1) // 2]  # slow runs were disturbed by other processes
    median = runs.pop(len(runs) // 2)  # moved to the front: it becomes the written trace
    return DrawnGraph(graph, plan, title, (median, *runs), node_times([median, *runs]))
