"""The interleaved layout: round trip, kernels, and the ops that accept it."""

from __future__ import annotations

import mmap
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import pyggml as ops
from pyggml.alloc.tallocr import alloc_ctx_tensors
from pyggml.backend.cpu import repack as repack_module
from pyggml.backend.cpu.backend import CpuBackend
from pyggml.backend.cpu.weights.buffer import REPACK, RepackBuffer, is_repacked
from pyggml.backend.cpu.weights.layout import (
    INTERLEAVED,
    K_TYPES,
    ROWS,
    deinterleave,
    group_bytes,
    interleave,
    layout_k,
    pieces,
)
from pyggml.buffer import HOST
from pyggml.cgraph import CGraph
from pyggml.context import Context
from pyggml.dtype import GGMLType, row_size
from pyggml.errors import ShapeError, TypeMismatch, UnsupportedOp
from pyggml.quants import BLOCK_TYPES, dequantize
from pyggml.tensor import Tensor
from tests.pyggml.ops.harness import encoded, set_scales
from tests.tiers import only, some

Bytes = npt.NDArray[np.uint8]
BACKEND = CpuBackend(2)
kinds = st.sampled_from(INTERLEAVED)


def random_bytes(kind: GGMLType, ne: tuple[int, ...], seed: int = 0) -> Bytes:
    rng = np.random.default_rng(seed)
    data = rng.integers(0, 256, row_size(kind, ne[0]) * int(np.prod(ne[1:])), np.uint8)
    if kind is GGMLType.TQ1_0:  # several bytes encode the same digits; use ggml's
        f, blocks = BLOCK_TYPES[kind], data.reshape(-1, kind.type_size)
        blocks[:] = f.pack(f.unpack(blocks))
    return data


def repacked(kind: GGMLType, *ne: int) -> Tensor:
    ctx = Context(no_alloc=True)
    tensor = ctx.new_tensor(kind, ne)
    alloc_ctx_tensors(ctx, REPACK)
    return tensor


def buffer_of(tensor: Tensor) -> RepackBuffer:
    assert isinstance(tensor.buffer, RepackBuffer)
    return tensor.buffer


@given(kinds, st.integers(1, 4), st.integers(1, 40), st.integers(0, 99))
def test_interleave_round_trip(kind: GGMLType, blocks: int, n_rows: int, seed: int) -> None:
    n = blocks * kind.block_size
    rows = random_bytes(kind, (n, n_rows), seed).reshape(n_rows, -1)
    groups = interleave(kind, rows)
    assert groups.shape == (-(-n_rows // ROWS), group_bytes(kind, n))
    if kind not in K_TYPES:  # K types unpack their sub-scales
        assert np.unpackbits(groups).sum() == np.unpackbits(rows).sum()  # the padding is zero
    np.testing.assert_array_equal(deinterleave(kind, groups, n_rows), rows)


def test_layout_as_documented() -> None:
    """Q4_1: 16 scales, 16 minima, then 4 bytes of each row, line by line."""
    row = np.arange(20, dtype=np.uint8)
    group = interleave(GGMLType.Q4_1, row + 20 * np.arange(3, dtype=np.uint8)[:, None])[0]
    assert group[:6].tolist() == [0, 1, 20, 21, 40, 41]
    assert group[32:38].tolist() == [2, 3, 22, 23, 42, 43]
    assert group[64:76].tolist() == [4, 5, 6, 7, 24, 25, 26, 27, 44, 45, 46, 47]
    assert group[128:132].tolist() == [8, 9, 10, 11]


def test_fifth_bits_as_documented() -> None:
    """Q5_0: after the scales, bit j of byte i is column 4j+i."""
    rows = np.zeros((16, 22), np.uint8)
    for column in range(32):
        rows[:, 2:6] = (1 << np.uint32(column)).reshape(1).view(np.uint8)
        words = interleave(GGMLType.Q5_0, rows)[0, 32:96].view("<u4")
        assert set(words.tolist()) == {1 << 8 * (column % 4) + column // 4}


@pytest.mark.parametrize("kind", K_TYPES, ids=lambda t: t.name)
def test_super_blocks_as_documented(kind: GGMLType) -> None:
    """Scales d, sub-scales as bytes, then lines; their bits give the same codes as ggml's."""
    f, columns = layout_k(kind), 256
    rows = random_bytes(kind, (columns, ROWS)).reshape(ROWS, -1)
    set_scales(rows, f.f.d, 1)
    if f.f.low:
        set_scales(rows, f.f.low, 0)
    block = interleave(kind, rows)[0]
    halves = block[: 32 * f.halves].view(np.float16).reshape(f.halves, ROWS)
    assert (halves[0] == 1).all() and not halves[1:].any()
    first = 32 * f.halves
    n = 64 * f.scale_lines
    scales = block[first : first + n].reshape(-1, ROWS, 4).swapaxes(0, 1).reshape(ROWS, -1)
    values = scales.view(np.int8).astype(np.float32) if f.signed else scales.astype(np.float32)
    values = scales & 15 if kind is GGMLType.Q2_K else values
    values = values if values.size else np.ones((ROWS, 1), np.float32)
    lines = block[f.codes_at :].reshape(8, f.bits, ROWS, 4)
    codes = np.zeros((ROWS, 8, 8, 4), np.uint8)
    for p in pieces(f.bits):
        part = lines[:, p.line] >> np.uint8(p.at) & np.uint8((1 << p.width) - 1)
        codes[:, :, p.slice] |= (part << np.uint8(p.of)).swapaxes(0, 1)
    numbers = np.take(f.values, codes) if f.values else codes - np.float32(f.zero)
    got = f.unit * numbers.reshape(ROWS, columns) * np.repeat(values, f.sub, axis=1)
    np.testing.assert_array_equal(got, dequantize(rows, kind))


@given(kinds, st.integers(1, 3), st.integers(1, 35), st.integers(1, 2), st.integers(1, 2))
@settings(max_examples=40)
def test_repack_kernel_equals_the_reference(
    kind: GGMLType, blocks: int, n_rows: int, n2: int, n3: int
) -> None:
    ne = (blocks * kind.block_size, n_rows, n2, n3)
    by_numpy, by_kernel = repacked(kind, *ne), repacked(kind, *ne)
    source = random_bytes(kind, ne)
    kept = source.copy()
    buffer_of(by_numpy).set_tensor(by_numpy, source)
    assert list(BACKEND.set_weights([(by_kernel, source)])) == [source.nbytes]
    a, b = (buffer_of(t).groups(t) for t in (by_numpy, by_kernel))
    np.testing.assert_array_equal(a, b)
    np.testing.assert_array_equal(by_kernel.bytes(), kept)
    np.testing.assert_array_equal(source, kept)


def test_repacking_in_steps_from_a_mapped_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Several tensors in a buffer; mapped pages are dropped, other memory is unchanged."""
    monkeypatch.setattr(repack_module, "_STEP_BYTES", 20_000)
    ctx = Context(no_alloc=True)
    tensors = [ctx.new_tensor_2d(GGMLType.Q4_1, 64, n) for n in (100, 600, 7, 900)]
    alloc_ctx_tensors(ctx, REPACK)
    data = random_bytes(GGMLType.Q4_1, (64, 1607))
    path = tmp_path / "weights"
    path.write_bytes(data.tobytes())
    with path.open("rb") as file:
        mapped = np.frombuffer(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ), np.uint8)
    for source in (mapped, data.copy()):
        cuts = np.cumsum([t.nbytes for t in tensors])[:-1]
        done = list(BACKEND.set_weights(zip(tensors, np.split(source, cuts), strict=True)))
        assert done == sorted(done) and len(done) > 1 and done[-1] == data.nbytes
        for tensor, part in zip(tensors, np.split(data, cuts), strict=True):
            np.testing.assert_array_equal(tensor.bytes(), part)
        np.testing.assert_array_equal(source, data)


def compute(node: Tensor) -> npt.NDArray[Any]:
    graph = CGraph()
    graph.build_forward_expand(node)
    BACKEND.graph_compute(graph)
    return node.numpy()


@pytest.mark.parametrize("kind", some(INTERLEAVED, 4), ids=lambda t: t.name)
@pytest.mark.parametrize("n_rows", only([16, 41], [41]))
def test_rows_of_a_table_are_the_same_in_both_layouts(kind: GGMLType, n_rows: int) -> None:
    n = max(64, kind.block_size)
    values = np.random.default_rng(0).standard_normal((2, n_rows, n)).astype(np.float32)
    rows = encoded(values, kind).reshape(-1)
    plain_ctx = Context(no_alloc=True)
    plain = plain_ctx.new_tensor(kind, (n, n_rows, 2))
    alloc_ctx_tensors(plain_ctx, HOST).set_tensor(plain, rows)
    table = repacked(kind, n, n_rows, 2)
    buffer_of(table).set_tensor(table, rows)
    ctx = Context()
    ids = ctx.from_numpy(np.array([[0, n_rows - 1, 15, 3], [1, 2, 3, n_rows - 2]], np.int32))
    want = compute(ops.get_rows(ctx, plain, ids))
    assert compute(ops.get_rows(ctx, table, ids)).tobytes() == want.tobytes()


def test_huge_pages_and_alignment() -> None:
    assert REPACK.alloc_buffer(100).base % 64 == 0
    large = REPACK.alloc_buffer(3 << 20)
    assert large.base % (2 << 20) == 0 and large.size == 3 << 20 and large.mem is None


def test_accepted_tensors() -> None:
    ctx = Context(no_alloc=True)
    assert REPACK.accepts(ctx.new_tensor_2d(GGMLType.Q8_0, 64, 3))
    assert not REPACK.accepts(ctx.new_tensor_1d(GGMLType.F32, 64))
    assert not REPACK.accepts(ctx.new_tensor_2d(GGMLType.I32, 64, 3))
    assert not REPACK.accepts(ops.transpose(ctx, ctx.new_tensor_2d(GGMLType.F32, 64, 3)))


def test_views_and_most_ops_of_repacked_weights_are_refused() -> None:
    w = repacked(GGMLType.F32, 64, 64)
    buffer_of(w).set_tensor(w, np.zeros(64 * 64 * 4, np.uint8))
    ctx = Context()
    x = ctx.from_numpy(np.zeros((64, 64), np.float32))
    half = ops.view_2d(ctx, w, 64, 32, w.nb[1], 8 * w.nb[1])
    assert is_repacked(w) and is_repacked(half)
    nodes = [
        ops.mul_mat(ctx, x, w),
        ops.mul_mat(ctx, half, x),
        ops.get_rows(ctx, half, ctx.from_numpy(np.zeros(1, np.int32))),
        ops.scale(ctx, w, 2.0),
        ops.add(ctx, x, w),
        ops.cont(ctx, w),
        ops.rms_norm(ctx, w),
    ]
    for node in nodes:
        assert not BACKEND.supports_op(node)
        with pytest.raises(UnsupportedOp, match="repacked"):
            compute(node)
    assert BACKEND.supports_op(ops.mul_mat(ctx, w, x))
    with pytest.raises(ShapeError, match="whole"):
        half.bytes()


def test_a_type_without_an_interleaved_layout_is_refused() -> None:
    ctx = Context(no_alloc=True)
    ctx.new_tensor_2d(GGMLType.Q8_K, 256, 4).set_name("w")
    with pytest.raises(TypeMismatch, match="tensor 'w' is Q8_K, which CPU_REPACK cannot"):
        alloc_ctx_tensors(ctx, REPACK)


@pytest.mark.parametrize("kind", some(INTERLEAVED, 6), ids=lambda t: t.name)
@pytest.mark.parametrize("buft", [REPACK, HOST], ids=lambda b: b.name)
def test_matrices_are_written_one_by_one(kind: GGMLType, buft: Any) -> None:
    data = random_bytes(kind, (512, 37, 3))
    ctx = Context(no_alloc=True)
    tensor = ctx.new_tensor(kind, (512, 37, 3))
    alloc_ctx_tensors(ctx, buft)
    write = BACKEND.matrix_writer(tensor)
    for i in (2, 0, 1):
        write(i, data.reshape(3, -1)[i])
    assert tensor.buffer is not None
    assert np.array_equal(tensor.buffer.get_tensor(tensor).reshape(-1), data)
