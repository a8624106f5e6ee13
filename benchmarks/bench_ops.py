"""Measures single ops at the shapes marked for it: GB/s and GMAC/s relative to the roofs.

    python -m benchmarks.bench_ops                 # every op
    python -m benchmarks.bench_ops MUL_MAT GET_ROWS --types q4_K,q8_0 --threads 2 [--save]

Weights of matmuls are repacked, as a loaded model's are. An op runs again and again on the same
memory, so what fits into a cache stays there; the read roof is measured the same way on a buffer
of about as many bytes. The MAC roof is that of the weight's register tile on data in L1.
"""

from __future__ import annotations

import argparse
import math
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks import machine
from benchmarks.machine import save
from benchmarks.roof import mac_roof, read_roof
from pyggml.alloc.tallocr import alloc_ctx_tensors
from pyggml.backend.cpu.backend import CpuBackend
from pyggml.backend.cpu.run.trace import profile
from pyggml.backend.cpu.weights.buffer import REPACK
from pyggml.backend.cpu.weights.layout import INTERLEAVED
from pyggml.cgraph import CGraph
from pyggml.compiler.jit import isa
from pyggml.context import Context
from pyggml.dtype import GGMLType
from pyggml.errors import PyggmlError
from pyggml.ops.movement.view import PERMUTE
from pyggml.ops.op import OPS, Arg, Case, Op
from pyggml.tensor import Tensor
from tests.pyggml.ops.harness import random_values, stored

_ROWS = 64  # random ones; larger sources repeat them
_REPACKED = ("MUL_MAT", "MUL_MAT_ID", "GET_ROWS")


@cache
def _read_roof(log2_bytes: int, threads: int) -> float:
    return read_roof(1 << log2_bytes, threads, tries=3)


@cache
def _mac_roof(kind: GGMLType, threads: int) -> float:
    return mac_roof(kind, threads, tries=3)


def values_of(a: Arg, rng: np.random.Generator) -> npt.NDArray[Any]:
    """What a source is set with."""
    rows = math.prod(a.ne[1:])
    if a.values is not None or rows <= _ROWS:
        return stored(random_values(a, rng), a.type)
    some = stored(random_values(replace(a, ne=(a.ne[0], _ROWS)), rng), a.type)
    return np.resize(some, (rows, some.shape[-1])).reshape(*a.ne[:0:-1], -1)


def built(op: Op, case: Case) -> tuple[Tensor, list[Any]]:
    """The case's node in memory, and the buffers to keep."""
    ctx, weights = Context(no_alloc=True), Context(no_alloc=True)
    sources, filled = [], []
    for i, a in enumerate(case.args):
        if a is None:
            sources.append(None)
            continue
        tensor = ctx.new_tensor(a.type, a.ne)
        if i == 0 and op.name in _REPACKED and a.permute is None and REPACK.accepts(tensor):
            tensor = weights.new_tensor(a.type, a.ne)
        filled.append((tensor, a))
        sources.append(tensor if a.permute is None else PERMUTE.build(ctx, tensor, axes=a.permute))
    node = op.build(ctx, *sources, **case.params)
    buffers = [alloc_ctx_tensors(ctx, CpuBackend(1).buffer_type())]
    if list(weights):
        buffers.append(alloc_ctx_tensors(weights, REPACK))
    rng = np.random.default_rng(0)
    for tensor, a in filled:
        tensor.set(values_of(a, rng))
    return node, buffers


def measure(op: Op, case: Case, threads: int, repeats: int) -> dict[str, Any]:
    """A line for one case."""
    node, buffers = built(op, case)
    graph = CGraph()
    graph.build_forward_expand(node)
    program = CpuBackend(threads).compile(graph).program
    profile(program, 2)
    times = profile(program, repeats)
    ns, cost = sum(t.ns for t in times), op.cost(node)
    read = _read_roof(max(16, round(math.log2(cost.bytes))), threads)
    line: dict[str, Any] = {
        "op": op.name,
        "case": case.id,
        "kernels": " ; ".join(t.label for t in times),
        "us": ns / 1e3,
        "gb_per_s": cost.bytes / ns,
        "of_read_roof": cost.bytes / ns / read,
    }
    if cost.macs:
        line["gmac_per_s"] = cost.macs / ns
        first = node.src[0]
        if first is not None and first.type in INTERLEAVED and first.type.is_quantized:
            line["of_mac_roof"] = cost.macs / ns / _mac_roof(first.type, threads)
    del buffers
    return line


def chosen(names: list[str], types: str) -> list[tuple[Op, Case]]:
    """The cases to run. Raises: SystemExit, of an op that is not known."""
    if unknown := set(names) - set(OPS):
        raise SystemExit(f"no op {', '.join(sorted(unknown))}; docs/ops.md lists all")
    wanted = {t.upper() for t in types.split(",") if t}
    return [
        (op, case)
        for name, op in OPS.items()
        if not names or name in names
        for case in op.cases
        if case.perf and (not wanted or (case.args and case.args[0] and
                                         case.args[0].type.name.upper() in wanted))
    ]  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("ops", nargs="*", metavar="OP")
    parser.add_argument(
        "--types", default="", help="types of the first source, separated by commas"
    )
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--save", action="store_true", help="append to results/ops.jsonl")
    args = parser.parse_args()
    head = machine.head(args.threads) | {"isa": isa()}
    print(f"{'op':22} {'case':58} {'us':>10} {'GB/s':>7} {'roof':>5} {'GMAC/s':>7} {'roof':>5}")
    for op, case in chosen(args.ops, args.types):
        try:
            line = measure(op, case, args.threads, args.repeats)
        except PyggmlError as e:
            print(f"{op.name:22} {case.id:58} {e}")
            continue
        macs = f"{line['gmac_per_s']:7.1f}" if "gmac_per_s" in line else ""
        share = f"{line['of_mac_roof']:5.0%}" if "of_mac_roof" in line else ""
        print(
            f"{op.name:22} {case.id[:58]:58} {line['us']:10.1f} {line['gb_per_s']:7.1f} "
            f"{line['of_read_roof']:5.0%} {macs} {share}",
            flush=True,
        )
        if args.save:
            save(head | line, "ops.jsonl", quiet=True)


if __name__ == "__main__":
    main()
