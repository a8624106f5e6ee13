"""Cases of the ops on the CUDA backend, by the simulator and by the emulator of compiled kernels.

Add a case to the op, not a test here. By default each kernel runs in its smallest case by the
simulator; of three ops only four. With the marker ``long`` the others run too, each in its largest
case as well, and those that ``test_compile`` compiles run by the emulator. Both run the threads of
a block in reverse order. The simulator takes small cases only and has no tensor cores.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from math import prod
from typing import Any

import pytest

from pyggml.ops.op import Case, Op
from tests.pyggml.ops.op_table import case_node

from ....tiers import long
from ...ops.harness import CaseRun

pytest.importorskip("numba_cuda")
pytest.importorskip("greenlet")

from pyggml.backend.cuda.backend import CudaBackend
from pyggml.backend.cuda.lowering import LOWERINGS

from .images import CASES, kernels_for, ptx_of, samples
from .simulator import simulator_image
from .twin import TwinDriver

COMPILE: dict[str, Any] = {"ptx": ptx_of, "simulator": simulator_image}
MAX_ELEMENTS = {"ptx": 1 << 14, "simulator": 1 << 11}  # of a source
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


HEAVY = {  # and cases by default
    "AXPY_ID": 4, "FLASH_ATTN_EXT": 4, "MUL_MAT": 4, "MUL_MAT_ID_SPARSE": 4, "MUL_MAT_SPARSE": 4,
}  # fmt: skip
WARP_HEAD = 256  # columns of a head that a warp holds: of wider ones one case more


def cases(engine: str, name: str, orders: int) -> Iterator[tuple[Op, Case]]:
    """An op's cases that use one more kernel, from the smallest on, then from the largest."""
    small = sorted(
        (pair for pair in SMALL[engine] if pair[0].name == name), key=lambda p: size(p[1])
    )
    for order in (small, small[::-1])[:orders]:
        seen = set[str]()
        for op, case in order:
            kernels = {*kernels_for(case_node(op, case), CAPABILITIES[engine])}
            if engine == "ptx":
                kernels &= {kernel.name for kernel in samples()}
            if not kernels <= seen:
                seen |= kernels
                yield op, case


def smallest(name: str) -> list[tuple[Op, Case]]:
    """An op's cases that run by default."""
    found = [*cases("simulator", name, 1)]
    wide = (pair for pair in found if pair[1].args[0].ne[0] > WARP_HEAD)
    return [*found[: HEAVY.get(name)], *islice(wide, 1 if name == "FLASH_ATTN_EXT" else 0)]


def others(name: str) -> list[tuple[Op, Case]]:
    kept = {case.id for _, case in smallest(name)}
    return [(op, case) for op, case in cases("simulator", name, 2) if case.id not in kept]


def emulated(name: str) -> list[tuple[Op, Case]]:
    return [*cases("ptx", name, 2)]


@pytest.mark.parametrize(
    ("engine", "chosen"),
    [("simulator", smallest), long(("simulator", others)), long(("ptx", emulated))],
    ids=lambda value: value if isinstance(value, str) else value.__name__,
)
@pytest.mark.parametrize("name", sorted(LOWERINGS.supports))
def test_each_kernel(name: str, engine: str, chosen: Callable[[str], list[Any]]) -> None:
    found = {case.id: (op, case) for op, case in chosen(name)}
    assert found or chosen is not smallest
    for op, case in found.values():
        run = CaseRun(op, case, backend(engine))
        run.compute()
        assert run.error() <= op.tolerance(run.node), case.id
