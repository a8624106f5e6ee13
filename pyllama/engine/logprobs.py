"""Log-probabilities of tokens and of the most likely alternatives."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from ..sampling.top import top_positions
from .request import Floats, TokenLogprob


def log_softmax(logits: npt.ArrayLike, axis: int = -1) -> Floats:
    """Log-probabilities from logits.

    Source: llama-cpp-python, ``Llama.logits_to_logprobs``.
    """
    values = np.asarray(logits, np.float32)
    top = values.max(axis=axis, keepdims=True)
    shifted = values - np.where(np.isfinite(top), top, np.float32(0))
    with np.errstate(divide="ignore"):
        result: Floats = shifted - np.log(np.exp(shifted).sum(axis=axis, keepdims=True))
    return result


def token_logprob(logits: Floats, token: int, n_top: int) -> TokenLogprob:
    """Log-probability of ``token`` and the ``n_top`` likeliest, from logits float32[n_vocab]."""
    logprobs = log_softmax(logits)
    likeliest = top_positions(logprobs, n_top).tolist() if n_top > 0 else []
    top = tuple((i, float(logprobs[i])) for i in likeliest)
    return TokenLogprob(token, float(logprobs[token]), top)


class PromptLogprobs:
    """Collects the log-probabilities of a prompt's tokens while it is evaluated.

    Args:
        tokens: the prompt.
        n_top: number of likeliest tokens to report at each position.

    Attributes:
        found: those of the first tokens; None for the first one, which has no distribution.
    """

    def __init__(self, tokens: Sequence[int], n_top: int) -> None:
        self._tokens, self._n_top = tuple(tokens), n_top
        self.found: list[TokenLogprob | None] = [None]

    @property
    def n_evaluated(self) -> int:
        """Number of leading tokens whose logits are no longer needed."""
        return len(self.found) - 1

    @property
    def is_complete(self) -> bool:
        """Whether all tokens have theirs."""
        return len(self.found) == len(self._tokens)

    def add(self, first: int, logits: Floats) -> None:
        """Take the logits of the tokens from index ``first`` on, float32[n, n_vocab].

        Those of tokens evaluated before are ignored.
        """
        rows, tokens = logits[self.n_evaluated - first :], self._tokens[len(self.found) :]
        for row, token in zip(rows, tokens, strict=False):  # the last token's logits are not used
            self.found.append(token_logprob(row, token, self._n_top))
