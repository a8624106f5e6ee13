"""Measures the roofs of this machine: memory bandwidth and arithmetic throughput.

    read_roof(96_500_000, n_threads=2)             # GB/s of reading so many bytes again and again
    around(run, 96_500_000, n_threads=2)           # the same, right before and right after a run
    mac_roof(GGMLType.Q4_1, n_threads=2)           # GMAC/s of the register tile on data in L1
    fma_roof(n_threads=2)                          # GMAC/s of float32 multiply-adds in registers

Best of several tries, since a neighbour on the machine only ever slows things down. A read is a
plain loop that LLVM vectorises: four streams a thread or software prefetches were slower on Zen 5.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import numba as nb
import numpy as np

from pyggml.backend.cpu.simd.isa import fma, load_floats, vectors
from pyggml.backend.cpu.simd.tile import q_tile
from pyggml.backend.cpu.simd.vector import F32, at, counted_loop, f32, splat, store
from pyggml.backend.cpu.weights.layout import activation_bytes, block_bytes
from pyggml.buffer import zeroed
from pyggml.compiler.jit import intrinsic_from_ir
from pyggml.dtype import GGMLType

_COLUMNS, _TOKENS = 512, 4  # a tile's weights and activations: 8 KB
_SUMS = 12  # registers of float32 sums: no multiply-add waits for the one before it


@nb.njit(nogil=True, fastmath=True)
def _read(words, repeats):  # type: ignore[no-untyped-def]
    total = np.uint64(0)
    for _ in range(repeats):
        for i in range(words.size):
            total += words[i]
    return total


def _in_parallel(n_threads: int, work: Callable[[int], object]) -> float:
    """Seconds until ``work(thread)`` has ended on all threads."""
    threads = [threading.Thread(target=work, args=(i,)) for i in range(n_threads)]
    start = time.perf_counter()
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    return time.perf_counter() - start


def read_roof(n_bytes: int, n_threads: int, tries: int = 5) -> float:
    """GB/s of plain reads over a buffer, the best of some tries."""
    words = np.arange(n_bytes // 8, dtype=np.uint64)
    parts = np.array_split(words, n_threads)
    repeats = max(2, int(2e9 // n_bytes))
    _read(words[:8], 1)
    return max(
        n_bytes * repeats / _in_parallel(n_threads, lambda i: _read(parts[i], repeats)) / 1e9
        for _ in range(tries)
    )


def around(
    run: Callable[[], float], n_bytes: int, n_threads: int, tries: int = 2
) -> tuple[float, float]:
    """What ``run`` returns, and the best rate of plain reads right before and right after it.

    Neighbours on the machine come and go: a rate of another minute says little of this run.
    """
    before = read_roof(n_bytes, n_threads, tries)
    found = run()
    return found, max(before, read_roof(n_bytes, n_threads, tries))


def mac_roof(kind: GGMLType, n_threads: int, tries: int = 5) -> float:
    """GMAC/s of 16-row by 4-token tiles whose data never leaves L1, the best of some tries."""
    number = int(kind)

    @nb.njit(nogil=True)
    def tiles(w, y, stride, out, repeats):  # type: ignore[no-untyped-def]
        for _ in range(repeats):
            q_tile(number, 4, 2, w, y, stride, out, blocks, 0)  # type: ignore[call-arg]

    blocks = _COLUMNS // kind.block_size
    stride = activation_bytes(number, _COLUMNS)
    weights = blocks * block_bytes(number)
    memory = [zeroed(weights + _TOKENS * stride + 256) for _ in range(n_threads)]

    def work(i: int) -> None:
        base = int(memory[i].ctypes.data)
        acts = base + weights
        tiles(base, acts, stride, acts + _TOKENS * stride, repeats)

    repeats = 1
    work(0)
    repeats = 100_000
    macs = 16 * _TOKENS * _COLUMNS * repeats * n_threads
    return max(macs / _in_parallel(n_threads, work) / 1e9 for _ in range(tries))


@intrinsic_from_ir
def _multiply_adds(b: Any, n: Any, memory: Any) -> None:
    """``n`` multiply-adds to each of ``_SUMS`` registers, whose factors are at ``memory``."""
    lanes = vectors().lanes
    x = load_floats(b, F32, memory, lanes)
    sums = counted_loop(
        b, n, [splat(f32, lanes, 0.0)] * _SUMS, lambda i, sums: [fma(b, x, x, y) for y in sums]
    )
    for i, y in enumerate(sums):
        store(b, y, at(b, memory, 64 * (1 + i)))


def fma_roof(n_threads: int, tries: int = 5) -> float:
    """GMAC/s of float32 multiply-adds in registers, the best of some tries."""

    @nb.njit(nogil=True)
    def chains(n, memory):  # type: ignore[no-untyped-def]
        _multiply_adds(n, memory)

    memory = [zeroed(64 * (1 + _SUMS)) for _ in range(n_threads)]
    chains(1, int(memory[0].ctypes.data))
    n = 10_000_000
    macs = n * _SUMS * vectors().lanes * n_threads
    work = [int(x.ctypes.data) for x in memory]
    return max(
        macs / _in_parallel(n_threads, lambda i: chains(n, work[i])) / 1e9 for _ in range(tries)
    )
