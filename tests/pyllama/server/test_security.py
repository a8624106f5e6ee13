"""Keys, origins of browsers, host names, and static files."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from pyllama.errors import PyllamaError
from pyllama.server.request.options import ServerOptions

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


LISTED = "https://a.example, http://b.example:8000"
FOREIGN = {"Origin": "http://evil.example", "Sec-Fetch-Site": "cross-site"}


@pytest.mark.parametrize(
    ("allowed", "origin", "shown"),
    [
        ("", "http://localhost", None),
        ("", "http://evil.example", None),
        ("", "null", None),
        ("*", "http://a.example", "*"),
        ("*", "null", "*"),
        ("https://a.example, *", "https://a.example", "*"),
        ("localhost", "http://localhost:3000", "http://localhost:3000"),
        ("localhost", "https://127.0.0.1", "https://127.0.0.1"),
        ("localhost", "http://[::1]", "http://[::1]"),
        ("localhost", "http://localhost.example", None),
        ("localhost", "http://evil.example@localhost", None),
        ("localhost", "null", None),
        ("http://a.example", "http://b.example", None),
        ("http://a.example/", "http://a.example", "http://a.example"),
        (LISTED, "https://a.example", "https://a.example"),
        (LISTED, "http://b.example:8000", "http://b.example:8000"),
        (LISTED, "http://a.example", None),
        (LISTED, "https://a.example.evil", None),
        ("localhost, https://a.example", "http://localhost:1", "http://localhost:1"),
    ],
)
def test_origins(serve: Serve, allowed: str, origin: str, shown: str | None) -> None:
    client = serve(cors_origins=allowed)
    preflight = client.options("/completion", headers={"Origin": origin})
    assert preflight.status_code == 200
    assert preflight.headers["access-control-allow-methods"] == "GET, POST, DELETE, OPTIONS"
    for response in (preflight, client.get("/health", headers={"Origin": origin})):
        headers = response.headers
        assert headers.get("access-control-allow-origin") == shown
        credentials = "true" if shown not in (None, "*") else None
        assert headers.get("access-control-allow-credentials") == credentials
        assert ("Origin" in headers.get("vary", "")) == bool(allowed)
    plain = client.get("/health").headers
    assert plain.get("access-control-allow-origin") == ("*" if "*" in allowed else None)
    assert "access-control-allow-credentials" not in plain


def test_origins_without_credentials(serve: Serve) -> None:
    client = serve(cors_origins="https://a.example", cors_credentials=False)
    headers = client.get("/health", headers={"Origin": "https://a.example"}).headers
    assert headers["access-control-allow-origin"] == "https://a.example"
    assert "access-control-allow-credentials" not in headers


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 200),  # a program
        ({"Origin": "http://localhost"}, 200),  # the server's page, whose Host is localhost
        ({"Origin": "https://LOCALHOST"}, 200),  # before a proxy with TLS
        ({"Origin": "https://me.example", "Sec-Fetch-Site": "same-origin"}, 200),  # Host changed
        ({"Sec-Fetch-Site": "none"}, 200),  # typed by the user
        ({"Origin": "http://localhost:3000"}, 403),
        ({"Origin": "http://localhost", "Sec-Fetch-Site": "same-site"}, 403),
        ({"Origin": "null"}, 403),
        ({"Origin": ""}, 403),
        ({"Sec-Fetch-Site": "cross-site"}, 403),  # a simple request, which has no Origin
        (FOREIGN, 403),
    ],
)
def test_pages_of_other_sites_are_refused(
    serve: Serve, tmp_path: Path, headers: dict[str, str], status: int
) -> None:
    client = serve(slot_save_path=tmp_path, cors_proxy=True)
    # a form or a page sends such a request without asking first
    simple = {**headers, "Content-Type": "text/plain"}
    body = json.dumps({"prompt": "a", "n_predict": 1})
    assert client.post("/completion", content=body, headers=simple).status_code == status
    save = "/slots/0?action=save"
    found = client.post(save, content=json.dumps({"filename": "x"}), headers=simple)
    assert found.status_code == status and (tmp_path / "x").exists() == (status == 200)
    assert client.post("/slots/0?action=erase", headers=simple).status_code == status
    for path in ("/props", "/slots", "/graph.json"):
        assert client.get(path, headers=headers).status_code == status
    if status == 403:
        assert client.get("/cors-proxy?url=http://x", headers=headers).status_code == 403
    for path in ("/health", "/", "/page/chat.js"):  # a link from another site leads to the page
        assert client.get(path, headers=headers).status_code == 200


def test_allowed_pages_may_do_all(serve: Serve) -> None:
    for allowed in ("*", "http://evil.example"):
        client = serve(cors_origins=allowed)
        assert client.post("/completion", json=ASK, headers=FOREIGN).status_code == 200
        assert client.get("/props", headers=FOREIGN).status_code == 200


def test_empty_keys_are_an_error() -> None:
    for keys in (("",), ("a", "")):
        with pytest.raises(PyllamaError, match="empty key"):
            ServerOptions(api_keys=keys)


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
        ("evil.example@localhost", (), 403),
        ("localhost@evil.example", (), 403),
        ("localhost:80@evil.example", (), 403),
        ("localhost/evil.example", (), 403),
        ("localhost?evil.example", (), 403),
        ("localhost#evil.example", (), 403),
        ("LOCALHOST", (), 200),
        ("[::1", (), 403),
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


def test_static_files_do_not_lead_out_of_their_folder(serve: Serve, tmp_path: Path) -> None:
    folder = tmp_path / "site"
    (folder / "sub").mkdir(parents=True)
    (tmp_path / "secret").write_text("s")
    (folder / "page.txt").write_text("p")
    (folder / ".hidden").write_text("h")
    for name, target in {"in": "page.txt", "out": "../secret", "hidden": ".hidden"}.items():
        (folder / name).symlink_to(target)
    (folder / "sub/up").symlink_to(tmp_path, target_is_directory=True)
    client = serve(path=folder)
    assert client.get("/in").text == "p"
    for path in ("/out", "/hidden", "/sub/up/secret", "/sub/up"):
        assert client.get(path).status_code == 404
    (folder / "page.txt").unlink()
    (folder / "page.txt").symlink_to("../secret")
    assert client.get("/page.txt").status_code == client.get("/in").status_code == 404
    (tmp_path / "link").symlink_to(folder, target_is_directory=True)
    assert serve(path=tmp_path / "link").get("/sub/up/secret").status_code == 404


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
