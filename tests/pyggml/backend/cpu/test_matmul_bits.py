"""MUL_MAT: a token's result has one set of bits, for every batch, thread count and layout."""

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
from pyggml.quants import BLOCK_TYPES, dequantize, quantize
from tests.pyggml.ops.harness import encoded, set_scales
from tests.tiers import some

Array = npt.NDArray[Any]
M = 83  # rows, with an incomplete group
QUANTIZED = [t for t in INTERLEAVED if t.is_quantized]
FLOATS = [t for t in INTERLEAVED if not t.is_quantized]
types = pytest.mark.parametrize("kind", some(INTERLEAVED, 4), ids=lambda t: t.name)
ALL_X = np.random.default_rng(0).standard_normal((65, 512)).astype(np.float32)


def columns(kind: GGMLType) -> int:
    """Columns: a few blocks."""
    return 512 if kind.block_size == 256 else 96


def tokens(kind: GGMLType, n: int = 65) -> Array:
    return ALL_X[:n, : columns(kind)].copy()


def random_rows(kind: GGMLType, n_rows: int = M) -> Array:
    shape = n_rows, columns(kind)
    values = np.random.default_rng(int(kind)).standard_normal(shape).astype(np.float32)
    return encoded(values, kind)


def rounded(x: Array, size: int) -> Array:
    """Activations rounded as for quantized weights of a block size."""
    blocks = x.reshape(len(x), -1, size)
    largest = np.abs(blocks).max(-1, keepdims=True)
    if size == 32:
        d = largest / np.float32(127)
        return (np.rint(blocks / d) * d.astype(np.float16)).reshape(x.shape).astype(np.float64)
    inverse = np.float32(127) / largest
    return (np.rint(blocks * inverse) * (1 / inverse).astype(np.float64)).reshape(x.shape)


def product(
    kind: GGMLType, rows: Array, x: Array, n_threads: int = 1, buft: Any = REPACK,
    many: bool = False,
) -> Array:  # fmt: skip
    """``x @ rows.T`` on the CPU backend; ``rows`` are ggml's bytes."""
    ctx, weights = Context(), Context(no_alloc=True)
    w = weights.new_tensor_2d(kind, x.shape[-1], len(rows))
    buffer = alloc_ctx_tensors(weights, buft)
    buffer.set_tensor(w, rows.reshape(-1))
    node = ops.mul_mat(ctx, w, ctx.from_numpy(x), many)
    graph = CGraph()
    graph.build_forward_expand(node)
    program = compile_program(graph, n_threads, get_pool().error_slot, WorkStore())
    get_pool().run(program)
    return node.numpy().reshape(len(x), len(rows)).copy()


@types
def test_bits_depend_on_the_token_alone(kind: GGMLType) -> None:
    rows, x = random_rows(kind), tokens(kind)
    alone = np.concatenate([product(kind, rows, x[i : i + 1]) for i in range(len(x))])
    for i, n in enumerate((*range(1, 10), 17, 33, 64, 65)):
        for buft in (REPACK, HOST):
            got = product(kind, rows, x[:n], 1 + i % 3, buft)
            assert got.tobytes() == alone[:n].tobytes(), (n, buft.name)


@pytest.mark.parametrize("kind", FLOATS, ids=lambda t: t.name)
def test_bits_of_an_op_that_says_it_has_many_tokens(kind: GGMLType) -> None:
    """On a CPU with a matrix unit they may be others, but are those of each token alone."""
    rows, x = random_rows(kind), tokens(kind)
    alone = np.concatenate([product(kind, rows, x[i : i + 1], many=True) for i in range(len(x))])
    for i, n in enumerate((1, 2, 5, 6, 16, 17, 33, 64, 65)):
        for buft in (REPACK, HOST):
            got = product(kind, rows, x[:n], 1 + i % 3, buft, many=True)
            assert got.tobytes() == alone[:n].tobytes(), (n, buft.name)


@pytest.mark.parametrize("kind", FLOATS, ids=lambda t: t.name)
@pytest.mark.parametrize("n", [100, 384, 4096])
def test_floats_are_as_exact_as_float32_sums(kind: GGMLType, n: int) -> None:
    rng = np.random.default_rng(n)
    rows = encoded(rng.standard_normal((32, n)).astype(np.float32), kind)
    w, x = dequantize(rows, kind).reshape(32, n), rng.standard_normal((7, n)).astype(np.float32)
    want = x.astype(np.float64) @ w.T.astype(np.float64)
    one_by_one = np.add.accumulate(x[:, None] * w, axis=-1, dtype=np.float32)[..., -1]
    limit = 4 * np.sqrt(np.mean((one_by_one - want) ** 2))
    for many in (False, True):
        got = product(kind, rows, x, many=many)
        assert np.sqrt(np.mean((got - want) ** 2)) < limit


@types
def test_against_float64(kind: GGMLType) -> None:
    rows, x = random_rows(kind), tokens(kind)
    want = x.astype(np.float64) @ dequantize(rows, kind).astype(np.float64).T
    got = product(kind, rows, x, 2)
    error = np.sum((got - want) ** 2) / np.sum(want**2)
    assert error < (1e-4 if kind.is_quantized else 1e-12)
    if kind.is_quantized:  # the remaining error is the known rounding of activations
        exact = rounded(x, kind.block_size) @ dequantize(rows, kind).astype(np.float64).T
        f = BLOCK_TYPES[kind]
        rounded_sums = f.low and not f.minima  # rounded to half floats, as in ggml's Q8_1
        limit = 1e-6 if rounded_sums else 1e-12
        assert np.sum((got - exact) ** 2) / np.sum(want**2) < limit


@pytest.mark.parametrize("kind", some(QUANTIZED, 8), ids=lambda t: t.name)
def test_extreme_codes_do_not_saturate(kind: GGMLType) -> None:
    """Weights and activations at the ends of their range, where 16-bit sums would overflow."""
    f = BLOCK_TYPES[kind]
    n = 256
    x = np.concatenate([np.full((2, n), 127), np.full((2, n), -127)]).astype(np.float32)
    x[1::2, ::2] *= -1
    for code in range(0, 256, 5):
        raw = np.full((16, n // kind.block_size * kind.type_size), code, np.uint8)
        blocks = raw.reshape(-1, kind.type_size)
        if f.scale == "e8m0":
            blocks[:, 0] = 128
        for field in filter(None, (f.d, f.low) if f.scale == "f16" else ()):
            set_scales(blocks, field, 1)
        want = x.astype(np.float64) @ dequantize(raw, kind).astype(np.float64).T
        np.testing.assert_allclose(product(kind, raw, x), want, rtol=1e-3, atol=1e-3)


@types
def test_nan_and_inf_stay_in_their_token(kind: GGMLType) -> None:
    rows, x = random_rows(kind), tokens(kind, 6)
    want = product(kind, rows, x)
    x[1, 40], x[3, 5], x[4] = np.nan, np.inf, 0
    got = product(kind, rows, x, 2)
    assert np.isnan(got[1]).all()
    assert not np.isfinite(got[3]).any()
    assert np.isnan(got[3]).all() or not kind.is_quantized  # all codes are 0 on every CPU
    assert not got[4].any()
    assert got[[0, 2, 5]].tobytes() == want[[0, 2, 5]].tobytes()


@types
@pytest.mark.parametrize("scale", [1e-42, 1e-30, 1e30])
def test_huge_and_tiny_activations(kind: GGMLType, scale: float) -> None:
    rows, x = random_rows(kind), tokens(kind, 5)
    got = product(kind, rows, x * np.float32(scale))
    want = x.astype(np.float64) * scale @ dequantize(rows, kind).astype(np.float64).T
    if kind.block_size == 256:  # scales are floats; blocks without a reciprocal are 0
        error = np.sum((got - want) ** 2) / np.sum(want**2)
        assert error < 1e-4 or (scale < 1e-36 and not got.any())
    elif kind.is_quantized:  # scales are half floats, as in ggml: 1e30 is inf, and 1e-30 is zero
        assert got.shape == want.shape and (scale > 1 or not got.any())
    else:
        np.testing.assert_allclose(got, want, rtol=1e-3, atol=1e-40)


@types
def test_a_row_of_zeros_and_a_single_row(kind: GGMLType) -> None:
    rows, x = random_rows(kind), tokens(kind, 3)
    rows[7] = 0
    got = product(kind, rows, x, 2)
    assert not got[:, 7].any()
    assert product(kind, rows[9:10], x).tobytes() == got[:, 9:10].tobytes()


@types
def test_batches_share_and_repeat_weights(kind: GGMLType) -> None:
    """2 weight matrices, 4 batches of tokens (grouped heads), and strided tokens."""
    ctx, n = Context(), columns(kind)
    rows, all_x = random_rows(kind, 2 * M).reshape(2, M, -1), tokens(kind, 20).reshape(5, 4, n)
    w = ctx.new_tensor_3d(kind, n, M, 2)
    w.buffer.set_tensor(w, rows.reshape(-1))  # type: ignore[union-attr]
    x = ops.permute(ctx, ctx.from_numpy(all_x), 0, 2, 1, 3)  # 4 batches of 5
    node = ops.mul_mat(ctx, w, x)
    graph = CGraph()
    graph.build_forward_expand(node)
    get_pool().run(compile_program(graph, 3, get_pool().error_slot, WorkStore()))
    for batch in range(4):
        part = np.ascontiguousarray(all_x[:, batch])
        assert node.numpy()[batch].tobytes() == product(kind, rows[batch // 2], part).tobytes()


@types
@pytest.mark.parametrize("half", [GGMLType.F16, GGMLType.BF16], ids=lambda t: t.name)
def test_half_float_activations_equal_their_values_in_float32(
    kind: GGMLType, half: GGMLType
) -> None:
    """Also with a bias, and with two matmuls of one activation."""
    halves = quantize(tokens(kind, 7), half)
    values = dequantize(halves, half)
    results = []
    for type in (half, GGMLType.F32):
        ctx = Context()
        w, v = (ctx.new_tensor_2d(kind, columns(kind), M) for _ in range(2))
        for t in (w, v):
            assert t.buffer is not None
            t.buffer.set_tensor(t, random_rows(kind).reshape(-1).view(np.uint8))
        x = ctx.new_tensor_2d(type, columns(kind), 7)
        assert x.buffer is not None
        x.buffer.set_tensor(x, (halves if type is half else values).reshape(-1).view(np.uint8))
        bias = ctx.from_numpy(np.linspace(-1, 1, M, dtype=np.float32))
        first = ops.add(ctx, ops.mul_mat(ctx, w, x), bias)
        both = ops.add(ctx, first, ops.mul_mat(ctx, v, x))
        graph = CGraph()
        graph.build_forward_expand(both)
        get_pool().run(compile_program(graph, 2, get_pool().error_slot, WorkStore()))
        results.append(both.numpy().tobytes())
    assert results[0] == results[1]
