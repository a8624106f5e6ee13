"""``pyllama cluster`` and ``pyllama-batch`` as programs: what they refuse, plans, SIGTERM."""

from __future__ import annotations

import http.client
import json
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

pytest.importorskip("starlette")

from pyllama_cli.commands.batch import command as batch
from pyllama_cli.commands.cluster import command as cluster

from ..pyllama.cluster.local_ray import free_ports, local_ray, on_ray, until
from ..pyllama.models import Spec, random_weights, write_model


def marked(test: Any) -> Any:
    for mark in on_ray:
        test = mark(test)
    return test


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    spec = Spec(n_ctx=2048, n_layer=3)
    return str(write_model(tmp_path_factory.mktemp("m") / "x.gguf", spec, random_weights(spec)))


def error_of(command: object, *args: str) -> str:
    with pytest.raises(SystemExit) as ended:
        command.main([*args])  # type: ignore[attr-defined]
    assert ended.value.code
    return str(ended.value.code)


def test_nothing_imports_ray_before_it_is_used() -> None:
    code = (
        "import sys, pyllama, pyllama_cli.commands.cluster, pyllama_cli.commands.batch\n"
        "import pyllama.cluster.app, pyllama.cluster.batch, pyllama.cluster.session\n"
        "assert not {'ray', 'pyarrow', 'pandas'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-P", "-c", code], check=True)


def test_ray_is_missing(model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                        capsys: pytest.CaptureFixture[str]) -> None:  # fmt: skip
    monkeypatch.setitem(sys.modules, "ray", None)
    source = tmp_path / "in.jsonl"
    source.write_text('{"prompt": "a"}\n')
    error_of(batch, str(source), str(tmp_path / "out"), "-m", model)
    assert "pip install 'pyggml[cluster]'" in capsys.readouterr().err
    error_of(cluster, "-m", model)
    assert "pip install 'pyggml[cluster]'" in capsys.readouterr().err


def test_what_the_programs_refuse(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, output = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_text('{"prompt": "a"}\n{"prompt"\n')
    error_of(batch, str(source), str(output), "-m", model)
    assert "line 2 is not JSON" in capsys.readouterr().err
    source.write_text('{"text": "a"}\n')
    error_of(batch, str(source), str(output), "-m", model)
    assert "no column is named prompt, messages or body" in capsys.readouterr().err
    output.write_text("precious")
    source.write_text('{"prompt": "a"}\n')
    error_of(batch, str(source), str(output), "-m", model)
    assert "exists; --restart replaces it" in capsys.readouterr().err
    error_of(batch, str(source), str(source), "-m", model, "--restart")
    assert "is read too: give the output another name" in capsys.readouterr().err
    assert source.read_text() == '{"prompt": "a"}\n'
    error_of(batch, str(source), model, "-m", model, "--restart")
    assert "is read too: give the output another name" in capsys.readouterr().err
    error_of(batch, str(tmp_path / "no"), str(tmp_path / "o"), "-m", model)
    assert "No such file" in capsys.readouterr().err
    error_of(cluster, "-m", model, "--also", "x")
    assert "not NAME=FILE" in capsys.readouterr().err
    error_of(cluster, "-m", model, "-mg", "1")
    assert "replicas compute on the CPU alone" in capsys.readouterr().err
    error_of(cluster, "-m", str(source))
    assert "error: " in capsys.readouterr().err
    error_of(cluster, "-m", model, "--replicas", "3", "--max-replicas", "2")
    assert "less than the 3 replicas" in capsys.readouterr().err


def test_an_empty_input(model: str, tmp_path: Path) -> None:
    source, output = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_text("\n")
    result = CliRunner().invoke(batch, [str(source), str(output), "-m", model])
    assert result.exit_code == 0, result.output
    assert output.read_text() == ""


def test_a_plan(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "bench.jsonl"
    path.write_text('{"pp": 100, "tg": 10, "pl": 4, "t_pp": 0.4, "t_tg": 0.5, "is_pp_shared": 0}\n')
    with pytest.raises(SystemExit) as ended:
        cluster.main(["--plan", str(path), "--rate", "3", "--answer-tokens", "100"])
    assert not ended.value.code
    out = capsys.readouterr().out
    assert "3 requests/s of 512 + 100 tokens" in out and "| 4 | 80.0 | 20.0 | 0.56 |" in out


@marked
def test_sigterm_drains(model: str) -> None:
    (port,) = free_ports(1)
    code = "from pyllama_cli.commands.cluster import command; command()"
    body = {"prompt": "a", "max_tokens": 1500, "ignore_eos": True, "stream": True}
    with local_ray(n_nodes=1, n_cpus=2) as ray_cluster:
        args = ["-m", model, "--port", str(port), "-c", "2048", "-t", "1", "--replicas", "2",
                "-np", "1", "--address", ray_cluster.address]  # fmt: skip
        run = subprocess.Popen(
            [sys.executable, "-P", "-c", code, *args], stderr=subprocess.PIPE, text=True
        )
        assert run.stderr is not None
        for line in run.stderr:
            if "http://127.0.0.1" in line and "replicas of 1 slots" in line:
                break
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
        connection.request("POST", "/v1/completions", json.dumps(body))
        response = connection.getresponse()
        first = response.readline()
        run.send_signal(signal.SIGTERM)
        rest: list[bytes] = []
        reader = threading.Thread(target=lambda: rest.append(response.read()))
        reader.start()
        _, messages = run.communicate(timeout=200)
        reader.join(60)
        assert first.startswith(b"data: ") and rest[0].count(b"data: [DONE]") == 1
        assert run.returncode == 0, messages
        assert "running requests may finish" in messages
        with pytest.raises(OSError):
            until(lambda: http.client.HTTPConnection("127.0.0.1", port).connect() is None, 1)
