"""The scheduler: runs a graph on several backends, in splits with copies between them."""

from .sched import EvalCallback, Sched, Schedule
from .split import DeviceCopy, Split
from .values import to_numpy

__all__ = ["DeviceCopy", "EvalCallback", "Sched", "Schedule", "Split", "to_numpy"]
