"""Measures a model whose experts do not fit into memory, against what disk and hit rate allow.

    python -m benchmarks.bench_moe_cache [--share 0.67] [--layers 4] [--type q4_0]

A random model of Qwen3-30B-A3B's sizes with a few layers (0.3 GiB each in Q4_0) is written to a
temporary folder. Its routers are random too, so experts have no favourites: a cache with two thirds
of them finds about two thirds. A token's time is compared with two: what it takes with all experts
in memory, and the missing experts' bytes by the disk's rate, as measured by reads of whole experts
at random places, with as many threads as the cache has. Their sum is the bound of reads that begin
when a layer's router has chosen; the larger one is that of reads which are all known ahead.
"""

from __future__ import annotations

import argparse
import ctypes
import mmap
import os
import resource
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np

from benchmarks import random_model
from pyggml.dtype import GGMLType
from pyggml.gguf import GGUFFile
from pyggml.gguf.direct import DirectFile, page_aligned
from pyggml.quants import BLOCK_TYPES
from pyllama import Batch, Context, Model
from pyllama.runtime.expert_cache import READERS, ExpertStats

_NAME, _PROMPT, _TOKENS = "qwen3-30b-a3b-8-layers", 128, 64
_TYPES = [t.name.lower() for t in (GGMLType.F16, *BLOCK_TYPES)]


def write(path: Path, n_layer: int, type: GGMLType) -> None:
    """Write the model, and drop it from the page cache."""
    variant, sizes = random_model.MODELS[_NAME]
    random_model.MODELS["cut"] = variant, {**sizes, "num_hidden_layers": n_layer}
    random_model.create("cut", path, type)
    with path.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def cached_bytes(path: Path) -> int:
    """Bytes of a file that are in the page cache."""
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as map:
        data = np.frombuffer(map, np.uint8)
        pages = np.zeros(-(-data.size // mmap.PAGESIZE), np.uint8)
        address, flags = ctypes.c_void_p(data.ctypes.data), pages.ctypes.data_as(ctypes.c_void_p)
        ctypes.CDLL(None).mincore(address, ctypes.c_size_t(data.size), flags)
        del data
    return int((pages & 1).sum()) * mmap.PAGESIZE


def disk_rate(path: Path, n: int = 400) -> float:
    """Bytes per second of reads of experts at random places."""
    infos = [t for name, t in GGUFFile(path).tensors.items() if "_exps" in name]
    file, rng = DirectFile(path), np.random.default_rng(0)
    n_expert = infos[0].ne[2]
    size = infos[0].nbytes // n_expert
    places = [
        infos[i].offset + e * size
        for i, e in zip(rng.integers(0, len(infos), n), rng.integers(0, n_expert, n), strict=True)
    ]
    share = -(-n // READERS)

    def read(first: int) -> None:
        buffer = page_aligned(size)
        for place in places[first : first + share]:
            file.read(int(place), size, buffer)

    with ThreadPoolExecutor(READERS) as pool:
        start = time.perf_counter()
        list(pool.map(read, range(0, n, share)))
    return n * size / (time.perf_counter() - start)


def run(context: Context, tokens: Sequence[int]) -> tuple[float, float, ExpertStats | None]:
    """Seconds for the prompt, seconds a token after it, and what the cache did for these."""
    context.kv.clear()
    start = time.perf_counter()
    context.decode(Batch(tokens[:_PROMPT]))
    prompt = time.perf_counter() - start
    stats = context.expert_stats
    before = None if stats is None else replace(stats)
    start = time.perf_counter()
    for token in tokens[_PROMPT:]:
        context.decode(Batch([token]))
    each = (time.perf_counter() - start) / (len(tokens) - _PROMPT)
    if stats is None or before is None:
        return prompt, each, None
    counts = {name: getattr(stats, name) - getattr(before, name) for name in vars(stats)}
    return prompt, each, ExpertStats(**counts)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--share", type=float, default=2 / 3)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--type", default="q4_0", choices=_TYPES)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--folder", type=Path)
    args = parser.parse_args()
    tokens = np.random.default_rng(1).integers(0, 1000, _PROMPT + _TOKENS).tolist()
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        path = Path(folder) / "x.gguf"
        write(path, args.layers, GGMLType[args.type.upper()])
        infos = [t for name, t in GGUFFile(path).tensors.items() if "_exps" in name]
        whole = sum(t.nbytes for t in infos)
        expert = whole / args.layers / infos[0].ne[2]
        mib = args.share * whole / 2**20
        print(f"{path.stat().st_size / 2**30:.2f} GiB, experts {whole / 2**30:.2f} GiB")
        context = Context(Model.load(path, moe_cache_mib=mib), n_ctx=512, n_threads=args.threads)
        for _ in range(3):
            rate = disk_rate(path)
            prompt, each, stats = run(context, tokens)
            assert stats is not None
            print(
                f"disk {rate / 1e9:.2f} GB/s; prompt {_PROMPT / prompt:.1f} tokens/s; "
                f"{1 / each:.1f} tokens/s; {stats}"
            )
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
        print(f"in the page cache {cached_bytes(path) / 2**30:.2f} GiB, peak {peak:.2f} GiB")
        del context
        context = Context(Model.load(path), n_ctx=512, n_threads=args.threads)
        run(context, tokens)
        prompt, alone, _ = run(context, tokens)
        missing = (stats.n_used - stats.n_hits) / _TOKENS * expert / rate
        print(f"in memory: prompt {_PROMPT / prompt:.1f} tokens/s, {1 / alone:.1f} tokens/s")
        for name, bound in ("in turn", alone + missing), ("at once", max(alone, missing)):
            print(f"disk and CPU {name}: {1 / bound:.1f} tokens/s, reached {bound / each:.0%}")


if __name__ == "__main__":
    main()
