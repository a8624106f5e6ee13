"""Verified tokens have the distribution of the target's chain, or its very tokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from math import erfc, sqrt
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyllama.errors import DraftError
from pyllama.grammar import Grammar
from pyllama.sampling import Candidates, Chain, ConstrainedChain, Distribution, SamplingParams
from pyllama.speculative import verify
from pyllama.speculative.draft import Draft
from pyllama.speculative.verify import Verifier, choose

from ...tiers import only, some
from ..grammar.vocabularies import words

N_VOCAB, N_TOKENS, N_SAMPLES = 6, 3, 20_000
Choice = tuple[int | None, int]
Tokens = tuple[int, ...]

rng = np.random.default_rng(26)
LOGITS = 1.5 * rng.standard_normal((N_VOCAB + 1, N_VOCAB + 1, N_VOCAB)).astype(np.float32)
DRAFT_LOGITS = LOGITS[..., :] + rng.standard_normal(LOGITS.shape).astype(np.float32)


def context(tokens: Sequence[int]) -> tuple[int, int]:
    """The last two tokens."""
    a, b = (N_VOCAB, N_VOCAB, *tokens)[-2:]
    return a, b


def allowed(history: Sequence[int]) -> np.ndarray[Any, Any]:
    """A grammar's mask: no token twice in a row, and only even ones after token 3."""
    mask = np.ones(N_VOCAB, bool)
    if history:
        mask[history[-1]] = False
        if history[-1] == 3:
            mask[1::2] = False
    return mask


class Constrained(Chain):
    """A chain with a mask on the logits that depends on the accepted tokens."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.history: list[int] = []

    def masked(self, logits: Any) -> Any:
        return np.where(allowed(self.history), logits, -np.inf).astype(np.float32)

    def sample(self, logits: Any, argmax: int | None = None) -> int:
        return super().sample(self.masked(logits))

    def distribution(self, logits: Any) -> Distribution | None:
        return super().distribution(self.masked(logits))

    def accept(self, token: int) -> None:
        super().accept(token)
        self.history.append(token)


class OwnDraw(Chain):
    """A chain whose final draw has no distribution, as mirostat."""

    def distribution(self, logits: Any) -> Distribution | None:
        return None


WORDS = words([b"a", b"b", b"ab", b"c"])
GRAMMAR = Grammar('root ::= x{7}\nx ::= "a" | "bc" | "ca"')  # no end within three tokens


def under_grammar(params: SamplingParams, n_vocab: int) -> Chain:
    """A chain with a grammar, which is applied to the sampled token."""
    return ConstrainedChain(params, n_vocab, WORDS.eog, matcher=GRAMMAR.matcher(WORDS))


CASES: dict[str, tuple[Callable[..., Chain], dict[str, Any], dict[str, Any]]] = {
    # makes the chain, its parameters, and those of the draft
    "temperature": (Chain, {"temp": 1.3, "top_k": 0, "top_p": 1, "min_p": 0}, {"temp": 0.7}),
    "filters": (
        Chain,
        {"temp": 0.8, "top_k": 4, "top_p": 0.9, "min_p": 0.05},
        {"temp": 1.5, "top_k": 5, "top_p": 1, "min_p": 0},
    ),
    "narrow draft, penalties": (
        Chain,
        {"temp": 1.0, "top_k": 0, "top_p": 0.97, "min_p": 0, "repeat_penalty": 1.4}
        | {"presence_penalty": 0.4},
        {"temp": 1.2, "top_k": 3, "top_p": 1, "min_p": 0},
    ),
    "mask": (Constrained, {"temp": 1.0, "top_k": 4}, {"temp": 1.0, "top_k": 0, "min_p": 0.02}),
    "grammar": (
        under_grammar,
        {"temp": 1.2, "top_k": 4, "top_p": 1, "min_p": 0, "presence_penalty": 0.3},
        {"temp": 1.0, "top_k": 5, "top_p": 1, "min_p": 0},
    ),
}


def make_chain(case: str, seed: int = 0) -> Chain:
    kind, params, _ = CASES[case]
    return kind(SamplingParams(seed=seed, **params), N_VOCAB)


@lru_cache(None)
def target_p(case: str, text: Tokens) -> Distribution:
    """The distribution of a new chain after accepting a text."""
    chain = make_chain(case)
    for token in text:
        chain.accept(token)
    p = chain.distribution(LOGITS[context(text)])
    assert p is not None
    return p


@lru_cache(None)
def draft_q(case: str, text: Tokens) -> Distribution:
    """The draft's own filtered distribution."""
    own = Chain(SamplingParams(**CASES[case][2]), N_VOCAB)
    q = own.distribution(DRAFT_LOGITS[context(text)])
    assert q is not None
    return Distribution(q.ids[q.probs > 0], q.probs[q.probs > 0])


class Kept(Chain):
    """A chain that computes the distribution after a text only once, for tests of many samples."""

    def __init__(self, case: str) -> None:
        super().__init__(SamplingParams(seed=1), N_VOCAB)
        self.case, self.text = case, ()

    def distribution(self, logits: Any) -> Distribution:
        assert logits[0] == LOGITS[context(self.text)][0]
        return target_p(self.case, self.text)

    def sample(self, logits: Any, argmax: int | None = None) -> int:
        p = self.distribution(logits)
        return int(p.ids[p.probs.cumsum().searchsorted(self._dist.uniform())])

    def accept(self, token: int) -> None:
        self.text = (*self.text, token)


def expected(case: str) -> dict[Tokens, float]:
    """Probabilities of all texts of three tokens."""
    found: dict[Tokens, float] = {(): 1.0}
    for _ in range(N_TOKENS):
        found = {
            (*text, token): probability * share
            for text, probability in found.items()
            for token, share in zip(*(x.tolist() for x in target_p(case, text)), strict=True)
            if share > 0
        }
    return found


class Draws:
    """Siblings that are drawn without replacement, many at once by Gumbel's method."""

    def __init__(self, case: str, width: int) -> None:
        self.case, self.width = case, width
        self.random = np.random.default_rng(width)
        self.kept: dict[Tokens, list[list[int]]] = {}

    def __call__(self, text: Tokens) -> list[int]:
        if not self.kept.get(text):
            q = draft_q(self.case, text)
            keys = np.log(q.probs) + self.random.gumbel(size=(2048, q.ids.size))
            self.kept[text] = q.ids[(-keys).argsort(axis=1)[:, : self.width]].tolist()
        return self.kept[text].pop()


def make_draft(case: str, text: Tokens, draws: Sequence[Draws]) -> Draft:
    """A tree with so many children at each depth."""
    tokens: list[int] = []
    parents: list[int] = []
    q: list[Distribution] = []
    ends = [(-1, text)]
    for siblings in draws:
        new = []
        for parent, before in ends:
            for token in siblings(before):
                new.append((len(tokens), (*before, token)))
                tokens.append(token)
                parents.append(parent)
                q.append(draft_q(case, before))
        ends = new
    return Draft(tokens, parents, q)


def sampled(case: str, widths: Sequence[int], n: int = N_SAMPLES) -> dict[Tokens, int]:
    """How often each text of three tokens was made."""
    draws = [Draws(case, width) for width in widths]
    chain = Kept(case)
    verifier = Verifier(chain)
    counts: dict[Tokens, int] = {}
    for _ in range(n):
        chain.text = ()
        while len(chain.text) < N_TOKENS:
            start = chain.text
            draft = make_draft(case, start, draws[: N_TOKENS - len(start)])

            def row(i: int, start: Tokens = start, draft: Draft = draft) -> Any:
                path = (draft.tokens[node] for node in draft.path(i - 1))
                return LOGITS[context((*start, *path))]

            verdict = verifier.verify(draft, row, lambda token: len(chain.text) == N_TOKENS)
            assert chain.text == (*start, *verdict.tokens)
        counts[chain.text] = counts.get(chain.text, 0) + 1
    return counts


def paths(draft: Draft) -> list[Tokens]:
    """The drafted tokens up to each node."""
    return [tuple(draft.tokens[j] for j in draft.path(i)) for i in range(len(draft))]


def p_value(counts: dict[Tokens, int], probabilities: dict[Tokens, float]) -> float:
    """Of a chi-square test; texts that are expected less than 8 times count as one."""
    assert set(counts) <= set(probabilities), "a text that the target never makes"
    n = sum(counts.values())
    rare_seen, rare, squares, cells = 0, 0.0, 0.0, 0
    for text, probability in probabilities.items():
        if n * probability < 8:
            rare_seen, rare = rare_seen + counts.get(text, 0), rare + n * probability
        else:
            squares += (counts.get(text, 0) - n * probability) ** 2 / (n * probability)
            cells += 1
    if rare >= 8:
        squares, cells = squares + (rare_seen - rare) ** 2 / rare, cells + 1
    freedom = 2 / (9 * (cells - 1))
    # Wilson and Hilferty's approximation by a normal distribution
    return erfc(((squares / (cells - 1)) ** (1 / 3) - 1 + freedom) / sqrt(2 * freedom)) / 2


@pytest.mark.parametrize("case", only(CASES, ("narrow draft, penalties", "grammar")))
def test_the_first_three_tokens_have_the_targets_distribution(case: str) -> None:
    """Of trees; chains are a draft model's, in ``test_model``."""
    assert p_value(sampled(case, (3, 2)), expected(case)) > 1e-3


def by_position(p: Distribution, q: Distribution, proposed: Sequence[int], uniform: Any) -> Choice:
    """llama.cpp's tree example: the residual subtracts arrays sorted by id, place by place."""
    probs, order = p.probs.copy(), q.ids.argsort()
    for i, token in enumerate(proposed):
        p_token = probs[p.ids == token].sum()
        if uniform() * q.probs[q.ids == token][0] < p_token:
            return i, token
        by_id = p.ids.argsort()
        n = min(by_id.size, order.size)
        probs[by_id[:n]] -= q.probs[order[:n]]
        probs = probs.clip(0)
        probs /= probs.sum()
    return None, int(p.ids[(probs.cumsum() / probs.sum()).searchsorted(uniform())])


def wrong_rule(
    accept: Callable[[float, float], float] = lambda p, q: p / q,
    normalise: bool = True,
    residual: bool = True,
) -> Callable[..., Choice]:
    """The right rule over the whole vocabulary, but for one mistake."""

    def rule(p: Distribution, q: Distribution, proposed: Sequence[int], uniform: Any) -> Choice:
        probs, other = np.zeros(N_VOCAB), np.zeros(N_VOCAB)
        probs[p.ids], other[q.ids] = p.probs, q.probs
        for i, token in enumerate(proposed):
            ratio = accept(probs[token], other[token]) if probs[token] else 0
            if uniform() < ratio:
                return i, token
            rest = (probs - other).clip(0) if residual else probs
            probs = rest / rest.sum() if rest.sum() else probs
            other[token] = 0
            if normalise and other.sum():
                other /= other.sum()
        return None, int((probs.cumsum() / probs.sum()).searchsorted(uniform()))

    return rule


WRONG = {
    "residual by position": (by_position, (1, 1)),
    "accepts with q / p": (wrong_rule(lambda p, q: q / p), (1, 1)),
    "no residual": (wrong_rule(residual=False), (1, 1)),
    "q is not normalised": (wrong_rule(normalise=False), (3, 2)),
}


@pytest.mark.parametrize("name", some(WRONG, 1))
def test_a_wrong_rule_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    case, (rule, widths) = "narrow draft, penalties", WRONG[name]
    monkeypatch.setattr(verify, "choose", rule)
    assert p_value(sampled(case, widths), expected(case)) < 1e-6


def test_the_reference_for_wrong_rules_is_right(monkeypatch: pytest.MonkeyPatch) -> None:
    case = "narrow draft, penalties"
    monkeypatch.setattr(verify, "choose", wrong_rule())
    assert p_value(sampled(case, (3, 2)), expected(case)) > 1e-3


probabilities = st.lists(st.integers(0, 9), min_size=5, max_size=5).filter(any)


@given(probabilities, probabilities, st.integers(1, 4), st.randoms(use_true_random=False))
@settings(deadline=None, max_examples=50)
def test_any_p_and_any_q_give_p(
    p_weights: list[int], q_weights: list[int], width: int, random: Any
) -> None:
    """Exactly: the sum over all drawn siblings and all outcomes of the random numbers."""

    def distribution(weights: list[int], shift: int) -> Distribution:
        order = np.array(random.sample(range(5), 5), np.int32)
        order = order[np.array(weights)[order] > 0]
        probs = np.array(weights, np.float64)[order]
        return Distribution(order + np.int32(shift), probs / probs.sum())

    p, q = distribution(p_weights, 0), distribution(q_weights, random.choice([0, 1, 2]))
    total = np.zeros(8)

    def outcomes(proposed: list[int], weight: float) -> None:
        """All outcomes of `choose`, found by the random numbers at which they change."""
        p_left, q_left = np.zeros(8), np.zeros(8)
        p_left[p.ids], q_left[q.ids] = p.probs, q.probs
        uniforms: list[float] = []
        for i, token in enumerate(proposed):
            q_left = q_left / q_left.sum()
            ratio = min(1.0, p_left[token] / q_left[token])
            if ratio > 0:
                given = iter([*uniforms, ratio * 0.999])
                assert choose(p, q, proposed, given.__next__) == (i, token)
                total[token] += weight * ratio
            if ratio > 1 - 1e-12:
                return
            uniforms.append(ratio + (1 - ratio) * 0.001)
            weight *= 1 - ratio
            rest = (p_left - q_left).clip(0)
            p_left = rest / rest.sum()
            q_left[token] = 0
        for token in p.ids[p_left[p.ids] > 1e-12].tolist():
            before = p_left[p.ids[: p.ids.tolist().index(token)]].sum()
            given = iter([*uniforms, before + p_left[token] / 2])
            assert choose(p, q, proposed, given.__next__) == (None, token)
            total[token] += weight * p_left[token]

    def draw(proposed: list[int], left: dict[int, float], weight: float) -> None:
        if len(proposed) == width or not left:
            outcomes(proposed, weight)
            return
        whole = sum(left.values())
        for token, share in left.items():
            rest = {other: x for other, x in left.items() if other != token}
            draw([*proposed, token], rest, weight * share / whole)

    draw([], dict(zip(q.ids.tolist(), q.probs.tolist(), strict=True)), 1.0)
    target = np.zeros(8)
    target[p.ids] = p.probs
    assert np.allclose(total, target, atol=1e-9)


@pytest.mark.parametrize("case", only(CASES, ("narrow draft, penalties", "grammar")))
def test_a_chain_samples_from_its_distribution(case: str) -> None:
    chain, counts = make_chain(case, 5), dict.fromkeys(((i,) for i in range(N_VOCAB)), 0)
    for _ in range(N_SAMPLES):
        counts[(chain.sample(LOGITS[N_VOCAB, N_VOCAB]),)] += 1
    p = target_p(case, ())
    seen = {text: n for text, n in counts.items() if n}
    probabilities = zip(p.ids.tolist(), p.probs.tolist(), strict=True)
    assert p_value(seen, {(token,): share for token, share in probabilities if share}) > 1e-3


def test_a_rejection_of_probability_0_is_not_made() -> None:
    ids = np.arange(3, dtype=np.int32)
    p = Distribution(ids, np.array([0.1, 0.2, 0.7]))
    assert choose(p, p, [1, 0], lambda: 1 - 2**-53) == (0, 1)
    rounded = Distribution(ids, np.array([0.1, 0.2, 0.7]) * (1 + 2e-16))
    assert choose(p, rounded, [2], lambda: 1 - 2**-53) == (0, 2)


def test_a_token_that_the_draft_cannot_draw_is_refused() -> None:
    q = Distribution(np.array([1, 2], np.int32), np.array([1.0, 0.0]))
    p = Distribution(np.array([0], np.int32), np.ones(1))
    for token in (0, 2):
        with pytest.raises(DraftError, match=f"token {token} is drafted, but has probability 0"):
            choose(p, q, [token], lambda: 0.5)


chains = st.builds(
    SamplingParams,
    seed=st.integers(0, 9),
    temp=st.sampled_from([0.0, 0.7, 1.0]),
    top_k=st.sampled_from([0, 3, 40]),
    top_p=st.sampled_from([0.8, 1.0]),
    min_p=st.sampled_from([0.0, 0.1]),
    repeat_penalty=st.sampled_from([1.0, 1.3]),
    presence_penalty=st.sampled_from([0.0, 0.5]),
    repeat_last_n=st.sampled_from([-1, 0, 2]),
    ignore_eos=st.booleans(),
    logit_bias=st.sampled_from([{}, {2: 1.5}, {1: -float("inf")}]),
)
trees = st.lists(st.tuples(st.integers(-1, 5), st.integers(0, N_VOCAB - 1)), max_size=6)


def tree(nodes: list[tuple[int, int]], with_q: bool = False) -> Draft:
    draft, seen = Draft([], []), set()
    for parent, token in nodes:
        parent = min(parent, len(draft) - 1)
        if (parent, token) not in seen:
            seen.add((parent, token))
            draft.tokens.append(token)
            draft.parent.append(parent)
    if with_q:
        q = Distribution(np.arange(N_VOCAB, dtype=np.int32), np.full(N_VOCAB, 1 / N_VOCAB))
        draft.q = [q] * len(draft)
    draft.check(N_VOCAB)
    return draft


@given(chains, st.sampled_from([Chain, Constrained, OwnDraw]), st.data())
@settings(deadline=None, max_examples=50)
def test_point_masses_give_the_tokens_without_drafts(
    params: SamplingParams, kind: type[Chain], data: st.DataObject
) -> None:
    """Also greedy chains and final draws without a distribution, whatever q says."""
    plain = kind(params, N_VOCAB, (0,))
    wanted: list[int] = []
    for _ in range(24):
        wanted.append(plain.sample(LOGITS[context(wanted)]))
        plain.accept(wanted[-1])
    with_q = (params.temp == 0 or kind is OwnDraw) and data.draw(st.booleans())
    verifier = Verifier(kind(params, N_VOCAB, (0,)))
    text: list[int] = []
    while len(text) < 16:
        nodes = data.draw(trees)
        if data.draw(st.booleans()):  # a draft that is partly right
            right = wanted[len(text) : len(text) + 3]
            nodes = [*((i - 1, token) for i, token in enumerate(right)), *nodes]
        draft = tree(nodes, with_q)
        texts = [tuple(text), *((*text, *path) for path in paths(draft))]
        verdict = verifier.verify(draft, lambda i, texts=texts: LOGITS[context(texts[i])])
        assert [draft.tokens[node] for node in verdict.path] == verdict.tokens[:-1]
        assert not verdict.path or draft.path(verdict.path[-1]) == verdict.path
        text += verdict.tokens
    assert text == wanted[: len(text)]
    while len(text) < len(wanted):
        logits = LOGITS[context(text)]
        text += verifier.verify(None, lambda _, logits=logits: logits).tokens
    assert text[: len(wanted)] == wanted


def test_mark_rollback_and_clone() -> None:
    draft = make_draft("filters", (), [Draws("filters", width) for width in (3, 2, 1)])
    texts = [(), *paths(draft)]

    def run(verifier: Verifier) -> list[list[int]]:
        return [
            verifier.verify(draft, lambda i: LOGITS[context(texts[i])]).tokens for _ in range(9)
        ]

    verifier = Verifier(make_chain("filters", 3))
    run(verifier)
    mark, copy = verifier.mark(), verifier.clone()
    wanted = run(verifier)
    verifier.rollback(mark)
    assert run(verifier) == wanted and run(copy) == wanted


def test_a_text_may_end_on_a_drafted_token() -> None:
    verifier = Verifier(Chain(SamplingParams(temp=0.0), 3))
    draft = Draft.chain([2, 1, 0])
    rows = np.eye(3, dtype=np.float32)[[2, 1, 0, 0]]
    assert verifier.verify(draft, rows.__getitem__, lambda token: token == 1) == ([0, 1], [2, 1])
    assert verifier.verify(draft, rows.__getitem__) == ([0, 1, 2], [2, 1, 0, 0])


def test_candidates_with_infinite_logits() -> None:
    logits = np.array([1, np.inf, np.nan, np.inf], np.float32)
    p = Chain(SamplingParams(temp=1.0), 4).distribution(logits)
    assert p is not None and Candidates(logits).logits.size == 4
    assert dict(zip(p.ids.tolist(), p.probs.tolist(), strict=True)).keys() <= {0, 1, 2, 3}
    assert p.probs[np.isin(p.ids, [1, 3])].sum() == 1
