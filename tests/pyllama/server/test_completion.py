"""llama.cpp's and OpenAI's completions."""

from __future__ import annotations

import re
from typing import Any

import pytest
from starlette.testclient import TestClient

from pyllama import Model
from pyllama.server.app import make_app
from pyllama.speculative import PromptLookup, Speculation

from ...tiers import some
from .conftest import Serve, events, make_served

PROMPT = "Once upon a time"
BASE = {"prompt": PROMPT, "n_predict": 12, "temperature": 1.0, "ignore_eos": True}


def post(client: TestClient, path: str = "/completion", **fields: Any) -> Any:
    response = client.post(path, json={**BASE, **fields})
    assert response.status_code == 200, response.text
    return response.json()


def stream(client: TestClient, path: str = "/completion", **fields: Any) -> list[dict[str, Any]]:
    response = client.post(path, json={**BASE, "stream": True, **fields})
    assert response.status_code == 200, response.text
    assert response.headers["content-type"].startswith("text/event-stream")
    return events(response.text)


def test_a_completion(client: TestClient) -> None:
    found = post(client, return_tokens=True)
    assert found["stop"] and found["stop_type"] == "limit" and not found["truncated"]
    assert found["tokens_predicted"] == len(found["tokens"]) == 12
    assert found["generation_settings"]["n_predict"] == 12
    assert found["generation_settings"]["seed"] == 1
    timings = found["timings"]
    assert timings["prompt_n"] + timings["cache_n"] == found["tokens_evaluated"]
    rate = 1e3 * 11 / timings["predicted_ms"]
    assert timings["predicted_per_second"] == pytest.approx(rate)


def test_a_stream_is_the_whole_text(client: TestClient) -> None:
    whole, chunks = post(client, return_tokens=True), stream(client)
    assert "".join(c["content"] for c in chunks) == whole["content"]
    assert [t for c in chunks[:-1] for t in c["tokens"]] == whole["tokens"]
    assert [c["stop"] for c in chunks] == [False] * (len(chunks) - 1) + [True]


def test_the_cache_changes_counts_and_no_text(client: TestClient) -> None:
    first, second = post(client), post(client)
    assert second["content"] == first["content"]
    assert second["timings"]["cache_n"] == first["tokens_evaluated"] - 1
    assert post(client, cache_prompt=False)["timings"]["cache_n"] == 0


def test_seeds(client: TestClient) -> None:
    assert post(client, seed=5)["content"] == post(client, seed=5)["content"]
    assert post(client, seed=5)["content"] != post(client, seed=6)["content"]


def test_log_probabilities(client: TestClient) -> None:
    found = post(client, n_probs=3)["completion_probabilities"]
    assert len(found) == 12
    for one in found:
        top = [entry["logprob"] for entry in one["top_logprobs"]]
        assert len(top) == 3 and top == sorted(top, reverse=True) and top[0] <= 0
        assert bytes(one["bytes"]).decode("utf-8", "ignore") == one["token"]
    chunks = stream(client, n_probs=3)
    assert [p for c in chunks for p in c.get("completion_probabilities", ())] == found


def test_probabilities_after_sampling(client: TestClient) -> None:
    whole = post(client)
    found = post(client, n_probs=4, post_sampling_probs=True, top_k=3)
    for one in found["completion_probabilities"]:
        probs = [entry["prob"] for entry in one["top_probs"]]
        assert len(probs) <= 3 and sum(probs) == pytest.approx(1)
        assert one["prob"] in probs
    same = post(client, n_probs=4, post_sampling_probs=True)
    assert same["content"] == whole["content"]  # recording changes nothing


def test_stop_strings(client: TestClient) -> None:
    whole = post(client, n_predict=40)["content"]
    word = whole[5:7]
    found = post(client, n_predict=40, stop=[word])
    assert found["content"] == whole[: whole.index(word)]
    assert found["stop_type"] == "word" and found["stopping_word"] == word
    chunks = stream(client, n_predict=40, stop=word)
    assert "".join(c["content"] for c in chunks) == found["content"]


@pytest.mark.parametrize("reason", ["length", "stop"])
def test_reasons_of_an_end_in_all_apis(client: TestClient, reason: str) -> None:
    """A limit, and a stop string, each in the words of its API."""
    word = post(client, n_predict=40)["content"][5:7]
    stop = [word] if reason == "stop" else []
    body = {"stop": stop, "max_tokens": 40}
    openai = post(client, "/v1/completions", **body)["choices"][0]
    assert openai["finish_reason"] == reason
    chunks = stream(client, "/v1/completions", **body)
    assert [c["choices"][0]["finish_reason"] for c in chunks if c["choices"]][-1] == reason
    chat = {**BASE, "messages": [{"role": "user", "content": PROMPT}], "max_tokens": 40}
    text = post(client, "/v1/messages", **chat)["content"][0]["text"]
    stop = [text[3:5]] if reason == "stop" else []
    found = post(client, "/v1/messages", **chat, stop_sequences=stop)
    assert found["stop_reason"] == {"length": "max_tokens", "stop": "stop_sequence"}[reason]
    found = post(client, "/v1/chat/completions", **chat, stop=stop)["choices"][0]
    assert found["finish_reason"] == reason


def test_several_prompts_and_texts(client: TestClient) -> None:
    tokens = client.post("/tokenize", json={"content": PROMPT, "add_special": True}).json()
    prompts = [PROMPT, tokens["tokens"], {"prompt_string": PROMPT}]
    found = post(client, prompt=prompts, temperature=0)
    assert [f["index"] for f in found] == [0, 1, 2]
    assert len({f["content"] for f in found}) == 1
    found = post(client, "/v1/completions", prompt=["a", "b"], n=2)
    assert [c["index"] for c in found["choices"]] == [0, 1, 2, 3]
    assert found["usage"]["completion_tokens"] == 48


def test_response_fields(client: TestClient) -> None:
    wanted = ["content", "generation_settings/n_predict", "no/such"]
    found = post(client, response_fields=wanted)
    assert found.keys() == set(wanted[:2]) and found["generation_settings/n_predict"] == 12


def test_progress_of_the_prompt(serve: Serve) -> None:
    client = serve(n_ctx=4096)
    found = stream(client, prompt="a " * 700, return_progress=True, timings_per_token=True)
    progress = [c["prompt_progress"] for c in found if "prompt_progress" in c]
    assert progress[0]["processed"] == progress[0]["cache"] == 0
    assert progress[-1]["processed"] == progress[-1]["total"]
    done = [p["processed"] for p in progress]
    assert done == sorted(set(done))
    assert found[0]["timings"]["prompt_n"] == 0 and found[0]["timings"]["prompt_ms"] == 0


def test_no_tokens(client: TestClient) -> None:
    found = post(client, n_predict=0)
    assert found["content"] == "" and found["tokens_predicted"] == 0
    assert post(client)["timings"]["cache_n"] == found["tokens_evaluated"] - 1


def test_a_slot_by_its_number(client: TestClient) -> None:
    assert [post(client, id_slot=i)["id_slot"] for i in (1, 0, 1)] == [1, 0, 1]
    found = post(client, "/v1/completions", id_slot=0, n=2)
    assert len(found["choices"]) == 2


def test_a_grammar(client: TestClient) -> None:
    assert post(client, grammar='root ::= "a"{5}')["content"] == "aaaaa"
    assert post(client, json_schema={"const": "x"})["content"] == '"x"'


def test_a_full_context(serve: Serve) -> None:
    client = serve(n_ctx=64, n_slots=1)
    found = post(client, n_predict=-1)
    assert found["truncated"] and found["stop_type"] == "limit"
    shifting = serve(n_ctx=64, n_slots=1, context_shift=True)
    found = post(shifting, n_predict=100)
    assert found["truncated"] and found["tokens_predicted"] == 100


def test_openai_chunks(client: TestClient) -> None:
    response = client.post("/v1/completions", json={**BASE, "stream": True})
    assert response.text.endswith("data: [DONE]\n\n")
    chunks = events(response.text)
    whole = post(client, "/v1/completions")
    assert "".join(c["choices"][0]["text"] for c in chunks) == whole["choices"][0]["text"]
    reasons = [c["choices"][0]["finish_reason"] for c in chunks]
    assert reasons == [None] * (len(chunks) - 1) + ["length"]
    assert {c["id"] for c in chunks} == {chunks[0]["id"]}


@pytest.mark.parametrize(
    ("fields", "named"),
    some(
        [
            ({"prompt": None}, "prompt"),
            ({"prompt": 5}, "prompt"),
            ({"prompt": []}, "prompt"),
            ({"prompt": [[]]}, "prompt"),
            ({"prompt": [1, 10**6]}, "tokens"),
            ({"prompt": [-1]}, "tokens"),
            ({"prompt": {"prompt_string": "x", "multimodal_data": ["AA=="]}}, "ultimodal"),
            ({"n_predict": "many"}, "n_predict"),
            ({"n_predict": -5}, "n_predict"),
            ({"temperature": "hot"}, "temperature"),
            ({"repeat_penalty": 0}, "repeat_penalty"),
            ({"n": 9}, "n"),
            ({"stop": [1]}, "stop"),
            ({"samplers": ["nonsense"]}, "nonsense"),
            ({"grammar": "root ::= ("}, ""),
            ({"json_schema": {"type": "hiccup"}}, ""),
            ({"lora": [{"id": 0, "scale": 1}]}, "lora"),
            ({"id_slot": 7}, "id_slot"),
            ({"stream": "yes"}, "stream"),
            ({"n_discard": -3}, "n_discard"),
            ({"n_indent": -1}, "n_indent"),
            ({"logit_bias": 3}, "logit_bias"),
            ({"dry_sequence_breakers": []}, "dry_sequence_breakers"),
        ],
        10,
    ),
)
def test_wrong_fields_are_named(client: TestClient, fields: dict[str, Any], named: str) -> None:
    response = client.post("/completion", json={**BASE, **fields})
    error = response.json()["error"]
    assert response.status_code == error["code"] == 400
    assert error["type"] == "invalid_request_error" and named in error["message"]


def test_a_prompt_that_is_too_long(serve: Serve) -> None:
    client = serve(n_ctx=128, unified=False)
    for extra in ({}, {"stream": True}):
        response = client.post("/completion", json={**BASE, "prompt": "a " * 100, **extra})
        error = response.json()["error"]
        assert response.status_code == 400 and error["type"] == "exceed_context_size_error"
        assert error["n_ctx"] == 64 and error["n_prompt_tokens"] > 64


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b"\xff", b'{"prompt": NaN', b"[" * 500])
def test_bodies_that_are_not_json(client: TestClient, data: bytes) -> None:
    assert client.post("/completion", content=data).status_code == 400


def test_a_body_that_is_too_large(serve: Serve) -> None:
    client = serve(max_body_bytes=100)
    response = client.post("/completion", json={"prompt": "x" * 200})
    assert response.status_code == 413

    def parts():  # without Content-Length
        for _ in range(5):
            yield b"x" * 50

    assert client.post("/completion", content=parts()).status_code == 413


def test_drafts_change_no_text(model: Model) -> None:
    prompt = "one two three one two three one two"
    ask = {"prompt": prompt, "n_predict": 40, "temperature": 0, "ignore_eos": True}
    found = []
    for speculation in (None, Speculation(PromptLookup(), max_draft=8, adaptive=False)):
        served = make_served(model, endpoint_metrics=True, speculation=speculation)
        with TestClient(make_app(served), base_url="http://localhost") as client:
            found.append(client.post("/completion", json=ask).json())
            chunks = events(client.post("/completion", json={**ask, "stream": True}).text)
            assert "".join(c["content"] for c in chunks) == found[-1]["content"]
            metrics = client.get("/metrics").text
    assert found[0]["content"] == found[1]["content"]
    assert "draft_n" not in found[0]["timings"]
    both = [found[1]["timings"], chunks[-1]["timings"]]
    n_drafted, n_accepted = (sum(t[f"draft_n{end}"] for t in both) for end in ("", "_accepted"))
    assert n_drafted >= n_accepted > 0
    name = "llamacpp:spec_decode_num_"
    assert f"\n{name}draft_tokens_total {n_drafted}\n" in metrics
    assert f"\n{name}accepted_tokens_total {n_accepted}\n" in metrics
    positions = re.findall(rf'{name}accepted_tokens_per_pos_total{{position="\d+"}} (\d+)', metrics)
    assert sum(map(int, positions)) == n_accepted


def test_a_grammar_that_a_word_starts(client: TestClient) -> None:
    base = BASE | {"grammar": 'root ::= "<go>" "yes"', "grammar_lazy": True, "n_predict": 30}
    base |= {"temperature": 0, "logit_bias": [["<", 99], ["g", 0]]}
    word = {"type": 1, "value": "<"}
    found = post(client, **base | {"grammar": 'root ::= "<yes>"'}, grammar_triggers=[word])
    assert found["content"] == "<yes>" and found["stop_type"] == "eos"
    settings = found["generation_settings"]
    assert settings["grammar_lazy"] and settings["grammar_triggers"] == [word]
    (token,) = client.post("/tokenize", json={"content": "<"}).json()["tokens"][-1:]
    by_token = {"type": 0, "value": "<", "token": token}
    found = post(client, **base | {"grammar": 'root ::= "<no>"'}, grammar_triggers=[by_token])
    assert found["content"] == "<no>"
    free = post(client, **base, grammar_triggers=[{"type": 1, "value": "never"}])
    assert free["tokens_predicted"] == 30
    for wrong in ([], [{"type": 2, "value": "(a*)*b"}], ["x"], [{"type": 1}], [{}], "x"):
        body = base | {"grammar_triggers": wrong}
        assert client.post("/completion", json=body).status_code == 400


def test_a_block_ends_where_it_is_not_indented(client: TestClient) -> None:
    grammar = {"grammar": 'root ::= "if x:\\n    y\\nz" [a-z]+', "n_predict": 200}
    whole = post(client, **grammar)
    assert whole["content"].startswith("if x:\n    y\nz") and whole["tokens_predicted"] == 200
    found = post(client, **grammar, n_indent=4, n_cmpl=2)
    assert [one["content"] for one in found] == ["if x:\n    y\n"] * 2
    assert [one["stop_type"] for one in found] == ["limit"] * 2
    chunks = events(
        client.post("/completion", json=BASE | grammar | {"n_indent": 4, "stream": True}).text
    )
    assert chunks[-1]["stop"] and chunks[-1]["tokens_predicted"] == found[0]["tokens_predicted"]


def test_the_time_limit_ends_a_text_at_a_line_break(client: TestClient) -> None:
    grammar = {"grammar": 'root ::= ([a-z]{40} "\\n")+', "n_predict": 800}
    found = post(client, **grammar, t_max_predict_ms=1)
    assert found["stop_type"] == "limit" and found["tokens_predicted"] < 800
    assert found["content"].rstrip("\n").count("\n") <= 1  # the step after it may be under way
