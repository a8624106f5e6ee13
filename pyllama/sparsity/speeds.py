"""Measures how fast a backend computes active neurons, in bytes of their rows per second.

    speeds = measure_speeds(init_backend("cpu"), n_embd=4096, n_ff=11008, up=GGMLType.Q4_0,
                            down=GGMLType.Q4_0)
    speeds.up, speeds.down                         # of MUL_MAT_SPARSE and of AXPY

Uses several matrices with different active neurons, so that the rows are not in a cache.
Source: Q-Infer's compute benchmark at start-up (one token of a batch, a tenth of neurons active).
"""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass

import numpy as np

import pyggml as ops
from pyggml.alloc import alloc_ctx_tensors
from pyggml.backend.interface import Backend
from pyggml.cgraph import CGraph
from pyggml.context import Context
from pyggml.dtype import GGMLType, row_size

_BYTES = 1 << 28  # total size of the matrices, larger than any cache
_BYTE = 0x11  # fills the matrices; gives small numbers in every format
_RUNS = 7


@dataclass(frozen=True)
class Speeds:
    """Bytes of active rows per second: of up and gate, and of down."""

    up: float
    down: float

    @property
    def mean(self) -> float:
        """The harmonic mean: speed over equal numbers of bytes of both."""
        return 2 / (1 / self.up + 1 / self.down)


def measure_speeds(
    backend: Backend, n_embd: int, n_ff: int, up: GGMLType, down: GGMLType, share: float = 0.1
) -> Speeds:
    """Return the speeds of a backend; takes a second or two.

    Args:
        share: fraction of active neurons.

    Raises:
        AllocError: there is not enough memory for the matrices.
        UnsupportedOp: the backend does not support the sparse ops.
    """
    return Speeds(
        _measure(backend, up, n_embd, n_ff, share, transposed=False),
        _measure(backend, down, n_embd, n_ff, share, transposed=True),
    )


def _measure(
    backend: Backend, type: GGMLType, n_embd: int, n_ff: int, share: float, *, transposed: bool
) -> float:
    n = max(2, _BYTES // (row_size(type, n_embd) * n_ff))
    ctx, graph, rng = Context(no_alloc=True), CGraph(), np.random.default_rng(0)
    matrices, inputs = [], []
    for _ in range(n):
        a = ctx.new_tensor_2d(type, n_embd, n_ff)
        x = ctx.new_tensor_2d(GGMLType.F32, n_ff if transposed else n_embd, 1)
        scores = ctx.new_tensor_2d(GGMLType.F32, n_ff, 1)
        build = ops.axpy if transposed else ops.mul_mat_sparse
        graph.build_forward_expand(build(ctx, a, x, scores, 0.5))
        matrices.append(a)
        inputs += [(x, np.ones(x.ne[0])), (scores, rng.permutation(n_ff) < share * n_ff)]
    buffer = alloc_ctx_tensors(ctx, backend.buffer_type())
    for matrix in matrices:
        buffer.set_tensor(matrix, np.full(matrix.nbytes, _BYTE, np.uint8))
    for tensor, values in inputs:
        buffer.set_tensor(tensor, values.astype(np.float32).view(np.uint8))
    seconds = statistics.median(_seconds(backend, graph) for _ in range(_RUNS))
    return n * round(share * n_ff) * row_size(type, n_embd) / seconds


def _seconds(backend: Backend, graph: CGraph) -> float:
    start = time.perf_counter()
    backend.graph_compute(graph)
    return time.perf_counter() - start
