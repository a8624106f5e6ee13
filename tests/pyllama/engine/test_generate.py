"""Generation: evaluated tokens, ends, and the state of the context afterwards."""

from __future__ import annotations

import numpy as np
import pytest

from pyggml.errors import Aborted
from pyllama.engine import Timings
from pyllama.engine.generate import generate, generate_many, generate_text
from pyllama.errors import BatchError, ContextFull, SamplingError
from pyllama.sampling import SamplingParams

from ..fake_context import EOS, TEXT, FakeContext, FakeModel, ids

GREEDY = SamplingParams(temp=0.0)


def make(text: str = TEXT, **sizes: int) -> FakeContext:
    return FakeContext(FakeModel(text), **{"n_ctx": 64, **sizes})


@pytest.mark.parametrize("n_batch", [1, 3, 64])
def test_it_recites_to_the_end_token(n_batch: int) -> None:
    context = make(n_batch=n_batch)
    tokens = list(generate(context, ids("The cat"), GREEDY))
    assert tokens == [*ids(TEXT)[8:], EOS]
    assert context.kv.tokens == ids(TEXT)  # the end token is not evaluated
    assert context.decoded[:2] == {1: [1, 1], 3: [3, 3], 64: [8, 1]}[n_batch]


def test_n_predict_is_exact_and_the_last_token_is_not_evaluated() -> None:
    context = make()
    assert len(list(generate(context, ids("The"), GREEDY, n_predict=3))) == 3
    assert len(context.kv.tokens) == 4 + 2
    assert list(generate(context, ids("The"), GREEDY, n_predict=0)) == []


@pytest.mark.parametrize("n_predict", [-1, -2, 1000])
def test_it_ends_where_the_context_is_full(n_predict: int) -> None:
    context = make("x" * 100, n_ctx=16)
    tokens = list(generate(context, ids("xxx"), GREEDY, n_predict=n_predict))
    assert len(tokens) == 16 - 4 + 1
    assert len(context.kv.tokens) == 16


def test_ignore_eos_continues() -> None:
    params = SamplingParams(temp=0.0, ignore_eos=True)
    tokens = list(generate(make("ab", n_ctx=16), ids("a"), params))
    assert len(tokens) == 15 and EOS not in tokens


@pytest.mark.parametrize("n", [0, 61])
def test_prompts_that_do_not_fit(n: int) -> None:
    with pytest.raises(ContextFull if n else BatchError) as error:
        generate(make(), [5] * n)
    if n:
        assert "61 tokens" in str(error.value)
        assert "takes 60" in str(error.value)
        assert "use `n_ctx=65` or more" in str(error.value)
    assert len(list(generate(make(), [5] * 60, GREEDY))) >= 1


def test_n_past_keeps_cached_tokens() -> None:
    context = make()
    whole = list(generate(context, ids("The cat"), GREEDY, n_predict=5))
    context.decoded.clear()
    again = list(generate(context, ids("The cat")[4:], GREEDY, n_predict=5, n_past=4))
    assert again == whole
    assert context.decoded[0] == 4
    with pytest.raises(BatchError, match="n_past is 40"):
        generate(context, [5], n_past=40)


def test_one_text_of_several() -> None:
    context, prompt = make(""), ids("x")
    texts = [
        list(generate(context, prompt, SamplingParams(seed=seed), n_predict=9)) for seed in (5, 6)
    ]
    best = list(generate(context, prompt, SamplingParams(seed=5, best_of=2), n_predict=9))
    assert best in texts
    several = SamplingParams(n=2)
    for makes in (
        lambda: generate(context, prompt, several),
        lambda: generate_text(context, prompt, several),
        lambda: list(generate_many(context, [prompt], several)),
    ):
        with pytest.raises(SamplingError, match="n is 2"):
            makes()


def test_processors_see_all_ids_and_their_error_leaves_the_context_usable() -> None:
    seen = []

    def shout(input_ids: np.ndarray, scores: np.ndarray) -> np.ndarray:
        seen.append(input_ids.tolist())
        scores[3 + ord("!")] = 100
        return scores

    def boom(input_ids: np.ndarray, scores: np.ndarray) -> np.ndarray:
        raise ZeroDivisionError

    context = make()
    tokens = list(generate(context, ids("Hi"), GREEDY, n_predict=2, logits_processors=[shout]))
    assert tokens == [3 + ord("!")] * 2
    assert seen == [ids("Hi"), [*ids("Hi"), tokens[0]]]
    with pytest.raises(ZeroDivisionError):
        next(generate(context, ids("Hi"), GREEDY, logits_processors=[boom]))
    assert "".join(generate_text(context, ids("The cat"), GREEDY)) == TEXT[7:]


@pytest.mark.parametrize("fail_after", [0, 1, 4])
def test_after_an_abort_or_a_closed_generator_all_is_as_before(fail_after: int) -> None:
    context = make(n_batch=3)
    context.fail_after = fail_after
    with pytest.raises(Aborted):
        list(generate(context, ids("The cat"), GREEDY))
    assert "".join(generate_text(context, ids("The cat"), GREEDY)) == TEXT[7:]
    running = generate_text(context, ids("The"), GREEDY)
    next(running)
    running.close()
    assert "".join(generate_text(context, ids("The cat"), GREEDY)) == TEXT[7:]


@pytest.mark.parametrize(
    ("stop", "text"),
    [
        ([" mat"], " sat on the"),
        ("v", " sat on the mat, naï"),
        (["mats", "End."], TEXT[7:]),
        (["naïv", " on"], " sat"),
        ((), TEXT[7:]),
    ],
)
def test_stop_strings(stop: str | list[str], text: str) -> None:
    pieces = list(generate_text(make(), ids("The cat"), GREEDY, stop=stop))
    assert "".join(pieces) == text
    assert all(pieces) and "\ufffd" not in text
    with pytest.raises(SamplingError):
        generate_text(make(), ids("The"), stop=[""])


def test_an_unfinished_character_is_marked() -> None:
    pieces = generate_text(make("a🙂"), ids("a"), GREEDY, n_predict=2)
    assert "".join(pieces) == "\ufffd"


def test_special_tokens_are_shown_on_demand() -> None:
    assert list(generate_text(make("ab"), ids("a"), GREEDY, special=True)) == ["b", "</s>"]


def test_the_same_seed_gives_the_same_tokens() -> None:
    first, second, other = (
        list(generate(make(""), ids("x"), SamplingParams(seed=seed), n_predict=20))
        for seed in (1, 1, 2)
    )
    assert first == second != other


def test_timings_count_as_llama_cpp_does() -> None:
    timings = Timings(load_ms=12.5)
    list(generate(make(n_batch=5), ids("The cat"), GREEDY, n_predict=4, timings=timings))
    counts = (timings.n_prompt_eval, timings.n_eval, timings.n_sample, timings.n_reused)
    assert counts == (8, 3, 4, 5)
    lines = timings.lines()
    assert lines[1] == "llama_perf_context_print:        load time =      12.50 ms"
    assert lines[2].startswith("llama_perf_context_print: prompt eval time = ")
    assert " ms /     8 tokens (" in lines[2] and " ms /     3 runs   (" in lines[3]
    assert lines[4].endswith("/    11 tokens")
    assert lines[6] == "llama_perf_context_print:    graphs reused =          5"
    timings.reset()
    assert (timings.n_eval, timings.load_ms) == (0, 12.5)
