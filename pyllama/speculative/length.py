"""The number of tokens to draft: as many as pay, by measured times and accept rates.

    lengths, drafter = DraftLength(), AcceptRates()
    text = AcceptRates(drafter)                 # of one text; starts with the drafter's rates
    n = lengths.plan([text])[0]                 # draft so many tokens, then decode and verify
    text.count(n_drafted, n_accepted)
    text.count_time(draft_s, n_drafted)
    lengths.count(Step(n_texts=1, n_drafted=n_drafted, n_tokens=n_accepted + 1, step_s=step_s))

A draft of k tokens costs a step of k more rows and the time of drafting, and gives the expected
number of accepted tokens; `plan` maximizes expected tokens per second. It spends a budget: a draft
is only made if, were all of its tokens rejected, the loss would be less than all earlier gains, a
small allowance at the start and 1 % of the time. So a wrong estimate, a drafter that fails or a
processor on which rows are expensive costs little. If drafting does not pay, a rare draft of one
token, paid from the 1 %, finds out when it does again. Before it, a draft model reads the tokens
since its last draft; if that takes more than the 1 %, the draft is not made. A text is first read
only if drafts are expected to save more time in as many tokens as it has, but at most 256.

All times are measured on the host: there is no constant of a machine. Not thread-safe.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from math import ceil, exp, inf, log
from operator import mul

_MEMORY = 16  # drafts that accept rates remember, on average
_PROBES = 0.01  # share of the time that may be spent on finding out whether drafting pays
_START = 1.0  # budget of a new object, in steps without drafts
_MAX_BUDGET = 8.0  # gains beyond are not spent on later losses
_TEXT = 256  # tokens after a prompt for which reading it must pay, at most
_PLAIN_EVERY = 128  # steps: one without drafts, to measure its time; more often at first
_MIN_PLAIN = 4  # steps without drafts before the first draft
_MEDIAN = 5  # times
_MAX_REST = 64  # steps without a plan, at most
_ROWS_OF_PROMPTS = 1.5  # time per row in small steps, in that of prompts; until it is measured


class StepTimes:
    """The time of a step by its number of rows.

    Each is a moving average of medians of the last 5 times, so that single slow steps do not count.
    All row counts share a factor that follows the growth of the context and the load of the
    machine; the times relative to it change more slowly. The time per row of prompts, where rows
    are cheapest, tells what rows cost that were not measured yet.
    """

    def __init__(self) -> None:
        self._level = 0.0  # log of the shared factor
        self._curve: dict[int, float] = {}  # log of time / factor, by rows
        self._last: dict[int, deque[float]] = {}
        self._n_seen: dict[int, int] = {}
        self._table: tuple[list[int], list[float]] | None = None  # see `_known`
        self._row_s = inf  # of prompts

    def count(self, rows: int, seconds: float) -> None:
        """Add a measured step."""
        observed = log(max(seconds, 1e-9))
        self._table = None
        if not self._curve:
            self._level = observed
        n = self._n_seen[rows] = self._n_seen.get(rows, 0) + 1
        last = self._last.setdefault(rows, deque(maxlen=_MEDIAN))
        last.append(observed - self._level)
        median = sorted(last)[(len(last) - 1) // 2]
        if n <= _MEDIAN:
            self._curve[rows] = median
            return
        error = median - self._curve[rows]
        self._level += error / 8
        self._curve[rows] += error / 32

    def count_prompt(self, rows: int, seconds: float) -> None:
        """Add a measured step of many rows of which few have logits."""
        self._row_s = min(self._row_s, seconds / rows)

    def n_seen(self, rows: int) -> int:
        """Number of measured steps of so many rows."""
        return self._n_seen.get(rows, 0)

    def seconds(self, rows: int, pessimistic: bool = False) -> float:
        """The expected time of a step.

        Args:
            rows: number of rows.
            pessimistic: for unknown numbers of rows assume the time per row of the next smaller
                known one; else half of it for each further row, or the known slope; but not more
                than 1.5 times what these rows take in prompts.
        """
        sizes, times = self._known()
        if not sizes:
            return 0.0
        above = bisect_left(sizes, rows)
        if above < len(sizes) and sizes[above] == rows:
            return times[above]
        if above == 0:
            return times[0] * (1 + rows / sizes[0]) / 2
        low, low_s = sizes[above - 1], times[above - 1]
        if above < len(sizes):
            if pessimistic:
                return min(times[above], low_s * rows / low)
            share = (rows - low) / (sizes[above] - low)
            return low_s + share * (times[above] - low_s)
        slope = low_s / low
        if not pessimistic:
            slope /= 2
            if above > 1:
                slope = min(slope, (low_s - times[above - 2]) / (low - sizes[above - 2]))
        by_prompts = max(low_s, _ROWS_OF_PROMPTS * rows * self._row_s)
        return min(low_s + slope * (rows - low), by_prompts)

    def _known(self) -> tuple[list[int], list[float]]:
        """The numbers of rows of measured steps, and their times, which do not decrease."""
        if self._table is None:
            sizes, times = sorted(self._curve), list[float]()
            for i, r in enumerate(sizes):
                time_s = exp(self._level + self._curve[r])
                if i and self._n_seen[r] < _MEDIAN:  # may be an outlier
                    time_s = min(time_s, times[-1] * r / sizes[i - 1])
                times.append(max(time_s, times[-1]) if i else time_s)
            self._table = sizes, times
        return self._table


class AcceptRates:
    """How often the drafted tokens of each position are accepted, of late.

    Args:
        parent: the rates of the drafter, which those of a text start from, and which count its
            drafts as well.
        expected: without a parent, the rate until drafts were counted.
        seconds: the time to draft a token until one was counted; None for the parent's.

    Attributes:
        seconds_per_token: time of drafting.
    """

    def __init__(
        self, parent: AcceptRates | None = None, expected: float = 0.5, seconds: float | None = None
    ) -> None:
        self._parent, self._expected = parent, expected
        self._accepted: list[float] = []
        self._tried: list[float] = []
        self._seconds = seconds

    def count(self, n_drafted: int, n_accepted: int) -> None:
        """Add a verified draft: its number of tokens in depth, and how many were accepted."""
        n_tried = min(n_drafted, n_accepted + 1)
        while len(self._tried) < n_tried:
            self._tried.append(0.0)
            self._accepted.append(0.0)
        for i in range(n_tried):
            self._tried[i] += 1 - self._tried[i] / _MEMORY
            self._accepted[i] += (i < n_accepted) - self._accepted[i] / _MEMORY
        if self._parent is not None:
            self._parent.count(n_drafted, n_accepted)

    def count_time(self, seconds: float, n_drafted: int) -> None:
        """Add the time of a call of the drafter, which may have found nothing."""
        one = seconds / max(n_drafted, 1)
        self._seconds = one if self._seconds is None else self._seconds + (one - self._seconds) / 8
        if self._parent is not None:
            self._parent.count_time(seconds, n_drafted)

    @property
    def seconds_per_token(self) -> float:
        """Expected time to draft a token."""
        if self._seconds is None:
            return 0.0 if self._parent is None else self._parent.seconds_per_token
        return self._seconds

    def rate(self, position: int) -> float:
        """The probability that a token is accepted if all before it are.

        A position that was not seen yet starts with the parent's rate, or with that of the position
        before it.
        """
        return self._rates(position + 1)[position]

    def reached(self, n: int) -> list[float]:
        """The probability that the first 1, 2, ... n tokens are accepted."""
        return list(accumulate(self._rates(n), mul))

    def _rates(self, n: int) -> list[float]:
        """The rates of the first ``n`` positions."""
        rates = [] if self._parent is None else self._parent._rates(n)
        last = self._expected
        for i in range(n):
            prior = last if self._parent is None else rates[i]
            if i < len(self._tried):
                last = (self._accepted[i] + prior) / (self._tried[i] + 1)
            else:
                last = prior
            if self._parent is None:
                rates.append(last)
            else:
                rates[i] = last
        return rates


@dataclass(frozen=True, slots=True)
class Step:
    """A finished step of some texts.

    Attributes:
        n_texts: rows without drafts.
        n_drafted: drafted rows.
        n_tokens: tokens that were added to the texts.
        step_s: time of the decode and the verification.
        draft_s: time of all drafters.
    """

    n_texts: int
    n_drafted: int
    n_tokens: int
    step_s: float
    draft_s: float = 0.0


@dataclass
class DraftLength:
    """Plans the drafts of a step for all texts of an engine.

    Args:
        max_draft: maximum length of a draft.

    Attributes:
        times: measured steps.
        budget: possible loss that is paid for, in steps without drafts.
        reads: whether the last plan has texts that are read for the first time, because it pays:
            the time of reading is then no cost of the step.
        n_rest: if the last plan has no drafts because a probe costs more than the budget: after so
            many steps the budget suffices, at most 64. Else 0.
    """

    max_draft: int = 16
    times: StepTimes = field(default_factory=StepTimes)
    budget: float = _START
    reads: bool = False
    n_rest: int = 0
    _probe_budget: float = _START
    _most: float = _START  # limit of the budget of probes
    _is_probe: bool = False
    _planned_loss: float = 0.0  # of the last plan, if all of its tokens are rejected
    _n_since_plain: int = 0

    def plan(
        self,
        rates: Sequence[AcceptRates],
        limits: Sequence[int] | None = None,
        reading_s: Sequence[float] | None = None,
        first: Sequence[int] | None = None,
    ) -> list[int]:
        """The number of tokens to draft for each text.

        Rows of all texts compete: each draft grows by the token that is most likely accepted.

        Args:
            rates: of each text.
            limits: maximum length of each draft; None for ``max_draft``.
            reading_s: time in which the drafter reads what is new of each text before it drafts.
            first: number of tokens of each text that is read for the first time, 0 for others.
        """
        n, lengths = len(rates), [0] * len(rates)
        self._is_probe = self.reads = False
        self.n_rest = 0
        n_plain = self.times.n_seen(n)
        if not n or n_plain < _MIN_PLAIN or self._n_since_plain >= min(4 * n_plain, _PLAIN_EVERY):
            return lengths
        limits = [self.max_draft] * n if limits is None else limits
        reached = [
            one.reached(min(limit, self.max_draft))
            for one, limit in zip(rates, limits, strict=True)
        ]
        order = sorted(
            ((-p, i) for i, of_text in enumerate(reached) for p in of_text), key=lambda x: x[0]
        )
        unread_s = [0.0] * n if reading_s is None else list(reading_s)
        best_k = 0
        if first is not None and any(first):
            later_s = [0.0 if new else s for new, s in zip(first, unread_s, strict=True)]
            best_k, speed = self._best(rates, order, later_s)
            read = {i for _, i in order[:best_k] if first[i]}
            per_token_s = self.times.seconds(n) / n - self._error(n) / speed
            saved_s = sum(min(first[i], _TEXT) for i in read) * per_token_s
            self.reads = bool(read) and saved_s > sum(unread_s[i] for i in read)
        if not self.reads:
            best_k, _ = self._best(rates, order, unread_s)
        if not best_k and order:
            i = order[0][1]
            loss = self._loss(n, 1, rates[i].seconds_per_token + unread_s[i])
            self._most = max(_START, 2 * loss)  # it grows from step to step by what is to be read
            missing = loss - min(self.budget, self._probe_budget)
            if missing <= 0:
                best_k, self._is_probe = 1, True
            else:
                self.n_rest = ceil(min(missing / _PROBES, _MAX_REST))
        for _, i in order[:best_k]:
            lengths[i] += 1
        draft_s = sum(k * one.seconds_per_token for k, one in zip(lengths, rates, strict=True))
        if not self.reads:
            draft_s += sum(s for k, s in zip(lengths, unread_s, strict=True) if k)
        self._planned_loss = self._loss(n, best_k, draft_s)
        return lengths

    def _best(
        self,
        rates: Sequence[AcceptRates],
        order: Sequence[tuple[float, int]],
        unread_s: Sequence[float],
    ) -> tuple[int, float]:
        """How many of the tokens in ``order`` are drafted, and the expected tokens per second."""
        n, draft_s, to_read = len(rates), 0.0, list(unread_s)
        tokens, speed = float(n), n / self.times.seconds(n)
        best_k, best = 0, self._error(n) * speed
        for k, (negative, i) in enumerate(order, 1):
            tokens, draft_s = tokens - negative, draft_s + rates[i].seconds_per_token + to_read[i]
            to_read[i] = 0.0
            if self._loss(n, k, draft_s) > self.budget:
                break
            found = tokens / (self.times.seconds(n + k) + draft_s)
            if found > best:
                best_k, best, speed = k, found, found
        return best_k, speed

    def _loss(self, n: int, k: int, draft_s: float) -> float:
        """The loss if all of k drafted tokens are rejected, in steps without drafts."""
        seconds = self.times.seconds(n + k, pessimistic=True) + draft_s
        return seconds / self.times.seconds(n) - 1

    def _error(self, n: int) -> float:
        """The factor that a draft must gain by its estimates, which have errors themselves."""
        return 1.05 + 0.4 / max(self.times.n_seen(n), 1)

    def count(self, step: Step) -> None:
        """Add a finished step."""
        if not step.n_texts:
            return
        if not step.n_drafted:
            return self.count_plain(step.n_texts, [step.step_s], step.draft_s)
        rows = step.n_texts + step.n_drafted
        self.times.count(rows, step.step_s)
        self._n_since_plain += 1
        plain_s = self.times.seconds(step.n_texts)
        # expected times: one slow step says nothing about drafts
        spent_s = self.times.seconds(rows) * self._error(step.n_texts) + step.draft_s
        gain = step.n_tokens / step.n_texts - spent_s / max(plain_s, 1e-9)
        gain = max(gain, -self._planned_loss)  # one slow call says nothing about the drafter
        self._add(1, gain, gain if self._is_probe else 0.0)

    def count_plain(self, n_texts: int, steps_s: Sequence[float], draft_s: float) -> None:
        """Add finished steps without drafts.

        Args:
            steps_s: time of each.
            draft_s: time of all drafters, which found nothing.
        """
        for step_s in steps_s:
            self.times.count(n_texts, step_s)
        self._n_since_plain = 0
        self._add(len(steps_s), -draft_s / max(self.times.seconds(n_texts), 1e-9), 0.0)

    def _add(self, n_steps: int, gain: float, of_probes: float) -> None:
        """Add gains, and the time for probes, to the budgets."""
        allowed = n_steps * _PROBES
        self.budget = min(self.budget + gain + allowed, max(_MAX_BUDGET, self._most))
        self._probe_budget = min(self._probe_budget + of_probes + allowed, self._most)
        self._is_probe = False
