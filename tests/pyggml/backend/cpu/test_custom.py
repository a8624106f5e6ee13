"""A user's own kernels and callables as nodes, and errors that kernels report."""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
import pytest

import pyggml as ops
from pyggml.backend.cpu import kernels as kernels  # registers the lowerings
from pyggml.backend.cpu.abi import DST, SRC0, data, f32_ptr, first_row, ne
from pyggml.backend.cpu.compile.program import compile_program
from pyggml.backend.cpu.compile.work import WorkStore
from pyggml.backend.cpu.run.pool import get_pool
from pyggml.cgraph import CGraph
from pyggml.compiler.jit import KERNEL_SIG
from pyggml.context import Context
from pyggml.errors import ComputeError
from pyggml.tensor import Tensor

X = np.arange(100_000, dtype=np.float32)


def run(node: Tensor) -> Tensor:
    graph = CGraph()
    graph.build_forward_expand(node)
    pool = get_pool()
    pool.run(compile_program(graph, 2, pool.error_slot, WorkStore()))
    return node


def triple(node, chunk, n_chunks, scratch):  # type: ignore[no-untyped-def]
    n = ne(node, DST, 0)
    x, y = f32_ptr(data(node, SRC0)), f32_ptr(data(node, DST))
    for i in range(first_row(n, chunk, n_chunks), first_row(n, chunk + 1, n_chunks)):
        y[i] = 3 * x[i]


@pytest.mark.parametrize("wrap", [numba.njit, numba.cfunc(KERNEL_SIG)])
def test_a_compiled_function_is_a_node(wrap: Any) -> None:
    ctx = Context()
    x = ctx.from_numpy(X)
    node = ops.scale(ctx, ops.map_custom(ctx, wrap(triple), x), 2.0)
    np.testing.assert_array_equal(run(node).numpy(), 6 * X)


def test_a_python_callable_cuts_the_program() -> None:
    def cube(dst: Any, x: Any) -> None:
        dst[...] = x**3

    ctx = Context()
    x = ctx.from_numpy(X[:100])
    node = ops.scale(ctx, ops.map_custom(ctx, cube, ops.scale(ctx, x, 2.0)), 0.125)
    np.testing.assert_array_equal(run(node).numpy(), X[:100] ** 3)


def test_an_exception_reaches_the_caller_and_the_pool_stays_usable() -> None:
    def fail(dst: Any, x: Any) -> None:
        raise KeyError("mine")

    ctx = Context()
    x = ctx.from_numpy(X[:100])
    with pytest.raises(KeyError, match="mine"):
        run(ops.map_custom(ctx, fail, x))
    np.testing.assert_array_equal(run(ops.scale(ctx, x, 2.0)).numpy(), 2 * X[:100])


def test_a_row_index_out_of_range_is_an_error() -> None:
    ctx = Context()
    table = ctx.from_numpy(X[:100].reshape(10, 10))
    for bad in (10, -1):
        with pytest.raises(ComputeError):
            run(ops.get_rows(ctx, table, ctx.from_numpy(np.array([3, bad], np.int32))))
    with pytest.raises(ComputeError):
        run(ops.set_rows(ctx, table, ops.cont(ctx, table), ctx.from_numpy(np.arange(1, 11))))
