"""``pyllama-quantize``, ``pyllama-imatrix`` and ``pyllama-perplexity --kl-divergence``."""

from __future__ import annotations

import shutil
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from pyggml.dtype import GGMLType
from pyggml.gguf import GGUFFile, plan_split, write_split
from pyllama.quantize import read_importance
from pyllama_cli.commands import imatrix, perplexity, quantize

from ..pyllama.models import Spec, random_weights, write_model

SPEC = Spec(n_embd=64, n_ff=96, n_head=4, n_head_kv=2, head_dim=16, tied=False)
TEXT = "It was the best of times, it was the worst of times. " * 4


def run(command: click.Command, *args: object, code: int = 0) -> Result:
    result = CliRunner().invoke(command, [str(arg) for arg in args])
    assert result.exit_code == code, result.output
    if code:
        assert "Traceback" not in result.output
    return result


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model and a text."""
    folder = tmp_path_factory.mktemp("m")
    write_model(folder / "x.gguf", SPEC, random_weights(SPEC))
    (folder / "text.txt").write_text(TEXT)
    return folder


@pytest.fixture
def folder(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "m"))


def type_of(path: Path, name: str) -> GGMLType:
    with GGUFFile(path) as file:
        return file.tensors[name].type


def test_arguments(folder: Path) -> None:
    out = run(quantize.command, folder / "x.gguf", "q8_0").stdout
    written = folder / "ggml-model-Q8_0.gguf"
    assert type_of(written, "blk.0.attn_q.weight") is GGMLType.Q8_0
    assert out.splitlines()[-2].startswith("model size  = ") and "(32.00 BPW)" in out
    assert out.splitlines()[-1].startswith("quant size  = ") and "BPW)" in out
    run(quantize.command, "--pure", folder / "x.gguf", folder / "y.gguf", "2", "1")
    assert type_of(folder / "y.gguf", "output.weight") is GGMLType.Q4_0
    run(
        quantize.command, "--output-tensor-type", "f16", "--token-embedding-type", "q5_1",
        "--tensor-type", "ffn_DOWN=bf16", "--tensor-type-file", listed(folder),
        "--override-kv", "general.name=str:mine", folder / "x.gguf", folder / "y.gguf", "q5_0",
    )  # fmt: skip
    types = {
        "output": "F16", "token_embd": "Q5_1", "blk.0.ffn_down": "BF16", "blk.1.attn_v": "F16",
        "blk.0.attn_v": "Q8_0", "blk.0.attn_q": "Q5_0",
    }  # fmt: skip
    for name, type in types.items():
        assert type_of(folder / "y.gguf", f"{name}.weight").name == type
    with GGUFFile(folder / "y.gguf") as file:
        assert file.get_str("general.name") == "mine"


def listed(folder: Path) -> Path:
    (folder / "types.txt").write_text("blk\\.1\\.attn_v=f16\n attn_v=q8_0 ffn_down=q8_0\n")
    return folder / "types.txt"


def test_dry_run(folder: Path) -> None:
    before = sorted(folder.iterdir())
    result = run(quantize.command, "--dry-run", folder / "x.gguf", "Q4_K_M")
    assert "blk.0.attn_q.weight" in result.stdout and "(Q5_0)" in result.stdout
    assert "are no multiple of Q4_K's block size: using Q5_0" in result.stderr
    assert "importance" not in result.stderr
    result = run(quantize.command, "--dry-run", folder / "x.gguf", "Q2_K_S", "3")
    assert sorted(folder.iterdir()) == before


@pytest.mark.parametrize(
    ("args", "code", "message"),
    [
        ((), 2, "expected MODEL [OUTFILE] TYPE [THREADS], got 0 arguments"),
        (("x.gguf",), 2, "got 1 arguments"),
        (("x.gguf", "y.gguf"), 2, "the type to quantize to is missing"),
        (("x.gguf", "y.gguf", "Q9"), 1, "unknown file type 'Q9'"),
        (("x.gguf", "y.gguf", "Q8_0", "many"), 2, "'many' is not a whole number"),
        (("x.gguf", "Q8_0", "2", "3"), 2, "unexpected argument '3'"),
        (("none.gguf", "Q8_0"), 1, "no such file"),
        ((".", "Q8_0"), 1, "is a directory"),
        (("text.txt", "Q8_0"), 1, "not a GGUF file"),
        (("x.gguf", "x.gguf", "Q8_0"), 1, "is the source; choose another name"),
        (("--tensor-type", "x", "x.gguf", "Q8_0"), 2, "is not REGEX=TYPE"),
        (("--tensor-type", "(=q8_0", "x.gguf", "Q8_0"), 2, "is not a regular expression"),
        (("--tensor-type", "a=q9", "x.gguf", "Q8_0"), 1, "cannot be quantized to 'q9'"),
        (("--output-tensor-type", "iq1_s", "x.gguf", "Q8_0"), 1, "cannot be quantized to"),
        (("--tensor-type-file", "none", "x.gguf", "Q8_0"), 1, "none: No such file"),
        (("--imatrix", "none", "x.gguf", "Q8_0"), 1, "none: no such file"),
        (("--imatrix", "text.txt", "x.gguf", "Q8_0"), 1, "is not an importance matrix"),
        (("--imatrix", "x.gguf", "x.gguf", "Q8_0"), 1, "general.type is None"),
        (("--prune-layers", "a", "x.gguf", "Q8_0"), 2, "'a' is not a whole number"),
        (("--prune-layers", "7", "x.gguf", "Q8_0"), 1, "layer 7 cannot be pruned"),
        (("--override-kv", "x", "x.gguf", "Q8_0"), 2, "is not KEY=TYPE:VALUE"),
        (("--include-weights", "a", "--exclude-weights", "b", "x.gguf", "Q8_0"), 2, "not both"),
    ],
)
def test_wrong_arguments_are_one_line(
    folder: Path, monkeypatch: pytest.MonkeyPatch, args: tuple[str, ...], code: int, message: str
) -> None:
    monkeypatch.chdir(folder)
    before = sorted(folder.iterdir())
    result = run(quantize.command, *args, code=code)
    assert message in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1
    assert sorted(folder.iterdir()) == before


def test_imatrix_then_quantize_then_kl_divergence(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    model = ("-m", "x.gguf", "-c", 32, "-t", 1)
    result = run(
        imatrix.command, *model, "-f", "text.txt", "-o", "i.gguf", "--chunks", 2, "-ofreq", 1,
        "--save-frequency", 2,
    )  # fmt: skip
    assert result.stdout.startswith("[1]") and "Final estimate: PPL = " in result.stdout
    assert "i.gguf: 14 matrices over 2 chunks" in result.stderr
    assert read_importance("i.gguf.at_2").entries.keys() == read_importance("i.gguf").entries.keys()
    run(imatrix.command, "--in-file", "i.gguf,i.gguf.at_2", "-o", "both.gguf")
    assert read_importance("both.gguf").n_chunks == 4
    table = run(imatrix.command, "--in-file", "i.gguf", "--show-statistics").stdout
    assert len(table.splitlines()) == 15
    for args, message in (
        (("--show-statistics",), "--in-file"),
        ((), "give the text"),
        (("-f", "text.txt", "--chunk", 99, *model), "there is no chunk"),
        (("-f", "text.txt", "-o", "none/i.gguf"), "none: no such directory to write to"),
        (("-f", "text.txt", "-o", "text.txt", *model), "text.txt is read too"),
        (("-f", "text.txt", "-o", "x.gguf", *model), "x.gguf is read too"),
    ):
        code = 1 if "--chunk" in args else 2
        assert message in run(imatrix.command, *args, code=code).stderr

    result = run(quantize.command, "--imatrix", "i.gguf", "x.gguf", "y.gguf", "Q4_1")
    assert "2 tensors are not in the importance matrix" in result.stderr
    with GGUFFile("y.gguf") as file:
        assert file.get_str("quantize.imatrix.file") == "i.gguf"
        assert file.get_int("quantize.imatrix.entries_count") == 14
    run(
        quantize.command, "--imatrix", "i.gguf", "--exclude-weights", "ffn", "x.gguf", "y.gguf", "3"
    )
    with GGUFFile("y.gguf") as file:
        assert file.get_int("quantize.imatrix.entries_count") == 8
    none = ("--imatrix", "i.gguf", "--include-weights", "no such", "x.gguf")
    assert (
        "the filters exclude every matrix" in run(quantize.command, *none, "y.gguf", "Q4_0").stderr
    )
    run(quantize.command, "x.gguf", "z.gguf", "Q4_0")
    assert Path("y.gguf").read_bytes() == Path("z.gguf").read_bytes()

    text = ("-f", "text.txt", "--chunks", 3)
    run(perplexity.command, *model, *text, "--save-all-logits", "x.logits")
    compare = ("--kl-divergence", "--kl-divergence-base", "x.logits", "-c", 32, "-t", 1)
    same = run(perplexity.command, "-m", "x.gguf", *compare).stdout
    assert same.splitlines()[1].startswith("chunk             PPL")
    assert same.count("100.000 ±  0.000 %") == 3
    other = run(perplexity.command, "-m", "y.gguf", *compare).stdout
    assert "====== KL" not in other  # of 45 tokens there are no statistics
    for args, message in (
        (("--kl-divergence",), "needs --kl-divergence-base FILE"),
        (("--kl-divergence", "--kl-divergence-base", "none"), "no such file"),
        (("--kl-divergence", "--kl-divergence-base", "text.txt"), "is not a file of logits"),
    ):
        result = run(perplexity.command, *model, *args, code=2 if len(args) == 1 else 1)
        assert message in result.stderr


def test_parts_of_a_split_model_are_not_replaced(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    with GGUFFile("x.gguf") as file:
        first, *others = [plan.path for plan in plan_split(file, Path("s"), max_tensors=9)]
        write_split(file, plan_split(file, Path("s"), max_tensors=9))
    before = others[0].read_bytes()
    text = ("-m", first, "-f", "text.txt", "-c", 32, "--chunks", 1)
    for args in ((imatrix.command, "-o"), (perplexity.command, "--save-all-logits")):
        for output in (first, others[0], "text.txt"):
            result = run(args[0], *text, args[1], output, code=2)
            assert f"{output} is read too: give the output another name" in result.stderr
    assert others[0].read_bytes() == before


def test_perplexity_of_a_reduced_cache(folder: Path) -> None:
    """Its batches are so small that the cache is reduced within a chunk; the value changes."""
    files = ("-m", folder / "x.gguf", "-f", folder / "text.txt")
    text = (*files, "--chunks", 2, "-c", 64, "-t", 1)
    window = ("--kv-window", 8)
    plain, reduced = (
        run(perplexity.command, *text, *more) for more in ((), ("--kv-keep", 16, *window))
    )
    assert "n_batch=2" in reduced.stderr and plain.stdout != reduced.stdout
    never = run(perplexity.command, *text, "--kv-keep", 64, *window, code=1)
    assert "use a smaller --kv-keep or a larger --ctx-size" in never.stderr
    wrong = run(perplexity.command, *text, "--kv-keep", 16, code=1)
    assert "kv_keep is 16 and kv_window 64" in wrong.stderr


def test_kl_statistics_match_llama_cpp_lines() -> None:
    import numpy as np

    from pyllama.eval.kl_divergence import Divergence
    from pyllama_cli.tables.kl import chunk_line, statistics

    rng = np.random.default_rng(0)
    nll, kld, diff = 3 + rng.random(500), rng.random(500) / 10, rng.normal(0, 0.1, 500)
    result = Divergence(2, nll, nll + 0.01, kld, diff, rng.random(500) < 0.9)
    names = [line.partition(":")[0] for line in statistics(result).splitlines()]
    assert names == [
        "", "====== Perplexity statistics ======", "Mean PPL(Q)                   ",
        "Mean PPL(base)                ", "Cor(ln(PPL(Q)), ln(PPL(base)))",
        "Mean ln(PPL(Q)/PPL(base))     ", "Mean PPL(Q)/PPL(base)         ",
        "Mean PPL(Q)-PPL(base)         ", "", "====== KL divergence statistics ======",
        "Mean    KLD", "Maximum KLD", "99.9%   KLD", "99.0%   KLD", "95.0%   KLD", "90.0%   KLD",
        "Median  KLD", "10.0%   KLD", " 5.0%   KLD", " 1.0%   KLD", " 0.1%   KLD", "Minimum KLD",
        "", "====== Token probability statistics ======", "Mean    Δp", "Maximum Δp", "99.9%   Δp",
        "99.0%   Δp", "95.0%   Δp", "90.0%   Δp", "75.0%   Δp", "Median  Δp", "25.0%   Δp",
        "10.0%   Δp", " 5.0%   Δp", " 1.0%   Δp", " 0.1%   Δp", "Minimum Δp", "RMS Δp    ",
        "Same top p",
    ]  # fmt: skip
    assert chunk_line(result).count("±") == 5
