"""Paths that other servers have answer 501 with a sentence; all others stay 404."""

from __future__ import annotations

import pytest
from starlette.testclient import TestClient

from pyllama.server.app import ROUTES, SLEEPING_ROUTES
from pyllama.server.http.missing import MISSING

from .conftest import Serve

OTHERS = (  # of the lists of llama-server, OpenAI, Anthropic and Ollama
    "GET /tools", "POST /tools", "POST /models", "DELETE /models", "POST /models/load",
    "POST /models/unload", "GET /models/sse", "GET /v1/streams", "GET /v1/stream/x",
    "DELETE /v1/stream/x", "POST /predict", "GET /v1/chat/completions",
    "GET /v1/chat/completions/x", "POST /v1/chat/completions/x", "DELETE /v1/chat/completions/x",
    "GET /v1/chat/completions/x/messages", "GET /v1/responses/x", "DELETE /v1/responses/x",
    "POST /v1/responses/x/cancel", "GET /v1/responses/x/input_items", "POST /v1/responses/compact",
    "POST /v1/conversations", "GET /v1/conversations/x/items", "POST /v1/files", "GET /v1/files",
    "GET /v1/files/x", "GET /v1/files/x/content", "DELETE /v1/files/x", "POST /v1/uploads",
    "POST /v1/batches", "GET /v1/batches/x", "POST /v1/batches/x/cancel",
    "POST /v1/images/generations", "POST /v1/images/edits", "POST /v1/images/variations",
    "POST /v1/audio/speech", "POST /v1/audio/translations", "POST /v1/videos",
    "POST /v1/realtime/sessions", "POST /v1/moderations", "POST /v1/fine_tuning/jobs",
    "POST /v1/evals", "POST /v1/vector_stores", "POST /v1/vector_stores/x/search",
    "POST /v1/containers", "POST /v1/assistants", "POST /v1/threads", "POST /v1/threads/x/runs",
    "GET /v1/organization/usage/completions", "POST /v1/chatkit/sessions", "DELETE /v1/models/x",
    "POST /v1/edits", "POST /v1/engines/x/completions", "POST /v1/messages/batches",
    "GET /v1/messages/batches/x/results", "POST /v1/complete", "POST /api/pull", "POST /api/push",
    "POST /api/create", "POST /api/copy", "DELETE /api/delete", "POST /api/blobs/sha256:x",
    "HEAD /api/blobs/sha256:x", "POST /api/me",
    "POST /api/signout", "GET /api/status", "POST /api/experimental/web_search",
)  # fmt: skip


def test_paths_of_other_servers(client: TestClient) -> None:
    for one in OTHERS:
        method, _, path = one.partition(" ")
        response = client.request(method, path)
        assert response.status_code == 501, one
        if method != "HEAD":
            error = response.json()["error"]
            assert len(error if path.startswith("/api/") else error["message"]) > 10


def test_other_paths_are_not_found(client: TestClient) -> None:
    for path in ("/nowhere", "/v1/nowhere", "/v1", "/api", "/api/nowhere", "/v1/filesystem"):
        assert client.get(path).status_code == 404, path
    assert client.get("/completion").status_code == 405


def test_no_path_is_both_served_and_missing() -> None:
    served = {(m, path) for m, paths, _ in (*ROUTES, *SLEEPING_ROUTES) for path in paths}
    missing = {(m, path) for methods, paths, _ in MISSING for m in methods for path in paths}
    assert not served & missing


def test_they_have_the_prefix_and_need_a_key(serve: Serve) -> None:
    client = serve(api_prefix="/llm", api_keys=("k",))
    assert client.get("/llm/v1/files").status_code == 401
    headers = {"Authorization": "Bearer k"}
    assert client.get("/llm/v1/files", headers=headers).status_code == 501
    assert client.get("/v1/files", headers=headers).status_code == 404


def test_one_model(serve: Serve) -> None:
    client = serve(aliases=("org/a", "b"))
    (whole,) = client.get("/v1/models").json()["data"]
    for name in ("org/a", "b"):
        assert client.get(f"/v1/models/{name}").json() == whole
    response = client.get("/v1/models/c")
    assert response.status_code == 404
    assert response.json()["error"]["message"] == "The model 'c' does not exist"


@pytest.mark.parametrize("prefix", ["", "/api"])
def test_errors_have_the_form_of_their_api(serve: Serve, prefix: str) -> None:
    client = serve(api_prefix=prefix, api_keys=("k",), max_body_bytes=1000)
    key = {"Authorization": "Bearer k"}
    kinds = {400: "invalid_request_error", 401: "authentication_error", 413: "request_too_large"}
    for path in ("/api/chat", "/v1/messages", "/v1/chat/completions"):
        for status, headers, data in (
            (401, {}, b"{}"),
            (400, key, b"{"),
            (400, key, b'{"messages": [3]}'),
            (413, key, b" " * 1001),
        ):
            response = client.post(prefix + path, headers=headers, content=data)
            body = response.json()
            assert response.status_code == status, body
            if path == "/api/chat":
                assert body.keys() == {"error"} and isinstance(body["error"], str)
            elif path == "/v1/messages":
                assert body["type"] == "error"
                assert body["error"]["type"] == kinds[status]
            else:
                assert body.keys() == {"error"} and body["error"]["code"] == status
