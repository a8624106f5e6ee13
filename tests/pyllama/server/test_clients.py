"""The clients of OpenAI, Anthropic and Ollama, unmodified, against a server at a socket."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from pyllama import Model

from .conftest import listening, make_served
from .test_chat import TOOL

ASK: Any = [{"role": "user", "content": "Hi"}]
PARAMETERS = TOOL["function"]["parameters"]
MODEL = "any"
CITIES = ("Rome", "Oslo")


@pytest.fixture
def url(model: Model) -> Iterator[str]:
    with listening(make_served(model)) as port:
        yield f"http://127.0.0.1:{port}"


def test_openai(url: str) -> None:
    openai = pytest.importorskip("openai")
    with openai.OpenAI(api_key="x", base_url=f"{url}/v1") as client:
        chat = client.chat.completions
        whole = chat.create(model=MODEL, messages=ASK, max_tokens=8).choices[0].message.content
        parts = chat.create(model=MODEL, messages=ASK, max_tokens=8, stream=True)
        assert "".join(part.choices[0].delta.content or "" for part in parts) == whole
        texts = client.completions.create(model=MODEL, prompt="a", max_tokens=4, n=2, logprobs=1)
        assert len(texts.choices) == 2
        assert client.models.list().data
        given = {"model": MODEL, "messages": ASK, "tools": [TOOL], "tool_choice": "required"}
        with chat.stream(**given, max_tokens=300) as stream:
            (call,) = stream.get_final_completion().choices[0].message.tool_calls
        assert json.loads(call.function.arguments)["city"] in CITIES
        with pytest.raises(openai.BadRequestError, match="temperature"):
            chat.create(model=MODEL, messages=ASK, temperature="hot")


def test_openai_responses(url: str) -> None:
    openai = pytest.importorskip("openai")
    with openai.OpenAI(api_key="x", base_url=f"{url}/v1") as client:
        given: dict[str, Any] = {"model": MODEL, "input": "Hi", "max_output_tokens": 8}
        whole = client.responses.create(**given).output_text
        with client.responses.stream(**given) as stream:
            assert stream.get_final_response().output_text == whole
        tool = {"type": "function", **TOOL["function"]}
        given |= {"tools": [tool], "tool_choice": "required", "max_output_tokens": 300}
        with client.responses.stream(**given) as stream:
            (call,) = stream.get_final_response().output
        assert json.loads(call.arguments)["city"] in CITIES


def test_anthropic(url: str) -> None:
    anthropic = pytest.importorskip("anthropic")
    with anthropic.Anthropic(api_key="x", base_url=url) as client:
        given: dict[str, Any] = {"model": MODEL, "messages": ASK, "max_tokens": 8}
        whole = client.messages.create(**given).content[0].text
        with client.messages.stream(**given) as stream:
            assert stream.get_final_text() == whole
        assert client.messages.count_tokens(model=MODEL, messages=ASK).input_tokens > 1
        tool = {"name": "weather", "input_schema": PARAMETERS}
        given |= {"tools": [tool], "tool_choice": {"type": "any"}, "max_tokens": 300}
        with client.messages.stream(**given) as stream:
            (block,) = stream.get_final_message().content
        assert block.input["city"] in CITIES


def test_ollama(url: str) -> None:
    ollama = pytest.importorskip("ollama")
    with ollama.Client(host=url) as client:
        given: dict[str, Any] = {"model": MODEL, "messages": ASK, "options": {"num_predict": 8}}
        whole = client.chat(**given).message.content
        assert "".join(part.message.content for part in client.chat(**given, stream=True)) == whole
        assert (
            client.generate(model=MODEL, prompt="Hi", options={"num_predict": 8}).response == whole
        )
        assert client.list().models and client.ps().models and client.show(MODEL).details
        found = client.chat(model=MODEL, messages=ASK, format={"const": [1]}).message.content
        assert json.loads(found) == [1]
