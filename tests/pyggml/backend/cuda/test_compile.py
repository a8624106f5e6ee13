"""Every kernel that the ops' cases use, compiled for four generations of GPUs.

None has float64 or local memory, and each keeps to its ceiling of registers. Nothing runs here.
"""

from __future__ import annotations

import re
from functools import cache

import pytest

from pyggml.cgraph import CGraph
from pyggml.op_table import case_node
from pyggml.ops import OPS

pytest.importorskip("numba_cuda")
pytest.importorskip("nvidia.cu13")

from pyggml.backend.cuda import kernels as kernels
from pyggml.backend.cuda.driver import DeviceInfo
from pyggml.backend.cuda.kernel import Kernel
from pyggml.backend.cuda.kernels.norm import norm_kernel
from pyggml.backend.cuda.lowering import SUPPORTS, Lowering
from pyggml.backend.cuda.numba_compiler import compile_both

CAPABILITIES = ((7, 5), (8, 0), (9, 0), (12, 0))


def device(cc: tuple[int, int]) -> DeviceInfo:
    return DeviceInfo("none", cc, n_sm=80, shared_bytes=99 << 10, l2_bytes=40 << 20)


@cache
def used(cc: tuple[int, int]) -> dict[str, Kernel]:
    """The kernels of all cases on a device of a capability, by name."""
    found: dict[str, Kernel] = {}
    for op in OPS.values():
        for case in op.cases:
            if op.name not in SUPPORTS or not SUPPORTS[op.name](node := case_node(op, case)):
                continue
            graph = CGraph()
            graph.build_forward_expand(node)
            lowering = Lowering(graph, device(cc), error=0)
            lowering.run()
            found |= {launch.kernel.name: launch.kernel for launch in lowering.launches}
    return found | {kernel.name: kernel for kernel in fused_norms()}


def fused_norms() -> list[Kernel]:
    """Norms with the nodes around them, which no case has."""
    flags = ((False, True, False), (True, True, False), (True, True, True))
    return [
        norm_kernel(op, warp, True, *fused)
        for op in ("RMS_NORM", "NORM")
        for warp in (False, True)
        for fused in flags
    ]


# A kernel's capabilities one after the other: they share the first part of the compilation.
COMPILED = sorted((name, cc) for cc in CAPABILITIES for name in used(cc))


@pytest.mark.parametrize(("name", "cc"), COMPILED, ids=str)
def test_kernel_compiles(name: str, cc: tuple[int, int]) -> None:
    kernel = used(cc)[name]
    ptx, cubin = compile_both(kernel, cc)
    text = ptx.code.decode()
    assert not re.findall(r"\.f64|\.local", text)
    assert cubin.local_bytes == 0
    assert 0 < cubin.registers <= kernel.max_registers
    assert cubin.registers * kernel.threads <= 65536
