"""Convolutions against loops over single elements, and the builders against each other."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import pyggml as ops
from pyggml.cgraph import CGraph
from pyggml.compute import graph_compute_with_ctx
from pyggml.context import Context
from pyggml.tensor import Tensor

RNG = np.random.default_rng(3)


def compute(ctx: Context, node: Tensor, backend: str = "reference") -> Any:
    graph = CGraph()
    graph.build_forward_expand(node)
    graph_compute_with_ctx(ctx, graph, backend=backend)
    return node.numpy(squeeze=False)


def floats(*shape: int) -> Any:
    return RNG.standard_normal(shape).astype(np.float32)


def by_element(w: Any, x: Any, s: int, p: int, d: int) -> Any:
    """Kernels [oc, c, kh, kw] on images [n, c, h, w], by the definition."""
    oh, ow = ((x.shape[i] + 2 * p - d * (w.shape[i] - 1) - 1) // s + 1 for i in (2, 3))
    out = np.zeros((len(x), len(w), oh, ow))
    for y, i, ky, kx in np.ndindex(oh, ow, *w.shape[2:]):
        row, column = y * s + ky * d - p, i * s + kx * d - p
        if 0 <= row < x.shape[2] and 0 <= column < x.shape[3]:
            out[:, :, y, i] += x[:, :, row, column] @ w[:, :, ky, kx].T
    return out


@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("backend", ["reference", "cpu"])
@pytest.mark.parametrize(("s", "p", "d"), [(1, 0, 1), (1, 1, 1), (2, 3, 1), (2, 2, 2)])
def test_conv_2d_in_two_ways(s: int, p: int, d: int, backend: str, half: bool) -> None:
    w, x = floats(4, 3, 3, 2), floats(2, 3, 9, 7)
    ctx = Context()
    kernel = ctx.from_numpy(w.astype(np.float16) if half else w)
    steps = {"s0": s, "s1": s, "p0": p, "p1": p, "d0": d, "d1": d}
    want = by_element(w, x, s, p, d)
    for builder in (ops.conv_2d, ops.conv_2d_direct):
        got = compute(ctx, builder(ctx, kernel, ctx.from_numpy(x), **steps), backend)
        assert got == pytest.approx(want, abs=2e-2 if half else 1e-5)


def test_conv_2d_with_half_padding_and_with_patches() -> None:
    w, x, ctx = floats(4, 3, 3, 3), floats(1, 3, 6, 9), Context()
    kernel, image = ctx.from_numpy(w), ctx.from_numpy(x)
    same = compute(ctx, ops.conv_2d_s1_ph(ctx, kernel, image))
    assert same == pytest.approx(by_element(w, x, 1, 1, 1), abs=1e-5)
    side = compute(ctx, ops.conv_2d_sk_p0(ctx, kernel, image))
    assert side == pytest.approx(by_element(w, x, 3, 0, 1), abs=1e-5)


@pytest.mark.parametrize("backend", ["reference", "cpu"])
def test_conv_1d_is_conv_2d_of_height_one(backend: str) -> None:
    w, x, ctx = floats(5, 3, 4), floats(2, 3, 17), Context()
    got = compute(ctx, ops.conv_1d(ctx, ctx.from_numpy(w), ctx.from_numpy(x), 2, 3, 2), backend)
    tall = by_element(w[:, :, None], np.pad(x, ((0, 0), (0, 0), (3, 3)))[:, :, None], 2, 0, 2)
    assert got[0] == pytest.approx(tall[:, :, 0], abs=1e-5)


def test_a_transposed_convolution_is_the_convolutions_adjoint() -> None:
    w, x, y = floats(5, 3, 4, 2), floats(2, 3, 10, 8), floats(2, 5, 4, 4)
    ctx = Context()
    kernel = ctx.from_numpy(w)
    forth = compute(ctx, ops.conv_2d_direct(ctx, kernel, ctx.from_numpy(x), s0=2, s1=2))
    back = compute(ctx, ops.conv_transpose_2d_p0(ctx, kernel, ctx.from_numpy(y), 2))
    assert back.shape == x.shape and forth.shape == y.shape
    assert np.sum(forth * y) == pytest.approx(np.sum(x * back), rel=1e-4)
    row, image = (ctx.from_numpy(np.ascontiguousarray(a)) for a in (w[:, :, 0], y[0, :, 0]))
    line = compute(ctx, ops.conv_transpose_1d(ctx, row, image, 2))
    wide = np.zeros((3, 8))
    for c, i in np.ndindex(5, 4):
        wide[:, 2 * i : 2 * i + 2] += y[0, c, 0, i] * w[c, :, 0]
    assert line[0, 0] == pytest.approx(wide, abs=1e-5)


def test_means_at_the_border_differ_by_op_as_in_ggml() -> None:
    ctx = Context()
    x = ctx.from_numpy(np.full((1, 4), 6, np.float32))
    one = compute(ctx, ops.pool_1d(ctx, x, "avg", 3, 2, 1)).reshape(-1)
    two = compute(ctx, ops.pool_2d(ctx, x, "avg", 3, 1, 2, 1, 1)).reshape(-1)
    assert one.tolist() == [6, 6] and two.tolist() == [4, 6]


def test_win_unpart_is_the_inverse_of_win_part() -> None:
    ctx = Context()
    x = floats(5, 9, 3)
    parts = ops.win_part(ctx, ctx.from_numpy(x), 4)
    assert np.array_equal(compute(ctx, ops.win_unpart(ctx, parts, 9, 5))[0], x)


@pytest.mark.parametrize("mode", ["bilinear", "antialias"])
@pytest.mark.parametrize("backend", ["reference", "cpu"])
def test_interpolation_of_a_plane_is_exact(mode: Any, backend: str) -> None:
    ctx = Context()
    y, x = np.mgrid[:8, :9].astype(np.float32)
    plane = ctx.from_numpy(2 * x + 3 * y)
    fine = compute(ctx, ops.upscale(ctx, plane, 2, mode), backend)[0, 0, 4:-4, 4:-4]
    want_y, want_x = (np.mgrid[4:12, 4:14] + 0.5) / 2 - 0.5
    assert fine == pytest.approx(2 * want_x + 3 * want_y, abs=1e-4)
    small = ops.interpolate(ctx, plane, (3, 4, 1, 1), mode)
    inside = compute(ctx, small, backend)[0, 0, 1:-1, 1]
    assert inside == pytest.approx(2 * 4 + 3 * np.array([2.5, 4.5]), abs=1e-4)
    if mode == "bilinear":
        corners = ops.interpolate(ctx, plane, (17, 15, 1, 1), mode, True)
        want_y, want_x = np.mgrid[:15, :17] / 2
        assert compute(ctx, corners, backend)[0, 0] == pytest.approx(2 * want_x + 3 * want_y)


@pytest.mark.parametrize("backend", ["reference", "cpu"])
def test_bicubic_weights_are_those_of_opencv(backend: str) -> None:
    ctx = Context()
    step = ctx.from_numpy(np.eye(8, dtype=np.float32)[3:4])
    seen = compute(ctx, ops.interpolate(ctx, step, (16, 1, 1, 1), "bicubic"), backend).reshape(-1)
    known = [-0.03515625, -0.10546875, 0.26171875, 0.87890625]  # quarters of a pixel away
    assert seen[3:11] == pytest.approx(known + known[::-1])
    assert not seen[:3].any() and not seen[11:].any()


@pytest.mark.parametrize("backend", ["reference", "cpu"])
def test_max_pooling_ignores_nan(backend: str) -> None:
    nan, inf, least = np.nan, np.inf, np.finfo(np.float32).min
    rows = np.array([[nan, 1, 2, nan, nan, nan, -inf, -inf, inf, nan]], np.float32)
    ctx = Context()
    got = compute(ctx, ops.pool_1d(ctx, ctx.from_numpy(rows), "max", 2), backend)
    assert got.ravel().tolist() == [1, 2, least, least, inf]
    image = ctx.from_numpy(rows.reshape(1, 1, 2, 5))
    got = compute(ctx, ops.pool_2d(ctx, image, "max", 2, 2, 1, 1), backend)
    assert got.ravel().tolist() == [1, 2, inf, inf]
