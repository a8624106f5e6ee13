"""KL divergence of a model's probabilities from those of a base model, by llama.cpp's method.

    saved = SavedLogits("f16.logits")              # of the base model: perplexity(logits_file=...)
    for result in kl_divergence(context, saved):
        print(result.kld)                          # Estimate(value=0.0123, error=0.0004)

Positions and chunks are those of ``perplexity``. The base's probabilities are stored in 16 bits, so
the divergence of a model from itself is about 1e-6.
Source: llama.cpp, ``perplexity.cpp``, ``kl_divergence``.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from ..errors import ContextFull, SavedLogitsError
from .perplexity import check_finite, scored_logits
from .saved_logits import SavedLogits

if TYPE_CHECKING:
    from ..runtime.context import Context

Floats = npt.NDArray[np.float32]
Doubles = npt.NDArray[np.float64]
_MIN_LOG_PROB = -16.0  # less likely tokens of the base are ignored
_MIN_COUNT = 10  # tokens needed to estimate an error
_BLOCK_ROWS = 4


@dataclass(frozen=True)
class Estimate:
    """A mean and its standard error."""

    value: float
    error: float


@dataclass(frozen=True)
class Divergence:
    """The values of all scored tokens so far, in order.

    Attributes:
        chunk: number of evaluated chunks.
        nll, nll_base: -log p of the actual token, in nats, of the model and of the base.
        kld: Kullback-Leibler divergence of the model's probabilities from the base's.
        p_diff: p - p_base of the actual token.
        same_top: whether the most likely token is the same.
    """

    chunk: int
    nll: Doubles
    nll_base: Doubles
    kld: Doubles
    p_diff: Doubles
    same_top: npt.NDArray[np.bool_]

    @property
    def ppl(self) -> Estimate:
        """Perplexity of the model."""
        return _exp(_mean(self.nll))

    @property
    def ppl_base(self) -> Estimate:
        """Perplexity of the base."""
        return _exp(_mean(self.nll_base))

    @property
    def covariance(self) -> float:
        """Covariance of the two means of -log p."""
        n = len(self.nll)
        if n < _MIN_COUNT:
            return 0.0
        return float(np.mean(self.nll * self.nll_base) - self.nll.mean() * self.nll_base.mean()) / (
            n - 1
        )

    @property
    def correlation(self) -> float:
        """Correlation of the two means of -log p, from -1 to 1."""
        errors = _mean(self.nll).error * _mean(self.nll_base).error
        return self.covariance / errors if errors else math.nan

    @property
    def log_ratio(self) -> Estimate:
        """ln(PPL / PPL_base)."""
        model, base = _mean(self.nll), _mean(self.nll_base)
        variance = model.error**2 + base.error**2 - 2 * self.covariance
        return Estimate(model.value - base.value, math.sqrt(max(variance, 0.0)))

    @property
    def ratio(self) -> Estimate:
        """PPL / PPL_base."""
        return _exp(self.log_ratio)

    @property
    def difference(self) -> Estimate:
        """PPL - PPL_base."""
        model, base = self.ppl, self.ppl_base
        both = model.value * base.value * self.covariance
        variance = model.error**2 + base.error**2 - 2 * both
        return Estimate(model.value - base.value, math.sqrt(max(variance, 0.0)))

    @property
    def mean_kld(self) -> Estimate:
        """Mean divergence, in nats."""
        return _mean(self.kld)

    @property
    def mean_p_diff(self) -> Estimate:
        """Mean of p - p_base."""
        return _mean(self.p_diff)

    @property
    def rms_p_diff(self) -> Estimate:
        """Root mean square of p - p_base."""
        square = _mean(self.p_diff**2)
        root = math.sqrt(square.value)
        return Estimate(root, 0.5 / root * square.error if root else 0.0)

    @property
    def top_agreement(self) -> Estimate:
        """Share of tokens for which the most likely token is the same."""
        share, n = float(self.same_top.mean()), len(self.same_top)
        return Estimate(share, math.sqrt(share * (1 - share) / max(n - 1, 1)))


def percentile(values: Doubles, fraction: float) -> float:
    """Return the quantile of the values at ``fraction``."""
    return float(np.quantile(values, fraction))


def _mean(values: Doubles) -> Estimate:
    n = len(values)
    mean = math.fsum(values) / n
    variance = math.fsum(values * values) / n - mean * mean
    return Estimate(mean, math.sqrt(variance / (n - 1)) if variance > 0 and n > 10 else 0.0)


def _exp(x: Estimate) -> Estimate:
    value = math.exp(x.value) if x.value < 700 else math.inf
    return Estimate(value, value * x.error)


def kl_divergence(
    context: Context, saved: SavedLogits, n_chunks: int | None = None
) -> Iterator[Divergence]:
    """Evaluate the saved text chunk by chunk.

    Args:
        context: its cache is cleared before every chunk.
        n_chunks: maximum number of chunks; None for all.

    Yields:
        The running result after each chunk.

    Raises:
        SavedLogitsError: the file is of a model with another vocabulary.
        ContextFull: its chunks are longer than the context.
        PerplexityError: logits are not finite (raised by the iterator).
    """
    n_vocab = context.model.hparams.n_vocab
    if saved.n_vocab != n_vocab:
        raise SavedLogitsError(
            f"{saved.path}: its model has {saved.n_vocab} tokens, this one has {n_vocab}; "
            "compare models with the same vocabulary"
        )
    if not 0 <= int(saved.tokens.min()) <= int(saved.tokens.max()) < n_vocab:
        raise SavedLogitsError(f"{saved.path}: has tokens that are not in the vocabulary of "
                               f"{n_vocab}; the file is damaged")  # fmt: skip
    if saved.n_ctx > context.n_ctx_seq:
        raise ContextFull(
            f"{saved.path}: has chunks of {saved.n_ctx} tokens, the context {context.n_ctx_seq}; "
            f"use `n_ctx={saved.n_ctx}`"
        )
    n_chunks = saved.n_chunks if n_chunks is None else min(n_chunks, saved.n_chunks)
    return _run(context, saved, n_chunks)


def _run(context: Context, saved: SavedLogits, n_chunks: int) -> Iterator[Divergence]:
    rows: list[npt.NDArray[np.float64]] = []  # [n, 5] each
    for i in range(n_chunks):
        at = 0
        for logits, targets in scored_logits(context, saved.tokens[i]):
            for start in range(0, len(targets), _BLOCK_ROWS):
                part = slice(start, min(start + _BLOCK_ROWS, len(targets)))
                base = saved.log_probs(i, slice(at + part.start, at + part.stop))
                rows.append(_compare(logits[part], base, targets[part]))
                check_finite(rows[-1][:, 0], i)
            at += len(targets)
        nll, nll_base, kld, p_diff, same = np.concatenate(rows).T
        yield Divergence(i + 1, nll, nll_base, kld, p_diff, same != 0)


def _compare(logits: Floats, base: Floats, targets: npt.NDArray[np.int32]) -> Doubles:
    """Return [n, 5]: nll, nll_base, divergence, p - p_base, whether the argmax is the same."""
    rows = np.arange(len(targets))
    max_logits = logits.max(axis=1, keepdims=True)
    total = np.exp(logits - max_logits).sum(axis=1, keepdims=True, dtype=np.float64)
    log_probs = logits - (max_logits + np.log(total).astype(np.float32))
    counted = base > _MIN_LOG_PROB
    terms = np.where(counted, np.exp(base) * (base - log_probs), np.float32(0))
    nll, nll_base = -log_probs[rows, targets], -base[rows, targets]
    return np.stack(
        [
            nll,
            nll_base,
            terms.sum(axis=1, dtype=np.float64),
            np.exp(-nll) - np.exp(-nll_base),
            logits.argmax(axis=1) == base.argmax(axis=1),
        ],
        axis=1,
        dtype=np.float64,
    )
