"""Every kernel that the ops' cases use, compiled for four generations of GPUs.

None has float64 or local memory, and each keeps to its ceiling of registers. Nothing runs here.
"""

from __future__ import annotations

import re
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import numpy as np
import pytest

from pyggml.code_cache import CodeCache

pytest.importorskip("numba_cuda")
pytest.importorskip("nvidia.cu13")

from pyggml.backend.cuda import cubins, numba_compiler
from pyggml.backend.cuda.kernel import KERNELS
from pyggml.backend.cuda.numba_compiler import compile_cubin

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


def test_a_gpu_newer_than_the_compiler_gets_ptx() -> None:
    kernel = KERNELS["add_segments"]
    image = compile_cubin(kernel, (99, 0))
    assert b".target sm_121" in image.code and image.entry.encode() in image.code
    assert compile_cubin(kernel, (12, 1)).code.startswith(b"\x7fELF")


def test_kernels_compile_without_the_compilers_packages(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """NVVM may be that of a CUDA toolkit, which is no package."""

    def no_version(name: str) -> str:
        raise PackageNotFoundError(name)

    monkeypatch.setattr(cubins, "version", no_version)
    monkeypatch.setattr(cubins, "_versions", cubins._versions.__wrapped__)
    monkeypatch.setattr(cubins, "_cache", lambda: CodeCache(tmp_path))
    image = cubins.compiled(KERNELS["add_segments"], (9, 0))
    assert cubins.compiled(KERNELS["add_segments"], (9, 0)) == image


def test_numpy_may_lack_what_the_compiler_looks_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """NumPy 2.5 has no ``row_stack``; and no device is asked for, with a driver or without."""
    from numba.cuda import compiler, dispatcher

    monkeypatch.delattr(np, "row_stack", raising=False)
    numba_compiler._prepare.__wrapped__()
    assert np.row_stack is np.vstack
    for module in (compiler, dispatcher):
        assert module.get_current_device().compute_capability == (9, 0)
