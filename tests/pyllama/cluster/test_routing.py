"""What in a request chooses its model and its replica; no Ray."""

from __future__ import annotations

import json
from typing import Any

import pytest

pytest.importorskip("starlette")

from pyllama.cluster.routing import MODEL_HEADER, prefix_key, read_target


def target(body: Any, models: tuple[str, ...] = ("a", "b"), **headers: str) -> Any:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return read_target(data, headers, models, 16)


def test_prompts_with_the_same_beginning_have_the_same_key() -> None:
    keys = {prefix_key({"prompt": "x" * 16 + end}, 16) for end in ("", "a", "bc")}
    assert len(keys) == 1 and len(keys.pop()) == 24
    assert prefix_key({"prompt": "y" * 16}, 16) != prefix_key({"prompt": "x" * 16}, 16)
    assert prefix_key({"prompt": "x" * 8}, 16) != prefix_key({"prompt": "x" * 16}, 16)


def test_keys_follow_all_formats_of_prompts() -> None:
    system = {"role": "system", "content": "Answer in one word."}
    one = {"messages": [system, {"role": "user", "content": "A?"}]}
    two = {"messages": [system, {"role": "user", "content": "B?"}], "temperature": 1}
    parts = {"messages": [{"role": "system", "content": [{"type": "text", "text": "Answer i"}]}]}
    assert prefix_key(one, 20) == prefix_key(two, 20) != prefix_key(one, 60)
    assert prefix_key(one, 60) != prefix_key(two, 60)
    assert prefix_key(parts, 14) == prefix_key(one, 14)
    assert prefix_key({"prompt": [1, 2, 3]}, 9) == prefix_key({"prompt": [1, 2, 3]}, 9) != ""
    assert prefix_key({"instructions": "x", "input": "y"}, 9)


@pytest.mark.parametrize("fields", [{}, {"prompt": ""}, {"prompt": None}, {"prompt": True}])
def test_no_prompt_no_key(fields: dict[str, Any]) -> None:
    assert prefix_key(fields, 9) == ""


def test_models_are_named_by_header_or_body() -> None:
    assert target({"model": "b"}).model == "b"
    assert target({}).model == "a"
    assert target({"model": "b"}, **{MODEL_HEADER: "a"}).model == "a"
    assert target({"model": "c"}).model is None and target({"model": "c"}).asked == "c"
    assert target({"model": 3}).model == "a"
    assert target({"model": "gpt-4"}, models=("a",)).model == "a"


@pytest.mark.parametrize("data", [b"", b"{", b"[1]", b"\xff", b'{"a":' * 200, b"{}x"])
def test_bodies_that_are_no_json_objects(data: bytes) -> None:
    found = target(data)
    assert (found.model, found.key) == ("a", "")
