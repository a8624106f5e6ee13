"""Every case of every op on the CUDA backend, by the emulator of PTX and by the simulator.

Add a case to the op, not a test here. The simulator takes small cases only, and runs the threads of
a block in reverse order.
"""

from __future__ import annotations

from math import prod
from typing import Any

import pytest

from pyggml.op_table import case_node
from pyggml.ops import OPS, Case, Op

from ...ops.harness import CaseRun

pytest.importorskip("numba_cuda")
pytest.importorskip("greenlet")

from pyggml.backend.cuda.backend import CudaBackend

from .images import ptx_of
from .simulator import simulator_image
from .twin import TwinDriver

COMPILE: dict[str, Any] = {
    "ptx": ptx_of,
    "simulator": simulator_image,
}
MOST = {"ptx": 1 << 20, "simulator": 1 << 11}  # elements of a source
CAPABILITIES = {"ptx": (9, 0), "simulator": (7, 0)}  # the simulator has no tensor cores


def backend(engine: str) -> CudaBackend:
    driver = TwinDriver(cc=CAPABILITIES[engine], order="reverse")
    return CudaBackend(driver, "cuda0", compile=COMPILE[engine])


def taken(op: Op, case: Case, engine: str) -> bool:
    sizes = [prod(a.ne) for a in case.args if a is not None]
    small = not case.perf and max(sizes, default=0) <= MOST[engine]
    return small and PROBE.supports_op(case_node(op, case))


PROBE = backend("simulator")
CASES = [
    pytest.param(engine, op, case, id=f"{engine}-{op.name}[{case.id}]")
    for engine in COMPILE
    for op in OPS.values()
    for case in op.cases
    if not op.is_view and taken(op, case, engine)
]


@pytest.mark.parametrize(("engine", "op", "case"), CASES)
def test_op_case(engine: str, op: Op, case: Case) -> None:
    run = CaseRun(op, case, backend(engine))
    run.compute()
    assert run.error() <= op.tolerance(run.node)
