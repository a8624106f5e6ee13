"""Parameters of a sampling chain with llama.cpp's names and defaults, and of its results.

    SamplingParams(temp=0.0)                        # greedy
    SamplingParams(top_k=0, top_p=0.9, seed=42)     # nucleus sampling over the whole vocabulary
    SamplingParams(n=2, best_of=8, logprobs=5)      # the two likeliest of eight texts

Immutable; the constructor validates all values, so that samplers need no checks.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from pyllama.errors import SamplingError

if TYPE_CHECKING:
    from pyllama.sampling.candidates import Candidates

Ids = tuple[int, ...]

RANDOM_SEED = 0xFFFFFFFF
"""llama.cpp's value for a random seed; -1 means the same."""

LARGEST = 2.0**128 - 2.0**104  # maximum of float32, the type of samplers
MIN_REPEAT_PENALTY = 1e-6  # below it a float32 logit divided by the penalty may overflow
_NUMBERS = (
    "temp", "dynatemp_range", "dynatemp_exponent", "top_p", "min_p", "typical_p", "top_n_sigma",
    "xtc_probability", "xtc_threshold", "frequency_penalty", "presence_penalty", "dry_multiplier",
    "dry_base", "adaptive_target", "adaptive_decay", "mirostat_tau", "mirostat_eta",
)  # fmt: skip
_LEAST = {  # of whole numbers
    "min_keep": 0,
    "repeat_last_n": -1,
    "dry_allowed_length": 0,
    "dry_penalty_last_n": 0,
    "min_tokens": 0,
    "reasoning_budget_tokens": -1,
    "n": 1,
}
_IDS = ("stop_token_ids", "reasoning_budget_start", "reasoning_budget_forced", "generation_prompt")


def _is_real(value: Any) -> bool:
    is_number = isinstance(value, (int, float, np.integer, np.floating))
    return is_number and bool(abs(value) <= LARGEST)


def _is_whole(value: Any, least: float = -math.inf) -> bool:
    is_number = isinstance(value, (int, np.integer))
    return is_number and bool(value >= least)


def _are_ids(value: Any) -> bool:
    return isinstance(value, Collection) and all(_is_whole(token, 0) for token in value)


def _is_word(value: Any) -> bool:
    return isinstance(value, str) or _are_ids(value)


_WORDS = "a tuple of texts or sequences of token ids, such as ('...',)"
_LISTS: tuple[tuple[str, Callable[[Any], bool], str], ...] = (
    ("samplers", lambda item: True, "a tuple, such as ('top_k',)"),
    ("dry_sequence_breakers", _is_word, _WORDS),
    ("bad_words", lambda word: _is_word(word) and len(word) > 0, f"{_WORDS}, none of them empty"),
    ("reasoning_budget_end", _are_ids, "a tuple of sequences of token ids"),
)


class SamplerObject(Protocol):
    """A user's `Sampler`."""

    def apply(self, candidates: Candidates) -> None: ...


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """Parameters of a `Chain`; the defaults are those of llama.cpp's command line.

    Args:
        seed: 32-bit seed of the random streams; -1 or 0xFFFFFFFF for a random one.
        temp: divisor of the logits; <= 0 is greedy.
        dynatemp_range: temperature from ``temp - range`` to ``temp + range``; <= 0 is off.
        dynatemp_exponent: exponent of the entropy in the dynamic temperature.
        top_k: keep the k likeliest tokens; <= 0 is off.
        top_p: keep the likeliest tokens up to this cumulative probability; >= 1 is off.
        min_p: minimum probability relative to the likeliest token; <= 0 is off.
        typical_p: keep the tokens nearest to the entropy up to this probability; >= 1 is off.
        top_n_sigma: maximum distance from the largest logit, in standard deviations; <= 0 is off.
        xtc_probability: how often XTC removes all likely tokens but the last; <= 0 is off.
        xtc_threshold: probability of a likely token; > 0.5 is off.
        min_keep: minimum number of tokens kept by top_p, min_p, typical_p and XTC.
        repeat_last_n: number of last tokens that penalties apply to; 0 is off, -1 for all.
        repeat_penalty: divisor of the logits of these tokens; 1 is off.
        frequency_penalty: subtracted from a logit once per occurrence; 0 is off.
        presence_penalty: subtracted from the logits of tokens that occurred; 0 is off.
        dry_multiplier: penalty of a token that continues a repetition; 0 is off.
        dry_base: factor of that penalty for each further token; < 1 is off.
        dry_allowed_length: repeated tokens without a penalty.
        dry_penalty_last_n: number of last tokens searched for repetitions; 0 is off.
        dry_sequence_breakers: texts, or sequences of token ids, that end a repetition.
        adaptive_target: probability that the sampler ``adaptive_p`` prefers; < 0 is off.
        adaptive_decay: decay of its average over the text, 0 to 0.99.
        mirostat: 1 or 2 for that version, instead of all of ``samplers``; 0 is off.
        mirostat_tau: its target surprise in bits.
        mirostat_eta: its learning rate.
        ignore_eos: never sample an end-of-generation token.
        logit_bias: added to the logits of these token ids; -inf bans, +inf forces.
        allowed_token_ids: ban all other tokens; None is off.
        bad_words: texts, or sequences of token ids, that must not be generated.
        min_tokens: number of generated tokens before which no token ends the generation.
        reasoning_budget_tokens: maximum tokens of a block of reasoning; -1 is off.
        reasoning_budget_start: token ids that begin such a block.
        reasoning_budget_end: sequences of token ids that end it.
        reasoning_budget_forced: token ids that are generated when the budget is spent; by default
            the first sequence of ``reasoning_budget_end``.
        generation_prompt: token ids at the end of the prompt that count as generated for the
            reasoning budget.
        samplers: names of `chain.SAMPLERS` in the order to run, and objects or functions of the
            user (see `custom`); None for the default order.
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

    Source: llama.cpp common.h, `common_params_sampling`, and its server's names; vLLM,
    `SamplingParams`, for allowed_token_ids, bad_words, min_tokens, and from ``n`` on.
    """

    seed: int = RANDOM_SEED
    temp: float = 0.8
    dynatemp_range: float = 0.0
    dynatemp_exponent: float = 1.0
    top_k: int = 40
    top_p: float = 0.95
    min_p: float = 0.05
    typical_p: float = 1.0
    top_n_sigma: float = -1.0
    xtc_probability: float = 0.0
    xtc_threshold: float = 0.1
    min_keep: int = 0
    repeat_last_n: int = 64
    repeat_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    dry_multiplier: float = 0.0
    dry_base: float = 1.75
    dry_allowed_length: int = 2
    dry_penalty_last_n: int = 64
    dry_sequence_breakers: tuple[str | Ids, ...] = ("\n", ":", '"', "*")
    adaptive_target: float = -1.0
    adaptive_decay: float = 0.9
    mirostat: int = 0
    mirostat_tau: float = 5.0
    mirostat_eta: float = 0.1
    ignore_eos: bool = False
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    allowed_token_ids: Ids | None = None
    bad_words: tuple[str | Ids, ...] = ()
    min_tokens: int = 0
    reasoning_budget_tokens: int = -1
    reasoning_budget_start: Ids = ()
    reasoning_budget_end: tuple[Ids, ...] = ()
    reasoning_budget_forced: Ids = ()
    generation_prompt: Ids = ()
    samplers: tuple[str | SamplerObject | Callable[[Candidates], object], ...] | None = None
    n: int = 1
    best_of: int | None = None
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    stop_token_ids: frozenset[int] = frozenset()
    include_stop_str_in_output: bool = False

    def __post_init__(self) -> None:
        for name in _NUMBERS:
            value = getattr(self, name)
            _check(_is_real(value), name, value, f"a finite number, {LARGEST:.2g} at most")
        _check(_is_whole(self.top_k), "top_k", self.top_k, "a whole number")
        for name, least in _LEAST.items():
            value = getattr(self, name)
            _check(_is_whole(value, least), name, value, f"a whole number, {least} or more")
        legal = _is_whole(self.seed, -1) and self.seed <= RANDOM_SEED
        _check(legal, "seed", self.seed, f"-1 to {RANDOM_SEED}")
        _check(self.mirostat in (0, 1, 2), "mirostat", self.mirostat, "0, 1 or 2")
        _check(
            _is_real(self.repeat_penalty) and self.repeat_penalty >= MIN_REPEAT_PENALTY,
            "repeat_penalty",
            self.repeat_penalty,
            f"a finite number of at least {MIN_REPEAT_PENALTY:g} (1 is off)",
        )
        for name in ("logprobs", "prompt_logprobs"):
            count = getattr(self, name)
            _check(count is None or _is_whole(count, 0), name, count, "0 or more")
        legal = self.best_of is None or _is_whole(self.best_of, self.n)
        _check(legal, "best_of", self.best_of, f"at least n, which is {self.n}")
        self._check_tokens()

    def _check_tokens(self) -> None:
        """Raise an error for wrong lists of token ids, texts and samplers."""
        bias = self.logit_bias
        _check(isinstance(bias, Mapping), "logit_bias", bias, "a dictionary of token ids")
        for token, value in bias.items():
            _check(_is_whole(token, 0), "logit_bias", token, "token ids of 0 or more")
            legal = _is_real(value) or value in (math.inf, -math.inf)
            _check(legal, f"logit_bias[{token}]", value, f"{LARGEST:.2g} at most, or an infinity")
        allowed = self.allowed_token_ids
        legal = allowed is None or (_are_ids(allowed) and len(allowed) > 0)
        _check(legal, "allowed_token_ids", allowed, "at least one token id")
        for name in _IDS:
            value = getattr(self, name)
            _check(_are_ids(value), name, value, "token ids of 0 or more")
        for name, is_legal, wanted in _LISTS:
            values = getattr(self, name)
            # a text would be read as a sequence of letters
            is_list = isinstance(values, Collection) and not isinstance(values, str)
            _check(is_list or (name == "samplers" and values is None), name, values, wanted)
            for value in values or ():
                _check(is_legal(value), name, value, wanted)

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
            f"\tdry_multiplier = {self.dry_multiplier:.3f}, dry_base = {self.dry_base:.3f}, "
            f"dry_allowed_length = {self.dry_allowed_length}, "
            f"dry_penalty_last_n = {self.dry_penalty_last_n}\n"
            f"\ttop_k = {self.top_k}, top_p = {self.top_p:.3f}, min_p = {self.min_p:.3f}, "
            f"xtc_probability = {self.xtc_probability:.3f}, "
            f"xtc_threshold = {self.xtc_threshold:.3f}, typical_p = {self.typical_p:.3f}, "
            f"top_n_sigma = {self.top_n_sigma:.3f}, temp = {self.temp:.3f}\n"
            f"\tmirostat = {self.mirostat}, mirostat_lr = {self.mirostat_eta:.3f}, "
            f"mirostat_ent = {self.mirostat_tau:.3f}, "
            f"adaptive_target = {self.adaptive_target:.3f}, "
            f"adaptive_decay = {self.adaptive_decay:.3f}"
        )


def sampling_fields(given: Any) -> dict[str, Any]:
    """Fields of `SamplingParams` by name; None is none.

    Raises:
        SamplingError: not a dictionary, or a name of no field.
    """
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise SamplingError(
            f"sampling: got {given!r:.80}, want a dictionary of SamplingParams' fields, such as "
            "{'min_tokens': 3}"
        )
    known = [field.name for field in fields(SamplingParams)]
    for name in given:
        if name not in known:
            near = difflib.get_close_matches(str(name), known, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(known)}"
            raise SamplingError(f"sampling: SamplingParams has no field {name!r:.80}; {hint}")
    return dict(given)


def _check(legal: bool, name: str, got: object, wanted: str) -> None:
    if not legal:
        shown = repr(got) if isinstance(got, str) else str(got)
        raise SamplingError(f"sampling parameter {name}: got {shown:.80}, want {wanted}")
