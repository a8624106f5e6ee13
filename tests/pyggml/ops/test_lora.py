"""LORA refuses spans that would read or write outside of its tensors."""

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
    a, b = (
        ctx.from_numpy(rng.standard_normal(shape).astype(np.float32))
        for shape in ((9, 64), (36, 16))
    )
    x = ctx.from_numpy(rng.standard_normal((3, 64)).astype(np.float32))
    scales, gains = (ctx.from_numpy(np.ones(n, np.float32)) for n in ((3, 3), 3))
    node = ops.lora(ctx, x, b, scales, ctx.from_numpy(np.array(spans, np.int32)), gains, a, x)
    graph = CGraph()
    graph.build_forward_expand(node)
    with pytest.raises(ComputeError, match="index lies outside"):
        ops.graph_compute_with_ctx(ctx, graph, n_threads=n_threads)
