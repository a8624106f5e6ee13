"""How far compiling has come, by counts."""

from __future__ import annotations

import contextlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from pyggml.backend.cpu import selftest
from pyggml.compiler import jit
from pyggml.compiler.code_cache import CodeCache
from pyggml.compiler.numba_internals import NotCached, OnlyCached
from pyggml.compiler.progress import CompileProgress

from ...waiting import WAIT_S


class Clock:
    """Seconds that a test sets."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def progress(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> CompileProgress:
    made = CompileProgress(clock)
    monkeypatch.setattr(jit, "progress", made)
    return made


def test_times_follow_from_counts(progress: CompileProgress, clock: Clock) -> None:
    assert not progress.now().is_running and progress.now().of == 0
    progress.expect(4)
    clock.now += 3
    assert str(progress.now()) == "compiling kernels, 0 of 4 (3 s)"
    with progress.compiling():
        clock.now += 2
    assert str(progress.now()) == "compiling kernels, 1 of 4 (5 s of about 20 s)"
    for _ in range(3):
        with progress.compiling():
            clock.now += 1
    clock.now += 1000  # nothing is compiled meanwhile
    assert str(progress.now()) == "compiling kernels, 4 of 4 (8 s of about 8 s)"
    assert not progress.now().is_running
    with progress.compiling():  # not expected
        clock.now += 1
        now = progress.now()
        assert now.is_running and (now.n, now.of, now.elapsed_s) == (4, 5, 9)


def test_children_count_until_they_end(progress: CompileProgress) -> None:
    progress.child("first", 3, 10)
    progress.child("second", 1, 20)
    with progress.compiling():
        assert progress.counts() == (4, 31)
    progress.end_child("second")
    assert progress.counts() == (5, 12)
    progress.child("first", 10, 10)
    progress.end_child("first")
    progress.end_child("never said anything")
    assert progress.counts() == (12, 12) and not progress.now().is_running


class Code(jit.Code):
    """A function that is in the cache, can be compiled, or cannot."""

    def __init__(self, name: str, *, is_cached: bool = False, fails: bool = False) -> None:
        self.name, self._is_cached, self._fails = name, is_cached, fails
        self.function = lambda: None

    def _compile(self, cache: object) -> str:
        if isinstance(cache, OnlyCached) and not self._is_cached:
            raise NotCached
        if self._fails:
            raise ZeroDivisionError
        return f"made {self.name}"


def test_all_that_is_missing_is_known_before_the_first(
    progress: CompileProgress, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[tuple[str, int, int]] = []
    monkeypatch.setattr(jit, "on_compile", lambda name: told.append((name, *progress.counts())))
    known, *missing = [Code("known", is_cached=True), Code("a"), Code("b"), Code("c")]
    jit.compile_all([known, *missing, *missing])
    assert told == [("a", 1, 3), ("b", 2, 3), ("c", 3, 3)]
    assert [one.machine_code for one in (known, *missing)] == [
        "made known", "made a", "made b", "made c",
    ]  # fmt: skip
    jit.compile_all(missing)
    assert len(told) == 3


def test_what_is_loaded_waits_for_no_other_thread(progress: CompileProgress) -> None:
    """A graph is built while a grammar's functions are compiled for seconds."""
    one = Code("a")
    jit.compile_all([one])
    with ThreadPoolExecutor(1) as other, jit._compile_lock:
        other.submit(jit.compile_all, [one]).result(WAIT_S)


def test_what_fails_is_expected_no_more(progress: CompileProgress) -> None:
    with pytest.raises(ZeroDivisionError):
        jit.compile_all([Code("a"), Code("b", fails=True), Code("c")])
    assert progress.counts() == (1, 1)


CHILD = """
from pyggml.compiler import jit
from pyggml.backend.cpu.selftest_child import begin
from pyggml.compiler.progress import progress

def families():
    progress.expect(2)
    with progress.compiling():
        pass
    jit.on_compile("mul mat")
    print()
"""


def test_a_child_of_the_self_test_reports(
    progress: CompileProgress, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    told: list[tuple[str, int, int]] = []
    (tmp_path / "some_child.py").write_text(CHILD)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(selftest, "_CHILD", "some_child")
    monkeypatch.setattr(selftest, "progress", progress)
    monkeypatch.setattr(jit, "on_compile", lambda name: told.append((name, *progress.counts())))
    with contextlib.closing(selftest._Child(jit.isa(), "families")) as child:
        assert child.result() == (["", "self-test-passed"], "")
        assert told == [("mulmat", 1, 2)]
    assert progress.counts() == (1, 1)


def test_functions_that_python_calls_are_reported(
    progress: CompileProgress, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from numba import types

    caches = {name: CodeCache(tmp_path / name) for name in jit.host_isas()}
    monkeypatch.setattr(jit, "code_cache", caches.__getitem__)
    told: list[str] = []
    monkeypatch.setattr(jit, "on_compile", told.append)

    @jit.jitted(types.int64(types.int64))
    def _add_one(x):  # type: ignore[no-untyped-def]
        return x + 1

    assert not _add_one.is_kept()
    assert _add_one(4) == 5 and _add_one(5) == 6 and _add_one.is_kept()
    assert told == ["add_one"] and progress.counts() == (1, 1)
    again = jit.JittedFunction(_add_one.function, types.int64(types.int64))
    assert again.is_kept() and "machine_code" not in again.__dict__
    assert again(4) == 5 and told == ["add_one"]
    del again
    assert [one.name for one in jit.functions_of(__name__)] == ["add_one"]
    assert jit.functions_of("pyggml.no_such_package") == []
