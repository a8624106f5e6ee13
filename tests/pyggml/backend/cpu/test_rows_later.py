"""The order in which rows of the cache are prefetched."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import numpy.typing as npt
from numba import types

from pyggml.backend.cpu.abi import i64_ptr
from pyggml.backend.cpu.simd.attention.rows_later import PARTS, cell_later
from pyggml.compiler.jit import intrinsic_from_ir, kernel


@intrinsic_from_ir(result=types.int64)
def later(b: Any, cells: Any, n: Any, i: Any, nb: Any) -> Any:
    return cell_later(b, cells, n, i, nb)


@kernel
def all_later(cells, n, count, nb, out):  # type: ignore[no-untyped-def]
    for i in range(count):
        i64_ptr(out)[i] = later(cells, n, i, nb)


def order(cells: npt.NDArray[np.int64], n: int, count: int, nb: int) -> npt.NDArray[np.int64]:
    out = np.zeros(count, np.int64)
    call = ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * 5)(all_later.address)
    call(cells.ctypes.data, n, count, nb, out.ctypes.data)
    return out


def test_every_row_once_and_long_ones_of_each_part_in_turn() -> None:
    cells = np.arange(1000, 1256)
    for n in (*range(1, 40), 255, 256):
        count = -(-n // PARTS) * PARTS
        some = order(cells, n, count, 256)
        assert sorted(some) == [*cells[:count]]
        assert (np.diff(some.reshape(-1, PARTS)) == count // PARTS).all()
        assert [*order(cells, n, count, 68)] == [*cells[:count]]
