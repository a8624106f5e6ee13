"""Plan the memory of a whole graph and allocate it in one buffer.

    galloc = GraphAllocator(HOST)
    galloc.reserve(worst_case_graph)               # the only allocation, before the first compute
    plan = galloc.alloc_graph(graph)               # now every tensor has an address
    plan.size, plan.peak_live_bytes                # bytes used, and the minimum of any plan

A tensor owns its bytes from the step that computes it to the last step that reads it or a view of
it; afterwards they are reused. Steps are indices into ``graph.nodes``, run one after the other.
Tensors that the caller writes (leafs, ``INPUT``) or reads (``OUTPUT``, ``PARAM``, results that no
node reads) keep their bytes in all steps, so a graph can be computed again without writing all
inputs. Tensors with other memory (weights, caches) and their views are not changed.

All graphs share the bytes: run one at a time, and write its inputs again after another one ran. A
tensor in several graphs belongs to the one allocated last. Not thread-safe.
Source: ggml, ``ggml_gallocr`` (rules of lifetimes and of in-place reuse); Pisarchyk and Lee 2020,
"Efficient Memory Management for Deep Neural Net Inference" (offsets, greedy by size).
"""

from __future__ import annotations

import sys
from bisect import bisect_right
from collections.abc import Set
from dataclasses import dataclass
from functools import cached_property
from weakref import WeakSet

from ..cgraph import CGraph
from ..context import place_view
from ..errors import AllocError
from ..rounding import round_up
from ..tensor import Buffer, BufferType, Flag, Tensor

BEFORE = -1  # first step of tensors that the caller writes
FOREVER = sys.maxsize  # last step of tensors that the caller reads


@dataclass(eq=False, slots=True)
class Block:
    """Bytes owned by one tensor, and by tensors computed in place of it.

    Attributes:
        tensors: the owners in order; each but the first is computed in place of the previous one.
        size: bytes, a multiple of the alignment.
        start, end: first and last step, or ``BEFORE`` and ``FOREVER``.
        offset: bytes from the buffer's start.
    """

    tensors: list[Tensor]
    size: int
    start: int
    end: int
    offset: int = -1


@dataclass(frozen=True, eq=False)
class Plan:
    """The offsets of a graph's tensors in a buffer, before anything is allocated.

    Attributes:
        blocks: by their first step.
        size: bytes of the buffer.
        peak_live_bytes: the largest sum of blocks alive in one step; no plan can be smaller.
    """

    blocks: tuple[Block, ...]
    size: int
    peak_live_bytes: int

    @cached_property
    def offsets(self) -> dict[Tensor, int]:
        """Bytes from the buffer's start for each planned tensor; views follow their roots."""
        return {tensor: block.offset for block in self.blocks for tensor in block.tensors}


class GraphAllocator:
    """One buffer for the intermediate results of graphs.

    Attributes:
        buft: the type of the buffer.
        buffer: the buffer, None before the first graph.
        generation: counts the buffers. When it changes, tensors of graphs allocated before stay
            on the old buffer (which lives on with them): drop programs that were made from them.
    """

    def __init__(self, buft: BufferType) -> None:
        self.buft = buft
        self.buffer: Buffer | None = None
        self.generation = 0
        self._buffers: WeakSet[Buffer] = WeakSet()  # also old ones: their tensors may be moved

    def owns(self, tensor: Tensor) -> bool:
        """Whether this allocator gave the tensor its memory, and so may move it."""
        return tensor.buffer in self._buffers

    @property
    def buffer_size(self) -> int:
        """Bytes of the buffer."""
        return 0 if self.buffer is None else self.buffer.size

    def plan(self, graph: CGraph, only: Set[Tensor] | None = None) -> Plan:
        """The plan of a graph (lifetimes, in-place reuse, offsets); changes no tensor.

        The same graph gives the same plan.

        Args:
            only: the tensors to plan for (no views); the others get memory elsewhere.
        """
        blocks = self._lifetimes(graph, only)
        _share_in_place(graph, blocks)
        owned = tuple(block for tensor, block in blocks.items() if block.tensors[0] is tensor)
        size, peak = _place(owned)
        return Plan(owned, size, peak)

    def reserve(self, graph: CGraph, only: Set[Tensor] | None = None) -> int:
        """Make the buffer large enough for ``graph``, the worst case; returns its bytes.

        Raises:
            AllocError: no memory; the old buffer stays.
        """
        self._grow(self.plan(graph, only).size)
        return self.buffer_size

    def alloc_graph(self, graph: CGraph, only: Set[Tensor] | None = None) -> Plan:
        """Give every tensor of ``graph`` that has no memory of its own a place in the buffer.

        Allocates only if the plan does not fit into the buffer.

        Raises:
            AllocError: no memory; the buffer and all tensors stay as they were.
        """
        plan = self.plan(graph, only)
        buffer = self._grow(plan.size)
        for block in plan.blocks:
            for tensor in block.tensors:
                tensor.buffer = buffer
                tensor.data = buffer.base + block.offset
        for tensor in (*graph.leafs, *graph.nodes):
            place_view(tensor)
        return plan

    def _grow(self, size: int) -> Buffer:
        if self.buffer is not None and size <= self.buffer.size:
            return self.buffer
        try:
            buffer = self.buft.alloc_buffer(size)
        except AllocError as e:
            raise AllocError(
                f"compute buffer of {size} bytes (it has {self.buffer_size}): {e}; "
                "use a smaller batch or context"
            ) from e
        self.buffer = buffer
        self._buffers.add(buffer)
        self.generation += 1
        return buffer

    def _lifetimes(self, graph: CGraph, only: Set[Tensor] | None) -> dict[Tensor, Block]:
        """A block for each root without memory, by first step."""
        blocks: dict[Tensor, Block] = {}
        for tensor in (*graph.leafs, *(n for n in graph.nodes if n.flags and _is_given(n))):
            root = tensor.root
            if root not in blocks and self._is_ours(root, only):
                blocks[root] = self._block(root, BEFORE, FOREVER)
        read = {source for node in graph.nodes for source in node.src}
        for step, node in enumerate(graph.nodes):
            for source in node.src:
                if source is not None:
                    block = blocks.get(source.root)
                    if block is not None and block.end < step:
                        block.end = step
            end = FOREVER if node.flags or node not in read else step
            root = node.root
            block = blocks.get(root)
            if block is not None:
                block.end = max(block.end, end)
            elif root is node and self._is_ours(node, only):
                blocks[node] = self._block(node, step, end)
        return blocks

    def _is_ours(self, root: Tensor, only: Set[Tensor] | None) -> bool:
        if only is not None and root not in only:
            return False
        return not root.data or root.buffer in self._buffers

    def _block(self, tensor: Tensor, start: int, end: int) -> Block:
        alignment = self.buft.alignment
        size = round_up(self.buft.alloc_size(tensor), alignment)
        return Block([tensor], size, start, end)


def _is_given(node: Tensor) -> bool:
    return node.op is None or bool(node.flags & Flag.INPUT)


def _share_in_place(graph: CGraph, blocks: dict[Tensor, Block]) -> None:
    """Give nodes of in-place ops the block of their first source, if it ends with them."""
    for step, node in enumerate(graph.nodes):
        if node.op is None or not node.op.inplace_ok:
            continue
        source, mine = node.src[0], blocks.get(node)
        block = None if source is None else blocks.get(source.root)
        if (
            source is not None
            and block is not None
            and mine is not None
            and block.end == mine.start == step  # no later reader, also through views
            and block.size == mine.size
            and source.view_offs == 0
            and (source.type, source.ne, source.nb) == (node.type, node.ne, node.nb)
            and all(s is None or blocks.get(s.root) is not block for s in node.src[1:])
        ):
            block.tensors.append(node)
            block.end = mine.end
            blocks[node] = block


def _place(blocks: tuple[Block, ...]) -> tuple[int, int]:
    """Set the offsets, the largest block first, each in the tightest gap; (size, peak) in bytes.

    ``blocks`` are sorted by start. Blocks that live in all steps go to the bottom. Each other one
    is only compared with blocks that are alive when it starts or start before it ends, so short
    lifetimes cost little.
    """
    floor = 0
    passing: list[Block] = []
    for block in blocks:
        if block.start == BEFORE and block.end == FOREVER:
            block.offset = floor
            floor += block.size
        else:
            passing.append(block)
    starts = [block.start for block in passing]
    size = peak = floor
    rivals: dict[Block, list[Block]] = {}
    alive: list[Block] = []
    for i, block in enumerate(passing):
        alive = [b for b in alive if b.end >= block.start]
        rivals[block] = alive + passing[i + 1 : bisect_right(starts, block.end)]
        alive.append(block)
        peak = max(peak, floor + sum(b.size for b in alive))
    for block in sorted(passing, key=lambda b: -b.size):
        taken = [(b.offset, b.offset + b.size) for b in rivals[block] if b.offset >= 0]
        block.offset = _best_fit(block.size, sorted(taken), floor)
        size = max(size, block.offset + block.size)
    return size, peak


def _best_fit(size: int, taken: list[tuple[int, int]], floor: int) -> int:
    """The offset of the tightest gap between ``taken`` (sorted byte ranges), or after them."""
    best, best_gap, free = -1, FOREVER, floor
    for start, end in taken:
        if size <= start - free < best_gap:
            best, best_gap = free, start - free
        free = max(free, end)
    return free if best < 0 else best
