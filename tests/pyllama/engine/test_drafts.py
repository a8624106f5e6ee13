"""Drafts change no token of a text, whatever is proposed and whatever else happens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pyllama import Context, Model
from pyllama.engine import Engine, Event, Lease, Policy, Request
from pyllama.engine.generate import generate, generate_many, generate_text
from pyllama.errors import ContextFull, DraftError
from pyllama.grammar import Grammar
from pyllama.sampling import SamplingParams
from pyllama.speculative import (
    Draft,
    Drafter,
    DraftView,
    FirstOf,
    LookupCache,
    ModelDrafter,
    NgramMapK,
    NgramMapK4V,
    NgramMod,
    NgramSimple,
    PromptLookup,
    Speculation,
    Stats,
    SuffixDecoding,
    Translated,
    self_draft,
)

from ...tiers import long, only, some
from ..models import Spec, random_weights, write_model
from ..speculative.views import Text

TOKENS = np.random.default_rng(4).integers(3, 259, 300).tolist()
GREEDY = SamplingParams(temp=0.0, ignore_eos=True)
DRAWN = SamplingParams(temp=0.8, seed=7, repeat_penalty=1.1, ignore_eos=True)
Make = Callable[..., Context]


@dataclass
class Oracle:
    """Knows the texts; every drafted token is wrong with a probability of ``error``.

    Args:
        texts: by prompt.
        width: siblings at each node, the right token among them.
    """

    texts: dict[tuple[int, ...], list[int]]
    error: float = 0.3
    width: int = 1
    random: np.random.Generator = field(default_factory=lambda: np.random.default_rng(3))
    released: list[int] = field(default_factory=list)
    n_calls: int = 0

    def propose(self, views: Sequence[DraftView], max_nodes: Sequence[int]) -> list[Draft | None]:
        self.n_calls += 1
        return [self._draft(list(v.tokens), n) for v, n in zip(views, max_nodes, strict=True)]

    def _draft(self, tokens: list[int], n: int) -> Draft | None:
        rest = self.random.integers(3, 259, n).tolist()
        for prompt, text in self.texts.items():
            if tokens == [*prompt, *text][: len(tokens)]:
                rest = text[len(tokens) - len(prompt) :]
        draft, parent = Draft([], []), -1
        for token in rest:
            children = self.random.permutation(259)[: self.width].tolist()
            if token not in children and self.random.random() >= self.error:
                children[self.random.integers(self.width)] = token
            for child in children:
                if len(draft) < n:
                    draft.tokens.append(child)
                    draft.parent.append(parent)
            parent = len(draft) - len(children) + children.index(token) if token in children else -2
            if not 0 <= parent < len(draft) or len(draft) >= n:
                break
        return draft if len(draft) else None

    def accepted(self, view: DraftView, path: Sequence[int]) -> None:
        """Nothing to do."""

    def release(self, view: DraftView) -> None:
        self.released.append(view.id)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    spec = Spec()
    path = write_model(tmp_path_factory.mktemp("m") / "x.gguf", spec, random_weights(spec))
    return Model.load(path)


@pytest.fixture(scope="module")
def make(model: Model) -> Make:
    return lambda **options: Context(model, **{"n_ctx": 128, "n_threads": 1, **options})


def run(
    context: Context, requests: Sequence[Request], drafter: Drafter | None = None, **options: Any
) -> list[list[Event]]:
    """The events of each request, all submitted at once."""
    policy = options.pop("policy", None)
    spec = (
        None
        if drafter is None
        else Speculation(drafter, **{"adaptive": False, "max_draft": 5, **options})
    )
    engine = Engine(context, policy=policy, speculation=spec)
    numbers = {engine.submit(request): i for i, request in enumerate(requests)}
    events: list[list[Event]] = [[] for _ in requests]
    while engine.has_work:
        for event in engine.step():
            events[numbers[event.request]].append(event)
    for sequence in engine.sequences:
        assert context.kv.seq_pos_max(sequence.seq_id) + 1 == sequence.n_tokens
    return events


def plain(events: Sequence[Event]) -> list[Event]:
    """Events without what drafts change: numbers, and which tokens were drafted."""
    return [event._replace(request=0, drafted=False, n_drafted=0) for event in events]


def oracle(
    requests: Sequence[Request], results: Sequence[Sequence[Event]], **options: Any
) -> Oracle:
    texts = {
        tuple(request.tokens): [t for event in events for t in event.tokens]
        for request, events in zip(requests, results, strict=True)
    }
    return Oracle(texts, **options)


@pytest.mark.parametrize("width", only([1, 2, 3, 4], [4]))
@pytest.mark.parametrize("n_texts", [1, 4])
@pytest.mark.parametrize("params", [GREEDY, DRAWN], ids=["greedy", "drawn"])
def test_events_are_those_without_drafts(
    make: Make, width: int, n_texts: int, params: SamplingParams
) -> None:
    requests = [
        Request(TOKENS[7 * i : 8 * i + 5], replace(params, seed=i, logprobs=i), max_tokens=30 + i)
        for i in range(n_texts)
    ]
    options = {"n_ctx": 512, "n_seq_max": n_texts}
    without = run(make(**options), requests)
    for error in (0.0, 0.3, 1.0):
        drafter = oracle(requests, without, error=error, width=width)
        events = run(make(**options), requests, drafter, max_draft=4 * width)
        assert [plain(one) for one in events] == [plain(one) for one in without]
        n_drafted = sum(event.drafted for one in events for event in one)
        assert n_drafted > 0 or error == 1
        if not error:  # only rows after the last token are wasted
            assert n_drafted >= 0.6 * sum(len(one) - 1 for one in without)
        assert len(drafter.released) == n_texts


def stopped_by(token: int) -> Callable[..., bool]:
    return lambda ids, logits: len(ids) > 20 and ids[-1] % 7 == token % 7


def ban_even(ids: Any, scores: Any) -> Any:
    scores[np.arange(len(scores)) % 2 == len(ids) % 2] = -np.inf
    return scores


SPECIAL: dict[str, dict[str, Any]] = {
    "stop string": {"stop": ("e", "th", "\n")},
    "criterion": {"criteria": (stopped_by(3),)},
    "processor": {"processors": (ban_even,)},
    "processor and criterion": {"processors": (ban_even,), "criteria": (stopped_by(4),)},
    "one token": {"max_tokens": 1},
    "two tokens": {"max_tokens": 2},
    "until the context is full": {"max_tokens": None},
    "without text": {"text": False},
    "context shift": {"n_keep": 4, "max_tokens": 300},
    "end tokens": {"sampling": replace(DRAWN, stop_token_ids=frozenset(range(9, 30)))},
    "several texts": {"sampling": replace(DRAWN, n=3)},
    "best of": {"sampling": replace(DRAWN, n=2, best_of=3)},
    "mirostat": {"sampling": replace(DRAWN, mirostat=2)},
    "log-probabilities": {"sampling": replace(DRAWN, logprobs=3, prompt_logprobs=2)},
    "grammar": {"sampling": DRAWN, "grammar": Grammar('root ::= ("ab" | "cd" | [e-z] "," )*')},
    "grammar that ends": {"sampling": GREEDY, "grammar": Grammar('root ::= "abcdefghij" [0-9]')},
}  # fmt: skip


@pytest.mark.parametrize("name", SPECIAL)
@pytest.mark.parametrize(("width", "error"), [long((1, 0.0)), (2, 0.4)])
def test_requests_with_every_feature(make: Make, name: str, width: int, error: float) -> None:
    base = Request(TOKENS[:6], DRAWN, max_tokens=60)
    requests = [replace(base, **SPECIAL[name]), replace(base, tokens=TOKENS[40:51])]
    options = {"n_ctx": 128 if "context" in name else 1024, "n_seq_max": 4}
    options = {**options, "unified": "context" not in name}
    without = run(make(**options), requests)
    first = [e.choice for e in without[0] if e.kind == "tokens"][:1]
    texts = [[e for e in events if e.choice == (first or [0])[0]] for events in without]
    drafter = oracle(requests, texts, error=error, width=width)
    events = run(make(**options), requests, drafter, max_draft=6 * width)
    for choice in range(3):
        for got, wanted in zip(events, without, strict=True):
            assert [e for e in plain(got) if e.choice == choice] == [
                e for e in plain(wanted) if e.choice == choice
            ]


@pytest.mark.parametrize("n_ctx", [64, 90, 150])
def test_drafts_under_preemption(make: Make, n_ctx: int) -> None:
    requests = [
        Request(TOKENS[9 * i : 9 * i + 12], replace(DRAWN, seed=i), max_tokens=40, priority=i % 2)
        for i in range(5)
    ]
    without = run(make(n_ctx=512, n_seq_max=5), requests)
    for policy in (Policy(n_reserve=1), Policy(n_reserve=40)):
        drafter, stats = oracle(requests, without), Stats()
        context = make(n_ctx=n_ctx, n_seq_max=3)
        events = run(context, requests, drafter, policy=policy, stats=stats)
        assert stats.n_verified == stats.n_drafts > 0  # drafts have cells
        for got, wanted in zip(events, without, strict=True):
            assert [e.tokens for e in got if e.tokens] == [e.tokens for e in wanted if e.tokens]


@pytest.mark.parametrize("drafter", [PromptLookup, NgramSimple, LookupCache, SuffixDecoding])
@pytest.mark.parametrize("adaptive", only([False, True], [True]))
def test_every_drafter(make: Make, drafter: Callable[[], Drafter], adaptive: bool) -> None:
    repeated = TOKENS[:20] * 3
    for params in (GREEDY, DRAWN):
        request = Request(repeated, params, max_tokens=100)
        (without,) = run(make(n_ctx=256), [request])
        (events,) = run(make(n_ctx=256), [request], drafter(), adaptive=adaptive)
        assert plain(events) == plain(without)


def other_model(folder: Path, seed: int) -> Context:
    """A draft model: with the target's weights for seed 0, which it then always predicts."""
    spec = Spec()
    path = write_model(folder / f"{seed}.gguf", spec, random_weights(spec, seed))
    return Context(Model.load(path), n_ctx=512, n_seq_max=4, n_threads=1)


DRAFTERS: dict[str, Callable[[Path, Context], Drafter]] = {
    "prompt lookup": lambda folder, target: PromptLookup(),
    "ngram-simple": lambda folder, target: NgramSimple(1, 4),
    "ngram-map-k": lambda folder, target: NgramMapK(1, 4),
    "ngram-map-k4v": lambda folder, target: NgramMapK4V(1, 4),
    "ngram-mod": lambda folder, target: NgramMod(2, 1, 4),
    "several": lambda folder, target: FirstOf([NgramSimple(1, 4), SuffixDecoding()]),
    "lookup cache": lambda folder, target: LookupCache(),
    "suffix": lambda folder, target: SuffixDecoding(),
    "suffix tree": lambda folder, target: SuffixDecoding(is_tree=True),
    **{
        f"model of seed {seed}, width {width}": lambda folder, target, seed=seed, width=width: (
            ModelDrafter(other_model(folder, seed), width=width, p_min=0, p_split=0)
        )
        for seed in (0, 1)
        for width in (1, 2, 3, 4)
    },
    "self-draft": lambda folder, target: self_draft(target, n_layer=1, p_min=0),
    "translated": lambda folder, target: Translated(
        ModelDrafter(other_model(folder, 0), p_min=0),
        target.model.tokenizer,
        target.model.tokenizer,
    ),
}


PARAMS = {"greedy": GREEDY, "drawn": DRAWN}


@pytest.fixture(scope="module")
def prompts() -> list[list[int]]:
    random = np.random.default_rng(26)
    words = [random.integers(3, 259, n).tolist() for n in (1, 2, 3, 5)]
    return [
        [t for i in random.integers(0, 4, random.integers(1, 9)) for t in words[i]]
        for _ in range(50)
    ]


@pytest.fixture(scope="module")
def texts(make: Make, prompts: list[list[int]]) -> Callable[[str], list[tuple[int, int]]]:
    """The texts without drafts, of each kind of sampling once."""

    @cache
    def of(kind: str) -> list[tuple[int, int]]:
        target = make(n_ctx=512, n_seq_max=4)
        return sorted(generate_many(target, prompts, PARAMS[kind], n_predict=16))

    return of


@pytest.mark.parametrize("name", some(DRAFTERS, 3))
@pytest.mark.parametrize(("kind", "n_seq_max"), [long(("greedy", 1)), ("drawn", 4)])
def test_fifty_random_prompts(
    make: Make, tmp_path: Path, prompts: list[list[int]], texts: Any, name: str, kind: str,
    n_seq_max: int,
) -> None:  # fmt: skip
    target = make(n_ctx=512, n_seq_max=n_seq_max)
    speculation = Speculation(DRAFTERS[name](tmp_path, target), 6, adaptive=False)
    got = generate_many(target, prompts, PARAMS[kind], n_predict=16, speculation=speculation)
    assert sorted(got) == texts(kind)
    stats = speculation.stats
    assert stats.n_drafted > 0 or name == "translated"  # random bytes are no text
    if "seed 0, width 1" in name and kind == "greedy":
        assert stats.n_accept == stats.n_drafted


@pytest.mark.parametrize("width", [1, 3])
@pytest.mark.parametrize("sampling", [SamplingParams(temp=0.0), DRAWN], ids=["points", "drawn"])
def test_a_model_drafts_what_the_grammar_allows(
    make: Make, width: int, sampling: SamplingParams
) -> None:
    grammar = Grammar('root ::= ([0-9] [a-f] ", "){12}')
    request = Request(TOKENS[:9], GREEDY, max_tokens=40, grammar=grammar)
    wanted = run(make(), [request])[0]
    drafter = ModelDrafter(make(n_ctx=256), sampling, width=width, p_split=0.0)
    propose, drafts = drafter.propose, list[Draft]()

    def checked(views: Sequence[DraftView], max_nodes: Sequence[int]) -> list[Draft | None]:
        found, matcher = propose(views, max_nodes), views[0].matcher
        assert matcher is not None
        for draft in filter(None, found):
            drafts.append(draft)
            for node in range(len(draft)):
                mark, path = matcher.mark(), [node]
                while draft.parent[path[0]] >= 0:
                    path.insert(0, draft.parent[path[0]])
                for i in path:
                    assert matcher.allows(draft.tokens[i])
                    matcher.accept(draft.tokens[i])
                matcher.rollback(mark)
        return found

    drafter.propose = checked  # type: ignore[method-assign]
    events = run(make(), [request], drafter)[0]
    assert plain(events) == plain(wanted) and drafts
    if sampling.temp == 0 and width == 1:
        text = "".join(event.text for event in events)
        assert all(event.drafted for event in events[1:6]), text


def test_limits(make: Make) -> None:
    request = Request(TOKENS[:6], GREEDY, max_tokens=40)
    (without,) = run(make(), [request])
    drafter = oracle([request], [without], error=0.0)
    (events,) = run(make(), [replace(request, max_draft=0)], drafter)
    assert drafter.n_calls == 0 and plain(events) == plain(without)
    speculation = Speculation(drafter, max_draft=8, adaptive=False)
    engine = Engine(make(), speculation=speculation)
    events = list(engine.run(replace(request, max_draft=3)))
    assert plain(events) == plain(without)
    stats = speculation.stats
    assert stats.n_drafted == stats.n_accept == 29 and stats.accepted_at == [10, 10, 9]
    for limits in ({"max_draft": -1}, {"max_draft": 2, "min_draft": 3}, {"min_draft": -1}):
        with pytest.raises(DraftError, match="want 0 <= min_draft <= max_draft"):
            Speculation(drafter, **limits)
    nothing = Speculation(PromptLookup(), max_draft=4, min_draft=4, adaptive=False)
    engine = Engine(make(), speculation=nothing)
    assert plain(list(engine.run(request))) == plain(without)
    assert nothing.stats.n_drafted % 4 == 0


def test_drafters_learn_texts_without_drafts() -> None:
    drafter, texts = Oracle({}), [Text(TOKENS[:9], id) for id in range(3)]
    speculation = Speculation(drafter, max_draft=4, min_draft=4)
    assert speculation.propose(texts, [3, 2, 0]) is None  # too short
    speculation.release(texts[0])
    assert drafter.n_calls == 0 and drafter.released == [0]
    speculation.release_all()  # but for the last one, which wants no drafts
    speculation.release(texts[1])
    assert drafter.released == [0, 1]


def test_trees_with_too_many_branches_for_one_batch_are_not_verified(make: Make) -> None:
    class Wide(Oracle):
        def propose(
            self, views: Sequence[DraftView], max_nodes: Sequence[int]
        ) -> list[Draft | None]:
            return [self._draft(list(v.tokens), v.id) for v in views]

        def _draft(self, tokens: list[int], id: int) -> Draft:
            if id == 2:
                return Draft.chain(tokens[-3:])
            return Draft(list(range(40)), [-1] * 40)

    requests = [Request(TOKENS[i : i + 6], GREEDY, max_tokens=9) for i in range(3)]
    without = run(make(n_ctx=512, n_seq_max=3), requests)
    stats = Stats()
    events = run(make(n_ctx=512, n_seq_max=3), requests, Wide({}), stats=stats)
    assert [plain(one) for one in events] == [plain(one) for one in without]
    assert stats.n_verified == 2 / 3 * stats.n_drafts


def test_a_wrong_draft_is_an_error_that_names_it(make: Make) -> None:
    class Wrong(Oracle):
        def propose(
            self, views: Sequence[DraftView], max_nodes: Sequence[int]
        ) -> list[Draft | None]:
            return [Draft([5, 9999], [-1, 0]) for _ in views]

    engine = Engine(make(), speculation=Speculation(Wrong({}), adaptive=False))
    with pytest.raises(DraftError, match="drafted token 9999 is outside the vocabulary"):
        list(engine.run(Request(TOKENS[:6], GREEDY, max_tokens=9)))


def test_tokens_sent_to_a_run_follow_the_last_one_that_it_yielded(make: Make) -> None:
    request = Request(TOKENS[:6], DRAWN, max_tokens=40, text=False)

    def tokens(engine: Engine) -> list[int]:
        run, sent, found = engine.run(request), None, list[int]()
        while True:
            try:
                event = run.send(sent)
            except StopIteration:
                return found
            found += event.tokens
            sent = TOKENS[50:53] if len(found) in (7, 8, 20) and event.tokens else None
            found += [-token for token in sent or ()]

    without = tokens(Engine(make()))
    (alone,) = run(make(), [request])
    for texts in ([t for e in alone for t in e.tokens], [abs(t) for t in without]):
        drafter = Oracle({tuple(request.tokens): texts}, error=0.1)
        engine = Engine(make(), speculation=Speculation(drafter, adaptive=False))
        assert tokens(engine) == without
        assert engine.speculation is not None and engine.speculation.stats.n_accept > 3


def test_runs_in_turns(make: Make) -> None:
    requests = [Request(TOKENS[i : i + 6], replace(DRAWN, seed=i), max_tokens=40) for i in (0, 9)]
    without = run(make(), requests)
    speculation = Speculation(oracle(requests, without, error=0.1), adaptive=False)
    engine = Engine(make(n_seq_max=2, n_ctx=128), speculation=speculation)
    runs = [engine.run(request) for request in requests]
    events: list[list[Event]] = [[], []]
    for turn in range(200):
        event = next(runs[turn % 3 % 2], None)
        if event is not None:
            events[turn % 3 % 2].append(event)
    for got, wanted in zip(events, without, strict=True):
        assert [e.tokens for e in got] == [e.tokens for e in wanted]


def test_generators_take_drafts(make: Make) -> None:
    repeated = TOKENS[:10] * 3

    def speculation() -> Speculation:
        return Speculation(PromptLookup(), adaptive=False)

    wanted = list(generate(make(), repeated, DRAWN, n_predict=40))
    assert (
        list(generate(make(), repeated, DRAWN, n_predict=40, speculation=speculation())) == wanted
    )
    wanted_text = list(generate_text(make(), repeated, DRAWN, n_predict=40))
    got = list(generate_text(make(), repeated, DRAWN, n_predict=40, speculation=speculation()))
    assert "".join(got) == "".join(wanted_text)
    context = make(n_seq_max=2, n_ctx=256)
    prompts = [repeated, TOKENS[:12]]
    both = sorted(generate_many(context, prompts, DRAWN, n_predict=30))
    drafted = generate_many(context, prompts, DRAWN, n_predict=30, speculation=speculation())
    assert sorted(drafted) == both


def test_a_lease_keeps_the_tokens_without_the_last(make: Make) -> None:
    request = Request(TOKENS[:6], GREEDY, max_tokens=40, stop=("e", "a", "o", "\n", "t"))
    held = []
    (alone,) = run(make(), [request])
    for speculation in (None, Speculation(oracle([request], [alone], error=0.0), adaptive=False)):
        lease = Lease(Engine(make(), speculation=speculation))
        list(lease.run(request))
        held.append(lease.tokens)
    assert held[0] == held[1]


@pytest.mark.parametrize("width", [1, 3])
@pytest.mark.parametrize("stop", [(), ("e", "th", "\n")], ids=["length", "stop string"])
@pytest.mark.parametrize("keeps_all", [False, True])
def test_a_lease_has_the_logits_without_drafts(
    make: Make, width: int, stop: tuple[str, ...], keeps_all: bool
) -> None:
    request = Request(TOKENS[:9], GREEDY, max_tokens=40, stop=stop)
    drafter = oracle([request], run(make(), [replace(request, stop=())]), error=0.2, width=width)
    found = []
    for speculation in (None, Speculation(drafter, adaptive=False)):
        lease, rows = Lease(Engine(make(), speculation=speculation)), dict[int, Any]()

        def keep(first: int, logits: Any, rows: dict[int, Any] = rows) -> None:
            rows.update(enumerate(logits.copy(), first))

        if keeps_all:
            lease.on_logits(keep)
        events = list(lease.run(request))
        assert any(event.drafted for event in events) == (speculation is not None)
        assert lease.last_logits is not None
        at, logits = lease.last_logits
        assert at == lease.n_tokens - 1
        rows[at] = logits.copy()
        found.append([rows[i] for i in range(lease.n_tokens) if keeps_all or i == at])
    assert np.array_equal(*found)


def test_an_error_of_a_sampler_comes_after_the_tokens_before_it(make: Make) -> None:
    def fails(ids: Any, scores: Any) -> Any:
        if len(ids) == 15:
            raise ValueError("at 15")
        return scores

    request = Request(TOKENS[:6], GREEDY, max_tokens=40)
    (alone,) = run(make(), [request])
    failing = replace(request, processors=(fails,))
    (without,) = run(make(), [failing])
    (events,) = run(make(), [failing], oracle([request], [alone], error=0.0))
    assert [e.tokens for e in events] == [e.tokens for e in without]
    assert str(events[-1].error) == str(without[-1].error) == "at 15"


def test_no_drafts_where_tokens_are_unknown(make: Make) -> None:
    context = make()
    lease = Lease(Engine(context))
    lease.evaluate(TOKENS[:9])
    lease.release()
    drafter = Oracle({})
    engine = Engine(context, speculation=Speculation(drafter, adaptive=False))
    kept = Lease(engine, keep=True)
    list(kept.run(Request([5], GREEDY, max_tokens=5), append=True))
    assert drafter.n_calls == 0


def test_a_full_context_without_drafts_is_as_with_them(make: Make) -> None:
    request = Request(TOKENS[:200], GREEDY)
    with pytest.raises(ContextFull):
        Engine(make(), speculation=Speculation(Oracle({}))).submit(request)
