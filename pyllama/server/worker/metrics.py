"""Counters and histograms of a server in Prometheus' text format.

    counts = Counts()
    counts.add(text)                               # a text that ended
    counts.write(1, 0)                         # "# HELP llamacpp:prompt_tokens_total ..."

The names of llama.cpp are written here, since ``prometheus_client`` would change some of them; the
histograms are that library's.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import TYPE_CHECKING

from ...runtime.expert_cache import ExpertStats
from ...speculative.stats import Stats

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry, Histogram

    from .choice import Choice

_SECONDS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 60)
_STEP_SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1)


@dataclass
class Counts:
    """Totals since the start, and of the time since the last scrape."""

    n_prompt: int = 0
    n_cached: int = 0
    prompt_ms: float = 0.0
    n_predicted: int = 0
    n_predict_steps: int = 0
    predict_ms: float = 0.0
    n_decode: int = 0
    n_busy_slots: int = 0
    n_tokens_max: int = 0
    n_aborted: int = 0
    started_s: int = field(default_factory=lambda: int(time.time()))

    def __post_init__(self) -> None:
        self._bucket = (0, 0.0, 0, 0.0)
        self._drafts = Stats()
        self._histograms: tuple[CollectorRegistry, Histogram, Histogram] | None = None

    def add(self, text: Choice) -> None:
        """Count a text that has ended."""
        self.n_prompt += text.n_prompt_evaluated
        self.n_cached += text.n_cached
        self.prompt_ms += text.prompt_ms
        self.n_predicted += text.n_generated
        self.n_predict_steps += max(0, text.n_generated - 1)
        self.predict_ms += text.predict_ms
        self.n_tokens_max = max(self.n_tokens_max, text.n_prompt + text.n_generated)
        if self._histograms is not None and text.n_generated:
            _, first, step = self._histograms
            first.observe(text.first_token_s)
            if text.n_generated > 1:
                step.observe(text.predict_ms / 1e3 / (text.n_generated - 1))

    def observe(self) -> None:
        """Begin with the histograms, which need ``prometheus_client``."""
        from prometheus_client import CollectorRegistry, Histogram

        registry = CollectorRegistry()
        first = Histogram(
            "pyllama_time_to_first_token_seconds",
            "Time from a request to its first token",
            registry=registry,
            buckets=_SECONDS,
        )
        step = Histogram(
            "pyllama_time_per_output_token_seconds",
            "Mean time between the tokens of a text",
            registry=registry,
            buckets=_STEP_SECONDS,
        )
        self._histograms = registry, first, step

    def keep(self, drafts: Stats) -> None:
        """Add the counters of drafts of an engine that ends."""
        self._drafts = self._with(drafts)

    def _with(self, drafts: Stats | None) -> Stats:
        """The counters of drafts of all engines, with those of the present one."""
        kept, now = self._drafts, drafts or Stats()
        return Stats(
            n_drafted=kept.n_drafted + now.n_drafted,
            n_accept=kept.n_accept + now.n_accept,
            n_drafts=kept.n_drafts + now.n_drafts,
            accepted_at=[*map(sum, zip_longest(kept.accepted_at, now.accepted_at, fillvalue=0))],
        )

    def write(
        self,
        n_processing: int,
        n_deferred: int,
        drafts: Stats | None = None,
        experts: ExpertStats | None = None,
    ) -> str:
        """The text; rates are of the time since the last call.

        Args:
            experts: those of the model's cache of experts, counted since it was loaded.

        Source: llama.cpp, ``server_task_result_metrics::to_metrics``.
        """
        now = (self.n_prompt, self.prompt_ms, self.n_predict_steps, self.predict_ms)
        prompts, prompt_ms, steps, predict_ms = (
            a - b for a, b in zip(now, self._bucket, strict=True)
        )
        self._bucket = now
        drafted = self._with(drafts)
        counters = (
            ("prompt_tokens_total", "Prompt tokens processed, without cached ones", self.n_prompt),
            ("prompt_tokens_cached_total", "Prompt tokens reused from the cache", self.n_cached),
            ("prompt_seconds_total", "Time spent on prompts", self.prompt_ms / 1e3),
            ("tokens_predicted_total", "Generated tokens", self.n_predicted),
            ("tokens_predicted_seconds_total", "Time spent generating", self.predict_ms / 1e3),
            ("n_decode_total", "Steps of the engine", self.n_decode),
            ("n_tokens_max", "Largest number of tokens of a text", self.n_tokens_max),
            ("spec_decode_num_draft_tokens_total", "Drafted tokens", drafted.n_drafted),
            ("spec_decode_num_accepted_tokens_total", "Accepted drafts", drafted.n_accept),
            ("spec_decode_num_drafts_total", "Number of drafts", drafted.n_drafts),
            ("requests_aborted_total", "Texts whose client went away", self.n_aborted),
        )
        gauges = (
            ("prompt_tokens_seconds", "Prompt tokens per second", _rate(prompts, prompt_ms)),
            ("predicted_tokens_seconds", "Generated tokens per second", _rate(steps, predict_ms)),
            ("requests_processing", "Running texts", n_processing),
            ("requests_deferred", "Waiting texts", n_deferred),
            (
                "n_busy_slots_per_decode",
                "Mean number of busy slots per step",
                self.n_busy_slots / max(1, self.n_decode),
            ),
        )
        lines = []
        for kind, items in (("counter", counters), ("gauge", gauges)):
            for name, help, value in items:
                lines.append(f"# HELP llamacpp:{name} {help}\n")
                lines.append(f"# TYPE llamacpp:{name} {kind}\nllamacpp:{name} {value}\n")
        if drafted.accepted_at:
            name = "llamacpp:spec_decode_num_accepted_tokens_per_pos_total"
            lines.append(f"# HELP {name} Accepted drafts by position\n# TYPE {name} counter\n")
            lines += [f'{name}{{position="{i}"}} {n}\n' for i, n in enumerate(drafted.accepted_at)]
        for name, help, value in () if experts is None else _of_experts(experts):
            lines.append(f"# HELP pyllama_{name} {help}\n# TYPE pyllama_{name} counter\n")
            lines.append(f"pyllama_{name} {value}\n")
        if self._histograms is not None:
            from prometheus_client import generate_latest

            lines.append(generate_latest(self._histograms[0]).decode())
        return "".join(lines)


def _of_experts(stats: ExpertStats) -> tuple[tuple[str, str, float], ...]:
    """Name, help and value of each counter of a cache of experts."""
    return (
        ("experts_used_total", "Experts chosen, once for each layer and ubatch", stats.n_used),
        ("experts_hit_total", "Chosen experts that were in memory", stats.n_hits),
        ("experts_awaited_total", "Chosen experts that a guess was reading", stats.n_awaited),
        ("experts_read_total", "Experts read from the file", stats.n_reads),
        ("experts_read_bytes_total", "Bytes of experts read from the file", stats.read_bytes),
        ("experts_guessed_total", "Reads requested for a guess", stats.n_guesses),
        ("experts_guessed_right_total", "Guessed experts that their layer chose", stats.n_right),
        ("experts_wait_seconds_total", "Time that graphs waited for reads", stats.wait_s),
    )


def _rate(n: float, ms: float) -> float:
    return 1e3 * n / ms if ms > 0 else 0.0
