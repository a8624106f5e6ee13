"""Hashes the machine code of every kernel, to compare two source trees.

    python -m benchmarks.kernel_hashes > after.txt             # a line a kernel: hash, lines, name
    python -m benchmarks.kernel_hashes --isa avx2 rms_norm     # another set, only some kernels
    python -m benchmarks.kernel_hashes --assembly folder scale # keeps the text, a file each

Lowers every case of every op, and matmuls, tables and sparse products of every type and layout,
with kernels that are noted in place of being compiled; then compiles each of them in memory, with
the default tuning, and hashes its assembly without names, counters and addresses. About three
minutes of CPU time. Several kernels may have one name: their lines are sorted.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import hashlib
import multiprocessing
import os
import re
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from pyggml.errors import PyggmlError

TOKENS = (1, 2, 5, 40)
_DROPPED = re.compile(r"\s*\.(file|type|comm|globl|size|cfi_\w+|addrsig\w*|ident)\b|\s*#|\s*$")
_SYMBOL = re.compile(
    r"\"[^\"]*_ZN[^\"]*\"|(?:\.const\.|cfunc\.)?_ZN[\w.$]+|\.const\.pickle\w*\.\d+"
)


def normalized(assembly: str) -> str:
    """Assembly without directives that carry no code; symbols are numbered as they come."""
    numbers: dict[str, str] = {}

    def number(match: re.Match[str]) -> str:
        return numbers.setdefault(match[0], f"symbol{len(numbers)}")

    lines = (line for line in assembly.splitlines() if not _DROPPED.match(line))
    return "\n".join(_SYMBOL.sub(number, line) for line in lines)


def assembly_of(made: Any) -> str:
    """The assembly of a kernel or of a compiled function; compiles it."""
    from pyggml.compiler.jit import CpuKernel

    if isinstance(made, CpuKernel):
        return str(made.machine_code._library.get_asm_str())
    (text,) = made.machine_code.inspect_asm().values()
    return str(text)


def name_of(made: Any) -> str:
    """A kernel's or compiled function's module (from ``cpu`` on) and name."""
    function = getattr(made, "function", None) or made.py_func
    name = getattr(made, "name", None) or function.__name__
    return f"{function.__module__.removeprefix('pyggml.backend.cpu.')}.{name}"


def kernels() -> list[Any]:
    """All kernels and compiled functions of the package that any lowering asks for, or declared."""
    import pyggml.backend.cpu.codec.arrays
    import pyggml.backend.cpu.run.trace  # noqa: F401
    from pyggml.backend.cpu.backend import CpuBackend
    from pyggml.backend.cpu.compile import lowering
    from pyggml.compiler import jit

    asked: dict[int, Any] = {}

    def address(self: Any) -> int:
        asked.setdefault(id(self), self)
        return 4096 + 64 * list(asked).index(id(self))

    def note(functions: Iterable[Any]) -> None:
        for one in functions:
            address(one)

    backend = CpuBackend(2)
    real = jit.CpuKernel.__dict__["address"], lowering.compile_all
    jit.CpuKernel.address, lowering.compile_all = property(address), note
    try:
        for node in _nodes():
            with contextlib.suppress(PyggmlError):  # a case that the backend refuses
                _lower(backend, node)
        _row_coders()
    finally:
        jit.CpuKernel.address, lowering.compile_all = real
    for found in gc.get_objects():
        if isinstance(found, (jit.CpuKernel, jit.JittedFunction)):
            asked.setdefault(id(found), found)
    return [made for made in asked.values() if name_of(made) and _is_ours(made)]


def _is_ours(made: Any) -> bool:
    function = getattr(made, "function", None) or made.py_func
    return str(getattr(function, "__module__", "")).startswith("pyggml.")


def _lower(backend: Any, node: Any) -> None:
    from pyggml.cgraph import CGraph

    graph = CGraph()
    graph.build_forward_expand(node)
    backend.compile(graph)


def _types() -> list[Any]:
    from pyggml.backend.cpu.codec import DECODED
    from pyggml.dtype import GGMLType

    return [GGMLType.F32, GGMLType.F16, GGMLType.BF16, *map(GGMLType, sorted(DECODED))]


def _row_coders() -> None:
    """Ask for what arrays of blocks are converted with."""
    from pyggml.backend.cpu.codec import DECODED, ENCODED, rows
    from pyggml.backend.cpu.weights.layout import UNPACKED

    for kind in DECODED:
        made = [rows.row_decoder(kind)]
        made += [rows.row_unpacker(kind)] if kind in UNPACKED else []
        if kind in ENCODED:
            made += filter(None, (ENCODED[kind](weighted) for weighted in (False, True)))
        for coder in made:
            coder.address  # noqa: B018


def _nodes() -> Iterator[Any]:
    """Nodes of all cases, then of every type and layout that weights and caches may have."""
    from pyggml.ops.op import OPS
    from tests.pyggml.ops.op_table import case_node

    for op in OPS.values():
        for case in op.cases:
            if not case.perf and not op.is_view:
                with contextlib.suppress(PyggmlError):
                    yield case_node(op, case)
    for type in _types():
        for packed in (False, True):
            yield from _of_weights(type, packed)
        yield from _of_caches(type)


def _of_weights(type: Any, packed: bool) -> Iterator[Any]:
    import pyggml as ops
    from pyggml.alloc import alloc_ctx_tensors
    from pyggml.backend.cpu.weights.buffer import REPACK
    from pyggml.buffer import HOST
    from pyggml.context import Context
    from pyggml.dtype import GGMLType

    n = 256
    weights = Context(no_alloc=True)
    a, b = (weights.new_tensor_2d(type, n, 64) for _ in range(2))
    experts = weights.new_tensor_3d(type, n, 64, 4)
    if packed and not REPACK.accepts(a):
        return
    alloc_ctx_tensors(weights, REPACK if packed else HOST)
    ctx = Context(no_alloc=True)
    for tokens in TOKENS:
        for kind in (GGMLType.F32, GGMLType.F16, GGMLType.BF16):
            yield ops.mul_mat(ctx, a, ctx.new_tensor_2d(kind, n, tokens))
        x = ctx.new_tensor_2d(GGMLType.F32, n, tokens)
        rest = ctx.new_tensor_2d(GGMLType.F32, 64, tokens)
        bias = ctx.new_tensor_1d(GGMLType.F32, 64)
        yield ops.add(ctx, ops.add(ctx, ops.mul_mat(ctx, a, x), bias), rest)
        gate, up = ops.mul_mat(ctx, a, x), ops.mul_mat(ctx, b, x)
        yield ops.swiglu_split(ctx, gate, up)
        yield ops.get_rows(ctx, a, ctx.new_tensor_1d(GGMLType.I32, tokens))
        ids = ctx.new_tensor_2d(GGMLType.I32, 2, tokens)
        x3 = ctx.new_tensor_3d(GGMLType.F32, n, 1, tokens)
        yield ops.mul_mat_id(ctx, experts, x3, ids)
        if not packed:
            yield from _sparse(ctx, a, b, x, tokens)


def _sparse(ctx: Any, a: Any, b: Any, x: Any, tokens: int) -> Iterator[Any]:
    import pyggml as ops
    from pyggml.dtype import GGMLType

    scores = ctx.new_tensor_2d(GGMLType.F32, 64, tokens)
    up = ops.mul_mat_sparse(ctx, b, x, scores, threshold=0.5)
    yield up
    gate = ops.mul_mat_sparse(ctx, a, x, scores, threshold=0.5)
    yield ops.axpy(ctx, a, ctx.new_tensor_2d(GGMLType.F32, 64, tokens), scores, threshold=0.5)
    yield ops.axpy(ctx, a, ops.reglu_split(ctx, gate, up), scores, threshold=0.5)
    dense = ops.mul_mat(ctx, b, x)
    yield ops.axpy(ctx, a, ops.reglu_split(ctx, dense, up), scores, threshold=0.5)
    yield ops.axpy(ctx, a, ops.relu(ctx, up), scores, threshold=0.5)


def _of_caches(type: Any) -> Iterator[Any]:
    import pyggml as ops
    from pyggml.context import Context
    from pyggml.dtype import GGMLType

    ctx = Context(no_alloc=True)
    for head in (64, 128, 80):
        for tokens in (1, 40):
            q = ctx.new_tensor_3d(GGMLType.F32, head, tokens, 6)
            with contextlib.suppress(PyggmlError):  # types that caches cannot have
                k, v = (ctx.new_tensor_3d(type, head, 512, 2) for _ in range(2))
                yield ops.flash_attn_ext(ctx, q, k, v, None, 0.1)
    for kind in (GGMLType.F32, GGMLType.F16):
        source, rows = ctx.new_tensor_2d(kind, 256, 4), ctx.new_tensor_2d(type, 256, 8)
        with contextlib.suppress(PyggmlError):
            index = ctx.new_tensor_1d(GGMLType.I64, 4)
            yield ops.set_rows(ctx, rows, source, index)
        with contextlib.suppress(PyggmlError):
            yield ops.cpy(ctx, source, ctx.new_tensor_2d(type, 256, 4))
            yield ops.cpy(ctx, ctx.new_tensor_2d(type, 256, 4), source)


_found: list[Any] = []


def _line(task: tuple[int, str | None]) -> str:
    number, folder = task
    made = _found[number]
    try:
        text = normalized(assembly_of(made))
    except Exception as e:  # a kernel that cannot be compiled is a line too
        return f"{type(e).__name__:16} {0:6} {name_of(made)}"
    digest = hashlib.sha256(text.encode()).hexdigest()[:16]
    if folder:
        (Path(folder) / f"{name_of(made)}-{digest[:4]}.s").write_text(text)
    return f"{digest} {len(text.splitlines()):6} {name_of(made)}"


def lines(chosen: Iterable[str], n_processes: int, folder: str | None) -> list[str]:
    """The lines of kernels with one of the words in their names; without words, of all."""
    words = tuple(chosen)
    _found[:] = [m for m in kernels() if not words or any(w in name_of(m) for w in words)]
    tasks = [(i, folder) for i in range(len(_found))]
    with multiprocessing.get_context("fork").Pool(n_processes) as pool:
        found = pool.map(_line, tasks, chunksize=4)
    return sorted(found, key=lambda line: (line.split()[2], line))


def main() -> None:
    """Print a line a kernel."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("words", nargs="*", help="parts of kernel names; default: all kernels")
    parser.add_argument("--isa", help="instruction set; default: the best of this CPU")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="number of processes")
    parser.add_argument("--assembly", help="folder to write the hashed assembly to")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        os.environ |= {
            "PYGGML_SELF_TEST": "0", "PYGGML_TUNING": "", "PYGGML_CACHE_DIR": folder
        }  # fmt: skip
        if given.isa:
            os.environ["PYGGML_ISA"] = given.isa
        if given.assembly:
            Path(given.assembly).mkdir(parents=True, exist_ok=True)
        print("\n".join(lines(given.words, given.jobs, given.assembly)))


if __name__ == "__main__":
    main()
