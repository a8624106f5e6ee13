"""Tiles of Intel's matrix unit: with plain IR in place of their instructions, and as they are.

With the stand-in, which runs everywhere, the other code is the real one: the bytes loaded into
tiles, the places of sums, the order of float additions. CPUs with the unit run both. Results must
have the bits of ``q_tile``. The real instructions are compiled and counted.
"""

from __future__ import annotations

import ctypes
import hashlib
import itertools
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import llvmlite.binding as llvm
import numpy as np
import numpy.typing as npt
import pytest
from llvmlite import ir

from pyggml.backend.cpu.simd import amx, matrix_unit, tile, x86
from pyggml.backend.cpu.simd.attention import attend_tile
from pyggml.backend.cpu.simd.attention.attend_tile import KEYS, VALUES
from pyggml.backend.cpu.simd.vector import (  # fmt: skip
    Generic,
    HardwareFloats,
    at,
    broadcast,
    call,
    counted_loop,
    f32,
    i8,
    i32,
    i64,
    load,
    splat,
    store,
    vec,
)
from pyggml.backend.cpu.simd.x86 import Avx512Amx
from pyggml.backend.cpu.weights.layout import K_TYPES, QUANTIZED, interleave, layout_k
from pyggml.compiler import jit
from pyggml.dtype import GGMLType
from pyggml.quants import dequantize
from pyggml.tensor import Tensor
from tests.pyggml.backend.cpu.test_isa import Target, assembly, python, tile_module
from tests.pyggml.backend.cpu.test_isa_sums import Fused, Plain, call_or_stand_in
from tests.pyggml.backend.cpu.test_quantize import super_twin, twin
from tests.pyggml.ops.harness import encoded
from tests.tiers import some

Array = npt.NDArray[Any]
Value = Any
KINDS = [t for t in QUANTIZED if t not in K_TYPES or layout_k(t).sub >= 32]
AVX2 = pytest.mark.skipif("avx2" not in jit.host_isas(), reason="other instructions are AVX2's")
BY_KIND = pytest.mark.parametrize("kind", some(KINDS, 3), ids=lambda t: t.name)
REAL = pytest.mark.skipif("avx512amx" not in jit.host_isas(), reason="the CPU has no AMX")
HOST = Target(Avx512Amx, "sapphirerapids", register="zmm")
TILE_INSTRUCTIONS = ("tdpbssd", "tilezero", "tileloadd", "tilestored", "ldtilecfg", "tilerelease")
_COUNT = "pyggml_tests_configured"
COUNTS = (ctypes.c_int64 * 2)()  # threads with configured tiles; number of configurations


def shapes(config: bytes) -> list[tuple[int, int]]:
    """(rows, bytes of a row) of 8 tiles, as LDTILECFG reads them (Intel's manual, volume 1)."""
    assert len(config) == 64 and config[0] == 1 and not any(config[1:16])
    assert not any(config[32:48]) and not any(config[56:])
    row_bytes = np.frombuffer(config[16:32], np.uint16)
    return list(zip(config[48:56], map(int, row_bytes), strict=True))


class Counted(Avx512Amx):
    """The instructions of this CPU; threads with configured tiles are counted."""

    def configure_tiles(self, b: Value, config: bytes) -> None:
        super().configure_tiles(b, config)
        self.count_configured(b)

    def release_tiles(self, b: Value) -> None:
        super().release_tiles(b)
        self._count(b, -1)

    def count_configured(self, b: Value) -> None:
        self._count(b, 1)
        self._count(b, 1, 1)

    def _counter(self, b: Value) -> Value:
        known = b.module.globals.get(_COUNT)
        return known or ir.GlobalVariable(b.module, i64, _COUNT)

    def _count(self, b: Value, n: int, which: int = 0) -> None:
        place = b.gep(self._counter(b), [ir.Constant(i64, which)])
        b.atomic_rmw("add", place, ir.Constant(i64, n), "seq_cst")


class StandIn(Counted):
    """Tiles in memory of the calling function; using unconfigured tiles ends the process."""

    shapes = amx.SHAPES
    half_to_float = HardwareFloats.half_to_float

    def add_half_products(self, b: Value, total: Value, x: Value, y: Value) -> Value:
        return b.fadd(total, b.fmul(x, y))

    def configure_tiles(self, b: Value, config: bytes) -> None:
        unused = [(0, 0)] * (8 - len(self.shapes))
        assert shapes(config) == [*self.shapes, *unused]
        self.count_configured(b)

    def release_tiles(self, b: Value) -> None:
        self._count(b, -1)

    def zero_tile(self, b: Value, tile: int) -> None:
        rows, row_bytes = self.shapes[tile]
        for row in range(rows):
            store(b, splat(i8, row_bytes, 0), at(b, self._memory(b, tile), 64 * row))

    def load_tile(self, b: Value, tile: int, address: Value, stride: Value) -> None:
        self._copy(b, tile, lambda row, place: (b.gep(address, [b.mul(row, stride)]), place))

    def store_tile(self, b: Value, tile: int, address: Value, stride: Value) -> None:
        self._copy(b, tile, lambda row, place: (place, b.gep(address, [b.mul(row, stride)])))

    def multiply_tiles(self, b: Value, sums: int, x: int, y: int) -> None:
        def step(words: Value, weights: Value, accs: list[Value]) -> list[Value]:
            acc, weights = accs[0], b.bitcast(weights, vec(i8, 4 * weights.type.count))
            return [Plain(acc).s8_add(b, acc, (weights,), b.bitcast(words, weights.type))]

        def end(before: Value, accs: list[Value]) -> Value:
            return b.add(before, accs[0])

        self._multiply(b, sums, x, y, i32, 1, step, end)

    def multiply_float_tiles(self, b: Value, sums: int, x: int, y: int) -> None:
        """As in Intel's manual: even and odd elements apart, denormals are zero."""

        def halves(words: Value) -> list[Value]:
            low = b.shl(words, splat(i32, words.type.count, 16))
            high = b.and_(words, splat(i32, words.type.count, -1 << 16))
            return [flushed(b, b.bitcast(v, vec(f32, v.type.count))) for v in (low, high)]

        def step(words: Value, weights: Value, accs: list[Value]) -> list[Value]:
            both = zip(halves(words), halves(weights), accs, strict=True)
            return [flushed(b, call(b, "llvm.fma.v16f32", z.type, u, v, z)) for u, v, z in both]

        def end(before: Value, accs: list[Value]) -> Value:
            total = flushed(b, b.fadd(*accs))
            return flushed(b, b.fadd(flushed(b, before), total))

        self._multiply(b, sums, x, y, f32, 2, step, end)

    def _multiply(
        self, b: Value, sums: int, x: int, y: int, element: ir.Type, n_accs: int, step: Any,
        end: Any,
    ) -> None:  # fmt: skip
        """``accs = step(words of x in all lanes, words of y, accs)``, ``end(before, accs)``."""
        (rows, depth), (steps, width) = self.shapes[x], self.shapes[y]
        assert self.shapes[sums] == (rows, width) and depth == 4 * steps  # or it is #UD
        with b.if_then(b.icmp_signed("<", b.load(self._counter(b)), ir.Constant(i64, 1))):
            call(b, "llvm.trap", ir.VoidType())
        to, a, c = (self._memory(b, t) for t in (sums, x, y))
        lanes = width // 4

        def row(m: Value, _: Value) -> list[Value]:
            start = b.shl(m, ir.Constant(i64, 6))
            place = b.gep(to, [start])

            def one(k: Value, accs: list[Value]) -> list[Value]:
                offset = b.add(start, b.shl(k, ir.Constant(i64, 2)))
                words = broadcast(b, load(b, b.gep(a, [offset]), i32), lanes)
                weights = load(b, b.gep(c, [b.shl(k, ir.Constant(i64, 6))]), vec(i32, lanes))
                after: list[Value] = step(words, weights, accs)
                return after

            zeros = [splat(element, lanes, 0)] * n_accs
            accs = counted_loop(b, ir.Constant(i64, steps), zeros, one)
            store(b, end(load(b, place, vec(element, lanes)), accs), place)
            return []

        counted_loop(b, ir.Constant(i64, rows), [], row)

    def _copy(self, b: Value, tile: int, places: Callable[[Value, Value], Any]) -> None:
        rows, row_bytes = self.shapes[tile]

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


class FloatStandIn(StandIn):
    """Tiles in the shapes of attention."""

    shapes = attend_tile.SHAPES


class SplitStandIn(StandIn):
    """Tiles in the shapes of F16 and BF16 weights."""

    shapes = amx.FLOAT_SHAPES


def flushed(b: Value, x: Value) -> Value:
    """Denormals as zeros of their sign."""
    n = x.type.count
    bits = b.bitcast(x, vec(i32, n))
    exponent = b.and_(bits, splat(i32, n, 0x7F800000))
    zero = b.bitcast(b.and_(bits, splat(i32, n, -1 << 31)), x.type)
    return b.select(b.icmp_unsigned("==", exponent, splat(i32, n, 0)), zero, x)


llvm.add_symbol(_COUNT, ctypes.addressof(COUNTS))


def compiled(intrinsic: Any, kind: GGMLType | None, n_args: int, *literals: int) -> Any:
    """An intrinsic as a function of this host, and the engine that must outlive it."""
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
        rows[1::2], rows[1::2, ::32] = 1, -1  # the minimum of a block is its zero point
        x[0], x[1:2], x[2:3] = 1, rows[0], -1
    weights = np.ascontiguousarray(interleave(kind, encoded(rows, kind)))
    acts = (twin if kind.block_size == 32 else super_twin)(x).reshape(tokens, -1)
    return weights, np.ascontiguousarray(acts)


def check_tiles(
    kind: GGMLType, one: Any, many: Any, blocks: int, tokens: int, extreme: bool,
    panel_bytes: Callable[[int, int], int],
) -> None:  # fmt: skip
    """``many``, the tiles of a matrix unit, must give the bits of ``one``, the register tile."""
    n = kind.block_size * blocks
    weights, acts = numbers(kind, n, tokens, extreme)
    if extreme and kind is GGMLType.Q8_0:
        weights.reshape(blocks, -1)[:, 32:] = 128  # -128; encoders never write it
    want = np.zeros((tokens, 16), np.float32)
    for t in range(tokens):
        place = acts.ctypes.data + t * acts.strides[0]
        one(weights.ctypes.data, place, 0, want[t:].ctypes.data, blocks, 0)
    got = np.full((tokens + 16, 16), np.nan, np.float32)
    panel = aligned(panel_bytes(kind, n))
    rest = (got.ctypes.data, blocks, tokens, 0, panel.ctypes.data)
    many(weights.ctypes.data, acts.ctypes.data, acts.strides[0], *rest)
    assert np.ptp(want) > 0.1 and np.isfinite(want).all()
    assert got[:tokens].tobytes() == want.tobytes(), (blocks, tokens)
    assert np.isnan(got[tokens:]).all()


UNITS = pytest.mark.parametrize("unit", [StandIn, pytest.param(Counted, marks=REAL)])


def real_or(stand_in: type[StandIn]) -> Any:
    """For long tests: the real instructions, or on other hosts the stand-in."""
    is_real = "avx512amx" in jit.host_isas()
    return pytest.mark.parametrize("unit", [Counted if is_real else stand_in])


@AVX2
@BY_KIND
@UNITS
def test_tiles_have_the_bits_of_the_register_tile(
    kind: GGMLType,
    unit: type[Generic],
    emit_for: Callable[[type[Generic]], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Rows with any number of blocks, not only multiples of the products in flight."""
    monkeypatch.setattr(x86, "call", call_or_stand_in)
    emit_for(Fused)
    one, keep_one = compiled(tile.q_tile, kind, 6, 1, 2)
    emit_for(unit)
    many, keep_many = compiled(matrix_unit.tiles, kind, 8, 2)
    use_tiles, keep_use = compiled(amx.use_tiles, kind, 1)
    use_tiles(1)
    size = kind.block_size
    for blocks in (1, 2, 3, 5, 8) if size == 256 else (1, 2, 3, 4, 5, 7, 18):
        for n_tiles, extreme in ((1, True), (3, False)):
            check_tiles(kind, one, many, blocks, 16 * n_tiles, extreme, amx.panel_bytes)
    use_tiles(0)
    assert COUNTS[0] == 0
    del keep_one, keep_many, keep_use


FLOAT_UNITS = pytest.mark.parametrize("unit", [FloatStandIn, pytest.param(Counted, marks=REAL)])


def split(x: Array) -> list[Array]:
    """The high and low parts of queries and weights, as float32 of 8 bits."""
    bits = x.view(np.uint32)
    high = ((bits + 0x8000) & 0xFFFF0000).view(np.float32)
    return [high, (((x - high).view(np.uint32) + 0x8000) & 0xFFFF0000).view(np.float32)]


def halves(x: Array) -> list[Array]:
    """F16 as two parts, exact."""
    high = (x.view(np.uint32) & 0xFFFF0000).view(np.float32)
    return [high, x - high]


def tile_product(x: Array, y: Array, sums: Array, neighbours: bool = False) -> Array:
    """``sums + x @ y`` of float32 that are bfloat16, [n, 32] @ [32, 16], in the unit's order.

    Words hold elements i and i + 16, or ``neighbours``.
    """
    halves = []
    for order in (range(0, 32, 2), range(1, 32, 2)) if neighbours else (range(16), range(16, 32)):
        acc = np.zeros((len(x), 16), np.float32)
        for k in order:
            product = x[:, k, None].astype(np.float64) * y[k].astype(np.float64)  # exact
            acc = (acc + product).astype(np.float32)
        halves.append(acc)
    return sums + (halves[0] + halves[1])


def of_attention(
    unit: type[Generic], kind: GGMLType, emit_for: Callable[[type[Generic]], None]
) -> tuple[dict[Any, Any], list[Any]]:
    """The functions of ``attend_tile`` for a kind of cache, by name and literal; their engines."""
    emit_for(unit)
    f, kept = {}, []
    for name, literals, n_args, more in (
        ("use_float_tiles", (), 1, ()),
        ("split_queries", (kind,), 2, ()),
        ("split_weights", (kind,), 3, ()),
        *(
            made
            for of in (KEYS, VALUES)
            for made in (
                ("split_steps", (kind,), 4, (of,)),
                ("multiply_steps", (kind,), 9, (of,)),
                ("multiply_and_split", (kind,), 18, (of, 2, 1, 4)),
            )
        ),
        ("turn_scores", (attend_tile.score_power(kind),), 3, ()),
        ("order_columns", (kind,), 3, ()),
    ):
        literals = (*map(int, literals), *more)
        found, engine = compiled(getattr(attend_tile, name), None, n_args, *literals)
        f[name, *more[:1]] = found
        kept.append(engine)
    return f, kept


@AVX2
@FLOAT_UNITS
@pytest.mark.parametrize(
    "kind", [GGMLType.F16, GGMLType.BF16, GGMLType.Q8_0], ids=lambda kind: kind.name
)
def test_float_tiles_have_the_sums_of_the_manual(
    kind: GGMLType, unit: type[Generic], emit_for: Callable[[type[Generic]], None]
) -> None:
    """Scores of a cache, and weighted sums of its values, bit by bit.

    Sums stay in registers for all steps, or are in memory between every two of them.
    """
    f, kept = of_attention(unit, kind, emit_for)
    rng = np.random.default_rng(0)
    rows = rng.standard_normal((80, 128)).astype(np.float32)
    rows[7, 3:9] = 100, 1e-5, -6e-8, 0, -60000, 3e-6  # F16: large ones, and denormals
    cache = np.ascontiguousarray(encoded(rows, kind)).view(np.uint8).reshape(80, -1)
    cells = rng.permutation(80)[:64].astype(np.int64)
    offsets = cells * cache.shape[1]
    queries = rng.standard_normal((16, 128)).astype(np.float32)
    queries[3, 5], queries[4] = 1e-39, 3e-37  # a denormal; products near the smallest number
    ring = aligned(attend_tile.PANEL_BYTES)
    q = aligned(128 * 64).view(np.float32)
    q[:] = queries.T.reshape(-1)
    at = [x.ctypes.data for x in (cache, offsets, ring, q, cells)]
    step_bytes = 32 // kind.block_size * kind.type_size

    def multiply(of: int, ahead: int, run: int, rows: int, stride: int) -> Array:
        """The products of a tile of 16 rows; of two equal ones while the ring keeps a step."""
        n_steps, n_blocks, row_bytes = (4, 2, 2048) if of == KEYS else (2, 4, 128)
        out = aligned(2 * 16 * n_blocks * 128).view(np.float32).reshape(2, 16, -1)
        f["split_steps", of](at[0], at[1], ahead, at[2])
        for block in range(n_blocks):
            first = at[0] + (step_bytes * block if of == VALUES else 0)
            listed = at[1] + (256 * block if of == KEYS else 0)
            source = (first, listed, n_steps, int(block + 1 < n_blocks))
            for i in range(0, n_steps, run):
                step = (at[2], n_steps * block + i, ahead, rows + row_bytes * i, stride, run)
                sums = [(x.ctypes.data + 128 * block, x.strides[0], i) for x in out]
                later = (at[4], 3 << 14, at[0], cache.shape[1])
                f["multiply_and_split", of](*step, *sums[0], i, *source, *later)
                if run <= ahead:
                    f["multiply_steps", of](*step, *sums[1])
        assert run > ahead or out[0].tobytes() == out[1].tobytes()
        return out[0]

    floats = dequantize(encoded(rows, kind), kind).reshape(80, 128).astype(np.float32)
    scale, of_queries = {GGMLType.F16: (2.0**-102, 2.0**64)}.get(kind, (1, 1))
    keys = [(x * np.float32(scale))[cells] for x in halves(floats)]
    if kind is GGMLType.Q8_0:  # the low part is rounded
        keys[1] = ((keys[1].view(np.uint32) + 0x8000) & 0xFFFF0000).view(np.float32)
    neighbours, of_low = kind is not GGMLType.Q8_0, kind is not GGMLType.BF16
    f["use_float_tiles",](1)
    f["split_queries",](at[3], 4)
    scores = multiply(KEYS, 2, 2, at[3], 64)
    assert scores.tobytes() == multiply(KEYS, 1, 4, at[3], 64).tobytes()
    f["turn_scores",](scores.ctypes.data, 256, 4)
    found = scores.copy()
    parts = split(queries * np.float32(of_queries))
    parts[1][np.abs(parts[1]) < 2.0**-126] = 0
    parts[0][np.abs(parts[0]) < 2.0**-126] = 0
    want = np.zeros((64, 16), np.float32)
    for d in range(0, 128, 32):
        for k, p in ((0, 0), *(((1, 0),) if of_low else ()), (0, 1)):
            for c in range(0, 64, 16):
                x, y = keys[k][c : c + 16, d : d + 32], parts[p][:, d : d + 32].T
                want[c : c + 16] = tile_product(x, y, want[c : c + 16], neighbours)
    want *= np.float32(1 / (scale * of_queries))
    normal = np.abs(queries).min(1) > 1e-30  # the model keeps denormal sums
    assert found[normal].tobytes() == np.ascontiguousarray(want.T[normal]).tobytes()
    assert np.abs(found[4]).max() < 1e-31
    weights = rng.random((16, 64), np.float32)
    p = aligned(16 * 256).view(np.float32)
    p[:] = weights.reshape(-1)
    f["split_weights",](p.ctypes.data, 256, 2)
    out = multiply(VALUES, 2, 2, p.ctypes.data, 256)
    assert out.tobytes() == multiply(VALUES, 1, 2, p.ctypes.data, 256).tobytes()
    f["order_columns",](out.ctypes.data, out.strides[0], 4)
    f["use_float_tiles",](0)
    parts = split(weights * np.float32(1 / scale))
    want = np.zeros((16, 128), np.float32)
    for j in range(0, 64, 32):
        for v, w in ((0, 0), *(((1, 0),) if of_low else ()), (0, 1)):
            for g in range(0, 128, 16):
                x, y = parts[w][:, j : j + 32], keys[v][j : j + 32, g : g + 16]
                want[:, g : g + 16] = tile_product(x, y, want[:, g : g + 16])
    assert out.tobytes() == want.tobytes()
    assert COUNTS[0] == 0
    del kept


@AVX2
@FLOAT_UNITS
def test_every_half_float_is_split_exactly(
    unit: type[Generic], emit_for: Callable[[type[Generic]], None]
) -> None:
    """Steps of numbers below 64, denormals too; steps of larger ones; small ones near a large one.

    Infinity and NaN do not become numbers.
    """
    emit_for(unit)
    split_steps, kept = compiled(attend_tile.split_steps, GGMLType.F16, 4, KEYS)
    bits = np.arange(1 << 16, dtype=np.uint32).astype(np.uint16).reshape(64, 32, 32)
    mixed = bits[:21].copy()
    mixed[:, 5, 7] = 0x7C00
    offsets, ring = 64 * np.arange(32, dtype=np.int64), aligned(attend_tile.PANEL_BYTES)
    for step in (*bits, *mixed):
        split_steps(step.ctypes.data, offsets.ctypes.data, 1, ring.ctypes.data)
        words = ring[:4096].view(np.uint16).reshape(2, 2, 16, 32).swapaxes(0, 1).reshape(2, 32, 32)
        parts = (words.astype(np.uint32) << 16).view(np.float32)
        assert not np.any((parts != 0) & (np.abs(parts) < 2.0**-126))  # which would count as 0
        floats = step.view(np.float16).astype(np.float32)
        finite = np.isfinite(floats)
        assert not np.any(np.isfinite(parts.sum(0)) & ~finite)
        scaled = floats[finite] * np.float32(2.0**-102)
        for part, want in zip(parts, halves(scaled), strict=True):
            assert part[finite].tobytes() == want.tobytes()
    del kept


SPLIT_UNITS = pytest.mark.parametrize("unit", [SplitStandIn, pytest.param(Counted, marks=REAL)])
BY_FLOAT = pytest.mark.parametrize("kind", [GGMLType.F16, GGMLType.BF16], ids=lambda t: t.name)


def split_product(kind: GGMLType, x: Array, w: Array) -> Array:
    """``x @ w.T`` of [n, k] and [16, k] float32 in the order of ``amx.tiles``."""
    padding = ((0, 0), (0, -x.shape[1] % 32))
    x, w = np.pad(x, padding), np.pad(w, padding)
    weights = halves(w)[: 2 if kind == GGMLType.F16 else 1]
    x1, rest = halves(x)
    sums = []
    for part in (x1, *halves(rest)):
        total = np.zeros((len(x), 16), np.float32)
        for k in range(0, x.shape[1], 32):
            for words in weights:
                total = tile_product(part[:, k : k + 32], words[:, k : k + 32].T, total)
        sums.append(total)
    return sums[0] + (sums[1] + sums[2])


@AVX2
@BY_FLOAT
@SPLIT_UNITS
def test_products_of_floats_have_the_sums_of_the_manual(
    kind: GGMLType,
    unit: type[Generic],
    emit_for: Callable[[type[Generic]], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Bit by bit, for any number of columns and tokens; what lies after the tokens is not used."""
    monkeypatch.setattr(x86, "call", call_or_stand_in)
    emit_for(unit)
    split_row, keep_split = compiled(amx.split_row, GGMLType.F32, 3)
    many, keep_many = compiled(matrix_unit.tiles, kind, 8, 2)
    use_tiles, keep_use = compiled(amx.use_tiles, kind, 1)
    rng = np.random.default_rng(int(kind))
    use_tiles(1)
    for n in (1, 16, 31, 32, 100, 288):
        rows = encoded(rng.standard_normal((16, n)).astype(np.float32), kind)
        x = rng.standard_normal((50, n)).astype(np.float32)
        want = split_product(kind, x, dequantize(rows, kind).reshape(16, n))
        weights = np.ascontiguousarray(interleave(kind, rows))
        size = amx.split_row_bytes(n)
        acts = np.full((50 + amx.SPARE_TOKENS, size), 255, np.uint8)  # NaN
        for t in range(len(x)):
            split_row(x[t].ctypes.data, n, acts[t].ctypes.data)
        panel = aligned(amx.panel_bytes(kind, n))
        for tokens in (1, 2, 5, 6, 10, 11, 16, 17, 33, 50):
            got = np.full((64, 16), np.nan, np.float32)
            first = 50 - tokens
            places = (weights.ctypes.data, acts[first].ctypes.data, size, got.ctypes.data)
            many(*places, n, tokens, 0, panel.ctypes.data)
            assert got[:tokens].tobytes() == want[first:].tobytes(), (n, tokens)
            assert np.isnan(got[tokens:]).all()
    use_tiles(0)
    assert COUNTS[0] == 0
    del keep_split, keep_many, keep_use


# --- assembly ---


@BY_KIND
def test_assembly(kind: GGMLType, emit_for: Callable[[type[Generic]], None]) -> None:
    """Two products in flight and two in the loop, in few tiles; sums in whole registers."""
    emit_for(Avx512Amx)
    text = assembly(matrix_unit.tiles, kind, 8, HOST, (2,))
    counts = {name: len(re.findall(rf"\t{name}\s", text)) for name in TILE_INSTRUCTIONS}
    want = {"tdpbssd": 4, "tilezero": 4, "tileloadd": 8, "tilestored": 3}
    assert counts == {name: want.get(name, 0) for name in TILE_INSTRUCTIONS}
    assert len(set(re.findall(r"tmm\d", text))) == 4  # with all 8, CPUs run out of tiles to rename
    assert re.search(r"\tvpaddd\s.*zmm", text) and "ymm" not in text
    assert len(re.findall(r"mov\S+\s+%zmm\d+, -?\d*\(%rsp\)", text)) <= 20


def test_assembly_of_the_configuration(emit_for: Callable[[type[Generic]], None]) -> None:
    emit_for(Avx512Amx)
    text = assembly(amx.use_tiles, GGMLType.Q4_0, 1, HOST, ())
    assert all(len(re.findall(rf"\t{name}\b", text)) == 1 for name in TILE_INSTRUCTIONS[-2:])


@BY_FLOAT
def test_assembly_of_products_of_floats(
    kind: GGMLType, emit_for: Callable[[type[Generic]], None]
) -> None:
    """A token, and one to three tiles at a time; each with the parts of the weights."""
    emit_for(Avx512Amx)
    text = assembly(matrix_unit.tiles, kind, 8, HOST, (2,))
    parts = 2 if kind is GGMLType.F16 else 1
    assert len(re.findall(r"\ttdpbf16ps\s", text)) == (1 + 3 + 1 + 2) * parts
    assert "vcvtph2psx" not in text  # slower


@pytest.mark.parametrize("of", [KEYS, VALUES], ids=["keys", "values"])
def test_assembly_of_float_tiles(of: int, emit_for: Callable[[type[Generic]], None]) -> None:
    """Six products of a step, two sums, four registers.

    Conversion stands between the products: for 32 elements a multiplication, a difference, two
    shifts and three masks, and half an instruction that checks them. Values take one more to be
    words.
    """
    emit_for(Avx512Amx)
    text = assembly(attend_tile.multiply_and_split, GGMLType.F16, 18, HOST, (of, 2, 1, 18))
    products = [m.start() for m in re.finditer(r"\ttdpbf16ps\s", text)]
    assert len(products) == 2 * 3 and len(set(re.findall(r"tmm\d", text))) == 4
    between = [text[i:j].count("\tvpsraw") for i, j in itertools.pairwise(products)]
    assert all(8 <= n <= 12 for n in between)
    names = ("vpsraw", "vsubph", "vpunpck", "prefetch")
    counts = [len(re.findall(rf"\t{x}\S*\s", text)) for x in names]
    unpacked = 34 if of == VALUES else 0  # two of the correction
    assert counts == [64, 32, unpacked, 18]
    assert not re.search(r"mov\S+\s+%zmm\d+, -?\d*\(%rsp\)", text)


# --- the whole path, on any host ---

_SOURCE = hashlib.sha256(Path(__file__).read_bytes()).hexdigest()[:8]
TOKENS = (1, 15, 16, 17, 31, 48, 67, 150)


def install(unit: type[Generic]) -> None:
    """Make ``unit`` this process's instruction set."""
    known, name = jit.host_isas(), f"amx_{unit.__name__}_{_SOURCE}"  # unique: code is cached by it
    jit.host_isas = lambda: (name, *known)  # type: ignore[assignment]
    x86.SETS[name] = unit
    if "avx512vnni" not in known:
        x86.call = call_or_stand_in
    jit.use_isa(name)


def chunks_with_tiles() -> int:
    """Number of chunks with tiles since the last call; no tile may be left configured."""
    assert COUNTS[0] == 0
    n, COUNTS[1] = COUNTS[1], 0
    return n


def child(unit: type[Generic]) -> None:
    """In a process of its own: tokens in batches have the bits that they have alone."""
    install(unit)
    from pyggml.backend.cpu.weights.buffer import REPACK
    from pyggml.buffer import HOST
    from tests.pyggml.backend.cpu.test_matmul_bits import product

    rng = np.random.default_rng(0)
    shapes = {"Q4_1": (83, 96), "Q8_0": (16, 160), "MXFP4": (5, 32), "Q4_K": (83, 512)}
    for name, (m, n) in {**shapes, "Q6_K": (83, 256), "F16": (83, 96)}.items():
        kind = GGMLType[name]
        rows = encoded(rng.standard_normal((m, n)).astype(np.float32), kind)
        x = rng.standard_normal((max(TOKENS), n)).astype(np.float32)
        x[20, 5], x[33, 5] = np.inf, np.nan  # must not affect other tokens
        alone = np.concatenate([product(kind, rows, x[i : i + 1]) for i in range(len(x))])
        assert not chunks_with_tiles() and np.isfinite(np.delete(alone, (20, 33), 0)).all()
        for i, count in enumerate(TOKENS):
            for buft in (REPACK, HOST):
                got = product(kind, rows, x[:count], 1 + i % 3, buft)
                assert same(got, alone[:count]), (name, count, buft.name)
                assert (chunks_with_tiles() > 0) == (count >= 16 and name in shapes)
    experts()
    feed_forward()


def splitting(unit: type[Generic]) -> None:
    """In a process of its own: F16 and BF16 of ops that say they have many tokens."""
    install(unit)
    from pyggml.backend.cpu.weights.buffer import REPACK
    from pyggml.buffer import HOST
    from tests.pyggml.backend.cpu.test_matmul_bits import product

    rng = np.random.default_rng(0)
    for kind in (GGMLType.F16, GGMLType.BF16):
        for m, n in ((83, 96), (5, 70)):
            rows = encoded(rng.standard_normal((m, n)).astype(np.float32), kind)
            x = rng.standard_normal((max(TOKENS), n)).astype(np.float32)
            x[20, 5], x[33, 5] = np.inf, np.nan  # must not affect other tokens
            alone = [product(kind, rows, x[i : i + 1], many=True) for i in range(len(x))]
            want = np.concatenate(alone)
            assert chunks_with_tiles() and np.isfinite(np.delete(want, (20, 33), 0)).all()
            weights = dequantize(rows, kind).reshape(m, n)
            known = split_product(kind, x[:16], weights[:5].repeat(4, 0)[:16])[:, ::4]
            assert want[:16, :4].tobytes() == np.ascontiguousarray(known).tobytes()
            for i, count in enumerate(TOKENS):
                for buft in (REPACK, HOST):
                    got = product(kind, rows, x[:count], 1 + i % 3, buft, many=True)
                    assert same(got, want[:count]), (kind.name, count, buft.name)
                    assert chunks_with_tiles()


def same(got: Array, want: Array) -> bool:
    """Whether bits are equal, with any bits for NaN."""
    nan = np.isnan(got)
    return np.array_equal(nan, np.isnan(want)) and got[~nan].tobytes() == want[~nan].tobytes()


def experts() -> None:
    from pyggml.backend.cpu.weights.buffer import REPACK
    from pyggml.buffer import HOST
    from tests.pyggml.backend.cpu.test_experts import IDS, N_TOKENS, product

    for ids in (IDS, np.full_like(IDS, 3)):  # 28 uses of each expert, or all of one
        kind = GGMLType.Q4_1
        alone = product(kind, 1, ids=ids), product(kind, 2, ids=ids)[1:]
        assert not chunks_with_tiles()
        for n in (40, N_TOKENS):
            for buft in (REPACK, HOST):
                got = product(kind, n, 2, buft, ids)
                assert got[:2].tobytes() == b"".join(x.tobytes() for x in alone)
                assert chunks_with_tiles()
                if n == 40:
                    before = got
                assert got[:40].tobytes() == before.tobytes()


def feed_forward() -> None:
    """Gate and up fused with the GLU, and down on the activations that kernel quantized."""
    from pyggml.alloc.tallocr import alloc_ctx_tensors
    from pyggml.backend.cpu.weights.buffer import REPACK
    from pyggml.context import Context

    rng = np.random.default_rng(1)
    for kind, n, n_ff in ((GGMLType.Q4_0, 96, 160), (GGMLType.Q5_K, 256, 96)):
        weights = Context(no_alloc=True)
        sizes = {"gate": (n, n_ff), "up": (n, n_ff), "down": (n_ff, 40)}
        types = {"gate": kind, "up": kind, "down": GGMLType.Q8_0}
        w = {name: weights.new_tensor_2d(types[name], k, m) for name, (k, m) in sizes.items()}
        buffer = alloc_ctx_tensors(weights, REPACK)
        for name, (k, m) in sizes.items():
            rows = encoded(rng.standard_normal((m, k)).astype(np.float32), types[name])
            buffer.set_tensor(w[name], rows.reshape(-1))
        x = rng.standard_normal((100, n)).astype(np.float32)
        alone = np.concatenate([fed_forward(w, x[i : i + 1], 1) for i in range(len(x))])
        assert not chunks_with_tiles()
        for count in (16, 37, 100):
            assert fed_forward(w, x[:count], 2).tobytes() == alone[:count].tobytes()
            assert chunks_with_tiles() >= 2


def fed_forward(w: dict[str, Tensor], x: Array, n_threads: int) -> Array:
    import pyggml as ops
    from pyggml.backend.cpu.compile.program import compile_program
    from pyggml.backend.cpu.compile.work import WorkStore
    from pyggml.backend.cpu.run.pool import get_pool
    from pyggml.cgraph import CGraph
    from pyggml.context import Context

    ctx, graph, n = Context(), CGraph(), w["down"].ne[1]
    xs, residual = ctx.from_numpy(x), ctx.from_numpy(np.ascontiguousarray(x[:, :n]))
    bias = ctx.from_numpy(np.linspace(-1, 1, n, dtype=np.float32))
    gate, up = (ops.mul_mat(ctx, w[name], xs) for name in ("gate", "up"))
    down = ops.mul_mat(ctx, w["down"], ops.swiglu_split(ctx, gate, up))
    node = ops.add(ctx, ops.add(ctx, down, bias), residual)
    graph.build_forward_expand(node)
    program = compile_program(graph, n_threads, get_pool().error_slot, WorkStore())
    names = [launch.name.partition("_q")[0] for launch in program.launches]
    assert names[-2:] == ["mul_mat_glu_silu", "mul_mat"], names  # fused
    get_pool().run(program)
    return node.numpy().reshape(len(x), n).copy()


def attending(unit: type[Generic]) -> None:
    """In a process of its own: attention of 20 heads to each key, near the products of floats."""
    install(unit)
    from tests.pyggml.backend.cpu import test_attention_bits as bits

    for kind in (GGMLType.F16, GGMLType.BF16, GGMLType.Q8_0):
        bits.check_many_heads((kind, kind), 1e-9)
    assert chunks_with_tiles()
    bits.check_many_heads((GGMLType.F32, GGMLType.F32), 1e-11)
    assert not chunks_with_tiles()  # of F32 every bit counts


@AVX2
@pytest.mark.long
@real_or(FloatStandIn)
def test_attention_in_tiles(unit: type[Generic]) -> None:
    name = f"test_amx.{unit.__name__}"
    done = python(f"from tests.pyggml.backend.cpu import test_amx; test_amx.attending({name})")
    assert done.returncode == 0, done.stderr


@AVX2
@pytest.mark.long
@real_or(StandIn)
def test_matmuls_have_the_bits_of_one_token_alone(unit: type[Generic]) -> None:
    name = f"test_amx.{unit.__name__}"
    done = python(f"from tests.pyggml.backend.cpu import test_amx; test_amx.child({name})")
    assert done.returncode == 0, done.stderr


@AVX2
@pytest.mark.long
@real_or(SplitStandIn)
def test_products_of_floats_have_the_bits_of_one_token_alone(unit: type[Generic]) -> None:
    name = f"test_amx.{unit.__name__}"
    done = python(f"from tests.pyggml.backend.cpu import test_amx; test_amx.splitting({name})")
    assert done.returncode == 0, done.stderr
