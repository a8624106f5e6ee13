"""Attention over lists of cells with one wrong number in them, for the tests of backends.

graph, node = attention(backend, 5, FAULTS["a cell"])
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

import pyggml as ops
from pyggml.alloc import alloc_ctx_tensors
from pyggml.backend.interface import Backend
from pyggml.cgraph import CGraph
from pyggml.context import Context
from pyggml.dtype import GGMLType
from pyggml.tensor import Tensor

Ints = npt.NDArray[np.int32]
N_CELLS, N_LIST, N_ENTRIES, CUT = 340, 300, 40, 256
Change = Callable[[Ints, Ints, Ints], Any]  # of cells, rows and branches
SEQ, BEGIN, END, POS, AT, BRANCH = range(6)  # of a row


def _set(array: Ints, place: Any, value: Any) -> None:
    array[place] = value


_LEAST, _MOST = (-1 << 31, -1 << 31), (1 << 31) - 1
FAULTS: dict[str, Change] = {
    "sequence": lambda cells, rows, branches: _set(rows, (0, SEQ), 2),
    "negative sequence": lambda cells, rows, branches: _set(rows, (0, SEQ), -1),
    "begin": lambda cells, rows, branches: _set(rows, (0, BEGIN), -1),
    "end": lambda cells, rows, branches: _set(rows, (0, END), N_LIST + 1),
    "far end": lambda cells, rows, branches: _set(rows, (0, END), 1 << 20),
    "all of a row": lambda cells, rows, branches: _set(rows, 0, (*_LEAST, _MOST, 0, 0, 0)),
    "branch": lambda cells, rows, branches: _set(rows, (1, BRANCH), 3),
    "negative branch": lambda cells, rows, branches: _set(rows, (1, BRANCH), -1),
    "cut": lambda cells, rows, branches: _set(rows, (1, AT), CUT + 4),
    "negative cut": lambda cells, rows, branches: _set(rows, (1, AT), -CUT),
    "early cut": lambda cells, rows, branches: _set(rows, (1, AT), 0),
    "a cell": lambda cells, rows, branches: _set(cells, (0, 7, 0), N_CELLS),
    "a negative cell": lambda cells, rows, branches: _set(cells, (0, 7, 0), -1),
    "a cell far away": lambda cells, rows, branches: _set(cells, (0, 9, 0), 1 << 30),
    "the last cell": lambda cells, rows, branches: _set(cells, (0, N_LIST - 1, 0), N_CELLS),
    "a cell of a branch": lambda cells, rows, branches: _set(branches, (0, 3, 0), N_CELLS),
}


def _no_begin(cells: Ints, rows: Ints, branches: Ints) -> None:
    """Entries before the least begin."""
    rows[rows[:, END] > 0, BEGIN] = 70
    cells[:, :70] = 1 << 30


HARMLESS: dict[str, Change] = {
    "none": lambda cells, rows, branches: None,
    "padding": lambda cells, rows, branches: _set(rows, 2, (9, 1 << 30, -(1 << 30), 0, 77, -3)),
    "padding at an entry": lambda cells, rows, branches: _set(rows, 2, (1, 40, 40, 0, 0, 0)),
    "entries before": _no_begin,
    "entries after": lambda cells, rows, branches: _set(branches, (0, slice(34, None)), -1),
    "another list": lambda cells, rows, branches: _set(cells, 1, -1),
}


def attention(
    backend: Backend,
    n_tokens: int,
    change: Change,
    *,
    n_head: int = 1,
    columns: tuple[int, int] = (32, 32),
) -> tuple[CGraph, Tensor]:
    """Attention of tokens of sequence 0: token 1 is on a branch, token 2 is padding.

    Args:
        n_tokens: at least 3.
        change: makes a mistake in the lists.
        columns: of keys and values; values of fewer columns are the first ones of their keys.
    """
    rng = np.random.default_rng(0)
    cells, branches = np.zeros((2, N_LIST, 2), np.int32), np.zeros((2, N_ENTRIES, 2), np.int32)
    for lists in (cells, branches):
        for one in lists:
            one[:, 0], one[:, 1] = rng.permutation(N_CELLS)[: len(one)], np.arange(len(one))
    rows = np.zeros((n_tokens, 6), np.int32)
    rows[:, END] = N_LIST - np.arange(n_tokens)
    rows[1] = (0, 0, CUT + 34, CUT + 33, CUT, 1)
    rows[2] = 0
    change(cells, rows, branches)
    ctx = Context(no_alloc=True)
    hd, hdv = columns
    shapes = ((hd, n_tokens, n_head), (hd, N_CELLS, 1), (hdv, N_CELLS, 1))[: 3 if hd == hdv else 2]
    types = (GGMLType.F32, GGMLType.F16, GGMLType.F16)
    values: list[tuple[Tensor, npt.NDArray[Any]]] = []
    for type, ne in zip(types, shapes, strict=False):
        x = rng.standard_normal(ne[::-1]).astype(np.float16)
        values.append((ctx.new_tensor_3d(type, *ne), x))
    for lists in (cells, rows, branches):
        ne = lists.shape[::-1]
        values.append((ctx.new_tensor(GGMLType.I32, ne), lists))
    tensors, data = zip(*values, strict=True)
    q, k, *more = tensors
    v = more[0] if hd == hdv else ops.view_3d(ctx, k, (hdv, N_CELLS, 1), k.nb[1:3], 0)
    node = ops.flash_attn_cells(ctx, q, k, v, *more[-3:-1], 0.2, branches=more[-1])
    alloc_ctx_tensors(ctx, backend.buffer_type())
    for tensor, x in zip(tensors, data, strict=True):
        tensor.set(x)
    graph = CGraph()
    graph.build_forward_expand(node.set_name("attended"))
    return graph, node
