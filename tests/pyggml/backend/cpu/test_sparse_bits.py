"""MUL_MAT_SPARSE, AXPY and the fused FFN: a token's bits do not depend on the other tokens."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import pyggml as ops
from pyggml.backend.cpu import kernels as kernels  # registers the lowerings
from pyggml.backend.cpu.compile.program import PhaseTable, compile_program
from pyggml.backend.cpu.compile.work import WorkStore
from pyggml.backend.cpu.run.pool import get_pool
from pyggml.backend.cpu.simd.isa import vectors
from pyggml.backend.cpu.simd.vector import HardwareFloats
from pyggml.backend.cpu.weights.layout import INTERLEAVED
from pyggml.cgraph import CGraph
from pyggml.context import Context
from pyggml.dtype import GGMLType
from pyggml.errors import ComputeError
from pyggml.quants import dequantize
from pyggml.tensor import Tensor
from tests.pyggml.ops.harness import encoded
from tests.tiers import some

Array = npt.NDArray[Any]
F = 1100  # rows: two segments
INF = float("inf")
RNG = np.random.default_rng(0)
ALL_X = RNG.standard_normal((40, 256)).astype(np.float32)
Y = RNG.standard_normal((40, F)).astype(np.float32)
SCORES = RNG.uniform(0, 1, (40, F)).astype(np.float32)
MARKS = (RNG.random(F) < 0.3).astype(np.int32)
BUCKET = np.flatnonzero(MARKS).astype(np.int32)
types = pytest.mark.parametrize("kind", some(INTERLEAVED, 3), ids=lambda t: t.name)


def columns(kind: GGMLType) -> int:
    """Columns, with an incomplete group of AXPY where the block size allows it."""
    return max(96, kind.block_size)


def tokens(kind: GGMLType, n: int, first: int = 0) -> Array:
    return ALL_X[first : first + n, : columns(kind)].copy()


@cache
def rows(kind: GGMLType, seed: int = 0) -> Array:
    values = np.random.default_rng(seed).standard_normal((F, columns(kind))).astype(np.float32)
    return encoded(values, kind)


def matrix(ctx: Context, kind: GGMLType, data: Array) -> Tensor:
    n = data.shape[-1] // kind.type_size * kind.block_size
    w = ctx.new_tensor_2d(kind, n, len(data))
    assert w.buffer is not None
    w.buffer.set_tensor(w, data.reshape(-1).view(np.uint8))
    return w


def program_of(*nodes: Tensor, n_threads: int = 1, fusion: bool = True) -> PhaseTable:
    graph = CGraph()
    for node in nodes:
        graph.build_forward_expand(node)
    error_slot = get_pool().error_slot
    return compile_program(graph, n_threads, error_slot, WorkStore(), fusion=fusion)


def compute(*nodes: Tensor, n_threads: int = 1, fusion: bool = True) -> Array:
    """The last node's values."""
    get_pool().run(program_of(*nodes, n_threads=n_threads, fusion=fusion))
    return nodes[-1].numpy().reshape(nodes[-1].ne[1], -1).copy()


def product(kind: GGMLType, n: int, threshold: float, n_threads: int = 1, first: int = 0) -> Array:
    ctx = Context()
    x, idx = ctx.from_numpy(tokens(kind, n, first)), ctx.from_numpy(SCORES[first : first + n])
    node = ops.mul_mat_sparse(ctx, matrix(ctx, kind, rows(kind)), x, idx, threshold)
    return compute(node, n_threads=n_threads)


def sums(
    kind: GGMLType, n: int, threshold: float | None, n_threads: int = 1, first: int = 0
) -> Array:
    """AXPY; without scores where ``threshold`` is None."""
    ctx = Context()
    y, scores = ctx.from_numpy(Y[first : first + n]), SCORES[first : first + n]
    idx = None if threshold is None else ctx.from_numpy(scores)
    node = ops.axpy(ctx, matrix(ctx, kind, rows(kind)), y, idx, threshold or 0.0)
    return compute(node, n_threads=n_threads)


@types
@pytest.mark.parametrize("threshold", [0.98, 0.8, 0.2])
def test_active_results_are_mul_mats_and_the_others_zero(kind: GGMLType, threshold: float) -> None:
    """Each path has MUL_MAT's bits: few, many or all tokens need a row."""
    ctx = Context()
    w = matrix(ctx, kind, rows(kind))
    dense = compute(ops.mul_mat(ctx, w, ctx.from_numpy(tokens(kind, 40))), n_threads=2)
    want = np.where(threshold <= SCORES, dense, np.float32(0))
    for i, n in enumerate((1, 2, 5, 40)):
        assert product(kind, n, threshold, 1 + i % 3).tobytes() == want[:n].tobytes()
    assert product(kind, 1, threshold, 2, first=7).tobytes() == want[7].tobytes()
    assert product(kind, 3, -INF, 2).tobytes() == dense[:3].tobytes()
    assert not product(kind, 3, INF, 2).view(np.uint32).any()


@types
def test_sums_depend_on_the_token_alone(kind: GGMLType) -> None:
    """One token, few, many; more threads than segments; any part of a batch."""
    for threshold in (0.8, None):
        whole = sums(kind, 40, threshold)
        for i, n in enumerate((1, 2, 16, 17, 33)):
            got = sums(kind, n, threshold, 1 + i % 4)
            assert got.tobytes() == whole[:n].tobytes(), n
        assert sums(kind, 1, threshold, 9, first=5).tobytes() == whole[5].tobytes()
        assert sums(kind, 20, threshold, 2, first=11).tobytes() == whole[11:31].tobytes()
    assert sums(kind, 4, -INF, 2).tobytes() == sums(kind, 4, None).tobytes()
    assert not sums(kind, 4, INF, 2).view(np.uint32).any()


@pytest.mark.parametrize("threshold", [0.8, -INF])
def test_sums_of_several_blocks_of_tokens(threshold: float) -> None:
    """600 tokens are three blocks of tokens with values of their own."""
    ctx = Context()
    y, scores = (ctx.from_numpy(np.tile(v, (15, 1))) for v in (Y, SCORES))
    w = matrix(ctx, GGMLType.Q4_0, rows(GGMLType.Q4_0))
    got = compute(ops.axpy(ctx, w, y, scores, threshold), n_threads=2)
    want = np.tile(sums(GGMLType.Q4_0, 40, threshold), (15, 1))
    assert got.tobytes() == want.tobytes()


@types
def test_sums_are_accumulated_per_segment(kind: GGMLType) -> None:
    """Float32 sums with one rounding for each row; sums of segments of 1,024 rows are added."""
    w = dequantize(rows(kind), kind).astype(np.float64)
    total = np.zeros((2, columns(kind)), np.float32)
    for start in range(0, F, 1024):
        part = np.zeros_like(total)
        for j in range(start, min(F, start + 1024)):
            y = np.where(SCORES[:2, j] >= 0.8, Y[:2, j], 0).astype(np.float64)
            products = y[:, None] * w[j]
            if not isinstance(vectors(), HardwareFloats):  # a second rounding without FMA
                products = products.astype(np.float32)
            part = (part + products).astype(np.float32)  # exact except for the last bit
        total += part
    got = sums(kind, 2, 0.8)
    assert np.mean(got == total) > 0.99
    np.testing.assert_allclose(got, total, rtol=1e-5, atol=1e-5)


@types
def test_placement(kind: GGMLType) -> None:
    """Sums of both devices' neurons are those of all; bits are equal if one summand is zero."""
    ctx = Context()
    data = rows(kind)
    x, y, idx = (ctx.from_numpy(v[:3]) for v in (tokens(kind, 3), Y, SCORES))
    marks, bucket = ctx.from_numpy(MARKS), ctx.from_numpy(BUCKET)
    w, sliced = matrix(ctx, kind, data), matrix(ctx, kind, data[BUCKET])
    here = compute(ops.mul_mat_sparse(ctx, w, x, idx, 0.5, gpu_idx=marks), n_threads=2)
    there = compute(ops.mul_mat_sparse(ctx, sliced, x, idx, 0.5, bucket=bucket), n_threads=2)
    assert (here + there).tobytes() == product(kind, 3, 0.5).tobytes()
    for scores, threshold in ((idx, 0.5), (None, 0.0)):
        here = compute(ops.axpy(ctx, w, y, scores, threshold, gpu_idx=marks), n_threads=2)
        there = compute(ops.axpy(ctx, sliced, y, scores, threshold, bucket=bucket), n_threads=2)
        whole = sums(kind, 3, threshold if scores is not None else None)
        np.testing.assert_allclose(here + there, whole, rtol=1e-4, atol=1e-4)


# --- the fused feed-forward block ---

Inner = Callable[[Context, Tensor, Tensor, Tensor], Tensor]  # up, gate, bias -> input of AXPY
ROW_GATES: dict[str, Inner] = {
    "reglu": lambda ctx, up, gate, _: ops.glu_split(ctx, gate, up, "reglu"),
    "swiglu": lambda ctx, up, gate, _: ops.glu_split(ctx, gate, up, "swiglu"),
    "drelu": lambda ctx, up, gate, _: ops.glu_split(ctx, gate, ops.relu(ctx, up), "reglu"),
}
NO_GATES: dict[str, Inner] = {
    "relu": lambda ctx, up, _gate, _: ops.relu(ctx, up),
    "bias": lambda ctx, up, _gate, bias: ops.relu(ctx, ops.add(ctx, up, bias)),
    "squared": lambda ctx, up, _gate, _: ops.sqr(ctx, ops.relu(ctx, up)),
    "bias, squared": lambda ctx, up, _gate, bias: ops.sqr(
        ctx, ops.relu(ctx, ops.add(ctx, up, bias))
    ),
}


def feed_forward(
    kind: GGMLType, inner: Inner, n: int, *, exact: bool = False, gated: bool = True,
    n_threads: int = 1, fusion: bool = True,
) -> tuple[Array, list[str]]:  # fmt: skip
    """The result of the feed-forward block, and the names of its kernels."""
    ctx = Context()
    up_w, gate_w, down_w = (matrix(ctx, kind, rows(kind, seed=i)) for i in range(3))
    bias = ctx.from_numpy(np.linspace(-1, 1, F, dtype=np.float32))
    x = ctx.from_numpy(tokens(kind, n))
    idx, threshold = ctx.from_numpy(SCORES[:n]), 0.7
    if exact:
        idx, threshold = ops.mul_mat(ctx, gate_w, x), 1e-45
    up = ops.mul_mat_sparse(ctx, up_w, x, idx, threshold)
    first = [up]
    gate = idx
    if gated and not exact:
        gate = ops.mul_mat_sparse(ctx, gate_w, x, idx, threshold)
        first.append(gate)
    out = ops.axpy(ctx, down_w, inner(ctx, up, gate, bias), idx, threshold)
    made = program_of(*first, out, n_threads=n_threads, fusion=fusion)
    get_pool().run(made)
    names = [launch.kernel.name for launch in made.launches if launch.kernel is not None]
    return out.numpy().reshape(n, columns(kind)).copy(), names


@types
def test_fused_feed_forward_has_the_bits_of_its_nodes(kind: GGMLType) -> None:
    want, apart = feed_forward(kind, ROW_GATES["reglu"], 40, fusion=False)
    assert np.isfinite(want).all() and want.any()
    assert "zero_f32" in apart
    for n, n_threads in ((1, 1), (1, 3), (2, 2), (17, 2), (40, 1)):
        got, names = feed_forward(kind, ROW_GATES["reglu"], n, n_threads=n_threads)
        assert got.tobytes() == want[:n].tobytes(), n
        assert "zero_f32" not in names and not any(name.startswith("glu") for name in names)


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("name", some([*ROW_GATES, *NO_GATES], 3))
def test_every_variant_of_the_fused_feed_forward(name: str, exact: bool) -> None:
    kind, gated = GGMLType.Q8_0, name in ROW_GATES
    inner = {**ROW_GATES, **NO_GATES}[name]
    want, _ = feed_forward(kind, inner, 5, exact=exact, gated=gated, fusion=False)
    assert np.isfinite(want).all() and want.any()
    for n in (1, 5):
        got, names = feed_forward(kind, inner, n, exact=exact, gated=gated, n_threads=2)
        assert got.tobytes() == want[:n].tobytes()
        assert "zero_f32" not in names


def test_other_readers_scores_or_thresholds_prevent_fusion() -> None:
    ctx = Context()
    kind = GGMLType.F16
    w, x = matrix(ctx, kind, rows(kind)), ctx.from_numpy(tokens(kind, 2))
    idx, other = ctx.from_numpy(SCORES[:2]), ctx.from_numpy(1 - SCORES[:2])
    up = ops.mul_mat_sparse(ctx, w, x, idx, 0.5)
    y = ops.relu(ctx, up)
    for scores, threshold, reader in ((other, 0.5, ()), (idx, 0.4, ()), (idx, 0.5, (up,))):
        out = ops.axpy(ctx, w, y, scores, threshold)
        nodes = (up, out, *(ops.neg(ctx, r) for r in reader))
        made = program_of(*nodes)
        names = [launch.kernel.name for launch in made.launches if launch.kernel is not None]
        assert "relu_f32" in names
        get_pool().run(made)
        got = out.numpy().copy()
        assert got.tobytes() == compute(*nodes[:2], fusion=False).reshape(got.shape).tobytes()


# --- legal and bad scores and rows ---


@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("op", ["mul_mat_sparse", "axpy"])
def test_a_nan_score_is_an_error(op: str, n: int) -> None:
    ctx = Context()
    scores = SCORES[:n].copy()
    scores[n - 1, F - 1] = np.nan
    x = ctx.from_numpy(tokens(GGMLType.Q4_0, n) if op == "mul_mat_sparse" else Y[:n])
    w = matrix(ctx, GGMLType.Q4_0, rows(GGMLType.Q4_0))
    with pytest.raises(ComputeError, match="not a number"):
        compute(getattr(ops, op)(ctx, w, x, ctx.from_numpy(scores), 0.5), n_threads=2)


@pytest.mark.parametrize("n", [1, 3, 20])
def test_a_bucket_without_neurons_adds_nothing(n: int) -> None:
    """A placement of all neurons on the other device leaves an empty bucket."""
    kind = GGMLType.Q8_0
    ctx = Context()
    w, bucket = matrix(ctx, kind, rows(kind)[:0]), ctx.from_numpy(BUCKET[:0])
    y, idx = ctx.from_numpy(Y[:n]), ctx.from_numpy(SCORES[:n])
    node = ops.axpy(ctx, w, y, idx, 0.5, bucket=bucket)
    assert not compute(node, n_threads=2).view(np.uint32).any()


@pytest.mark.parametrize("neuron", [-1, F])
def test_a_bucket_index_out_of_range_is_an_error(neuron: int) -> None:
    ctx = Context()
    bucket = ctx.from_numpy(np.array([3, neuron], np.int32))
    w = matrix(ctx, GGMLType.Q8_0, rows(GGMLType.Q8_0)[:2])
    for idx in (ctx.from_numpy(SCORES[:2]), None):
        with pytest.raises(ComputeError):
            compute(ops.axpy(ctx, w, ctx.from_numpy(Y[:2]), idx, 0.0, bucket=bucket))


@types
@pytest.mark.parametrize("n", [1, 3, 20])
def test_inactive_rows_are_not_read(kind: GGMLType, n: int) -> None:
    """Inactive rows are filled with NaN, which would propagate."""
    active = SCORES[:n] >= 0.9
    data = rows(kind).copy()
    bytes_of = data.view(np.uint8).reshape(F, -1)
    bytes_of[~active.any(0)] = 0xFF
    ctx = Context()
    w, idx = matrix(ctx, kind, data), ctx.from_numpy(SCORES[:n])
    y = np.where(active, Y[:n], np.float32(np.nan))  # inactive values are NaN
    for node in (
        ops.mul_mat_sparse(ctx, w, ctx.from_numpy(tokens(kind, n)), idx, 0.9),
        ops.axpy(ctx, w, ctx.from_numpy(y), idx, 0.9),
    ):
        assert np.isfinite(compute(node, n_threads=2)).all()


@settings(deadline=None, max_examples=25, derandomize=True)
@given(data=st.data())
def test_random_shapes_against_the_reference(data: st.DataObject) -> None:
    draw = data.draw
    kind = draw(st.sampled_from(INTERLEAVED))
    blocks = draw(st.integers(1, 7 if kind.block_size < 256 else 2))
    n_embd = kind.block_size * blocks if kind.is_quantized else draw(st.integers(1, 200))
    n_ff, n = draw(st.integers(1, 90)), draw(st.integers(1, 21))
    threshold = draw(st.sampled_from([-INF, 0.0, 0.5, 0.9, INF]))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    x, y = (rng.standard_normal((n, k)).astype(np.float32) for k in (n_embd, n_ff))
    scores = rng.uniform(-1, 1, (n, n_ff)).astype(np.float32)
    packed = encoded(rng.standard_normal((n_ff, n_embd)).astype(np.float32), kind)
    values = dequantize(packed, kind).astype(np.float64)
    active = scores >= threshold
    ctx = Context()
    w, idx = matrix(ctx, kind, packed), ctx.from_numpy(scores)
    n_threads = draw(st.integers(1, 3))
    got = compute(ops.axpy(ctx, w, ctx.from_numpy(y), idx, threshold), n_threads=n_threads)
    np.testing.assert_allclose(got, np.where(active, y, 0) @ values, rtol=1e-4, atol=1e-4)
    product = ops.mul_mat_sparse(ctx, w, ctx.from_numpy(x), idx, threshold)
    got = compute(product, n_threads=n_threads)
    want = np.where(active, x @ values.T, 0)
    assert not got[~active].view(np.uint32).any()
    lengths = np.outer(np.linalg.norm(x, axis=1), np.linalg.norm(values, axis=1))
    assert (np.abs(got - want) <= 0.005 * lengths + 1e-4).all()  # activations are rounded to int8
