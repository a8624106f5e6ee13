"""The data of the page ``/graph``: a model's compute graph and the times of its nodes.

    query = GraphQuery.read({"tokens": "1", "depth": "128", "times": "1"})
    drawn = draw_graph(context, query)             # in a thread
    graph_json(drawn, query)                       # GET /graph.json
    graph_drawing(drawn)                           # GET /graph.html

Times are measured in a context of their own with the same weights, so the cells of the server's
context do not change. That takes the time of a prompt of ``depth`` tokens and about half a second.
Meanwhile steps of the server run between the runs that are measured. Any thread may do it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from pyggml.alloc import GraphAllocator
from pyggml.buffer import HOST
from pyggml.errors import BackendError, PyggmlError
from pyggml.tensor import Tensor
from pyggml.viz import graph_html
from pyggml.viz.label import printable
from pyggml.viz.scope import Scope
from pyggml.viz.style import family, symbol
from pyggml.viz.times import fused_into

from ...inspect.graph_export import DrawnGraph, graph_title
from ...inspect.graph_profile import profiled_graph
from ...runtime.context import Context
from ...runtime.devices import CPU

_MAX_TOKENS = 512
_MAX_DEPTH = 4096
_PROMPT = 32  # tokens of the cache that are evaluated at a time, between steps of the server
_PAUSE_S = 0.002  # after each run: the CPU's threads are free for a step
_LAYER_SUFFIX = re.compile(r"-\d+(?=$|[ _#])|_l\d+(?![\w.])")


@dataclass(frozen=True)
class GraphQuery:
    """What to draw.

    Attributes:
        tokens: batch size of the graph.
        depth: tokens in the KV cache before it, for the times.
        times: whether to measure times.
    """

    tokens: int = 1
    depth: int = 128
    times: bool = False

    @classmethod
    def read(cls, fields: Mapping[str, str]) -> GraphQuery:
        """Return the query of the parameters of an address.

        Raises:
            ValueError: a parameter is not a number in its range.
        """
        return cls(
            _integer(fields, "tokens", 1, 1, _MAX_TOKENS),
            _integer(fields, "depth", 128, 0, _MAX_DEPTH),
            bool(_integer(fields, "times", 0, 0, 1)),
        )


def _integer(fields: Mapping[str, str], name: str, default: int, low: int, high: int) -> int:
    text = fields.get(name, str(default))
    if not re.fullmatch(r"\d{1,9}", text, re.ASCII) or not low <= int(text) <= high:
        raise ValueError(f"{name}: got {text[:20]!r}, want a number from {low} to {high}")
    return int(text)


def draw_graph(context: Context, query: GraphQuery) -> DrawnGraph:
    """Return the graph of a context's model, with times if they are asked for.

    Where no times can be measured, such as on several devices, the result has none.

    Raises:
        PyggmlError: the graph cannot be built.
    """
    if query.times:
        try:
            return _measured(context, query)
        except PyggmlError as error:
            plain = draw_graph(context, replace(query, times=False))
            return replace(plain, title=f"{plain.title} (no times: {error})")
    graph = context.graph(query.tokens).graph
    title = graph_title(context.model.path, query.tokens)
    return DrawnGraph(graph, GraphAllocator(HOST).plan(graph), title)


def _measured(context: Context, query: GraphQuery) -> DrawnGraph:
    params = context.params
    if any(backend.device.kind != CPU for backend in context.sched.backends):
        raise BackendError("times need a model that runs on the CPU alone")
    return profiled_graph(
        context.model,
        context.model.path,
        n_tokens=query.tokens,
        depth=max(0, min(query.depth, context.n_ctx_seq - query.tokens)),
        n_threads=context.n_threads if query.tokens == 1 else context.n_threads_batch,
        type_k=params.type_k,
        type_v=params.type_v,
        n_prompt=_PROMPT,
        pause_s=_PAUSE_S,
    )


def graph_drawing(drawn: DrawnGraph) -> str:
    """Return the interactive drawing as an HTML page, with layers folded."""
    return graph_html(
        drawn.graph, plan=drawn.plan, title=drawn.title, times=drawn.times, fold="layers"
    )


def graph_json(drawn: DrawnGraph, query: GraphQuery) -> str:
    """Return nodes, layers and times as JSON.

    Times are in microseconds, null where a node has none; views are left out. ``bytes`` are those
    of the weights of matrix products. A node with a time has the family and bytes of its launch,
    so of the nodes that are fused into it too.
    """
    scope = Scope(drawn.graph, None)
    runs = drawn.runs
    return json.dumps(
        {
            "title": printable(drawn.title),
            "tokens": query.tokens,
            "threads": runs[0].n_threads if runs else None,
            "total_us": sum(t.us for t in drawn.times.values()) if drawn.times else None,
            "n_nodes": len(drawn.graph.nodes),
            "compute_bytes": drawn.plan.size,
            "nodes": [*_nodes(drawn, scope)],
        },
        separators=(",", ":"),
    )


def _nodes(drawn: DrawnGraph, scope: Scope) -> Iterator[dict[str, Any]]:
    times = drawn.times or {}
    holders = fused_into(times)
    for i, node in enumerate(drawn.graph.nodes):
        if node.op is None or node.op.is_view:
            continue
        time, holder = times.get(node), holders.get(node)
        fused = time.fused if time is not None else ()
        families = [family(t, scope.written) for t in (*fused, node)]
        yield {
            "i": i,
            "name": printable(node.name),
            "label": printable(_label(node)),
            "layer": scope.layer(node),
            "symbol": symbol(node),
            "family": "matmul" if "matmul" in families else families[-1],
            "type": node.type.name.lower(),
            "ne": list(node.ne[: node.n_dims]),
            "bytes": sum(_weight_bytes(t, scope) for t in (*fused, node)),
            "us": None if time is None else round(time.us, 3),
            "kernels": [] if time is None else [*dict.fromkeys(time.kernels)],
            "fused": [printable(t.name) for t in fused],
            "fused_into": None if holder is None else printable(holder.name),
        }


def _label(node: Tensor) -> str:
    """Return the name without a layer, equal in all layers; the symbol of an unnamed node."""
    if re.fullmatch(r"node_\d+", node.name):
        return symbol(node)
    return _LAYER_SUFFIX.sub("", node.name)


def _weight_bytes(node: Tensor, scope: Scope) -> int:
    if family(node, scope.written) != "matmul":
        return 0
    roots = [s.view_src or s for s in node.src if s is not None]
    return sum(root.nbytes for root in roots if family(root, scope.written) == "weight")
