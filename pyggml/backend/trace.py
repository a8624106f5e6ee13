"""When each part of a program ran: what every backend's ``Program.trace`` gives.

    runs = program.trace(repeats=5)
    runs[0].wall_ns, runs[0].launches[3].launch.name, runs[0].start_ns[7], runs[0].thread[7]

A launch is what a backend starts as one piece of work: a kernel, for one or several fused nodes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from ..tensor import Tensor


class Launch(Protocol):
    """A kernel and the nodes that it computes.

    Attributes:
        name: of the kernel, and its first node.
        node: the node that it was made for; nodes: all that are fused into it, empty for one.
        chunks: pieces that threads take.
    """

    @property
    def name(self) -> str: ...
    @property
    def node(self) -> Tensor: ...
    @property
    def nodes(self) -> tuple[Tensor, ...]: ...
    @property
    def chunks(self) -> int: ...


@dataclass(frozen=True, eq=False)
class TracedLaunch:
    """A launch, the phase it ran in (counted over the program), and where its chunks are."""

    launch: Launch
    phase: int
    first: int


@dataclass(frozen=True, eq=False)
class RunTrace:
    """One run.

    Attributes:
        launches: in order of phases; ``start_ns[first + i]`` is chunk ``i`` of one, or of a launch
            that threads run for themselves that of thread ``i``.
        start_ns, end_ns: of each chunk, from the run's begin.
        thread: the thread that ran it; 0 is the caller; -1: it did not run (the run was stopped, or
            nothing was to be done).
    """

    launches: tuple[TracedLaunch, ...]
    start_ns: npt.NDArray[np.float64]
    end_ns: npt.NDArray[np.float64]
    thread: npt.NDArray[np.int64]
    n_threads: int

    @property
    def wall_ns(self) -> float:
        """From the first chunk's begin to the last one's end."""
        return float(self.end_ns.max() - self.start_ns.min()) if len(self.end_ns) else 0.0

    @property
    def busy_ns(self) -> float:
        """Time of all threads inside of kernels."""
        return float((self.end_ns - self.start_ns).sum())
