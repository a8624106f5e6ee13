"""The k largest logits of a vocabulary, sorted.

    top_positions(logits, 40)       # of 49152: int32[40]

Compiled; reads all logits once. They are seen as a grid in row order: the k-th largest of the
columns' maxima is a lower bound of the k-th largest logit, so only columns whose maximum reaches it
are read again. (Neighbouring ids often have high logits together, so rows would give worse bounds.)
A key combines rank and position in one integer, so that all keys differ.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import types
from numpy.typing import NDArray

from pyggml.compiler.jit import inline_strict, jitted
from pyggml.compiler.pointers import f32_ptr, i32_ptr, i64_ptr
from pyggml.rounding import ceil_div

Floats = NDArray[np.float32]
Positions = NDArray[np.signedinteger[Any]]

_MAX_ROWS, _MIN_ROWS = 64, 4  # of the grid
_COLUMNS = 4  # minimum columns per k; with fewer too many logits reach the bound
_MAGNITUDE = 0x7FFFFFFF  # of float32's bits
INF_RANK = 0x7F800000  # the rank of -inf and NaN
POSITION = 0xFFFFFFFF  # of a key


def top_positions(logits: Floats, k: int) -> Positions:
    """Positions of the k largest values, in the order of a stable descending sort.

    Args:
        logits: float32[n]; NaN counts as -inf.
        k: at least 1; all values if k >= n.
    """
    return _top_keys(np.ascontiguousarray(logits, np.float32), k).view(np.int32)[::2]


def top_pairs(logits: Floats, k: int) -> tuple[NDArray[np.int32], Floats]:
    """`top_positions`, and the values there."""
    logits = np.ascontiguousarray(logits, np.float32)
    keys = _top_keys(logits, k)
    positions, values = np.empty(keys.size, np.int32), np.empty(keys.size, np.float32)
    addresses = [x.ctypes.data for x in (keys, logits, positions, values)]
    _unpack(*addresses, keys.size)
    return positions, values


def _top_keys(logits: Floats, k: int) -> NDArray[np.int64]:
    k = min(k, logits.size)
    n_columns = columns(logits.size, k)
    keys = work_memory(logits.size, k, n_columns)
    count = _gather(logits.ctypes.data, logits.size, k, n_columns, keys.ctypes.data)
    keys = keys[:count] if count >= 0 else _exact_keys(logits, k)
    if keys.size > 2 * k:
        keys.partition(k - 1)
        keys = keys[:k]
    keys.sort()
    return keys[:k]


def columns(n: int, k: int) -> int:
    """The number of columns of the grid of n values; 0 if k is too large for a grid."""
    n_columns = max(ceil_div(n, _MAX_ROWS), _COLUMNS * k)
    return n_columns if n_columns * _MIN_ROWS <= n else 0


def work_memory(n: int, k: int, n_columns: int) -> NDArray[np.int64]:
    """Work memory of `gather`: the keys, then an int32 per column."""
    return np.empty(2 * k + n_columns // 2 + 1 if n_columns else n, np.int64)


def _exact_keys(logits: Floats, k: int) -> NDArray[np.int64]:
    """The keys of the k largest values, the first of equal ones."""
    bits = logits.view(np.int32)
    magnitude = bits & np.int32(_MAGNITUDE)
    ranks = np.where(bits < 0, magnitude, -magnitude)
    ranks[magnitude > INF_RANK] = INF_RANK
    bound = np.partition(ranks, k - 1)[k - 1]
    larger, equal = (ranks < bound).nonzero()[0], (ranks == bound).nonzero()[0]
    positions = np.concatenate([larger, equal[: k - larger.size]])
    keys: NDArray[np.int64] = ranks[positions].astype(np.int64) << 32 | positions
    return keys


@inline_strict
def gather(logits: Any, n: Any, k: Any, n_columns: Any, keys: Any) -> Any:
    """Gather the keys of at least the k largest logits, unsorted; of all if ``n_columns`` is 0.

    Args:
        logits: address of n logits, at least k.
        keys: address of `work_memory`.

    Returns:
        The number of keys; -1 if more than 2 k logits reach the bound, as if many are equal.
    """
    bits, least, keys = i32_ptr(logits), i32_ptr(keys + 16 * k), i64_ptr(keys)
    if n_columns == 0:
        for i in range(n):
            keys[i] = np.int64(rank_of(bits[i])) << 32 | i
        return n
    for j in range(n_columns):
        least[j] = INF_RANK
    for first in range(0, n, n_columns):
        for j in range(min(n_columns, n - first)):
            least[j] = min(least[j], rank_of(bits[first + j]))
    bound, count = _kth(least, n_columns, k), 0
    few = bound == INF_RANK  # most logits may be -inf, after a grammar
    bound = min(bound, INF_RANK - 1)
    for column in range(n_columns):
        if least[column] <= bound:
            for i in range(column, n, n_columns):
                rank = rank_of(bits[i])
                if rank <= bound:
                    if count == 2 * k:
                        return -1
                    keys[count] = np.int64(rank) << 32 | i
                    count += 1
    if few:
        if count == 0:
            return -1
        for i in range(n):
            if count >= k:
                break
            if rank_of(bits[i]) == INF_RANK:
                keys[count] = np.int64(INF_RANK) << 32 | i
                count += 1
    return count


@inline_strict
def rank_of(bits: Any) -> Any:
    """A float's bits (sign and magnitude) as an int32 that descends as the float ascends."""
    magnitude = np.int32(bits & _MAGNITUDE)
    rank = magnitude if bits < 0 else np.int32(-magnitude)
    return rank if magnitude <= INF_RANK else np.int32(INF_RANK)


@inline_strict
def _kth(ranks: Any, n: Any, k: Any) -> Any:
    """The k-th smallest of n ranks, by bisection; counting needs no unpredictable branches."""
    low, high = -INF_RANK, INF_RANK
    while low < high:
        middle, count = (low + high) >> 1, 0
        for i in range(n):
            count += ranks[i] <= np.int32(middle)
        if count >= k:
            high = middle
        else:
            low = middle + 1
    return np.int32(high)


@inline_strict
def sort_keys(keys: Any, n: Any) -> Any:
    """Shell sort: short code, fast for a few hundred keys."""
    gap = n // 2
    while gap > 0:
        for i in range(gap, n):
            key, j = keys[i], i
            while j >= gap and keys[j - gap] > key:
                keys[j] = keys[j - gap]
                j -= gap
            keys[j] = key
        gap //= 2


@jitted(types.void(*[types.int64] * 5), nogil=False)
def _unpack(keys: Any, logits: Any, positions: Any, values: Any, n: Any) -> None:
    keys, logits = i64_ptr(keys), f32_ptr(logits)
    positions, values = i32_ptr(positions), f32_ptr(values)
    for i in range(n):
        position = keys[i] & POSITION
        positions[i], values[i] = position, logits[position]


@jitted(types.int64(*[types.int64] * 5), nogil=False)
def _gather(logits: Any, n: Any, k: Any, n_columns: Any, keys: Any) -> Any:
    return gather(logits, n, k, n_columns, keys)
