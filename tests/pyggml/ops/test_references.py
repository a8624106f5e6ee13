"""The ops' references against independent computations of the same values."""

from __future__ import annotations

from math import erf, exp, log1p, sqrt, tanh
from typing import Any

import numpy as np
import pytest

import pyggml as ops
from pyggml.cgraph import CGraph
from pyggml.compute import graph_compute_with_ctx
from pyggml.context import Context
from pyggml.dtype import GGMLType
from pyggml.ops.attention.rope import rope_tables, yarn_corr_dims
from pyggml.ops.elementwise.formulas import reference
from pyggml.ops.rows.softmax import alibi_slopes
from pyggml.tensor import Tensor

RNG = np.random.default_rng(7)


def compute(ctx: Context, node: Tensor) -> Any:
    graph = CGraph()
    graph.build_forward_expand(node)
    graph_compute_with_ctx(ctx, graph, backend="reference")
    return node.numpy()


def floats(*shape: int) -> Any:
    return RNG.standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize(("mode", "order"), [(0, (0, 1, 2, 3)), (2, (0, 2, 1, 3))])
def test_rope_is_a_complex_rotation(mode: int, order: tuple[int, ...]) -> None:
    x, pos, ctx = floats(3, 2, 4), np.array([0, 3, 9], np.int32), Context()
    y = compute(ctx, ops.rope(ctx, ctx.from_numpy(x), ctx.from_numpy(pos), 4, mode))
    pairs = np.ascontiguousarray(x[..., order], np.float64).view(np.complex128)
    angle = pos[:, None] * np.array([1.0, 10000**-0.5])
    want = (pairs * np.exp(1j * angle)[:, None]).view(np.float64)
    assert y[..., order] == pytest.approx(want, abs=1e-6)


def test_rope_yarn_and_frequency_factors() -> None:
    params = {**ops.OPS["ROPE"].params, "n_dims": 128, "n_ctx_orig": 4096, "freq_scale": 0.25}
    assert yarn_corr_dims(128, 4096, 10000.0, 32.0, 1.0) == (20, 46)  # the paper's ramp at 128
    pos, one = np.array([100], np.int32), np.array([1], np.int32)
    cos, sin = rope_tables(one, None, {**params, "freq_scale": 1.0})
    plain = np.arctan2(sin, cos)
    cos, sin = rope_tables(one, None, {**params, "ext_factor": 1.0})
    magnitude = 1 + 0.1 * np.log(4)
    assert np.hypot(cos, sin) == pytest.approx(magnitude, rel=1e-6)
    angle = np.arctan2(sin, cos)
    assert angle[0, :20] == pytest.approx(plain[0, :20], rel=1e-3)  # extrapolated
    assert angle[0, 47:] == pytest.approx(plain[0, 47:] / 4, rel=1e-2)  # interpolated
    halved = rope_tables(pos, np.full(64, 2.0, np.float32), {**params, "freq_scale": 1.0})
    assert halved[0] == pytest.approx(rope_tables(pos, None, {**params, "freq_scale": 0.5})[0])


def test_alibi_slopes_are_those_of_the_paper() -> None:
    assert alibi_slopes(8, 8.0) == pytest.approx([2.0**-i for i in range(1, 9)])
    assert alibi_slopes(12, 8.0)[8:] == pytest.approx([2.0 ** -(i + 0.5) for i in range(4)])
    assert alibi_slopes(3, 0.0).tolist() == [1, 1, 1]


@pytest.mark.parametrize(
    ("kind", "function"),
    [
        ("silu", lambda x: x / (1 + exp(-x))),
        ("gelu", lambda x: 0.5 * x * (1 + tanh(sqrt(2 / np.pi) * (x + 0.044715 * x**3)))),
        ("gelu_erf", lambda x: 0.5 * x * (1 + erf(x / sqrt(2)))),
        ("gelu_quick", lambda x: x / (1 + exp(-1.702 * x))),
        ("elu", lambda x: x if x > 0 else exp(x) - 1),
        ("softplus", lambda x: log1p(exp(x))),
        ("hardswish", lambda x: x * min(1, max(0, (x + 3) / 6))),
        ("round", lambda x: int(x + (0.5 if x > 0 else -0.5))),
        ("step", lambda x: float(x > 0)),
        ("sgn", lambda x: float(x > 0) - float(x < 0)),
    ],
)
def test_unary_kinds(kind: str, function: Any) -> None:
    x = np.array([-20, -3.5, -2.5, -1, -0.4, 0, 0.5, 1, 2.5, 3, 20.0])
    assert reference(kind, x) == pytest.approx([function(v) for v in x], abs=1e-12)


def test_dense_and_indexed_attention_agree() -> None:
    hd, nh, nkv, n, T = 8, 4, 2, 13, 5
    q, k, v = floats(nh, T, hd), floats(nkv, n, hd), floats(nkv, n, hd)
    pos = np.arange(n - T, n)
    mask = np.where(np.arange(n) <= pos[:, None], np.arange(n) - pos[:, None], -np.inf)
    cells = RNG.permutation(n)
    lists = np.stack([cells, np.arange(n)], -1)[None].astype(np.int32)
    rows = np.stack([0 * pos, 0 * pos, pos + 1, pos], -1).astype(np.int32)
    kc, vc = np.empty_like(k), np.empty_like(v)
    kc[:, cells], vc[:, cells] = k, v  # position p lies in cell cells[p]
    ctx = Context()
    t = [ctx.from_numpy(x) for x in (q, k, v, mask.astype(np.float32), kc, vc, lists, rows)]
    for max_bias in (0.0, 8.0):
        dense = ops.flash_attn_ext(
            ctx, t[0], t[1], t[2], t[3] if max_bias else _causal(ctx, mask), 0.3, max_bias
        )
        indexed = ops.flash_attn_cells(ctx, t[0], t[4], t[5], t[6], t[7], 0.3, max_bias)
        assert compute(ctx, dense) == pytest.approx(compute(ctx, indexed), rel=1e-5)


def _causal(ctx: Context, mask: Any) -> Tensor:
    return ctx.from_numpy(np.where(np.isinf(mask), mask, 0).astype(np.float32))


def test_attention_is_softmax_between_two_matmuls() -> None:
    q, k, v, sinks = floats(4, 5, 8), floats(2, 13, 8), floats(2, 13, 8), floats(4)
    ctx = Context()
    tq, tk, tv, ts = (ctx.from_numpy(x) for x in (q, k, v, sinks))
    fused = compute(ctx, ops.flash_attn_ext(ctx, tq, tk, tv, None, 0.3, sinks=ts))
    p = ops.soft_max_ext(ctx, ops.mul_mat(ctx, tk, tq), None, 0.3, sinks=ts)
    out = ops.mul_mat(ctx, ops.cont(ctx, ops.transpose(ctx, tv)), p)
    assert fused == pytest.approx(compute(ctx, out).swapaxes(0, 1), rel=1e-5, abs=1e-6)


def test_soft_max_rows_add_up_to_one() -> None:
    ctx = Context()
    x = floats(3, 7)
    y = compute(ctx, ops.soft_max(ctx, ctx.from_numpy(x)))
    assert y.sum(-1) == pytest.approx(1, rel=1e-6)
    assert y == pytest.approx(np.exp(x) / np.exp(x).sum(-1, keepdims=True), rel=1e-5)


def test_set_rows_skips_negative_and_keeps_the_rest() -> None:
    ctx = Context()
    a = ctx.from_numpy(np.zeros((4, 3), np.float32))
    b = ctx.from_numpy(np.ones((3, 3), np.float32))
    idx = ctx.from_numpy(np.array([2, -1, 0], np.int32))
    y = compute(ctx, ops.set_rows(ctx, a, b, idx))
    assert y[:, 0].tolist() == [1, 0, 1, 0]
    assert np.shares_memory(y, a.numpy())


def test_mul_mat_repeats_weights_over_groups() -> None:
    ctx = Context()
    a, b = floats(2, 5, 8), floats(6, 3, 8)
    y = compute(ctx, ops.mul_mat(ctx, ctx.from_numpy(a), ctx.from_numpy(b)))
    assert y == pytest.approx(np.einsum("hmk,hnk->hnm", a[[0, 0, 0, 1, 1, 1]], b), rel=1e-4)


def test_casts_round_trip() -> None:
    ctx = Context()
    x = ctx.from_numpy(floats(2, 32))
    half = ops.cast(ctx, x, GGMLType.F16)
    back = compute(ctx, ops.cast(ctx, half, GGMLType.F32))
    assert np.array_equal(back, x.numpy().astype(np.float16).astype(np.float32))


def test_set_and_acc_are_writes_through_a_view() -> None:
    ctx = Context()
    a, b = ctx.from_numpy(floats(3, 5, 17)), ctx.from_numpy(floats(2, 4))
    before, offset = a.numpy().copy(), a.nb[2] + a.nb[1] + 8
    want = before.copy()
    want[1, 1:3, 2:6] = b.numpy()
    assert np.array_equal(compute(ctx, ops.set_2d(ctx, a, b, a.nb[1], offset)), want)
    want[1, 1:3, 2:6] += before[1, 1:3, 2:6]
    assert np.array_equal(compute(ctx, ops.acc(ctx, a, b, a.nb[1:], offset)), want)
    assert np.array_equal(a.numpy(), before)
    y = compute(ctx, ops.acc_inplace(ctx, a, b, a.nb[1:], offset))
    assert np.shares_memory(y, a.numpy()) and np.array_equal(a.numpy(), want)


def test_a_diagonal_mask_is_a_causal_mask() -> None:
    ctx = Context()
    kq = ctx.from_numpy(floats(2, 5, 8))
    mask = np.where(np.arange(8) <= np.arange(5)[:, None] + 3, 0, -np.inf).astype(np.float32)
    one = compute(ctx, ops.soft_max(ctx, ops.diag_mask_inf(ctx, kq, 3)))
    other = compute(ctx, ops.soft_max_ext(ctx, kq, ctx.from_numpy(mask)))
    assert np.array_equal(one, other)
    lower = compute(ctx, ops.diag_mask_zero(ctx, ops.cont(ctx, ops.repeat_4d(
        ctx, ops.fill(ctx, ctx.from_numpy(floats(1)), 1.0), 6, 6, 1, 1)), 0))  # fmt: skip
    assert np.array_equal(lower, np.tril(np.ones((6, 6))))


def test_top_k_and_argsort_top_k_agree_and_order_the_values() -> None:
    ctx = Context()
    x = ctx.from_numpy(floats(3, 33))
    places = compute(ctx, ops.top_k(ctx, x, 5))
    assert np.array_equal(places, compute(ctx, ops.argsort_top_k(ctx, x, 5)))
    values = np.take_along_axis(x.numpy(), places, -1)
    assert np.array_equal(values, np.sort(x.numpy())[:, :-6:-1])
    rising = compute(ctx, ops.argsort(ctx, x))
    assert np.array_equal(np.take_along_axis(x.numpy(), rising, -1), np.sort(x.numpy()))


def test_norms_have_no_mean_and_unit_size() -> None:
    ctx = Context()
    x = ctx.from_numpy(floats(2, 6, 4, 5) * 3 + 7)
    y = compute(ctx, ops.norm(ctx, x, 0.0)).astype(np.float64)
    assert y.mean(-1) == pytest.approx(0, abs=1e-6) and y.std(-1) == pytest.approx(1)
    y = compute(ctx, ops.group_norm(ctx, x, 3, 0.0)).astype(np.float64).reshape(2, 3, -1)
    assert y.mean(-1) == pytest.approx(0, abs=1e-6) and y.std(-1) == pytest.approx(1)
    y = compute(ctx, ops.l2_norm(ctx, x, 0.0)).astype(np.float64)
    assert np.linalg.norm(y, axis=-1) == pytest.approx(1)


def test_gated_units_with_limits() -> None:
    ctx = Context()
    gate, up = np.array([9.0, 1, -9], np.float32), np.array([9.0, -9, 0.5], np.float32)
    g, u = ctx.from_numpy(gate), ctx.from_numpy(up)
    y = compute(ctx, ops.swiglu_oai(ctx, g, u, 1.702, 7.0))
    want = [
        7 / (1 + exp(-7 * 1.702)) * 8,
        1 / (1 + exp(-1.702)) * -6,
        -9 / (1 + exp(9 * 1.702)) * 1.5,
    ]
    assert y == pytest.approx(want, rel=1e-5)
    y = compute(ctx, ops.swiglu_clamp(ctx, g, u, 7.0))
    assert y == pytest.approx(
        [49 / (1 + exp(-7)), -7 / (1 + exp(-1)), -4.5 / (1 + exp(9))], rel=1e-5
    )


def test_padding_roll_cumsum_and_arange() -> None:
    ctx = Context()
    x = ctx.from_numpy(np.arange(1, 4, dtype=np.float32))
    assert compute(ctx, ops.pad(ctx, x, 2, 0, 0, 0)).tolist() == [1, 2, 3, 0, 0]
    around = ops.pad_ext(ctx, x, (2, 0, 0, 0), (1, 0, 0, 0), circular=True)
    assert compute(ctx, around).tolist() == [2, 3, 1, 2, 3, 1]
    assert compute(ctx, ops.pad_reflect_1d(ctx, x, 2, 1)).tolist() == [3, 2, 1, 2, 3, 2]
    assert compute(ctx, ops.roll(ctx, x, 1, 0, 0, 0)).tolist() == [3, 1, 2]
    assert compute(ctx, ops.cumsum(ctx, x)).tolist() == [1, 3, 6]
    assert compute(ctx, ops.arange(ctx, 0, 1, 0.25)).tolist() == [0, 0.25, 0.5, 0.75]
