"""Kernels compiled for four generations of GPUs, once for all processes of a run of the tests.

    images = compiled(kernel, (9, 0))
    images[9, 0].ptx, images[9, 0].cubin

Numba's part of the work, the same for all generations, takes most of the time.
"""

from __future__ import annotations

import pickle
from functools import cache
from pathlib import Path
from typing import NamedTuple

from pyggml.backend.cuda import kernels as kernels
from pyggml.backend.cuda.driver import DeviceInfo
from pyggml.backend.cuda.kernel import Kernel, KernelImage
from pyggml.backend.cuda.kernels.norm import norm_kernel
from pyggml.backend.cuda.lowering import SUPPORTS, Lowering
from pyggml.backend.cuda.numba_compiler import compile_both
from pyggml.cgraph import CGraph
from pyggml.files import replacing
from pyggml.op_table import case_node
from pyggml.ops import OPS

CAPABILITIES = ((7, 5), (8, 0), (9, 0), (12, 0))
folder: Path | None = None  # set by a fixture of the run


class Images(NamedTuple):
    """A kernel's PTX and machine code for one capability."""

    ptx: KernelImage
    cubin: KernelImage


@cache
def used(cc: tuple[int, int]) -> dict[str, Kernel]:
    """The kernels of all cases on a device of a capability, by name."""
    found: dict[str, Kernel] = {}
    device = DeviceInfo("none", cc, n_sm=80, shared_bytes=99 << 10, l2_bytes=40 << 20)
    for op in OPS.values():
        for case in op.cases:
            if op.name not in SUPPORTS or not SUPPORTS[op.name](node := case_node(op, case)):
                continue
            graph = CGraph()
            graph.build_forward_expand(node)
            lowering = Lowering(graph, device, error=0)
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


@cache
def compiled(kernel: Kernel, cc: tuple[int, int]) -> dict[tuple[int, int], Images]:
    """The images for this capability, and for those of the cases that need the kernel."""
    capabilities = {cc, *(other for other in CAPABILITIES if kernel.name in used(other))}
    kept = None if folder is None else folder / f"{kernel.name}.images"
    if kept is not None and kept.exists():
        known: dict[tuple[int, int], Images] = pickle.loads(kept.read_bytes())
        if capabilities <= known.keys():
            return known
    found = {other: Images(*compile_both(kernel, other)) for other in sorted(capabilities)}
    if kept is not None:
        with replacing(kept) as temporary:
            temporary.write_bytes(pickle.dumps(found))
    return found


def ptx_of(kernel: Kernel, cc: tuple[int, int]) -> KernelImage:
    """A kernel's PTX, as ``CudaBackend(compile=...)`` takes it."""
    return compiled(kernel, cc)[cc].ptx
