"""The KV cache's bookkeeping against a dictionary, by random operations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from pyggml.dtype import GGMLType
from pyllama.errors import BatchError, ContextFull
from pyllama.hparams import HParams
from pyllama.kv.cache import KVCache
from pyllama.kv.table import CHUNK

SEQS = 3
CELLS = 13
HPARAMS = HParams(
    arch="llama", n_ctx_train=64, n_embd=16, n_layer=2, n_ff_arr=(8, 8),
    n_head_arr=(2, 2), n_head_kv_arr=(1, 1), head_dim_arr=(8, 8), head_dim_v_arr=(8, 8),
    n_rot_arr=(8, 8), n_vocab=3, norm_eps=1e-5,
    rope_freq_base=1e4, rope_freq_scale=1.0,
)  # fmt: skip
seqs = st.integers(0, SEQS - 1)
positions = st.integers(-1, 30)


class Machine(RuleBasedStateMachine):
    """The model: for each sequence, its (position, token) in order; tokens are numbered.

    A cell holds a token's number and the position that its keys are rotated for.
    """

    @initialize(unified=st.booleans())
    def start(self, unified: bool) -> None:
        self.kv = KVCache(HPARAMS, CELLS, SEQS, unified=unified)
        self.held: dict[int, tuple[int, int]] = {}  # by cell: token, rotation
        self.model: list[list[tuple[int, int]]] = [[] for _ in range(SEQS)]
        self.token = 0

    def used(self) -> set[int]:
        return {int(c) for s in range(SEQS) for c in self.kv.entries(s)[:, 0]}

    def free(self, seq: int) -> int:
        size = CELLS // SEQS
        of = range(CELLS) if self.kv.unified else range(seq * size, (seq + 1) * size)
        return len(set(of) - self.used())

    def end(self, seq: int) -> int:
        return self.model[seq][-1][0] if self.model[seq] else -1

    @rule(order=st.lists(seqs, min_size=1, max_size=6), gap=st.integers(0, 3))
    def place(self, order: list[int], gap: int) -> None:
        self.apply()
        ends = [self.end(s) if self.model[s] else gap - 1 for s in range(SEQS)]
        wanted = []
        for seq in order:
            ends[seq] += 1
            wanted.append(ends[seq])
        short = [s for s in set(order) if order.count(s) > self.free(s)]
        if len(order) > self.free(0) if self.kv.unified else short:
            with pytest.raises(ContextFull, match="tokens to store, "):
                self.kv.place(order, wanted)
            return
        before = self.used()
        cells, places = self.kv.place(order, wanted)
        assert len(set(cells)) == len(order) and not before & set(cells)
        for seq, position, cell, place in zip(order, wanted, cells, places, strict=True):
            assert place == len(self.model[seq])
            self.put(cell, position, (seq,))

    @precondition(lambda self: self.kv.unified)
    @rule(group=st.permutations(range(SEQS)), n=st.integers(2, SEQS))
    def place_shared(self, group: list[int], n: int) -> None:
        self.apply()
        group, position = group[:n], max(self.end(s) for s in range(SEQS)) + 1
        if not self.free(0):
            return
        (cell,), (place,) = self.kv.place([tuple(group)], [position])
        assert place == len(self.model[group[0]])
        self.put(cell, position, group)

    def put(self, cell: int, position: int, group: Sequence[int]) -> None:
        self.token += 1
        self.held[cell] = self.token, position
        for seq in group:
            self.model[seq].append((position, self.token))

    def apply(self) -> None:
        """Apply pending changes, as a context does before a decode."""
        pending = self.kv.pending
        for source, target in pending.copies:
            new = [self.held[int(c)] for c in source]
            self.held |= dict(zip(target.tolist(), new, strict=True))
        for cell in np.flatnonzero(pending.shift).tolist():
            token, rotation = self.held[cell]
            self.held[cell] = token, rotation + int(pending.shift[cell])
        pending.clear()

    @rule(seq=st.integers(-1, SEQS - 1), p0=positions, p1=positions)
    def seq_rm(self, seq: int, p0: int, p1: int) -> None:
        self.kv.seq_rm(seq, p0, p1)
        for s in range(SEQS) if seq < 0 else (seq,):
            self.model[s] = [e for e in self.model[s] if e[0] < p0 or e[0] >= p1 >= 0]

    @rule(seq=seqs, n=st.integers(1, 5))
    def drop_last(self, seq: int, n: int) -> None:
        if n < len(self.model[seq]):
            self.kv.drop_last(seq, n)
            del self.model[seq][-n:]

    @rule(source=seqs, other=seqs, p0=positions, p1=positions)
    def seq_cp(self, source: int, other: int, p0: int, p1: int) -> None:
        part = [e for e in self.model[source] if e[0] >= p0 and (p1 < 0 or e[0] < p1)]
        if source == other or not part or not self.model[other] or part[0][0] > self.end(other):
            if source != other and not self.kv.unified and len(part) > self.free(other):
                with pytest.raises(ContextFull):
                    self.kv.seq_cp(source, other, p0, p1)
                return
            self.kv.seq_cp(source, other, p0, p1)
            if source != other:
                self.model[other] += part
        else:
            with pytest.raises(BatchError, match="already reaches"):
                self.kv.seq_cp(source, other, p0, p1)

    @rule(seq=seqs, p0=positions, p1=positions, delta=st.integers(-9, 9), d=st.integers(0, 3))
    def seq_add_or_div(self, seq: int, p0: int, p1: int, delta: int, d: int) -> None:
        def moved(p: int) -> int:
            inside = p >= p0 and (p1 < 0 or p < p1)
            return p if not inside else p // d if d else p + delta

        after = [(moved(p), token) for p, token in self.model[seq] if moved(p) >= 0]
        before = self.kv.snapshot()
        try:
            if d:
                self.kv.seq_div(seq, p0, p1, d)
            else:
                self.kv.seq_add(seq, p0, p1, delta)
        except (BatchError, ContextFull) as e:
            in_order = [p for p, _ in after] == sorted(p for p, _ in after)
            assert isinstance(e, ContextFull) or not in_order
            now = self.kv.snapshot()
            assert all(np.array_equal(now[k], v) for k, v in before.items() if k != "pending")
            assert np.array_equal(now["pending"].shift, before["pending"].shift)
        else:
            self.model[seq] = after

    @rule(seq=seqs)
    def seq_keep(self, seq: int) -> None:
        self.kv.seq_keep(seq)
        self.model = [entries if s == seq else [] for s, entries in enumerate(self.model)]

    @rule()
    def clear(self) -> None:
        self.kv.clear()
        self.model = [[] for _ in range(SEQS)]

    @rule()
    def decode(self) -> None:
        self.apply()
        for seq, entries in enumerate(self.model):
            held = [self.held[int(c)] for c in self.kv.entries(seq)[:, 0]]
            assert held == [(token, p) for p, token in entries]

    @invariant()
    def agrees(self) -> None:
        lists = self.kv.cells.numpy(squeeze=False)[0]  # what attention reads: [seq, i, 2]
        for seq, entries in enumerate(self.model):
            n, wanted = self.kv.length(seq), [p for p, _ in entries]
            assert lists[seq, :n, 1].tolist() == wanted
            assert len(set(lists[seq, :n, 0].tolist())) == n
            assert self.kv.seq_pos_min(seq) == min(wanted, default=-1)
            assert self.kv.seq_pos_max(seq) == max(wanted, default=-1)
            for position in (0, 4, 9):
                assert self.kv.index(seq, position) == sum(p < position for p in wanted)
        assert self.kv.n_used == len(self.used())


Machine.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestKVCache = Machine.TestCase


@pytest.mark.parametrize("seq", [-1, SEQS])
def test_an_unknown_sequence_is_refused(seq: int) -> None:
    kv = KVCache(HPARAMS, CELLS, SEQS)
    kv.place([0, 1], [0, 0])
    calls = [
        lambda: kv.seq_keep(seq),
        lambda: kv.seq_cp(seq, 0),
        lambda: kv.seq_cp(0, seq),
        lambda: kv.length(seq),
        lambda: kv.seq_pos_min(seq),
        lambda: kv.seq_pos_max(seq),
    ]
    for call in calls if seq == -1 else [*calls, lambda: kv.seq_rm(seq)]:
        with pytest.raises(BatchError, match=f"sequence {seq}: this context has 0 to 2"):
            call()
    assert kv.n_used == 2


@pytest.mark.parametrize("type", [GGMLType.F16, GGMLType.F32])
def test_rows_of_a_head_are_contiguous(type: GGMLType) -> None:
    kv = KVCache(HPARAMS, CELLS, SEQS, type, type)
    assert [t.ne for t in (*kv.k.values(), *kv.v.values())] == [(8, CELLS, 1, 1)] * 4
    assert (
        kv.size_bytes
        == sum(t.nbytes for t in (*kv.k.values(), *kv.v.values()))
        == 4 * 8 * CELLS * type.type_size
    )
    assert kv.cells.ne == (2, CELLS, SEQS, 1) and not np.any(kv.cells.numpy())


def test_a_shared_cell_that_moves_again_before_it_was_rotated() -> None:
    kv = KVCache(HPARAMS, CELLS, SEQS)
    (cell,), _ = kv.place([0], [5])
    kv.seq_add(0, 0, -1, 3)
    kv.seq_cp(0, 1)
    kv.seq_add(1, 0, -1, 2)
    copy = int(kv.entries(1)[0, 0])
    assert kv.pending.any and copy != cell
    assert [(int(a[0]), int(b[0])) for a, b in kv.pending.copies] == [(cell, copy)]
    assert (kv.pending.shift[cell], kv.pending.shift[copy]) == (3, 5)
    assert (kv.entries(0)[0, 1], kv.entries(1)[0, 1]) == (8, 10)
    kv.seq_rm(1)
    assert kv.n_used == 1 and kv.pending.shift[copy] == 0
    kv.clear()
    assert not kv.pending.any and not kv.pending.shift.any()


def window(cells: int, seqs: int = 1, size: int = 3) -> KVCache:
    return KVCache(HPARAMS, cells, seqs, window=size)


def test_a_window_evicts_whole_chunks() -> None:
    kv = window(2 * CHUNK + 8, seqs=2)
    for start in range(0, 8 * CHUNK, 8):
        positions = list(range(start, start + 8))
        _cells, places = kv.place([0] * 8, positions)
        rows = kv.rows([0] * 8, positions, places)
        first = kv.seq_pos_min(0)
        assert first % CHUNK == 0 and first <= max(0, start - 2)
        for (seq, begin, end, pos, *_), position in zip(rows.tolist(), positions, strict=True):
            seen = kv.entries(seq)[begin:end, 1].tolist()
            assert seen == list(range(max(0, position - 2), position + 1)) and pos == position
    assert kv.n_used <= 2 * CHUNK + 8 and kv.evicted(0) == kv.seq_pos_min(0) - 1 > 0
    with pytest.raises(BatchError, match="clear the sequence, or use `swa_full=True`"):
        kv.place([0], [kv.evicted(0) + 2])
    kv.seq_rm(0)
    assert kv.place([0], [0]) and kv.evicted(0) == -1


def test_a_chunked_window_begins_at_a_multiple() -> None:
    size = 24
    kv = KVCache(replace(HPARAMS, swa_chunked=True), 2 * CHUNK + 8, 2, window=size)
    for start in range(0, 8 * CHUNK, 8):
        positions = list(range(start, start + 8))
        _cells, places = kv.place([0] * 8, positions)
        rows = kv.rows([0] * 8, positions, places)
        for (seq, begin, end, *_), position in zip(rows.tolist(), positions, strict=True):
            seen = kv.entries(seq)[begin:end, 1].tolist()
            assert seen == list(range(position // size * size, position + 1))
    assert kv.n_used <= 2 * CHUNK + 8 and kv.evicted(0) > 0
    first = (kv.evicted(0) // size + 1) * size  # of the first chunk that is whole
    kv.seq_cp(0, 1)
    assert kv.entries(1).tolist() == kv.entries(0).tolist() and kv.evicted(1) == kv.evicted(0)
    for seq, position, fits in ((0, first - 1, False), (1, first, True)):
        kv.seq_rm(seq, position)
        if fits:
            kv.place([seq], [position])
        else:
            with pytest.raises(BatchError, match="clear the sequence, or use `swa_full=True`"):
                kv.place([seq], [position])


def test_removed_positions_do_not_count_as_evicted() -> None:
    kv = window(2 * CHUNK, size=CHUNK // 2)
    for position in range(3 * CHUNK):
        kv.place([0], [position])
    assert kv.evicted(0) == CHUNK - 1
    kv.seq_rm(0, 4, 3 * CHUNK // 2)  # a context shift: half of what lies behind the first four
    kv.seq_add(0, 3 * CHUNK // 2, -1, 4 - 3 * CHUNK // 2)
    end = kv.seq_pos_max(0)
    assert (kv.evicted(0), kv.length(0), end) == (3, 3 * CHUNK // 2, 3 + 3 * CHUNK // 2)
    kv.place([0], [end + 1])
    assert kv.sees(0, 4 + CHUNK // 2) and not kv.sees(0, 2 + CHUNK // 2)


def test_an_idle_sequence_makes_room_for_another() -> None:
    kv = window(3 * CHUNK, seqs=2)
    kv.place([0] * 2 * CHUNK, list(range(2 * CHUNK)))
    kv.place([1] * 2 * CHUNK, list(range(2 * CHUNK)))
    assert kv.seq_pos_min(0) == CHUNK and kv.seq_pos_min(1) == 0


def test_a_context_smaller_than_its_window_is_full_at_its_end() -> None:
    kv = window(CHUNK, size=CHUNK + 9)
    kv.place([0] * CHUNK, list(range(CHUNK)))
    with pytest.raises(ContextFull, match="1 tokens to store, 0 of 256 cells free"):
        kv.place([0], [CHUNK])
    split = KVCache(HPARAMS, 2 * CHUNK, 2, window=CHUNK + 9, unified=False)
    split.place([0] * CHUNK, list(range(CHUNK)))
    with pytest.raises(ContextFull, match="1 tokens to store, 0 of 256 cells free"):
        split.place([0], [CHUNK])
    assert kv.n_used == split.n_used == CHUNK and split.place([1], [0])


@pytest.mark.parametrize("d", [1, 2, 300])
def test_seq_div_divides_the_evicted_position(d: int) -> None:
    kv = window(2 * CHUNK)
    for start in range(0, 3 * CHUNK, 8):
        kv.place([0] * 8, list(range(start, start + 8)))
    lost, end = kv.evicted(0), kv.seq_pos_max(0)
    assert lost > 0
    kv.seq_div(0, 0, -1, d)
    assert kv.evicted(0) == lost // d
    assert not kv.sees(0, lost // d + 2) and kv.sees(0, lost // d + 3) and end // d


def test_importing_lists_evicts_entries_outside_of_the_window() -> None:
    kv = window(2 * CHUNK, seqs=2)
    kv.place([0] * (2 * CHUNK), list(range(2 * CHUNK)))
    kept = kv.entries(0)[CHUNK:].copy()
    new = np.stack([np.arange(9), np.arange(9)], 1).astype(np.int32)
    assert kv.room_for([new], 9, 1) and not kv.room_for([new], CHUNK + 1, 1)
    assert kv.import_lists([1], [new], [-1], 9).tolist() == list(range(9))
    assert kv.entries(0).tolist() == kept.tolist() and kv.evicted(0) == CHUNK - 1
    assert kv.n_used == CHUNK + 9


def test_a_shared_token_and_cells_of_ones_own() -> None:
    kv = KVCache(HPARAMS, CELLS, SEQS, unified=False)
    with pytest.raises(BatchError, match="must share cells"):
        kv.place([(0, 1)], [0])
    assert kv.n_used == 0
    kv.place([1, 0, 1], [0, 0, 1])
    assert kv.entries(0)[:, 0].tolist() == [0] and kv.entries(1)[:, 0].tolist() == [4, 5]
    kv.seq_cp(1, 2)
    assert kv.entries(2)[:, 0].tolist() == [8, 9] and len(kv.pending.copies) == 1
