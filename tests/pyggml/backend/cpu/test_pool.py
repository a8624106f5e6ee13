"""The pool: threads, errors, aborts, nested and parallel callers, forks, interpreter exit."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pyggml as ops
from pyggml.alloc import alloc_ctx_tensors
from pyggml.backend.cpu import kernels as kernels  # registers the lowerings
from pyggml.backend.cpu.backend import CpuBackend
from pyggml.backend.cpu.compile import loop
from pyggml.backend.cpu.compile.loop import MAX_THREADS
from pyggml.backend.cpu.compile.program import PhaseTable, compile_program
from pyggml.backend.cpu.compile.work import WorkStore
from pyggml.backend.cpu.run.pool import Pool, get_pool
from pyggml.backend.cpu.weights.buffer import REPACK
from pyggml.backend.interface import StopToken
from pyggml.cgraph import CGraph
from pyggml.context import Context
from pyggml.dtype import GGMLType
from pyggml.errors import Aborted, AllocError, ComputeError
from pyggml.quants import quantize
from pyggml.tensor import Tensor
from tests.waiting import WAIT_S, until

X = np.random.default_rng(0).standard_normal((300, 256)).astype(np.float32)
ROOT = Path(__file__).parents[4]


def lower(node: Tensor, n_threads: int) -> PhaseTable:
    graph = CGraph()
    graph.build_forward_expand(node)
    return compile_program(graph, n_threads, get_pool().error_slot, WorkStore())


def chain(ctx: Context, n_nodes: int = 40) -> Tensor:
    x = ctx.from_numpy(X)
    for i in range(n_nodes):
        x = ops.scale(ctx, x, 0.5 if i % 2 else 2.0)
    return x


@pytest.mark.parametrize("n_threads", [1, 2, 4, 9])
def test_any_number_of_threads_completes(n_threads: int) -> None:
    node = chain(Context())
    program = lower(node, n_threads)
    for _ in range(30):
        get_pool().run(program)
    np.testing.assert_array_equal(node.numpy(), X)


def test_number_of_threads_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pyggml.backend.cpu.compile.lowering.MAX_THREADS", 3)
    node = chain(Context(), 2)
    program = lower(node, MAX_THREADS + 1)
    assert program.n_threads == 3
    get_pool().run(program)
    np.testing.assert_array_equal(node.numpy(), X)


def test_every_user_of_the_pool_limits_its_threads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Graphs, quantization of arrays, and interleaving of weights."""
    ran: list[int] = []
    run = Pool.run

    def count(pool: Pool, program: PhaseTable, stop: StopToken | None = None) -> None:
        ran.append(program.n_threads)
        run(pool, program, stop)

    monkeypatch.setattr(Pool, "run", count)
    monkeypatch.setattr("pyggml.backend.cpu.compile.lowering.MAX_THREADS", 3)
    monkeypatch.setenv("PYGGML_NUM_THREADS", "99999")
    rows = np.random.default_rng(1).standard_normal((512, 256)).astype(np.float32)
    blocks = quantize(rows, "Q4_0", n_threads=99999)
    ctx = Context(no_alloc=True)
    w = ctx.new_tensor_2d(GGMLType.Q4_0, 256, 512)
    alloc_ctx_tensors(ctx, REPACK)
    backend = CpuBackend()
    list(backend.set_weights([(w, blocks)]))
    graph = CGraph()
    graph.build_forward_expand(chain(Context(), 2))
    backend.graph_compute(graph)
    assert ran == [3, 3, 3]


def test_run_counter_wraps_around() -> None:
    pool = get_pool()
    node = chain(Context())
    program = lower(node, 2)
    pool._epoch = (1 << 27) - 3
    for _ in range(6):
        node.numpy()[...] = 0
        pool.run(program)
        np.testing.assert_array_equal(node.numpy(), X)
    assert pool._epoch == 3


def test_a_parked_worker_wakes_up(monkeypatch: pytest.MonkeyPatch) -> None:
    pool, work, turns = get_pool(), loop.work, Counter[int]()

    def counted(control: int, index: int, *args: Any) -> Any:
        turns[index] += 1
        return work(control, index, *args)

    node = chain(Context())
    program = lower(node, 2)
    pool.run(program)
    worker = pool._workers[0]
    monkeypatch.setattr(loop, "work", counted)
    for _ in range(3):
        until(lambda: worker._parked)
        pool.run(program)
        np.testing.assert_array_equal(node.numpy(), X)
        until(lambda: worker._parked)
        pool.open = 2  # a run in progress: the worker must stay awake
        turns.clear()
        worker.wake()
        until(lambda: turns[1] > 2)
        pool.open = 0


def test_a_run_after_an_error_succeeds() -> None:
    ctx = Context()
    table = ctx.from_numpy(X)
    bad = ops.get_rows(ctx, table, ctx.from_numpy(np.array([1, 300], np.int32))).set_name("bad")
    graph = CGraph()
    for node in (chain(ctx, 2), bad, chain(ctx, 3)):
        graph.build_forward_expand(node)
    after, program = chain(ctx, 2), CpuBackend(4).compile(graph)
    for run in (program.enqueue, program.trace):
        with pytest.raises(ComputeError, match="'bad' = GET_ROWS: an index lies outside"):
            run()
    get_pool().run(lower(after, 4))
    np.testing.assert_array_equal(after.numpy(), X)


def test_a_python_callable_cuts_the_program_in_three() -> None:
    fail = False

    def double(dst: Any, x: Any) -> None:
        if fail:
            raise KeyError("mine")
        dst[...] = 2 * x

    ctx = Context()
    x = ctx.from_numpy(X)
    node = ops.scale(ctx, ops.map_custom(ctx, double, ops.scale(ctx, x, 3.0)), 0.5)
    program = lower(node, 2)
    assert [python is None for python, _, _ in program.parts] == [True, False, True]
    for fail in (False, True, False):
        node.numpy()[...] = 0
        if fail:
            with pytest.raises(KeyError, match="mine"):
                get_pool().run(program)
        else:
            get_pool().run(program)
            np.testing.assert_array_equal(node.numpy(), X * np.float32(3))


def test_a_callable_may_compute_another_graph() -> None:
    ctx = Context()
    inner = ops.scale(ctx, ctx.from_numpy(X), 7.0)
    inner_program = lower(inner, 3)

    def call(dst: Any, x: Any) -> None:
        get_pool().run(inner_program)
        dst[...] = x + inner.numpy()

    node = ops.scale(ctx, ops.map_custom(ctx, call, ops.scale(ctx, ctx.from_numpy(X), 1.0)), 1.0)
    get_pool().run(lower(node, 2))
    np.testing.assert_array_equal(node.numpy(), X + X * np.float32(7))


def test_a_callable_may_catch_an_error_of_a_nested_run() -> None:
    ctx = Context()
    table = ctx.from_numpy(X)
    bad = lower(ops.get_rows(ctx, table, ctx.from_numpy(np.array([300], np.int32))), 2)

    def call(dst: Any, x: Any) -> None:
        with pytest.raises(ComputeError, match="index lies outside"):
            get_pool().run(bad)
        dst[...] = x

    node = ops.scale(ctx, ops.map_custom(ctx, call, ops.scale(ctx, table, 2.0)), 0.5)
    get_pool().run(lower(node, 2))
    np.testing.assert_array_equal(node.numpy(), X)


def test_a_long_program_that_ctrl_c_must_not_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    """In none of its runs: a cache with some keys rotated and some not is useless."""
    watched: list[bool] = []

    @contextmanager
    def watch() -> Iterator[None]:
        watched.append(interruptible)
        yield

    graph = CGraph()
    graph.build_forward_expand(chain(Context(), 2))
    backend = CpuBackend(1)
    for interruptible in (True, False):
        made = backend.compile(graph, interruptible=interruptible)
        for _ in range(3):
            made.program.seconds = 1.0  # of the last run
            monkeypatch.setattr(get_pool(), "_watcher", watch())
            made.enqueue()
    assert watched == [True] * 3


def test_abort_from_another_thread() -> None:
    """The callable waits for the abort, so that the compute is running then."""
    ctx, token = Context(), StopToken()
    running, aborted = threading.Event(), threading.Event()

    def wait(dst: Any, x: Any) -> None:
        running.set()
        assert aborted.wait(WAIT_S)

    def stop() -> None:
        assert running.wait(WAIT_S)
        token.stop()
        aborted.set()

    middle = ops.map_custom(ctx, wait, ctx.from_numpy(X))
    node = ops.scale(ctx, middle, 2.0)
    node.numpy()[...] = 1
    thread = threading.Thread(target=stop)
    thread.start()
    with pytest.raises(Aborted):
        get_pool().run(lower(node, 2), token)
    thread.join()
    assert (node.numpy() == 1).all()
    after = chain(ctx, 2)
    get_pool().run(lower(after, 2))
    np.testing.assert_array_equal(after.numpy(), X)


def test_two_python_threads_compute_at_once() -> None:
    wrong: list[str] = []

    def compute(factor: float, n_threads: int) -> None:
        ctx = Context()
        node = ops.scale(ctx, chain(ctx), factor)
        program = lower(node, n_threads)
        for _ in range(40):
            node.numpy()[...] = 0
            get_pool().run(program)
            if not np.array_equal(node.numpy(), X * np.float32(factor)):
                wrong.append(f"factor {factor}")

    threads = [threading.Thread(target=compute, args=(f, 1 + int(f))) for f in (1.0, 2.0, 3.0)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_ctrl_c_before_addresses_of_new_memory_are_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads must not use the addresses of freed memory."""
    pool, node = Pool(), chain(Context(), 2)
    program, larger = lower(node, 2), lower(node, 2)
    larger.scratch_bytes = 2 * program.scratch_bytes
    pool.run(program)
    with monkeypatch.context() as patch:
        patch.setattr(pool, "scratch_addresses", interrupt)
        with pytest.raises(KeyboardInterrupt):
            pool.run(larger)
    pool.run(program)
    assert pool._scratch_table[:2].tolist() == pool.scratch_addresses()
    pool.close()


def test_a_thread_that_cannot_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    def start(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    pool, node = Pool(), chain(Context())
    program = lower(node, 3)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", start)
        with pytest.raises(AllocError, match=r"thread 2 of 3 cannot be started .*ulimit"):
            pool.run(program)
    pool.run(program)
    np.testing.assert_array_equal(node.numpy(), X)
    pool.close()


def test_ctrl_c_while_a_worker_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two workers of one number would share scratch memory and a queue."""

    def start(thread: threading.Thread) -> None:
        begin(thread)
        interrupt()

    begin, before = threading.Thread.start, threading.enumerate()
    pool, node = Pool(), chain(Context())
    program = lower(node, 3)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", start)
        with pytest.raises(KeyboardInterrupt):
            pool.run(program)
    for _ in range(3):
        node.numpy()[...] = 0
        pool.run(program)
        np.testing.assert_array_equal(node.numpy(), X)
    names = [t.name for t in threading.enumerate() if t not in before]
    assert names.count("pyggml-1") == names.count("pyggml-2") == 1
    pool.close()


def interrupt() -> None:
    raise KeyboardInterrupt


# --- other processes ---

SETUP = """
import os, sys, time
import numpy as np
import pyggml as ops
from pyggml.alloc import alloc_ctx_tensors
from pyggml.backend.cpu.backend import CpuBackend
from pyggml.backend.cpu.weights.buffer import REPACK
from pyggml.backend.cpu.run.pool import get_pool
from pyggml.cgraph import CGraph
from pyggml.context import Context
from pyggml.errors import ComputeError
backend = CpuBackend(4)
ctx = Context()
x = ctx.from_numpy(np.arange(100_000, dtype=np.float32))
node = ops.scale(ctx, x, 2.0)
graph = CGraph(); graph.build_forward_expand(node)
def compute(program=None):
    node.numpy()[...] = 0
    (program or backend.compile(graph)).enqueue()
    assert (node.numpy() == 2 * x.numpy()).all()
compute()
"""


def python(code: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHONPATH": str(ROOT), "PYGGML_SELF_TEST": "0"}
    command = [sys.executable, "-P", "-W", "ignore::DeprecationWarning", "-c", SETUP + code]
    return subprocess.run(
        command, env=env, capture_output=True, text=True, timeout=120, check=False, cwd=ROOT
    )


def test_the_interpreter_ends_cleanly_with_workers_alive() -> None:
    done = python("import threading; print(threading.active_count() > 3)")
    assert (done.returncode, done.stdout, done.stderr) == (0, "True\n", "")


@pytest.mark.long
@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_child_forked_during_a_compute_does_not_continue_it() -> None:
    """Chunks of the parent's run are left; the child must not run them."""
    done = python("""
import threading
import numba
from pyggml.backend.cpu.abi import SRC0, data
from pyggml.backend.cpu.atomics import atomic_add, atomic_load, pause
@numba.njit
def wait(node, chunk, n_chunks, scratch):
    atomic_add(data(node, SRC0), 1)
    while atomic_load(data(node, SRC0) + 8) == 0:
        pause()
gate = ctx.from_numpy(np.zeros((64, 1024), np.float32))
words = gate.numpy().reshape(-1).view(np.int64)
waiting, small = CGraph(), CGraph()
waiting.build_forward_expand(ops.map_custom(ctx, wait, gate))
one = ops.scale(ctx, ctx.from_numpy(np.ones(8, np.float32)), 2.0)
small.build_forward_expand(one)
long, short = backend.compile(waiting), backend.compile(small)
short.enqueue()
thread = threading.Thread(target=long.enqueue)
thread.start()
while words[0] < 2:
    time.sleep(0.01)
child = os.fork()
if not child:
    for _ in range(20):
        one.numpy()[...] = 0
        short.enqueue()
        assert (one.numpy() == 2).all()
    assert words[0] <= 4, "chunks of the parent's run"
    os._exit(0)
words[1] = 1
thread.join()
print(os.waitpid(child, 0)[1])
""")
    assert (done.returncode, done.stdout, done.stderr) == (0, "0\n", "")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_child_computes() -> None:
    """With workers that spin and with parked ones; programs from before the fork still work."""
    done = python("""
table = ops.get_rows(ctx, x, ctx.from_numpy(np.array([1], np.int32)))  # no such row
bad = CGraph(); bad.build_forward_expand(table)
before, broken = backend.compile(graph), backend.compile(bad)
for is_parked in (False, True):
    compute(before)
    while is_parked and not all(worker._parked for worker in get_pool()._workers):
        time.sleep(0.001)
    child = os.fork()
    if not child:
        compute()
        compute(before)
        try:
            broken.enqueue()
        except ComputeError:
            print("child", flush=True)
            sys.exit(0)  # through atexit, with the parent's handlers
        sys.exit("the error of an old program was not seen")
    assert os.waitpid(child, 0)[1] == 0
    compute(before)
print("parent")
""")
    assert (done.returncode, done.stdout, done.stderr) == (0, "child\nchild\nparent\n", "")
