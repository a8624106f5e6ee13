"""Bounds on the lists and texts of requests."""

from __future__ import annotations

from typing import Any

import pytest

from pyllama.server.request.errors import ApiError
from pyllama.server.request.limits import LIMITS, check_sizes

from .conftest import Serve

ASK = {"prompt": "a", "n_predict": 2}


@pytest.mark.parametrize("name", LIMITS)
def test_bounds(name: str) -> None:
    limit = LIMITS[name]
    for value, is_wrong in (
        ("x" * limit.chars, False),
        ("x" * (limit.chars + 1), True),
        ([1] * limit.items, False),
        ([1] * (limit.items + 1), True),
        ({str(i): 0 for i in range(limit.items + 1)}, True),
        ([["x" * limit.chars, {"x": 1}]], True),
    ):
        for body in ({name: value}, {"options": {name: value}}):
            if is_wrong:
                with pytest.raises(ApiError, match=f"'{name}': has .* at most .* are allowed"):
                    check_sizes(body)
            else:
                check_sizes(body)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/completion", {**ASK, "dry_sequence_breakers": [f"{i}" for i in range(3000)]}),
        ("/completion", {**ASK, "samplers": "k" * 500_000}),
        ("/completion", {**ASK, "samplers": ["top_k"] * 20_000}),
        ("/completion", {**ASK, "samplers": ["top_k", "top-k"]}),
        ("/completion", {**ASK, "samplers": "kpk"}),
        ("/completion", {**ASK, "stop": "x" * 100_000}),
        ("/v1/messages", {"messages": [], "max_tokens": 1, "stop_sequences": ["x"] * 300}),
        ("/completion", {**ASK, "logit_bias": [["x" * 100_000, 1]]}),
        ("/completion", {**ASK, "response_fields": ["a"] * 200}),
        ("/api/generate", {"prompt": "a", "options": {"stop": ["x" * 100_000]}}),
        ("/tokenize", {"content": "a" * 2_000_000}),
    ],
)
def test_requests_over_a_bound(serve: Serve, path: str, body: dict[str, Any]) -> None:
    response = serve().post(path, json=body)
    assert response.status_code == 400
    assert "at most" in response.text or "more than once" in response.text


def test_requests_at_the_bounds(serve: Serve) -> None:
    body = {
        **ASK,
        "dry_multiplier": 1.0,
        "dry_sequence_breakers": [f"{i:032x}" for i in range(128)],
        "stop": ["never" + "x" * 59] * 256,
        "logit_bias": {str(i): 1 for i in range(250)},
        "response_fields": ["content", *map(str, range(127))],
        "samplers": "edskypmxt",
    }
    assert "content" in serve().post("/completion", json=body).json()
