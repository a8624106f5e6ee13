"""The cache of compiled code: whose it is, when it is used, and that it stays ours alone."""

from __future__ import annotations

import importlib.util
import os
import stat
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numba
import numpy as np
import pytest
from numba.core import config
from numba.core.bytecode import FunctionIdentity

from pyggml import jit

ROOT = Path(__file__).parents[4]
fresh_cache_dir: Any = jit.cache_dir.__wrapped__
posix = pytest.mark.skipif(not hasattr(os, "getuid"), reason="permission bits are POSIX's")


@pytest.fixture(autouse=True)
def base(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    base = tmp_path / "cache" / "code"
    monkeypatch.setenv("PYGGML_CACHE_DIR", str(base))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return base


def test_one_private_directory_for_sources_and_instruction_set(base: Path) -> None:
    path = fresh_cache_dir("generic")
    assert path.parent == base and (path / "used").exists()
    assert fresh_cache_dir("generic") == path != fresh_cache_dir("avx2")
    if hasattr(os, "getuid"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o700


@posix
@pytest.mark.parametrize("mode", [0o777, 0o720, 0o702])
def test_a_directory_that_others_can_write_is_not_used(
    mode: int, base: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Numba unpickles what it finds there."""
    path = fresh_cache_dir("generic")
    path.chmod(mode)
    other = fresh_cache_dir("generic")
    assert other.parent == tmp_path and stat.S_IMODE(other.stat().st_mode) == 0o700
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and "can be written by others" in error and str(other) in error


@posix
def test_a_directory_of_another_user_is_not_used(
    base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fresh_cache_dir("generic")
    monkeypatch.setattr(os, "getuid", lambda: 12345)
    assert fresh_cache_dir("generic").parent == tmp_path


def test_a_cache_that_cannot_be_written(
    base: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    base.parent.mkdir()
    base.write_text("a file is where the directory should be")
    path = fresh_cache_dir("generic")
    assert path.is_dir() and path.parent == tmp_path
    error = capsys.readouterr().err
    assert error.startswith("pyggml: no code cache") and error.count("\n") == 1


def test_digests_that_nobody_uses_are_pruned(base: Path) -> None:
    old, recent, foreign = (base / name for name in ("old", "recent", "foreign"))
    for path, days in ((old, 31), (recent, 29), (foreign, 0)):
        path.mkdir(parents=True)
        if days:
            (path / "used").touch()
            then = time.time() - days * 86400
            os.utime(path / "used", (then, then))
    kept = fresh_cache_dir("generic")
    assert set(base.iterdir()) == {recent, foreign, kept}


def test_numba_s_own_setting_is_restored() -> None:
    before = config.CACHE_DIR
    with pytest.raises(KeyError), jit._numba_cache():
        assert Path(config.CACHE_DIR) == jit.cache_dir(jit.isa())
        raise KeyError
    assert before == config.CACHE_DIR


def test_a_user_s_cached_function_stays_in_its_own_place(tmp_path: Path, base: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text("import numba\n@numba.njit(cache=True)\ndef f(x):\n    return x + 1\n")
    spec = importlib.util.spec_from_file_location("mine", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.f(2) == 3
    assert list((tmp_path / "__pycache__").glob("mine.f-*.nbc"))
    assert not list(jit.cache_dir(jit.isa()).rglob("mine.*"))


SCRIPT = """
from pyggml import jit
from pyggml.backend.cpu.kernels.scale import scale_f32
compiled = []
jit.on_compile = compiled.append
assert scale_f32.address
print(compiled, jit.cache_dir(jit.isa()))
"""


def test_a_second_process_loads_what_the_first_compiled(base: Path) -> None:
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    out = []
    for _ in range(2):
        command = [sys.executable, "-P", "-c", SCRIPT]
        done = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
        assert done.stderr == ""
        out.append(done.stdout.strip())
    directory = next(base.iterdir())
    assert out == [f"['scale_f32'] {directory}", f"[] {directory}"]
    assert list(directory.rglob("*.nbc"))


def test_an_edit_of_what_is_inlined_from_another_file_is_compiled(tmp_path: Path) -> None:
    helper, caller = tmp_path / "helper.py", tmp_path / "caller.py"
    caller.write_text(
        "from numba import types; from pyggml.jit import compiled; from helper import f\n"
        "@compiled(types.int64(types.int64))\n"
        "def g(x):\n    return f(x)\n"
        "print(g(1))\n"
    )
    for factor in (10, 200):
        helper.write_text(
            "from pyggml.jit import inline_strict\n"
            f"@inline_strict\ndef f(x):\n    return x * {factor}\n"
        )
        env = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{tmp_path}"}
        done = subprocess.run(
            [sys.executable, "-P", str(caller)],
            capture_output=True,
            text=True,
            env=env,
            timeout=120,
        )
        assert done.stdout.strip() == str(factor), done.stderr


def test_variants_of_a_kernel_never_share_a_file(tmp_path: Path) -> None:
    """Numba's own files may: two processes that know of no variant yet both write number 1."""
    ours, theirs = (jit._Files(str(tmp_path), "f-1.py311", (1, 2)) for _ in range(2))
    assert ours.load("a") is None
    ours.save("a", "code of a")
    theirs.save("b", "code of b")
    assert (ours.load("b"), theirs.load("a")) == ("code of b", "code of a")
    edited = jit._Files(str(tmp_path), "f-1.py311", (3, 4))
    assert edited.load("a") is None
    edited.save("a", "code of another a")
    assert (edited.load("a"), ours.load("a"), len(list(tmp_path.iterdir()))) == (
        "code of another a",
        None,
        2,
    )


@pytest.mark.parametrize("left", [0, 1, 100, -10])
def test_what_is_damaged_is_compiled_again(tmp_path: Path, left: int) -> None:
    files = jit._Files(str(tmp_path), "f-1.py311", (1, 2))
    files.save("a", b"code of a" * 20)
    path = tmp_path / files._name("a")
    path.write_bytes(path.read_bytes()[:left])
    assert files.load("a") is None
    files.save("a", b"new code of a")
    assert files.load("a") == b"new code of a"


FORKED = """
import os, threading
from pyggml import jit
from pyggml.backend.cpu.kernels.norm import rms_norm_f32
from pyggml.backend.cpu.kernels.scale import scale_f32
begun = threading.Event()
inside = jit._numba_cache

def entered():
    begun.set()
    return inside()

jit._numba_cache = entered
thread = threading.Thread(target=lambda: rms_norm_f32.address)
thread.start()
begun.wait()
child = os.fork()
assert scale_f32.address
if child == 0:
    os._exit(7)
thread.join()
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_child_forked_while_a_thread_compiles_can_compile() -> None:
    command = [sys.executable, "-P", "-c", FORKED]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr) == ("7\n", "")


TWINS = """
import ctypes, sys
from pyggml.backend.cpu.abi import i64_ptr
from pyggml.jit import inline_strict, kernel

def adding(n):
    @inline_strict
    def add(x):  # longer than what LLVM puts into its caller
{body}
        return x
    return add

add_1, add_2 = adding(1), adding(2)

@kernel
def first(node, chunk, n_chunks, scratch):
    i64_ptr(node)[0] = add_1(i64_ptr(node)[0])

@kernel
def second(node, chunk, n_chunks, scratch):
    i64_ptr(node)[0] = add_2(i64_ptr(node)[0])

for name in sys.argv[1:]:
    x = ctypes.c_int64(5)
    globals()[name].compiled.ctypes(ctypes.addressof(x), 0, 1, 0)
    print(x.value == (add_1 if name == "first" else add_2).py_func(5))
""".format(body="        x = (x * 3 + n) % 1000003\n" * 300)


def test_code_from_the_cache_never_calls_what_is_compiled_now(tmp_path: Path) -> None:
    """Numba gives functions of one name the same symbols in each process that compiles one."""
    script = tmp_path / "twins.py"
    script.write_text(TWINS)
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    for names in (["first"], ["first", "second"], ["second", "first"]):
        command = [sys.executable, "-P", str(script), *names]
        done = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
        assert done.stdout.split() == ["True"] * len(names)


def test_numbers_of_symbols_are_a_process_s_own() -> None:
    before = next(jit._numbers(1))
    assert next(jit._numbers(1)) == before + 1  # one sequence for all that a process compiles
    assert abs(next(jit._numbers(2)) - before) > 1 << 20  # and another one in a fork of it
    theirs: Any = FunctionIdentity
    own = theirs._unique_ids
    with jit._numba_cache():
        assert theirs._unique_ids is jit._numbers(os.getpid())
    assert theirs._unique_ids is own


def test_strict_functions_stay_so_whoever_calls_them_first() -> None:
    @jit.inline_strict
    def total(x):  # type: ignore[no-untyped-def]
        s = np.float32(0)
        for v in x:
            s += v * v
        return s

    @numba.njit(fastmath=jit.FAST)
    def fast(x: Any) -> Any:
        return total(x)

    @numba.njit
    def strict(x: Any) -> Any:
        return total(x)

    x = np.random.default_rng(1).standard_normal(1000).astype(np.float32)
    in_order = np.add.accumulate(x * x, dtype=np.float32)[-1]
    assert (fast(x), strict(x)) == (in_order, in_order)


def test_nan_and_inf_travel_through_fast_math() -> None:
    @jit.inline
    def total(x):  # type: ignore[no-untyped-def]
        s = np.float32(0)
        for v in x:
            s += v
        return s

    @numba.njit
    def call(x: Any) -> Any:
        return total(x)

    for bad in (np.nan, np.inf):
        x = np.ones(100, np.float32)
        x[37] = bad
        assert np.array_equal(call(x), np.float32(bad), equal_nan=True)
