"""The scheduler: which backend runs which node of a graph, in splits, with copies between them."""

from .sched import EvalCallback, Sched
from .split import Copy, Split
from .transfer import to_numpy, transfer

__all__ = ["Copy", "EvalCallback", "Sched", "Split", "to_numpy", "transfer"]
