"""A KV cache: the keys and values of some layers, and the cells of each sequence.

    kv = KVCache(hparams, n_cells=1024, n_seq_max=2)
    cells, places = kv.place([0, 0], [5, 6])       # operations on sequences: see ``CellLists``
    kv.k[3]                                        # F16 [head_dim, n_cells, n_head_kv]

Keys and values of a layer are in the memory of the device that computes the layer. The lists of
cells are on the host; each device has a copy for attention, which ``update_tables`` updates with
the changed entries. The system commits memory when a cell is first written. Not thread-safe.
Source: llama.cpp, ``llama_kv_cache``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from pyggml.alloc import alloc_ctx_tensors
from pyggml.buffer import HOST
from pyggml.context import Context
from pyggml.dtype import GGMLType, row_size
from pyggml.errors import AllocError
from pyggml.host import advise_hugepages, available_memory
from pyggml.tensor import Buffer, BufferType, Tensor

from ..errors import BatchError
from ..hparams import HParams
from .cells import CellLists
from .table import CHUNK, MAX_BRANCHES, Ints

Bytes = npt.NDArray[np.uint8]
_HUGE_PAGES = 64 << 20  # bytes: larger caches may stay mostly unused, so they get small pages
_MIN_ROTATION = 64  # elements; enough for values, larger transforms do not improve them


class KVCache(CellLists):
    """Keys and values of some layers.

    Args:
        n_cells: number of cells.
        type_k, type_v: types of keys and values, of ``pyggml.ops.attention.attention.KV_TYPES``.
        layers: layers of the model; None for all.
        window: positions that a token attends to, its own included; 0 for all before it.
        unified: whether sequences share the cells; otherwise each has an equal part.
        n_ubatch: maximum tokens placed at once.
        layer_buft: the buffer type of a layer's keys and values.

    Attributes:
        k, v: by layer, [head_dim, n_cells, n_head_kv]: the rows of one head are contiguous.
        rotate_k, rotate_v: size of the Hadamard transform of a head's elements before they are
            stored, which spreads outliers over quantized blocks; 0 for none.
        cells: I32 [2, n_cells, n_seq_max], each sequence's (cell, position) ordered by position,
            in host memory.
        branches: I32 [2, n, MAX_BRANCHES], (cell, position) of branches of trees, in host memory.

    Raises:
        AllocError: the cache does not fit into this machine's memory.
        BatchError: the blocks of a type do not divide the columns of a head.
    """

    def __init__(
        self,
        hparams: HParams,
        n_cells: int,
        n_seq_max: int = 1,
        type_k: GGMLType = GGMLType.F16,
        type_v: GGMLType = GGMLType.F16,
        *,
        layers: Sequence[int] | None = None,
        window: int = 0,
        unified: bool = True,
        n_ubatch: int = 512,
        layer_buft: Callable[[int], BufferType] = lambda layer: HOST,
    ) -> None:
        self.rotate_k = _rotation_size(type_k, hparams.head_dim, hparams.head_dim)
        self.rotate_v = _rotation_size(type_v, hparams.head_dim, _MIN_ROTATION)
        self.layers = tuple(range(hparams.n_layer) if layers is None else layers)
        types = {"k": type_k, "v": type_v}
        for x, type in types.items():
            if hparams.head_dim % type.block_size:
                raise BatchError(
                    f"type_{x} is {type.name}, whose blocks are {type.block_size} long, but heads "
                    f"of this model have {hparams.head_dim} columns; use F16"
                )
        row = sum(row_size(type, hparams.head_dim) for type in types.values())
        self._bufts = {i: layer_buft(i) for i in self.layers}
        sizes_bytes = {i: row * hparams.n_head_kv_arr[i] * n_cells for i in self.layers}
        self.size_bytes = sum(sizes_bytes.values())
        host_bytes = sum(n for i, n in sizes_bytes.items() if self._bufts[i].is_host)
        _check_memory(host_bytes + 8 * n_cells * n_seq_max, n_cells, n_seq_max)
        self._contexts = {buft: Context(no_alloc=True) for buft in (HOST, *self._bufts.values())}
        sizes = {
            "cells": (2, n_cells, n_seq_max),
            "branches": (2, min(n_cells, CHUNK + n_ubatch), MAX_BRANCHES),
        }
        self.cells, self.branches = self._new_tables(HOST, sizes, window)
        self._tables = {
            buft: self._new_tables(buft, sizes, window)
            for buft in self._contexts
            if not buft.is_host
        }
        shapes = {i: (hparams.head_dim, n_cells, hparams.n_head_kv_arr[i]) for i in self.layers}
        self.k, self.v = (
            {
                i: self._contexts[self._bufts[i]]
                .new_tensor(type, shapes[i])
                .set_name(f"cache_{x}_l{i}")
                for i in self.layers
            }
            for x, type in types.items()
        )
        for buft, ctx in self._contexts.items():
            buffer = alloc_ctx_tensors(ctx, buft)
            if buffer.mem is not None and buffer.size <= _HUGE_PAGES:
                advise_hugepages(buffer.mem)
        arrays = (table.numpy(squeeze=False)[0] for table in (self.cells, self.branches))
        super().__init__(*arrays, window=window, unified=unified, mirrored=bool(self._tables))

    def _new_tables(
        self, buft: BufferType, sizes: dict[str, tuple[int, int, int]], window: int
    ) -> tuple[Tensor, Tensor]:
        swa = "_swa" if window else ""
        cells, branches = (
            self._contexts[buft].new_tensor(GGMLType.I32, ne).set_name(f"cache_{name}{swa}")
            for name, ne in sizes.items()
        )
        return cells, branches

    def tables(self, layer: int) -> tuple[Tensor, Tensor]:
        """``cells`` and ``branches``, or their copies in the memory of the layer's device."""
        return self._tables.get(self._bufts[layer], (self.cells, self.branches))

    def update_tables(self) -> None:
        """Copy the entries changed since the last call to the devices' tables."""
        changed = [
            *((0, seq, first, end) for seq, first, end in self.changed_entries()),
            *((1, branch, 0, end) for branch, end in self.changed_branches()),
        ]
        for which, number, first, end in changed:
            lists = (self._lists, self._branches)[which]
            entries = np.ascontiguousarray(lists[number, first:end])
            offset = 8 * (number * lists.shape[1] + first)
            for tables in self._tables.values():
                table = tables[which]
                _buffer(table).set_tensor(table, entries.reshape(-1).view(np.uint8), offset)

    def read_cells(self, tensor: Tensor, cells: Ints) -> Bytes:
        """A copy of the bytes of ``cells`` in ``k[i]`` or ``v[i]``: uint8[n_head_kv, n, bytes]."""
        buffer = _buffer(tensor)
        if buffer.buft.is_host:
            return self._host_cells(tensor)[:, cells]
        out = np.empty((tensor.ne[2], len(cells), tensor.nb[1]), np.uint8)
        for first, start, n in _runs(cells):
            for head in range(tensor.ne[2]):
                offset = head * tensor.nb[2] + start * tensor.nb[1]
                data = buffer.get_tensor(tensor, offset, n * tensor.nb[1])
                out[head, first : first + n] = data.reshape(n, -1)
        return out

    def write_cells(self, tensor: Tensor, cells: Ints, values: Bytes) -> None:
        """Write bytes from ``read_cells`` into ``cells``."""
        buffer = _buffer(tensor)
        if buffer.buft.is_host:
            self._host_cells(tensor)[:, cells] = values
            return
        for first, start, n in _runs(cells):
            for head in range(tensor.ne[2]):
                data = np.ascontiguousarray(values[head, first : first + n]).reshape(-1)
                offset = head * tensor.nb[2] + start * tensor.nb[1]
                buffer.set_tensor(tensor, data, offset)

    def copy_cells(self, runs: Sequence[tuple[int, int, int]]) -> list[Tensor]:
        """Copy keys and values in host memory; returns those on devices, which are left.

        Args:
            runs: (first source cell, first target cell, length).
        """
        on_devices = []
        for tensor in (*self.k.values(), *self.v.values()):
            if not _buffer(tensor).buft.is_host:
                on_devices.append(tensor)
                continue
            rows = self._host_cells(tensor)
            for source, target, n in runs:
                rows[:, target : target + n] = rows[:, source : source + n]
        return on_devices

    def _host_cells(self, tensor: Tensor) -> Bytes:
        """A view of the bytes of ``k[i]`` or ``v[i]``: uint8[n_head_kv, n_cells, bytes]."""
        rows: Bytes = tensor.bytes().reshape(tensor.ne[2], self.n_cells, -1)
        return rows


def cell_runs(source: Ints, target: Ints) -> list[tuple[int, int, int]]:
    """Pairs of cells as runs (first source, first target, length) of consecutive cells."""
    breaks = np.flatnonzero((np.diff(source) != 1) | (np.diff(target) != 1)) + 1
    starts = [0, *breaks.tolist()]
    ends = [*breaks.tolist(), len(source)]
    return [
        (int(source[a]), int(target[a]), b - a) for a, b in zip(starts, ends, strict=True) if b > a
    ]


def _runs(cells: Ints) -> list[tuple[int, int, int]]:
    """Runs of consecutive cells as (index of the first, its cell, length)."""
    order = np.arange(len(cells), dtype=np.int32)
    return [(first, start, n) for start, first, n in cell_runs(np.asarray(cells), order)]


def _buffer(tensor: Tensor) -> Buffer:
    assert tensor.buffer is not None
    return tensor.buffer


def _rotation_size(type: GGMLType, head_dim: int, max_size: int) -> int:
    """The largest power of two up to ``max_size`` that divides a head; 0 if too small or F16.

    Source: llama.cpp, the rotation of quantized caches.
    """
    if not type.is_quantized or head_dim % _MIN_ROTATION:
        return 0
    return min(max_size, head_dim & -head_dim)


def _check_memory(size: int, n_cells: int, n_seq_max: int) -> None:
    have = available_memory()
    if have is not None and size > have:
        raise AllocError(
            f"a context of {n_cells} tokens and {n_seq_max} sequences needs {size} bytes "
            f"({size / 2**30:.2f} GiB) of KV cache, this machine has {have / 2**30:.2f} GiB free; "
            f"choose a smaller `n_ctx`"
        )
