"""How the texts of one engine are drafted: a drafter, limits, and what was measured.

    speculation = Speculation(PromptLookup(), max_draft=10)
    engine = Engine(context, speculation=speculation)
    ...
    print("\\n".join(speculation.stats.lines()))

The engine calls `propose` before a step, `verified` for each text and `count_step` after it. Not
thread-safe; one object for one engine.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from time import perf_counter

from ..errors import DraftError
from .draft import Draft, Drafter, View
from .length import AcceptRates, DraftLength, Step
from .stats import Stats

_SIZES = (2, 3, 4, 6, 8, 12)
_MOST = 17
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
        self._lengths = DraftLength(self.max_draft)
        self._rates = AcceptRates()
        self._texts: dict[int, AcceptRates] = {}
        self._draft_s = 0.0  # of this step

    def sizes(self, n_texts: int) -> list[int]:
        """Numbers of rows of steps whose graphs should be built before the first draft."""
        most = min(n_texts * (1 + self.max_draft), _MOST)
        return [n for n in _SIZES if n < most] + [most]

    def propose(self, views: Sequence[View], limits: Sequence[int]) -> list[Draft | None] | None:
        """The drafts of a step.

        Args:
            views: the texts of the step.
            limits: maximum number of tokens of each draft.

        Returns:
            None if there is none for any text.

        Raises:
            Aborted, ComputeError: the decode of a draft model stopped.
        """
        rates = [self._rates_of(view) for view in views]
        if self.adaptive:
            planned = self._lengths.plan(rates, limits)
        else:
            planned = [min(limit, self.max_draft) for limit in limits]
        planned = [n if n >= self.min_draft else 0 for n in planned]
        self._draft_s = 0.0
        if not any(planned):
            return None
        start = perf_counter()
        drafts = self.drafter.propose(views, planned)
        self._draft_s = perf_counter() - start
        found = False
        share_s = self._draft_s / sum(map(bool, planned))
        for i, draft in enumerate(drafts):
            n = 0 if draft is None else len(draft)
            if draft is not None and (not n or (draft.q is None and n < self.min_draft)):
                drafts[i], n = None, 0
            if planned[i]:
                self.stats.count_draft(share_s, n)
                rates[i].count_time(share_s, n)
                found |= n > 0
        return drafts if found else None

    def verified(self, view: View, draft: Draft, path: Sequence[int]) -> None:
        """Count a verified draft; the text's tokens include the accepted ones now."""
        self._rates_of(view).count(max(draft.depths()), len(path))
        self.stats.count_accepted(len(path))
        self.drafter.accepted(view, path)

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
        self._lengths.count(Step(n_texts, n_drafted, n_tokens, decode_s + sample_s, draft_s))
        if n_drafted:
            times = self._lengths.times
            plain_s = times.seconds(n_texts) * n_tokens / n_texts if times.n_seen(n_texts) else 0.0
            self.stats.count_step(decode_s, sample_s, plain_s)

    def count_prompt(self, n_tokens: int, decode_s: float) -> None:
        """Count a decode of tokens of prompts, which tells what rows cost."""
        if n_tokens >= _PROMPT:
            self._lengths.times.count_prompt(n_tokens, decode_s)

    def release(self, view: View) -> None:
        """The text has ended, or its tokens have changed."""
        if self._texts.pop(view.id, None) is not None:
            self.drafter.release(view)

    def _rates_of(self, view: View) -> AcceptRates:
        rates = self._texts.get(view.id)
        if rates is None:
            rates = self._texts[view.id] = AcceptRates(self._rates)
        return rates
