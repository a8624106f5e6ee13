"""Tool-call formats as data: the markers around calls, and the form of a call between them.

    HERMES = CallFormat(
        "hermes", detect=lambda source: "<tool_call>" in source,
        wrap=("<tool_call>", "</tool_call>"), call=JsonCall(),
    )
    yield from HERMES.read(reader, names)          # parse a reply
    HERMES.rules(rules, tools, parallel=False)     # the same format as grammar rules

Texts that look like the beginning of a call and are none remain content.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Protocol

from ...grammar import Trigger
from ...grammar.gbnf_writer import literal
from ..reader import Mismatch, Reader, Steps, ToolCall
from .definitions import ResponseSchema, Tool
from .rules import ANY_TEXT, SPACE, ToolRules

_MAX_HEAD = 512  # characters of a name with its id
_MAX_FIELDS = 1024  # of a JSON call before the name; bounds the time of texts that are no calls


class ToolCallFormat(Protocol):
    """The format of tool calls of some chat templates.

    Attributes:
        name: of the format.
        lazy: whether calls may follow free text; if not, the format rules the whole reply.
        markers: texts around calls and content, which may be control tokens.
    """

    @property
    def name(self) -> str: ...
    @property
    def lazy(self) -> bool: ...
    @property
    def markers(self) -> tuple[str, ...]: ...

    def detect(self, source: str, /) -> bool:
        """Whether a template with this source uses the format."""

    def read(self, reader: Reader, names: Collection[str]) -> Steps[None]:
        """Read the content and the calls of a reply.

        Args:
            names: names of the tools; without any, texts that look like calls are content.
        """

    def write(self, calls: Sequence[ToolCall]) -> str:
        """The text of calls."""

    def rules(self, rules: ToolRules, tools: Sequence[Tool], parallel: bool) -> str:
        """Add the rules of one call, or of several, to a grammar; returns an expression."""

    def response_rule(self, rules: ToolRules, schema: ResponseSchema | None) -> str:
        """Add the rules of content to a grammar; returns an expression. No schema: any text."""

    def triggers(self, tools: Sequence[Tool]) -> tuple[Trigger, ...]:
        """Where a reply of free text changes to calls."""


class CallForm(Protocol):
    """How one call is written between its markers."""

    def read(self, reader: Reader, /) -> Steps[None]:
        """Read a call. Raises: Mismatch, if it is none."""

    def write(self, call: ToolCall, /) -> str:
        """The text of a call."""

    def rule(self, rules: ToolRules, tool: Tool, prefix: str, /) -> str:
        """A grammar expression for a call of a tool; the rules that it adds are ``prefix``-..."""


@dataclass(frozen=True)
class JsonCall:
    """A call as a JSON object.

    Attributes:
        name, arguments: keys of the function's name and arguments.
        id: key of the call's id; empty if the model gives none.
        id_first: whether the id is the first key, else it is the last.
        id_rule: grammar rule of the id's value.
        has_type: whether ``"type": "function"`` may come first.
    """

    name: str = "name"
    arguments: str = "arguments"
    id: str = ""
    id_first: bool = False
    id_rule: str = r'"\"" [a-zA-Z0-9]{9} "\""'
    has_type: bool = False

    def read(self, reader: Reader, tool_names: Collection[str] | None = None) -> Steps[None]:
        """Read a call. Raises: Mismatch, if it is none, or not of ``tool_names``."""
        found = _Fields(tool_names)
        yield from self._object(reader, found)
        if not found.name:
            raise Mismatch
        if not found.has_arguments:
            reader.arguments("{}")
        reader.call_id()

    def _object(self, reader: Reader, found: _Fields) -> Steps[None]:
        yield from reader.expect("{")
        yield from reader.skip_space()
        if (yield from reader.accept("}")):
            return
        while True:
            key = _LimitedText()
            yield from reader.json_string(key.add)
            yield from reader.skip_space()
            yield from reader.expect(":")
            yield from reader.skip_space()
            yield from self._value(reader, key.text, found)
            yield from reader.skip_space()
            if not (yield from reader.accept(",")):
                yield from reader.expect("}")
                return
            yield from reader.skip_space()

    def _value(self, reader: Reader, key: str, found: _Fields) -> Steps[None]:
        quoted = yield from reader.looking_at('"')
        if key == "function" and not found.is_inner and (yield from reader.looking_at("{")):
            found.is_inner = True
            yield from self._object(reader, found)
        elif key in (self.name, "name", "function") and quoted and not found.name:
            name = _LimitedText()
            yield from reader.json_string(name.add)
            found.announce(reader, name.text, bool(self.id) and not self.id_first)
        elif key in (self.arguments, "arguments", "parameters") and not found.has_arguments:
            found.has_arguments = True
            sink = reader.arguments if found.name else found.waiting.add
            # some models write the arguments as a string that contains JSON
            yield from (reader.json_string(sink) if quoted else reader.json_value(sink))
        elif key in (self.id, "id") and quoted:
            id = _LimitedText()
            yield from reader.json_string(id.add)
            found.id = id.text
            if found.name:
                reader.call_id(found.id)
        else:
            yield from reader.json_value(found.ignored.add)

    def write(self, call: ToolCall) -> str:
        fields = [
            f'"{self.name}": {json.dumps(call.name)}',
            f'"{self.arguments}": {call.arguments}',
        ]
        if self.id:
            fields.insert(0 if self.id_first else 2, f'"{self.id}": {json.dumps(call.id)}')
        return "{" + ", ".join(fields) + "}"

    def rule(self, rules: ToolRules, tool: Tool, prefix: str) -> str:
        args = tool.arguments_rule(rules, prefix)
        fields = [f"{_key(self.name)} {literal(json.dumps(tool.name))}"]
        fields.append(f"{_key(self.arguments)} {args}")
        if self.id:
            fields.insert(0 if self.id_first else 2, f"{_key(self.id)} {self.id_rule}")
        body = ' "," space '.join(fields)
        if self.has_type:
            body = f'({_key("type")} "\\"function\\"," space)? {body}'
        return f'"{{" space {body} space "}}"'


def _key(name: str) -> str:
    return literal(json.dumps(name) + ":") + " space"


class _LimitedText:
    """A text of limited length in pieces."""

    def __init__(self) -> None:
        self.text = ""

    def add(self, text: str) -> None:
        """Add a piece. Raises: Mismatch, if the text is too long for a part of a call."""
        self.text += text
        if len(self.text) > _MAX_FIELDS:
            raise Mismatch


class _Fields:
    """The fields of a JSON call read so far."""

    def __init__(self, tool_names: Collection[str] | None) -> None:
        self._known = tool_names
        self.name = self.id = ""
        self.waiting = _LimitedText()  # arguments before the name
        self.ignored = _LimitedText()  # other values
        self.has_arguments = self.is_inner = False

    def announce(self, reader: Reader, name: str, id_follows: bool) -> None:
        if not name or (self._known is not None and name not in self._known):
            raise Mismatch
        self.name = name
        reader.begin_call(name, self.id, id_follows=id_follows)
        reader.arguments(self.waiting.text)


@dataclass(frozen=True)
class NamedCall:
    """A call as the function's name, a marker and the arguments in JSON.

    Attributes:
        end: marker between name and arguments.
        head: pattern of the text before ``end``, with the groups ``name`` and, if any, ``id``.
        head_rule: gives the head's grammar expression for a function.
        head_text: gives the head of a call.
    """

    end: str
    head: str = r"(?P<name>[^\s<>\[\]{}\"]+)"
    head_rule: Callable[[ToolRules, str], str] = lambda rules, name: literal(name)
    head_text: Callable[[ToolCall], str] = lambda call: call.name

    def read(self, reader: Reader) -> Steps[None]:
        head = yield from reader.head(self.end.strip() or self.end, _MAX_HEAD)
        match = re.fullmatch(self.head, head.strip())
        if match is None:
            raise Mismatch
        reader.begin_call(match["name"], match.groupdict().get("id") or "")
        yield from reader.skip_space()
        if (yield from reader.looking_at("{")):
            yield from reader.json_value(reader.arguments)
        elif (yield from reader.has(1)):
            reader.arguments("{}")

    def write(self, call: ToolCall) -> str:
        return f"{self.head_text(call)}{self.end}{call.arguments}"

    def rule(self, rules: ToolRules, tool: Tool, prefix: str) -> str:
        args = tool.arguments_rule(rules, prefix)
        return f"{self.head_rule(rules, tool.name)} {rules.marker(self.end)} {args}"


@dataclass(frozen=True)
class CallFormat:
    """A format with markers.

    Attributes:
        name: of the format.
        detect: whether a template's source uses the format.
        call: form of a call.
        section: markers around all calls.
        wrap: markers around each call.
        array: calls are the items of a JSON array.
        bare: a call without its first marker may begin the reply.
        content: markers around the content, which are not part of it.
    """

    name: str
    detect: Callable[[str], bool]
    call: CallForm
    section: tuple[str, str] = ("", "")
    wrap: tuple[str, str] = ("", "")
    array: bool = False
    bare: bool = False
    content: tuple[str, str] = ("", "")

    lazy = True

    @property
    def markers(self) -> tuple[str, ...]:
        named = (self.call.end,) if isinstance(self.call, NamedCall) else ()
        extra = ("[CALL_ID]",) if "CALL_ID" in getattr(self.call, "head", "") else ()
        return tuple(m for m in (*self.section, *self.wrap, *self.content, *named, *extra) if m)

    @property
    def _start(self) -> str:
        return self.section[0] or self.wrap[0]

    # --- reading --------------------------------------------------------------------------------

    def read(self, reader: Reader, names: Collection[str]) -> Steps[None]:
        if self.bare and names:
            yield from self._bare_calls(reader, names)
        watched = tuple(filter(None, (self._start if names else "", *self.content)))
        if not watched:
            yield from reader.until((), reader.plain)
            return
        while (found := (yield from reader.until(watched, reader.content))) is not None:
            if found in self.content:
                reader.take(len(found))
                continue
            n_calls = reader.n_calls
            reader.set_mark()
            try:
                yield from self._calls(reader)
            except Mismatch:
                if reader.n_calls == n_calls:
                    reader.rewind()
                    reader.content(reader.take(len(found)))

    def _bare_calls(self, reader: Reader, names: Collection[str]) -> Steps[None]:
        """Read calls without markers, of known functions, at the beginning of a reply."""
        assert isinstance(self.call, JsonCall)
        while True:
            n_calls = reader.n_calls
            reader.set_mark()
            try:
                yield from reader.skip_space()
                if n_calls and (yield from reader.accept(";")):
                    yield from reader.skip_space()
                yield from self.call.read(reader, names)
            except Mismatch:
                if reader.n_calls == n_calls:
                    reader.rewind()
                return

    def _calls(self, reader: Reader) -> Steps[None]:
        """Read calls from the first marker on. Raises: Mismatch."""
        yield from reader.expect(self.section[0])
        yield from reader.skip_space()
        if self.array:
            yield from reader.expect("[")
            yield from reader.skip_space()
        while True:
            yield from self._one(reader)
            yield from reader.skip_space()
            if self.array:
                if not (yield from reader.accept(",")):
                    yield from reader.accept("]")
                    break
                yield from reader.skip_space()
            elif not self.section[0] or not (yield from reader.looking_at(self.wrap[0])):
                break
        yield from reader.skip_space()
        yield from reader.accept(self.section[1])

    def _one(self, reader: Reader) -> Steps[None]:
        yield from reader.expect(self.wrap[0])
        if isinstance(self.call, JsonCall):
            yield from reader.skip_space()
        yield from self.call.read(reader)
        yield from reader.skip_space()
        yield from reader.accept(self.wrap[1])

    # --- writing --------------------------------------------------------------------------------

    def write(self, calls: Sequence[ToolCall]) -> str:
        gap = "\n" if isinstance(self.call, JsonCall) and self.wrap[1] else ""
        texts = [f"{self.wrap[0]}{gap}{self.call.write(call)}{gap}{self.wrap[1]}" for call in calls]
        body = "[" + ", ".join(texts) + "]" if self.array else gap.join(texts)
        return self.section[0] + body + self.section[1]

    # --- grammar --------------------------------------------------------------------------------

    def rules(self, rules: ToolRules, tools: Sequence[Tool], parallel: bool) -> str:
        calls = rules.calls(tools, lambda tool, name: self.call.rule(rules, tool, name))
        space = " space " if isinstance(self.call, JsonCall) else " "
        begin, end = (rules.marker(m) + space if m else "" for m in (self.wrap[0], ""))
        if self.bare and begin:
            begin = f"({begin.strip()})? space "
        end = f" space {rules.marker(self.wrap[1])}" if self.wrap[1] else ""
        one = rules.add("call", f"{begin}({calls}){end}")
        separator = '"," space ' if self.array else '";" space ' if self.bare else ""
        if parallel:
            one = f"{one} (space {separator}{one})*"
        if self.array:
            one = f'"[" space {one} space "]"'
        first, last = (rules.marker(m) if m else "" for m in self.section)
        return f"{first} space {one}" + (f" space {last}" if last else "") if first else one

    def response_rule(self, rules: ToolRules, schema: ResponseSchema | None) -> str:
        return ANY_TEXT if schema is None else schema.rule(rules, "content")

    def triggers(self, tools: Sequence[Tool]) -> tuple[Trigger, ...]:
        found = [Trigger("word", self._start)] if self._start else []
        if self.bare:
            assert isinstance(self.call, JsonCall)
            names = "|".join(re.escape(json.dumps(tool.name)) for tool in tools)
            head = rf'\{{{SPACE}(?:"type":{SPACE}"function",{SPACE})?"{self.call.name}":{SPACE}'
            # the token that ends the name may also begin the next key
            found.append(Trigger("pattern_full", rf'\s*({head}(?:{names})(?:,(?: "?)?)?)'))
        return tuple(found)
