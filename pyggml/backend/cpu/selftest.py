"""Self-test of an instruction set, in child processes, since a mistake there kills the process.

    ensure_isa()                                   # at the start of the first CPU backend

When these sources run on a host for the first time, two child processes compare small computations
with NumPy (``selftest_child``): the first a case of each kernel family, the second a layer of a
model for one token. If one of them dies or gives a wrong result, the next simpler instruction set
is tried, with one line on stderr. A frozen or embedded Python starts no children: it takes the best
set, and records nothing. Children report what they compile (``compiler.progress``), which stays in
the cache.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading

from ... import env
from ...compiler import jit
from ...compiler.progress import progress
from ...errors import BackendError

_TIMEOUT_S = 300
_PASSED = "self-test-passed"
COMPILED = "compiled"  # begins a child's report: n, m, and the name of the n-th of m functions
_CHILD = f"{__name__}_child"  # the module that children run
_TESTED = (
    "pyggml.backend.cpu",
    "pyggml.ops",
    "pyggml.quants",
    "pyggml.compiler.jit",
    "pyggml.dtype",
)
_INHERITS = os.name == "posix"  # whether a child can be given a pipe beside its standard ones
_lock = threading.Lock()
_done = False


def ensure_isa() -> None:
    """Choose an instruction set that works on this host.

    Raises: BackendError, PyggmlError.
    """
    global _done
    with _lock:
        if _done:
            return
        if env.ISA.get() is None and env.SELF_TEST.enabled():
            jit.use_isa(_first_working())
        else:
            jit.isa()
        _done = True


def _after_fork() -> None:
    global _lock
    _lock = threading.Lock()  # the child lacks the thread that may have held it


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def _can_start() -> bool:
    """Whether ``sys.executable`` is a Python: in a frozen or embedded one it is the program."""
    name = os.path.basename(sys.executable or "").lower()
    return name.startswith(("python", "pypy")) and not getattr(sys, "frozen", False)


def _first_working() -> str:
    for name in jit.host_isas():
        cache = jit.code_cache(name)
        passed = f"{_PASSED}-{jit.tree_digest(*_TESTED)}"
        if cache.read(passed) is not None or not _can_start():
            return name
        problem = _try(name)
        if not problem:
            cache.write(passed, b"")
            return name
        print(f"pyggml: the {name} kernels fail here ({problem}); stepping down", file=sys.stderr)
    raise BackendError("no instruction set passes the self-test; PYGGML_SELF_TEST=0 skips it")


def _try(name: str) -> str:
    """Run the self-test of an instruction set in child processes.

    Returns:
        What is wrong; empty if nothing is.
    """
    with contextlib.ExitStack() as stack:
        try:
            children = [
                stack.enter_context(contextlib.closing(_Child(name, part)))
                for part in ("families", "layer")
            ]
        except OSError as e:
            return f"no child process: {e}"
        for child in reversed(children):  # that of the layer ends first
            output, problem = child.result()
            if problem or _PASSED not in output:
                return problem or "the self-test gave no answer"
    return ""


class _Child:
    """A Python process that calls a function of ``selftest_child``.

    It ends with this process, even if that is killed: it reads from a pipe that this process holds.

    Raises:
        OSError: it cannot be started.
    """

    def __init__(self, isa: str, function: str) -> None:
        watched, self._alive = os.pipe()
        code = (
            f"import sys; sys.path[:] = {sys.path!r}; "
            f"from {_CHILD} import begin, {function}; "
            f"begin({watched if _INHERITS else -1}); {function}(); print({_PASSED!r})"
        )
        settings = {"PYGGML_ISA": isa, "PYGGML_SELF_TEST": "0", "PYGGML_TUNING": ""}
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-c", code], env={**os.environ, **settings}, text=True,
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                pass_fds=(watched,) if _INHERITS else (),
            )  # fmt: skip
        except OSError:
            os.close(self._alive)
            raise
        finally:
            os.close(watched)
        self._lines: list[str] = []
        # ``communicate`` must not read it too
        self._output, self._process.stdout = self._process.stdout, None
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        """Collect the child's output, and forward its progress reports."""
        assert self._output is not None
        for line in self._output:
            words = line.split()
            if words[:1] != [COMPILED]:
                self._lines.append(line.rstrip("\n"))
                continue
            progress.child(self, int(words[1]), int(words[2]))
            if jit.on_compile is not None:
                jit.on_compile(words[3])

    def result(self) -> tuple[list[str], str]:
        """(lines that it printed, what went wrong)."""
        try:
            _, error = self._process.communicate(timeout=_TIMEOUT_S)
        except subprocess.TimeoutExpired as e:
            return [], f"the self-test did not end: {e}"
        self._reader.join()
        if self._process.returncode == 0:
            return self._lines, ""
        last = (error.strip().splitlines() or ["no message"])[-1]
        return self._lines, f"exit code {self._process.returncode}: {last}"

    def close(self) -> None:
        """End it."""
        self._process.kill()
        self._process.wait()
        self._reader.join()
        progress.end_child(self)
        os.close(self._alive)
        for stream in (self._output, self._process.stderr):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()
