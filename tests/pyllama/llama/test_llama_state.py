"""States of a Llama continue with the same tokens: in the same or another object, or pickled."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pyllama import Llama, LlamaState
from pyllama.errors import StateError

from ..models import Spec, random_weights, write_model


@pytest.fixture(scope="module")
def make(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Llama]:
    spec = Spec()
    path = write_model(tmp_path_factory.mktemp("m") / "x.gguf", spec, random_weights(spec))
    return lambda **options: Llama(path, **{"n_ctx": 64, "verbose": False, **options})


@pytest.mark.parametrize("logits_all", [False, True])
def test_a_loaded_state_continues(make: Callable[..., Llama], logits_all: bool) -> None:
    llama = make(logits_all=logits_all, seed=5)
    prompt = llama.tokenize(b"hello there")
    llama.eval(prompt)
    state = llama.save_state()
    assert isinstance(state, LlamaState) and state.seed == 5 and state.n_tokens == len(prompt)
    assert len(state.llama_state) == state.llama_state_size
    assert state.scores.shape == (len(prompt), llama.n_vocab())
    rows = llama.scores[: len(prompt)].copy()
    first = [llama.sample(temp=0) for _ in range(2)]
    more = [next(llama.generate([first[0]], temp=0, reset=False))]
    llama.create_completion("other words", max_tokens=5, temperature=0)
    other = make(n_ctx=128, logits_all=logits_all)
    for target in (llama, other):
        target.load_state(pickle.loads(pickle.dumps(state)))
        assert target.n_tokens == len(prompt) and target.input_ids[: len(prompt)].tolist() == prompt
        assert np.array_equal(target.scores[len(prompt) - 1], rows[-1])
        assert not logits_all or np.array_equal(target.scores[: len(prompt)], rows)
        assert target.sample(temp=0) == first[0]
        assert [next(target.generate([first[0]], temp=0, reset=False))] == more


def test_states_of_nothing_and_of_less_than_the_cache_holds(make: Callable[..., Llama]) -> None:
    llama = make()
    empty = llama.save_state()
    tokens = llama.tokenize(b"hello there")
    llama.eval(tokens)
    llama.n_tokens = 4
    part = llama.save_state()
    assert (empty.n_tokens, part.n_tokens) == (0, 4) and empty.scores.shape[0] == 0
    llama.load_state(empty)
    assert llama.n_tokens == 0 == llama.context.kv.n_used
    llama.load_state(part)
    assert llama.context.kv.length(0) == 4
    llama.eval(tokens[4:])
    whole = make()
    whole.eval(tokens)
    assert np.array_equal(llama.scores[len(tokens) - 1], whole.scores[len(tokens) - 1])


@pytest.mark.parametrize("change", [{"n_ctx": 8}, {"type_k": 0}])
def test_a_state_that_does_not_fit_changes_nothing(
    make: Callable[..., Llama], change: dict[str, Any]
) -> None:
    llama, other = make(), make(**change)
    llama.eval(llama.tokenize(b"hello there"))
    other.eval([1, 5, 6])
    with pytest.raises(StateError, match=r"^LlamaState: "):
        other.load_state(llama.save_state())
    assert other.n_tokens == 3 and other.context.kv.length(0) == 3


def test_a_state_of_a_window_that_is_longer_than_the_context(tmp_path: Path) -> None:
    spec = Spec(n_ctx=2048)
    keys = {"llama.attention.sliding_window": 64}
    path = write_model(tmp_path / "x.gguf", spec, random_weights(spec), metadata=keys)
    long, short = (Llama(path, n_ctx=n, n_ubatch=8, verbose=False) for n in (700, 500))
    long.eval([1] * 600)
    short.eval([1, 5, 6])
    with pytest.raises(StateError, match="600 tokens do not fit into a context of 500"):
        short.load_state(long.save_state())
    assert short.n_tokens == 3 == short.context.kv.length(0)
