"""Budgets are exact to the byte; greedy equals PowerInfer's optimum, balance Q-Infer's rule."""

from __future__ import annotations

import itertools
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyllama.errors import ModelError
from pyllama.sparsity.inventory import KV, LEVELS, Inventory, NeuronRows, PlacedItem, padded
from pyllama.sparsity.placement import balance, choose_neurons, greedy, hottest, place

CASES = st.tuples(st.integers(0, 1 << 30), st.integers(1, 4), st.integers(1, 5))


def rows_of(n_layer: int, n_ff: int, *, up: tuple[int, ...] = (64, 64), down: int = 64) -> Any:
    return NeuronRows(n_ff, (up,) * n_layer, (down,) * n_layer)


def activity(seed: int, n_layer: int, n_ff: int) -> np.ndarray:
    """Counts with many equal ones."""
    return np.random.default_rng(seed).integers(0, 9, (n_layer, n_ff)).astype(np.float64)


def value(a: np.ndarray, numbers: list[int]) -> float:
    """The total activity of the ``numbers[i]`` hottest neurons of each layer i."""
    return sum(float(np.sort(row)[::-1][:n].sum()) for row, n in zip(a, numbers, strict=True))


# --- greedy ---------------------------------------------------------------------------------------


@given(CASES, st.integers(0, 40))
def test_greedy_is_optimal(case: Any, n_blocks: int) -> None:
    seed, n_layer, per_layer = case
    block, a = 16, activity(seed, n_layer, 16 * per_layer)
    rows = rows_of(n_layer, 16 * per_layer)
    left = n_blocks * block * (rows.of_one(0) + 4)  # 4 bytes for the id in the bucket
    got, same = greedy(a, rows, left, block)
    assert got == same and all(n % block == 0 for n in got)
    choices = itertools.product(range(0, 16 * per_layer + 1, block), repeat=n_layer)
    best = max(
        value(a, [*c])
        for c in choices
        if sum(rows.nbytes(i, n, n) for i, n in enumerate(c)) <= left
    )
    assert value(a, got) == best


@pytest.mark.long  # by default the optimum comes from all choices, above
@pytest.mark.parametrize("capacity", [0, 255, 256, 1000, 2048, 3300, 4096, 9999])
def test_greedy_matches_powerinfer_integer_program(capacity: int) -> None:
    """PowerInfer's own program, at --batch 256 --threshold 0, solved by scipy."""
    milp = pytest.importorskip("scipy.optimize", reason="no scipy: the extra compat-test")
    n_layer, n_ff, block = 4, 1024, 256
    a = np.random.default_rng(capacity).pareto(1.3, (n_layer, n_ff))
    sums = np.sort(a, axis=1)[:, ::-1].reshape(n_layer, -1, block).sum(axis=2)
    n = sums.size
    in_layer = np.kron(np.eye(n_layer), np.ones(n // n_layer))
    constraints = milp.LinearConstraint(
        np.block(
            [
                [np.ones((1, n)), np.zeros((1, n_layer))],
                [-in_layer, 0 * np.eye(n_layer)],
                [in_layer, -1e6 * np.eye(n_layer)],
            ]
        ),
        ub=[capacity // block] + [0] * 2 * n_layer,
    )
    c = np.concatenate([-sums.ravel(), np.zeros(n_layer)])
    found = milp.milp(c, integrality=np.ones(n + n_layer), bounds=(0, 1), constraints=constraints)
    rows = rows_of(n_layer, n_ff)
    got, _ = greedy(a, rows, capacity // block * block * (rows.of_one(0) + 4), block)
    assert value(a, got) == pytest.approx(-found.fun)
    assert sum(got) == min(capacity // block * block, a.size)


@given(CASES, st.integers(0, 1 << 16), st.integers(1, 40))
def test_unused_budget_is_smaller_than_the_next_block(case: Any, left: int, block: int) -> None:
    seed, n_layer, _ = case
    rng = np.random.default_rng(seed)
    sizes = [(int(x), int(y)) for x, y in rng.integers(1, 300, (n_layer, 2))]
    rows = NeuronRows(37, tuple((x,) for x, _ in sizes), tuple(y for _, y in sizes))
    a = activity(seed, n_layer, 37)
    got, _ = greedy(a, rows, left, block)
    used = sum(rows.nbytes(i, n, n) for i, n in enumerate(got))
    assert used <= left and used == sum(
        padded(n * x) + padded(n * y) + (padded(4 * n) if n < 37 else 0)
        for n, (x, y) in zip(got, sizes, strict=True)
    )
    for i, n in enumerate(got):  # no layer's next block would fit
        more = min(n + block, 37)
        assert n == 37 or used - rows.nbytes(i, n, n) + rows.nbytes(i, more, more) > left


def test_ties_are_broken_by_neuron_index() -> None:
    a = np.zeros((3, 40))
    a[1, [5, 30]] = 2
    got, _ = greedy(a, rows_of(3, 40), 40 * 200, 8)
    split = hottest(a, got, got)
    assert split.up[1][:8].tolist() == [0, 1, 2, 3, 4, 5, 6, 7]
    assert 30 in split.up[1] and split.joint
    assert all((np.diff(ids) > 0).all() for ids in split.up)


# --- balance --------------------------------------------------------------------------------------


@given(CASES, st.floats(0, 20), st.floats(0, 20))
def test_balance_stops_when_cpu_and_gpu_times_are_equal(case: Any, up: float, down: float) -> None:
    seed, n_layer, _ = case
    a = activity(seed, n_layer, 50)
    numbers = balance(a, rows_of(n_layer, 50), 1 << 40, 8, up=up, down=down)
    for row, *ns in zip(a, *numbers, strict=True):
        for n, ratio in zip(ns, (up, down), strict=True):
            hot = np.sort(row)[::-1].cumsum()
            here, before = (hot[n - 1] if n else 0), (hot[n - 8 - 1] if n > 8 else 0)
            if n < 50:
                assert here >= ratio * (row.sum() - here)  # the GPU has reached its share
            if n:
                assert before < ratio * (row.sum() - before)  # but not with one block less


def test_balance_visits_layers_in_q_infer_order() -> None:
    """One block of each layer per round, up before down, as in Q-Infer's own example."""
    a = np.tile([8.0, 4.0, 2.0, 2.0], (2, 1))
    rows = rows_of(2, 4)
    one = [rows.nbytes(0, *n) for n in ((1, 0), (1, 1), (2, 1))]
    for left, want in (
        (0, ([0, 0], [0, 0])),
        (one[0], ([1, 0], [0, 0])),
        (one[1], ([1, 0], [1, 0])),
        (2 * one[1], ([1, 1], [1, 1])),
        (one[1] + one[2], ([2, 1], [1, 1])),
        (1 << 20, ([2, 2], [1, 1])),  # up: 12 of 16 is 3 x the rest; down: 8 of 16 is 1 x the rest
    ):
        assert balance(a, rows, left, 1, up=3.0, down=1.0) == want
    numbers = balance(a, rows, 1 << 20, 1, up=float("inf"), down=0.0)
    assert numbers == ([4, 4], [0, 0])


@given(CASES, st.integers(0, 1 << 17))
def test_balance_keeps_the_budget(case: Any, left: int) -> None:
    seed, n_layer, block = case
    rows = rows_of(n_layer, 30, up=(100, 34), down=18)
    numbers = balance(activity(seed, n_layer, 30), rows, left, block, up=2.0, down=5.0)
    used = sum(rows.nbytes(i, u, d) for i, (u, d) in enumerate(zip(*numbers, strict=True)))
    assert used <= left


# --- a whole budget -------------------------------------------------------------------------------

ITEMS = tuple(
    PlacedItem(level, i, (f"{level}{i}",), 100 * (k + 1))
    for k, level in enumerate(LEVELS[:-1])
    for i in range(3)
)
NEEDS = Inventory(ITEMS, rows_of(3, 64))
DENSE = sum(item.nbytes for item in ITEMS)


@given(st.integers(0, 60_000), st.integers(0, 3000))
def test_the_budget_is_spent_in_order_of_levels(budget: int, compute: int) -> None:
    a = activity(budget, 3, 64)
    placed = place(NEEDS, budget, partial(choose_neurons, a, block=8), compute_bytes=compute)
    assert (*placed.on_gpu, *placed.on_cpu) == ITEMS
    assert placed.used_bytes <= budget or not placed.on_gpu
    if placed.on_cpu:
        dense = sum(item.nbytes for item in placed.on_gpu)
        assert compute + dense + placed.on_cpu[0].nbytes > budget  # the next item would not fit
    if any(placed.ffn_bytes):
        assert all(item.level == KV for item in placed.on_cpu)
    split = placed.split
    assert placed.ffn_bytes == tuple(
        NEEDS.rows.nbytes(i, len(u), len(u)) for i, u in enumerate(split.up)
    )


def test_all_some_or_no_neurons_fit() -> None:
    a = activity(1, 3, 64)
    whole = DENSE + sum(NEEDS.rows.nbytes(i, 64, 64) for i in range(3))
    for budget, all_there in ((whole, True), (whole - 1, False), (DENSE, None), (0, None)):
        placed = place(NEEDS, budget, partial(choose_neurons, a, block=1))
        there = [len(ids) for ids in placed.split.up]
        assert max(there) == (0 if all_there is None else 64) and (min(there) == 64) == bool(
            all_there
        )
    none = place(NEEDS, whole)
    assert none.used_bytes == DENSE and not any(map(len, none.split.up))


def test_activity_of_another_model() -> None:
    with pytest.raises(
        ModelError, match="statistics have 2 layers of 64 neurons, the model 3 of 64"
    ):
        place(NEEDS, 1 << 20, partial(choose_neurons, activity(0, 2, 64)))
