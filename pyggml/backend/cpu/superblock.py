"""How 16 rows of blocks of 256 columns interleave (K-quants, IQ, TQ): sub-scales are unpacked.

    FORMATS[GGMLType.Q6_K].bits                    # 6
    lines = pack_slices(codes, 6)                  # 8 slices of codes in 6 lines

A block holds 16 scales d (float16) and, where there are minima, 16 dmin. Then come lines of 64
bytes with 4 bytes of each row: the sub-scales, line j those of sub-blocks 4j..4j+3 as int8, the
sub-minima likewise (Q2_K keeps both in one byte, as ggml does), and for each 32 columns ``bits``
lines of codes (of TQ1_0 its digits, 2 bits each). Slice k of these, columns 4k..4k+3, is where
``pieces`` says: a byte holds as many whole codes as fit, and what is left over of some bytes is
the bits of the codes behind.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ...dtype import GGMLType
from ...quants import tq1_0
from ...quants.grids import CODEBOOKS, Split
from ...quants.iq4_nl import VALUES as IQ4_VALUES

COLUMNS = 256  # of a block
STEP = 32  # columns whose codes lie together: 8 slices of 4
STEPS = COLUMNS // STEP
ROWS = 16
LINE = 64
_CRUMBS, _NIBBLES = np.arange(0, 8, 2, dtype=np.uint8), np.array([0, 4], np.uint8)
Bytes = npt.NDArray[np.uint8]


class Plane(NamedTuple):
    """Some bits of all codes of a ggml block: those of 8 / bits steps share 32 bytes."""

    bits: int
    at: int  # byte in the block
    crossed: bool = False  # steps go 0 2 1 3: the low bits of 64 columns come first
    folded: bool = False  # the halves of a step share 16 bytes instead
    single: bool = False  # a byte has the bits of one code alone

    def place(self, step: int) -> tuple[int, int]:
        """The first byte and the shift of a step's bits, where 32 bytes have them."""
        if self.single:
            return self.at + STEP * step, 0
        if self.crossed:
            step = step & 4 | step << 1 & 2 | step >> 1 & 1
        return self.at + STEP * (step * self.bits // 8), step * self.bits % 8

    def places(self, step: int) -> tuple[tuple[int, int], tuple[int, int]]:
        """Those of the two halves of a step, 16 bytes each."""
        if self.folded:
            at = self.at + STEP // 2 * step
            return (at, 0), (at, self.bits)
        at, shift = self.place(step)
        return (at, shift), (at + STEP // 2, shift)


class Format(NamedTuple):
    """Codes of ``bits`` bits from planes, low bits first, times scales of sub-blocks."""

    planes: tuple[Plane, ...]
    d: int  # byte of the float16 scale
    scales: int  # and of the sub-scales
    sub: int  # columns of a sub-block; all of a block: there are no sub-scales
    zero: int = 0  # what is taken off a code
    minima: bool = False
    values: tuple[int, ...] = ()  # int8 that codes stand for
    unit: float = 1.0  # what the scale is multiplied by
    parts: bool = False  # rows of blocks are taken apart before they are packed

    @property
    def signed(self) -> bool:
        """Whether sub-scales have a sign."""
        return bool(self.zero or self.values)

    @property
    def bits(self) -> int:
        """Bits of a code."""
        return sum(p.bits for p in self.planes)

    @property
    def halves(self) -> int:
        """Float16 values at the head of a block."""
        return 2 if self.minima else 1

    @property
    def scale_lines(self) -> int:
        """Lines of sub-scales."""
        return COLUMNS // self.sub // 4

    @property
    def minimum_lines(self) -> int:
        """Lines of sub-minima, where they are not in the lines of sub-scales."""
        return self.scale_lines if self.minima and self.sub == 32 else 0

    @property
    def codes_at(self) -> int:
        """Bytes before the lines of codes."""
        return 2 * ROWS * self.halves + LINE * (self.scale_lines + self.minimum_lines)

    @property
    def block_bytes(self) -> int:
        """Bytes of a block of 16 rows."""
        return self.codes_at + LINE * STEPS * self.bits


FORMATS = {
    GGMLType.Q2_K: Format((Plane(2, 16),), d=80, scales=0, sub=16, minima=True),
    GGMLType.Q3_K: Format((Plane(2, 32), Plane(1, 0)), d=108, scales=96, sub=16, zero=4),
    GGMLType.Q4_K: Format((Plane(4, 16),), d=0, scales=4, sub=32, minima=True),
    GGMLType.Q5_K: Format((Plane(4, 48), Plane(1, 16)), d=0, scales=4, sub=32, minima=True),
    GGMLType.Q6_K: Format(
        (Plane(4, 0, crossed=True), Plane(2, 128)), d=208, scales=192, sub=16, zero=32
    ),
    GGMLType.IQ4_XS: Format((Plane(4, 8, folded=True),), d=0, scales=2, sub=32, values=IQ4_VALUES),
    GGMLType.TQ2_0: Format((Plane(2, 0),), d=64, scales=0, sub=COLUMNS, zero=1),
    GGMLType.TQ1_0: Format((Plane(2, 0),), d=52, scales=0, sub=COLUMNS, zero=1),  # of the digits
}

# The parts of a block of a format with a codebook: its scale, steps, and a byte for each code
STEPS_AT, CODES_AT, PARTS_BYTES = 2, 18, 18 + COLUMNS
FORMATS |= {
    type: Format(
        (Plane(3 if len(c.values) == 8 else 4, CODES_AT, single=True),),
        d=0,
        scales=STEPS_AT,
        sub=c.sub,
        values=(*c.values, *(0,) * (16 - len(c.values))),
        unit=c.unit,
        parts=True,
    )
    for type, c in CODEBOOKS.items()
}


def row_block_bytes(kind: int) -> int:
    """Bytes of a block in the plain rows that are packed."""
    f = FORMATS.get(GGMLType(kind))
    return PARTS_BYTES if f is not None and f.parts else GGMLType(kind).type_size


class Piece(NamedTuple):
    """``width`` bits of the codes of a slice, from bit ``of`` on: in a line's bytes from ``at``."""

    slice: int
    line: int
    of: int
    at: int
    width: int


@lru_cache
def pieces(bits: int) -> tuple[Piece, ...]:
    """Where the codes of 8 slices lie in ``bits`` lines."""
    lines = next(n for n in range(1, 9) if n * 8 % bits == 0)  # the fewest that codes fill
    n_slices, whole = lines * 8 // bits, 8 // bits
    rest = 8 - whole * bits
    found = []
    for first in range(0, 8, n_slices):
        line0 = first * bits // 8
        for i in range(lines):
            for k in range(whole):
                found.append(Piece(first + whole * i + k, line0 + i, 0, k * bits, bits))
        for k in range(n_slices - whole * lines):  # their bits follow each other in the rests
            for i in range(lines):
                start = max(k * bits, i * rest)
                width = min((k + 1) * bits, (i + 1) * rest) - start
                if width > 0:
                    at, slice = whole * bits + start - i * rest, first + whole * lines + k
                    found.append(Piece(slice, line0 + i, start - k * bits, at, width))
    return tuple(found)


def pack_slices(codes: Bytes, bits: int) -> Bytes:
    """Codes [..., 8 slices, 4] as lines [..., bits, 4]."""
    lines = np.zeros((*codes.shape[:-2], bits, codes.shape[-1]), np.uint8)
    for p in pieces(bits):
        part = codes[..., p.slice, :] >> np.uint8(p.of) & np.uint8((1 << p.width) - 1)
        lines[..., p.line, :] |= part << np.uint8(p.at)
    return lines


def unpack_slices(lines: Bytes) -> Bytes:
    """The inverse of ``pack_slices``."""
    codes = np.zeros((*lines.shape[:-2], 8, lines.shape[-1]), np.uint8)
    for p in pieces(lines.shape[-2]):
        part = lines[..., p.line, :] >> np.uint8(p.at) & np.uint8((1 << p.width) - 1)
        codes[..., p.slice, :] |= part << np.uint8(p.of)
    return codes


def interleave_blocks(type: GGMLType, blocks: Bytes) -> Bytes:
    """Blocks of 16 rows, uint8[..., 16, type_size], as uint8[..., block_bytes]."""
    f, shape = FORMATS[type], blocks.shape[:-2]
    blocks = _parts(type, blocks) if f.parts else blocks
    halves = blocks[..., f.d : f.d + 2 * f.halves].reshape(*shape, ROWS, f.halves, 2)
    n_words = f.scale_lines + f.minimum_lines
    words = _sub_scales(type, blocks).reshape(*shape, ROWS, n_words, 4)
    codes = _codes(type, blocks).reshape(*shape, ROWS, STEPS, 8, 4)
    lines = pack_slices(codes, f.bits).reshape(*shape, ROWS, -1, 4)
    parts = [x.swapaxes(-2, -3).reshape(*shape, -1) for x in (halves, words, lines)]
    return np.concatenate(parts, axis=-1)


def deinterleave_blocks(type: GGMLType, groups: Bytes) -> Bytes:
    """The inverse of ``interleave_blocks``."""
    f, shape = FORMATS[type], groups.shape[:-1]

    def by_row(start: int, stop: int, width: int) -> Bytes:
        n_bytes = (stop - start) // ROWS
        part = groups[..., start:stop].reshape(*shape, n_bytes // width, ROWS, width)
        return part.swapaxes(-2, -3).reshape(*shape, ROWS, n_bytes)

    blocks = np.zeros((*shape, ROWS, row_block_bytes(type)), np.uint8)
    scales_at = 2 * ROWS * f.halves
    blocks[..., f.d : f.d + 2 * f.halves] = by_row(0, scales_at, 2)
    _put_sub_scales(type, blocks, by_row(scales_at, f.codes_at, 4))
    lines = by_row(f.codes_at, f.block_bytes, 4).reshape(*shape, ROWS, STEPS, f.bits, 4)
    codes = unpack_slices(lines).reshape(*shape, ROWS, COLUMNS)
    if type is GGMLType.TQ1_0:
        blocks[..., : f.d] = tq1_0.pack(codes)
        return blocks
    for at, shift, columns, position, mask in _bit_fields(f):
        bits = codes[..., columns : columns + 16] >> position & mask
        blocks[..., at : at + 16] |= bits << shift
    return _whole(type, blocks) if f.parts else blocks


def _parts(type: GGMLType, blocks: Bytes) -> Bytes:
    """Blocks of a format with a codebook taken apart, uint8[..., PARTS_BYTES]."""
    c = CODEBOOKS[type]
    d, steps, codes = c.split(np.ascontiguousarray(blocks).view(c.dtype).reshape(-1))
    parts = np.zeros((len(d), PARTS_BYTES), np.uint8)
    parts[:, :STEPS_AT] = np.ascontiguousarray(d).view(np.uint8).reshape(-1, 2)
    parts[:, STEPS_AT : STEPS_AT + steps.shape[1]] = steps
    parts[:, CODES_AT:] = codes
    return parts.reshape(*blocks.shape[:-1], PARTS_BYTES)


def _whole(type: GGMLType, parts: Bytes) -> Bytes:
    """The inverse of ``_parts``."""
    c, flat = CODEBOOKS[type], parts.reshape(-1, PARTS_BYTES)
    d = np.ascontiguousarray(flat[:, :STEPS_AT]).view(np.float16)[:, 0]
    steps = flat[:, STEPS_AT : STEPS_AT + COLUMNS // c.sub]
    blocks = np.ascontiguousarray(c.join(Split(d, steps, flat[:, CODES_AT:])))
    return blocks.view(np.uint8).reshape(*parts.shape[:-1], type.type_size)


def _codes(type: GGMLType, blocks: Bytes) -> Bytes:
    """uint8[..., 256]."""
    if type is GGMLType.TQ1_0:
        return tq1_0.unpack(blocks)
    codes = np.zeros((*blocks.shape[:-1], COLUMNS), np.uint8)
    for at, shift, columns, position, mask in _bit_fields(FORMATS[type]):
        bits = blocks[..., at : at + 16] >> shift & mask
        codes[..., columns : columns + 16] |= bits << position
    return codes


def _bit_fields(f: Format) -> Iterator[tuple[int, np.uint8, int, np.uint8, np.uint8]]:
    """Bits of 16 columns: byte and shift in a ggml block, first column, shift in a code, mask."""
    position = 0
    for plane in f.planes:
        mask = np.uint8((1 << plane.bits) - 1)
        for step in range(STEPS):
            for half, (at, shift) in enumerate(plane.places(step)):
                yield at, np.uint8(shift), STEP * step + 16 * half, np.uint8(position), mask
        position += plane.bits


def _sub_scales(type: GGMLType, blocks: Bytes) -> Bytes:
    """A byte each, then the minima: uint8[..., 0, 8 or 16]."""
    f = FORMATS[type]
    at = f.scales
    if f.sub == COLUMNS:
        return blocks[..., :0]
    if type in (GGMLType.Q2_K, GGMLType.Q6_K) or f.parts:
        return blocks[..., at : at + COLUMNS // f.sub]
    if type == GGMLType.IQ4_XS:  # two high bits each, then low nibbles
        crumbs = blocks[..., at : at + 2, None] >> _CRUMBS & np.uint8(3)
        nibbles = blocks[..., at + 2 : at + 6, None] >> _NIBBLES & np.uint8(15)
        shape = *blocks.shape[:-1], 8
        six: Bytes = nibbles.reshape(shape) | crumbs.reshape(shape) << np.uint8(4)
        return six - np.uint8(32)
    a, b, c = (blocks[..., at + i : at + i + 4] for i in (0, 4, 8))
    if type == GGMLType.Q3_K:  # six bits: low nibbles of 16, then the two high bits
        low = np.concatenate([a & 15, b & 15, a >> 4, b >> 4], axis=-1)
        high = np.concatenate([c >> i & 3 for i in (0, 2, 4, 6)], axis=-1)
        out: Bytes = (low | high << 4) - np.uint8(32)
        return out
    return np.concatenate([a & 63, c & 15 | a >> 2 & 48, b & 63, c >> 4 | b >> 2 & 48], axis=-1)


def _put_sub_scales(type: GGMLType, blocks: Bytes, words: Bytes) -> None:
    """The inverse of ``_sub_scales``."""
    f = FORMATS[type]
    at = f.scales
    if f.sub == COLUMNS:
        return
    if type in (GGMLType.Q2_K, GGMLType.Q6_K) or f.parts:
        blocks[..., at : at + COLUMNS // f.sub] = words
        return
    words = words + np.uint8(32) if f.signed else words
    if type == GGMLType.IQ4_XS:
        shape = words.shape[:-1]
        high = (words >> 4).reshape(*shape, 2, 4) << _CRUMBS
        low = (words & 15).reshape(*shape, 4, 2) << _NIBBLES
        blocks[..., at : at + 2] = np.bitwise_or.reduce(high, axis=-1)
        blocks[..., at + 2 : at + 6] = np.bitwise_or.reduce(low, axis=-1)
        return
    w = [words[..., i : i + 4] for i in (0, 4, 8, 12)]
    if type == GGMLType.Q3_K:
        parts = [w[0] & 15 | w[2] << 4, w[1] & 15 | w[3] << 4]
        parts.append(w[0] >> 4 | w[1] >> 4 << 2 | w[2] >> 4 << 4 | w[3] >> 4 << 6)
    else:
        parts = [w[0] | (w[1] & 48) << 2, w[2] | (w[3] & 48) << 2, w[1] & 15 | w[3] << 4]
    blocks[..., at : at + 12] = np.concatenate(parts, axis=-1)
