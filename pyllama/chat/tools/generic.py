"""Tool calls of models whose template knows none: the whole reply is one JSON object.

    {"tool_call": {"name": "get_time", "arguments": {"city": "Oslo"}}}
    {"tool_calls": [{"name": ...}, {"name": ...}]}
    {"response": "It is ten o'clock."}

The tools and this form are described in the system message; a grammar holds the model to it.

Source: llama.cpp, ``common_chat_params_init_generic`` (until 2025).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from ...grammar import Trigger
from ..reader import Mismatch, Reader, Steps, ToolCall
from .call_format import JsonCall
from .definitions import ResponseSchema, Tool
from .rules import ToolRules

_CALL = JsonCall()


class Generic:
    """The format for templates without tools."""

    name = "generic"
    lazy = False
    markers: tuple[str, ...] = ()

    def detect(self, source: str, /) -> bool:
        """Always True: it suits every template."""
        return True

    def read(self, reader: Reader, names: Collection[str]) -> Steps[None]:
        """Read the object; a reply of another form is content, one that was cut early is none."""
        if not names:
            yield from reader.until((), reader.plain)
            return
        reader.set_mark()
        try:
            yield from reader.skip_space()
            yield from reader.expect("{")
            yield from reader.skip_space()
            key: list[str] = []
            yield from reader.json_string(key.append)
            yield from reader.skip_space()
            yield from reader.expect(":")
            yield from reader.skip_space()
            yield from self._field(reader, "".join(key))
            yield from reader.skip_space()
            yield from reader.accept("}")
            reader.drop_mark()
            return
        except Mismatch:
            if reader.n_calls or reader.is_cut:
                return
            reader.rewind()
        yield from reader.until((), reader.content)

    def _field(self, reader: Reader, key: str) -> Steps[None]:
        if key == "response":
            reader.drop_mark()
            if (yield from reader.looking_at('"')):
                try:
                    yield from reader.json_string(reader.plain)
                except Mismatch:  # the reply was cut
                    reader.drop_mark()
            else:
                yield from reader.json_value(reader.plain)
        elif key == "tool_call":
            yield from _CALL.read(reader)
        elif key == "tool_calls":
            yield from reader.expect("[")
            yield from reader.skip_space()
            while True:
                yield from _CALL.read(reader)
                yield from reader.skip_space()
                if not (yield from reader.accept(",")):
                    break
                yield from reader.skip_space()
            yield from reader.expect("]")
        else:
            raise Mismatch

    def write(self, calls: Sequence[ToolCall]) -> str:
        texts = [_CALL.write(call) for call in calls]
        if len(texts) == 1:
            return f'{{"tool_call": {texts[0]}}}'
        return f'{{"tool_calls": [{", ".join(texts)}]}}'

    def rules(self, rules: ToolRules, tools: Sequence[Tool], parallel: bool) -> str:
        calls = rules.calls(tools, lambda tool, name: _CALL.rule(rules, tool, name))
        call = rules.add("call", calls)
        body = f'"\\"tool_call\\":" space {call}'
        if parallel:
            items = f'"[" space {call} (space "," space {call})* space "]"'
            body = f'({body} | "\\"tool_calls\\":" space {items})'
        return rules.add("calls", f'"{{" space {body} space "}}"')

    def response_rule(self, rules: ToolRules, schema: ResponseSchema | None) -> str:
        value = (schema or ResponseSchema({"type": "string"})).rule(rules, "response")
        return rules.add("reply", f'"{{" space "\\"response\\":" space {value} space "}}"')

    def triggers(self, tools: Sequence[Tool]) -> tuple[Trigger, ...]:
        """None: the grammar rules the whole reply."""
        return ()


GENERIC = Generic()
