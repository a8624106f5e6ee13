"""User functions that edit the logits before sampling, as in llama-cpp-python.

    def no_newline(input_ids, scores):
        scores[198] = -np.inf
        return scores

    scores = apply_logits_processors([no_newline], input_ids, scores)

Processors get a copy and may write to it. Their exceptions propagate to the caller.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np
from numpy.typing import NDArray

from pyllama.errors import SamplingError

LogitsProcessor = Callable[[NDArray[np.intc], NDArray[np.single]], NDArray[np.single]]


class LogitsProcessorList(list[LogitsProcessor]):
    """A list of processors that is itself a processor and applies them in order."""

    def __call__(
        self, input_ids: NDArray[np.intc], scores: NDArray[np.single]
    ) -> NDArray[np.single]:
        for processor in self:
            scores = processor(input_ids, scores)
        return scores


def apply_logits_processors(
    processors: Iterable[LogitsProcessor],
    input_ids: NDArray[np.intc],
    scores: NDArray[np.single],
) -> NDArray[np.single]:
    """The scores after all processors.

    Args:
        processors: called in order as ``processor(input_ids, scores)``.
        input_ids: int32[n_tokens], all tokens so far.
        scores: float32[n_vocab]; not written to.

    Raises:
        SamplingError: a processor returned no array, or one of another shape.
    """
    shape = scores.shape
    scores = scores.copy()
    for processor in processors:
        result = np.asarray(processor(input_ids, scores))
        if result.shape != shape or result.dtype.kind not in "fiu":
            name = getattr(processor, "__name__", type(processor).__name__)
            raise SamplingError(
                f"logits processor {name}: got {result.dtype} of shape {result.shape}, "
                f"want scores of shape {shape}; does it end with `return scores`?"
            )
        scores = result.astype(np.float32, copy=False)
    return scores
