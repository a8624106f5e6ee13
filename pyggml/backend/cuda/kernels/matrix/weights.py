"""Quantized weights in planes, as matmuls read them: a group of 32 columns at once.

    codes, step_bits = load_codes(w, g, high), load_steps(w, g, steps, scales)
    words = unpack(*codes)                         # eight words of 4 codes, for dp4a
    s0, s1, m0, m1 = scales(*step_bits)

    x . w = s0 * dot_0 + s1 * dot_1 + m0 * sum_0 + m1 * sum_1

where dot_0 is that of the codes, less the format's zero, and of x in the group's first 16 columns,
and sum_0 that of x. Loads are apart from arithmetic so that kernels have many of them in flight.
Access: 16 bytes a lane for codes of up to 4 bits, twice 16 for 8 bits; high bits and steps as one
word or half word a lane.
"""

from functools import cache
from typing import Any, NamedTuple

from numba import float32, int32, uint16, uint32

from .....dtype import GGMLType
from .....tensor import Tensor
from ...codec import decodable
from ...intrin import (
    device,
    half_to_float,
    load_u8,
    load_u16,
    load_u32,
    load_u32x2,
    load_u32x4,
    u32,
)
from ...lowering import GpuLowering, Work
from ...planes import Offsets, Planes, is_planes, known_planes, planes_of
from .repack import conversion

LOW = 0x0F0F0F0F
ONES = 0x01010101
THREES = 0x03030303


class GroupReader(NamedTuple):
    """Device functions that read a group of a format.

    Attributes:
        load_codes: (w, group, offset of high bits) -> eight uint32, some of them unused.
        unpack: these eight -> eight words; bytes are codes.
        load_steps: (w, group, offsets of steps and scales) -> two uint32.
        scales: these two -> s0, s1, m0, m1.
        centre: a word of codes -> int8 codes less the format's zero.
        zero: of the format; two_scales: s0 and s1 differ; has_minima: m0 and m1 may be nonzero.
    """

    load_codes: Any
    unpack: Any
    load_steps: Any
    scales: Any
    centre: Any
    zero: int
    signed: bool
    two_scales: bool
    has_minima: bool

    @property
    def needs_many_registers(self) -> bool:
        """Whether a row and group has four factors."""
        return self.two_scales and self.has_minima


@cache
def group_reader(type: GGMLType) -> GroupReader:
    """How kernels read a format."""
    planes = known_planes(type)
    f = planes.format
    zero = f.zero
    rebias, signed = (128 - zero) * ONES, f.signed

    @device
    def centre(word):
        if signed:
            return word
        return u32(u32(word + rebias) ^ uint32(0x80808080))  # no byte carries: codes are < 64

    load_codes, unpack = _codes(planes)
    load_steps, scales = _scales(planes)
    return GroupReader(
        load_codes,
        unpack,
        load_steps,
        scales,
        centre,
        zero,
        signed,
        planes.n_steps == 2,
        bool(f.low),
    )


def _codes(planes: Planes) -> tuple[Any, Any]:
    wide, high_bytes = planes.code_bytes == 32, planes.high_bytes

    @device
    def load_codes(w, g, high):
        if wide:
            a0, a1, a2, a3 = load_u32x4(w, g * 32)
            b0, b1, b2, b3 = load_u32x4(w, g * 32 + 16)
            return a0, a1, a2, a3, b0, b1, b2, b3
        a0, a1, a2, a3 = load_u32x4(w, g * 16)
        h, k = uint32(0), uint32(0)
        if high_bytes == 4:
            h = load_u32(w, high + g * 4)
        elif high_bytes == 8:
            h, k = load_u32x2(w, high + g * 8)
        return a0, a1, a2, a3, h, k, uint32(0), uint32(0)

    @device
    def unpack(w0, w1, w2, w3, h, k, v0, v1):
        if wide:
            return w0, w1, w2, w3, h, k, v0, v1
        a0, b0 = unpack_word(w0, h, k, 0)
        a1, b1 = unpack_word(w1, h, k, 1)
        a2, b2 = unpack_word(w2, h, k, 2)
        a3, b3 = unpack_word(w3, h, k, 3)
        return a0, a1, a2, a3, b0, b1, b2, b3

    unpack_word = word_unpacker(high_bytes)
    return load_codes, unpack


@cache
def word_unpacker(high_bytes: int) -> Any:
    """A device function: (word i of a group of 16 bytes, its high bits, i) -> words i and 4 + i."""

    @device
    def unpack_word(w, h, k, i):
        a, b = u32(w & LOW), u32((w >> uint32(4)) & LOW)
        if high_bytes == 4:
            a = u32(a | (((h >> uint32(i)) & ONES) << uint32(4)))
            b = u32(b | (((h >> uint32(i + 4)) & ONES) << uint32(4)))
        elif high_bytes == 8:
            a = u32(a | (((h >> uint32(2 * i)) & THREES) << uint32(4)))
            b = u32(b | (((k >> uint32(2 * i)) & THREES) << uint32(4)))
        return a, b

    return unpack_word


def _scales(planes: Planes) -> tuple[Any, Any]:
    f = planes.format
    in_block, scale_bytes, n_steps = planes.columns // 32, planes.scale_bytes, planes.n_steps
    step_bytes, step_zero = planes.step_bytes, f.step_zero
    signed_steps, has_minima = f.signed_steps, bool(f.minima)

    @device
    def load_steps(w, g, steps, scales):
        at = scales + (g // in_block) * scale_bytes
        d = load_u32(w, at) if scale_bytes == 4 else uint32(load_u16(w, at))
        s = uint32(0)
        if step_bytes == 4:
            s = load_u32(w, steps + g * 4)
        elif step_bytes == 2:
            s = uint32(load_u16(w, steps + g * 2))
        elif step_bytes == 1:
            s = uint32(load_u8(w, steps + g))
        return d, s

    @device
    def step_of(s, byte):
        v = int32((s >> uint32(8 * byte)) & uint32(255))
        if signed_steps:
            v = (v ^ 128) - 128
        return float32(int32(v - step_zero))

    @device
    def scales(d_bits, s):
        d = half_to_float(uint16(d_bits & uint32(0xFFFF)))
        low = float32(0)
        if scale_bytes == 4:
            low = half_to_float(uint16(d_bits >> uint32(16)))
        s0, s1 = d, d
        m0, m1 = low, low
        if n_steps >= 1:
            s0 = d * step_of(s, 0)
            s1 = s0
        if n_steps == 2:
            s1 = d * step_of(s, 1)
        if has_minima:
            m0 = -low * float32(int32((s >> uint32(8 * n_steps)) & uint32(255)))
            m1 = m0
            if n_steps == 2:
                m1 = -low * float32(int32((s >> uint32(24)) & uint32(255)))
        return s0, s1, m0, m1

    return load_steps, scales


def has_planes(a: Tensor) -> bool:
    """Whether a weight is read as planes: it is stored so, or can be converted."""
    return planes_of(a.type) is not None and (is_planes(a) or a.is_contiguous())


def reads_weight(a: Tensor) -> bool:
    """Whether matmuls read a weight, as planes or element by element."""
    if a.type.is_quantized and not (is_planes(a) or a.is_contiguous()):
        return False
    return has_planes(a) or (decodable(a.type) and a.is_contiguous_rows())


def planes_in(lowering: GpuLowering, a: Tensor) -> tuple[Tensor | Work, Offsets]:
    """A weight in planes: its own, or made of ggml's blocks for this node."""
    planes = known_planes(a.type)
    at = planes.offsets(a.ne[0], a.nrows)
    if is_planes(a):
        return a, at
    work = lowering.take(planes.n_bytes(a.ne[0], a.nrows))
    call, grid = conversion(a.type, a.ne, a, work)
    lowering.launch(call, grid)
    return work, at
