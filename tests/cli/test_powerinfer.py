"""``pyllama-powerinfer``: statistics of a text, pictures, plans, and one-line errors."""

from __future__ import annotations

import shutil
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from click.testing import CliRunner, Result

from pyllama.sparsity.activation_files import read_activations, write_activations
from pyllama.sparsity.gpuidx import read_gpuidx
from pyllama.sparsity.stats import load_stats
from pyllama_cli.commands.powerinfer import command

from ..pyllama.sparsity.files import dense_file, sparse_file

PLAN = ("--vram-budget", 0.0005, "-c", 64, "-ub", 8, "--block", 8)  # half a MiB
SPEEDS = ("--simulate", "--gpu-bandwidth", 900, "--cpu-bandwidth", 60)


def run(*args: object, code: int = 0) -> Result:
    result = CliRunner().invoke(command, [str(arg) for arg in args])
    assert result.exit_code == code, result.output
    if code:
        assert "Traceback" not in result.output
    return result


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model, a text, and their statistics."""
    folder = tmp_path_factory.mktemp("m")
    shutil.copy(sparse_file(folder, "bamboo"), folder / "x.gguf")
    (folder / "text.txt").write_text("It was the best of times, it was the worst of times. " * 8)
    out = run(
        "stats", "-m", folder / "x.gguf", "-f", folder / "text.txt", "-c", 48, "-t", 1,
        "-o", folder / "s.json", "--plot", folder / "s.svg", "--activation", folder / "activation",
    ).stdout  # fmt: skip
    (folder / "stats.out").write_text(out)
    return folder


def copy(made: Path, folder: Path) -> Path:
    shutil.copytree(made, folder / "c", dirs_exist_ok=True)
    return folder / "c"


def test_stats_prints_a_table_and_writes_files(made: Path) -> None:
    head, names, _, *rows = (made / "stats.out").read_text().splitlines()
    stats = load_stats(made / "s.json")
    assert head.startswith("bamboo") and "3 layers of 160 neurons" in head
    assert f"{stats.n_tokens} tokens, predictor at threshold" in head
    assert [row.split("|")[1].strip() for row in rows] == ["0", "1", "2", "mean"]
    assert [c.strip() for c in names.split("|")[2:-1]] == [
        "active", "any of 8", "hottest 5%", "hottest 20%", "predicted", "recall", "precision"
    ]  # fmt: skip
    assert f"{100 * stats.density[1]:.2f} %" in rows[1]
    np.testing.assert_array_equal(read_activations(made / "activation"), stats.counts)
    ElementTree.parse(made / "s.svg")


def test_stats_of_a_dense_model(made: Path) -> None:
    path = dense_file(made, "opt")
    out = run("stats", "-m", path, "-p", "One two three", "--chunks", 1).stdout
    assert "recall" not in out and out.count("\n") == 7


def test_plan_prints_tables_and_writes_gpuidx(made: Path, tmp_path: Path) -> None:
    folder = copy(made, tmp_path)
    model, index = folder / "x.gguf", folder / "x.gguf.generated.gpuidx"
    args = ("plan", "-m", model, "--stats", folder / "s.json", *PLAN)
    result = run(*args, "--svg", tmp_path / "p.svg", *SPEEDS)
    first, _, _, *rows = result.stdout.splitlines()
    assert first.startswith("x.gguf: 0.51 MiB of 0.51 MiB used: intermediate")
    assert all("GPU" in row and "/160" in row for row in rows[:3])
    assert "written" in result.stderr and str(index) in result.stderr
    assert [row.split("|")[1].strip() for row in rows[-3:]] == [
        "this plan",
        "CPU only",
        "all on GPU",
    ]
    ElementTree.parse(tmp_path / "p.svg")
    assert "up to date" in run(*args).stderr
    assert "up to date" not in run(*args, "--reset-gpu-index").stderr
    assert 0 < sum(map(len, read_gpuidx(index).split.up)) < 480
    given = run("plan", "-m", model, "--gpu-index", index, *PLAN).stdout
    assert [r.split("|")[5:8] for r in given.splitlines()] == [
        r.split("|")[5:8] for r in run(*args).stdout.splitlines()
    ]
    index.unlink()
    balanced = run("plan", "-m", model, *PLAN, "--solver", "balance", "--speed-ratio", "1,3",
                   "-o", tmp_path / "b.gpuidx").stdout  # fmt: skip
    assert not index.exists() and not read_gpuidx(tmp_path / "b.gpuidx").split.joint
    assert "FFN rows" in balanced
    dense = run("plan", "-m", model, *PLAN, "--disable-gpu-index")
    assert "0/160" in dense.stdout and not dense.stderr and not index.exists()


def test_balance_measures_the_cpu(
    made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pyllama.sparsity.speeds._BYTES", 1 << 20)
    folder = copy(made, tmp_path)
    result = run("plan", "-m", folder / "x.gguf", *PLAN, "--solver", "balance",
                 "--gpu-bandwidth", 1e-6)  # fmt: skip
    assert "measured: the CPU reads active rows of ffn_up at" in result.stderr
    assert result.stdout.count(" 8/160") == 6  # a slow GPU gets one block


SLIPS = {
    "a text": (("stats", "-m", "x"), "give the text with -f or -p"),
    "a budget": (("plan", "-m", "x"), "--vram-budget"),
    "a negative budget": (("plan", "-m", "x", "--vram-budget", "-1"), "not a finite number"),
    "a picture": (("stats", "-p", "x", "--plot", "x.png"), "the picture is SVG"),
    "two statistics": (("--stats", "a", "--activation", "b"), "choose --stats or --activation"),
    "the GPU's speed": (("--simulate",), "--simulate needs the speed of the GPU"),
    "a ratio": (("--solver", "balance"), "give --gpu-bandwidth or --speed-ratio"),
    "three ratios": (("--speed-ratio", "1,2,3"), "is not R or R_UP,R_DOWN"),
    "a ratio of zero": (("--speed-ratio", "0"), "not a finite number"),
    "no folder": (("stats", "-m", "x", "-p", "a", "-o", "none/s.json"), "none: no such directory"),
    "a file, no folder": (("stats", "-m", "x", "-p", "a", "--activation", __file__), "is a file"),
    "no folder of a picture": (("--svg", "none/s.svg"), "none: no such directory"),
    "no neurons": (("--disable-gpu-index", *SPEEDS), "cannot be used with --disable-gpu-index"),
    "statistics": (("--gpu-index", "x", *SPEEDS), "add --stats or --activation"),
}


@pytest.mark.parametrize(("args", "message"), SLIPS.values(), ids=SLIPS)
def test_wrong_arguments(args: tuple[object, ...], message: str) -> None:
    if args[0] not in ("stats", "plan"):
        args = ("plan", "-m", "x", "--vram-budget", 1, *args)
    assert message in run(*args, code=2).output


def test_bad_files_are_one_line(made: Path, tmp_path: Path) -> None:
    folder = copy(made, tmp_path)
    model = folder / "x.gguf"

    def fails(message: str, *args: object) -> None:
        error = CliRunner().invoke(
            command, [str(arg) for arg in ("plan", "-m", model, *PLAN, *args)]
        )
        lines = error.stderr.strip().splitlines()
        assert error.exit_code == 1 and len(lines) == 1 and message in lines[0], error.output

    write_activations(tmp_path / "a", np.ones((2, 160)))
    fails("have 2 layers of 160 neurons, the model 3", "--activation", tmp_path / "a")
    fails("no activation_0.pt", "--activation", tmp_path / "none")
    fails("damaged", "--stats", folder / "text.txt")
    fails("not a GGUF file", "--gpu-index", folder / "text.txt")
    fails("is a model, not a .gpuidx file", "--gpu-index", model)
    fails("is the model; choose another output file", "-o", model, "--reset-gpu-index")
    fails("computes all of its neurons", "--sparse", "off")
    shutil.rmtree(folder / "activation")
    fails("no activation_0.pt")


def test_predictors_are_trained_on_a_text(made: Path, tmp_path: Path) -> None:
    model = dense_file(tmp_path, "llama_relu")
    args = ("train", "-m", model, "-f", made / "text.txt", "-c", 48, "-t", 1, "--steps", 20)
    out = run(*args, "--rank", 8, "--recall", 0.999, "-o", tmp_path / "p").stdout
    assert [line.partition(":")[0] for line in out.splitlines()] == [f"layer {i}" for i in range(3)]
    assert {path.name for path in (tmp_path / "p").iterdir()} == {
        "config.json", "model_0.pt", "model_1.pt", "model_2.pt",
    }  # fmt: skip
    assert "is a file; name a folder" in run(*args, "-o", model, code=2).stderr
    assert "no such directory" in run(*args, "-o", tmp_path / "no" / "p", code=2).stderr
    assert "give the text" in run("train", "-m", model, code=2).stderr
