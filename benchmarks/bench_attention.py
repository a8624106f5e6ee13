"""Measures the attention of one token to a deep cache: its bytes and multiply-adds by the roofs.

    python -m benchmarks.bench_attention                             # every shape
    python -m benchmarks.bench_attention deepseek2-16 --cells 4096 --types f16 [--save]

Only the op, over as many layers as give a cache larger than the CPU's caches. A layer's bytes are
those that its cache holds, values that are columns of keys (latent attention) once. The read roof
is that of plain reads over as many bytes, the FMA roof that of float32 multiply-adds in registers;
both are measured right before and after each run. The CPU's clock and its neighbours change within
seconds, so a share of a roof says more than a time.
"""

from __future__ import annotations

import argparse
import statistics
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

import pyggml as ops
from benchmarks import machine
from benchmarks.machine import save
from benchmarks.roof import fma_roof, read_roof
from pyggml.alloc.tallocr import alloc_ctx_tensors
from pyggml.backend.cpu.backend import CpuBackend
from pyggml.backend.cpu.run.trace import profile
from pyggml.backend.interface import BufferType
from pyggml.cgraph import CGraph
from pyggml.compiler.jit import isa
from pyggml.context import Context
from pyggml.dtype import GGMLType
from pyggml.tensor import Tensor
from tests.pyggml.ops.harness import stored

_LEAST_BYTES = 128 << 20  # of all layers' caches
_CELLS = 64  # random ones; the others repeat them


@dataclass(frozen=True)
class Heads:
    """The heads of a layer; ``latent``: values are the first columns of the keys."""

    n_head: int
    n_kv_head: int
    columns: int
    value_columns: int
    latent: bool = False


SHAPES = {
    **{f"deepseek2-{n}": Heads(n, 1, 576, 512, latent=True) for n in (16, 32, 64, 128)},
    "llama-8b": Heads(32, 8, 128, 128),
    "smollm2-135m": Heads(9, 3, 64, 64),
}


class DeepCache:
    """Layers of the last tokens' attention over ``n_cells`` cells in order.

    Args:
        least_bytes: of all layers' caches.
        n_tokens: that attend, the last of them at the last cell.
        buft: of all tensors; the CPU's by default.
    """

    def __init__(
        self,
        heads: Heads,
        type: GGMLType,
        n_cells: int,
        least_bytes: int,
        n_tokens: int = 1,
        buft: BufferType | None = None,
    ) -> None:
        self.heads, self.n_cells, self.n_tokens = heads, n_cells, n_tokens
        ctx = Context(no_alloc=True)
        cells, rows = (ctx.new_tensor(GGMLType.I32, ne) for ne in ((2, n_cells), (4, n_tokens)))
        q = ctx.new_tensor(GGMLType.F32, (heads.columns, n_tokens, heads.n_head))
        widths = [heads.columns] if heads.latent else [heads.columns, heads.value_columns]
        self.graph, self.bytes = CGraph(), 0
        self.caches: list[Tensor] = []
        while self.bytes < least_bytes or not self.caches:
            kv = [ctx.new_tensor(type, (n, n_cells, heads.n_kv_head)) for n in widths]
            self.caches += kv
            self.bytes += sum(x.nbytes for x in kv)
            k = kv[0]
            v = ops.view_3d(ctx, k, (heads.value_columns, *k.ne[1:3]), k.nb[1:3], 0)
            v = v if heads.latent else kv[1]
            node = ops.flash_attn_cells(ctx, q, k, v, cells, rows, heads.columns**-0.5)
            self.graph.build_forward_expand(node)
        self.layers = len(self.caches) // len(widths)
        self.buffer = alloc_ctx_tensors(ctx, buft or CpuBackend(1).buffer_type())
        place = np.arange(n_cells, dtype=np.int32)
        cells.set(np.stack([place, place], -1))
        last = range(n_cells - n_tokens, n_cells)
        rows.set(np.array([[0, 0, n_cells, position] for position in last], np.int32))
        rng = np.random.default_rng(0)
        q.set(rng.standard_normal(q.ne[2::-1], np.float32))
        for x in self.caches:
            some = stored(rng.standard_normal((_CELLS, x.ne[0]), np.float32), type)
            n = x.ne[1] * x.ne[2]
            x.set(np.resize(some, (n, some.shape[-1])).reshape(x.ne[2], x.ne[1], -1))

    @property
    def macs(self) -> int:
        """Multiply-adds of all layers; a causal mask's share is counted too."""
        heads = self.heads
        columns = heads.columns + heads.value_columns
        return self.layers * self.n_tokens * self.n_cells * heads.n_head * columns


def measure(
    name: str, heads: Heads, type: GGMLType, n_cells: int, threads: int, *,
    repeats: int = 9, least_bytes: int = _LEAST_BYTES,
) -> dict[str, Any]:  # fmt: skip
    """A line for a shape: medians, each run by the roofs right before and after it."""
    cache = DeepCache(heads, type, n_cells, least_bytes)
    program = CpuBackend(threads).compile(cache.graph).program
    profile(program, 1)

    def roofs() -> tuple[float, float]:
        """GB/s and GMAC/s."""
        return read_roof(max(cache.bytes, 1 << 16), threads, tries=1), fma_roof(threads, tries=1)

    times, measured = [], [roofs()]
    for _ in range(repeats):
        times.append(sum(t.ns for t in profile(program, 1)))
        measured.append(roofs())
    around = [[max(pair) for pair in zip(*both, strict=True)] for both in pairwise(measured)]
    read, peak = (statistics.median(x) for x in zip(*around, strict=True))
    ns = statistics.median(times)
    shares = [
        (cache.bytes / t / r, cache.macs / t / f) for t, (r, f) in zip(times, around, strict=True)
    ]
    of_read, of_fma = (statistics.median(x) for x in zip(*shares, strict=True))
    return {
        "shape": name,
        "type": type.name.lower(),
        "cells": n_cells,
        "bytes": cache.bytes,
        "us": ns / cache.layers / 1e3,
        "best_us": min(times) / cache.layers / 1e3,
        "gb_per_s": cache.bytes / ns,
        "read_gb_per_s": read,
        "of_read_roof": of_read,
        "gmac_per_s": cache.macs / ns,
        "fma_gmac_per_s": peak,
        "of_fma_roof": of_fma,
        # What share of the read rate the multiply-adds allow, were they all that takes time
        "fma_limit_of_read_roof": peak * cache.bytes / cache.macs / read,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("shapes", nargs="*", metavar="SHAPE", help=f"of {', '.join(SHAPES)}")
    parser.add_argument("--cells", default="4096,16384")
    parser.add_argument("--types", default="f16,q8_0")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--save", action="store_true", help="append to results/attention.jsonl")
    args = parser.parse_args()
    if unknown := set(args.shapes) - set(SHAPES):
        raise SystemExit(f"no shape {', '.join(sorted(unknown))}; there are {', '.join(SHAPES)}")
    head = machine.head(args.threads) | {"isa": isa()}
    for name in args.shapes or SHAPES:
        for n_cells in map(int, args.cells.split(",")):
            for type in args.types.split(","):
                line = measure(
                    name, SHAPES[name], GGMLType[type.upper()], n_cells, args.threads,
                    repeats=args.repeats,
                )  # fmt: skip
                print(
                    f"{name:14} {type:5} {n_cells:6} cells {line['us']:9.1f} us "
                    f"{line['gb_per_s']:6.2f} GB/s {line['of_read_roof']:5.1%} "
                    f"(limit {line['fma_limit_of_read_roof']:5.0%}) "
                    f"{line['gmac_per_s']:6.1f} GMAC/s {line['of_fma_roof']:5.1%}",
                    flush=True,
                )
                if args.save:
                    save(head | line, "attention.jsonl", quiet=True)


if __name__ == "__main__":
    main()
