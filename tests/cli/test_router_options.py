"""The list of models that a router's options describe."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

pytest.importorskip("starlette")

from pyllama.errors import ModelError
from pyllama_cli.commands.serve import command
from pyllama_cli.options.router import RouterOptions
from pyllama_cli.parameters import from_options


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "models"
    folder.mkdir()
    for name in ("a", "b"):
        (folder / f"{name}.gguf").write_bytes(b"")
    return folder


def entries(*args: str) -> dict[str, Any]:
    with command.make_context("serve", [*args]) as ctx:
        options = from_options(RouterOptions, ctx.params)
        assert options.is_router
        return {entry.name: entry for entry in options.entries(ctx)}


def test_a_folder(folder: Path) -> None:
    found = entries("--models-dir", str(folder), "-c", "512")
    assert list(found) == ["a", "b"]
    a = found["a"]
    assert a.args == ("--model", str(folder / "a.gguf"), "-c", "512")
    assert (a.source, a.file, a.stop_s) == ("models_dir", folder / "a.gguf", 10)
    assert a.shown_args == ("--model", "a.gguf", "-c", "512")
    assert a.preset == "[a]\nmodel = a.gguf\nc = 512\n"


def test_what_comes_before_what(folder: Path, tmp_path: Path) -> None:
    preset = tmp_path / "p.ini"
    preset.write_text(
        "[*]\nc = 1\nnp = 1\nb = 1\nstop-timeout = 4\n"
        "[a]\nnp = 2\nb = 2\nalias = x, y\ntags = fast\n"
        "[c]\nhf-repo = user/model\nhf-token = hunter2\nstop-timeout = 0\n"
    )
    found = entries("--models-dir", str(folder), "--models-preset", str(preset), "-b", "3")
    a, b, c = found["a"], found["b"], found["c"]
    model = ("--model", str(folder / "a.gguf"))
    assert a.args == ("-c", "1", "-np", "2", "-b", "3", *model, "--tags", "fast")
    assert (a.aliases, a.tags, a.source, a.stop_s) == (("x", "y"), ("fast",), "preset", 4)
    assert b.args[:4] == ("-c", "1", "-np", "1") and b.source == "models_dir"
    assert (c.file, c.stop_s) == (None, 0) and "hunter2" in c.args
    assert "hunter2" not in c.preset + " ".join(c.shown_args)


def test_clients_see_no_folders(folder: Path, tmp_path: Path) -> None:
    preset = tmp_path / "p.ini"
    preset.write_text(
        f"[c]\nhf-repo = user/model\nchat-template-file = {tmp_path}/t.jinja\n"
        "slot-save-path = saved/slots\n"
    )
    for entry in entries("--models-dir", str(folder), "--models-preset", str(preset)).values():
        shown = entry.preset + " ".join(entry.shown_args)
        assert str(tmp_path) not in shown and "saved/" not in shown
        assert entry.name != "c" or ("user/model" in shown and "t.jinja" in shown)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[c]\nc = 3\n", r"\[c\] names no model: add model = FILE"),
        ("[a]\nstop-timeout = soon\n", "stop-timeout must be a number"),
        ("[a]\nload-on-startup = soon\n", "neither on nor off"),
    ],
)
def test_wrong_presets(folder: Path, tmp_path: Path, text: str, message: str) -> None:
    preset = tmp_path / "p.ini"
    preset.write_text(text)
    with pytest.raises(ModelError, match=message):
        entries("--models-dir", str(folder), "--models-preset", str(preset))


def test_too_many_at_the_start(folder: Path, tmp_path: Path) -> None:
    preset = tmp_path / "p.ini"
    preset.write_text("[*]\nload-on-startup = 1\n")
    args = ("--models-dir", str(folder), "--models-preset", str(preset), "--models-max")
    with pytest.raises(click.UsageError, match="2 models have load-on-startup"):
        entries(*args, "1")
    assert all(entry.on_startup for entry in entries(*args, "0").values())


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--models-dir", "missing"], "missing: No such file"),
        (["--models-preset", "missing"], "missing: No such file"),
        (["--models-max", "-1"], "-1 is not a whole number"),
    ],
)
def test_mistakes_are_one_line(args: list[str], message: str) -> None:
    result = CliRunner().invoke(command, args)
    assert result.exit_code != 0 and message in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1
