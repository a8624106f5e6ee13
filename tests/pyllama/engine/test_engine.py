"""The engine: concurrent texts equal single runs, with aborts, preemption and full caches."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyggml.errors import Aborted, ComputeError
from pyllama import Batch, Context, Model
from pyllama.engine import Engine, Event, Lease, Policy, Request
from pyllama.engine.logprobs import token_logprob
from pyllama.errors import (
    BatchError,
    ContextFull,
    EngineDead,
    GrammarError,
    QueueFull,
    ReentrantCall,
    SamplingError,
)
from pyllama.sampling import SamplingParams

from ..fake_context import EOS, TEXT, FakeContext, FakeModel, ids
from ..models import Spec, random_weights, write_model

TOKENS = np.random.default_rng(4).integers(3, 259, 300).tolist()
GREEDY = SamplingParams(temp=0.0, ignore_eos=True)
Make = Callable[..., Context]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    spec = Spec()
    path = write_model(tmp_path_factory.mktemp("m") / "x.gguf", spec, random_weights(spec))
    return Model.load(path)


@pytest.fixture(scope="module")
def make(model: Model) -> Make:
    return lambda **options: Context(model, **{"n_ctx": 64, "n_threads": 1, **options})


@pytest.fixture(scope="module")
def alone(make: Make) -> Callable[..., list[int]]:
    """The result of a request in a context of its own."""
    context, known = make(n_ctx=256), dict[tuple[int, ...], list[int]]()

    def tokens(request: Request, n: int) -> list[int]:
        key = (*request.tokens, -1, request.sampling.seed, n)
        if key not in known:
            plain = Request(request.tokens, request.sampling, max_tokens=n, text=False)
            known[key] = made(Engine(context).run(plain))
        return known[key]

    return tokens


@pytest.fixture(scope="module")
def scored(make: Make) -> Callable[..., list[Any]]:
    """The log-probabilities of a prompt, from one decode with all logits."""
    context, known = make(n_ctx=256), dict[tuple[int, ...], list[Any]]()

    def logprobs(tokens: list[int], n_top: int) -> list[Any]:
        key = (*tokens, -1, n_top)
        if key not in known:
            context.kv.clear()
            context.decode(Batch(tokens, logits="all"))
            rows = zip(context.logits, tokens[1:], strict=False)
            known[key] = [None, *(token_logprob(row, token, n_top) for row, token in rows)]
        return known[key]

    return logprobs


def made(events: Iterator[Event] | list[Event]) -> list[int]:
    return [token for event in events for token in event.tokens]


def finish(engine: Engine, events: list[Event] | None = None) -> list[Event]:
    """All events until there is no more work."""
    events = [] if events is None else events
    for _ in range(4000):
        if not engine.has_work:
            return events
        events += engine.step()
    raise AssertionError("the engine does not come to an end")


def of(events: list[Event], number: int) -> list[Event]:
    return [event for event in events if event.request == number]


# --- what runs beside other texts -----------------------------------------------------------------


@st.composite
def workloads(draw: st.DrawFn) -> list[tuple[int, tuple[int, int, int, int, int, bool]]]:
    """Requests (start of the prompt, length, seed, priority, tokens, leaves early) and when."""
    request = st.tuples(
        st.sampled_from([0, 0, 0, 40, 90]),
        st.integers(1, 30),
        st.integers(0, 2),
        st.integers(0, 2),
        st.integers(1, 24),
        st.integers(0, 4).map(lambda n: n == 0),
    )
    return draw(st.lists(st.tuples(st.integers(0, 6), request), min_size=1, max_size=8))


@given(
    workloads(),
    st.integers(1, 4),
    st.sampled_from([3, 16, 64]),
    st.booleans(),
    st.sampled_from([Policy(), Policy(max_prompt_tokens=4, n_reserve=0, min_shared=2)]),
)
@settings(deadline=None, max_examples=20)
def test_any_mix_of_requests_equals_single_runs_and_frees_all_cells(
    make: Make,
    alone: Callable[..., list[int]],
    scored: Callable[..., list[Any]],
    work: list[tuple[int, tuple[int, int, int, int, int, bool]]],
    n_seq_max: int,
    n_batch: int,
    unified: bool,
    policy: Policy,
) -> None:
    n_ctx = 64 if unified else 64 * n_seq_max
    context = make(n_ctx=n_ctx, n_seq_max=n_seq_max, n_batch=n_batch, unified=unified)
    engine, events, submitted = Engine(context, policy=policy), [], {}
    for at, (start, length, seed, priority, n, leaves) in work:
        for _ in range(at):
            events += engine.step()
        params = SamplingParams(
            temp=0.0 if seed == 0 else 1.0, seed=seed, ignore_eos=True,
            prompt_logprobs=2 if seed == 2 else None,
        )  # fmt: skip
        request = Request(
            TOKENS[start : start + length], params, max_tokens=n, priority=priority, text=False
        )
        number = engine.submit(request)
        submitted[number] = request, leaves
        if leaves:
            events += engine.step()
            engine.abort(number)
    finish(engine, events)
    for number, (request, leaves) in submitted.items():
        mine = of(events, number)
        assert sum(event.kind == "end" for event in mine) == 1 and mine[-1].kind == "end"
        tokens, reason = made(mine), mine[-1].reason
        assert reason == ("abort" if leaves and reason == "abort" else "length")
        assert request.max_tokens is not None
        wanted = alone(request, request.max_tokens)
        assert tokens == wanted[: len(tokens)]
        assert reason == "abort" or len(tokens) == len(wanted)
        prompts = [list(event.prompt_logprobs) for event in mine if event.kind == "prompt"]
        if request.sampling.prompt_logprobs is None:
            assert not prompts
        elif tokens:
            assert prompts == [scored(list(request.tokens), 2)]
    engine.drop_prefixes()
    assert context.kv.n_used == 0


def test_the_lowest_priority_is_preempted_and_catches_up(
    make: Make, alone: Callable[..., list[int]]
) -> None:
    context = make(n_seq_max=3)
    engine = Engine(context, policy=Policy(n_reserve=0))
    requests = [
        Request(TOKENS[20 * i : 20 * i + 15], GREEDY, max_tokens=30, priority=p, text=False)
        for i, p in enumerate((0, 5, 1))
    ]
    numbers = [engine.submit(request) for request in requests]
    events = finish(engine)
    ends = [event.request for event in events if event.kind == "end"]
    assert ends == [numbers[1], numbers[2], numbers[0]]  # 3 x 45 tokens, 64 cells
    for number, request in zip(numbers, requests, strict=True):
        assert made(of(events, number)) == alone(request, 30)


def test_a_prefix_is_evaluated_once(make: Make) -> None:
    context = make(n_ctx=512, n_seq_max=4)
    engine = Engine(context)
    shared = TOKENS[:100]
    for i in range(4):
        engine.submit(Request([*shared, 5 + i], GREEDY, max_tokens=2, text=False))
    events = finish(engine)
    cached = [event.usage.n_cached for event in events if event.usage is not None]
    assert sorted(cached) == [0, 100, 100, 100] and context.kv.n_used < 120
    assert engine.timings.n_prompt_eval < 120
    again = Request([*shared, 8, 9], GREEDY, max_tokens=1)
    assert next(e.usage.n_cached for e in engine.run(again) if e.usage is not None) >= 100


def test_prompts_are_read_in_chunks_beside_running_texts(make: Make) -> None:
    context = make(n_ctx=512, n_seq_max=2)
    engine = Engine(context, policy=Policy(max_prompt_tokens=8))
    first = engine.submit(Request(TOKENS[:4], GREEDY, max_tokens=60, text=False))
    events = engine.step()
    second = engine.submit(Request(TOKENS[100:164], GREEDY, max_tokens=1, progress=True))
    while not any(event.tokens and event.request == second for event in events):
        events += engine.step()
    assert len(made(of(events, first))) == 1 + 64 // 8
    progress = [e.usage.n_computed for e in of(events, second) if e.kind == "progress" and e.usage]
    assert progress == list(range(0, 64, 8))


def test_few_texts_begin_in_a_step_beside_running_ones(make: Make) -> None:
    engine = Engine(make(n_ctx=512, n_seq_max=8), policy=Policy(max_admitted=2))
    first = engine.submit(Request(TOKENS[:4], GREEDY, max_tokens=5, text=False))
    engine.step()
    others = [
        engine.submit(Request(TOKENS[i : i + 4], GREEDY, max_tokens=1, text=False))
        for i in range(5, 10)
    ]
    steps = [engine.step() for _ in range(4)]
    assert all(len(of(events, first)) >= 1 for events in steps)
    begun = [sum(bool(made(of(events, one))) for one in others) for events in steps]
    assert begun == [2, 2, 1, 0]


def test_several_texts_of_one_request(make: Make) -> None:
    engine = Engine(make(n_ctx=256, n_seq_max=3))
    params = SamplingParams(seed=5, temp=1.5, n=3)
    events = list(engine.run(Request(TOKENS[:40], params, max_tokens=6, text=False)))
    assert engine.timings.n_prompt_eval <= 40 + 6 * 3 and engine.context.kv.n_used < 40 + 6 * 3
    texts = [made(event for event in events if event.choice == i) for i in range(3)]  # type: ignore[arg-type]
    one = Request(TOKENS[:40], SamplingParams(seed=6, temp=1.5), max_tokens=6, text=False)
    assert texts[1] == made(engine.run(one)) and len({*map(tuple, texts)}) == 3


def test_the_best_of_several_texts(make: Make) -> None:
    engine = Engine(make(n_ctx=256, n_seq_max=3))

    def texts(**options: Any) -> list[tuple[list[int], float, str]]:
        params = SamplingParams(seed=5, temp=1.5, **options)
        number = engine.submit(Request(TOKENS[:40], params, max_tokens=6))
        other = engine.submit(Request(TOKENS[:9], GREEDY, max_tokens=3))
        events = finish(engine)
        assert len(made(of(events, other))) == 3
        found = []
        for i in range(params.n):
            mine = [event for event in of(events, number) if event.choice == i]
            logprobs = [entry for event in mine for entry in event.logprobs]
            assert [entry.token for entry in logprobs] == (
                made(mine) if params.logprobs is not None else []
            )
            total = mine[-1].cumulative_logprob
            assert total is not None
            if logprobs:
                assert total == pytest.approx(sum(entry.logprob for entry in logprobs))
                assert all(len(entry.top) == params.logprobs for entry in logprobs)
            found.append((made(mine), total, "".join(event.text for event in mine)))
        assert {event.choice for event in of(events, number)} == set(range(params.n))
        return found

    best_first = sorted(texts(n=6, logprobs=0), key=lambda text: -text[1])
    assert len({text[1] for text in best_first}) == 6
    assert texts(n=2, best_of=6) == best_first[:2]
    assert texts(n=1, best_of=6, logprobs=2) == best_first[:1]
    assert texts(n=6, best_of=6, logprobs=1) != best_first  # in the order of their seeds
    # run() returns the same events
    params = SamplingParams(seed=5, temp=1.5, best_of=6)
    run = engine.run(Request(TOKENS[:40], params, max_tokens=6, progress=True))
    events = list(run)
    assert made(events) == best_first[0][0]
    kinds = [event.kind for event in events]
    n_progress = kinds.index("tokens")
    assert set(kinds[:n_progress]) == {"progress"} and kinds[-1] == "end"


def test_an_error_or_an_abort_ends_all_of_best_of(make: Make) -> None:
    engine = Engine(make(n_ctx=256, n_seq_max=3))
    n_calls = iter(range(99))

    def boom(input_ids: np.ndarray, scores: np.ndarray) -> np.ndarray:
        if next(n_calls) == 8:
            raise ZeroDivisionError
        return scores

    params = SamplingParams(n=2, best_of=4, ignore_eos=True)
    number = engine.submit(Request(TOKENS[:9], params, max_tokens=5, processors=(boom,)))
    events = of(finish(engine), number)
    assert [(event.kind, event.choice) for event in events] == [("error", 0), ("error", 1)]
    number = engine.submit(Request(TOKENS[:9], params, max_tokens=50))
    for _ in range(4):
        assert not engine.step()
    engine.abort(number)
    events = of(finish(engine), number)
    ends = [event for event in events if event.kind == "end"]
    assert [event.reason for event in ends] == ["abort"] * 2
    assert [event.choice for event in ends] == [0, 1] and 3 <= len(made(events)) <= 8


def test_the_log_probabilities_of_a_prompt(make: Make, scored: Callable[..., list[Any]]) -> None:
    prompt, params = TOKENS[:30], SamplingParams(temp=0, prompt_logprobs=3, ignore_eos=True)
    wanted = scored(prompt, 3)

    def prompts(engine: Engine, request: Request) -> list[list[Any]]:
        events = list(engine.run(request))
        found = [event for event in events if event.kind == "prompt"]
        assert all(
            event.kind in ("prompt", "progress") for event in events[: events.index(found[0])]
        )
        return [list(event.prompt_logprobs) for event in found]

    for options in ({"n_batch": 7}, {"n_ubatch": 4}, {"n_batch": 1}, {"n_seq_max": 3}, {}):
        engine = Engine(make(n_ctx=128, **options))
        for i in range(2):  # the second time all of it is cached
            assert prompts(engine, Request(prompt, params, max_tokens=2)) == [wanted]
            assert engine.context.kv.n_used >= 30, i
    assert prompts(engine, Request(prompt, replace(params, n=3, seed=1), max_tokens=2)) == [wanted]
    # alone, without tokens
    end = list(engine.run(Request(prompt, params, max_tokens=0)))
    assert [event.kind for event in end] == ["prompt", "end"] and end[1].reason == "length"
    assert list(end[0].prompt_logprobs) == wanted
    for max_tokens in (0, 2):
        assert prompts(engine, Request(prompt[:1], params, max_tokens=max_tokens)) == [[None]]
    # in a lease, with tokens that it holds
    lease, seen = Lease(engine), list[int]()
    lease.evaluate(prompt[:9])
    lease.on_logits(lambda first, logits: seen.extend(range(first, first + len(logits))))
    events = list(lease.run(Request(prompt[9:], params, max_tokens=1), append=True))
    assert list(events[0].prompt_logprobs) == wanted and seen == list(range(30))
    # a prompt that does not fit, also with a context shift
    with pytest.raises(ContextFull):
        lease.run(Request(TOKENS[:129], params, n_keep=4))


# --- where texts end ------------------------------------------------------------------------------


def fake(text: str = TEXT, **sizes: int) -> Any:
    return FakeContext(FakeModel(text), **{"n_ctx": 64, **sizes})


def test_reasons_and_usage() -> None:
    t = frozenset(ids("t")[1:])
    cases: list[tuple[dict[str, Any], str, Any, str]] = [
        ({}, "eog", None, TEXT[7:]),
        ({"max_tokens": 4}, "length", None, " sat"),
        ({"stop": (" mat", "zz")}, "stop", " mat", " sat on the"),
        ({"stop": (" m",), "include_stop_str_in_output": True}, "stop", " m", " sat on the m"),
        ({"stop_token_ids": t}, "stop", max(t), " sa"),
        ({"stop_token_ids": t, "include_stop_str_in_output": True}, "stop", max(t), " sat"),
        ({"stop_token_ids": t, "special": True}, "stop", max(t), " sat"),
        ({"stop_token_ids": t, "stop": ("at",)}, "stop", max(t), " sa"),
        ({"criteria": (lambda i, s: len(i) > 10,)}, "stop", None, " sa"),
        ({"max_tokens": 0}, "length", None, ""),
        ({"deadline_s": -1.0}, "deadline", None, ""),
        ({"special": True}, "eog", None, TEXT[7:] + "</s>"),
        ({"max_tokens": 20}, "length", None, " sat on the mat, na\ufffd"),
        ({"max_tokens": 20, "drop_unfinished": True}, "length", None, " sat on the mat, na"),
    ]
    for options, reason, stop, text in cases:
        engine, names = Engine(fake()), SamplingParams.__dataclass_fields__
        params = SamplingParams(temp=0.0, **{k: v for k, v in options.items() if k in names})
        others = {k: v for k, v in options.items() if k not in names}
        events = list(engine.run(Request(ids("The cat"), params, **others)))
        end = events[-1]
        assert (end.kind, end.reason, end.stop) == ("end", reason, stop), options
        assert "".join(event.text for event in events) == text, options
        assert end.usage is not None and end.usage.n_generated == len(made(events))
        assert end.usage.n_prompt == 8
    full = list(Engine(fake("x" * 90, n_ctx=16)).run(Request(ids("xxx"), SamplingParams(temp=0))))
    assert full[-1].reason == "length" and len(made(full)) == 16 - 4 + 1


def test_submit_refuses_bad_requests(make: Make) -> None:
    engine = Engine(make(), policy=Policy(max_waiting=1))
    for tokens, error in (([], BatchError), ([5, 999], BatchError), ([5] * 65, ContextFull)):
        with pytest.raises(error):
            engine.submit(Request(tokens))
    with pytest.raises(SamplingError, match="stop: got 'User:', want a tuple"):
        engine.submit(Request([5], stop="User:"))  # type: ignore[arg-type]
    with pytest.raises(GrammarError, match="got a value of type str, want Grammar"):
        engine.submit(Request([5], grammar='root ::= "a"'))  # type: ignore[arg-type]
    engine.submit(Request([5], GREEDY, max_tokens=1))
    with pytest.raises(QueueFull):
        engine.submit(Request([5]))
    finish(engine)
    lease = Lease(engine)
    with pytest.raises(BatchError, match="leased"):
        engine.submit(Request([5]))
    with pytest.raises(BatchError, match="in use"):
        Lease(engine)
    del lease
    engine.step()
    assert made(engine.run(Request([5], GREEDY, max_tokens=2)))


def test_an_error_of_a_callback_ends_only_its_request(
    make: Make, alone: Callable[..., list[int]]
) -> None:
    def boom(input_ids: np.ndarray, scores: np.ndarray) -> np.ndarray:
        if len(input_ids) == 12:
            raise ZeroDivisionError
        return scores

    engine = Engine(make(n_seq_max=2))
    good = Request(TOKENS[:9], GREEDY, max_tokens=12, text=False)
    numbers = [
        engine.submit(good),
        engine.submit(Request(TOKENS[:9], GREEDY, max_tokens=12, processors=(boom,))),
    ]
    events = finish(engine)
    assert made(of(events, numbers[0])) == alone(good, 12)
    last = of(events, numbers[1])[-1]
    assert last.kind == "error" and isinstance(last.error, ZeroDivisionError)
    assert len(made(of(events, numbers[1]))) == 3
    with pytest.raises(ZeroDivisionError):
        list(engine.run(Request(TOKENS[:9], GREEDY, processors=(boom,))))
    calls = [lambda: engine.step(), lambda: list(engine.run(good))]
    for call in calls:
        stepping = Request([5], GREEDY, processors=(lambda i, s, call=call: call(),))
        with pytest.raises(ReentrantCall):
            list(engine.run(stepping))


@pytest.mark.parametrize("how", ["close", "forget"])
def test_a_run_that_is_left_frees_its_cells(make: Make, how: str) -> None:
    context = make(n_seq_max=2)
    engine = Engine(context)
    run = engine.run(Request(TOKENS[:20], GREEDY))
    next(run)
    assert context.kv.n_used == 20
    if how == "close":
        run.close()
    else:
        del run
        gc.collect()
    engine.step()
    assert context.kv.n_used == 0 and not engine.has_work


def test_all_requests_continue_after_a_stopped_decode() -> None:
    context = fake(n_batch=3)
    engine = Engine(context)
    number = engine.submit(Request(ids("The cat"), SamplingParams(temp=0.0)))
    events = []
    for fail_after in (0, 1, 0, 3):
        context.fail_after = fail_after
        with pytest.raises(Aborted):
            finish(engine, events)
    finish(engine, events)
    assert "".join(event.text for event in of(events, number)) == TEXT[7:]
    assert made(events)[-1] == EOS and context.kv.tokens == ids(TEXT)


def test_requests_from_other_threads(make: Make, alone: Callable[..., list[int]]) -> None:
    engine = Engine(make(n_ctx=256, n_seq_max=4))
    requests = [
        Request(TOKENS[i : i + 7], GREEDY, max_tokens=9, text=False) for i in range(0, 120, 10)
    ]
    numbers: dict[int, Request] = {}

    def submit(some: list[Request]) -> None:
        for request in some:
            numbers[engine.submit(request)] = request
            engine.abort(engine.submit(Request(TOKENS[:5], GREEDY)))

    threads = [threading.Thread(target=submit, args=(requests[i::3],)) for i in range(3)]
    assert not engine.wait(0.01)
    for thread in threads:
        thread.start()
    events: list[Event] = []
    while any(thread.is_alive() for thread in threads) or engine.has_work:
        if engine.wait(0.05):
            events += engine.step()
    for thread in threads:
        thread.join()
    assert len(numbers) == 12
    assert all(made(of(events, n)) == alone(r, 9) for n, r in numbers.items())


# --- sequences by hand, and mixed -----------------------------------------------------------------


def test_runs_and_hands_share_a_lease(make: Make, alone: Callable[..., list[int]]) -> None:
    engine = Engine(make())
    lease = Lease(engine)
    requests = [Request(TOKENS[i : i + 9], GREEDY, max_tokens=8, text=False) for i in (0, 50)]
    runs = [lease.run(request) for request in requests]
    got: list[list[int]] = [[], []]
    for i in range(8):
        for run, tokens in zip(runs, got, strict=True):
            tokens += next(run).tokens
        if i == 3:
            lease.truncate(0)
        if i == 5:
            lease.evaluate(TOKENS[100:103])
    assert got == [alone(request, 8) for request in requests]


def test_a_shift_beside_others_and_a_preemption_after_it(make: Make) -> None:
    """The keys of a shifted text differ from those of a fresh evaluation, so they are saved."""
    options = {"n_ctx": 32, "n_seq_max": 2, "unified": False}
    wanted = made(Engine(make(n_ctx=16)).run(Request(TOKENS[:9], GREEDY, max_tokens=40, n_keep=3)))
    assert len(wanted) == 40
    engine = Engine(make(**options))
    number = engine.submit(Request(TOKENS[:9], GREEDY, max_tokens=40, n_keep=3))
    events: list[Event] = []
    while len(made(events)) < 20:
        events += engine.step()
    assert any(event.kind == "shift" and event.removed[0] == 3 for event in events)
    for start in (50, 70, 90):  # of higher priority: they take both sequences
        engine.submit(Request(TOKENS[start : start + 9], GREEDY, max_tokens=5, priority=1))
    finish(engine, events)
    assert made(of(events, number)) == wanted


def test_a_shift_drops_as_many_tokens_as_wanted(make: Make) -> None:
    request = Request(TOKENS[:9], GREEDY, max_tokens=30, n_keep=3, n_discard=5)
    events = list(Engine(make(n_ctx=16)).run(request))
    shifts = [event.removed for event in events if event.kind == "shift"]
    assert len(made(events)) == 30 and shifts[0] == (3, 5) and len(shifts) == 5
    greedy = replace(request, n_discard=99)  # at least one token stays
    shifts = [e.removed for e in Engine(make(n_ctx=16)).run(greedy) if e.kind == "shift"]
    assert shifts[0] == (3, 12)


def test_one_text_of_a_request_is_aborted(make: Make) -> None:
    engine = Engine(make(n_seq_max=2))
    params = SamplingParams(seed=1, n=2, ignore_eos=True)
    number = engine.submit(Request(TOKENS[:5], params, max_tokens=20))
    events = engine.step() + engine.step()
    engine.abort(number, 1)
    events = finish(engine, events)
    assert len(made([e for e in events if e.choice == 0])) == 20
    assert 0 < len(made([e for e in events if e.choice == 1])) < 20


def test_unknown_tokens_are_never_a_prefix(make: Make, tmp_path: Path) -> None:
    context = make(n_seq_max=2)
    first = Engine(context)
    list(first.run(Request(TOKENS[:20], GREEDY, max_tokens=2)))
    engine = Engine(context)  # another one knows nothing of these
    events = list(engine.run(Request(TOKENS[:30], GREEDY, max_tokens=2)))
    assert events[-1].usage is not None and events[-1].usage.n_cached == 0


def test_only_texts_wait(make: Make) -> None:
    """Aborts and wake-ups in the inbox are no waiting texts."""
    engine = Engine(make(), policy=Policy(max_waiting=1))
    for number in range(5):
        engine.abort(number)
        engine.wake()
    assert engine.n_waiting == 0
    engine.submit(Request([5], replace(GREEDY, n=2), max_tokens=1))
    assert engine.n_waiting == 2
    finish(engine)
    assert engine.n_waiting == 0


# --- steps that fail ------------------------------------------------------------------------------

BAD = 258  # a token that the decode of a broken context cannot evaluate
Breaks = Callable[[list[int], list[int]], bool]  # by the tokens and sequences of a batch


def broken(context: Context, monkeypatch: pytest.MonkeyPatch, breaks: Breaks) -> Context:
    """A context that raises for some batches, after it has evaluated them."""
    decode, decode_token = context.decode, context.decode_token

    def failing(batch: Batch) -> None:
        decode(batch)
        if breaks(list(batch.tokens), [*map(int, np.ravel(batch.seqs()))]):
            raise ComputeError("it broke")

    def failing_token(token: int, seq_id: int = 0) -> None:
        decode_token(token, seq_id)
        if breaks([token], [seq_id]):
            raise ComputeError("it broke")

    monkeypatch.setattr(context, "decode", failing)
    monkeypatch.setattr(context, "decode_token", failing_token)
    return context


def go_on(engine: Engine) -> tuple[list[Event], int]:
    """All events, with `step_apart` after each step that fails; and their number."""
    events: list[Event] = []
    for n_failed in range(100):
        try:
            return finish(engine, events), n_failed
        except ComputeError:
            events += engine.step_apart()
    raise AssertionError("steps still fail")


def good_requests() -> list[Request]:
    prompts = [[t for t in TOKENS[i : i + 9] if t != BAD] for i in (0, 20, 40)]
    return [Request(prompt, GREEDY, max_tokens=6, text=False) for prompt in prompts]


@pytest.mark.parametrize("n_seq_max", [1, 2, 4])
def test_a_request_whose_steps_fail_ends_alone(
    make: Make, alone: Callable[..., list[int]], monkeypatch: pytest.MonkeyPatch, n_seq_max: int
) -> None:
    context = make(n_ctx=256, n_seq_max=n_seq_max)
    engine = Engine(broken(context, monkeypatch, lambda tokens, seqs: BAD in tokens))
    good, bad = good_requests(), replace(good_requests()[1], tokens=[*TOKENS[:9], BAD, 7])
    numbers = [engine.submit(request) for request in (good[0], bad, *good[1:])]
    events, n_failed = go_on(engine)
    (last,) = of(events, numbers.pop(1))[-1:]
    assert last.kind == "error" and isinstance(last.error, ComputeError) and n_failed == 1
    for number, request in zip(numbers, good, strict=True):
        assert made(of(events, number)) == alone(request, 6)
    assert not engine.scheduler.runs and all(s.owner is None for s in engine.sequences)


def test_steps_that_only_fail_together(
    make: Make, alone: Callable[..., list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    context = make(n_ctx=256, n_seq_max=3)
    engine = Engine(broken(context, monkeypatch, lambda tokens, seqs: len(set(seqs)) > 1))
    good = good_requests()
    numbers = [engine.submit(request) for request in good]
    events, n_failed = go_on(engine)
    assert n_failed > 3
    for number, request in zip(numbers, good, strict=True):
        assert made(of(events, number)) == alone(request, 6)


def test_a_request_that_cannot_be_admitted(
    make: Make, alone: Callable[..., list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = Engine(make(n_ctx=256, n_seq_max=3))
    assign = engine.scheduler._assign

    def failing(job: Any, sequence: Any) -> None:
        if BAD in job.tokens:
            raise ComputeError("it broke")
        assign(job, sequence)

    monkeypatch.setattr(engine.scheduler, "_assign", failing)
    good = good_requests()
    numbers = [engine.submit(good[0])]
    engine.step()
    numbers += [engine.submit(replace(good[1], tokens=[BAD, 9, 9])), engine.submit(good[1])]
    events, _ = go_on(engine)
    assert [e.kind for e in of(events, numbers[1])] == ["error"]
    assert made(of(events, numbers[2])) == alone(good[1], 6)


@pytest.mark.parametrize("pooling", [None, "mean"])
def test_an_engine_that_can_evaluate_nothing(
    make: Make, monkeypatch: pytest.MonkeyPatch, pooling: str | None
) -> None:
    engine = Engine(broken(make(n_seq_max=2), monkeypatch, lambda tokens, seqs: True))
    events: list[Event] = []
    for request in good_requests()[:2]:
        engine.submit(replace(request, pooling=pooling), events.append)
    with pytest.raises(ComputeError):
        engine.step()
    with pytest.raises(EngineDead, match="it broke"):
        engine.step_apart()
    assert [event.kind for event in events] == ["error", "error"]


def test_an_error_after_a_token_ends_its_request(
    make: Make, alone: Callable[..., list[int]]
) -> None:
    """The token is in the text already: a second try would leave it out of the events."""
    engine, good = Engine(make(n_ctx=256, n_seq_max=2)), good_requests()
    events: list[Event] = []
    heard: list[str] = []

    def sink(event: Event) -> None:
        heard.append(event.kind)
        if len(heard) == 3:
            raise ZeroDivisionError

    engine.submit(good[0], sink)
    number = engine.submit(good[1])
    events = finish(engine)
    assert heard == ["tokens"] * 3 + ["error"]
    assert made(of(events, number)) == alone(good[1], 6)


def test_an_error_at_the_rows_of_an_embedding(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows are added once: the text cannot be tried again."""
    engine = Engine(make(n_ctx=256, n_seq_max=2))
    requests = [replace(request, pooling="mean") for request in good_requests()[:2]]
    jobs = [engine.make_runs(request) for request in requests]
    monkeypatch.setattr(jobs[0][0].pooled, "add", lambda *_: 1 // 0, raising=False)
    numbers = [engine.enqueue(one) for one in jobs]
    events = finish(engine)
    assert [e.kind for e in of(events, numbers[0])] == ["error"]
    assert [e.kind for e in of(events, numbers[1])] == ["embedding", "end"]
