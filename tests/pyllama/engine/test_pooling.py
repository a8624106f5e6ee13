"""Embeddings as requests: the same bits alone, among texts, in parts and after preemption."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyllama import Batch
from pyllama.engine import Engine, Event, Policy, Request
from pyllama.engine.pooling import PooledRows
from pyllama.errors import BatchError
from pyllama.runtime.overrides import Overrides
from pyllama.sampling import SamplingParams
from pyllama.speculative import PromptLookup, Speculation

from ..conftest import Make

TOKENS = np.random.default_rng(4).integers(3, 259, 60).tolist()
GREEDY = SamplingParams(temp=0.0, ignore_eos=True)
POOLINGS = ("none", "mean", "cls", "last")


def pooled(rows: np.ndarray, pooling: str) -> np.ndarray:
    """What a request with this pooling returns for a text of these rows."""
    if pooling == "mean":
        mean: np.ndarray = rows.mean(axis=0, dtype=np.float64).astype(np.float32)
        return mean
    return {"none": rows, "cls": rows[0], "last": rows[-1]}[pooling]


@pytest.fixture
def rows(make: Make) -> np.ndarray:
    """The embeddings of all tokens, from one decode."""
    context = make()
    context.decode(Batch(TOKENS, logits="none", embeddings="all"))
    return context.embeddings.copy()


def collect(engine: Engine, requests: list[Request]) -> list[list[Event]]:
    """The events of requests that run at the same time."""
    found: list[list[Event]] = [[] for _ in requests]
    for request, events in zip(requests, found, strict=True):
        engine.submit(request, events.append)
    while engine.has_work:
        engine.step()
    return found


@pytest.mark.parametrize("pooling", POOLINGS)
def test_a_request_alone(make: Make, rows: np.ndarray, pooling: str) -> None:
    request = Request(TOKENS, pooling=pooling, progress=True)
    for options in ({}, {"n_batch": 16}, {"n_ubatch": 7}, {"n_batch": 1}):
        engine = Engine(make(**options))
        for _ in range(2):  # the second finds the tokens in the cache
            *progress, made, end = engine.run(request)
            assert made.kind == "embedding" and made.embedding is not None
            assert np.array_equal(made.embedding, pooled(rows, pooling))
            assert (end.kind, end.reason) == ("end", "length")
            assert made.usage == end.usage and end.usage is not None
            assert end.usage.n_prompt == len(TOKENS) and end.usage.n_generated == 0
            assert {event.kind for event in progress} <= {"progress"}


def test_last_reuses_a_prefix_and_mean_does_not(make: Make, rows: np.ndarray) -> None:
    engine = Engine(make())
    for pooling, n_cached in (("last", 0), ("last", 59), ("mean", 0), ("last", 59), ("cls", 0)):
        *_, end = engine.run(Request(TOKENS, pooling=pooling))
        assert end.usage is not None and end.usage.n_cached == n_cached, pooling


class Mixed:
    """Texts and embeddings, and what each gives in a context of its own."""

    def __init__(self, make: Make) -> None:
        context = make(n_ctx=256)
        self.requests: list[Request] = []
        self.alone: list[Any] = []
        for i in range(12):
            tokens = TOKENS[: 3 + 4 * i] if i % 3 else TOKENS[i : i + 20]
            pooling = (None, "mean", "last", "none", "cls")[i % 5]
            request = Request(tokens, GREEDY, max_tokens=9, text=False, pooling=pooling)
            self.requests.append(request)
            context.kv.clear()
            self.alone.append(self.result(list(Engine(context).run(request))))

    @staticmethod
    def result(events: list[Event]) -> Any:
        """The generated tokens, or the embedding as bytes."""
        assert events[-1].kind == "end", events[-1]
        for event in events:
            if event.embedding is not None:
                return event.embedding.tobytes()
        return [token for event in events for token in event.tokens]


@pytest.fixture(scope="module")
def mixed(make: Make) -> Mixed:
    return Mixed(make)


@settings(max_examples=6)
@given(
    st.integers(1, 6), st.sampled_from([1, 5, 16, 64]), st.sampled_from([7, 64]),
    st.permutations(range(12)), st.integers(1, 20), st.integers(60, 150),
)  # fmt: skip
def test_among_texts(
    make: Make, mixed: Mixed, n_seq: int, n_batch: int, n_ubatch: int, order: list[int],
    max_prompt: int, n_ctx: int,
) -> None:  # fmt: skip
    """Small contexts also preempt."""
    context = make(n_ctx=n_ctx, n_seq_max=n_seq, n_batch=n_batch, n_ubatch=n_ubatch)
    engine = Engine(context, policy=Policy(max_prompt_tokens=max_prompt, n_reserve=0))
    requests = [mixed.requests[i] for i in order]
    found = collect(engine, requests)
    assert [Mixed.result(events) for events in found] == [mixed.alone[i] for i in order]


def test_beside_drafted_texts(make: Make, mixed: Mixed) -> None:
    speculation = Speculation(PromptLookup(), adaptive=False)
    engine = Engine(make(n_ctx=256, n_seq_max=4), speculation=speculation)
    found = collect(engine, mixed.requests)
    assert [Mixed.result(events) for events in found] == mixed.alone


def test_a_preempted_request_goes_on(make: Make, rows: np.ndarray) -> None:
    for pooling in POOLINGS:
        engine, events = Engine(make(n_batch=16)), list[Event]()
        engine.submit(Request(TOKENS, pooling=pooling, priority=0), events.append)
        engine.step()
        text = list[Event]()
        engine.submit(Request(TOKENS[:9], GREEDY, max_tokens=5, priority=1), text.append)
        while engine.has_work:
            engine.step()
        assert text[-1].kind == "end" and events[-1].kind == "end"
        got = next(event.embedding for event in events if event.embedding is not None)
        assert np.array_equal(got, pooled(rows, pooling))


@pytest.mark.parametrize("pooling", POOLINGS)
def test_without_causality_texts_are_whole(make: Make, pooling: str) -> None:
    overrides = Overrides(causal=False)
    context = make(n_ubatch=40, overrides=overrides)
    texts = [TOKENS[:n] for n in (40, 3, 25, 1, 30, 11, 40)]
    alone = []
    for text in texts:
        context.kv.clear()
        context.decode(Batch(text, logits="none", embeddings="all"))
        alone.append(pooled(context.embeddings.copy(), pooling))
    engine = Engine(make(n_ctx=128, n_seq_max=4, n_ubatch=40, overrides=overrides))
    found = collect(engine, [Request(text, pooling=pooling) for text in texts])
    for events, wanted in zip(found, alone, strict=True):
        assert np.array_equal(events[0].embedding, wanted)  # type: ignore[arg-type]
    with pytest.raises(BatchError, match="it computes embeddings, no texts"):
        engine.submit(Request(TOKENS[:9]))


def test_ends_of_requests(make: Make) -> None:
    engine, events = Engine(make(n_batch=8)), list[Event]()
    number = engine.submit(Request(TOKENS, pooling="mean"), events.append)
    engine.step()
    engine.abort(number)
    engine.step()
    assert [(event.kind, event.reason) for event in events] == [("end", "abort")]
    engine.submit(Request(TOKENS, pooling="mean", deadline_s=0.0), events.append)
    engine.step()
    assert events[-1].reason == "deadline" and not engine.has_work


def test_rows_in_parts_of_any_size() -> None:
    rows = np.random.default_rng(0).standard_normal((20, 5)).astype(np.float32)
    for pooling in POOLINGS:
        for size in (1, 3, 20):
            got = PooledRows(pooling, 20, causal=True)
            for first in range(0, 20, size):
                part = rows[first : first + size]
                flags = got.wanted(first, len(part))
                keep = [flags == "all"] * len(part) if isinstance(flags, str) else flags
                got.add(first, part[np.array(keep)])
                if pooling in ("none", "mean"):
                    got.add(0, rows[: first + 1])  # evaluated again after a preemption
            assert np.array_equal(got.result(), pooled(rows, pooling))
