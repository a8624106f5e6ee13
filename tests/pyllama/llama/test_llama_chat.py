"""`Llama.create_chat_completion` on a fake context: llama-cpp-python's signature and results."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

from pyllama.errors import ContextFull, NotSupported, TemplateError
from pyllama.llama.llama import Llama

HI = [{"role": "user", "content": "Hi"}]
PROMPT = "USER: Hi\nASSISTANT:"


@pytest.fixture
def llama(reciting: Any) -> Llama:
    return reciting(PROMPT + " naïve 🙂!", chat_format="vicuna", logits_all=True)  # type: ignore[no-any-return]


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


def test_tools_reach_the_template(reciting: Any) -> None:
    llama = reciting("")
    llama._chat_formats._sources["chat_template.default"] = (
        "{{ tools[0].function.name }}{{ tool_choice }}{{ functions is none }}"
    )
    llama.chat_format = None
    prompt: list[str] = []
    llama.create_completion = lambda tokens, **o: prompt.append(llama.detokenize(tokens)) or {
        "id": "", "created": 0, "model": "", "usage": {},
        "choices": [{"text": "", "logprobs": None, "finish_reason": "stop"}],
    }  # fmt: skip
    llama.create_chat_completion(HI, tools=[{"function": {"name": "f"}}], tool_choice="auto")
    assert prompt == [b"fautoTrue"]


def test_unsupported_arguments_are_refused(llama: Llama) -> None:
    for options in (
        {"response_format": {"type": "json_object"}},
        {"tool_choice": {"type": "function", "function": {"name": "f"}}},
        {"tool_choice": "required"},
        {"function_call": {"name": "f"}},
    ):
        with pytest.raises(NotSupported, match="supported"):
            llama.create_chat_completion(HI, **options)  # type: ignore[arg-type]
    llama.create_chat_completion(HI, response_format={"type": "text"}, max_tokens=1)


def test_errors(llama: Llama, reciting: Any) -> None:
    with pytest.raises(TemplateError, match="not a dictionary"):
        llama.create_chat_completion(["Hi"])  # type: ignore[list-item]
    with pytest.raises(ContextFull):
        llama.create_chat_completion([{"role": "user", "content": "x" * 100}])
    with pytest.raises(ValueError, match="no chat format"):
        reciting(chat_format="functionary")


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
