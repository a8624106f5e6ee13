"""The random numbers of llama.cpp: std::mt19937 with libstdc++'s conversion to floats.

    rng = Mt19937(5489)
    rng.raw()               # 3499211612
    rng.uniform_double()    # in [0, 1), from two raw words

Equal seeds give the stream of llama.cpp built with libstdc++, on all platforms. Not thread-safe.
NumPy's generator has the same words, but takes a quarter of a millisecond to make, which a server
would spend for each text.
"""

from __future__ import annotations

from os import urandom
from typing import Any

import numpy as np
from numba import types
from numpy.typing import NDArray

from pyggml.compiler.jit import jitted
from pyggml.compiler.pointers import u32_ptr
from pyllama.parameters.sampling import RANDOM_SEED

N_WORDS, _MIDDLE = 624, 397  # of the generator's state
BELOW_ONE = 1.0 - 2.0**-53
BELOW_ONE_FLOAT = 1.0 - 2.0**-24

Words = NDArray[np.uint32]
Mark = tuple[Words, int]  # state, words read of it


@jitted(types.void(types.int64, types.int64), nogil=False)
def _seed(state: Any, seed: Any) -> None:
    """Write the state before the first words: Knuth's line of the seed."""
    state = u32_ptr(state)
    word = np.uint32(seed)
    for i in range(N_WORDS):
        state[i] = word
        word = np.uint32(
            np.uint32(1812433253) * (word ^ (word >> np.uint32(30))) + np.uint32(i + 1)
        )


@jitted(types.void(types.int64, types.int64), nogil=False)
def _follow(state: Any, new: Any) -> None:
    """Write the state after another one, from which the next words are read."""
    state, new = u32_ptr(state), u32_ptr(new)
    for i in range(N_WORDS):
        later = state[i + 1] if i + 1 < N_WORDS else new[0]
        middle = state[i + _MIDDLE] if i + _MIDDLE < N_WORDS else new[i + _MIDDLE - N_WORDS]
        word = (state[i] & np.uint32(0x80000000)) | (later & np.uint32(0x7FFFFFFF))
        odd = np.uint32(0x9908B0DF) if word & np.uint32(1) else np.uint32(0)
        new[i] = middle ^ (word >> np.uint32(1)) ^ odd


class Mt19937:
    """A Mersenne twister, seeded as ``std::mt19937(seed)``.

    Args:
        seed: 32 bits; -1 or `RANDOM_SEED` for a random one, renewed at each `reset`.

    Attributes:
        n_skip: number of words that the next `raw` skips.
    """

    def __init__(self, seed: int = RANDOM_SEED) -> None:
        self._requested = seed & 0xFFFFFFFF
        self.reset()

    def reset(self) -> None:
        """Restart the stream."""
        self.seed = self._requested
        if self.seed == RANDOM_SEED:
            self.seed = int.from_bytes(urandom(4), "little")
        self._state = np.empty(N_WORDS, np.uint32)  # never written again: marks share it
        _seed(self._state.ctypes.data, self.seed)
        self._n_read, self.n_skip = N_WORDS, 0

    def raw(self) -> int:
        """The next 32-bit word."""
        at = self._n_read + self.n_skip
        while at >= N_WORDS:
            state, at = self._state, at - N_WORDS
            self._state = np.empty(N_WORDS, np.uint32)
            _follow(state.ctypes.data, self._state.ctypes.data)
        self._n_read, self.n_skip = at + 1, 0
        word = int(self._state[at])
        word ^= word >> 11
        word ^= (word << 7) & 0x9D2C5680
        word ^= (word << 15) & 0xEFC60000
        return word ^ (word >> 18)

    def mark(self) -> Mark:
        """The position in the stream, for `rollback`."""
        return self._state, self._n_read + self.n_skip

    def rollback(self, mark: Mark) -> None:
        """Go back to a marked position, also across a `reset` with a fixed seed."""
        (self._state, self._n_read), self.n_skip = mark, 0

    def uniform_double(self) -> float:
        """The next double in [0, 1); consumes two words, the low one first.

        Source: libstdc++ random.tcc, `generate_canonical<double, 53>`; NumPy's method differs.
        """
        low = self.raw()
        return min((low + (self.raw() << 32)) / 2.0**64, BELOW_ONE)

    def uniform_float(self) -> float:
        """The next float32 in [0, 1); consumes one word.

        Source: libstdc++ random.tcc, `generate_canonical<float, 24>`.
        """
        return min(float(np.float32(self.raw())) / 2.0**32, BELOW_ONE_FLOAT)
