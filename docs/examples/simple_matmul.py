"""Two matrices multiplied: a context, an op, a graph, a backend."""

import numpy as np

import pyggml as ggml

A = np.array([[2, 8], [5, 1], [4, 2], [8, 6]], np.float32)
B = np.array([[10, 5], [9, 9], [5, 4]], np.float32)


def main() -> np.ndarray:
    """``B @ A.T``."""
    # Headers only: the graph allocator will place the data.
    ctx = ggml.Context(no_alloc=True)
    a = ctx.new_tensor_2d(ggml.GGMLType.F32, 2, 4)  # ne[0] is contiguous: 4 rows of 2
    b = ctx.new_tensor_2d(ggml.GGMLType.F32, 2, 3)
    c = ggml.mul_mat(ctx, a, b)  # builds a node and computes nothing

    graph = ggml.CGraph()
    graph.build_forward_expand(c)

    backend = ggml.init_backend("cpu", n_threads=2)
    allocator = ggml.GraphAllocator(backend.buffer_type())
    allocator.alloc_graph(graph)
    a.set(A)
    b.set(B)
    backend.graph_compute(graph)
    result = c.numpy().copy()  # b @ a.T in NumPy's order
    backend.close()
    return result


if __name__ == "__main__":
    print(main())
