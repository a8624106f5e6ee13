"""Libraries that use llama-cpp-python, unmodified, with `pyllama.compat` in its place.

They are the extra ``compat-test``; llama-index-llms-llama-cpp, which would build llama-cpp-python,
is installed with ``pip install --no-deps``. A test of a library that is missing is skipped.
"""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pyllama import Llama
from pyllama.errors import NotSupported

from ...waiting import WAIT_S, until

pytestmark = [
    pytest.mark.compat,
    pytest.mark.long,
    pytest.mark.model,
    pytest.mark.usefixtures("llama_cpp"),
    pytest.mark.filterwarnings("ignore"),  # of the libraries
]

YES_OR_NO = 'root ::= "yes" | "no"'
WHO = "Jason is 25 years old."


@pytest.fixture
def llama(demo_model: Path) -> Llama:
    return Llama(str(demo_model), n_ctx=1024, seed=1, verbose=False)


@pytest.fixture
def user_model() -> type[Any]:
    pydantic = pytest.importorskip("pydantic")

    class User(pydantic.BaseModel):  # type: ignore[misc, name-defined]
        name: str
        age: int

    return User


def test_langchain_llm(demo_model: Path, tmp_path: Path) -> None:
    llms = pytest.importorskip("langchain_community.llms")
    options = {"model_path": str(demo_model), "temperature": 0, "max_tokens": 8, "verbose": False}
    llm = llms.LlamaCpp(**options)
    text = llm.invoke("The capital of France is")
    assert "Paris" in text and "".join(llm.stream("The capital of France is")) == text
    assert llm.get_num_tokens("The capital") == 2
    assert "Paris" not in llm.invoke("The capital of France is", stop=["Paris"])
    assert llms.LlamaCpp(**options, grammar=YES_OR_NO).invoke("Is it?") in ("yes", "no")
    path = tmp_path / "x.gbnf"
    path.write_text(YES_OR_NO)
    assert llms.LlamaCpp(**options, grammar_path=str(path)).invoke("Is it?") in ("yes", "no")


def test_langchain_chat(demo_model: Path, user_model: Any) -> None:
    models = pytest.importorskip("langchain_community.chat_models")
    chat = models.ChatLlamaCpp(
        model_path=str(demo_model), temperature=0, max_tokens=64, n_ctx=1024, verbose=False
    )
    question = [("system", "You are a teacher."), ("human", "What is the capital of France?")]
    reply = chat.invoke(question)
    assert reply.content and reply.response_metadata["finish_reason"] in ("stop", "length")
    assert "".join(chunk.content for chunk in chat.stream(question)) == reply.content
    user = chat.with_structured_output(user_model).invoke(f"Extract: {WHO}")
    assert isinstance(user, user_model)
    (call,) = (
        chat.bind_tools(
            [user_model], tool_choice={"type": "function", "function": {"name": "User"}}
        )
        .invoke(f"Extract: {WHO}")
        .tool_calls
    )
    assert call["name"] == "User" and call["args"].keys() == {"name", "age"}


def test_langchain_embeddings(demo_model: Path) -> None:
    embeddings = pytest.importorskip("langchain_community.embeddings")
    made = embeddings.LlamaCppEmbeddings(model_path=str(demo_model), verbose=False)
    one = made.embed_query("A cat")
    rows = made.embed_documents(["A cat", "A dog"])
    assert len(one) == 576 and {len(row) for row in rows} == {576}


def test_llama_index(demo_model: Path) -> None:
    llms = pytest.importorskip("llama_index.llms.llama_cpp")
    llm = llms.LlamaCPP(
        model_path=str(demo_model), temperature=0, max_new_tokens=8, context_window=512,
        model_kwargs={"n_gpu_layers": 0}, verbose=False,
    )  # fmt: skip
    whole = llm.complete("The capital of France is").text
    assert "Paris" in whole and llm.metadata.context_window == 512
    assert [*llm.stream_complete("The capital of France is")][-1].text == whole
    types = pytest.importorskip("llama_index.core.llms")
    assert llm.chat([types.ChatMessage(role="user", content="Hello")]).message.content


def test_outlines(llama: Llama, user_model: Any) -> None:
    outlines = pytest.importorskip("outlines")
    model = outlines.from_llamacpp(llama)
    user = model(f"Extract: {WHO}", user_model, max_tokens=100)
    assert user_model.model_validate_json(user)
    answer = model("Give me a number.", outlines.types.Regex(r"[0-9]{3}"), max_tokens=8)
    assert re.fullmatch("[0-9]{3}", answer)
    assert "".join(model.stream("Say hello.", max_tokens=4))


def test_instructor(llama: Llama, user_model: Any) -> None:
    instructor = pytest.importorskip("instructor")
    create = instructor.patch(
        create=llama.create_chat_completion_openai_v1, mode=instructor.Mode.JSON_SCHEMA
    )
    messages = [{"role": "user", "content": f"Extract: {WHO}"}]
    user = create(messages=messages, response_model=user_model, max_tokens=100)
    assert isinstance(user, user_model)


def test_guidance_is_refused(llama: Llama) -> None:
    guidance = pytest.importorskip("guidance")
    with pytest.raises(NotSupported, match="C API does not exist in pyllama"):
        guidance.models.LlamaCpp(llama)


@pytest.fixture(params=["its module", "its example"])
def client(
    request: pytest.FixtureRequest, sources: Path, demo_model: Path, tmp_path: Path
) -> Iterator[Any]:
    """OpenAI's client of llama-cpp-python's own server, in another process."""
    for name in ("uvicorn", "fastapi", "sse_starlette", "starlette_context", "pydantic_settings"):
        pytest.importorskip(name)
    openai = pytest.importorskip("openai")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    settings = {
        "model": str(demo_model), "model_alias": "demo", "host": "127.0.0.1", "port": str(port),
        "n_ctx": "512", "cache": "true", "logits_all": "true",
        "draft_model": "prompt-lookup-decoding", "embedding": "True",
    }  # fmt: skip
    command = [sys.executable, "-P", "-m", "pyllama.compat", "--sources", str(sources)]
    env = dict(os.environ)
    if request.param == "its module":
        command += ["-m", "llama_cpp.server"]
        command += [word for name, value in settings.items() for word in (f"--{name}", value)]
    else:
        command += [str(sources / "examples" / "high_level_api" / "fastapi_server.py")]
        env |= {name.upper(): value for name, value in settings.items()}
    log = tmp_path / "log"
    with open(log, "wb") as file:
        process = subprocess.Popen(command, stdout=file, stderr=file, cwd=tmp_path, env=env)

    def listens() -> bool:
        assert process.poll() is None, log.read_text()
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", port)) == 0

    try:
        until(listens)
        url = f"http://127.0.0.1:{port}/v1"
        with openai.OpenAI(base_url=url, api_key="x", max_retries=0) as made:
            yield made
    finally:
        process.terminate()
        process.wait(WAIT_S)


def test_server(client: Any) -> None:
    assert [model.id for model in client.models.list()] == ["demo"]
    prompt = {"model": "demo", "prompt": "The capital of France is", "temperature": 0}
    whole = client.completions.create(**prompt, max_tokens=8, logprobs=1)
    text = whole.choices[0].text
    assert "Paris" in text and whole.choices[0].logprobs.tokens[0] == " Paris"
    parts = client.completions.create(**prompt, max_tokens=8, stream=True)
    assert "".join(part.choices[0].text for part in parts) == text
    longer = client.completions.create(**prompt, max_tokens=1, extra_body={"min_tokens": 1})
    assert longer.choices[0].text == " Paris"
    grammar = {"grammar": YES_OR_NO}
    answer = client.completions.create(**prompt, max_tokens=4, extra_body=grammar)
    assert answer.choices[0].text in ("yes", "no")

    chat: dict[str, Any] = {
        "model": "demo", "temperature": 0, "max_tokens": 24,
        "messages": [{"role": "user", "content": "What is the capital of France?"}],
    }  # fmt: skip
    reply = client.chat.completions.create(**chat).choices[0].message.content
    chunks = client.chat.completions.create(**chat, stream=True)
    assert reply and "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == reply
    schema = {"type": "json_object", "schema": {"enum": ["Paris", "Rome"]}}
    made = client.chat.completions.create(**chat, response_format=schema)
    assert made.choices[0].message.content in ('"Paris"', '"Rome"')
    city = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
    made = client.chat.completions.create(
        **{**chat, "max_tokens": 100},
        tools=[{"type": "function", "function": {"name": "look", "parameters": city}}],
        tool_choice={"type": "function", "function": {"name": "look"}},
    )
    (call,) = made.choices[0].message.tool_calls
    assert call.function.name == "look" and "city" in call.function.arguments
    tokens = client.post("/../extras/tokenize", body={"input": "The capital"}, cast_to=object)
    assert len(tokens["tokens"]) == 2
    made = client.embeddings.create(model="demo", input="A cat", encoding_format="float")
    assert made.data[0].embedding
