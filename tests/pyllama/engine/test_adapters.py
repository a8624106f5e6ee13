"""Requests with adapters: in one batch, with prefixes and kept prompts of their own."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest

from pyllama import Context, Model
from pyllama.engine import Engine, Lease, Request
from pyllama.engine.prefix_store import PrefixStore
from pyllama.errors import BatchError, ModelError, StateError
from pyllama.runtime.adapters import Adapter, load_control_vector, load_lora
from pyllama.runtime.state import dump_state, restore_state
from pyllama.sampling import SamplingParams

from ..adapters import adaptable, random_terms, write_lora, write_vector
from ..models import Spec, random_weights, write_model

PROMPT = [1, *range(70, 110)]
GREEDY = SamplingParams(temp=0.0, logprobs=0)
Result = list[tuple[int, float]]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    path = tmp_path_factory.mktemp("base") / "x.gguf"
    return Model.load(write_model(path, Spec(), random_weights(Spec())))


@pytest.fixture(scope="module")
def loras(model: Model, tmp_path_factory: pytest.TempPathFactory) -> list[Adapter]:
    folder = tmp_path_factory.mktemp("loras")
    made = []
    for i in range(3):
        terms = random_terms(adaptable(model), 261, rank=4 + i, seed=i, size=0.8)
        made.append(load_lora(write_lora(folder / f"{i}.gguf", "llama", terms, 8), model))
    terms = random_terms(adaptable(model), 261, rank=4, seed=9, size=0.8)
    tokens = {"adapter__alora__invocation_tokens": np.array([100, 101], np.uint32)}
    made.append(load_lora(write_lora(folder / "a.gguf", "llama", terms, 8, **tokens), model))
    vector = write_vector(folder / "v.gguf", 32, 2, seed=4)
    return [*made, load_control_vector(vector, model)]


def context_of(model: Model, loras: list[Adapter], n_seq_max: int = 1) -> Context:
    context = Context(model, n_ctx=128 * n_seq_max, n_seq_max=n_seq_max)
    context.set_adapters(loras)
    return context


def run(engine: Engine, *adapters: Mapping[Adapter, float] | None, n: int = 8) -> list[Result]:
    """Greedy tokens with log-probabilities of the prompt with each of some adapters."""
    numbers = [
        engine.submit(Request(PROMPT, GREEDY, max_tokens=n, adapters=one)) for one in adapters
    ]
    found: dict[int, Result] = {number: [] for number in numbers}
    while engine.has_work:
        for event in engine.step():
            assert event.error is None, event.error
            found[event.request] += [(one.token, one.logprob) for one in event.logprobs]
    return [found[number] for number in numbers]


def test_one_batch_has_the_bits_of_each_alone(model: Model, loras: list[Adapter]) -> None:
    uses: list[dict[Adapter, float]] = [
        {}, {loras[0]: 1.0}, {loras[1]: 0.5}, {loras[0]: 1.0, loras[2]: -0.25}, {loras[3]: 1.0},
        {loras[4]: 2.0},
    ]  # fmt: skip
    alone = [run(Engine(context_of(model, loras)), use)[0] for use in uses]
    plain = run(Engine(Context(model, n_ctx=128)), None)[0]
    assert alone[0] == plain
    assert len({tuple(one) for one in alone}) == len(uses)
    assert run(Engine(context_of(model, loras, len(uses))), *uses) == alone


def test_prefixes_are_shared_with_the_same_adapters_only(
    model: Model, loras: list[Adapter]
) -> None:
    context = context_of(model, loras)
    engine = Engine(context, prefixes=PrefixStore(1 << 24))
    lora, other, invoked = {loras[0]: 1.0}, {loras[0]: 0.5}, {loras[3]: 1.0}
    first = [run(engine, one)[0] for one in (None, lora, other, invoked)]
    for use, cached in ((None, 40), (lora, 40), (other, 40), (invoked, 40)):
        engine.submit(Request(PROMPT, GREEDY, max_tokens=8, adapters=use))
        usages = [e.usage for e in iter_events(engine) if e.kind == "end"]
        assert usages[0] is not None and usages[0].n_cached == cached
    assert [run(engine, one)[0] for one in (invoked, None, other, lora)] == [
        first[3], first[0], first[2], first[1],
    ]  # fmt: skip


def iter_events(engine: Engine) -> list:
    events = []
    while engine.has_work:
        events += engine.step()
    return events


def test_an_invoked_adapter_shares_what_precedes_its_invocation(
    model: Model, loras: list[Adapter]
) -> None:
    engine = Engine(context_of(model, loras))
    run(engine, None)
    engine.submit(Request(PROMPT, GREEDY, max_tokens=2, adapters={loras[3]: 1.0}))
    (end,) = [e for e in iter_events(engine) if e.kind == "end"]
    assert end.usage is not None and end.usage.n_cached == PROMPT.index(100)
    without = Request(PROMPT[:20], GREEDY, max_tokens=8, adapters={loras[3]: 1.0})
    engine.submit(without)
    texts = [e.tokens[0] for e in iter_events(engine) if e.tokens]
    engine.submit(Request(PROMPT[:20], GREEDY, max_tokens=8))
    assert texts == [e.tokens[0] for e in iter_events(engine) if e.tokens]


def test_applied_adapters_and_hot_swap(model: Model, loras: list[Adapter]) -> None:
    engine = Engine(context_of(model, loras, 2))
    plain, changed = run(engine, {}, {loras[1]: 0.5})
    assert run(engine, None)[0] == plain
    engine.context.apply({loras[1]: 0.5})
    assert run(engine, None, {}) == [changed, plain]
    lease = Lease(engine)
    lease.evaluate(PROMPT)
    context = Context(model, n_ctx=128)
    context.set_adapters([loras[1]], {loras[1]: 0.5})
    alone = Lease(Engine(context))
    alone.evaluate(PROMPT)
    assert np.array_equal(engine.context.logits, context.logits)
    engine.context.set_adapters([loras[2]])
    with pytest.raises(BatchError, match="not loaded"):
        engine.submit(Request(PROMPT, adapters={loras[1]: 1.0}))
    assert run(engine, None)[0] == plain
    with pytest.raises(ModelError, match="scale is 1e"):
        engine.submit(Request(PROMPT, adapters={loras[2]: 1e30}))


def test_states_belong_to_their_adapters(model: Model, loras: list[Adapter]) -> None:
    context = context_of(model, loras)
    lease = Lease(Engine(context))
    lease.evaluate(PROMPT)
    plain = b"".join(part.tobytes() for part in dump_state(context))
    context.apply({loras[0]: 1.0})
    with pytest.raises(StateError, match="other adapters"):
        restore_state(context, plain)
    changed = b"".join(part.tobytes() for part in dump_state(context))
    restore_state(context, changed)
    context.apply({})
    restore_state(context, plain)


def test_context_shift_with_an_adapter(model: Model, loras: list[Adapter]) -> None:
    def text(adapters: dict[Adapter, float]) -> list[int]:
        engine = Engine(context_of(model, loras))
        request = Request(
            PROMPT, GREEDY, max_tokens=120, n_keep=4, adapters=adapters, stop_at_eog=False
        )
        engine.submit(request)
        return [e.tokens[0] for e in iter_events(engine) if e.tokens]

    texts = [text(use) for use in ({}, {loras[0]: 1.0}, {loras[3]: 1.0})]
    assert [len(one) for one in texts] == [120] * 3
    assert len({tuple(one) for one in texts}) == 3


@pytest.mark.parametrize("first", [1, 5])
@pytest.mark.parametrize("together", [True, False])
def test_a_text_whose_adapter_is_removed_ends_alone(
    model: Model, loras: list[Adapter], first: int, together: bool
) -> None:
    """Also if no adapter is left (``loras[5:]``), and if it is the only text."""
    context = context_of(model, loras, n_seq_max=2)
    engine = Engine(context)
    plain = run(Engine(context_of(model, [])), None)[0]
    kept = engine.submit(Request(PROMPT, GREEDY, max_tokens=8, adapters={})) if together else -1
    lost = engine.submit(Request(PROMPT, GREEDY, max_tokens=8, adapters={loras[0]: 1.0}))
    events = [event for _ in range(3) for event in engine.step()]
    context.set_adapters(loras[first:])
    with pytest.raises(BatchError, match=r"0\.gguf: this adapter is not loaded"):
        engine.step()
    events += engine.step_apart()
    while engine.has_work:
        events += engine.step()
    errors = [(event.request, str(event.error)) for event in events if event.error is not None]
    assert [number for number, _ in errors] == [lost] and "is not loaded" in errors[0][1]
    said = [t for e in events if e.request == kept for t in e.tokens]
    assert said == [t for t, _ in plain if together]
