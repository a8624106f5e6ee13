"""MUL_MAT_ID_SPARSE, AXPY_ID and the fused FFN: bits of MUL_MAT_ID and AXPY, for every batch."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import pyggml as ops
from pyggml.backend.cpu import kernels as kernels  # registers the lowerings
from pyggml.backend.cpu.compile.program import PhaseTable, compile_program
from pyggml.backend.cpu.compile.work import WorkStore
from pyggml.backend.cpu.kernels.sparse.experts import segment_rows
from pyggml.backend.cpu.run.pool import get_pool
from pyggml.backend.cpu.weights.layout import INTERLEAVED
from pyggml.cgraph import CGraph
from pyggml.context import Context
from pyggml.dtype import GGMLType
from pyggml.errors import ComputeError
from pyggml.tensor import Tensor
from tests.pyggml.ops.harness import encoded
from tests.tiers import some

Array = npt.NDArray[Any]
F, N_EXPERT, N_USED, N_TOKENS = 300, 5, 2, 90  # two segments; an expert has more than 32 uses
RNG = np.random.default_rng(0)
ALL_X = RNG.standard_normal((N_TOKENS, 256)).astype(np.float32)
Y = RNG.standard_normal((N_TOKENS, N_USED, F)).astype(np.float32)
Y[RNG.random(Y.shape) < 0.6] = 0
SCORES = RNG.uniform(0, 1, Y.shape).astype(np.float32)
IDS = np.stack([RNG.permutation(N_EXPERT)[:N_USED] for _ in ALL_X]).astype(np.int32)
SIZES = (1, 2, 3, 17, N_TOKENS)  # tokens: the first two have fewer uses than experts
types = pytest.mark.parametrize("kind", some(INTERLEAVED, 3), ids=lambda t: t.name)


def columns(kind: GGMLType) -> int:
    return max(96, kind.block_size)


def rows(kind: GGMLType, seed: int = 0) -> Array:
    shape = N_EXPERT * F, columns(kind)
    return encoded(np.random.default_rng(seed).standard_normal(shape).astype(np.float32), kind)


def matrices(ctx: Context, kind: GGMLType, data: Array, n_rows: int = F) -> Tensor:
    n = data.shape[-1] // kind.type_size * kind.block_size
    w = ctx.new_tensor(kind, (n, n_rows, len(data) // n_rows))
    assert w.buffer is not None
    w.buffer.set_tensor(w, data.reshape(-1).view(np.uint8))
    return w


def tokens(ctx: Context, kind: GGMLType, n: int) -> Tensor:
    return ctx.from_numpy(np.ascontiguousarray(ALL_X[:n, None, : columns(kind)]))


def program_of(*nodes: Tensor, n_threads: int = 1, fusion: bool = True) -> PhaseTable:
    graph = CGraph()
    for node in nodes:
        graph.build_forward_expand(node)
    return compile_program(graph, n_threads, get_pool().error_slot, WorkStore(), fusion=fusion)


def compute(node: Tensor, n_threads: int = 1) -> Array:
    get_pool().run(program_of(node, n_threads=n_threads))
    return node.numpy().reshape(node.ne[2], node.ne[1], -1).copy()


def product(kind: GGMLType, n: int, threshold: float, n_threads: int = 1) -> Array:
    ctx = Context()
    ids, idx = ctx.from_numpy(IDS[:n]), ctx.from_numpy(SCORES[:n])
    w = matrices(ctx, kind, rows(kind))
    node = ops.mul_mat_id_sparse(ctx, w, tokens(ctx, kind, n), ids, idx, threshold)
    return compute(node, n_threads)


def sums(kind: GGMLType, n: int, n_threads: int = 1) -> Array:
    ctx = Context()
    w, y = matrices(ctx, kind, rows(kind)), ctx.from_numpy(Y[:n])
    return compute(ops.axpy_id(ctx, w, y, ctx.from_numpy(IDS[:n])), n_threads)


@types
@pytest.mark.parametrize("threshold", [0.9, 0.3])
def test_active_results_are_mul_mat_ids_and_the_others_zero(
    kind: GGMLType, threshold: float
) -> None:
    ctx = Context()
    w, ids = matrices(ctx, kind, rows(kind)), ctx.from_numpy(IDS)
    dense = compute(ops.mul_mat_id(ctx, w, tokens(ctx, kind, N_TOKENS), ids), 2)
    want = np.where(threshold <= SCORES, dense, np.float32(0))
    for i, n in enumerate(SIZES):
        assert product(kind, n, threshold, 1 + i % 3).tobytes() == want[:n].tobytes(), n


@types
def test_sums_depend_on_the_use_alone(kind: GGMLType) -> None:
    whole = sums(kind, N_TOKENS)
    assert np.isfinite(whole).all() and whole.any()
    for i, n in enumerate(SIZES):
        assert sums(kind, n, 1 + i % 3).tobytes() == whole[:n].tobytes(), n


@types
def test_sums_of_one_segment_are_those_of_axpy(kind: GGMLType) -> None:
    n_rows = segment_rows(1)
    ctx = Context()
    data = rows(kind)[: 2 * n_rows]
    y = ctx.from_numpy(np.ascontiguousarray(Y[:1, :, :n_rows]))
    ids = ctx.from_numpy(np.array([[1, 0]], np.int32))
    got = compute(ops.axpy_id(ctx, matrices(ctx, kind, data, n_rows), y, ids))[0]
    for use, expert in enumerate((1, 0)):
        w = matrices(ctx, kind, data[expert * n_rows :][:n_rows], n_rows)
        one = ops.axpy(ctx, ops.view_2d(ctx, w, *w.ne[:2], w.nb[1], 0),
                       ctx.from_numpy(Y[:1, use, :n_rows]))  # fmt: skip
        assert compute(one).tobytes() == got[use].tobytes()


def feed_forward(
    kind: GGMLType, n: int, act: str, n_threads: int, fusion: bool
) -> tuple[Array, list[str]]:
    """The result of experts with their gates as scores, and the names of the kernels."""
    ctx = Context()
    gate_w, up_w, down_w = (matrices(ctx, kind, rows(kind, seed=i)) for i in range(3))
    x, ids = tokens(ctx, kind, n), ctx.from_numpy(IDS[:n])
    gate = ops.mul_mat_id(ctx, gate_w, x, ids)
    up = ops.mul_mat_id_sparse(ctx, up_w, x, ids, gate, 1e-45)
    hidden = ops.glu_split(ctx, gate, ops.relu(ctx, up) if act == "drelu" else up, "reglu")
    out = ops.axpy_id(ctx, down_w, hidden, ids)
    program = program_of(out, n_threads=n_threads, fusion=fusion)
    get_pool().run(program)
    names = [launch.kernel.name for launch in program.launches if launch.kernel is not None]
    return out.numpy().copy().reshape(n, N_USED, -1), names


@types
@pytest.mark.parametrize("act", ["reglu", "drelu"])
def test_fused_experts_have_the_bits_of_their_nodes(kind: GGMLType, act: str) -> None:
    want, apart = feed_forward(kind, N_TOKENS, act, 2, fusion=False)
    assert np.isfinite(want).all() and want.any() and "axpy_id_many" in apart
    for n, n_threads in ((1, 1), (2, 3), (17, 2)):
        got, names = feed_forward(kind, n, act, n_threads, fusion=True)
        assert got.tobytes() == want[:n].tobytes(), n
        assert any(name.startswith("sparse_experts_both_relu") for name in names) == (n <= 2)


@types
@pytest.mark.parametrize("n", [1, N_TOKENS])
def test_inactive_rows_are_not_added(kind: GGMLType, n: int) -> None:
    """Rows of ``down`` whose values are 0 are filled with NaN, which would propagate."""
    used = np.zeros((N_EXPERT, F), bool)
    for t, u in np.ndindex(n, N_USED):
        used[IDS[t, u]] |= Y[t, u] != 0
    data = rows(kind).copy()
    data.view(np.uint8).reshape(N_EXPERT * F, -1)[~used.reshape(-1)] = 0xFF
    ctx = Context()
    node = ops.axpy_id(
        ctx, matrices(ctx, kind, data), ctx.from_numpy(Y[:n]), ctx.from_numpy(IDS[:n])
    )
    assert np.isfinite(compute(node, 2)).all()


@pytest.mark.parametrize("n", [1, N_TOKENS])
def test_a_nan_score_and_an_id_of_no_expert_are_errors(n: int) -> None:
    kind, scores, ids = GGMLType.Q4_0, SCORES[:n].copy(), IDS[:n].copy()
    scores[n - 1, 1, F - 1] = np.nan
    ctx = Context()
    w, x = matrices(ctx, kind, rows(kind)), tokens(ctx, kind, n)
    right = ctx.from_numpy(ids)
    with pytest.raises(ComputeError, match="not a number"):
        compute(ops.mul_mat_id_sparse(ctx, w, x, right, ctx.from_numpy(scores), 0.5), 2)
    for bad in (-1, N_EXPERT):
        ids[n - 1, 1] = bad
        wrong = ctx.from_numpy(ids)
        with pytest.raises(ComputeError, match="AXPY_ID"):
            compute(ops.axpy_id(ctx, w, ctx.from_numpy(Y[:n]), wrong), 2)
        idx = ctx.from_numpy(SCORES[:n])
        with pytest.raises(ComputeError, match="MUL_MAT_ID_SPARSE"):
            compute(ops.mul_mat_id_sparse(ctx, w, x, wrong, idx, 0.5), 2)
