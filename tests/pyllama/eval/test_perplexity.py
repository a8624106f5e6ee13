"""Perplexity against a plain double-precision reference."""

from __future__ import annotations

import math

import numpy as np
import pytest

from pyllama.errors import BatchError, ContextFull, PerplexityError
from pyllama.eval.perplexity import Perplexity, perplexity, strided_perplexity, token_losses

from ..fake_context import BOS, FakeContext, FakeModel

TOKENS = [BOS, *np.random.default_rng(3).integers(3, 259, 50).tolist()]


def twin(model: FakeModel, n_ctx: int, n_chunks: int) -> tuple[float, float]:
    losses = []
    for start in range(0, n_chunks * n_ctx, n_ctx):
        chunk = [BOS, *TOKENS[start + 1 : start + n_ctx]]
        for i in range(n_ctx // 2, n_ctx - 1):
            logits = model.logits(chunk[: i + 1]).astype(np.float64)
            losses.append(np.log(np.exp(logits).sum()) - logits[chunk[i + 1]])
    ppl = math.exp(np.mean(losses))
    return ppl, np.std(losses) / math.sqrt(len(losses) - 1) * ppl


@pytest.mark.parametrize(
    ("n_ctx", "n_batch"), [(16, 16), (16, 5), (16, 9), (15, 4), (6, 1), (7, 3)]
)
def test_perplexity_matches_the_reference(n_ctx: int, n_batch: int) -> None:
    context = FakeContext(FakeModel("any text"), n_ctx=n_ctx, n_batch=n_batch)
    results = list(perplexity(context, TOKENS))
    assert [r.chunk for r in results] == list(range(1, len(TOKENS) // n_ctx + 1))
    for result in results:
        ppl, error = twin(context.model, n_ctx, result.chunk)
        assert result.ppl == pytest.approx(ppl, rel=1e-6)
        assert result.error == pytest.approx(error, rel=1e-5)
        assert result.n_scored == result.chunk * (n_ctx - n_ctx // 2 - 1)


def test_n_ctx_and_n_chunks() -> None:
    context = FakeContext(FakeModel(), n_ctx=32)
    small = list(perplexity(context, TOKENS, n_ctx=8, n_chunks=3))
    assert [r.chunk for r in small] == [1, 2, 3]
    assert small[-1].ppl == pytest.approx(twin(context.model, 8, 3)[0], rel=1e-6)


@pytest.mark.parametrize(
    ("n_ctx", "n_batch", "stride", "n_chunks"),
    [(16, 16, 5, 7), (16, 5, 1, 35), (16, 7, 15, 3), (20, 64, 10, 4), (16, 3, 5, 2)],
)
def test_strided_perplexity(n_ctx: int, n_batch: int, stride: int, n_chunks: int) -> None:
    context = FakeContext(FakeModel("any text"), n_ctx=n_ctx, n_batch=n_batch)
    results = list(strided_perplexity(context, TOKENS, stride, n_chunks=n_chunks))
    assert [r.chunk for r in results] == list(range(1, n_chunks + 1))
    losses = []
    for start in range(0, n_chunks * stride, stride):
        chunk = TOKENS[start : start + n_ctx]
        assert len(chunk) == n_ctx
        for i in range(n_ctx - stride - 1, n_ctx - 1):
            logits = context.model.logits(chunk[: i + 1]).astype(np.float64)
            losses.append(np.log(np.exp(logits).sum()) - logits[chunk[i + 1]])
    assert results[-1].n_scored == len(losses) == n_chunks * stride
    assert results[-1].ppl == pytest.approx(math.exp(np.mean(losses)), rel=1e-6)


def test_all_complete_strides() -> None:
    context = FakeContext(FakeModel(), n_ctx=16)
    assert len(list(strided_perplexity(context, TOKENS, 5))) == 7  # (51 - 16) / 5
    assert len(list(strided_perplexity(context, TOKENS, 4))) == 9
    for stride in (0, -1, 16):
        with pytest.raises(BatchError, match="want 1 to 15"):
            strided_perplexity(context, TOKENS, stride)
    with pytest.raises(PerplexityError, match=r"51 tokens.* needs 64"):
        strided_perplexity(FakeContext(FakeModel(), n_ctx=32), TOKENS, 4)


def test_invalid_sizes_are_refused() -> None:
    context = FakeContext(FakeModel(), n_ctx=32)
    with pytest.raises(PerplexityError, match=r"51 tokens.* needs 64"):
        perplexity(context, TOKENS)
    with pytest.raises(ContextFull, match="chunks of 64 tokens in a context of 32"):
        perplexity(context, TOKENS, n_ctx=64)
    with pytest.raises(BatchError, match="must be at least 4"):
        perplexity(context, TOKENS, n_ctx=3)


def test_losses_are_stable_for_large_logits() -> None:
    logits = np.array([[1e4, 0, -1e4], [-1e4, -1e4, -1e4]], np.float32)
    assert token_losses(logits, [0, 1]) == pytest.approx([0, math.log(3)])
    assert token_losses(logits, [2, 0]) == pytest.approx([2e4, math.log(3)])


def test_nan_logits_are_an_error_and_infinite_perplexity_is_not() -> None:
    model = FakeModel()
    model.logits = lambda tokens: np.full(260, np.nan, np.float32)  # type: ignore[method-assign]
    with pytest.raises(PerplexityError, match="not finite"):
        next(perplexity(FakeContext(model, n_ctx=16), TOKENS))
    assert Perplexity(1, 1, 1e6, 1e12).ppl == math.inf
    assert Perplexity(1, 1, 2.0, 4.0).error == 0
