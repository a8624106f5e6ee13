"""Contexts: aborted decodes, several threads, and use after fork()."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from pyggml.errors import Aborted, ComputeError
from pyggml.sched import Schedule
from pyllama import Batch, Context, Model

from ...waiting import WAIT_S
from ..conftest import Make
from ..models import rows, state

TOKENS = np.random.default_rng(7).integers(0, 261, 64).tolist()


# --- stops ----------------------------------------------------------------------------------------

LONG = TOKENS * 192  # attention of 12,288 tokens: seconds


def stop_a_long_decode(
    context: Context,
    stop: Callable[[], None],
    error: type[BaseException],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Abort a decode, and continue after the finished ubatches with the bits of a fresh run."""
    rows(context, TOKENS[:5])
    run, begun = Schedule.run, threading.Semaphore(0)

    def run_and_tell(schedule: Schedule) -> None:
        begun.release()
        run(schedule)

    def stop_the_second() -> None:
        assert begun.acquire(timeout=WAIT_S) and begun.acquire(timeout=WAIT_S)
        stop()

    thread = threading.Thread(target=stop_the_second)
    with monkeypatch.context() as patch:
        patch.setattr(Schedule, "run", run_and_tell)
        thread.start()
        with pytest.raises(error):
            context.decode(Batch(LONG))
    thread.join()
    assert context.kv.length(0) == context.kv.n_used < 5 + len(LONG)
    assert (context.kv.length(0) - 5) % context.n_ubatch == 0 and len(context.logits) == 0
    context.kv.seq_rm(0, 5)
    fresh = Context(context.model, n_ctx=64)
    assert np.array_equal(rows(context, TOKENS[:9]), rows(fresh, TOKENS[:5], TOKENS[:9])[5:])


def test_abort_from_another_thread(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    context = make(n_ctx=16384, n_batch=16384)
    stop_a_long_decode(context, context.abort, Aborted, monkeypatch)


@pytest.mark.skipif(sys.platform == "win32", reason="os.kill is another thing there")
def test_ctrl_c(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    context = make(n_ctx=16384, n_batch=16384)

    def interrupt() -> None:
        os.kill(os.getpid(), signal.SIGINT)

    stop_a_long_decode(context, interrupt, KeyboardInterrupt, monkeypatch)


@pytest.mark.parametrize("error", [ComputeError("a kernel"), KeyboardInterrupt(), Aborted()])
def test_a_stop_in_any_ubatch_rolls_back_to_it(
    make: Make, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    context = make(n_ubatch=4, n_seq_max=2)
    rows(context, TOKENS[:3])
    run, calls = Schedule.run, []

    def fail_third(schedule: Schedule) -> None:
        calls.append(schedule)
        if len(calls) == 3:
            raise error
        run(schedule)

    monkeypatch.setattr(Schedule, "run", fail_third)
    with pytest.raises(type(error)):
        context.decode(Batch(TOKENS[3:19], seq_id=[0, 1] * 8))
    monkeypatch.undo()
    assert state(context) == (3 + 8, [(7, 0, 6), (4, 0, 3)]) and len(context.logits) == 0
    again = rows(context, TOKENS[20:24])
    assert np.array_equal(again, rows(make(), TOKENS[:3] + TOKENS[3:11:2] + TOKENS[20:24])[7:])


def test_an_abort_between_two_ubatches_counts(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    context = make(n_ubatch=4)
    run = Schedule.run
    with monkeypatch.context() as patch:  # nothing runs: others that use the pool are left alone
        patch.setattr(context.sched, "abort", lambda: pytest.fail("it stopped another"))
        context.abort()

    def run_then_abort(schedule: Schedule) -> None:
        run(schedule)
        context.abort()

    monkeypatch.setattr(Schedule, "run", run_then_abort)
    with pytest.raises(Aborted):
        context.decode(Batch(TOKENS[:12]))
    assert context.kv.length(0) == 4


# --- threads and processes ------------------------------------------------------------------------


def both(threads: list[threading.Thread]) -> None:
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def test_two_contexts_of_a_model_in_two_threads(make: Make) -> None:
    parts = [TOKENS[:20], *([t] for t in TOKENS[20:50])]
    wanted, got = rows(make(), *parts), []

    def work() -> None:
        got.extend(rows(make(n_threads=2), *parts) for _ in range(4))

    both([threading.Thread(target=work) for _ in range(2)])
    assert len(got) == 8 and all(np.array_equal(rows_, wanted) for rows_ in got)


def test_one_context_in_two_threads_queues(make: Make) -> None:
    context = make(n_seq_max=2)
    threads = [
        threading.Thread(
            target=rows, args=(context, *([t] for t in TOKENS[:25])), kwargs={"seq": s}
        )
        for s in range(2)
    ]
    both(threads)
    wanted = rows(make(), TOKENS[:26])[25:]
    assert all(np.array_equal(rows(context, TOKENS[25:26], seq=s), wanted) for s in range(2))


FORK = """
import os, sys
import numpy as np
from pyllama import Batch, Context, Model

model = Model.load(sys.argv[1])
context = Context(model, n_ctx=64, n_threads=2)
context.decode(Batch(list(range(40))))

def go_on(context):
    context.decode(Batch([7, 8, 9], logits="all"))
    return context.logits.tobytes()

read, write = os.pipe()
if os.fork() == 0:
    fresh = Context(model, n_ctx=64, n_threads=2)
    fresh.decode(Batch(list(range(40))))
    os.write(write, go_on(context)[-500:] + go_on(fresh)[-500:])
    os._exit(0)
mine = go_on(context)[-500:]
print(os.read(read, 1000) == mine + mine, os.wait()[1])
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_parent_and_child_of_a_fork_go_on(model_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-P", "-W", "ignore::DeprecationWarning", "-c", FORK, str(model_path)],
        capture_output=True, text=True, timeout=WAIT_S, check=False, cwd=Path(__file__).parents[3],
    )  # fmt: skip
    assert (done.stdout, done.stderr) == ("True 0\n", "")


FORK_IN_A_DECODE = """
import os, sys, threading, time
import numpy as np
from pyllama import Batch, Context, Llama, Model
from pyllama.errors import Forked

path = sys.argv[1]
context = Context(Model.load(path), n_ctx=4096, n_threads=2)
llama = Llama(path, n_ctx=256, n_threads=2, verbose=False)
first = llama("a b c", max_tokens=20, temperature=0)["choices"][0]["text"]
stop = threading.Event()

def decodes():
    while not stop.is_set():
        context.kv.clear()
        context.decode(Batch(list(range(200)) * 4))

def generates():
    while not stop.is_set():
        llama("d e f g", max_tokens=60, temperature=0)

def in_the_child():
    try:
        context.decode(Batch([1, 2, 3]))
    except Forked as e:
        assert "reset()" in str(e)
    context.reset()
    context.decode(Batch([1, 2, 3]))
    fresh = Context(context.model, n_ctx=64, n_threads=2)
    fresh.decode(Batch([1, 2, 3]))
    assert np.array_equal(context.logits, fresh.logits)
    assert llama("a b c", max_tokens=20, temperature=0)["choices"][0]["text"] == first

threads = [threading.Thread(target=f) for f in (decodes, generates)]
for t in threads:
    t.start()
codes = []
for _ in range(12):
    time.sleep(0.01)
    child = os.fork()
    if child == 0:
        try:
            in_the_child()
        except BaseException:
            import traceback
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    codes.append(os.waitpid(child, 0)[1])
stop.set()
for t in threads:
    t.join()
print(codes)
"""


@pytest.mark.long
@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_a_child_forked_during_decodes_of_other_threads_continues(model_path: Path) -> None:
    """In the child their locks are held forever, and the guarded objects may be half changed."""
    done = subprocess.run(
        [sys.executable, "-P", "-W", "ignore::DeprecationWarning", "-c", FORK_IN_A_DECODE,
         str(model_path)],
        capture_output=True, text=True, timeout=120, check=False, cwd=Path(__file__).parents[3],
    )  # fmt: skip
    assert (done.stdout, done.stderr) == (f"{[0] * 12}\n", "")


def test_a_closed_model_and_context_stay_usable_for_who_has_them(model_path: Path) -> None:
    with Model.load(model_path) as model:
        context = Context(model, n_ctx=64)
        first = rows(context, TOKENS[:4])
    context.kv.clear()
    assert np.array_equal(rows(context, TOKENS[:4]), first)
