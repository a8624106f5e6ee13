"""llama-cpp-python's formats write its prompts, which ``record.py`` recorded."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from pyllama.chat.formats import ChatFormats
from pyllama.chat.function_calling import FUNCTION_CALLING, ToolFormat
from pyllama.chat.llama_cpp_formats import FORMATS as OF_LLAMA_CPP
from pyllama.chat.llama_cpp_python_formats import FORMATS
from pyllama.chat.turn import TurnOptions, legacy_tools
from pyllama.errors import TemplateError

from ...tiers import some
from ..fake_context import BOS
from .record import DATA, TEMPLATES, TOOLS, cases
from .test_formats import formats
from .tools.templates import function

CASES = {case["name"]: case for case in cases()}
RECORDED: dict[str, dict[str, Any]] = json.loads(DATA.read_text(encoding="utf-8"))
HI = [{"role": "user", "content": "Hi"}]


def formats_for(name: str) -> ChatFormats:
    """The formats of a model with a template that suits this format."""
    return formats(TEMPLATES.get(name))


def options_of(case: dict[str, Any]) -> TurnOptions:
    if "functions" in case:
        return TurnOptions(*legacy_tools(case["functions"], case["function_call"]))
    return TurnOptions(case.get("tools"), case.get("tool_choice"))


def test_every_format_is_recorded() -> None:
    assert set(FORMATS) == set(RECORDED) and len(FORMATS) == 27


@pytest.mark.parametrize("name", some(FORMATS, 14))
def test_prompts_and_stop_strings(name: str) -> None:
    for case_name, (prompt, stop) in RECORDED[name].items():
        case = CASES[case_name]
        format = formats_for(name).get(name)
        if prompt is None:
            with pytest.raises(TemplateError, match="no role"):
                format.prompt(case["messages"])
        elif set(case) == {"name", "messages"}:
            made = format.prompt(case["messages"])
            assert made.text == prompt, case_name
            assert list(FORMATS[name].stop) == (stop or []), case_name
            assert made.tokens[0] == BOS
        elif name != "chatml-function-calling" or "calls" not in case_name:
            # that format drops results and old calls, which are put into texts here
            assert format.turn(case["messages"], options_of(case)).prompt.text == prompt, case_name


@pytest.mark.parametrize("name", FORMATS)
def test_prompts_without_the_reply(name: str) -> None:
    """The reply begins where such a prompt ends, so a conversation's cache is kept."""
    format, messages = formats_for(name).get(name), CASES["several turns"]["messages"]
    without = format.prompt(messages, add_generation_prompt=False).text
    whole = format.prompt(messages).text
    assert whole.startswith(without) and (whole != without or name == "alpaca")


def test_calls_and_results_of_chatml_function_calling() -> None:
    (writer,) = (FORMATS[name] for name in FORMATS if name == "chatml-function-calling")
    assert isinstance(writer, ToolFormat)
    for case_name, (prompt, _) in RECORDED["chatml-function-calling"].items():
        case = CASES[case_name]
        if "calls" in case_name and "functions" not in case:
            given = {key: case[key] for key in ("tools", "tool_choice")}
            assert writer.render(case["messages"], **given) == prompt, case_name
    case = CASES["tools, calls, auto"]
    turn = formats().get("chatml-function-calling").turn(case["messages"], options_of(case))
    assert "10:15" in turn.prompt.text


@pytest.mark.parametrize("name", some(FUNCTION_CALLING, 2))
def test_any_model_calls_the_tools(reciting: Any, name: str) -> None:
    """Random logits, constrained: whole and streamed, the call is of a tool."""
    llama = reciting("", n_ctx=4096, chat_format=name)
    llama._chat_formats._sources["chat_template.default"] = TEMPLATES.get(name, "")
    tools = [
        function("say", text={"maxLength": 5, "type": "string"}),
        function("go", n={"enum": [1]}),
    ]
    chosen = {"type": "function", "function": {"name": "say"}}
    for choice, names in (("required", {"say", "go"}), (chosen, {"say"})):
        for seed in range(4):
            options: Any = {"tools": tools, "tool_choice": choice, "temperature": 1, "seed": seed}
            options["parallel_tool_calls"] = False
            (choice_made,) = llama.create_chat_completion(HI, **options)["choices"]
            assert choice_made["finish_reason"] == "tool_calls"
            (call,) = choice_made["message"]["tool_calls"]
            made = call["function"]
            assert made["name"] in names
            assert set(json.loads(made["arguments"])) == {"text" if made["name"] == "say" else "n"}
            streamed = {"name": "", "arguments": ""}
            for chunk in llama.create_chat_completion(HI, stream=True, **options):
                for piece in chunk["choices"][0]["delta"].get("tool_calls", []):
                    for key, text in piece["function"].items():
                        streamed[key] += text
            assert streamed == made


def test_a_template_decides_the_version_of_functionary() -> None:
    for name in ("functionary-v1", "functionary-v2"):
        for template in TEMPLATES:
            turn = formats(TEMPLATES[template]).get(name).turn(HI, TurnOptions())
            assert turn.prompt.text == RECORDED[template]["user"][0]
        with pytest.raises(TemplateError, match="this model has none; use a file"):
            formats().get(name).prompt(HI)


def test_a_format_that_drops_the_system_message_is_told_of_tools() -> None:
    given = [{"role": "system", "content": "S"}, *HI]
    turn = formats().get("vicuna").turn(given, TurnOptions(TOOLS))
    assert "USER: S\n\nYou may call these tools:" in turn.prompt.text
    assert "S" not in formats().get("gemma").prompt(given).text


def test_the_page_has_every_name() -> None:
    page = (Path(__file__).parents[3] / "docs" / "chat-formats.md").read_text(encoding="utf-8")
    ours, theirs = (
        page.partition(f"## Use {project}'s formats")[2].partition("\n## ")[0]
        for project in ("llama-cpp-python", "llama.cpp")
    )
    assert set(re.findall(r"^\| `([^`]+)` ", ours, re.MULTILINE)) == set(FORMATS)
    assert theirs.count("` `") + 1 == len(OF_LLAMA_CPP)
    assert all(f"`{name}`" in theirs for name in OF_LLAMA_CPP)


def test_names_of_both() -> None:
    """By a name of both, `Llama` means llama-cpp-python's format and the tools llama.cpp's."""
    both = FORMATS.keys() & OF_LLAMA_CPP.keys()
    assert both == {"chatglm3", "chatml", "gemma", "openchat", "vicuna", "zephyr"}
    of_tools = formats(named=OF_LLAMA_CPP)
    for name in both:
        assert formats().get(name).prompt(HI).text == RECORDED[name]["user"][0]
        assert of_tools.get(name).prompt(HI).text == OF_LLAMA_CPP[name].render(HI)
    assert formats().get("llama2-sys").prompt(HI).text == "[INST] Hi [/INST]"
    with pytest.raises(TemplateError, match="no chat format 'llama-2'; did you mean llama2"):
        of_tools.get("llama-2")
