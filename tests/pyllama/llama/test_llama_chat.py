"""`Llama.create_chat_completion` on a fake context: llama-cpp-python's signature and results."""

from __future__ import annotations

import inspect
import json
from typing import Any

import pytest

from pyllama.errors import ContextFull, GrammarError, SamplingError, SchemaError, TemplateError
from pyllama.grammar import Grammar
from pyllama.llama.chat_handlers import (
    ChatFormatterResponse,
    chat_formatter_to_chat_completion_handler,
)
from pyllama.llama.llama import Llama

from ...tiers import some
from ..chat.tools.templates import TEMPLATES, TOOLS, function

HI = [{"role": "user", "content": "Hi"}]
PROMPT = "USER: Hi\nASSISTANT:"


@pytest.fixture
def llama(reciting: Any) -> Llama:
    return reciting(PROMPT + " naïve 🙂!", chat_format="vicuna-orca", logits_all=True)  # type: ignore[no-any-return]


def test_a_reply_has_openais_form(llama: Llama) -> None:
    result: Any = llama.create_chat_completion(HI, temperature=0)
    assert result["id"].startswith("chatcmpl-") and result["object"] == "chat.completion"
    assert result["model"] == llama.model_path and isinstance(result["created"], int)
    assert result["choices"] == [
        {
            "index": 0,
            "message": {"role": "assistant", "content": " naïve 🙂!"},
            "logprobs": None,
            "finish_reason": "stop",
        }
    ]
    usage = result["usage"]
    assert usage["prompt_tokens"] == len(PROMPT) + 1
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]


def test_chunks_begin_with_the_role(llama: Llama) -> None:
    chunks: Any = list(llama.create_chat_completion(HI, temperature=0, stream=True))
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    assert deltas[0] == {"role": "assistant"} and deltas[-1] == {}
    text = [delta["content"] for delta in deltas[1:-1]]
    assert "".join(text) == " naïve 🙂!" and "🙂" in text
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
    assert len({chunk["id"] for chunk in chunks}) == 1
    reasons = [chunk["choices"][0]["finish_reason"] for chunk in chunks]
    assert reasons == [None] * (len(chunks) - 1) + ["stop"]


def test_stop_length_and_logprobs(llama: Llama) -> None:
    def choice(**options: Any) -> Any:
        result: Any = llama.create_chat_completion(HI, temperature=0, **options)
        return result["choices"][0]

    assert choice(stop="ve")["message"]["content"] == " naï"
    assert choice(max_tokens=2)["finish_reason"] == "length"
    content = choice(max_tokens=2, logprobs=True, top_logprobs=2)["logprobs"]["content"]
    assert [entry["token"] for entry in content] == [" ", "n"]
    assert set(content[0]) == {"token", "bytes", "logprob", "top_logprobs"}
    assert len(content[0]["top_logprobs"]) == 2
    assert len(choice(max_tokens=1, logprobs=True)["logprobs"]["content"]) == 1


def test_a_conversation_keeps_the_cache(reciting: Any) -> None:
    llama = reciting("[INST]Hi[/INST]naïve", chat_format="mistral-v7-tekken")
    reply: Any = llama.create_chat_completion(HI, temperature=0)
    held, decoded = llama.n_tokens, llama.context.decoded
    decoded.clear()
    more = [*HI, reply["choices"][0]["message"], {"role": "user", "content": "And?"}]
    llama.create_chat_completion(more, temperature=0, max_tokens=1)
    assert decoded == [len("[INST]And?[/INST]") + 1]
    assert llama.n_tokens == held + decoded[0]


def prompt_and_options(llama: Llama, *args: Any, **options: Any) -> tuple[str, dict[str, Any]]:
    """The prompt and options of the completion that a chat completion makes."""
    seen: dict[str, Any] = {}

    def create_completion(tokens: list[int], **given: Any) -> Any:
        seen.update(given, prompt=llama.detokenize(tokens).decode())
        choice = {"text": "", "index": 0, "logprobs": None, "finish_reason": "stop"}
        return {"id": "", "created": 0, "model": "", "usage": {}, "choices": [choice]}

    llama.create_completion = create_completion  # type: ignore[method-assign]
    llama.create_chat_completion(*args, **options)
    return seen.pop("prompt"), seen


def with_template(reciting: Any, source: str, text: str = "", n_ctx: int = 2048) -> Llama:
    """A model with a chat template that recites a text."""
    llama: Llama = reciting(text, n_ctx=n_ctx)
    llama._chat_formats._sources["chat_template.default"] = source
    llama.chat_format = "chat_template.default"
    return llama


def replying(reciting: Any, source: str, reply: str, **options: Any) -> Llama:
    """A model with a chat template that replies with this text to a request."""
    prompt, _ = prompt_and_options(with_template(reciting, source), HI, **options)
    return with_template(reciting, source, prompt + reply)


@pytest.fixture
def without_grammars(monkeypatch: pytest.MonkeyPatch) -> None:
    """The model recites its text in any case; grammars have tests of their own."""
    monkeypatch.setattr("pyllama.chat.formats.reply_grammar", lambda rules: None)


@pytest.mark.usefixtures("without_grammars")
def test_tools_reach_the_template(reciting: Any) -> None:
    source = "{{ tools[0].function.name }}{{ tool_choice }}"
    llama = with_template(reciting, source)
    tools = [{"function": {"name": "f"}}]
    assert prompt_and_options(llama, HI, tools=tools, tool_choice="auto")[0] == "fauto"
    old = {"functions": [{"name": "f"}], "function_call": "none"}
    assert prompt_and_options(llama, HI, **old)[0] == "fnone"
    llama._chat_formats._sources["chat_template.tool_use"] = "use {{ tools[0].function.name }}"
    assert prompt_and_options(llama, HI, tools=tools)[0] == "use f"


CALLS = (
    'Hm. <tool_call>\n{"name": "get_time", "arguments": {"city": "Oslo"}}\n</tool_call>\n'
    '<tool_call>\n{"name": "nothing", "arguments": {}}\n</tool_call>'
)


@pytest.mark.usefixtures("without_grammars")
def test_tool_calls_whole_and_streamed(reciting: Any) -> None:
    source = TEMPLATES["qwen"].source
    reply = f"<think>Which city?</think>\n\n{CALLS}"
    llama = replying(reciting, source, reply, tools=TOOLS)
    result: Any = llama.create_chat_completion(HI, tools=TOOLS, temperature=0)
    choice = result["choices"][0]
    message = choice["message"]
    assert choice["finish_reason"] == "tool_calls"
    assert message["reasoning_content"] == "Which city?" and message["content"] == "Hm."
    assert [call["function"] for call in message["tool_calls"]] == [
        {"name": "get_time", "arguments": '{"city": "Oslo"}'},
        {"name": "nothing", "arguments": "{}"},
    ]
    assert [call["type"] for call in message["tool_calls"]] == ["function"] * 2
    chunks: Any = list(llama.create_chat_completion(HI, tools=TOOLS, temperature=0, stream=True))
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    assert deltas[0] == {"role": "assistant"} and deltas[-1] == {} and all(deltas[:-1])
    assert "".join(delta.get("reasoning_content", "") for delta in deltas) == "Which city?"
    assert "".join(delta.get("content", "") for delta in deltas) == "Hm."
    pieces = [piece for delta in deltas for piece in delta.get("tool_calls", [])]
    first = [piece for piece in pieces if "id" in piece]
    assert [piece["index"] for piece in first] == [0, 1]
    assert [piece["function"]["name"] for piece in first] == ["get_time", "nothing"]
    arguments = ["", ""]
    for piece in pieces:
        arguments[piece["index"]] += piece["function"]["arguments"]
    assert arguments == ['{"city": "Oslo"}', "{}"]
    reasons = [chunk["choices"][0]["finish_reason"] for chunk in chunks]
    assert reasons == [None] * (len(chunks) - 1) + ["tool_calls"]
    cut: Any = llama.create_chat_completion(HI, tools=TOOLS, temperature=0, max_tokens=90)
    assert cut["choices"][0]["finish_reason"] == "length"
    (call,) = cut["choices"][0]["message"]["tool_calls"]
    assert call["function"]["name"] == "get_time"
    assert '{"city": "Oslo"}'.startswith(call["function"]["arguments"])


@pytest.mark.usefixtures("without_grammars")
def test_calls_and_results_continue_the_conversation(reciting: Any) -> None:
    source = TEMPLATES["hermes"].source
    llama = replying(reciting, source, CALLS, tools=TOOLS)
    result: Any = llama.create_chat_completion(HI, tools=TOOLS, temperature=0)
    message = result["choices"][0]["message"]
    answers = [
        {"role": "tool", "tool_call_id": call["id"], "content": "10:15"}
        for call in message["tool_calls"]
    ]
    first, _ = prompt_and_options(llama, HI, tools=TOOLS)
    prompt, _ = prompt_and_options(llama, [*HI, message, *answers], tools=TOOLS)
    assert prompt.startswith(first + CALLS.replace("Hm. ", "Hm.\n"))
    assert prompt.count("<tool_response>\n10:15\n</tool_response>") == 2


@pytest.mark.usefixtures("without_grammars")
def test_old_function_calls(reciting: Any) -> None:
    functions = [tool["function"] for tool in TOOLS]
    llama = replying(reciting, TEMPLATES["hermes"].source, CALLS, functions=functions)
    result: Any = llama.create_chat_completion(HI, functions=functions, temperature=0)
    choice, wanted = result["choices"][0], {"name": "get_time", "arguments": '{"city": "Oslo"}'}
    assert choice["finish_reason"] == "function_call"
    assert choice["message"]["function_call"] == wanted
    chunks: Any = list(
        llama.create_chat_completion(HI, functions=functions, temperature=0, stream=True)
    )
    deltas = [chunk["choices"][0]["delta"].get("function_call", {}) for chunk in chunks]
    found = {key: "".join(delta.get(key, "") for delta in deltas) for key in wanted}
    assert found == wanted


@pytest.mark.usefixtures("without_grammars")
@pytest.mark.parametrize(
    ("format", "content", "reasoning"),
    [
        ("auto", "Hi!", "So."),
        ("deepseek", "Hi!", "So."),
        ("deepseek-legacy", "<think>So.</think>\nHi!", "So."),
        ("none", "<think>So.</think>\nHi!", None),
    ],
)
def test_reasoning_formats(reciting: Any, format: str, content: str, reasoning: Any) -> None:
    llama = replying(reciting, TEMPLATES["qwen"].source, "<think>So.</think>\nHi!")
    result: Any = llama.create_chat_completion(HI, temperature=0, reasoning_format=format)
    message = result["choices"][0]["message"]
    assert message["content"] == content and message.get("reasoning_content") == reasoning
    assert result["choices"][0]["finish_reason"] == "stop"


def test_options_of_reasoning(reciting: Any) -> None:
    llama = with_template(reciting, TEMPLATES["qwen"].source)
    prompt, options = prompt_and_options(llama, HI, reasoning_budget=3)
    assert prompt.endswith("assistant\n")
    sampling = options["sampling"]
    assert sampling["reasoning_budget_tokens"] == 3 and sampling["generation_prompt"] == ()
    assert llama.detokenize(sampling["reasoning_budget_start"]) == b"<think>"
    assert list(map(llama.detokenize, sampling["reasoning_budget_end"])) == [b"</think>"]
    off = {"chat_template_kwargs": {"enable_thinking": False}, "sampling": {"top_k": 3}}
    prompt, options = prompt_and_options(llama, HI, **off)
    assert prompt.endswith("<think>\n\n</think>\n\n") and options["sampling"] == {"top_k": 3}
    with pytest.raises(SamplingError, match="reasoning_budget: got -5, want -1"):
        llama.create_chat_completion(HI, reasoning_budget=-5)
    llama = with_template(reciting, TEMPLATES["qwq"].source)
    with pytest.raises(SamplingError, match="does not allow the end of the reasoning; use reas"):
        grammar = Grammar('root ::= "yes"')
        llama.create_chat_completion(HI, grammar=grammar, reasoning_budget=3)
    begun = prompt_and_options(llama, HI, reasoning_budget=0)[1]["sampling"]
    assert llama.detokenize(begun["generation_prompt"]) == b"<think>"


def test_response_formats_and_calls_have_grammars(reciting: Any) -> None:
    grammars = pytest.importorskip("pyllama.grammar.schema.json_schema")
    llama = with_template(reciting, TEMPLATES["hermes"].source)
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    given = {"type": "json_schema", "json_schema": {"schema": schema}}
    _, options = prompt_and_options(llama, HI, response_format=given)
    assert grammars.schema_to_gbnf(schema).count("n-kv") <= options["grammar"].text.count("n-kv")
    _, options = prompt_and_options(llama, HI, tools=TOOLS)
    assert [trigger.value for trigger in options["grammar"].triggers] == ["<tool_call>"]
    _, options = prompt_and_options(llama, HI, tools=TOOLS, tool_choice="required")
    assert options["grammar"].triggers == ()
    assert prompt_and_options(llama, HI)[1]["grammar"] is None
    with pytest.raises(GrammarError, match="cannot be combined with tools"):
        llama.create_chat_completion(HI, tools=TOOLS, grammar=options["grammar"])
    assert prompt_and_options(llama, HI, grammar=options["grammar"])[1]["grammar"]


@pytest.mark.parametrize("template", some(["hermes", "llama", "mistral-named", "plain"], 2))
def test_any_model_held_to_the_tools_calls_them(reciting: Any, template: str) -> None:
    """Random logits, constrained: each call parses, is of a tool, and has its arguments."""
    pytest.importorskip("pyllama.grammar.schema.json_schema")
    llama = with_template(reciting, TEMPLATES[template].source)
    tools = [
        function("add", a={"type": "integer"}, b={"enum": ["x", 1, None]}),
        function("say", text={"type": "string", "maxLength": 5}, loud={"type": "boolean"}),
    ]
    for seed in range(10):
        options: Any = {"tools": tools, "tool_choice": "required", "temperature": 1.2, "seed": seed}
        options |= {"parallel_tool_calls": False}
        result: Any = llama.create_chat_completion(HI, **options)
        assert result["choices"][0]["finish_reason"] == "tool_calls"
        (call,) = result["choices"][0]["message"]["tool_calls"]
        arguments = json.loads(call["function"]["arguments"])
        wanted = {"add": {"a", "b"}, "say": {"text", "loud"}}[call["function"]["name"]]
        assert set(arguments) == wanted
        *_, last = llama.create_chat_completion(HI, stream=True, **options)
        assert last["choices"][0]["finish_reason"] == "tool_calls"


@pytest.mark.parametrize("template", ["hermes", "llama", "mistral-named", "plain"])
def test_a_required_call_that_is_cut_is_no_content(reciting: Any, template: str) -> None:
    """Neither whole nor streamed, wherever it is cut before the name of the tool."""
    llama = with_template(reciting, TEMPLATES[template].source)
    tools = [function("a_long_name_of_a_tool", a={"type": "integer"})]
    options: Any = {"tools": tools, "tool_choice": "required", "temperature": 0}
    for max_tokens in range(1, 12):
        options["max_tokens"] = max_tokens
        result: Any = llama.create_chat_completion(HI, **options)
        message = result["choices"][0]["message"]
        assert result["choices"][0]["finish_reason"] == "length"
        assert not message["content"] and "tool_calls" not in message
        *_, last = chunks = list(llama.create_chat_completion(HI, stream=True, **options))
        assert last["choices"][0]["finish_reason"] == "length"
        assert not any("content" in chunk["choices"][0]["delta"] for chunk in chunks)


def test_further_fields_of_sampling(llama: Llama) -> None:
    result: Any = llama.create_chat_completion(HI, temperature=5, sampling={"temp": 0.0})
    assert result["choices"][0]["message"]["content"] == " naïve 🙂!"
    for field in ({"temp": float("nan")}, {"nosuch": 1}, [1]):
        for create in (llama.create_completion, llama.create_chat_completion):
            with pytest.raises(SamplingError):
                create(HI if create == llama.create_chat_completion else "x", sampling=field)  # type: ignore[operator]


def test_errors(llama: Llama, reciting: Any) -> None:
    for options, message in (
        ({"response_format": {"type": "xml"}}, "'xml'"),
        ({"tool_choice": "required"}, "there are no tools"),
        ({"function_call": {"name": "f"}}, "names the tool 'f'"),
        ({"functions": "f"}, "not a list"),
        ({"chat_template_kwargs": [1]}, r"are \[1\]; want a dictionary"),
        ({"chat_template_kwargs": {1: 2}}, "want a dictionary of names"),
    ):
        with pytest.raises(TemplateError, match=message):
            llama.create_chat_completion(HI, **options)  # type: ignore[arg-type]
    llama.create_chat_completion(HI, response_format={"type": "text"}, max_tokens=1)
    with pytest.raises(TemplateError, match="not a dictionary"):
        llama.create_chat_completion(["Hi"])  # type: ignore[list-item]
    with pytest.raises(ContextFull):
        llama.create_chat_completion([{"role": "user", "content": "x" * 100}])
    with pytest.raises(ValueError, match="no chat format"):
        reciting(chat_format="nosuch")


def test_what_a_grammar_cannot_hold_is_left_out_unless_a_tool_is_strict(
    reciting: Any, caplog: pytest.LogCaptureFixture
) -> None:
    llama = with_template(reciting, TEMPLATES["hermes"].source)
    wanted = {"type": "string", "not": {"const": "x"}, "maxLength": 5}
    parameters = {"type": "object", "properties": {"a": wanted}}

    def tools(**more: Any) -> list[dict[str, Any]]:
        function = {"name": "f", "parameters": parameters, **more}
        return [{"type": "function", "function": function}]

    _, options = prompt_and_options(llama, HI, tools=tools())
    assert "{0,5}" in options["grammar"].text
    assert [r.message.split(":")[0] for r in caplog.records] == [
        "a grammar does not hold tools.f#/properties/a/not"
    ]
    with pytest.raises(SchemaError, match="#/properties/a/not"):
        llama.create_chat_completion(HI, tools=tools(strict=True))

    class Asked:
        """A model that keeps what it is asked for."""

        def tokenize(self, text: bytes, **options: Any) -> list[int]:
            return list(text)

        def create_completion(self, **options: Any) -> Any:
            raise StopIteration(options["grammar"])

    handler = chat_formatter_to_chat_completion_handler(
        lambda **_: ChatFormatterResponse(prompt="Hi")
    )
    named = {"type": "function", "function": {"name": "f"}}
    schema = {"type": "json_schema", "json_schema": {"schema": parameters}}
    for given in ({"tools": tools(), "tool_choice": named}, {"response_format": schema}):
        with pytest.raises(StopIteration) as caught:
            handler(llama=Asked(), messages=HI, **given)
        assert "{0,5}" in caught.value.value.text
    schema["json_schema"]["strict"] = True  # type: ignore[index]
    for given in ({"tools": tools(strict=True), "tool_choice": named}, {"response_format": schema}):
        with pytest.raises(SchemaError, match="#/properties/a/not"):
            handler(llama=Asked(), messages=HI, **given)


def test_chat_formats_and_handlers(reciting: Any) -> None:
    assert (
        reciting().chat_format == "llama-2"
    )  # as llama-cpp-python, where the model has no template
    seen: dict[str, Any] = {}

    def handler(**options: Any) -> str:
        seen.update(options)
        return "handled"

    llama = reciting(chat_handler=handler)
    assert llama.chat_format is None
    assert llama.create_chat_completion(HI, top_k=3) == "handled"
    assert seen["llama"] is llama and seen["messages"] == HI and seen["top_k"] == 3


def test_the_signature_is_llama_cpp_pythons() -> None:
    parameters = inspect.signature(Llama.create_chat_completion).parameters
    assert list(parameters)[1:12] == [
        "messages", "functions", "function_call", "tools", "tool_choice", "temperature", "top_p",
        "top_k", "min_p", "typical_p", "stream",
    ]  # fmt: skip
    defaults = {"temperature": 0.2, "top_p": 0.95, "top_k": 40, "min_p": 0.05, "max_tokens": None}
    assert {name: parameters[name].default for name in defaults} == defaults
