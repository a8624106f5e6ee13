"""A conversation with a tool in each family: prompt, reply, call, result, next prompt."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from pyllama.chat.capabilities import probe
from pyllama.chat.formats import ChatFormat
from pyllama.chat.reasoning import find_markers
from pyllama.chat.template import JinjaTemplate
from pyllama.chat.tools import find_tool_call_format
from pyllama.chat.turn import TurnOptions
from pyllama.errors import TemplateError

from ...fake_context import TOKENIZER
from .templates import TEMPLATES, TOOLS

USER = {"role": "user", "content": "What time is it in Oslo?"}
ARGUMENTS = '{"city": "Oslo"}'
NO_THOUGHTS = {"enable_thinking": False}

# template -> a reply as the template writes it, and a part of the next prompt with the result
REPLIES = {
    "hermes": (
        f'<tool_call>\n{{"name": "get_time", "arguments": {ARGUMENTS}}}\n</tool_call>',
        "<tool_response>\n10:15\n</tool_response>",
    ),
    "qwen": (
        f'<tool_call>\n{{"name": "get_time", "arguments": {ARGUMENTS}}}\n</tool_call>',
        "<tool_response>\n10:15\n</tool_response>",
    ),
    "llama": (
        f'{{"name": "get_time", "parameters": {ARGUMENTS}}}',
        "<|start_header_id|>ipython<|end_header_id|>\n\n10:15",
    ),
    "mistral-array": (
        f'[TOOL_CALLS][{{"name": "get_time", "arguments": {ARGUMENTS}, "id": "a1b2c3d4e"}}]',
        '[TOOL_RESULTS]{"content": 10:15, "call_id": "a1b2c3d4e"}[/TOOL_RESULTS]',
    ),
    "mistral-named": (
        f"[TOOL_CALLS]get_time[CALL_ID]a1b2c3d4e[ARGS]{ARGUMENTS}",
        '[TOOL_RESULTS]{"content": 10:15, "call_id": "a1b2c3d4e"}[/TOOL_RESULTS]',
    ),
    "magistral": (
        f"[TOOL_CALLS]get_time[ARGS]{ARGUMENTS}",
        '[TOOL_RESULTS]{"content": 10:15, "call_id": "',
    ),
    "functionary-3.1": (
        f"<function=get_time>{ARGUMENTS}</function>",
        "<|start_header_id|>ipython<|end_header_id|>\n\n10:15",
    ),
    "functionary-3.2": (
        f"get_time\n{ARGUMENTS}",
        "<|start_header_id|>tool<|end_header_id|>\n\n10:15",
    ),
    "functionary-2": (
        f"get_time\n<|content|>{ARGUMENTS}",
        "<|from|>tool\n<|recipient|>all\n<|content|>10:15",
    ),
    "plain": (
        f'{{"tool_call": {{"name": "get_time", "arguments": {ARGUMENTS}}}}}',
        "<|im_start|>tool\n10:15<|im_end|>",
    ),
}


@pytest.fixture(autouse=True)
def _without_grammars(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pyllama.chat.formats.reply_grammar", lambda rules: None)


@pytest.mark.parametrize("name", REPLIES)
@pytest.mark.parametrize("as_text", [True, False])
def test_a_call_and_its_result_round_trip(name: str, as_text: bool) -> None:
    reply, result = REPLIES[name]
    format = TEMPLATES[name].format(TOKENIZER)
    options = TurnOptions(tools=TOOLS, values=NO_THOUGHTS)
    first = format.turn([USER], options)
    assert "get_time" in first.prompt.text and "python" in first.prompt.text
    for pieces in ([reply], list(reply)):
        reader = first.reader()
        for piece in pieces:
            reader.feed(piece)
        reader.close()
    message = reader.message.openai()
    assert message["content"] is None
    (call,) = message["tool_calls"]
    assert call["function"] == {"name": "get_time", "arguments": ARGUMENTS}
    if not as_text:  # as some clients keep them
        call["function"]["arguments"] = {"city": "Oslo"}
    answer = {"role": "tool", "tool_call_id": call["id"], "content": "10:15"}
    following = format.turn([USER, message, answer], options).prompt.text
    # `mistral` writes the tools before the last message of the user only
    head = first.prompt.text if "mistral" not in name and name != "magistral" else ""
    closed = "<think>\n\n</think>\n\n"  # of an earlier reply it is left out
    assert following.startswith(head.removesuffix(closed) + reply if head else "<s>[INST]")
    assert reply in following and result in following.partition(reply)[2]
    assert reply not in format.turn([USER], options).prompt.text


def test_old_messages_and_parallel_calls() -> None:
    format = TEMPLATES["hermes"].format(TOKENIZER)
    old = {"role": "assistant", "function_call": {"name": "get_time", "arguments": ARGUMENTS}}
    answer = {"role": "function", "name": "get_time", "content": "10:15"}
    text = format.turn([USER, old, answer], TurnOptions(tools=TOOLS)).prompt.text
    assert REPLIES["hermes"][0] in text and "<tool_response>\n10:15" in text
    function = {"name": "get_time", "arguments": ARGUMENTS}
    calls = [{"id": f"call0000{i}", "type": "function", "function": function} for i in (1, 2)]
    message = {"role": "assistant", "content": "Hm.", "tool_calls": calls}
    text = format.turn([USER, message], TurnOptions(tools=TOOLS)).prompt.text
    assert "Hm.\n" + "\n".join([REPLIES["hermes"][0]] * 2) in text
    with pytest.raises(TemplateError, match="only single tool-calls"):
        TEMPLATES["llama"].format(TOKENIZER).turn([USER, message], TurnOptions(tools=TOOLS))


def test_a_template_without_tools_is_told() -> None:
    format = TEMPLATES["plain"].format(TOKENIZER)
    system = {"role": "system", "content": "Be brief."}
    text = format.turn([system, USER], TurnOptions(tools=TOOLS[:1])).prompt.text
    assert text.startswith('<|im_start|>system\nBe brief.\n\nYou may call these tools:\n{"type": ')
    assert '{"tool_call": ' in text and '{"response": <text>}' in text
    required = TurnOptions(tools=TOOLS[:1], tool_choice="required")
    assert "response" not in format.turn([USER], required).prompt.text
    off = TurnOptions(tools=TOOLS[:1], tool_choice="none")
    assert "special_function" not in format.turn([USER], off).prompt.text
    deepseek = TEMPLATES["deepseek"].format(TOKENIZER)
    text = deepseek.turn([USER], TurnOptions(tools=TOOLS[:1])).prompt.text
    assert "reply with: <｜tool▁calls▁begin｜>" in text


def test_contents_may_have_parts() -> None:
    parts = [{"type": "text", "text": "What time"}, {"type": "text", "text": "is it?"}]
    message = {"role": "assistant", "content": parts, "tool_calls": []}
    calls = [{"id": "1", "function": {"name": "get_time", "arguments": ARGUMENTS}}]
    for name in ("plain", "hermes"):
        format = TEMPLATES[name].format(TOKENIZER)
        messages = [{"role": "system", "content": parts}, {**message, "tool_calls": calls}]
        text = format.turn(messages, TurnOptions(tools=TOOLS)).prompt.text
        assert text.count("What time\nis it?") == 2


def test_a_template_that_reads_no_results_gets_them_as_text() -> None:
    source = (
        "{% for m in messages if m.role != 'tool' %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
    )
    format = ChatFormat("jinja", JinjaTemplate(source), TOKENIZER)
    message = {
        "role": "assistant",
        "tool_calls": [{"id": "1", "function": {"name": "get_time", "arguments": ARGUMENTS}}],
    }
    answer = {"role": "tool", "tool_call_id": "1", "content": "10:15"}
    text = format.turn([USER, message, answer], TurnOptions()).prompt.text
    assert f'assistant: {{"tool_call": {{"name": "get_time", "arguments": {ARGUMENTS}}}}}' in text
    assert 'user: {"tool_response": {"tool_call_id": "1", "content": "10:15"}}' in text


@pytest.mark.parametrize("name", [name for name, case in TEMPLATES.items() if case.source])
def test_families_are_detected(name: str) -> None:
    case = TEMPLATES[name]
    assert find_tool_call_format(case.source).name == case.call_format


def test_tools_and_choices_are_checked() -> None:
    format = TEMPLATES["hermes"].format(TOKENIZER)
    good = TOOLS[0]
    for tools, choice, message in (
        ({}, None, "tools is of type dict"),
        ([1], None, r"tools\[0\] is of type int"),
        ([good, {"type": "web"}], None, r"tools\[1\].type is 'web'"),
        ([{"type": "function"}], None, r"tools\[0\].function is missing"),
        ([{"function": {"name": "a b"}}], None, r"tools\[0\].function.name is 'a b'"),
        ([{"function": {"name": "a", "parameters": []}}], None, r"parameters is of type list"),
        (
            [{"function": {"name": "a", "parameters": {"type": "string"}}}],
            None,
            r"tools\[0\].function.parameters has the type 'string'",
        ),
        ([good, good], None, r"tools\[1\] has the name 'special_function' of an earlier"),
        ([good], "any", "tool_choice is 'any'"),
        ([good], {"function": {"name": "f"}}, "names the tool 'f'; tools: special_function"),
        (None, "required", "there are no tools"),
    ):
        with pytest.raises(TemplateError, match=message):
            format.turn([USER], TurnOptions(tools=tools, tool_choice=choice))
    for bad, message in (
        ({"role": "assistant", "tool_calls": "x"}, r"messages\[0\].tool_calls is not a list"),
        ({"role": "assistant", "tool_calls": [{}]}, r"messages\[0\].tool_calls\[0\]"),
        (
            {"role": "assistant", "function_call": {"name": "f", "arguments": "{"}},
            r"messages\[0\] has a call of f whose arguments are not valid JSON",
        ),
    ):
        with pytest.raises(TemplateError, match=message):
            format.turn([bad], TurnOptions())
    for response, message in (
        ("json", "not a dictionary"),
        ({"type": "xml"}, "'xml'"),
        ({"type": "json_schema"}, "json_schema.schema is not a JSON schema"),
    ):
        with pytest.raises(TemplateError, match=message):
            format.turn([USER], TurnOptions(response_format=response))
    with pytest.raises(TemplateError, match="reasoning_format 'x' is not known"):
        format.turn([USER], TurnOptions(reasoning_format="x"))


# llama.cpp's models/templates: family, end of reasoning, and whether tools, calls, objects and
# parallel calls are written
KNOWN: dict[str, tuple[str, str | None, str]] = {
    "Qwen-Qwen2.5-7B-Instruct": ("hermes", None, "tcop"),
    "Qwen-Qwen3-0.6B": ("hermes", "</think>", "tcop"),
    "Qwen-QwQ-32B": ("hermes", "</think>", "tcop"),
    "NousResearch-Hermes-3-Llama-3.1-8B-tool_use": ("hermes", None, "tcop"),
    "ibm-granite-granite-4.0": ("hermes", None, "tcop"),
    "meta-llama-Llama-3.1-8B-Instruct": ("llama3", None, "tco"),
    "meta-llama-Llama-3.2-3B-Instruct": ("llama3", None, "tco"),
    "mistralai-Mistral-Nemo-Instruct-2407": ("mistral", None, "tcop"),
    "Mistral-Small-3.2-24B-Instruct-2506": ("mistral-args", None, "tcop"),
    "mistralai-Ministral-3-14B-Reasoning-2512": ("mistral-args", "[/THINK]", "tcop"),
    "meetkai-functionary-medium-v3.1": ("functionary-3.1", None, "tcop"),
    "meetkai-functionary-medium-v3.2": ("functionary-3.2", None, "tcp"),
    "deepseek-ai-DeepSeek-V3.1": ("deepseek-v3.1", "</think>", "cop"),
    "llama-cpp-deepseek-r1": ("deepseek-r1", "</think>", "tcop"),
    "moonshotai-Kimi-K2": ("kimi-k2", None, "tcop"),
    "CohereForAI-c4ai-command-r7b-12-2024-tool_use": ("command-r7b", "<|END_THINKING|>", "tcop"),
    "ibm-granite-granite-3.3-2B-Instruct": ("granite-3", "</think>", "t"),
    "NVIDIA-Nemotron-Nano-v2": ("nemotron", "</think>", "tcop"),
    "unsloth-Apriel-1.5": ("apriel", None, "tcop"),
    "google-gemma-2-2b-it": ("generic", None, ""),
    "microsoft-Phi-3.5-mini-instruct": ("generic", None, ""),
}
FOLDER = Path(os.environ.get("LLAMA_CPP_SOURCE", "/nonexistent")) / "models" / "templates"


@pytest.mark.skipif(not FOLDER.is_dir(), reason="needs LLAMA_CPP_SOURCE, llama.cpp's source")
@pytest.mark.parametrize("name", KNOWN)
def test_real_templates(name: str) -> None:
    source = (FOLDER / f"{name}.jinja").read_text()
    call_format, end, abilities = KNOWN[name]
    markers = find_markers(source)
    assert (find_tool_call_format(source).name, markers and markers.end) == (call_format, end)
    template = JinjaTemplate(source, {"bos_token": "<s>", "eos_token": "</s>"})
    can: Any = probe(template.render)
    flags = zip("tcop", (can.tools, can.calls, can.object_arguments, can.parallel), strict=True)
    assert "".join(letter for letter, flag in flags if flag) == abilities
    turn = ChatFormat(name, template, TOKENIZER).turn([USER], TurnOptions(tools=TOOLS))
    assert "get_time" in turn.prompt.text
