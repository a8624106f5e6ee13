"""The steps of libstdc++'s ``std::sort``, for equal orders of equal keys in compiled functions.

    while last - first > SMALL:             # as std::sort, but the right part can wait
        last = partition(keys, order, first, last)
    insertion_sort(keys, order, first, last)

Positions in ``order`` are sorted by ascending ``keys``, an array of float32. The result for NaN and
for equal keys, which C++ leaves open, is that of libstdc++.
"""

from __future__ import annotations

from typing import Any

from pyggml.compiler.jit import inline_strict

SMALL = 16  # parts of this size are not partitioned


@inline_strict
def partition(keys: Any, order: Any, first: Any, last: Any) -> Any:
    """Partition by the median of three; returns the end of the left part.

    Source: libstdc++ stl_algo.h, `__unguarded_partition_pivot`.
    """
    a, b, c = first + 1, first + (last - first) // 2, last - 1
    key_a, key_b, key_c = keys[order[a]], keys[order[b]], keys[order[c]]
    if key_a < key_b:
        median = b if key_b < key_c else (c if key_a < key_c else a)
    else:
        median = a if key_a < key_c else (c if key_b < key_c else b)
    order[first], order[median] = order[median], order[first]
    pivot, left, right = keys[order[first]], first + 1, last
    while True:
        while keys[order[left]] < pivot:
            left += 1
        right -= 1
        while pivot < keys[order[right]]:
            right -= 1
        if left >= right:
            return left
        order[left], order[right] = order[right], order[left]
        left += 1


@inline_strict
def insertion_sort(keys: Any, order: Any, first: Any, last: Any) -> Any:
    """Sort a small part, stably.

    Source: libstdc++ stl_algo.h, `__insertion_sort`.
    """
    for i in range(first + 1, last):
        moved, j = order[i], i
        key = keys[moved]
        while j > first and key < keys[order[j - 1]]:
            order[j] = order[j - 1]
            j -= 1
        order[j] = moved


@inline_strict
def heap_sort(keys: Any, order: Any, first: Any, last: Any) -> Any:
    """The sort of a part after too many partitions.

    Source: libstdc++ stl_heap.h, `__make_heap` and `__sort_heap`.
    """
    size = last - first
    for parent in range((size - 2) // 2, -1, -1):
        _adjust_heap(keys, order, first, parent, size, order[first + parent])
    for end in range(last - 1, first, -1):
        moved = order[end]
        order[end] = order[first]
        _adjust_heap(keys, order, first, 0, end - first, moved)


@inline_strict
def _adjust_heap(keys: Any, order: Any, first: Any, hole: Any, size: Any, moved: Any) -> Any:
    """Move a hole of the heap to a leaf, then up to the place of ``moved``."""
    top, child = hole, hole
    while child < (size - 1) // 2:
        child = 2 * (child + 1)
        if keys[order[first + child]] < keys[order[first + child - 1]]:
            child -= 1
        order[first + hole] = order[first + child]
        hole = child
    if size % 2 == 0 and child == (size - 2) // 2:
        child = 2 * child + 1
        order[first + hole] = order[first + child]
        hole = child
    parent = (hole - 1) // 2
    while hole > top and keys[order[first + parent]] < keys[moved]:
        order[first + hole] = order[first + parent]
        hole = parent
        parent = (hole - 1) // 2
    order[first + hole] = moved
