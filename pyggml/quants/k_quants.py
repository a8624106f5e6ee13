"""The K-quants: 256 codes in sub-blocks of 16 or 32, which have integer scales (and minima).

    x[j] = d * scale[j / sub] * (q[j] - zero)      # Q3_K, Q6_K
    x[j] = d * scale[j / sub] * q[j] - dmin * min[j / sub]     # Q2_K, Q4_K, Q5_K
    x[j] = d * q[j]                                # Q8_K: one float32, as activations have in ggml

Source: ggml, ``quantize_row_q2_K_ref`` and ``_impl`` and their siblings. Of Q8_K's blocks of zeros
ggml leaves the sums as they were; here they are 0.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..dtype import GGMLType
from .block import Bits, BlockType, Bytes, Floats, half, register, row_weights
from .search import (
    TINY,
    AffineSearch,
    F,
    Ints,
    first_largest,
    fit_affine,
    fit_coordinate_descent,
    fit_positive,
    fit_symmetric,
    nearest_int,
    ordered_sum,
    recode,
    weighted_search,
)

Q3_STEP_TOP = 32
SUMS_AT = 260  # of Q8_K: int16 sums of 16 codes


@dataclass(frozen=True)
class ScaleMin:
    """The encoder of a format with scales and minima.

    Args:
        plain, weighted: the searches without and with importance weights.
        top: the largest integer scale.
        spread: the factor of the mean square in the weights, with importance weights.
        caps: whether weighted scales are capped: ggml caps Q5_K's and not Q4_K's.
    """

    plain: AffineSearch
    weighted: AffineSearch
    top: int
    spread: int
    caps: bool = False

    def __call__(self, f: BlockType, x: Floats, weights: Floats | None) -> Bytes:
        """float32 [n, 256] -> blocks [n]."""
        shape = (len(x), f.groups, x.shape[1] // f.groups)
        groups = x.reshape(-1, shape[2])  # [n * groups, sub]
        if weights is not None:
            w, search = row_weights(x, weights, self.spread).reshape(groups.shape), self.weighted
        elif self.plain.absolute:
            w, search = np.abs(groups), self.plain
        else:
            mean = np.sqrt(ordered_sum(groups * groups) / F(shape[2]))
            w, search = mean[:, None] + np.abs(groups), self.plain
        scale, low, codes = fit_affine(groups, w, search)
        scale, low = scale.reshape(shape[:2]), -low.reshape(shape[:2])
        if weights is None:
            (d, scales), (dmin, mins) = self._by_largest(scale), self._by_largest(low)
        else:
            group_weights = ordered_sum(w).reshape(shape[:2])
            (d, scales), (dmin, mins) = (
                fit_positive(s, group_weights, self.top) for s in (scale, low)
            )
            if self.caps:
                scales, mins = np.minimum(scales, self.top), np.minimum(mins, self.top)
        blocks = f.blocks(d, dmin, steps=scales, minima=mins)
        return _with_codes(f, x, blocks, (0, search.top), codes)

    def _by_largest(self, x: Floats) -> tuple[Floats, Ints]:
        """A step that makes the largest of some values the top, and their codes."""
        high = np.maximum(x.max(axis=1), F(0))
        inverse = np.where(high > 0, F(self.top) / high, F(0))
        codes = nearest_int(inverse[:, None] * x)
        if not self.plain.absolute:  # Q2_K's are not C's bytes
            codes = np.minimum(codes & 255, self.top)
        return high / F(self.top), codes


def _with_codes(
    f: BlockType, x: Floats, blocks: Bytes, bounds: tuple[int, int], codes: Ints
) -> Bytes:
    """The blocks with the codes that fit the scales they store; ``codes`` are the search's."""
    step, plus = f.scales(blocks)
    shape = (len(x), f.groups, x.shape[1] // f.groups)
    low = None if plus is None else -plus
    codes = recode(x.reshape(shape), step, low, bounds, codes.reshape(shape))
    f.put_codes(codes.reshape(x.shape), blocks)
    return blocks


def encode_q3_k(f: BlockType, x: Floats, weights: Floats | None) -> Bytes:
    """float32 [n, 256] -> blocks [n]."""
    top = f.zero
    groups = x.reshape(-1, 16)  # [n * 16, 16]
    if weights is None:
        scale, codes = fit_coordinate_descent(groups, top)
        d, steps = _q3_steps(scale.reshape(-1, 16))
    else:
        w = row_weights(x, weights, 2).reshape(-1, 16)
        scale, codes = fit_symmetric(groups, w, top)
        group_weights = ordered_sum(w).reshape(-1, 16)
        d, steps = fit_symmetric(scale.reshape(-1, 16), group_weights, Q3_STEP_TOP)
    blocks = f.blocks(d, steps=steps)
    return _with_codes(f, x, blocks, (-top, top - 1), codes)


def _q3_steps(x: Floats) -> tuple[Floats, Ints]:
    """A step that makes the value of largest magnitude -32, and the codes from 0 to 63."""
    largest = first_largest(x)[:, None]
    inverse = F(-Q3_STEP_TOP) / largest
    codes = nearest_int(inverse * x).astype(np.int8).astype(np.int32)
    codes = np.clip(codes, -Q3_STEP_TOP, Q3_STEP_TOP - 1) + np.int32(Q3_STEP_TOP)
    d = np.where(largest != 0, F(1) / inverse, F(0))
    return d[:, 0], np.where(largest != 0, codes, 0)


def encode_q6_k(f: BlockType, x: Floats, weights: Floats | None) -> Bytes:
    """float32 [n, 256] -> blocks [n]."""
    top = f.zero
    groups = x.reshape(-1, 16)  # [n * 16, 16]
    w = groups * groups if weights is None else weights.reshape(-1, 16)
    scale, codes = fit_symmetric(groups, w, top)
    scale = scale.reshape(-1, 16)
    largest = first_largest(scale)[:, None]
    inverse = F(-128) / largest
    steps = np.minimum(nearest_int(inverse * scale), 127).astype(np.int8)
    blocks = f.blocks((F(1) / inverse)[:, 0], steps=steps.view(np.uint8))
    blocks = _with_codes(f, x, blocks, (-top, top - 1), codes)
    blocks[np.abs(largest[:, 0]) < TINY] = 0
    return blocks


def encode_q8_k(f: BlockType, x: Floats, weights: Floats | None) -> Bytes:
    """float32 [n, 256] -> blocks [n]."""
    largest = first_largest(x)[:, None]
    inverse = F(-127) / largest
    codes = np.minimum(nearest_int(inverse * x), 127).astype(np.int8)
    blocks = f.blocks((F(1) / inverse)[:, 0], codes=codes)
    sums = codes.reshape(-1, 16, 16).sum(axis=2, dtype=np.int16)
    blocks[:, SUMS_AT:] = sums.astype("<i2").view(np.uint8)
    blocks[largest[:, 0] == 0] = 0
    return blocks


def _pairs(byte: int, shift: int = 0) -> Bits:
    """Two bits of 256 codes: of each 128, elements l, l + 32, ... in byte l."""
    return Bits(2, 8 * byte, (2, 4, 32), (256, 2, 8), shift=shift)


def _halves(byte: int) -> Bits:
    """Four bits of 256 codes: of each 64, elements l and l + 32 in byte l."""
    return Bits(4, 8 * byte, (4, 2, 32), (256, 4, 8))


def _single(byte: int, shift: int) -> Bits:
    """A bit of 256 codes: of elements l, l + 32, ... in byte l."""
    return Bits(1, 8 * byte, (8, 32), (1, 8), shift=shift)


def _sixes(bit: int, nibble: int) -> tuple[Bits, ...]:
    """Eight integers of six bits.

    The first four are the low six bits of the bytes from ``bit`` on; the two bits above them are
    the high bits of the last four, which have their low bits at ``nibble``.
    """
    four = (4,), (8,)
    return (
        Bits(6, bit, *four),
        Bits(4, nibble, *four, first=4),
        Bits(2, bit + 6, *four, first=4, shift=4),
    )


Q2_K = register(
    BlockType(
        GGMLType.Q2_K,
        (_pairs(16),),
        d=half(80),
        low=half(82),
        steps=(Bits(4, 0, (16,), (8,)),),
        minima=(Bits(4, 4, (16,), (8,)),),
        encode=ScaleMin(
            AffineSearch(3, -0.5, 0.1, 15, absolute=True), weighted_search(3), 15, spread=1
        ),
    )
)
Q3_K = register(
    BlockType(
        GGMLType.Q3_K,
        (_pairs(32), _single(0, 2)),
        d=half(108),
        zero=4,
        steps=(Bits(4, 8 * 96, (2, 8), (4, 8)), Bits(2, 8 * 104, (4, 4), (2, 8), shift=4)),
        step_zero=Q3_STEP_TOP,
        encode=encode_q3_k,
    )
)
Q4_K = register(
    BlockType(
        GGMLType.Q4_K,
        (_halves(16),),
        d=half(0),
        low=half(2),
        steps=_sixes(8 * 4, 8 * 12),
        minima=_sixes(8 * 8, 8 * 12 + 4),
        encode=ScaleMin(AffineSearch(15, -1.0, 0.1, 20), weighted_search(15), 63, spread=2),
    )
)
Q5_K = register(
    BlockType(
        GGMLType.Q5_K,
        (_halves(48), _single(16, 4)),
        d=half(0),
        low=half(2),
        steps=_sixes(8 * 4, 8 * 12),
        minima=_sixes(8 * 8, 8 * 12 + 4),
        encode=ScaleMin(
            AffineSearch(31, -0.5, 0.1, 15), weighted_search(31), 63, spread=2, caps=True
        ),
    )
)
Q6_K = register(
    BlockType(
        GGMLType.Q6_K,
        (Bits(4, 0, (2, 2, 64), (512, 4, 8)), _pairs(128, shift=4)),
        d=half(208),
        zero=32,
        steps=(Bits(8, 8 * 192, (16,), (8,)),),
        signed_steps=True,
        encode=encode_q6_k,
    )
)
Q8_K = register(
    BlockType(
        GGMLType.Q8_K,
        (Bits(8, 8 * 4, (256,), (8,)),),
        d=(Bits(32, 0),),
        scale="f32",
        signed=True,
        encode=encode_q8_k,
    )
)
