"""Schemas of tools and replies that a grammar cannot hold, in each API."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from starlette.testclient import TestClient

from ...tiers import some

ASK = [{"role": "user", "content": "Hi"}]
# keyword -> a schema of a property with it, of which a grammar holds the rest
UNHELD: dict[str, Any] = {
    "not": {"type": "integer", "not": {"const": 3}},
    "if": {"type": "integer", "if": {"minimum": 3}, "then": {"multipleOf": 2}},
    "contains": {"type": "array", "items": {"type": "integer"}, "contains": {"const": 3}},
    "uniqueItems": {"type": "array", "items": {"type": "integer"}, "uniqueItems": True},
    "unevaluatedProperties": {"type": "object", "unevaluatedProperties": False},
    "multipleOf": {"type": "integer", "multipleOf": 12345},
    "pattern": {"type": "string", "pattern": "(?<=a)b"},
    "exclusiveMinimum": {"type": "number", "exclusiveMinimum": True},
    "$ref": {"$ref": "http://json-schema.org/draft-07/schema#"},
}
# keywords that were not held once
HELD: dict[str, Any] = {
    "a lookahead": {"type": "string", "pattern": r"^(?!\.)(?!.*\.\.)[a-z.]{1,9}@[a-z]{2,5}$"},
    "flags": {"type": "string", "pattern": "(?i)^(yes|no)$"},
    "a category": {"type": "string", "pattern": r"^\p{L}{1,9}$"},
    "a boundary": {"type": "string", "pattern": r"\bab\b", "maxLength": 9},
    "decimals": {"type": "number", "multipleOf": 0.01, "minimum": 0, "maximum": 9},
    "draft 4": {"type": "integer", "minimum": 0, "exclusiveMinimum": True, "maximum": 9},
    "an enum": {"type": "array", "items": {"enum": ["a", "b"]}, "uniqueItems": True},
    "dependencies": {
        "type": "object",
        "properties": {"a": {"type": "null"}, "b": {"type": "null"}},
        "dependentRequired": {"a": ["b"]},
    },
}


def requests(schema: Any, strict: bool | None = None) -> dict[str, dict[str, Any]]:
    """Requests with a tool, by path."""
    parameters = {"type": "object", "properties": {"x": schema}, "required": ["x"]}
    given = {} if strict is None else {"strict": strict}
    function = {"name": "f", "description": "", "parameters": parameters, **given}
    tools = [{"type": "function", "function": function}]
    chat = {"messages": ASK, "max_tokens": 1, "tools": tools}
    anthropic = {
        "messages": ASK,
        "max_tokens": 1,
        "tools": [{"name": "f", "input_schema": parameters, **given}],
    }
    responses = {
        "input": "Hi",
        "max_output_tokens": 1,
        "tools": [{"type": "function", **function}],
    }
    return {
        "/v1/chat/completions": chat,
        "/v1/chat/completions/input_tokens": chat,
        "/apply-template": chat,
        "/v1/messages": anthropic,
        "/v1/messages/count_tokens": anthropic,
        "/v1/responses": responses,
        "/v1/responses/input_tokens": responses,
        "/api/chat": {
            "messages": ASK, "tools": tools, "stream": False, "options": {"num_predict": 1},
        },
    }  # fmt: skip


@pytest.mark.parametrize("keyword", some(UNHELD, 3))
def test_a_tool_without_strict_is_held_to_what_a_grammar_can_hold(
    keyword: str, client: TestClient, caplog: pytest.LogCaptureFixture
) -> None:
    for strict in (None, False):
        for path, body in requests(UNHELD[keyword], strict).items():
            caplog.clear()
            with caplog.at_level(logging.WARNING):
                found = client.post(path, json=body)
            assert found.status_code == 200, (path, found.text)
            ignored = found.headers["X-Ignored-Fields"].split(", ")
            assert f"tools.f#/properties/x/{keyword}" in ignored, path
            lines = [r.message for r in caplog.records if "does not hold" in r.message]
            assert len(lines) == 1 and "tools.f#/properties/x/" in lines[0]


@pytest.mark.parametrize("keyword", UNHELD)
def test_a_strict_tool_is_refused(keyword: str, client: TestClient) -> None:
    for path, body in requests(UNHELD[keyword], strict=True).items():
        found = client.post(path, json=body)
        assert found.status_code == 400, path
        assert f"#/properties/x/{keyword}" in found.text and "the tool 'f'" in found.text


@pytest.mark.parametrize("name", some(HELD, 4))
def test_a_strict_tool_that_a_grammar_can_hold(name: str, client: TestClient) -> None:
    for path, body in requests(HELD[name], strict=True).items():
        found = client.post(path, json=body)
        assert found.status_code == 200, (path, found.text)
        assert "tools.f#" not in found.headers.get("X-Ignored-Fields", "")


def test_response_formats(client: TestClient) -> None:
    schema = {"type": "object", "properties": {"x": UNHELD["not"]}}
    for strict, status in ((None, 200), (False, 200), (True, 400)):
        inner = {"name": "s", "schema": schema, "strict": strict}
        for path, body in (
            (
                "/v1/chat/completions",
                {
                    "messages": ASK,
                    "max_tokens": 1,
                    "response_format": {"type": "json_schema", "json_schema": inner},
                },
            ),
            (
                "/v1/responses",
                {
                    "input": "Hi",
                    "max_output_tokens": 1,
                    "text": {"format": {"type": "json_schema", **inner}},
                },
            ),
        ):
            found = client.post(path, json=body)
            assert found.status_code == status, (path, strict, found.text)
            if status == 200:
                ignored = found.headers["X-Ignored-Fields"]
                assert "response_format#/properties/x/not" in ignored
    for path, body in (
        ("/v1/chat/completions", {"messages": ASK, "json_schema": schema}),
        ("/completion", {"prompt": "Hi", "json_schema": schema}),
        ("/api/chat", {"messages": ASK, "format": schema}),
    ):
        assert client.post(path, json=body).status_code == 400
