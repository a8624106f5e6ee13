"""Reads a reply that arrives in pieces into a message: reasoning, content and tool calls.

    reader = Reader(parse)                         # parse: a generator function that reads it
    delta = reader.feed("Hel")                     # what this piece adds
    delta = reader.close()
    reader.message.openai()                        # {"role": "assistant", "content": ...}

The functions that parse are generators: they yield when they need more text. What they find does
not depend on the boundaries of the pieces, and the deltas concatenate to the message.
"""

from __future__ import annotations

import json
import re
import secrets
import string
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

T = TypeVar("T")
Steps = Generator[None, None, T]
"""A parser: yields to wait for text, and returns a ``T``."""
Sink = Callable[[str], None]

_SPACE = " \t\r\n"
_STRING_END = re.compile(r'["\\]')
_JSON_STOP = re.compile(r'["{}\[\]]')
_SCALAR_STOP = re.compile(r"[,}\]\s]")
_ID_CHARS = string.ascii_letters + string.digits
_ID_LENGTH = 9  # the length that Mistral's templates demand; others take any


class Mismatch(Exception):
    """The text is not of the expected form."""


@dataclass
class ToolCall:
    """A tool call, or a piece of one: its texts are appended to those of the same ``index``.

    ``arguments`` is JSON text, incomplete if the reply was cut.
    """

    id: str = ""
    name: str = ""
    arguments: str = ""
    index: int = 0

    def openai(self) -> dict[str, Any]:
        """The call in OpenAI's format."""
        function = {"name": self.name, "arguments": self.arguments}
        return {"id": self.id, "type": "function", "function": function}

    def parsed(self) -> Any:
        """The arguments; {} if the call was cut."""
        try:
            return json.loads(self.arguments)
        except ValueError:
            return {}

    def chunk(self) -> dict[str, Any]:
        """The piece in OpenAI's format."""
        found: dict[str, Any] = {"index": self.index}
        function = {}
        if self.id:
            found["id"] = self.id
        if self.name:
            found["type"] = "function"
            function["name"] = self.name
        if self.name or self.arguments:
            found["function"] = {**function, "arguments": self.arguments}
        return found


@dataclass
class Delta:
    """What some text adds to the message; ``drafted``: its last token was an accepted draft."""

    content: str = ""
    reasoning: str = ""
    calls: list[ToolCall] = field(default_factory=list)
    drafted: bool = False

    def __bool__(self) -> bool:
        return bool(self.content or self.reasoning or self.calls)

    def openai(self) -> dict[str, Any]:
        """The ``delta`` of a chunk."""
        given: dict[str, Any] = {}
        if self.reasoning:
            given["reasoning_content"] = self.reasoning
        if self.content:
            given["content"] = self.content
        if self.calls:
            given["tool_calls"] = [call.chunk() for call in self.calls]
        return given


@dataclass
class Message:
    """A reply of the model."""

    content: str = ""
    reasoning: str = ""
    calls: list[ToolCall] = field(default_factory=list)

    def add(self, delta: Delta) -> None:
        """Append a delta."""
        self.content += delta.content
        self.reasoning += delta.reasoning
        for piece in delta.calls:
            if piece.index == len(self.calls):
                self.calls.append(ToolCall())
            call = self.calls[piece.index]
            call.id += piece.id
            call.name += piece.name
            call.arguments += piece.arguments

    def openai(self) -> dict[str, Any]:
        """The message in OpenAI's format, with ``reasoning_content`` as in llama.cpp."""
        found: dict[str, Any] = {
            "role": "assistant",
            "content": self.content if self.content or not self.calls else None,
        }
        if self.reasoning:
            found["reasoning_content"] = self.reasoning
        if self.calls:
            found["tool_calls"] = [call.openai() for call in self.calls]
        return found


def random_id() -> str:
    """A random id for a tool call, in the form that every known template accepts."""
    return "".join(secrets.choice(_ID_CHARS) for _ in range(_ID_LENGTH))


class Reader:
    """The text of a reply so far, and the message read from it.

    Args:
        parse: generator function that reads the whole reply.
        begun: text of the reply before the first piece; its delta is part of the first.

    Attributes:
        message: the message so far.
        n_calls: number of calls announced, with those of the unfinished delta.
        is_cut: the reply has ended, and the parser asked for more of it.
        only_calls: all content is dropped: it can only be the beginning of a call that was cut.
    """

    def __init__(
        self,
        parse: Callable[[Reader], Steps[None]],
        begun: str = "",
    ) -> None:
        self.message, self.n_calls = Message(), 0
        self.is_cut = self.only_calls = False
        self._text, self._at, self._mark = begun, 0, -1
        self._ended = False
        self._delta = Delta()
        self._spaces = ""  # white space that ends the content so far; dropped before a call
        self._trims = False  # whether white space that follows is dropped
        self._has_id = False
        self._steps = parse(self)

    def feed(self, text: str) -> Delta:
        """Read a piece of the reply."""
        self._text += text
        return self._resume()

    def close(self) -> Delta:
        """Read the rest, at the end of the reply."""
        self._ended = True
        return self._resume()

    def _resume(self) -> Delta:
        next(self._steps, None)
        if self._ended and self._spaces and not self._trims:
            self._delta.content += self._spaces
            self._spaces = ""
        delta, self._delta = self._delta, Delta()
        self.message.add(delta)
        return delta

    # --- text -----------------------------------------------------------------------------------

    def set_mark(self) -> None:
        """Keep the text from here on, for `rewind`."""
        self._cut()
        self._mark = self._at

    def drop_mark(self) -> None:
        """Forget the mark; text that was read is discarded."""
        self._mark = -1

    def rewind(self) -> None:
        """Continue at the mark, and forget it."""
        self._at, self._mark = self._mark, -1

    def _cut(self) -> None:
        """Discard text that was read and is not needed any more."""
        if self._mark < 0:
            self._text, self._at = self._text[self._at :], 0

    def has(self, n: int) -> Steps[bool]:
        """Wait for ``n`` characters; whether there are as many."""
        while len(self._text) - self._at < n:
            if self._ended:
                self.is_cut = True
                return False
            yield
        return True

    def looking_at(self, literal: str) -> Steps[bool]:
        """Whether the text continues with ``literal``; nothing is read."""
        for n in range(1, len(literal) + 1):
            if not (yield from self.has(n)) or not self._text.startswith(literal[:n], self._at):
                return False
        return True

    def accept(self, literal: str) -> Steps[bool]:
        """Read ``literal`` if the text continues with it."""
        found = yield from self.looking_at(literal)
        if found:
            self._at += len(literal)
        return found

    def expect(self, literal: str) -> Steps[None]:
        """Read a literal. Raises: Mismatch."""
        if not (yield from self.accept(literal)):
            raise Mismatch

    def skip_space(self) -> Steps[str]:
        """Read and return white space."""
        begin = self._at
        while (yield from self.has(1)) and self._text[self._at] in _SPACE:
            self._at += 1
        return self._text[begin : self._at]

    def take(self, n: int) -> str:
        """Read ``n`` characters that are known to be there."""
        self._at += n
        return self._text[self._at - n : self._at]

    def until(self, markers: Sequence[str], sink: Sink) -> Steps[str | None]:
        """Read text up to the first of the markers, and give it to ``sink``.

        Returns:
            The marker, which is not read; None at the end of the reply.
        """
        while True:
            text = self._text
            found = [(i, m) for m in markers if (i := text.find(m, self._at)) >= 0]
            partial = len(text) if self._ended else _partial(text, self._at, markers)
            if found and min(found)[0] <= partial:
                index, marker = min(found)
                sink(self.take(index - self._at))
                self._cut()
                return marker
            sink(self.take(partial - self._at))
            self._cut()
            if self._ended:
                return None
            yield

    def head(self, end: str, limit: int) -> Steps[str]:
        """Read a short text up to ``end``, and ``end``. Raises: Mismatch."""
        begin = self._at
        while (at := self._text.find(end, begin)) < 0:
            if self._ended or len(self._text) - begin > limit + len(end):
                raise Mismatch
            yield
        if at - begin > limit:
            raise Mismatch
        self._at = at + len(end)
        return self._text[begin:at]

    # --- JSON -----------------------------------------------------------------------------------

    def json_string(self, sink: Sink) -> Steps[None]:
        """Read a JSON string, and give its characters to ``sink``. Raises: Mismatch."""
        yield from self.expect('"')
        while (yield from self.has(1)):
            stop = _STRING_END.search(self._text, self._at)
            sink(self.take((stop.start() if stop else len(self._text)) - self._at))
            self._cut()
            if (yield from self.accept('"')):
                return
            if (yield from self.has(1)) and self._text[self._at] == "\\":
                sink((yield from self._escape()))
        raise Mismatch

    def _escape(self) -> Steps[str]:
        """Read an escaped character, or a pair of escaped surrogates."""
        n = 2
        if not (yield from self.has(n)):
            raise Mismatch
        if self._text[self._at + 1] == "u":
            n = 6
            if not (yield from self.has(n)):
                raise Mismatch
            if self._text[self._at + 2 : self._at + 4].lower() in ("d8", "d9", "da", "db"):
                at, self._at = self._at, self._at + n
                n += 6 if (yield from self.looking_at("\\u")) and (yield from self.has(6)) else 0
                self._at = at
        try:
            char: str = json.loads(f'"{self.take(n)}"')
        except ValueError:
            raise Mismatch from None
        return char.encode("utf-16", "surrogatepass").decode("utf-16", "replace")

    def json_value(self, sink: Sink) -> Steps[None]:
        """Read a JSON value, and give its text to ``sink``. Raises: Mismatch, if there is none.

        A number or word ends before white space or one of ``,}]``.
        """
        if not (yield from self.has(1)) or self._text[self._at] in ",}]:":
            raise Mismatch
        if self._text[self._at] not in '"{[':
            while (yield from self.has(1)):
                stop = _SCALAR_STOP.search(self._text, self._at)
                sink(self.take((stop.start() if stop else len(self._text)) - self._at))
                if stop:
                    return
            return
        depth, quoted = 0, False
        while (yield from self.has(1)):
            stop = (_STRING_END if quoted else _JSON_STOP).search(self._text, self._at)
            if stop is None:
                sink(self.take(len(self._text) - self._at))
                self._cut()
                continue
            sink(self.take(stop.start() - self._at))
            char = stop[0]
            if char == "\\":
                yield from self.has(2)
                sink(self.take(min(2, len(self._text) - self._at)))
                continue
            sink(self.take(1))
            if char == '"':
                quoted = not quoted
            else:
                depth += 1 if char in "{[" else -1
            if not depth and not quoted:
                return

    # --- the message ----------------------------------------------------------------------------

    def content(self, text: str) -> None:
        """Add content. White space at its end is held back, and dropped before a call."""
        if self.only_calls:
            return
        if self._trims:
            text = text.lstrip()
        if text:
            self._trims = False
            body = text.rstrip()
            if body:
                self._delta.content += self._spaces + body
                self._spaces = ""
            self._spaces += text[len(body) :]

    def plain(self, text: str) -> None:
        """Add content that no call can follow."""
        if text and not self.only_calls:
            self._delta.content += self._spaces + text
            self._spaces, self._trims = "", False

    def reasoning(self, text: str) -> None:
        """Add reasoning."""
        self._delta.reasoning += text

    def trim(self) -> None:
        """Drop white space that ends the content so far, and that which follows."""
        self._spaces, self._trims = "", True

    def begin_call(self, name: str, id: str = "", *, id_follows: bool = False) -> None:
        """Announce a tool call.

        Args:
            id: the model's id for it; empty for a new one.
            id_follows: the model's id may follow the arguments; see `call_id`.
        """
        self.drop_mark()
        self.trim()
        self.n_calls += 1
        self._has_id = bool(id) or not id_follows
        self._add(id=id if id or id_follows else random_id(), name=name)

    def call_id(self, id: str = "") -> None:
        """Give the call an id, a new one if empty, unless it has one."""
        if not self._has_id:
            self._has_id = True
            self._add(id=id or random_id())

    def arguments(self, text: str) -> None:
        """Add arguments of the call."""
        if text:
            self._add(arguments=text)

    def _add(self, id: str = "", name: str = "", arguments: str = "") -> None:
        calls, index = self._delta.calls, self.n_calls - 1
        if calls and calls[-1].index == index:
            last = calls.pop()
            id, name, arguments = last.id + id, last.name + name, last.arguments + arguments
        calls.append(ToolCall(id, name, arguments, index))


def _partial(text: str, begin: int, markers: Sequence[str]) -> int:
    """Where the text ends in the beginning of a marker; its length if it does not."""
    longest = max((len(m) for m in markers), default=1)
    for at in range(max(begin, len(text) - longest + 1), len(text)):
        rest = text[at:]
        if any(m.startswith(rest) for m in markers):
            return at
    return len(text)
