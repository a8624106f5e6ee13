"""Perplexity of a model over a text, by llama.cpp's method.

    for result in perplexity(context, tokens):
        print(f"[{result.chunk}]{result.ppl:.4f},", end="")
    print(f"\\nFinal estimate: PPL = {result.ppl:.4f} +/- {result.error:.5f}")

The text is split into chunks of the context's size. Each is evaluated from an empty cache, with the
first token replaced by BOS if the model adds BOS. Only the second half of a chunk is scored, so
that every scored token has at least half a context before it. `strided_perplexity` scores every
token once, with more context before it, in more time.
"""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from ..engine import Engine, Lease
from ..errors import BatchError, ContextFull, PerplexityError
from .saved_logits import logits_writer

if TYPE_CHECKING:
    from ..runtime.context import Context

_BLOCK_ROWS = 4  # rows of logits at a time, so that their copy stays in the L2 cache


@dataclass(frozen=True)
class Perplexity:
    """The estimate after some chunks.

    Attributes:
        chunk: number of evaluated chunks.
        n_scored: number of scored tokens.
        nll: sum of -log p over them, in nats.
        nll2: sum of (-log p)^2.
    """

    chunk: int
    n_scored: int
    nll: float
    nll2: float

    @property
    def ppl(self) -> float:
        """exp of the mean of -log p."""
        mean = self.nll / self.n_scored
        return math.exp(mean) if mean < 700 else math.inf

    @property
    def error(self) -> float:
        """Standard error of ``ppl``; 0 if the variance is 0."""
        mean = self.nll / self.n_scored
        variance = self.nll2 / self.n_scored - mean * mean
        if variance <= 0 or self.n_scored < 2:
            return 0.0
        return math.sqrt(variance / (self.n_scored - 1)) * self.ppl

    def after(self, losses: npt.NDArray[np.float64]) -> Perplexity:
        """The estimate after a further chunk with these losses of scored tokens."""
        return Perplexity(
            self.chunk + 1,
            self.n_scored + len(losses),
            self.nll + math.fsum(losses),
            self.nll2 + math.fsum(losses * losses),
        )


def perplexity(
    context: Context,
    tokens: Sequence[int],
    n_ctx: int | None = None,
    n_chunks: int | None = None,
    logits_file: str | os.PathLike[str] | None = None,
) -> Iterator[Perplexity]:
    """Evaluate a text chunk by chunk.

    Args:
        context: its cache is cleared before every chunk.
        tokens: the whole text, with BOS if the tokenizer adds one.
        n_ctx: tokens per chunk; None for the context's size.
        n_chunks: maximum number of chunks; None for all complete ones.
        logits_file: file to save probabilities to, for ``kl_divergence``; it is complete after the
            last chunk.

    Yields:
        The running estimate after each chunk; the last one is the final estimate.

    Raises:
        PerplexityError: there are fewer than two chunks; tokens attend to later ones; or logits are
            not finite (raised by the iterator).
        ContextFull: ``n_ctx`` is larger than the context.
        BatchError: ``n_ctx`` is below 4.
        OSError: the file cannot be written.

    Source: llama.cpp, ``perplexity.cpp``, ``perplexity``.
    """
    n_ctx = context.n_ctx_seq if n_ctx is None else n_ctx
    _check_sizes(context, tokens, n_ctx)
    max_chunks = len(tokens) // n_ctx
    n_chunks = max_chunks if n_chunks is None else min(n_chunks, max_chunks)
    chunks = [*np.array(tokens[: n_chunks * n_ctx], np.int32).reshape(n_chunks, n_ctx)]
    return _run(context, chunks, logits_file=logits_file)


def strided_perplexity(
    context: Context,
    tokens: Sequence[int],
    stride: int,
    n_ctx: int | None = None,
    n_chunks: int | None = None,
) -> Iterator[Perplexity]:
    """Evaluate a text in chunks that overlap: each begins ``stride`` tokens after the one before.

    The last ``stride`` tokens of each chunk are scored. As in llama.cpp no token is replaced by
    BOS.

    Arguments and results are otherwise those of `perplexity`.

    Raises:
        BatchError: ``stride`` is not from 1 to ``n_ctx - 1``; others as `perplexity`.

    Source: llama.cpp, ``perplexity.cpp``, ``perplexity_v2``.
    """
    n_ctx = context.n_ctx_seq if n_ctx is None else n_ctx
    _check_sizes(context, tokens, n_ctx)
    if not 1 <= stride < n_ctx:
        raise BatchError(
            f"perplexity with a stride of {stride} in chunks of {n_ctx} tokens: want 1 to "
            f"{n_ctx - 1}"
        )
    max_chunks = -(-(len(tokens) - n_ctx) // stride)
    n_chunks = max_chunks if n_chunks is None else min(n_chunks, max_chunks)
    ids = np.array(tokens, np.int32)
    chunks = [ids[i * stride : i * stride + n_ctx] for i in range(n_chunks)]
    return _run(context, chunks, n_ctx - stride - 1)


def _check_sizes(context: Context, tokens: Sequence[int], n_ctx: int) -> None:
    """Check that a text has two chunks of ``n_ctx`` tokens, which fit. Raises: as `perplexity`."""
    if not context.hparams.causal:
        raise PerplexityError(
            "tokens of this context attend to later ones, so they are not predicted: a perplexity "
            "would have no meaning"
        )
    if n_ctx > context.n_ctx_seq:
        raise ContextFull(
            f"chunks of {n_ctx} tokens in a context of {context.n_ctx_seq}; use `n_ctx={n_ctx}`"
        )
    if n_ctx < 4:
        raise BatchError(f"perplexity in chunks of {n_ctx} tokens: `n_ctx` must be at least 4")
    if len(tokens) < 2 * n_ctx:
        raise PerplexityError(
            f"the text has {len(tokens)} tokens, perplexity with a context of {n_ctx} needs "
            f"{2 * n_ctx}; use a longer text or a smaller `n_ctx`"
        )


def _run(
    context: Context,
    chunks: Sequence[npt.NDArray[np.int32]],
    first: int | None = None,
    logits_file: str | os.PathLike[str] | None = None,
) -> Iterator[Perplexity]:
    """The estimates after each chunk; ``first``: see `scored_logits`."""
    estimate = Perplexity(0, 0, 0.0, 0.0)
    with contextlib.ExitStack() as stack:
        save: Callable[[npt.NDArray[np.float32]], None] | None = None
        if logits_file is not None:
            n_vocab = context.model.hparams.n_vocab
            save = stack.enter_context(logits_writer(logits_file, np.stack(chunks), n_vocab))
        for i, chunk in enumerate(chunks):
            parts = []
            for logits, targets in scored_logits(context, chunk, first):
                parts.append(token_losses(logits, targets))
                check_finite(parts[-1], i)
                if save is not None:
                    save(logits)
            estimate = estimate.after(np.concatenate(parts))
            yield estimate


def check_finite(losses: npt.NDArray[np.float64], chunk: int) -> None:
    """Check that losses are finite. Raises: PerplexityError."""
    if not np.isfinite(losses).all():
        raise PerplexityError(f"chunk {chunk + 1}: the model's logits are not finite numbers")


def scored_logits(
    context: Context, chunk: npt.NDArray[np.int32], first: int | None = None
) -> Iterator[tuple[npt.NDArray[np.float32], npt.NDArray[np.int32]]]:
    """Evaluate a chunk from an empty cache.

    Args:
        first: position of the first logits; None for n/2, and BOS as the first token if the model
            adds BOS.

    Yields:
        The logits of positions ``first`` to n-2, one decode at a time, and the tokens that follow.
    """
    tokenizer = context.model.tokenizer
    tokens = chunk.tolist()
    if first is None:
        first = len(chunk) // 2
        if tokenizer.add_bos and tokenizer.bos is not None:
            tokens[0] = tokenizer.bos
    end = len(chunk) - 1
    context.kv.clear()
    outputs = [position >= first for position in range(end)]  # the last token has no successor
    for start, logits in Lease(Engine(context, sequences=[0])).chunks(tokens[:end], outputs):
        if len(logits):
            done = max(first, start)
            yield logits, chunk[done + 1 : done + 1 + len(logits)]


def token_losses(
    logits: npt.NDArray[np.float32], targets: Sequence[int] | npt.NDArray[np.int32]
) -> npt.NDArray[np.float64]:
    """Return -log softmax(logits)[target] of each row, summed in float64 as llama.cpp does.

    Args:
        logits: float32 [n, n_vocab], only read.
        targets: n token ids.
    """
    ids = np.asarray(targets, np.intp)
    losses = np.empty(len(ids))
    for start in range(0, len(ids), _BLOCK_ROWS):
        rows = slice(start, min(start + _BLOCK_ROWS, len(ids)))
        block = logits[rows]
        with np.errstate(over="ignore", invalid="ignore"):  # callers check for NaN
            shifted = block - block.max(axis=1, keepdims=True)
        chosen = shifted[np.arange(len(block)), ids[rows]].astype(np.float64)
        np.exp(shifted, out=shifted)
        losses[rows] = np.log(shifted.sum(axis=1, dtype=np.float64)) - chosen
    return losses
