"""How the texts of one engine are drafted: a drafter, limits, and what was measured.

    speculation = Speculation(PromptLookup(), max_draft=10)
    engine = Engine(context, speculation=speculation)
    ...
    print("\\n".join(speculation.stats.lines()))

The engine calls `propose` before a step, `verified` for each text and `count_step` after it. Not
thread-safe; one object for one engine.

An error of the drafter leaves `propose`, and so the step; `stop_if_failed` then ends drafting, and
the texts go on without. An error after the step (`verified`, `release`) ends drafting at once.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf
from time import perf_counter

from pyggml.errors import Aborted

from ..errors import DraftError
from .draft import Costs, Draft, Drafter, DraftView
from .length import AcceptRates, DraftLength, Step
from .stats import Stats

_log = logging.getLogger(__name__)
_STEP_ROWS = (2, 3, 4, 6, 8, 12)  # sizes of graphs that are built at once
_MAX_STEP_ROWS = 17
_FREE_MISSES = 4  # calls that found nothing; further ones may cost 1 / _MISS_SHARE of the time
_MISS_SHARE = 100
_MAX_PAUSE = 7  # steps
_PLANNED_STEPS = 8  # steps without drafts after which to plan again, at least
_MAX_PLAIN = 128  # such steps whose times are kept
_PROMPT = 32  # tokens: the time per row of shorter prompts is not that of long ones


@dataclass
class Speculation:
    """A drafter and its limits.

    Args:
        drafter: proposes the tokens.
        max_draft: maximum number of tokens of a draft.
        min_draft: a draft of fewer tokens is not verified. It does not apply to drafts with
            distributions that end early: that would change the distribution of the text.
        adaptive: draft as many tokens as pay by measured times; False: always ``max_draft``.
        stats: counters of all texts.

    Raises:
        DraftError: limits below 0, or ``min_draft`` above ``max_draft``.
    """

    drafter: Drafter
    max_draft: int = 16
    min_draft: int = 0
    adaptive: bool = True
    stats: Stats = field(default_factory=Stats)

    def __post_init__(self) -> None:
        if not 0 <= self.min_draft <= self.max_draft:
            raise DraftError(
                f"min_draft is {self.min_draft} and max_draft {self.max_draft}: "
                "want 0 <= min_draft <= max_draft"
            )
        longest: int | None = getattr(self.drafter, "max_draft", None)
        if longest is not None:
            self.max_draft = min(self.max_draft, longest)
        self._lengths = DraftLength(self.max_draft)
        costs: Costs | None = getattr(self.drafter, "costs", None)
        self._costs = costs
        self._rates = AcceptRates(
            None, *(() if costs is None else (costs.accept_rate, costs.draft_s))
        )
        self._texts: dict[int, AcceptRates] = {}
        self._views: dict[int, DraftView] = {}  # texts that have not ended
        self._n_read: dict[int, int] = {}  # tokens of each text at the last call of the drafter
        self._planned: list[int] = []  # of the last plan
        self._ids: list[int] = []  # its texts
        self._n_held = 0  # steps without drafts for which the plan holds
        self._plain: list[float] = []  # times of such steps since, all of `_n_texts`
        self._plain_draft_s = 0.0  # of drafters in them
        self._n_texts = 0
        self._draft_s = 0.0  # of this step
        self._missed_s = 0.0  # of calls of the drafter that found nothing
        # per token of a text that a drafter had to read
        self._read_s = inf if costs is None else costs.read_s
        self._error: Exception | None = None  # of the last step
        self._is_off = False
        self._n_missed = self._pause = 0  # such calls in a row, and steps until the next one

    def sizes(self, n_texts: int) -> list[int]:
        """Numbers of rows of the graphs of steps with drafts; others are rounded up at first."""
        most = min(n_texts * (1 + self.max_draft), _MAX_STEP_ROWS)
        return [n for n in _STEP_ROWS if n < most] + [most]

    def rests(self, views: Sequence[DraftView]) -> bool:
        """Whether the plan of these texts is to draft nothing, so `propose` need not be called."""
        if len(self._plain) >= self._n_held or [view.id for view in views] != self._ids:
            return False
        return not any(self._planned)

    def propose(
        self, views: Sequence[DraftView], limits: Sequence[int]
    ) -> list[Draft | None] | None:
        """The drafts of a step.

        Args:
            views: the texts of the step.
            limits: maximum number of tokens of each draft.

        Returns:
            None if there is none for any text.

        Raises:
            Aborted, ComputeError: the decode of a draft model stopped.
        """
        if self._is_off:
            return None
        for view, limit in zip(views, limits, strict=True):
            if limit > 0:
                self._views[view.id] = view
        if self._pause:
            self._pause -= 1
            return None
        planned = self._plan(views) if self.adaptive else [self.max_draft] * len(views)
        planned = [
            min(n, limit) if min(n, limit) >= self.min_draft else 0
            for n, limit in zip(planned, limits, strict=True)
        ]
        if not any(planned):
            return None
        start = perf_counter()
        drafts = self.drafter.propose(views, planned)
        self._draft_s = perf_counter() - start
        self.stats.count_calls(len(views), self._draft_s)
        if not self._count_read(views):
            self._missed_s += self._draft_s
        for draft in drafts:
            if draft is not None:
                self._n_missed = 0
                return self._used(views, drafts)
        self._n_missed += 1
        if self.adaptive and self._n_missed >= _FREE_MISSES:  # a slow drafter is asked less often
            step_s = self._lengths.times.seconds(len(views))
            self._pause = min(int(_MISS_SHARE * self._draft_s / max(step_s, 1e-9)), _MAX_PAUSE)
        return None

    def failed(self, error: Exception) -> None:
        """The step has no drafts because of an error of the drafter, or of a draft."""
        self._error = error

    def stop_if_failed(self, error: Exception) -> bool:
        """Draft no more if this error of a step is the drafter's; returns whether it is."""
        is_its, self._error = error is self._error and not isinstance(error, Aborted), None
        if is_its:
            self._stop(error)
        return is_its

    def _stop(self, error: Exception) -> None:
        name = type(self.drafter).__name__
        _log.error("%s failed: the texts go on without drafts", name, exc_info=error)
        self._is_off = True

    def _n_unread(self, view: DraftView) -> int:
        """Tokens that a drafter has to read before it drafts; 0 for those of a step.

        A draft model reads many tokens faster than it drafts them: the time of such a call is not
        what a draft costs.
        """
        n = len(view.tokens) - self._n_read.get(view.id, 0)
        return n if n > self.max_draft + 1 else 0

    def _count_read(self, views: Sequence[DraftView]) -> bool:
        """Whether a drafter had to read more than a step's tokens of a text.

        The first time, it reads a prompt, which is no cost of this step if it was planned.
        """
        n = sum(map(self._n_unread, views))
        if n:
            self._read_s = min(self._read_s, self._draft_s / n)
            is_first = any(view.id not in self._n_read for view in views)
            if is_first and (self._costs is None or self._lengths.reads):
                self._draft_s = 0.0
        self._n_read.update((view.id, len(view.tokens)) for view in views)
        return n > 0

    def _used(
        self, views: Sequence[DraftView], drafts: list[Draft | None]
    ) -> list[Draft | None] | None:
        """The drafts that are long enough; counts them."""
        found = [
            None if d is None or not d or (d.q is None and len(d) < self.min_draft) else d
            for d in drafts
        ]
        n_found = sum(map(bool, found))
        for view, draft in zip(views, found, strict=True):
            if draft is not None:
                self.stats.count_draft(len(draft))
                if self._missed_s:  # else the drafter had to read, which is no time of drafting
                    self._rates_of(view).count_time(self._missed_s / n_found, len(draft))
        if n_found:
            self._missed_s = 0.0
        return found if n_found else None

    def _plan(self, views: Sequence[DraftView]) -> list[int]:
        """The lengths of the drafts; those of the last plan if little happened since."""
        ids = [view.id for view in views]
        if len(self._plain) < self._n_held and ids == self._ids:
            return self._planned
        self._count_plain()
        self._ids = ids
        reading_s, first = [], []
        for view in views:
            n, has_read = self._n_unread(view), view.id in self._n_read
            is_known = n and self._read_s < inf and (has_read or self._costs)
            reading_s.append(self._read_s * n if is_known else 0.0)
            first.append(n if self._costs and not has_read else 0)
        rates = [self._rates_of(view) for view in views]
        self._planned = self._lengths.plan(rates, reading_s=reading_s, first=first)
        self._n_held = max(self._lengths.n_rest, _PLANNED_STEPS)
        return self._planned

    def _count_plain(self) -> None:
        if self._plain:
            self._lengths.count_plain(self._n_texts, self._plain, self._plain_draft_s)
            self._plain, self._plain_draft_s = [], 0.0

    def verified(self, view: DraftView, draft: Draft, path: Sequence[int]) -> None:
        """Count a verified draft, and tell the drafter which nodes were accepted."""
        depth = len(draft) if draft.is_chain else max(draft.depths())
        self._rates_of(view).count(depth, len(path))
        self.stats.count_accepted(len(path))
        try:
            self.drafter.accepted(view, path)
        except Exception as error:
            self._stop(error)

    def count_step(
        self, n_texts: int, n_drafted: int, n_tokens: int, decode_s: float, sample_s: float
    ) -> None:
        """Count a step that evaluated the last token of each text, and drafts if there are any.

        Args:
            n_drafted: rows of drafts.
            n_tokens: tokens that were added to the texts.
            decode_s, sample_s: times of the decode, and of sampling or verification.
        """
        draft_s, self._draft_s = self._draft_s, 0.0
        step_s = decode_s + sample_s
        if not n_drafted:
            if n_texts != self._n_texts or len(self._plain) >= _MAX_PLAIN:
                self._count_plain()
                self._n_texts = n_texts
            self._plain.append(step_s)
            self._plain_draft_s += draft_s
            return
        self._count_plain()
        self._lengths.count(Step(n_texts, n_drafted, n_tokens, step_s, draft_s))
        self._ids = []  # plan again
        times = self._lengths.times
        plain_s = times.seconds(n_texts) * n_tokens / n_texts if times.n_seen(n_texts) else 0.0
        self.stats.count_step(decode_s, sample_s, plain_s)

    def count_prompt(self, n_tokens: int, decode_s: float) -> None:
        """Count a decode of tokens of prompts, which tells what rows cost."""
        if n_tokens >= _PROMPT:
            self._lengths.times.count_prompt(n_tokens, decode_s)

    def release(self, view: DraftView) -> None:
        """The text has ended, or its tokens have changed."""
        self._texts.pop(view.id, None)
        self._n_read.pop(view.id, None)
        if self._views.pop(view.id, None) is None or self._is_off:
            return
        try:
            self.drafter.release(view)
        except Exception as error:
            self._stop(error)

    def release_all(self) -> None:
        """All texts have ended, such as by an interrupt: drafters learn what there is of them."""
        for view in list(self._views.values()):
            self.release(view)

    def _rates_of(self, view: DraftView) -> AcceptRates:
        rates = self._texts.get(view.id)
        if rates is None:
            rates = self._texts[view.id] = AcceptRates(self._rates)
        return rates
