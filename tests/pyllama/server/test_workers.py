"""Threads that do not keep the process alive."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
import weakref
from concurrent.futures import CancelledError

import pytest

from pyllama.server.worker import threads
from pyllama.server.worker.threads import Workers

from ...waiting import WAIT_S, until


def test_results_and_errors() -> None:
    workers = Workers(2, "test")
    assert [workers.submit(lambda i=i: i * i).result(WAIT_S) for i in range(9)] == [
        i * i for i in range(9)
    ]
    with pytest.raises(ZeroDivisionError):
        workers.submit(lambda: 1 // 0).result(WAIT_S)
    with pytest.raises(SystemExit):
        workers.submit(sys.exit).result(WAIT_S)
    until(lambda: not workers.is_busy)
    assert len(workers._threads) <= 2
    workers.close()
    for thread in workers._threads:
        thread.join(WAIT_S)
    with pytest.raises(RuntimeError, match="closed"):
        workers.submit(lambda: None)


def test_work_that_has_not_begun_is_cancelled() -> None:
    workers, may_end = Workers(1, "test"), threading.Event()
    running = workers.submit(lambda: may_end.wait(WAIT_S))
    until(running.running)
    mine, waiting = workers.submit(lambda: 1), workers.submit(lambda: 2)
    assert mine.cancel()
    workers.close()
    with pytest.raises(CancelledError):
        waiting.result(WAIT_S)
    assert workers.is_busy
    may_end.set()
    assert running.result(WAIT_S)
    until(lambda: not workers.is_busy)


def test_what_ends_a_request_comes_first() -> None:
    workers, may_end, order = Workers(1, "test"), threading.Event(), list[int]()
    running = workers.submit(lambda: may_end.wait(WAIT_S))
    until(running.running)
    last = workers.submit(lambda: order.append(2))
    for i in range(2):
        workers.submit(lambda i=i: order.append(i), ends=True)
    may_end.set()
    last.result(WAIT_S)
    assert order == [0, 1, 2]
    workers.close()


def test_a_thread_rests_after_each_task_for_as_long_as_it_took(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rests: list[float] = []
    took = iter([0.0, 0.02, 1.0, 9.0])
    monkeypatch.setattr(threads.time, "thread_time", lambda: next(took))
    monkeypatch.setattr(threads.time, "sleep", rests.append)
    workers = Workers(1, "test", rests=True)
    for _ in range(2):
        workers.submit(lambda: None).result(WAIT_S)
    until(lambda: len(rests) == 2)
    assert rests == [0.02, threads._MAX_REST_S]
    workers.close()


def test_an_idle_thread_keeps_nothing_alive() -> None:
    class Large:
        pass

    workers = Workers(1, "test")
    made = weakref.ref(workers.submit(Large).result(WAIT_S))
    until(lambda: not workers.is_busy)
    gc.collect()
    assert made() is None
    workers.close()


def test_the_process_ends_while_work_runs() -> None:
    code = """
import threading
from pyllama.server.worker.threads import Workers
begun = threading.Event()
Workers(1, "test").submit(lambda: (begun.set(), threading.Event().wait()))
assert begun.wait()
"""
    assert (
        subprocess.run([sys.executable, "-P", "-c", code], timeout=WAIT_S, check=False).returncode
        == 0
    )
