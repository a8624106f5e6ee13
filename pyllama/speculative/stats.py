"""Counters of drafts, printed as by llama.cpp's speculative tools.

    stats = Stats("suffix")
    stats.count_calls(1, seconds)
    stats.count_draft(n_drafted)
    stats.count_accepted(n_accepted)
    print("\\n".join(stats.lines()), file=sys.stderr)

Counting costs about a microsecond. Times are those of the drafter and of steps with its drafts.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class Stats:
    """Counters of one drafter; times in seconds.

    Attributes:
        name: of the drafter.
        n_calls, n_drafts: calls for one text, and those that proposed anything.
        n_verified, n_used: verified drafts, and those of which a token was accepted.
        n_drafted, n_accept: drafted tokens, and accepted ones.
        n_tokens: tokens that steps with drafts added, accepted or not.
        accepted_at: by position, the number of accepted tokens.
        draft_s, step_s, verify_s: time of drafting; of steps with drafts, and of verification.
        plain_s: expected time of these tokens without drafts.
    """

    name: str = "draft"
    n_calls: int = 0
    n_drafts: int = 0
    n_verified: int = 0
    n_used: int = 0
    n_drafted: int = 0
    n_accept: int = 0
    n_tokens: int = 0
    accepted_at: list[int] = field(default_factory=list)
    draft_s: float = 0.0
    step_s: float = 0.0
    verify_s: float = 0.0
    plain_s: float = 0.0

    def count_calls(self, n: int, seconds: float) -> None:
        """Count a call of the drafter for ``n`` texts, which may have found nothing."""
        self.n_calls += n
        self.draft_s += seconds

    def count_draft(self, n_drafted: int) -> None:
        """Count a draft."""
        self.n_drafts += 1
        self.n_drafted += n_drafted

    def count_accepted(self, n_accepted: int) -> None:
        """Count a verified draft, of which so many tokens were accepted."""
        self.n_verified += 1
        self.n_used += n_accepted > 0
        self.n_accept += n_accepted
        self.n_tokens += n_accepted + 1
        self.accepted_at += [0] * (n_accepted - len(self.accepted_at))
        for i in range(n_accepted):
            self.accepted_at[i] += 1

    def count_step(self, seconds: float, verify_s: float = 0.0, plain_s: float = 0.0) -> None:
        """Count the times of a step with drafts.

        Args:
            seconds: of the decode.
            verify_s: of the verification.
            plain_s: expected time of the same tokens without drafts.
        """
        self.step_s += seconds
        self.verify_s += verify_s
        self.plain_s += plain_s

    @property
    def rates(self) -> list[float]:
        """By position, the share of verified drafts that had an accepted token there."""
        return [n / self.n_verified for n in self.accepted_at] if self.n_verified else []

    @property
    def mean_length(self) -> float:
        """Tokens that a verified draft added on average, with the one that was not drafted."""
        return 1 + self.n_accept / max(self.n_verified, 1)

    @property
    def speed_up(self) -> float | None:
        """Estimated speed-up in steps with drafts; None if nothing was measured."""
        spent_s = self.draft_s + self.step_s + self.verify_s
        return self.plain_s / spent_s if self.plain_s and spent_s else None

    def lines(self, n_draft: int | None = None, n_predict: int | None = None) -> list[str]:
        """The lines that llama.cpp's tools print at the end, and those of this module.

        Args:
            n_draft: maximum length of a draft.
            n_predict: number of generated tokens.

        Source: llama.cpp, ``examples/speculative-simple``, ``common_speculative_print_stats``.
        """
        heads = [("n_draft  ", n_draft), ("n_predict", n_predict)]
        lines = [f"{name} = {value}" for name, value in heads if value is not None]
        share = 100 * self.n_accept / max(self.n_drafted, 1)
        lines += [
            f"n_drafted = {self.n_drafted}",
            f"n_accept  = {self.n_accept}",
            f"accept    = {share:.3f}%",
            "",
            f"statistics {self.name:>16}: #calls(g,a) = {self.n_calls:6d} {self.n_verified:6d}, "
            f"#gen drafts = {self.n_drafts:6d}, #acc drafts = {self.n_used:5d}, "
            f"#gen tokens = {self.n_drafted:6d}, #acc tokens = {self.n_accept:5d}"
            + (
                f", #mean acc len = {self.mean_length:.2f}, "
                f"#acc rate/pos = ({', '.join(f'{rate:.3f}' for rate in self.rates)})"
                if self.n_verified
                else ""
            ),
            f"time      = draft {1e3 * self.draft_s:.2f} ms, step {1e3 * self.step_s:.2f} ms, "
            f"verify {1e3 * self.verify_s:.2f} ms",
        ]
        if self.speed_up is not None:
            lines.append(f"speed-up  = {self.speed_up:.2f} in steps with drafts (estimated)")
        return lines
