"""Checks and measures the CUDA backend on a machine with an NVIDIA GPU: results, speed, costs.

    python3 -m benchmarks.gpu_check                # under 8 minutes
    python3 -m benchmarks.gpu_check --quick        # under 3 minutes
    python3 -m benchmarks.gpu_check --only cases,gemm --out results/

Needs no network and no model file: models of 1.1 and 7 billion weights are files without content,
whose weights are filled on the device. Every figure of speed is a ratio to something measured in
the same run: a copy inside of the device's memory, or torch's product of the same sizes. Prints
tables, appends lines to ``gpu.jsonl`` and writes ``gpu.md``, a page for docs/gpu.md.

Under compute-sanitizer: ``compute-sanitizer python3 -m benchmarks.gpu_check --quick --only cases``.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np

from pyggml import ops
from pyggml.alloc import alloc_ctx_tensors
from pyggml.backend.cuda.backend import CudaBackend
from pyggml.backend.cuda.discovery import devices, factory, why_none
from pyggml.backend.interface import WeightUse
from pyggml.cgraph import CGraph
from pyggml.context import Context as Tensors
from pyggml.dtype import GGMLType, row_size
from pyggml.gguf.encode import Entry, encode_header, encode_value
from pyggml.gguf.header import padded
from pyggml.tensor import Tensor

from . import random_llama
from .machine import ROOT, head

Line = dict[str, Any]
F32 = GGMLType.F32
_BYTE = 0x2C  # weights are bytes of it: all formats then have finite, small values
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

    @property
    def matrices(self) -> dict[str, tuple[int, int]]:
        """Columns and rows of a layer's matrices."""
        e, kv = self.n_embd, self.n_head_kv * self.n_embd // self.n_head
        return {
            "attn_q": (e, e), "attn_k": (e, kv), "attn_v": (e, kv), "attn_output": (e, e),
            "ffn_gate": (e, self.n_ff), "ffn_up": (e, self.n_ff), "ffn_down": (self.n_ff, e),
        }  # fmt: skip


B1 = Shape("1.1B", 2048, 5632, 22, 32, 4)
B7 = Shape("7B", 4096, 11008, 32, 32, 32)
N_VOCAB = random_llama.N_VOCAB


class Check:
    """One run: the device, its measured copy rate, and the lines of results."""

    def __init__(self, backend: CudaBackend, quick: bool) -> None:
        self.backend, self.quick = backend, quick
        self.driver, self.queue = backend.driver, backend.queue
        self.lines: list[Line] = []
        self.failures: list[str] = []
        self.copy_rate = self._copy_rate()

    def add(self, what: str, **values: Any) -> None:
        """Print a result and keep it."""
        self.lines.append({"what": what, **values})
        shown = [f"{k} {v:.4g}" if isinstance(v, float) else f"{k} {v}" for k, v in values.items()]
        print(f"{what:12s} {'  '.join(shown)}", flush=True)

    def fail(self, what: str) -> None:
        """Note something that is wrong."""
        self.failures.append(what)
        print(f"WRONG        {what}", flush=True)

    def time_us(self, run: Callable[[], None], repeats: int = 20) -> float:
        """The median time of what ``run`` enqueues, by events on the device."""
        driver, stream = self.driver, self.queue.stream
        times = []
        for _ in range(repeats + 3):
            first = driver.record(stream)
            run()
            last = driver.record(stream)
            driver.synchronize_event(last)
            times.append(driver.elapsed_us(first, last))
        return statistics.median(times[3:])

    def _copy_rate(self) -> float:
        """Bytes a second of a copy inside of the device's memory, read and written."""
        driver, n = self.driver, 1 << (28 if self.quick else 30)
        a, b = driver.alloc(n), driver.alloc(n)
        us = self.time_us(lambda: driver.copy_on(b, a, n, self.queue.stream), 10)
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
    from pyggml.ops import OPS
    from tests.pyggml.ops.harness import CaseRun

    for op in OPS.values():
        n = worst = skipped = 0
        for case in op.cases:
            if case.perf:
                continue
            run = CaseRun(op, case, check.backend)
            if not check.backend.supports_op(run.node):
                skipped += 1
                continue
            try:
                run.compute()
                error = run.error()
            except Exception as e:  # the next case is worth running
                check.fail(f"{op.name}[{case.id}]: {type(e).__name__}: {e}")
                continue
            n, worst = n + 1, max(worst, error)
            if not error <= op.tolerance(run.node):
                check.fail(f"{op.name}[{case.id}]: error {error:.2g}")
        if n:
            check.add("cases", op=op.name, passed=n, worst=float(worst), elsewhere=skipped)


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
    sizes = [(4096, 4096)] if check.quick else [(4096, 4096), (4096, 11008), (11008, 4096)]
    for name in _TYPES:
        for n, rows in sizes:
            type = GGMLType[name]
            n_bytes = row_size(type, n) * rows
            copies = max(2, -(-4 * check.driver.info.l2_bytes // n_bytes))
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
    """Prompts of 512 tokens: products a second, beside torch's in bf16."""
    try:
        import torch
    except ImportError:
        torch = None
    for n, rows in ((2048, 2048), (2048, 5632), (5632, 2048), (4096, 11008)):
        peer = 0.0
        if torch is not None:
            a = torch.randn(512, n, device="cuda", dtype=torch.bfloat16)
            b = torch.randn(rows, n, device="cuda", dtype=torch.bfloat16)
            peer = 2 * 512 * n * rows / _torch_us(torch, lambda a=a, b=b: a @ b.T) * 1e6
        for name in ("F16", "BF16", "Q8_0", "Q4_0", "Q4_K"):
            w = check.filled(GGMLType[name], n, rows)
            program, keep = _program(
                check, lambda ctx, w=w, n=n: [ops.mul_mat(ctx, w, ctx.new_tensor_2d(F32, n, 512))]
            )
            rate = 2 * 512 * n * rows / check.time_us(program.enqueue) * 1e6
            ratio = rate / peer if peer else 0.0
            check.add("gemm", type=name, n=n, rows=rows, tflop_s=rate / 1e12, of_torch=ratio)
            del program, keep, w


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
    n, rows = 4096, 11008
    dense = {}
    for name in ("Q4_0", "F16"):
        for share in (1.0, 0.5, 0.2, 0.1, 0.05):
            weights = [check.filled(GGMLType[name], n, rows, "MUL_MAT_SPARSE") for _ in range(8)]
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


def costs(check: Check) -> None:
    """The host's and the device's time of launches and small copies."""
    n = 300

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

    prompt = [7, 42, 3, 99, 12, 200, 31]
    spec = Spec(n_layer=4, n_embd=256, n_ff=512, n_head=8, n_head_kv=4, head_dim=32)
    with tempfile.TemporaryDirectory() as folder:
        for type in ("F32", "F16", "Q8_0", "Q4_0"):
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
                for _ in range(20):
                    context.decode_token(text[-1])
                    text.append(context.argmax_ith(-1))
                texts.append(text)
            error = float(np.abs(found[0] - found[1]).max())
            same = next((i for i, (a, b) in enumerate(zip(*texts, strict=True)) if a != b), 21)
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
        "rope.dimension_count": shape.n_embd // shape.n_head,
    }  # fmt: skip
    metadata |= {f"llama.{key}": value for key, value in sizes.items()}
    entries = [_entry("token_embd.weight", type, shape.n_embd, N_VOCAB)]
    for i in range(shape.n_layer):
        for name, (n, rows) in shape.matrices.items():
            entries.append(_entry(f"blk.{i}.{name}.weight", type, n, rows))
        for name in ("attn_norm", "ffn_norm"):
            entries.append(_entry(f"blk.{i}.{name}.weight", F32, shape.n_embd))
    entries.append(_entry("output_norm.weight", F32, shape.n_embd))
    entries.append(_entry("output.weight", type, shape.n_embd, N_VOCAB))
    encoded = {key: encode_value(key, value) for key, value in metadata.items()}
    header = encode_header(encoded, entries, 32)
    with open(path, "wb") as file:
        file.write(header)
        file.truncate(len(header) + sum(padded(entry.nbytes, 32) for entry in entries))
    return path


def _entry(name: str, type: GGMLType, *ne: int) -> Entry:
    return Entry(name, ne, type, row_size(type, ne[0]) * int(np.prod(ne[1:], dtype=int)))


def speed(check: Check) -> None:
    """Tokens a second of whole models, and their share of the copy rate."""
    from pyllama import Batch, Context, Model

    wanted = [(B1, "Q4_0")] if check.quick else [
        (shape, type) for shape in (B1, B7) for type in ("Q4_0", "Q8_0", "F16")
    ]  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        for shape, type in wanted:
            path = hollow_model(Path(folder) / "x.gguf", shape, GGMLType[type])
            started = time.perf_counter()
            model = Model.load(path, devices=[check.backend])
            load_s = time.perf_counter() - started
            weights = [w for w in model.weights.values() if w.buffer and not w.buffer.buft.is_host]
            for w in weights:
                layout = w.buffer.buft.alloc_size(w)
                check.driver.fill(w.data, _BYTE, layout, check.queue.stream)
            read = sum(w.nbytes for w in weights)
            for replays in (True, False):
                check.backend.replays = replays
                context = Context(model, n_ctx=1024, n_batch=512, n_ubatch=512)
                tokens = [1 + i % 1000 for i in range(512)]
                context.decode(Batch(tokens))
                context.kv.clear()
                started = time.perf_counter()
                context.decode(Batch(tokens))
                prompt = 512 / (time.perf_counter() - started)
                for _ in range(8):
                    context.decode_token(5)
                n = 32 if check.quick else 128
                started = time.perf_counter()
                for _ in range(n):
                    context.decode_token(5)
                rate = n / (time.perf_counter() - started)
                check.add(
                    "speed", model=shape.name, type=type, replay=replays, pp512=prompt, tg=rate,
                    of_copy=rate * read / check.copy_rate, load_s=load_s,
                )  # fmt: skip
                del context
            check.backend.replays = True
            del model, weights
            path.unlink()


PARTS: dict[str, Callable[[Check], None]] = {
    "versions": versions,
    "cases": cases,
    "mat_vec": mat_vec,
    "gemm": gemm,
    "sparse": sparse,
    "costs": costs,
    "logits": logits,
    "speed": speed,
}


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


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer sizes: under 3 minutes")
    parser.add_argument("--only", help=f"parts, separated by commas: {', '.join(PARTS)}")
    parser.add_argument("--device", default="cuda0")
    parser.add_argument("--out", type=Path, default=ROOT / "results", help="folder of the results")
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
    check = Check(backend, args.quick)
    for part in parts:
        started = time.perf_counter()
        try:
            PARTS[part](check)
        except Exception:  # the other parts are worth running
            check.fail(f"{part} stopped:\n{traceback.format_exc()}")
        print(f"({part}: {time.perf_counter() - started:.1f} s)", flush=True)
    args.out.mkdir(parents=True, exist_ok=True)
    first = head(threads=1) | {"gpu": backend.driver.info.name, "quick": args.quick}
    with open(args.out / "gpu.jsonl", "a") as file:
        for line in check.lines:
            file.write(json.dumps(first | line) + "\n")
    text = f"# {backend.driver.info.name}\n\n{len(check.failures)} failures.\n"
    text += "".join(f"\n- {failure}" for failure in check.failures) + "".join(tables(check.lines))
    (args.out / "gpu.md").write_text(text)
    print(f"{len(check.failures)} failures")
    return 1 if check.failures else 0


if __name__ == "__main__":
    sys.exit(main())
