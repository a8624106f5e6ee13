"""The time of each phase of a program, with its bytes and multiply-adds.

    for row in profile(program, repeats=20):
        print(row.label, row.ns, row.gb_per_s)

Phases are timed with the core's cycle counter inside a normal run, which is not slowed down.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .pool import get_pool
from .program import Phase, Program


@dataclass(frozen=True)
class PhaseTime:
    """The median time of one phase."""

    phase: Phase
    ns: float

    @property
    def label(self) -> str:
        """Kernels and the first node, such as ``mul_mat_q4_1_x16*3 Qcur-0``."""
        names = [launch.name for launch in (*self.phase.replicas, *self.phase.launches)]
        count = {n: names.count(n) for n in names}
        return " + ".join(n if k == 1 else f"{n}*{k}" for n, k in count.items())

    @property
    def bytes(self) -> int:
        """The bytes of weights and activations that it reads."""
        return sum(s.nbytes for la in self.phase.launches for s in la.src if s is not None)

    @property
    def macs(self) -> int:
        """The multiply-adds of its matmuls."""
        return sum(
            la.node.nelements * la.src[0].ne[0] * (2 if "glu" in la.name else 1)
            for la in self.phase.launches
            if la.streams is not None and la.src[0] is not None
        )

    @property
    def gb_per_s(self) -> float:
        return self.bytes / self.ns

    @property
    def gmac_per_s(self) -> float:
        return self.macs / self.ns


def profile(program: Program, repeats: int = 20) -> list[PhaseTime]:
    """The median time of each phase of the compiled parts, over some runs."""
    pool = get_pool()
    runs = [np.concatenate(pool.profile(program)) for _ in range(repeats)]
    medians = np.median(np.stack(runs), axis=0)
    return [PhaseTime(p, float(ns)) for p, ns in zip(program.phases, medians, strict=True)]
