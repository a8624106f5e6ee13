"""Self-test of an instruction set, in child processes, since a mistake there kills the process.

    ensure_isa()                                   # at the start of the first CPU backend
    measure_again()                                # pyllama info --tune

When these sources run on a host for the first time, two child processes compare small computations
with NumPy: the first a case of each kernel family, the second a layer of a model for one token. If
one of them dies or gives a wrong result, the next simpler instruction set is tried, with one line
on stderr. A frozen or embedded Python starts no children: it takes the best set, and records
nothing. Children report what they compile (``compile_progress``), which stays in the cache. After
both have passed, the first child measures the CPU (``measure``) on the idle machine, which takes a
fraction of a second.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
from typing import Any

import numpy as np
import numpy.typing as npt

from ... import env, ops
from ...alloc import GraphAllocator, alloc_ctx_tensors
from ...buffer import HOST
from ...cgraph import CGraph
from ...compiler import jit
from ...compiler.progress import progress
from ...context import Context
from ...dtype import GGMLType
from ...errors import BackendError
from ...quants import reference_dequantize as dequantize
from ...quants import reference_quantize as quantize
from ...tensor import Tensor
from . import tuning
from .weights.buffer import REPACK

Array = npt.NDArray[Any]
_TIMEOUT_S = 300
_PASSED = "self-test-passed"
_COMPILED = "compiled"  # begins a child's report: n, m, and the name of the n-th of m functions
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
    """Choose an instruction set that works on this host, and measure a new CPU.

    Raises: BackendError, PyggmlError.
    """
    global _done
    with _lock:
        if _done:
            return
        _, measured = tuning.by_hand()
        if env.ISA.get() is None and env.SELF_TEST.enabled():
            jit.use_isa(_first_working())
        else:
            jit.isa()
        tuning.forget()  # values read before the instruction set was chosen
        keeps = jit.code_cache(jit.isa()).writable
        wanted = measured and keeps and env.SELF_TEST.enabled() and _can_start()
        if wanted and tuning.load() is None:
            measure_again()
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


def measure_again() -> tuning.Record:
    """Measure this CPU in a child process and keep the result, for this process too.

    Where no child can be started, nothing is measured and nothing kept.
    """
    if not _can_start():
        return tuning.Record(tuning.cpu_key(), problem="there is no Python to start")
    try:
        with contextlib.closing(_Child(jit.isa(), "measure_when_told")) as child:
            record = _record(*child.result())
    except OSError as e:
        record = tuning.Record(tuning.cpu_key(), problem=str(e))
    tuning.save(record)
    return record


def _first_working() -> str:
    for name in jit.host_isas():
        cache = jit.code_cache(name)
        passed = f"{_PASSED}-{jit.tree_digest(name, *_TESTED)}"
        if cache.read(passed) is not None or not _can_start():
            return name
        problem, measured = _try(name)
        if not problem:
            cache.write(passed, b"")
            if measured is not None:
                jit.use_isa(name)
                tuning.save(measured)
            return name
        print(f"pyggml: the {name} kernels fail here ({problem}); stepping down", file=sys.stderr)
    raise BackendError("no instruction set passes the self-test; PYGGML_SELF_TEST=0 skips it")


def _try(name: str) -> tuple[str, tuning.Record | None]:
    """Run the self-test of an instruction set in child processes.

    Returns:
        (what is wrong, empty if nothing; what was measured).
    """
    with contextlib.ExitStack() as stack:

        def start(*parts: str) -> _Child:
            return stack.enter_context(contextlib.closing(_Child(name, *parts)))

        try:
            first, second = start("families", "measure_when_told"), start("layer")
        except OSError as e:
            return f"no child process: {e}", None
        _, problem = second.result()
        if not problem:
            output, problem = first.result()
            if _PASSED in output:
                return "", _record(output, problem)
        return problem or "the self-test gave no answer", None


def _record(output: list[str], problem: str) -> tuning.Record:
    """A child's measurements, or why there are none."""
    try:
        return tuning.Record.from_json(output[-1])
    except (IndexError, ValueError) as e:
        return tuning.Record(tuning.cpu_key(), problem=problem or str(e))


class _Child:
    """A Python process that calls functions of this module, one after the other.

    It ends with this process, even if that is killed: it reads from a pipe that this process holds.

    Raises:
        OSError: it cannot be started.
    """

    def __init__(self, isa: str, *functions: str) -> None:
        names, calls = ", ".join(functions), "; ".join(f"{name}()" for name in functions)
        watched, self._alive = os.pipe()
        code = (
            f"import sys; sys.path[:] = {sys.path!r}; "
            f"from {__name__} import begin, {names}; "
            f"begin({watched if _INHERITS else -1}); {calls}"
        )
        settings = {"PYGGML_ISA": isa, "PYGGML_SELF_TEST": "0", "PYGGML_TUNING": "default"}
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-c", code], env={**os.environ, **settings}, text=True,
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
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
            if words[:1] != [_COMPILED]:
                self._lines.append(line.rstrip("\n"))
                continue
            progress.child(self, int(words[1]), int(words[2]))
            if jit.on_compile is not None:
                jit.on_compile(words[3])

    def result(self) -> tuple[list[str], str]:
        """(lines that it printed, what went wrong). It may measure now, if it waits for that."""
        try:
            _, error = self._process.communicate("go\n", timeout=_TIMEOUT_S)
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
        for stream in (self._process.stdin, self._output, self._process.stderr):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()


def begin(pipe: int) -> None:
    """Begin a child: it reports what it compiles, and ends when the pipe's other end is closed.

    Args:
        pipe: -1 for none.
    """

    def watch() -> None:
        os.read(pipe, 1)
        os._exit(1)

    def compiled(name: str) -> None:
        n, of = progress.counts()
        print(_COMPILED, n, of, "".join(name.split()), flush=True)

    jit.on_compile = compiled
    if pipe >= 0:
        threading.Thread(target=watch, daemon=True).start()


# Sizes that cover every path: full and partial groups, one token and several, and with a matrix
# unit two of its tiles plus five tokens.
_MATMUL_TYPES = {"Q4_1": 64, "Q8_0": 64, "Q4_K": 256, "Q6_K": 256, "F16": 64}  # by columns


def families() -> None:
    """The first child: one case per kernel family. Raises if a result is wrong.

    Compiles what is measured after it too, so that all is counted from the beginning.
    """
    from . import measure
    from .backend import CpuBackend

    rng = np.random.default_rng(0)
    backend = CpuBackend(1)
    ctx = Context()

    def values(*shape: int) -> np.ndarray:
        return rng.uniform(-1, 1, shape).astype(np.float32)

    cases: list[tuple[Tensor, CGraph, Array, float]] = []

    def check(node: Tensor, want: Array, tolerance: float) -> None:
        graph = CGraph()
        graph.build_forward_expand(node)
        cases.append((node, graph, want, tolerance))

    for name, n in _MATMUL_TYPES.items():
        kind = GGMLType[name]
        w = ctx.new_tensor_2d(kind, n, 33)
        rows = quantize(values(33, n), kind)
        w.set(rows if kind.is_quantized else rows.view(np.float16))
        for x_of in (ctx.from_numpy(values(37, n)), ctx.from_numpy(values(1, n))):
            check(ops.mul_mat(ctx, w, x_of), x_of.numpy() @ dequantize(rows, kind).T, 5e-4)
    y = ctx.from_numpy(values(1, 33))
    check(ops.axpy(ctx, w, y), y.numpy() @ dequantize(rows, kind), 1e-7)  # of the last type
    x = ctx.from_numpy(values(5, 64))
    norm = ops.rms_norm(ctx, x, 1e-5)
    want = x.numpy() / np.sqrt(np.mean(x.numpy() ** 2, -1, keepdims=True) + 1e-5)
    check(ops.mul(ctx, norm, ctx.from_numpy(np.ones(64, np.float32))), want, 1e-7)
    silu = x.numpy() / (1 + np.exp(-x.numpy()))
    check(ops.swiglu_split(ctx, x, x), silu * x.numpy(), 1e-7)
    q, k = ctx.from_numpy(values(2, 3, 16)), ctx.from_numpy(values(1, 40, 16).astype(np.float16))
    scores = q.numpy() @ k.numpy().astype(np.float32).T * 0.25
    p = np.exp(scores - scores.max(-1, keepdims=True))
    want = (p / p.sum(-1, keepdims=True)) @ k.numpy().astype(np.float32)  # [head, token, 16]
    check(ops.flash_attn_ext(ctx, q, k, k, None, 0.25), want.swapaxes(0, 1), 1e-5)
    needed = [one for _, graph, _, _ in cases for one in backend.kernels(graph)]
    jit.compile_all([*needed, *measure.kernels(CpuBackend(), measure.races())])
    for node, graph, want, tolerance in cases:
        backend.graph_compute(graph)
        _compare(node, want, tolerance)


def measure_when_told() -> None:
    """Prepare to measure, wait for a line or the end of stdin, and print the record."""
    from .backend import CpuBackend
    from .measure import prepare, run

    print(_PASSED, flush=True)  # so far
    backend = CpuBackend()
    races = prepare(backend)
    sys.stdin.readline()
    print(run(backend, races).to_json())


def layer() -> None:
    """The second child: a layer of a model for the first token. Raises if a result is wrong.

    At position 0 rope is the identity, and attention returns the token's own values.
    """
    from .backend import CpuBackend

    rng, n, n_cells, token = np.random.default_rng(0), 64, 512, 7
    backend = CpuBackend(1)
    sizes = {"embd": 48, "q": n, "k": n, "v": n, "out": n, "gate": n, "up": n, "down": n}
    packed, weights, sources, want = Context(no_alloc=True), {}, [], {}
    for name, n_rows in sizes.items():
        kind = GGMLType.Q8_0 if name == "embd" else GGMLType.Q4_1
        data = quantize(rng.uniform(-0.3, 0.3, (n_rows, n)).astype(np.float32), kind)
        weights[name] = packed.new_tensor_2d(kind, n, n_rows)
        want[name] = dequantize(data, kind)
        sources.append((weights[name], data.reshape(-1)))
    alloc_ctx_tensors(packed, REPACK)
    for _ in backend.set_weights(sources):
        pass

    kept = Context()
    ones = kept.from_numpy(np.ones(n, np.float32))
    k_cache, v_cache = (kept.new_tensor_3d(GGMLType.F16, n // 2, n_cells, 2) for _ in range(2))
    cells = kept.from_numpy(np.zeros((1, n_cells, 2), np.int32))
    ctx, graph = Context(no_alloc=True), CGraph()
    ids, index = ctx.new_tensor_1d(GGMLType.I32, 1), ctx.new_tensor_1d(GGMLType.I64, 1)
    rows, position = ctx.new_tensor_2d(GGMLType.I32, 4, 1), ctx.new_tensor_1d(GGMLType.I32, 1)

    def norm(x: Tensor) -> Tensor:
        return ops.mul(ctx, ops.rms_norm(ctx, x, 1e-5), ones)

    def heads(name: str, x: Tensor) -> Tensor:
        return ops.reshape_3d(ctx, ops.mul_mat(ctx, weights[name], x), n // 2, 2, 1)

    x = ops.get_rows(ctx, weights["embd"], ids.set_input())
    h = norm(x)
    q, k = (ops.rope_ext(ctx, heads(name, h), position.set_input(), n_dims=32) for name in "qk")
    for cache, new in ((k_cache, k), (v_cache, heads("v", h))):
        new = ops.permute(ctx, new, 0, 2, 1, 3)
        graph.build_forward_expand(ops.set_rows(ctx, cache, new, index.set_input()))
    q = ops.permute(ctx, q, 0, 2, 1, 3)
    y = ops.flash_attn_cells(ctx, q, k_cache, v_cache, cells, rows.set_input(), 0.2)
    y = ops.mul_mat(ctx, weights["out"], ops.reshape_2d(ctx, y, n, 1))
    x = ops.add(ctx, y, x)
    h = norm(x)
    h = ops.swiglu_split(
        ctx, ops.mul_mat(ctx, weights["gate"], h), ops.mul_mat(ctx, weights["up"], h)
    )
    x = ops.add(ctx, ops.mul_mat(ctx, weights["down"], h), x)
    logits = ops.mul_mat(ctx, weights["embd"], norm(x)).set_output()
    best = ops.argmax(ctx, logits).set_output()
    graph.build_forward_expand(best)
    GraphAllocator(HOST).alloc_graph(graph)
    for tensor, value in ((ids, token), (index, 0), (position, 0), (rows, (0, 0, 1, 0))):
        tensor.numpy(squeeze=False)[...] = value
    backend.graph_compute(graph)

    def normed(x: Array) -> Array:
        y: Array = x / np.sqrt(np.mean(x * x) + 1e-5)
        return y

    x0 = want["embd"][token].astype(np.float64)
    x0 = x0 + want["out"] @ (want["v"] @ normed(x0))
    gate, up = (want[name] @ normed(x0) for name in ("gate", "up"))
    x0 = x0 + want["down"] @ (gate / (1 + np.exp(-gate)) * up)
    _compare(logits, want["embd"] @ normed(x0), 2e-3)
    if best.numpy().item() != logits.numpy().argmax():
        raise SystemExit(f"ARGMAX gives {best.numpy()}")


def _compare(node: Tensor, want: Array, tolerance: float) -> None:
    """Raise if a result's normalised squared error exceeds its bound or is NaN."""
    error = float(np.sum((node.numpy() - want) ** 2) / np.sum(want**2))
    if not error <= tolerance:
        raise SystemExit(f"{node}: error {error:.1e}, allowed {tolerance:.0e}")
