"""Tiles of instruction sets that this host lacks; plain IR replaces the missing instructions.

The other code runs as it is: the bytes given to instructions, the sums, and the order of
additions. The results must have the bits of the generic tile.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import llvmlite.binding as llvm
import numpy as np
import numpy.typing as npt
import pytest
from llvmlite import ir

from pyggml.backend.cpu.simd import aarch64, tile, x86
from pyggml.backend.cpu.simd.aarch64 import Asimd, Neon
from pyggml.backend.cpu.simd.vector import Generic, HardwareFloats, call, i32, vec
from pyggml.backend.cpu.simd.x86 import Avx512Vnni, AvxVnni
from pyggml.backend.cpu.weights.layout import interleave
from pyggml.compiler import jit
from pyggml.dtype import GGMLType
from tests.pyggml.backend.cpu.test_isa import tile_module
from tests.pyggml.backend.cpu.test_quantize import super_twin, twin
from tests.pyggml.ops.harness import encoded
from tests.tiers import long, some

Array = npt.NDArray[Any]
Value = Any
COLUMNS, ROWS = 512, 16
KINDS = [  # they cover every path through the emitters
    *(GGMLType[name] for name in ("Q4_0", "Q5_0", "Q5_1", "Q8_0", "IQ4_NL", "MXFP4")),
    *(GGMLType[name] for name in ("Q2_K", "Q5_K", "Q6_K", "IQ4_XS", "IQ3_S", "IQ2_S", "TQ2_0")),
]


class Fused(Generic):
    """Plain IR with a fused multiply-add, as in the other sets."""

    fma = HardwareFloats.fma


class Plain(Generic):
    """Plain IR for vectors of any width."""

    def __init__(self, x: Value) -> None:
        self.width = x.type.count * x.type.element.width // 8


def vpdpbusd(b: Value, acc: Value, w: Value, a: Value) -> Value:
    return Plain(acc).u4_add(b, acc, w, a)


def sdot(b: Value, acc: Value, w: Value, a: Value) -> Value:
    return Plain(acc).s8_add(b, acc, (w,), a)


def pmaddwd(b: Value, x: Value, y: Value) -> Value:
    return Plain(x).pair_dot(b, x, y)


def look_up(b: Value, table: Value, codes: Value) -> Value:
    return Plain(codes).look_up(b, tuple(x.constant for x in table.constant[:16]), codes)


def widened(b: Value, x: Value, lanes: int) -> Value:
    """Integers of twice the width."""
    return b.sext(x, vec(ir.IntType(2 * x.type.element.width), lanes))


def smull(b: Value, x: Value, y: Value) -> Value:
    return b.mul(*(widened(b, v, x.type.count) for v in (x, y)))


def addp(b: Value, x: Value, y: Value) -> Value:
    n = x.type.count
    return b.add(
        *(
            b.shuffle_vector(x, y, ir.Constant(vec(i32, n), list(range(first, 2 * n, 2))))
            for first in (0, 1)
        )
    )


def saddlp(b: Value, x: Value) -> Value:
    n = x.type.count // 2
    halves = (
        b.shuffle_vector(x, x, ir.Constant(vec(i32, n), list(range(first, 2 * n, 2))))
        for first in (0, 1)
    )
    return b.add(*(widened(b, half, n) for half in halves))


STAND_INS: dict[str, Callable[..., Value]] = {
    "llvm.x86.avx512.vpdpbusd": vpdpbusd,
    "llvm.x86.avx512.pmaddw.d": pmaddwd,
    "llvm.x86.avx512.pshuf.b": look_up,
    "llvm.aarch64.neon.sdot.v4i32": sdot,
    "llvm.aarch64.neon.smull": smull,
    "llvm.aarch64.neon.addp": addp,
    "llvm.aarch64.neon.saddlp.v4i32": saddlp,
    "llvm.aarch64.neon.tbl1": look_up,
}


def call_or_stand_in(b: Value, name: str, result: ir.Type, *args: Value) -> Value:
    stand_in = STAND_INS.get(name.rpartition(".")[0])
    return stand_in(b, *args) if stand_in else call(b, name, result, *args)


def run_tile(kind: GGMLType, weights: Array, acts: Array) -> Array:
    """``q_tile`` compiled for this host, [token, row]."""
    triple = llvm.get_process_triple()
    tokens = len(acts)
    parsed = llvm.parse_assembly(str(tile_module(tile.q_tile, kind, 6, triple, (tokens, 2))))
    machine = llvm.Target.from_triple(triple).create_target_machine(
        cpu=llvm.get_host_cpu_name(), features=llvm.get_host_cpu_features().flatten(), opt=1
    )
    engine = llvm.create_mcjit_compiler(parsed, machine)
    engine.finalize_object()
    out = np.full((tokens, ROWS), np.nan, np.float32)
    n_blocks = COLUMNS // kind.block_size
    args = (weights.ctypes.data, acts.ctypes.data, acts.strides[0], out.ctypes.data, n_blocks, 0)
    ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * 6)(engine.get_function_address("tile"))(*args)
    return out


def numbers(kind: GGMLType, extreme: bool, tokens: int) -> tuple[Array, Array]:
    """Weights and activations; the extreme ones have the largest codes and sums."""
    rng = np.random.default_rng(int(kind))
    rows, x = (rng.standard_normal((n, COLUMNS)).astype(np.float32) for n in (ROWS, tokens))
    if extreme:
        rows, x = np.sign(rows), np.sign(x)
        rows[1::2], rows[1::2, ::32] = 1, -1  # the minimum of a block is its zero point
        x[0], x[1:2], x[2:3] = 1, rows[0], -1
    return rows, x


@pytest.mark.skipif("avx2" not in jit.host_isas(), reason="their other instructions are AVX2's")
@pytest.mark.parametrize(
    ("tokens", "extreme"),
    [(4, True), long((1, False))],  # one: fewer parts of a line at a time
)
@pytest.mark.parametrize("kind", some(KINDS, 4), ids=lambda t: t.name)
def test_sums_have_the_bits_of_the_plain_tile(
    kind: GGMLType,
    extreme: bool,
    tokens: int,
    emit_for: Callable[[type[Generic]], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for module in (aarch64, x86):
        monkeypatch.setattr(module, "call", call_or_stand_in)
    rows, x = numbers(kind, extreme, tokens)
    weights = np.ascontiguousarray(interleave(kind, encoded(rows, kind)))
    acts = (twin if kind.block_size == 32 else super_twin)(x).reshape(tokens, -1)
    emit_for(Fused)
    want = run_tile(kind, weights, acts)
    assert np.isfinite(want).all() and np.ptp(want) > 1
    for vectors in (AvxVnni, Avx512Vnni, Asimd, Neon):
        emit_for(vectors)
        assert run_tile(kind, weights, acts).tobytes() == want.tobytes(), vectors
