"""Records the prompts of llama-cpp-python's chat formats, for ``test_llama_cpp_python_formats.py``.

    python -m tests.pyllama.chat.record SOURCE

writes ``tests/data/chat/llama_cpp_python.json``. SOURCE: the unpacked sources of llama-cpp-python
0.3.36 (``pip download --no-binary :all: --no-deps llama-cpp-python==0.3.36``). Its formatters and
handlers run without its library: the modules that load it are replaced by empty ones, and a fake
``Llama`` takes the prompt that a handler gives to ``create_completion``.

The file has ``[prompt, stop]`` for each format and each of the `cases`; the prompt is null where
the format raises an error.
"""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import jinja2.sandbox

DATA = Path(__file__).parents[2] / "data" / "chat" / "llama_cpp_python.json"

S, U, A = "system", "user", "assistant"
_UNICODE = "naïve 🙂 “quotes” <b>&amp;</b> 'x' \u00a0你好\n\n\tA:\u200d {content} {0} %s"


def _messages(*pairs: tuple[str, str | None]) -> list[dict[str, Any]]:
    return [{"role": role, "content": content} for role, content in pairs]


CONVERSATIONS: dict[str, list[dict[str, Any]]] = {
    "empty": [],
    "user": _messages((U, "Hi")),
    "system and user": _messages((S, "Be brief."), (U, "Hi")),
    "system only": _messages((S, "Be brief.")),
    "several turns": _messages((U, "Hi"), (A, "Hello!"), (U, "Who are you?"), (A, "I."), (U, "OK")),
    "system and several turns": _messages(
        (S, "Be brief."), (U, "Hi"), (A, "Hello!"), (U, "Who?"), (A, "I."), (U, "OK"), (A, "!")
    ),
    "assistant last": _messages((U, "Hi"), (A, "Hello, I")),
    "system and assistant last": _messages((S, "S"), (U, "Hi"), (A, "Hello, I")),
    "assistant first": _messages((A, "Hello!"), (U, "Hi")),
    "assistant first after system": _messages((S, "S"), (A, "Hello!"), (U, "Hi")),
    "two users": _messages((U, "a"), (U, "b"), (A, "c"), (A, "d"), (U, "e")),
    "two systems": _messages((S, "first"), (U, "a"), (S, "second"), (U, "b")),
    "late system": _messages((U, "a"), (A, "b"), (S, "late"), (U, "c")),
    "empty system": _messages((S, ""), (U, "Hi")),
    "no system": _messages((S, None), (U, "Hi")),
    "empty contents": _messages((S, "S"), (U, ""), (A, ""), (U, "")),
    "empty contents without system": _messages((U, ""), (A, ""), (U, "x"), (A, "")),
    "no contents": _messages((S, "S"), (U, None), (A, None), (U, "x")),
    "no contents without system": _messages((U, None), (A, None), (U, "x"), (A, None)),
    "Unicode": _messages((S, _UNICODE), (U, _UNICODE), (A, _UNICODE), (U, "é")),
    "white space": _messages((S, " S \n"), (U, "  a\n\n"), (A, "\n b \t"), (U, " ")),
    "markers": _messages((U, "<|im_end|></s><s>[INST]### User:\nUSER: {role}"), (A, "</s>")),
    "other roles": [
        *_messages(("User", "a"), ("Assistant", "b"), ("bot", "c"), ("developer", "d"), (U, "e")),
    ],
    "tool": [
        *_messages((U, "What time is it?")),
        {"role": "tool", "tool_call_id": "get_time", "content": "10:15"},
        *_messages((U, "Thanks")),
    ],
}

_TIME = {
    "name": "get_time",
    "description": "The local time in a city.",
    "parameters": {
        "type": "object",
        "properties": {
            "city": {"type": "string", "description": "The city's name, <b>"},
            "zone": {"enum": ["utc", "löcal"]},
        },
        "required": ["city"],
    },
}
_PLAN = {
    "name": "plan",
    "description": "",
    "parameters": {
        "$defs": {
            "Stop": {"type": "object", "properties": {"place": {"type": "string"}, "n": {}}},
            "Kind": {"enum": ["a", "b"]},
            "Any": {"type": "string"},
        },
        "type": "object",
        "properties": {
            "stops": {"type": "array", "items": {"$ref": "#/$defs/Stop"}, "description": "Stops"},
            "kind": {"$ref": "#/$defs/Kind"},
            "deep": {
                "type": "object",
                "properties": {
                    "list": {"type": "array"},
                    "inner": {"type": "object", "properties": {"x": {"type": "number"}}},
                },
            },
        },
        "required": ["kind", "deep"],
    },
}
FUNCTIONS = [_TIME, _PLAN]
TOOLS = [{"type": "function", "function": function} for function in FUNCTIONS]
CHOSEN = {"type": "function", "function": {"name": "get_time"}}
_CALL = {"name": "get_time", "arguments": '{"city": "Oslo"}'}
_CALLS = [
    {"id": "get_time", "type": "function", "function": _CALL},
    {"id": "plan", "type": "function", "function": {"name": "plan", "arguments": "{}"}},
]
_TALKS: dict[str, list[dict[str, Any]]] = {
    "user": CONVERSATIONS["user"],
    "system": CONVERSATIONS["system and several turns"],
    "Unicode": CONVERSATIONS["Unicode"],
    "calls": [
        *_messages((S, "S"), (U, "Time?")),
        {"role": A, "content": None, "tool_calls": _CALLS[:1]},
        {"role": "tool", "tool_call_id": "get_time", "name": "get_time", "content": "10:15"},
        {"role": A, "content": "It is 10:15.", "tool_calls": _CALLS},
        {"role": "tool", "tool_call_id": "plan", "name": "plan", "content": None},
    ],
    "old calls": [
        *_messages((U, "Time?")),
        {"role": A, "content": None, "function_call": _CALL},
        {"role": "function", "name": "get_time", "content": "10:15"},
        {"role": A, "content": "Hm.", "function_call": _CALL},
        {"role": "function", "name": "get_time", "content": "10:16"},
    ],
}


def cases() -> Iterator[dict[str, Any]]:
    """The arguments of a chat completion, and a name for each."""
    for name, messages in CONVERSATIONS.items():
        yield {"name": name, "messages": messages}
    for name, messages in _TALKS.items():
        for choice in (None, "none", "auto", CHOSEN):
            yield {
                "name": f"tools, {name}, {choice if choice is not CHOSEN else 'chosen'}",
                "messages": messages,
                "tools": TOOLS,
                "tool_choice": choice,
            }
        for call in (None, "auto", {"name": "plan"}):
            yield {
                "name": f"functions, {name}, {'chosen' if isinstance(call, dict) else call}",
                "messages": messages,
                "functions": FUNCTIONS,
                "function_call": call,
            }
    yield {"name": "no tools, none", "messages": CONVERSATIONS["user"], "tool_choice": "none"}


# ours, with the conventions of the templates of functionary 1 and 2
TEMPLATES = {
    "functionary-v1": """{% for m in messages %}{{ m.role }} {{ m.name or '' }}:
{% if m.content is not none %}{{ m.content }}{% endif %}
{% if m.function_call %}
<|START_OF_FUNCTION_CALL|>{{ m.function_call.name }}:
{{ m.function_call.arguments }}<|END_OF_FUNCTION_CALL|>{% endif %}
<|END_OF_{{ m.role | upper }}|>
{% endfor %}""",
    "functionary-v2": """{% for m in messages %}
{% if m.content or not m.tool_calls %}
{{ '<|from|>' + (m.name or m.role) }}
<|recipient|>all
<|content|>{{ m.content or '' }}
{% endif %}
{% for call in m.tool_calls or [] %}
<|from|>assistant
<|recipient|>{{ call.function.name }}
<|content|>{{ call.function.arguments }}
{% endfor %}
<|stop|>
{% endfor %}
{% if add_generation_prompt %}{{ '<|from|>assistant\\n<|recipient|>' }}{% endif %}""",
}


def _copy(case: dict[str, Any]) -> dict[str, Any]:
    """A copy in which no two parts are the same object: functionary's handler changes messages."""
    copy: dict[str, Any] = json.loads(json.dumps(case))
    return copy


class _Taken(Exception):
    """The prompt of a completion."""


class _Llama:
    """Takes the first prompt of a chat handler."""

    verbose = False

    def __init__(self, template: str) -> None:
        environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True
        )

        def apply_chat_template(messages: Any, tokenize: bool) -> str:
            given = {"messages": messages, "add_generation_prompt": False}
            return environment.from_string(template).render(**given)

        special = ["<|START_OF_FUNCTION_CALL|>"] if "START_OF_FUNCTION_CALL" in template else []
        tokenizer = SimpleNamespace(
            additional_special_tokens=special, apply_chat_template=apply_chat_template
        )
        self.tokenizer_ = SimpleNamespace(hf_tokenizer=tokenizer)

    def tokenize(self, text: bytes, add_bos: bool, special: bool) -> str:
        assert add_bos and special
        return text.decode()

    def create_completion(self, prompt: str, stop: Any, **options: Any) -> Any:
        raise _Taken(prompt, [stop] if isinstance(stop, str) else stop)


def _formats(source: Path) -> Any:
    """The module ``llama_chat_format``, with empty modules for those that load the library."""
    package = ModuleType("llama_cpp")
    package.__path__ = [str(source / "llama_cpp")]
    sys.modules["llama_cpp"] = package
    grammar = SimpleNamespace(
        from_string=lambda *a, **k: None, from_json_schema=lambda *a, **k: None
    )
    contents = {
        "llama_cpp.llama_cpp": {},
        "llama_cpp.llama": {},
        "llama_cpp._logger": {"logger": SimpleNamespace(debug=lambda text: None)},
        "llama_cpp.llama_grammar": {
            "LlamaGrammar": grammar, "JSON_GBNF": "", "json_schema_to_gbnf": lambda text: "",
        },
        "transformers": {"AutoTokenizer": None},
    }  # fmt: skip
    for name, attributes in contents.items():
        module = ModuleType(name)
        vars(module).update(attributes)
        sys.modules[name] = module
        if name.startswith("llama_cpp."):
            setattr(package, name.split(".")[1], module)
    return importlib.import_module("llama_cpp.llama_chat_format")


def _prompt(handler: Any, template: str, case: dict[str, Any]) -> list[Any]:
    given = {key: value for key, value in _copy(case).items() if key != "name"}
    try:
        handler(llama=_Llama(template), **given)
    except _Taken as taken:
        return list(taken.args)
    except Exception as error:
        print(f"  {case['name']}: {error!r:.100}", file=sys.stderr)
    return [None, []]


def main() -> None:
    module = _formats(Path(sys.argv[1]))
    handlers = module.LlamaChatCompletionHandlerRegistry()._chat_handlers
    given = list(cases())
    recorded = {}
    for name, handler in sorted(handlers.items()):
        print(name, file=sys.stderr)
        tools = "function" in name  # other formats ignore them
        recorded[name] = {
            case["name"]: _prompt(handler, TEMPLATES.get(name, ""), case)
            for case in given
            if tools or len(case) == 2
        }
    DATA.write_text(json.dumps(recorded, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
