"""How fast a backend computes active neurons: bytes of their rows a second, measured.

    speeds = measure_speeds(init_backend("cpu"), n_embd=4096, n_ff=11008, up=GGMLType.Q4_0,
                            down=GGMLType.Q4_0)
    speeds.up, speeds.down                         # of MUL_MAT_SPARSE and of AXPY

Made of several matrices with other neurons active in each, so that no cache holds what is read.
Source: Q-Infer's compute benchmark at start-up (one token of a batch, a tenth of neurons active).
"""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass

import numpy as np

from pyggml import ops
from pyggml.alloc import alloc_ctx_tensors
from pyggml.backend.interface import Backend
from pyggml.cgraph import CGraph
from pyggml.context import Context
from pyggml.dtype import GGMLType, row_size

_BYTES = 1 << 28  # of matrices: more than caches hold
_BYTE = 0x11  # what they are full of: small numbers in every format
_RUNS = 7


@dataclass(frozen=True)
class Speeds:
    """Bytes of active rows a second: of up and gate, of down."""

    up: float
    down: float

    @property
    def mean(self) -> float:
        """Of as many bytes of the one as of the other."""
        return 2 / (1 / self.up + 1 / self.down)


def measure_speeds(
    backend: Backend, n_embd: int, n_ff: int, up: GGMLType, down: GGMLType, share: float = 0.1
) -> Speeds:
    """Measure a backend, in a second or two.

    Args:
        share: of neurons that are active.

    Raises:
        AllocError: no memory for the matrices. UnsupportedOp: it does not compute such neurons.
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
