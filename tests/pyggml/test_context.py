"""Contexts: accounting, arenas, views, errors."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyggml.context import TENSOR_OVERHEAD, Context, place_view
from pyggml.dtype import GGMLType
from pyggml.errors import AllocError, PyggmlError, ShapeError, TypeMismatch

F32, Q4_0 = GGMLType.F32, GGMLType.Q4_0


def test_accounting_is_that_of_ggml() -> None:
    ctx = Context()
    ctx.new_tensor_1d(F32, 5)
    assert ctx.used_mem == TENSOR_OVERHEAD + 32  # 20 bytes of data, objects in steps of 16
    ctx.new_tensor_2d(F32, 4, 4)
    assert ctx.used_mem == 2 * TENSOR_OVERHEAD + 32 + 64
    headers = Context(no_alloc=True)
    t = headers.new_tensor_4d(F32, 1000, 1000, 10, 10)
    assert headers.used_mem == TENSOR_OVERHEAD and t.data == 0


def test_a_full_context_says_so() -> None:
    ctx = Context(mem_size=1000)
    ctx.new_tensor_3d(F32, 2, 2, 2)
    with pytest.raises(AllocError, match=r"bytes wanted, 600 of 1000 left.*mem_size") as e:
        ctx.new_tensor_1d(F32, 1000)
    assert isinstance(e.value, MemoryError) and isinstance(e.value, PyggmlError)
    assert len(ctx.tensors) == 1 and ctx.used_mem == 400


@given(st.lists(st.integers(0, 700_000), max_size=12))
def test_arenas_do_not_overlap(sizes: list[int]) -> None:
    ctx = Context()
    tensors = [ctx.new_tensor_1d(F32, n) for n in sizes]
    spans = sorted((t.data, t.data + t.nbytes) for t in tensors)
    assert all(a[1] <= b[0] for a, b in pairwise(spans))
    for t in tensors:
        assert t.data % 64 == 0 and t.buffer is not None
        assert t.buffer.base <= t.data and t.data + t.nbytes <= t.buffer.base + t.buffer.size


def test_bad_sizes() -> None:
    ctx = Context()
    for ne in ((), (1, 1, 1, 1, 1)):
        with pytest.raises(ShapeError, match="1 to 4 dimensions"):
            ctx.new_tensor(F32, ne)
    with pytest.raises(ShapeError, match="negative"):
        ctx.new_tensor(F32, (3, -1))
    with pytest.raises(ShapeError, match="multiple of 32"):
        ctx.new_tensor(Q4_0, (33,))
    assert ctx.used_mem == 0 and not ctx.tensors


def test_lookup_and_iteration() -> None:
    ctx = Context()
    a = ctx.new_tensor_1d(F32, 1).set_name("a")
    b = ctx.new_tensor_1d(F32, 1).set_name("b")
    assert list(ctx) == [a, b]
    assert ctx.get_tensor("b") is b and ctx.get_tensor("c") is None


def test_from_numpy() -> None:
    ctx = Context()
    x = np.arange(6, dtype=np.int32).reshape(2, 3)
    t = ctx.from_numpy(x, "x")
    assert t.ne == (3, 2, 1, 1) and t.type is GGMLType.I32 and t.name == "x"
    assert np.array_equal(t.numpy(), x) and not np.shares_memory(t.numpy(), x)
    assert ctx.from_numpy(np.float32(3)).ne == (1, 1, 1, 1)
    with pytest.raises(TypeMismatch, match="complex"):
        ctx.from_numpy(np.zeros(3, complex))
    with pytest.raises(AllocError, match="no_alloc"):
        Context(no_alloc=True).from_numpy(x)


def test_views_are_flattened_and_stay_inside() -> None:
    ctx = Context()
    a = ctx.new_tensor_1d(F32, 10).set_name("a")
    v = ctx.new_view(a, (4, 1, 1, 1), (4, 16, 16, 16), 8)
    w = ctx.new_view(v, (2, 1, 1, 1), (4, 8, 8, 8), 4)
    assert w.view_src is a and w.view_offs == 12 and w.data == a.data + 12
    before = ctx.used_mem
    for ne, nb, offset in (
        ((4, 1, 1, 1), (4, 16, 16, 16), 28),
        ((4, 1, 1, 1), (4, 16, 16, 16), -4),
        ((2, 2, 1, 1), (4, -8, 8, 8), 0),
    ):
        with pytest.raises(ShapeError, match=r"'a'.*40 bytes"):
            ctx.new_view(a, ne, nb, offset)
    assert ctx.used_mem == before


def test_a_view_follows_its_root() -> None:
    ctx = Context(no_alloc=True)
    a = ctx.new_tensor_1d(F32, 10)
    v = ctx.new_view(a, (4, 1, 1, 1), (4, 16, 16, 16), 8)
    assert v.data == 0
    a.data = 4096
    place_view(v)
    assert v.data == 4104
    place_view(a)
    assert a.data == 4096
