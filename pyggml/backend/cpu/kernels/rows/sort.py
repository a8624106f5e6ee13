"""ARGSORT and TOP_K: an element and its index are sorted as one int64.

The high half orders like the float (or in reverse), the low half is the index. So all keys differ,
and any sorting algorithm gives the stable order. ARGSORT is a merge sort between two buffers in
thread scratch; TOP_K keeps a heap of the k best. A row is computed by one thread.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from .....compiler.jit import inline_strict, kernel
from .....tensor import Tensor
from ...abi import DST, SRC0, first_row, i64_ptr, ne, nrows, params_of, row_address
from ...compile.lowering import CpuLowering, lowers
from ...simd.element import F32, I32, load_elem, store_elem
from .reduce import order_key

_LOW = (1 << 32) - 1
ASC, DESC = range(2)


class ArgSort(NamedTuple):
    """The values of ARGSORT."""

    order: int  # ASC or DESC


@inline_strict
def ranked(order, x, i):
    """The sort key of element ``i`` of a row: the smallest comes first."""
    key = np.int64(order_key(load_elem(F32, x, i)))
    key = ~key if order == DESC else key
    return (key << 32) | i


@inline_strict
def _merge(source, target, begin, middle, end):
    """Merge two sorted runs of ``source`` into ``target``."""
    i, j = begin, middle
    for k in range(begin, end):
        if j >= end or (i < middle and source[i] < source[j]):
            target[k] = source[i]
            i += 1
        else:
            target[k] = source[j]
            j += 1


@kernel
def argsort_f32(node, chunk, n_chunks, scratch):
    """Scratch: two int64 a column."""
    n, rows, order = ne(node, DST, 0), nrows(node, DST), params_of(node, ArgSort).order
    for row in range(first_row(rows, chunk, n_chunks), first_row(rows, chunk + 1, n_chunks)):
        x, y = row_address(node, SRC0, row), row_address(node, DST, row)
        source, target = i64_ptr(scratch), i64_ptr(scratch + 8 * n)
        for i in range(n):
            source[i] = ranked(order, x, i)
        width = 1
        while width < n:
            for begin in range(0, n, 2 * width):
                middle = min(n, begin + width)
                _merge(source, target, begin, middle, min(n, middle + width))
            source, target = target, source
            width *= 2
        for i in range(n):
            store_elem(I32, y, i, np.int32(source[i] & _LOW))


@inline_strict
def _sink(heap, i, n):
    """Sift element ``i`` down in a max-heap of ``n`` elements."""
    value = heap[i]
    while 2 * i + 1 < n:
        child = 2 * i + 1
        if child + 1 < n and heap[child + 1] > heap[child]:
            child += 1
        if heap[child] <= value:
            break
        heap[i] = heap[child]
        i = child
    heap[i] = value


@kernel
def top_k_f32(node, chunk, n_chunks, scratch):
    """Scratch: one int64 for each of the k."""
    n, k, rows = ne(node, SRC0, 0), ne(node, DST, 0), nrows(node, DST)
    heap = i64_ptr(scratch)
    for row in range(first_row(rows, chunk, n_chunks), first_row(rows, chunk + 1, n_chunks)):
        x, y = row_address(node, SRC0, row), row_address(node, DST, row)
        for i in range(k):
            heap[i] = ranked(DESC, x, i)
        for i in range(k // 2):
            _sink(heap, k // 2 - 1 - i, k)
        for i in range(k, n):
            value = ranked(DESC, x, i)
            if value < heap[0]:
                heap[0] = value
                _sink(heap, 0, k)
        for i in range(k):
            last = k - 1 - i
            store_elem(I32, y, last, np.int32(heap[0] & _LOW))
            heap[0] = heap[last]
            _sink(heap, 0, last)


def _chunks(lowering: CpuLowering, x: Tensor) -> int:
    return lowering.row_chunks(x, 512)


@lowers("ARGSORT")
def _lower_argsort(lowering: CpuLowering, node: Tensor) -> None:
    order = ASC if node.op_params["order"] == "asc" else DESC
    lowering.launch(
        argsort_f32, node, ArgSort(order), _chunks(lowering, node), scratch=16 * node.ne[0]
    )


@lowers("TOP_K")
def _lower_top_k(lowering: CpuLowering, node: Tensor) -> None:
    chunks = _chunks(lowering, node.src[0])
    lowering.launch(top_k_f32, node, chunks=chunks, scratch=8 * node.ne[0])
