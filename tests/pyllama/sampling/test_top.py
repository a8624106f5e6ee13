"""The largest logits are found in the order of a stable sort, for any values."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from pyllama.sampling.top import Floats, _gather, columns, top_positions, work_memory
from tests.tiers import some

PROPERTY = settings(deadline=None, max_examples=60)

FEW_VALUES = st.sampled_from([-np.inf, -1.5, -0.0, 0.0, 1e-45, 1.0, 2.5, np.inf, np.nan])
MANY_VALUES = st.floats(width=32)


def reference(logits: Floats, k: int) -> list[int]:
    keys = np.where(np.isnan(logits), np.inf, -logits.astype(np.float64))
    order: list[int] = keys.argsort(kind="stable")[:k].tolist()
    return order


@PROPERTY
@given(
    hnp.arrays(np.float32, st.integers(1, 200), elements=st.one_of(FEW_VALUES, MANY_VALUES)),
    st.integers(1, 210),
)
def test_top_positions_equal_a_stable_sort(logits: Floats, k: int) -> None:
    assert top_positions(logits, k).tolist() == reference(logits, k)


@pytest.mark.parametrize(
    "kind", ["normal", "ties", "equal", "banned", "rising", "column", "block", "few", "nan"]
)
@pytest.mark.parametrize("n", [300, 4095, 4096, 32003, 49152])
@pytest.mark.parametrize("k", some([1, 40, 63, 64, 300, 768, 1024, 2000, 5000], 4))
def test_top_positions_of_large_vocabularies(kind: str, n: int, k: int) -> None:
    rng = np.random.default_rng(n + k)
    logits = rng.standard_normal(n).astype(np.float32)
    if kind == "ties":
        logits = np.round(logits * 4)
    elif kind == "equal":
        logits[:] = 1.0
    elif kind == "banned":
        logits[:] = -np.inf
    elif kind == "rising":
        logits.sort()
    elif kind == "column":  # all large ones where the grid has one column
        logits[::1024] += 100
    elif kind == "block":  # all large ones side by side
        logits[:300] += 100
    elif kind == "nan":
        logits[::3] = np.nan
    elif kind == "few":
        logits[20:] = -np.inf
    assert top_positions(logits, k).tolist() == reference(logits, k)


@pytest.mark.parametrize("n", [1, 15, 16, 17, 63, 64, 65, 4096, 49152, 151936])
@pytest.mark.parametrize("k", [1, 2, 40, 500, 2374, 10**12])
def test_grids_have_columns_enough_for_a_near_bound(n: int, k: int) -> None:
    n_columns = columns(n, k)
    assert n_columns == 0 or (n_columns >= 4 * k and 4 <= n / n_columns <= 64)
    assert n_columns or 16 * k > n or n < 16


@pytest.mark.parametrize("k", [500, 768, 2048])
def test_gather_returns_few_extra_keys(k: int) -> None:
    """With many extra keys all logits would be sorted, which takes ten times as long."""
    logits = np.random.default_rng(k).standard_normal(49152).astype(np.float32)
    n_columns = columns(logits.size, k)
    keys = work_memory(logits.size, k, n_columns)
    count = _gather(logits.ctypes.data, logits.size, k, n_columns, keys.ctypes.data)
    assert k <= count < 1.3 * k


def test_other_types_and_views() -> None:
    logits = np.random.default_rng(1).standard_normal(8192)
    for x in (logits, logits[::-1], logits[::3], logits.astype(np.float16), logits.astype(">f4")):
        given = np.asarray(x)
        assert top_positions(given, 20).tolist() == reference(given.astype(np.float32), 20)
