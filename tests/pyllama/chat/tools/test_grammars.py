"""Grammars of replies: what each family's grammar accepts, and when a lazy one begins."""

from __future__ import annotations

import re
from typing import Any

import pytest

from pyllama.chat.tools.grammar import ReplyGrammar
from pyllama.chat.tools.rules import ToolRules
from pyllama.chat.turn import Turn, TurnOptions
from pyllama.errors import GrammarError, TemplateError
from pyllama.grammar import Trigger
from pyllama.grammar.gbnf_writer import literal

from ...fake_context import EOS, TOKENIZER
from .templates import TEMPLATES, TOOLS
from .test_replies import ROWS, Row

pytest.importorskip("pyllama.grammar.schema.json_schema")
USER = [{"role": "user", "content": "Hey there!"}]
CALLS = [row for row in ROWS if row[4] and row[5] == {}]
# forms that models without a grammar may write, and that it does not allow
LOOSE = (
    '{"arguments": {"arg1": 1}, "name"', '{"type": "function", "function"', '{"name": "nothing"}',
    '"arguments": "{', "</tool_call>{[", '"id": "123456789"}, ', '[TOOL_CALLS] [', "nothing></f",
    ' {"type"',
)  # fmt: skip
STRICT = [row for row in CALLS if not any(form in row[1] for form in LOOSE)]
OBJECT = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}


def turn_of(template: str, **options: Any) -> Turn:
    asked = TurnOptions(**{"tool_choice": "auto", **options})
    return TEMPLATES[template].format(TOKENIZER).turn(USER, asked)


def grammar_of(template: str, **options: Any) -> ReplyGrammar:
    grammar = turn_of(template, **options).grammar
    assert grammar is not None
    return grammar


def ends_of(grammar: ReplyGrammar, text: str) -> bool | None:
    """Whether the reply may end after a text; None if the text is not allowed."""
    matcher = grammar.compile().matcher(TOKENIZER)
    for token in TOKENIZER.encode(text, add_special=False, parse_special=False):
        if not matcher.allows(token):
            return None
        matcher.accept(token)
    return matcher.allows(EOS)


@pytest.mark.parametrize("row", STRICT, ids=[f"{r[0]}-{i}" for i, r in enumerate(STRICT)])
def test_calls_match_the_grammar(row: Row) -> None:
    template, reply, content = row[:3]
    lazy = grammar_of(template, tools=TOOLS, parallel_tool_calls=True)
    assert ends_of(lazy, reply) is True
    if not content:
        required = grammar_of(
            template, tools=TOOLS, parallel_tool_calls=True, tool_choice="required"
        )
        assert ends_of(required, reply) is True and required.triggers == ()
    if len(row[4]) == 1:
        single = grammar_of(template, tools=TOOLS, parallel_tool_calls=False)
        assert ends_of(single, reply) is True


# template -> the beginning of a call of special_function up to the value of arg1
BEGINNINGS = {
    "hermes": '<tool_call>\n{"name": "special_function", "arguments": {"arg1": ',
    "llama": '{"name": "special_function", "parameters": {"arg1": ',
    "mistral-array": '[TOOL_CALLS][{"name": "special_function", "arguments": {"arg1": ',
    "mistral-named": '[TOOL_CALLS]special_function[ARGS]{"arg1": ',
    "functionary-3.1": '<function=special_function>{"arg1": ',
    "functionary-3.2": 'special_function\n{"arg1": ',
    "functionary-2": 'special_function\n<|content|>{"arg1": ',
    "functionary-1": '<|START_OF_FUNCTION_CALL|>special_function:\n{"arg1": ',
    "functionary-0": ' to=functions.special_function:\n{"arg1": ',
    "functions": 'functions.special_function:\n{"arg1": ',
    "plain": '{"tool_call": {"name": "special_function", "arguments": {"arg1": ',
}


@pytest.mark.parametrize("template", BEGINNINGS)
def test_calls_are_held_to_the_schema(template: str) -> None:
    begin = BEGINNINGS[template]
    for choice in ("auto", "required"):
        grammar = grammar_of(template, tools=TOOLS, tool_choice=choice)
        assert ends_of(grammar, begin + "12") is False
        assert ends_of(grammar, begin + '"') is None
        assert ends_of(grammar, begin + "12, ") is None
        other = begin.replace("special_function", "other_function")
        free = choice == "auto" and template in (
            "llama",
            "functionary-3.2",
            "functionary-2",
            "functionary-0",
        )
        assert ends_of(grammar, other) is (True if free else None)
        text = ends_of(grammar, "Free text, {} and []. ")
        assert text is (
            True if choice == "auto" and template not in ("plain", "functions") else None
        )
    named = {"type": "function", "function": {"name": "get_time"}}
    turn = turn_of(template, tools=TOOLS, tool_choice=named)
    assert turn.grammar is not None
    assert ends_of(turn.grammar, begin) is None
    begin = begin.replace("special_function", "get_time").replace("arg1", "city")
    assert ends_of(turn.grammar, begin.removeprefix(turn.begun)) is False
    if template in ("functionary-0", "functions"):  # as llama-cpp-python's prompts
        assert turn.begun and turn.prompt.text.endswith(turn.begun)


def test_a_generic_reply_is_a_call_or_a_response() -> None:
    grammar = grammar_of("plain", tools=TOOLS)
    assert ends_of(grammar, '{"response": "Hi"}') is True
    assert ends_of(grammar_of("plain", tools=TOOLS, tool_choice="required"), '{"resp') is None
    assert ends_of(grammar_of("functions", tools=TOOLS), "message:\nHi: {}\nfunctions.x:") is True
    required = grammar_of("functions", tools=TOOLS, tool_choice="required")
    assert ends_of(required, "message") is None


@pytest.mark.parametrize(("template", "opened"), [("qwen", "<think>\n"), ("qwq", "")])
def test_calls_after_reasoning(template: str, opened: str) -> None:
    call = BEGINNINGS["hermes"] + "1}}\n</tool_call>"
    wrong = BEGINNINGS["hermes"] + "x"
    lazy = grammar_of(template, tools=TOOLS)
    required = grammar_of(template, tools=TOOLS, tool_choice="required")
    for grammar in (lazy, required):
        thought = f"{opened}Perhaps {wrong} </thin"
        assert ends_of(grammar, thought) is (grammar is lazy)
        assert ends_of(grammar, thought + f"</think>\n\n{call}") is True
        assert ends_of(grammar, thought + f"</think>{wrong}") is None
    assert ends_of(lazy, f"{opened}So</think> Hi there") is True
    assert ends_of(required, f"{opened}So</think> Hi there") is None
    if opened:
        assert ends_of(lazy, call) is ends_of(required, call) is True
        assert ends_of(lazy, wrong) is ends_of(required, wrong) is None


def test_response_formats() -> None:
    schema = {"type": "json_schema", "json_schema": {"name": "x", "schema": OBJECT}}
    llama_cpp_python = {"type": "json_object", "schema": OBJECT}
    for response_format in (schema, llama_cpp_python):
        grammar = grammar_of("hermes", response_format=response_format)
        assert ends_of(grammar, '{"n": 1}') is True
        assert ends_of(grammar, '{"m"') is ends_of(grammar, "Hi") is None
        thinking = grammar_of("qwen", response_format=response_format)
        assert ends_of(thinking, '<think>{"m"</think>\n\n{"n": 1}') is True
        assert ends_of(thinking, '{"n": 1}') is True and ends_of(thinking, "Hi") is None
    free = grammar_of("hermes", response_format={"type": "json_object"})
    assert ends_of(free, '{"m": [true]}') is True and ends_of(free, "[") is None
    both = grammar_of("hermes", tools=TOOLS, response_format=schema)
    assert ends_of(both, '{"n": 1}') is True and ends_of(both, "Hi") is None
    assert ends_of(both, BEGINNINGS["hermes"] + "1}}\n</tool_call>") is True
    reply = grammar_of("plain", tools=TOOLS, response_format=schema)
    assert ends_of(reply, '{"response": {"n": 1}}') is True
    assert ends_of(reply, '{"response": "') is None
    for name, head in (("functions", "message:\n"), ("functionary-3.2", "all\n")):
        reply = grammar_of(name, tools=TOOLS, response_format=schema)
        assert ends_of(reply, head + '{"n": 1}') is True and ends_of(reply, '{"') is None
    for options in (
        {},
        {"response_format": {"type": "text"}},
        {"tools": TOOLS, "tool_choice": "none"},
    ):
        turn = TEMPLATES["hermes"].format(TOKENIZER).turn(USER, TurnOptions(**options))
        assert turn.grammar is None


def test_single_and_parallel_calls() -> None:
    one = BEGINNINGS["hermes"] + "1}}\n</tool_call>"
    single = grammar_of("hermes", tools=TOOLS, parallel_tool_calls=False)
    assert ends_of(single, one) is True and ends_of(single, f"{one}\n") is None
    assert ends_of(grammar_of("hermes", tools=TOOLS), f"{one}\n{one}") is True
    # the template of Llama 3 writes one call only
    one = BEGINNINGS["llama"] + "1}}"
    assert ends_of(grammar_of("llama", tools=TOOLS), f"{one};") is None


UNHELD = {
    "to": {"type": "string", "pattern": "(?<=a)b"},
    "tags": {"type": "array", "items": {"type": "string"}, "uniqueItems": True},
    "n": {"type": "integer", "not": {"const": 3}},
}
PLACES = ["tools.mail#/properties/to/pattern", "tools.mail#/properties/tags/uniqueItems"]


def mail_tool(**more: Any) -> dict[str, Any]:
    parameters = {"type": "object", "properties": UNHELD, "required": ["to"]}
    return {"type": "function", "function": {"name": "mail", "parameters": parameters, **more}}


@pytest.mark.parametrize("template", ["hermes", "llama", "mistral-named", "functions", "plain"])
@pytest.mark.parametrize("choice", ["auto", "required"])
def test_tools_that_are_not_strict_leave_out_what_a_grammar_cannot_hold(
    template: str, choice: str, caplog: pytest.LogCaptureFixture
) -> None:
    begin = BEGINNINGS[template].replace("special_function", "mail").replace("arg1", "to")
    for more in ({}, {"strict": False}, {"strict": None}):
        caplog.clear()
        grammar = grammar_of(template, tools=[*TOOLS, mail_tool(**more)], tool_choice=choice)
        assert [part.place for part in grammar.left_out][:2] == PLACES
        (record,) = caplog.records
        assert "tools.mail#/properties/to/pattern" in record.message and "2 more" in record.message
        assert ends_of(grammar, begin + '"x", "tags": ["a", "a"], "n": 3') is False
        assert ends_of(grammar, begin + "1") is None
    strict = [*TOOLS, mail_tool(strict=True)]
    with pytest.raises(GrammarError, match=r"the tool 'mail': .*#/properties/to/pattern"):
        grammar_of(template, tools=strict, tool_choice=choice)
    with pytest.raises(TemplateError, match=r"tools\[0\].function.strict"):
        grammar_of(template, tools=[mail_tool(strict="yes")], tool_choice=choice)


def test_schemas_of_many_tools_are_left_out_beyond_the_limits() -> None:
    """Each alone is small enough; the grammar of all of them is compiled."""
    names = {f"name-{i}-{'x' * 40}": {"type": "string", "format": "date"} for i in range(400)}
    parameters = {"type": "object", "properties": names}
    functions = [{"name": f"f{i}", "parameters": parameters} for i in range(12)]
    tools = [{"type": "function", "function": function} for function in functions]
    grammar = grammar_of("hermes", tools=tools)
    places = [part.place for part in grammar.left_out]
    assert 0 < len(places) < 12 and places == [f"tools.f{i}#" for i in range(12)][-len(places) :]
    last = '<tool_call>\n{"name": "f11", "arguments": {"x": [1]}}\n</tool_call>'
    assert ends_of(grammar, last) is True
    assert ends_of(grammar, last.replace("f11", "f0")) is None


def test_a_response_format_is_strict_if_it_says_so() -> None:
    schema = mail_tool()["function"]["parameters"]
    for strict in (False, None):
        asked = {"type": "json_schema", "json_schema": {"schema": schema, "strict": strict}}
        grammar = grammar_of("hermes", response_format=asked)
        assert grammar.left_out[0].place == "response_format#/properties/to/pattern"
        assert ends_of(grammar, '{"to": "x"}') is True and ends_of(grammar, '{"to": 1') is None
    for asked in (
        {"type": "json_schema", "json_schema": {"schema": schema, "strict": True}},
        {"type": "json_object", "schema": schema},
    ):
        with pytest.raises(GrammarError, match=r"response_format: .*#/properties/to/pattern"):
            grammar_of("hermes", response_format=asked)
    with pytest.raises(TemplateError, match=r"json_schema\.strict"):
        grammar_of(
            "hermes",
            response_format={"type": "json_schema", "json_schema": {"schema": {}, "strict": 1}},
        )


def test_a_wrong_schema_is_named() -> None:
    wrong = [{"function": {"name": "f", "parameters": {"properties": {"a": {"type": "text"}}}}}]
    with pytest.raises(GrammarError, match=r"parameters of the tool 'f': .*text"):
        grammar_of("hermes", tools=wrong)


def test_text_through_a_marker() -> None:
    rules = ToolRules()
    rules.add("root", rules.through("t", "ab]aba"))
    grammar = ReplyGrammar(rules.text())
    for text in ("ab]aba", "ab]ab]aba", '"\\ab]abbab]aba', "aab]aba", "ab]a^-[b]🙂ab]aba"):
        assert ends_of(grammar, text) is True
        assert all(ends_of(grammar, text[:i]) is False for i in range(len(text)))
        assert ends_of(grammar, text + "a") is None


def test_markers_of_control_tokens_are_tokens() -> None:
    rules = ToolRules(lambda marker: [7, "x", 8] if marker == "<a>x<b>" else [marker])
    assert rules.marker("<a>x<b>") == '<[7]> "x" <[8]>'
    rules.add("root", rules.through("t", "<a>x<b>"))
    assert rules.text().splitlines()[-1] == 't ::= [^\\x00]* <[7]> "x" <[8]>'
    assert literal('a"\\\n') == r'"a\"\\\n"'


def test_embedded_rules_are_renamed() -> None:
    rules = ToolRules()
    text = 'root ::= "root" a-b{1,20} [root] <[1]> # root\na-b ::= !<root> root | "\\"a-b"'
    assert rules.embed("x", text) == "x-root"
    assert rules.text().splitlines()[2:] == [
        'x-root ::= "root" x-a-b{1,20} [root] <[1]>',
        'x-a-b ::= !<root> x-root | "\\"a-b"',
    ]


def test_patterns_of_triggers() -> None:
    """A pattern does not match before the name is known, and then only its group is text."""
    for template, text in (
        ("llama", ' {"name": "get_time"'),
        ("functionary-3.2", "all\nHi>>>get_time\n"),
        ("functionary-2", "all\nHi\n<|from|> assistant\n<|recipient|> get_time\n<|content|>"),
        ("functionary-0", ":\nHi\nassistant to=functions.get_time:\n"),
    ):
        (trigger,) = [
            t for t in grammar_of(template, tools=TOOLS).triggers if t.kind == "pattern_full"
        ]
        assert isinstance(trigger, Trigger)
        found = [re.fullmatch(trigger.value, text[:i]) for i in range(len(text) + 1)]
        assert not any(found[:-1])
        match = found[-1]
        assert match is not None and text.endswith(match[1])
