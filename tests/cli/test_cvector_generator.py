"""``pyllama-cvector-generator``."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from pyggml.gguf import GGUFFile
from pyllama import Context, Model
from pyllama.eval.control_vector import (
    differences,
    mean_direction,
    principal_direction,
    tokenize_pairs,
)
from pyllama_cli.main import pyllama

from ..pyllama.models import Spec, random_weights, write_model

SPEC = Spec(n_layer=3)
HAPPY, SAD = ["I am\\nhappy", "good"], ["I am\\nsad", "ill"]


def run(*args: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(pyllama, ["cvector-generator", "-m", "x.gguf", "-c", "64", *args])
    return result.exit_code, result.stdout, result.stderr


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cvector")
    write_model(folder / "x.gguf", SPEC, random_weights(SPEC))
    (folder / "positive.txt").write_text("\n\n".join(HAPPY) + "\n")
    (folder / "negative.txt").write_text("\n".join(SAD))
    return folder


@pytest.mark.parametrize("method", ["pca", "mean"])
def test_the_file_has_the_directions(
    folder: Path, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    monkeypatch.chdir(folder)
    method_args = ["--method", "mean"] if method == "mean" else []
    code, out, err = run(*method_args)
    assert (code, out) == (0, "control_vector.gguf: 2 directions\n"), err
    assert "cvector: 2 pairs, " in err
    model = Model.load("x.gguf")
    texts = ([text.replace("\\n", "\n") for text in some] for some in (HAPPY, SAD))
    pairs = tokenize_pairs(model.tokenizer, *texts)
    rows = [
        np.concatenate(x) for x in zip(*differences(Context(model, n_ctx=64), pairs), strict=True)
    ]
    make = mean_direction if method == "mean" else principal_direction
    file = GGUFFile("control_vector.gguf")
    for i, x in enumerate(rows, 1):
        got = file.tensor_bytes(f"direction.{i}").view(np.float32)
        np.testing.assert_allclose(got, make(x), atol=1e-6)


def test_faults_are_one_line(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    (folder / "one.txt").write_text("a\n")
    for args, said in (
        (["--negative-file", "one.txt"], "2 positive and 1 negative prompts: want pairs"),
        (
            ["--positive-file", "none.txt"],
            "none.txt: no such file; give a text file with one prompt a line with --positive-file",
        ),
        (["--pca-iter", "150"], "--pca-iter must be a multiple of --pca-batch"),
        (["-o", "no/x.gguf"], "no: no such directory"),
        (["-o", "x.gguf"], "x.gguf is read too: give the output another name"),
        (["-o", "positive.txt"], "positive.txt is read too: give the output another name"),
    ):
        code, _, err = run(*args)
        assert code != 0 and said in err.splitlines()[-1], err
