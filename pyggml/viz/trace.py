"""Writes a run as a Chrome trace: JSON for Perfetto and chrome://tracing.

    write_trace("token.json", trace(program)[0], title="one token")

A lane for each thread and an event for each chunk, named after its node.
Source: Trace Event Format, "X" (complete) and "M" (metadata) events; times are in microseconds.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from ..files import write_whole
from .label import printable
from .style import shape, symbol

if TYPE_CHECKING:
    from ..backend.trace import RunTrace

_PROCESS = 1  # process id in the trace


def trace_json(run: RunTrace, title: str = "") -> str:
    """Return the JSON text, one event per line."""
    lines = ",\n".join(json.dumps(event) for event in _events(run, title))
    return f'{{"displayTimeUnit": "ns", "traceEvents": [\n{lines}\n]}}\n'


def write_trace(path: str | os.PathLike[str], run: RunTrace, title: str = "") -> None:
    """Write ``trace_json`` to a file. Raises: OSError."""
    write_whole(path, trace_json(run, title).encode())


def _events(run: RunTrace, title: str) -> Iterator[dict[str, Any]]:
    yield _named("process_name", 0, printable(title) or "pyggml")
    for i in range(run.n_threads):
        yield _named("thread_name", i, f"thread {i}" + (" (caller)" if i == 0 else ""))
        yield {**_named("thread_sort_index", i, ""), "args": {"sort_index": i}}
    for la in run.launches:
        launch = la.launch
        nodes = launch.nodes or (launch.node,)
        args = {
            "kernel": launch.name,
            "op": symbol(nodes[-1]),
            "shape": shape(nodes[-1]),
            "phase": la.phase,
        }
        if len(nodes) > 1:
            args["fused"] = ", ".join(printable(n.name) for n in nodes[:-1])
        for i in range(launch.chunks):
            at = la.first + i
            if run.thread[at] < 0:
                continue
            yield {
                "ph": "X",
                "name": printable(nodes[-1].name),
                "cat": nodes[-1].op.name if nodes[-1].op else "",
                "pid": _PROCESS,
                "tid": int(run.thread[at]),
                "ts": round(float(run.start_ns[at]) / 1e3, 3),
                "dur": round(float(run.end_ns[at] - run.start_ns[at]) / 1e3, 3),
                "args": {**args, "chunk": f"{i + 1} of {launch.chunks}"},
            }


def _named(kind: str, thread: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": kind, "pid": _PROCESS, "tid": thread, "args": {"name": name}}
