"""Shape rules: views against NumPy, builders' names, and refused sources."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import pyggml as ops
from pyggml.context import Context
from pyggml.dtype import GGMLType
from pyggml.errors import ShapeError, TypeMismatch
from pyggml.ops.op import Cost, define_op
from pyggml.tensor import Tensor

F32, F16, I32, I64, Q8_0, Q4_0 = (GGMLType[n] for n in ("F32", "F16", "I32", "I64", "Q8_0", "Q4_0"))
dims = st.tuples(*(st.integers(1, 5) for _ in range(4)))
axes = st.permutations(range(4))


def counted(ctx: Context, ne: tuple[int, ...]) -> Tensor:
    return ctx.new_tensor(F32, ne).set(np.arange(prod(ne), dtype=np.float32))


def cost(node: Tensor) -> Cost:
    assert node.op is not None
    return ops.OPS[node.op.name].cost(node)


@given(dims, axes)
def test_permute_is_the_inverse_of_numpy_order(ne: tuple[int, ...], p: list[int]) -> None:
    a = counted(Context(), ne)
    b = ops.permute(Context(), a, *p)
    for i in range(4):
        assert b.ne[p[i]] == a.ne[i]
    want = a.numpy(squeeze=False).transpose([3 - p.index(3 - j) for j in range(4)])
    assert np.array_equal(b.numpy(squeeze=False), want)


@given(dims, axes, axes)
def test_permutes_compose(ne: tuple[int, ...], p: list[int], q: list[int]) -> None:
    ctx = Context()
    a = counted(ctx, ne)
    twice = ops.permute(ctx, ops.permute(ctx, a, *p), *q)
    once = ops.permute(ctx, a, *(q[i] for i in p))
    assert (twice.ne, twice.nb) == (once.ne, once.nb)
    assert twice.view_src is a
    back = ops.permute(ctx, ops.permute(ctx, a, *p), *(p.index(i) for i in range(4)))
    assert (back.ne, back.nb) == (a.ne, a.nb)


@given(dims)
def test_transpose_and_reshape_follow_numpy(ne: tuple[int, ...]) -> None:
    ctx = Context()
    a = counted(ctx, ne)
    x = a.numpy(squeeze=False)
    t = ops.transpose(ctx, a)
    assert np.array_equal(t.numpy(squeeze=False), x.swapaxes(2, 3))
    assert t.is_transposed() or 1 in ne[:2]
    flat = ops.reshape_1d(ctx, a, a.nelements)
    assert np.array_equal(flat.numpy(), x.reshape(-1))
    again = ops.reshape(ctx, flat, a)
    assert (again.ne, again.nb, again.data) == (a.ne, a.nb, a.data)
    if not t.is_contiguous():
        with pytest.raises(ShapeError, match="not contiguous"):
            ops.reshape_1d(ctx, t, a.nelements)


@given(st.data(), dims)
def test_view_is_a_numpy_slice(data: st.DataObject, ne: tuple[int, int, int, int]) -> None:
    ctx = Context()
    a = counted(ctx, ne)
    start = [data.draw(st.integers(0, n - 1)) for n in ne]
    stop = [data.draw(st.integers(i + 1, n)) for i, n in zip(start, ne, strict=True)]
    size = [j - i for i, j in zip(start, stop, strict=True)]
    offset = sum(i * nb for i, nb in zip(start, a.nb, strict=True))
    view = ops.view_4d(ctx, a, (size[0], size[1], size[2], size[3]), a.nb[1:], offset)
    s3, s2, s1, s0 = (slice(i, j) for i, j in zip(start[::-1], stop[::-1], strict=True))
    assert np.array_equal(view.numpy(squeeze=False), a.numpy(squeeze=False)[s3, s2, s1, s0])
    inner = ops.view_1d(ctx, view, 1)
    assert inner.view_src is a and inner.view_offs == offset
    with pytest.raises(ShapeError, match="leave"):
        ops.view_1d(ctx, view, 1, offset=a.nbytes - offset)


def test_views_of_fewer_dimensions() -> None:
    ctx = Context()
    a = counted(ctx, (6, 4, 2))
    x = a.numpy()
    assert np.array_equal(ops.view_1d(ctx, a, 3, 8).numpy(), x.reshape(-1)[2:5])
    assert np.array_equal(ops.view_2d(ctx, a, 3, 4, a.nb[1], 4).numpy(), x[0, :, 1:4])
    v = ops.view_3d(ctx, a, (2, 4, 2), (a.nb[1], a.nb[2]), 0)
    assert np.array_equal(v.numpy(), x[..., :2])
    assert ops.reshape_2d(ctx, a, 12, 4).ne == (12, 4, 1, 1)
    assert ops.reshape_3d(ctx, a, 3, 4, 4).ne == (3, 4, 4, 1)
    with pytest.raises(ShapeError, match="negative"):
        ops.view_1d(ctx, a, -1)
    with pytest.raises(ShapeError, match="offset"):
        ops.view_1d(ctx, a, 1, -4)


def test_derived_tensors_are_named_as_in_ggml() -> None:
    ctx = Context()
    a = ctx.new_tensor(F32, (4, 2)).set_name("X")
    b = ctx.new_tensor(F16, (4, 2)).set_name("Y")
    idx = ctx.new_tensor(I32, (2,))
    names = [
        ops.reshape_1d(ctx, a, 8).name,
        ops.view_1d(ctx, a, 8).name,
        ops.permute(ctx, a, 1, 0, 2, 3).name,
        ops.transpose(ctx, a).name,
        ops.cont(ctx, a).name,
        ops.cpy(ctx, a, b).name,
        ops.cpy(ctx, a, ctx.new_tensor(F16, (4, 2))).name,
        ops.cast(ctx, a, F16).name,
        ops.set_rows(ctx, b, a, idx).name,
        ops.dup(ctx, a).name,
        ops.transpose(ctx, ops.dup(ctx, a)).name,
    ]
    assert names == [
        "X (reshaped)", "X (view)", "X (permuted)", "X (transposed)", "X (cont)",
        "Y (copy of X)", "X (copy)", "X (copy)", "Y (view)", "", "",
    ]  # fmt: skip


def test_results_have_ggml_shapes() -> None:
    ctx = Context(no_alloc=True)

    def t(*ne: int, type: GGMLType = F32) -> Tensor:
        return ctx.new_tensor(type, ne)

    assert ops.mul_mat(ctx, t(64, 5, 2, 1, type=Q8_0), t(64, 7, 4, 3)).ne == (5, 7, 4, 3)
    assert ops.get_rows(ctx, t(9, 5, 3), t(4, 3, type=I32)).ne == (9, 4, 3, 1)
    cache, rows = t(9, 20, type=F16), t(9, 2)
    written = ops.set_rows(ctx, cache, rows, t(2, type=I64))
    assert written.view_src is cache and written.src[0] is rows and written.src[2] is cache
    q, k, v = t(64, 7, 9), t(64, 33, 3, type=F16), t(32, 33, 3)
    assert ops.flash_attn_ext(ctx, q, k, v, None, 1.0).ne == (32, 9, 7, 1)
    cells, to = t(2, 40, 3, type=I32), t(4, 7, type=I32)
    assert ops.flash_attn_cells(ctx, q, k, v, cells, to, 1.0).ne == (32, 9, 7, 1)
    assert ops.swiglu(ctx, t(10, 3)).ne == (5, 3, 1, 1)
    assert ops.swiglu_swapped(ctx, t(10, 3)).op_params["swapped"]
    assert ops.reglu_split(ctx, t(10, 3), t(10, 3)).ne == (10, 3, 1, 1)
    assert ops.argmax(ctx, t(10, 3)).ne == (3, 1, 1, 1)
    assert ops.cont_2d(ctx, t(2, 3, 4), 6, 4).ne == (6, 4, 1, 1)
    assert ops.cont_3d(ctx, t(2, 3, 4), 1, 6, 4).ne == (1, 6, 4, 1)
    assert ops.map_custom(ctx, print, t(3), ne=(5, 2), type=I32).ne == (5, 2, 1, 1)
    assert ops.map_custom(ctx, print, t(3)).type is F32
    assert ops.rope(ctx, t(64, 3, 5), t(5, type=I32), 64).op_params["freq_base"] == 10000.0
    assert ops.scale_bias(ctx, t(3), 2, 1).op_params == {"s": 2.0, "b": 1.0}
    assert ops.gelu.__name__ == "gelu" and ops.gelu(ctx, t(3)).op_params["kind"] == "gelu"
    x = ops.xielu(ctx, t(3), 0.0, 0.0, 0.5, -1e-6).op_params
    assert x["alpha_p"] == pytest.approx(np.log(2)) and x["alpha_n"] == pytest.approx(
        0.5 + np.log(2)
    )


def test_costs() -> None:
    ctx = Context(no_alloc=True)
    a, b = ctx.new_tensor(Q8_0, (64, 5)), ctx.new_tensor(F32, (64, 7))
    y = ops.mul_mat(ctx, a, b)
    assert cost(y).macs == 64 * 5 * 7
    assert cost(y).bytes == a.nbytes + b.nbytes + y.nbytes
    v = ops.transpose(ctx, b)
    assert cost(v).bytes == 0
    k = ctx.new_tensor(F16, (64, 33, 1))
    att = ops.flash_attn_ext(ctx, b, k, k, None, 1.0)
    assert cost(att).macs == 7 * 33 * 128
    rows = ops.get_rows(ctx, a, ctx.new_tensor(I32, (2,)))
    assert cost(rows).bytes == 2 * rows.nbytes
    for node in (ops.cont(ctx, b), ops.add(ctx, b, b), ops.cpy(ctx, b, b)):
        assert cost(node).bytes >= 2 * b.nbytes


Ctx = Callable[..., Tensor]


def _ids(t: Ctx) -> Tensor:
    return t(2, 7, type=I32)


# call, expected error, part of the message
REFUSED: list[tuple[Callable[[Context, Ctx], Any], type[Exception], str]] = [
    (lambda c, t: ops.mul_mat(c, t(64, 5), t(65, 7)), ShapeError, "64 elements"),
    (lambda c, t: ops.mul_mat(c, t(64, 5, 3), t(64, 7, 4)), ShapeError, "multiples"),
    (lambda c, t: ops.mul_mat(c, t(64, 5), t(64, 7, type=I32)), TypeMismatch, "I32"),
    (lambda c, t: ops.mul_mat(c, t(64, 5, type=I32), t(64, 7)), TypeMismatch, "I32"),
    (lambda c, t: ops.mul_mat(c, ops.transpose(c, t(5, 64)), t(64, 7)), ShapeError, "cont"),
    (lambda c, t: ops.get_rows(c, t(9, 5), t(4)), TypeMismatch, "ids"),
    (lambda c, t: ops.get_rows(c, t(9, 5), t(4, 3, type=I32)), ShapeError, "ids"),
    (lambda c, t: ops.get_rows(c, t(9, 5, type=I64), t(4, type=I32)), TypeMismatch, "I64"),
    (lambda c, t: ops.set_rows(c, t(9, 5), t(8, 2), t(2, type=I32)), ShapeError, "ne\\[1\\]"),
    (lambda c, t: ops.set_rows(c, t(9, 5), t(9, 2), t(3, type=I32)), ShapeError, "idx"),
    (lambda c, t: ops.set_rows(c, t(9, 5), t(9, 2), t(2)), TypeMismatch, "idx"),
    (lambda c, t: ops.set_rows(c, t(9, 5, type=I32), t(9, 2), t(2, type=I32)), TypeMismatch, "a"),
    (lambda c, t: ops.add(c, t(6, 5), t(4)), ShapeError, "repeat"),
    (lambda c, t: ops.add(c, t(6, 5), t(6, 0)), ShapeError, "repeat"),
    (lambda c, t: ops.add(c, t(6, type=I32), t(6)), TypeMismatch, "F32 or F16"),
    (lambda c, t: ops.add_cast(c, t(6), t(6), F16), TypeMismatch, "only F16 and BF16"),
    (lambda c, t: ops.add_cast(c, t(6, type=F16), t(6), I32), TypeMismatch, "I32"),
    (lambda c, t: ops.add1(c, t(6), t(2)), ShapeError, "one number"),
    (lambda c, t: ops.sqr(c, t(6, type=I32)), TypeMismatch, "SQR"),
    (lambda c, t: ops.log(c, ops.transpose(c, t(6, 5))), ShapeError, "cont"),
    (lambda c, t: ops.clamp(c, t(6, type=I32), 0, 1), TypeMismatch, "CLAMP"),
    (lambda c, t: ops.sum(c, t(6, type=I32)), TypeMismatch, "SUM"),
    (lambda c, t: ops.mean(c, t(0, 5)), ShapeError, "empty"),
    (lambda c, t: ops.cumsum(c, t(6, type=F16)), TypeMismatch, "CUMSUM"),
    (lambda c, t: ops.count_equal(c, t(6), t(6, type=I32)), TypeMismatch, "a"),
    (lambda c, t: ops.count_equal(c, t(6, type=I32), t(5, type=I32)), ShapeError, "sizes"),
    (lambda c, t: ops.norm(c, t(6), -1.0), ShapeError, "eps"),
    (lambda c, t: ops.l2_norm(c, t(6, type=F16)), TypeMismatch, "L2_NORM"),
    (lambda c, t: ops.group_norm(c, t(6), 0), ShapeError, "n_groups"),
    (lambda c, t: ops.repeat(c, t(6, 5), t(12, 6)), ShapeError, "repeat"),
    (lambda c, t: ops.repeat(c, t(6, 0), t(6, 1)), ShapeError, "repeat"),
    (lambda c, t: ops.repeat(c, t(32, type=Q8_0), t(64)), TypeMismatch, "dequantize"),
    (lambda c, t: ops.concat(c, t(6), t(6), 4), ShapeError, "dim"),
    (lambda c, t: ops.concat(c, t(6, 5), t(6, 4), 0), ShapeError, "differ"),
    (lambda c, t: ops.concat(c, t(6), t(6, type=F16), 0), TypeMismatch, "one type"),
    (lambda c, t: ops.pad(c, t(6), -1, 0, 0, 0), ShapeError, "negative"),
    (lambda c, t: ops.pad_circular(c, t(0), 1, 0, 0, 0), ShapeError, "around"),
    (lambda c, t: ops.pad_reflect_1d(c, t(6), 6, 0), ShapeError, "0 to 5"),
    (lambda c, t: ops.roll(c, t(6), 6, 0, 0, 0), ShapeError, "shifts"),
    (lambda c, t: ops.set_1d(c, t(6), t(6), 4), ShapeError, "past the 24 bytes"),
    (lambda c, t: ops.set_1d(c, t(6), t(2), 2), ShapeError, "multiples of 4"),
    (lambda c, t: ops.set_2d(c, t(6, 2), t(4, 2), 8, 0), ShapeError, "over each other"),
    (lambda c, t: ops.set_1d(c, t(6, type=F16), t(2, type=F16), 0), TypeMismatch, "F16"),
    (lambda c, t: ops.acc(c, t(6, type=I32), t(6), (24,) * 3, 0), TypeMismatch, "ACC"),
    (lambda c, t: ops.acc(c, ops.permute(c, t(6, 5, 4), 0, 2, 1, 3), t(6), (24,) * 3, 0),
     ShapeError, "cont"),
    (lambda c, t: ops.diag(c, t(6, 5)), ShapeError, "one row"),
    (lambda c, t: ops.diag_mask_inf(c, t(6, 5), -1), ShapeError, "n_past"),
    (lambda c, t: ops.tri(c, t(6, 5), "lower"), ShapeError, "square"),
    (lambda c, t: ops.tri(c, t(6, 6), "left"), ShapeError, "left"),
    (lambda c, t: ops.argsort(c, t(6), "up"), ShapeError, "up"),
    (lambda c, t: ops.argsort_top_k(c, t(6), 7), ShapeError, "7"),
    (lambda c, t: ops.top_k(c, t(6), 0), ShapeError, "6 columns"),
    (lambda c, t: ops.arange(c, 1, 1, 1), ShapeError, "stop > start"),
    (lambda c, t: ops.arange(c, 0, 1, -1), ShapeError, "step > 0"),
    (lambda c, t: ops.fill(c, t(6, type=I32), 1), TypeMismatch, "FILL"),
    (lambda c, t: ops.fill(c, ops.transpose(c, t(6, 5)), 1), ShapeError, "cont"),
    (lambda c, t: ops.swiglu_clamp(c, t(6), None, -1), ShapeError, "limit"),
    (lambda c, t: ops.swiglu_oai(c, t(6, type=F16), None, 1.7, 7), TypeMismatch, "F16"),
    (lambda c, t: ops.sub(c, ops.transpose(c, t(6, 5)), t(1)), ShapeError, "cont"),
    (lambda c, t: ops.scale(c, t(6, type=F16), 2), TypeMismatch, "F32"),
    (lambda c, t: ops.rms_norm(c, t(6), -1.0), ShapeError, "eps"),
    (lambda c, t: ops.rms_norm(c, t(6, type=F16)), TypeMismatch, "F32"),
    (lambda c, t: ops.cpy(c, t(6), t(7)), ShapeError, "7"),
    (lambda c, t: ops.cpy(c, t(32, type=Q8_0), t(32, type=Q8_0)), TypeMismatch, "go through F32"),
    (lambda c, t: ops.cast(c, t(33), Q8_0), ShapeError, "33"),
    (lambda c, t: ops.cast(c, t(32), I64), TypeMismatch, "I64"),
    (lambda c, t: ops.cont_2d(c, t(6, 5), 5, 5), ShapeError, "25"),
    (lambda c, t: ops.cont(c, t(32, type=Q8_0)), TypeMismatch, "CONT"),
    (lambda c, t: ops.dup(c, t(32, type=Q8_0)), TypeMismatch, "DUP"),
    (lambda c, t: ops.rope(c, t(64, 3, 5), t(5, type=I32), 66), ShapeError, "n_dims"),
    (lambda c, t: ops.rope(c, t(64, 3, 5), t(5, type=I32), 63), ShapeError, "even"),
    (lambda c, t: ops.rope(c, t(64, 3, 5), t(4, type=I32), 64), ShapeError, "pos"),
    (lambda c, t: ops.rope(c, t(64, 3, 5), t(5), 64), TypeMismatch, "pos"),
    (lambda c, t: ops.rope(c, t(64, 3, 5), t(5, type=I32), 64, 8), ShapeError, "mode"),
    (lambda c, t: ops.rope_ext(c, t(64, 3, 5), t(5, type=I32), t(31), n_dims=64), ShapeError,
     "freqs"),
    (lambda c, t: ops.rope_ext(c, t(64, 3, 5), t(5, type=I32), n_dims=64, ext_factor=1.0),
     ShapeError, "n_ctx_orig"),
    (lambda c, t: ops.rope_ext(c, t(64, 3, 5), t(5, type=I32), n_dims=64, base=1.0), TypeError,
     "base"),
    (lambda c, t: ops.soft_max_ext(c, t(6, 5), t(6, 4)), ShapeError, "at least 5"),
    (lambda c, t: ops.soft_max_ext(c, t(6, 5), t(6, 5, type=I32)), TypeMismatch, "mask"),
    (lambda c, t: ops.soft_max_ext(c, t(6, 5), None, 1.0, 8.0), ShapeError, "max_bias"),
    (lambda c, t: ops.soft_max_ext(c, t(6, 5, 4), None, sinks=t(3)), ShapeError, "sinks"),
    (lambda c, t: ops.unary(c, t(6), "nope"), ShapeError, "nope"),
    (lambda c, t: ops.silu(c, t(6, type=I32)), TypeMismatch, "I32"),
    (lambda c, t: ops.glu(c, t(6), "nope"), ShapeError, "nope"),
    (lambda c, t: ops.swiglu(c, t(5, 3)), ShapeError, "even"),
    (lambda c, t: ops.swiglu_split(c, t(6), t(5)), ShapeError, "alike"),
    (lambda c, t: ops.argmax(c, t(6, 5, 2)), ShapeError, "matrix"),
    (lambda c, t: ops.permute(c, t(6), 0, 0, 1, 2), ShapeError, "axes"),
    (lambda c, t: ops.transpose(c, t(32, 2, type=Q8_0)), TypeMismatch, "blocks"),
    (lambda c, t: ops.reshape_1d(c, t(6), 5), ShapeError, "5"),
    (lambda c, t: ops.map_custom(c, print), ShapeError, "must be given"),
    (lambda c, t: ops.map_custom(c, 3, t(1)), ShapeError, "function"),
    (lambda c, t: ops.map_custom(c, print, *(t(1) for _ in range(11))), TypeError, "sources"),
    (lambda c, t: ops.OPS["ADD"].build(c, t(1)), TypeError, "sources"),
    (lambda c, t: ops.flash_attn_ext(c, t(64, 1, 4), t(64, 9, 3), t(64, 9, 3), None, 1.0),
     ShapeError, "multiples"),
    (lambda c, t: ops.flash_attn_ext(c, t(64, 1, 4), t(63, 9, 4), t(64, 9, 4), None, 1.0),
     ShapeError, "as long"),
    (lambda c, t: ops.flash_attn_ext(c, t(256), t(256, type=GGMLType.Q6_K), t(256), None, 1.0),
     TypeMismatch, "Q6_K"),
    (lambda c, t: ops.hadamard(c, t(48), 48), ShapeError, "n is 48, want a power of two"),
    (lambda c, t: ops.hadamard(c, t(96), 64), ShapeError, "no multiple of 64"),
    (lambda c, t: ops.flash_attn_ext(c, t(64), t(64), t(64), None, 1.0, 8.0), ShapeError,
     "max_bias"),
    (lambda c, t: ops.flash_attn_cells(c, t(64), t(64), t(64), t(2, 5, type=I32), None, 1.0),
     ShapeError, "together"),
    (lambda c, t: ops.flash_attn_cells(
        c, t(64), t(64), t(64), t(3, 5, type=I32), t(4, type=I32), 1.0), ShapeError, "cells"),
    (lambda c, t: ops.flash_attn_cells(
        c, t(64), t(64), t(64), t(2, 5, type=I32), t(4, 2, type=I32), 1.0), ShapeError, "rows"),
    (lambda c, t: ops.flash_attn_cells(
        c, t(64, 1, 1, 2), t(64), t(64), t(2, 5, type=I32), t(4, type=I32), 1.0),
     ShapeError, "ne\\[3\\]"),
    (lambda c, t: ops.flash_attn_cells(
        c, t(64), t(64), t(64), t(2, 5, type=I32), t(4, type=I32), 1.0,
        branches=t(2, 5, type=I32)), ShapeError, r"rows .* must be \[6, 1\]"),
    (lambda c, t: ops.flash_attn_cells(
        c, t(64), t(64), t(64), t(2, 5, type=I32), t(6, type=I32), 1.0,
        branches=t(3, 5, type=I32)), ShapeError, "branches"),
    (lambda c, t: ops.mul_mat_id(c, t(64, 5, 4), t(32, 1, 7), _ids(t)), ShapeError, "64 elements"),
    (lambda c, t: ops.mul_mat_id(c, t(64, 5, 4), t(64, 3, 7), _ids(t)), ShapeError, "of 3"),
    (lambda c, t: ops.mul_mat_id(c, t(64, 5, 4), t(64, 1, 6), _ids(t)), ShapeError, "ids"),
    (lambda c, t: ops.mul_mat_id(c, t(64, 5, 4), t(64, 1, 7), t(2, 7)), TypeMismatch, "ids"),
    (lambda c, t: ops.mul_mat_id(c, t(64, 5, 4, 2), t(64, 1, 7), _ids(t)), ShapeError, "three"),
    (lambda c, t: ops.add_id(c, t(9, 2, 7), t(8, 4), _ids(t)), ShapeError, "one length"),
    (lambda c, t: ops.add_id(c, t(9, 3, 7), t(9, 4), _ids(t)), ShapeError, "ids"),
    (lambda c, t: ops.out_prod(c, t(9, 5), t(9, 4)), ShapeError, "rows to sum"),
    (lambda c, t: ops.out_prod(c, t(9, 5, 2), t(9, 5, 3)), ShapeError, "multiples"),
    (lambda c, t: ops.im2col(c, t(3, 3, 2), t(9, 9, 3)), ShapeError, "channels"),
    (lambda c, t: ops.im2col(c, t(3, 3, 3), t(9, 9, 3), s0=0), ShapeError, "stride 0"),
    (lambda c, t: ops.im2col(c, t(3, 3, 3), t(9, 9, 3), type=Q8_0), ShapeError, "Q8_0"),
    (lambda c, t: ops.conv_2d_direct(c, t(3, 3, 3), t(2, 9, 3)), ShapeError, "no place"),
    (lambda c, t: ops.conv_2d_direct(c, t(3, 3, 3), t(9, 9, 4)), ShapeError, "channels"),
    (lambda c, t: ops.conv_2d_direct(c, t(3, 3, 3), t(9, 9, 3, type=F16)), TypeMismatch, "F32"),
    (lambda c, t: ops.conv_2d_dw_direct(c, t(3, 3, 3), t(9, 9, 3)), ShapeError, "kernel"),
    (lambda c, t: ops.conv_transpose_1d(c, t(3, 4, 5), t(9, 4), 1), ShapeError, "kernel"),
    (lambda c, t: ops.conv_transpose_2d_p0(c, t(3, 3, 4, 5), t(9, 9, 5), 0), ShapeError, "stride"),
    (lambda c, t: ops.conv_transpose_2d_p0(c, t(3, 3, 4), t(9, 9, 5), 1), ShapeError, "channels"),
    (lambda c, t: ops.OPS["POOL_2D"].build(c, t(9, 9), pool="min"), ShapeError, "max, avg"),
    (lambda c, t: ops.pool_1d(c, t(3, 9), "avg", 4), ShapeError, "no place"),
    (lambda c, t: ops.upscale(c, t(3, 9), 0), ShapeError, "scale"),
    (lambda c, t: ops.interpolate(c, t(3), (6, 1, 1, 1), "nearest", True), ShapeError, "another"),
    (lambda c, t: ops.win_part(c, t(3, 9, 9), 0), ShapeError, "positive"),
    (lambda c, t: ops.win_unpart(c, t(3, 4, 4, 5), 9, 5), ShapeError, "9 by 5"),
    (lambda c, t: ops.timestep_embedding(c, t(3, 2), 8), ShapeError, "vector"),
]  # fmt: skip


@pytest.mark.parametrize("i", range(len(REFUSED)))
def test_bad_sources_are_refused_with_a_reason(i: int) -> None:
    build, error, message = REFUSED[i]
    ctx = Context(no_alloc=True)

    def tensor(*ne: int, type: GGMLType = F32) -> Tensor:
        return ctx.new_tensor(type, ne)

    with pytest.raises(error, match=message):
        build(ctx, tensor)


def test_an_op_is_declared_once() -> None:
    with pytest.raises(ValueError, match="twice"):
        define_op("ADD", src=(), infer=lambda: None, reference=None)  # type: ignore[arg-type, return-value]
    assert repr(ops.OPS["ADD"]) == "<op ADD>"
