"""Malformed HTTP requests for the server, each made again from its number; and the largest ones.

    one = malformed(4711)                          # the same bytes every time
    one.kind, one.data                             # "schema", b"POST /completion HTTP/1.1..."
    changed(body, rng)                             # a JSON value with a part of another type
    wrong_fields("/rerank")                        # each field with each value of `ODD`
    largest(n_ctx=2048)                            # {"stop": ("/completion", {...}), ...}

Used by `benchmarks.soak_serve` (10,000 of them) and by the server's tests (some hundred). Almost
all malformed ones must be answered with a 4xx, or 501 for a path that is not served; what is no
HTTP may also get no answer but a closed connection. The largest ones have the largest allowed value
of a field, and must not hold up others.
"""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

Rng = random.Random
Body = dict[str, Any]

MAX_BODY_MIB = 1
"""``--max-body-size`` of a server under test: `malformed` sends a little more."""
SEEDS: dict[str, Body] = {
    "/completion": {"prompt": "a", "n_predict": 1, "temperature": 0.5, "stop": ["x"], "n_probs": 1},
    "/v1/completions": {"prompt": ["a", [5]], "max_tokens": 1, "n": 1, "logit_bias": {"5": 1}},
    "/v1/chat/completions": {
        "messages": [{"role": "user", "content": [{"type": "text", "text": "a"}]}],
        "max_tokens": 1,
        "tools": [{"type": "function", "function": {"name": "f", "parameters": {}}}],
        "response_format": {"type": "json_schema", "json_schema": {"schema": {"const": 1}}},
        "stream_options": {"include_usage": True},
    },
    "/v1/messages": {
        "messages": [{"role": "user", "content": [{"type": "tool_result", "content": []}]}],
        "max_tokens": 1,
        "system": [{"type": "text", "text": "a"}],
        "tools": [{"name": "f", "input_schema": {}}],
        "thinking": {"type": "enabled", "budget_tokens": 3},
    },
    "/v1/responses": {
        "input": [{"role": "user", "content": [{"type": "input_text", "text": "a"}]}],
        "max_output_tokens": 1,
        "tools": [{"type": "function", "name": "f", "parameters": {}}],
        "reasoning": {"effort": "low"},
    },
    "/api/chat": {
        "messages": [{"role": "user", "content": "a", "tool_calls": [{"function": {}}]}],
        "options": {"num_predict": 1, "stop": ["a"]},
        "format": "json",
    },
    "/api/generate": {"prompt": "a", "options": {"num_predict": 1}, "think": False},
    "/v1/embeddings": {"input": ["a", "b"], "encoding_format": "float"},
    "/tokenize": {"content": ["a", 5], "with_pieces": True},
    "/detokenize": {"tokens": [5, 6]},
    "/apply-template": {"messages": [{"role": "user", "content": "a"}]},
    "/infill": {"input_prefix": "a", "input_suffix": "b", "input_extra": [{"text": "c"}]},
    "/slots/0?action=save": {"filename": "a"},
    "/props": {},
    "/lora-adapters": {},
}
"""A good body for the paths that take one."""
ODD: list[Any] = [
    None, True, -1, 0, 1.5, 10**30, 1e308, "", "a", "\ud800", "\0", [], {}, [[]], [None], {"": {}},
    "9" * 50, [[1]], {"type": "x"}, {"$ref": "#"}, -(2**31), 2**31, float("nan"), float("-inf"),
]  # fmt: skip
FIELDS: dict[str, Body] = {
    "/embeddings": {"content": ["a", [5]], "embd_normalize": 2},
    "/v1/embeddings": {
        "input": ["a", "b"], "encoding_format": "base64", "embd_normalize": 2, "model": "m",
        "dimensions": 4, "user": "u",
    },
    "/rerank": {"query": "a", "texts": ["a", "b"], "return_text": True},
    "/v1/rerank": {"query": "a", "documents": ["a", "b"], "top_n": 1, "model": "m"},
    "/infill": {
        "input_prefix": "a", "input_suffix": "b", "input_extra": [{"text": "c", "filename": "d"}],
        "prompt": "e", "n_predict": 1, "stop": ["x"], "temperature": 1.0, "t_max_predict_ms": 100,
        "n_indent": 1, "samplers": ["top_k"], "cache_prompt": True, "response_fields": ["content"],
    },
}  # fmt: skip
"""Good bodies with all fields, for the paths that need flags or tokens of their own."""
_TEXT = ("/completion", "/v1/completions", "/v1/chat/completions", "/v1/messages", "/v1/responses")


@dataclass(frozen=True)
class Malformed:
    """Bytes for one connection.

    Attributes:
        kind: name of what is wrong.
        is_http: whether a response must come; without, the connection may just be closed.
    """

    number: int
    kind: str
    data: bytes
    is_http: bool = True


def malformed(number: int, kind: str | None = None) -> Malformed:
    """The request of a number, of any kind or a given one of `KINDS`."""
    rng = random.Random(f"malformed/{number}")
    kind = kind or rng.choices(list(KINDS), list(_WEIGHTS))[0]
    data = KINDS[kind](rng)
    return Malformed(number, kind, data, kind not in ("bytes_on_a_socket", "framing", "header"))


def http(
    path: str, body: bytes = b"", *, method: str = "POST", headers: Mapping[str, str] | None = None
) -> bytes:
    """A request whose response ends the connection; ``headers`` replaces the usual ones."""
    usual = {"Host": "localhost", "Connection": "close", "Content-Type": "application/json"}
    if method == "POST":
        usual["Content-Length"] = str(len(body))
    lines = [f"{method} {path} HTTP/1.1"]
    lines += [f"{name}: {value}" for name, value in (usual | dict(headers or {})).items() if value]
    return "\r\n".join([*lines, "", ""]).encode("latin-1", "replace") + body


def text_of(value: Any, rng: Rng | None = None) -> bytes:
    """JSON, also of NaN and of lone surrogates, which become bytes that are not UTF-8."""
    plain = rng is not None and rng.random() < 0.3
    return json.dumps(value, ensure_ascii=not plain).encode("utf-8", "surrogatepass")


def wrong_fields(path: str) -> Iterator[Body]:
    """The good body of a path of `FIELDS`, with each of its fields replaced by each odd value."""
    good = FIELDS[path]
    for name in good:
        for odd in ODD:
            yield good | {name: odd}
    for odd in ODD if "input_extra" in good else ():
        yield good | {"input_extra": [{"text": odd}]}
        yield good | {"input_extra": [{"text": "a", "filename": odd}]}


def largest(n_ctx: int) -> dict[str, tuple[str, Body]]:
    """Requests with the largest allowed value of a field, by the field's name.

    Args:
        n_ctx: tokens of a slot; prompts are as long as fits where that makes a field dearer.
    """
    from pyllama.parameters.generation import MAX_PROBS
    from pyllama.server.request.limits import LIMITS, TO_TOKENIZE, Size

    def texts(limit: Size, begin: str) -> list[str]:
        n_chars = limit.chars // limit.items
        return [(begin * n_chars)[: n_chars - 6] + f"{i:06}" for i in range(limit.items)]

    def odd_chars(n: int) -> str:
        return ("a b1.\n\u00e9\u4e2d\U0001f600" * n)[:n]

    full = "a" * (n_ctx - 16)  # a token each at most
    ask: Body = {"prompt": "a", "n_predict": 8, "ignore_eos": True}
    chat: Body = {"messages": [{"role": "user", "content": "a"}], "max_tokens": 8}
    history = ask | {"prompt": full}
    dry = {"dry_multiplier": 1, "dry_base": 1.01, "dry_allowed_length": 0,
           "dry_penalty_last_n": 2**31 - 1}  # fmt: skip
    penalties = {"repeat_last_n": -1, "repeat_penalty": 1.1, "frequency_penalty": 0.1}
    wide = {"top_k": 0, "top_p": 0.99, "min_p": 1e-9, "typical_p": 0.99, "xtc_probability": 1,
            "xtc_threshold": 0.01, "top_n_sigma": 9, "dynatemp_range": 0.5}  # fmt: skip
    tool = {
        "type": "function",
        "function": {
            "name": "f",
            "parameters": {
                "type": "object",
                "properties": {f"p{i}": {"type": "string"} for i in range(20)},
            },
        },
    }
    tools = [tool | {"function": tool["function"] | {"name": f"f{i}"}} for i in range(200)]
    choices = " | ".join(f'"{i:05}"' for i in range(15_000))
    biases = [[i % 256, 0.001] for i in range(LIMITS["logit_bias"].items)]
    return {
        "dry_sequence_breakers": ("/completion", history | dry | {
            "dry_sequence_breakers": texts(LIMITS["dry_sequence_breakers"], "a")}),
        "dry_penalty_last_n": ("/completion", history | dry | {"dry_sequence_breakers": ["\0"]}),
        "samplers": ("/completion", history | wide | penalties | dry | {"samplers": "edskypmxtia"}),
        "mirostat": ("/completion", history | penalties | {"mirostat": 1, "mirostat_tau": 99}),
        "top_k": ("/completion", ask | {"top_k": 2**31 - 1, "min_keep": 2**31 - 1}),
        "stop": ("/completion", ask | {"stop": texts(LIMITS["stop"], "a")}),
        "stop_sequences": ("/v1/messages", chat | {
            "stop_sequences": texts(LIMITS["stop_sequences"], "a")}),
        "logit_bias": ("/completion", ask | {"logit_bias": biases}),
        "logit_bias of texts": ("/completion", ask | {"logit_bias": {
            text: i for i, text in enumerate(texts(Size(100, LIMITS["logit_bias"].chars), "a "))}}),
        "response_fields": ("/completion", ask | {
            "response_fields": texts(LIMITS["response_fields"], "/")}),
        "n_probs": ("/completion", ask | {"n_probs": MAX_PROBS, "post_sampling_probs": True,
                                          "top_k": 0, "stream": True}),
        "n": ("/v1/completions", {"prompt": full, "max_tokens": 8, "n": 4}),
        "prompt of texts": ("/v1/completions", {"prompt": ["a b c"] * 1024, "max_tokens": 1}),
        "prompt": ("/completion", ask | {"prompt": odd_chars(900_000)}),
        "prompt of tokens": ("/completion", ask | {"prompt": [5] * 200_000}),
        "grammar": ("/completion", ask | {"grammar": f"root ::= {choices}"}),
        "grammar that repeats": ("/completion", ask | {"grammar": 'root ::= ("a" | "b"){2000}'}),
        "grammar_triggers": ("/completion", ask | {
            "grammar": 'root ::= "a"+', "grammar_lazy": True, "grammar_triggers": [
                {"type": 1, "value": t} for t in texts(Size(256, 8192), "a")]}),
        "json_schema": ("/completion", ask | {"json_schema": {
            "enum": [f"{i:05}" for i in range(14_000)]}}),
        "tools": ("/v1/chat/completions", chat | {"tools": tools, "tool_choice": "required"}),
        "messages": ("/v1/chat/completions", chat | {"messages": chat["messages"] * 20_000}),
        "chat_template_kwargs": ("/v1/chat/completions", chat | {
            "chat_template_kwargs": {f"v{i}": "x" * 100 for i in range(5000)}}),
        "reasoning_budget_message": ("/v1/chat/completions", chat | {
            "reasoning_budget_tokens": 0,
            "reasoning_budget_message": odd_chars(LIMITS["reasoning_budget_message"].chars)}),
        "input_prefix": ("/infill", {"input_prefix": odd_chars(LIMITS["input_prefix"].chars // 3),
                                     "input_suffix": "b", "n_predict": 4}),
        "input_suffix": ("/infill", {"input_prefix": "a", "n_predict": 4, "input_suffix":
                                     odd_chars(LIMITS["input_suffix"].chars // 3)}),
        "input_extra": ("/infill", {"input_prefix": "a", "input_suffix": "b", "n_predict": 4,
            "input_extra": [{"text": t} for t in texts(Size(1024, 1_040_000), "a b ")]}),
        "content": ("/tokenize", {"content": odd_chars(TO_TOKENIZE.chars // 3),
                                  "with_pieces": True}),
        "tokens": ("/detokenize", {"tokens": [5] * 200_000}),
        "input": ("/v1/embeddings", {"input": ["a b c d"] * 1024}),
    }  # fmt: skip


# --- values -------------------------------------------------------------------------------------


def mutated(value: Any, rng: Rng, depth: int = 0) -> Any:
    """A value with a part replaced, removed, doubled or renamed; it may still be right."""
    if depth and rng.random() < 0.25:
        return rng.choice(ODD)
    if isinstance(value, dict) and value:
        key = rng.choice([*value])
        kept = {k: v for k, v in value.items() if k != key or rng.random() < 0.9}
        return kept | {key: mutated(value[key], rng, depth + 1)}
    if isinstance(value, list) and value:
        i = rng.randrange(len(value))
        return [*value[:i], mutated(value[i], rng, depth + 1), *value[i : i + rng.randrange(2)]]
    return rng.choice(ODD)


def changed(value: Any, rng: Rng) -> Any:
    """A value with one part of another JSON type, so that it is seldom right."""
    if isinstance(value, dict) and value and rng.random() < 0.9:
        key = rng.choice([*value])
        return value | {key: changed(value[key], rng)}
    if isinstance(value, list) and value and rng.random() < 0.8:
        i = rng.randrange(len(value))
        return [*value[:i], changed(value[i], rng), *value[i + 1 :]]
    return rng.choice([odd for odd in ODD if odd is not None and _kind(odd) != _kind(value)])


def _kind(value: Any) -> type:
    return float if type(value) is int else type(value)


def _seed(rng: Rng) -> tuple[str, Body]:
    return rng.choice([(path, body) for path, body in SEEDS.items() if body])


def _value(rng: Rng) -> bytes:
    path, body = _seed(rng)
    value: Any = changed(body, rng)
    for _ in range(rng.randrange(3)):
        value = changed(value, rng) if isinstance(value, dict) else value
    return http(path, text_of(value, rng))


def _json_text(rng: Rng) -> bytes:
    """JSON that is cut, or lacks or doubles signs, or is not UTF-8."""
    path, body = _seed(rng)
    data = bytearray(text_of(body))
    kind = rng.randrange(5)
    if kind == 0:
        del data[rng.randrange(len(data)) :]
    elif kind == 1:
        data.insert(rng.randrange(len(data)), rng.randrange(0x80, 0x100))
    elif kind == 2:
        at = rng.choice([i for i, byte in enumerate(data) if byte in b'{}[]:"'])
        data[at : at + 1] = rng.choice((b"", b"}", b"]", b"::", b"{", b"[", b"\0", b"\xff", b"'"))
    elif kind == 3:
        data = bytearray(data.decode().encode(rng.choice(("utf-16", "utf-32", "utf-7")))[:-2])
    else:
        data += rng.choice((b"}", b"{}", b"\0", b"x", b",", bytes(data)))
    return http(path, bytes(data))


def _huge(rng: Rng) -> bytes:
    """JSON that is deep, long, has many values or long numbers."""
    path, _ = _seed(rng)
    n = rng.choice((70, 1000, 30_000))
    text = rng.choice((
        b"[" * n, b'{"a":' * n, b"[" * n + b"]" * n, b'{"a":' * n + b"1" + b"}" * n,
        b'{"prompt":' + b"9" * 5000 + b"}", b'{"n_predict":1e' + b"9" * 500 + b',"prompt":1}',
        b'{"prompt":[' + b"1," * 300_000 + b"1]}", b'{"prompt":"' + b"a" * 900_000 + b'"}',
        b'{"messages":[' + b'{"role":"user","content":"a"},' * 9000 + b"1]}",
        b"{" + b'"prompt":"a",' * 60_000 + b'"prompt":{}}', b'"' + b"\\u0041" * 100_000 + b'"',
        b'{"content":' + b"[" * 40 + b"]" * 40 + b"}", b" " * 500_000, b"-" * n, b"\xff" * n,
    ))  # fmt: skip
    return http(path, text)


_ABSURD: tuple[tuple[str, Any], ...] = (
    ("n_predict", 1e18), ("n_predict", -2), ("n_predict", "1"), ("n", -1), ("n", 0), ("n", 10**6),
    ("temperature", "NaN"), ("temperature", float("nan")), ("temperature", []), ("top_k", "40"),
    ("seed", 2**70), ("seed", -5), ("logit_bias", "x"), ("logit_bias", 5), ("id_slot", 99),
    ("id_slot", -7), ("n_probs", 10**9), ("stop", 5), ("stop", [5]), ("stop", {"a": 1}),
    ("stream", "yes"), ("samplers", 5), ("samplers", [1]), ("response_fields", 7),
    ("dry_sequence_breakers", []), ("dry_allowed_length", -3), ("min_keep", -1), ("lora", [1]),
    ("cache_prompt", 3), ("repeat_last_n", -9), ("grammar", 5), ("prompt", {}), ("prompt", [[[]]]),
    ("prompt", [10**9]), ("prompt", []), ("prompt", [-1]), ("prompt", "a" * 70_000),
    ("prompt", ["a"] * 1025), ("prompt", [{"prompt_string": 1}]), ("prompt", 1.5),
    ("t_max_predict_ms", -10), ("sse_ping_interval", "x"), ("n_keep", 1e300), ("max_tokens", -9),
    ("json_schema", 3), ("adaptive_decay", 7), ("n_discard", 1), ("timings_per_token", "a"),
)  # fmt: skip


def _absurd(rng: Rng) -> bytes:
    """Fields out of their range."""
    path = rng.choice(("/completion", "/v1/completions"))
    fields = dict(rng.choices(_ABSURD, k=rng.randrange(1, 4)))
    return http(path, text_of({"prompt": "a", "n_predict": 1} | fields))


# --- grammars, schemas, templates, media, files --------------------------------------------------


def _grammar(rng: Rng) -> bytes:
    """Grammars that are wrong, left-recursive, or too large."""
    n = rng.choice((2, 9, 99, 5000))
    text = rng.choice((
        'root ::= "a"{0,1000000000}', 'root ::= ((("a"{999}){999}){999}){999}',
        'root ::= root "a"', 'a ::= b\nb ::= a\nroot ::= a "x"', "root ::= missing", 'root ::= "a',
        "root ::= [a-", 'root ::= "\\x"', 'root ::= "\\u12"', "root ::=" + "(" * n,
        "root ::= [^", "root :: = 1", "root", "\ud800", "\0", '::= "a"', "root ::= <[99999999]>",
        'root ::= "a"{5,2}', 'root ::= "a"{-1}', 'root ::= * "a"', "root ::= )" * n, "x" * 200_000,
        'roof ::= "a"', "root ::= <|nothing|>", 'root ::= "a" | | * {', "root ::= [b-a]]]",
        "\n".join(f"r{i} ::= r{i + 1} r{i + 1}" for i in range(n)) + f"\nroot ::= r0\nr{n} ::= r0",
    ))  # fmt: skip
    if rng.random() < 0.3:
        chat = SEEDS["/apply-template"] | {"max_tokens": 1, "grammar": text}
        return http("/v1/chat/completions", text_of(chat))
    path = rng.choice(("/completion", "/v1/completions", "/infill"))
    return http(path, text_of(SEEDS["/infill"] | {"prompt": "a", "n_predict": 1, "grammar": text}))


def _bad_schema(rng: Rng) -> Any:
    loop = {"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}}
    deep: Any = {"type": "nonsense"}
    for _ in range(rng.choice((5, 50))):
        deep = {"type": "array", "items": deep}
    return rng.choice((
        loop | {"$ref": "#/$defs/a"}, {"$ref": "http://localhost:1/x.json"}, {"$ref": "#/nowhere"},
        {"$ref": 5}, {"$ref": "#/" + "a/" * 9000}, {"type": "nonsense"}, {"type": 5}, deep, [], 5,
        {"allOf": [{"$ref": "#"}]}, {"anyOf": [{"$ref": "#"}]}, {"anyOf": 5}, {"enum": 5},
        {"type": "string", "pattern": "("}, {"type": "string", "pattern": "^[$"},
        {"type": "string", "pattern": "^(" * 500 + ")" * 500 + "$"},
        {"type": "string", "pattern": 1},
        {"type": "string", "pattern": "^((a{999}){999}){999}$"}, {"minItems": -1, "type": "array"},
        {"type": "string", "pattern": "^(?<=x)(?R)$"}, {"type": "string", "minLength": "x"},
        {"type": "string", "minLength": 10**9}, {"type": "string", "minLength": 5, "maxLength": 1},
        {"type": "array", "items": 5}, {"type": "object", "properties": 5}, {"required": 5},
        {"type": "array", "minItems": 10**9, "items": {}}, {"type": "integer", "minimum": "x"},
        {"type": "object", "properties": {"a": {"$ref": "#/properties/a"}}, "required": ["a"]},
        {"enum": [str(i) for i in range(50_000)], "pattern": "("}, {"enum": []},
    ))  # fmt: skip


def _schema(rng: Rng) -> bytes:
    """JSON schemas that are wrong, refer to themselves, or are too large."""
    schema, chat = _bad_schema(rng), SEEDS["/apply-template"] | {"max_tokens": 1}
    kind = rng.randrange(5)
    if kind == 0:
        return http("/completion", text_of({"prompt": "a", "n_predict": 1, "json_schema": schema}))
    if kind == 1:
        form = {"type": "json_schema", "json_schema": {"schema": schema, "strict": True}}
        return http("/v1/chat/completions", text_of(chat | {"response_format": form}))
    if kind == 2:
        tool = {"type": "function", "function": {"name": "f", "parameters": schema}}
        return http(
            "/v1/chat/completions", text_of(chat | {"tools": [tool], "tool_choice": "required"})
        )
    if kind == 3:
        return http("/api/chat", text_of(chat | {"format": schema, "options": {"num_predict": 1}}))
    tool = {"name": "f", "input_schema": schema}
    return http("/v1/messages", text_of(chat | {"tools": [tool], "tool_choice": {"type": "any"}}))


def _template(rng: Rng) -> bytes:
    """Conversations and variables of templates that are wrong or far too large."""
    good = {"role": "user", "content": "a"}
    messages = rng.choice((
        [], 5, [5], [[]], [{}], [{"role": 5, "content": "a"}], [{"role": "user"}], [good, None],
        [good | {"content": 5}], [good | {"content": [5]}], [good | {"content": [{}]}],
        [good | {"content": [{"type": "x"}]}], [good | {"content": [{"type": "text", "text": 5}]}],
        [good | {"content": "a" * 300_000}], [good] * 20_000, "a", {"0": good},
        [{"role": "assistant"}], [{"role": "assistant", "tool_calls": 5}],
        [{"role": "assistant", "tool_calls": [{"function": {"name": 5, "arguments": "{"}}]}],
    ))  # fmt: skip
    more: Body = {"messages": messages, "max_tokens": 1}
    if rng.random() < 0.5:
        more = {"messages": [good], "max_tokens": 1} | rng.choice((
            {"chat_template_kwargs": 5}, {"chat_template_kwargs": {"enable_thinking": "yes"}},
            {"reasoning_effort": 5}, {"tools": 5}, {"tools": [5]}, {"tools": [{"type": "x"}]},
            {"tools": [{"type": "function", "function": {"name": 5}}]}, {"reasoning_format": 5},
            {"response_format": 5}, {"response_format": {"type": "x"}}, {"logprobs": True,
             "top_logprobs": 10**6}, {"top_logprobs": 3}, {"n": 10**9}, {"parallel_tool_calls": 5},
            {"response_format": {"type": "json_schema"}}, {"add_generation_prompt": 5},
            {"add_generation_prompt": True, "continue_final_message": True},
            {"tools": [{"type": "function", "function": {"name": "f"}}], "tool_choice": "x" * 99},
            {"tools": [{"type": "function", "function": {"name": "f"}}], "tool_choice": {"a": []}},
            {"chat_template_kwargs": {"messages": 5, "enable_thinking": 3}},
        ))  # fmt: skip
    path = rng.choice(("/v1/chat/completions", "/chat/completions", "/v1/chat/completions"))
    return http(path, text_of(more))


def _media(rng: Rng) -> bytes:
    """Images and sounds, which no text model takes."""
    url = rng.choice(("http://localhost:1/x.png", "file:///etc/passwd", "data:image/png;base64,"
                      + "A" * rng.choice((0, 7, 200_000)), "\0", "../x", 5, None, {}))  # fmt: skip
    part = rng.choice((
        {"type": "image_url", "image_url": {"url": url}}, {"type": "image_url", "image_url": url},
        {"type": "input_audio", "input_audio": {"data": url, "format": "wav"}},
        {"type": "input_video", "input_video": {"data": url}}, {"type": "image_url"},
    ))  # fmt: skip
    kind = rng.randrange(4)
    if kind == 0:
        prompt = {"prompt_string": "a", "multimodal_data": [url]}
        return http("/completion", text_of({"prompt": prompt, "n_predict": 1}))
    if kind == 1:
        images = [url] if isinstance(url, str) else [url, "AAAA"]
        message = {"role": "user", "content": "a", "images": images}
        return http("/api/chat", text_of({"messages": [message], "options": {"num_predict": 1}}))
    if kind == 2:
        source = {"type": "base64", "media_type": "image/png", "data": "AAAA"}
        message = {"role": "user", "content": [{"type": "image", "source": source}]}
        return http("/v1/messages", text_of({"messages": [message], "max_tokens": 1}))
    message = {"role": "user", "content": [{"type": "text", "text": "a"}, part]}
    return http("/v1/chat/completions", text_of({"messages": [message], "max_tokens": 1}))


def _slot_file(rng: Rng) -> bytes:
    """Slots and file names that do not exist or lead elsewhere."""
    name = rng.choice((
        "../x", "/etc/passwd", "a/../../b", "a\0b", "", ".", "..", "~", "~/x", "a" * 5000, "a/b",
        "..%2fx", "\\\\host\\x", "C:\\x", "\ud800", "a\nb", "./a", "-", "\u2215etc", 5, None, ["a"],
        {"a": 1}, "....//x", "a/./b", "\u202ea", "CON:", "/dev/zero", "/proc/self/mem", "x..y",
    ))  # fmt: skip
    slot = rng.choice(("0", "0", "0", "1", "-1", "99", "x", "%00", "1e3", "..%2f0", "9" * 400, "٣"))
    action = rng.choice(("save", "restore", "save", "restore", "erase%00", "", "delete", "save&"))
    if rng.random() < 0.2:
        action, name = "restore", "no-such-file"
    slot = slot if slot.isascii() else "%D9%A3"
    return http(f"/slots/{slot}?action={action}", text_of({"filename": name}))


# --- HTTP ---------------------------------------------------------------------------------------

_METHODS = ("PUT", "DELETE", "PATCH", "TRACE", "PROPFIND", "GET", "HEAD", "LOCK", "PURGE", "LINK")
_PATHS = (
    "/../../etc/passwd", "/..%2f..%2fetc/passwd", "/%2e%2e/%2e%2e/etc/passwd", "/%00", "/a%00.html",
    "/completion/", "/completion%00", "//completion", "/./completion", "/v1/%2e%2e/x", "/%ff%fe",
    "/" + "a" * 30_000, "/" + "../" * 3000, "/%", "/%zz", "/static/..%5c..%5cx", "/.git/config",
    "/slots/../../x", "/index.html/..%2f..%2fx", "/*", "/;x", "/graph.json/x", "/v1/models/%00",
    "/?action=save/x", "/a?" + "b=c&" * 5000, "/%F0%9F%92%A9", "/v1/completions\\..\\x",
)  # fmt: skip


def _path(rng: Rng) -> bytes:
    """Paths that do not exist, and methods that a path does not have."""
    if rng.random() < 0.4:
        path = rng.choice([path for path, body in SEEDS.items() if body])
        return http(path, b"", method=rng.choice(_METHODS))
    method = rng.choice(("GET", "POST", "DELETE"))
    path = rng.choice(_PATHS)
    return http(path if path != "/?action=save/x" else "/x?action=save/x", b"", method=method)


def _header(rng: Rng) -> bytes:
    """Headers that are wrong, too large, too many, or contradict each other."""
    path = rng.choice(_TEXT)
    body = text_of(SEEDS[path])
    n = len(body)
    lines = rng.choice((
        "Host: evil.example", "Host: localhost.evil.example", "Host:", "Host: [::", "Host: a b",
        "Host: 127.0.0.1@evil.example", "Host: \x01", "Host: localhost:99999999999999999999x",
        "Host: xn--", "Host: " + "a" * 3000, "X-No-Host: 1", "Host localhost", "Host : localhost",
        "Host: localhost\r\n folded: 1\r\nHost: evil.example",
        "Host: localhost\r\nHost: evil.example", "Host: localhost:1:2", "Host: localhost:-1",
        "Host: localhost\r\nX: " + "x" * 140_000,
        "Host: localhost\r\n" + "\r\n".join(f"X{i}: {'y' * 20}" for i in range(6000)),
        "Host: localhost\r\nX: \0", "Host: localhost\r\n: x", "Host: localhost\r\n\x80\xff: 1",
        "Host: localhost\r\nContent-Length: -1", "Host: localhost\r\nContent-Length: 1e3",
        f"Host: localhost\r\nContent-Length: {n}\r\nContent-Length: {n + 1}",
        f"Host: localhost\r\nContent-Length: {n}\r\nTransfer-Encoding: chunked",
        "Host: localhost\r\nContent-Length: 99999999999999999999999", "Host: localhost\r\nX\r\nY",
        "Host: localhost\r\nContent-Length: 9999999999", "Host: localhost\r\nContent-Length: +5",
        "Host: localhost\r\nTransfer-Encoding: gzip", "Host: localhost\r\nTransfer-Encoding: x",
        "Host: localhost\r\nTransfer-Encoding: chunked, gzip", "Host: localhost\r\nContent-Length:",
        f"Host: localhost\r\nContent-Length: {n}, {n}", "\rHost: localhost",
        "Host: localhost\rX: 1",
    ))  # fmt: skip
    head = f"POST {path} HTTP/1.1\r\nConnection: close\r\n{lines}\r\n"
    if "Content-Length" not in lines and "Transfer" not in lines:
        head += f"Content-Length: {n}\r\n"
    return head.encode("latin-1") + b"\r\n" + body


def _framing(rng: Rng) -> bytes:
    """Bodies whose length or chunks are wrong, that are compressed, or too large."""
    path = rng.choice(_TEXT)
    body = text_of(SEEDS[path])
    chunked = {"Content-Length": "", "Transfer-Encoding": "chunked"}
    too_large = b'{"prompt":"' + b"a" * ((MAX_BODY_MIB << 20) + 1000) + b'"}'
    chunk = b"%x\r\n%b\r\n" % (len(body), body)
    choice = rng.randrange(9)
    if choice == 0:  # less than was announced: waits for the rest
        return http(path, body, headers={"Content-Length": str(len(body) + rng.randrange(1, 9))})
    if choice == 1:  # more than was announced
        wrong = len(body) - rng.randrange(1, min(len(body), 20))
        return http(path, body, headers={"Content-Length": str(wrong)})
    if choice == 2:
        sizes = (b"x", b"-1", b"f" * 17, b"0x5", b"", b"5;" + b"e" * 70_000, b" 5", b"1_0", b"5,5")
        return http(path, rng.choice(sizes) + b"\r\n" + body, headers=chunked)
    if choice == 3:
        ends = (b"", b"0", b"0\r\n", b"5\r\nab", chunk[:-2], b"0\r\nX\r\n\r\nX")
        return http(path, chunk[: rng.randrange(1, len(chunk))] + rng.choice(ends), headers=chunked)
    if choice == 4:
        packed = gzip.compress(body * rng.choice((1, 1000)), mtime=0)
        return http(path, packed, headers={"Content-Encoding": "gzip"})
    if choice == 5:
        return http(path, too_large)
    if choice == 6:
        parts = b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in _parts(too_large, 1 << 16))
        return http(path, parts + b"0\r\n\r\n", headers=chunked)
    if choice == 7:  # a wrong request, and rubbish after it on the same connection
        first = http(path, b"{", headers={"Connection": "keep-alive"})
        return first + rng.randbytes(rng.randrange(1, 400)) + b"\r\n\r\n"
    wrong = http(path, b"[]", headers={"Connection": "keep-alive"})
    return wrong * rng.randrange(2, 30) + http(path, b"]")


def _parts(data: bytes, size: int) -> Iterator[bytes]:
    return (data[i : i + size] for i in range(0, len(data), size))


def _bytes_on_a_socket(rng: Rng) -> bytes:
    """What is no HTTP/1.1, or almost."""
    good = http("/completion", text_of(SEEDS["/completion"]))
    kind = rng.randrange(4)
    if kind == 0:
        return rng.choice((
            b"GET /health\r\n", b"GET /health HTTP/9.9\r\n\r\n",
            b"\x16\x03\x01\x02\x00\x01\x00\x01",
            b"SSH-2.0-x\r\n", b"\0" * 100, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"GET\r\n\r\n",
            b"GET  /health HTTP/1.1\r\n\r\n", b"get /health http/1.1\r\n\r\n",
            b"HTTP/1.1 200 OK\r\n\r\n", b"GET \xff\xfe HTTP/1.1\r\n\r\n",
            b"GET /a b HTTP/1.1\r\n\r\n", b"\xef\xbb\xbfGET / HTTP/1.1\r\n\r\n",
            b"CONNECT localhost:22 HTTP/1.1\r\n\r\n", b"OPTIONS\r\n\r\n", b"*2\r\n$4\r\nPING\r\n",
            b"GET http://evil.example/ HTTP/1.1\r\nHost: evil.example\r\n\r\n", b"\x05\x01\x00",
        ))  # fmt: skip
    if kind == 1:
        return rng.randbytes(rng.randrange(1, 2000))
    data = bytearray(good)
    head = data.index(b"\r\n\r\n")
    if kind == 2:  # the request line, or a line end
        data[rng.randrange(0, 8)] = rng.randrange(256)
        return bytes(data)
    at = rng.randrange(25, head)
    data[at : at + rng.randrange(1, 4)] = rng.choice((b"\r", b"\n\n", b"\0", b"\x7f", b"\r\n\r\n"))
    return bytes(data)


KINDS: dict[str, Callable[[Rng], bytes]] = {
    "value": _value,
    "json_text": _json_text,
    "huge": _huge,
    "absurd": _absurd,
    "grammar": _grammar,
    "schema": _schema,
    "template": _template,
    "media": _media,
    "slot_file": _slot_file,
    "path": _path,
    "header": _header,
    "framing": _framing,
    "bytes_on_a_socket": _bytes_on_a_socket,
}
"""What is wrong with a request, and how one is made."""
_WEIGHTS = (22, 14, 5, 10, 8, 9, 8, 4, 5, 5, 6, 6, 4)
