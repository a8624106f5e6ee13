"""``pyllama-eval-callback`` on a tiny model: printed and saved values, and errors."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from pyllama import Context, Model
from pyllama.inspect.observe import observe
from pyllama_cli.commands.inspect.eval_callback import command
from tests.pyllama.models import Spec, random_weights, write_model


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    spec = Spec()
    return write_model(tmp_path_factory.mktemp("m") / "x.gguf", spec, random_weights(spec))


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pyggml.compiler.jit.on_compile", None)  # the command sets it


def run(path: Path, *args: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(command, ["-m", str(path), "-c", "64", "-t", "1", *args])
    return result.exit_code, result.stdout, result.stderr


def test_all_nodes_are_printed_without_a_filter(path: Path) -> None:
    code, out, _ = run(path, "-p", "Hello")
    heads = [line for line in out.splitlines() if line.startswith("common_debug_cb_eval: ")]
    assert code == 0 and len(heads) > 40
    assert heads[0].split(": ")[1].split(" = ")[0].strip() == "inp_embd"
    assert " = (f32)   GET_ROWS(token_embd.weight{32, 261, 1, 1}, inp_tokens{" in heads[0]
    assert out.count("sum = ") >= len(heads)


def test_filter_matches_from_the_start_and_values_are_saved(path: Path, tmp_path: Path) -> None:
    folder = tmp_path / "states"
    flags = ("--tensor-filter", "l_out-", "--tensor-filter", "result_norm$", "--all-outputs")
    code, out, err = run(path, "-p", "Hello", *flags, "--save", str(folder))
    assert code == 0 and out.count("common_debug_cb_eval") == 3, err
    index = json.loads((folder / "index.json").read_text())
    assert [e["name"] for e in index] == ["l_out-0", "l_out-1", "result_norm"]
    model = Model.load(path)
    tokens = model.tokenizer.encode("Hello", add_special=True, parse_special=True)
    states = observe(Context(model, n_ctx=64), tokens, ["l_out-*", "result_norm"])
    for entry in index:
        np.testing.assert_array_equal(np.load(folder / entry["file"]), states[entry["name"]])
    code, out, err = run(path, "-p", "Hello", "--tensor-filter", "out-")
    assert (code, out) == (0, "") and "--tensor-filter matches no node" in err


def test_refused_and_ignored_flags(path: Path, tmp_path: Path) -> None:
    code, _, err = run(path, "-p", "x", "--tensor-filter", "l_(")
    assert code == 2 and "'l_(' is not a regular expression" in err
    code, _, err = run(path, "-p", "x", "-n", "3", "--tensor-filter", "none")
    assert code == 0 and "-n is ignored: only the prompt is evaluated" in err
    code, _, err = run(path, "-p", "Hello", "-c", "3")
    assert code == 2 and "tokens, the context 3: use a larger -c" in err


def test_stop_on_nan_is_one_line(tmp_path: Path) -> None:
    spec = Spec()
    weights = random_weights(spec)
    weights["blk.1.attn_norm.weight"][:] = np.nan
    path = write_model(tmp_path / "x.gguf", spec, weights)
    result = CliRunner().invoke(
        command, ["-m", str(path), "-c", "64", "-p", "Hello", "--stop-on-nan", "--save",
                  str(tmp_path / "out")], standalone_mode=False,
    )  # fmt: skip
    assert result.exit_code == 1 and "error: 'attn_norm-1' = MUL has" in result.stderr
    index = json.loads((tmp_path / "out" / "index.json").read_text())
    assert index[-1]["name"] == "attn_norm-1"  # earlier nodes are kept
