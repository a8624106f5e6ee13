"""Selects the chat format of a model, and tokenizes conversations in it.

    formats = ChatFormats(model, NAMES_OF_TOOLS)
    prompt = formats.get(None).prompt([{"role": "user", "content": "Hi"}])
    prompt.tokens, prompt.stop

Without a name, the model's own template is used. llama.cpp and llama-cpp-python have different
texts under the same names, such as ``vicuna``. A caller says which of them it means by a table:

    ChatFormats(model, NAMES_OF_TOOLS)             # --chat-template NAME: llama.cpp's
    ChatFormats(model, NAMES_OF_LLAMA)             # Llama(chat_format=NAME): llama-cpp-python's

Formats are created at first use.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from ..errors import TemplateError
from ..tokenizer import Tokenizer
from ..tokenizer.special import CONTROL
from . import llama_cpp_formats, llama_cpp_python_formats
from .capabilities import Capabilities, probe
from .function_calling import ToolFormat, with_template
from .llama_cpp_formats import NamedFormat
from .llama_cpp_python_formats import TextFormat
from .reasoning import Markers, State, check_format, find_markers, state_after
from .template import JinjaTemplate, Messages
from .tools import find_tool_call_format
from .tools.definitions import Mode, Tool, parse_choice, parse_tools
from .tools.grammar import ReplyRules, reply_grammar
from .tools.history import for_template, instruction, read_messages, with_instruction
from .turn import (
    ChatPrompt,
    OldFunctions,
    Turn,
    TurnOptions,
    response_schema,
    split_generation,
)

if TYPE_CHECKING:
    from ..runtime.model import Model

DEFAULT = "chat_template.default"
"""llama-cpp-python's name for a model's own template."""

Writer = JinjaTemplate | NamedFormat | TextFormat | ToolFormat
LLAMA_CPP_FORMATS: Mapping[str, Writer] = llama_cpp_formats.FORMATS
"""Names of the tools: llama.cpp's."""
LLAMA_CPP_PYTHON_FORMATS: Mapping[str, Writer] = {
    **LLAMA_CPP_FORMATS,
    **llama_cpp_python_formats.FORMATS,
}
"""Names of `Llama`: llama-cpp-python's, and those that only llama.cpp has."""

_KEY = "tokenizer.chat_template"
_TOOL_USE = "chat_template.tool_use"
_RESERVED = {"messages": "it holds the conversation", "self": "in Jinja it is the template itself"}
_PROBE = "\u241f probe \u241f"


class ChatFormat:
    """A template or named format, with the tokenizer of a model.

    Attributes:
        name: name of the format, ``chat_template.*``, or ``jinja``.
    """

    def __init__(self, name: str, writer: Writer, tokenizer: Tokenizer) -> None:
        self.name, self._writer, self._tokenizer = name, writer, tokenizer
        source = self.source
        self._markers = find_markers(source)
        self._call_format = (
            writer.call_format if isinstance(writer, ToolFormat) else find_tool_call_format(source)
        )

    def turn(self, messages: Messages, options: TurnOptions) -> Turn:
        """Prepare the model's next reply.

        Args:
            messages: dictionaries in OpenAI's format, with tool calls and their results.

        Raises:
            TemplateError: an invalid message, tool or option, or an error of the template.
            SchemaError: a schema is invalid, or cannot be a grammar.
        """
        call_format, own = self._call_format, self._own
        reasoning_format = check_format(options.reasoning_format)
        tools, choice = parse_tools(options.tools), options.tool_choice
        if choice is None and own is not None:
            choice = own.default_choice
        mode, named = parse_choice(choice, tools)
        schema = response_schema(options.response_format)
        final: Mapping[str, Any] | None = None
        if options.continue_final:
            messages, final = messages[:-1], _final(messages)
        check_values(options.values)
        given = [_checked(i, message) for i, message in enumerate(messages)]
        given = self._prepared(given, mode, named, bool(tools))
        values = {"enable_thinking": True, **options.values}
        parallel = False
        if tools:
            wish = options.parallel_tool_calls
            parallel = self.capabilities.parallel if wish is None else wish
            values["tools"] = [dict(tool.definition) for tool in tools]
            values["tool_choice"] = options.tool_choice
        begun = ""
        if own is not None:
            begun = own.begun(tools, choice)
            old = isinstance(options.tools, OldFunctions)
            values |= {"tools": values.get("tools"), "tool_choice": choice, "old_functions": old}
        prompt = self.prompt(given, **values)
        without = self._without_generation(given, values)
        thinking = self._thinking(without or "", prompt)
        if thinking is not None and thinking[1] == "inside" and not values["enable_thinking"]:
            prompt = self._extended(prompt, thinking[0].end)
            thinking = thinking[0], "after"
        prefill = ""
        if final is not None:
            if schema is not None or mode == "required":
                raise TemplateError("a reply with a grammar cannot continue a message")
            prefill = _beginning(final, thinking)
            prompt = self._extended(prompt, prefill)
        rules = ReplyRules(
            call_format, named, mode, parallel, schema, thinking,
            named[0] if begun and mode == "required" else None, self._split,
        )  # fmt: skip
        return Turn(
            prompt,
            reply_grammar(rules),
            thinking,
            self._control_tokens(with_calls=mode != "none"),
            call_format,
            named if mode != "none" else (),
            reasoning_format,
            only_calls=mode == "required",
            begun=begun,
            prefill=prefill,
            generation="" if without is None else split_generation(without, prompt.text),
        )

    def _extended(self, prompt: ChatPrompt, text: str) -> ChatPrompt:
        """A prompt with a text after it."""
        whole = prompt.text + text
        return ChatPrompt(whole, self.encode(whole), prompt.stop)

    @property
    def source(self) -> str:
        """The Jinja source; empty for a named format."""
        return self._writer.source if isinstance(self._writer, JinjaTemplate) else ""

    @property
    def _own(self) -> ToolFormat | None:
        """The format, if it writes tools and calls by itself."""
        return self._writer if isinstance(self._writer, ToolFormat) else None

    def _prepared(
        self, messages: list[dict[str, Any]], mode: Mode, named: Sequence[Tool], has_tools: bool
    ) -> list[dict[str, Any]]:
        """Messages in a form that the format writes, with an instruction to call these tools."""
        given, call_format, own = read_messages(messages), self._call_format, self._own
        if own is not None and own.as_given:
            return messages
        if not has_tools and not any("tool_calls" in m or m["role"] == "tool" for m in given):
            return given
        can = self.capabilities
        given = for_template(given, call_format, can)
        if mode == "none" or own is not None or (can.tools and call_format.lazy):
            return given
        required = mode == "required"
        told = instruction(call_format, named, required=required, describe=not can.tools)
        given = with_instruction(given, told)
        return given if self._takes_system else _system_into_user(given)

    @cached_property
    def capabilities(self) -> Capabilities:
        """What the template does with tools; it is rendered a few times to find out."""
        if isinstance(self._writer, JinjaTemplate):
            return probe(self._writer.render)
        return self._writer.abilities if isinstance(self._writer, ToolFormat) else Capabilities()

    def _without_generation(self, messages: Messages, values: Mapping[str, Any]) -> str | None:
        """The text of a prompt without the beginning of the reply, None if it cannot be written."""
        try:
            return self._text(messages, {**values, "add_generation_prompt": False})
        except TemplateError:
            return None

    def _thinking(self, without: str, prompt: ChatPrompt) -> tuple[Markers, State] | None:
        """The markers of the reasoning, and where the reply begins."""
        if self._markers is None:
            return None
        last = split_generation(without, prompt.text)
        if not last and prompt.text.rstrip().endswith(self._markers.start):
            last = self._markers.start  # the template ignores add_generation_prompt
        return self._markers, state_after(last, self._markers)

    def _split(self, marker: str) -> list[str | int]:
        """A marker, split into texts and ids of control tokens."""
        vocab, found, rest = self._tokenizer.vocab, list[str | int](), marker
        for token in self._tokenizer.encode(marker, add_special=False, parse_special=True):
            if vocab.types[token] == CONTROL:
                before, text, rest = rest.partition(vocab.tokens[token])
                if not text:
                    return [marker]
                found += [before, token] if before else [token]
        return [*found, rest] if rest else found

    def _control_tokens(self, *, with_calls: bool) -> frozenset[int]:
        """Control tokens in the markers of reasoning and tool calls."""
        markers = [*self._call_format.markers] if with_calls else []
        if self._markers is not None:
            markers += [self._markers.start, self._markers.end]
        return frozenset(t for m in markers for t in self._split(m) if isinstance(t, int))

    def prompt(self, messages: Messages, /, **values: Any) -> ChatPrompt:
        """Format and tokenize messages.

        Args:
            messages: dictionaries in OpenAI's format; contents are text or lists of text parts.
            values: variables of the template, such as ``add_generation_prompt`` and ``tools``.

        Raises:
            TemplateError: an invalid message, a variable with a reserved name, or an error of the
                template (see `JinjaTemplate`).
        """
        check_values(values)
        text = self._text(messages, values)
        return ChatPrompt(text, self.encode(text), self._stop())

    def _text(self, messages: Messages, values: Mapping[str, Any]) -> str:
        checked = [_checked(i, message) for i, message in enumerate(messages)]
        if isinstance(self._writer, JinjaTemplate):
            checked = [{**message, "content": message["content"] or ""} for message in checked]
            if any(m["role"] == "system" for m in checked) and not self._takes_system:
                checked = _system_into_user(checked)
        return self._writer.render(checked, **values)

    @cached_property
    def _takes_system(self) -> bool:
        """Whether the format writes system messages; some reject or silently drop them."""
        probe = [{"role": "system", "content": _PROBE}, {"role": "user", "content": "x"}]
        try:
            return _PROBE in self._writer.render(probe)
        except TemplateError:
            return False

    def encode(self, text: str) -> list[int]:
        """Tokens of a prompt, with BOS added unless the template has written it."""
        tokenizer = self._tokenizer
        tokens = tokenizer.encode(text, add_special=False, parse_special=True)
        bos = tokenizer.bos
        if tokenizer.add_bos and bos is not None and tokens[:1] != [bos]:
            tokens.insert(0, bos)
        return tokens

    def _stop(self) -> tuple[str, ...]:
        """Stop strings that are not end-of-generation tokens."""
        if isinstance(self._writer, JinjaTemplate):
            return ()
        tokenizer = self._tokenizer
        ids = {stop: tokenizer.text_to_id(stop) for stop in self._writer.stop}
        return tuple(s for s, token in ids.items() if token is None or token not in tokenizer.eog)


class ChatFormats:
    """The chat formats of one model.

    Args:
        model: provides tokenizer and metadata.
        named: formats by name, apart from the model's own templates: `LLAMA_CPP_FORMATS` or
            `LLAMA_CPP_PYTHON_FORMATS`.
    """

    def __init__(self, model: Model, named: Mapping[str, Writer]) -> None:
        self._tokenizer, self._made = model.tokenizer, dict[str, ChatFormat]()
        self._named = named
        self._sources = _sources(model.metadata)

    @property
    def has_own(self) -> bool:
        """Whether the model has a chat template."""
        return DEFAULT in self._sources

    @property
    def own(self) -> tuple[str, ...]:
        """Names of the model's own templates."""
        return tuple(self._sources)

    def check(self, name: str) -> None:
        """Raise TemplateError unless there is a format of this name."""
        if name not in self._named and name not in self._sources:
            names = [*self._named, *self._sources]
            near = difflib.get_close_matches(name, names, n=1)
            hint = f"did you mean {near[0]}?" if near else f"there are: {', '.join(names)}"
            raise TemplateError(f"there is no chat format {name!r}; {hint}")

    def get(
        self, name: str | None = None, fallback: str = "chatml", *, tools: bool = False
    ) -> ChatFormat:
        """A format by name or Jinja source.

        Args:
            name: name or source; None for the model's own template.
            fallback: name to use if the model has no template.
            tools: use the model's own template for tools, if there is one.

        Raises:
            TemplateError: no such format, or invalid Jinja.
        """
        if name is None:
            name = DEFAULT if self.has_own else fallback
        if name == DEFAULT and tools and _TOOL_USE in self._sources:
            name = _TOOL_USE
        if name not in self._made:
            self._made[name] = self._make(name)
        return self._made[name]

    def _make(self, name: str) -> ChatFormat:
        source = self._sources.get(name, name)
        if name in self._sources or "{{" in source or "{%" in source:
            label = name if name in self._sources else "jinja"
            return ChatFormat(label, self._template(source), self._tokenizer)
        self.check(name)
        writer = self._named[name]
        if isinstance(writer, ToolFormat) and self.has_own:
            writer = with_template(writer, self._template(self._sources[DEFAULT]))
        return ChatFormat(name, writer, self._tokenizer)

    def _template(self, source: str) -> JinjaTemplate:
        vocab = self._tokenizer.vocab
        ids = {role: vocab.roles.get(role) for role in ("bos", "eos", "unk", "pad", "sep", "eot")}
        texts = {f"{r}_token": "" if i is None else vocab.tokens[i] for r, i in ids.items()}
        return JinjaTemplate(source, texts)


def _final(messages: Messages) -> Mapping[str, Any]:
    """The message to continue. Raises: TemplateError, if there is none."""
    last = messages[-1] if messages else {}
    if not isinstance(last, Mapping) or last.get("role") != "assistant" or last.get("tool_calls"):
        raise TemplateError("only a last message of the assistant without calls can be continued")
    if len(messages) > 1 and messages[-2].get("role") == "assistant":
        raise TemplateError("Cannot have 2 or more assistant messages at the end of the list.")
    return last


def _beginning(message: Mapping[str, Any], thinking: tuple[Markers, State] | None) -> str:
    """The text that a message to be continued adds to the prompt.

    Source: llama.cpp, ``common_chat_msg::render_content``.
    """
    content = message.get("content")
    if isinstance(content, Sequence) and not isinstance(content, str):
        content = "\n\n".join(_text(0, [part]) or "" for part in content)
    content, reasoning = _text(0, content) or "", message.get("reasoning_content")
    if thinking is None or not (isinstance(reasoning, str) and reasoning):
        return content
    markers, state = thinking
    start = "" if state == "inside" else markers.start
    return start + reasoning + (markers.end + content if content else "")


def check_values(values: Mapping[str, Any]) -> None:
    """Raise TemplateError for a reserved name, or if they are not a dictionary."""
    if not isinstance(values, Mapping) or not all(isinstance(name, str) for name in values):
        raise TemplateError(
            f"the variables of a chat template are {values!r:.80}; want a dictionary of names, "
            "such as {'enable_thinking': False}"
        )
    for name in _RESERVED.keys() & values.keys():
        raise TemplateError(
            f"a chat template cannot have a variable named {name!r}: {_RESERVED[name]}; "
            "use another name"
        )


def _sources(metadata: Mapping[str, Any]) -> dict[str, str]:
    found = {}
    for key, value in metadata.items():
        if key.startswith(_KEY) and isinstance(value, str):
            found[key.removeprefix("tokenizer.") if key != _KEY else DEFAULT] = value
    return found


def _checked(i: int, message: Any) -> dict[str, Any]:
    if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
        raise TemplateError(f"messages[{i}] is not a dictionary with a role and a content")
    return {**message, "content": _text(i, message.get("content"))}


def _text(i: int, content: Any) -> str | None:
    """The content of a message as text or None; parts are joined as in llama.cpp."""
    if content is None or isinstance(content, str):
        return content
    if not isinstance(content, Sequence):
        raise TemplateError(f"messages[{i}].content is neither text nor a list of parts")
    texts = []
    for part in content:
        kind = part.get("type") if isinstance(part, Mapping) else type(part).__name__
        if kind != "text" or not isinstance(part.get("text"), str):
            raise TemplateError(
                f"messages[{i}].content has a part of type {kind}; only text is supported"
            )
        texts.append(part["text"])
    return "\n".join(texts)


def _system_into_user(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Messages with each system message merged into the next user message.

    Source: llama.cpp, ``common_chat_templates_apply_jinja``.
    """
    merged: list[dict[str, Any]] = []
    waiting: list[str] = []
    for message in messages:
        if message["role"] == "system":
            waiting.append(message["content"] or "")
        elif waiting and message["role"] == "user":
            merged.append({**message, "content": "\n".join([*waiting, message["content"] or ""])})
            waiting = []
        else:
            merged.append(message)
    return merged
