"""Lanes do what NumPy does, operation by operation."""

from __future__ import annotations

import ctypes

import numpy as np

from pyggml.backend.cpu.simd.lanes import (
    bits,
    choose,
    clamp,
    first,
    floats,
    integers,
    lanes_f32,
    lanes_strided,
    lanes_u8,
    least,
    magnitude,
    mask_bits,
    most,
    narrow,
    root,
    signed,
    spread,
    spread_bits,
    stack,
    store,
    total,
    truncated,
)
from pyggml.jit import kernel

ROW = 32  # bytes of a result
TWO = np.float32(2)


@kernel
def every_operation(x, out, numbers, unused):  # type: ignore[no-untyped-def]
    a, b = lanes_f32(8, x), lanes_f32(8, x + ROW)
    store(out, (a + b) * a - b / (TWO - a))
    store(out + ROW, choose((a > b) & (a != TWO), a, choose(a <= b, root(magnitude(b)), b)))
    n = truncated(a * np.float32(100))
    store(out + 2 * ROW, ((n & 60) | (n << 2) * 3) - (bits(b) >> 20))
    store(out + 3 * ROW, floats(clamp(n, -50, 70)))
    memory = stack(64)
    store(memory, narrow(n))
    byte = lanes_u8(8, memory)
    store(out + 4 * ROW, integers(byte) + signed(byte) * 1000)
    store(out + 5 * ROW, spread_bits(8, mask_bits(a < b)) + total(n) + np.int32(first(a == b)))
    store(out + 6 * ROW, spread(8, most(a)) - least(b))
    store(out + 7 * ROW, lanes_strided(8, x, 8))


def test_every_operation() -> None:
    x = np.random.default_rng(1).standard_normal(16).astype(np.float32)
    x[5], x[13] = 0.5, 0.5
    out = np.zeros((8, 8), np.float32)
    call = ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * 4)(every_operation.address)
    call(x.ctypes.data, out.ctypes.data, 0, 0)
    a, b = x[:8], x[8:]
    n = np.trunc(a * np.float32(100)).astype(np.int32)
    raised = np.where(a <= b, np.sqrt(np.abs(b)), b)
    byte = n.astype(np.uint8)
    whole = out.view(np.int32)
    assert np.array_equal(out[0], (a + b) * a - b / (TWO - a))
    assert np.array_equal(out[1], np.where(a > b, a, raised))
    shifted = (b.view(np.uint32) >> 20).astype(np.int32)
    assert np.array_equal(whole[2], ((n & 60) | (n << 2) * 3) - shifted)
    assert np.array_equal(out[3], np.clip(n, -50, 70))
    assert np.array_equal(whole[4], byte.astype(np.int32) + byte.view(np.int8) * np.int32(1000))
    assert np.array_equal(whole[5], (a < b) + n.sum() + 5)
    assert np.array_equal(out[6], np.full(8, a.max()) - b.min())
    assert np.array_equal(out[7], x[::2])
