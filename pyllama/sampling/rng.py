"""The random numbers of llama.cpp: std::mt19937 with libstdc++'s conversion to floats.

    rng = Mt19937(5489)
    rng.raw()               # 3499211612
    rng.uniform_double()    # in [0, 1), from two raw words

Equal seeds give the stream of llama.cpp built with libstdc++, on all platforms. Not thread-safe.
"""

from __future__ import annotations

from os import urandom
from typing import Any

import numpy as np

from pyllama.parameters.sampling import RANDOM_SEED

AHEAD = 64  # words generated at once
BELOW_ONE = 1.0 - 2.0**-53
BELOW_ONE_FLOAT = 1.0 - 2.0**-24


Mark = tuple[Any, int, int]  # generator state before the block, words read of it, words to skip


class Mt19937:
    """A Mersenne twister, seeded as ``std::mt19937(seed)``.

    Args:
        seed: 32 bits; -1 or `RANDOM_SEED` for a random one, renewed at each `reset`.

    Attributes:
        n_skip: number of words that the next `raw` skips.
    """

    def __init__(self, seed: int = RANDOM_SEED) -> None:
        self._requested = seed & 0xFFFFFFFF
        self._bits = np.random.MT19937(0)  # not from entropy, which takes longer
        self.seed = 0
        self._origin: Any = None  # the generator's state before the block was drawn
        self.reset()

    def reset(self) -> None:
        """Restart the stream."""
        self.seed = self._requested
        if self.seed == RANDOM_SEED:
            self.seed = int.from_bytes(urandom(4), "little")
        # RandomState is the only public API with the standard seeding; MT19937(seed) hashes it.
        self._restart(np.random.RandomState(self.seed).get_state(legacy=False))

    def raw(self) -> int:
        """The next 32-bit word."""
        if self.n_skip:
            self._pass_over()
        if not self._ahead:
            self._draw()
        return self._ahead.pop()

    def mark(self) -> Mark:
        """The position in the stream, for `rollback`."""
        return self._origin, AHEAD - len(self._ahead) if self._drawn else 0, self.n_skip

    def rollback(self, mark: Mark) -> None:
        """Go back to a marked position, also across a `reset` with a fixed seed."""
        origin, n_read, skipped = mark
        here, n_here, _ = self.mark()
        if here is not origin or n_here != n_read:
            self._restart(origin)
            if n_read:
                self._draw()
                self._origin = origin
                del self._ahead[AHEAD - n_read :]
        self.n_skip = skipped

    def _restart(self, state: Any) -> None:
        self._bits.state = state
        self._origin = state
        self._ahead: list[int] = []  # the unread words of a block, reversed
        self._drawn = False  # whether the block was generated
        self.n_skip = 0

    def _draw(self) -> None:
        self._origin, self._drawn = self._bits.state, True
        self._ahead = self._bits.random_raw(AHEAD)[::-1].tolist()

    def _pass_over(self) -> None:
        n = min(self.n_skip, len(self._ahead))
        del self._ahead[len(self._ahead) - n :]
        if self.n_skip > n:
            self._bits.random_raw(self.n_skip - n, output=False)
            self._restart(self._bits.state)
        self.n_skip = 0

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
