"""Every kernel that the ops' cases use, compiled for four generations of GPUs.

None has float64 or local memory, and each keeps to its ceiling of registers. Nothing runs here.
"""

from __future__ import annotations

import re

import pytest

pytest.importorskip("numba_cuda")
pytest.importorskip("nvidia.cu13")

from pyggml.backend.cuda.kernel import KERNELS

from .images import CAPABILITIES, compiled, used

NAMES = sorted({name for cc in CAPABILITIES for name in used(cc)})


@pytest.mark.parametrize("name", NAMES)
def test_kernel_compiles(name: str) -> None:
    kernel = KERNELS[name]
    first = next(cc for cc in CAPABILITIES if name in used(cc))
    for cc, (ptx, cubin) in compiled(kernel, first).items():
        assert not re.findall(r"\.f64|\.local", ptx.code.decode()), cc
        assert cubin.local_bytes == 0, cc
        assert 0 < cubin.registers <= kernel.max_registers, cc
        assert cubin.registers * kernel.threads <= 65536, cc
