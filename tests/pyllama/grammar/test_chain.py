"""A grammar in the sampling chain and in the engine."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from pyllama.engine import Engine, Request
from pyllama.errors import GrammarError, SamplingError
from pyllama.grammar import Grammar, Trigger
from pyllama.sampling import Chain, SamplingParams, chain_for
from pyllama.sampling.constrained import constrain

from ..fake_context import EOS, TOKENIZER, FakeContext, FakeModel, ids

N = TOKENIZER.n_vocab
PARAMS = [
    SamplingParams(temp=0),
    SamplingParams(temp=1.2, seed=1),
    SamplingParams(temp=1.5, seed=2, samplers=("temperature",)),
    SamplingParams(temp=1, seed=3, repeat_penalty=1.3, logit_bias={ids("a")[-1]: 2.0}),
]


def generated(params: SamplingParams, grammar: Grammar | None, text: str = "") -> tuple[str, Any]:
    """The text of a request, and its last event."""
    engine: Any = Engine(FakeContext(FakeModel(text)))  # type: ignore[arg-type]
    parts, last = [], None
    for event in engine.run(Request(ids("The"), params, max_tokens=40, grammar=grammar)):
        parts.append(event.text)
        last = event
    return "".join(parts), last


@pytest.mark.parametrize("params", PARAMS)
def test_generated_text_matches(params: SamplingParams) -> None:
    text, last = generated(params, Grammar('root ::= " " [a-f]{3,8} "-" [0-9]{2} "!"'))
    assert last.reason == "eog"
    word, _, rest = text.partition("-")
    assert word[0] == " "
    assert 3 <= len(word) - 1 <= 8
    assert set(word[1:]) <= set("abcdef")
    assert rest[:2].isdigit()
    assert rest[2:] == "!"


@pytest.mark.parametrize("params", PARAMS[1:3])
def test_an_allowed_token_is_not_sampled_again(params: SamplingParams) -> None:
    """A grammar that allows all likely tokens changes none."""
    grammar = Grammar("root ::= [\\x01-\\x7f]*")
    held, free = (chain_for(params, N, TOKENIZER, g) for g in (grammar, None))
    rng = np.random.default_rng(0)
    for _ in range(50):
        logits = rng.standard_normal(N).astype(np.float32)
        logits[4 : 3 + 128] += 40  # single bytes of ASCII
        token = held.sample(logits)
        assert token == free.sample(logits)
        held.accept(token)
        free.accept(token)


def test_greedy_takes_the_best_allowed_token() -> None:
    """The likeliest text that the grammar allows, and the model's own where it is allowed."""
    text = "The cat sat."
    greedy = SamplingParams(temp=0)
    assert generated(greedy, Grammar('root ::= " cat" .*'), text)[0] == " cat sat."
    assert generated(greedy, Grammar('root ::= " " [a-z]+ " sad" .*'), text)[0][:8] == " cat sad"


def test_a_lazy_grammar() -> None:
    grammar = Grammar('root ::= "cat" "s"{2}', triggers=[Trigger("word", "cat")])
    assert generated(SamplingParams(temp=0), grammar, "The cat sat.")[0] == " catss"


def test_only_end_of_generation_is_left() -> None:
    banned = SamplingParams(temp=1, seed=1, ignore_eos=True)
    text, last = generated(banned, Grammar('root ::= "ab"'))
    assert (text, last.reason) == ("ab", "eog")


def test_an_error_ends_the_request_alone() -> None:
    engine: Any = Engine(FakeContext(FakeModel()))  # type: ignore[arg-type]
    banned = SamplingParams(logit_bias={ids("q")[-1]: -np.inf})
    with pytest.raises(GrammarError, match="allows no token here but banned ones"):
        list(engine.run(Request(ids("x"), banned, max_tokens=3, grammar=Grammar('root ::= "q"'))))
    assert list(engine.run(Request(ids("x"), max_tokens=3)))[-1].reason == "length"
    with pytest.raises(GrammarError, match="names"):
        engine.submit(Request(ids("x"), grammar=Grammar("root ::= <nothing>")))


def test_a_grammar_wins_over_a_forced_token() -> None:
    """A bias of +inf forces a token only where the grammar allows it."""
    forced = SamplingParams(seed=1, logit_bias={ids("q")[-1]: np.inf})
    text, last = generated(forced, Grammar("root ::= [ab] [a-z] [ab]"))
    assert (text[1], last.reason) == ("q", "eog") and set(text[::2]) <= {"a", "b"}


@pytest.mark.parametrize(
    ("grammar", "ends"),
    [('root ::= ")" .*', True), ('root ::= [a-z]* ")"', True), ('root ::= [a-z]+ ")"', False)],
)
def test_reasoning_that_begins_in_the_prompt(grammar: str, ends: bool) -> None:
    """The grammar must allow the end that the budget forces."""
    start, end = (ids(c)[-1] for c in "()")
    params = SamplingParams(
        reasoning_budget_tokens=3, reasoning_budget_start=(start,), generation_prompt=(start,),
        reasoning_budget_end=((end,),),
    )  # fmt: skip
    if ends:
        chain_for(params, N, TOKENIZER, Grammar(grammar))
        return
    with pytest.raises(SamplingError, match="does not allow the end of the reasoning; use"):
        chain_for(params, N, TOKENIZER, Grammar(grammar))


def test_the_reasoning_cannot_end() -> None:
    start, end = (ids(c)[-1] for c in "()")
    params = SamplingParams(
        temp=0, reasoning_budget_tokens=2, reasoning_budget_start=(start,),
        reasoning_budget_end=((end,),),
    )  # fmt: skip
    chain = chain_for(params, N, TOKENIZER, Grammar(r'root ::= "(" [\x00-\x27a-z]{10}'))
    assert says(chain, "(ab") == "(ab"
    with pytest.raises(GrammarError, match="budget is spent, but the grammar does not allow"):
        says(chain, "c")


REASONING: dict[str, tuple[Grammar, str, str]] = {  # grammar, wanted text, text
    # a trigger within the reasoning does not count
    "lazy": (
        Grammar('root ::= "cat" "s"{2}', triggers=[Trigger("word", "cat")]),
        "(catx??catzzz",
        "(catx!)catss",
    ),
    "end in the trigger": (
        Grammar('root ::= ")" [0-9]', triggers=[Trigger("word", ")")]), "(a)zz", "(a)7"
    ),
    "forced end in the trigger": (
        Grammar('root ::= ")" [0-9]', triggers=[Trigger("word", ")")]), "(abcd??zz", "(abcd!)7"
    ),
    "after the trigger": (
        Grammar('root ::= "cat(" ")" [0-9]', triggers=[Trigger("word", "cat(")]),
        "acat(....??zz",
        "acat(....!)7",
    ),
    "not lazy": (Grammar('root ::= "(" [a-d]* "!"? ")" [0-9]{2}'), "(abzz??xxx", "(abdd!)77"),
    "not lazy, natural end": (Grammar('root ::= "(" [a-d]* ")" [0-9]{2}'), "(zz)xxx", "(dd)77"),
}  # fmt: skip


def char(token: int) -> str:
    return TOKENIZER.token_to_piece(token).decode()


def says(chain: Chain, wanted: str) -> str:
    """The text that a model generates that wants one, and else prefers a "d" or a "7"."""
    text = ""
    for wish in wanted:
        logits = np.zeros(N, np.float32)
        for score, token in ((1, "7"), (2, "d"), (3, wish)):
            logits[ids(token)[-1]] = score
        token_id = chain.sample(logits)
        if token_id == EOS:
            break
        chain.accept(token_id)
        text += char(token_id)
    return text


@pytest.mark.parametrize("name", REASONING)
def test_reasoning_before_a_grammar(name: str) -> None:
    """A lazy grammar does not apply within reasoning, another one does; all states roll back."""
    grammar, wanted, text = REASONING[name]
    start, end, message = (ids(c)[-1] for c in "()!")
    params = SamplingParams(
        temp=0, reasoning_budget_tokens=4, reasoning_budget_start=(start,),
        reasoning_budget_end=((end,),), reasoning_budget_forced=(message, end),
    )  # fmt: skip
    chain = chain_for(params, N, TOKENIZER, grammar)
    first = chain.mark()
    for n in range(len(text) + 1):
        assert says(chain, wanted[:n]) == text[:n]
        mark, twin = chain.mark(), chain.clone()
        for _ in range(2):
            assert says(chain, wanted[n:]) == text[n:]
            chain.rollback(mark)
        assert says(twin, wanted[n:]) == text[n:]
        chain.rollback(first)


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(seed=5),
        SamplingParams(seed=5, mirostat=1, mirostat_tau=2.0),
        SamplingParams(seed=5, mirostat=2, mirostat_tau=2.0),
        SamplingParams(seed=5, samplers=("min_p", "adaptive_p"), adaptive_target=0.3),
        SamplingParams(seed=5, xtc_probability=0.5, xtc_threshold=0.01),
    ],
)
def test_the_chain_rolls_back_its_grammar(params: SamplingParams) -> None:
    grammar = Grammar("root ::= [a-c]{4} [d-f]{4}")
    chain = chain_for(params, N, TOKENIZER, grammar)
    chain.accept_prompt(ids("a prompt that does not match"))
    rng = np.random.default_rng(0)
    rows = rng.standard_normal((9, N)).astype(np.float32)
    mark, made = chain.mark(), []
    for _ in range(2):
        tokens = []
        for row in rows:
            tokens.append(chain.sample(row))
            chain.accept(tokens[-1])
        made.append(tokens)
        chain.rollback(mark)
    twin = chain.clone()
    assert [twin.sample(rows[0]), chain.sample(rows[0])] == [made[0][0]] * 2
    assert made[0] == made[1]
    assert made[0][-1] == EOS
    with pytest.raises(GrammarError, match="does not match the grammar"):
        chain.accept(ids("z")[-1])


@pytest.mark.parametrize("n", [1, 31, 32, 33, 1000])
@pytest.mark.parametrize("density", [0.0, 0.02, 0.9, 1.0])
def test_constrain(n: int, density: float) -> None:
    rng = np.random.default_rng(n)
    logits = rng.integers(-3, 3, n).astype(np.float32)
    logits[rng.random(n) < 0.1] = np.nan
    logits[rng.random(n) < 0.1] = -np.inf
    chosen = rng.random(n) < density
    flags = np.zeros((n + 31) // 32 * 32, np.uint8)
    flags[:n] = chosen
    bits = np.packbits(flags, bitorder="little").view(np.uint32)
    out = np.empty(n, np.float32)
    want = np.where(chosen & ~np.isnan(logits), logits, np.float32(-np.inf))
    argmax = constrain(logits, bits, out)
    np.testing.assert_array_equal(out, want)
    assert argmax == (int(want.argmax()) if want.max() > -np.inf else -1)
    constrain(logits, bits[:0], out)  # tokens without a bit
    assert (out == -np.inf).all()


def test_the_distribution_under_a_grammar_is_that_of_the_samples() -> None:
    """Samples that are not allowed are drawn again; filters see other candidates then."""
    params = SamplingParams(seed=1, temp=1.0, top_k=5, top_p=1.0, min_p=0.0)
    chain = chain_for(params, N, TOKENIZER, Grammar("root ::= [a-h]"))
    letters = [token for token in range(N) if chain._matcher.allows(token)]  # type: ignore[attr-defined]
    logits = np.full(N, -4, np.float32)
    logits[letters] = np.linspace(-1, 1, len(letters))
    logits[[N - 3, N - 2, N - 1]] = 0.5, 0.8, 0.2
    found = chain.distribution(logits)
    assert found is not None and set(found.ids.tolist()) < set(letters)
    n = 20_000
    counts = np.bincount([chain.sample(logits) for _ in range(n)], minlength=N)
    expected = n * found.probs
    assert counts.sum() == counts[found.ids].sum()
    chi_square = float(((counts[found.ids] - expected) ** 2 / expected).sum())
    assert chi_square < 30  # p < 1e-4 at most for up to 7 degrees of freedom
