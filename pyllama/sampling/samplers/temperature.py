"""Temperature: divides the logits; 0 is greedy. A dynamic temperature depends on the entropy.

    Temperature(0.8).apply(candidates)
    Temperature(0.0).apply(candidates)                  # only the argmax keeps its logit
    Temperature(0.8, 0.3, exponent=1.0).apply(candidates)       # from 0.5 to 1.1

The dynamic temperature is ``low + (high - low) * (entropy / max_entropy) ** exponent``, of which
``max_entropy`` is that of as many equal tokens.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from pyggml.compiler.jit import inline_strict
from pyllama.parameters.sampling import LARGEST
from pyllama.sampling.candidates import Candidates, weight
from pyllama.sampling.float_math import entropy_of, log32, log_of
from pyllama.sampling.sampler import ChainSetup, Sampler

SMALLEST = 1e-30  # float32 logits divided by less may overflow: treated as greedy


class Temperature(Sampler):
    """Divides all logits by a temperature; if it is <= 0, sets all but the largest to -inf.

    Args:
        temp: the temperature.
        spread: the dynamic temperature goes from ``temp - spread`` to ``temp + spread``.
        exponent: of the relative entropy.

    Source: llama.cpp llama-sampler.cpp, `llama_sampler_temp_ext_apply`.
    """

    label = "temp-ext"
    keeps_argmax = True
    is_stateless = True

    def __init__(self, temp: float, spread: float = 0.0, exponent: float = 1.0) -> None:
        self._temp = np.float32(temp if temp > SMALLEST or spread > 0 else 0)
        self._spread, self._exponent = np.float32(max(spread, 0)), np.float32(exponent)
        self.fused_args = float(self._temp), float(self._spread), float(self._exponent)

    @classmethod
    def create(cls, setup: ChainSetup) -> Temperature | None:
        p = setup.params
        if p.temp == 1 and p.dynatemp_range <= 0:
            return None
        return cls(p.temp, p.dynatemp_range, p.dynatemp_exponent)

    @property
    def is_greedy(self) -> bool:
        """Whether only the argmax can be sampled."""
        return bool(self._temp == 0 and self._spread == 0)

    def apply(self, candidates: Candidates) -> None:
        temp = self._temp
        if self._spread > 0:
            if len(candidates) < 2:
                return
            candidates.keep_top(len(candidates))
            temp = self._dynamic(candidates)
        if temp > SMALLEST:
            candidates.logits = candidates.logits / temp
            return
        logits, argmax = candidates.writable(), candidates.argmax()
        logit = logits[argmax]
        logits.fill(-np.inf)
        logits[argmax] = logit

    def _dynamic(self, candidates: Candidates) -> np.float32:
        low = max(np.float32(0), self._temp - self._spread)
        high = self._temp + self._spread
        probs = candidates.probs()
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            relative = entropy_of(probs) / -log_of(np.array([1 / len(candidates)], np.float32))[0]
            temp = low + (high - low) * relative**self._exponent
        return np.float32(min(temp, LARGEST))


@inline_strict
def divide(logits: Any, n: Any, temp: Any) -> Any:
    """`Temperature.apply` for n candidates and a temperature above 0, for `fused`."""
    for i in range(n):
        logits[i] /= np.float32(temp)


@inline_strict
def scale_dynamic(logits: Any, n: Any, temp: Any, spread: Any, exponent: Any) -> Any:
    """`Temperature.apply` for n > 1 descending logits and a dynamic temperature, for `fused`."""
    temp, spread = np.float32(temp), np.float32(spread)
    low, high = max(np.float32(0), np.float32(temp - spread)), np.float32(temp + spread)
    total, entropy = np.float32(0), np.float32(0)
    for i in range(n):
        total += weight(logits, i, logits[0])
    for i in range(n):
        probability = weight(logits, i, logits[0]) / total
        if probability > 0:
            entropy -= probability * log32(probability)
    relative = entropy / -log32(np.float32(1) / np.float32(n))
    temp = low + np.float32(high - low) * relative ** np.float32(exponent)
    if temp > SMALLEST:
        divide(logits, n, min(temp, np.float32(LARGEST)))
    else:
        for i in range(1, n):
            logits[i] = -np.inf
