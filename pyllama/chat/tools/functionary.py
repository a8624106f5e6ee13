"""Tool calls of functionary 3.1 (``<function=name>``) and 3.2 (``>>>name``).

    <function=get_time>{"city": "Oslo"}</function>

    >>>all
    Let me look.>>>get_time
    {"city": "Oslo"}

In 3.2 every part of a reply has a recipient, ``all`` for content; the prompt ends with the first
``>>>``.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence

from ...grammar import Trigger
from ..reader import Call, Mismatch, Reader, Steps
from .call_format import CallFormat, NamedCall
from .definitions import Tool
from .rules import Rules

FUNCTIONARY_31 = CallFormat(
    "functionary-3.1",
    lambda source: (
        "<function=" in source and "</function>" in source and "<parameter=" not in source
    ),
    NamedCall(">"),
    wrap=("<function=", "</function>"),
)

_RECIPIENT = ">>>"
_CALL = NamedCall("\n")


class Functionary32:
    """The format of functionary 3.2."""

    name = "functionary-3.2"
    lazy = True
    markers = (_RECIPIENT,)

    def detect(self, source: str) -> bool:
        """Whether a template with this source uses the format."""
        return ">>>all" in source and ">>>${recipient}" in source

    def read(self, reader: Reader, names: Collection[str]) -> Steps[None]:
        """Read the parts of a reply; those for unknown recipients are content."""
        marker: str | None = ""
        while marker is not None:
            reader.set_mark()
            try:
                yield from reader.expect(marker)
                if (yield from reader.accept("all\n")):
                    reader.drop_mark()
                else:
                    yield from self._call(reader, names)
            except Mismatch:
                reader.rewind()
                reader.content(reader.take(len(marker)))
            marker = yield from reader.until((_RECIPIENT,), reader.content)

    def _call(self, reader: Reader, names: Collection[str]) -> Steps[None]:
        """Read a call of a known function. Raises: Mismatch."""
        for name in names:
            if (yield from reader.looking_at(name + "\n")):
                break
        else:
            raise Mismatch
        yield from _CALL.read(reader)

    def write(self, calls: Sequence[Call]) -> str:
        """The text of calls, from the first name on."""
        return _RECIPIENT.join(map(_CALL.write, calls))

    def rules(self, rules: Rules, tools: Sequence[Tool], parallel: bool) -> str:
        """Add the rules of calls to a grammar, from the first name on; returns an expression."""
        calls = [
            rules.add(f"call-{i}", _CALL.rule(rules, tool, f"call-{i}"))
            for i, tool in enumerate(tools)
        ]
        one = rules.add("call", " | ".join(calls))
        return f"{one} ({rules.marker(_RECIPIENT)} {one})*" if parallel else one

    def triggers(self, tools: Sequence[Tool]) -> tuple[Trigger, ...]:
        """The name of a tool as the recipient of the reply, or of a later part."""
        names = "|".join(re.escape(tool.name) for tool in tools)
        # the token that ends the line may also begin the arguments
        pattern = rf'(?:[\s\S]*?{_RECIPIENT})?((?:{names})\n(?:\{{"?)?)'
        return (Trigger("pattern_full", pattern),)


FUNCTIONARY_32 = Functionary32()
