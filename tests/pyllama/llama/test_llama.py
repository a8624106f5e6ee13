"""`Llama` on a fake context: llama-cpp-python's results and behaviour."""

from __future__ import annotations

import gc
import threading
import weakref
from typing import Any

import numpy as np
import pytest

from pyggml.errors import Aborted
from pyllama.errors import BatchError, ContextFull, ReentrantCall, SamplingError
from pyllama.llama.llama import StoppingCriteriaList

from ..fake_context import BOS, EOS, TEXT, ids, text_of


def test_a_completion_has_openais_form(reciting: Any) -> None:
    llama = reciting()
    result = llama("The cat", max_tokens=4, temperature=0)
    assert result["id"].startswith("cmpl-") and result["object"] == "text_completion"
    assert result["model"] == llama.model_path and isinstance(result["created"], int)
    assert result["choices"] == [
        {"text": " sat", "index": 0, "logprobs": None, "finish_reason": "length"}
    ]
    assert result["usage"] == {"prompt_tokens": 8, "completion_tokens": 4, "total_tokens": 12}
    assert (
        llama.create_completion("The cat", max_tokens=4, temperature=0, model="m")["model"] == "m"
    )


@pytest.mark.parametrize(
    ("options", "text", "reason"),
    [
        ({"max_tokens": 16}, TEXT[7:23], "length"),
        ({"max_tokens": None}, TEXT[7:], "stop"),
        ({"max_tokens": -1, "stop": " mat"}, " sat on the", "stop"),
        ({"max_tokens": -1, "stop": ["zzz", "naïv"]}, " sat on the mat, ", "stop"),
        ({"max_tokens": 6, "stop": ["on the"]}, " sat o", "length"),
        ({"max_tokens": 3, "echo": True}, "The cat sa", "length"),
        ({"max_tokens": -1, "stopping_criteria": [lambda i, s: len(i) > 10]}, " sa", "stop"),
        ({"max_tokens": 2, "logit_bias": {3 + ord("!"): 100.0}}, "!!", "length"),
        ({"max_tokens": 20, "stop": None}, " sat on the mat, na", "length"),  # half an ï
        ({"max_tokens": 21, "stop": None}, " sat on the mat, naï", "length"),
    ],
)
def test_where_a_completion_ends_streamed_or_not(
    reciting: Any, options: dict[str, Any], text: str, reason: str
) -> None:
    llama = reciting()
    whole = llama("The cat", temperature=0, **options)
    assert (text_of(whole), whole["choices"][0]["finish_reason"]) == (text, reason)
    chunks = list(llama("The cat", temperature=0, stream=True, **options))
    assert "".join(map(text_of, chunks)) == text
    assert [c["choices"][0]["finish_reason"] for c in chunks] == [None] * (len(chunks) - 1) + [
        reason
    ]
    assert {c["id"] for c in chunks} == {chunks[0]["id"]} and "usage" not in chunks[0]


def test_several_texts_and_the_best_of_them(reciting: Any) -> None:
    llama = reciting(logits_all=True, text="")
    options = {"max_tokens": 3, "temperature": 1.0, "seed": 3, "logprobs": 1}

    def total(choice: Any) -> float:
        return sum(choice["logprobs"]["token_logprobs"])

    whole = llama("The cat", n=5, **options)
    texts = [choice["text"] for choice in whole["choices"]]
    assert [choice["index"] for choice in whole["choices"]] == list(range(5))
    assert len({*texts}) == 5 and texts[0] == text_of(llama("The cat", **options))
    assert whole["usage"]["completion_tokens"] == 15
    best = llama("The cat", n=2, best_of=5, echo=True, **options)
    best_first = sorted(whole["choices"], key=lambda choice: -total(choice))[:2]
    for choice, wanted in zip(best["choices"], best_first, strict=True):
        assert choice["text"] == "The cat" + wanted["text"]
        values = choice["logprobs"]["token_logprobs"]
        assert values[0] is None and len(values) == 7 + 3
        assert values[7:] == wanted["logprobs"]["token_logprobs"]
    chunks = list(llama("The cat", n=2, best_of=5, echo=True, stream=True, **options))
    for choice in best["choices"]:
        mine = [c for c in chunks if c["choices"][0]["index"] == choice["index"]]
        assert "".join(map(text_of, mine)) == choice["text"]
        assert mine[-1]["choices"][0]["finish_reason"] == "length"
    with pytest.raises(SamplingError, match="best_of"):
        llama("x", n=3, best_of=2)


def test_prompts_may_be_tokens_or_empty(reciting: Any) -> None:
    llama = reciting()
    tokens = ids("The cat")
    by_tokens = llama(tokens, max_tokens=4, temperature=0, echo=True)
    assert text_of(by_tokens) == "The cat sat"
    assert text_of(llama("", max_tokens=3, temperature=0)) == "The"
    with pytest.raises(BatchError, match="bytes"):
        llama(b"The cat")


def test_the_cache_is_reused(reciting: Any) -> None:
    llama = reciting()
    llama("The cat", max_tokens=4, temperature=0)
    llama.context.decoded.clear()
    assert text_of(llama("The cat sat on", max_tokens=2, temperature=0)) == " t"
    assert llama.context.decoded == [4, 1]  # of 15 tokens 11 were there
    llama.context.decoded.clear()
    assert text_of(llama("The cat sat on", max_tokens=1, temperature=0)) == " "
    assert llama.context.decoded == [1]


def test_eval_and_scores(reciting: Any) -> None:
    tokens = ids("The cat")
    for logits_all, kept in ((True, set(range(8))), (False, {2, 7})):
        llama = reciting(logits_all=logits_all, n_batch=4)
        llama.eval(tokens[:3])
        llama.eval(tokens[3:])
        assert llama.scores.shape == (64, llama.n_vocab()) and llama.scores.dtype == np.float32
        assert {i for i in range(64) if llama.scores[i].any()} == kept
        for i in kept:
            assert np.array_equal(llama.scores[i], llama.model.logits(tokens[: i + 1]))
        assert llama._input_ids.tolist() == tokens and llama._scores.shape[0] == llama.n_tokens == 8
        llama.reset()
        assert llama.n_tokens == 0


def test_n_tokens_may_be_lowered(reciting: Any) -> None:
    llama = reciting(logits_all=True)
    llama.eval(ids("The dog"))
    for wrong in (-1, 9):
        with pytest.raises(BatchError, match=f"n_tokens = {wrong}: 8 tokens .* want 0 to 8"):
            llama.n_tokens = wrong
    llama.n_tokens = 5
    llama.eval(ids("The cat")[5:])
    assert np.array_equal(llama.scores[7], llama.model.logits(ids("The cat")))


def test_the_last_row_of_a_generation_is_kept_without_logits_all(reciting: Any) -> None:
    llama = reciting()
    llama("The cat", max_tokens=3, temperature=0)
    assert llama.n_tokens == 10
    assert np.array_equal(llama.scores[9], llama.model.logits(ids("The cat s")))


def test_context_full(reciting: Any) -> None:
    llama = reciting(n_ctx=8)
    with pytest.raises(ContextFull, match="9 tokens after 0"):
        llama.eval([5] * 9)
    assert llama.n_tokens == 0
    with pytest.raises(ValueError, match="use `n_ctx=9` or more"):
        llama([5] * 8)
    assert llama([5] * 7, max_tokens=50)["usage"]["completion_tokens"] == 1
    assert len(list(llama.generate([5] * 6, temp=0))) == 3
    with pytest.raises(BatchError, match="no tokens"):
        llama.generate([])


def test_generate_accepts_sent_tokens_and_continues_after_eog(reciting: Any) -> None:
    llama = reciting("ab", n_ctx=16)
    steps = llama.generate(ids("a"), temp=0)
    assert next(steps) == ids("b")[1]
    assert next(steps) == EOS
    assert steps.send([7, 8]) == EOS
    assert llama._input_ids.tolist() == [BOS, *ids("ab")[1:], EOS, 7, 8]
    steps.close()
    more = llama.generate([9], temp=0, reset=False)
    next(more)
    assert llama._input_ids.tolist()[-3:] == [7, 8, 9]


def test_interleaved_streams_and_calls_equal_single_runs(reciting: Any) -> None:
    llama = reciting("")
    prompts = ["one", "two"]
    alone = [text_of(llama(p, max_tokens=12, seed=5)) for p in prompts]
    streams = [llama(p, max_tokens=12, seed=5, stream=True) for p in prompts]
    texts = ["", ""]
    for _ in range(40):
        for i, stream in enumerate(streams):
            chunk = next(stream, None)
            texts[i] += text_of(chunk) if chunk else ""
        llama.reset()
    assert texts == alone
    next(streams[0], None)
    streams[0].close()


def test_seeds(reciting: Any) -> None:
    llama = reciting("", seed=3)
    first, second = (text_of(llama("x", max_tokens=8)) for _ in range(2))
    assert first != second
    llama.set_seed(3)
    assert [text_of(llama("x", max_tokens=8)) for _ in range(2)] == [first, second]
    given = {text_of(llama("x", max_tokens=8, seed=9)) for _ in range(2)}
    assert len(given) == 1
    random = reciting("")
    assert text_of(random("x", max_tokens=8)) != text_of(random("x", max_tokens=8))


def test_sample(reciting: Any) -> None:
    llama = reciting("", seed=1, logits_all=True)
    with pytest.raises(BatchError, match="eval"):
        llama.sample()
    llama.eval(ids("hello"))
    assert llama.sample(temp=0) == llama.scores[5].argmax()
    assert llama.sample(temp=0, idx=2) == llama.scores[2].argmax()
    drawn = [llama.sample() for _ in range(30)]
    assert len(set(drawn)) > 1
    llama.set_seed(1)
    assert [llama.sample() for _ in range(30)] == drawn
    favourite = int(llama.scores[5].argmax())
    llama.eval([favourite])
    llama.n_tokens = 6
    llama.input_ids[3] = favourite
    assert llama.sample(temp=0, presence_penalty=100.0) != favourite
    other = reciting("")
    other.eval([5, 6])
    other.n_tokens = 1
    with pytest.raises(BatchError, match="not stored"):
        other.sample()


def test_logprobs(reciting: Any) -> None:
    llama = reciting(logits_all=True)
    result = llama("The cat", max_tokens=4, temperature=0, logprobs=2)
    logprobs = result["choices"][0]["logprobs"]
    assert logprobs["tokens"] == list(" sat") and logprobs["text_offset"] == [7, 8, 9, 10]
    row = llama.model.logits(ids("The cat")).astype(np.float64)
    expected = row - np.log(np.exp(row).sum())
    assert logprobs["token_logprobs"][0] == pytest.approx(expected.max(), abs=1e-5)
    assert len(logprobs["top_logprobs"][0]) == 2
    chunks = list(llama("The cat", max_tokens=4, temperature=0, logprobs=2, stream=True))
    joined = [c["choices"][0]["logprobs"] for c in chunks[:-1]]
    assert [t for part in joined for t in part["token_logprobs"]] == logprobs["token_logprobs"]
    with pytest.raises(ValueError, match="logits_all=True"):
        reciting()("x", logprobs=1)


def test_logprobs_of_the_prompt(reciting: Any) -> None:
    llama = reciting(logits_all=True)
    logprobs = llama("The cat", max_tokens=2, temperature=0, logprobs=0, echo=True)["choices"][0][
        "logprobs"
    ]
    assert "".join(logprobs["tokens"]) == "The cat s"
    assert logprobs["text_offset"] == list(range(9))
    assert logprobs["token_logprobs"][0] is None and logprobs["top_logprobs"][0] is None
    assert all(value > -0.1 for value in logprobs["token_logprobs"][1:])  # it recites


def test_offsets_count_characters(reciting: Any) -> None:
    llama = reciting("aï🙂b", logits_all=True)
    logprobs = llama("a", max_tokens=7, temperature=0, logprobs=1)["choices"][0]["logprobs"]
    assert logprobs["text_offset"] == [1, 1, 2, 2, 2, 2, 3]


def test_processors_and_criteria(reciting: Any) -> None:
    llama, seen = reciting(), []

    def shout(input_ids: np.ndarray, scores: np.ndarray) -> np.ndarray:
        seen.append(input_ids.tolist())
        scores[3 + ord("!")] = 100
        return scores

    assert text_of(llama("Hi", max_tokens=2, logits_processor=[shout])) == "!!"
    assert text_of(llama("Hi", max_tokens=1, temperature=0, logits_processor=shout)) == "!"
    assert seen[0] == ids("Hi") and len(seen[1]) == 4
    stop = StoppingCriteriaList([lambda i, s: False, lambda i, s: len(i) >= 9])
    assert text_of(llama("The cat", temperature=0, stopping_criteria=stop)) == " "


@pytest.mark.parametrize("stream", [False, True])
def test_exceptions_of_callbacks_propagate(reciting: Any, stream: bool) -> None:
    llama = reciting()

    def boom(input_ids: np.ndarray, scores: np.ndarray) -> np.ndarray:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        list(llama("Hi", logits_processor=[boom], stream=stream))
    llama.context.fail_after = 2
    with pytest.raises(Aborted):
        list(llama("The dog", stream=stream, temperature=0))
    assert text_of(llama("The cat", max_tokens=4, temperature=0)) == " sat"


def test_a_reentrant_callback_raises(reciting: Any) -> None:
    llama = reciting()
    calls = [
        lambda: llama("x"),
        lambda: llama.eval([5]),
        lambda: llama.reset(),
        lambda: llama.sample(),
        lambda: next(llama.generate([5])),
        lambda: next(llama("x", stream=True)),
        lambda: llama.close(),
    ]
    for call in calls:
        with pytest.raises(ReentrantCall, match="invoked this callback"):
            llama("Hi", logits_processor=[lambda i, s, call=call: call()])

    def look(input_ids: np.ndarray, scores: np.ndarray) -> np.ndarray:
        assert llama.detokenize(llama.tokenize(b"x")) == b"x" and llama.n_tokens == len(input_ids)
        return scores

    assert text_of(llama("The cat", max_tokens=1, temperature=0, logits_processor=[look])) == " "


def test_a_second_thread_waits(reciting: Any) -> None:
    llama, results = reciting(n_ctx=64), {}

    def go(i: int) -> None:
        results[i] = text_of(llama("The cat", max_tokens=-1, temperature=0))

    threads = [threading.Thread(target=go, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(results.values()) == {TEXT[7:]} and len(results) == 4


@pytest.mark.parametrize("logits_all", [False, True])
def test_close_frees_the_context(reciting: Any, logits_all: bool) -> None:
    llama = reciting(logits_all=logits_all)
    llama("The cat", max_tokens=2, temperature=0)
    stream = llama("The cat", max_tokens=9, temperature=0, stream=True)
    next(stream)
    context = weakref.ref(llama.context)
    gc.disable()  # there is no cycle for it
    try:
        llama.close()
        del stream
        assert context() is None
    finally:
        gc.enable()
