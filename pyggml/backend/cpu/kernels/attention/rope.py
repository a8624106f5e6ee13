"""ROPE and ROPE_BACK: normal and neox pairs, partial rows, frequency factors, YaRN.

A chunk is a range of tokens. The angles of a token are built once for all its heads, by the rule of
``ops/attention/rope.py``; sines and cosines are vectorised, in thread scratch.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import numpy as np

from .....compiler.jit import CpuKernel, fast_kernel, inline_strict
from .....dtype import GGMLType
from .....ops.attention.rope import RopeMode, rope_values
from .....tensor import Tensor
from ...abi import DST, SRC0, SRC1, SRC2, data, f32_ptr, first_row, i32_ptr, nb, ne, params_of
from ...compile.lowering import GRAIN, CpuLowering, lowers
from ...simd.element import F32, load_elem, store_elem
from ...simd.math import ONE, ZERO, sincos_f32

_TYPES = (GGMLType.F32, GGMLType.F16)


class Rope(NamedTuple):
    """The values of ROPE; see ``ops/attention/rope.py``."""

    n_dims: int
    theta_scale: float
    freq_scale: float
    ext_factor: float
    low: float  # YaRN's ramp: first dimension, and how many
    span: float
    magnitude: float  # of cosines
    sin_magnitude: float  # of sines: negative for ROPE_BACK


@inline_strict
def _angles(node, position, half, freqs, angle):
    """Write the angles of a token's pairs, float32[half], to ``angle``."""
    p = params_of(node, Rope)
    step, freq_scale = p.theta_scale, p.freq_scale
    angles, power = f32_ptr(angle), ONE
    for i in range(half):
        angles[i] = np.float32(position) * power
        power = power * step
    if freqs != 0:
        for i in range(half):
            angles[i] = angles[i] / load_elem(F32, freqs, i)
    ext = p.ext_factor
    if ext == ZERO:
        for i in range(half):
            angles[i] = angles[i] * freq_scale
        return
    low, span = p.low, p.span
    for i in range(half):
        ramp = (np.float32(i) - low) / span
        ramp = ZERO if ramp < ZERO else ONE if ramp > ONE else ramp
        mix = (ONE - ramp) * ext
        angles[i] = angles[i] * freq_scale * (ONE - mix) + angles[i] * mix


@inline_strict
def rope_table(node, position, half, freqs, scratch):
    """Write cosines and then sines, float32[half] each, times the magnitude, to ``scratch``."""
    magnitude, sin_magnitude = params_of(node, Rope).magnitude, params_of(node, Rope).sin_magnitude
    _angles(node, position, half, freqs, scratch)
    cos, sin = f32_ptr(scratch), f32_ptr(scratch + 4 * half)
    for i in range(half):
        s, c = sincos_f32(cos[i])
        cos[i] = c * magnitude
        sin[i] = s * sin_magnitude


@cache
def rope_kernel(mode: int, fmt: int) -> CpuKernel:
    """The kernel of a mode and type. SRC1: positions, SRC2: frequency factors, or nothing."""
    neox = mode == RopeMode.NEOX

    def rope(node, chunk, n_chunks, scratch):
        n, n_dims, n_head = ne(node, DST, 0), params_of(node, Rope).n_dims, ne(node, DST, 1)
        half, n_tokens = n_dims // 2, ne(node, DST, 2)
        cos, sin = scratch, scratch + 4 * half
        total = n_tokens * ne(node, DST, 3)
        for t in range(first_row(total, chunk, n_chunks), first_row(total, chunk + 1, n_chunks)):
            i3 = t // n_tokens
            i2 = t - i3 * n_tokens
            position = i32_ptr(data(node, SRC1))[i2]
            rope_table(node, position, half, data(node, SRC2), scratch)
            x = data(node, SRC0) + i2 * nb(node, SRC0, 2) + i3 * nb(node, SRC0, 3)
            y = data(node, DST) + i2 * nb(node, DST, 2) + i3 * nb(node, DST, 3)
            for _ in range(n_head):
                for i in range(half):
                    first, second = (i, i + half) if neox else (2 * i, 2 * i + 1)
                    a, b = load_elem(fmt, x, first), load_elem(fmt, x, second)
                    c, s = load_elem(F32, cos, i), load_elem(F32, sin, i)
                    store_elem(fmt, y, first, a * c - b * s)
                    store_elem(fmt, y, second, a * s + b * c)
                for i in range(n_dims, n):
                    store_elem(fmt, y, i, load_elem(fmt, x, i))
                x += nb(node, SRC0, 1)
                y += nb(node, DST, 1)

    return fast_kernel(rope, f"rope_{RopeMode(mode).name.lower()}_{GGMLType(fmt).name.lower()}")


def _supports(node: Tensor) -> bool:
    x = node.src[0]
    return x is not None and x.type in _TYPES and x.is_contiguous_rows()


@lowers("ROPE", _supports)
@lowers("ROPE_BACK", _supports)
def _lower_rope(lowering: CpuLowering, node: Tensor) -> None:
    p, values = node.op_params, rope_values(node.op_params)
    params = Rope(
        n_dims=p["n_dims"],
        theta_scale=values.theta_scale,
        freq_scale=p["freq_scale"],
        ext_factor=p["ext_factor"],
        low=values.ramp_low,
        span=values.ramp_span,
        magnitude=float(values.magnitude),
        sin_magnitude=float(values.magnitude if node.op.name == "ROPE" else -values.magnitude),
    )
    chunks = max(1, min(node.ne[2] * node.ne[3], node.nelements // GRAIN, 8 * lowering.n_threads))
    kernel = rope_kernel(int(p["mode"]), int(node.type))
    # replicated: no phase is needed before SET_ROWS writes a token's keys
    lowering.launch(kernel, node, params, chunks, scratch=4 * p["n_dims"], replicate=1)
