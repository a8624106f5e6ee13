"""Predictors and models that cannot become a PowerInfer file: one clear line, nothing written."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pyggml.errors import PyggmlError
from pyllama.convert import ConvertOptions, convert
from pyllama.errors import ModelError

from ...tiers import some
from ..arch.checkpoints import write_checkpoint
from ..models import HF_LLAMA, hf_folder
from .folders import state, write_archive, write_torch

N_EMBD, N_FF, RANK = 64, 256, 48  # of the checkpoint and its predictors


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return hf_folder(tmp_path / "model", "hf_relu_llama")


@pytest.fixture
def predictor(tmp_path: Path) -> Path:
    path = tmp_path / "predictor"
    shutil.copytree(HF_LLAMA.with_name("hf_relu_llama_predictor"), path)
    return path


def rewrite(**changes: Any) -> Callable[[Path], Any]:
    """Return a function that writes layer 1 with other tensors; None removes one."""
    shapes = {"fc1": (RANK, N_EMBD), "fc2": (N_FF, RANK)}

    def damage(predictor: Path) -> None:
        tensors = {f"{name}.weight": np.zeros(shape, np.float32) for name, shape in shapes.items()}
        tensors |= {key.replace("__", "."): value for key, value in changes.items()}
        kept = {key: value for key, value in tensors.items() if value is not None}
        write_torch(predictor / "model_1.pt", kept)

    return damage


def threshold(text: str) -> Callable[[Path], Any]:
    return lambda p: (p / "config.json").write_text(f'{{"sparse_threshold": {text}}}')


def zeros(*shape: int) -> np.ndarray:
    return np.zeros(shape, np.float32)


EVIL = b"\x80\x02cposix\nsystem\nX\x04\x00\x00\x00true\x85R."
NAN, INF = zeros(RANK, N_EMBD), zeros(N_FF, RANK)
NAN[2, 3], INF[0, 7] = np.nan, -np.inf
FAULTS: dict[str, tuple[Callable[[Path], Any], str]] = {
    "one missing": (
        lambda p: (p / "model_1.pt").unlink(),
        "predictors are missing for 1 of 3 layers: there is no model_1.pt",
    ),
    "all missing": (
        lambda p: [file.unlink() for file in p.glob("*.pt")],
        "for 3 of 3 layers: there is no model_0.pt, model_1.pt, model_2.pt",
    ),
    "a layer too many": (
        lambda p: (p / "model_3.pt").write_bytes(b""),
        "model_3.pt: there is no layer 3, the model has 3 layers: are these the predictors of",
    ),
    "twice": (
        lambda p: (p / "model_1.safetensors").write_bytes(b""),
        "model_1.safetensors: model_1.pt is also of layer 1: keep one",
    ),
    "no fc2": (
        rewrite(fc2__weight=None),
        "model_1.pt: tensor 'fc2.weight' is missing; a predictor consists of",
    ),
    "a bias": (
        rewrite(fc1__bias=zeros(RANK)),
        "tensor 'fc1.bias' is unknown; a predictor consists of",
    ),
    "another width": (
        rewrite(fc1__weight=zeros(RANK, 63)),
        r"model_1.pt: tensor 'fc1.weight' has the shape \[48, 63\], must be \[rank, 64\]",
    ),
    "other neurons": (
        rewrite(fc2__weight=zeros(N_FF - 1, RANK)),
        r"tensor 'fc2.weight' has the shape \[255, 48\], must be \[256, rank\]",
    ),
    "two ranks": (
        rewrite(fc2__weight=zeros(N_FF, 47)),
        r"fc1.weight \[48, 64\] has rank 48, but fc2.weight \[256, 47\] has 47",
    ),
    "no rank": (rewrite(fc1__weight=zeros(0, N_EMBD)), r"\[0, 64\], must be \[rank, 64\]"),
    "a vector": (rewrite(fc1__weight=zeros(N_EMBD)), r"the shape \[64\], must be \[rank, 64\]"),
    "code": (
        lambda p: write_archive(p / "model_2.pt", EVIL, {}),
        "model_2.pt: refers to 'posix.system', which is not part of a tensor: refused",
    ),
    "no tensors": (
        lambda p: write_archive(p / "model_2.pt", state(), {}),
        "model_2.pt: tensor 'fc1.weight' is missing",
    ),
    "cut": (
        lambda p: (p / "model_2.pt").write_bytes((p / "model_2.pt").read_bytes()[:-99]),
        "model_2.pt: not PyTorch's zip format .* incomplete",
    ),
    "damaged safetensors": (
        lambda p: (p / "model_2.pt").rename(p / "model_2.safetensors"),
        "model_2.safetensors: .* not a safetensors file",
    ),
    "NaN": (rewrite(fc1__weight=NAN), r"model_1.pt: tensor 'fc1.weight' is nan at \[2, 3\]"),
    "infinity": (rewrite(fc2__weight=INF), r"model_1.pt: tensor 'fc2.weight' is -inf at \[0, 7\]"),
    "beyond F16": (
        rewrite(fc2__weight=zeros(N_FF, RANK) + 1e6),
        "'blk.1.fc2.weight' has values up to .*e.*too large for f16",
    ),
    "threshold NaN": (threshold("NaN"), "config.json: sparse_threshold is nan, must be a number"),
    "threshold text": (threshold('"x"'), "config.json: sparse_threshold is 'x', must be a number"),
    "threshold bool": (threshold("true"), "sparse_threshold is True, must be a number"),
    "threshold large": (
        threshold("1e39"),
        r"sparse_threshold is 1e\+39, must be a number in the range of float32",
    ),
    "threshold list": (threshold("[0.1]"), r"sparse_threshold is \[0.1\], must be a number"),
    "no JSON": (lambda p: (p / "config.json").write_text("{"), "config.json: not JSON"),
    "no folder": (shutil.rmtree, "no such folder: give the folder of predictors"),
}


@pytest.mark.parametrize(("damage", "message"), some(FAULTS.values(), 10), ids=FAULTS)
def test_bad_predictors_are_one_line_and_write_nothing(
    folder: Path, predictor: Path, damage: Callable[[Path], Any], message: str
) -> None:
    damage(predictor)
    before = set(folder.iterdir())
    with pytest.raises(PyggmlError, match=message) as error:
        convert(folder, outtype="f16", options=ConvertOptions(predictor=predictor))
    assert "\n" not in str(error.value)
    assert set(folder.iterdir()) == before


def test_predictor_path_is_a_file(folder: Path) -> None:
    with pytest.raises(ModelError, match=r"config\.json: is a file: give the folder of"):
        convert(folder, options=ConvertOptions(predictor=folder / "config.json"))


@pytest.mark.parametrize("options", [{"predictor": Path("none")}, {"transpose_down": True}])
@pytest.mark.parametrize(
    ("variant", "message"),
    some(
        [
            ("mixtral", "4 experts, for which there are no predictors|its activation is not ReLU"),
            (
                "llama",
                "its activation is not ReLU, which does not give exact zeros.*predictor=None",
            ),
            ("opt_no_bias", "its activation is gelu_erf, which does not give exact zeros"),
            ("gpt2", "its activation is not ReLU"),
        ],
        2,
    ),
)
def test_models_that_cannot_be_sparse(
    tmp_path: Path, variant: str, message: str, options: dict[str, Any]
) -> None:
    folder = write_checkpoint(tmp_path / variant, variant)
    before = set(folder.iterdir())
    with pytest.raises(ModelError, match=message):
        convert(folder, options=ConvertOptions(**options))
    assert set(folder.iterdir()) == before
