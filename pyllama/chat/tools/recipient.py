"""Tool-call formats in which every part of a reply begins with its recipient: a tool, or the user.

    FUNCTIONS = RecipientFormat(
        "functions", content="message:\\n", call=("functions.", ":\\n"), between=("\\n",)
    )

    functions.get_time:
    {"city": "Oslo"}

The prompt ends before the first recipient.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from ...grammar import Trigger
from ..reader import Mismatch, Reader, Steps, ToolCall
from .definitions import ResponseSchema, Tool
from .rules import ANY_TEXT, ToolRules


@dataclass(frozen=True)
class RecipientFormat:
    """A format with recipients.

    Attributes:
        name: of the format.
        content: text before content.
        call: texts before and after the name of a function; its arguments follow.
        between: texts before each later part.
        separator: white space that a model writes before ``between``.
        detect: whether a template's source uses the format; False if only a named format has it.
        lazy: whether calls may follow free text; if not, a reply is either content or calls.
        trims: drop white space around the texts of ``between`` and before content.
        id_is_name: the id of a call is the name of its function.
    """

    name: str
    content: str
    call: tuple[str, str]
    between: tuple[str, ...]
    separator: str = ""
    detect: Callable[[str], bool] = lambda source: False
    lazy: bool = True
    trims: bool = False
    id_is_name: bool = False

    @property
    def markers(self) -> tuple[str, ...]:
        """The texts around names, which may be control tokens."""
        return tuple(filter(str.strip, (*self.between, *self.call, self.content)))

    def call_head(self, name: str) -> str:
        """The text before the arguments of a call."""
        return self.call[0] + name + self.call[1]

    def read(self, reader: Reader, names: Collection[str]) -> Steps[None]:
        """Read the parts of a reply; those for unknown recipients are content."""
        if not names and not self.lazy:
            yield from reader.until((), reader.plain)
            return
        first = self.between[0]
        between: tuple[str, ...] = ()
        while True:
            reader.set_mark()
            try:
                for text in between:
                    yield from reader.expect(text)
                    yield from self._skip_space(reader)
                yield from self._part(reader, names)
            except Mismatch:
                if reader.is_cut and not self.lazy:
                    return
                reader.rewind()
                if between:
                    reader.content(reader.take(len(first)))
            if (yield from reader.until((first,), reader.content)) is None:
                return
            between = self.between

    def _skip_space(self, reader: Reader) -> Steps[None]:
        if self.trims:
            yield from reader.skip_space()

    def _part(self, reader: Reader, names: Collection[str]) -> Steps[None]:
        """Read a recipient, and the arguments of a call. Raises: Mismatch, if it is unknown."""
        yield from self._skip_space(reader)
        if (yield from reader.accept(self.content)):
            reader.drop_mark()
            if self.trims:
                reader.trim()
            if not self.lazy:
                yield from reader.until((), reader.plain)
            return
        for name in names:
            if (yield from reader.accept(self.call_head(name))):
                break
        else:
            raise Mismatch
        reader.begin_call(name, name if self.id_is_name else "")
        yield from reader.skip_space()
        if (yield from reader.looking_at("{")):
            yield from reader.json_value(reader.arguments)
        elif (yield from reader.has(1)):
            reader.arguments("{}")

    def write(self, calls: Sequence[ToolCall]) -> str:
        """The text of calls, from the first name on."""
        return self._between.join(self.call_head(call.name) + call.arguments for call in calls)

    @property
    def _between(self) -> str:
        return self.separator + "".join(self.between)

    def rules(self, rules: ToolRules, tools: Sequence[Tool], parallel: bool) -> str:
        """Add the rules of calls to a grammar, from the first name on; returns an expression."""

        def rule(tool: Tool, name: str) -> str:
            args = tool.arguments_rule(rules, name)
            return f"{rules.marker(self.call_head(tool.name))} {args}"

        one = rules.add("call", rules.calls(tools, rule))
        return f"{one} ({rules.marker(self._between)} {one})*" if parallel else one

    def response_rule(self, rules: ToolRules, schema: ResponseSchema | None) -> str:
        free = ANY_TEXT if schema is None else schema.rule(rules, "response")
        return rules.add("reply", f"{rules.marker(self.content)} {free}")

    def triggers(self, tools: Sequence[Tool]) -> tuple[Trigger, ...]:
        """A call as the first part of the reply, or as a later one."""
        space = r"\s*" if self.trims else ""
        later = space.join(map(re.escape, self.between)) + space
        before, after = map(re.escape, self.call)
        names = "|".join(re.escape(tool.name) for tool in tools)
        # the token that ends the line may also begin the arguments
        pattern = rf'(?:[\s\S]*?{later})?{space}({before}(?:{names}){after}(?:\{{"?)?)'
        return (Trigger("pattern_full", pattern),)


FUNCTIONS = RecipientFormat(
    "functions",
    content="message:\n",
    call=("functions.", ":\n"),
    between=("\n",),
    lazy=False,
)
"""Calls of llama-cpp-python's format ``chatml-function-calling``."""
