"""llama-cpp-python's chat formats with function calling: their prompts.

    format = FUNCTION_CALLING["chatml-function-calling"]
    format.render(messages, tools=[...], tool_choice="auto")

Prompts are those of version 0.3.36 to the letter. Replies are read and held to the tools by a
grammar as those of other formats (`tools.recipient`, `tools.functionary`), in one request, streamed
or not. llama-cpp-python makes a request for each part of a reply.

Source: llama-cpp-python, ``llama_chat_format.py``.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..errors import TemplateError
from .capabilities import Capabilities
from .template import JinjaTemplate, Messages
from .tools.call_format import ToolCallFormat
from .tools.functionary import FUNCTIONARY_0, FUNCTIONARY_1, FUNCTIONARY_2
from .tools.recipient import FUNCTIONS

Choice = str | Mapping[str, Any]
"""``none``, ``auto``, ``required``, or a function by OpenAI's dictionary."""

_ABILITIES = Capabilities(tools=True, calls=True, results=True)


@dataclass(frozen=True)
class ToolRequest:
    """What a prompt is written from.

    Attributes:
        messages: messages in OpenAI's format; contents are text or None.
        functions: functions of the tools.
        choice: which of them is called.
        old: the functions were given by OpenAI's old name.
        template: the model's own template.
    """

    messages: Messages
    functions: Sequence[Mapping[str, Any]]
    choice: Choice
    old: bool = False
    template: JinjaTemplate | None = None


@dataclass(frozen=True)
class ToolFormat:
    """A chat format with function calling.

    Attributes:
        write: writes the messages and the tools.
        reply: beginning of the assistant's reply.
        call_format: format of the calls in a reply.
        call_head: gives the text before the arguments of a call that is demanded by name.
        content_head: text before a reply that cannot be a call.
        stop: stop strings of the reply.
        default_choice: ``tool_choice`` if it is None.
        abilities: what is written of tools, calls and results.
        as_given: whether calls and results of OpenAI's old form are written as such.
        template: the model's own template, for a format that writes messages with it.
    """

    write: Callable[[ToolRequest], str]
    reply: str
    call_format: ToolCallFormat
    call_head: Callable[[str], str]
    content_head: str = ""
    stop: tuple[str, ...] = ()
    default_choice: str = "auto"
    abilities: Capabilities = _ABILITIES
    as_given: bool = True
    template: JinjaTemplate | None = None

    def begun(self, tools: Sequence[Any] | None, choice: Choice | None) -> str:
        """The beginning of the reply that is a part of the prompt, after `reply`."""
        choice = self.default_choice if choice is None else choice
        if isinstance(choice, Mapping):
            return self.call_head(choice["function"]["name"])
        return "" if tools and choice != "none" else self.content_head

    def render(
        self,
        messages: Messages,
        /,
        *,
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
        tool_choice: Choice | None = None,
        old_functions: bool = False,
        **values: Any,
    ) -> str:
        """The text of the prompt; other variables are ignored.

        Args:
            tools: definitions in OpenAI's format.
            old_functions: they were given as ``functions``.

        Raises:
            TemplateError: a message has an unknown role, or the model has no template.
        """
        functions = [tool["function"] for tool in tools or ()]
        choice = self.default_choice if tool_choice is None else tool_choice
        text = self.write(ToolRequest(messages, functions, choice, old_functions, self.template))
        if not add_generation_prompt:
            return text
        return text + self.reply + self.begun(tools, tool_choice)


# --- chatml-function-calling ----------------------------------------------------------------------

_ESCAPES = str.maketrans(
    {"&": "&amp;", "<": "&lt;", ">": "&gt;", "'": "&#39;", '"': "&#34;"}  # as markupsafe's
)
_TOOLS_HEAD = "\n\nYou have access to the following functions:\n"
_TOOLS_REST = """

You can respond to users messages with either a single message or one or more function calls.

To respond with a message begin the message with 'message:', use the following format:

message:
<message>

To respond with one or more function calls begin the message with 'functions.<function_name>:', \
use the following format:

functions.<function_name>:
{ "arg1": "value1", "arg2": "value2" }
functions.<function_name>:
{ "arg1": "value1", "arg2": "value2" }"""


def _write_chatml(request: ToolRequest) -> str:
    told = bool(request.functions) and request.choice != "none"
    described = "".join(
        f"\nfunctions.{_escaped(f['name'])}:\n{_schema(f['parameters'])}\n"
        for f in request.functions
    )
    parts = []
    for message in request.messages:
        role, content = message["role"], message.get("content")
        parts.append(f"<|im_start|>{_escaped(role)}\n")
        if role == "system":
            parts += [_escaped(content), _TOOLS_HEAD + described + _TOOLS_REST if told else ""]
        elif role == "user":
            parts.append(_escaped(content))
        elif role == "assistant" and content:
            parts += ["message:\n" if told else "", _escaped(content)]
        if role in ("system", "user") or (role == "assistant" and content):
            parts.append("<|im_end|>\n")
        if role == "assistant" and "tool_calls" in message:
            for call in message["tool_calls"]:
                function = call["function"]
                name, arguments = map(_escaped, (function["name"], function["arguments"]))
                parts.append(f"functions.{name}:\n{arguments}")
            parts.append("<|im_end|>\n")
    return "".join(parts)


def _escaped(value: Any) -> str:
    """A text with HTML escapes, which llama-cpp-python writes into this format's prompts."""
    return str(value).translate(_ESCAPES)


def _schema(schema: Any) -> str:
    """A JSON schema as jinja2's filter ``tojson`` writes it."""
    from jinja2.utils import htmlsafe_json_dumps  # slow to import

    return str(htmlsafe_json_dumps(schema, sort_keys=True))


# --- functionary ----------------------------------------------------------------------------------

_SYSTEM = (
    "A chat between a curious user and an artificial intelligence assistant. The assistant gives "
    "helpful, detailed, and polite answers to the user's questions. The assistant calls functions "
    "with appropriate input when necessary"
)


def _write_functionary(request: ToolRequest) -> str:
    definitions = _definitions(request.functions, "  ") + "\n"
    # tools are written twice, OpenAI's old functions once
    n = 0 if not request.functions else 1 if request.old else 2
    system = [{"role": "system", "content": text} for text in (*[definitions] * n, _SYSTEM)]
    return "".join(map(_functionary_message, [*system, *request.messages]))


def _functionary_message(message: Mapping[str, Any]) -> str:
    role, content = message["role"], message.get("content")
    called, calls = message.get("function_call"), message.get("tool_calls")
    if role == "system":
        return f"system:\n{content}\n"
    if role == "user":
        return f"user:\n</s>{content or ''}</s>\n"
    if role == "tool":
        said = "" if content is None else f":\n{content}"
        return f"function name={message.get('tool_call_id', '')}{said}\n"
    if role == "function" and "name" in message:
        return f"function name=functions.{message['name']}:\n{content}\n"
    if role == "function" and called:
        return f"function name=functions.{called['name']}:\n{_arguments(called)}\n"
    if role != "assistant":
        raise TemplateError(f"the chat format functionary has no role {role!r}")
    if called:
        said = "" if content is None else f"assistant:\n{content}\n"
        return f"{said}assistant to=functions.{called['name']}:\n{_arguments(called)}</s>\n"
    if calls:
        return f"assistant to={calls[0].get('id', '')}:\n{_arguments(calls[0]['function'])}</s>\n"
    return "assistant" if content is None else f"assistant:\n{content}\n"


def _arguments(call: Mapping[str, Any]) -> str:
    arguments = call.get("arguments", "{}")
    if isinstance(arguments, str):
        return arguments
    return json.dumps(arguments, ensure_ascii=False)


def _write_with_template(request: ToolRequest) -> str:
    """Messages with the model's own template, after the definitions of the functions."""
    if request.template is None:
        raise TemplateError(
            "the chat formats functionary-v1 and functionary-v2 write with the model's own "
            "template, and this model has none; use a file with a chat template"
        )
    system = [_SYSTEM]
    if request.functions or request.choice == "none":
        functions = [] if request.choice == "none" else request.functions
        system.insert(0, _definitions(functions, ""))
    messages: list[Mapping[str, Any]] = [{"role": "system", "content": text} for text in system]
    for message in request.messages:
        changed = dict(message)
        if message["role"] == "function" and "name" in message:
            changed["name"] = f"functions.{message['name']}"
        if message.get("function_call"):
            call = message["function_call"]
            changed["function_call"] = {**call, "name": f"functions.{call['name']}"}
        messages.append(changed)
    return request.template.render(messages, add_generation_prompt=False)


def _definitions(functions: Sequence[Mapping[str, Any]], indent: str) -> str:
    """The functions as declarations in TypeScript."""
    lines = [
        "// Supported function definitions that should be called when necessary.",
        "namespace functions {\n",
    ]
    shared: dict[str, Any] = {}
    for function in functions:
        shared.update(function.get("parameters", {}).get("$defs", {}))
    for name, schema in shared.items():
        known = schema.get("type") == "object" or "enum" in schema
        lines.append(f"  type {name} = {_type(schema, 1) if known else ''};")
    for function in functions:
        parameters = function.get("parameters", {})
        lines.append(f"{indent}// {function.get('description', '')}")
        lines.append(f"{indent}type {function['name']} = (_: {{")
        for name, schema in parameters.get("properties", {}).items():
            optional = "" if name in parameters.get("required", ()) else "?"
            lines.append(f"{indent * 2}// {schema.get('description', '')}")
            lines.append(f"{indent * 2}{name}{optional}: {_type(schema, 2)},")
        lines.append(f"{indent}}}) => any;\n")
    return "\n".join([*lines, "} // namespace functions"])


def _type(schema: Mapping[str, Any], level: int) -> str:
    """The type in TypeScript of a JSON schema, at a level of indentation."""
    if "$ref" in schema:
        return str(schema["$ref"]).split("/")[-1]
    if schema.get("type") == "array":
        return f"Array<{_type(schema.get('items', {}), level + 1)}>"
    if schema.get("type") == "object":
        indent = "  " * level
        fields = [
            f"{indent}  {name}: {_type(field, level + 1)},\n"
            for name, field in schema.get("properties", {}).items()
        ]
        return "{\n" + "".join(fields) + indent + "}"
    if "enum" in schema:
        return " | ".join(f'"{value}"' for value in schema["enum"])
    return str(schema.get("type", "any"))


_V1 = ToolFormat(
    _write_with_template,
    "assistant:\n",
    FUNCTIONARY_1,
    lambda name: f"<|START_OF_FUNCTION_CALL|>{name}:\n",
    stop=("<|END_OF_ASSISTANT|>",),
)
_V2 = ToolFormat(
    _write_with_template,
    "<|from|>assistant\n<|recipient|>",
    FUNCTIONARY_2,
    FUNCTIONARY_2.call_head,
    FUNCTIONARY_2.content,
    stop=("<|stop|>",),
    abilities=Capabilities(tools=True, calls=True, parallel=True, results=True),
)
FUNCTION_CALLING = {
    "chatml-function-calling": ToolFormat(
        _write_chatml,
        "<|im_start|>assistant\n",
        FUNCTIONS,
        FUNCTIONS.call_head,
        stop=("<|im_end|>",),
        default_choice="none",
        abilities=Capabilities(tools=True, calls=True, parallel=True),
        as_given=False,
    ),
    "functionary": ToolFormat(
        _write_functionary,
        "assistant",
        FUNCTIONARY_0,
        FUNCTIONARY_0.call_head,
        FUNCTIONARY_0.content,
        stop=("user:", "</s>"),
    ),
    "functionary-v1": _V1,
    "functionary-v2": _V2,
}
"""These formats by their names."""


def with_template(format: ToolFormat, template: JinjaTemplate) -> ToolFormat:
    """A format that writes with the model's own template, of the version that this is for."""
    if format not in (_V1, _V2):
        return format
    return replace(_V1 if _V1.call_format.detect(template.source) else _V2, template=template)
