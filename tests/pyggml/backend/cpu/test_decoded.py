"""Formats without a tile have the bits of F32 weights of the same values, in every op.

The ops themselves, with every number of tokens and threads, are tested with F32 weights.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import pyggml as ops
from pyggml.backend.cpu import kernels as kernels  # registers the lowerings
from pyggml.backend.cpu.compile.program import compile_program
from pyggml.backend.cpu.compile.work import WorkStore
from pyggml.backend.cpu.run.pool import get_pool
from pyggml.cgraph import CGraph
from pyggml.context import Context
from pyggml.dtype import GGMLType
from pyggml.quants import dequantize
from pyggml.tensor import Tensor
from tests.pyggml.ops.harness import stored

Array = npt.NDArray[Any]
KINDS = (GGMLType.Q8_K,)
K, M = 512, 1100  # columns; rows, with an incomplete group and segment
RNG = np.random.default_rng(0)
X = RNG.standard_normal((40, K)).astype(np.float32)
Y = RNG.standard_normal((40, M)).astype(np.float32)
SCORES = RNG.uniform(0, 1, (40, M)).astype(np.float32)
Weights = Callable[[Context, int], Tensor]  # the i-th matrix [K, M]


def blocks(kind: GGMLType, seed: int) -> Array:
    values = np.random.default_rng(seed).standard_normal((M, K)).astype(np.float32)
    return stored(values, kind)


def both(kind: GGMLType) -> Iterator[Weights]:
    """Weights in the format, and the same values as F32."""

    def made(ctx: Context, seed: int) -> Tensor:
        w = ctx.new_tensor_2d(kind, K, M)
        w.set(blocks(kind, seed))
        return w

    yield made
    yield lambda ctx, seed: ctx.from_numpy(dequantize(blocks(kind, seed), kind))


def compute(node: Tensor, n_threads: int = 2) -> Array:
    graph = CGraph()
    graph.build_forward_expand(node)
    program = compile_program(graph, n_threads, get_pool().error_slot, WorkStore())
    get_pool().run(program)
    return node.numpy().copy()


def dense(ctx: Context, weights: Weights, n: int) -> Tensor:
    x = ctx.from_numpy(X[:n])
    return ops.add(ctx, ops.mul_mat(ctx, weights(ctx, 0), x), ctx.from_numpy(Y[:n]))


def sparse(ctx: Context, weights: Weights, n: int) -> Tensor:
    idx = ctx.from_numpy(SCORES[:n])
    return ops.mul_mat_sparse(ctx, weights(ctx, 0), ctx.from_numpy(X[:n]), idx, 0.8)


def sums(ctx: Context, weights: Weights, n: int) -> Tensor:
    return ops.axpy(ctx, weights(ctx, 0), ctx.from_numpy(Y[:n]), ctx.from_numpy(SCORES[:n]), 0.8)


def feed_forward(ctx: Context, weights: Weights, n: int) -> Tensor:
    x, idx = ctx.from_numpy(X[:n]), ctx.from_numpy(SCORES[:n])
    up, gate = (ops.mul_mat_sparse(ctx, weights(ctx, i), x, idx, 0.8) for i in range(2))
    return ops.axpy(ctx, weights(ctx, 2), ops.glu_split(ctx, gate, up, "reglu"), idx, 0.8)


def experts(ctx: Context, weights: Weights, n: int) -> Tensor:
    ids = np.stack([RNG.permutation(4)[:2] for _ in range(40)]).astype(np.int32)
    w = ops.reshape_3d(ctx, weights(ctx, 0), K, M // 4, 4)
    return ops.mul_mat_id(ctx, w, ctx.from_numpy(X[:n, None]), ctx.from_numpy(ids[:n]))


@pytest.mark.parametrize("build", [dense, sparse, sums, feed_forward, experts])
@pytest.mark.parametrize("kind", KINDS, ids=lambda t: t.name)
def test_bits_are_those_of_float_weights(build: Any, kind: GGMLType) -> None:
    for n, n_threads in ((1, 2), (3, 1), (40, 3)):
        results = []
        for weights in both(kind):
            RNG.bit_generator.state = np.random.default_rng(n).bit_generator.state
            results.append(compute(build(Context(), weights, n), n_threads))
        assert results[0].any() and np.isfinite(results[0]).all()
        assert results[0].tobytes() == results[1].tobytes(), n
