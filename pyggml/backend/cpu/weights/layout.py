"""The interleaved layout of weights ("x16"): a vector load has the same columns of several rows.

    group_bytes(Q4_1, 576)                         # bytes of 16 rows of 576 columns: 5760
    layout_32(Q5_0).planes, layout_k(Q6_K).bits    # how a block of either size lies

A group is 16 rows, block after block; F16, BF16 and F32 are columns of 16 values. Zeros fill up the
last group. The bytes of each row of a block are rearranged as a layout's ``row`` declares, and then
the items of the rows (scales, minima and words of 4 bytes) are interleaved. All this follows from
the format's declaration (``quants/block.py``):

*32 columns.* 16 scales (float16, or exponents in a byte), 16 minima if there are some, then for
each plane of the codes, in ggml's order, as many lines of 64 bytes as it has bits. A line has 4
bytes of each row. In line k of a plane of w bits, byte b has the bits of column 4 * (k + w * i) + b
at bit w * i, for each i: for nibbles and bytes that is the order of ggml's bytes.

*256 columns.* 16 scales d (float16) and, with minima, 16 dmin. Then lines with 4 bytes of each row:
the sub-scales, a byte each, of sub-blocks 4j..4j+3 in line j; the sub-minima in the same way (of
Q2_K both are in one byte, as in ggml); and for each 32 columns ``bits`` lines of codes. ``pieces``
lists where slice k of these, columns 4k..4k+3, is stored: a byte holds as many whole codes as fit,
and the unused bits of those bytes hold the bits of the following codes. Blocks with a codebook are
unpacked first, to a byte for each code. Digits of TQ1_0 become codes of 2 bits, and again the bytes
that ggml writes.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache, cached_property, lru_cache
from typing import NamedTuple

import numpy as np

from ....dtype import GGMLType
from ....quants import BLOCK_TYPES
from ....quants.block import Bits, BlockType, Bytes, Field, bit_row, half, places, width
from ....quants.codebook import Entries
from ....rounding import ceil_div

ROWS = 16
LINE = 64
COLUMNS = 256  # of a large block
STEP = 32  # columns of a block of lines of codes: 8 slices of 4
STEPS = COLUMNS // STEP
# Bytes of quantized activations by the columns of a block; see ``kernels/quantize.py``.
ACTIVATION_BYTES = {32: 44, 256: 384}
Q8_BLOCK, Q8K_BLOCK = ACTIVATION_BYTES[32], ACTIVATION_BYTES[256]
# A block with a codebook, unpacked: its scale, steps as int8, and a byte for each code
STEPS_AT, CODES_AT, UNPACKED_BYTES = 2, 18, 18 + COLUMNS


class Layout32:
    """The layout of blocks of 32 columns of 16 rows.

    Attributes:
        f: the declaration of ggml's blocks.
        row: the declaration of the bytes of a row of a block, before they are interleaved.
    """

    def __init__(self, f: BlockType) -> None:
        self.f = f
        self.scale_bytes = 1 if f.scale == "e8m0" else 2
        self.planes = sorted(f.planes, key=lambda bits: bits.at)  # as ggml has them
        self.main = next(bits for bits in f.planes if bits.shift == 0)
        self.upper = [bits for bits in self.planes if bits.shift]  # the other bits of codes
        at = self.header = self.scale_bytes + 2 * bool(f.low)  # bytes of a row
        codes: list[Bits] = []
        for plane in self.planes:
            w = plane.width
            codes.append(Bits(w, 8 * at, (8 // w, 4 * w), (w, 8), shift=plane.shift))
            at += 4 * w
        self.row = _row(f, at, tuple(codes))

    def plane_at(self, plane: Bits) -> int:
        """The byte of a block that a plane's lines begin at."""
        return ROWS * self.row.planes[self.planes.index(plane)].byte

    @property
    def values(self) -> tuple[int, ...]:
        """The table of 16 int8 that codes index, or nothing."""
        return padded_values(self.f)


def _row(
    f: BlockType, n_bytes: int, codes: Field, steps: Field = (), minima: Field = ()
) -> BlockType:
    """The declaration of a row's bytes: scale, minimum, then the fields."""
    scale_bytes = 1 if f.scale == "e8m0" else 2
    return replace(
        f,
        d=(Bits(8 * scale_bytes, 0),),
        low=half(scale_bytes) if f.low else (),
        step_zero=0,
        odd_steps=False,
        codes=codes,
        steps=steps,
        minima=minima,
        n_bytes=n_bytes,
    )


def is_folded(bits: Bits) -> bool:
    """Whether a plane's bytes are those of the lines: columns j, j + 4 w, .. in one byte."""
    w = bits.width
    inner = (bits.shape[-2:], bits.strides[-2:])
    if w == 8:
        return (bits.shape, bits.strides) == ((STEP,), (8,))
    return inner == ((8 // w, 4 * w), (w, 8)) and bits.n == STEP and bits.at % 8 == 0


def is_bit_row(bits: Bits) -> bool:
    """Whether a plane is a bit of each column, one after the other."""
    return bits == bit_row(bits.byte, bits.shift)


class LayoutK:
    """The layout of blocks of 256 columns of 16 rows; attributes as of ``Layout32``."""

    def __init__(self, f: BlockType) -> None:
        self.f = f
        self.sub = COLUMNS // f.groups  # columns of a sub-block; all of a block: no sub-scales
        self.bits, self.zero, self.unit, self.minima = f.bits, f.zero, f.unit, bool(f.minima)
        self.signed = bool(f.zero or f.values)  # whether sub-scales have a sign
        self.halves = 2 if f.low else 1  # float16 values at the head of a block
        self.is_shared = self.minima and self.sub < STEP  # a byte is a sub-scale and a sub-minimum
        self.scale_lines = COLUMNS // self.sub // 4
        self.minimum_lines = self.scale_lines if self.minima and not self.is_shared else 0
        self.values = padded_values(f)  # the table of 16 int8 that codes index
        words_at = 2 * self.halves
        codes_at = words_at + 4 * (self.scale_lines + self.minimum_lines)
        self.codes_at = ROWS * codes_at  # the byte of a block that the lines of codes begin at
        width = 4 if self.is_shared else 8
        steps = (Bits(width, 8 * words_at, (f.groups,), (8,)),) if f.steps else ()
        minima_at = 8 * (words_at + 4 * self.minimum_lines) + 8 - width
        minima = (Bits(width, minima_at, (f.groups,), (8,)),) if f.minima else ()
        codes = tuple(
            Bits(
                p.width,
                8 * (codes_at + 4 * (self.bits * step + p.line)) + p.at,
                (4,),
                (8,),
                first=STEP * step + 4 * p.slice,
                shift=p.of,
            )
            for step in range(STEPS)
            for p in pieces(self.bits)
        )
        n_bytes = codes_at + 4 * STEPS * self.bits
        self.row = _row(f, n_bytes, codes, steps, minima)

    @cached_property
    def source(self) -> BlockType:
        """The declaration of the blocks that are packed: the format's, or its unpacked blocks."""
        f = self.f
        if not isinstance(f.codes, Entries):
            return f
        return replace(
            f,
            d=half(0),
            steps=(Bits(8, 8 * STEPS_AT, (f.groups,), (8,)),),
            odd_steps=False,
            signed_steps=True,
            codes=(Bits(f.bits, 8 * CODES_AT, (COLUMNS,), (8,)),),
            n_bytes=UNPACKED_BYTES,
        )


def padded_values(f: BlockType) -> tuple[int, ...]:
    """The table of int8 that codes index, filled up to 16, or nothing."""
    return (*f.values, *(0,) * (16 - len(f.values))) if f.values else ()


def _interleaves(f: BlockType) -> bool:
    """Whether there is an interleaved layout of a format, and tiles."""
    if f.zero & (f.zero - 1) or (f.values and f.bits > 4):
        return False
    if len(f.d) > 1 and not isinstance(f.codes, Entries):
        return False
    few = f.bits <= 5  # bits: sums of products fit 16 bits
    if f.columns == COLUMNS:
        steps = f.groups in (1, 8, 16) and f.scale == "f16" and f.zero <= 32
        if f.minima:  # of sub-blocks of 16 they share bytes with the steps
            steps = steps and (f.groups == 8 or width(f.steps) == width(f.minima) == 4)
        few = few or (f.zero != 0 and f.groups == 16)  # sums start at -zero * sum(activations)
        return few and steps and not f.signed and all(map(_is_run, f.planes))
    if f.columns != STEP or f.steps or f.scale not in ("f16", "e8m0") or f.unit != 1:
        return False
    main = [bits for bits in f.planes if bits.shift == 0 and is_folded(bits)]
    rest = [bits for bits in f.planes if bits.shift]
    planes = all(is_folded(bits) or is_bit_row(bits) for bits in rest)
    return len(main) == 1 and (few or f.signed) and planes


def _is_run(bits: Bits) -> bool:
    """Whether each 16 columns lie in 16 bytes one after the other, at one shift."""
    at = places(bits).reshape(-1, STEP // 2)
    return bool((np.diff(at, axis=1) == 8).all())


QUANTIZED = tuple(type for type, f in BLOCK_TYPES.items() if _interleaves(f))
K_TYPES = tuple(type for type in QUANTIZED if type.block_size == COLUMNS)
UNPACKED = tuple(type for type in K_TYPES if isinstance(BLOCK_TYPES[type].codes, Entries))
INTERLEAVED = (GGMLType.F32, GGMLType.F16, GGMLType.BF16, *QUANTIZED)


@cache
def layout_32(type: int) -> Layout32:
    """The layout of a type with blocks of 32 columns."""
    return Layout32(BLOCK_TYPES[GGMLType(type)])


@cache
def layout_k(type: int) -> LayoutK:
    """The layout of a type of ``K_TYPES``."""
    return LayoutK(BLOCK_TYPES[GGMLType(type)])


def layout_of(type: int) -> Layout32 | LayoutK:
    """The layout of a type of ``QUANTIZED``."""
    return layout_k(type) if type in K_TYPES else layout_32(type)


def block_bytes(type: int) -> int:
    """Bytes of one block of a group."""
    row = layout_of(type).row.block_bytes if type in QUANTIZED else GGMLType(type).type_size
    return ROWS * row


def source_bytes(type: int) -> int:
    """Bytes of a block of the plain rows that are packed: ggml's, or the unpacked block."""
    return layout_k(type).source.block_bytes if type in K_TYPES else GGMLType(type).type_size


def group_bytes(type: GGMLType, n: int) -> int:
    """Bytes of a group of rows of ``n`` columns."""
    return n // type.block_size * block_bytes(type)


def activation_bytes(type: int, n: int) -> int:
    """Bytes of ``n`` quantized activations for weights of a type."""
    columns = GGMLType(type).block_size
    return n // columns * ACTIVATION_BYTES[columns]


def _items(type: GGMLType) -> list[slice]:
    """The bytes of a row that are interleaved as one: scale, minimum, words; or a whole value."""
    if type not in QUANTIZED:
        return [slice(0, type.type_size)]
    row = layout_of(type).row
    heads = [slice(bits.byte, bits.byte + bits.width // 8) for bits in (*row.d, *row.low)]
    return heads + [slice(at, at + 4) for at in range(heads[-1].stop, row.block_bytes, 4)]


def interleave(type: GGMLType, rows: Bytes) -> Bytes:
    """Rows in ggml's layout, uint8[n_rows, row_bytes], as groups (the reference of the kernels)."""
    n_rows, row_bytes = rows.shape
    groups = ceil_div(n_rows, ROWS)
    padded = np.zeros((groups * ROWS, row_bytes), np.uint8)
    padded[:n_rows] = rows
    blocks = padded.reshape(groups, ROWS, -1, type.type_size).swapaxes(1, 2)  # [.., 16, bytes]
    if type in QUANTIZED:
        blocks = layout_of(type).row.pack(BLOCK_TYPES[type].unpack(blocks))
    items = [blocks[..., item].reshape(*blocks.shape[:2], -1) for item in _items(type)]
    return np.concatenate(items, axis=-1).reshape(groups, -1)


def deinterleave(type: GGMLType, groups: Bytes, n_rows: int) -> Bytes:
    """The inverse of ``interleave``: uint8[n_groups, group_bytes] as uint8[n_rows, row_bytes]."""
    n = len(groups)
    source = groups.reshape(n, -1, block_bytes(type))
    items = [source[..., ROWS * item.start : ROWS * item.stop] for item in _items(type)]
    blocks = np.concatenate([x.reshape(*x.shape[:2], ROWS, -1) for x in items], axis=-1)
    if type in QUANTIZED:
        blocks = BLOCK_TYPES[type].pack(layout_of(type).row.unpack(blocks))
    return blocks.swapaxes(1, 2).reshape(n * ROWS, -1)[:n_rows]


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
                n_bits = min((k + 1) * bits, (i + 1) * rest) - start
                if n_bits > 0:
                    at, slice = whole * bits + start - i * rest, first + whole * lines + k
                    found.append(Piece(slice, line0 + i, start - k * bits, at, n_bits))
    return tuple(found)
