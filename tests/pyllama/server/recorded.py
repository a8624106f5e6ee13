"""Requests whose responses are recorded from llama-server, and how two responses are compared.

    for session in SESSIONS:                       # one start of a server each
        for ask in session.asks:
            answer = plain(ask, status, content_type, body)   # what both servers must agree in

`plain` removes what differs from run to run: ids, times, and values that follow from logits.
Texts are generated greedily from prompts at which the likeliest token is clearly the likeliest.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import Any

COUNT = "1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13,"
LETTERS = "a b c d e f g h i j k l m n o"
MESSAGES = [{"role": "user", "content": "Hello"}]
COUNTING = [  # the reply is continued, by numbers
    {"role": "user", "content": "Count."},
    {"role": "assistant", "content": "1, 2, 3, 4, 5, 6, 7, 8,"},
]
LONG = " ".join(map(str, range(1, 61))) + " "
GREEDY = {"temperature": 0}
FIM = (  # tokens of the demo model that stand for those of a model for code
    "tokenizer.ggml.fim_pre_token_id=int:5,tokenizer.ggml.fim_suf_token_id=int:6,"
    "tokenizer.ggml.fim_mid_token_id=int:7"
)
FIM_REPO = f"{FIM},tokenizer.ggml.fim_rep_token_id=int:8,tokenizer.ggml.fim_sep_token_id=int:9"
TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"enum": ["Rome"]}},
            "required": ["city"],
        },
    },
}


@dataclass(frozen=True)
class Ask:
    """One request.

    Attributes:
        name: unique in its session.
        path: with its query.
        body: of a POST; None for a GET.
        settings: whether ``generation_settings`` and the like are compared too.
        text: whether generated texts are compared; else only their types.
        fields: the fields of the response to compare; all if empty.
    """

    name: str
    path: str
    body: Any = None
    settings: bool = False
    text: bool = True
    fields: tuple[str, ...] = ()


@dataclass(frozen=True)
class Session:
    """One start of a server.

    Attributes:
        flags: of both servers; ``{folder}`` is an empty folder, ``{model}`` the model.
        ours: flags of ours alone.
    """

    name: str
    flags: tuple[str, ...]
    asks: tuple[Ask, ...] = field(default_factory=tuple)
    ours: tuple[str, ...] = ()


def _completions() -> list[Ask]:
    base = {"prompt": COUNT, "n_predict": 4, **GREEDY}
    variants: dict[str, dict[str, Any]] = {
        "plain": {},
        "return_tokens": {"return_tokens": True},
        "n_probs": {"n_probs": 3},
        "post_sampling_probs": {"n_probs": 3, "post_sampling_probs": True, "temperature": 0.5},
        "stop_word": {"stop": ["15"], "n_predict": 12},
        "stop_across_tokens": {"stop": [", 16, 1"], "n_predict": 16},
        "stop_that_does_not_come": {"stop": [" 99"], "n_predict": 6},
        "timings_per_token": {"timings_per_token": True},
        "n_predict_0": {"n_predict": 0},
        "response_fields": {"response_fields": ["content", "generation_settings/n_predict", "x"]},
        "several_prompts": {"prompt": [COUNT, LETTERS]},
        "several_choices": {"n_cmpl": 2},
        "grammar": {"grammar": 'root ::= " 14, 15"', "n_predict": 12},
    }
    found = []
    for name, more in variants.items():
        for stream in (False, True):
            body = base | more | {"stream": stream, "cache_prompt": False}
            title = f"completion {name}{' streamed' if stream else ''}"
            found.append(Ask(title, "/completion", body, settings=name == "plain"))
    body = base | {"stream": True, "return_progress": True, "prompt": LONG, "cache_prompt": False}
    found.append(Ask("completion progress", "/completion", body))
    body = body | {"cache_prompt": True, "prompt": LONG + "61 62 63 64 65 66 67 68 69 70"}
    return [*found, Ask("completion progress of a cached prompt", "/completion", body)]


def _openai() -> list[Ask]:
    found = []
    base = {"prompt": COUNT, "max_tokens": 4, "cache_prompt": False, **GREEDY}
    variants: dict[str, dict[str, Any]] = {
        "plain": {},
        "logprobs": {"logprobs": 2},
        "several_choices": {"n": 2},
        "stop": {"stop": " 15", "max_tokens": 12},
        "usage": {"stream_options": {"include_usage": True}},
        "timings_per_token": {"timings_per_token": True},
    }
    for name, more in variants.items():
        for stream in (False, True):
            title = f"openai {name}{' streamed' if stream else ''}"
            found.append(Ask(title, "/v1/completions", base | more | {"stream": stream}))
    base = {"messages": COUNTING, "max_tokens": 4, "cache_prompt": False, **GREEDY}
    base |= {"continue_final_message": True, "add_generation_prompt": False}
    variants = {
        "plain": {},
        "logprobs": {"logprobs": True, "top_logprobs": 2},
        "several_choices": {"n": 2},
        "usage": {"stream_options": {"include_usage": True}},
        "timings_per_token": {"timings_per_token": True},
        "progress": {"return_progress": True},
        "stop": {"stop": ["10"], "max_tokens": 30},
        "grammar": {"grammar": 'root ::= " 9, 10"', "max_tokens": 20},
        "json_schema": {
            "messages": MESSAGES,
            "continue_final_message": False,
            "add_generation_prompt": True,
            "response_format": {"type": "json_schema", "json_schema": {"schema": {"const": "yes"}}},
            "max_tokens": 20,
        },
    }
    free = {"continue_final_message": False, "add_generation_prompt": True}
    required = free | {
        "messages": MESSAGES,
        "tools": [TOOL],
        "tool_choice": "required",
        "max_tokens": 80,
    }
    found.append(Ask("chat tools", "/v1/chat/completions", base | required))
    for name, more in variants.items():
        for stream in (False, True):
            title = f"chat {name}{' streamed' if stream else ''}"
            body = base | more | {"stream": stream}
            found.append(Ask(title, "/v1/chat/completions", body, text=name != "json_schema"))
    base = {"input": "Hello", "max_output_tokens": 4, **GREEDY}
    found += [
        Ask("responses", "/v1/responses", base, text=False),
        Ask("responses streamed", "/v1/responses", base | {"stream": True}, text=False),
    ]
    base = {"messages": COUNTING, "max_tokens": 4, **GREEDY}
    return [
        *found,
        Ask("messages", "/v1/messages", base),
        Ask("messages streamed", "/v1/messages", base | {"stream": True}),
        Ask("messages stop", "/v1/messages", base | {"stop_sequences": ["9"]}),
        Ask("messages count", "/v1/messages/count_tokens", {"messages": MESSAGES}),
        Ask("chat count", "/v1/chat/completions/input_tokens", {"messages": MESSAGES}),
        Ask("responses count", "/v1/responses/input_tokens", {"input": "Hello"}),
    ]


def _small_paths() -> list[Ask]:
    return [
        Ask("health", "/health"),
        Ask("props", "/props", settings=True),
        Ask("models", "/v1/models"),
        Ask("slots", "/slots", settings=True),
        Ask("lora", "/lora-adapters"),
        Ask("no lora", "/lora-adapters", []),
        Ask("tokenize", "/tokenize", {"content": "Hello world"}),
        Ask("tokenize pieces", "/tokenize", {"content": "h\u00e9 \u20ac", "with_pieces": True}),
        Ask("tokenize nothing", "/tokenize", {}),
        Ask("detokenize", "/detokenize", {"tokens": [1, 2, 19556]}),
        Ask("apply template", "/apply-template", {"messages": MESSAGES}),
        Ask("metrics are off", "/metrics"),
        Ask("props cannot be changed", "/props", {}),
        Ask("slots cannot be saved", "/slots/0?action=save", {"filename": "x"}),
        Ask("embeddings are off", "/v1/embeddings", {"input": "x"}),
        Ask("reranking is off", "/v1/rerank", {"query": "x", "documents": ["y"]}),
        Ask("infill without tokens", "/infill", {"input_prefix": "a", "input_suffix": "b"}),
        Ask("no audio", "/v1/audio/transcriptions", {}),
        Ask("no decisions", "/v1/systemone", {}),
        Ask("nowhere", "/nowhere"),
        Ask("no stream", "/v1/stream?conv_id=x"),
        Ask("no id of a stream", "/v1/stream"),
        Ask("streams", "/v1/streams/lookup", {"conversation_ids": ["x"]}),
        Ask("control nothing", "/v1/chat/completions/control", {}),
        Ask("control something", "/v1/chat/completions/control", {"id": "x", "action": "y"}),
        Ask(
            "control what has ended",
            "/v1/chat/completions/control",
            {"id": "x", "action": "reasoning_end"},
        ),
    ]


def _wrong() -> list[Ask]:
    """Requests that are refused; messages of wrong types are each server's own."""
    base: dict[str, Any] = {"prompt": "a", "n_predict": 1}
    chat: dict[str, Any] = {"messages": MESSAGES, "max_tokens": 1}
    bodies: list[tuple[str, str, Any]] = [
        ("no prompt", "/completion", {}),
        ("no prompt of openai", "/v1/completions", {}),
        ("temperature", "/completion", base | {"temperature": "hot"}),
        ("n_predict", "/completion", base | {"n_predict": -7}),
        ("n_cmpl", "/completion", base | {"n_cmpl": 99}),
        ("stream", "/completion", base | {"stream": "yes"}),
        ("grammar", "/completion", base | {"grammar": "root ::= ("}),
        ("prompt", "/completion", base | {"prompt": {"a": 1}}),
        ("tokens", "/completion", base | {"prompt": [10**8]}),
        ("id_slot", "/completion", base | {"id_slot": 99}),
        ("dry_sequence_breakers", "/completion", base | {"dry_sequence_breakers": []}),
        ("lora", "/completion", base | {"lora": 3}),
        ("min_keep", "/completion", base | {"min_keep": -1}),
        ("adaptive_decay", "/completion", base | {"adaptive_decay": 2}),
        ("dry_penalty_last_n", "/completion", base | {"dry_penalty_last_n": -1}),
        ("sse_ping_interval", "/completion", base | {"sse_ping_interval": -2}),
        ("lazy grammar", "/completion", base | {"grammar_lazy": True, "grammar_triggers": []}),
        ("too long", "/completion", base | {"prompt": LONG * 9}),
        ("too long streamed", "/completion", base | {"prompt": LONG * 9, "stream": True}),
        ("echo", "/v1/completions", base | {"echo": True}),
        ("suffix", "/v1/completions", base | {"suffix": "x"}),
        ("no messages", "/v1/chat/completions", {}),
        ("messages", "/v1/chat/completions", {"messages": "x"}),
        ("role", "/v1/chat/completions", chat | {"messages": [{"content": "x"}]}),
        ("content", "/v1/chat/completions", chat | {"messages": [{"role": "user"}]}),
        ("response format", "/v1/chat/completions", chat | {"response_format": {"type": "x"}}),
        ("top_logprobs", "/v1/chat/completions", chat | {"top_logprobs": 2}),
        ("tools", "/v1/chat/completions", chat | {"tools": "x"}),
        ("grammar and tools", "/v1/chat/completions", chat | {"tools": [TOOL], "grammar": "x"}),
        ("no input", "/v1/responses", {}),
        ("no anthropic messages", "/v1/messages", {}),
    ]
    return [Ask(f"wrong {name}", path, body) for name, path, body in bodies]


def _speculation() -> tuple[Ask, ...]:
    base = {"prompt": LONG + LONG[:40], "n_predict": 24, "cache_prompt": False, **GREEDY}
    return (
        Ask("completion", "/completion", base),
        Ask("completion streamed", "/completion", base | {"stream": True}),
        Ask("timings", "/completion", base | {"stream": True, "timings_per_token": True}),
        Ask("n_probs", "/completion", base | {"n_probs": 2, "n_predict": 6}),
        Ask("slots", "/slots"),
    )


def _shift(name: str, **more: Any) -> Ask:
    body = {"prompt": LONG, "n_predict": 100, "ignore_eos": True, "cache_prompt": False}
    body |= GREEDY | more
    return Ask(name, "/completion", body, text=False)


SPECULATIONS = (
    Session("no speculation", ("-c", "512", "-np", "1"), _speculation()),
    Session(
        "draft model",
        ("-c", "512", "-np", "1", "-md", "{model}", "--spec-type", "draft-simple"),
        _speculation(),
        ours=("--no-adaptive-draft",),
    ),
    Session("n-grams", ("-c", "512", "-np", "1", "--spec-type", "ngram-simple"), _speculation()),
)
SHIFTS = (
    Session(
        "context shift",
        ("-c", "256", "-np", "1", "--context-shift"),
        (
            _shift("shift"),
            _shift("shift streamed", stream=True),
            _shift("n_keep", n_keep=8),
            _shift("n_keep all", n_keep=-1),
            _shift("n_discard", n_discard=20),
            _shift("a long prompt", prompt=LONG * 2),
            _shift("no shift needed", n_predict=8),
        ),
    ),
    Session(
        "no context shift",
        ("-c", "256", "-np", "1"),
        (
            _shift("limit"),
            _shift("limit streamed", stream=True),
            _shift("until the end", n_predict=-1),
            _shift("short", n_predict=8),
            _shift("a long prompt", prompt=LONG * 2),
            _shift("a long prompt streamed", prompt=LONG * 2, stream=True),
            Ask("openai", "/v1/completions", {"prompt": LONG * 2, "max_tokens": 4}),
            Ask(
                "chat",
                "/v1/chat/completions",
                {"messages": [{"role": "user", "content": LONG * 2}]},
            ),
        ),
    ),
)


def _slot(name: str, action: str, body: Any, slot: int = 0) -> Ask:
    return Ask(name, f"/slots/{slot}?action={action}", body)


def _reuse(name: str, slot: int, prompt: str = COUNT) -> Ask:
    body = {"prompt": prompt, "n_predict": 4, "id_slot": slot, "cache_prompt": True, **GREEDY}
    return Ask(name, "/completion", body)


SLOTS = Session(
    "slot files",
    ("-c", "512", "-np", "2", "--slot-save-path", "{folder}", "-cram", "0"),
    (
        _reuse("first", 1),
        _slot("save", "save", {"filename": "one.bin"}, 1),
        _reuse("another prompt", 1, LETTERS),
        _slot("restore", "restore", {"filename": "one.bin"}, 0),
        _reuse("restored", 0),
        _reuse("still there", 1, LETTERS),
        _slot("erase", "erase", {}, 1),
        _reuse("erased", 1, LETTERS),
        _slot("save nothing", "erase", {}, 0),
        _slot("no file", "restore", {"filename": "other.bin"}),
        _slot("no name", "save", {}),
        _slot("a path", "save", {"filename": "../x"}),
        _slot("no slot", "save", {"filename": "x"}, 7),
        _slot("no action", "fly", {"filename": "x"}),
    ),
)
_CODE = {
    "input_prefix": "def add(a, b):\n",
    "input_suffix": "\n    return c",
    "n_predict": 2,
    **GREEDY,
}
_EXTRA = [{"text": "import os\n", "filename": "a.py"}, {"text": "x = 1\n"}]


def _infill(flags: tuple[str, ...], name: str) -> Session:
    variants: dict[str, Any] = {
        "plain": {},
        "prompt": {"prompt": "    c ="},
        "extra": {"input_extra": _EXTRA},
        "long prefix": {"input_prefix": "x = 1\n" * 100},
        "long suffix": {"input_suffix": "x = 1\n" * 100},
        "long extra": {"input_extra": [{"text": "y = 2\n" * 200, "filename": "b.py"}]},
        "streamed": {"stream": True},
        "no text": {"input_extra": [{"filename": "a"}]},
        "wrong extra": {"input_extra": "x"},
        "wrong prompt": {"prompt": 3},
    }
    asks = [
        Ask(
            what, "/infill", _CODE | more, text=False, fields=("prompt", "tokens_evaluated", "stop")
        )
        for what, more in variants.items()
    ]
    asks += [
        Ask(f"no {one}", "/infill", {k: v for k, v in _CODE.items() if k != one})
        for one in ("input_prefix", "input_suffix")
    ]
    return Session(name, ("-c", "512", "-np", "1", "-b", "128", "-ub", "64", *flags), tuple(asks))


SESSIONS = (
    Session(
        "completions",
        ("-c", "1024", "-np", "2", "-b", "64", "-ub", "64", "--seed", "42"),
        (*_small_paths(), *_completions(), *_openai(), *_wrong()),
    ),
    Session(
        "metrics",
        ("-c", "512", "-np", "1", "--metrics", "--props", "-a", "b,a", "--tags", "x,y"),
        (
            _reuse("a text", 0),
            Ask("metrics", "/metrics"),
            Ask("slots", "/slots", settings=True),
            Ask("props", "/props", {}),
            Ask("models", "/v1/models"),
        ),
    ),
    *SPECULATIONS,
    *SHIFTS,
    SLOTS,
    _infill(("--override-kv", FIM), "infill"),
    _infill(("--override-kv", FIM_REPO), "infill with files"),
    _infill(("--override-kv", FIM, "--spm-infill"), "infill suffix first"),
)
"""All that is recorded, in tests/data/server/<name>.json."""


DELIBERATE = {
    r"completions \| props \.body\.(model_alias|media_marker)": "paths are not told; no media",
    r"\| models \.body\.data\[0\]\.meta\.desc: only ours": "for Ollama's list of a router",
    r"\| wrong no anthropic messages \.body\.type: only ours": "as Anthropic's errors have it",
    r"\| models \.body\.data\[0\]\.(id|aliases|owned_by)": "paths are not told; our own name",
    r"completions \| no stream .*message": "llama-server replaces the message by that of a 404",
    r"completions \| completion n_predict_0": "no token is reported, as its README says",
    r"\| completion progress.*\.tokens: \[0\] but ours \[\]": "there is no token 0",
    r"\| (openai|chat) several_choices.*usage": "OpenAI adds up the tokens of all choices",
    r"\| responses .*only ours": "fields of OpenAI's that the client reads",
    r"\| messages .*\.id: ": "ids begin as Anthropic's do",
    r"\| chat .*message.content: '1, 2, 3, .* but ours ' 9,": "a prefill is not repeated",
    r"^context shift \| (shift|n_keep) .*tokens_cached": "it is shifted when no cell is free",
    r"\| messages .*(text|content)": "a prefill is not repeated, as in Anthropic's API",
    r"\| chat tools": "llama-server leaves out tools that the template does not know",
    r"metrics \| metrics \.names.*only ours": "further metrics",
    r"\| messages stop .*stop_(reason|sequence)": "Anthropic's reason of a stop sequence",
    r"\| wrong .*\.error\.message": "our messages name the field and what is wrong",
    r"\| wrong (id_slot|echo|suffix)": "llama-server ignores what it does not do",
    r"\| wrong (role|tools|no anthropic messages).*500 but ours 400": "the client's mistake",
    r"\| wrong (role|tools|no anthropic messages).*'server_error' but": "the client's mistake",
    r"^infill.* \| no input_.*message": "our messages name the field and what is wrong",
    r"^infill.* \| long extra": "room is left for the prompt and the request's text",
    r"^infill.* \| wrong prompt": "llama-server ignores a prompt that is no text",
    r"^(draft model|n-grams) \| n_probs .*top_logprobs": "accepted drafts have probabilities too",
    r"^(draft model|n-grams) \| timings .*draft_n": "lengths of drafts are each server's own",
    r"^slot files \| (save|restore) .*\.n_(written|read)": "each server has its own file format",
    r"^slot files \| no (file|name) .*message": "our messages tell what is wrong",
    r"^slot files \| no slot": "llama-server takes the number modulo that of its slots",
}
"""Where we differ on purpose (lines of `differences` in test_recorded), and why."""


# --- comparing ----------------------------------------------------------------------------------

_TIMES = {"created", "created_at", "completed_at", "started_at"}
_IDS = {"id", "item_id", "call_id", "response_id", "id_task"}
_SETTINGS = {"generation_settings", "params", "default_generation_settings"}
_TEXTS = {"content", "tokens", "text", "delta", "has_new_line"}
_FROM_LOGITS = {"logprob", "prob"}
_DRAFTED = {"draft_n", "draft_n_accepted"}  # lengths of drafts are each server's own
_CACHED = {"cache_read_input_tokens", "input_tokens"}  # of Anthropic: what other texts left
_SHORT = 5  # significant digits


def plain(ask: Ask, status: int, content_type: str, body: str) -> Any:
    """What the servers must agree in: the response without ids, times and values of logits."""
    found: dict[str, Any] = {"status": status, "type": content_type.split(";")[0]}
    if content_type.startswith("text/event-stream"):
        found["events"] = _events(ask, body)
    elif content_type.startswith("application/json") and body:
        found["body"] = _value(ask, json.loads(body))
        if ask.fields and status == 200:
            found["body"] = {k: v for k, v in found["body"].items() if k in ask.fields}
    elif ask.path == "/metrics":
        found["names"] = dict(re.findall(r"^# TYPE (llamacpp:\S+) (\S+)$", body, re.M))
    return found


def _events(ask: Ask, body: str) -> list[Any]:
    events: list[tuple[int, Any]] = []
    for block in body.split("\n\n"):
        lines = [line for line in block.split("\n") if line and not line.startswith(":")]
        if not lines:
            continue
        name = [line.removeprefix("event: ") for line in lines if line.startswith("event: ")]
        data = "\n".join(line[6:] for line in lines if line.startswith("data: "))
        value = data if data == "[DONE]" else json.loads(data)
        if value is None:  # after several streamed prompts llama-server has such an event
            continue
        if isinstance(value, dict) and value.get("timings") and "timings" not in ask.name:
            # also those of a token that completes a stop word, but not of others
            value = {k: v for k, v in value.items() if k != "timings"}
        events.append((_index(value), [*name, _value(ask, value)]))
    # choices are generated at the same time: their order is not fixed
    return [event for _, event in sorted(events, key=lambda pair: pair[0])]


def _index(value: Any) -> int:
    """Number of the choice that an event belongs to; the last ones belong to none."""
    if not isinstance(value, dict):
        return 1000
    choices = value.get("choices")
    if choices is not None:
        return int(choices[0]["index"]) if choices else 999
    return int(value.get("index", 0)) if "stop" in value else 0


def _value(ask: Ask, value: Any, key: str = "") -> Any:
    if key in _SETTINGS and not ask.settings:
        return "<settings>"
    if key in _TIMES and isinstance(value, (int, float)):
        return "<time>"
    if key in _IDS and isinstance(value, str):
        return re.sub(r"(?<=[-_]).*|^[^-_]*$", "*", value)
    if key in ("id_task", "id_slot") and not (key == "id_slot" and "id_slot" in (ask.body or {})):
        return "<number>"
    if key in _FROM_LOGITS or key in _DRAFTED | _CACHED or key.endswith(("_ms", "_per_second")):
        return "<number>" if isinstance(value, (int, float)) else value
    if key in ("model", "model_path", "name") and isinstance(value, str) and "gguf" in value:
        return "<model>"
    if key in ("system_fingerprint", "build_info"):
        return "<build>"
    if key in ("top_logprobs", "top_probs"):
        return [len(value), sorted(value[0]) if value else []]
    if not ask.text and key in _TEXTS:
        return f"<{type(value).__name__}>"
    if isinstance(value, dict):
        return {name: _value(ask, one, name) for name, one in value.items()}
    if isinstance(value, list):
        return [_value(ask, one) for one in value]
    if isinstance(value, float):
        value = float(f"{value:.{_SHORT}g}")
        return int(value) if value.is_integer() else value
    return value
