"""Options of models in an INI file."""

from __future__ import annotations

import os
from pathlib import Path

import click
import pytest

pytest.importorskip("starlette")

from pyllama.errors import ModelError
from pyllama_cli.commands.serve import command
from pyllama_cli.options.presets import (
    GLOBAL,
    OF_ONE_MODEL,
    ROUTERS,
    arguments,
    given_values,
    read_presets,
    reserved_variables,
    section_text,
)

EXAMPLE = """\
version = 1

; of all models
[*]
c = 8192
n-gpu-layers = 8   ; a comment

# a model
[ggml-org/MY-MODEL-GGUF:q8_0]
chat-template = chatml
n_gpu_layers = 123
jinja = true
LLAMA_ARG_CACHE_RAM = 0
no-mmap = true
mlock = off
kv-unified = 0
reverse-prompt = a=b
stop-timeout = 3
load-on-startup = 1

[custom model]
model = /models/my awesome.gguf
"""


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "models.ini"
    path.write_text(text)
    return path


def test_llama_cpps_example(tmp_path: Path) -> None:
    found = read_presets(write(tmp_path, EXAMPLE), command)
    assert list(found) == [GLOBAL, "ggml-org/MY-MODEL-GGUF:Q8_0", "custom model"]
    assert arguments(found[GLOBAL].values) == ("-c", "8192", "--n-gpu-layers", "8")
    one = found["ggml-org/MY-MODEL-GGUF:Q8_0"]
    assert arguments(one.values) == (
        "--chat-template", "chatml", "--n-gpu-layers", "123", "--jinja", "--cache-ram", "0",
        "--no-mmap", "--no-kv-unified", "--reverse-prompt", "a=b",
    )  # fmt: skip
    assert one.own == {"stop-timeout": "3", "load-on-startup": "1"}
    merged = {**found[GLOBAL].values, **one.values}
    assert arguments(merged)[:4] == ("-c", "8192", "--n-gpu-layers", "123")
    custom = found["custom model"].values
    assert section_text("x", {**custom, "mmap": ("--no-mmap",)}) == (
        "[x]\nmodel = /models/my awesome.gguf\nno-mmap = true\n"
    )


def test_what_the_router_decides_is_left_out(tmp_path: Path) -> None:
    text = "[a]\nmodel = x\nport = 1\nhost = 0.0.0.0\napi-key = k\nssl-key-file = y\nalias = z\n"
    values = read_presets(write(tmp_path, text), command)["a"].values
    assert arguments(values) == ("--model", "x") and values["aliases"] == ("--alias", "z")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[a]\nctx-sise = 3\n", r"\[a\]: unknown option ctx-sise$"),
        ("[a]\nmmproj = x\n", "unknown option mmproj: only text models"),
        ("[a]\nmlock = perhaps\n", "mlock='perhaps' is neither on nor off"),
        ("[a]\nc = 1\n[a]\nc = 2\n", "section 'a' already exists"),
        ("[a]\nc\n", "parsing errors"),
        ("[a]\nc = 1\n  np = 2\n", "the line after c is indented"),
        ("[a\n", "no section headers|parsing errors"),
    ],
)
def test_wrong_files(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ModelError, match=message) as caught:
        read_presets(write(tmp_path, text), command)
    assert "models.ini" in str(caught.value) and "\n" not in str(caught.value)


def test_keys_before_any_section_are_those_of_default(tmp_path: Path) -> None:
    found = read_presets(write(tmp_path, "; x\nc = 3\n[a]\nc = 4\n"), command)
    assert arguments(found["default"].values) == ("-c", "3")
    assert list(read_presets(write(tmp_path, ""), command)) == [GLOBAL]


def test_no_file(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="missing"):
        read_presets(tmp_path / "missing", command)


def test_the_command_line() -> None:
    args = [
        "--models-dir", "x", "--ctx_size=4096", "-np", "2", "--port", "0", "-r", "a", "-r", "b",
        "--no-mmap", "--mmap", "-n", "-1", "--api-key", "k", "--log-jsonl",
    ]  # fmt: skip
    with command.make_context("serve", args) as ctx:
        assert arguments(given_values(ctx)) == (
            "--ctx-size", "4096", "-np", "2", "-r", "a", "-r", "b", "--mmap", "-n", "-1",
            "--log-jsonl",
        )  # fmt: skip


def test_reserved_options_exist() -> None:
    names = {param.name for param in command.params if isinstance(param, click.Option)}
    assert names >= ROUTERS | OF_ONE_MODEL
    reserved = set(reserved_variables(command))
    assert {"LLAMA_ARG_PORT", "LLAMA_ARG_API_KEY", "LLAMA_ARG_NO_UI", "LLAMA_ARG_MODEL"} <= reserved
    assert "LLAMA_ARG_CTX_SIZE" not in reserved and not reserved & os.environ.keys()
