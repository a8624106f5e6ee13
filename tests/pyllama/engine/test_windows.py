"""Sliding windows: a sequence goes back to checkpoints although entries there were evicted."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from pyllama import Batch, Context
from pyllama.engine import Engine, Request
from pyllama.sampling import SamplingParams

Make = Callable[..., Context]
TOKENS = np.random.default_rng(4).integers(5, 250, 2000).tolist()
GREEDY = SamplingParams(temp=0.0, ignore_eos=True)
SIZES = {"n_ctx": 2048, "n_ubatch": 64}


def logits_after(context: Context, tokens: list[int]) -> np.ndarray:
    context.decode(Batch(tokens))
    return context.logits.copy()


@pytest.mark.parametrize("unified", [True, False])
def test_back_to_a_checkpoint(windowed: Make, unified: bool) -> None:
    context = windowed(**SIZES | {"n_ctx": 4096}, n_seq_max=2, unified=unified)
    kv = context.kv
    assert kv.has_checkpoints and kv.caches[1].n_cells < 1000
    n = 1900
    context.decode(Batch(TOKENS[:n], checkpoints=[99, 299, 700]))
    assert [kv.resume(0, p) for p in (50, 100, 500, 800, n)] == [0, 100, 300, 701, n]
    fresh = windowed(**SIZES)
    for position in (701, 300, 100):
        assert kv.rewind(0, position + 5) == position
        fresh.kv.clear()
        fresh.decode(Batch(TOKENS[:position]))
        assert np.array_equal(
            logits_after(context, TOKENS[-40:]), logits_after(fresh, TOKENS[-40:])
        )
    assert kv.resume(0, 139) == 139 and kv.seq_pos_max(0) == 139


def test_other_sequences_and_copies(windowed: Make) -> None:
    context, fresh = windowed(**SIZES, n_seq_max=3), windowed(**SIZES)
    context.decode(Batch(TOKENS[:900], checkpoints=[399]))
    context.decode(Batch(TOKENS[900:1000], seq_id=1))
    engine = Engine(context)
    engine.sequences[0].adopt(TOKENS[:900])
    engine.sequences[2].fork(engine.sequences[0], 400)
    fresh.decode(Batch(TOKENS[:400]))
    expected = logits_after(fresh, TOKENS[:9])
    context.decode(Batch(TOKENS[:9], seq_id=2))
    assert np.array_equal(context.logits, expected)
    context.decode(Batch(TOKENS[5:600], seq_id=2))
    assert context.kv.rewind(2, 450) == 400 and context.kv.rewind(0, 450) == 400
    for seq in (0, 2):
        context.decode(Batch(TOKENS[:9], seq_id=seq))
        assert np.array_equal(context.logits, expected)


def test_without_checkpoints_all_is_read_again(windowed: Make) -> None:
    context = windowed(**SIZES, n_checkpoints=0)
    context.decode(Batch(TOKENS[:900], checkpoints=[399]))
    assert context.kv.resume(0, 400) == 0


def test_checkpoints_every_so_many_tokens(windowed: Make) -> None:
    context = windowed(**SIZES, checkpoint_every=128)
    context.decode(Batch(TOKENS[:900]))
    assert context.kv.resume(0, 400) == 384


def test_a_prompt_that_changed_is_read_from_a_checkpoint(windowed: Make) -> None:
    engine = Engine(windowed(**SIZES, checkpoint_every=128))

    def answer(tokens: list[int]) -> tuple[list[int], int]:
        events = list(engine.run(Request(tokens, GREEDY, max_tokens=10, text=False)))
        return [t for event in events for t in event.tokens], events[-1].usage.n_cached

    answer(TOKENS[:1200])
    for n in (1000, 500, 260):
        changed = [*TOKENS[:n], *TOKENS[-30:]]
        reply, n_cached = answer(changed)
        assert n_cached == (n if n == 1000 else n - n % 128)  # some are still in the cache
        alone = Engine(windowed(**SIZES)).run(Request(changed, GREEDY, max_tokens=10, text=False))
        assert reply == [t for event in alone for t in event.tokens]


def test_memory_bounds_what_is_kept(windowed: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    context = windowed(**SIZES, checkpoint_every=128)
    monkeypatch.setattr("pyllama.kv.evicted.available_memory", lambda: 300_000)
    context.decode(Batch(TOKENS[:1500]))
    kept = context.kv.caches[1].kept
    n_bytes = sum(chunk.n_bytes for chunk in kept._chunks[0])
    assert 3 * n_bytes <= 300_000 and context.kv.resume(0, 200) == 0
