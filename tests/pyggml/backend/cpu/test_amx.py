"""Tiles of Intel's matrix unit: plain IR stands in for their instructions where there are none.

Everything around those runs here: which bytes tiles get, where sums go, in what order floats are
added. Results must have the bits of ``q_tile``. The real instructions are compiled and counted.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable
from typing import Any

import llvmlite.binding as llvm
import numpy as np
import numpy.typing as npt
import pytest
from llvmlite import ir

from pyggml import jit
from pyggml.backend.cpu.layout import QUANTIZED, group_bytes, interleave
from pyggml.backend.cpu.simd import amx, tile, x86
from pyggml.backend.cpu.simd.loop import counted_loop
from pyggml.backend.cpu.simd.vector import Generic, at, broadcast, call, i8, i32, i64
from pyggml.backend.cpu.simd.vector import load, pointer, splat, store, vec  # fmt: skip
from pyggml.backend.cpu.simd.x86 import Avx512Amx
from pyggml.backend.cpu.superblock import FORMATS
from pyggml.dtype import GGMLType
from tests.pyggml.backend.cpu.test_isa import tile_module
from tests.pyggml.backend.cpu.test_isa_sums import Fused, Plain, call_or_stand_in
from tests.pyggml.backend.cpu.test_quantize import super_twin, twin
from tests.pyggml.ops.harness import encoded

Array = npt.NDArray[Any]
Value = Any
KINDS = [t for t in QUANTIZED if t not in FORMATS or FORMATS[t].sub >= 32]
AVX2 = pytest.mark.skipif("avx2" not in jit.host_isas(), reason="other instructions are AVX2's")
BY_KIND = pytest.mark.parametrize("kind", KINDS, ids=lambda t: t.name)
_COUNT = "pyggml_tests_configured"
CONFIGURED = ctypes.c_int64(0)  # threads whose tiles have shapes


def shapes(config: bytes) -> list[tuple[int, int]]:
    """(rows, bytes of a row) of 8 tiles, as LDTILECFG reads them (Intel's manual, volume 1)."""
    assert len(config) == 64 and config[0] == 1 and not any(config[1:16])
    assert not any(config[32:48]) and not any(config[56:])
    row_bytes = np.frombuffer(config[16:32], np.uint16)
    return list(zip(config[48:56], map(int, row_bytes), strict=True))


class StandIn(Avx512Amx):
    """Tiles in memory of the function that uses them. Those that nobody configured end it."""

    def configure_tiles(self, b: Value, config: bytes) -> None:
        assert shapes(config) == list(amx.SHAPES)
        self._count(b, 1)

    def release_tiles(self, b: Value) -> None:
        self._count(b, -1)

    def zero_tile(self, b: Value, tile: int) -> None:
        rows, row_bytes = amx.SHAPES[tile]
        for row in range(rows):
            store(b, splat(i8, row_bytes, 0), at(b, self._memory(b, tile), 64 * row))

    def load_tile(self, b: Value, tile: int, address: Value, stride: Value) -> None:
        self._copy(b, tile, lambda row, place: (b.gep(address, [b.mul(row, stride)]), place))

    def store_tile(self, b: Value, tile: int, address: Value, stride: Value) -> None:
        self._copy(b, tile, lambda row, place: (place, b.gep(address, [b.mul(row, stride)])))

    def multiply_tiles(self, b: Value, sums: int, x: int, y: int) -> None:
        (rows, depth), (steps, width) = amx.SHAPES[x], amx.SHAPES[y]
        assert amx.SHAPES[sums] == (rows, width) and depth == 4 * steps  # or it is #UD
        with b.if_then(b.icmp_signed("<", b.load(self._counter(b)), ir.Constant(i64, 1))):
            call(b, "llvm.trap", ir.VoidType())
        to, a, c = (self._memory(b, t) for t in (sums, x, y))

        def row(m: Value, _: Value) -> list[Value]:
            place = b.gep(to, [b.shl(m, ir.Constant(i64, 6))])

            def step(k: Value, carried: list[Value]) -> list[Value]:
                offset = b.add(b.shl(m, ir.Constant(i64, 6)), b.shl(k, ir.Constant(i64, 2)))
                words = broadcast(b, load(b, b.gep(a, [offset]), i32), width // 4)
                weights = load(b, b.gep(c, [b.shl(k, ir.Constant(i64, 6))]), vec(i8, width))
                acc = carried[0]
                return [Plain(acc).s8_add(b, acc, (weights,), b.bitcast(words, weights.type))]

            start = load(b, place, vec(i32, width // 4))
            (total,) = counted_loop(b, ir.Constant(i64, steps), [start], step)
            store(b, total, place)
            return []

        counted_loop(b, ir.Constant(i64, rows), [], row)

    def _copy(self, b: Value, tile: int, places: Callable[[Value, Value], Any]) -> None:
        rows, row_bytes = amx.SHAPES[tile]

        def row(i: Value, _: Value) -> list[Value]:
            mine = b.gep(self._memory(b, tile), [b.shl(i, ir.Constant(i64, 6))])
            source, target = places(i, mine)
            store(b, load(b, source, vec(i8, row_bytes)), target)
            return []

        counted_loop(b, ir.Constant(i64, rows), [], row)

    def _memory(self, b: Value, tile: int) -> Value:
        if not hasattr(b.function, "tiles"):
            with b.goto_entry_block():
                b.function.tiles = b.alloca(ir.ArrayType(i8, 8 * 1024))
        return at(b, b.bitcast(b.function.tiles, i8.as_pointer()), 1024 * tile)

    def _counter(self, b: Value) -> Value:
        known = b.module.globals.get(_COUNT)
        return known or ir.GlobalVariable(b.module, i64, _COUNT)

    def _count(self, b: Value, n: int) -> None:
        b.atomic_rmw("add", self._counter(b), ir.Constant(i64, n), "seq_cst")


llvm.add_symbol(_COUNT, ctypes.addressof(CONFIGURED))


def compiled(intrinsic: Any, kind: GGMLType, n_args: int, *literals: int) -> Any:
    """An intrinsic as a function of this host, and what it must not outlive."""
    triple = llvm.get_process_triple()
    parsed = llvm.parse_assembly(str(tile_module(intrinsic, kind, n_args, triple, literals)))
    parsed.verify()
    machine = llvm.Target.from_triple(triple).create_target_machine(
        cpu=llvm.get_host_cpu_name(), features=llvm.get_host_cpu_features().flatten(), opt=1
    )
    engine = llvm.create_mcjit_compiler(parsed, machine)
    engine.finalize_object()
    function = ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * n_args)
    return function(engine.get_function_address("tile")), engine


def aligned(n_bytes: int) -> Array:
    room = np.full(n_bytes + 64, 255, np.uint8)
    start = -room.ctypes.data % 64
    return room[start : start + n_bytes]


def numbers(kind: GGMLType, n: int, tokens: int, extreme: bool) -> tuple[Array, Array]:
    """A group of weights, and quantized activations."""
    rng = np.random.default_rng(int(kind) + n)
    rows, x = (rng.standard_normal((m, n)).astype(np.float32) for m in (16, tokens))
    if extreme:
        rows, x = np.sign(rows), np.sign(x)
        rows[1::2], rows[1::2, ::32] = 1, -1  # the zero of a block is its smallest value
        x[0], x[1:2], x[2:3] = 1, rows[0], -1
    weights = np.ascontiguousarray(interleave(kind, encoded(rows, kind)))
    acts = (twin if kind.block_size == 32 else super_twin)(x).reshape(tokens, -1)
    return weights, np.ascontiguousarray(acts)


@AVX2
@BY_KIND
def test_tiles_have_the_bits_of_the_register_tile(
    kind: GGMLType, emit_for: Callable[[type[Generic]], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of rows with any number of blocks, which end anywhere among products under way."""
    monkeypatch.setattr(x86, "call", call_or_stand_in)
    emit_for(Fused)
    one, keep_one = compiled(tile.q_tile, kind, 6, 1)
    emit_for(StandIn)
    many, keep_many = compiled(amx.tiles, kind, 7)
    monkeypatch.setattr(CONFIGURED, "value", 1)
    size = kind.block_size
    for blocks in (1, 2, 3, 5, 8) if size == 256 else (1, 2, 3, 4, 5, 7, 18):
        for n_tiles, extreme in ((1, True), (3, False)):
            tokens, n = 16 * n_tiles, size * blocks
            weights, acts = numbers(kind, n, tokens, extreme)
            want = np.zeros((tokens, 16), np.float32)
            for t in range(tokens):
                place = acts.ctypes.data + t * acts.strides[0]
                one(weights.ctypes.data, place, 0, want[t:].ctypes.data, blocks, 0)
            got = np.full((tokens + 16, 16), np.nan, np.float32)
            panel = aligned(amx.panel_bytes(kind, n))
            rest = (got.ctypes.data, blocks, n_tiles, panel.ctypes.data)
            many(weights.ctypes.data, acts.ctypes.data, acts.strides[0], *rest)
            assert np.ptp(want) > 0.1 and np.isfinite(want).all()
            assert got[:tokens].tobytes() == want.tobytes(), (blocks, n_tiles)
            assert np.isnan(got[tokens:]).all()
    del keep_one, keep_many
