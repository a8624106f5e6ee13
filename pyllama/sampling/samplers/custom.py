"""Samplers of the user in a chain: a `Sampler` object, or any function of the candidates.

    def no_short_tokens(candidates):
        candidates.keep(candidates.ids > 255)

    SamplingParams(samplers=("top_k", no_short_tokens, "temperature"))

A function changes the candidates in place and returns nothing: with `Candidates.keep` and
`Candidates.keep_top`, by writing to `Candidates.writable`, or by setting ``candidates.logits``. It
must not depend on earlier calls, as a chain can be rolled back. A sampler with state is an object:
each text gets a copy (``copy.deepcopy``), and a mark is a copy of its attributes unless it has a
`mark` of its own. An exception ends the text; one at the tokens of the prompt is a `SamplingError`
of the request.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import deepcopy
from typing import Any

import numpy as np

from pyllama.errors import SamplingError
from pyllama.sampling.candidates import Candidates
from pyllama.sampling.sampler import Sampler


class CustomSampler(Sampler):
    """Runs a user's sampler and checks its result.

    Args:
        sampler: a `Sampler`, which is copied, or a function.

    Raises:
        SamplingError: it is neither.
    """

    def __init__(self, sampler: object) -> None:
        self._object: Sampler | None = None
        self._apply: Callable[[Candidates], object]
        if isinstance(sampler, Sampler):
            self._object = deepcopy(sampler)
            self._apply = self._object.apply
        elif callable(sampler):
            self._apply = sampler
        else:
            raise SamplingError(
                f"samplers: got {sampler!r}, want a name, a function or a Sampler object"
            )
        name = getattr(sampler, "label", "") or getattr(sampler, "__name__", "")
        self.name = str(name or type(sampler).__name__)

    def apply(self, candidates: Candidates) -> None:
        result = self._apply(candidates)
        logits, ids = np.asarray(candidates.logits), candidates.ids
        if result is not None or logits.shape != ids.shape or logits.dtype.kind not in "fiu":
            raise SamplingError(
                f"sampler {self.name}: returned {type(result).__name__} and left {ids.size} ids "
                f"with {logits.dtype} of shape {logits.shape}; want None and a logit for each id"
            )
        if not ids.size:
            raise SamplingError(f"sampler {self.name} removed all candidates, want at least one")
        logits = np.where(np.isnan(logits), -np.inf, logits).astype(np.float32)
        candidates.logits = logits
        if (logits[:-1] < logits[1:]).any():
            candidates.sorted = False

    def accept(self, token: int) -> None:
        if self._object is not None:
            self._object.accept(token)

    def accept_prompt(self, tokens: Sequence[int]) -> None:
        if self._object is None:
            return
        try:
            self._object.accept_prompt(tokens)
        except Exception as error:
            raise SamplingError(
                f"sampler {self.name}: {error!r:.200} at the prompt's tokens; override "
                "accept_prompt if only generated tokens count"
            ) from error

    def mark(self) -> Any:
        return None if self._object is None else self._object.mark()

    def rollback(self, mark: Any) -> None:
        if self._object is not None:
            self._object.rollback(mark)
