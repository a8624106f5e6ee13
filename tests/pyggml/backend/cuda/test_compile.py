"""Kernels that the ops' cases use, three of each function, for two generations of GPUs.

None has float64 or local memory, and each keeps to its ceiling of registers. Nothing runs here.
"""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterable
from functools import partial
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import Any

import pytest

from pyggml.compiler.code_cache import CodeCache
from pyggml.dtype import GGMLType

pytest.importorskip("numba_cuda")
pytest.importorskip("nvidia.cu13")

from pyggml.backend.cuda import cubins, numba_compiler
from pyggml.backend.cuda.kernel import KERNELS, GpuKernel
from pyggml.backend.cuda.kernels.recurrent.conv import conv_kernel
from pyggml.backend.cuda.kernels.recurrent.delta_net import delta_net_kernel
from pyggml.backend.cuda.kernels.recurrent.runs import MAX_HEAD, row_shape
from pyggml.backend.cuda.kernels.recurrent.rwkv import wkv7_kernel
from pyggml.backend.cuda.kernels.recurrent.scan import scan_kernel
from pyggml.backend.cuda.kernels.rows.norm import norm_kernel
from pyggml.backend.cuda.numba_compiler import compile_cubin, compile_ptx
from pyggml.compiler import numba_internals
from tests.pyggml.ops.op_table import case_node

from .images import CASES, capabilities, images, kernels_for, samples

pytestmark = pytest.mark.long
ROOT = Path(__file__).parents[4]
GENERATIONS = ((7, 5), (8, 0), (9, 0), (12, 0))


def check(kernel: GpuKernel, ccs: Iterable[tuple[int, int]]) -> None:
    for cc in ccs:
        ptx, cubin = images(kernel, cc)
        assert not re.findall(r"\.f64|\.local", ptx.code.decode()), cc
        assert cubin.local_bytes == 0, cc
        assert 0 < cubin.registers <= kernel.max_registers, cc
        assert cubin.registers * kernel.threads <= 65536, cc


@pytest.mark.parametrize("kernel", samples(), ids=lambda kernel: kernel.name)
def test_a_kernel_compiles(kernel: GpuKernel) -> None:
    check(kernel, capabilities()[kernel])


@pytest.mark.parametrize("op", ["RMS_NORM", "NORM"])
@pytest.mark.parametrize("warp", [False, True])
@pytest.mark.parametrize("fused", [(False, True, False), (True, True, False), (True, True, True)])
def test_norms_with_the_nodes_around_them_compile(
    op: str, warp: bool, fused: tuple[bool, bool, bool]
) -> None:
    """No case has these."""
    check(norm_kernel(op, warp, True, *fused), GENERATIONS)


@pytest.mark.parametrize(
    "kernel",
    [conv_kernel(4, True, True), scan_kernel(row_shape(128, 16), False, True)],
    ids=lambda kernel: kernel.name,
)
def test_recurrent_ops_with_the_nodes_after_them_compile(kernel: GpuKernel) -> None:
    """No case has these."""
    check(kernel, GENERATIONS)


@pytest.mark.parametrize(
    "kernel",
    [
        make(row_shape(n, n))
        for make in (wkv7_kernel, partial(delta_net_kernel, gates_keys=True))
        for n in (MAX_HEAD, MAX_HEAD - 1)
    ],
    ids=lambda kernel: kernel.name,
)
def test_states_of_the_longest_rows_compile(kernel: GpuKernel) -> None:
    """They need the most registers."""
    check(kernel, GENERATIONS)


@pytest.mark.parametrize("cc", GENERATIONS, ids=str)
@pytest.mark.parametrize("type", [GGMLType.F16, GGMLType.BF16], ids=lambda type: type.name)
def test_attention_of_the_widest_heads_compiles(type: GGMLType, cc: tuple[int, int]) -> None:
    """It needs nearly all registers, and before capability 9.0 other kernels."""
    op, case = next(
        (op, case)
        for op, case in CASES
        if op.name == "FLASH_ATTN_EXT"
        and (case.args[0].ne[0], case.args[1].type, case.args[2].type) == (576, type, type)
    )
    for kernel in kernels_for(case_node(op, case), cc).values():
        check(kernel, [cc])


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


COMPILE = """
import numpy as np
if hasattr(np, "row_stack"):  # NumPy 2.5 has none
    del np.row_stack
from numba.cuda import compiler, dispatcher
asked = []
for module in (compiler, dispatcher):
    module.get_current_device = lambda: asked.append(1)
before = compiler.get_current_device, dispatcher.get_current_device
from pyggml.backend.cuda import kernels
from pyggml.backend.cuda.kernel import KERNELS
from pyggml.backend.cuda.numba_compiler import compile_ptx
assert b".target sm_80" in compile_ptx(KERNELS["group_norm"], (8, 0)).code
assert before == (compiler.get_current_device, dispatcher.get_current_device)
assert not asked and not hasattr(np, "row_stack")
"""


def test_compiling_leaves_numpy_and_numba_as_they_were() -> None:
    """It needs ``row_stack``, and asks for no device, with a driver or without."""
    command = [sys.executable, "-P", "-c", COMPILE]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert (done.stderr, done.returncode) == ("", 0)


def test_calls_with_numbers_are_typed_once() -> None:
    """As for CPUs."""
    from numba.cuda.descriptor import cuda_target

    compile_ptx(KERNELS["add_segments"], (9, 0))
    contexts = {context for context, *_ in numba_internals._operators}
    assert cuda_target.typing_context in contexts


def test_other_threads_keep_their_device() -> None:
    from numba.cuda import compiler

    def ask() -> None:
        with contextlib.suppress(Exception):  # there is no driver
            found.append(compiler.get_current_device())

    found: list[Any] = []
    with numba_compiler.prepared():
        assert compiler.get_current_device().compute_capability == (9, 0)
        thread = threading.Thread(target=ask)
        thread.start()
        thread.join()
    assert numba_compiler._STAND_IN not in found
