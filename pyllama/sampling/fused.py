"""Top-k and the following samplers in one compiled function, from all logits to a token.

    fused = Fused.create([TopK(40), TopP(0.95), Temperature(0.8)], n_vocab)
    token = fused.pick(logits, rng.uniform_double())

At each token the weights evict everything else from the CPU's caches, so each call of a NumPy
function costs several microseconds of overhead. The arithmetic of each sampler is defined next to
its `apply`, which does the same for any candidates.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numba import types

from pyggml.jit import compiled, inline_strict
from pyggml.pointers import f32_ptr, f64_ptr, i64_ptr
from pyllama.sampling.dist import draw
from pyllama.sampling.sampler import Sampler
from pyllama.sampling.temperature import Temperature, divide
from pyllama.sampling.top import POSITION, Floats, columns, gather, work_memory
from pyllama.sampling.truncation import MinP, TopK, TopP, min_p, top_p

STEPS: list[type[Sampler]] = [TopK, TopP, MinP, Temperature]
"""Samplers that can be fused; `_pick` identifies them by their index."""
_TOP_K, _TOP_P, _MIN_P = range(3)


class Fused:
    """A fused chain that starts with top-k. Not thread-safe.

    Args:
        n_vocab: number of logits.
        k: parameter of the top-k; ``columns(n_vocab, k)`` must not be 0.
        others: the following samplers, all of types in `STEPS`.
    """

    def __init__(self, n_vocab: int, k: int, others: Sequence[Sampler]) -> None:
        n_columns = columns(n_vocab, k)
        steps = [(STEPS.index(type(s)), *s.fused_args) for s in others]
        n_keys, self._sizes = work_memory(n_vocab, k, n_columns).size, (n_vocab, k, n_columns)
        self._work = np.zeros(n_keys + k + 3 * len(steps), np.int64)  # keys, logits, steps
        self._work[n_keys + k :] = np.array(steps, np.float64).reshape(-1).view(np.int64)
        self._chosen, self._n_steps = 8 * n_keys, len(steps)

    @classmethod
    def create(cls, samplers: Sequence[Sampler], n_vocab: int) -> Fused | None:
        """The fused samplers, or None if they cannot be fused."""
        if any(type(sampler) not in STEPS for sampler in samplers):
            return None
        if not samplers or not isinstance(samplers[0], TopK):
            return None
        k = samplers[0].k
        return cls(n_vocab, k, samplers[1:]) if columns(n_vocab, k) else None

    def pick(self, logits: Floats, uniform: float) -> int:
        """A token id; -1 if more logits reach the bound than the work memory holds.

        Args:
            logits: float32[n_vocab], contiguous; NaN counts as -inf.
            uniform: a random number in [0, 1).
        """
        n_vocab, k, n_columns = self._sizes
        work = self._work.ctypes.data  # not cached: a deepcopy has its own memory
        chosen, n_steps = work + self._chosen, self._n_steps
        token: int = _pick(
            logits.ctypes.data, n_vocab, k, n_columns, work, chosen, n_steps, uniform
        )
        return token


@inline_strict
def _sort(keys: Any, n: Any) -> Any:
    """Shell sort: short code, fast for a few hundred keys."""
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
def _pick(
    logits: Any,
    n_vocab: Any,
    k: Any,
    n_columns: Any,
    work: Any,
    chosen: Any,
    n_steps: Any,
    uniform: Any,
) -> Any:
    count = gather(logits, n_vocab, k, n_columns, work)
    if count < 0:
        return -1
    logits, keys, steps = f32_ptr(logits), i64_ptr(work), f64_ptr(chosen + 8 * k)
    chosen, n = f32_ptr(chosen), min(k, count)
    _sort(keys, count)
    for i in range(n):
        logit = logits[keys[i] & POSITION]
        chosen[i] = logit if logit == logit else np.float32(-np.inf)
    for i in range(0, 3 * n_steps, 3):
        step, a, b = steps[i], steps[i + 1], steps[i + 2]
        if step == _TOP_K:
            n = min(n, int(a))
        elif step == _TOP_P:
            n = top_p(chosen, n, a, b)
        elif step == _MIN_P:
            n = min_p(chosen, n, a, b)
        else:
            divide(chosen, n, a)
    return keys[draw(chosen, n, uniform)] & POSITION
