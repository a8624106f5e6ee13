"""Simulated texts: drafts of adaptive length are never much slower than none, and often faster."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import pytest

from pyllama.speculative.length import AcceptRates, DraftLength, Step, StepTimes

from ...tiers import some

CURVES: dict[str, list[float]] = {
    # time of a step of 1, 2, 4, 8 and 17 rows, in that of one row
    "free": [1, 1, 1, 1, 1],
    "memory bound": [1, 1.05, 1.2, 1.3, 2.0],
    "Intel": [1, 1.2, 1.5, 2.3, 4.2],
    "Zen 3": [1, 1.6, 2.9, 3.8, 7.5],
    "stairs": [1, 1.9, 1.95, 2.0, 4.0],
    "proportional": [1, 2, 4, 8, 17],
    "worse": [1, 2.4, 5, 10, 21],
}


@dataclass
class Machine:
    """Steps with a known mean time and noise."""

    curve: list[float]
    draft_s: float = 0.0  # per token, in steps of one row
    read_s: float = 0.0  # per token that was added since the last draft, in the same
    n_prompt: int = 0  # tokens to read before the first draft, where that is known
    noise: float = 0.1
    random: np.random.Generator = field(default_factory=lambda: np.random.default_rng(0))
    unit_s: float = 5e-3
    growth: float = 0.0  # per token

    def mean_s(self, rows: int, n_done: int = 0) -> float:
        one = float(np.interp(rows, [1, 2, 4, 8, 17], self.curve))
        return self.unit_s * one * (1 + self.growth * n_done)

    def noisy(self, seconds: float) -> float:
        outlier = 10 if self.random.random() < 0.01 else 1
        return seconds * outlier * float(np.exp(self.noise * self.random.standard_normal()))


Accept = Callable[[int, int], float]  # rate by position, and tokens so far


def speed_up(machine: Machine, accept: Accept, n_tokens: int, n_texts: int = 1) -> float:
    """Mean time without drafts, divided by that with them."""
    lengths, drafter = DraftLength(), AcceptRates()
    if machine.n_prompt:
        prompt_s = machine.n_prompt * machine.unit_s * machine.curve[-1] / 17
        lengths.times.count_prompt(machine.n_prompt, machine.noisy(prompt_s))
        drafter = AcceptRates(None, 0.7, machine.noisy(machine.draft_s * machine.unit_s))
    texts = [AcceptRates(drafter) for _ in range(n_texts)]
    done, spent_s, plain_s = 0, 0.0, 0.0
    random, unread = machine.random, [machine.n_prompt] * n_texts
    first = [machine.n_prompt > 0] * n_texts
    while done < n_tokens * n_texts:
        reading = [machine.read_s * machine.unit_s * n for n in unread]
        to_read = [n if new else 0 for n, new in zip(unread, first, strict=True)]
        drafted = lengths.plan(texts, reading_s=reading, first=to_read)
        made, reading_s = 0, 0.0
        for i, (text, n) in enumerate(zip(texts, drafted, strict=True)):
            n_accepted = 0
            while n_accepted < n and random.random() < accept(n_accepted, done // n_texts):
                n_accepted += 1
            if n:
                text.count(n, n_accepted)
                text.count_time(machine.noisy(n * machine.draft_s * machine.unit_s), n)
                reading_s += reading[i]
            first[i] &= not n
            unread[i] = 0 if n else unread[i] + 1
            made += n_accepted + 1
        k = sum(drafted)
        draft_s = k * machine.draft_s * machine.unit_s + reading_s
        step_s = machine.mean_s(n_texts + k, done // n_texts)
        plain_s += made / n_texts * machine.mean_s(n_texts, done // n_texts)
        spent_s += step_s + draft_s
        done += made
        counted_s = draft_s - reading_s if lengths.reads else draft_s
        lengths.count(Step(n_texts, k, made, machine.noisy(step_s), machine.noisy(counted_s)))
    return plain_s / spent_s


def changing(seed: int) -> Accept:
    """Rates that change every 20 to 400 tokens."""
    random = np.random.default_rng(seed)
    ends = random.integers(20, 400, 60).cumsum()
    rates = random.beta(0.5, 0.5, 60)
    return lambda _, n_done: float(rates[ends.searchsorted(n_done)])


RATES: dict[str, Accept] = {
    "never": lambda i, n: 0.0,
    "seldom": lambda i, n: 0.1,
    "half": lambda i, n: 0.5,
    "first only": lambda i, n: 0.9 if i == 0 else 0.05,
    "often": lambda i, n: 0.85,
    "always": lambda i, n: 1.0,
    "good, then bad": lambda i, n: 0.95 if n < 300 else 0.0,
    "bad, then good": lambda i, n: 0.0 if n < 300 else 0.95,
    "alternating": lambda i, n: 0.9 * (n // 25 % 2),
    "changing": changing(1),
    "changing otherwise": changing(2),
}


@pytest.mark.parametrize("rates", some(RATES, 4))
@pytest.mark.parametrize("curve", some(CURVES, 3))
def test_never_slower_than_without_drafts(curve: str, rates: str) -> None:
    for seed, (draft_s, read_s, growth, n_texts) in enumerate(
        [
            (0, 0, 0, 1),
            (0.004, 0, 1e-3, 1),
            (0.1, 0.005, 0, 1),
            (0.4, 0, 0, 1),
            (0.1, 0, 0, 4),
            (1.0, 0.25, 0, 1),  # a draft model as large as its target
        ]
    ):
        random = np.random.default_rng(seed)
        machine = Machine(CURVES[curve], draft_s, read_s, 0, 0.1, random, growth=growth)
        assert speed_up(machine, RATES[rates], 600, n_texts) >= 0.97


@pytest.mark.parametrize("rates", some(RATES, 4))
@pytest.mark.parametrize("draft_s", [0.1, 0.3, 0.55, 1.0])
@pytest.mark.parametrize("n_prompt", [40, 220, 2000])
def test_a_prompt_is_read_only_if_that_pays(rates: str, draft_s: float, n_prompt: int) -> None:
    machine = Machine(CURVES["memory bound"], draft_s, draft_s / 8, n_prompt)
    got = speed_up(machine, RATES[rates], 300)
    if rates == "always":
        assert (got > 1.2) == (draft_s * max(n_prompt, 128) < 128) or got >= 0.97
    at_most = n_prompt * draft_s / 8  # a bet that was lost
    assert got >= 0.97 * 300 / (300 + (at_most if draft_s < 0.5 else 0))


@pytest.mark.long
def test_never_slower_on_any_machine() -> None:
    for seed in range(60):
        random = np.random.default_rng(seed)
        steps = random.choice([0.0, 0.05, 0.3, 1.0, 1.3], 4) * random.random(4) * [1, 2, 4, 9]
        draft_s = random.choice([0, 0.05, 0.3])
        machine = Machine([1, *(1 + steps.cumsum())], draft_s, 0.0, 0, 0.15, random)
        assert speed_up(machine, changing(seed), 800) >= 0.97


@pytest.mark.parametrize("rate", [0.5, 0.7, 0.9, 1.0])
@pytest.mark.parametrize("curve", ["memory bound", "Intel", "Zen 3"])
def test_close_to_the_best_fixed_length(curve: str, rate: float) -> None:
    machine = Machine(CURVES[curve], 0.03)
    fixed = [
        sum(rate**i for i in range(k + 1)) / (machine.mean_s(1 + k) / machine.unit_s + k * 0.03)
        for k in range(17)
    ]
    got = speed_up(machine, lambda i, n: rate, 1500)
    assert got >= 0.97 and got >= (0.85 if max(fixed) > 1.5 else 0.75) * max(fixed)


def test_a_drafter_that_becomes_good_is_used_again() -> None:
    machine = Machine(CURVES["memory bound"])
    assert speed_up(machine, lambda i, n: 0.95 * (n > 500), 3000) > 2


def test_rows_of_several_texts_compete() -> None:
    lengths, good, bad = DraftLength(), AcceptRates(), AcceptRates()
    for _ in range(20):
        good.count(8, 8)
        bad.count(8, 0)
        lengths.count(Step(2, 0, 2, 1.0))
        lengths.count(Step(2, 8, 12, 1.4))
    n_good, n_bad = lengths.plan([good, bad])
    assert n_good > 4 and n_bad == 0
    assert lengths.plan([]) == []


@pytest.mark.parametrize(("read_s", "is_read"), [(0.002, True), (0.2, False)])
def test_a_draft_model_reads_what_it_missed_if_that_is_cheap(read_s: float, is_read: bool) -> None:
    lengths, text, unread, reads = DraftLength(), AcceptRates(), 0, list[int]()
    for step in range(1500):  # nothing is ever accepted
        (n,) = lengths.plan([text], reading_s=[read_s * unread])
        reading_s = read_s * unread if n else 0.0
        if n:
            text.count(n, 0)
            text.count_time(0.5 * n, n)
            reads += [step] * (unread > 17)
        unread = 0 if n else unread + 1
        lengths.count(Step(1, n, 1, 1 + 0.2 * n, 0.5 * n + reading_s))
    assert bool(reads) == is_read and len(reads) < 20


def test_step_times() -> None:
    times = StepTimes()
    assert times.seconds(3) == 0
    times.count(1, 1.0)
    assert times.seconds(1) == pytest.approx(1)
    assert times.seconds(3) == pytest.approx(2) and times.seconds(3, True) == pytest.approx(3)
    times.count(5, 1.4)
    assert times.seconds(3) == pytest.approx(1.2) and times.seconds(3, True) == pytest.approx(1.4)
    assert times.seconds(9) == pytest.approx(1.8) and times.seconds(9, True) == pytest.approx(2.52)
    times.count(2, 0.5)  # noise: fewer rows are not slower
    assert times.seconds(2) == pytest.approx(1)
    for seconds in [1.4] * 9 + [2.8] * 50:
        times.count(5, seconds)  # all of them became slower
    assert times.seconds(5) == pytest.approx(2.8, rel=0.05)
    assert times.seconds(1) == pytest.approx(2, rel=0.3)
    before = times.seconds(5)
    times.count(5, 1e3)
    assert times.seconds(5) < 1.2 * before


def test_accept_rates() -> None:
    drafter = AcceptRates()
    text = AcceptRates(drafter)
    assert text.reached(2) == [0.5, 0.25]
    for _ in range(60):
        text.count(3, 2)
    assert text.rate(0) > 0.95 and text.rate(1) > 0.95 and text.rate(2) < 0.05
    assert text.rate(3) == pytest.approx(drafter.rate(2))
    assert AcceptRates(drafter).rate(1) == drafter.rate(1)
    text.count(3, 0)
    assert text.rate(0) < 0.95 and text.rate(1) > 0.95  # the second was not tried
    text.count_time(0.3, 3)
    assert text.seconds_per_token == drafter.seconds_per_token == pytest.approx(0.1)
