"""The ops' references against what ggml computed for the same sources (see ``record_ggml``)."""

from __future__ import annotations

import numpy as np
import pytest

from pyggml.backend.registry import init_backend
from pyggml.ops.op import OPS

from .harness import CaseRun, nmse
from .record_ggml import RECORDED

CASES = {f"{op.name}[{case.id}]": (op, case) for op in OPS.values() for case in op.cases}
with np.load(RECORDED) as file:
    WANT = dict(file.items())
ROUNDING = 1e-12  # ggml may use FMA where pyggml does not


@pytest.mark.parametrize("name", WANT)
def test_ggml_computes_the_same(name: str) -> None:
    op, case = CASES[name]
    run = CaseRun(op, case, init_backend("reference"))
    run.compute()
    got, want = run.got, WANT[name]
    assert got.shape == want.shape
    if op.name == "TOP_K":  # ggml does not define the order
        got, want = np.sort(got), np.sort(want)
    error = 0.0 if np.array_equal(got, want) else nmse(got, want)
    assert error <= max(op.tolerance(run.node), ROUNDING)
