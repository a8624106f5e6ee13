"""What a run cost, counted and printed as llama.cpp does.

    timings = Timings()
    timings.count_decode(n_tokens, seconds, n_reused)
    print("\\n".join(timings.lines()), file=sys.stderr)

A decode of one token is an eval, one of several is prompt eval. Counting costs under 1 us.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field


@dataclass
class Timings:
    """Counters of one run; times in milliseconds.

    llama.cpp's load time also runs through its first decode, a warm-up that does not exist here.

    Attributes:
        load_ms: what loading took; whoever loads sets it.
        prompt_eval_ms, n_prompt_eval: decodes of several tokens, and these tokens.
        eval_ms, n_eval: decodes of one token.
        sample_ms, n_sample: choosing tokens from logits.
        n_reused: decodes that ran an earlier graph again.
        started_s: when counting began, on the clock of ``time.perf_counter``.

    Source: llama.cpp, ``llama_perf_context_data``.
    """

    load_ms: float = 0.0
    prompt_eval_ms: float = 0.0
    n_prompt_eval: int = 0
    eval_ms: float = 0.0
    n_eval: int = 0
    sample_ms: float = 0.0
    n_sample: int = 0
    n_reused: int = 0
    started_s: float = field(default_factory=time.perf_counter)

    @property
    def total_ms(self) -> float:
        """Time since counting began."""
        return 1e3 * (time.perf_counter() - self.started_s)

    def count_decode(self, n_tokens: int, seconds: float, n_reused: int) -> None:
        """A batch was decoded, and ``n_reused`` graphs ran again for it."""
        self.n_reused += n_reused
        if n_tokens == 1:
            self.eval_ms += 1e3 * seconds
            self.n_eval += 1
        else:
            self.prompt_eval_ms += 1e3 * seconds
            self.n_prompt_eval += n_tokens

    def count_sample(self, seconds: float, n: int = 1) -> None:
        """Some tokens were chosen."""
        self.sample_ms += 1e3 * seconds
        self.n_sample += n

    def reset(self) -> None:
        """Start again from zero; only ``load_ms`` stays."""
        self.__init__(load_ms=self.load_ms)  # type: ignore[misc]

    def lines(self) -> list[str]:
        """The lines that llama.cpp prints at the end of a run.

        Source: llama.cpp, ``llama_perf_sampler_print``, ``llama_perf_context_print``,
        ``common_perf_print``.
        """
        total = self.total_ms
        rest = total - self.sample_ms - self.prompt_eval_ms - self.eval_ms
        share = 100 * rest / max(total, 1e-9)
        sampler, context = "llama_perf_sampler_print: ", "llama_perf_context_print: "
        return [
            f"{sampler}   sampling time = {_rate(self.sample_ms, self.n_sample, 'runs  ')}",
            f"{context}       load time = {self.load_ms:10.2f} ms",
            f"{context}prompt eval time = "
            f"{_rate(self.prompt_eval_ms, self.n_prompt_eval, 'tokens')}",
            f"{context}       eval time = {_rate(self.eval_ms, self.n_eval, 'runs  ')}",
            f"{context}      total time = {total:10.2f} ms / "
            f"{self.n_prompt_eval + self.n_eval:5d} tokens",
            f"{context}unaccounted time = {rest:10.2f} ms / {share:5.1f} %",
            f"{context}   graphs reused = {self.n_reused:10d}",
        ]


def _rate(ms: float, n: int, unit: str) -> str:
    each, per_s = ms / max(n, 1), 1e3 * n / max(ms, 1e-9)
    return (
        f"{ms:10.2f} ms / {n:5d} {unit} ({each:8.2f} ms per token, {per_s:8.2f} tokens per second)"
    )
