"""The KV cache's bookkeeping against a dictionary, by random operations."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from pyggml.dtype import GGMLType
from pyllama.errors import BatchError, ContextFull
from pyllama.hparams import HParams
from pyllama.kv_cache import KVCache

SEQS = 3
CELLS = 13
HPARAMS = HParams(
    arch="llama", n_ctx_train=64, n_embd=16, n_layer=2, n_ff=8, n_head=2, n_head_kv=1, head_dim=8,
    n_rot=8, n_vocab=3, norm_eps=1e-5, rope_freq_base=1e4, rope_freq_scale=1.0,
)  # fmt: skip
seqs = st.integers(0, SEQS - 1)
positions = st.integers(-1, 30)


class Machine(RuleBasedStateMachine):
    """The model: for each sequence, position -> cell."""

    @initialize()
    def start(self) -> None:
        self.kv = KVCache(HPARAMS, CELLS, SEQS)
        self.model: list[dict[int, int]] = [{} for _ in range(SEQS)]

    def used(self) -> set[int]:
        return {cell for seq in self.model for cell in seq.values()}

    @rule(order=st.lists(seqs, min_size=1, max_size=6), gap=st.integers(0, 3))
    def place(self, order: list[int], gap: int) -> None:
        ends = [max(seq, default=gap - 1) for seq in self.model]
        wanted = []
        for seq in order:
            ends[seq] += 1
            wanted.append(ends[seq])
        free = CELLS - len(self.used())
        if len(order) > free:
            with pytest.raises(ContextFull, match=f"{len(order)} tokens wanted, {free} of {CELLS}"):
                self.kv.place(order, wanted)
            return
        before = self.used()
        cells, places = self.kv.place(order, wanted)
        assert len(set(cells)) == len(order) and not before & set(cells)
        for seq, position, cell, place in zip(order, wanted, cells, places, strict=True):
            assert place == len(self.model[seq])
            self.model[seq][position] = cell

    @rule(seq=st.integers(-1, SEQS - 1), p0=positions, p1=positions)
    def seq_rm(self, seq: int, p0: int, p1: int) -> None:
        self.kv.seq_rm(seq, p0, p1)
        for s in range(SEQS) if seq < 0 else (seq,):
            self.model[s] = {p: c for p, c in self.model[s].items() if p < p0 or p >= p1 >= 0}

    @rule(source=seqs, other=seqs, p0=positions, p1=positions)
    def seq_cp(self, source: int, other: int, p0: int, p1: int) -> None:
        part = {p: c for p, c in self.model[source].items() if p >= p0 and (p1 < 0 or p < p1)}
        behind = min(part, default=1 << 30) > max(self.model[other], default=-1)
        if source == other or behind:
            self.kv.seq_cp(source, other, p0, p1)
            self.model[other] |= part
        else:
            with pytest.raises(BatchError, match="already reaches"):
                self.kv.seq_cp(source, other, p0, p1)

    @rule(seq=seqs)
    def seq_keep(self, seq: int) -> None:
        self.kv.seq_keep(seq)
        self.model = [cells if s == seq else {} for s, cells in enumerate(self.model)]

    @rule()
    def clear(self) -> None:
        self.kv.clear()
        self.model = [{} for _ in range(SEQS)]

    @invariant()
    def agrees(self) -> None:
        lists = self.kv.cells.numpy(squeeze=False)[
            0
        ]  # what attention reads: [seq, i] = cell, position
        for seq, cells in enumerate(self.model):
            n = self.kv.length(seq)
            assert [(p, c) for c, p in lists[seq, :n].tolist()] == sorted(cells.items())
            assert self.kv.seq_pos_min(seq) == min(cells, default=-1)
            assert self.kv.seq_pos_max(seq) == max(cells, default=-1)
            for position in (0, 4, 9):
                assert self.kv.index(seq, position) == sum(p < position for p in cells)
        assert self.kv.n_used == len(self.used())


Machine.TestCase.settings = settings(max_examples=60, stateful_step_count=25, deadline=None)
TestKVCache = Machine.TestCase


@pytest.mark.parametrize("seq", [-1, SEQS])
def test_a_sequence_that_is_not_there(seq: int) -> None:
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
def test_what_a_head_reads_lies_together(type: GGMLType) -> None:
    kv = KVCache(HPARAMS, CELLS, SEQS, type)
    assert [t.ne for t in (*kv.k, *kv.v)] == [(8, CELLS, 1, 1)] * 4
    assert kv.size_bytes == sum(t.nbytes for t in (*kv.k, *kv.v)) == 4 * 8 * CELLS * type.type_size
    assert kv.cells.ne == (2, CELLS, SEQS, 1) and not np.any(kv.cells.numpy())
