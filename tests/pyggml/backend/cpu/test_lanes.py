"""Every operation of lanes has NumPy's results."""

from __future__ import annotations

import ctypes

import numpy as np

from pyggml.backend.cpu.abi import i64_ptr
from pyggml.backend.cpu.simd.lanes import (
    absolute,
    bits,
    clamp,
    first_set,
    lanes_f32,
    lanes_strided,
    mask_bits,
    max_lane,
    min_lane,
    select,
    sign_extend,
    spread,
    sqrt,
    stack,
    store,
    sum_lanes,
    to_bytes,
    to_float,
    truncate,
)
from pyggml.compiler.jit import kernel

ROW = 32  # bytes of a result
TWO = np.float32(2)


@kernel
def every_operation(x, out, numbers, unused):  # type: ignore[no-untyped-def]
    a, b = lanes_f32(8, x), lanes_f32(8, x + ROW)
    store(out, (a + b) * a - b / (TWO - a))
    store(out + ROW, select((a > b) & (a != TWO), a, select(a <= b, sqrt(absolute(b)), b)))
    n = truncate(a * np.float32(100))
    store(out + 2 * ROW, ((n & 60) | (n << 2) * 3) - (bits(b) >> 20))
    store(out + 3 * ROW, to_float(clamp(n, -50, 70)))
    store(out + 4 * ROW, sign_extend(to_bytes(n)) * 1000)
    memory = stack(64)
    store(memory, n)
    place = out + 5 * ROW
    store(place, bits(lanes_f32(8, memory)) + sum_lanes(n) + np.int32(first_set(a == b)))
    i64_ptr(numbers)[0] = mask_bits(a < b)
    store(out + 6 * ROW, spread(8, max_lane(a)) - min_lane(b))
    store(out + 7 * ROW, lanes_strided(8, x, 8))


def test_every_operation() -> None:
    x = np.random.default_rng(1).standard_normal(16).astype(np.float32)
    x[5], x[13] = 0.5, 0.5
    out, mask = np.zeros((8, 8), np.float32), np.zeros(1, np.int64)
    call = ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * 4)(every_operation.address)
    call(x.ctypes.data, out.ctypes.data, mask.ctypes.data, 0)
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
    assert np.array_equal(whole[4], byte.view(np.int8) * np.int32(1000))
    assert np.array_equal(whole[5], n + n.sum() + 5)
    assert mask[0] == np.packbits(a < b, bitorder="little")[0]
    assert np.array_equal(out[6], np.full(8, a.max()) - b.min())
    assert np.array_equal(out[7], x[::2])
