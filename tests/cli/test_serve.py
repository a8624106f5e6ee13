"""``pyllama-server`` as a process, and how its options become those of the library."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import click
import pytest
from click.testing import CliRunner

from ..tiers import some

pytest.importorskip("starlette")
pytest.importorskip("uvicorn")

from pyllama.errors import ModelError
from pyllama.parameters.serving import Listening
from pyllama.server.request.options import ServerOptions
from pyllama_cli.commands import serve
from pyllama_cli.options.options import ContextOptions
from pyllama_cli.options.server_presets import PRESETS
from pyllama_cli.options.speculative import SpeculativeOptions
from pyllama_cli.parameters import from_options

from ..pyllama.models import Spec, random_weights, write_model
from ..waiting import WAIT_S

DEPLOY = Path(__file__).resolve().parents[2] / "docs" / "examples" / "deploy"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    spec = Spec(n_ctx=2048)
    return write_model(tmp_path_factory.mktemp("m") / "x.gguf", spec, random_weights(spec))


def parsed(kind: Any, *args: str) -> Any:
    with serve.command.make_context("serve", [*args]) as context:
        return kind.from_click(context.params)


def own(*args: str) -> serve.ServeOptions:
    with serve.command.make_context("serve", [*args]) as context:
        return from_options(serve.ServeOptions, context.params)


def settings(*args: str) -> ServerOptions:
    with serve.command.make_context("serve", [*args]) as context:
        options = from_options(serve.ServeOptions, context.params)
        return options.server(context.params, serve.listening_of(context.params))


def listening(*args: str) -> Listening:
    with serve.command.make_context("serve", [*args]) as context:
        return serve.listening_of(context.params)


@pytest.mark.parametrize("is_json", some([False, True], 1))
def test_a_server_serves_until_sigterm(model: Path, tmp_path: Path, is_json: bool) -> None:
    flags = ["-m", str(model), "--port", "0", "-np", "2", "-c", "512", "--slots", "-a", "b,a"]
    command = [sys.executable, "-P", "-c", PLAIN, *flags, "--backend_sampling"]
    command += ["--log-jsonl"] if is_json else []
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, cwd=tmp_path) as process:
        assert process.stdout is not None and process.stderr is not None
        output = process.stdout if is_json else process.stderr
        line = next(line for line in output if "http://" in line)
        line = json.loads(line)["msg"] if is_json else line
        assert line.startswith("a, 2 slots of 256 tokens: http://127.0.0.1:")
        url = line.split()[-1]
        ask = urllib.request.Request(f"{url}/completion", b'{"prompt": "a", "n_predict": 2}')
        with urllib.request.urlopen(ask, timeout=WAIT_S) as response:
            assert json.load(response)["tokens_predicted"] > 0
        process.send_signal(signal.SIGTERM)
        assert process.wait(WAIT_S) == 0
        logs = process.stdout.read().splitlines()
        assert [json.loads(line)["path"] for line in logs] == ["/completion"] * is_json


PLAIN = "from pyllama_cli.commands.serve import command; command()"
STUCK = """
import threading
from pyllama.engine import Engine
from pyllama.server.worker.served import ServedModel
from pyllama_cli.commands.serve import command

def spin(*args, **options):
    while True:
        pass

prompts, step = ServedModel.prompts, Engine.step
ServedModel.prompts = lambda served, value: spin() if value == "spin" else prompts(served, value)
Engine.step = lambda engine: threading.Event().wait() if engine.n_waiting else step(engine)
command()
"""
BROKEN = """
from pyllama.runtime.context import Context
from pyllama_cli.commands.serve import command

def fail(*args, **options):
    raise RuntimeError("the device is gone")

Context.decode = Context.decode_token = fail
command()
"""


@contextmanager
def running(code: str, *flags: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A server with parts replaced, and its URL."""
    command = [sys.executable, "-P", "-c", code, "--port", "0", "-c", "512", "--no-warmup", *flags]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        try:
            yield process, next(line for line in process.stderr if "http://" in line).split()[-1]
        finally:
            process.kill()


def post(url: str, path: str, **fields: Any) -> socket.socket:
    """A connection with a request."""
    address = urlsplit(url)
    assert address.hostname is not None
    connection = socket.create_connection((address.hostname, address.port or 0), timeout=WAIT_S)
    body = json.dumps(fields).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
    connection.sendall(head.encode() + body)
    return connection


def ask(url: str, prompt: str) -> socket.socket:
    """A connection with a request for a completion."""
    return post(url, "/completion", prompt=prompt)


def ends_in_time(process: subprocess.Popen[str], seconds: int) -> bool:
    """Whether a process ends after SIGTERM, with a second more for a machine that is busy."""
    start = time.monotonic()
    process.send_signal(signal.SIGTERM)
    return process.wait(WAIT_S) == 0 and time.monotonic() - start < seconds + 1


def test_a_server_ends_in_time_whatever_runs(model: Path) -> None:
    """A step that does not end, and Python that does not end in a thread that reads requests."""
    flags = "-m", str(model), "--shutdown-timeout", "1"
    with running(STUCK, *flags) as (process, url), ask(url, "spin"), ask(url, "a"):
        with urllib.request.urlopen(f"{url}/slots", timeout=WAIT_S) as response:
            assert len(json.load(response)) == 4
        assert ends_in_time(process, 1)


@pytest.mark.long
def test_a_server_ends_in_time_whoever_does_not_read_or_answer(model: Path) -> None:
    """A client that does not read its response, and a server behind the proxy that sends none."""
    flags = "-m", str(model), "--shutdown-timeout", "1", "--ui-mcp-proxy"
    with socket.create_server(("127.0.0.1", 0)) as silent, ExitStack() as stack:
        process, url = stack.enter_context(running(PLAIN, *flags))
        text = "a b " * 240_000  # the answer is longer than what sockets hold
        slow = stack.enter_context(post(url, "/tokenize", content=text))
        assert slow.recv(1, socket.MSG_PEEK)
        target = f"http://127.0.0.1:{silent.getsockname()[1]}"
        stack.enter_context(post(url, f"/cors-proxy?url={target}"))
        stack.enter_context(silent.accept()[0])
        assert ends_in_time(process, 1)


def test_a_server_whose_engine_has_ended_exits(model: Path) -> None:
    with running(BROKEN, "-m", str(model)) as (process, url):
        with ask(url, "a") as connection:
            assert connection.recv(1 << 16).startswith(b"HTTP/1.1 500")
        assert process.wait(WAIT_S) == 1
        assert process.stderr is not None
        assert "no request can be evaluated any more" in process.stderr.read()


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--ssl-key-file", "x"], "give both"),
        (["-m", "missing.gguf", "--port", "0"], "missing.gguf: no such file"),
        (["--path", "missing"], "missing is not a folder"),
        (["--api-prefix", "llm"], "'llm' is not a path such as /llm"),
        (["--api-prefix", "/a/{x}"], "'/a/{x}' is not a path"),
        (["--slot-save-path", "missing"], "missing is not a folder"),
        (["--models-dir", "x", "--path", "missing"], "missing is not a folder"),
        (["--server-base", "x"], "pyllama-server does not have this"),
        (["--router-child"], "only a router starts a server in this mode"),
        (["--sleep-idle-seconds", "0"], "cannot be 0"),
        (["--host", "192.0.2.1"], "cannot listen at 192.0.2.1"),
    ],
)
def test_wrong_options(model: Path, args: list[str], message: str) -> None:
    given = ["-m", str(model), "-c", "256", "--port", "0", *args]
    result = CliRunner().invoke(serve.command, given)
    assert result.exit_code != 0 and message in result.stderr


def test_names_of_hosts_are_checked_on_this_machine_alone() -> None:
    def names(*args: str) -> tuple[str, ...] | None:
        return settings(*args).allowed_hosts

    assert names() == names("--host", "::1,localhost") == names("--host", "/run/x.sock") == ()
    assert names("--host", "0.0.0.0") is names("--allowed-hosts", "*") is None
    assert names("--host", "0.0.0.0", "--allowed-hosts", "Box, a.b") == ("box", "a.b")


def test_keys_and_origins(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("c\n\n d \n")
    options = settings("--api-key", "a,b", "--api-key-file", os.fspath(file))
    assert options.api_keys == ("a", "b", "c", "d")
    assert options.cors_origins == ""
    assert settings("--tools", "all").cors_origins == "localhost"


@pytest.mark.parametrize("given", ["", ",", "a,", " , b"])
def test_empty_keys_are_an_error(given: str) -> None:
    with pytest.raises(click.UsageError, match=r"--api-key: got .* an empty key"):
        settings("--api-key", given)


def test_a_file_without_keys_is_an_error(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    for text in ("", "\n \n"):
        file.write_text(text)
        with pytest.raises(click.UsageError, match="has no key in it"):
            settings("--api-key-file", os.fspath(file))


def test_slots_share_cells_unless_their_number_is_given() -> None:
    def shape(*args: str) -> tuple[int, bool]:
        options = own(*args)
        return options.n_slots, options.is_unified

    assert shape() == (4, True) and shape("-np", "3") == (3, False)
    assert shape("-np", "3", "-kvu") == (3, True)


def test_prompts_in_memory() -> None:
    def store(*args: str) -> Any:
        return own(*args).prefixes()

    assert store("-cram", "0") is None
    assert store("-cram", "3").max_bytes == 3 << 20 and store("-cram", "3").save_idle
    assert not store().save_idle and store().max_bytes > 1 << 20
    assert not store("-cram", "3", "--no-cache-idle-slots").save_idle
    assert store("-cram", "-1").max_bytes == sys.maxsize


def test_a_template_is_given_once(tmp_path: Path) -> None:
    file = tmp_path / "t"
    file.write_text("{{ messages }}")
    assert settings("--chat-template-file", str(file)).chat_template == "{{ messages }}"
    both = ["--chat-template-file", str(file), "--chat-template", "chatml"]
    with pytest.raises(click.UsageError, match="not both"):
        settings(*both)
    options = settings("--reasoning", "off")
    assert options.template_values == {"enable_thinking": False}


@pytest.mark.parametrize(
    ("file", "command"),
    [
        ("pyllama-server.service", re.compile(r"^ExecStart=/opt/pyllama/bin/(.*)$", re.M)),
        ("Containerfile", re.compile(r"^ENTRYPOINT \[(.*)\]$", re.M)),
    ],
)
def test_commands_of_the_deployment_files(file: str, command: re.Pattern[str]) -> None:
    found = command.search((DEPLOY / file).read_text(encoding="utf-8"))
    assert found is not None
    program, *args = shlex.split(found[1].replace(",", ""))
    options = own(*args)
    assert program == "pyllama-server" and options.log_jsonl
    assert listening(*args).port == 8080


def test_presets_for_editors(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, str | None]] = []

    def hub_model(repo: str, file: str | None, hub: Any) -> Path:
        asked.append((repo, file))
        raise ModelError("offline and not in the cache")

    monkeypatch.setattr("pyllama.hub.hub.hub_model", hub_model)
    flags = ["--fim-qwen-1.5b-default", "--port", "0", "--offline"]
    result = CliRunner().invoke(serve.command, flags)
    assert result.exit_code == 1
    assert result.stderr == "error: offline and not in the cache\n"
    assert CliRunner().invoke(serve.command, ["--fim-qwen-7b-spec", "--port", "0"]).exit_code == 1
    qwen = "ggml-org/Qwen2.5-Coder-{}-Q8_0-GGUF"
    assert asked[0] == (qwen.format("1.5B"), "qwen2.5-coder-1.5b-q8_0.gguf")
    assert asked[1] in [  # the draft model is loaded first
        (qwen.format("7B"), "qwen2.5-coder-7b-q8_0.gguf"),
        (qwen.format("0.5B"), "qwen2.5-coder-0.5b-q8_0.gguf"),
    ]
    result = CliRunner().invoke(serve.command, [*flags, "-m", str(model)])
    assert "with -m or with -hf, not both" in result.stderr


@pytest.mark.parametrize("flag", PRESETS)
def test_presets_are_defaults(flag: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def sizes(*args: str) -> tuple[int, int, int, int]:
        found = parsed(ContextOptions, flag, *args)
        port = listening(flag, *args).port
        return port, found.n_batch, found.n_ubatch, found.n_ctx

    assert sizes() == (8012, 1024, 1024, 0)
    assert sizes("--port", "9", "-c", "512") == (9, 1024, 1024, 512)
    monkeypatch.setenv("LLAMA_ARG_PORT", "7")
    assert sizes() == (7, 1024, 1024, 0)
    drafts = parsed(SpeculativeOptions, flag)
    assert (drafts.hf_repo_draft is not None) == flag.endswith("-spec")
