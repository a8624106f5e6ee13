"""The fields of a completion: JSON to options of the engine, and back for the responses.

    options = read_completion(Fields(body), server_options, tokenizer, n_slots)
    options.settings()                             # "generation_settings" of a response

`pyllama.parameters` has the fields of numbers and switches, with llama-server's names and ranges.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from ...chat.turn import Turn
from ...grammar import Grammar, Trigger
from ...parameters import rows
from ...parameters.generation import MAX_PROBS, GenerationParams, RequestParams
from ...parameters.sampling import DEFAULT_SAMPLERS, LETTERS, SamplingParams
from ...sampling import sampler_name
from ...tokenizer import Tokenizer
from .errors import ApiError
from .fields import Fields
from .options import ServerOptions

_REASONING = {"auto": "deepseek"}  # what it means
_TRIGGER_KINDS = ("token", "word", "pattern", "pattern_full")  # numbers of llama.cpp's API
_TRIGGER_TOKEN, _TRIGGER_WORD = 0, 1
_CONTENT_ONLY = "Content-only"  # llama.cpp's name of a reply without calls
Scales = tuple[tuple[int, float], ...]  # numbers of adapters and their factors


@dataclass(frozen=True, kw_only=True)
class CompletionOptions(RequestParams):
    """What a request asks of its texts, with what was read of their conversation.

    Attributes:
        params: sampling.
        include_usage: whether a stream ends with the counts of tokens.
        grammar: grammar of the text.
        shown: control tokens whose text is needed.
        logit_bias: the biases to report.
        turn: the conversation that the texts reply to; None without.
        drafters: names of the drafters.
        lora: numbers of adapters and their factors; None for those that are applied.
    """

    params: SamplingParams
    include_usage: bool = False
    grammar: Grammar | None = None
    shown: frozenset[int] = frozenset()
    logit_bias: tuple[tuple[int, float], ...] = ()
    turn: Turn | None = None
    drafters: tuple[str, ...] = ()
    lora: Scales | None = None

    @property
    def conversation(self) -> Turn:
        """``turn`` of a request that has one."""
        assert self.turn is not None
        return self.turn

    def settings(self, whole: bool = True) -> dict[str, Any]:
        """The object ``generation_settings``; without prompts and grammars if not ``whole``.

        Source: llama.cpp, ``task_params::to_json``.
        """
        params, turn = self.params, self.turn
        found: dict[str, Any] = {
            row.json.names[0]: getattr(params, row.name)
            for row in rows(SamplingParams).values()
            if row.json is not None and row.kind in ("int", "float") and row.name != "n"
        }
        found["seed"] = params.seed % (1 << 32)
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
            "chat_format": turn.call_format.name if turn and turn.tools else _CONTENT_ONLY,
            "reasoning_format": _REASONING.get(self.reasoning_format, self.reasoning_format),
            "reasoning_in_content": self.stream and self.reasoning_format == "deepseek-legacy",
            "generation_prompt": turn.generation if turn else "",
            "samplers": [s for s in params.samplers or DEFAULT_SAMPLERS if isinstance(s, str)],
            "speculative.types": ",".join(self.drafters) or "none",
            "timings_per_token": self.timings_per_token,
            "post_sampling_probs": self.post_sampling_probs,
            "backend_sampling": False,
            "lora": [{"id": id, "scale": scale} for id, scale in self.lora or ()],
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


def default_options(options: ServerOptions) -> CompletionOptions:
    """The options of a request without any fields."""
    return CompletionOptions(
        params=options.sampling,
        grammar=options.grammar,
        drafters=options.drafters,
        **{name: getattr(options, name) for name in rows(GenerationParams)},
    )


def read_completion(
    fields: Fields,
    options: ServerOptions,
    tokenizer: Tokenizer,
    n_slots: int,
    turn: Turn | None = None,
    *,
    is_own: bool = False,
) -> CompletionOptions:
    """The options of a request.

    Args:
        turn: the conversation that the texts reply to; None for plain prompts.
        is_own: whether the response has llama.cpp's own format, which some fields change.

    Raises:
        ApiError: a field is wrong.
        GrammarError, SamplingError: a grammar or sampling parameter is.
    """
    lora = read_lora(fields)
    is_own = is_own or fields.flag("verbose", options.verbose)
    probs = {} if turn is None else {"n_probs": _n_probs(fields)}
    high = {"id_slot": n_slots - 1}
    given = probs | fields.given(RequestParams, but=[*probs], is_own=is_own, high=high)
    asked = replace(default_options(options), **given)
    n_probs, bias = max(0, asked.n_probs), _logit_bias(fields, tokenizer)
    params, shown_bias = _sampling(fields, options.sampling, tokenizer, bias, n_slots)
    logprobs = n_probs if n_probs > 0 and not asked.post_sampling_probs else None
    stop = fields.texts("stop")
    grammar = turn.grammar.compile() if turn and turn.grammar else None
    return replace(
        asked,
        params=replace(params, logprobs=logprobs),
        n_probs=n_probs,
        stop=(
            *(tuple(s for s in stop or () if s) or options.stop),
            *(turn.prompt.stop if turn else ()),
        ),
        include_usage=fields.inner("stream_options").flag("include_usage"),
        response_fields=(fields.texts("response_fields") if is_own else None) or (),
        grammar=grammar or _grammar(fields, tokenizer) or options.grammar,
        shown=turn.shown if turn else frozenset(),
        logit_bias=shown_bias,
        turn=turn,
        lora=lora,
    )


def read_lora(fields: Fields) -> Scales | None:
    """The field ``lora``; None, for the context's adapters, if it is missing or empty.

    Raises:
        ApiError: it is no list of objects with ``id`` and ``scale``.
    """
    given = fields.get("lora", [], list)
    return read_scales(given, "Field 'lora'") if given else None


def read_scales(given: Any, where: str) -> Scales:
    """The factors of a list of objects with ``id`` and ``scale``. Raises: ApiError."""
    if not isinstance(given, list):
        raise ApiError.invalid(f"{where} must be a list of objects with 'id' and 'scale'")
    found = []
    for entry in given:
        fields = entry if isinstance(entry, dict) else {}
        id, scale = fields.get("id"), fields.get("scale")
        is_number = isinstance(scale, (int, float)) and not isinstance(scale, bool)
        if type(id) is not int or not is_number:
            raise ApiError.invalid(
                f"{where}: got {entry!r:.60}, want an object with a whole number 'id' and a "
                "number 'scale'"
            )
        found.append((id, float(scale or 0)))
    return tuple(found)


def _n_probs(fields: Fields) -> int:
    """The number of likeliest tokens to report, of the chat APIs' fields."""
    logprobs = fields.body.get("logprobs")
    if logprobs:
        if fields.get("tools", [], list) and fields.flag("stream"):
            raise ApiError.invalid("logprobs is not supported with tools + stream")
        return fields.whole("top_logprobs", 20, low=0, high=MAX_PROBS)
    if fields.has("top_logprobs"):
        raise ApiError.invalid("top_logprobs requires logprobs to be set to true")
    return fields.whole("n_probs", 0, low=0, high=MAX_PROBS)


def _sampling(
    fields: Fields,
    defaults: SamplingParams,
    tokenizer: Tokenizer,
    bias: list[tuple[int, float]],
    n_slots: int,
) -> tuple[SamplingParams, tuple[tuple[int, float], ...]]:
    """The sampling parameters, and the biases to report."""
    given = {"n": 1, **fields.given(SamplingParams, high={"n": n_slots})}
    breakers = fields.texts("dry_sequence_breakers")
    if breakers is not None:
        if not breakers:
            raise ApiError.invalid("Field 'dry_sequence_breakers': must be a non-empty list")
        given["dry_sequence_breakers"] = breakers
    if fields.has("samplers"):
        given["samplers"] = _samplers(fields.body["samplers"])
    biases = dict(defaults.logit_bias) if not fields.has("logit_bias") else {}
    for token, value in bias:
        biases[token] = biases.get(token, 0.0) + value
    given["logit_bias"] = biases
    shown = [*biases.items()]
    if given.get("ignore_eos", defaults.ignore_eos):
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
        is_id = re.compile("[0-9]{1,9}").fullmatch
        pairs = [(int(key) if is_id(key) else key, bias) for key, bias in value.items()]
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


def _grammar(fields: Fields, tokenizer: Tokenizer) -> Grammar | None:
    """The grammar of ``json_schema`` or ``grammar``; both together are ``grammar``.

    An empty schema means any object.
    """
    text = fields.get("grammar", "", str)
    schema = fields.body.get("json_schema")
    if schema is not None and "grammar" not in fields.body:
        if not isinstance(schema, (Mapping, bool)):
            raise ApiError.invalid('"json_schema" must be an object')
        return Grammar.from_json_schema({"type": "object"} if schema == {} else schema)
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
