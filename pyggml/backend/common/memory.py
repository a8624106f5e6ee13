"""Which bytes tensors are in, and whether a kernel may write some while it reads others."""

from __future__ import annotations

from collections.abc import Sequence

from ...tensor import Tensor

Range = tuple[int, int]  # first byte, byte after the last


def byte_range(tensor: Tensor) -> Range:
    """The bytes from a tensor's first to its last element, gaps included."""
    return tensor.data, tensor.data + tensor.nbytes


def any_overlap(some: Sequence[Range], others: Sequence[Range]) -> bool:
    """Whether a range of the one overlaps a range of the other."""
    for start, end in some:
        for first, last in others:
            if start < last and first < end:
                return True
    return False


def overlap(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors share bytes."""
    return any_overlap([byte_range(a)], [byte_range(b)])


def may_write_over(dst: Tensor, src: Tensor) -> bool:
    """Whether a fused kernel may read ``src`` and write ``dst`` row by row.

    It may if they do not overlap, or are the same elements. The allocator guarantees that only for
    sources of the last node of a pattern.
    """
    same = dst.data == src.data and dst.ne == src.ne and dst.nb == src.nb
    return same or not overlap(dst, src)
