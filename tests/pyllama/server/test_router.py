"""A router with tiny models in processes of their own."""

from __future__ import annotations

import http.client
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from ...tiers import some

pytest.importorskip("starlette")
pytest.importorskip("uvicorn")
pytest.importorskip("aiohttp")

from ...waiting import WAIT_S, until
from ..models import Spec, random_weights, write_model

CODE = "from pyllama_cli.commands.serve import command; command()"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    spec = Spec(n_ctx=8192)
    write_model(folder / "a.gguf", spec, random_weights(spec))
    (folder / "sub").mkdir()
    (folder / "sub" / "x.gguf").symlink_to(folder / "a.gguf")
    (folder / "broken.gguf").write_bytes(b"GGUF\3\0\0\0 and no more")
    return folder


class Router:
    """A router in a process, and requests to it."""

    def __init__(self, process: subprocess.Popen[str], url: str) -> None:
        self.process, self.port = process, int(url.rpartition(":")[2])

    def open(self, method: str, path: str, body: Any = None) -> http.client.HTTPResponse:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=WAIT_S)
        connection.request(method, path, None if body is None else json.dumps(body))
        response = connection.getresponse()
        response.connection = connection  # type: ignore[attr-defined]
        return response

    def ask(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        with self.open(method, path, body) as response:
            found = response.status, json.load(response)
        response.connection.close()  # type: ignore[attr-defined]
        return found

    def status(self, name: str) -> dict[str, Any]:
        data = self.ask("GET", "/models")[1]["data"]
        status: dict[str, Any] = next(one["status"] for one in data if one["id"] == name)
        return status

    def children(self) -> list[int]:
        found = []
        for folder in Path("/proc").iterdir():
            try:
                parent = (folder / "stat").read_text().rpartition(")")[2].split()[1]
            except (OSError, IndexError):
                continue
            if folder.name.isdecimal() and int(parent) == self.process.pid:
                found.append(int(folder.name))
        return found


@contextmanager
def running(folder: Path, *flags: str) -> Iterator[Router]:
    sizes = ("-np", "1", "-c", "8192", "--threads", "1", "--port", "0")
    command = [sys.executable, "-P", "-c", CODE, "--models-dir", str(folder), *sizes, *flags]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            line = process.stderr.readline()
            assert line.startswith("3 models: http://127.0.0.1:"), line
            yield Router(process, line.split()[-1])
        finally:
            if process.poll() is None:
                process.kill()
            process.communicate(timeout=WAIT_S)


def is_alive(pid: int) -> bool:
    try:
        return (Path("/proc") / str(pid) / "stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


ENDLESS = {"model": "a", "prompt": "a", "n_predict": -1, "ignore_eos": True, "stream": True}
needs_proc = pytest.mark.skipif(not os.path.exists("/proc/self/stat"), reason="no /proc")


@pytest.mark.long
@needs_proc
def test_a_router_with_real_models(folder: Path) -> None:
    with running(folder, "--models-max", "1", "--context-shift") as router:
        assert router.children() == []
        body = {"model": "a", "prompt": "a", "n_predict": 4, "temperature": 0}
        status, found = router.ask("POST", "/completion", body)
        assert status == 200 and found["tokens_predicted"] > 0 and found["model"] == "a"
        (a,) = router.children()

        slots = router.ask("GET", "/slots?model=a&autoload=false")[1]
        assert len(slots) == 1 and not slots[0]["is_processing"]
        child = router.status("a")
        assert child["value"] == "loaded" and "--threads" in child["args"]

        # it listens on loopback alone, and wants the router's key, also for its health
        (port,) = listening_ports(a)
        for path in ("/health", "/models", "/"):
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=WAIT_S)
            connection.request("GET", path)
            assert connection.getresponse().status in (401, 404)
            connection.close()

        # a client that hangs up frees the slot
        response = router.open("POST", "/completion", ENDLESS)
        assert response.readline().startswith(b"data: ")
        assert router.ask("GET", "/slots?model=a")[1][0]["is_processing"]
        response.close()
        response.connection.close()  # type: ignore[attr-defined]
        until(lambda: not router.ask("GET", "/slots?model=a")[1][0]["is_processing"])

        # a child that dies in a stream is replaced at the next request
        response = router.open("POST", "/completion", ENDLESS)
        response.readline()
        os.kill(a, signal.SIGKILL)
        end = response.read().decode().strip().rpartition("\n\n")[2]
        assert json.loads(end.removeprefix("data: "))["error"]["code"] == 500
        response.connection.close()  # type: ignore[attr-defined]
        assert router.status("a") == {**router.status("a"), "failed": True, "exit_code": -9}
        again = router.ask("POST", "/completion", body)[1]
        assert again["content"] == found["content"]
        (second,) = router.children()

        # another model takes its place; a broken one fails with its reason
        status, failed = router.ask("POST", "/completion", {**body, "model": "broken"})
        assert status == 500 and "broken.gguf: at byte 0: the header" in failed["error"]["message"]
        assert not is_alive(second) and router.status("a")["value"] == "unloaded"
        assert router.status("broken")["exit_code"] == 1

        router.process.send_signal(signal.SIGTERM)
        assert router.process.wait(WAIT_S) == 0


@needs_proc
@pytest.mark.parametrize("number", some([signal.SIGTERM, signal.SIGKILL], 1))
def test_the_end_of_a_router(folder: Path, number: signal.Signals) -> None:
    with running(folder, "--shutdown-timeout", "60") as router:
        events = router.open("GET", "/models/sse")
        response = router.open("POST", "/completion", {**ENDLESS, "model": "sub", "n_predict": 200})
        response.readline()
        (child,) = router.children()
        router.process.send_signal(number)
        if number == signal.SIGTERM:  # the response may end
            assert b'"stop":true' in response.read()
            assert b'"loaded"' in events.read()  # a cut response would raise
            assert router.process.wait(WAIT_S) == 0
        for one in (response, events):
            one.connection.close()  # type: ignore[attr-defined]
        until(lambda: not is_alive(child))


def listening_ports(pid: int) -> list[int]:
    """The ports at which a process listens on 127.0.0.1; those at other addresses fail."""
    inodes = set()
    for link in (Path("/proc") / str(pid) / "fd").iterdir():
        try:
            inodes.add(os.readlink(link))
        except OSError:
            continue
    found = []
    for table in ("tcp", "tcp6"):
        for line in Path("/proc/net", table).read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and f"socket:[{fields[9]}]" in inodes:
                address, port = fields[1].split(":")
                assert address == "0100007F", fields[1]
                found.append(int(port, 16))
    return found
