"""Kernels as PTX and as machine code, kept in the user's code cache by the digest of their sources.

    for kernel, ccs in kernels_of(node).items():
        ptx, cubin = images(kernel, ccs[0])

Numba's part of the work, the same for all generations of GPUs, takes most of the time: ask for all
capabilities of a kernel one after the other.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import pytest

from pyggml import env
from pyggml.backend.cuda import kernels as kernels
from pyggml.backend.cuda.cubins import decode, encode, entry
from pyggml.backend.cuda.driver import DeviceInfo
from pyggml.backend.cuda.kernel import GpuKernel, KernelImage
from pyggml.backend.cuda.lowering import SUPPORTS, Lowering
from pyggml.backend.cuda.numba_compiler import compile_both
from pyggml.cgraph import CGraph
from pyggml.compiler.code_cache import CodeCache
from pyggml.ops import OPS
from pyggml.tensor import Tensor
from tests.pyggml.ops.op_table import case_node

CAPABILITIES = ((7, 5), (8, 0), (9, 0), (12, 0))
CASES = [  # of the ops, those that have kernels
    (OPS[name], case)
    for name in sorted(SUPPORTS)
    for case in OPS[name].cases
    if SUPPORTS[name](case_node(OPS[name], case))
]


class Images(NamedTuple):
    """A kernel's PTX and machine code for one capability."""

    ptx: KernelImage
    cubin: KernelImage


def kernels_for(node: Tensor, cc: tuple[int, int]) -> dict[str, GpuKernel]:
    """The kernels of a node on a device of a capability, by name."""
    graph = CGraph()
    graph.build_forward_expand(node)
    device = DeviceInfo("none", cc, n_sm=80, shared_bytes=99 << 10, l2_bytes=40 << 20)
    lowering = Lowering(graph, device, error=0)
    lowering.run()
    return {launch.kernel.name: launch.kernel for launch in lowering.launches}


def kernels_of(node: Tensor) -> dict[GpuKernel, list[tuple[int, int]]]:
    """The kernels of a node, and the capabilities that need them."""
    found: dict[GpuKernel, list[tuple[int, int]]] = {}
    for cc in CAPABILITIES:
        for kernel in kernels_for(node, cc).values():
            found.setdefault(kernel, []).append(cc)
    return found


@cache
def _cache() -> CodeCache:
    return CodeCache(env.code_dir() / "cuda-tests")


@cache
def images(kernel: GpuKernel, cc: tuple[int, int]) -> Images:
    """A kernel's images for a capability; skips the test where there is no compiler for GPUs."""
    names = [f"{entry(kernel, cc)}.{kind}" for kind in Images._fields]
    kept = [_cache().read(name) for name in names]
    if None not in kept:
        return Images(*(decode(data) for data in kept if data is not None))
    pytest.importorskip("nvidia.cu13", reason="no compiler for GPUs: the extra cuda-test")
    made = Images(*compile_both(kernel, cc))
    for name, image in zip(names, made, strict=True):
        _cache().write(name, encode(image))
    return made


def ptx_of(kernel: GpuKernel, cc: tuple[int, int]) -> KernelImage:
    """A kernel's PTX, as ``CudaBackend(compile=...)`` takes it."""
    return images(kernel, cc).ptx
