"""Every case of every op on every backend that has kernels, against the op's NumPy reference.

Add a case to the op, not a test here.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

import numpy as np
import pytest

from pyggml.backend.cpu.backend import CpuProgram
from pyggml.backend.interface import Backend
from pyggml.backend.registry import available, init_backend
from pyggml.ops.op import OPS, Case, Op

from .harness import CaseRun, by_default

# ``test_ggml`` runs cases on the reference backend.
BACKENDS = [(name, 2) for name in available() if name != "reference"]  # and threads
MAX_ELEMENTS = 1 << 20  # of a source: larger cases are for the benchmark

CASES = [
    pytest.param(
        op, case, id=f"{op.name}[{case.id}]", marks=[] if by_default(op, case) else pytest.mark.long
    )
    for op in OPS.values()
    for case in op.cases
    if all(prod(a.ne) <= MAX_ELEMENTS for a in case.args if a is not None)
]


@pytest.fixture(scope="module", params=BACKENDS, ids=lambda b: f"{b[0]}-{b[1]}")
def backend(request: pytest.FixtureRequest) -> Iterator[Backend]:
    name, n_threads = request.param
    started = init_backend(name, n_threads=n_threads)
    yield started
    started.close()


@pytest.mark.parametrize(("op", "case"), CASES)
def test_op_case(op: Op, case: Case, backend: Backend) -> None:
    run = CaseRun(op, case, backend)
    if not backend.supports_op(run.node):
        pytest.skip(f"{backend.name} has no kernel")
    run.compute()
    assert run.error() <= op.tolerance(run.node)
    if isinstance(run.program, CpuProgram) and is_split(run.program):
        bits = run.memory.bytes().copy()
        run.run(backend.compile(run.graph, n_threads=1))
        assert np.array_equal(run.memory.bytes(), bits), "one thread computes other bits"


def is_split(program: CpuProgram) -> bool:
    """Whether threads share any of the work."""
    return any(phase.chunks > 1 for phase in program.program.phases)


@pytest.mark.parametrize("op", OPS.values(), ids=lambda op: op.name)
def test_declaration_is_complete(op: Op) -> None:
    assert op.doc
    assert op.is_view or op.cases
    assert all(len(case.args) <= len(op.src) for case in op.cases)
    assert all(set(case.params) <= set(op.params) for case in op.cases)
