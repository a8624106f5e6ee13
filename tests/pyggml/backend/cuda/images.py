"""Kernels as PTX and as machine code, kept in the user's code cache by the digest of their sources.

    for kernel, ccs in capabilities().items():
        ptx, cubin = images(kernel, ccs[0])

Numba's part of the work, the same for all generations of GPUs, takes most of the time: a kernel is
compiled at once for all capabilities whose cases use it.
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
from pyggml.backend.cuda.lowering import LOWERINGS, GpuLowering
from pyggml.backend.cuda.numba_compiler import compile_both
from pyggml.cgraph import CGraph
from pyggml.compiler.code_cache import CodeCache
from pyggml.ops.op import OPS
from pyggml.tensor import Tensor
from tests.pyggml.ops.op_table import case_node

CAPABILITIES = ((7, 5), (9, 0))
CASES = [  # of the ops, those that have kernels
    (OPS[name], case)
    for name in sorted(LOWERINGS.supports)
    for case in OPS[name].cases
    if LOWERINGS.supports[name](case_node(OPS[name], case))
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
    lowering = GpuLowering(graph, device, error=0)
    lowering.run()
    return {launch.kernel.name: launch.kernel for launch in lowering.launches}


@cache
def capabilities() -> dict[GpuKernel, list[tuple[int, int]]]:
    """The kernels of all cases, and the capabilities on which a case uses them."""
    found: dict[GpuKernel, list[tuple[int, int]]] = {}
    for op, case in CASES:
        node = case_node(op, case)
        for cc in CAPABILITIES:
            for kernel in kernels_for(node, cc).values():
                ccs = found.setdefault(kernel, [])
                if cc not in ccs:
                    ccs.append(cc)
    return found


@cache
def samples() -> list[GpuKernel]:
    """Of the kernels that one function makes for formats and sizes at most three, evenly spread."""
    made: dict[str, list[GpuKernel]] = {}
    for kernel in capabilities():
        made.setdefault(f"{kernel.function.__module__}.{kernel.function.__qualname__}", []).append(
            kernel
        )
    return [
        of_one[i] for of_one in made.values() for i in range(0, len(of_one), -(-len(of_one) // 3))
    ]


@cache
def _cache() -> CodeCache:
    return CodeCache(env.code_dir() / "cuda-tests")


@cache
def images(kernel: GpuKernel, cc: tuple[int, int]) -> Images:
    """A kernel's images for a capability; skips the test where there is no compiler for GPUs."""
    if (found := _kept(kernel, cc)) is not None:
        return found
    pytest.importorskip("nvidia.cu13", reason="no compiler for GPUs: the extra cuda-test")
    with _cache().claim(kernel.name):  # two workers need it at the same time
        if (found := _kept(kernel, cc)) is not None:
            return found
        made = {
            one: Images(*compile_both(kernel, one)) for one in {cc, *capabilities().get(kernel, ())}
        }
        for one, both in made.items():
            for name, image in zip(_names(kernel, one), both, strict=True):
                _cache().write(name, encode(image))
    return made[cc]


def _kept(kernel: GpuKernel, cc: tuple[int, int]) -> Images | None:
    kept = [_cache().read(name) for name in _names(kernel, cc)]
    return None if None in kept else Images(*(decode(data) for data in kept if data is not None))


def _names(kernel: GpuKernel, cc: tuple[int, int]) -> list[str]:
    """The names of a kernel's images in the cache."""
    return [f"{entry(kernel, cc)}.{kind}" for kind in Images._fields]


def ptx_of(kernel: GpuKernel, cc: tuple[int, int]) -> KernelImage:
    """A kernel's PTX, as ``CudaBackend(compile=...)`` takes it."""
    return images(kernel, cc).ptx
