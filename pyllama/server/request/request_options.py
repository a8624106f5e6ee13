"""The fields of a completion: JSON to options of the engine, and back for the responses.

    options = read_completion(Fields(body), server_options, tokenizer, n_slots)
    options.settings()                             # "generation_settings" of a response

One table has the samplers' fields, with llama-server's names, ranges and defaults.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from ...grammar import Grammar, Trigger
from ...sampling import SamplingParams
from ...sampling.chain import DEFAULT_SAMPLERS, LETTERS, sampler_name
from ...sampling.params import RANDOM_SEED
from ...tokenizer import Tokenizer
from .errors import ApiError
from .fields import INT32_MAX, Fields
from .options import ServerOptions


class _Field(NamedTuple):
    """A field of the API, and that of `SamplingParams` which it sets."""

    name: str
    param: str
    kind: type
    low: float = -math.inf
    high: float = math.inf
    clamp: bool = True


_FIELDS = (
    _Field("temperature", "temp", float, 0.0),
    _Field("dynatemp_range", "dynatemp_range", float),
    _Field("dynatemp_exponent", "dynatemp_exponent", float),
    _Field("top_k", "top_k", int, 0),
    _Field("top_p", "top_p", float, 0.0, 1.0),
    _Field("min_p", "min_p", float, 0.0, 1.0),
    _Field("top_n_sigma", "top_n_sigma", float),
    _Field("xtc_probability", "xtc_probability", float, 0.0, 1.0),
    _Field("xtc_threshold", "xtc_threshold", float, 0.0, 1.0),
    _Field("typical_p", "typical_p", float),
    _Field("repeat_last_n", "repeat_last_n", int, -1, clamp=False),
    _Field("repeat_penalty", "repeat_penalty", float),
    _Field("presence_penalty", "presence_penalty", float),
    _Field("frequency_penalty", "frequency_penalty", float),
    _Field("dry_multiplier", "dry_multiplier", float),
    _Field("dry_base", "dry_base", float),
    _Field("dry_allowed_length", "dry_allowed_length", int, 0, clamp=False),
    _Field("dry_penalty_last_n", "dry_penalty_last_n", int, 0, clamp=False),
    _Field("mirostat", "mirostat", int, 0, 2),
    _Field("mirostat_tau", "mirostat_tau", float),
    _Field("mirostat_eta", "mirostat_eta", float),
    _Field("adaptive_target", "adaptive_target", float, high=1.0),
    _Field("adaptive_decay", "adaptive_decay", float, 0.0, 0.99, clamp=False),
    _Field("min_keep", "min_keep", int, 0, clamp=False),
)
_REASONING = {"auto": "deepseek"}  # what it means
_TRIGGER_KINDS = ("token", "word", "pattern", "pattern_full")  # numbers of llama.cpp's API
_TRIGGER_TOKEN, _TRIGGER_WORD = 0, 1
CONTENT_ONLY = "Content-only"  # llama.cpp's name of a reply without calls
MAX_PROBS = 100  # of n_probs, so that writing a response does not stop the others


@dataclass(frozen=True)
class CompletionOptions:
    """What a request asks of its texts; see llama-server's README for the fields' meanings."""

    params: SamplingParams
    n_predict: int = -1
    n_keep: int = 0
    n_discard: int = 0
    n_indent: int = 0
    stop: tuple[str, ...] = ()
    stream: bool = False
    include_usage: bool = False
    timings_per_token: bool = False
    return_tokens: bool = False
    return_progress: bool = False
    cache_prompt: bool = True
    id_slot: int = -1
    n_probs: int = 0
    post_sampling_probs: bool = False
    max_predict_ms: int = -1
    sse_ping_s: int = 30
    response_fields: tuple[str, ...] = ()
    grammar: Grammar | None = None
    shown: frozenset[int] = frozenset()
    verbose: bool = False
    logit_bias: tuple[tuple[int, float], ...] = ()
    reasoning_format: str = "auto"
    reasoning_control: bool = False
    chat_format: str = CONTENT_ONLY
    generation_prompt: str = ""
    drafters: tuple[str, ...] = ()

    def settings(self, whole: bool = True) -> dict[str, Any]:
        """The object ``generation_settings``; without prompts and grammars if not ``whole``.

        Source: llama.cpp, ``task_params::to_json``.
        """
        params = self.params
        found: dict[str, Any] = {"seed": params.seed % (1 << 32)}
        found |= {f.name: getattr(params, f.param) for f in _FIELDS if f.name != "min_keep"}
        if whole:
            found["dry_sequence_breakers"] = list(params.dry_sequence_breakers)
            found["stop"] = list(self.stop)
        found |= {
            "max_tokens": self.n_predict,
            "n_predict": self.n_predict,
            "n_keep": self.n_keep,
            "n_discard": self.n_discard,
            "ignore_eos": params.ignore_eos,
            "stream": self.stream,
            "n_probs": self.n_probs,
            "min_keep": params.min_keep,
            "chat_format": self.chat_format,
            "reasoning_format": _REASONING.get(self.reasoning_format, self.reasoning_format),
            "reasoning_in_content": self.stream and self.reasoning_format == "deepseek-legacy",
            "generation_prompt": self.generation_prompt,
            "samplers": [s for s in params.samplers or DEFAULT_SAMPLERS if isinstance(s, str)],
            "speculative.types": ",".join(self.drafters) or "none",
            "timings_per_token": self.timings_per_token,
            "post_sampling_probs": self.post_sampling_probs,
            "backend_sampling": False,
            "lora": [],
        }
        if whole:
            found["logit_bias"] = [
                {"bias": bias if math.isfinite(bias) else None, "token": token}
                for token, bias in self.logit_bias
            ]
            grammar = self.grammar
            found["grammar"] = "" if grammar is None else grammar.text
            found["grammar_lazy"] = bool(grammar is not None and grammar.triggers)
            found["grammar_triggers"] = [
                _trigger_json(trigger) for trigger in (() if grammar is None else grammar.triggers)
            ]
            found["preserved_tokens"] = sorted(self.shown)
        return found


@dataclass(frozen=True)
class FromChat:
    """What a chat template adds to the options of its reply.

    Attributes:
        stop: further stop strings.
        grammar: grammar of the reply; None to read one from the request.
        shown: control tokens whose text is needed.
        params: further fields of `SamplingParams`.
        n_probs: number of likeliest tokens to report; None to read it from the request.
        chat_format: name of the format of tool calls that the reply is read by.
        generation_prompt: the end of the prompt, after the conversation.
    """

    stop: tuple[str, ...] = ()
    grammar: Grammar | None = None
    shown: frozenset[int] = frozenset()
    params: Mapping[str, Any] = field(default_factory=dict)
    n_probs: int | None = None
    chat_format: str = CONTENT_ONLY
    generation_prompt: str = ""


def default_options(options: ServerOptions) -> CompletionOptions:
    """The options of a request without any fields."""
    return CompletionOptions(
        options.sampling,
        n_predict=options.n_predict,
        n_keep=options.n_keep,
        stop=options.stop,
        cache_prompt=options.cache_prompt,
        sse_ping_s=options.sse_ping_s,
        grammar=options.grammar,
        verbose=options.verbose,
        reasoning_format=options.reasoning_format,
        drafters=options.drafters,
    )


def read_completion(
    fields: Fields,
    options: ServerOptions,
    tokenizer: Tokenizer,
    n_slots: int,
    chat: FromChat | None = None,
    *,
    is_own: bool = False,
) -> CompletionOptions:
    """The options of a request.

    Args:
        is_own: whether the response has llama.cpp's own format, which some fields change.

    Raises:
        ApiError: a field is wrong.
        GrammarError, SamplingError: a grammar or sampling parameter is.
    """
    chat = chat or FromChat()
    if fields.get("lora", [], list):
        raise ApiError.invalid("Field 'lora': LoRA adapters are not supported")
    n_probs = chat.n_probs
    if n_probs is None:
        n_probs = fields.whole("n_probs", 0, high=MAX_PROBS, also=("logprobs",))
    usage = fields.inner("stream_options")
    verbose = fields.flag("verbose", options.verbose)
    is_own = is_own or verbose
    post = fields.flag("post_sampling_probs")
    bias = _logit_bias(fields, tokenizer)
    params, shown_bias = _sampling(fields, options.sampling, tokenizer, bias)
    fields_of_params: dict[str, Any] = {
        "n": fields.whole("n_cmpl", 1, low=1, high=n_slots, also=("n",)),
        "logprobs": n_probs if n_probs > 0 and not post else None,
        **chat.params,
    }
    stop = fields.texts("stop")
    response_fields = fields.texts("response_fields") if is_own else None
    return CompletionOptions(
        replace(params, **fields_of_params),
        n_predict=fields.whole(
            "n_predict", options.n_predict, low=-1, also=("max_completion_tokens", "max_tokens")
        ),
        n_keep=fields.whole("n_keep", options.n_keep, low=-1),
        n_discard=fields.whole("n_discard", 0, low=0),
        n_indent=fields.whole("n_indent", 0, low=0),
        stop=(*(tuple(s for s in stop or () if s) or options.stop), *chat.stop),
        stream=fields.flag("stream"),
        include_usage=usage.flag("include_usage"),
        timings_per_token=fields.flag("timings_per_token"),
        return_tokens=is_own and fields.flag("return_tokens"),
        return_progress=fields.flag("return_progress"),
        cache_prompt=fields.flag("cache_prompt", options.cache_prompt),
        id_slot=fields.whole("id_slot", -1, low=-1, high=n_slots - 1),
        n_probs=max(0, n_probs),
        post_sampling_probs=post,
        max_predict_ms=fields.whole("t_max_predict_ms", -1, low=-1),
        sse_ping_s=fields.whole("sse_ping_interval", options.sse_ping_s, low=-1),
        response_fields=response_fields or (),
        grammar=chat.grammar or _grammar(fields, tokenizer) or options.grammar,
        shown=chat.shown,
        verbose=verbose,
        logit_bias=shown_bias,
        reasoning_format=fields.get("reasoning_format", options.reasoning_format, str),
        reasoning_control=fields.flag("reasoning_control"),
        chat_format=chat.chat_format,
        generation_prompt=chat.generation_prompt,
        drafters=options.drafters,
    )


def _sampling(
    fields: Fields, defaults: SamplingParams, tokenizer: Tokenizer, bias: list[tuple[int, float]]
) -> tuple[SamplingParams, tuple[tuple[int, float], ...]]:
    """The sampling parameters, and the biases to report."""
    given: dict[str, Any] = {}
    for name, param, kind, low, high, clamp in _FIELDS:
        if not fields.has(name):
            continue
        if kind is int:
            low_int = -INT32_MAX if low == -math.inf else int(low)
            high_int = INT32_MAX if high == math.inf else int(high)
            given[param] = fields.whole(name, 0, low=low_int, high=high_int, clamp=clamp)
        else:
            given[param] = fields.number(name, 0.0, low=low, high=high, clamp=clamp)
    if given.get("dry_base", 1.0) < 1.0:
        del given["dry_base"]
        fields.leave_out("dry_base")
    given["seed"] = fields.modulo("seed", defaults.seed, RANDOM_SEED + 1)
    breakers = fields.texts("dry_sequence_breakers")
    if breakers is not None:
        if not breakers:
            raise ApiError.invalid("Field 'dry_sequence_breakers': must be a non-empty list")
        given["dry_sequence_breakers"] = breakers
    if fields.has("samplers"):
        given["samplers"] = _samplers(fields.body["samplers"])
    ignore_eos = fields.flag("ignore_eos", defaults.ignore_eos)
    given["ignore_eos"] = ignore_eos
    biases = dict(defaults.logit_bias) if not fields.has("logit_bias") else {}
    for token, value in bias:
        biases[token] = biases.get(token, 0.0) + value
    given["logit_bias"] = biases
    shown = [*biases.items()]
    if ignore_eos:
        shown += [(token, -math.inf) for token in sorted(tokenizer.eog)]
    return replace(defaults, **given), tuple(shown)


def _samplers(value: Any) -> tuple[str, ...]:
    """The samplers of a list of names or a string of letters, each once: all run at each token."""
    found = _sampler_names(value)
    for name in found:
        if found.count(name) > 1:
            raise ApiError.invalid(f"Field 'samplers': {name} is there more than once")
    return found


def _sampler_names(value: Any) -> tuple[str, ...]:
    if isinstance(value, str):
        for letter in value:
            if letter not in LETTERS:
                raise ApiError.invalid(
                    f"Field 'samplers': there is no sampler {letter!r}; choose from "
                    + ", ".join(f"{letter} ({name})" for letter, name in LETTERS.items())
                )
        return tuple(LETTERS[letter] for letter in value)
    if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
        raise ApiError.invalid("Field 'samplers': must be a list of names or a string of letters")
    return tuple(sampler_name(name) for name in value)


def _logit_bias(fields: Fields, tokenizer: Tokenizer) -> list[tuple[int, float]]:
    """Pairs of a token and its bias, of a list of pairs or an object.

    As in llama.cpp, tokens that the model does not have are left out: clients keep lists for other
    vocabularies.
    """
    value = fields.body.get("logit_bias")
    if value is None:
        return []
    if isinstance(value, Mapping):
        pairs = [(int(key) if _is_id(key) else key, bias) for key, bias in value.items()]
    elif isinstance(value, list) and all(isinstance(v, list) and len(v) == 2 for v in value):
        pairs = [(key, bias) for key, bias in value]
    else:
        raise ApiError.invalid("Field 'logit_bias': must be a list of pairs or an object")
    found: list[tuple[int, float]] = []
    is_whole = True
    for key, bias in pairs:
        if bias is False:
            bias = -math.inf
        if isinstance(bias, bool) or not isinstance(bias, (int, float)) or math.isnan(bias):
            raise ApiError.invalid(
                f"Field 'logit_bias': a bias must be a number or false, got {bias!r:.60}"
            )
        bias = max(-1e30, min(1e30, bias)) if math.isfinite(bias) else bias
        if isinstance(key, int) and not isinstance(key, bool):
            ids = [key] if 0 <= key < tokenizer.n_vocab else []
        elif isinstance(key, str):
            ids = tokenizer.encode(key, add_special=False)
        else:
            raise ApiError.invalid(
                f"Field 'logit_bias': a token must be a number or a text, got {key!r:.60}"
            )
        is_whole = is_whole and bool(ids)
        found += [(token, float(bias)) for token in ids]
    if not is_whole:
        fields.leave_out("logit_bias of unknown tokens")
    return found


def _is_id(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) < 10


def _grammar(fields: Fields, tokenizer: Tokenizer) -> Grammar | None:
    """The grammar of ``json_schema`` or ``grammar``; both together are ``grammar``."""
    text = fields.get("grammar", "", str)
    if fields.body.get("json_schema") is not None and "grammar" not in fields.body:
        return schema_grammar(fields.body["json_schema"])
    triggers = _triggers(fields, tokenizer) if fields.flag("grammar_lazy") else []
    return Grammar(text, triggers=triggers) if text else None


def _triggers(fields: Fields, tokenizer: Tokenizer) -> list[Trigger]:
    """What starts a lazy grammar: words and tokens.

    Patterns are refused, since a regular expression can take forever.
    """
    found: list[Trigger] = []
    for i, given in enumerate(fields.get("grammar_triggers", [], list)):
        one = Fields(given, f"grammar_triggers[{i}]")
        kind = one.whole("type", -1)
        if kind == _TRIGGER_TOKEN:
            found.append(Trigger("token", one.whole("token", 0, low=0, high=tokenizer.n_vocab - 1)))
        elif kind == _TRIGGER_WORD:
            found.append(Trigger("word", one.get("value", "", str)))
        else:
            raise ApiError.invalid(
                f"Field 'grammar_triggers[{i}].type': must be 0 (token) or 1 (word), got {kind}"
            )
    if not found:
        raise ApiError.invalid("Error: no triggers set for lazy grammar!")
    return found


def _trigger_json(trigger: Trigger) -> dict[str, Any]:
    if trigger.kind == "token":
        return {"type": _TRIGGER_TOKEN, "value": "", "token": trigger.value}
    return {"type": _TRIGGER_KINDS.index(trigger.kind), "value": trigger.value}


def schema_grammar(schema: Any) -> Grammar:
    """The grammar of a JSON schema; an empty one means any object.

    Raises:
        ApiError: it is not a schema.
        SchemaError: it is invalid, or a grammar cannot express it.
    """
    if not isinstance(schema, (Mapping, bool)):
        raise ApiError.invalid('"json_schema" must be an object')
    return Grammar.from_json_schema({"type": "object"} if schema == {} else schema)
