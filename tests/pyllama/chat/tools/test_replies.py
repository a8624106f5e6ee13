"""Replies of each family become messages, whole and in pieces.

Source: many cases are those of llama.cpp's test-chat.cpp.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyllama.chat.reader import Delta, Message, Reader, ToolCall
from pyllama.chat.tools import TOOL_CALL_FORMATS
from pyllama.chat.tools.call_format import ToolCallFormat
from pyllama.chat.turn import Turn, TurnOptions

from ....tiers import some
from ...fake_context import TOKENIZER
from .templates import TEMPLATES, TOOLS

HELLO = "Hello, world!\nWhat's up?"
USER = [{"role": "user", "content": "Hey there!"}]
CALL = ("special_function", {"arg1": 1})
TIME = ("get_time", {"city": "Tokyo"})
THOUGHT = "I'm\nthinking"
NO_TOOLS: dict[str, Any] = {"tools": None}
RAW: dict[str, Any] = {"reasoning_format": "none"}

# template, reply, content, reasoning, calls (with the id, if the model gives one), options
Row = tuple[str, str, str, str, list[Any], dict[str, Any]]
ROWS: list[Row] = [
    (name, HELLO, HELLO, "", [], {})
    for name in TEMPLATES
    if name not in ("functionary-3.2", "deepseek", "qwq")
]
ROWS += [(row[0], row[1], row[2], "", [], NO_TOOLS) for row in ROWS]
ROWS += [
    # Hermes 2 Pro and 3, Qwen 2.5, MiMo, Granite 4
    (
        "hermes",
        '<tool_call>\n{"name": "special_function", "arguments": {"arg1": 1}}</tool_call>',
        "", "", [CALL], {},
    ),
    (
        "hermes",
        'Hello, world!\nWhat\'s up?<tool_call>\n{"name": "special_function", "arguments": '
        '{"arg1": 1}}</tool_call>',
        HELLO, "", [CALL], {},
    ),
    (
        "hermes",
        '<tool_call>\n{"name": "special_function", "arguments": {"arg1": 1}}\n</tool_call>\n'
        '<tool_call>\n{"name": "get_time", "arguments": {"city": "Tokyo"}}\n</tool_call>',
        "", "", [CALL, TIME], {},
    ),
    (
        "hermes",
        'Before\n\n<tool_call>{"arguments": {"arg1": 1}, "name": "special_function"}</tool_call>\n'
        "after\n",
        "Beforeafter\n", "", [CALL], {},
    ),
    ("hermes", "<tool_call>no call</tool_call>", "<tool_call>no call</tool_call>", "", [], {}),
    ("hermes", 'a <tool_call>\n{"name": 3}', 'a <tool_call>\n{"name": 3}', "", [], {}),
    (
        "hermes",
        '<tool_call>{"name": "nothing"}</tool_call>',
        "", "", [("nothing", {})], {},
    ),
    (
        "hermes",
        '<tool_call>{"name": "python", "arguments": "{\\"code\\": \\"a\\\\nb\\"}"}</tool_call>',
        "", "", [("python", {"code": "a\nb"})], {},
    ),
    (
        "hermes",
        '<tool_call>{"type": "function", "function": {"name": "get_time", "arguments": '
        '{"city": "</tool_call>{[\\"\\ud83d\\ude42"}}}</tool_call>',
        "", "", [("get_time", {"city": '</tool_call>{["🙂'})], {},
    ),
    (
        "hermes",
        '<tool_call>{"name": "special_function", "arguments": {"arg1": 1}}</tool_call>',
        '<tool_call>{"name": "special_function", "arguments": {"arg1": 1}}</tool_call>',
        "", [], NO_TOOLS,
    ),
    # Qwen 3, QwQ: with reasoning
    ("qwen", f"<think>{THOUGHT}</think>{HELLO}", HELLO, THOUGHT, [], {}),
    ("qwen", f"<think>\n{THOUGHT}\n</think>\n\n{HELLO}", HELLO, THOUGHT, [], NO_TOOLS),
    ("qwen", f"<think>{THOUGHT}", "", THOUGHT, [], {}),
    ("qwen", f"<think>\n\n</think>\n\n{HELLO}", HELLO, "", [], {}),
    ("qwen", f"<think>{THOUGHT}</think>{HELLO}", f"<think>{THOUGHT}</think>{HELLO}", "", [], RAW),
    (
        "qwen",
        f"<think>{THOUGHT}</think>{HELLO}",
        f"<think>{THOUGHT}</think>{HELLO}", THOUGHT, [], {"reasoning_format": "deepseek-legacy"},
    ),
    (
        "qwen",
        f"<think>{THOUGHT}</think>\n\n"
        '<tool_call>\n{"name": "special_function", "arguments": {"arg1": 1}}\n</tool_call>',
        "", THOUGHT, [CALL], {},
    ),
    (
        "qwen",
        '<think>Maybe <tool_call>{"name": "get_time", "arguments": {}}</tool_call>?</think>'
        '<tool_call>\n{"name": "special_function", "arguments": {"arg1": 1}}\n</tool_call>',
        "", 'Maybe <tool_call>{"name": "get_time", "arguments": {}}</tool_call>?', [CALL], {},
    ),
    (
        "qwen",
        f"{HELLO} <think>late</think>", f"{HELLO} <think>late</think>", "", [],
        {"values": {"enable_thinking": False}},
    ),
    ("qwq", f"{THOUGHT}...\n</think>\nThe answer.", "The answer.", f"{THOUGHT}...", [], {}),
    ("qwq", "</think>Hello, world!", "Hello, world!", "", [], NO_TOOLS),
    ("qwq", f"{THOUGHT}</think>Hi", f"{THOUGHT}</think>Hi", "", [], RAW),
    # Llama 3
    ("llama", '{"name": "special_function", "parameters": {"arg1": 1}}', "", "", [CALL], {}),
    (
        "llama",
        ' {"type": "function", "name": "special_function", "parameters": {"arg1": 1}}',
        "", "", [CALL], {},
    ),
    (
        "llama",
        '{"type": "function", "function": {"name": "special_function", "parameters": {"arg1": 1}}}',
        "", "", [CALL], {},
    ),
    (
        "llama",
        '{"name": "special_function", "parameters": {"arg1": 1}}; '
        '{"name": "get_time", "parameters": {"city": "Tokyo"}}',
        "", "", [CALL, TIME], {},
    ),
    (
        "llama",
        '<|python_tag|>{"name": "special_function", "parameters": {"arg1": 1}}',
        "", "", [CALL], {},
    ),
    ("llama", '{"name": "Bob", "age": 3}', '{"name": "Bob", "age": 3}', "", [], {}),
    ("llama", '{"a": [1]}', '{"a": [1]}', "", [], {}),
    ("llama", "{ not JSON", "{ not JSON", "", [], {}),
    # Mistral Nemo
    (
        "mistral-array",
        '[TOOL_CALLS][{"name": "special_function", "arguments": {"arg1": 1}, "id": "123456789"}]',
        "", "", [(*CALL, "123456789")], {},
    ),
    (
        "mistral-array",
        '[TOOL_CALLS] [{"name": "special_function", "arguments": {"arg1": 1}, "id": "123456789"}, '
        '{"name": "get_time", "arguments": {"city": "Tokyo"}}]',
        "", "", [(*CALL, "123456789"), TIME], {},
    ),
    # Mistral Small 3.2, Devstral, Ministral 3 (Magistral)
    (
        "mistral-named",
        '[TOOL_CALLS]special_function[CALL_ID]123456789[ARGS]{"arg1": 1}',
        "", "", [(*CALL, "123456789")], {},
    ),
    (
        "mistral-named",
        '[TOOL_CALLS]special_function[CALL_ID]000000001[ARGS]{"arg1": 1}'
        '[TOOL_CALLS]get_time[CALL_ID]000000002[ARGS]{"city": "Tokyo"}',
        "", "", [(*CALL, "000000001"), (*TIME, "000000002")], {},
    ),
    ("mistral-named", '[TOOL_CALLS]special_function[ARGS]{"arg1": 1}', "", "", [CALL], {}),
    (
        "mistral-named",
        f'{HELLO}[TOOL_CALLS]special_function[ARGS]{{"arg1": 1}}',
        HELLO, "", [CALL], {},
    ),
    ("magistral", f"[THINK]{THOUGHT}[/THINK]{HELLO}", HELLO, THOUGHT, [], {}),
    (
        "magistral",
        f'[THINK]{THOUGHT}[/THINK][TOOL_CALLS]special_function[ARGS]{{"arg1":1}}',
        "", THOUGHT, [CALL], {},
    ),
    (
        "magistral",
        '[THINK]Let me think about [TOOL_CALLS]special_function[ARGS]{"arg1":1} and more[/THINK]'
        '[TOOL_CALLS]special_function[ARGS]{"arg1": 1}',
        "", 'Let me think about [TOOL_CALLS]special_function[ARGS]{"arg1":1} and more', [CALL], {},
    ),
    # functionary
    ("functionary-3.1", '<function=special_function>{"arg1": 1}</function>', "", "", [CALL], {}),
    ("functionary-3.1", "<function=nothing></function>", "", "", [("nothing", {})], {}),
    (
        "functionary-3.1",
        f'{HELLO}<function=special_function>{{"arg1": 1}}</function>'
        '<function=get_time>{"city": "Tokyo"}</function>',
        HELLO, "", [CALL, TIME], {},
    ),
    ("functionary-3.2", f"all\n{HELLO}", HELLO, "", [], {}),
    ("functionary-3.2", f"all\n{HELLO}", HELLO, "", [], NO_TOOLS),
    ("functionary-3.2", 'special_function\n{"arg1": 1}', "", "", [CALL], {}),
    (
        "functionary-3.2",
        f'all\n{HELLO}>>>special_function\n{{"arg1": 1}}>>>get_time\n{{"city": "Tokyo"}}',
        HELLO, "", [CALL, TIME], {},
    ),
    ("functionary-3.2", "all\nType >>> in Python.", "Type >>> in Python.", "", [], {}),
    ("functionary-3.2", "nobody\nHi", "nobody\nHi", "", [], {}),
    ("functionary-2", f"all\n<|content|>{HELLO}", HELLO, "", [], {}),
    ("functionary-2", f" all\n<|content|> {HELLO}", HELLO, "", [], NO_TOOLS),
    ("functionary-2", 'special_function\n<|content|>{"arg1": 1}', "", "", [CALL], {}),
    (
        "functionary-2",
        f'all\n<|content|>{HELLO}\n<|from|>assistant\n<|recipient|>special_function\n'
        '<|content|>{"arg1": 1}\n<|from|>assistant\n<|recipient|>get_time\n'
        '<|content|>{"city": "Tokyo"}',
        HELLO, "", [CALL, TIME], {},
    ),
    (
        "functionary-2",
        ' special_function\n<|content|> {"arg1": 1}\n<|from|> assistant\n<|recipient|> get_time\n'
        '<|content|> {"city": "Tokyo"}\n',
        "", "", [CALL, TIME], {"tool_choice": "required"},
    ),
    ("functionary-2", "all\n<|content|>a <|from|> b", "a <|from|> b", "", [], {}),
    (
        "functionary-1",
        f'{HELLO}\n<|START_OF_FUNCTION_CALL|>special_function:\n{{"arg1": 1}}'
        "<|END_OF_FUNCTION_CALL|>",
        HELLO, "", [CALL], {},
    ),
    ("functionary-0", f":\n{HELLO}", HELLO, "", [], {}),
    ("functionary-0", HELLO, HELLO, "", [], NO_TOOLS),
    (
        "functionary-0",
        ' to=functions.special_function:\n{"arg1": 1}',
        "", "", [(*CALL, "special_function")], {},
    ),
    (
        "functionary-0",
        f':\n{HELLO}\nassistant to=functions.get_time:\n{{"city": "Tokyo"}}',
        f"{HELLO}", "", [(*TIME, "get_time")], {},
    ),
    (
        "functionary-0",
        '{"arg1": 1}', "", "", [(*CALL, "special_function")],
        {"tool_choice": {"function": {"name": "special_function"}}},
    ),
    # chatml-function-calling
    ("functions", f"message:\n{HELLO}", HELLO, "", [], {}),
    ("functions", f"message:\n{HELLO}", f"message:\n{HELLO}", "", [], NO_TOOLS),
    ("functions", "message:\nfunctions.x:\n1", "functions.x:\n1", "", [], {}),
    ("functions", "messa", "", "", [], {}),
    (
        "functions",
        'functions.get_time:\n{"city": "Tokyo"}\nfunctio',
        "", "", [TIME], {"tool_choice": "auto"},
    ),
    (
        "functions",
        'functions.special_function:\n{"arg1": 1}\nfunctions.get_time:\n{"city": "Tokyo"}',
        "", "", [CALL, TIME], {},
    ),
    (
        "functions",
        '{"city": "Tokyo"}', "", "", [TIME],
        {"tool_choice": {"function": {"name": "get_time"}}},
    ),
    # a template without tools
    (
        "plain",
        '{"tool_call": {"name": "special_function", "arguments": {"arg1": 1}}}',
        "", "", [CALL], {},
    ),
    (
        "plain",
        '{ "tool_calls": [{"name": "special_function", "arguments": {"arg1": 1}}, '
        '{"name": "get_time", "arguments": {"city": "Tokyo"}}]}',
        "", "", [CALL, TIME], {},
    ),
    ("plain", '{\n  "response": "Hello, world!\\nWhat\'s up?"\n}', HELLO, "", [], {}),
    ("plain", '{"response": {"a": "b"}}', '{"a": "b"}', "", [], {}),
    ("plain", '{"other": 1}', '{"other": 1}', "", [], {}),
    ("plain", '{"response": "x"}', '{"response": "x"}', "", [], NO_TOOLS),
    # DeepSeek V3.1: the prompt begins the reasoning
    ("deepseek", f"</think>{HELLO}", HELLO, "", [], {}),
    ("deepseek", f"{THOUGHT}</think>{HELLO}", HELLO, THOUGHT, [], {}),
    ("deepseek", "REASONING</think>\nCONTENT", "CONTENT", "REASONING", [], NO_TOOLS),
    (
        "deepseek",
        "REASONING</think>CONTENT<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>get_time"
        '<｜tool▁sep｜>{"city": "Tokyo"}<｜tool▁call▁end｜><｜tool▁call▁begin｜>special_function'
        '<｜tool▁sep｜>{"arg1": 1}<｜tool▁call▁end｜><｜tool▁calls▁end｜>',
        "CONTENT", "REASONING", [TIME, CALL], {},
    ),
]  # fmt: skip
NAMES = [f"{row[0]}-{i}" for i, row in enumerate(ROWS)]


def turn_of(template: str, options: dict[str, Any]) -> Turn:
    asked = TurnOptions(**{"tools": TOOLS, "tool_choice": "auto", **options})
    return TEMPLATES[template].format(TOKENIZER).turn(USER, asked)


@pytest.fixture(autouse=True)
def _without_grammars(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pyllama.chat.formats.reply_grammar", lambda rules: None)


def read(turn: Turn, pieces: list[str]) -> Message:
    """The message of a reply in pieces; checks that the deltas concatenate to it."""
    reader, whole = turn.reader(), Message()
    for piece in pieces:
        whole.add(reader.feed(piece))
    whole.add(reader.close())
    assert whole == reader.message
    return reader.message


def without_ids(message: Message) -> Message:
    for call in message.calls:
        call.id = ""
    return message


@pytest.mark.parametrize("row", ROWS, ids=NAMES)
def test_a_reply_becomes_a_message(row: Row) -> None:
    template, reply, content, reasoning, calls, options = row
    message = read(turn_of(template, options), [reply])
    assert (message.content, message.reasoning) == (content, reasoning)
    found = [(call.name, json.loads(call.arguments)) for call in message.calls]
    assert found == [call[:2] for call in calls]
    for call, wanted in zip(message.calls, calls, strict=True):
        assert call.id == wanted[2] if len(wanted) > 2 else len(call.id) == 9
    assert len({call.id for call in message.calls}) == len(calls)


@pytest.mark.parametrize("row", ROWS, ids=NAMES)
def test_pieces_give_the_same_message(row: Row) -> None:
    turn, reply = turn_of(row[0], row[5]), row[1]
    whole = without_ids(read(turn, [reply]))
    assert without_ids(read(turn, list(reply))) == whole
    for i in range(len(reply)):
        assert without_ids(read(turn, [reply[:i], reply[i:]])) == whole


@settings(max_examples=80)
@given(st.data())
def test_cut_and_broken_replies(data: st.DataObject) -> None:
    """Any text gives the same message in any pieces, and nothing raises."""
    row = data.draw(st.sampled_from(ROWS))
    other = data.draw(st.sampled_from([r for r in ROWS if r[0] == row[0]]))
    i, j = data.draw(st.integers(0, len(row[1]))), data.draw(st.integers(0, len(other[1])))
    reply = row[1][:i] + other[1][j:]
    cuts = sorted(data.draw(st.lists(st.integers(0, len(reply)), max_size=8)))
    pieces = [reply[a:b] for a, b in zip([0, *cuts], [*cuts, len(reply)], strict=True)]
    turn = turn_of(row[0], row[5])
    whole = without_ids(read(turn, [reply]))
    assert without_ids(read(turn, pieces)) == whole
    assert without_ids(read(turn, list(reply))) == whole


# family, reply, content, calls with ids
SECTIONS: list[tuple[str, str, str, list[Any]]] = [
    (
        "deepseek-r1",
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>special_function\n"
        '```json\n{"arg1": 1}```<｜tool▁call▁end｜><｜tool▁calls▁end｜>',
        "", [CALL],
    ),
    (
        "deepseek-r1",
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>special_function\n"
        '```json\n{"arg1": 1}\n```<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>'
        'get_time\n```json\n{"city": "Tokyo"}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>',
        "", [CALL, TIME],
    ),
    (
        "kimi-k2",
        "<|tool_calls_section_begin|><|tool_call_begin|>functions.special_function:0"
        '<|tool_call_argument_begin|>{"arg1": 1}<|tool_call_end|><|tool_calls_section_end|>',
        "", [(*CALL, "functions.special_function:0")],
    ),
    (
        "command-r7b",
        "<|START_ACTION|>[\n"
        '    {"tool_call_id": "0", "tool_name": "special_function", "parameters": {"arg1": 1}}\n'
        "]<|END_ACTION|>",
        "", [(*CALL, "0")],
    ),
    ("command-r7b", f"<|START_RESPONSE|>{HELLO}<|END_RESPONSE|>", HELLO, []),
    (
        "granite-3",
        '<|tool_call|>[{"name": "special_function", "arguments": {"arg1": 1}}]',
        "", [CALL],
    ),
    (
        "nemotron",
        '<TOOLCALL>[{"name": "special_function", "arguments": {"arg1": 1}}]</TOOLCALL>',
        "", [CALL],
    ),
    (
        "apriel",
        '<tool_calls>[{"name": "special_function", "arguments": {"arg1": 1}}]</tool_calls>',
        "", [CALL],
    ),
]  # fmt: skip


def reader_of(call_format: ToolCallFormat) -> Reader:
    return Reader(lambda reader: call_format.read(reader, ["special_function", "get_time"]))


@pytest.mark.parametrize(("name", "reply", "content", "calls"), SECTIONS)
def test_families_that_differ_in_markers(
    name: str, reply: str, content: str, calls: list[Any]
) -> None:
    call_format = next(call_format for call_format in TOOL_CALL_FORMATS if call_format.name == name)
    for pieces in ([reply], list(reply)):
        reader = reader_of(call_format)
        for piece in pieces:
            reader.feed(piece)
        reader.close()
        assert reader.message.content == content
        found = [(c.name, json.loads(c.arguments)) for c in reader.message.calls]
        assert found == [call[:2] for call in calls]
        for call, wanted in zip(reader.message.calls, calls, strict=True):
            assert call.id == wanted[2] if len(wanted) > 2 else len(call.id) == 9


@pytest.mark.parametrize("call_format", TOOL_CALL_FORMATS, ids=lambda call_format: call_format.name)
@pytest.mark.parametrize("n", [1, 2])
def test_written_calls_are_read(call_format: ToolCallFormat, n: int) -> None:
    calls = [
        ToolCall("a1b2c3d4e", "special_function", '{"arg1": 1}'),
        ToolCall("000000001", "get_time", '{"city": "\\"]}</tool_call>"}'),
    ][:n]
    reader = reader_of(call_format)
    reader.feed(call_format.write(calls))
    reader.close()
    assert without_ids(reader.message) == without_ids(Message(calls=calls))


def test_text_comes_as_early_as_possible() -> None:
    reader = turn_of("qwen", {}).reader()

    def feed(text: str) -> Delta:
        return reader.feed(text)

    assert feed("<think>a b").reasoning == "a b"
    assert feed(" </thi").reasoning == ""
    assert feed("nk>\n\nHi").content == "Hi"
    assert feed(" there <too").content == " there"
    assert feed("l").content == "" and feed("x").content == " <toolx"
    assert feed(' <tool_call>{"name": "get_t').calls == []
    assert [call.name for call in feed('ime", ').calls] == ["get_time"]
    assert [call.arguments for call in feed('"arguments": {"ci').calls] == ['{"ci']
    assert [call.arguments for call in feed('ty": "Os').calls] == ['ty": "Os']
    assert feed("").openai() == {}


@pytest.mark.parametrize("name", some(["hermes", "llama", "plain", "mistral-array"], 2))
def test_hostile_replies_take_bounded_time(name: str) -> None:
    """Nesting and calls that never end take neither the stack nor quadratic time."""
    begin = {"hermes": "<tool_call>", "mistral-array": "[TOOL_CALLS]["}.get(name, "")
    for part in ('{"function": ', '{"x": [', '{"arguments": {"', begin + '{"x": "', '{"name'):
        reply = (begin + part) * 1500
        message = read(turn_of(name, {}), [reply])
        assert message.content == reply.rstrip() + reply[len(reply.rstrip()) :]
        assert message.calls == []


def test_a_cut_call_keeps_its_arguments() -> None:
    message = read(turn_of("hermes", {}), ['<tool_call>{"name": "get_time", "arguments": {"ci'])
    assert [(call.name, call.arguments) for call in message.calls] == [("get_time", '{"ci')]
    message = read(turn_of("mistral-named", {}), ["[TOOL_CALLS]get_time[ARGS]"])
    assert [(call.name, call.arguments) for call in message.calls] == [("get_time", "")]


def test_deltas_have_openais_form() -> None:
    reader = turn_of("mistral-array", {}).reader()
    first = reader.feed('Hm. [TOOL_CALLS][{"name": "get_time", "arguments": {')
    assert first.openai() == {
        "content": "Hm.",
        "tool_calls": [
            {
                "index": 0,
                "type": "function",
                "function": {"name": "get_time", "arguments": "{"},
            }
        ],
    }
    rest = reader.feed('"city": "Oslo"}, "id": "a1b2c3d4e"}]').openai()["tool_calls"]
    assert rest == [{"index": 0, "id": "a1b2c3d4e", "function": {"arguments": '"city": "Oslo"}'}}]
    reader.close()
    assert reader.message.openai() == {
        "role": "assistant",
        "content": "Hm.",
        "tool_calls": [
            {
                "id": "a1b2c3d4e",
                "type": "function",
                "function": {"name": "get_time", "arguments": '{"city": "Oslo"}'},
            }
        ],
    }
