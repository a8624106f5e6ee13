"""What a router answers itself, and where it sends the rest."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pyggml.gguf import write_gguf
from pyllama.errors import ModelError
from pyllama.server.app import ROUTES
from pyllama.server.request.options import ServerOptions
from pyllama.server.router.app import make_router
from pyllama.server.router.catalog import CatalogEntry
from pyllama.server.router.pool import Pool

from ....waiting import WAIT_S, until
from ..conftest import at_a_socket
from .conftest import Fleet, StartRouter, entries


def error(response: Any) -> tuple[int, str]:
    assert response.headers["Content-Type"].startswith("application/json")
    fields = response.json()["error"]
    assert fields["code"] == response.status_code
    return response.status_code, fields["message"]


def statuses(client: Any) -> dict[str, str]:
    data = client.get("/models").json()["data"]
    return {one["id"]: one["status"]["value"] for one in data}


def test_posts_are_routed_by_their_body_and_gets_by_their_query(route: StartRouter) -> None:
    client = route()
    own = ("/api/tags", "/api/ps", "/cors-proxy")
    paths = [(m, path) for m, paths, _ in ROUTES for path in paths if path not in own]
    for method, path in [*paths, ("GET", "/metrics"), ("GET", "/props")]:
        path = path.replace("{id_slot}", "1")
        if method == "GET":
            found = client.get(path, params={"model": "b"}).json()
            assert (found["by"], found["target"]) == ("b", f"{path}?model=b")
        else:
            found = client.post(path, json={"model": "a"}).json()
            assert (found["by"], found["target"]) == ("a", path)
    assert client.fleet.names() == ["a", "b"]


def test_wrong_names(route: StartRouter) -> None:
    client = route()
    missing = (400, "model name is missing from the request")
    assert error(client.post("/completion", json={"prompt": "a"})) == missing
    assert error(client.post("/completion", json={"model": ""})) == missing
    assert error(client.post("/completion", json={"model": 3})) == missing
    assert error(client.get("/slots")) == missing
    unknown = (400, "model 'x/../../etc' not found")
    assert error(client.post("/completion", json={"model": "x/../../etc"})) == unknown
    assert error(client.get("/slots?model=x%2F..%2F..%2Fetc")) == unknown
    status, message = error(client.post("/completion", content=b"{"))
    assert status == 400 and "not valid JSON" in message
    assert error(client.post("/completion", content=b"[]"))[0] == 400
    assert error(client.get("/nothing")) == (404, "File Not Found")
    assert not client.fleet.children


def test_a_broken_model_is_listed_and_fails(route: StartRouter) -> None:
    client = route()
    for _ in range(2):
        status, message = error(client.post("/completion", json={"model": "broken"}))
        assert (status, message) == (500, "model name=broken failed to load: no such file")
        (described,) = [m for m in client.get("/models").json()["data"] if m["id"] == "broken"]
        found = described["status"]
        assert (found["value"], found["failed"], found["exit_code"]) == ("unloaded", True, 1)


def test_the_list(route: StartRouter) -> None:
    secret = CatalogEntry(
        "a", ("--hf-token", "hunter2"), ("z", "y"), ("t",), preset="[a]\n",
        shown_args=("--hf-token", "***"),
    )  # fmt: skip
    client = route([secret, *entries("b")])
    for path in ("/models", "/v1/models"):
        found = client.get(path)
        assert "hunter2" not in found.text
        a, b = found.json()["data"]
        assert (a["id"], a["aliases"], a["tags"]) == ("a", ["y", "z"], ["t"])
        assert a["status"]["args"] == ["pyllama-server", "--hf-token", "***"]
        assert (a["status"]["preset"], a["source"], a["can_remove"]) == ("[a]\n", "preset", False)
        assert (b["object"], b["owned_by"], b["status"]["value"]) == (
            "model",
            "pyllama",
            "unloaded",
        )
        assert b["architecture"] == {"input_modalities": ["text"], "output_modalities": ["text"]}
    client.post("/completion", json={"model": "y"})
    a, b = client.get("/models").json()["data"]
    assert (a["id"], a["status"]["value"], a["meta"]["n_params"]) == ("a", "loaded", 7)


def test_loading_and_unloading(route: StartRouter) -> None:
    client = route(autoload=False)
    ask = {"model": "a"}
    assert error(client.post("/completion", json=ask)) == (400, "model is not loaded")
    assert error(client.get("/slots?model=a")) == (400, "model is not loaded")
    assert error(client.post("/models/unload", json=ask)) == (400, "model is not running")
    assert client.post("/models/load", json=ask).json() == {"success": True}
    assert error(client.post("/models/load", json=ask)) == (400, "model is already running")
    until(lambda: statuses(client)["a"] == "loaded")
    assert client.post("/completion", json=ask).json()["by"] == "a"
    assert client.post("/models/unload", json=ask).json() == {"success": True}
    until(lambda: statuses(client)["a"] == "unloaded")
    assert error(client.post("/models/load", json={"model": "x"})) == (404, "model is not found")
    assert error(client.post("/models/unload", json={})) == (400, "model is not found")


def test_autoload_of_a_request(route: StartRouter) -> None:
    off, on = route(autoload=False), route()
    assert off.post("/completion?autoload=true", json={"model": "a"}).is_success
    assert off.post("/completion?autoload=1", json={"model": "b"}).is_success
    assert error(on.post("/completion?autoload=false", json={"model": "a"}))[0] == 400
    assert error(off.get("/props?model=c"))[0] == 400


def test_one_model(route: StartRouter) -> None:
    client = route()
    assert client.get("/v1/models/b").json()["id"] == "b"
    assert error(client.get("/v1/models/c/d"))[0] == 404
    assert error(client.get("/v1/files"))[0] == 501
    message = client.post("/api/chat", json={"model": "no"}).json()["error"]
    assert message == "model 'no' not found"
    assert client.post("/v1/messages", json={"model": "no"}).json()["type"] == "error"


def test_the_router_itself(route: StartRouter) -> None:
    client = route(max_models=2, autoload=False)
    assert client.get("/health").json() == client.get("/v1/health").json() == {"status": "ok"}
    props = client.get("/props").json()
    assert (props["role"], props["max_instances"]) == ("router", 2)
    assert props["models_autoload"] is False and props["build_info"].startswith("b")
    assert client.get("/").headers["Content-Type"].startswith("text/html")
    assert error(client.post("/models", json={"model": "x"}))[0] == 501
    assert error(client.delete("/models?model=a"))[0] == 501
    assert error(client.get("/cors-proxy?url=http://x"))[0] == 403
    assert not client.fleet.children


def test_keys(route: StartRouter) -> None:
    client = route(api_keys=("k",))
    assert client.get("/health").is_success
    for path in ("/models", "/models/sse", "/props", "/slots?model=a"):
        assert error(client.get(path)) == (401, "Invalid API Key")
    assert error(client.post("/completion", json={"model": "a"}))[0] == 401
    headers = {"Authorization": "Bearer k"}
    assert client.post("/completion", json={"model": "a"}, headers=headers).is_success


def test_a_new_list() -> None:
    found, fleet = entries("a"), Fleet()
    wrong: list[Exception] = []

    def find() -> list[CatalogEntry]:
        if wrong:
            raise wrong[0]
        return found

    app = make_router(Pool(found, fleet.spawn), ServerOptions(), find)
    from starlette.testclient import TestClient

    with TestClient(app, base_url="http://localhost") as client:
        found = entries("b", "c")
        assert statuses(client) == {"a": "unloaded"}
        assert len(client.get("/models?reload=1").json()["data"]) == 2
        assert statuses(client) == {"b": "unloaded", "c": "unloaded"}
        wrong.append(ModelError("two models have the name b"))
        status, message = error(client.get("/models?reload=1"))
        assert status == 500 and "two models have the name b" in message
        assert statuses(client) == {"b": "unloaded", "c": "unloaded"}


def test_ollamas_api(route: StartRouter, tmp_path: Path) -> None:
    file = tmp_path / "a.gguf"
    file.write_bytes(b"x" * 100)
    real = tmp_path / "real.gguf"
    write_gguf(real, {"general.architecture": "gemma3"}, {})
    known = [
        CatalogEntry("a", file=file),
        *entries("b"),
        CatalogEntry("gone", file=tmp_path / "gone"),
    ]
    client = route([*known, CatalogEntry("real", file=real)])
    names = {one["name"]: one["size"] for one in client.get("/api/tags").json()["models"]}
    assert names == {"a": 100, "b": 0, "gone": 0, "real": real.stat().st_size}
    assert client.get("/api/ps").json() == {"models": []}
    assert client.post("/api/chat", json={"model": "b:latest"}).json()["by"] == "b"
    assert client.post("/api/show", json={"name": "b"}).json()["by"] == "b"
    assert error(client.post("/v1/completions", json={"model": "b:latest"}))[0] == 400
    (running,) = client.get("/api/ps").json()["models"]
    assert (running["name"], running["size"]) == ("b", 1234) and "expires_at" in running
    details = running["details"]
    assert (details["family"], details["families"]) == ("llama", ["llama"])
    assert (details["parameter_size"], details["quantization_level"]) == ("7B", "Q4_0")
    listed = {one["name"]: one for one in client.get("/api/tags").json()["models"]}
    assert listed["b"]["details"] == details
    families = {name: one["details"]["family"] for name, one in listed.items()}  # mostly unloaded
    assert families == {"a": "", "b": "llama", "gone": "", "real": "gemma3"}
    write_gguf(real, {"general.architecture": "qwen35moe"}, {})  # another file of the same name
    listed = {one["name"]: one for one in client.get("/api/tags").json()["models"]}
    assert listed["real"]["details"]["family"] == "qwen35moe"
    assert "version" in client.get("/api/version").json()


@pytest.mark.parametrize("ping_s", [300, -1])
def test_events(ping_s: int) -> None:
    import http.client
    import socket

    fleet = Fleet()
    pool = Pool(entries("a"), fleet.spawn)
    app = make_router(pool, ServerOptions(sse_ping_s=ping_s), list)
    with at_a_socket(app) as port:
        connection = socket.create_connection(("127.0.0.1", port), timeout=WAIT_S)
        connection.sendall(b"GET /models/sse HTTP/1.1\r\nHost: localhost\r\n\r\n")
        response = http.client.HTTPResponse(connection)
        response.begin()
        assert response.readline() == b":\n"
        assert response.readline() == b"\n"
        load = http.client.HTTPConnection("127.0.0.1", port)
        load.request("POST", "/models/load", json.dumps({"model": "a"}))
        assert load.getresponse().status == 200
        seen = []
        while len(seen) < 2:
            line = response.readline()
            if line.startswith(b"data: "):
                seen.append(json.loads(line[6:]))
        assert [one["event"] for one in seen] == ["model_status", "status_change"]
        assert seen[1]["data"]["status"] == "loaded" and seen[1]["model"] == "a"
        fleet.children[0].exit.get_loop().call_soon_threadsafe(pool.leave)
        assert response.read() == b"\n"  # the end of the server is the end of the events
        connection.close()
        load.close()
