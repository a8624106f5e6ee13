"""Prompts in host memory: what is saved, restored and dropped, and equal texts."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from pyllama import Context
from pyllama.engine import Engine, Request, Usage
from pyllama.engine.prefix_store import PrefixStore
from pyllama.sampling import SamplingParams

Make = Callable[..., Context]
PROMPTS = [list(np.random.default_rng(i).integers(3, 250, 40)) for i in range(4)]


def run(engine: Engine, prompt: list[int], **fields: object) -> tuple[list[int], Usage]:
    request = Request(prompt, SamplingParams(seed=3), max_tokens=4, stop_at_eog=False, **fields)
    tokens: list[int] = []
    for event in engine.run(request):
        tokens += event.tokens
        usage = event.usage
    assert usage is not None
    return tokens, usage


@pytest.mark.parametrize("unified", [False, True])
@pytest.mark.parametrize("save_idle", [False, True])
def test_dropped_prompts_are_restored(make: Make, unified: bool, save_idle: bool) -> None:
    def engine(prefixes: PrefixStore | None) -> Engine:
        return Engine(make(n_ctx=128, n_seq_max=2, unified=unified), prefixes=prefixes)

    plain, store = engine(None), PrefixStore(1 << 30, save_idle=save_idle)
    storing = engine(store)
    first = [run(plain, prompt, reuse=False)[0] for prompt in PROMPTS]
    assert [run(storing, prompt)[0] for prompt in PROMPTS] == first
    for prompt, wanted in zip(PROMPTS, first, strict=True):
        tokens, usage = run(storing, prompt)
        assert tokens == wanted and usage.n_cached == len(prompt) - 1
    assert store.n_bytes == sum(saved.n_bytes for saved in store._saved)


def test_idle_sequences_are_cleared_if_cells_are_shared(make: Make) -> None:
    store = PrefixStore(1 << 30, save_idle=True)
    engine = Engine(make(n_ctx=256, n_seq_max=3), prefixes=store)
    for prompt in PROMPTS[:3]:
        run(engine, prompt)
    assert [s.n_tokens > 0 for s in engine.sequences].count(True) == 1
    assert len(store) == 2


def test_the_least_recently_used_are_dropped(make: Make) -> None:
    store = PrefixStore(1 << 30)
    engine = Engine(make(n_ctx=64, n_seq_max=1), prefixes=store)
    for prompt in PROMPTS:
        run(engine, prompt)
    one = store.n_bytes // 3
    small = PrefixStore(2 * one + 10)
    engine = Engine(make(n_ctx=64, n_seq_max=1), prefixes=small)
    for prompt in PROMPTS:
        run(engine, prompt)
    assert len(small) == 2
    assert run(engine, PROMPTS[0])[1].n_cached == 0
    assert run(engine, PROMPTS[2])[1].n_cached == 39


def test_what_is_not_saved(make: Make) -> None:
    store = PrefixStore(1 << 30)
    engine = Engine(make(n_ctx=64, n_seq_max=1), prefixes=store)
    run(engine, PROMPTS[0][:8])
    run(engine, PROMPTS[1])
    assert not len(store)  # too short to be worth a copy
    run(engine, PROMPTS[1] + PROMPTS[2][:15])
    run(engine, PROMPTS[3])
    assert len(store) == 1  # the longer one covers the shorter one
    tiny = PrefixStore(10)
    engine = Engine(make(n_ctx=64, n_seq_max=1), prefixes=tiny)
    run(engine, PROMPTS[0])
    run(engine, PROMPTS[1])
    assert not len(tiny) and tiny.n_bytes == 0


def test_requests_may_name_a_sequence_or_ignore_the_cache(make: Make) -> None:
    engine = Engine(make(n_ctx=256, n_seq_max=3))
    tokens, usage = run(engine, PROMPTS[0], seq_id=2)
    assert usage.n_cached == 0
    assert engine.sequences[2].n_tokens and not engine.sequences[0].n_tokens
    assert run(engine, PROMPTS[0])[1].n_cached == 39
    again, usage = run(engine, PROMPTS[0], reuse=False)
    assert again == tokens and usage.n_cached == 0
