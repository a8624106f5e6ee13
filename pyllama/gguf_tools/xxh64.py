"""XXH64, the fast hash that llama-gguf-hash uses by default.

    state = XXH64()
    state.update(data)
    state.hexdigest()                              # '44bc2cf5ad770999' of b"abc"

Has the interface of a `hashlib` object; the main loop is compiled on first use. Not a cryptographic
hash.
Source: the XXH64 specification of the xxHash project.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import types

from pyggml.compiler.jit import jitted

_P1, _P2, _P3 = 0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9
_P4, _P5 = 0x85EBCA77C2B2AE63, 0x27D4EB2F165667C5
_MASK = 2**64 - 1
_STRIPE = 32
_WORDS = types.Array(types.uint64, 1, "C", readonly=True)


@jitted(types.void(types.uint64[::1], _WORDS))
def _stripes(lanes: Any, words: Any) -> None:
    """Update the four lanes with ``words`` (uint64 [4 n]), read once, in order."""
    p1, p2 = np.uint64(_P1), np.uint64(_P2)
    a, b, c, d = lanes[0], lanes[1], lanes[2], lanes[3]
    left, right = np.uint64(31), np.uint64(33)
    for i in range(0, words.size, 4):
        a += words[i] * p2
        b += words[i + 1] * p2
        c += words[i + 2] * p2
        d += words[i + 3] * p2
        a = (a << left | a >> right) * p1
        b = (b << left | b >> right) * p1
        c = (c << left | c >> right) * p1
        d = (d << left | d >> right) * p1
    lanes[0], lanes[1], lanes[2], lanes[3] = a, b, c, d


class XXH64:
    """A running hash with seed 0."""

    def __init__(self) -> None:
        first = ((_P1 + _P2) & _MASK, _P2, 0, -_P1 & _MASK)
        self._lanes = np.array(first, np.uint64)
        self._rest = b""
        self._size = 0

    def update(self, data: bytes | memoryview) -> None:
        """Append bytes to the hashed data."""
        data = self._rest + bytes(data)
        self._size += len(data) - len(self._rest)
        whole = len(data) - len(data) % _STRIPE
        if whole:
            _stripes(self._lanes, np.frombuffer(data, "<u8", whole // 8))
        self._rest = data[whole:]

    def hexdigest(self) -> str:
        """Return the hash of all bytes so far, in hexadecimal."""
        lanes = [int(lane) for lane in self._lanes]
        h = _P5
        if self._size >= _STRIPE:
            rotations = zip(lanes, (1, 7, 12, 18), strict=True)
            h = sum(_rotate(lane, by) for lane, by in rotations) & _MASK
            for lane in lanes:
                h = ((h ^ _round(0, lane)) * _P1 + _P4) & _MASK
        h = (h + self._size) & _MASK
        rest = self._rest
        while len(rest) >= 8:
            h = _rotate(h ^ _round(0, int.from_bytes(rest[:8], "little")), 27) * _P1 + _P4 & _MASK
            rest = rest[8:]
        if len(rest) >= 4:
            h = (
                _rotate(h ^ int.from_bytes(rest[:4], "little") * _P1 & _MASK, 23) * _P2 + _P3
                & _MASK
            )
            rest = rest[4:]
        for byte in rest:
            h = _rotate(h ^ byte * _P5 & _MASK, 11) * _P1 & _MASK
        for shift, factor in ((33, _P2), (29, _P3), (32, 1)):
            h = (h ^ h >> shift) * factor & _MASK
        return f"{h:016x}"


def _rotate(x: int, by: int) -> int:
    return (x << by | x >> 64 - by) & _MASK


def _round(lane: int, word: int) -> int:
    return _rotate((lane + word * _P2) & _MASK, 31) * _P1 & _MASK
