"""Rows of a batch as requests, and answers as lines; no Ray."""

from __future__ import annotations

import json
from typing import Any

import pytest

pytest.importorskip("starlette")

from pyllama.cluster.batch import output_line, row_request
from pyllama.cluster.replica import Answer

USAGE = {"prompt_tokens": 3, "completion_tokens": 2}
TEXT = {"choices": [{"text": "x", "finish_reason": "stop"}], "usage": USAGE}
CHAT = {"choices": [{"message": {"content": "x"}, "finish_reason": "stop"}], "usage": USAGE}


def line(row: dict[str, Any], status: int, body: Any) -> Any:
    return json.loads(
        output_line(row_request(row, 4, None), Answer(status, json.dumps(body).encode()))
    )


def test_prompts_and_conversations() -> None:
    request = row_request({"prompt": "a", "other": 1}, 4, 9)
    assert (request.id, request.url, request.body) == (
        4,
        "/v1/completions",
        {"prompt": "a", "seed": 9},
    )
    messages = [{"role": "user", "content": "a"}]
    request = row_request({"id": "n", "messages": messages}, 4, None)
    assert (request.id, request.url) == ("n", "/v1/chat/completions")
    expected = {"id": 4, "text": "x", "finish_reason": "stop", **USAGE}
    assert line({"prompt": "a"}, 200, TEXT) == expected
    assert line({"messages": messages}, 200, CHAT) == expected


def test_lines_of_openais_batches() -> None:
    row = {"custom_id": "c", "method": "POST", "url": "/v1/chat/completions",
           "body": {"messages": [], "stream": True}}  # fmt: skip
    request = row_request(row, 0, 5)
    assert request.body == {"messages": [], "stream": False}
    found = line(row, 200, CHAT)
    assert (found["custom_id"], found["response"]["status_code"], found["error"]) == (
        "c",
        200,
        None,
    )
    assert found["response"]["body"] == CHAT
    failed = line(row, 400, {"error": {"message": "no"}})
    assert failed["error"] == {"code": "400", "message": "no"}
    assert row_request({"body": '{"prompt": "a"}'}, 0, None).url == "/v1/completions"


@pytest.mark.parametrize(
    ("row", "text"),
    [
        ({"id": 1}, "no prompt, messages or body"),
        ({"prompt": None}, "no prompt, messages or body"),
        ({"body": 5}, '"body" is not a JSON object'),
        ({"body": "{"}, '"body" is not a JSON object'),
        ({"body": {}, "url": "/props"}, "'/props' cannot be asked"),
        ({"body": {"prompt": "a"}, "method": "GET"}, "cannot be asked"),
    ],
)
def test_rows_that_cannot_be_asked(row: dict[str, Any], text: str) -> None:
    request = row_request(row, 0, None)
    assert text in request.error
    error = json.loads(output_line(request, Answer()))["error"]
    assert text in (error["message"] if request.is_openai else error)


def test_errors_of_the_server_are_errors_of_the_row() -> None:
    assert line({"prompt": "a"}, 400, {"error": {"message": "too long"}}) == {
        "id": 4,
        "error": "too long",
    }
    assert line({"prompt": "a"}, 502, {}) == {"id": 4, "error": "status 502"}
