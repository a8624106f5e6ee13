"""MUL_MAT_ID: MUL_MAT's bits, for every batch, thread count and layout; legal and bad ids."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import pyggml as ops
from pyggml.alloc.tallocr import alloc_ctx_tensors
from pyggml.backend.cpu import kernels as kernels  # registers the lowerings
from pyggml.backend.cpu.compile.program import compile_program
from pyggml.backend.cpu.compile.work import WorkStore
from pyggml.backend.cpu.run.pool import get_pool
from pyggml.backend.cpu.weights.buffer import REPACK
from pyggml.backend.cpu.weights.layout import INTERLEAVED
from pyggml.buffer import HOST
from pyggml.cgraph import CGraph
from pyggml.context import Context
from pyggml.dtype import GGMLType
from pyggml.errors import ComputeError
from pyggml.tensor import Tensor
from tests.pyggml.ops.harness import encoded
from tests.tiers import some

Array = npt.NDArray[Any]
M, N_EXPERT, N_USED, N_TOKENS = 83, 5, 2, 70  # M rows, with an incomplete group
RNG = np.random.default_rng(0)
ALL_X = RNG.standard_normal((N_TOKENS, 256)).astype(np.float32)
IDS = np.stack([RNG.permutation(N_EXPERT)[:N_USED] for _ in ALL_X]).astype(np.int32)


def tokens(kind: GGMLType) -> Array:
    """Columns: a few blocks."""
    return np.ascontiguousarray(ALL_X[:, : 256 if kind.block_size == 256 else 96])


def compute(node: Tensor, n_threads: int) -> Array:
    graph = CGraph()
    graph.build_forward_expand(node)
    program = compile_program(graph, n_threads, get_pool().error_slot, WorkStore())
    get_pool().run(program)
    return node.numpy().copy()


def stack(kind: GGMLType, buft: Any, *ne: int) -> Tensor:
    """The experts' weights, as one matrix or one for each expert."""
    weights = Context(no_alloc=True)
    shape = N_EXPERT * M, ne[0]
    values = np.random.default_rng(int(kind)).standard_normal(shape).astype(np.float32)
    w = weights.new_tensor(kind, ne)
    buffer = alloc_ctx_tensors(weights, buft)
    buffer.set_tensor(w, encoded(values, kind).reshape(-1))
    return w


def product(
    kind: GGMLType, n: int, n_threads: int = 1, buft: Any = REPACK, ids: Array = IDS
) -> Array:
    """The first ``n`` tokens through their experts, [n, N_USED, M]."""
    x = tokens(kind)
    ctx, w = Context(), stack(kind, buft, x.shape[1], M, N_EXPERT)
    node = ops.mul_mat_id(ctx, w, ctx.from_numpy(x[:n, None]), ctx.from_numpy(ids[:n]))
    return compute(node, n_threads).reshape(n, N_USED, M)


@pytest.mark.parametrize("kind", some(INTERLEAVED, 3), ids=lambda t: t.name)
def test_bits_are_those_of_one_token_alone_and_of_mul_mat(kind: GGMLType) -> None:
    whole = product(kind, N_TOKENS)
    for i, n in enumerate((1, 2, 3, 5, 17, 64, 70)):
        for buft in (REPACK, HOST):
            got = product(kind, n, 1 + i % 3, buft)
            assert got.tobytes() == whole[:n].tobytes(), (n, buft.name)
    x = tokens(kind)
    ctx, w = Context(), stack(kind, REPACK, x.shape[1], M * N_EXPERT)
    every = compute(ops.mul_mat(ctx, w, ctx.from_numpy(x)), 2).reshape(N_TOKENS, N_EXPERT, M)
    assert np.take_along_axis(every, IDS[..., None], 1).tobytes() == whole.tobytes()


@pytest.mark.parametrize("bad", [-1, N_EXPERT, 2**31 - 1])
@pytest.mark.parametrize("n", [1, 70])
def test_an_expert_id_out_of_range_is_an_error(bad: int, n: int) -> None:
    ids = IDS.copy()
    ids[n - 1, 1] = bad
    with pytest.raises(ComputeError, match="MUL_MAT_ID"):
        product(GGMLType.Q8_0, n, 2, ids=ids)
    ctx = Context()
    bias = ctx.from_numpy(np.ones((N_EXPERT, M), np.float32))
    x = ctx.from_numpy(np.zeros((n, N_USED, M), np.float32))
    with pytest.raises(ComputeError, match="ADD_ID"):
        compute(ops.add_id(ctx, x, bias, ctx.from_numpy(ids[:n])), 2)


def test_ids_may_repeat_and_experts_may_be_unused() -> None:
    ids = np.full_like(IDS, 3)
    got = product(GGMLType.Q8_0, 70, 2, ids=ids)
    assert np.array_equal(got[:, 0], got[:, 1])
    assert got[:1].tobytes() == product(GGMLType.Q8_0, 1, ids=ids).tobytes()
