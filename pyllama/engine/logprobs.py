"""Log-probabilities of sampled tokens and of the most likely alternatives."""

from __future__ import annotations

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
