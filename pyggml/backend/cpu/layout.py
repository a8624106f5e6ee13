"""The interleaved layout of weights ("x16"): 16 rows side by side, so that one load feeds 16 sums.

    group_bytes(Q4_1, 576)                         # bytes of 16 rows of 576 columns: 5760
    layout_32(Q5_0).planes, layout_k(Q6_K).bits    # how a block of either size lies

A group is 16 rows; within it, blocks follow each other. F16, BF16 and F32 are columns of 16 values.
Rows past the last full group are padded with zeros. How a format's blocks lie follows from its
declaration (``quants/block.py``):

*32 columns.* 16 scales (float16, or exponents in a byte), 16 minima where there are some, then for
each plane of the codes, in ggml's order, as many lines of 64 bytes as it has bits. A line has 4
bytes of each row. In line k of a plane of w bits, bits w * i of byte b are those of column
4 * (k + w * i) + b: for nibbles and bytes that is the order of ggml's bytes. The bits are ggml's,
only their order differs.

*256 columns.* 16 scales d (float16) and, where there are minima, 16 dmin. Then lines with 4 bytes
of each row: the sub-scales, line j those of sub-blocks 4j..4j+3 as a byte each, the sub-minima
likewise (Q2_K keeps both in one byte, as ggml does), and for each 32 columns ``bits`` lines of
codes. Slice k of these, columns 4k..4k+3, is where ``pieces`` says: a byte holds as many whole
codes as fit; the unused bits of those bytes hold the bits of the following codes. Blocks with a
codebook are unpacked first: a byte for each code. Digits of TQ1_0 are codes of 2 bits; they come
back as ggml writes them.
"""

from __future__ import annotations

from functools import cache, cached_property, lru_cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ...dtype import GGMLType
from ...quants.block import BLOCK_TYPES, Bits, BlockType, Bytes, Parts, bit_row, half, places, width
from ...quants.codebook import Entries

ROWS = 16
LINE = 64
COLUMNS = 256  # of a large block
STEP = 32  # columns whose codes lie together: 8 slices of 4
STEPS = COLUMNS // STEP
# Bytes of quantized activations by the columns of a block; see ``kernels/quantize.py``.
ACTIVATION_BYTES = {32: 44, 256: 384}
Q8_BLOCK, Q8K_BLOCK = ACTIVATION_BYTES[32], ACTIVATION_BYTES[256]
# A block with a codebook, unpacked: its scale, steps as int8, and a byte for each code
STEPS_AT, CODES_AT, UNPACKED_BYTES = 2, 18, 18 + COLUMNS


class Layout32:
    """How blocks of 32 columns of 16 rows lie."""

    def __init__(self, f: BlockType) -> None:
        self.f = f
        self.scale_bytes = 1 if f.scale == "e8m0" else 2
        self.header = self.scale_bytes + 2 * bool(f.low)  # bytes of a row
        self.planes = sorted(f.planes, key=lambda bits: bits.at)  # as ggml has them
        self.main = next(bits for bits in f.planes if bits.shift == 0)

    @property
    def block_bytes(self) -> int:
        """Bytes of a block of 16 rows."""
        return ROWS * self.header + LINE * self.f.bits

    def plane_at(self, plane: Bits) -> int:
        """The byte of a block that a plane's lines begin at."""
        before = self.planes[: self.planes.index(plane)]
        return ROWS * self.header + LINE * sum(bits.width for bits in before)

    @property
    def values(self) -> tuple[int, ...]:
        """The 16 int8 that codes stand for, or none."""
        return padded_values(self.f)


def is_folded(bits: Bits) -> bool:
    """Whether a plane's bytes lie as in the lines: column j, j + 4 w, .. in one byte."""
    w = bits.width
    inner = (bits.shape[-2:], bits.strides[-2:])
    if w == 8:
        return (bits.shape, bits.strides) == ((STEP,), (8,))
    return inner == ((8 // w, 4 * w), (w, 8)) and bits.n == STEP and bits.at % 8 == 0


def is_bit_row(bits: Bits) -> bool:
    """Whether a plane is a bit of each column, one after the other."""
    return bits == bit_row(bits.at // 8, bits.shift)


class LayoutK:
    """How blocks of 256 columns of 16 rows lie."""

    def __init__(self, f: BlockType) -> None:
        self.f = f
        self.sub = COLUMNS // f.groups  # columns of a sub-block; all of a block: no sub-scales
        self.bits, self.zero, self.unit, self.minima = f.bits, f.zero, f.unit, bool(f.minima)
        self.signed = bool(f.zero or f.values)  # whether sub-scales have a sign
        self.halves = 2 if f.low else 1  # float16 values at the head of a block
        self.is_shared = self.minima and self.sub < STEP  # a byte is a sub-scale and a sub-minimum

    @cached_property
    def values(self) -> tuple[int, ...]:
        """The 16 int8 that codes stand for, or none."""
        return padded_values(self.f)

    @property
    def scale_lines(self) -> int:
        """Lines of sub-scales."""
        return COLUMNS // self.sub // 4

    @property
    def minimum_lines(self) -> int:
        """Lines of sub-minima, where they are not in the lines of sub-scales."""
        return self.scale_lines if self.minima and not self.is_shared else 0

    @property
    def codes_at(self) -> int:
        """Bytes before the lines of codes."""
        return 2 * ROWS * self.halves + LINE * (self.scale_lines + self.minimum_lines)

    @property
    def block_bytes(self) -> int:
        """Bytes of a block of 16 rows."""
        return self.codes_at + LINE * STEPS * self.bits

    @cached_property
    def source(self) -> BlockType:
        """The blocks of the rows that are packed: the format's, or its unpacked ones."""
        f = self.f
        if not isinstance(f.codes, Entries):
            return f
        steps = (Bits(8, 8 * STEPS_AT, (f.groups,), (8,)),)
        codes = (Bits(f.bits, 8 * CODES_AT, (COLUMNS,), (8,)),)
        return BlockType(
            f.type, codes, half(0), values=f.values, unit=f.unit, steps=steps, signed_steps=True
        )

    @property
    def source_bytes(self) -> int:
        """Bytes of such a block."""
        return UNPACKED_BYTES if self.source is not self.f else self.f.type.type_size


def padded_values(f: BlockType) -> tuple[int, ...]:
    """The int8 that codes stand for, 16, or none."""
    return (*f.values, *(0,) * (16 - len(f.values))) if f.values else ()


def _interleaves(f: BlockType) -> bool:
    """Whether there is an interleaved layout of a format, and tiles."""
    if f.zero & (f.zero - 1) or (f.values and f.bits > 4):
        return False
    if len(f.d) > 1 and not isinstance(f.codes, Entries):
        return False
    few = f.bits <= 5  # bits, whose products are added in 16 bits
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
    """The layout of a type of ``QUANTIZED`` with blocks of 32 columns."""
    return Layout32(BLOCK_TYPES[GGMLType(type)])


@cache
def layout_k(type: int) -> LayoutK:
    """The layout of a type of ``K_TYPES``."""
    return LayoutK(BLOCK_TYPES[GGMLType(type)])


def block_bytes(type: int) -> int:
    """Bytes of one block of a group."""
    if type in QUANTIZED:
        return (layout_k if type in K_TYPES else layout_32)(type).block_bytes
    return GGMLType(type).type_size * ROWS


def source_bytes(type: int) -> int:
    """Bytes of a block in the plain rows that are packed: the format's, or unpacked ones."""
    return layout_k(type).source_bytes if type in K_TYPES else GGMLType(type).type_size


def group_bytes(type: GGMLType, n: int) -> int:
    """Bytes of a group of rows of ``n`` columns."""
    return n // type.block_size * block_bytes(type)


def activation_bytes(type: int, n: int) -> int:
    """Bytes of ``n`` quantized activations for weights of a type."""
    columns = GGMLType(type).block_size
    return n // columns * ACTIVATION_BYTES[columns]


def interleave(type: GGMLType, rows: Bytes) -> Bytes:
    """Rows in ggml's layout, uint8[n_rows, row_bytes], as groups (the reference of the kernels)."""
    n_rows, row_bytes = rows.shape
    groups = -(-n_rows // ROWS)
    padded = np.zeros((groups * ROWS, row_bytes), np.uint8)
    padded[:n_rows] = rows
    blocks = padded.reshape(groups, ROWS, -1, type.type_size).swapaxes(1, 2)  # [.., 16, type_size]
    if type not in QUANTIZED:
        return blocks.reshape(groups, -1)
    parts = BLOCK_TYPES[type].unpack(blocks)
    heads, lines = (_parts_k if type in K_TYPES else _parts_32)(type, parts)
    fields = [np.ascontiguousarray(x)[..., None].view(np.uint8) for x in heads]
    fields += [lines[..., k, :] for k in range(lines.shape[-2])]
    flat = [x.reshape(*x.shape[:2], -1) for x in fields]
    return np.concatenate(flat, axis=-1).reshape(groups, -1)


def deinterleave(type: GGMLType, groups: Bytes, n_rows: int) -> Bytes:
    """The inverse of ``interleave``: uint8[n_groups, group_bytes] as uint8[n_rows, row_bytes]."""
    n = len(groups)
    source = groups.reshape(n, -1, block_bytes(type))
    if type not in QUANTIZED:
        blocks = source.reshape(*source.shape[:2], ROWS, type.type_size)
    else:
        f, at, heads = BLOCK_TYPES[type], 0, []
        for size in [1 if f.scale == "e8m0" else 2] + [2] * bool(f.low):
            head = np.ascontiguousarray(source[..., at : at + ROWS * size])
            heads.append(head.view(np.uint8 if size == 1 else np.uint16))
            at += ROWS * size
        lines = source[..., at:].reshape(*source.shape[:2], -1, ROWS, 4).swapaxes(2, 3)
        blocks = f.pack((_from_lines_k if type in K_TYPES else _from_lines_32)(type, heads, lines))
    return blocks.swapaxes(1, 2).reshape(n * ROWS, -1)[:n_rows]


Heads = list[npt.NDArray[np.generic]]


def _parts_32(type: GGMLType, parts: Parts) -> tuple[Heads, Bytes]:
    """Header values [.., 16], and lines [.., 16, n_lines, 4]."""
    layout = layout_32(type)
    lines, shape = [], parts.codes.shape[:-1]
    for plane in layout.planes:
        w = plane.width
        bits = parts.codes >> np.uint8(plane.shift) & np.uint8((1 << w) - 1)
        moved = bits.reshape(*shape, 8 // w, w, 4) << _shifts(w)
        lines.append(np.bitwise_or.reduce(moved, axis=-3))
    d = parts.d.astype(np.uint8 if layout.scale_bytes == 1 else np.uint16)
    heads = [d] + ([parts.low.astype(np.uint16)] if parts.low is not None else [])
    return heads, _by_line(np.concatenate(lines, axis=-2))


def _shifts(w: int) -> Bytes:
    """The shifts of a line's bits, by the slices that share it, [8 / w, 1, 1]."""
    return np.arange(0, 8, w, dtype=np.uint8).reshape(-1, 1, 1)


def _by_line(lines: Bytes) -> Bytes:
    """[.., 16, n_lines, 4] -> [.., n_lines, 64]."""
    lines = lines.swapaxes(-2, -3)
    return lines.reshape(*lines.shape[:-2], -1)


def _from_lines_32(type: GGMLType, heads: Heads, lines: Bytes) -> Parts:
    layout, at, shape = layout_32(type), 0, lines.shape[:-2]
    codes = np.zeros((*shape, STEP), np.uint8)
    for plane in layout.planes:
        w = plane.width
        moved = lines[..., None, at : at + w, :] >> _shifts(w) & np.uint8((1 << w) - 1)
        codes |= moved.reshape(codes.shape) << np.uint8(plane.shift)
        at += w
    return Parts(heads[0], heads[1] if len(heads) > 1 else None, None, None, codes)


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


def _parts_k(type: GGMLType, parts: Parts) -> tuple[Heads, Bytes]:
    """Header values [.., 16], and lines [.., n_lines, 64]."""
    layout, shape = layout_k(type), parts.codes.shape[:-1]
    words = []
    if parts.steps is not None:
        words.append(parts.steps)
        if layout.is_shared and parts.minima is not None:
            words[0] = parts.steps | parts.minima << np.uint8(4)
    if layout.minimum_lines:
        assert parts.minima is not None
        words.append(parts.minima)
    lines = [x.reshape(*shape, -1, 4) for x in words]
    codes = parts.codes.reshape(*shape, STEPS, 8, 4)
    packed = np.zeros((*shape, STEPS, layout.bits, 4), np.uint8)
    for p in pieces(layout.bits):
        part = codes[..., p.slice, :] >> np.uint8(p.of) & np.uint8((1 << p.width) - 1)
        packed[..., p.line, :] |= part << np.uint8(p.at)
    lines.append(packed.reshape(*shape, -1, 4))
    heads: Heads = [parts.d.astype(np.uint16)]
    heads += [parts.low.astype(np.uint16)] if parts.low is not None else []
    return heads, _by_line(np.concatenate(lines, axis=-2))


def _from_lines_k(type: GGMLType, heads: Heads, lines: Bytes) -> Parts:
    layout, shape = layout_k(type), lines.shape[:-2]
    n, m = layout.scale_lines, layout.minimum_lines
    steps = lines[..., :n, :].reshape(*shape, -1) if n else None
    minima = lines[..., n : n + m, :].reshape(*shape, -1) if m else None
    if layout.is_shared and steps is not None:
        steps, minima = steps & np.uint8(15), steps >> np.uint8(4)
    packed = lines[..., n + m :, :].reshape(*shape, STEPS, layout.bits, 4)
    codes = np.zeros((*shape, STEPS, 8, 4), np.uint8)
    for p in pieces(layout.bits):
        part = packed[..., p.line, :] >> np.uint8(p.at) & np.uint8((1 << p.width) - 1)
        codes[..., p.slice, :] |= part << np.uint8(p.of)
    low = heads[1] if len(heads) > 1 else None
    return Parts(heads[0], low, steps, minima, codes.reshape(*shape, COLUMNS))
