"""Turn an allocated graph into launches: which kernel runs for which node, on how many blocks.

    @lowers("SCALE", supports=all_f32)
    def _lower_scale(lowering, node):
        n = node.nelements
        lowering.launch(scale_f32(x=node.src[0], y=node, n=n, s=node.op_params["s"]), blocks(n))

Kernel files register a lowering for each op and for each fused pattern. Launches run in order, each
after the one before, so a node may use memory that an earlier one is done with: ``lowering.take``
gives work memory until the node is lowered, and ``lowering.shared`` keeps one value, such as the
int8 form of a matmul's input, for the nodes that follow.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ...cgraph import CGraph
from ...errors import UnsupportedOp
from ...tensor import Tensor
from ..common.lowering import Lowerings, computed
from ..common.memory import overlap
from .driver import DeviceInfo, Grid
from .kernel import Call, GpuKernel, i32

_ALIGN = 256  # bytes, of work memory


class Work(NamedTuple):
    """Work memory of a program: ``offset`` bytes into one of its two regions."""

    region: int  # 0: until the node is lowered; 1: the shared value
    offset: int

    def __add__(self, n_bytes: int) -> Work:  # type: ignore[override]
        return Work(self.region, self.offset + n_bytes)


@dataclass(eq=False)
class GpuLaunch:
    """One launch, and what it computes.

    Attributes:
        values: of the kernel's parameters: numbers, tensors or work memory.
        nodes: the nodes that it computes or helps to compute.
    """

    kernel: GpuKernel
    grid: Grid
    threads: int
    values: tuple[Any, ...]
    shared_bytes: int
    nodes: tuple[Tensor, ...] = ()

    @property
    def name(self) -> str:
        return self.kernel.name

    @property
    def node(self) -> Tensor:
        return self.nodes[0]

    @property
    def chunks(self) -> int:
        return 1


LOWERINGS: Lowerings[GpuLowering] = Lowerings(
    "CUDA backend", "leave the node to the scheduler, which finds a device for it"
)
lowers, fuses = LOWERINGS.lowers, LOWERINGS.fuses


def blocks(n: int, per_block: int = 256) -> Grid:
    """The grid of ``n`` pieces of work, ``per_block`` in each block."""
    return Grid(max(1, -(-n // per_block)))


@dataclass
class GpuLowering:
    """Collects the launches of a graph.

    Args:
        device: what it is for: kernels are chosen by its capability.
        error: the address of an int32 that a kernel sets to ``error_code`` where it meets an index
            out of range.
        first_code: the code of the graph's first node.
        fusion: let kernels take several adjacent nodes at once.
    """

    graph: CGraph
    device: DeviceInfo
    error: int
    first_code: int = 1
    fusion: bool = True
    launches: list[GpuLaunch] = field(default_factory=list)
    work_bytes: list[int] = field(default_factory=lambda: [0, 0])
    _taken: int = 0
    _shared: tuple[Hashable, Tensor, Work] | None = None

    def launch(self, call: Call, grid: Grid, *, threads: int = 0, shared_bytes: int = 0) -> None:
        """Add a launch.

        Args:
            threads: of a block; by default the kernel's.
            shared_bytes: dynamic shared memory of a block.

        Raises:
            OverflowError: a number does not fit its parameter, or a grid is too large.
        """
        for (name, kind), value in zip(call.kernel.parameters, call.values, strict=True):
            if kind is i32 and not -(1 << 31) <= value < 1 << 31:
                raise OverflowError(f"{name} of kernel {call.kernel.name} is {value}")
        if grid.x >= 1 << 31 or max(grid.y, grid.z) >= 1 << 16:
            raise OverflowError(f"kernel {call.kernel.name} would have {tuple(grid)} blocks")
        threads = threads or call.kernel.threads
        self.launches.append(GpuLaunch(call.kernel, grid, threads, call.values, shared_bytes))

    def reserve(self, n_bytes: int) -> None:
        """Let the current node have this much work memory, which it does not take itself.

        Some nodes need more for fewer tokens: memory is reserved once, for the most of them.
        """
        self.work_bytes[0] = max(self.work_bytes[0], self._taken + n_bytes)

    def take(self, n_bytes: int) -> Work:
        """Work memory for the current node."""
        start = self._taken
        self._taken += -(-n_bytes // _ALIGN) * _ALIGN
        self.work_bytes[0] = max(self.work_bytes[0], self._taken)
        return Work(0, start)

    def shared(
        self, key: Hashable, source: Tensor, n_bytes: int, make: Callable[[Work], None]
    ) -> Work:
        """A value that several nodes use one after the other, such as ``source`` in int8.

        Args:
            key: what it is; with ``source`` it names the value.
            make: adds the launches that compute it, if it is not there.
        """
        if self._shared is not None:
            known_key, known, work = self._shared
            if known_key == key and same_memory(known, source):
                return work
        work = Work(1, 0)
        self._shared = None
        make(work)
        self.work_bytes[1] = max(self.work_bytes[1], n_bytes)
        self._shared = key, source, work
        return work

    def error_code(self, node: Tensor) -> int:
        """What a kernel writes to ``error`` for this node."""
        return self.first_code + self.graph.nodes.index(node)

    def run(self) -> None:
        """Lower every node. Raises: UnsupportedOp."""
        nodes, i = computed(self.graph), 0
        while i < len(nodes):
            first = len(self.launches)
            self._taken = 0
            try:
                n = LOWERINGS.lower_next(self, nodes, i)
            except OverflowError as error:
                what = f"'{nodes[i].name}' {nodes[i].ne} is too large for its kernel: {error}"
                raise UnsupportedOp(f"CUDA backend: {what}; split it, or use the CPU") from None
            for launch in self.launches[first:]:
                launch.nodes = tuple(nodes[i : i + n])
            if self._shared is not None and any(
                overlap(node, self._shared[1]) for node in nodes[i : i + n]
            ):
                self._shared = None  # its source was written
            i += n


def same_memory(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors are the same elements in the same order."""
    if a is b:
        return True
    whole = a.is_contiguous() and b.is_contiguous() and a.nelements == b.nelements
    return whole and a.type is b.type and a.data == b.data and a.root is b.root
