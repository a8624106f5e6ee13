"""What a user may ask of a sampling chain: llama.cpp's names and defaults, checked once.

    SamplingParams(temp=0.0)                        # greedy
    SamplingParams(top_k=0, top_p=0.9, seed=42)     # nucleus sampling over the whole vocabulary

Immutable; a value outside its range raises here, so that samplers carry no checks.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from pyllama.errors import PyllamaError

RANDOM_SEED = 0xFFFFFFFF
"""llama.cpp's "choose one for me"; -1 means the same."""

LARGEST = 2.0**128 - 2.0**104  # of float32, in which samplers compute
MIN_REPEAT_PENALTY = 1e-6  # below it a float32 logit divided by the penalty may overflow


class SamplingError(PyllamaError, ValueError):
    """Sampling parameters, logits or tokens that a chain cannot take."""


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """Parameters of a `Chain`; the defaults are those of llama.cpp's command line.

    Args:
        seed: 32-bit seed of the random stream; -1 or 0xFFFFFFFF draws one from the system.
        temp: Divisor of the logits; <= 0 is greedy.
        top_k: Keep the k likeliest tokens; <= 0 is off.
        top_p: Keep the likeliest tokens up to this share of probability; >= 1 is off.
        min_p: Keep tokens at least this likely relative to the likeliest; <= 0 is off.
        min_keep: Tokens that top_p and min_p leave at least.
        repeat_last_n: Tokens that the penalties look back on; 0 is off, -1 the whole history.
        repeat_penalty: Divisor of the logits of tokens seen there; 1 is off.
        frequency_penalty: Taken from a logit once per occurrence; 0 is off.
        presence_penalty: Taken from a logit that occurred at all; 0 is off.
        ignore_eos: Never choose an end-of-generation token.
        logit_bias: Added to the logits of these token ids; -inf bans, +inf forces.
        samplers: Names out of `chain.SAMPLERS`, in the order to run; None is all in its order.

    Raises:
        SamplingError: a value outside its range.

    Source: llama.cpp common.h, `common_params_sampling`.
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

    def for_text(self, i: int) -> SamplingParams:
        """The same for the i-th of several texts: a fixed seed gives each a stream of its own."""
        if self.seed in (-1, RANDOM_SEED):
            return self
        return replace(self, seed=(self.seed + i) % RANDOM_SEED)

    def describe(self) -> str:
        """The values in llama.cpp's words, as its tools print them at start."""
        return (
            f"\trepeat_last_n = {self.repeat_last_n}, repeat_penalty = {self.repeat_penalty:.3f}, "
            f"frequency_penalty = {self.frequency_penalty:.3f}, "
            f"presence_penalty = {self.presence_penalty:.3f}\n"
            f"\ttop_k = {self.top_k}, top_p = {self.top_p:.3f}, min_p = {self.min_p:.3f}, "
            f"temp = {self.temp:.3f}"
        )


def _check(legal: bool, name: str, got: object, wanted: str) -> None:
    if not legal:
        raise SamplingError(f"sampling parameter {name}: got {got}, wanted {wanted}")
