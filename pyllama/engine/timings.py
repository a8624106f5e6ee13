"""Timings of a run, printed as by llama.cpp.

    timings = Timings()
    timings.count_decode(n_tokens, seconds, n_reused)
    print("\\n".join(timings.lines()), file=sys.stderr)

Decodes of one token count as eval, of several as prompt eval; those of drafts as eval of the tokens
that they added. Counting costs under 1 us.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..runtime.expert_cache import ExpertStats


@dataclass(slots=True)
class Timings:
    """Counters of one run; times in milliseconds.

    llama.cpp's load time includes its warm-up decode, which does not exist here.

    Attributes:
        load_ms: time of loading, set by the caller.
        prompt_eval_ms, n_prompt_eval: decodes of several tokens, and their number of tokens.
        eval_ms, n_eval: decodes of one token.
        sample_ms, n_sample: sampling.
        n_reused: decodes that reused a graph.
        started_s: start of counting, on the clock of ``time.perf_counter``.
        experts: those of the model's cache of experts, if it has one.

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
    experts: ExpertStats | None = None

    @property
    def total_ms(self) -> float:
        """Time since the start of counting."""
        return 1e3 * (time.perf_counter() - self.started_s)

    def count_decode(
        self,
        n_tokens: int,
        seconds: float,
        n_reused: int,
        n_sampled: int = 0,
        sampling_s: float = 0.0,
    ) -> None:
        """Count the decode of a batch, which reused ``n_reused`` graphs, and its sampling."""
        self.sample_ms += 1e3 * sampling_s
        self.n_sample += n_sampled
        self.n_reused += n_reused
        if n_tokens == 1:
            self.eval_ms += 1e3 * seconds
            self.n_eval += 1
        else:
            self.prompt_eval_ms += 1e3 * seconds
            self.n_prompt_eval += n_tokens

    def count_drafted(
        self, n_tokens: int, seconds: float, n_reused: int, sampling_s: float
    ) -> None:
        """Count the decode of drafts and their verification, which added ``n_tokens`` to texts."""
        self.count_decode(1, seconds, n_reused, n_tokens, sampling_s)
        self.n_eval += n_tokens - 1

    def count_sample(self, seconds: float, n: int = 1) -> None:
        """Count the sampling of ``n`` tokens."""
        self.sample_ms += 1e3 * seconds
        self.n_sample += n

    def reset(self) -> None:
        """Set all counters but ``load_ms`` and those of experts to zero."""
        self.__init__(load_ms=self.load_ms, experts=self.experts)  # type: ignore[misc]

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
            *([] if self.experts is None else [f"experts: {self.experts}"]),
        ]


def _rate(ms: float, n: int, unit: str) -> str:
    per_token, per_s = ms / max(n, 1), 1e3 * n / max(ms, 1e-9)
    return (
        f"{ms:10.2f} ms / {n:5d} {unit} "
        f"({per_token:8.2f} ms per token, {per_s:8.2f} tokens per second)"
    )
