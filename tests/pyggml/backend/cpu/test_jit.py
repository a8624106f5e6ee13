"""The cache of compiled code: its directory, its validity, and other users' caches."""

from __future__ import annotations

import gc
import importlib.util
import operator
import os
import subprocess
import sys
import time
from functools import lru_cache
from pathlib import Path
from typing import Any

import numba
import numpy as np
import pytest
from numba import types
from numba.core.bytecode import FunctionIdentity
from numba.core.registry import cpu_target

from pyggml import env
from pyggml.compiler import jit, numba_internals
from pyggml.compiler.code_cache import CodeCache

ROOT = Path(__file__).parents[4]


@pytest.fixture(autouse=True)
def base(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PYGGML_CACHE_DIR", str(tmp_path / "cache"))
    base = env.code_dir()
    monkeypatch.setattr(jit, "code_cache", lru_cache(jit.code_cache.__wrapped__))
    return base


def test_one_directory_for_compilers_and_instruction_set(base: Path) -> None:
    path = jit.code_cache("generic").path
    assert path.parent == base and path != jit.code_cache("avx2").path
    assert jit.code_cache.__wrapped__("generic").path == path


def test_unused_directories_are_pruned(base: Path) -> None:
    old, recent = base / "old", base / "recent"
    for path, days in ((old, 31), (recent, 29)):
        CodeCache(path).write("x.nbc", b"")
        then = time.time() - days * 86400
        for place in (path / "x.nbc", path):
            os.utime(place, (then, then))
    assert set(base.iterdir()) == {recent, old}
    kept = jit.code_cache("generic").path
    assert set(base.iterdir()) == {recent, kept}


def test_a_users_cached_function_keeps_its_own_cache(tmp_path: Path, base: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text("import numba\n@numba.njit(cache=True)\ndef f(x):\n    return x + 1\n")
    spec = importlib.util.spec_from_file_location("mine", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.f(2) == 3
    assert list((tmp_path / "__pycache__").glob("mine.f-*.nbc"))
    assert not base.exists() or not list(base.rglob("mine*"))


SCRIPT = """
from pyggml import env
from pyggml.compiler import jit, numba_internals
from pyggml.compiler.code_cache import CodeCache
from pyggml.backend.cpu.kernels.elementwise.unary import element_kernel
scale_f32 = element_kernel("scale", 0)
compiled = []
jit.on_compile = compiled.append
assert scale_f32.address
print(compiled, jit.code_cache(jit.isa()).path)
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


SHARES = """
import sys
from pyggml.compiler import jit
from pyggml.backend.cpu.kernels.elementwise.unary import element_kernel
scale_f32 = element_kernel("scale", 0)
from pyggml.backend.cpu.kernels.rows.reduce import argmax_f32
from pyggml.backend.cpu.kernels.rows.norm import rms_norm_f32
kernels = [scale_f32, argmax_f32, rms_norm_f32]
compiled = []
jit.on_compile = compiled.append
jit.isa()
print(flush=True)
sys.stdin.readline()
jit.compile_all(kernels)
print(len(kernels), *compiled)
"""


def test_processes_that_need_the_same_code_share_the_work() -> None:
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-P", "-c", SHARES]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with (
        subprocess.Popen(command, env=env, **pipes) as a,
        subprocess.Popen(command, env=env, **pipes) as b,
    ):
        for one in (a, b):
            assert one.stdout.readline() == "\n"
        for one in (a, b):
            one.stdin.write("\n")
            one.stdin.flush()
        (n, *of_a), (m, *of_b) = (one.communicate(timeout=120)[0].split() for one in (a, b))
    assert n == m == "3" and sorted(of_a + of_b) == ["argmax_f32", "rms_norm_f32", "scale_f32"]


@pytest.mark.long
def test_an_edit_of_an_inlined_function_in_another_file_is_compiled(tmp_path: Path) -> None:
    helper, caller = tmp_path / "helper.py", tmp_path / "caller.py"
    caller.write_text(
        "from numba import types; from pyggml.compiler.jit import jitted; from helper import f\n"
        "@jitted(types.int64(types.int64))\n"
        "def g(x):\n    return f(x)\n"
        "print(g(1))\n"
    )
    for factor in (10, 200):
        helper.write_text(
            "from pyggml.compiler.jit import inline_strict\n"
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


@pytest.mark.long
def test_functions_of_a_module_that_is_not_imported_run_in_every_process(tmp_path: Path) -> None:
    """Numba's pickle names the module '<dynamic>', which other processes cannot import."""
    file = tmp_path / "made.py"
    file.write_text(
        "from numba import types; from pyggml.compiler.jit import jitted\n"
        "@jitted(types.int64(types.int64))\n"
        "def g(x):\n    return 3 * x\n"
        "print(g(5))\n"
    )
    code = (
        f"exec(compile(open({str(file)!r}).read(), {str(file)!r}, 'exec'), {{'__name__': 'gone'}})"
    )
    for _ in range(2):
        done = subprocess.run(
            [sys.executable, "-P", "-c", code], capture_output=True, text=True, timeout=120,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )  # fmt: skip
        assert done.stdout == "15\n", done.stderr


USERS = """
import numpy as np
from numba import njit
from numba.core import config
from pyggml.backend.cpu.backend import CpuBackend
from pyggml.backend.cpu.kernels.elementwise.unary import element_kernel
scale_f32 = element_kernel("scale", 0)

@njit(fastmath=True)
def total(x):
    s = 0.0
    for i in range(len(x)):
        s += x[i]
    return s

backend, x = CpuBackend(1), np.ones(100)
def wide(text):
    return "ymm" in text or "zmm" in text
assert scale_f32.address and not wide(scale_f32.assembly())
assert total(x) == 100 and config.CPU_NAME is None
print(wide(*total.inspect_asm().values()))
"""


@pytest.mark.long
@pytest.mark.skipif("avx2" not in jit.host_isas(), reason="the widths of vectors of x86")
def test_a_users_functions_are_compiled_for_the_host() -> None:
    """Whatever instruction set our kernels are compiled for."""
    env = {**os.environ, "PYTHONPATH": str(ROOT), "PYGGML_ISA": "generic"}
    command = [sys.executable, "-P", "-c", USERS]
    done = subprocess.run(command, env=env, capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("True\n", "")


FORKED = """
import os, threading
from pyggml import env
from pyggml.compiler import jit, numba_internals
from pyggml.compiler.code_cache import CodeCache
from pyggml.backend.cpu.kernels.rows.norm import rms_norm_f32
from pyggml.backend.cpu.kernels.elementwise.unary import element_kernel
scale_f32 = element_kernel("scale", 0)
begun = threading.Event()
inside = jit.own_numbers

def entered():
    begun.set()
    return inside()

jit.own_numbers = entered
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


@pytest.mark.long
@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_child_forked_while_a_thread_compiles_can_compile() -> None:
    command = [sys.executable, "-P", "-c", FORKED]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr) == ("7\n", "")


TWINS = """
import ctypes, sys
from pyggml.backend.cpu.abi import i64_ptr
from pyggml.compiler.jit import inline_strict, kernel

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
    globals()[name].machine_code.ctypes(ctypes.addressof(x), 0, 1, 0)
    print(x.value == (add_1 if name == "first" else add_2).py_func(5))
""".format(body="        x = (x * 3 + n) % 1000003\n" * 300)


@pytest.mark.long
def test_cached_code_never_calls_code_compiled_in_this_process(tmp_path: Path) -> None:
    """Numba may give functions of one name the same symbols in different processes."""
    script = tmp_path / "twins.py"
    script.write_text(TWINS)
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    for names in (["first"], ["first", "second"], ["second", "first"]):
        command = [sys.executable, "-P", str(script), *names]
        done = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
        assert done.stdout.split() == ["True"] * len(names)


def test_symbol_numbers_are_unique_to_a_process() -> None:
    numbers = numba_internals._numbers
    before = next(numbers(1))
    assert next(numbers(1)) == before + 1  # one sequence for a process
    assert abs(next(numbers(2)) - before) > 1 << 20  # another one in its fork
    theirs: Any = FunctionIdentity
    own = theirs._unique_ids
    with jit.own_numbers():
        assert theirs._unique_ids is numbers(os.getpid())
    assert theirs._unique_ids is own


@pytest.mark.parametrize(("own", "during"), [(700, 100_000), (10**6, 10**6), (0, 0)])
def test_garbage_is_collected_rarely_while_a_kernel_compiles(own: int, during: int) -> None:
    before = gc.get_threshold()
    try:
        gc.set_threshold(own, *before[1:])
        with numba_internals.rare_collections():
            assert gc.get_threshold() == (during, *before[1:])
        assert gc.get_threshold() == (own, *before[1:])
    finally:
        gc.set_threshold(*before)


def test_calls_with_numbers_are_typed_once_in_each_context() -> None:
    class Typing:
        def __init__(self) -> None:
            self.asked: list[Any] = []

        def resolve_function_type(self, function: Any, args: Any, kws: Any) -> Any:
            self.asked.append(args)
            return self, args

    cpu_target.typing_context.refresh()  # it learns Numba's functions
    add = cpu_target.typing_context.resolve_value_type(operator.add)
    numbers, others = (types.int64, types.float32), (types.voidptr, types.int64)
    for context in (Typing(), Typing()):  # as of CPUs and of GPUs
        for _ in range(2):
            with numba_internals.known_operators(context):
                for args in (numbers, numbers, others):
                    assert context.resolve_function_type(add, args, {}) == (context, args)
        assert context.asked == [numbers, others, others]
        assert "resolve_function_type" not in vars(context)


def test_strict_functions_stay_strict_after_a_fast_caller() -> None:
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


def test_nan_and_inf_propagate_through_fast_math() -> None:
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


def test_an_inlined_function_can_print(capfd: pytest.CaptureFixture[str]) -> None:
    @jit.inline
    def shown(x):  # type: ignore[no-untyped-def]
        print("x is", x)
        return x + 1

    @jit.jitted(numba.int64(numba.int64))
    def call(x: Any) -> Any:
        return shown(x)

    assert call(3) == 4
    assert capfd.readouterr().out == "x is 3\n"
