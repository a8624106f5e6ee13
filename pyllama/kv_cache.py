"""A KV cache: the keys and values of some layers, and whose they are.

    kv = KVCache(hparams, n_cells=1024, n_seq_max=2)
    cells, places = kv.place([0, 0], [5, 6])       # see ``CellLists`` for what sequences can do
    kv.k[3]                                        # F16 [head_dim, n_cells, n_head_kv]

Memory is committed by the system when a cell is first written. Not thread-safe.
Source: llama.cpp, ``llama_kv_cache``.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from pyggml.alloc import alloc_ctx_tensors
from pyggml.buffer import HOST
from pyggml.context import Context
from pyggml.dtype import GGMLType, row_size
from pyggml.errors import AllocError
from pyggml.host import advise_hugepages, available_memory
from pyggml.tensor import Tensor

from .errors import BatchError
from .hparams import HParams
from .kv_cells import CellLists
from .kv_table import Ints

_HUGE_PAGES = 64 << 20  # bytes of a cache whose pages may be huge: of a larger one few may be used
_LEAST_TURN = 64  # elements: for values as good as more


class KVCache(CellLists):
    """Keys and values of some layers.

    Args:
        n_cells: cells in all.
        type_k, type_v: of keys and values, one of ``pyggml.ops.attention.KV_TYPES``.
        layers: those that it serves; None for all.
        window: positions that a token sees, its own included; 0 for all before it.
        unified: whether sequences share the cells; otherwise each has an equal part for itself.

    Attributes:
        k, v: by layer, [head_dim, n_cells, n_head_kv]: what a head reads lies together.
        turn_k, turn_v: so many elements of a head are turned together (HADAMARD) on their way into
            the cache, which spreads outliers over the blocks of quantized types; 0 for none.
        cells: I32 [2, n_cells, n_seq_max], each sequence's (cell, position) ordered by position.

    Raises:
        AllocError: the cache does not fit into this machine's memory.
        BatchError: a type whose blocks do not divide a head's columns.
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
    ) -> None:
        self.turn_k = _turned(type_k, hparams.head_dim, hparams.head_dim)
        self.turn_v = _turned(type_v, hparams.head_dim, _LEAST_TURN)
        self.layers = tuple(range(hparams.n_layer) if layers is None else layers)
        types = {"k": type_k, "v": type_v}
        for x, type in types.items():
            if hparams.head_dim % type.block_size:
                raise BatchError(
                    f"type_{x} is {type.name}, whose blocks are {type.block_size} long, but heads "
                    f"of this model have {hparams.head_dim} columns; use F16"
                )
        row = sum(row_size(type, hparams.head_dim) for type in types.values())
        self.size_bytes = row * len(self.layers) * hparams.n_head_kv * n_cells
        _check_memory(self.size_bytes + 8 * n_cells * n_seq_max, n_cells, n_seq_max)
        self._ctx = Context(no_alloc=True)
        shape = (hparams.head_dim, n_cells, hparams.n_head_kv)
        self.k, self.v = (
            {i: self._ctx.new_tensor(type, shape).set_name(f"cache_{x}_l{i}") for i in self.layers}
            for x, type in types.items()
        )
        self.cells = self._ctx.new_tensor_3d(GGMLType.I32, 2, n_cells, n_seq_max)
        self.cells.set_name("cache_cells" if not window else "cache_cells_swa")
        self._buffer = alloc_ctx_tensors(self._ctx, HOST)
        if self._buffer.mem is not None and self._buffer.size <= _HUGE_PAGES:
            advise_hugepages(self._buffer.mem)
        super().__init__(self.cells.numpy(squeeze=False)[0], window=window, unified=unified)

    def copy_cells(self, source: Ints, target: Ints) -> None:
        """Copy keys and values from cells to cells."""
        for tensor in (*self.k.values(), *self.v.values()):
            rows = self.cell_bytes(tensor)
            rows[:, target] = rows[:, source]

    def cell_bytes(self, tensor: Tensor) -> npt.NDArray[np.uint8]:
        """The bytes of ``k[i]`` or ``v[i]`` as uint8[n_head_kv, n_cells, bytes]; a view."""
        rows: npt.NDArray[np.uint8] = tensor.bytes().reshape(tensor.ne[2], self.n_cells, -1)
        return rows


def _turned(type: GGMLType, head_dim: int, most: int) -> int:
    """The largest power of two up to ``most`` that divides heads, as llama.cpp; 0 if too small."""
    if not type.is_quantized or head_dim % _LEAST_TURN:
        return 0
    return min(most, head_dim & -head_dim)


def _check_memory(size: int, n_cells: int, n_seq_max: int) -> None:
    have = available_memory()
    if have is not None and size > have:
        raise AllocError(
            f"a context of {n_cells} tokens and {n_seq_max} sequences needs {size} bytes "
            f"({size / 2**30:.2f} GiB) of KV cache, this machine has {have / 2**30:.2f} GiB free; "
            f"choose a smaller one with -c (n_ctx)"
        )
