"""A program: an allocated graph as packed launches on a device's stream, replayed as a CUDA graph.

    program = CudaProgram(lowering, device)
    program.enqueue()                              # the first time: launches
    program.enqueue()                              # the second time: captured, then replayed
    program.enqueue()                              # from then on: one call

What changes between runs (tokens, positions, lists of cells) is data of input tensors, so a replay
serves every state of the cache. A graph that runs once, as that of a prompt's last part, is never
captured. Work memory that must grow for a later program moves; programs are then packed again.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ...errors import ComputeError
from ...tensor import Tensor
from ..interface import StopToken
from ..trace import RunTrace, TracedLaunch
from .lowering import GpuLaunch, GpuLowering, Work
from .stream import StreamQueue


class CudaProgram:
    """A lowered graph; see ``CudaBackend.compile``.

    Attributes:
        launches: in order.
        replays: whether it is captured and replayed (``PYGGML_CUDA_GRAPHS=0`` forbids it).
    """

    def __init__(self, lowering: GpuLowering, queue: StreamQueue, *, replays: bool = True) -> None:
        self.launches = tuple(lowering.launches)
        self.replays = replays
        self._queue = queue
        self._graph = lowering.graph  # errors name its nodes
        self._work_bytes = tuple(lowering.work_bytes)
        # Weights and results that the launches point into live as long as the program.
        self._keep = [
            (node.buffer, *(s.buffer for s in node.src if s)) for node in self._graph.nodes
        ]
        self._runs = self._n_moves = 0
        self._captured: Any = None
        self._packed: list[Any] = []
        self._pack()

    def enqueue(self, stop: StopToken | None = None) -> None:
        """Enqueue all nodes once; ``queue.synchronize`` raises what failed.

        Raises:
            Aborted: it was stopped before; launches that run cannot be stopped.
        """
        if stop is not None:
            stop.check()
        if not self._packed:
            return
        if self._n_moves != self._queue.n_moves:
            self._pack()
        driver, stream = self._queue.driver, self._queue.stream
        self._runs += 1
        if self._captured is None and self.replays and self._runs > 1:
            self._captured = driver.capture(self._packed, stream)
        if self._captured is None:
            driver.launch(self._packed, stream)
        else:
            driver.replay(self._captured, stream)

    def trace(self, repeats: int = 1) -> list[RunTrace]:
        """Traces of new runs on the current inputs. Raises: ComputeError."""
        return [self._trace() for _ in range(repeats)]

    def _trace(self) -> RunTrace:
        if self._n_moves != self._queue.n_moves:
            self._pack()
        driver, stream = self._queue.driver, self._queue.stream
        events = [driver.record(stream)]
        for packed in self._packed:
            driver.launch([packed], stream)
            events.append(driver.record(stream))
        self._queue.synchronize()
        ends = 1e3 * np.array([driver.elapsed_us(events[0], event) for event in events])
        launches = tuple(TracedLaunch(launch, i, i) for i, launch in enumerate(self.launches))
        thread = np.zeros(len(launches), np.int64)
        return RunTrace(launches, ends[:-1], ends[1:], thread, 1)

    def _pack(self) -> None:
        """Pack all launches, for the present addresses of work memory. Raises: AllocError."""
        regions = tuple(map(self._queue.work, range(2), self._work_bytes))
        self._n_moves = self._queue.n_moves
        self._captured = None
        self._packed = [self._pack_one(launch, regions) for launch in self.launches]

    def _pack_one(self, launch: GpuLaunch, regions: tuple[int, ...]) -> Any:
        queue = self._queue
        values = [_value(value, regions) for value in launch.values]
        try:
            return queue.driver.pack(
                queue.function(launch.kernel),
                launch.grid,
                threads=launch.threads,
                arguments=values,
                shared_bytes=launch.shared_bytes,
            )
        except ValueError as e:
            raise ComputeError(f"{launch.name} for '{launch.node.name}': {e}") from None


def _value(value: Any, regions: tuple[int, ...]) -> float:
    """A number or an address."""
    if isinstance(value, Work):
        return regions[value.region] + value.offset
    if isinstance(value, Tensor):
        return value.data
    return 0 if value is None else value
