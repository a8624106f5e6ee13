"""ggml's "simple" example: a 4x2 matrix by a 3x2 matrix, transposed, in ggml's two ways.

A context that owns its data; and a backend, its buffer and a graph allocator.
"""

from __future__ import annotations

import numpy as np
import pytest

from pyggml import mul_mat
from pyggml.alloc.gallocr import GraphAllocator
from pyggml.alloc.tallocr import alloc_ctx_tensors
from pyggml.backend.registry import init_backend
from pyggml.cgraph import CGraph
from pyggml.compute import graph_compute_with_ctx
from pyggml.context import Context
from pyggml.dtype import GGMLType

A = np.array([[2, 8], [5, 1], [4, 2], [8, 6]], np.float32)
B = np.array([[10, 5], [9, 9], [5, 4]], np.float32)
RESULT = [[60, 55, 50, 110], [90, 54, 54, 126], [42, 29, 28, 64]]  # the example's own output


def test_context_that_owns_its_data() -> None:
    ctx = Context(mem_size=4096)
    a = ctx.new_tensor_2d(GGMLType.F32, 2, 4).set(A)
    b = ctx.new_tensor_2d(GGMLType.F32, 2, 3).set(B)
    result = mul_mat(ctx, a, b)
    graph = CGraph()
    graph.build_forward_expand(result)
    graph_compute_with_ctx(ctx, graph, backend="reference")
    assert result.ne == (4, 3, 1, 1)
    assert result.numpy().tolist() == RESULT
    assert np.array_equal(result.numpy(), B @ A.T)


@pytest.mark.parametrize("name", ["reference", "cpu"])
def test_backend_with_a_buffer_and_a_graph_allocator(name: str) -> None:
    backend = init_backend(name, n_threads=1)
    weights, ctx = Context(no_alloc=True), Context(no_alloc=True)
    a = weights.new_tensor_2d(GGMLType.F32, 2, 4)
    b = weights.new_tensor_2d(GGMLType.F32, 2, 3)
    buffer = alloc_ctx_tensors(weights, backend.buffer_type())
    a.set(A)
    b.set(B)
    result = mul_mat(ctx, a, b)
    graph = CGraph()
    graph.build_forward_expand(result)
    allocator = GraphAllocator(backend.buffer_type())
    allocator.alloc_graph(graph)
    backend.graph_compute(graph)
    assert a.buffer is buffer and result.buffer is allocator.buffer is not buffer
    assert result.numpy().tolist() == RESULT
    backend.close()
