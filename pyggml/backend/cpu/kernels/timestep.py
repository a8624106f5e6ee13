"""TIMESTEP_EMBEDDING: cosines and sines of one time in a row.

Access: rows are written once; a frequency is the one before times a ratio, in float64.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ....jit import kernel
from ....ops.timestep import frequency_ratio
from ....tensor import Tensor
from ..abi import DST, SRC0, data, first_row, ne, params_of, row_address
from ..lowering import Lowering, lowers
from ..simd.element import F32, put, take
from ..simd.math import sincos_f32


class Timestep(NamedTuple):
    """The values of TIMESTEP_EMBEDDING."""

    ratio: np.float64  # of a frequency to the one before


@kernel
def timestep_embedding_f32(node, chunk, n_chunks, scratch):  # type: ignore[no-untyped-def]
    """A range of times."""
    dim, n = ne(node, DST, 0), ne(node, DST, 1)
    half, ratio = dim // 2, params_of(node, Timestep).ratio
    for r in range(first_row(n, chunk, n_chunks), first_row(n, chunk + 1, n_chunks)):
        t, y = np.float64(take(F32, data(node, SRC0), r)), row_address(node, DST, r)
        frequency = 1.0
        for i in range(half):
            sin, cos = sincos_f32(np.float32(t * frequency))
            put(F32, y, i, cos)
            put(F32, y, half + i, sin)
            frequency *= ratio
        if dim & 1:
            put(F32, y, dim - 1, np.float32(0))


@lowers("TIMESTEP_EMBEDDING")
def _lower_timestep_embedding(low: Lowering, node: Tensor) -> None:
    v = node.op_params
    params = Timestep(frequency_ratio(v["dim"], v["max_period"]))
    low.launch(timestep_embedding_f32, node, params, low.row_chunks(node))
