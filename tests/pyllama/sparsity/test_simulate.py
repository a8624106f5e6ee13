"""Predicted times are the bytes over the bandwidths, worked out by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyggml.backend.cpu.backend import CpuBackend
from pyggml.dtype import GGMLType
from pyllama.sparsity.inventory import (
    ATTENTION,
    FFN_IO,
    KV,
    OUTPUT,
    SCORES,
    Inventory,
    NeuronRows,
    PlacedItem,
)
from pyllama.sparsity.placement import NeuronSplit, Placement, empty_split
from pyllama.sparsity.simulate import Machine, Work, predict, shares
from pyllama.sparsity.speeds import measure_speeds

ITEMS = (
    *(PlacedItem(ATTENTION, i, (), 1000) for i in range(2)),
    *(PlacedItem(SCORES, i, (), 200) for i in range(2)),
    *(PlacedItem(FFN_IO, i, (), 10) for i in range(2)),
    PlacedItem(OUTPUT, -1, (), 5000),
    *(PlacedItem(KV, i, (), 800) for i in range(2)),
)
NEEDS = Inventory(ITEMS, NeuronRows(4, ((30, 20), (30, 20)), (50, 50)))
ACTIVE = np.array([[1.0, 0.5, 0.25, 0.25], [1.0, 1.0, 0.0, 0.0]])
MACHINE = Machine(cpu_bandwidth=10.0, gpu_bandwidth=100.0, pcie_bandwidth=8.0, latency=3.0)
WORK = Work(depth=25, n_ctx=100, n_embd=2, n_vocab=16)


def placement(n_dense: int, up: list[list[int]], down: list[list[int]] | None = None) -> Placement:
    first = tuple(np.array(ids, np.int32) for ids in up)
    second = first if down is None else tuple(np.array(ids, np.int32) for ids in down)
    split = NeuronSplit(4, first, second)
    return Placement(0, 0, ITEMS[:n_dense], ITEMS[n_dense:], split, (0, 0))


def test_cpu_only() -> None:
    p = predict(NEEDS, placement(0, [[], []]), ACTIVE, MACHINE, WORK)
    assert p.attention == 2 * (1000 + 800 / 4) / 10 and p.scores == 2 * 200 / 10
    assert p.ffn == pytest.approx(((2 + 2) * 100 + 2 * 10) / 10)
    assert (p.output, p.pcie) == (500, 0) and p.gpu_bytes == 0
    assert p.cpu_bytes == pytest.approx(10 * p.seconds)
    assert p.tokens_per_second == 1 / p.seconds


def test_gpu_only_transfers_only_embedding_and_logits() -> None:
    everything = [[0, 1, 2, 3]] * 2
    p = predict(NEEDS, placement(len(ITEMS), everything), ACTIVE, MACHINE, WORK)
    assert p.cpu_bytes == 0 and p.seconds - p.pcie == pytest.approx(p.gpu_bytes / 100)
    assert p.pcie == pytest.approx((2 * 4 / 8 + 3) + (16 * 4 / 8 + 3))


def test_cpu_and_gpu_in_parallel() -> None:
    """On the GPU: dense tensors, caches, and neurons 0 and 1 of layer 0."""
    p = predict(NEEDS, placement(len(ITEMS), [[0, 1], []]), ACTIVE, MACHINE, WORK)
    gpu, cpu = 1.5 * 100 / 100, 0.5 * 100 / 10
    assert p.ffn == pytest.approx(max(gpu, cpu) + 2 * 100 / 10 + 2 * 10 / 100)
    there, hybrid = 2 * 4 / 8 + 3, ((2 + 4) * 4 / 8 + 3) + (2 * 4 / 8 + 3)
    assert p.pcie == pytest.approx(there + hybrid + 2 * there + (16 * 4 / 8 + 3))
    apart = predict(NEEDS, placement(len(ITEMS), [[0], []], [[1], []]), ACTIVE, MACHINE, WORK)
    cpu, gpu = (1.0 * 50 + 1.5 * 50) / 10, (1.0 * 50 + 0.5 * 50) / 100
    assert apart.ffn == pytest.approx(max(gpu, cpu) + 2 * 100 / 10 + 2 * 10 / 100)
    assert apart.pcie == pytest.approx(p.pcie + 2 * 4 * 4 / 8 + 3)


@given(st.integers(0, len(ITEMS)), st.lists(st.sets(st.integers(0, 3)), min_size=2, max_size=2))
def test_a_faster_machine_is_never_slower(n_dense: int, ids: list[set[int]]) -> None:
    placed = placement(n_dense, [sorted(x) for x in ids])
    now = predict(NEEDS, placed, ACTIVE, MACHINE, WORK)
    total = now.cpu_bytes + now.gpu_bytes
    alone = predict(NEEDS, placement(0, [[], []]), ACTIVE, MACHINE, WORK)
    assert total == pytest.approx(alone.cpu_bytes)  # each byte is read once, on either side
    for name in ("cpu_bandwidth", "gpu_bandwidth", "pcie_bandwidth"):
        faster = replace(MACHINE, **{name: 2 * getattr(MACHINE, name)})
        assert predict(NEEDS, placed, ACTIVE, faster, WORK).seconds <= now.seconds


def test_counts_are_normalized_to_shares() -> None:
    assert shares(np.array([[0.0, 5.0], [10.0, 2.5]])).tolist() == [[0, 0.5], [1, 0.25]]
    assert shares(np.array([[0.0, 0.5]])).tolist() == [[0, 0.5]]
    assert shares(np.zeros((1, 2))).tolist() == [[0, 0]]
    assert not empty_split(2, 4).share(ACTIVE)[0]


def test_speeds_are_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pyllama.sparsity.speeds._BYTES", 1 << 20)
    found = measure_speeds(CpuBackend(1), 64, 512, GGMLType.F16, GGMLType.Q8_0)
    assert found.up > 0 and found.down > 0
    assert min(found.up, found.down) <= found.mean <= max(found.up, found.down)
