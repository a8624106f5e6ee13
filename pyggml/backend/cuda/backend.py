"""The CUDA backend: graphs on one GPU, as launches of kernels that Numba-CUDA compiled.

    backend = CudaBackend(open_driver(0), "cuda0")
    program = backend.compile(graph)
    program.enqueue()                              # returns at once; again and again
    backend.queue.synchronize()

Kernels are compiled when a graph first needs them, and kept on disk. A node that has no kernel here
is left to another backend by the scheduler.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from ... import env
from ...cgraph import CGraph
from ...tensor import BufferType, Tensor
from ..interface import Backend, Bytes, Device, WeightLayout, WeightUse
from . import kernels as kernels  # it registers the lowerings
from .buffer import CudaType, PinnedType
from .cubins import compiled
from .driver import Driver
from .kernel import GpuKernel, KernelImage
from .kernels.matrix.repack import write_planes
from .lowering import LOWERINGS, GpuLowering
from .planes import PlanesType, is_planes, planes_of
from .program import CudaProgram
from .stream import StreamQueue, work_size

READS_PLANES = frozenset(
    ("MUL_MAT", "MUL_MAT_ID", "MUL_MAT_ID_SPARSE", "MUL_MAT_SPARSE", "AXPY", "AXPY_ID")
)
"""Ops whose first source may be stored as planes."""

Compile = Callable[[GpuKernel, tuple[int, int]], KernelImage]


class CudaBackend(Backend):
    """Runs graphs on one GPU.

    Args:
        driver: of the device.
        name: such as ``cuda0``.
        compile: makes a kernel's image for a compute capability; by default cubins, kept on disk.
        fusion: let kernels take several nodes at once (``PYGGML_FUSION=0`` forbids it).
        replays: capture programs as CUDA graphs (``PYGGML_CUDA_GRAPHS=0`` forbids it).
    """

    def __init__(
        self,
        driver: Driver,
        name: str,
        *,
        compile: Compile = compiled,
        fusion: bool = True,
        replays: bool = True,
    ) -> None:
        self.name, self.driver = name, driver
        self.fusion = fusion and env.FUSION.enabled()
        self.replays = replays and env.CUDA_GRAPHS.enabled()
        self._plain = CudaType(driver, name.upper())
        self._planes = PlanesType(driver, f"{name.upper()}_PLANES")
        self._pinned = PinnedType(driver)
        self.queue: StreamQueue = StreamQueue(driver, self._plain, compile)

    @property
    def device(self) -> Device:
        """Sums of a matmul depend on how many tokens it has: ``mma`` adds in another order."""
        info = self.driver.info
        major, minor = info.cc
        what = f"{info.name}, compute capability {major}.{minor}"
        return Device(self.name.upper(), what, "gpu", batch_invariant=False)

    def memory(self) -> tuple[int, int] | None:
        return self.driver.memory()

    def buffer_type(self) -> BufferType:
        return self._plain

    def staging_type(self) -> BufferType:
        return self._pinned

    def layouts(self, use: WeightUse) -> Sequence[WeightLayout]:
        """Planes, if all ops that read the weight support them, then ggml's layout."""
        tensor = Tensor(use.type, use.ne)
        plain = WeightLayout(self._plain, tensor.nbytes)
        if planes_of(use.type) is None or not use.ops or not use.ops <= READS_PLANES:
            return (plain,)
        return WeightLayout(self._planes, self._planes.alloc_size(tensor)), plain

    def set_weights(self, weights: Iterable[tuple[Tensor, Bytes]]) -> Iterator[int]:
        """Write weights, those in planes by a kernel. Yields the bytes done so far."""
        done = 0
        for tensor, data in weights:
            if is_planes(tensor):
                write_planes(self.queue, tensor, data)
                yield done + data.nbytes
            else:
                for n in super().set_weights([(tensor, data)]):
                    yield done + n
            done += data.nbytes

    def supports_buft(self, buft: BufferType) -> bool:
        return buft is self._plain or buft is self._planes

    def supports_op(self, node: Tensor) -> bool:
        if node.op is None or node.op.is_view:
            return True
        known = node.src[0] if node.op.name in READS_PLANES else None
        for s in (node, *node.src):
            if s is not None and is_planes(s) and (s is not known or s.view_src is not None):
                return False
        return LOWERINGS.supports_node(node)

    def compile(
        self, graph: CGraph, *, n_threads: int | None = None, interruptible: bool = True
    ) -> CudaProgram:
        """Lower an allocated graph. Raises: UnsupportedOp, AllocError."""
        lowering = self._lowered(graph, self.queue.codes(graph))
        return CudaProgram(lowering, self.queue, replays=self.replays)

    def work_bytes(self, parts: Sequence[CGraph]) -> int:
        """Both regions of work memory, which the parts share; also for loading weights."""
        sizes = [(0, 0), *(self._lowered(part, 1).work_bytes for part in parts)]
        return sum(map(work_size, range(2), map(max, zip(*sizes, strict=True))))

    def _lowered(self, graph: CGraph, first_code: int) -> GpuLowering:
        error = self.queue.error_address
        lowering = GpuLowering(graph, self.driver.info, error, first_code, self.fusion)
        lowering.run()
        return lowering

    def close(self) -> None:
        """Wait for the device, and free code and work memory; tensors keep their own memory."""
        self.queue.close()
