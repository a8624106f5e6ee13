"""Keys, origins of browsers, host names, and static files."""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from .conftest import Serve

ASK = {"prompt": "a", "n_predict": 1}


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 401),
        ({"Authorization": "Bearer no"}, 401),
        ({"Authorization": "Bearer one"}, 200),
        ({"Authorization": "Bearer two"}, 200),
        ({"X-Api-Key": "two"}, 200),
        ({"X-Api-Key": "\xff"}, 401),
    ],
)
def test_keys(serve: Serve, headers: dict[str, str], status: int) -> None:
    client = serve(api_keys=("one", "two"))
    encoded = {k: v.encode("latin-1") for k, v in headers.items()}
    response = client.post("/completion", json=ASK, headers=encoded)
    assert response.status_code == status
    if status == 401:
        assert response.json()["error"]["type"] == "authentication_error"
    for path in ("/health", "/v1/health", "/"):
        assert client.get(path).status_code == 200
    assert client.get("/props").status_code == 401


@pytest.mark.parametrize(
    ("allowed", "origin", "shown"),
    [
        ("*", "http://a.example", "http://a.example"),
        ("localhost", "http://localhost:3000", "http://localhost:3000"),
        ("localhost", "http://[::1]", "http://[::1]"),
        ("localhost", "http://localhost.example", None),
        ("http://a.example", "http://b.example", "http://a.example"),
    ],
)
def test_origins(serve: Serve, allowed: str, origin: str, shown: str | None) -> None:
    client = serve(cors_origins=allowed, api_keys=("x",))
    response = client.options("/completion", headers={"Origin": origin})
    assert response.status_code == 200
    assert response.headers.get("access-control-allow-origin") == shown
    assert response.headers["access-control-allow-methods"] == "GET, POST, DELETE, OPTIONS"


@pytest.mark.parametrize(
    ("host", "allowed", "status"),
    [
        ("localhost:8080", (), 200),
        ("localhost:99999", (), 403),
        ("localhost:8080x", (), 403),
        ("127.0.0.1", (), 200),
        ("[::1]:8080", (), 200),
        ("192.168.1.7:8080", (), 200),
        ("evil.example", (), 403),
        ("evil.example:8080", (), 403),
        ("", (), 403),
        ("box", ("box",), 200),
        ("evil.example", None, 200),
    ],
)
def test_hosts(serve: Serve, host: str, allowed: tuple[str, ...] | None, status: int) -> None:
    client = serve(allowed_hosts=allowed)
    assert client.get("/health", headers={"Host": host}).status_code == status


def test_a_server_without_open_paths(serve: Serve) -> None:
    client = serve(api_keys=("one",), open_health=False, ui=False)
    for path in ("/health", "/v1/health", "/"):
        assert client.get(path, headers={"X-Api-Key": "two"}).status_code == 401
    assert client.get("/health", headers={"X-Api-Key": "one"}).status_code == 200


def test_static_files(serve: Serve, tmp_path: Path) -> None:
    assert "<!doctype html>" in serve().get("/").text
    assert serve(ui=False).get("/").status_code == 404
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub/x.js").write_text("1")
    (tmp_path / ".hidden").write_text("2")
    client = serve(path=tmp_path)
    response = client.get("/sub/x.js")
    assert response.text == "1" and "javascript" in response.headers["content-type"]
    for path in ("/.hidden", "/sub", "/%2e%2e/x", "/sub/%2e%2e/.hidden"):
        assert client.get(path).status_code == 404


def test_the_proxy_forwards_named_headers_alone(serve: Serve) -> None:
    seen: dict[str, str] = {}

    class Target(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            seen.update({name.lower(): value for name, value in self.headers.items()})
            self.send_response(302)
            self.send_header("Location", "http://elsewhere.invalid/")
            self.end_headers()

        def log_message(self, *args: object) -> None: ...

    with HTTPServer(("127.0.0.1", 0), Target) as target:
        thread = threading.Thread(target=target.handle_request)
        thread.start()
        client = serve(cors_proxy=True)
        given = {"Cookie": "s=1", "X-Llama-Server-Proxy-Header-Authorization": "Bearer x"}
        url = f"/cors-proxy?url=http://127.0.0.1:{target.server_port}/a"
        response = client.get(url, headers=given, follow_redirects=False)
        thread.join()
    assert response.status_code == 302 and seen["authorization"] == "Bearer x"
    assert "cookie" not in seen
    for wrong in ("file:///etc/passwd", "http://", "http://u:p@x/", "nonsense", "http://["):
        assert client.get("/cors-proxy", params={"url": wrong}).status_code == 400
    assert serve().get(url).status_code == 403


def test_unknown_paths_and_methods(serve: Serve) -> None:
    client = serve(api_prefix="/llm")
    assert client.get("/llm/health").status_code == 200
    for response in (client.get("/health"), client.post("/llm/health")):
        assert response.status_code in (404, 405)
        assert response.json()["error"]["code"] == response.status_code
