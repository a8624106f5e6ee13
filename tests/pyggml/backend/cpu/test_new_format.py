"""A format made up here by one declaration: all code derived from it works.

The example of ``docs/add-a-format.md``: 32 codes of 3 bits, centred at 4.
"""

from __future__ import annotations

import zlib
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from pyggml.compiler import jit
from pyggml.dtype import GGMLType
from tests.tiers import only

Array = npt.NDArray[Any]
ROWS, COLUMNS = 37, 96  # an incomplete group, some blocks


def add_type(name: str, block_size: int, type_size: int) -> GGMLType:
    """Add a tensor type to this process, as a line of ``dtype.py`` does.

    Compiled code is kept by a type's number, so it changes with this file.
    """
    value = 1000 + zlib.crc32(Path(__file__).read_bytes()) % 1_000_000
    member = int.__new__(GGMLType, value)
    member._name_, member._value_ = name, value
    member.block_size, member.type_size = block_size, type_size
    GGMLType._member_map_[name] = GGMLType._value2member_map_[value] = member
    return member


def declare() -> GGMLType:
    """Q3_0: a half float, 8 bytes with two bits of four columns each, 4 bytes of third bits."""
    from pyggml.quants.block import Bits, BlockType, bit_row, half, register, row_weights
    from pyggml.quants.blocks_32 import encode_centred

    low, high = Bits(2, 8 * 2, (4, 8), (2, 8)), bit_row(10, shift=2)
    type = add_type("Q3_0", 32, 14)
    register(
        BlockType(type, (low, high), half(0), zero=4, encode=encode_centred, weigh=row_weights)
    )
    return type


def decoded(blocks: Array) -> Array:
    """The format decoded independently of its declaration: [n, 14] -> [n, 32]."""
    d = blocks[:, :2].copy().view(np.float16).astype(np.float32)
    codes = np.empty((len(blocks), 32), np.int32)
    for j in range(32):
        low, high = blocks[:, 2 + j % 8] >> 2 * (j // 8) & 3, blocks[:, 10 + j // 8] >> j % 8 & 1
        codes[:, j] = low | high << 2
    with np.errstate(invalid="ignore"):
        return d * (codes - 4).astype(np.float32)


def child() -> None:
    """Runs in a process of its own, since tables are filled at import."""
    kind = declare()
    from pyggml.quants import dequantize, quantize, reference_quantize
    from pyggml.quants.validity import count_invalid

    rng = np.random.default_rng(1)
    x = rng.standard_normal((ROWS, COLUMNS)).astype(np.float32)
    rows = quantize(x, "Q3_0")
    values = decoded(rows.reshape(-1, 14)).reshape(x.shape)
    assert np.array_equal(dequantize(rows, kind), values)
    assert np.mean((values - x) ** 2) < 0.06
    blocks = rng.integers(0, 256, (5000, 14), np.uint8)
    special = ~np.isfinite(decoded(blocks)).all(axis=1)
    assert count_invalid(blocks.reshape(-1), kind)[0] == special.sum() > 0
    many = rng.standard_normal((300, 320)).astype(np.float32)  # large enough for the jitted codec
    weights = rng.random(320).astype(np.float32)
    for imatrix in (None, weights):
        got = quantize(many, kind, imatrix)
        assert np.array_equal(got, reference_quantize(many, kind, imatrix))
    assert np.array_equal(dequantize(got, kind), decoded(got.reshape(-1, 14)).reshape(many.shape))

    import pyggml as ops
    from pyggml.alloc.tallocr import alloc_ctx_tensors
    from pyggml.backend.cpu.backend import CpuBackend
    from pyggml.backend.cpu.repack import repack
    from pyggml.backend.cpu.weights.buffer import REPACK
    from pyggml.backend.cpu.weights.layout import QUANTIZED
    from pyggml.buffer import HOST
    from pyggml.cgraph import CGraph
    from pyggml.context import Context
    from tests.pyggml.backend.cpu.test_matmul_bits import rounded

    assert kind in QUANTIZED
    backend, digests = CpuBackend(2), set()

    def compute(node: Any) -> Array:
        graph = CGraph()
        graph.build_forward_expand(node)
        backend.graph_compute(graph)
        return node.numpy().copy()

    tokens = rng.standard_normal((9, COLUMNS)).astype(np.float32)
    ids = np.array([0, ROWS - 1, 15, 16], np.int32)
    for buft in (HOST, REPACK):
        ctx, weights_ctx = Context(), Context(no_alloc=True)
        w = weights_ctx.new_tensor_2d(kind, COLUMNS, ROWS)
        buffer = alloc_ctx_tensors(weights_ctx, buft)
        buffer.set_tensor(w, rows.reshape(-1))
        if buft is REPACK:
            by_numpy = buffer.memory.copy()
            buffer.memory[:] = 0
            assert list(repack(backend.run_launches, 2, [(w, rows.reshape(-1))])) == [rows.nbytes]
            assert np.array_equal(buffer.memory, by_numpy)
        assert np.array_equal(w.bytes(), rows.reshape(-1))
        assert np.array_equal(compute(ops.get_rows(ctx, w, ctx.from_numpy(ids))), values[ids])
        together = compute(ops.mul_mat(ctx, w, ctx.from_numpy(tokens)))
        want = rounded(tokens, 32) @ values.astype(np.float64).T
        assert np.sum((together - want) ** 2) < 1e-12 * np.sum(want**2)
        alone = [compute(ops.mul_mat(ctx, w, ctx.from_numpy(t[None]))) for t in tokens]
        assert np.concatenate(alone).tobytes() == together.tobytes()
        digests.add(together.tobytes())
    assert len(digests) == 1
    print(jit.isa())


BEST, *_, PLAINEST = (*jit.host_isas(), jit.host_isas()[-1])


@pytest.mark.parametrize("isa", only(dict.fromkeys((BEST, PLAINEST)), (BEST,)))
def test_one_declaration_is_enough(isa: str) -> None:
    from tests.pyggml.backend.cpu.test_isa import python  # it imports the readers of the tables

    module = "tests.pyggml.backend.cpu.test_new_format"
    done = python(f"from {module} import child; child()", PYGGML_ISA=isa)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [isa]
