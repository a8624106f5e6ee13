"""Training of predictors: what they find, and that converted files use them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pyllama import Model
from pyllama.convert.files.torch_files import read_torch
from pyllama.errors import ModelError
from pyllama.inputs.budget import ReadBudget
from pyllama.sparsity import predictors
from pyllama.sparsity.predictors import (
    THRESHOLD,
    Pairs,
    Predictor,
    PredictorFolder,
    PredictorParams,
    train_predictors,
    write_predictors,
)

from ..models import Spec, random_weights, write_model

SPEC = Spec(n_layer=2, n_ff=64)
PARAMS = PredictorParams(rank=24, steps=150, n_batch=64, rate=1e-2, recall=0.9)
TOKENS = np.random.default_rng(0).integers(3, 259, 640).tolist()


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    weights = random_weights(SPEC)
    path = tmp_path_factory.mktemp("relu") / "x.gguf"
    act = {"llama.hidden_act": "relu"}
    return Model.load(write_model(path, SPEC, weights, metadata=act), sparse="off")


@pytest.fixture(scope="module")
def trained(model: Model) -> list[Predictor]:
    return list(train_predictors(model, TOKENS, PARAMS, n_ctx=64, n_threads=1))


def test_predictors_find_the_active_neurons_with_few_others(trained: list[Predictor]) -> None:
    assert [one.fc1.shape for one in trained] == [(24, 32)] * 2
    for one in trained:
        assert one.recall == pytest.approx(0.9, abs=0.01)
        assert 0.3 < one.active < 0.7
        assert one.selected < one.active + 0.2  # by chance 0.9


def test_layers_are_collected_in_parts_if_memory_is_short(
    model: Model, trained: list[Predictor], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(predictors, "available_memory", lambda: 1)
    again = list(train_predictors(model, TOKENS, PARAMS, n_ctx=64, n_threads=2))
    for one, other in zip(trained, again, strict=True):
        assert one.fc1.tobytes() == other.fc1.tobytes()
        assert one.fc2.tobytes() == other.fc2.tobytes()


def test_the_folder_is_powerinfers(tmp_path: Path, trained: list[Predictor]) -> None:
    write_predictors(tmp_path / "p", trained)
    assert json.loads((tmp_path / "p" / "config.json").read_text()) == {
        "sparse_threshold": THRESHOLD
    }
    stored = read_torch(tmp_path / "p" / "model_1.pt", ReadBudget())
    np.testing.assert_array_equal(stored["fc2.weight"].read(), trained[1].fc2)


def test_a_killed_run_goes_on_with_the_same_bits(
    model: Model, trained: list[Predictor], tmp_path: Path
) -> None:
    path, old = tmp_path / "p", {"config.json": b"of a run before", "model_0.pt": b"too"}
    path.mkdir()
    for name, text in old.items():
        (path / name).write_bytes(text)

    def folder(**changes: Any) -> PredictorFolder:
        return PredictorFolder(path, model, TOKENS, replace(PARAMS, **changes), n_ctx=64)

    next(folder().train(n_threads=1))  # and no further
    assert {f.name: f.read_bytes() for f in path.iterdir() if f.is_file()} == old
    with pytest.raises(ModelError, match=r"unfinished has 1 layers .*: rank 24, now 8; seed 0, n"):
        folder(rank=8, seed=1)
    with pytest.raises(ModelError, match=r"other settings: text \w+, now \w+\. Go on"):
        PredictorFolder(path, model, TOKENS[::-1], PARAMS, n_ctx=64)
    calls: list[float] = []
    again = folder()
    assert again.done == [trained[0][2:]]
    stats = list(again.train(n_threads=2, progress=calls.append))
    assert stats == [one[2:] for one in trained] and calls[0] > 0.5
    write_predictors(tmp_path / "whole", trained)
    names = sorted(f.name for f in path.iterdir())
    assert names == ["config.json", "model_0.pt", "model_1.pt"]
    for name in names:
        assert (path / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    assert not list(tmp_path.glob("*/unfinished"))


def test_an_unfinished_folder_is_checked(model: Model, tmp_path: Path) -> None:
    path = tmp_path / "p"
    next(PredictorFolder(path, model, TOKENS, PARAMS, n_ctx=64).train(n_threads=1))
    record = tmp_path / "p" / "unfinished" / "run.json"
    (record.parent / "model_0.pt").unlink()
    assert PredictorFolder(path, model, TOKENS, PARAMS, n_ctx=64).done == []
    for text in (
        "",
        "[]",
        "{}",
        '{"settings": 1, "layers": []}',
        '{"settings": {}, "layers": [1]}',
    ):
        record.write_text(text)
        with pytest.raises(ModelError, match=r"run\.json: no record of predictors"):
            PredictorFolder(path, model, TOKENS, PARAMS, n_ctx=64)


def test_scores_are_scaled_to_the_threshold_of_the_file() -> None:
    rng = np.random.default_rng(1)
    x = rng.standard_normal((200, 8)).astype(np.float32)
    fc1, fc2 = np.eye(8, dtype=np.float32), rng.standard_normal((20, 8)).astype(np.float32)
    active = np.maximum(x, 0) @ fc2.T > -0.5
    one = predictors._calibrated(fc1, fc2, Pairs(x, active), 1.0, 0)
    assert one.recall == 1 and one.selected == pytest.approx(one.active, abs=0.01)
    scores = np.maximum(x, 0) @ one.fc2.T
    assert scores[active].min() == pytest.approx(THRESHOLD, rel=1e-5)
    with pytest.raises(ModelError, match="use a larger recall"):
        predictors._calibrated(fc1, fc2, Pairs(x, active), 0.5, 0)
    with pytest.raises(ModelError, match="no neuron is active"):
        predictors._calibrated(fc1, fc2, Pairs(x, active & False), 0.5, 0)


def test_no_more_steps_are_computed_than_asked_for(model: Model) -> None:
    calls: list[float] = []
    params = replace(PARAMS, steps=3, n_batch=16, recall=0.999)
    next(train_predictors(model, TOKENS, params, n_ctx=64, n_threads=1, progress=calls.append))
    assert len(calls) == 3


def test_what_cannot_be_trained_is_said(model: Model) -> None:
    with pytest.raises(ModelError, match="too few"):
        next(train_predictors(model, TOKENS[:8], PARAMS))
    silu = model.with_hparams(replace(model.hparams, hidden_act=""))
    with pytest.raises(ModelError, match="no ReLU"):
        next(train_predictors(silu, TOKENS[:64], PARAMS))
