"""Temperature: divides the logits; 0 is greedy.

Temperature(0.8).apply(candidates)
Temperature(0.0).apply(candidates)      # only the argmax keeps its logit
"""

from __future__ import annotations

from typing import Any

import numpy as np

from pyggml.jit import inline_strict
from pyllama.sampling.candidates import Candidates
from pyllama.sampling.sampler import ChainSetup, Sampler

NO_TOKENS = np.empty(0, np.intp)
SMALLEST = 1e-30  # float32 logits divided by less may overflow: treated as greedy


@inline_strict
def divide(logits: Any, n: Any, temp: Any) -> Any:
    """`Temperature.apply` for n candidates and a temperature above 0, for `fused`."""
    for i in range(n):
        logits[i] /= np.float32(temp)


class Temperature(Sampler):
    """Divides all logits by a constant; if it is <= 0, sets all but the largest to -inf.

    Source: llama.cpp llama-sampler.cpp, `llama_sampler_temp_impl`.
    """

    label = "temp-ext"
    keeps_argmax = True

    def __init__(self, temp: float) -> None:
        self._temp = np.float32(temp if temp > SMALLEST else 0)
        self.fused_args = float(self._temp), 0

    @classmethod
    def create(cls, setup: ChainSetup) -> Temperature | None:
        return cls(setup.params.temp) if setup.params.temp != 1 else None

    @property
    def is_greedy(self) -> bool:
        """Whether only the argmax can be sampled."""
        return bool(self._temp == 0)

    def apply(self, candidates: Candidates) -> None:
        if not self.is_greedy:
            candidates.logits = candidates.logits / self._temp
            return
        logits, _, _ = candidates.edit(NO_TOKENS)
        argmax = candidates.argmax()
        logit = logits[argmax]
        logits.fill(-np.inf)
        logits[argmax] = logit
