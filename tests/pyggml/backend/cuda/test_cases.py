"""Cases of the ops on the CUDA backend, by the simulator and by the emulator of compiled kernels.

Add a case to the op, not a test here. Each kernel runs in one case, by the simulator; with the
marker ``long`` all cases run, by both. Both run the threads of a block in reverse order. The
simulator takes small cases only and has no tensor cores.
"""

from __future__ import annotations

from math import prod
from typing import Any

import pytest

from pyggml.ops.op import Case, Op
from tests.pyggml.ops.op_table import case_node

from ...ops.harness import CaseRun

pytest.importorskip("numba_cuda")
pytest.importorskip("greenlet")

from pyggml.backend.cuda.backend import CudaBackend
from pyggml.backend.cuda.lowering import LOWERINGS

from .images import CASES, kernels_for, ptx_of
from .simulator import simulator_image
from .twin import TwinDriver

COMPILE: dict[str, Any] = {"ptx": ptx_of, "simulator": simulator_image}
MAX_ELEMENTS = {"ptx": 1 << 20, "simulator": 1 << 11}  # of a source
CAPABILITIES = {"ptx": (9, 0), "simulator": (7, 0)}


def backend(engine: str) -> CudaBackend:
    driver = TwinDriver(cc=CAPABILITIES[engine], order="reverse")
    return CudaBackend(driver, "cuda0", compile=COMPILE[engine])


def size(case: Case) -> int:
    """Elements of the largest source."""
    return max((prod(a.ne) for a in case.args if a is not None), default=0)


SMALL = {
    engine: [(op, case) for op, case in CASES if not case.perf and size(case) <= most]
    for engine, most in MAX_ELEMENTS.items()
}


def check(engine: str, op: Op, case: Case) -> None:
    run = CaseRun(op, case, backend(engine))
    run.compute()
    assert run.error() <= op.tolerance(run.node), case.id


@pytest.mark.parametrize("name", sorted(LOWERINGS.supports))
def test_each_kernel(name: str) -> None:
    """In the first of the smallest cases that use it."""
    seen = set[str]()
    small = [(op, case) for op, case in SMALL["simulator"] if op.name == name]
    for op, case in sorted(small, key=lambda one: size(one[1])):
        kernels = kernels_for(case_node(op, case), CAPABILITIES["simulator"]).keys()
        if not kernels <= seen:
            seen |= kernels
            check("simulator", op, case)
    assert seen


@pytest.mark.long
@pytest.mark.parametrize(
    ("engine", "op", "case"),
    [
        pytest.param(engine, op, case, id=f"{engine}-{op.name}[{case.id}]")
        for engine, small in SMALL.items()
        for op, case in small
    ],
)
def test_op_case(engine: str, op: Op, case: Case) -> None:
    check(engine, op, case)
