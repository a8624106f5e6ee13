"""Experts of a model that is larger than memory: read from the file when tokens choose them.

    cache = ExpertCache(file, tensors, budget_bytes)
    weights |= cache.weights                       # [k, m, n_slots] instead of [k, m, n_expert]
    cache.fetchers[3](slots, chosen, guess)        # the graph's call in layer 3
    cache.stats.hit_rate

All layers whose experts have the same types and sizes share slots, each of which holds one expert
in the backend's layout. A graph calls the layer's fetcher between its router and its experts: a
Python callable cuts the CPU's program, so nothing computes meanwhile. The fetcher starts reads of
the missing experts, waits for them, and writes a table of the experts' slots, which `MUL_MAT_ID`
reads. The experts that the next layer will probably choose are read while this layer computes, as
long as most of these guesses are right. A wrong guess costs time and changes no result.

The expert that is expected to be needed last is evicted. The estimate counts how often each expert
was chosen, recent choices more, and how long it is until its layer computes. The least recently
used expert would be the wrong one: a prompt needs all experts of each layer in turn, so it is the
next one needed.

Fetchers run under the lock of the CPU's thread pool, as all of a program, one at a time.
Source: Eliseev and Mazur 2023, "Fast Inference of Mixture-of-Experts Language Models with
Offloading", for guesses by the next layer's router.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from pyggml.alloc import alloc_ctx_tensors
from pyggml.backend.interface import Backend, MatrixWriter, WeightLayout
from pyggml.context import Context
from pyggml.gguf import TensorInfo
from pyggml.gguf.direct import Bytes, DirectFile, page_aligned
from pyggml.gguf.mapped import Mapped
from pyggml.tensor import Tensor

from ..errors import ModelError

READERS = 4  # experts that are read at the same time, so that a disk always has some to read
_HELPERS = 2 * READERS  # threads for their matrices, which are read side by side
_WORTH = 0.5  # share of recent guesses that must be right, for more of them to be read
_MEMORY = 31 / 32  # by which older choices count less, for each later step of a layer
_RARE = 1e-9  # uses of an expert that was never chosen

Ints = npt.NDArray[Any]


class ExpertTensor(NamedTuple):
    """A tensor of a layer's experts, [k, m, n_expert].

    Attributes:
        info: its place in the file.
        layout: the layout that ``backend`` multiplies by.
    """

    info: TensorInfo
    layout: WeightLayout
    backend: Backend


@dataclass
class ExpertStats:
    """Counts of a cache; an expert counts once for each layer and ubatch that chooses it.

    Attributes:
        n_used: chosen experts.
        n_hits: chosen experts that were in memory.
        n_awaited: chosen experts whose read, begun for a guess, had not ended.
        n_reads, read_bytes: reads that have ended, also for wrong guesses, and their bytes.
        n_guesses: reads that were requested for a guess.
        n_right: guessed experts that their layer then chose.
        wait_s: seconds that graphs waited for reads.
    """

    n_used: int = 0
    n_hits: int = 0
    n_awaited: int = 0
    n_reads: int = 0
    read_bytes: int = 0
    n_guesses: int = 0
    n_right: int = 0
    wait_s: float = 0.0

    @property
    def hit_rate(self) -> float:
        """The share of chosen experts that were in memory."""
        return self.n_hits / max(1, self.n_used)

    def __str__(self) -> str:
        late, missed = self.n_awaited, self.n_used - self.n_hits - self.n_awaited
        return (
            f"{self.hit_rate:.1%} of {self.n_used} experts were in memory, {late} being read, "
            f"{missed} missing; {self.n_reads} read ({self.read_bytes / 2**30:.2f} GiB), "
            f"{self.n_right} of {self.n_guesses} guesses right; waited {self.wait_s:.2f} s"
        )


class _Read(NamedTuple):
    """An expert that is being read into a slot."""

    slot: int
    future: Future[None]


class _Part(NamedTuple):
    """One matrix of each expert of a pool.

    Attributes:
        slots: [k, m, n_slots].
        write: writes the matrix of a slot.
        places: file and offset of the tensor of each row.
        n_bytes: size of a matrix in the file.
    """

    slots: Tensor
    write: MatrixWriter
    places: Sequence[tuple[DirectFile, int]]
    n_bytes: int


class _Pool:
    """The slots of layers whose experts have the same types and sizes, a row for each layer.

    Its experts are numbered ``row * n_expert + expert``.

    Attributes:
        layers: the layer of each row.
        owner: int64[n_slots], the expert in a slot or being read into it; -1: none.
        slot_of: int32[n_rows * n_expert], the slot of an expert in memory; -1 of others.
        reads: reads in flight, by expert.
        guessed: experts read for a guess whose layer has not computed since.
        likely: absent experts of all guesses whose layer has not computed since.
    """

    def __init__(self, layers: Sequence[int], n_expert: int, n_slots: int) -> None:
        self.layers, self.n_expert, self.n_slots = layers, n_expert, n_slots
        self.parts: list[_Part] = []
        self.reads: dict[int, _Read] = {}
        self._uses = np.full((len(layers), n_expert), _RARE)
        self._steps = np.full(len(layers), _RARE)
        self.guessed: set[int] = set()
        self.likely: set[int] = set()
        self.forget()

    def forget(self) -> None:
        """Empty all slots; no read may be in flight."""
        self.reads.clear()
        self.guessed.clear()
        self.likely.clear()
        self.owner = np.full(self.n_slots, -1)
        self.slot_of = np.full(len(self.layers) * self.n_expert, -1, np.int32)

    def absent(self, experts: Ints) -> list[int]:
        """The experts among these that are neither in memory nor being read."""
        missing = experts[self.slot_of[experts] < 0].tolist()
        return [expert for expert in missing if expert not in self.reads]

    def finish_reads(self, stats: ExpertStats) -> None:
        """Mark the experts whose reads have ended as in memory. Raises: GGUFError: one failed."""
        done = [expert for expert, read in self.reads.items() if read.future.done()]
        for expert in done:
            self.reads[expert].future.result()
            self.slot_of[expert] = self.reads.pop(expert).slot
        stats.n_reads += len(done)
        stats.read_bytes += len(done) * sum(part.n_bytes for part in self.parts)

    def cancel(self, kept: set[int]) -> None:
        """Cancel the reads that no thread has begun, except those of the experts in ``kept``."""
        for expert in [e for e in self.reads if e not in kept]:
            if self.reads[expert].future.cancel():
                self.owner[self.reads.pop(expert).slot] = -1

    def note_uses(self, row: int, experts: Ints) -> None:
        """Count a step of the layer of ``row``, and its use of these experts."""
        self._uses[row] = np.maximum(_MEMORY * self._uses[row], _RARE)
        self._uses.reshape(-1)[experts] += 1
        self._steps[row] = _MEMORY * self._steps[row] + 1

    def evict(self, n: int, row: int, kept: Ints) -> list[int]:
        """Empty ``n`` slots, or as many as can be, those whose experts are needed last.

        Args:
            row: that of the layer that computes now.
            kept: experts that must stay.

        Returns:
            The numbers of the slots. Slots without an expert are chosen before all others.
        """
        if n == 0:
            return []
        rows, last = np.divmod(self.owner, self.n_expert)
        # steps until an expert is needed: 1 / its frequency, or less by its layer's distance
        late = self._steps[rows] / self._uses[rows, last]
        late += ((rows - row - 1) % len(self.layers)) / len(self.layers)
        late[self.owner < 0] = np.inf
        held = self.slot_of[kept]
        late[held[held >= 0]] = -1
        late[[read.slot for read in self.reads.values()]] = -1
        n = min(n, int((late >= 0).sum()))
        slots = np.argpartition(-late, n - 1)[:n] if n else np.empty(0, int)
        owners = self.owner[slots]
        self.slot_of[owners[owners >= 0]] = -1
        self.owner[slots] = -1
        return [int(slot) for slot in slots]


class ExpertCache:
    """The slots for experts, and the threads that fill them.

    Args:
        parts: the files of the model.
        tensors: the experts' tensors, by name.
        budget_bytes: maximum size of all slots.

    Attributes:
        weights: tensors [k, m, n_slots] of slots, by the names of the experts' tensors in the file.
        n_bytes: size of all slots.

    Raises:
        GGUFError: a file cannot be opened.
        ModelError: the budget does not hold the experts of one layer of each size, or a file is
            not mapped.
    """

    def __init__(
        self, parts: Sequence[Mapped], tensors: Mapping[str, ExpertTensor], budget_bytes: float
    ) -> None:
        if any(part.map is None for part in parts) or not hasattr(os, "preadv"):
            raise ModelError(
                f"{parts[0].path}: a cache of experts (`moe_cache_mib`) reads them from a mapped "
                "file: load it without `mmap=False`, on a system with preadv"
            )
        self.stats, self.weights = ExpertStats(), dict[str, Tensor]()
        self._local = threading.local()
        self._likely = self._came = 0.0  # absent experts that were guessed, and chosen; recent ones
        self._places: dict[int, tuple[_Pool, int]] = {}
        groups = _groups_of_a_size(tensors)
        sizes = [_slot_bytes(group[0]) for group in groups]
        counts = [(len(group), group[0][0].info.ne[2]) for group in groups]
        whole = sum(size * n * m for size, (n, m) in zip(sizes, counts, strict=True))
        least = sum(size * m for size, (_, m) in zip(sizes, counts, strict=True))
        if not budget_bytes >= least:  # or NaN
            raise ModelError(
                f"{parts[0].path}: the cache of experts (`moe_cache_mib`) has "
                f"{budget_bytes / 2**20:.1f} MiB, want at least {least / 2**20:.1f}, for all "
                f"experts of a layer{' of each size' * (len(groups) > 1)}; those of all layers "
                f"take {whole / 2**20:.1f}"
            )
        files = [DirectFile(part.path) for part in parts]
        self.n_bytes, spare = 0, min(1.0, (budget_bytes - least) / max(1, whole - least))
        self._largest = 0
        for group, size, (n, m) in zip(groups, sizes, counts, strict=True):
            n_slots = m + int(spare * (n - 1) * m)
            self.n_bytes += size * n_slots
            self._add(group, n_slots, files)
        self._pools = list({id(pool): pool for pool, _ in self._places.values()}.values())
        self._start()

    @property
    def fetchers(self) -> dict[int, Callable[..., None]]:
        """The function of each layer that its graph calls, ``fetch(slots, chosen, guess)``.

        It writes the slots of the chosen experts into ``slots``. ``guess``, which may be left out,
        has the experts that the next layer with a fetcher may choose.

        Shape:
            slots I32 [n_expert]; chosen, guess I32 [n_expert_used, T]
        """
        layers = sorted(self._places)
        following = dict(pairwise(layers))
        return {i: partial(self._fetch, i, following.get(i)) for i in layers}

    def _add(self, group: list[list[ExpertTensor]], n_slots: int, files: list[DirectFile]) -> None:
        """Allocate the slots of a group of `_groups_of_a_size`."""
        layers = [_layer(tensors[0].info.name) for tensors in group]
        pool = _Pool(layers, group[0][0].info.ne[2], n_slots)
        for row, layer in enumerate(layers):
            self._places[layer] = pool, row
        for column in zip(*group, strict=True):  # the same matrix of all layers
            info, layout, backend = column[0]
            ctx = Context(no_alloc=True)
            slots = ctx.new_tensor(info.type, (*info.ne[:2], n_slots)).set_name("expert_slots")
            alloc_ctx_tensors(ctx, layout.buft)
            places = [(files[t.info.part], t.info.offset) for t in column]
            n_bytes = info.nbytes // info.ne[2]
            pool.parts.append(_Part(slots, backend.matrix_writer(slots), places, n_bytes))
            self._largest = max(self._largest, n_bytes)
            for t in column:
                weight = Tensor(info.type, slots.ne).set_name(t.info.name)
                weight.buffer, weight.data = slots.buffer, slots.data
                self.weights[t.info.name] = weight

    def _start(self) -> None:
        self._readers, self._pid = ThreadPoolExecutor(READERS, "pyllama-experts"), os.getpid()
        self._helpers = ThreadPoolExecutor(_HELPERS, "pyllama-matrices")
        self._failed = False

    def _forget(self) -> None:
        """Join the readers, which a forked process does not have, and empty the cache."""
        if self._pid == os.getpid():
            self._readers.shutdown(cancel_futures=True)
            self._helpers.shutdown()
        for pool in self._pools:
            pool.forget()
        self._start()

    def _fetch(
        self, layer: int, following: int | None, slots: Ints, chosen: Ints,
        guess: Ints | None = None,
    ) -> None:  # fmt: skip
        """The fetcher of a layer; see ``fetchers``. Raises: GGUFError: the file cannot be read."""
        if self._failed or self._pid != os.getpid():
            self._forget()
        try:
            pool, row = self._places[layer]
            needed = _experts(pool, row, chosen)
            self._begin(pool, row, needed)
            if following is not None and guess is not None:
                self._begin_guessed(following, guess, pool, needed)
            self._await(pool, needed)
            first = row * pool.n_expert
            np.maximum(pool.slot_of[first : first + pool.n_expert], 0, out=slots.reshape(-1))
        except BaseException:  # Ctrl-C too: no read may write into a slot that another one gets
            self._failed = True  # until `_forget` has ended, which Ctrl-C may interrupt
            self._forget()
            raise

    def _begin(self, pool: _Pool, row: int, needed: Ints) -> None:
        """Start reads of the missing experts, and cancel those for wrong guesses."""
        stats, experts = self.stats, set(needed.tolist())
        for one in self._pools:
            one.finish_reads(stats)
            one.cancel(experts if one is pool else set())
        missing = pool.absent(needed)
        stats.n_used += len(needed)
        stats.n_hits += int((pool.slot_of[needed] >= 0).sum())
        stats.n_awaited += sum(expert in pool.reads for expert in experts)
        guessed = {expert for expert in pool.guessed if expert // pool.n_expert == row}
        stats.n_guesses += len(guessed)
        stats.n_right += len(guessed & experts)
        pool.guessed -= guessed
        likely = {expert for expert in pool.likely if expert // pool.n_expert == row}
        pool.likely -= likely
        self._likely = _MEMORY * self._likely + len(likely)
        self._came = _MEMORY * self._came + len(likely & experts)
        pool.note_uses(row, needed)
        empty = pool.evict(len(missing), row, needed)
        if len(empty) < len(missing):  # the other slots are being written
            wait([read.future for read in pool.reads.values()])
            pool.finish_reads(stats)
            empty = pool.evict(len(missing), row, needed)  # the same slots, and more
        self._read_into(pool, missing, empty)

    def _begin_guessed(self, following: int, guess: Ints, now: _Pool, needed: Ints) -> None:
        """Start reads of the experts that the following layer may choose, as far as slots allow.

        Args:
            now: the pool of the layer that computes now.
            needed: the experts of that layer, which must stay.
        """
        pool, row = self._places[following]
        guessed = _experts(pool, row, guess)
        missing = pool.absent(guessed)
        pool.likely.update(missing)  # counted whether they are read or not
        if self._came < _WORTH * self._likely:
            return
        kept = np.concatenate([guessed, needed]) if pool is now else guessed
        empty = pool.evict(len(missing), row - 1, kept)
        missing = missing[: len(empty)]
        pool.guessed.update(missing)
        self._read_into(pool, missing, empty)

    def _read_into(self, pool: _Pool, experts: Iterable[int], slots: Iterable[int]) -> None:
        """Start a read of each expert into its slot."""
        for expert, slot in zip(experts, slots, strict=True):
            pool.owner[slot] = expert
            future = self._readers.submit(self._read, pool, expert, slot)
            pool.reads[expert] = _Read(slot, future)

    def _read(self, pool: _Pool, expert: int, slot: int) -> None:
        """Read an expert, and write its matrices into a slot (in a reader's thread)."""
        row, number = divmod(expert, pool.n_expert)
        parts: list[Future[None]] = []
        try:
            for part in pool.parts[1:]:
                parts.append(self._helpers.submit(self._read_part, part, row, number, slot))
            self._read_part(pool.parts[0], row, number, slot)
        finally:  # no helper may write into the slot later
            errors = [one.exception() for one in parts]
        for error in filter(None, errors):
            raise error

    def _read_part(self, part: _Part, row: int, number: int, slot: int) -> None:
        """Read one matrix of an expert into a slot."""
        file, offset = part.places[row]
        start = offset + number * part.n_bytes
        part.write(slot, file.read(start, part.n_bytes, self._buffer()))

    def _buffer(self) -> Bytes:
        """This thread's memory for reads."""
        buffer: Bytes | None = getattr(self._local, "buffer", None)
        if buffer is None:
            buffer = self._local.buffer = page_aligned(self._largest)
        return buffer

    def _await(self, pool: _Pool, needed: Ints) -> None:
        """Wait until experts are in memory."""
        reads = [pool.reads[e].future for e in needed.tolist() if e in pool.reads]
        if reads:
            start = time.perf_counter()
            wait(reads)
            pool.finish_reads(self.stats)
            self.stats.wait_s += time.perf_counter() - start


def _experts(pool: _Pool, row: int, chosen: Ints) -> Ints:
    """The chosen experts of a layer by their numbers in the pool, each once."""
    experts = np.unique(chosen)  # an illegal id is MUL_MAT_ID's error
    return experts[(experts >= 0) & (experts < pool.n_expert)] + row * pool.n_expert


def _layer(name: str) -> int:
    return int(name.split(".")[1])


def _groups_of_a_size(tensors: Mapping[str, ExpertTensor]) -> list[list[list[ExpertTensor]]]:
    """The tensors of each layer, in groups of layers with the same names, types and sizes."""
    layers: dict[int, list[ExpertTensor]] = {}
    for name in sorted(tensors):
        layers.setdefault(_layer(name), []).append(tensors[name])
    groups: dict[object, list[list[ExpertTensor]]] = {}
    for layer in sorted(layers):
        kind = tuple(
            (t.info.name.split(".")[2], t.info.type, t.info.ne, t.layout.buft)
            for t in layers[layer]
        )
        groups.setdefault(kind, []).append(layers[layer])
    return list(groups.values())


def _slot_bytes(tensors: Iterable[ExpertTensor]) -> int:
    """Bytes of one expert in memory."""
    return sum(t.layout.nbytes // t.info.ne[2] for t in tensors)
