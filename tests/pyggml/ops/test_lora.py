"""LORA_SHRINK and LORA_EXPAND refuse spans that would read or write outside of their tensors."""

from __future__ import annotations

import numpy as np
import pytest

import pyggml as ops
from pyggml.cgraph import CGraph
from pyggml.context import Context
from pyggml.errors import ComputeError


@pytest.mark.parametrize("spans", [[0, 5, 0, 9], [0, 4, 8, 10], [-1, 4, 8, 9], [0, 4, 8, 8]])
@pytest.mark.parametrize("n_threads", [1, 2])
def test_spans_that_do_not_ascend_to_the_rank(spans: list[int], n_threads: int) -> None:
    rng, ctx = np.random.default_rng(0), Context()
    a, b = (ctx.from_numpy(rng.standard_normal((9, 64)).astype(np.float32)) for _ in range(2))
    x = ctx.from_numpy(rng.standard_normal((3, 64)).astype(np.float32))
    scales, gains = (ctx.from_numpy(np.ones(n, np.float32)) for n in ((3, 3), 3))
    spans_t = ctx.from_numpy(np.array(spans, np.int32))
    h = ctx.from_numpy(np.ones((3, 9), np.float32))
    for node in (
        ops.lora_shrink(ctx, a, x, scales, spans_t),
        ops.lora_expand(ctx, x, b, scales, spans_t, gains, h),
    ):
        graph = CGraph()
        graph.build_forward_expand(node)
        with pytest.raises(ComputeError, match="index lies outside"):
            ops.graph_compute_with_ctx(ctx, graph, n_threads=n_threads)
