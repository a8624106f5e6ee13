"""The declaration of a block format, from which everything else is derived.

    Q4_0 = register(BlockType(GGMLType.Q4_0, nibbles(2), d=half(0), zero=8, encode=encode_centred))
    Q4_0.dequantize_blocks(blocks)                 # uint8 [n, type_size] -> float32 [n, columns]

    x[j] = d * step[j / sub] * number(code[j]) + minimum

A declaration says which bits of a block are the scale, the codes, and the scales and minima of
sub-blocks, and which number each code means. Derived from it are: the NumPy functions here, the
oracle of the kernels; the check of a file's bytes (``validity``); the jitted decoder and the
packing of the encoders (``backend/cpu/codec``); the interleaved layout, its packing and tiles, KV
rows and AXPY (``backend/cpu/layout`` and ``simd``). See ``docs/add-a-format.md``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, cached_property
from math import prod
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
from numpy.lib.stride_tricks import as_strided

from ..dtype import GGMLType

Floats = npt.NDArray[np.float32]
Bytes = npt.NDArray[np.uint8]
Ints = npt.NDArray[Any]
E4M3_UNIT = np.float32(2.0**119)  # half of E4M3, whose exponents begin at 1 - 7, in float32's
SUB = 32  # columns that layouts and decoders process at a time


class Bits(NamedTuple):
    """An array of unsigned integers in a block, or some bits of each of them.

    Element (i, j, ..) of ``shape`` has its ``width`` bits from bit ``at + i * strides[0] + j *
    strides[1] + ..`` of the block on, counted from the lowest bit of the first byte.

    Args:
        first: the number in the field of this array's first element.
        shift: the bit of the field's values that these bits begin at.
    """

    width: int
    at: int
    shape: tuple[int, ...] = (1,)
    strides: tuple[int, ...] = (0,)
    first: int = 0
    shift: int = 0

    @property
    def n(self) -> int:
        """The number of elements."""
        return prod(self.shape)

    @property
    def byte(self) -> int:
        """The byte that the first element begins in."""
        return self.at // 8

    @property
    def elements(self) -> range:
        """Their numbers in the field."""
        return range(self.first, self.first + self.n)


Field = tuple[Bits, ...]  # the bits of an array of integers


@cache
def places(bits: Bits) -> npt.NDArray[np.int64]:
    """The first bit of each element, [n]."""
    out = np.full(bits.shape, bits.at, np.int64)
    for axis, stride in enumerate(bits.strides):
        steps = stride * np.arange(bits.shape[axis])
        out += steps.reshape((-1,) + (1,) * (len(bits.shape) - axis - 1))
    return out.reshape(-1)


def count(field: Field) -> int:
    """The number of elements of a field."""
    return max(bits.elements.stop for bits in field) if field else 0


def width(field: Field) -> int:
    """The bits of its largest value."""
    return max(bits.shift + bits.width for bits in field)


def is_highest(field: Field, bits: Bits) -> bool:
    """Whether no other bits of the same elements are above these."""
    return not any(b.shift > bits.shift and b.first <= bits.first < b.first + b.n for b in field)


class _Bytes(NamedTuple):
    """Elements that lie in one byte each, as axes of bytes and axes of shifts."""

    first: int  # byte
    strides: tuple[int, ...]  # in bytes; 0 along axes of shifts
    shifts: Bytes  # of elements in their bytes
    axes: tuple[int, ...]  # along which elements share a byte

    def view(self, bits: Bits, blocks: Bytes) -> Bytes:
        """The byte of each element, [..., *shape]."""
        lead, strides = blocks.shape[:-1], blocks.strides[:-1]
        step = blocks.strides[-1]
        strides = (*strides, *(step * stride for stride in self.strides))
        return as_strided(blocks[..., self.first :], (*lead, *bits.shape), strides)


@cache
def _in_bytes(bits: Bits) -> _Bytes | None:
    """How elements lie in their bytes; None if some lie in two, or an axis is of neither kind."""
    axes = tuple(axis for axis, stride in enumerate(bits.strides) if stride % 8)
    shifts = (places(bits) % 8).reshape(bits.shape)
    reach = [bits.strides[axis] * (bits.shape[axis] - 1) for axis in axes]
    low, high = (bits.at % 8 + sum(r for r in reach if r * sign > 0) for sign in (-1, 1))
    if bits.width > 8 or low < 0 or high + bits.width > 8:
        return None
    strides = tuple(0 if stride % 8 else stride // 8 for stride in bits.strides)
    return _Bytes(bits.at // 8, strides, shifts.astype(np.uint8), axes)


def get(field: Field, blocks: Bytes) -> Ints:
    """The values of a field: uint8 [..., block bytes] -> unsigned [..., n]."""
    lead, bits = blocks.shape[:-1], field[0]
    if len(field) == 1 and bits.n == 1 and bits.width % 8 == bits.at % 8 == 0:
        first, n_bytes = bits.at // 8, bits.width // 8
        whole = np.ascontiguousarray(blocks[..., first : first + n_bytes])
        return whole.view(f"<u{n_bytes}")
    kind: Any = np.uint8 if width(field) <= 8 else np.uint32
    out = np.zeros((*lead, count(field)), kind)
    for bits in field:
        value = _get_bits(bits, blocks).reshape(*lead, bits.n).astype(kind, copy=False)
        out[..., bits.first : bits.first + bits.n] |= value << kind(bits.shift)
    return out


def _get_bits(bits: Bits, blocks: Bytes) -> Ints:
    """The values of some bits, [..., n] or [..., *shape]."""
    mask = (1 << bits.width) - 1
    found = _in_bytes(bits)
    if found is not None:
        value = found.view(bits, blocks)
        value = value >> found.shifts if found.shifts.any() else value
        return value & np.uint8(mask) if bits.width < 8 else value
    at, last = places(bits), blocks.shape[-1] - 1
    word = blocks[..., at // 8].astype(np.uint32)
    for k in range(1, (int((at % 8).max()) + bits.width + 7) // 8):
        further = blocks[..., np.minimum(at // 8 + k, last)].astype(np.uint32)
        word |= further << np.uint32(8 * k)
    return word >> (at % 8).astype(np.uint32) & np.uint32(mask)


def put(field: Field, values: Ints, blocks: Bytes) -> None:
    """Store values in blocks whose bits are 0: the inverse of ``get``.

    The highest bits of a value are not masked, as in C: a value that is too large changes the
    other bits of its byte.
    """
    for bits in field:
        value = values[..., bits.first : bits.first + bits.n].astype(np.uint32)
        value = value >> np.uint32(bits.shift) if bits.shift else value
        if not is_highest(field, bits):
            value = value & np.uint32((1 << bits.width) - 1)
        found = _in_bytes(bits)
        if found is not None and 0 not in bits.strides:
            moved = value.astype(np.uint8).reshape(*value.shape[:-1], *bits.shape) << found.shifts
            target = found.view(bits, blocks)
            for axis in reversed(found.axes):
                axis += value.ndim - 1
                moved = np.bitwise_or.reduce(moved, axis=axis)
                target = target[(slice(None),) * axis + (0,)]
            target |= moved
            continue
        at = places(bits)
        for phase in np.unique(at % 8):
            chosen = np.flatnonzero(at % 8 == phase)
            word = value[..., chosen] << np.uint32(phase)
            for k in range((int(phase) + bits.width + 7) // 8):
                byte = (word >> np.uint32(8 * k)).astype(np.uint8)
                blocks[..., at[chosen] // 8 + k] |= byte


def half(byte: int) -> Field:
    """A float16 at a byte."""
    return (Bits(16, 8 * byte),)


def bit_row(byte: int, shift: int) -> Bits:
    """A bit of each of 32 codes, one after the other."""
    return Bits(1, 8 * byte, (4, 8), (8, 1), shift=shift)


def nibbles(byte: int, columns: int = 32) -> Field:
    """Codes of 4 bits: of each 32, element j in the low half of byte j, j + 16 in the high one."""
    return (Bits(4, 8 * byte, (columns // 32, 2, 16), (128, 4, 8)),)


def column_weights(x: Floats, imatrix: Floats) -> Floats:
    """The columns' weights [n] for each of the rows [n_rows, n]."""
    return np.broadcast_to(imatrix, x.shape)


def row_weights(x: Floats, imatrix: Floats, factor: int = 1) -> Floats:
    """The columns' weights times sqrt(factor * mean square of the row + x^2), [n_rows, n]."""
    squares = x * x
    total = np.add.accumulate(squares, axis=1)[:, -1:]  # front to back
    power = np.float32(factor) * total / np.float32(x.shape[1])
    out: Floats = imatrix * np.sqrt(power + squares)
    return out


class Codes(Protocol):
    """Codes that are not fields of bits: see ``codebook.Entries`` and ``ternary.Digits``."""

    @property
    def bits(self) -> int:
        """Bits of a code."""
        ...

    def get(self, blocks: Bytes) -> Bytes:
        """uint8 [..., block bytes] -> codes, uint8 [..., columns]."""
        ...

    def put(self, codes: Bytes, blocks: Bytes) -> None:
        """The inverse of ``get``."""
        ...


class UnpackedBlocks(NamedTuple):
    """The integers that blocks store.

    ``d`` and ``low`` are the bits of floats [...], ``d`` [..., groups] if each has its own;
    ``steps`` (as they are multiplied, signed ones as bytes) and ``minima`` [..., groups]; ``codes``
    [..., columns].
    """

    d: Ints
    low: Ints | None
    steps: Bytes | None
    minima: Bytes | None
    codes: Bytes


Encode = Callable[["BlockType", Floats, "Floats | None"], Bytes]


@dataclass(frozen=True)
class BlockType:
    """The declaration of a block format.

    Args:
        type: its tensor type.
        codes: where the codes of the columns are.
        d: where the scale is; or those of the sub-blocks, if each has its own.
        scale: what the scale is: ``f16``, ``f32``, ``e8m0`` (a byte e, 2^(e - 128)), or ``ue4m3``
            (half of the byte's number in E4M3; 0x7F is 0, the highest bit is ignored).
        zero: the code of 0, which is subtracted from codes.
        signed: whether codes are int8.
        values: the int8 that each code means.
        unit: a constant factor of the scale.
        low: where the float16 minimum is; with ``minima``, their scale.
        steps: where the integer scales of sub-blocks are.
        step_zero: an integer that is subtracted from them.
        signed_steps: whether steps are int8.
        odd_steps: whether a stored s means 2 s + 1.
        minima: where the integer minima of sub-blocks are; scaled, they are subtracted.
        n_bytes: bytes of a block; by default the type's.
        encode: (this, float32 [n, columns], importance weights of the values or None) -> blocks,
            uint8 [n, type_size]; None for a format that is only read. Some encoders ignore the
            weights.
        weigh: (rows [n_rows, n], importance of the columns [n]) -> the weights of the values.
    """

    type: GGMLType
    codes: Field | Codes
    d: Field
    scale: str = "f16"
    zero: int = 0
    signed: bool = False
    values: tuple[int, ...] = ()
    unit: float = 1.0
    low: Field = ()
    steps: Field = ()
    step_zero: int = 0
    signed_steps: bool = False
    odd_steps: bool = False
    minima: Field = ()
    n_bytes: int = 0
    encode: Encode | None = None
    weigh: Callable[[Floats, Floats], Floats] = column_weights

    @property
    def columns(self) -> int:
        """Elements of a block."""
        return self.type.block_size

    @property
    def block_bytes(self) -> int:
        """Bytes of a block."""
        return self.n_bytes or self.type.type_size

    @property
    def groups(self) -> int:
        """Sub-blocks of a block: as many as it has steps, or scales."""
        return count(self.steps) or count(self.d)

    @property
    def bits(self) -> int:
        """Bits of a code."""
        return width(self.codes) if isinstance(self.codes, tuple) else self.codes.bits

    @property
    def planes(self) -> Field:
        """The bits of codes in a block; none where they are no plain field."""
        return self.codes if isinstance(self.codes, tuple) else ()

    @cached_property
    def numbers(self) -> Floats:
        """The number that each code means, float32 [2^bits]."""
        codes = np.arange(1 << self.bits)
        if self.values:
            found = np.array(self.values)[codes % len(self.values)]
        else:
            found = codes.astype(np.int8) if self.signed else codes - self.zero
        return found.astype(np.float32)

    def unpack(self, blocks: Bytes) -> UnpackedBlocks:
        """The integers that blocks, uint8 [..., type_size], store."""
        d = get(self.d, blocks)
        return UnpackedBlocks(
            d if d.shape[-1] > 1 else d[..., 0],
            get(self.low, blocks)[..., 0] if self.low else None,
            self._steps(blocks) if self.steps else None,
            get(self.minima, blocks) if self.minima else None,
            self._codes(blocks),
        )

    def _steps(self, blocks: Bytes) -> Bytes:
        steps = get(self.steps, blocks) - np.uint8(self.step_zero)
        return 2 * steps + np.uint8(1) if self.odd_steps else steps

    def _codes(self, blocks: Bytes) -> Bytes:
        return get(self.codes, blocks) if isinstance(self.codes, tuple) else self.codes.get(blocks)

    def pack(self, parts: UnpackedBlocks) -> Bytes:
        """The inverse of ``unpack``."""
        blocks = np.zeros((*parts.codes.shape[:-1], self.block_bytes), np.uint8)
        put(self.d, parts.d.reshape(*blocks.shape[:-1], count(self.d)), blocks)
        if parts.low is not None:
            put(self.low, parts.low[..., None], blocks)
        if parts.steps is not None:
            steps = parts.steps >> 1 if self.odd_steps else parts.steps + np.uint8(self.step_zero)
            put(self.steps, steps, blocks)
        if parts.minima is not None:
            put(self.minima, parts.minima, blocks)
        self.put_codes(parts.codes, blocks)
        return blocks

    def put_codes(self, codes: Ints, blocks: Bytes) -> None:
        """Store codes [..., columns] in blocks where the bits of codes are 0."""
        codes = codes.astype(np.uint8)
        if isinstance(self.codes, tuple):
            put(self.codes, codes, blocks)
        else:
            self.codes.put(codes, blocks)

    def blocks(self, d: npt.NDArray[Any], low: Floats | None = None, **ints: Ints) -> Bytes:
        """New blocks [n] with scales, and ``steps``, ``minima`` or ``codes`` as stored."""
        out = np.zeros((len(d), self.block_bytes), np.uint8)
        bits = d.astype(np.float16).view(np.uint16) if self.scale == "f16" else d
        bits = bits.view(np.uint32) if self.scale == "f32" else bits
        put(self.d, bits.reshape(len(d), count(self.d)), out)
        if low is not None:
            put(self.low, low.astype(np.float16).view(np.uint16)[:, None], out)
        for name, values in ints.items():
            if name == "codes":
                self.put_codes(values, out)
            else:
                put(getattr(self, name), values, out)
        return out

    def scales(self, blocks: Bytes) -> tuple[Floats, Floats | None]:
        """The scales of sub-blocks and their minima (to be added) or None: float32 [n, groups]."""
        d = self._float(get(self.d, blocks)) * np.float32(self.unit)  # [n, 1 or groups]
        low = _half_to_float(get(self.low, blocks)) if self.low else None
        if self.steps:
            is_signed = self.signed_steps or self.step_zero
            steps = self._steps(blocks).view(np.int8 if is_signed else np.uint8)
            d = d * steps.astype(np.float32)
        if low is not None and self.minima:
            low = -(low * get(self.minima, blocks).astype(np.float32))
        return d, low

    def dequantize_blocks(self, blocks: Bytes) -> Floats:
        """uint8 [n, type_size] -> float32 [n, columns]."""
        scale, low = self.scales(blocks)
        q = self.numbers[self._codes(blocks)].reshape(len(blocks), self.groups, -1)
        out = scale[..., None] * q
        if low is not None:
            out = out + low[..., None]
        return out.reshape(len(blocks), -1)

    def _float(self, raw: Ints) -> Floats:
        if self.scale == "f32":
            return raw.view(np.float32)
        if self.scale == "f16":
            return _half_to_float(raw)
        if self.scale == "ue4m3":  # at float32's place, where subnormal numbers are subnormal too
            value = ((raw.astype(np.uint32) & 127) << 20).view(np.float32) * E4M3_UNIT
            return np.where(raw == 0x7F, np.float32(0), value)
        exponent = raw.astype(np.int32) - 128  # exactly: the two smallest are subnormal
        return np.ldexp(np.float32(1), exponent).astype(np.float32)


def _half_to_float(raw: Ints) -> Floats:
    return raw.astype(np.uint16).view(np.float16).astype(np.float32)


BLOCK_TYPES: dict[GGMLType, BlockType] = {}


def register(block_type: BlockType) -> BlockType:
    """Add a format to the table and return it."""
    assert block_type.type not in BLOCK_TYPES
    assert block_type.columns % SUB == 0
    if block_type.planes:
        assert count(block_type.planes) == block_type.columns
    BLOCK_TYPES[block_type.type] = block_type
    return block_type
