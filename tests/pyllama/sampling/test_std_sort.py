"""The steps of `std::sort` give the recorded orders of libstdc++ (g++ 12), with ties and NaN."""

from __future__ import annotations

import zlib
from typing import Any

import numpy as np
import pytest
from numba import types

from pyggml.compiler.jit import jitted
from pyggml.compiler.pointers import f32_ptr, i64_ptr
from pyllama.sampling.std_sort import SMALL, heap_sort, insertion_sort, partition

N, DEPTH = 600, 18  # twice the logarithm of N
INDEX = np.arange(N)


@jitted(types.int64(*[types.int64] * 4))
def sort(keys: Any, order: Any, stack: Any, n: Any) -> Any:
    """Sort all positions; returns how many parts were sorted by a heap."""
    keys, order, stack = f32_ptr(keys), i64_ptr(order), i64_ptr(stack)
    first, last, depth, n_waiting, n_heaps = 0, n, DEPTH, 0, 0
    while first < n:
        while last - first > SMALL:
            if depth == 0:
                heap_sort(keys, order, first, last)
                n_heaps += 1
                break
            depth -= 1
            stack[2 * n_waiting], stack[2 * n_waiting + 1] = last, depth
            n_waiting += 1
            last = partition(keys, order, first, last)
        insertion_sort(keys, order, first, last)
        first = last
        if n_waiting > 0:
            n_waiting -= 1
            last, depth = stack[2 * n_waiting], stack[2 * n_waiting + 1]
    return n_heaps


@pytest.mark.parametrize(
    ("keys", "crc", "uses_heap"),
    [
        (INDEX * 7919 % 11, 3676442533, False),
        (np.full(N, np.nan), 3130120879, False),
        (np.abs(INDEX - 200) // 3, 564034382, False),
        # the worst case of a median of three
        (
            np.where(
                INDEX < N // 2, INDEX + np.where(INDEX % 2 == 0, 1, N // 2), 2 * INDEX - N + 2
            ),
            1803518125,
            True,
        ),
    ],
    ids=["equal keys", "NaN", "valley", "many partitions"],
)
def test_orders(keys: Any, crc: int, uses_heap: bool) -> None:
    keys, order = keys.astype(np.float32), np.arange(N)
    stack = np.empty(2 * N, np.int64)
    n_heaps = sort(keys.ctypes.data, order.ctypes.data, stack.ctypes.data, N)
    assert zlib.crc32(order.astype(np.int32).tobytes()) == crc
    assert (n_heaps > 0) == uses_heap
