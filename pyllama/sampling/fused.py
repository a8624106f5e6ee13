"""A top-k and the samplers behind it as one compiled function: from all logits to a token.

    fused = Fused.create([TopK(40), TopP(0.95), Temperature(0.8)], n_vocab)
    token = fused.pick(logits, rng.uniform_double())

Between two tokens a model's weights sweep all else out of the caches, so that each of NumPy's
functions costs several microseconds before it begins. A sampler's arithmetic is beside its `apply`,
which does the same to candidates of any kind.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numba import types

from pyggml.backend.cpu.abi import f32_ptr, f64_ptr, i64_ptr
from pyggml.jit import compiled, inline_strict
from pyllama.sampling.dist import draw
from pyllama.sampling.sampler import Sampler
from pyllama.sampling.temperature import Temperature, divide
from pyllama.sampling.top import POSITION, ROWS, Floats, gather, work_memory
from pyllama.sampling.truncation import MinP, TopK, TopP, min_p, top_p

STEPS: list[type[Sampler]] = [TopK, TopP, MinP, Temperature]
"""What can be fused; `_pick` knows them by their places here."""


class Fused:
    """What some samplers choose. Not thread-safe.

    Args:
        n_vocab: number of logits.
        k: of the first sampler, which is a top-k.
        others: those behind it, all of `STEPS`.
    """

    def __init__(self, n_vocab: int, k: int, others: Sequence[Sampler]) -> None:
        self._n_vocab, self._k, self._n_steps = n_vocab, k, len(others)
        steps = [(STEPS.index(type(s)), *s.numbers) for s in others]
        self._steps = np.array(steps, np.float64)
        self._keys, self._chosen = work_memory(n_vocab, k), np.empty(k, np.float32)
        self._addresses = (
            self._keys.ctypes.data,
            self._chosen.ctypes.data,
            self._steps.ctypes.data,
        )

    @classmethod
    def create(cls, samplers: Sequence[Sampler], n_vocab: int) -> Fused | None:
        """The samplers in one, if they can be fused."""
        if any(type(sampler) not in STEPS for sampler in samplers):
            return None
        if not samplers or not isinstance(samplers[0], TopK):
            return None
        k = samplers[0].k
        return cls(n_vocab, k, samplers[1:]) if k * ROWS <= n_vocab else None

    def pick(self, logits: Floats, uniform: float) -> int:
        """A token id; -1 where too many logits are equal for this.

        Args:
            logits: float32[n_vocab], contiguous; NaN counts as -inf.
            uniform: a random number in [0, 1).
        """
        keys, chosen, steps = self._addresses
        token: int = _pick(
            logits.ctypes.data, self._n_vocab, self._k, keys, chosen, steps, self._n_steps, uniform
        )
        return token


@inline_strict
def _sort(keys, n):  # type: ignore[no-untyped-def]
    """Shell's sort: short, and fast for a few hundred."""
    gap = n // 2
    while gap > 0:
        for i in range(gap, n):
            key, j = keys[i], i
            while j >= gap and keys[j - gap] > key:
                keys[j] = keys[j - gap]
                j -= gap
            keys[j] = key
        gap //= 2


@compiled(types.int64(*[types.int64] * 7, types.float64))
def _pick(logits, n_vocab, k, keys, chosen, steps, n_steps, uniform):  # type: ignore[no-untyped-def]
    count = gather(logits, n_vocab, k, keys)
    if count < 0:
        return -1
    logits, keys, chosen, steps = f32_ptr(logits), i64_ptr(keys), f32_ptr(chosen), f64_ptr(steps)
    _sort(keys, count)
    n = min(k, count)
    for i in range(n):
        logit = logits[keys[i] & POSITION]
        chosen[i] = logit if logit == logit else np.float32(-np.inf)
    for i in range(0, 3 * n_steps, 3):
        step, a, b = steps[i], steps[i + 1], steps[i + 2]
        if step == 0:
            n = min(n, int(a))
        elif step == 1:
            n = top_p(chosen, n, a, b)
        elif step == 2:
            n = min_p(chosen, n, a, b)
        else:
            divide(chosen, n, a)
    return keys[draw(chosen, n, uniform)] & POSITION
