"""LORA refuses spans that would read or write outside of its tensors."""

from __future__ import annotations

import numpy as np
import pytest

import pyggml as ops
from pyggml.cgraph import CGraph
from pyggml.context import Context
from pyggml.dtype import GGMLType
from pyggml.errors import ComputeError
from pyggml.tensor import Tensor

F32 = GGMLType.F32


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


@pytest.mark.parametrize(("m", "ranks"), [(64, (4, 12)), (128, (6, 10)), (16, (16, 16))])
def test_ranks_of_b_that_are_not_whole_blocks(m: int, ranks: tuple[int, int]) -> None:
    rng, ctx = np.random.default_rng(0), Context()
    x, y = (ctx.from_numpy(rng.standard_normal((3, n)).astype(np.float32)) for n in (64, m))
    a = ctx.from_numpy(rng.standard_normal((sum(ranks), 64)).astype(np.float32))
    b = ctx.new_tensor_2d(GGMLType.Q8_0, 32, m * sum(ranks) // 32)
    scales, gains = (ctx.from_numpy(np.ones(n, np.float32)) for n in ((3, 2), 2))
    spans = ctx.from_numpy(np.cumsum((0, *ranks)).astype(np.int32))
    graph = CGraph()
    graph.build_forward_expand(ops.lora(ctx, y, b, scales, spans, gains, a, x))
    with pytest.raises(ComputeError, match="index lies outside"):
        ops.graph_compute_with_ctx(ctx, graph, n_threads=1)


def test_adapters_without_ranks_change_nothing() -> None:
    """Also in work memory where an adapter before them had its factors."""
    rng, ctx = np.random.default_rng(0), Context()
    x, w = (ctx.from_numpy(rng.standard_normal((n, 64)).astype(np.float32)) for n in (3, 64))
    scales, gains = (ctx.from_numpy(np.ones(n, np.float32)) for n in ((3, 1), 1))

    def change(y: Tensor, rank: int) -> Tensor:
        a, b = (ctx.new_tensor_2d(F32, *ne) for ne in ((64, rank), (16, 4 * rank)))
        for t in (a, b):
            t.numpy()[:] = rng.standard_normal(t.numpy().shape)
        spans = ctx.from_numpy(np.array([0, rank], np.int32))
        return ops.lora(ctx, y, b, scales, spans, gains, a, x)

    y = change(ops.mul_mat(ctx, w, x), 4)
    product = ops.mul_mat(ctx, w, ops.scale(ctx, y, 1.0))
    product.set_output()
    graph = CGraph()
    for node in (change(product, 0), ops.add(ctx, change(ops.mul_mat(ctx, w, y), 0), y)):
        graph.build_forward_expand(node)
    for _ in range(2):
        ops.graph_compute_with_ctx(ctx, graph, n_threads=1)
    want = y.numpy() @ w.numpy().T
    np.testing.assert_allclose(graph.nodes[-1].numpy(), want + y.numpy(), atol=1e-3)
    separate = next(n for n in graph.nodes if n.src and n.src[0] is product)
    np.testing.assert_array_equal(separate.numpy(), product.numpy())
