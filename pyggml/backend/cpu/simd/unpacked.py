"""Tiles of 16 rows times 4 tokens, of weights that are unpacked once for all tokens of a chunk.

    tiles(b, Q4_1, hint, weights, acts, stride, out, n_blocks, tokens, ahead, panel)

``out`` gets 16 floats a token, with the bits of ``q_tile``. ``panel`` is scratch of
``panel_bytes``. This is for sets with 16 registers and ``pmaddubsw`` (AVX2, SSE4.2), where
``q_tile`` unpacks weights for every 4 tokens, an eighth of its instructions.

    256 columns of a group      panel (L1, 5 to 10 KB)
    in blocks of 32 or 256  ->  floats, codes of a byte  ->  4 tokens, the next 4, ..
                                                             then the next 256 columns

A signed weight w times a is ``|w| a``, or where w < 0 ``|w| ~a + |w|``, since ~a = -a - 1. So a
panel has |w|, bytes of -1 where w < 0, and each row's sum of |w| over w < 0, which is the initial
value of its sums. ``q_tile`` has ``psignb`` in place of this exclusive or, for which there are
fewer ports. Table entries below 16 become codes of 5 bits with a zero of 16.
Access: weights once, front to back; then for each tile the panel and the activations of 4 tokens.
Each tile prefetches a share of the bytes that lie ``ahead`` of the panel's.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any, NamedTuple

from llvmlite import ir

from ....dtype import GGMLType
from ....quants.block import Bits, Field
from ..weights.layout import (
    ACTIVATION_BYTES,
    COLUMNS,
    K_TYPES,
    LINE,
    QUANTIZED,
    STEP,
    STEPS,
    block_bytes,
    layout_32,
)
from .block_dot import CODES_32, CODES_256, BlockDot, GroupBlock, GroupKBlock, KDot, block_slices
from .isa import vectors
from .vector import (
    at,
    const,
    f32,
    for_range,
    i8,
    i16,
    i32,
    item_at,
    load,
    pointer,
    prefetch_lines,
    splat,
    store,
    times,
    vec,
)

Value = Any
is_switched = False
TOKENS = 4  # of a tile
_LEAST_TOKENS = 16  # fewer do not pay for stores to the panel
_SLICES = 8  # of 4 columns, in 32 columns


def least_tokens(type: GGMLType, many: bool) -> int:
    """The fewest tokens for which a format's matmuls use tiles; 0 if they never do."""
    return _LEAST_TOKENS if type in QUANTIZED else 0


def step(type: GGMLType) -> int:
    """The number of tokens of which ``tiles`` takes multiples."""
    return TOKENS


def splits(type: GGMLType, many: bool) -> bool:
    """Whether any number of tokens is multiplied, by activations of their own form."""
    return False


def panel_bytes(kind: int, n_columns: int) -> int:
    """Bytes of a panel."""
    return _n_blocks(kind) * _unpacked(kind, const(0)).n_bytes


def _n_blocks(kind: int) -> int:
    """Blocks of a panel, a power of two."""
    return COLUMNS // GGMLType(kind).block_size


def tiles(
    b: Value, kind: int, hint: int, w: Value, x: Value, stride: Value, out: Value, n_blocks: Value,
    tokens: Value, ahead: Value, panel: Value,
) -> None:  # fmt: skip
    """Multiply a group of interleaved rows by the activations of some tokens.

    Args:
        tokens: a multiple of ``TOKENS``.
        hint, ahead: of prefetches, as of ``q_tile``.
    """
    most, size = _n_blocks(kind), block_bytes(kind)
    act_bytes = ACTIVATION_BYTES[GGMLType(kind).block_size]
    with for_range(b, times(b, tokens, vectors().parts)) as i:
        store(b, splat(f32, vectors().lanes, 0.0), item_at(b, out, i, vectors().width))
    n_panels = b.lshr(b.add(n_blocks, const(most - 1)), const(most.bit_length() - 1))
    with for_range(b, n_panels) as k:
        first = times(b, k, most)
        left = b.sub(n_blocks, first)
        n = b.select(b.icmp_signed("<", left, const(most)), left, const(most))
        with for_range(b, n) as i:
            block = item_at(b, w, b.add(first, i), size)
            _block_at(b, kind, panel, i).fill(b, block)
        n_tiles = b.lshr(tokens, const(TOKENS.bit_length() - 1))
        lines = b.lshr(b.add(times(b, n, size), const(LINE - 1)), const(LINE.bit_length() - 1))
        share = b.udiv(b.add(lines, b.sub(n_tiles, const(1))), n_tiles)  # that a tile prefetches
        fetched = b.add(item_at(b, w, first, size), ahead)
        with for_range(b, n_tiles) as tile:
            prefetch_lines(b, item_at(b, fetched, b.mul(tile, share), LINE), share, hint)
            place = item_at(b, x, times(b, tile, TOKENS), stride)
            place = item_at(b, place, first, act_bytes)
            rows = [item_at(b, place, t, stride) for t in range(TOKENS)]
            _add_panel(b, kind, panel, n, rows, pointer(b, item_at(b, out, tile, TOKENS * LINE)))


def _add_panel(b: Value, kind: int, panel: Value, n: Value, rows: list[Value], out: Value) -> None:
    """Add the products of a panel's ``n`` blocks and the activations in some rows to ``out``."""
    v = vectors()
    act_bytes = ACTIVATION_BYTES[GGMLType(kind).block_size]
    with for_range(b, n) as i:
        acts = [item_at(b, row, i, act_bytes) for row in rows]
        dot = _block_at(b, kind, panel, i).dot(b, acts)
        for parts in v.part_groups(len(acts), v.parts, v.block_sums):
            for t, p in product(range(len(acts)), parts):
                place = at(b, out, LINE * t + v.width * p)
                acc = load(b, place, vec(f32, v.lanes))
                store(b, dot.accumulate(b, acc, t, p), place)


def _unpacked(kind: int, address: Value) -> UnpackedBlock | UnpackedKBlock:
    return (UnpackedKBlock if kind in K_TYPES else UnpackedBlock)(kind, address)


def _block_at(b: Value, kind: int, panel: Value, i: Value) -> UnpackedBlock | UnpackedKBlock:
    """A panel's block ``i``."""
    size = _unpacked(kind, const(0)).n_bytes
    return _unpacked(kind, pointer(b, item_at(b, panel, i, size)))


def _load(b: Value, address: Value, line: int, p: int, element: ir.Type) -> Value:
    """Part ``p`` of a line."""
    v = vectors()
    lanes = v.width if element is i8 else 2 * v.lanes if element is i16 else v.lanes
    return load(b, at(b, address, LINE * line + v.width * p), vec(element, lanes))


def _store(b: Value, x: Value, address: Value, line: int, p: int) -> None:
    store(b, x, at(b, address, LINE * line + vectors().width * p))


def _fill_flipped(
    b: Value, slices: list[Value], address: Value, magnitudes: int, flips: int, p: int
) -> Value:
    """Store part p of signed weights in lines from two on; the initial value of their sums."""
    v = vectors()
    start = v.u4_zero()
    for k, w in enumerate(slices):
        magnitude, flip = v.flipped(b, w)
        _store(b, magnitude, address, magnitudes + k, p)
        _store(b, flip, address, flips + k, p)
        start = v.u4_add(b, start, b.and_(magnitude, flip), splat(i8, v.width, 1))
    return v.u4_total(b, start)


class _Codes(NamedTuple):
    """What ``BlockDot`` reads of a format's declaration."""

    bits: int
    zero: int
    low: Field
    signed: bool = False
    values: tuple[int, ...] = ()


class _Layout(NamedTuple):
    """The layout of a block whose codes are bytes."""

    f: _Codes
    main: Bits = Bits(8, 0)
    planes: tuple[Bits, ...] = ()


class UnpackedBlock:
    """A block of 32 columns.

    Its lines: scales; minima if there are some; of flipped weights the initial value of sums;
    8 lines of codes or magnitudes; 8 lines of flips.
    """

    n_lines = None

    def __init__(self, kind: int, address: Value) -> None:
        f = layout_32(kind).f
        self.kind, self.address, self.n_parts = kind, address, vectors().parts
        is_small = bool(f.values) and max(map(abs, f.values)) < 16
        self.zero = 16 if is_small else 0  # that is added to values
        self.is_flipped = bool(f.signed or f.values) and not is_small
        codes = _Codes(5, 16, f.low) if is_small else _Codes(f.bits, f.zero, f.low)
        self.layout = _Layout(codes)
        self._start = 1 + bool(f.low)
        self._codes = self._start + self.is_flipped
        self._flips = self._codes + _SLICES
        self.n_bytes = LINE * (self._codes + _SLICES * (1 + self.is_flipped))

    def fill(self, b: Value, source: Value) -> None:
        """Unpack the block of a group at an address."""
        block = GroupBlock(self.kind, pointer(b, source))
        for p in range(self.n_parts):
            _store(b, block.scale(b, p), self.address, 0, p)
            if self.layout.f.low:
                _store(b, block.minimum(b, p), self.address, 1, p)
            slices = block_slices(b, block, p)
            if self.is_flipped:
                start = _fill_flipped(b, slices, self.address, self._codes, self._flips, p)
                _store(b, start, self.address, self._start, p)
                continue
            for k, codes in enumerate(slices):
                codes = b.add(codes, splat(i8, vectors().width, self.zero)) if self.zero else codes
                _store(b, codes, self.address, self._codes + k, p)

    def dot(self, b: Value, acts: list[Value]) -> BlockDot:
        """Its products with blocks of activations."""
        return (_FlippedDot if self.is_flipped else BlockDot)(b, self, acts)

    def scale(self, b: Value, p: int) -> Value:
        """The scales, <lanes x float>."""
        return _load(b, self.address, 0, p, f32)

    def minimum(self, b: Value, p: int) -> Value:
        """The minima, <lanes x float>."""
        return _load(b, self.address, 1, p, f32)

    def start(self, b: Value, p: int) -> Value:
        """The initial value of sums of flipped weights, <lanes x i32>."""
        return _load(b, self.address, self._start, p, i32)

    def codes(self, b: Value, line: int, p: int) -> Value:
        """Codes or magnitudes of slice ``line``, <width x i8>."""
        return _load(b, self.address, self._codes + line, p, i8)

    def flips(self, b: Value, line: int, p: int) -> Value:
        """-1 where a weight of slice ``line`` is negative, <width x i8>."""
        return _load(b, self.address, self._flips + line, p, i8)


class _FlippedDot(BlockDot):
    """Products of flipped weights."""

    def _sums(self, b: Value, parts: range) -> list[list[Value]]:
        v, block = vectors(), self._block
        sums = [[block.start(b, p) for p in parts] for _ in self._acts]
        for k in range(_SLICES):
            weights = [block.codes(b, k, p) for p in parts]
            for row, act in zip(sums, self._acts, strict=True):
                a = v.broadcast_bytes(b, at(b, act, CODES_32 + 4 * k))
                for n, (p, w) in enumerate(zip(parts, weights, strict=True)):
                    row[n] = v.flipped_add(b, row[n], w, block.flips(b, k, p), a)
        return sums


class UnpackedKBlock(GroupKBlock):
    """A block of 256 columns.

    Its lines: scales; scales of minima if there are some; sub-scales, as of ``sub_scale``; pairs
    of sub-minima, as of ``factor_pairs``; of flipped weights the initial value of each
    sub-block's sums; 64 lines of codes or magnitudes; 64 lines of flips.
    """

    def __init__(self, kind: int, address: Value) -> None:
        super().__init__(kind, address)
        f = self.layout
        self.kind, self.is_flipped = kind, bool(f.values)
        n_subs = COLUMNS // f.sub
        self._sub_scales = f.halves
        self._pairs = self._sub_scales + (n_subs if f.scale_lines else 0)
        self._starts = self._pairs + (n_subs // 2 if f.minima else 0)
        self._codes = self._starts + (n_subs if self.is_flipped else 0)
        self._flips = self._codes + STEPS * _SLICES
        self.n_bytes = LINE * (self._codes + STEPS * _SLICES * (1 + self.is_flipped))

    def fill(self, b: Value, source: Value) -> None:
        """Unpack the block of a group at an address."""
        f, block = self.layout, GroupKBlock(self.kind, source)
        n_subs = COLUMNS // f.sub
        for p in range(vectors().parts):
            for k in range(f.halves):
                _store(b, block.half(b, k, p), self._address, k, p)
            for k in range(n_subs // 2 if f.minima else 0):
                _store(b, block.factor_pairs(b, k, p), self._address, self._pairs + k, p)
            if f.scale_lines:
                with for_range(b, const(n_subs)) as j:
                    place = self._line_at(b, self._sub_scales, j)
                    _store(b, block.sub_scale(b, j, p), place, 0, p)
            with for_range(b, const(STEPS)) as i:
                self._fill_step(b, block, i, p)

    def _fill_step(self, b: Value, block: GroupKBlock, i: Value, p: int) -> None:
        """Unpack part p of 32 columns."""
        codes, sub = block.slices(b, i), min(self.layout.sub, STEP) // 4  # slices
        place = self._line_at(b, self._codes, times(b, i, _SLICES))
        if not self.is_flipped:
            for k in range(_SLICES):
                _store(b, codes(k, p), place, k, p)
            return
        v = vectors()
        weights = [v.look_up(b, self.layout.values, codes(k, p)) for k in range(_SLICES)]
        starts = self._line_at(b, self._starts, times(b, i, _SLICES // sub))
        for k in range(0, _SLICES, sub):
            flips = self._flips - self._codes + k
            start = _fill_flipped(b, weights[k : k + sub], place, k, flips, p)
            _store(b, start, starts, k // sub, p)

    def _line_at(self, b: Value, line: int, i: Value) -> Value:
        """The address of line ``line + i``."""
        return at(b, b.gep(self._address, [times(b, i, LINE)]), LINE * line)

    def dot(self, b: Value, acts: list[Value]) -> KDot:
        """Its products with blocks of activations."""
        return (_FlippedKDot if self.is_flipped else KDot)(b, self, acts, lambda step: None)

    def half(self, b: Value, which: int, p: int) -> Value:
        return _load(b, self._address, which, p, f32)

    def sub_scale(self, b: Value, j: Value, p: int) -> Value:
        element = i32 if self.is_flipped else i16
        return _load(b, self._line_at(b, self._sub_scales, j), 0, p, element)

    def factor_pairs(self, b: Value, k: int, p: int) -> Value:
        return _load(b, self._address, self._pairs + k, p, i16)

    def start(self, b: Value, j: Value, p: int) -> Value:
        """The initial value of sums of sub-block ``j``, <lanes x i32>."""
        return _load(b, self._line_at(b, self._starts, j), 0, p, i32)

    def slices(self, b: Value, step: Value) -> Callable[[int, int], Value]:
        """``codes(k, p)`` for a step: codes or magnitudes of slice k."""
        place = self._line_at(b, self._codes, times(b, step, _SLICES))
        return lambda k, p: _load(b, place, k, p, i8)

    def flips(self, b: Value, step: Value) -> Callable[[int, int], Value]:
        """``flips(k, p)`` for a step: -1 where a weight of slice k is negative."""
        place = self._line_at(b, self._flips, times(b, step, _SLICES))
        return lambda k, p: _load(b, place, k, p, i8)


class _FlippedKDot(KDot):
    """Products of flipped weights."""

    def _run(
        self, b: Value, codes: Any, acts: list[Value], step: Value, slices: range, parts: range
    ) -> list[Value]:
        v, block = vectors(), self._block
        sub = len(slices)
        j = at(b, times(b, step, _SLICES // sub), slices[0] // sub)
        starts, flips = [block.start(b, j, p) for p in parts], block.flips(b, step)
        sums = [[*starts] for _ in acts]
        for k in slices:
            weights = [codes(k, p) for p in parts]
            for row, act in zip(sums, acts, strict=True):
                a = v.broadcast_bytes(b, at(b, act, CODES_256 + 4 * k))
                for n, (p, w) in enumerate(zip(parts, weights, strict=True)):
                    row[n] = v.flipped_add(b, row[n], w, flips(k, p), a)
        return [x for row in sums for x in row]
