"""Options from the environment, CPUs and priorities, and ``pyllama info``."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from pyggml import env, host
from pyggml.backend.cpu import tuning
from pyggml.compiler.code_cache import CodeCache
from pyllama.hub.demo import downloaded_path
from pyllama_cli.commands import batched_bench, bench, completion, parallel
from pyllama_cli.commands.inspect import info
from pyllama_cli.environment import variables
from pyllama_cli.machine import machine_options
from pyllama_cli.tool import Program


@click.command("t", cls=Program)
@click.option("-c", "--ctx-size", type=int, default=5)
@click.option("-b", "--batch-size", type=int, default=6)
@click.option("--mmap/--no-mmap", default=True)
@click.option("--mlock", is_flag=True)
@click.option("-r", "--reverse-prompt", multiple=True)
@machine_options
def tool(**options: Any) -> None:
    names = ("ctx_size", "batch_size", "mmap", "mlock", "reverse_prompt")
    click.echo(repr([options[name] for name in names]))


def run(*args: str, command: click.Command = tool, **env: str) -> tuple[int, str, str]:
    result = CliRunner(env=env).invoke(command, args)
    return result.exit_code, result.stdout, result.stderr


@pytest.mark.parametrize(
    ("env", "args", "values"),
    [
        ({}, (), [5, 6, True, False, ()]),
        ({"CTX_SIZE": "7", "BATCH": "8", "MLOCK": "1"}, (), [7, 8, True, True, ()]),
        ({"CTX_SIZE": "7", "BATCH_SIZE": "9"}, ("-c", "3"), [3, 9, True, False, ()]),
        ({"MMAP": "off", "MLOCK": "no"}, (), [5, 6, False, False, ()]),
        ({"NO_MMAP": "1", "REVERSE_PROMPT": "a b"}, (), [5, 6, False, False, ("a b",)]),
        ({"NO_MMAP": "1"}, ("--mmap",), [5, 6, True, False, ()]),
    ],
)
def test_options_from_the_environment(
    env: dict[str, str], args: tuple[str, ...], values: list[Any]
) -> None:
    assert run(*args, **{f"LLAMA_ARG_{k}": v for k, v in env.items()}) == (0, f"{values}\n", "")


def test_wrong_values_in_the_environment() -> None:
    code, _, err = run(LLAMA_ARG_CTX_SIZE="x")
    assert code == 2 and "The value comes from the environment: LLAMA_ARG_CTX_SIZE." in err
    code, _, err = run("-c", "x", LLAMA_ARG_CTX_SIZE="x")
    assert code == 2 and "environment" not in err
    code, _, err = run(LLAMA_ARG_MLOCK="maybe")
    assert code == 2 and "LLAMA_ARG_MLOCK='maybe' is neither on nor off" in err


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("LLAMA_ARG_LORA", "LLAMA_ARG_LORA is ignored: "),
        ("LLAMA_ARG_NO_SUCH", "LLAMA_ARG_NO_SUCH is ignored: t has no --no-such"),
        ("PYGGML_THREADS", "PYGGML_THREADS is ignored: there is no such variable"),
        ("PYLLAMA_DEMO", "PYLLAMA_DEMO is ignored: there is no such variable"),
    ],
)
def test_variables_that_change_nothing_are_named(name: str, line: str) -> None:
    code, _, err = run(**{name: "x"})
    assert code == 0 and err.startswith(line) and err.count("\n") == 1
    assert run(PYGGML_ISA="avx2", PYLLAMA_TEST_MODELS="x")[2] == ""


@pytest.mark.parametrize("module", [batched_bench, bench, completion, parallel])
def test_each_option_has_its_own_variable(module: Any) -> None:
    options = [p for p in module.command.params if isinstance(p, click.Option)]
    names = [name for option in options for name in variables(option)]
    assert len(names) == len(set(names))
    assert "LLAMA_ARG_CTX_SIZE for --ctx-size" in run("--help", command=module.command)[1]


@pytest.fixture
def affinity() -> Any:
    before = os.sched_getaffinity(0)
    yield sorted(before)
    os.sched_setaffinity(0, before)
    host.set_thread_options(host.ThreadOptions())


def test_cpu_mask_range_and_strict_flags(affinity: list[int]) -> None:
    first = affinity[0]
    assert run("-C", hex(1 << first))[0] == 0
    assert host.usable_cpus() == [first] and host.default_threads() == 1
    os.sched_setaffinity(0, affinity)
    assert run("-Cr", f"{first}-{affinity[-1]}", "--cpu-strict", "1", "--poll", "0")[0] == 0
    options = host.thread_options()
    assert options.poll == 0
    assert [options.cpu(i) for i in range(3)] == [[affinity[i % len(affinity)]] for i in range(3)]
    assert host.ThreadOptions(poll=100).cpu(0) == []


@pytest.mark.parametrize(
    ("args", "text"),
    [
        (("-C", "0x0"), "is not a nonzero hexadecimal mask"),
        (("-C", "f0g"), "is not a nonzero hexadecimal mask"),
        (("-C", "1" + "0" * 40), "are not available to this process"),
        (("-Cr", "3-1"), "is not a range of CPUs"),
        (("-Cr", "a"), "is not a range of CPUs"),
        (("-Cr", "500-511"), "are not available to this process"),
        (("--prio", "4"), "--prio"),
        (("--poll", "101"), "--poll"),
        (("--cpu-strict", "2"), "--cpu-strict"),
    ],
)
def test_invalid_cpu_flags(args: tuple[str, ...], text: str) -> None:
    code, out, err = run(*args)
    assert (code, out) == (2, "") and text in err and len(err.splitlines()) == 1


def test_a_denied_priority_is_only_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "sched_setscheduler", refuse)
    code, _, err = run("--prio", "3")
    assert code == 0 and "realtime priority needs root" in err
    monkeypatch.delattr(os, "sched_setscheduler")
    assert "no scheduling classes" in run("--prio", "1")[2]
    monkeypatch.delattr(os, "sched_setaffinity")
    assert "cannot bind threads" in run("-C", "1")[2]


def test_info_lists_versions_and_devices(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    code, out, _ = run(command=info.command)
    assert code == 0
    for word in ("pyggml", "numba", "instruction set", "threads", "compiled kernels", "cpu:"):
        assert word in out
    devices = [run("--list-devices"), run("--list-devices", command=info.command)]
    # other processes change the free memory meanwhile
    shown = [(code, re.sub(r"\d+ MiB free", "", out), err) for code, out, err in devices]
    assert shown[0] == shown[1] and "MiB free" in devices[0][1]
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("PYGGML_CACHE_DIR", str(tmp_path / "home"))
    CodeCache(env.code_dir() / "x").write("a", b"code")
    model = downloaded_path()
    model.parent.mkdir()
    theirs = (tmp_path / "home" / "thesis", model.with_name("mine.gguf"))
    for path in (model, *theirs):
        path.write_bytes(b"12")
    assert run(command=info.command)[1].count("in 1 files") == 2
    out = run("--clear-cache", command=info.command)[1]
    assert "deleted the compiled kernels" in out and not env.code_dir().exists()
    assert "deleted the demo model" in out and not model.exists()
    assert all(path.exists() for path in theirs)  # the whole folders used to be deleted
    assert "no compiled kernels" in run("--clear-cache", command=info.command)[1]


def test_info_lists_the_tuning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYGGML_TUNING", "look=3")
    with tuning.using(None):
        out = run(command=info.command)[1]
    lines = {words[0]: words[1:] for words in map(str.split, out.splitlines()) if words}
    assert lines["few_bytes"][0] == "8192" and lines["look"][0] == "3"
    assert lines["look"][-3:] == ["(set", "by", "PYGGML_TUNING)"]
    monkeypatch.setenv("PYGGML_TUNING", "look=none")
    with tuning.using(None):
        code, _, err = run(command=info.command)
    assert code == 1 and err.count("\n") == 1 and "look=none" in err
