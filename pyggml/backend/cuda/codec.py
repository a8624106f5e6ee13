"""Elements of ggml's types as kernels read them, derived from the formats' declarations.

    load = element_loader(GGMLType.Q4_0)
    x = load(row, 0, j)                            # element j of the row at a byte offset
    bits = field_reader(BLOCK_TYPES[GGMLType.Q6_K].steps)
    s = bits(blocks, start_of_block, 3)            # integer 3 of a field

For kernels that touch each element once: rows by index, copies, conversion into planes. Encoders
round as ggml's do: a block has the bytes of ``quants``.
"""

import math
from functools import cache
from typing import Any

from numba import float32, int32, int64, uint8, uint16, uint32

from ...dtype import GGMLType
from ...quants import BLOCK_TYPES
from ...quants.block import Bits, Field
from .intrin import (
    bits_to_float,
    device,
    float_to_bits,
    float_to_half,
    half_to_float,
    halves_to_floats,
    load_f32x4,
    load_u8,
    load_u16,
    load_u32,
    load_u32x2,
    load_u32x4,
    mul_rounded,
    store_f32,
    store_f32x4,
    store_u8,
    store_u16,
    store_u32x2,
    u32,
)

FLOAT_TYPES = (GGMLType.F32, GGMLType.F16, GGMLType.BF16)


def decodable(type: GGMLType) -> bool:
    """Whether ``element_loader`` knows a type."""
    f = BLOCK_TYPES.get(type)
    if f is None:
        return type in FLOAT_TYPES
    return bool(f.planes) and f.scale == "f16" and f.unit == 1 and len(f.values) in (0, 16)


@cache
def field_reader(field: Field) -> Any:
    """A device function: (pointer, byte offset of a block, i) -> integer i of a field, uint32."""
    lines = ["def read(p, block, i):", "    v = uint32(0)"]
    for bits in field:
        guard = ""
        if len({(b.first, b.n) for b in field}) > 1:
            guard = f"if i >= {bits.first} and i < {bits.first + bits.n}: "
        lines.append(f"    at = {_place(bits)}")
        value = "uint32(load_u8(p, block + (at >> 3)))"
        for k in range(1, (7 + bits.width + 7) // 8 if bits.width > 1 else 1):
            if _crosses(bits, k):
                value += f" | (uint32(load_u8(p, block + (at >> 3) + {k})) << uint32({8 * k}))"
        mask = (1 << bits.width) - 1
        lines.append(
            f"    {guard}v |= u32((((u32({value})) >> uint32(at & 7)) & uint32({mask}))"
            f" << uint32({bits.shift}))"
        )
    lines.append("    return u32(v)")
    scope: dict[str, Any] = {"load_u8": load_u8, "uint32": uint32, "u32": u32}
    exec(compile("\n".join(lines), f"<read of {__name__}>", "exec"), scope)
    return device(scope["read"])


def _place(bits: Bits) -> str:
    """The first bit of element i, as an expression."""
    parts, inner = [str(bits.at)], 1
    for size, stride in reversed(list(zip(bits.shape, bits.strides, strict=True))):
        index = f"(i - {bits.first})" if bits.first else "i"
        index = f"({index} // {inner})" if inner > 1 else index
        if inner * size < bits.n:
            index = f"({index} % {size})"
        if stride and size > 1:
            parts.append(f"{index} * {stride}")
        inner *= size
    return " + ".join(parts)


def _crosses(bits: Bits, k: int) -> bool:
    """Whether an element may need byte ``k`` after that of its first bit."""
    starts = {(bits.at + sum(c)) % 8 for c in _sums(bits)}
    return max(starts) + bits.width > 8 * k


def _sums(bits: Bits) -> list[tuple[int, ...]]:
    found: list[tuple[int, ...]] = [()]
    for size, stride in zip(bits.shape, bits.strides, strict=True):
        found = [(*c, i * stride % 8) for c in found for i in range(min(size, 8))]
        found = list(dict.fromkeys(found))
    return found


@cache
def element_loader(type: GGMLType) -> Any:
    """A device function: (pointer, byte offset of a row, j) -> element j as float32."""
    if type is GGMLType.F32:

        @device
        def load_f32_element(p, row, j):
            return bits_to_float(load_u32(p, row + int64(4) * j))

        return load_f32_element
    if type is GGMLType.F16:

        @device
        def load_f16_element(p, row, j):
            return half_to_float(load_u16(p, row + int64(2) * j))

        return load_f16_element
    if type is GGMLType.BF16:

        @device
        def load_bf16_element(p, row, j):
            return bits_to_float(u32(uint32(load_u16(p, row + int64(2) * j)) << uint32(16)))

        return load_bf16_element
    return _block_element(type)


@cache
def element_storer(type: GGMLType) -> Any:
    """A device function: (pointer, byte offset of a row, j, x) rounds x to element j."""
    if type is GGMLType.F32:

        @device
        def store_f32_element(p, row, j, x):
            store_f32(p, row + int64(4) * j, x)

        return store_f32_element
    rounded = to_bits16(type)

    @device
    def store_16_bits(p, row, j, x):
        store_u16(p, row + int64(2) * j, rounded(x))

    return store_16_bits


@cache
def to_bits16(type: GGMLType) -> Any:
    """A device function: float32 -> the bits of an F16 or BF16, rounded to nearest even."""
    if type is GGMLType.F16:
        return float_to_half

    @device
    def float_to_bf16(x):
        bits = float_to_bits(x)
        if x != x:
            return uint16(u32((bits >> uint32(16)) | uint32(64)))
        odd = (bits >> uint32(16)) & uint32(1)
        return uint16(u32((bits + uint32(0x7FFF) + odd) >> uint32(16)))

    return float_to_bf16


def _pair_reader(type: GGMLType) -> Any:
    """A device function: a word -> two F16 or BF16 as float32."""
    if type is GGMLType.F16:
        return halves_to_floats

    @device
    def bf16s_to_floats(word):
        return bits_to_float(u32(word << uint32(16))), bits_to_float(u32(word & 0xFFFF0000))

    return bf16s_to_floats


@cache
def quad_loader(type: GGMLType) -> Any:
    """A device function: (pointer, byte offset) -> four floats, aligned to all of them."""
    if type is GGMLType.F32:
        return load_f32x4
    floats = _pair_reader(type)

    @device
    def load_4_halves(p, at):
        low, high = load_u32x2(p, at)
        (a, b), (c, d) = floats(low), floats(high)
        return a, b, c, d

    return load_4_halves


@cache
def eight_loader(type: GGMLType) -> Any:
    """A device function: (pointer, byte offset of a row, 8 k) -> the 8 elements as float32."""
    if type is GGMLType.F32:

        @device
        def load_f32_eight(p, row, j):
            a0, a1, a2, a3 = load_f32x4(p, row + int64(4) * j)
            b0, b1, b2, b3 = load_f32x4(p, row + int64(4) * j + 16)
            return a0, a1, a2, a3, b0, b1, b2, b3

        return load_f32_eight
    floats = _pair_reader(type)

    @device
    def load_8_halves(p, row, j):
        w0, w1, w2, w3 = load_u32x4(p, row + int64(2) * j)
        (a0, a1), (a2, a3) = floats(w0), floats(w1)
        (b0, b1), (b2, b3) = floats(w2), floats(w3)
        return a0, a1, a2, a3, b0, b1, b2, b3

    return load_8_halves


@cache
def quad_storer(type: GGMLType) -> Any:
    """A device function: (pointer, byte offset, a, b, c, d) stores four floats at once."""
    if type is GGMLType.F32:
        return store_f32x4
    rounded = to_bits16(type)

    @device
    def store_4_halves(p, at, a, b, c, d):
        low = u32(uint32(rounded(a)) | (uint32(rounded(b)) << uint32(16)))
        high = u32(uint32(rounded(c)) | (uint32(rounded(d)) << uint32(16)))
        store_u32x2(p, at, low, high)

    return store_4_halves


def _block_element(type: GGMLType) -> Any:
    f = BLOCK_TYPES[type]
    assert decodable(type)
    columns, n_bytes, zero, per_step = f.columns, f.block_bytes, f.zero, f.columns // f.groups
    signed, has_steps, has_low, has_minima = f.signed, bool(f.steps), bool(f.low), bool(f.minima)
    step_zero, signed_steps = f.step_zero, f.signed_steps
    codes, scale = field_reader(f.planes), field_reader(f.d)
    steps = field_reader(f.steps) if f.steps else scale
    low = field_reader(f.low) if f.low else scale
    minima = field_reader(f.minima) if f.minima else scale
    number = _number_of(f.values, zero, signed)

    @device
    def load_element(p, row, j):
        block = row + int64(j // columns) * n_bytes
        i = j % columns
        d = half_to_float(uint16(scale(p, block, 0)))
        if has_steps:
            s = int32(steps(p, block, i // per_step))
            if signed_steps:
                s = (s ^ 128) - 128
            d = d * float32(int32(s - step_zero))
        x = d * number(codes(p, block, i))
        if has_low:
            m = half_to_float(uint16(low(p, block, 0)))
            x += -m * float32(int32(minima(p, block, i // per_step))) if has_minima else m
        return x

    return load_element


def _number_of(values: tuple[int, ...], zero: int, signed: bool) -> Any:
    """A device function: a code -> the number that it means."""
    if values:
        words = [
            sum((v & 255) << (8 * i) for i, v in enumerate(values[4 * k : 4 * k + 4]))
            for k in range(4)
        ]
        w0, w1, w2, w3 = words

        @device
        def look_up(code):
            word = uint32(w0)
            if code >= uint32(12):
                word = uint32(w3)
            elif code >= uint32(8):
                word = uint32(w2)
            elif code >= uint32(4):
                word = uint32(w1)
            byte = int32(u32(word >> u32((code & uint32(3)) << uint32(3))) & uint32(255))
            return float32(int32((byte ^ 128) - 128))

        return look_up
    if signed:

        @device
        def as_signed(code):
            return float32(int32((int32(code) ^ 128) - 128))

        return as_signed

    @device
    def less_zero(code):
        return float32(int32(int32(code) - zero))

    return less_zero


def encodable(type: GGMLType) -> bool:
    """Whether ``block_encoder`` knows a format: 32 codes of 4, 5 or 8 bits with one scale."""
    f = BLOCK_TYPES.get(type)
    simple = f is not None and f.columns == 32 and f.scale == "f16" and f.planes and not f.values
    return bool(simple and f is not None and not f.steps and f.encode is not None)


@cache
def block_encoder(type: GGMLType, source: GGMLType) -> Any:
    """A device function: (x, byte offset of 32 elements, stride, y, byte offset of a block).

    The stride is in bytes; the elements are of the float type ``source``.
    """
    f = BLOCK_TYPES[type]
    assert encodable(type)
    load = element_loader(source)
    wide, fifth, centred = f.bits == 8, f.bits == 5, not f.low
    d_at, zero, top_code = f.d[0].byte, f.zero, (1 << f.bits) - 1
    low_at = f.low[0].byte if f.low else 0
    codes_at = f.planes[0].byte
    fifth_at = f.planes[1].byte if fifth else 0

    @device
    def encode_int8(x, at, stride, y, block):
        top = float32(0)
        for j in range(32):
            v = abs(load(x, at + j * stride, 0))
            top = v if v > top else top
        d = top / float32(127)
        inverse = float32(1) / d if d != float32(0) else float32(0)
        store_u16(y, block + d_at, float_to_half(d))
        for j in range(32):
            v = mul_rounded(load(x, at + j * stride, 0), inverse)
            size = abs(v)
            whole = float32(math.floor(size))
            q = int32(whole)
            if size - whole >= float32(0.5):
                q = int32(q + 1)
            q = int32(-q) if v < float32(0) else q
            store_u8(y, block + codes_at + j, uint8(q & 255))

    @device
    def code_centred(v, inverse):
        q = mul_rounded(v, inverse) + float32(zero + 0.5)
        if not (abs(q) < float32(math.inf)):  # the scale is so small that it has no inverse
            return int32(0)
        q = min(max(q, float32(0)), float32(top_code))
        return int32(q)

    @device
    def code_from_minimum(v, low, inverse):
        q = mul_rounded(v - low, inverse) + float32(0.5)
        if q != q:
            return int32(0)
        return int32(min(q, float32(top_code)))

    @device
    def encode_nibbles(x, at, stride, y, block):
        first = load(x, at, 0)
        top, low, high = first, first, first
        for j in range(32):
            v = load(x, at + j * stride, 0)
            top = v if abs(v) > abs(top) else top
            low = v if v < low else low
            high = v if v > high else high
        if centred:
            d = (top + float32(0)) / float32(-zero)
            inverse = float32(1) / d if d != float32(0) else float32(0)
        else:
            d = (high - low) / float32(top_code)
            inverse = float32(1) / d if d != float32(0) else float32(0)
            store_u16(y, block + low_at, float_to_half(low))
        store_u16(y, block + d_at, float_to_half(d))
        bits = uint32(0)
        for j in range(16):
            v, w = load(x, at + j * stride, 0), load(x, at + (j + 16) * stride, 0)
            if centred:
                a, b = code_centred(v, inverse), code_centred(w, inverse)
                if d == float32(0):
                    a, b = int32(zero), int32(zero)
            else:
                a, b = code_from_minimum(v, low, inverse), code_from_minimum(w, low, inverse)
            store_u8(y, block + codes_at + j, uint8((a & 15) | ((b & 15) << 4)))
            if fifth:
                bits = u32(bits | (uint32(a >> 4) << uint32(j)))
                bits = u32(bits | (uint32(b >> 4) << uint32(j + 16)))
        if fifth:
            for k in range(4):
                store_u8(y, block + fifth_at + k, uint8((bits >> uint32(8 * k)) & uint32(255)))

    return encode_int8 if wide else encode_nibbles
