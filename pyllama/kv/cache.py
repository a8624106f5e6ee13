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

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

import numpy as np
import numpy.typing as npt

from pyggml.alloc import alloc_ctx_tensors
from pyggml.buffer import HOST
from pyggml.context import Context
from pyggml.dtype import GGMLType, row_size
from pyggml.errors import AllocError
from pyggml.host import advise_hugepages, available_memory
from pyggml.tensor import Buffer, BufferType, Tensor

from ..errors import BatchError, ContextFull
from ..hparams import HParams
from .cells import CellLists
from .evicted import EvictedChunk, EvictedEntries
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
        n_checkpoints: the most positions of a sequence that a window can go back to.
        layer_buft: the buffer type of a layer's keys and values.
        n_before: by layer, rows before the cells, which are those of a cache of compressed rows.
        of_tokens: the cache whose tensors have the rows of this one before its own cells.

    Attributes:
        k, v: by layer, [head_dim, n_cells, n_head_kv]: the rows of one head are contiguous. Values
            that are the first columns of keys (``values_in_keys``) are views of these.
        indexer_keys: by layer [n, n_cells], keys of the indexer that chooses a token's keys, in
            host memory, F16 where keys are quantized; empty where tokens attend to all keys.
        stored: the tensors of keys and values that have memory of their own, ``indexer_keys``, and
            ``hidden``.
        hidden: F32 [n, n_cells], hidden states of the tokens for a head that drafts; None if they
            are not kept.
        rotate_k, rotate_v: size of the Hadamard transform of a head's elements before they are
            stored, which spreads outliers over quantized blocks; 0 for none.
        cells: I32 [2, n_cells, n_seq_max], each sequence's (cell, position) ordered by position,
            in host memory.
        branches: I32 [2, n, MAX_BRANCHES], (cell, position) of branches of trees, in host memory.
        kept: checkpoints of a window, and evicted entries that they need.

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
        n_checkpoints: int = 0,
        layer_buft: Callable[[int], BufferType] = lambda layer: HOST,
        n_before: Mapping[int, int] = MappingProxyType({}),
        of_tokens: KVCache | None = None,
    ) -> None:
        self.layers = cached_layers(hparams) if layers is None else tuple(layers)
        types = {"k": type_k, "v": type_k if hparams.values_in_keys else type_v}
        columns = {
            "k": {i: hparams.head_dim_arr[i] for i in self.layers},
            "v": {i: hparams.head_dim_v_arr[i] for i in self.layers},
        }
        for x, type in types.items():
            for n in sorted({*columns[x].values()}):
                if n % type.block_size:
                    raise BatchError(
                        f"type_{x} is {type.name}, whose blocks are {type.block_size} long, but "
                        f"heads of this model have {n} columns; use F16"
                    )
        self.rotate_k = _rotation_size(type_k, {*columns["k"].values()})
        self.rotate_v = _rotation_size(types["v"], {*columns["v"].values()}, _MIN_ROTATION)
        if hparams.values_in_keys:
            self.rotate_k = self.rotate_v = min(self.rotate_k, self.rotate_v)
        self._bufts = {i: layer_buft(i) for i in self.layers}
        of_cell = {i: cell_bytes(hparams, i, type_k, type_v) for i in self.layers}
        host_bytes = sum(
            n * (n_cells + n_before.get(i, 0))
            for i, n in of_cell.items()
            if self._bufts[i].is_host and of_tokens is None
        )
        indexed = []
        if not window and hparams.chooses_keys(n_cells):
            indexed = [i for i in self.layers if hparams.indexer_layers[i]]
        index_ne = hparams.own.get("n_indexer_key", 0), n_cells
        index_type = GGMLType.F16 if type_k.is_quantized else type_k
        index_bytes = len(indexed) * n_cells * row_size(index_type, index_ne[0])
        host_bytes += index_bytes
        self.size_bytes = sum(n * n_cells for n in of_cell.values()) + index_bytes
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

        def new(x: str, layer: int) -> Tensor:
            n_rows = n_before.get(layer, 0) + n_cells
            ne = (columns[x][layer], n_rows, hparams.n_head_kv_arr[layer])
            tensor = self._contexts[self._bufts[layer]].new_tensor(types[x], ne)
            return tensor.set_name(f"cache_{x}_l{layer}")

        self.hidden: Tensor | None = None
        whole, whole_v = dict[int, Tensor](), dict[int, Tensor]()
        if of_tokens is None:
            whole = {i: new("k", i) for i in self.layers}
            whole_v = {} if hparams.values_in_keys else {i: new("v", i) for i in self.layers}
        self.indexer_keys = {
            i: self._contexts[HOST].new_tensor(index_type, index_ne).set_name(f"cache_index_l{i}")
            for i in indexed
        }
        for buft, ctx in self._contexts.items():
            buffer = alloc_ctx_tensors(ctx, buft)
            if buffer.mem is not None and buffer.size <= _HUGE_PAGES:
                advise_hugepages(buffer.mem)
        if hparams.values_in_keys:
            whole_v = {i: _first_columns(k, columns["v"][i]) for i, k in whole.items()}
        self._whole = {i: (k, whole_v[i]) for i, k in whole.items()}
        if of_tokens is not None:
            self._whole = {i: of_tokens.with_compressed(i) for i in self.layers}
        self.k, self.v = (
            {i: _rows(both[x], n_before.get(i, 0), n_cells) for i, both in self._whole.items()}
            for x in (0, 1)
        )
        values = () if hparams.values_in_keys else self.v.values()
        self.stored: tuple[Tensor, ...] = (
            *self.k.values(), *values, *self.indexer_keys.values()
        )  # fmt: skip
        arrays = (table.numpy(squeeze=False)[0] for table in (self.cells, self.branches))
        super().__init__(
            *arrays, window=window, chunked=hparams.swa_chunked, unified=unified,
            mirrored=bool(self._tables),
        )  # fmt: skip
        self.kept = EvictedEntries(n_seq_max, n_checkpoints if window else 0, self.window_start)

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

    def with_compressed(self, layer: int) -> tuple[Tensor, Tensor]:
        """Keys and values of a layer with the compressed rows before them, if it has any."""
        return self._whole[layer]

    def keep_hidden(self, n_columns: int) -> None:
        """Allocate ``hidden``, F32 [n_columns, n_cells]; rows of cells in use are 0."""
        ctx = Context(no_alloc=True)
        ne = (n_columns, self.n_cells)
        self.hidden = ctx.new_tensor(GGMLType.F32, ne).set_name("cache_hidden")
        alloc_ctx_tensors(ctx, HOST)
        self.stored = (*self.stored, self.hidden)

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

    def move_heads(self, tensor: Tensor, sources: Ints, cells: Ints) -> None:
        """Copy the rows of ``k[i]`` or ``v[i]`` to ``cells``, from other cells in each head.

        Args:
            sources: int32[n_head_kv, n], may overlap with ``cells``.
            cells: int32[n].
        """
        if _buffer(tensor).buft.is_host:
            rows = self._host_cells(tensor)
            rows[:, cells] = rows[np.arange(len(sources))[:, None], sources]
            return
        read, index = np.unique(sources, return_inverse=True)
        rows = self.read_cells(tensor, read.astype(np.int32))
        index = index.reshape(sources.shape)
        self.write_cells(tensor, cells, rows[np.arange(len(sources))[:, None], index])

    def _before_eviction(self, seq: int, n: int) -> None:
        entries = self.entries(seq)[:n]
        for start in range(0, n, CHUNK):
            cells, positions = entries[start : start + CHUNK].T.copy()
            if not self.pending.any and self.kept.needs(seq, positions):
                rows = [self.read_cells(tensor, cells) for tensor in self.stored]
                self.kept.add(seq, EvictedChunk(positions, rows))

    def go_back(self, seq: int, checkpoint: int) -> None:
        """Remove a sequence from a checkpoint on, and return the evicted entries in its window.

        Raises:
            ContextFull: too few cells are free; the sequence is removed.
        """
        chunks = self.kept.take(seq, checkpoint)
        self.seq_rm(seq, checkpoint)
        try:
            cells = self.prepend(seq, np.concatenate([one.positions for one in chunks]))
        except ContextFull:
            self.seq_rm(seq)
            raise
        for i, tensor in enumerate(self.stored):
            self.write_cells(tensor, cells, np.concatenate([one.rows[i] for one in chunks], 1))

    def copy_cells(self, runs: Sequence[tuple[int, int, int]]) -> list[Tensor]:
        """Copy keys and values in host memory; returns those on devices, which are left.

        Args:
            runs: (first source cell, first target cell, length).
        """
        on_devices = []
        for tensor in self.stored:
            if not _buffer(tensor).buft.is_host:
                on_devices.append(tensor)
                continue
            rows = self._host_cells(tensor)
            for source, target, n in runs:
                rows[:, target : target + n] = rows[:, source : source + n]
        return on_devices

    def _host_cells(self, tensor: Tensor) -> Bytes:
        """A view of the bytes of ``k[i]`` or ``v[i]``: uint8[n_head_kv, n_cells, bytes]."""
        rows: Bytes = tensor.bytes().reshape(tensor.ne[2], tensor.ne[1], -1)
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


def cached_layers(hparams: HParams) -> tuple[int, ...]:
    """The layers with keys and values of their own."""
    n = range(hparams.n_layer)
    return tuple(i for i in n if hparams.n_head_kv_arr[i] and hparams.cache_layer(i) == i)


def cell_bytes(hparams: HParams, layer: int, type_k: GGMLType, type_v: GGMLType) -> int:
    """Bytes of the keys and values of one token in a layer of ``cached_layers``."""
    size = row_size(type_k, hparams.head_dim_arr[layer])
    if not hparams.values_in_keys:
        size += row_size(type_v, hparams.head_dim_v_arr[layer])
    return size * hparams.n_head_kv_arr[layer]


def _first_columns(keys: Tensor, n: int) -> Tensor:
    """A view of the first ``n`` columns of each row."""
    view = Tensor(keys.type, (n, *keys.ne[1:]), keys.nb)
    view.view_src, view.buffer, view.data = keys, keys.buffer, keys.data
    return view.set_name(f"{keys.name} (values)")


def _rows(tensor: Tensor, first: int, n: int) -> Tensor:
    """A view of ``n`` rows of each head, from row ``first`` on; the tensor if that is all."""
    if n == tensor.ne[1]:
        return tensor
    view = Tensor(tensor.type, (tensor.ne[0], n, *tensor.ne[2:]), tensor.nb)
    view.view_src = tensor if tensor.view_src is None else tensor.view_src
    view.view_offs = tensor.view_offs + first * tensor.nb[1]
    view.buffer, view.data = tensor.buffer, tensor.data + first * tensor.nb[1]
    return view.set_name(tensor.name if first else f"{tensor.name} (compressed)")


def _rotation_size(type: GGMLType, columns: set[int], max_size: int | None = None) -> int:
    """The largest power of two up to ``max_size`` that divides all heads; 0 if too small or F16.

    Args:
        columns: of the heads of all layers.

    Source: llama.cpp, the rotation of quantized caches.
    """
    if not (type.is_quantized and columns) or any(n % _MIN_ROTATION for n in columns):
        return 0
    size = min(n & -n for n in columns)
    return size if max_size is None else min(max_size, size)


def _check_memory(size: int, n_cells: int, n_seq_max: int) -> None:
    have = available_memory()
    if have is not None and size > have:
        raise AllocError(
            f"a context of {n_cells} tokens and {n_seq_max} sequences needs {size} bytes "
            f"({size / 2**30:.2f} GiB) of KV cache, this machine has {have / 2**30:.2f} GiB free; "
            f"choose a smaller `n_ctx`"
        )
