"""Measure a CPU for ``tuning``: short races of the real kernels over more memory than its caches.

    record = measure()                             # a fraction of a second; compiles variants first

A race runs a graph with the default and with other values of one field of ``Tuning``. The fastest
other value and the default then run five times each, alternating. It replaces the default if the
median of the five ratios and the ratio of the best runs are both at least 1.1, so a busy machine
keeps the defaults. Runs on all threads, as models do.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numba import types

from ... import host, ops
from ...alloc.tallocr import TensorAllocator
from ...buffer import HOST, HostBuffer
from ...cgraph import CGraph
from ...compiler.jit import Code, compile_all, jitted
from ...context import Context
from ...dtype import GGMLType
from ...tensor import Tensor
from .atomics import pause
from .backend import CpuBackend, CpuProgram
from .simd.tile import widest_tile
from .simd.vector import vectors
from .tuning import DEFAULT, Choice, Record, Tuning, cpu_key, using
from .weights.buffer import REPACK, RepackBuffer

_GAIN = 1.1  # the least gain that replaces a default
_ALTERNATIONS = 5
_MIN_BYTES, _MAX_BYTES = 96 << 20, 128 << 20
_BUDGET_S = 1.0  # later races are skipped and keep the defaults
_PAUSES = 20_000
_HINTS, _BYTES, _FEW_BYTES = (0, 3), (1024, 2048, 8192), (2048, 4096, 16384)
_NEVER = (1 << 20,)  # tokens, more than any matmul has
_FILL = 0x11  # of all memory: as a half float 0.0006, no denormal number


Build = Callable[[Context, Tensor], Tensor]  # a node that reads a tensor


@dataclass(frozen=True)
class Race:
    """A graph that reads ``n_bytes``, and the values that it runs with, field by field."""

    graph: CGraph
    n_bytes: int
    fields: dict[str, Sequence[int]]


@jitted(types.void(types.int64))
def _pause(n):  # type: ignore[no-untyped-def]
    for _ in range(n):
        pause()


def prepare(backend: CpuBackend) -> list[Race]:
    """The races, with all their kernels compiled, so that ``run`` only runs.

    Takes up to ``_MAX_BYTES`` of memory, which the graphs hold.
    """
    made = races()
    compile_all(kernels(backend, made))
    for race in made:
        for name, values in race.fields.items():
            _programs(backend, race, name, values, DEFAULT)
    return made


def races() -> list[Race]:
    """The races; their graphs hold the memory."""
    return _races(_Memory(_bytes_to_read()))


def kernels(backend: CpuBackend, races: Sequence[Race]) -> Iterator[Code]:
    """All functions of the races, for all values; compiles none."""
    yield _pause
    for race in races:
        for name, values in race.fields.items():
            for value in (getattr(DEFAULT, name), *values):
                with using(replace(DEFAULT, **{name: value})):
                    yield from backend.kernels(race.graph)


def run(backend: CpuBackend, races: Sequence[Race]) -> Record:
    """Run the races. Nothing else should be running."""
    start, base = time.perf_counter(), DEFAULT
    choices: list[Choice] = []
    for race in races:
        for name, values in race.fields.items():
            if time.perf_counter() - start < _BUDGET_S:
                choices.append(_choose(backend, race, name, values, base))
                base = replace(base, **{name: choices[-1].value})
    pause_ns = min(_seconds(lambda: _pause(_PAUSES)) for _ in range(3)) / _PAUSES * 1e9
    return Record(cpu_key(), time.perf_counter() - start, tuple(choices), pause_ns)


def measure() -> Record:
    """The record of this machine; compiles the races, then runs them."""
    backend = CpuBackend()
    return run(backend, prepare(backend))


def _programs(
    backend: CpuBackend, race: Race, name: str, values: Sequence[int], base: Tuning
) -> dict[int, CpuProgram]:
    """The graph lowered with each value of a field, that of ``base`` first."""
    made = {}
    for value in (getattr(base, name), *values):
        with using(replace(base, **{name: value})):
            made[value] = backend.compile(race.graph)
    return made


def _choose(
    backend: CpuBackend, race: Race, name: str, values: Sequence[int], base: Tuning
) -> Choice:
    default = getattr(base, name)
    programs = _programs(backend, race, name, values, base)

    def rate(value: int) -> float:
        """GB/s of the second of two runs: the first leaves the caches as a token leaves them."""
        programs[value].enqueue()
        return race.n_bytes / _seconds(programs[value].enqueue) / 1e9

    rates = {value: rate(value) for value in programs}
    rival = max(values, key=rates.__getitem__)
    gains = []
    for _ in range(_ALTERNATIONS):
        before, after = rate(default), rate(rival)
        rates[default], rates[rival] = max(rates[default], before), max(rates[rival], after)
        gains.append(after / before)
    gain = min(statistics.median(gains), rates[rival] / rates[default])
    return Choice(name, rival if gain >= _GAIN else default, rates, gain)


def _seconds(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def _bytes_to_read() -> int:
    largest = max(host.cache_sizes().values(), default=0)
    return min(max(3 * largest, _MIN_BYTES), _MAX_BYTES)


class _Memory:
    """The memory that all graphs read: as interleaved weights, as rows or as a cache."""

    def __init__(self, n_bytes: int) -> None:
        self._interleaved = RepackBuffer(n_bytes, REPACK)
        self._interleaved.memory[:] = _FILL
        self._plain = HostBuffer(self._interleaved.memory, HOST)
        self.n_bytes = n_bytes

    def tensors(self, type: GGMLType, *ne: int, interleaved: bool) -> list[Tensor]:
        """As many consecutive tensors of a shape as fit."""
        place = TensorAllocator(self._interleaved if interleaved else self._plain)
        found = []
        size = place.buffer.buft.alloc_size(Context(no_alloc=True).new_tensor(type, ne))
        for _ in range(self.n_bytes // size):
            found.append(place.alloc(Context(no_alloc=True).new_tensor(type, ne)))
        return found


def _races(memory: _Memory) -> list[Race]:
    """Large matmuls for prefetches, many small ones for chunks, a cache, rows of AXPY."""

    def race(weights: list[Tensor], share: float, build: Build, **fields: Sequence[int]) -> Race:
        ctx, graph = Context(), CGraph()
        for w in weights:
            graph.build_forward_expand(build(ctx, w))
        return Race(graph, int(share * sum(w.nbytes for w in weights)), fields)

    def times(n_tokens: int) -> Build:
        x = np.ones((n_tokens, 2048), np.float32)
        return lambda ctx, w: ops.mul_mat(ctx, w, ctx.from_numpy(x[:, : w.ne[0]]))

    def axpy(ctx: Context, w: Tensor) -> Tensor:
        values = np.zeros((1, w.ne[1]), np.float32)
        values[:, ::2] = 1  # every other row is active
        return ops.axpy(ctx, w, ctx.from_numpy(values))

    def attention(ctx: Context, both: Tensor) -> Tensor:
        q = ctx.from_numpy(np.ones((9, 1, 64), np.float32))  # of three heads a KV head
        ne = (*both.ne[:2], both.ne[2] // 2, 1)
        k, v = (ctx.new_view(both, ne, both.nb, i * ne[2] * both.nb[2]) for i in range(2))
        return ops.flash_attn_ext(ctx, q, k, v, None, 0.1)

    large = memory.tensors(GGMLType.Q4_1, 2048, 8192, interleaved=True)
    small = memory.tensors(GGMLType.Q4_1, 576, 1536, interleaved=True)
    floats = memory.tensors(GGMLType.F16, 2048, 4096, interleaved=True)
    rows = memory.tensors(GGMLType.F16, 2048, 4096, interleaved=False)
    cells = memory.tensors(GGMLType.F16, 64, 4096, 6, interleaved=False)
    races = [
        race(large, 1, times(1), one_hint=_HINTS, one_bytes=_BYTES),
        race(small, 1, times(1), chunk_bytes=(1 << 16, 1 << 18)),
        race(large, 1, times(widest_tile(GGMLType.Q4_1)), few_bytes=_FEW_BYTES, few_hint=(0, 2)),
        race(floats, 1, times(1), float_hint=_HINTS, float_bytes=_BYTES),
        race(cells, 1, attention, kv_hint=_HINTS, kv_keys=(8, 16, 64)),
        race(rows, 0.5, axpy, axpy_hint=_HINTS),
    ]
    if vectors().has_tiles:  # many tokens first, then the fewest
        super_blocks = memory.tensors(GGMLType.Q4_K, 2048, 512, interleaved=True)
        races += [
            race(some[:4], 1, times(n_tokens), **{name: values})
            for name, some in (("amx_tokens", small), ("amx_tokens_256", super_blocks))
            for n_tokens, values in ((64, _NEVER), (16, (32,)))
        ]
    return races
