"""The scheduler: runs a graph on several backends, in splits with copies between them."""

from .sched import EvalCallback, Sched, Schedule, to_numpy
from .split import DeviceCopy, Split

__all__ = ["DeviceCopy", "EvalCallback", "Sched", "Schedule", "Split", "to_numpy"]
