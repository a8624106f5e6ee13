"""Drafts change no token of the demo model's texts, whose tokens are those of a trained model.

Every drafter runs alone or with four texts at once, in turn; both run on a tiny model
(``engine/test_drafts``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from pyllama import Context, Model
from pyllama.engine.generate import generate_many
from pyllama.sampling import SamplingParams
from pyllama.speculative import (
    DRAFTERS,
    Drafter,
    ModelDrafter,
    Speculation,
    SuffixDecoding,
    Translated,
    self_draft,
)

pytestmark = [pytest.mark.model, pytest.mark.long]
PARAMS = {
    "greedy": SamplingParams(temp=0.0),
    "drawn": SamplingParams(temp=0.8, seed=7, repeat_penalty=1.1),
}
N_PREDICT = 10
Wanted = dict[str, list[tuple[int, int]]]


@pytest.fixture(scope="module")
def model(demo_model: Path) -> Iterator[Model]:
    with Model.load(demo_model) as model:
        yield model


@pytest.fixture(scope="module")
def prompts(model: Model) -> list[list[int]]:
    """Random tokens, of which some repeat."""
    random = np.random.default_rng(26)
    words = [random.integers(300, model.hparams.n_vocab, n).tolist() for n in (1, 2, 3, 5)]
    return [
        [token for i in random.integers(0, 4, random.integers(1, 9)) for token in words[i]]
        for _ in range(12)
    ]


@pytest.fixture(scope="module")
def wanted(model: Model, prompts: list[list[int]]) -> Wanted:
    """The texts without drafts."""
    context = Context(model, n_ctx=256, n_seq_max=4)
    return {
        name: sorted(generate_many(context, prompts, params, n_predict=N_PREDICT))
        for name, params in PARAMS.items()
    }


def same_model(target: Context, width: int) -> Drafter:
    """The target as its own draft model, which is always right in a chain."""
    return ModelDrafter(Context(target.model, n_ctx=512, n_seq_max=4), width=width, p_split=0.0)


def translated(target: Context) -> Drafter:
    tokenizer = target.model.tokenizer
    return Translated(self_draft(target, n_layer=10), tokenizer, tokenizer)


MADE: dict[str, Callable[[Context], Drafter]] = {
    **{f"same model, width {n}": partial(same_model, width=n) for n in (1, 2, 3, 4)},
    "first layers": partial(self_draft, n_layer=15),
    "first layers, width 3": partial(self_draft, n_layer=15, width=3, p_split=0.0),
    "suffix tree": lambda target: SuffixDecoding(is_tree=True),
    "translated": translated,
    **{name: lambda target, make=make: make() for name, make in DRAFTERS.items()},
}


@pytest.mark.parametrize(
    ("name", "key", "n_seq_max"),
    [(name, *(("greedy", 1), ("drawn", 4))[i % 2]) for i, name in enumerate(MADE)],
)
def test_random_prompts(
    model: Model, prompts: list[list[int]], wanted: Wanted, name: str, key: str, n_seq_max: int
) -> None:
    target = Context(model, n_ctx=256, n_seq_max=n_seq_max)
    speculation = Speculation(MADE[name](target), 5, adaptive=False)
    made = generate_many(target, prompts, PARAMS[key], n_predict=N_PREDICT, speculation=speculation)
    assert sorted(made) == wanted[key]
    if name == "same model, width 1" and key == "greedy":
        assert speculation.stats.n_accept == speculation.stats.n_drafted > 0
