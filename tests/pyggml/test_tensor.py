"""Tensor headers: strides, sizes, predicates, NumPy in and out."""

from __future__ import annotations

import gc
from math import prod

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyggml import permute, view_2d
from pyggml.buffer import HOST, HostBufferType, zeroed
from pyggml.context import Context
from pyggml.dtype import GGMLType, numpy_dtype
from pyggml.errors import AllocError, ShapeError, TypeMismatch
from pyggml.tensor import Flag, Tensor, strides

F32, F16, BF16, I32, Q4_0 = (GGMLType[n] for n in ("F32", "F16", "BF16", "I32", "Q4_0"))
dims = st.lists(st.integers(1, 6), min_size=1, max_size=4)
plain = st.sampled_from([t for t in GGMLType if not t.is_quantized])


@given(plain, dims)
def test_strides_are_those_of_numpy(type: GGMLType, ne: list[int]) -> None:
    t = Context().new_tensor(type, ne)
    x = np.zeros(t.ne[::-1], numpy_dtype(type))
    assert t.nb == x.strides[::-1]
    assert t.nbytes == x.nbytes
    assert t.nelements == x.size and t.nrows == x.size // ne[0]
    assert t.numpy(squeeze=False).strides == x.strides
    assert t.is_contiguous() and t.is_contiguous_rows() and not t.is_permuted()
    assert t.n_dims == max(1, *(i + 1 for i in range(len(ne)) if ne[i] != 1), 1)
    assert t.shape == tuple(ne[: t.n_dims][::-1])


def test_quantized_strides_and_bytes() -> None:
    assert strides(Q4_0, (64, 3, 2, 1)) == (18, 36, 108, 216)
    t = Tensor(Q4_0, (64, 3, 2, 1))
    assert t.nbytes == 216 and t.is_contiguous() and t.is_contiguous_rows()
    t = Tensor(Q4_0, (32, 3, 1, 1), (18, 36, 108, 108))
    assert t.nbytes == 90 and not t.is_contiguous()


@given(dims, st.permutations(range(4)))
def test_bytes_of_a_permuted_tensor_do_not_change(ne: list[int], p: list[int]) -> None:
    ctx = Context()
    a = ctx.new_tensor(F32, ne)
    b = permute(ctx, a, *p)
    assert b.nbytes == a.nbytes
    x = np.zeros(a.ne[::-1], np.float32).transpose([3 - p.index(3 - j) for j in range(4)])
    assert b.is_contiguous() == x.flags.c_contiguous
    if b.is_contiguous():
        assert b.is_contiguous_rows()


def test_predicates() -> None:
    ctx = Context()
    a = ctx.new_tensor(F32, (4, 3))
    t = permute(ctx, a, 1, 0, 2, 3)
    assert t.is_transposed() and t.is_permuted() and not t.is_contiguous_rows()
    assert not a.is_transposed() and a.same_shape(ctx.new_tensor(F16, (4, 3)))
    assert not a.same_shape(t)
    assert ctx.new_tensor(F32, (4, 0)).nbytes == 0
    window = view_2d(ctx, a, 2, 3, a.nb[1])
    assert window.nbytes == 2 * 16 + 8 and window.is_contiguous_rows()
    assert not window.is_contiguous()


def test_names_flags_and_repr() -> None:
    t = Context().new_tensor(F32, (4, 3))
    assert t.set_name("x" * 80) is t and len(t.name) == 63
    for character in "xé語😀":  # whole characters, in 63 bytes of UTF-8
        size = len(character.encode())
        assert t.set_name(character * 80).name == character * (63 // size)
        assert t.set_name(character * (63 // size)).name == character * (63 // size)
    assert t.set_name("xx" + "語" * 21).name == "xx" + "語" * 20
    assert t.set_name("blk.0").set_input().set_output().flags == Flag.INPUT | Flag.OUTPUT
    assert repr(t) == "<F32 'blk.0' [4, 3]>"


@given(plain, dims)
def test_values_survive(type: GGMLType, ne: list[int]) -> None:
    dtype = numpy_dtype(type)
    x = np.arange(prod(ne)).reshape(ne[::-1]).astype(dtype)
    t = Context().new_tensor(type, ne).set(x)
    assert np.array_equal(t.numpy().reshape(-1), x.reshape(-1))
    assert t.bytes().tobytes() == x.tobytes()
    t.numpy()[...] = 0
    assert not t.bytes().any()


def test_set_through_strides_and_by_size() -> None:
    ctx = Context()
    a = ctx.new_tensor(F32, (3, 2))
    permute(ctx, a, 1, 0, 2, 3).set([[0, 1], [2, 3], [4, 5]])
    assert a.numpy().tolist() == [[0, 2, 4], [1, 3, 5]]
    a.set(np.arange(6))  # the same number of elements is enough
    assert a.numpy().tolist() == [[0, 1, 2], [3, 4, 5]]
    with pytest.raises(ShapeError, match=r"got 5 elements, want 6"):
        a.set(np.arange(5))
    with pytest.raises(ShapeError, match="cont"):
        permute(ctx, a, 1, 0, 2, 3).bytes()


def test_quantized_data_is_bytes() -> None:
    t = Context().new_tensor(Q4_0, (64, 2))
    blocks = np.arange(72, dtype=np.uint8)
    assert t.set(blocks).bytes().tolist() == blocks.tolist()
    with pytest.raises(ShapeError, match=r"got 71 bytes.*want 72"):
        t.set(blocks[1:])
    with pytest.raises(ShapeError, match="float32"):
        t.set(np.zeros(18, np.float32))
    with pytest.raises(TypeMismatch, match="to_float"):
        t.numpy()


def test_without_memory() -> None:
    t = Context(no_alloc=True).new_tensor(F32, (4,)).set_name("x")
    for use in (t.numpy, t.bytes, lambda: t.set(np.zeros(4))):
        with pytest.raises(AllocError, match=r"'x'.*allocate it first"):
            use()


class FarBuffer:
    """Memory that the host cannot address: bytes are kept aside."""

    base, size, mem = 64, 1 << 20, None

    def __init__(self) -> None:
        self.buft = HostBufferType()
        self.stored = np.zeros(0, np.uint8)

    def set_tensor(self, tensor: Tensor, data: npt.NDArray[np.uint8]) -> None:
        self.stored = data.copy()

    def get_tensor(self, tensor: Tensor) -> npt.NDArray[np.uint8]:
        return self.stored


def test_memory_that_the_host_cannot_address() -> None:
    t = Context(no_alloc=True).new_tensor(F32, (3,)).set_name("x")
    t.buffer, t.data = FarBuffer(), 64
    t.set([1, 2, 3])
    assert t.bytes().view(np.float32).tolist() == [1, 2, 3]
    with pytest.raises(AllocError, match=r"bytes\(\)"):
        t.numpy()


def test_host_buffers() -> None:
    buffer = HOST.alloc_buffer(1000)
    assert buffer.base % 64 == 0 and buffer.size == 1000 and not buffer.mem.any()
    t = Context(no_alloc=True).new_tensor(F32, (3,))
    t.buffer, t.data = buffer, buffer.base + 128
    buffer.set_tensor(t, np.arange(12, dtype=np.uint8))
    assert buffer.mem[128:140].tolist() == list(range(12))
    assert HOST.alloc_size(t) == 12
    with pytest.raises(AllocError, match="host memory"):
        zeroed(1 << 62)


def test_arrays_keep_their_memory_alive() -> None:
    x = Context().from_numpy(np.arange(4, dtype=np.float32)).numpy()
    gc.collect()
    assert x.tolist() == [0, 1, 2, 3]
