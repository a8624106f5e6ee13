"""Ctrl-C stops a long compute at once, and signal handling is restored."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pyggml as ops
from pyggml.backend.cpu.backend import CpuBackend
from pyggml.backend.cpu.run import interrupt
from pyggml.backend.cpu.run.interrupt import Watcher
from pyggml.cgraph import CGraph
from pyggml.context import Context
from tests.waiting import WAIT_S

ROOT = Path(__file__).parents[4]

LONG = """
import os, signal, socket, threading, time
import numba
import numpy as np
import pyggml as ops
from pyggml.alloc.gallocr import GraphAllocator
from pyggml.backend.cpu.abi import SRC0, data
from pyggml.backend.cpu.atomics import atomic_add
from pyggml.backend.cpu.backend import CpuBackend
from pyggml.buffer import HOST
from pyggml.cgraph import CGraph
from pyggml.context import Context
from pyggml.dtype import GGMLType

backend = CpuBackend(2)
ctx = Context(no_alloc=True)
y = ctx.new_tensor_1d(GGMLType.F32, 1 << 22).set_input()
counter = ctx.new_tensor_1d(GGMLType.F32, 1024).set_input()

@numba.njit
def count(node, chunk, n_chunks, scratch):
    if chunk == 0:
        atomic_add(data(node, SRC0), 1)

graph, short = CGraph(), CGraph()
for i in range(10_000):  # 16 MB each: 5 to 30 s
    y = ops.scale(ctx, y, 1.0)
    if i % 100 == 0:
        graph.build_forward_expand(ops.map_custom(ctx, count, counter, y))
graph.build_forward_expand(y)
GraphAllocator(HOST).alloc_graph(graph)
hundreds = counter.numpy().view(np.int64)  # of finished nodes
program = backend.compile(graph)
with_data = Context()
one = ops.scale(with_data, with_data.from_numpy(np.ones(8, np.float32)), 2.0)
short.build_forward_expand(one)
backend.graph_compute(short)  # the pool's code is there

mine, theirs = socket.socketpair()
mine.settimeout(60)
theirs.setblocking(False)
signal.set_wakeup_fd(theirs.fileno())

def interrupt():
    while hundreds[0] < 2:  # it runs
        time.sleep(0.001)
    hundreds[1] = hundreds[0]
    os.kill(os.getpid(), signal.SIGINT)

for _ in range(2):
    hundreds[:2] = 0
    threading.Thread(target=interrupt).start()
    try:
        program.enqueue()
        print("it was not stopped")
    except KeyboardInterrupt:
        late = hundreds[0] - hundreds[1]
        print("stopped" if late < 50 else f"stopped after {late} hundred nodes")
    print(mine.recv(8), signal.set_wakeup_fd(theirs.fileno()) == theirs.fileno())
    backend.graph_compute(short)
    print(one.numpy()[0])
"""


@pytest.mark.skipif(sys.platform == "win32", reason="os.kill is another thing there")
def test_ctrl_c_stops_a_compute_of_half_a_minute() -> None:
    env = {**os.environ, "PYTHONPATH": str(ROOT), "PYGGML_SELF_TEST": "0"}
    done = subprocess.run(
        [sys.executable, "-P", "-c", LONG],
        env=env, capture_output=True, text=True, timeout=120, check=False, cwd=ROOT,
    )  # fmt: skip
    assert done.stderr == ""
    assert done.stdout.splitlines() == ["stopped", r"b'\x02' True", "2.0"] * 2


def end(watcher: Watcher, others: list[threading.Thread]) -> None:
    """End the watcher's thread, which reads all that was written to its pipe before."""
    assert watcher._pipe is not None
    watcher._pipe[1].close()
    for thread in threading.enumerate():
        if thread not in others:
            thread.join(WAIT_S)
            assert not thread.is_alive()
    watcher._pipe[0].close()


def test_the_watcher_calls_and_restores() -> None:
    happened = threading.Event()
    watcher = Watcher(happened.set)
    before = signal.set_wakeup_fd(-1)
    try:
        with watcher, pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
            time.sleep(WAIT_S)
        assert happened.wait(WAIT_S)
        assert signal.set_wakeup_fd(-1) == -1
    finally:
        signal.set_wakeup_fd(before)


def test_no_wakeup_loop_after_an_interrupted_exit(monkeypatch: pytest.MonkeyPatch) -> None:
    """The previous wake-up descriptor may be our own pipe; it must not be written to again."""
    calls, written, write, others = [], [], os.write, threading.enumerate()

    def noted(fd: int, data: bytes) -> int:
        written.append(data)
        return write(fd, data)

    monkeypatch.setattr(interrupt.os, "write", noted)
    watcher = Watcher(lambda: calls.append(1))
    before = signal.set_wakeup_fd(-1)
    try:
        watcher.__enter__()  # without __exit__
        with watcher, pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
            time.sleep(WAIT_S)
        end(watcher, others)
        assert len(calls) == 1 and b"\x02" not in written
        assert signal.set_wakeup_fd(-1) == -1
    finally:
        signal.set_wakeup_fd(before)


class Interrupted(set[int]):
    """A set in which an interrupt follows the first change."""

    def add(self, item: int) -> None:
        is_first = not self.__dict__
        self.changed = True
        super().add(item)
        if is_first:
            raise KeyboardInterrupt


def test_an_interrupt_before_a_run_does_not_forbid_the_next_one() -> None:
    backend, ctx, graph = CpuBackend(1), Context(), CGraph()

    def double(dst: Any, x: Any) -> None:
        dst[:] = 2 * x

    y = ops.map_custom(ctx, double, ctx.from_numpy(np.ones(8, np.float32)))
    graph.build_forward_expand(y)
    program = backend.compile(graph)
    program._inside = Interrupted()
    with pytest.raises(KeyboardInterrupt):
        program.enqueue()
    program.enqueue()
    assert y.numpy().tolist() == [2.0] * 8


def test_an_ignored_interrupt_stops_nothing() -> None:
    happened, others = threading.Event(), threading.enumerate()
    handler = signal.signal(signal.SIGINT, signal.SIG_IGN)
    watcher = Watcher(happened.set)
    try:
        with watcher:
            signal.raise_signal(signal.SIGINT)
        end(watcher, others)
        assert not happened.is_set()
    finally:
        signal.signal(signal.SIGINT, handler)


def test_other_threads_leave_signals_alone() -> None:
    ours, theirs = socket.socketpair()
    theirs.setblocking(False)
    before = signal.set_wakeup_fd(theirs.fileno())

    def enter() -> None:
        with Watcher(lambda: None):
            pass

    thread = threading.Thread(target=enter)
    thread.start()
    thread.join()
    assert signal.set_wakeup_fd(before) == theirs.fileno()
    ours.close()
    theirs.close()
