from __future__ import annotations

import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyggml.alloc import TensorAllocator, alloc_ctx_tensors
from pyggml.buffer import HOST, HostBufferType
from pyggml.context import Context
from pyggml.dtype import GGMLType
from pyggml.errors import AllocError
from pyggml.tensor import Buffer, Tensor

F32 = GGMLType.F32


class PaddedType(HostBufferType):
    """Rounds every tensor up to whole pages, as a repacking buffer type might."""

    name = "Padded"

    def alloc_size(self, tensor: Tensor) -> int:
        return -(-tensor.nbytes // 4096) * 4096


class EmptyType(HostBufferType):
    name = "Empty"

    def alloc_buffer(self, size: int) -> Buffer:
        raise AllocError(f"cannot allocate {size} bytes")


def test_tensors_follow_each_other_aligned() -> None:
    ctx = Context(no_alloc=True)
    a, b = ctx.new_tensor_1d(F32, 3), ctx.new_tensor_1d(F32, 16)
    allocator = TensorAllocator(HOST.alloc_buffer(128))
    assert allocator.alloc(a) is a
    assert allocator.used == 12
    allocator.alloc(b)
    base = allocator.buffer.base
    assert (a.data, b.data, allocator.used) == (base, base + 64, 128)
    a.set([1, 2, 3])
    assert a.numpy().tolist() == [1, 2, 3]


def test_full_buffer_names_tensor_and_bytes() -> None:
    ctx = Context(no_alloc=True)
    tensor = ctx.new_tensor_1d(F32, 17).set_name("w")
    allocator = TensorAllocator(HOST.alloc_buffer(64))
    message = "Host buffer is full: 'w' (17, 1, 1, 1) wants 68 bytes, 64 of 64 left"
    with pytest.raises(AllocError, match=re.escape(message)):
        allocator.alloc(tensor)
    assert allocator.used == 0 and tensor.data == 0 and tensor.buffer is None


def test_views_and_placed_tensors_are_refused() -> None:
    ctx = Context(no_alloc=True)
    a = ctx.new_tensor_1d(F32, 4).set_name("a")
    view = ctx.new_view(a, (2, 1, 1, 1), a.nb)
    allocator = TensorAllocator(HOST.alloc_buffer(256))
    with pytest.raises(AllocError, match="looks into 'a'"):
        allocator.alloc(view)
    allocator.alloc(a)
    with pytest.raises(AllocError, match="has memory already"):
        allocator.alloc(a)


def test_context_in_one_buffer() -> None:
    ctx = Context(no_alloc=True)
    a = ctx.new_tensor_2d(F32, 5, 3)
    view = ctx.new_view(a, (5, 1, 1, 1), a.nb, 2 * a.nb[1])
    view_of_view = ctx.new_view(view, (2, 1, 1, 1), a.nb, 4)
    b = ctx.new_tensor_1d(GGMLType.F16, 7)
    buffer = alloc_ctx_tensors(ctx, HOST)
    assert buffer.size == 128
    assert {t.buffer for t in ctx} == {buffer}
    assert b.data == buffer.base + 64
    a.set(np.arange(15, dtype=np.float32).reshape(3, 5))
    assert view.numpy().tolist() == [10, 11, 12, 13, 14]
    assert view_of_view.numpy().tolist() == [11, 12]


def test_tensors_already_placed_are_not_moved() -> None:
    ctx = Context(no_alloc=True)
    a = ctx.new_tensor_1d(F32, 16)
    first = alloc_ctx_tensors(ctx, HOST)
    b = ctx.new_tensor_1d(F32, 16)
    second = alloc_ctx_tensors(ctx, HOST)
    assert (a.buffer, b.buffer) == (first, second)
    assert alloc_ctx_tensors(ctx, HOST).size == 0


def test_views_into_another_context() -> None:
    weights, ctx = Context(no_alloc=True), Context(no_alloc=True)
    a = weights.new_tensor_1d(F32, 16)
    view = ctx.new_view(a, (4, 1, 1, 1), a.nb, 16)
    alloc_ctx_tensors(weights, HOST)
    assert alloc_ctx_tensors(ctx, HOST).size == 0
    assert view.data == a.data + 16 and view.buffer is a.buffer


def test_failed_allocation_changes_nothing() -> None:
    ctx = Context(no_alloc=True)
    a = ctx.new_tensor_1d(F32, 16)
    with pytest.raises(AllocError, match="1 tensors in a Empty buffer: cannot allocate 64 bytes"):
        alloc_ctx_tensors(ctx, EmptyType())
    assert a.data == 0


@given(st.lists(st.integers(0, 3000), max_size=12), st.sampled_from((HOST, PaddedType())))
def test_tensors_do_not_overlap(sizes: list[int], buft: HostBufferType) -> None:
    ctx = Context(no_alloc=True)
    tensors = [ctx.new_tensor_1d(F32, n) for n in sizes]
    buffer = alloc_ctx_tensors(ctx, buft)
    end = buffer.base
    for tensor in tensors:
        assert tensor.data >= end and (tensor.data % buft.alignment == 0 or not tensor.nbytes)
        end = tensor.data + buft.alloc_size(tensor)
    assert end <= buffer.base + buffer.size
