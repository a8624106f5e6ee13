"""Grammars in the engine: a preempted text, and a vocabulary that cannot end one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from pyllama import Context, Model
from pyllama.engine import Engine, Event, Policy, Request
from pyllama.grammar import Grammar, Trigger
from pyllama.sampling import SamplingParams
from pyllama.tokenizer import load_tokenizer

from ..fake_context import FakeContext, FakeModel
from ..models import Spec, random_weights, write_model
from ..tokenizer.vocabularies import bpe

TOKENS = np.random.default_rng(4).integers(3, 259, 60).tolist()
GRAMMARS = (
    Grammar("root ::= [a-f]{10} [0-9]{18}"),
    Grammar("root ::= ([a-c] [x-z]){4,14}"),
    Grammar("root ::= [a-p]+ [0-9]{9,}", triggers=[Trigger("pattern", "([a-p])")]),
)


@pytest.fixture(scope="module")
def make(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Context]:
    spec = Spec()
    path = write_model(tmp_path_factory.mktemp("m") / "x.gguf", spec, random_weights(spec))
    model = Model.load(path)
    return lambda **options: Context(model, n_threads=1, **options)


def texts_of(engine: Engine, requests: list[Request]) -> tuple[list[str], list[Event]]:
    """The text of each request, and the end events in their order."""
    numbers = [engine.submit(request) for request in requests]
    texts, ends = dict.fromkeys(numbers, ""), []
    while engine.has_work:
        for event in engine.step():
            texts[event.request] += event.text
            assert event.kind != "error", event.error
            if event.kind == "end":
                ends.append(event)
    return [texts[number] for number in numbers], ends


@pytest.mark.parametrize("temp", [0.0, 1.2])
def test_a_preempted_text_goes_on_in_its_grammar(make: Callable[..., Context], temp: float) -> None:
    requests = [
        Request(
            TOKENS[20 * i : 20 * i + 15], SamplingParams(temp=temp, seed=i), max_tokens=30,
            priority=priority, grammar=grammar,
        )
        for i, (priority, grammar) in enumerate(zip((0, 5, 1), GRAMMARS, strict=True))
    ]  # fmt: skip
    alone = [texts_of(Engine(make(n_ctx=64)), [request])[0][0] for request in requests]
    engine = Engine(make(n_ctx=64, n_seq_max=3), policy=Policy(n_reserve=0))
    together, ends = texts_of(engine, requests)
    assert together == alone
    assert ends[-1].request == 0  # the lowest priority: three texts do not fit into 64 cells
    assert len(alone[0]) == 28 and alone[0][:10].isalpha() and alone[0][10:].isdigit()


def test_a_vocabulary_without_an_end_of_generation() -> None:
    """A text that must end there ends with "stop"; one that may go on does."""
    model: Any = FakeModel()
    model.tokenizer = load_tokenizer(bpe())
    model.hparams.n_vocab = model.tokenizer.n_vocab
    assert not model.tokenizer.eog
    engine: Any = Engine(FakeContext(model, n_ctx=64))  # type: ignore[arg-type]

    def run(grammar: str) -> list[Event]:
        params = SamplingParams(seed=1)
        return list(engine.run(Request([5], params, max_tokens=9, grammar=Grammar(grammar))))

    events = run("root ::= [ab]{5}")
    assert events[-1].reason == "stop" and sum(bool(event.tokens) for event in events) == 5
    events = run("root ::= [ab]{5,}")
    assert events[-1].reason == "length"
    assert set("".join(event.text for event in events)) <= {"a", "b"}
