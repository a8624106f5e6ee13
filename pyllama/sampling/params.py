"""Parameters of a sampling chain with llama.cpp's names and defaults, and of its results.

    SamplingParams(temp=0.0)                        # greedy
    SamplingParams(top_k=0, top_p=0.9, seed=42)     # nucleus sampling over the whole vocabulary
    SamplingParams(n=2, best_of=8, logprobs=5)      # the two likeliest of eight texts

Immutable; the constructor validates all values, so that samplers need no checks.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from pyllama.errors import SamplingError

RANDOM_SEED = 0xFFFFFFFF
"""llama.cpp's value for a random seed; -1 means the same."""

LARGEST = 2.0**128 - 2.0**104  # maximum of float32, the type of samplers
MIN_REPEAT_PENALTY = 1e-6  # below it a float32 logit divided by the penalty may overflow


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """Parameters of a `Chain`; the defaults are those of llama.cpp's command line.

    Args:
        seed: 32-bit seed of the random stream; -1 or 0xFFFFFFFF for a random one.
        temp: divisor of the logits; <= 0 is greedy.
        top_k: keep the k likeliest tokens; <= 0 is off.
        top_p: keep the likeliest tokens up to this cumulative probability; >= 1 is off.
        min_p: minimum probability relative to the likeliest token; <= 0 is off.
        min_keep: minimum number of tokens kept by top_p and min_p.
        repeat_last_n: number of last tokens that penalties apply to; 0 is off, -1 for all.
        repeat_penalty: divisor of the logits of these tokens; 1 is off.
        frequency_penalty: subtracted from a logit once per occurrence; 0 is off.
        presence_penalty: subtracted from the logits of tokens that occurred; 0 is off.
        ignore_eos: never sample an end-of-generation token.
        logit_bias: added to the logits of these token ids; -inf bans, +inf forces.
        samplers: names of `chain.SAMPLERS` in the order to run; None for all in default order.
        n: number of texts; each gets its own random stream, also with a fixed seed.
        best_of: number of texts to generate, of which the ``n`` with the largest sums of
            log-probabilities are returned, best first; None for ``n``.
        logprobs: number of likeliest tokens to report beside each sampled token, with
            log-probabilities of the model's own distribution; None for no log-probabilities.
        prompt_logprobs: the same for the tokens of the prompt.
        stop_token_ids: tokens that end the text, besides the model's end-of-generation tokens.
        include_stop_str_in_output: whether the text includes the stop string or stop token.

    Raises:
        SamplingError: a value is outside its range.

    Source: llama.cpp common.h, `common_params_sampling`; from ``n`` on vLLM, `SamplingParams`.
    """

    seed: int = RANDOM_SEED
    temp: float = 0.8
    top_k: int = 40
    top_p: float = 0.95
    min_p: float = 0.05
    min_keep: int = 0
    repeat_last_n: int = 64
    repeat_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    ignore_eos: bool = False
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    samplers: tuple[str, ...] | None = None
    n: int = 1
    best_of: int | None = None
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    stop_token_ids: frozenset[int] = frozenset()
    include_stop_str_in_output: bool = False

    def __post_init__(self) -> None:
        numbers = ("temp", "top_p", "min_p", "frequency_penalty", "presence_penalty")
        for name in numbers:
            value = getattr(self, name)
            _check(abs(value) <= LARGEST, name, value, f"a finite number, {LARGEST:.2g} at most")
        _check(-1 <= self.seed <= RANDOM_SEED, "seed", self.seed, f"-1 to {RANDOM_SEED}")
        _check(self.min_keep >= 0, "min_keep", self.min_keep, "0 or more")
        _check(self.repeat_last_n >= -1, "repeat_last_n", self.repeat_last_n, "-1 or more")
        _check(
            MIN_REPEAT_PENALTY <= self.repeat_penalty <= LARGEST,
            "repeat_penalty",
            self.repeat_penalty,
            f"a finite number of at least {MIN_REPEAT_PENALTY:g} (1 is off)",
        )
        for token, bias in self.logit_bias.items():
            _check(token >= 0, "logit_bias", token, "token ids of 0 or more")
            legal = abs(bias) <= LARGEST or math.isinf(bias)
            _check(legal, f"logit_bias[{token}]", bias, f"{LARGEST:.2g} at most, or an infinity")
        _check(self.n >= 1, "n", self.n, "at least 1")
        _check(self.n_texts >= self.n, "best_of", self.best_of, f"at least n, which is {self.n}")
        for name in ("logprobs", "prompt_logprobs"):
            count = getattr(self, name)
            _check(count is None or count >= 0, name, count, "0 or more")
        for token in self.stop_token_ids:
            _check(token >= 0, "stop_token_ids", token, "token ids of 0 or more")

    @property
    def n_texts(self) -> int:
        """Number of texts to generate, of which ``n`` are returned."""
        return self.n if self.best_of is None else self.best_of

    def for_text(self, i: int) -> SamplingParams:
        """The parameters of the i-th of several texts, with a seed of its own."""
        if self.seed in (-1, RANDOM_SEED):
            return self
        return replace(self, seed=(self.seed + i) % RANDOM_SEED)

    def describe(self) -> str:
        """The values as llama.cpp's tools print them at start."""
        return (
            f"\trepeat_last_n = {self.repeat_last_n}, repeat_penalty = {self.repeat_penalty:.3f}, "
            f"frequency_penalty = {self.frequency_penalty:.3f}, "
            f"presence_penalty = {self.presence_penalty:.3f}\n"
            f"\ttop_k = {self.top_k}, top_p = {self.top_p:.3f}, min_p = {self.min_p:.3f}, "
            f"temp = {self.temp:.3f}"
        )


def _check(legal: bool, name: str, got: object, wanted: str) -> None:
    if not legal:
        raise SamplingError(f"sampling parameter {name}: got {got}, want {wanted}")
