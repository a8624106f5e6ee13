"""A function of one's own as a node of a graph: jitted for speed, or plain Python."""

import numba
import numpy as np

import pyggml as ggml
from pyggml.backend.cpu.abi import DST, SRC0, data, f32_ptr, first_row, ne, nrows


@numba.njit
def swish_squared(node, chunk, n_chunks, scratch):
    """A kernel: all threads call it, each for other chunks, which write other rows.

    ``node`` describes the result (DST) and the sources (SRC0, ...) by address, sizes and strides;
    here both are contiguous. A kernel must not raise and not allocate.
    """
    n, rows = ne(node, DST, 0), nrows(node, DST)
    x, y = f32_ptr(data(node, SRC0)), f32_ptr(data(node, DST))
    for r in range(first_row(rows, chunk, n_chunks), first_row(rows, chunk + 1, n_chunks)):
        for i in range(r * n, (r + 1) * n):
            swish = x[i] / (1 + np.exp(-x[i]))
            y[i] = swish * swish


def keep_two(dst, x):
    """A Python callable: all but the two largest elements of each row become 0."""
    dst[...] = np.where(x >= np.sort(x, axis=-1)[..., -2:-1], x, 0)


def main(x: np.ndarray) -> np.ndarray:
    """Both functions on the rows of ``x``."""
    ctx = ggml.Context()
    y = ggml.scale(ctx, ctx.from_numpy(x), 2.0)
    y = ggml.map_custom(ctx, swish_squared, y)
    y = ggml.map_custom(ctx, keep_two, y)

    graph = ggml.CGraph()
    graph.build_forward_expand(y)
    ggml.graph_compute_with_ctx(ctx, graph)
    return y.numpy()


if __name__ == "__main__":
    print(main(np.linspace(-3, 3, 12, dtype=np.float32).reshape(3, 4)))
