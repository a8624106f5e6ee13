"""The samplers and their parameters, with llama.cpp's names and defaults.

    SamplingParams(temp=0.0)                        # greedy
    SamplingParams(top_k=0, top_p=0.9, seed=42)     # nucleus sampling over the whole vocabulary
    SamplingParams(n=2, best_of=8, logprobs=5)      # the two likeliest of eight texts

Immutable; the constructor validates all values, so that samplers need no checks. A sampler has an
entry in `SAMPLER_ROWS`, rows in `SamplingParams`, and a file in ``pyllama/sampling/samplers``.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from math import inf
from numbers import Integral, Real
from typing import Any, NamedTuple, Protocol

from . import Flags, Json, Parameter, Size, documented, row, rows

Ids = tuple[int, ...]
KIB = 1 << 10
RANDOM_SEED = 0xFFFFFFFF
"""llama.cpp's value for a random seed; -1 means the same."""

LARGEST = 2.0**128 - 2.0**104  # maximum of float32, the type of samplers
MIN_REPEAT_PENALTY = 1e-6  # below it a float32 logit divided by the penalty may overflow


class SamplerRow(NamedTuple):
    """A sampler that `SamplingParams.samplers` may name.

    Attributes:
        letter: of ``--sampler-seq``.
        home: module and class in ``pyllama/sampling/samplers``.
        is_default: whether it is in the default chain, which is llama.cpp's. One that is not runs
            only where ``samplers`` names it; the help of its parameters begins "Sampler NAME:".
        aliases: llama.cpp's other names of it.
    """

    letter: str
    home: str
    is_default: bool = True
    aliases: tuple[str, ...] = ()


ADAPTIVE_P = "adaptive_p"  # ends a chain
SAMPLER_ROWS: Mapping[str, SamplerRow] = {
    "penalties": SamplerRow("e", "penalties:Penalties"),
    "dry": SamplerRow("d", "dry:Dry"),
    "top_n_sigma": SamplerRow("s", "top_n_sigma:TopNSigma"),
    "top_k": SamplerRow("k", "truncation:TopK"),
    "typ_p": SamplerRow("y", "typical:Typical", aliases=("typ",)),
    "top_p": SamplerRow("p", "truncation:TopP", aliases=("nucleus",)),
    "min_p": SamplerRow("m", "truncation:MinP"),
    "xtc": SamplerRow("x", "xtc:Xtc"),
    "temperature": SamplerRow("t", "temperature:Temperature", aliases=("temp",)),
    "infill": SamplerRow("i", "infill:Infill", is_default=False),
    ADAPTIVE_P: SamplerRow("a", "adaptive_p:AdaptiveP", is_default=False),
}
"""The samplers by name, in the order of the default chain."""

DEFAULT_SAMPLERS = tuple(name for name, sampler in SAMPLER_ROWS.items() if sampler.is_default)
_NOT_DEFAULT = {name: s.letter for name, s in SAMPLER_ROWS.items() if not s.is_default}
LETTERS = {sampler.letter: name for name, sampler in SAMPLER_ROWS.items()}
"""llama.cpp's letters of the samplers, as in ``--sampler-seq edskypmxt``."""


class SamplerObject(Protocol):
    """A user's `Sampler`."""

    def apply(self, candidates: Any) -> None: ...


@documented
@dataclass(frozen=True, slots=True)
class SamplingParams:
    """Parameters of a `Chain`; the defaults are those of llama.cpp's command line.

    Raises:
        SamplingError: a value is outside its range.

    Source: llama.cpp common.h, `common_params_sampling`, and its server's names; vLLM,
    `SamplingParams`, for allowed_token_ids, bad_words, min_tokens, and from ``n`` on.
    """

    # fmt: off
    seed: int = row(RANDOM_SEED, "RNG seed. -1: random.", Flags("-s", "--seed", default=-1),
        Json(low=0, high=RANDOM_SEED, outside="wrap", ollama="seed", anthropic="seed"), low=-1,
        high=RANDOM_SEED)
    temp: float = row(0.8, "Temperature. 0 or less: greedy.", Flags("--temp", "--temperature"),
        Json("temperature", low=0, ollama="temperature", anthropic="temperature"),
        arguments=("temp", "temperature"))
    top_k: int = row(40, "Top-k sampling: keep the k most likely tokens. 0: off.",
        Flags("--top-k", low=-1), Json(low=0, ollama="top_k", anthropic="top_k"),
        arguments=("top_k",))
    top_p: float = row(0.95,
        "Top-p sampling: keep the most likely tokens with a total probability of p. 1: off.",
        Flags("--top-p", low=0), Json(low=0, high=1, ollama="top_p", anthropic="top_p"),
        arguments=("top_p",))
    min_p: float = row(0.05,
        "Min-p sampling: drop tokens less likely than p times the most likely one. 0: off.",
        Flags("--min-p", low=0, high=1), Json(low=0, high=1, ollama="min_p"), arguments=("min_p",))
    top_n_sigma: float = row(-1.0,
        "Top-n-sigma sampling: drop logits more than N standard deviations below the largest. 0 or "
        "less: off.", Flags("--top-nsigma", "--top-n-sigma"), Json())
    xtc_probability: float = row(0.0,
        "XTC sampling: how often to drop all likely tokens except the last of them. 0: off.",
        Flags("--xtc-probability"), Json(low=0, high=1))
    xtc_threshold: float = row(0.1,
        "XTC sampling: minimum probability of a likely token. Above 0.5: off.",
        Flags("--xtc-threshold"), Json(low=0, high=1))
    typical_p: float = row(1.0,
        "Locally typical sampling: keep the tokens nearest to the expected surprise with a total "
        "probability of p. 1: off.", Flags("--typical", "--typical-p"), Json(ollama="typical_p"),
        arguments=("typical_p",))
    min_keep: int = row(0,
        "Minimum number of tokens kept by top-p, min-p, locally typical and XTC sampling.",
        Json(low=0, outside="refuse"), low=0)
    repeat_last_n: int = row(64,
        "Number of last tokens that the penalties consider. 0: off, -1: the context size.",
        Flags("--repeat-last-n", low=-1), Json(low=-1, outside="refuse", ollama="repeat_last_n"),
        low=-1)
    repeat_penalty: float = row(1.0, "Penalize repeated tokens: divide their logits. 1: off.",
        Flags("--repeat-penalty"), Json(ollama="repeat_penalty"), arguments=("repeat_penalty",),
        low=MIN_REPEAT_PENALTY)
    presence_penalty: float = row(0.0,
        "Subtracted from the logit of each token that occurred. 0: off.",
        Flags("--presence-penalty"), Json(ollama="presence_penalty"),
        arguments=("presence_penalty",))
    frequency_penalty: float = row(0.0,
        "Subtracted from a token's logit once per occurrence. 0: off.",
        Flags("--frequency-penalty"), Json(ollama="frequency_penalty"),
        arguments=("frequency_penalty",))
    dry_multiplier: float = row(0.0,
        "DRY sampling: penalty of a token that continues a repetition. 0: off.",
        Flags("--dry-multiplier"), Json())
    dry_base: float = row(1.75,
        "DRY sampling: factor of the penalty for each further repeated token.",
        Flags("--dry-base", low=1), Json(low=1, outside="leave out"))
    dry_allowed_length: int = row(2,
        "DRY sampling: length of a repetition with a penalty of `dry_multiplier`.",
        Flags("--dry-allowed-length"), Json(low=0, outside="refuse"), low=0)
    dry_penalty_last_n: int = row(64,
        "DRY sampling: number of last tokens to search for repetitions. 0: off.",
        Flags("--dry-penalty-last-n"), Json(low=0, outside="refuse"), low=0)
    # each token is compared with them
    dry_sequence_breakers: tuple[str | Ids, ...] = row(("\n", ":", '"', "*"),
        "DRY sampling: repetitions end at these texts, or sequences of token ids.",
        Flags("--dry-sequence-breaker", metavar="STRING", repeated=True, help="DRY sampling: "
        "repetitions end at this text. Repeatable; replaces the default ones. none: no such text.  "
        "[default: '\\n', ':', '\"', '*']"), Json(size=Size(128, 4 * KIB)))
    adaptive_target: float = row(-1.0,
        "Sampler adaptive_p: prefer tokens near this probability. Below 0: off.",
        Flags("--adaptive-target", high=1), Json(high=1))
    adaptive_decay: float = row(0.9,
        "Sampler adaptive_p: decay of the average over the text. Lower reacts faster.",
        Flags("--adaptive-decay", low=0, high=0.99), Json(low=0, high=0.99, outside="refuse"))
    dynatemp_range: float = row(0.0,
        "Dynamic temperature: from `temp` minus N to `temp` plus N, by the entropy. 0: off.",
        Flags("--dynatemp-range"), Json())
    dynatemp_exponent: float = row(1.0, "Dynamic temperature: exponent of the relative entropy.",
        Flags("--dynatemp-exp"), Json())
    mirostat: int = row(0,
        "Use Mirostat 1 or 2 instead of all other samplers but `temp` and `logit_bias`. 0: off.",
        Flags("--mirostat"), Json(low=0, high=2, ollama="mirostat"), arguments=("mirostat_mode",),
        low=0, high=2)
    mirostat_eta: float = row(0.1, "Mirostat: learning rate, eta.", Flags("--mirostat-lr"),
        Json(ollama="mirostat_eta"), arguments=("mirostat_eta",))
    mirostat_tau: float = row(5.0, "Mirostat: target entropy, tau.", Flags("--mirostat-ent"),
        Json(ollama="mirostat_tau"), arguments=("mirostat_tau",))
    ignore_eos: bool = row(False, "Never sample end-of-generation tokens; keep generating.",
        Flags("--ignore-eos"), Json())
    # a sampler is made of them
    logit_bias: Mapping[int, float] = row({},
        "Added to the logits of these token ids; -inf bans, +inf forces.",
        Flags("-l", "--logit-bias", metavar="ID(+/-)BIAS", repeated=True, help="Change the logit "
        "of a token, as in 15043+1 or 2-inf. Repeatable."), Json(size=Size(16 * KIB, 16 * KIB)),
        arguments=("logit_bias",))
    allowed_token_ids: Ids | None = row(None, "Ban all other tokens. None: off.")
    bad_words: tuple[str | Ids, ...] = row((),
        "Texts, or sequences of token ids, that must not be generated.")
    min_tokens: int = row(0,
        "Number of generated tokens before which no token ends the generation.", low=0)
    reasoning_budget_tokens: int = row(-1, "Maximum tokens of a block of reasoning. -1: no limit.",
        low=-1)
    reasoning_budget_start: Ids = row((), "Token ids that begin such a block.")
    reasoning_budget_end: tuple[Ids, ...] = row((), "Sequences of token ids that end it.")
    reasoning_budget_forced: Ids = row((),
        "Token ids that are generated when the budget is spent; by default the first sequence of "
        "`reasoning_budget_end`.")
    generation_prompt: Ids = row((),
        "Token ids at the end of the prompt that count as generated for the reasoning budget.")
    samplers: tuple[str | SamplerObject | Callable[[Any], object], ...] | None = row(None,
        "Names of samplers in the order to run, and objects or functions of the user. None: the "
            f"default order, {';'.join(DEFAULT_SAMPLERS)}.",
        Flags("--samplers", metavar="A;B;...", help="Samplers, in order, separated by ';'; also "
            f"{', '.join(_NOT_DEFAULT)}.  [default: {';'.join(DEFAULT_SAMPLERS)}]"),
        Flags("--sampler-seq", "--sampling-seq", metavar="LETTERS", help="Samplers, in order, a "
            f"letter each; also {', '.join(f'{s} ({name})' for name, s in _NOT_DEFAULT.items())}.  "
            f"[default: {''.join(SAMPLER_ROWS[name].letter for name in DEFAULT_SAMPLERS)}]"),
        Json(size=Size(32, 512)))
    n: int = row(1, "Number of texts; each gets its own random stream, also with a fixed seed.",
        Json("n_cmpl", "n", low=1, outside="refuse"), arguments=("n",), low=1)
    best_of: int | None = row(None,
        "Number of texts to generate, of which those `n` with the largest sums of "
        "log-probabilities are returned, best first. None: `n`.", arguments=("best_of",))
    logprobs: int | None = row(None,
        "Number of likeliest tokens to report beside each sampled token, with log-probabilities of "
        "the model's own distribution. None: no log-probabilities.", arguments=("logprobs",), low=0)
    prompt_logprobs: int | None = row(None, "The same for the tokens of the prompt.", low=0)
    stop_token_ids: frozenset[int] = row(frozenset(),
        "Tokens that end the text, besides the model's end-of-generation tokens.")
    include_stop_str_in_output: bool = row(False,
        "Whether the text includes the stop string or stop token.")
    # fmt: on

    def __post_init__(self) -> None:
        for entry in rows(SamplingParams).values():
            value = getattr(self, entry.name)
            check = _CHECKS.get(entry.name) or _CHECKS.get(entry.kind)
            if check is not None:
                is_legal, wanted = check
                _check(is_legal(value, entry), entry, value, wanted)
        _check_bias(self.logit_bias)
        legal = self.best_of is None or self.best_of >= self.n
        _check(legal, rows(SamplingParams)["best_of"], self.best_of, f"{self.n} (n) or more")

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
        return "\n".join("\t" + ", ".join(map(self._described, line)) for line in _DESCRIBED)

    def _described(self, name: str) -> str:
        value = getattr(self, name)
        label = _LABELS.get(name, name)
        is_float = rows(SamplingParams)[name].kind == "float"
        return f"{label} = {value:.3f}" if is_float else f"{label} = {value}"


_DESCRIBED = (
    ("repeat_last_n", "repeat_penalty", "frequency_penalty", "presence_penalty"),
    ("dry_multiplier", "dry_base", "dry_allowed_length", "dry_penalty_last_n"),
    ("top_k", "top_p", "min_p", "xtc_probability", "xtc_threshold", "typical_p", "top_n_sigma",
     "temp"),
    ("mirostat", "mirostat_eta", "mirostat_tau", "adaptive_target", "adaptive_decay"),
)  # fmt: skip
_LABELS = {"mirostat_eta": "mirostat_lr", "mirostat_tau": "mirostat_ent"}


def sampling_fields(given: Any) -> dict[str, Any]:
    """Fields of `SamplingParams` by name; None is none.

    Raises:
        SamplingError: not a dictionary, or a name of no field.
    """
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise _error(
            f"sampling: got {given!r:.80}, want a dictionary of SamplingParams' fields, such as "
            "{'min_tokens': 3}"
        )
    known = rows(SamplingParams)
    for name in given:
        if name not in known:
            near = difflib.get_close_matches(str(name), known, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(known)}"
            raise _error(f"sampling: SamplingParams has no field {name!r:.80}; {hint}")
    return dict(given)


# --- what is legal ------------------------------------------------------------------------------


def _is_real(value: Any, row: Parameter) -> bool:
    return isinstance(value, Real) and _is_finite(value) and _is_in_range(value, row)


def _is_finite(value: Any) -> bool:
    return bool(abs(value) <= LARGEST)  # in float32


def _is_whole(value: Any, row: Parameter) -> bool:
    return isinstance(value, Integral) and _is_in_range(value, row)


def _is_in_range(value: Any, row: Parameter) -> bool:
    return bool(row.low <= value <= row.high)


def _is_count(value: Any, row: Parameter) -> bool:
    return value is None or _is_whole(value, row)


def _are_ids(value: Any, row: Parameter | None = None) -> bool:
    return isinstance(value, Collection) and all(map(_is_id, value))


def _is_id(value: Any) -> bool:
    return isinstance(value, Integral) and bool(int(value) >= 0)


def _is_list(value: Any, row: Parameter | None = None) -> bool:
    """Whether it is a list; a text would be read as a sequence of letters."""
    return isinstance(value, Collection) and not isinstance(value, str)


def _are_words(value: Any, row: Parameter) -> bool:
    return _is_list(value) and all(isinstance(word, str) or _are_ids(word) for word in value)


_WORDS = "a tuple of texts or sequences of token ids, such as ('...',)"
_CHECKS: Mapping[str, tuple[Callable[[Any, Parameter], bool], str]] = {  # by name or kind
    "bad_words": (
        lambda value, row: _are_words(value, row) and all(len(word) for word in value),
        f"{_WORDS}, none of them empty",
    ),
    "samplers": (
        lambda value, row: value is None or _is_list(value),
        "a tuple, such as ('top_k',)",
    ),
    "float": (_is_real, f"a finite number, {LARGEST:.2g} at most"),
    "int": (_is_whole, "a whole number"),
    "int | None": (_is_count, "a whole number"),
    "Ids": (_are_ids, "token ids of 0 or more"),
    "frozenset[int]": (_are_ids, "token ids of 0 or more"),
    "Ids | None": (
        lambda value, row: value is None or (_are_ids(value) and len(value) > 0),
        "at least one token id",
    ),
    "tuple[Ids, ...]": (
        lambda value, row: _is_list(value) and all(map(_are_ids, value)),
        "a tuple of sequences of token ids",
    ),
    "tuple[str | Ids, ...]": (_are_words, _WORDS),
}


def _check_bias(bias: Any) -> None:
    row = rows(SamplingParams)["logit_bias"]
    _check(isinstance(bias, Mapping), row, bias, "a dictionary of token ids")
    for token, value in bias.items():
        _check(_is_id(token), row, token, "token ids of 0 or more")
        legal = _is_real(value, row) or value in (inf, -inf)
        _check(legal, row, value, f"{LARGEST:.2g} at most, or an infinity", f"[{token}]")


def _check(legal: bool, row: Parameter, got: object, wanted: str, place: str = "") -> None:
    if not legal:
        shown = repr(got) if isinstance(got, str) else str(got)
        low = f", {row.low:g} or more" if row.low > -inf else ""
        high = f", {row.high:.10g} at most" if row.high < inf else ""
        raise _error(
            f"sampling parameter {row.name}{place}: got {shown:.80}, want {wanted}{low}{high}"
        )


def _error(message: str) -> ValueError:
    from ..errors import SamplingError  # imports NumPy

    return SamplingError(message)
