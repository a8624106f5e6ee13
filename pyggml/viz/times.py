"""Computes the times of nodes from traces of runs.

    times = node_times(trace(program, repeats=20))
    times[node].ns, times[node].share, times[node].kernels

The time of a launch is its share of the wall time of its phase, so that the times of all nodes sum
up to the run's; of several runs, the median is used. The time is assigned to the last node of the
launch; nodes fused into it have no time of their own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from ..tensor import Tensor
from .label import printable

if TYPE_CHECKING:
    from ..backend.trace import RunTrace


@dataclass(frozen=True)
class NodeTime:
    """The time of one node.

    Attributes:
        ns: wall time; busy_ns: total time of all threads in its kernels.
        share: fraction of the run's wall time.
        fused: the earlier nodes of the same launch.
    """

    ns: float
    busy_ns: float
    share: float
    chunks: int
    kernels: tuple[str, ...]
    fused: tuple[Tensor, ...]

    @property
    def us(self) -> float:
        return self.ns / 1e3


Times = Mapping[Tensor, NodeTime]


def node_times(runs: Sequence[RunTrace]) -> dict[Tensor, NodeTime]:
    """Return the times of nodes at which launches end, in execution order."""
    if not runs[0].launches:  # views only
        return {}
    walls = np.median([_wall_ns(run) for run in runs], axis=0)
    busy = np.median([_busy_ns(run) for run in runs], axis=0)
    total = max(float(walls.sum()), 1e-9)
    times: dict[Tensor, NodeTime] = {}
    for traced, ns, busy_ns in zip(runs[0].launches, walls, busy, strict=True):
        launch = traced.launch
        *fused, node = launch.nodes or (launch.node,)
        name = launch.name
        old = times.get(node, NodeTime(0.0, 0.0, 0.0, 0, (), ()))
        times[node] = NodeTime(
            old.ns + float(ns),
            old.busy_ns + float(busy_ns),
            old.share + float(ns) / total,
            old.chunks + launch.chunks,
            (*old.kernels, name),
            tuple(dict.fromkeys((*old.fused, *fused))),
        )
    return times


def fused_into(times: Times) -> dict[Tensor, Tensor]:
    """Return the node that a fused node's time is counted for."""
    return {part: node for node, time in times.items() for part in time.fused}


def summed(parts: Sequence[NodeTime]) -> NodeTime:
    """Return the sum of several nodes' times: of a layer, or of identical layers."""
    return NodeTime(
        sum(p.ns for p in parts),
        sum(p.busy_ns for p in parts),
        sum(p.share for p in parts),
        sum(p.chunks for p in parts),
        tuple(dict.fromkeys(k for p in parts for k in p.kernels)),
        tuple(dict.fromkeys(t for p in parts for t in p.fused)),
    )


def duration(ns: float) -> str:
    """Return a time such as ``12.3 us`` or ``4.56 ms``."""
    return f"{ns / 1e6:.2f} ms" if ns >= 1e6 else f"{ns / 1e3:.1f} us"


def times_table(times: Times, n: int = 15) -> str:
    """Return the slowest nodes as a text table, without a final newline."""
    rows = sorted(times.items(), key=lambda item: -item[1].ns)[:n]
    width = max((len(printable(node.name)) for node, _ in rows), default=4)
    lines = [f"{'node':<{width}}  {'time':>9}  share  kernels"]
    for node, time in rows:
        kernels = " + ".join(dict.fromkeys(time.kernels))
        fused = ", ".join(printable(t.name) for t in time.fused)
        line = f"{printable(node.name):<{width}}  {duration(time.ns):>9}  {time.share:5.1%}"
        lines.append(f"{line}  {kernels}{f'  (with {fused})' if fused else ''}")
    total = sum(time.ns for time in times.values())
    return "\n".join((*lines, f"{len(times)} nodes with a time of their own: {duration(total)}"))


def _busy_ns(run: RunTrace) -> npt.NDArray[np.float64]:
    spent = run.end_ns - run.start_ns
    return np.array([spent[la.first : la.first + la.launch.chunks].sum() for la in run.launches])


def _wall_ns(run: RunTrace) -> npt.NDArray[np.float64]:
    """Distribute the time from one phase's start to the next by busy time."""
    phases = np.array([la.phase for la in run.launches])
    starts = np.full(phases.max() + 1, np.inf)
    for la in run.launches:
        chunks = slice(la.first, la.first + la.launch.chunks)
        begins = run.start_ns[chunks][run.thread[chunks] >= 0]
        starts[la.phase] = min(starts[la.phase], begins.min(initial=np.inf))
    end = float(run.end_ns.max())
    lengths = np.diff(np.minimum([*starts, end], end))
    busy = _busy_ns(run)
    in_phase = np.bincount(phases, busy, len(starts))
    wall: npt.NDArray[np.float64] = busy / np.maximum(in_phase[phases], 1e-9) * lengths[phases]
    return wall
