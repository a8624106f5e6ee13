"""The reference backend and ``graph_compute_with_ctx``; ops have tests of their own."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from pyggml import (
    add,
    cast,
    cpy,
    get_rows,
    map_custom,
    mul_mat,
    scale,
    set_rows,
    silu,
    transpose,
    view_1d,
)
from pyggml.backend.reference.backend import ReferenceBackend
from pyggml.buffer import HOST
from pyggml.cgraph import CGraph
from pyggml.compute import graph_compute_with_ctx
from pyggml.context import Context
from pyggml.dtype import GGMLType
from pyggml.errors import AllocError, ComputeError, QuantizeError, ShapeError, UnsupportedOp
from pyggml.tensor import Flag, Tensor

F32, Q8_0 = GGMLType.F32, GGMLType.Q8_0


def graph_of(*tensors: Tensor) -> CGraph:
    graph = CGraph()
    for t in tensors:
        graph.build_forward_expand(t)
    return graph


def test_a_chain_with_views() -> None:
    ctx = Context()
    x = ctx.from_numpy(np.arange(6, dtype=np.float32).reshape(2, 3))
    y = scale(ctx, transpose(ctx, transpose(ctx, x)), 2.0)
    z = add(ctx, y, x)
    backend = ReferenceBackend(n_threads=3)
    graph_compute_with_ctx(ctx, graph_of(z), backend=backend)
    assert z.numpy().tolist() == [[0, 3, 6], [9, 12, 15]]
    assert backend.buffer_type() is HOST
    backend.close()


def test_errors_name_the_node() -> None:
    ctx = Context()
    table = ctx.from_numpy(np.ones((3, 2), np.float32), "table")
    ids = ctx.from_numpy(np.array([0, 3], np.int32), "ids")
    rows = get_rows(ctx, table, ids).set_name("embd")
    with pytest.raises(ComputeError, match=r"'embd' = GET_ROWS\('table' .*row 0\.\.3.*3 rows"):
        graph_compute_with_ctx(ctx, graph_of(rows), backend="reference")
    written = set_rows(ctx, table, table, ctx.from_numpy(np.array([0, 9, 1], np.int32)))
    with pytest.raises(ComputeError, match=r"row 9 of a target with 3 rows"):
        graph_compute_with_ctx(ctx, graph_of(written), backend="reference")
    x = ctx.from_numpy(np.full(32, np.nan, np.float32), "x")
    bad = cast(ctx, x, Q8_0).set_name("bad")
    with pytest.raises(QuantizeError, match=r"'bad' = CPY\('x'.*NaN"):
        graph_compute_with_ctx(ctx, graph_of(bad), backend="reference")


def test_a_result_of_another_shape_is_an_error() -> None:
    def wrong(dst: Any, x: Any) -> None:
        dst[...] = np.zeros((7,))

    ctx = Context()
    node = map_custom(ctx, wrong, ctx.new_tensor_1d(F32, 3))
    with pytest.raises(ValueError, match="broadcast"):
        graph_compute_with_ctx(ctx, graph_of(node), backend="reference")
    assert not issubclass(ShapeError, ComputeError)


def test_a_users_exception_propagates_and_the_context_stays_usable() -> None:
    class Mine(Exception):
        pass

    def fail(dst: Any, x: Any) -> None:
        raise Mine("told you")

    ctx = Context()
    x = ctx.from_numpy(np.ones(3, np.float32))
    with pytest.raises(Mine, match="told you"):
        graph_compute_with_ctx(ctx, graph_of(map_custom(ctx, fail, x)), backend="reference")
    y = scale(ctx, x, 3.0)
    graph_compute_with_ctx(ctx, graph_of(y), backend="reference")
    assert y.numpy().tolist() == [3, 3, 3]


def test_a_compiled_kernel_is_refused() -> None:
    class Compiled:
        address = 1

        def __call__(self) -> None:
            raise AssertionError("never called")

    ctx = Context()
    node = map_custom(ctx, Compiled(), ctx.new_tensor_1d(F32, 3))
    assert not ReferenceBackend().supports_op(node)
    with pytest.raises(UnsupportedOp, match="cpu backend"):
        graph_compute_with_ctx(ctx, graph_of(node), backend="reference")


def test_supported_formats() -> None:
    ctx = Context(no_alloc=True)
    x = ctx.new_tensor_1d(F32, 256)
    backend = ReferenceBackend()
    assert backend.supports_op(mul_mat(ctx, ctx.new_tensor_2d(Q8_0, 256, 3), x))
    assert not backend.supports_op(mul_mat(ctx, ctx.new_tensor_2d(GGMLType.Q8_1, 256, 3), x))


def test_a_graph_without_memory() -> None:
    ctx = Context(no_alloc=True)
    x = ctx.new_tensor_1d(F32, 4).set_name("x")
    graph = graph_of(silu(ctx, x).set_name("y"))
    with pytest.raises(AllocError, match=r"'y'.*no_alloc=True"):
        graph_compute_with_ctx(ctx, graph, backend="reference")
    with pytest.raises(AllocError, match=r"node 'y' = UNARY\('x' \[4, 1, 1, 1\]\)"):
        ReferenceBackend().graph_compute(graph)


def test_parameters_are_nodes_without_work() -> None:
    ctx = Context()
    w = ctx.from_numpy(np.ones(3, np.float32))
    w.flags |= Flag.PARAM
    y = scale(ctx, w, 2.0)
    graph_compute_with_ctx(ctx, graph_of(y), backend="reference")
    assert y.numpy().tolist() == [2, 2, 2]


def test_rows_of_a_quantized_target_keep_their_bytes() -> None:
    ctx = Context()
    target = ctx.new_tensor_2d(Q8_0, 32, 3)
    rng = np.random.default_rng(0)
    blocks = rng.integers(0, 120, target.nbytes, np.uint8)  # not those of quantize()
    target.set(blocks)
    one = ctx.from_numpy(np.ones((1, 32), np.float32))
    node = set_rows(ctx, target, one, ctx.from_numpy(np.array([1], np.int32)))
    graph_compute_with_ctx(ctx, graph_of(node), backend="reference")
    got = target.bytes().reshape(3, -1)
    assert np.array_equal(got[[0, 2]], blocks.reshape(3, -1)[[0, 2]])
    assert not np.array_equal(got[1], blocks.reshape(3, -1)[1])


def test_copy_into_a_window() -> None:
    ctx = Context()
    x = ctx.from_numpy(np.ones(2, np.float32))
    cache = ctx.from_numpy(np.zeros(6, np.float32))
    node = cpy(ctx, x, view_1d(ctx, cache, 2, 8))
    graph_compute_with_ctx(ctx, graph_of(node), backend="reference")
    assert cache.numpy().tolist() == [0, 0, 1, 1, 0, 0]
