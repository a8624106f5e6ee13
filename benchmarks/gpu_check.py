"""Checks and measures the CUDA backend on a machine with an NVIDIA GPU: results, speed, costs.

    python3 -m benchmarks.gpu_check                # under 8 minutes
    python3 -m benchmarks.gpu_check --quick        # under 3 minutes
    python3 -m benchmarks.gpu_check --only cases,gemm --out results/

Needs no network and no model file: models of 1.1 and 7 billion weights are files without content,
whose weights are filled on the device. Every figure of speed is a ratio to something measured in
the same run: a copy inside of the device's memory, or torch's product of the same sizes. Prints
tables, appends lines to ``gpu.jsonl`` and writes ``gpu.md``, a page for docs/gpu.md.

Each part is a process, so that a kernel that ends the device's context ends that part alone; after
such a case, the other cases go on in a new process. Results are written as they come. Kernels are
compiled by all cores meanwhile.

In one process, for compute-sanitizer:
``compute-sanitizer python3 -m benchmarks.gpu_check --quick --here --only cases``.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np

import pyggml as ops
from pyggml.alloc import alloc_ctx_tensors
from pyggml.backend.cuda.backend import CudaBackend
from pyggml.backend.cuda.cubins import compiled
from pyggml.backend.cuda.discovery import devices, factory, why_none
from pyggml.backend.cuda.driver import DeviceInfo
from pyggml.backend.cuda.kernel import GpuKernel
from pyggml.backend.cuda.lowering import LOWERINGS, GpuLowering
from pyggml.backend.interface import WeightUse
from pyggml.cgraph import CGraph
from pyggml.context import Context as Tensors
from pyggml.dtype import GGMLType, row_size
from pyggml.errors import PyggmlError
from pyggml.gguf.encode import Entry, encode_header, encode_value
from pyggml.ops.op import OPS, Case, Op
from pyggml.rounding import round_up
from pyggml.tensor import Tensor
from tests.pyggml.ops.op_table import case_node

from . import bench_attention, random_llama
from .machine import ROOT, head

Line = dict[str, Any]
F32 = GGMLType.F32
_BYTE = 0x2C  # weights are bytes of it: all formats then have finite, small values
_PRODUCT_TYPES = ("F16", "BF16", "Q8_0", "Q4_0", "Q4_K")
_MAX_STATES = 128  # of a graph
_TYPES = ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K", "F16", "BF16", "F32")


@dataclass(frozen=True)
class Shape:
    """Sizes of a LLaMA."""

    name: str
    n_embd: int
    n_ff: int
    n_layer: int
    n_head: int
    n_head_kv: int

    is_sparse: bool = False
    n_vocab: int = random_llama.N_VOCAB

    @property
    def matrices(self) -> dict[str, tuple[int, int]]:
        """Columns and rows of a layer's matrices."""
        e, kv = self.n_embd, self.n_head_kv * self.n_embd // self.n_head
        down = {"ffn_down_t": (e, self.n_ff)} if self.is_sparse else {"ffn_down": (self.n_ff, e)}
        return {
            "attn_q": (e, e), "attn_k": (e, kv), "attn_v": (e, kv), "attn_output": (e, e),
            "ffn_gate": (e, self.n_ff), "ffn_up": (e, self.n_ff), **down,
        }  # fmt: skip


B1 = Shape("1.1B", 2048, 5632, 22, 32, 4)
B7 = Shape("7B", 4096, 11008, 32, 32, 32)


@dataclass(frozen=True)
class Sizes:
    """How large everything is.

    Attributes:
        copy_bytes: of the copy that bandwidths are compared with.
        matrices: columns and rows, for mat-vecs; products: for prompts of ``prompt`` tokens.
        l2_factor: weights of a mat-vec are so many times as large as the L2 cache.
        sparse: columns and rows, and the number of weights.
        attention: names of shapes, types of caches, cells.
        launches: kernels of a graph whose launches are timed.
        repeats: of each measurement.
        models: shapes and types whose speed is measured: ``prompt`` tokens, then ``tokens`` more.
        shares: of the neurons of ``hybrid`` that the device has.
        hybrid: the shape of which the CPU has some neurons.
        logits: types of the models whose logits are compared with the CPU's.
        case_elements: the largest tensor of a case; 0 for any.
        cases_s: seconds after which no further case begins.
    """

    copy_bytes: int
    types: tuple[str, ...]
    matrices: tuple[tuple[int, int], ...]
    products: tuple[tuple[int, int], ...]
    l2_factor: int
    sparse: tuple[int, int, int]
    attention: tuple[tuple[str, ...], tuple[str, ...], tuple[int, ...]]
    launches: int
    repeats: int
    models: tuple[tuple[Shape, str], ...]
    prompt: int
    tokens: int
    hybrid: Shape
    shares: tuple[float, ...] = (1.0, 0.15, 0.1, 0.0)
    logits: tuple[str, ...] = ("F32", "F16", "Q8_0", "Q4_0")
    case_elements: int = 0
    cases_s: float = 150.0


FULL = Sizes(
    1 << 30, _TYPES, ((4096, 4096), (4096, 11008), (11008, 4096)),
    ((2048, 2048), (2048, 5632), (5632, 2048), (4096, 11008)), 4, (4096, 11008, 8),
    (("deepseek2-16", "deepseek2-128", "llama-8b"), ("F16", "Q8_0"), (4096, 32768)), 300, 20,
    tuple((shape, type) for shape in (B1, B7) for type in ("Q4_0", "Q8_0", "F16")), 512, 128,
    replace(B1, is_sparse=True),
)  # fmt: skip
QUICK = replace(
    FULL, copy_bytes=1 << 28, matrices=((4096, 4096),), products=((2048, 5632),), repeats=10,
    attention=(("deepseek2-16", "llama-8b"), ("F16",), (4096,)), models=((B1, "Q4_0"),), tokens=32,
    cases_s=70.0,
)  # fmt: skip
_SMALL = Shape("small", 32, 32, 1, 2, 1, n_vocab=259)
TINY = Sizes(
    1 << 12, ("Q4_0", "F16"), ((32, 8),), ((32, 8),), 0, (32, 32, 1),
    (("smollm2-135m",), ("F16",), (8,)), 3, 1, ((_SMALL, "Q4_0"),),
    3, 1, replace(_SMALL, is_sparse=True), (0.1,), ("F16",), 64, 3.0,
)  # fmt: skip
"""For the test of this script, on an emulator."""


class Check:
    """One run: the device, its measured copy rate, and the lines of results.

    Args:
        log: a file that each result and failure is appended to as it comes.
        first_case: cases before this one are left out.
    """

    def __init__(
        self,
        backend: CudaBackend,
        sizes: Sizes,
        folder: Path,
        *,
        log: Path | None = None,
        first_case: int = 0,
    ) -> None:
        self.backend, self.sizes, self.folder = backend, sizes, folder
        self.driver, self.queue = backend.driver, backend.queue
        self.log, self.first_case = log, first_case
        self.lines: list[Line] = []
        self.failures: list[str] = []
        self.copy_rate = self._copy_rate()

    def write(self, line: Line) -> None:
        """Append a line to the log."""
        if self.log is not None:
            with open(self.log, "a") as file:
                file.write(json.dumps(line) + "\n")

    def add(self, what: str, **values: Any) -> None:
        """Print a result and keep it."""
        self.lines.append({"what": what, **values})
        self.write(self.lines[-1])
        shown = [f"{k} {v:.4g}" if isinstance(v, float) else f"{k} {v}" for k, v in values.items()]
        print(f"{what:12s} {'  '.join(shown)}", flush=True)

    def fail(self, what: str) -> None:
        """Note something that is wrong."""
        self.failures.append(what)
        self.write({"failure": what})
        print(f"WRONG        {what}", flush=True)

    def time_us(self, run: Callable[[], None]) -> float:
        """The median time of what ``run`` enqueues, by events on the device."""
        driver, stream = self.driver, self.queue.stream
        times = []
        warm_up = min(3, self.sizes.repeats)
        for _ in range(self.sizes.repeats + warm_up):
            first = driver.record(stream)
            run()
            last = driver.record(stream)
            driver.synchronize_event(last)
            times.append(driver.elapsed_us(first, last))
        return statistics.median(times[warm_up:])

    def _copy_rate(self) -> float:
        """Bytes a second of a copy inside of the device's memory, read and written."""
        driver, n = self.driver, self.sizes.copy_bytes
        a, b = driver.alloc(n), driver.alloc(n)
        us = self.time_us(lambda: driver.copy_on(b, a, n, self.queue.stream))
        driver.free(a)
        driver.free(b)
        return 2 * n / us * 1e6

    def filled(self, type: GGMLType, n: int, rows: int, op: str = "MUL_MAT") -> Tensor:
        """A weight in the layout that an op reads fastest, filled on the device."""
        layout = self.backend.layouts(WeightUse(type, (n, rows, 1, 1), frozenset((op,))))[0]
        tensor = Tensor(type, (n, rows, 1, 1)).set_name(f"{type.name} {n}x{rows}")
        tensor.buffer = layout.buft.alloc_buffer(layout.nbytes)
        tensor.data = tensor.buffer.base
        self.driver.fill(tensor.data, _BYTE, layout.nbytes, self.queue.stream)
        return tensor


def versions(check: Check) -> None:
    """What runs here."""
    found = {}
    for name in ("numpy", "numba", "numba-cuda", "cuda-bindings", "nvidia-nvvm", "torch"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "-"
    info = check.driver.info
    free, total = check.driver.memory()
    check.add("versions", python=sys.version.split()[0], **found)
    check.add(
        "device", name=info.name, cc=f"{info.cc[0]}.{info.cc[1]}", sm=info.n_sm,
        memory_gib=total / 2**30, free_gib=free / 2**30, copy_gb_s=check.copy_rate / 1e9,
    )  # fmt: skip


def cases(check: Check) -> None:
    """Every case of every op against the op's reference."""
    from tests.pyggml.ops.harness import CaseRun

    started = time.perf_counter()
    found: dict[str, list[float]] = {}
    elsewhere = left = 0
    for i, (op, case) in enumerate(op_cases(check.sizes)):
        if i < check.first_case:
            continue
        if time.perf_counter() - started > check.sizes.cases_s:
            left += 1
            continue
        check.write({"case": i})
        try:
            run = CaseRun(op, case, check.backend)
            if not check.backend.supports_op(run.node):
                elsewhere += 1
                continue
            run.compute()
            error = run.error()
        except ModuleNotFoundError:  # some types are quantized by a package that is not here
            left += 1
            continue
        except Exception as e:  # the next case is worth running
            check.fail(f"{op.name}[{case.id}]: {type(e).__name__}: {e}")
            _check_context(check)
            continue
        found.setdefault(op.name, []).append(float(error))
        if not error <= op.tolerance(run.node):
            check.fail(f"{op.name}[{case.id}]: error {error:.2g}")
    for name, errors in found.items():
        check.add("cases", op=name, run=len(errors), worst=max(errors))
    check.add("cases", op=f"on the CPU: {elsewhere}, not reached: {left}", run=0, worst=0.0)


class ContextLost(Exception):
    """No call to the device works any more in this process."""


def _check_context(check: Check) -> None:
    """Raises: ContextLost."""
    try:
        check.driver.synchronize(check.queue.stream)
        check.driver.free(check.driver.alloc(256))
    except PyggmlError as error:
        raise ContextLost(str(error)) from None


def op_cases(sizes: Sizes) -> Iterator[tuple[Op, Case]]:
    """The cases that are run, in order."""
    for op in OPS.values():
        for case in op.cases:
            largest = max((int(np.prod(a.ne)) for a in case.args if a is not None), default=0)
            small = not sizes.case_elements or largest <= sizes.case_elements
            if not (case.perf or op.is_view) and small:
                yield op, case


def compile_kernels(share: int, n_shares: int, cc: tuple[int, int], sizes: Sizes) -> None:
    """Compile a part of the kernels of all cases, so that they are on disk when they are needed."""
    device = DeviceInfo("none", cc, n_sm=132, shared_bytes=227 << 10, l2_bytes=50 << 20)
    kernels: dict[str, GpuKernel] = {}
    for op, case in op_cases(sizes):
        node = case_node(op, case)
        if op.name in LOWERINGS.supports and LOWERINGS.supports[op.name](node):
            graph = CGraph()
            graph.build_forward_expand(node)
            lowering = GpuLowering(graph, device, error=0)
            lowering.run()
            kernels |= {launch.kernel.name: launch.kernel for launch in lowering.launches}
    for name in sorted(kernels)[share::n_shares]:
        compiled(kernels[name], cc)


def _program(check: Check, build: Callable[[Tensors], list[Tensor]]) -> tuple[Any, Any]:
    """A compiled graph of some nodes, and what owns its memory."""
    ctx = Tensors(no_alloc=True)
    graph = CGraph()
    for node in build(ctx):
        graph.build_forward_expand(node)
    memory = alloc_ctx_tensors(ctx, check.backend.buffer_type())
    for tensor in ctx:
        if tensor.op is None and tensor.type is F32:
            check.driver.fill(tensor.data, _BYTE, tensor.nbytes, check.queue.stream)
    return check.backend.compile(graph), (ctx, memory)


def mat_vec(check: Check) -> None:
    """The bandwidth of each mat-vec, over weights that the L2 cache cannot hold."""
    for name in check.sizes.types:
        for n, rows in check.sizes.matrices:
            type = GGMLType[name]
            n_bytes = row_size(type, n) * rows
            cached = check.sizes.l2_factor * check.driver.info.l2_bytes
            copies = max(2, -(-cached // n_bytes))
            weights = [check.filled(type, n, rows) for _ in range(copies)]

            def build(ctx: Tensors, n: int = n, weights: list[Tensor] = weights) -> list[Tensor]:
                x = ctx.new_tensor_2d(F32, n, 1)
                return [ops.mul_mat(ctx, w, x) for w in weights]

            program, keep = _program(check, build)
            us = check.time_us(program.enqueue) / copies
            rate = n_bytes / us * 1e6
            check.add("mat_vec", type=name, n=n, rows=rows, us=us, gb_s=rate / 1e9,
                      of_copy=rate / check.copy_rate)  # fmt: skip
            del program, keep, weights


def gemm(check: Check) -> None:
    """Products of a prompt: operations a second, beside torch's in bf16."""
    torch, tokens = _torch(), check.sizes.prompt
    for n, rows in check.sizes.products:
        peer = 0.0
        if torch is not None:
            a = torch.randn(tokens, n, device="cuda", dtype=torch.bfloat16)
            b = torch.randn(rows, n, device="cuda", dtype=torch.bfloat16)
            peer = 2 * tokens * n * rows / _torch_us(torch, lambda a=a, b=b: a @ b.T) * 1e6
        for name in (n for n in _PRODUCT_TYPES if n in check.sizes.types):
            w = check.filled(GGMLType[name], n, rows)
            program, keep = _program(
                check,
                lambda ctx, w=w, n=n: [ops.mul_mat(ctx, w, ctx.new_tensor_2d(F32, n, tokens))],
            )
            rate = 2 * tokens * n * rows / check.time_us(program.enqueue) * 1e6
            ratio = rate / peer if peer else 0.0
            check.add("gemm", type=name, n=n, rows=rows, tflop_s=rate / 1e12, of_torch=ratio)
            del program, keep, w


def _torch() -> Any:
    """torch, if it is here and sees the GPU; else None."""
    try:
        import torch
    except Exception:  # an installation that does not load is as good as none
        return None
    return torch if torch.cuda.is_available() else None


def _torch_us(torch: Any, run: Callable[[], Any]) -> float:
    first, last = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    times = []
    for _ in range(13):
        first.record()
        run()
        last.record()
        last.synchronize()
        times.append(1e3 * first.elapsed_time(last))
    return statistics.median(times[3:])


def sparse(check: Check) -> None:
    """Time of sparse products against the share of active rows."""
    n, rows, n_weights = check.sizes.sparse
    dense: dict[str, float] = {}
    for name in ("Q4_0", "F16"):
        for share in (1.0, 0.5, 0.2, 0.1, 0.05):
            weights = [
                check.filled(GGMLType[name], n, rows, "MUL_MAT_SPARSE") for _ in range(n_weights)
            ]
            scores = np.random.default_rng(0).random(rows).astype(np.float32)
            given: list[Tensor] = []

            def build(
                ctx: Tensors,
                weights: list[Tensor] = weights,
                given: list[Tensor] = given,
                at: float = 1 - share,
            ) -> list[Tensor]:
                x, score = ctx.new_tensor_2d(F32, n, 1), ctx.new_tensor_2d(F32, rows, 1)
                given.append(score)
                return [ops.mul_mat_sparse(ctx, w, x, score, threshold=at) for w in weights]

            program, keep = _program(check, build)
            given[0].set(scores)
            us = check.time_us(program.enqueue) / len(weights)
            dense.setdefault(name, us)
            check.add("sparse", type=name, active=share, us=us, of_dense=us / dense[name])
            del program, keep, weights


def attention(check: Check) -> None:
    """Attention to deep caches, of one token by bytes and of a prompt by multiply-adds."""
    names, types, depths = check.sizes.attention
    for name in names:
        for type in types:
            for n_cells in depths:
                for n_tokens in (1, min(check.sizes.prompt, n_cells)):
                    cached = check.sizes.l2_factor * check.driver.info.l2_bytes
                    cache = bench_attention.DeepCache(
                        bench_attention.SHAPES[name], GGMLType[type], n_cells,
                        cached if n_tokens == 1 else 0, n_tokens,
                        check.backend.buffer_type(),
                    )  # fmt: skip
                    program = check.backend.compile(cache.graph)
                    us = check.time_us(program.enqueue)
                    rate = cache.bytes / us * 1e6
                    check.add(
                        "attention", shape=name, type=type, cells=n_cells, tokens=n_tokens,
                        us=us / cache.layers, gb_s=rate / 1e9, of_copy=rate / check.copy_rate,
                        tflops=2e-6 * cache.macs / us,
                    )  # fmt: skip
                    del program, cache


def recurrent(check: Check) -> None:
    """Ops that update states: of one token by the bytes of its states, of a prompt by its time."""
    for op, case in recurrent_cases(check.sizes):
        states, *_ = op.updated(case_node(op, case))
        n_tokens, n_bytes = case.args[-1].ne[0], states.nbytes // states.ne[states.n_dims - 1]
        cached = check.sizes.l2_factor * check.driver.info.l2_bytes
        copies = min(_MAX_STATES, max(1, cached // n_bytes)) if n_tokens == 1 else 1
        program, keep = _program(check, partial(_in_place, op, case, copies))
        for tensor in keep[0]:
            if tensor.name == "runs":
                tensor.set(np.array([(0, n_tokens, 0), (0, 0, 0)][: tensor.ne[1]], np.int32))
            elif tensor.name == "slots":
                tensor.set(np.array([-1] * (n_tokens - 1) + [0], np.int32))
        us = check.time_us(program.enqueue) / copies
        check.add(
            "recurrent", op=op.name, state_bytes=n_bytes, tokens=n_tokens, us=us,
            gb_s=2e-3 * n_bytes / us, of_copy=2e6 * n_bytes / us / check.copy_rate,
        )  # fmt: skip
        del program, keep


def _in_place(op: Op, case: Case, copies: int, ctx: Tensors) -> list[Tensor]:
    """Nodes of a case, each with sources of its own, whose last two get names."""
    nodes = []
    for _ in range(copies):
        sources = [ctx.new_tensor(a.type, a.ne) for a in case.args if a is not None]
        for tensor, name in zip(sources[-2:], ("runs", "slots"), strict=True):
            tensor.set_name(name)
        nodes.append(op.build(ctx, *sources, **case.params))
    return nodes


def recurrent_cases(sizes: Sizes) -> Iterator[tuple[Op, Case]]:
    """The cases for speed of ops that update states; of small sizes one of their others."""
    for op in (OPS[name] for name in sorted(LOWERINGS.supports) if OPS[name].updates):
        found = [case for case in op.cases if op.updated(case_node(op, case))]
        small = found[:1] if op.name == "TOKEN_SHIFT" else []
        timed = [case for case in found if case.perf]
        yield from ((op, case) for case in (small if sizes.case_elements else timed))


def costs(check: Check) -> None:
    """The host's and the device's time of launches and small copies."""
    n = check.sizes.launches

    def build(ctx: Tensors) -> list[Tensor]:
        x = ctx.new_tensor_1d(F32, 1024)
        for _ in range(n):
            x = ops.scale(ctx, x, 0.5)
        return [x]

    for replays in (False, True):
        program, keep = _program(check, build)
        program.replays = replays
        for _ in range(3):
            program.enqueue()
        check.queue.synchronize()
        started = time.perf_counter()
        program.enqueue()
        host = time.perf_counter() - started
        check.queue.synchronize()
        wall = time.perf_counter() - started
        check.add("launches", replay=replays, host_us=1e6 * host / n, wall_us=1e6 * wall / n)
        del program, keep
    pinned = check.backend.staging_type().alloc_buffer(1 << 20)
    there = check.driver.alloc(1 << 20)
    for n_bytes in (4, 16 << 10, 1 << 20):
        for name, copy in (("in", check.driver.copy_in), ("out", check.driver.copy_out)):
            ends = (there, pinned.base) if name == "in" else (pinned.base, there)
            times = []
            for _ in range(50):
                started = time.perf_counter()
                copy(*ends, n_bytes, check.queue.stream)
                check.driver.synchronize(check.queue.stream)
                times.append(time.perf_counter() - started)
            check.add("copies", way=name, bytes=n_bytes, us=1e6 * statistics.median(times))
    check.driver.free(there)


def logits(check: Check) -> None:
    """A small random model's logits on the device against the CPU's, and greedy text."""
    from pyllama import Batch, Context, Model
    from tests.pyllama.models import Spec, random_weights, write_model

    prompt = [7, 42, 3, 99, 12, 200, 31][: check.sizes.prompt]
    spec = Spec(n_layer=4, n_embd=256, n_ff=512, n_head=8, n_head_kv=4, head_dim=32)
    if check.sizes is TINY:
        spec = Spec(n_layer=1, n_embd=32, n_ff=32, n_head=2, n_head_kv=1, head_dim=16)
    n_tokens = min(20, check.sizes.tokens)
    with tempfile.TemporaryDirectory(dir=check.folder) as folder:
        for type in check.sizes.logits:
            path = write_model(
                Path(folder) / f"{type}.gguf", spec, random_weights(spec), GGMLType[type]
            )
            found, texts = [], []
            for given in ((), (check.backend,)):
                model = Model.load(path, devices=list(given) or None)
                context = Context(model, n_ctx=256)
                context.decode(Batch(prompt))
                found.append(np.array(context.logits[-1]))
                text = [int(found[-1].argmax())]
                for _ in range(n_tokens):
                    context.decode_token(text[-1])
                    text.append(context.argmax_ith(-1))
                texts.append(text)
            error = float(np.abs(found[0] - found[1]).max())
            same = next(
                (i for i, (a, b) in enumerate(zip(*texts, strict=True)) if a != b), len(texts[0])
            )
            check.add("logits", type=type, largest_difference=error, same_tokens=same)
            if not np.isfinite(error) or (type == "F32" and error > 1e-3):
                check.fail(f"logits of {type} differ by {error}")


def hollow_model(path: Path, shape: Shape, type: GGMLType) -> Path:
    """A GGUF file whose tensors are a hole: it takes no space, and loads as zeros."""
    metadata = {"general.architecture": "llama", **random_llama.metadata()}
    sizes = {
        "embedding_length": shape.n_embd, "block_count": shape.n_layer,
        "feed_forward_length": shape.n_ff, "attention.head_count": shape.n_head,
        "attention.head_count_kv": shape.n_head_kv,
        "rope.dimension_count": shape.n_embd // shape.n_head, "vocab_size": shape.n_vocab,
    }  # fmt: skip
    metadata |= {f"llama.{key}": value for key, value in sizes.items()}
    for key in ("tokens", "scores", "token_type"):
        metadata[f"tokenizer.ggml.{key}"] = metadata[f"tokenizer.ggml.{key}"][: shape.n_vocab]
    metadata |= {"llama.hidden_act": "relu"} if shape.is_sparse else {}
    entries = [_entry("token_embd.weight", type, shape.n_embd, shape.n_vocab)]
    for i in range(shape.n_layer):
        for name, (n, rows) in shape.matrices.items():
            entries.append(_entry(f"blk.{i}.{name}.weight", type, n, rows))
        for name in ("attn_norm", "ffn_norm"):
            entries.append(_entry(f"blk.{i}.{name}.weight", F32, shape.n_embd))
    entries.append(_entry("output_norm.weight", F32, shape.n_embd))
    entries.append(_entry("output.weight", type, shape.n_embd, shape.n_vocab))
    encoded = {key: encode_value(key, value) for key, value in metadata.items()}
    header = encode_header(encoded, entries, 32)
    with open(path, "wb") as file:
        file.write(header)
        file.truncate(len(header) + sum(round_up(entry.nbytes, 32) for entry in entries))
    return path


def _entry(name: str, type: GGMLType, *ne: int) -> Entry:
    return Entry(name, ne, type, row_size(type, ne[0]) * int(np.prod(ne[1:], dtype=int)))


def speed(check: Check) -> None:
    """Tokens a second of whole models, and their share of the copy rate."""
    from pyllama import Batch, Context, Model

    n_prompt = check.sizes.prompt
    with tempfile.TemporaryDirectory(dir=check.folder) as folder:
        for shape, type in check.sizes.models:
            path = hollow_model(Path(folder) / "x.gguf", shape, GGMLType[type])
            started = time.perf_counter()
            model = Model.load(path, devices=[check.backend])
            load_s = time.perf_counter() - started
            weights = [*on_device(check, model).values()]
            for w in weights:
                layout = w.buffer.buft.alloc_size(w)
                check.driver.fill(w.data, _BYTE, layout, check.queue.stream)
            read = sum(w.nbytes for w in weights)
            for replays in (True, False):
                check.backend.replays = replays
                context = Context(
                    model, n_ctx=2 * (n_prompt + check.sizes.tokens), n_ubatch=n_prompt
                )
                tokens = [3 + i % 256 for i in range(n_prompt)]
                context.decode(Batch(tokens))
                context.kv.clear()
                started = time.perf_counter()
                context.decode(Batch(tokens))
                prompt = n_prompt / (time.perf_counter() - started)
                rate = _generation_rate(context, check.sizes.tokens)
                check.add(
                    "speed", model=shape.name, type=type, replay=replays, prompt=prompt, tg=rate,
                    of_copy=rate * read / check.copy_rate, load_s=load_s,
                )  # fmt: skip
                del context
            check.backend.replays = True
            del model, weights
            path.unlink()


def on_device(check: Check, model: Any) -> dict[str, Tensor]:
    """The weights in the device's memory; the CPU's layouts are no plain memory of the host."""
    supports = check.backend.supports_buft
    return {name: w for name, w in model.weights.items() if w.buffer and supports(w.buffer.buft)}


def _generation_rate(context: Any, n: int) -> float:
    """Tokens a second of one sequence."""
    for _ in range(min(8, n)):
        context.decode_token(5)
    started = time.perf_counter()
    for _ in range(n):
        context.decode_token(5)
    return n / (time.perf_counter() - started)


def hybrid(check: Check) -> None:
    """A ReLU model with all dense weights on the device, and a share of the neurons.

    A fifth of the neurons is active, the first of each layer, which the device gets first.
    """
    from pyllama import Context, Model
    from pyllama.sparsity.placement import NeuronSplit, Placement
    from pyllama.sparsity.plan import MemoryBudget, read_needs

    shape = check.sizes.hybrid
    n_ctx, active = 2 * (check.sizes.prompt + check.sizes.tokens), shape.n_ff // 5
    with tempfile.TemporaryDirectory(dir=check.folder) as folder:
        path = hollow_model(Path(folder) / "x.gguf", shape, GGMLType.F16)
        header = Model.load(path, vocab_only=True, sparse="exact")
        items = read_needs(header, MemoryBudget(1 << 62, n_ctx=n_ctx)).items
        for share in check.sizes.shares:
            ids = (np.arange(int(share * shape.n_ff), dtype=np.int32),) * shape.n_layer
            split = NeuronSplit(shape.n_ff, ids, ids)
            placed = Placement(1 << 62, 0, items, (), split, (0,) * shape.n_layer)
            model = Model.load(path, sparse="exact", devices=[check.backend], placement=placed)
            for name, w in on_device(check, model).items():
                if w.type not in (F32, GGMLType.F16):  # lists of neurons
                    continue
                n = w.nbytes if "ffn_gate" not in name else w.nb[1] * active
                check.driver.fill(w.data, 0, w.nbytes, check.queue.stream)
                check.driver.fill(w.data, _BYTE, n, check.queue.stream)
            context = Context(model, n_ctx=n_ctx, n_ubatch=check.sizes.prompt)
            rate = _generation_rate(context, check.sizes.tokens)
            check.add("hybrid", model=shape.name, active=0.2, on_gpu=share, tg=rate)
            del context, model


PARTS: dict[str, Callable[[Check], None]] = {
    "versions": versions,
    "logits": logits,
    "cases": cases,
    "mat_vec": mat_vec,
    "costs": costs,
    "gemm": gemm,
    "sparse": sparse,
    "attention": attention,
    "recurrent": recurrent,
    "speed": speed,
    "hybrid": hybrid,
}
_PART_S = {"cases": 200, "speed": 200}  # a process that takes longer is ended
_OTHER_S = 90


def run_part(check: Check, part: str) -> None:
    """Run one part. Raises: ContextLost: the parts after it must run in another process."""
    started = time.perf_counter()
    try:
        PARTS[part](check)
    except ContextLost:
        raise
    except Exception:  # the other parts are worth running
        check.fail(f"{part} stopped:\n{traceback.format_exc()}")
        _check_context(check)
    finally:
        print(f"({part}: {time.perf_counter() - started:.1f} s)", flush=True)


def tables(lines: list[Line]) -> Iterator[str]:
    """A page of Markdown: one table for each part."""
    for part in dict.fromkeys(line["what"] for line in lines):
        rows = [line for line in lines if line["what"] == part]
        names = [name for name in rows[0] if name != "what"]
        yield f"\n## {part}\n\n| {' | '.join(names)} |\n|{'---|' * len(names)}\n"
        for row in rows:
            cells = [row.get(name, "") for name in names]
            shown = [f"{c:.4g}" if isinstance(c, float) else str(c) for c in cells]
            yield f"| {' | '.join(shown)} |\n"


def run_apart(part: str, options: list[str], log: Path, limit_s: float) -> list[str]:
    """Run a part in processes of its own, which append to ``log``; what stopped any of them.

    After a case that ended its process, the cases after it get another one.
    """
    failures, first, ends = [], 0, time.perf_counter() + limit_s
    while True:
        command = [sys.executable, "-P", "-m", __spec__.name, "--here", "--only", part, *options]
        command += ["--log", str(log), "--first-case", str(first)]
        try:
            left = max(1.0, ends - time.perf_counter())
            code = subprocess.run(command, env=_environment(), timeout=left).returncode
        except subprocess.TimeoutExpired:
            return [*failures, f"{part} took more than {limit_s:.0f} s and was ended"]
        if code in (0, 1):  # its failures are in the log
            return failures
        reached = [line["case"] for line in _lines(log) if "case" in line]
        failures.append(
            f"{part} ended with code {code}" + (f" in case {reached[-1]}" if reached else "")
        )
        if part != "cases" or not reached or reached[-1] < first or time.perf_counter() > ends:
            return failures
        first = reached[-1] + 1


def _environment() -> dict[str, str]:
    """The environment of a process that compiles, also with a CUDA toolkit from no package."""
    known = Path("/usr/local/cuda")
    found = ({"CUDA_HOME": str(known)} if known.is_dir() else {}) | dict(os.environ)
    paths = [str(ROOT.parent), *filter(None, [found.get("PYTHONPATH")])]
    return found | {"PYTHONPATH": os.pathsep.join(paths)}


def _lines(log: Path) -> list[Line]:
    return [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []


def start_compiling(options: list[str]) -> list[subprocess.Popen[bytes]]:
    """Compile the kernels of all cases beside everything else."""
    n = max(1, (os.cpu_count() or 1) - 2)
    command = [sys.executable, "-P", "-m", __spec__.name, *options, "--compile"]
    return [
        subprocess.Popen([*command, f"{i}/{n}"], env=_environment(), stdout=subprocess.DEVNULL)
        for i in range(n)
    ]


def write_results(out: Path, gpu: str, quick: bool, lines: list[Line], failures: list[str]) -> None:
    """Append to ``gpu.jsonl`` and write ``gpu.md``."""
    out.mkdir(parents=True, exist_ok=True)
    first = head(threads=1) | {"gpu": gpu, "quick": quick}
    with open(out / "gpu.jsonl", "a") as file:
        for line in lines:
            file.write(json.dumps(first | line) + "\n")
    text = f"# {gpu}\n\n{len(failures)} failures.\n"
    text += "".join(f"\n- {failure}" for failure in failures) + "".join(tables(lines))
    (out / "gpu.md").write_text(text)
    print(f"{len(failures)} failures")


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer sizes: under 3 minutes")
    parser.add_argument("--only", help=f"parts, separated by commas: {', '.join(PARTS)}")
    parser.add_argument("--device", default="cuda0")
    parser.add_argument("--out", type=Path, default=ROOT / "results", help="folder of the results")
    parser.add_argument("--here", action="store_true", help="all parts in this process")
    for hidden in ("--log", "--first-case", "--compile"):  # of the processes that it starts
        parser.add_argument(hidden, help=argparse.SUPPRESS)
    args = parser.parse_args()
    parts = args.only.split(",") if args.only else list(PARTS)
    unknown = [part for part in parts if part not in PARTS]
    if unknown:
        parser.error(f"no part named {', '.join(unknown)}; there are {', '.join(PARTS)}")
    if args.device not in devices():
        print(f"no GPU: {why_none() or args.device}", file=sys.stderr)
        return 1
    backend = factory(args.device)()
    assert isinstance(backend, CudaBackend)
    info, sizes = backend.driver.info, QUICK if args.quick else FULL
    if args.compile:
        share, n_shares = map(int, args.compile.split("/"))
        compile_kernels(share, n_shares, info.cc, sizes)
        return 0
    options = ["--device", args.device] + ["--quick"] * args.quick
    with tempfile.TemporaryDirectory() as folder:
        log = Path(args.log) if args.log else Path(folder) / "log.jsonl"
        failures: list[str] = []
        if args.here:
            first_case = int(args.first_case or 0)
            check = Check(backend, sizes, Path(folder), log=log, first_case=first_case)
            try:
                for part in parts:
                    run_part(check, part)
            except ContextLost as error:
                print(f"the device's context is lost: {error}", flush=True)
                if args.log:
                    return 3
        else:
            del backend  # its context's memory
            compiling = start_compiling(options)
            for part in parts:
                failures += run_apart(part, options, log, _PART_S.get(part, _OTHER_S))
            for process in compiling:
                process.kill()
                process.wait()
        found = _lines(log)
        failures = [line["failure"] for line in found if "failure" in line] + failures
        if not args.log:
            lines = [line for line in found if "what" in line]
            write_results(args.out, info.name, args.quick, lines, failures)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
