"""Top-k and the following samplers in one compiled function, from all logits to a token.

    fused = Fused.create([TopK(40), TopP(0.95), Temperature(0.8)], n_vocab)
    token = fused.pick(logits, rng.uniform_double())
    token, probability = fused.likeliest(logits)
    ids, weights = fused.weights(logits)            # of all candidates

At each token the weights evict everything else from the CPU's caches, so each call of a NumPy
function costs several microseconds of overhead. The arithmetic of each sampler is defined next to
its `apply`, which does the same for any candidates.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numba import types
from numpy.typing import NDArray

from pyggml.compiler.jit import JittedFunction, inline_strict, jitted
from pyggml.compiler.pointers import f32_ptr, f64_ptr, i32_ptr, i64_ptr
from pyllama.sampling.candidates import weight
from pyllama.sampling.sampler import Sampler
from pyllama.sampling.samplers.dist import draw
from pyllama.sampling.samplers.temperature import Temperature, divide, scale_dynamic
from pyllama.sampling.samplers.top_n_sigma import TopNSigma, top_n_sigma
from pyllama.sampling.samplers.truncation import MinP, TopK, TopP, min_p, top_p
from pyllama.sampling.samplers.typical import Typical, typical
from pyllama.sampling.samplers.xtc import Xtc, xtc
from pyllama.sampling.top import (
    POSITION,
    Floats,
    columns,
    gather,
    sort_keys,
    work_memory,
)

STEPS: list[type[Sampler]] = [TopK, TopP, MinP, Typical, Xtc, TopNSigma, Temperature]
"""Samplers that can be fused; `_keep` identifies them by their index."""
_TOP_K, _TOP_P, _MIN_P, _TYPICAL, _XTC, _TOP_N_SIGMA = range(6)
_NOT_DUE, _DUE, _DRAWN = range(3)  # third argument of XTC; _DRAWN is added where it was applied
_ONE = 1 << 30  # a probability of 1
_WIDTH = 4  # of a step: index of its type and its arguments


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
        self._work = np.zeros(n_keys + k + _WIDTH * len(steps), np.int64)  # keys, logits, steps
        self._work[n_keys + k :] = np.array(steps, np.float64).reshape(-1).view(np.int64)
        self._chosen, self._n_steps = 8 * n_keys, len(steps)
        last = _WIDTH - 1  # index of XTC's third argument
        self._random = [
            (s, n_keys + k + _WIDTH * i + last) for i, s in enumerate(others) if isinstance(s, Xtc)
        ]

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
        return self._run(_sample, logits, uniform)

    def weights(self, logits: Floats) -> tuple[NDArray[np.int32], Floats] | None:
        """The candidates' ids and their `Candidates.weights`; None where `pick` gives -1."""
        k = self._sizes[1]
        found = np.empty((2, k), np.int32)
        n = self._run(_weights, logits, found.ctypes.data)
        return None if n < 0 else (found[0, :n], found[1, :n].view(np.float32))

    def likeliest(self, logits: Floats) -> tuple[int, float] | None:
        """The likeliest token and its probability; None where `pick` gives -1."""
        result = self._run(_likeliest, logits)
        return None if result < 0 else (result & POSITION, (result >> 32) / _ONE)

    def _run(self, function: JittedFunction, logits: Floats, *arguments: float) -> int:
        n_vocab, k, n_columns = self._sizes
        work = self._work.ctypes.data  # not cached: a deepcopy has its own memory
        chosen, n_steps = work + self._chosen, self._n_steps
        if self._random:
            steps = self._work.view(np.float64)
            for sampler, at in self._random:
                steps[at] = _DUE if sampler.is_due() else _NOT_DUE
        result: int = function(
            logits.ctypes.data, n_vocab, k, n_columns, work, chosen, n_steps, *arguments
        )
        if result >= 0 and self._random:
            for sampler, at in self._random:
                if steps[at] >= _DRAWN:
                    sampler.consume()
        return result


@inline_strict
def _sort_pairs(keys: Any, logits: Any, n: Any) -> Any:
    """`sort_keys`, which also moves the logits. Keys descend with the original logits, and no
    sampler of `STEPS` makes a smaller logit the larger one."""
    gap = n // 2
    while gap > 0:
        for i in range(gap, n):
            key, logit, j = keys[i], logits[i], i
            while j >= gap and keys[j - gap] > key:
                keys[j], logits[j] = keys[j - gap], logits[j - gap]
                j -= gap
            keys[j], logits[j] = key, logit
        gap //= 2


@inline_strict
def _move(keys: Any, logits: Any, first: Any, n: Any) -> Any:
    """Move n candidates to the beginning."""
    for i in range(n):
        keys[i], logits[i] = keys[first + i], logits[first + i]


@inline_strict
def _permute(values: Any, order: Any, n_all: Any, n: Any, saved: Any) -> Any:
    """Keep the n values at the positions in ``order``; ``saved``: memory for all of them."""
    for i in range(n_all):
        saved[i] = values[i]
    for i in range(n):
        values[i] = saved[order[i]]


@inline_strict
def _keep_likely(keys: Any, logits: Any, n: Any, limit: Any) -> Any:
    """Keep the candidates of n with at least this logit, in order; returns their number."""
    kept = 0
    for i in range(n):
        if logits[i] >= limit:
            keys[kept], logits[kept] = keys[i], logits[i]
            kept += 1
    return kept


@inline_strict
def _largest(logits: Any, n: Any) -> Any:
    top = logits[0]
    for i in range(1, n):
        top = max(top, logits[i])
    return top


@inline_strict
def _keep(
    logits: Any, n_vocab: Any, k: Any, n_columns: Any, work: Any, chosen: Any, n_steps: Any
) -> Any:
    """Apply all samplers; returns the number of candidates that are left, -1 if there is no room.

    Their keys are at ``work``, their logits at ``chosen``.
    """
    count = gather(logits, n_vocab, k, n_columns, work)
    if count < 0:
        return np.int64(-1)
    logits, keys, steps = f32_ptr(logits), i64_ptr(work), f64_ptr(chosen + 8 * k)
    # free memory: at least 2 k int64 of the grid of `gather`, and k float32
    order, distances, probs = work + 16 * k, work + 24 * k, chosen + 4 * k
    stack, saved = distances + (4 * k + 7) // 8 * 8, f32_ptr(probs)
    chosen, n, is_sorted = f32_ptr(chosen), min(k, count), True
    sort_keys(keys, count)
    for i in range(n):
        logit = logits[keys[i] & POSITION]
        chosen[i] = logit if logit == logit else np.float32(-np.inf)
    for i in range(0, _WIDTH * n_steps, _WIDTH):
        step, a, b, c = steps[i], steps[i + 1], steps[i + 2], steps[i + 3]
        if step == _MIN_P and not is_sorted:
            limit = _largest(chosen, n) + np.float32(a)
            likely = 0
            for j in range(n):
                likely += chosen[j] >= limit
            if likely >= b:
                n = _keep_likely(keys, chosen, n, limit)
                continue
        needs_order = step <= _MIN_P or (step == _XTC and c == _DUE and n > 1)
        if needs_order or (step > _TOP_N_SIGMA and b > 0 and n > 1):
            if not is_sorted:
                _sort_pairs(keys, chosen, n)
            is_sorted = True
        if step == _TOP_K:
            n = min(n, int(a))
        elif step == _TOP_P:
            n = top_p(chosen, n, a, b)
        elif step == _MIN_P:
            n = min_p(chosen, n, a, b)
        elif step == _TYPICAL:
            n_all, top, total = n, _largest(chosen, n), np.float32(0)
            for j in range(n):
                saved[j] = weight(chosen, j, top)
                total += saved[j]
            for j in range(n):
                saved[j] /= total
            n = typical(probs, n, a, b, distances, order, stack)
            _permute(keys, i32_ptr(order), n_all, n, i64_ptr(distances))
            _permute(chosen, i32_ptr(order), n_all, n, saved)
            is_sorted = False
        elif step == _XTC:
            if n > 1:
                steps[i + 3] = c + _DRAWN
                if c == _DUE:
                    removed = xtc(chosen, n, a, b)
                    n -= removed
                    _move(keys, chosen, removed, n)
        elif step == _TOP_N_SIGMA:
            if n > 1:
                top_n_sigma(chosen, n, a)
        elif b <= 0:
            divide(chosen, n, a)
        elif n > 1:
            scale_dynamic(chosen, n, a, b, c)
    return np.int64(n)


@jitted(types.int64(*[types.int64] * 7, types.float64), nogil=False)
def _sample(
    logits: Any, n_vocab: Any, k: Any, n_columns: Any, work: Any, chosen: Any, n_steps: Any,
    uniform: Any,
) -> Any:  # fmt: skip
    """A token."""
    n = _keep(logits, n_vocab, k, n_columns, work, chosen, n_steps)
    if n < 0:
        return n
    keys, kept = i64_ptr(work), f32_ptr(chosen)
    return keys[draw(kept, n, _largest(kept, n), uniform)] & POSITION


@jitted(types.int64(*[types.int64] * 7), nogil=False)
def _likeliest(
    logits: Any, n_vocab: Any, k: Any, n_columns: Any, work: Any, chosen: Any, n_steps: Any
) -> Any:
    """The likeliest token plus its probability in units of 1 / _ONE, times 2**32."""
    n = _keep(logits, n_vocab, k, n_columns, work, chosen, n_steps)
    if n < 0:
        return n
    keys, kept = i64_ptr(work), f32_ptr(chosen)
    top, best, total = _largest(kept, n), 0, 0.0
    for i in range(n):
        total += weight(kept, i, top)
        if kept[i] > kept[best]:
            best = i
    share = np.int64(weight(kept, best, top) / total * _ONE)
    return (share << 32) + (keys[best] & POSITION)


@jitted(types.int64(*[types.int64] * 8), nogil=False)
def _weights(
    logits: Any, n_vocab: Any, k: Any, n_columns: Any, work: Any, chosen: Any, n_steps: Any,
    found: Any,
) -> Any:  # fmt: skip
    """The number of candidates; writes ids and weights, int32[k] and float32[k], to ``found``."""
    n = _keep(logits, n_vocab, k, n_columns, work, chosen, n_steps)
    if n < 0:
        return n
    keys, kept = i64_ptr(work), f32_ptr(chosen)
    top, ids, weights = _largest(kept, n), i32_ptr(found), f32_ptr(found + 4 * k)
    for i in range(n):
        ids[i], weights[i] = keys[i] & POSITION, weight(kept, i, top)
    return n
