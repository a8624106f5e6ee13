"""Draft models of `Llama` change no text, no logits and no state, whatever they propose."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pyllama import Llama, LlamaDraftModel, LlamaPromptLookupDecoding, Model
from pyllama.errors import DraftError
from pyllama.llama.draft import FunctionDrafter
from pyllama.speculative import FirstOf, PromptLookup, Speculation, SuffixDecoding
from pyllama.speculative.model import ModelDrafter

from ...tiers import some
from ..fake_context import text_of
from ..models import Spec, random_weights, write_model

PROMPT = "one two three, one two four, one two"
DRAWN = {"temperature": 0.8, "seed": 5, "repeat_penalty": 1.1}
Make = Callable[..., Llama]


class Repeated(LlamaDraftModel):
    """Proposes the last tokens again, right or wrong."""

    def __call__(self, input_ids: Any, /, **kwargs: Any) -> Any:
        assert input_ids.dtype == np.intc
        return input_ids[-5:]


@pytest.fixture(scope="module")
def model_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that is sure of its tokens, so that it drafts."""
    spec = Spec(n_ctx=256)
    weights = random_weights(spec)
    weights["output_norm.weight"] *= 50
    return write_model(tmp_path_factory.mktemp("m") / "x.gguf", spec, weights)


@pytest.fixture
def make(model_path: Path) -> Make:
    """A function that makes a `Llama`; drafts are always as long as allowed."""

    def llama(draft_model: object = None, **options: Any) -> Llama:
        made = Llama(
            model_path,
            **{"n_ctx": 128, "n_threads": 1, "verbose": False, **options},
            draft_model=draft_model,
        )
        if made.speculation is not None:
            made.speculation.adaptive = False
        return made

    return llama


FORMS: dict[str, Callable[[Path], object]] = {
    "llama-cpp-python's": lambda path: LlamaPromptLookupDecoding(),
    "derived": lambda path: Repeated(),
    "function": lambda path: lambda ids: ids[:3].tolist(),
    "no tokens": lambda path: lambda ids: [],
    "names": lambda path: "suffix, prompt-lookup",
    "drafter": lambda path: SuffixDecoding(is_tree=True),
    "speculation": lambda path: Speculation(PromptLookup(1), max_draft=3, min_draft=2),
    "path": lambda path: path,
    "text path": str,
    "model": Model.load,
}


@pytest.mark.parametrize("form", some(FORMS, 4))
def test_texts_are_those_without(make: Make, model_path: Path, form: str) -> None:
    plain = make()
    drafting = make(FORMS[form](model_path))
    for options in (
        {"temperature": 0.0},
        DRAWN,
        {**DRAWN, "mirostat_mode": 2},
        {"temperature": 0.0, "stop": "e"},
    ):
        wanted = text_of(plain(PROMPT, max_tokens=40, **options))
        assert text_of(drafting(PROMPT, max_tokens=40, **options)) == wanted
        chunks = drafting(PROMPT, max_tokens=40, stream=True, **options)
        assert "".join(map(text_of, chunks)) == wanted
        assert drafting.n_tokens == plain.n_tokens
        assert drafting.sample(temp=0) == plain.sample(temp=0)
    assert (drafting.speculation.stats.n_drafted > 0) == (form != "no tokens")


def test_all_drafts_of_the_same_model_are_accepted(make: Make, model_path: Path) -> None:
    llama = make(model_path)
    llama(PROMPT, max_tokens=40, temperature=0)
    stats = llama.speculation.stats
    assert stats.n_accept == stats.n_drafted > 30


def test_logits_are_those_without(make: Make) -> None:
    plain, drafting = make(logits_all=True), make(Repeated(), logits_all=True)
    options = {"max_tokens": 40, "temperature": 0, "logprobs": 2, "echo": True}
    wanted, found = plain(PROMPT, **options), drafting(PROMPT, **options)
    assert drafting.speculation.stats.n_accept > 0
    assert found["choices"] == wanted["choices"]
    assert np.array_equal(drafting._scores, plain._scores)
    # without logits_all those of the last token are kept
    drafting = make(Repeated())
    drafting(PROMPT, max_tokens=40, temperature=0)
    assert np.array_equal(drafting._scores[-1], plain._scores[-1])
    state = drafting.save_state()
    assert np.array_equal(state.scores[-1], plain._scores[-1])


def test_generators(make: Make, model_path: Path) -> None:
    """Tokens may be sent into the middle of a draft; other calls may come between two tokens."""
    found = []
    for draft_model in (None, model_path):
        llama = make(draft_model)
        tokens = llama.tokenize(PROMPT.encode())
        run = llama.generate(tokens, temp=0.0)
        made = [next(run) for _ in range(9)]
        made.append(run.send(tokens[1:4]))
        made += [next(run) for _ in range(9)]
        other = text_of(llama("four", max_tokens=9, temperature=0))
        made += [next(run) for _ in range(9)]
        run.close()
        found.append((made, other, text_of(llama(PROMPT, max_tokens=9, **DRAWN))))
    assert found[0] == found[1] and llama.speculation.stats.n_accept > 0


def test_the_drafters_of_each_form(make: Make, model_path: Path) -> None:
    for form, kind, max_draft in (
        (LlamaPromptLookupDecoding(3, 5), PromptLookup, 5),
        (Repeated(), FunctionDrafter, 16),
        ("suffix,prompt-lookup", FirstOf, 16),
        (SuffixDecoding(), SuffixDecoding, 16),
        (model_path, ModelDrafter, 16),
    ):
        speculation = make(form).speculation
        assert isinstance(speculation.drafter, kind) and speculation.max_draft == max_draft
    lookup = make(LlamaPromptLookupDecoding(3, 5)).speculation.drafter
    assert (lookup.max_ngram_size, lookup.num_pred_tokens) == (3, 5)
    assert make("suffix,prompt-lookup").speculation.stats.name == "suffix,prompt-lookup"
    llama_cpp_s = type("X", (Repeated,), {"num_pred_tokens": 7})()
    assert make(llama_cpp_s).speculation.max_draft == 7
    assert make("none").speculation is None and make().speculation is None
    given = Speculation(PromptLookup())
    assert make(given).speculation is given and make(given).draft_model is given


def test_prompt_lookup_as_a_function() -> None:
    lookup = LlamaPromptLookupDecoding()
    assert (lookup.max_ngram_size, lookup.num_pred_tokens) == (2, 10)
    proposed = lookup(np.array([1, 2, 3, 4, 1, 2], np.intc))
    assert proposed.dtype == np.intc and proposed.tolist() == [3, 4, 1, 2]
    assert LlamaPromptLookupDecoding(2, 1)(np.array([1, 2, 3, 1], np.intc)).tolist() == [2]
    assert lookup(np.array([1, 2], np.intc)).shape == (0,)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("ngram", "draft_model='ngram': there is no such file, and the names of drafters are none"),
        ("suffix,x", "draft_model='suffix,x': there is no such file"),
        (Path("/no/such.gguf"), r"draft_model='/no/such.gguf': there is no such file"),
        (SuffixDecoding, "draft_model=<class .* is no draft model"),
        (5, "draft_model=5 is no draft model; want a function of token ids"),
    ],
)
def test_refused(make: Make, given: object, message: str) -> None:
    with pytest.raises(DraftError, match=message) as caught:
        make(given)
    assert "\n" not in str(caught.value)


def test_errors_of_a_function(make: Make) -> None:
    """They propagate, and the object stays usable."""
    wanted = text_of(make()(PROMPT, max_tokens=20, temperature=0))
    for proposal, error in (
        (lambda ids: [[1, 2]], "2 dimensions"),
        (lambda ids: [5, 10**6], "token 1000000 is outside the vocabulary"),
        (lambda ids: 1 / 0, "division by zero"),
    ):
        answers = [proposal, proposal, lambda ids: [5, 6]]
        llama = make(lambda ids, answers=answers: answers[0](ids))
        for _ in range(2):
            with pytest.raises((DraftError, ZeroDivisionError), match=error):
                llama(PROMPT, max_tokens=20, temperature=0)
            answers.pop(0)
        assert text_of(llama(PROMPT, max_tokens=20, temperature=0)) == wanted


@pytest.mark.long
def test_a_draft_model_is_closed(make: Make, model_path: Path) -> None:
    """A model of the caller's stays open."""
    own = Model.load(model_path)
    for given in (model_path, own):
        llama = make(given)
        llama(PROMPT, max_tokens=9)
        context = llama.speculation.drafter.context
        model, alive = context.model, weakref.ref(context)
        del context
        llama.close()
        gc.collect()
        assert llama.speculation is None and alive() is None
        assert bool(model.weights) == (model is own)


def test_without_weights(make: Make) -> None:
    assert make("suffix", vocab_only=True).speculation is None
