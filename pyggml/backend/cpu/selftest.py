"""Try an instruction set before it is used: a mistake there is a dead process, not an exception.

    ensure_isa()                                   # at the start of the first CPU backend

The first time that these sources meet this host, a child process runs one small case of each kernel
family and compares it with the op's NumPy reference. If it dies or disagrees, the next simpler
instruction set is tried, with one line on stderr. What the child compiled is in the cache then.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading

import numpy as np

from ... import env, jit
from ...errors import BackendError

_TIMEOUT_S = 300
_lock = threading.Lock()
_done = False


def ensure_isa() -> None:
    """Settle on an instruction set that works here. Raises: BackendError, PyggmlError."""
    global _done
    with _lock:
        if _done:
            return
        if env.ISA.get() is None and env.SELF_TEST.enabled():
            jit.use_isa(_first_working())
        else:
            jit.isa()
        _done = True


def _first_working() -> str:
    for name in jit.host_isas():
        mark = jit.cache_dir(name) / "self-test-passed"
        if mark.exists():
            return name
        if jit.on_compile is not None:
            jit.on_compile(f"{name} self-test")
        problem = _try(name)
        if not problem:
            mark.touch()
            return name
        print(f"pyggml: the {name} kernels fail here ({problem}); stepping down", file=sys.stderr)
    raise BackendError("no instruction set passes the self-test; PYGGML_SELF_TEST=0 skips it")


def _try(name: str) -> str:
    """Run the self-test of an instruction set in a child process; what is wrong, or nothing."""
    if not sys.executable or getattr(sys, "frozen", False):
        return ""  # an embedded Python: there is no interpreter to start
    child_env = {**os.environ, "PYGGML_ISA": name, "PYGGML_SELF_TEST": "0"}
    code = f"import sys; sys.path[:] = {sys.path!r}; from {__name__} import main; main()"
    command = [sys.executable, "-c", code]
    try:
        done = subprocess.run(
            command, env=child_env, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as e:
        return f"the self-test did not end: {e}"
    if done.returncode == 0:
        return ""
    last = (done.stderr.strip().splitlines() or ["no message"])[-1]
    return f"exit code {done.returncode}: {last}"


# Sizes that take every path once: full and partial groups, one token and several.
_MATMUL_TYPES = ("Q4_1", "Q8_0", "F16")


def main() -> None:
    """The child: one case a kernel family; raises where a result is wrong."""
    from ... import ops
    from ...cgraph import CGraph
    from ...context import Context
    from ...dtype import GGMLType
    from ...quants import dequantize, quantize
    from .backend import CpuBackend

    rng = np.random.default_rng(0)
    backend = CpuBackend(1)
    ctx = Context()

    def values(*shape: int) -> np.ndarray:
        return rng.uniform(-1, 1, shape).astype(np.float32)

    def check(node: ops.Op | object, want: np.ndarray, tolerance: float) -> None:
        graph = CGraph()
        graph.build_forward_expand(node)  # type: ignore[arg-type]
        backend.graph_compute(graph)
        got = node.numpy().astype(np.float64)  # type: ignore[union-attr]
        error = float(np.sum((got - want) ** 2) / np.sum(want**2))
        if not error <= tolerance:
            raise SystemExit(f"{node}: error {error:.1e}, allowed {tolerance:.0e}")

    x = ctx.from_numpy(values(5, 64))
    for name in _MATMUL_TYPES:
        kind = GGMLType[name]
        w = ctx.new_tensor_2d(kind, 64, 33)
        rows = quantize(values(33, 64), kind)
        w.set(rows if kind.is_quantized else rows.view(np.float16))
        check(ops.mul_mat(ctx, w, x), x.numpy() @ dequantize(rows, kind).T, 5e-4)
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
