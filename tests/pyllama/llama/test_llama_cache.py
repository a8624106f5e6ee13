"""Caches of states, pickled objects, infill, and what `Llama` has below its methods."""

from __future__ import annotations

import copy
import os
import pickle
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pyllama import Llama
from pyllama.llama.cache import BaseLlamaCache, LlamaDiskCache, LlamaRAMCache
from pyllama.llama.infill import infill_tokens
from pyllama.llama.state import LlamaState
from pyllama.tokenizer import load_tokenizer

from ..fake_context import METADATA, ids, text_of

Make = Callable[..., Llama]


@pytest.fixture
def make(model_path: Path) -> Make:
    return lambda **options: Llama(model_path, **{"n_ctx": 64, "verbose": False, **options})


def state(tokens: list[int], n_bytes: int = 100) -> LlamaState:
    scores = np.zeros((len(tokens), 5), np.float32)
    scores[-1] = 7
    held = np.array([*tokens, 0, 0], np.intc)
    return LlamaState(held, scores, len(tokens), bytes(n_bytes), n_bytes, 3)


@pytest.fixture(params=["ram", "disk"])
def new(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[..., BaseLlamaCache]:
    if request.param == "ram":
        return LlamaRAMCache
    return lambda *size: LlamaDiskCache(tmp_path / "states", *size)


def test_the_longest_prefix_is_found(new: Callable[..., BaseLlamaCache]) -> None:
    cache = new()
    for tokens in ([1, 2, 3], [1, 2, 5, 6], [9]):
        cache[tokens] = state(tokens)
    assert cache.cache_size > 0 and [1, 7] in cache and [8] not in cache
    found = cache[[1, 2, 5, 7]]
    assert found.n_tokens == 4 and found.input_ids.tolist() == [1, 2, 5, 6, 0, 0]
    assert found.scores.shape == (4, 5) and found.scores.sum(axis=1).tolist() == [0, 0, 0, 35]
    assert (len(found.llama_state), found.llama_state_size, found.seed) == (100, 100, 3)
    with pytest.raises(KeyError):
        cache[[8]]


def test_the_oldest_are_dropped(new: Callable[..., BaseLlamaCache]) -> None:
    cache = new(40_000)
    for token in (1, 2):
        cache[[token]] = state([token], 15_000)
    cache[[1]]  # used later than 2
    cache[[3]] = state([3], 15_000)
    assert [[token] in cache for token in (1, 2, 3)] == [True, False, True]
    assert cache.cache_size <= 40_000


def test_files_of_strangers(tmp_path: Path) -> None:
    cache = LlamaDiskCache(tmp_path)
    cache[[1, 2]] = state([1, 2])
    (path,) = tmp_path.iterdir()
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    assert [1, 2] not in LlamaDiskCache(tmp_path)
    with open(path, "wb") as file:
        np.savez(file, key=np.array([os.system], object))  # a pickle
    with pytest.raises(KeyError):
        LlamaDiskCache(tmp_path)[[1, 2]]


@pytest.mark.parametrize("stream", [False, True])
def test_a_completion_uses_the_cache(
    make: Make,
    new: Callable[..., BaseLlamaCache],
    monkeypatch: pytest.MonkeyPatch,
    stream: bool,
) -> None:
    """In another object, with the same text."""
    cache = new()

    def run(llama: Llama) -> str:
        made: Any = llama("hello there", max_tokens=6, temperature=0, stream=stream)
        return "".join(map(text_of, made)) if stream else text_of(made)

    wanted = run(make())
    first, second = make(), make()
    loaded: list[LlamaState] = []
    load = second.load_state

    def watched(given: LlamaState) -> None:
        loaded.append(given)
        load(given)

    monkeypatch.setattr(second, "load_state", watched)  # as programs do
    for llama in (first, second):
        llama.set_cache(cache)
        assert llama.cache is cache and run(llama) == wanted
    assert len(loaded) == 1


@pytest.mark.parametrize("stream", [False, True])
def test_seed_and_cache_belong_to_the_call_that_holds_the_lock(
    make: Make, monkeypatch: pytest.MonkeyPatch, stream: bool
) -> None:
    """Else a state would be restored under another thread's generation."""
    llama, held = make(seed=3), dict[str, list[bool]]()

    def note(what: str) -> None:
        """Whether another thread has to wait now."""

        def is_held() -> bool:
            acquired = llama._lock._lock.acquire(blocking=False)
            if acquired:
                llama._lock._lock.release()
            return not acquired

        with ThreadPoolExecutor(1) as other:
            held.setdefault(what, []).append(other.submit(is_held).result())

    class Cache(LlamaRAMCache):
        def __getitem__(self, key: Sequence[int]) -> LlamaState:
            note("read")
            return super().__getitem__(key)

        def __setitem__(self, key: Sequence[int], value: LlamaState) -> None:
            note("write")
            super().__setitem__(key, value)

    draw = llama._next_seed
    monkeypatch.setattr(llama, "_next_seed", lambda given: (note("draw"), draw(given))[1])
    llama.set_cache(Cache())
    for _ in range(2):
        made: Any = llama("The cat", max_tokens=2, temperature=0, stream=stream)
        list(made)
    assert held == {"draw": [True] * 2, "read": [True] * 2, "write": [True] * 2}


def test_copies(make: Make) -> None:
    llama = make(seed=5, n_threads=1, temperature_of_nothing=1)
    llama("hello", max_tokens=3)
    wanted = text_of(llama("hello", max_tokens=8, seed=9))
    for twin in (pickle.loads(pickle.dumps(llama)), copy.deepcopy(llama)):
        assert twin.n_tokens == 0 and twin.n_threads == 1 and twin._seed == 9
        assert text_of(twin("hello", max_tokens=8, seed=9)) == wanted
    llama.close()
    assert pickle.loads(pickle.dumps(llama)).n_ctx() == 64


def test_seeds_follow_each_other_as_in_llama_cpp_python(reciting: Any) -> None:
    """Each completion's seed is ``Random(the last).randint(0, 2**32)``."""
    llama = reciting("", seed=3)
    text = text_of(llama("x", max_tokens=8))
    assert text == text_of(reciting("")("x", max_tokens=8, seed=2337446730))
    assert llama._seed == 2337446730


def test_views(make: Make) -> None:
    llama = make(n_batch=16, n_threads_batch=1, embedding=False)
    tokens = llama.tokenize(b"hello there")
    llama.eval(tokens)
    assert list(llama.eval_tokens) == tokens and len(llama.eval_logits) == 1
    assert llama.eval_logits[0] == llama.scores[len(tokens) - 1].tolist()
    assert (llama.n_threads_batch, llama.pooling_type()) == (1, 0)
    assert llama.context_params.n_ctx == 64 and llama.context_params.n_batch == 16
    assert llama.model_params.load_mode == 1 and llama.model_params.n_gpu_layers == 0
    assert Llama.longest_token_prefix([1, 2, 3], [1, 2, 4, 5]) == 2
    assert llama.ctx is llama._ctx.ctx is llama.context
    assert llama._is_recurrent is False and llama._is_hybrid is False
    assert llama._model.token_get_text(llama.token_bos()) == "<s>"
    assert llama._model.tokenize(b"hi", True, False) == llama.tokenize(b"hi")
    assert llama._ctx.kv_cache_seq_rm(-1, 2, -1) and llama.n_tokens == 2
    assert not llama._ctx.kv_cache_seq_rm(0, 0, 1)
    assert llama._ctx.kv_cache_seq_rm(1, 0, -1) and llama.n_tokens == 2  # another sequence
    llama._ctx.kv_cache_clear()
    assert llama.n_tokens == 0
    llama.close()
    assert llama.ctx is None
    only = make(vocab_only=True)
    assert only.ctx is not None and not only._ctx.kv_cache_seq_rm(-1, 0, -1)


def test_another_draft_model(make: Make) -> None:
    llama = make()
    wanted = text_of(llama("hello there", max_tokens=12, temperature=0))
    for given in ("suffix", None):
        llama.draft_model = given
        assert (llama.speculation is None) == (given is None) and llama.draft_model == given
        assert text_of(llama("hello there", max_tokens=12, temperature=0)) == wanted


def test_infill(reciting: Any) -> None:
    """The parts of the prompt are in the order that the model was trained with."""
    roles = {"prefix": 5, "suffix": 6, "middle": 7}
    keys = {f"tokenizer.ggml.{name}_token_id": np.uint32(id) for name, id in roles.items()}
    tokenizer = load_tokenizer({**METADATA, **keys})
    a, b = (tokenizer.encode(text, add_special=False) for text in ("ab", " c"))
    assert infill_tokens(tokenizer, "ab", " c") == [1, 5, *a, 6, *b, 7]
    assert infill_tokens(tokenizer, a, " c", suffix_first=True) == [1, 6, *b, 5, *a, 7]
    llama = reciting()  # without tokens for it
    made = llama("The cat", suffix=" END", max_tokens=4, temperature=0)
    assert text_of(made) == " sat END" and made["usage"]["prompt_tokens"] == len(ids("The cat"))
