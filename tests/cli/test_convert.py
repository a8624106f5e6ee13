"""pyllama-convert: its output, and one line for each error."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from pyggml.gguf import GGUFFile
from pyllama_cli.commands.convert import command

from ..pyllama.models import HF_LLAMA, hf_folder


def run(*args: object) -> tuple[int, str, str]:
    """Exit code, stdout, stderr."""
    result = CliRunner().invoke(command, [str(arg) for arg in args])
    return result.exit_code, result.stdout, result.stderr


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return hf_folder(tmp_path / "llama")


def test_convert_to_a_file(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = folder / "x.gguf"
    args = ("--outfile", path, "--outtype", "q8_0", "--model-name", "Mine", "--verbose")
    code, out, err = run(folder, *args)
    assert (code, out) == (0, f"{path}\n") and err in ("", "converting\n")  # where it takes long
    assert "blk.0.attn_q.weight [64, 64]: F32 -> Q8_0" in caplog.text
    with GGUFFile(path) as file:
        assert file.get_str("general.name") == "Mine" and file.get_int("general.file_type") == 7


def test_dry_run_of_split_files(folder: Path) -> None:
    code, out, err = run(folder, "--split-max-tensors", 9, "--dry-run")
    assert (code, err) == (0, "dry run: nothing was written\n")
    assert out.endswith("-BF16-00001-of-00004.gguf\n") and not list(folder.glob("*.gguf"))
    assert run(folder, "--split-max-size", "1G", "--dry-run")[1].endswith("-BF16.gguf\n")


def test_sparse_files(tmp_path: Path) -> None:
    folder = hf_folder(tmp_path / "relu", "hf_relu_llama")
    predictor = HF_LLAMA.with_name("hf_relu_llama_predictor")
    for options, ending, magic in (
        (["--predictor", predictor], "-BF16.powerinfer.gguf", b"PWRI"),
        (["--transpose-down"], "-BF16.transposed.gguf", b"GGUF"),
        (["--dense"], "-BF16.gguf", b"GGUF"),
        ([], "-BF16.gguf", b"GGUF"),
    ):
        code, out, err = run(folder, *options)
        assert code == 0 and out.endswith(f"{ending}\n")
        assert err in ("", "converting\n")  # where it takes long
        assert Path(out.strip()).read_bytes()[:4] == magic
    code, out, err = run(folder, "--predictor", tmp_path / "none")
    assert (code, out) == (1, "") and err.count("\n") == 1
    assert "none: no such folder: give the folder of predictors (model_0.pt" in err


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ([], "Missing argument 'DIR'"),
        (["no/such/folder"], "error: no/such/folder: no such folder"),
        ([__file__], "is a file: give the folder of a Hugging Face checkpoint"),
        ([".", "--outtype", "q5_0"], "'q5_0' is not one of"),
        ([".", "--split-max-size", "2T"], "'2T' is not a size in M"),
        ([".", "--split-max-size", "2G", "--split-max-tensors", "2"], "not both"),
        (
            [".", "--dense", "--predictor", "x"],
            "--dense cannot be used with --predictor or --transpose-down",
        ),
        (
            [".", "--dense", "--transpose-down"],
            "--dense cannot be used with --predictor or --transpose-down",
        ),
        ([".", "--outfiles", "x"], "no such option --outfiles (did you mean --outfile?)"),
    ],
)
def test_wrong_arguments_are_one_line(args: list[str], message: str) -> None:
    code, out, err = run(*args)
    assert code in (1, 2) and out == "" and message in err and err.count("\n") == 1
