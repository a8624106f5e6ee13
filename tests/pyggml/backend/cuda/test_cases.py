"""Cases of the ops on the CUDA backend, by the simulator and by the emulator of compiled kernels.

Add a case to the op, not a test here. Each kernel runs in one case, by the simulator; with the
marker ``long`` all cases run, by both. Both run the threads of a block in reverse order. The
simulator takes small cases only and has no tensor cores.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import Any

import pytest

from pyggml.op_table import case_node
from pyggml.ops import OPS, Case, Op

from ...ops.harness import CaseRun

pytest.importorskip("numba_cuda")
pytest.importorskip("greenlet")

from pyggml.backend.cuda.backend import CudaBackend
from pyggml.backend.cuda.lowering import SUPPORTS

from .images import kernels_for, ptx_of
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


def check(engine: str, op: Op, case: Case) -> None:
    run = CaseRun(op, case, backend(engine))
    run.compute()
    assert run.error() <= op.tolerance(run.node), case.id


def supported(op: Op, max_elements: int) -> Iterator[Case]:
    """The cases of an op that have kernels, the smallest first."""
    for case in sorted(op.cases, key=size):
        if not case.perf and size(case) <= max_elements and SUPPORTS[op.name](case_node(op, case)):
            yield case


@pytest.mark.parametrize("name", sorted(SUPPORTS))
def test_each_kernel(name: str) -> None:
    """In the first of the smallest cases that use it."""
    op, seen = OPS[name], set[str]()
    for case in supported(op, MAX_ELEMENTS["simulator"]):
        kernels = kernels_for(case_node(op, case), CAPABILITIES["simulator"]).keys()
        if not kernels <= seen:
            seen |= kernels
            check("simulator", op, case)
    assert seen


@pytest.mark.long
@pytest.mark.parametrize("engine", COMPILE)
@pytest.mark.parametrize(
    ("op", "case"),
    [
        pytest.param(OPS[name], case, id=f"{name}[{case.id}]")
        for name in sorted(SUPPORTS)
        for case in OPS[name].cases
        if not case.perf and size(case) <= max(MAX_ELEMENTS.values())
    ],
)
def test_op_case(engine: str, op: Op, case: Case) -> None:
    if size(case) > MAX_ELEMENTS[engine]:
        pytest.skip("too large for the simulator")
    if not SUPPORTS[op.name](case_node(op, case)):
        pytest.skip("no kernel")
    check(engine, op, case)
