"""Clients of the APIs, unmodified, against a server at a socket."""

from __future__ import annotations

import asyncio
import gc
import json
import shutil
import subprocess
from collections.abc import Iterator
from typing import Any, Literal

import pytest

from pyllama import Model

from .conftest import events, listening, make_served
from .test_chat import TOOL

pytestmark = [pytest.mark.clients, pytest.mark.long]
ASK: Any = [{"role": "user", "content": "Hi"}]
PARAMETERS = TOOL["function"]["parameters"]
MODEL = "any"
CITIES = ("Rome", "Oslo")


@pytest.fixture
def url(model: Model) -> Iterator[str]:
    with listening(make_served(model, pooling="mean")) as port:
        yield f"http://127.0.0.1:{port}"


def trip_type() -> Any:
    pydantic = pytest.importorskip("pydantic")
    fields = {"city": (Literal["Rome", "Oslo"], ...), "is_far": (bool, ...)}
    return pydantic.create_model("Trip", **fields)


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


def test_openai_streams_usage_and_log_probabilities(url: str) -> None:
    openai = pytest.importorskip("openai")
    with openai.OpenAI(api_key="x", base_url=f"{url}/v1") as client:
        given: Any = {"model": MODEL, "messages": ASK, "max_tokens": 5, "n": 2, "stream": True}
        given |= {"logprobs": True, "top_logprobs": 3, "stream_options": {"include_usage": True}}
        parts = [*client.chat.completions.create(**given)]
        assert parts[-1].usage.completion_tokens == 10 and not parts[-1].choices
        choices = [part.choices[0] for part in parts[:-1]]
        assert {choice.index for choice in choices} == {0, 1}
        assert [c.finish_reason for c in choices if c.finish_reason] == ["length", "length"]
        found = [c.logprobs.content[0] for c in choices if c.logprobs]
        assert found and all(len(one.top_logprobs) == 3 for one in found)
        texts = client.completions.create(model=MODEL, prompt="a", max_tokens=4, stream=True)
        assert [part.choices[0].finish_reason for part in texts][-1] == "length"


def test_openai_structured_outputs(url: str) -> None:
    openai, kind = pytest.importorskip("openai"), trip_type()
    with openai.OpenAI(api_key="x", base_url=f"{url}/v1") as client:
        given: Any = {"model": MODEL, "messages": ASK, "max_tokens": 300}
        chat = client.chat.completions
        found = chat.parse(**given, response_format=kind).choices[0].message.parsed
        assert found.city in CITIES and found.is_far in (True, False)
        with chat.stream(**given, response_format=kind) as stream:
            streamed = stream.get_final_completion().choices[0].message.parsed
        assert streamed == found
        tool = openai.pydantic_function_tool(kind)
        message = chat.parse(**given, tools=[tool], tool_choice="required").choices[0].message
        assert message.tool_calls[0].function.parsed_arguments.city in CITIES
        response = client.responses.parse(
            model=MODEL, input="Hi", text_format=kind, max_output_tokens=300
        )
        assert response.output_parsed.city in CITIES


def test_openai_embeddings(url: str) -> None:
    openai = pytest.importorskip("openai")
    with openai.OpenAI(api_key="x", base_url=f"{url}/v1") as client:
        # by default the client asks for base64, and decodes it
        found = client.embeddings.create(model=MODEL, input=["a", "b"]).data
        floats = client.embeddings.create(model=MODEL, input=["a", "b"], encoding_format="float")
        assert [one.embedding for one in found] == [
            pytest.approx(one.embedding, abs=1e-6) for one in floats.data
        ]


def test_openai_responses(url: str) -> None:
    openai = pytest.importorskip("openai")
    with openai.OpenAI(api_key="x", base_url=f"{url}/v1") as client:
        given: dict[str, Any] = {"model": MODEL, "input": "Hi", "max_output_tokens": 8}
        whole = client.responses.create(**given).output_text
        with client.responses.stream(**given) as stream:
            kinds = [event.type for event in stream]
            assert stream.get_final_response().output_text == whole
        assert kinds[0] == "response.created" and kinds[-1] == "response.completed"
        assert kinds.index("response.output_item.added") < kinds.index("response.output_text.delta")
        parts = client.responses.create(**given, stream=True)
        assert "".join(e.delta for e in parts if e.type == "response.output_text.delta") == whole
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
        with pytest.raises(anthropic.BadRequestError, match="temperature"):
            client.messages.create(**given, extra_body={"temperature": "hot"})


def test_anthropic_streams_tools(url: str) -> None:
    anthropic = pytest.importorskip("anthropic")
    tool = {"name": "weather", "input_schema": PARAMETERS}
    given: Any = {"model": MODEL, "messages": ASK, "max_tokens": 300}
    given |= {"tools": [tool], "tool_choice": {"type": "any"}}
    with anthropic.Anthropic(api_key="x", base_url=url) as client:
        parts: list[str] = []
        with client.messages.stream(**given) as stream:
            for event in stream:
                if event.type == "content_block_delta" and event.delta.type == "input_json_delta":
                    parts.append(event.delta.partial_json)
            message = stream.get_final_message()
        (block,) = message.content
        assert json.loads("".join(parts)) == block.input
        assert block.input["city"] in CITIES and message.stop_reason == "tool_use"
        answer = {"type": "tool_result", "tool_use_id": block.id, "content": "sunny"}
        turns = [*ASK, {"role": "assistant", "content": message.content}]
        given["messages"] = [*turns, {"role": "user", "content": [answer]}]
        after = client.messages.create(**given).usage
        assert after.input_tokens + after.cache_read_input_tokens > message.usage.input_tokens


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


def test_ollama_embeddings(url: str) -> None:
    ollama = pytest.importorskip("ollama")
    with ollama.Client(host=url) as client:
        vectors = client.embed(model=MODEL, input=["a", "b"]).embeddings
        assert len(vectors) == 2 and len(vectors[0]) == len(vectors[1]) > 1
        assert client.embed(model=MODEL, input="a").embeddings[0] == vectors[0]
        assert len(client.embeddings(model=MODEL, prompt="a").embedding) == len(vectors[0])


def test_ollama_streams(url: str) -> None:
    ollama = pytest.importorskip("ollama")
    with ollama.Client(host=url) as client:
        options = {"num_predict": 8, "seed": 3}
        given: Any = {"model": MODEL, "prompt": "Hi", "options": options}
        whole = client.generate(**given)
        parts = [*client.generate(**given, stream=True)]
        assert "".join(part.response for part in parts) == whole.response
        assert [part.done for part in parts] == [False] * (len(parts) - 1) + [True]
        assert parts[-1].eval_count == whole.eval_count == 8
        assert parts[-1].done_reason == "length" and parts[-1].total_duration > 0
        schema = trip_type().model_json_schema()
        chat: Any = {"model": MODEL, "messages": ASK, "format": schema, "stream": True}
        text = "".join(part.message.content for part in client.chat(**chat))
        assert trip_type().model_validate_json(text).city in CITIES


@pytest.fixture
def closed_loops() -> Iterator[None]:
    """Closes the event loops that a client leaves open, which would fail a later test."""

    def idle_loops() -> set[asyncio.AbstractEventLoop]:
        loops = {one for one in gc.get_objects() if isinstance(one, asyncio.AbstractEventLoop)}
        return {loop for loop in loops if not (loop.is_closed() or loop.is_running())}

    before = idle_loops()
    yield
    for loop in idle_loops() - before:
        loop.close()


# pydantic warns of read-only fields in litellm's own login to GitHub Copilot
@pytest.mark.usefixtures("closed_loops")
@pytest.mark.filterwarnings("ignore:Items? .* on TypedDict class:UserWarning")
def test_litellm(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LITELLM_LOCAL_MODEL_COST_MAP", "True")  # else it fetches prices
    litellm = pytest.importorskip("litellm")
    given: Any = {"model": f"openai/{MODEL}", "api_base": f"{url}/v1", "api_key": "x"}
    given |= {"messages": ASK, "max_tokens": 8}
    whole = litellm.completion(**given)
    text = whole.choices[0].message.content
    assert whole.usage.completion_tokens == 8
    parts = litellm.completion(**given, stream=True)
    assert "".join(part.choices[0].delta.content or "" for part in parts) == text
    given["max_tokens"] = 300
    called = litellm.completion(**given, tools=[TOOL], tool_choice="required")
    (call,) = called.choices[0].message.tool_calls
    assert json.loads(call.function.arguments)["city"] in CITIES
    found = litellm.completion(**given, response_format=trip_type()).choices[0].message.content
    assert json.loads(found)["city"] in CITIES
    vectors = litellm.embedding(
        model=f"openai/{MODEL}", input=["a"], api_base=f"{url}/v1", api_key="x"
    )
    assert len(vectors.data[0]["embedding"]) > 1


def test_langchain_openai(url: str) -> None:
    langchain = pytest.importorskip("langchain_openai")
    where: Any = {"model": MODEL, "base_url": f"{url}/v1", "api_key": "x"}
    chat = langchain.ChatOpenAI(**where, max_completion_tokens=8)
    whole = chat.invoke("Hi")
    assert whole.usage_metadata["output_tokens"] == 8
    assert "".join(part.content for part in chat.stream("Hi")) == whole.content
    chat = langchain.ChatOpenAI(**where, max_completion_tokens=300)
    found = chat.with_structured_output(trip_type(), method="json_schema").invoke("Hi")
    assert found.city in CITIES
    (call,) = chat.bind_tools([TOOL], tool_choice="required").invoke("Hi").tool_calls
    assert call["args"]["city"] in CITIES
    # tokens would be counted by tiktoken, whose vocabulary is fetched
    embeddings = langchain.OpenAIEmbeddings(**where, check_embedding_ctx_length=False)
    assert len(embeddings.embed_documents(["a", "b"])) == 2


def test_llama_index_embeddings(url: str) -> None:
    openai = pytest.importorskip("llama_index.embeddings.openai_like")
    ollama = pytest.importorskip("llama_index.embeddings.ollama")
    httpx, texts, n = pytest.importorskip("httpx"), ["a cat", "a dog", "x"], 8
    with httpx.Client() as http:
        where: Any = {"model_name": MODEL, "api_base": f"{url}/v1", "http_client": http}
        made = openai.OpenAILikeEmbedding(api_key="x", **where)
        rows = made.get_text_embedding_batch(texts)
        assert len(rows) == 3
        assert made.get_query_embedding("a cat") == pytest.approx(rows[0], abs=1e-6)
        short = openai.OpenAILikeEmbedding(api_key="x", dimensions=n, **where)
        assert len(short.get_text_embedding("a cat")) == n
    other = ollama.OllamaEmbedding(model_name=MODEL, base_url=url)
    for row, same in zip(rows, other.get_text_embedding_batch(texts), strict=True):
        assert same == pytest.approx(row, abs=1e-6)
    other._client._client.close()


def test_curl(url: str) -> None:
    curl = shutil.which("curl")
    if curl is None:
        pytest.skip("needs curl")

    def run(path: str, body: Any, *flags: str) -> str:
        command = [curl, "-sS", "--fail-with-body", *flags, f"{url}{path}", "-d", json.dumps(body)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
        assert done.returncode in (0, 22), done.stderr
        return done.stdout

    ask = {"prompt": "a", "n_predict": 4, "temperature": 0}
    whole = json.loads(run("/completion", ask))  # sent as a form, as in llama.cpp's examples
    parts = events(run("/completion", ask | {"stream": True}, "-N"))
    assert "".join(part["content"] for part in parts) == whole["content"]
    head = run("/completion", {}, "-i")
    assert head.startswith("HTTP/1.1 400") and '"prompt\\" is required' in head
    whole = json.loads(run("/completion", ask, "--http1.0"))
    assert whole["tokens_predicted"] == 4
    whole = json.loads(
        run("/completion", {**ask, "prompt": "a" * 200}, "-H", "Expect: 100-continue")
    )
    assert whole["tokens_predicted"] == 4
