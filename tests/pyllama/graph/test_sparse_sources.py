"""Choice of sources and thresholds, and one line for unsupported ones."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pyggml.dtype import GGMLType
from pyggml.errors import GGUFError
from pyllama import Batch, Context, Llama, Model
from pyllama.errors import ModelError
from pyllama.graph.sparse.sources import SourceItem, parse_sparse
from pyllama.runtime.overrides import Overrides

from ...tiers import some
from ..models import Spec, random_weights, write_model
from ..sparsity.files import as_powerinfer, dense_file, read, recorded, sparse_file, write

Q4_0, Q8_0 = GGMLType.Q4_0, GGMLType.Q8_0
ENV = "LLAMA_SPARSE_PRED_THRESHOLD"
Weights = dict[str, np.ndarray]


@pytest.fixture(scope="module")
def bamboo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return sparse_file(tmp_path_factory.mktemp("bamboo"), "bamboo")


@pytest.fixture(scope="module")
def transposed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file with transposed ffn_down, without predictors."""
    folder = tmp_path_factory.mktemp("transposed")
    return write(folder / "x.gguf", *as_powerinfer(*read(dense_file(folder, "bamboo"))))


@pytest.fixture(scope="module")
def silu(tmp_path_factory: pytest.TempPathFactory) -> Path:
    spec = Spec()
    return write_model(tmp_path_factory.mktemp("silu") / "x.gguf", spec, random_weights(spec))


def test_parse_sparse() -> None:
    assert parse_sparse("predictor, exact:0-3,svd=64:5") == [
        SourceItem("predictor", None, None),
        SourceItem("exact", None, (0, 3)),
        SourceItem("svd", 64, (5, 5)),
    ]


@pytest.mark.parametrize(
    "text", ["", "predictors", "exact:", "exact=3", "topk", "topk=0", "svd=0", "svd=-1",
             "exact,,off", "exact:0-", "signs:a", "exact:-1"]
)  # fmt: skip
def test_parse_sparse_refuses_invalid_text(text: str) -> None:
    with pytest.raises(ModelError) as error:
        parse_sparse(text)
    assert "must be" in str(error.value) and "\n" not in str(error.value)


def test_sources_chosen_for_each_layer(
    bamboo: Path, transposed: Path, silu: Path, tmp_path: Path
) -> None:
    def sources(path: Path, sparse: str = "auto") -> tuple[str, ...]:
        return Model.load(path, sparse=sparse).hparams.sparse

    assert sources(bamboo) == ("predictor",) * 3
    assert sources(transposed) == ("exact",) * 3
    assert sources(silu) == sources(dense_file(tmp_path, "bamboo")) == ()
    assert sources(bamboo, "off") == ()
    assert sources(bamboo, "off:1") == ("predictor", "off", "predictor")
    assert sources(bamboo, "exact,predictor:1-2,svd:2") == ("exact", "predictor", "svd=8")
    assert sources(bamboo, "svd=9999") == ("svd=64",) * 3
    metadata, weights = as_powerinfer(*read(dense_file(tmp_path, "bamboo")))
    metadata["bamboo.hidden_act"] = "silu"
    assert sources(write(tmp_path / "x.gguf", metadata, weights)) == ()


def test_priority_of_threshold_sources(
    bamboo: Path, transposed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    def threshold(path: Path = bamboo, **given: Any) -> float:
        return Model.load(path, **given).hparams.sparse_threshold

    monkeypatch.delenv(ENV, raising=False)
    without = sparse_file(
        tmp_path, "bamboo", change=lambda m, w: m.pop("powerinfer.sparse_threshold")
    )
    assert threshold(without) == 0.0
    assert threshold() == float(recorded("bamboo")["threshold"])
    monkeypatch.setenv(ENV, "0.5")
    assert threshold() == 0.5 and threshold(sparse_threshold=-1) == -1
    assert threshold(sparse="signs") == 0.0 and threshold(sparse="off", sparse_threshold=3) == 0
    assert threshold(sparse="signs", sparse_threshold=6) == 6
    assert threshold(sparse_threshold=1e300) == float("inf")
    monkeypatch.setenv(ENV, "-inf")
    assert threshold() == -float("inf")
    caplog.clear()
    assert threshold(transposed, sparse_threshold=1.0) == 1.0
    assert "no effect" in caplog.text
    llama = Llama(bamboo, sparse="exact:0", sparse_threshold=0.125, verbose=False)
    assert llama.model.hparams.sparse == ("exact", "predictor", "predictor")
    assert llama.model.hparams.sparse_threshold == 0.125


def drop(name: str) -> Callable[[dict[str, Any], Weights], None]:
    return lambda metadata, weights: weights.pop(name)


def put(name: str, *shape: int) -> Callable[[dict[str, Any], Weights], None]:
    return lambda metadata, weights: weights.update({name: np.ones(shape, np.float32)})


def key(value: Any) -> Callable[[dict[str, Any], Weights], None]:
    return lambda metadata, weights: metadata.update({"powerinfer.sparse_threshold": value})


FC1, FC2, DOWN = (f"blk.1.{part}.weight" for part in ("fc1", "fc2", "ffn_down_t"))
BAD = {
    "fc1-wrong": (put(FC1, 40, 63), rf"'{FC1}' has sizes \[63, 40, 1, 1\], want \[64, any"),
    "fc2-wrong": (put(FC2, 161, 40), rf"'{FC2}' has sizes \[40, 161, 1, 1\], want \[any, 160"),
    "fc2-rank": (put(FC2, 160, 41),
                 rf"'{FC2}' has sizes .*, must have rows of 40, the rank of '{FC1}'"),
    "fc1-vector": (put(FC1, 64), f"must have rows of 1, the rank of '{FC1}'"),
    "down-not-transposed": (put(DOWN, 64, 160), rf"'{DOWN}' has sizes \[160, 64"),
    "down-missing": (drop(DOWN), rf"'{DOWN}' is missing"),
    "down-twice": (put("blk.1.ffn_down.weight", 64, 160), "'blk.1.ffn_down.weight'"),
    "fc1-missing": (drop(FC1), f"layer 1 has no predictor: there is no tensor '{FC1}'"),
    "fc2-missing": (drop(FC2), f"layer 1 has no predictor: there is no tensor '{FC2}'"),
    "layer-too-many": (put("blk.3.fc1.weight", 8, 64), "'blk.3.fc1.weight'"),
    "threshold-nan": (key(np.float32("nan")),
                      "powerinfer.sparse_threshold is nan, must be a number"),
    "threshold-text": (key("0.5"), "powerinfer.sparse_threshold"),
}  # fmt: skip


@pytest.mark.parametrize(("change", "message"), some(BAD.values(), 5), ids=BAD)
def test_invalid_predictor_files(
    tmp_path: Path, change: Callable[[dict[str, Any], Weights], None], message: str
) -> None:
    path = sparse_file(tmp_path, "bamboo", change=change)
    with pytest.raises((ModelError, GGUFError), match=message) as error:
        Model.load(path)
    assert str(error.value).startswith(str(path)) and "\n" not in str(error.value)


def test_an_unused_predictor_must_be_complete_or_absent(tmp_path: Path) -> None:
    path = sparse_file(tmp_path, "bamboo", change=drop(FC2))
    with pytest.raises(ModelError, match=f"'{FC2}' is missing, which belongs to '{FC1}'"):
        Model.load(path, sparse="exact")
    path = sparse_file(tmp_path, "bamboo", change=lambda m, w: (w.pop(FC1), w.pop(FC2)))
    assert Model.load(path, sparse="predictor,exact:1").hparams.sparse[1] == "exact"


@pytest.mark.parametrize("text", ["nan", "much", "1,5"])
def test_invalid_threshold_in_the_environment(
    bamboo: Path, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(ENV, text)
    with pytest.raises(ModelError, match=f"{ENV} is {text}, must be a number, inf or -inf"):
        Model.load(bamboo)
    Model.load(bamboo, sparse="exact")
    Model.load(bamboo, sparse_threshold=0.0)


def test_options_that_the_model_does_not_support(bamboo: Path, silu: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="the sparse threshold is nan"):
        Model.load(bamboo, sparse_threshold=float("nan"))
    with pytest.raises(ModelError, match=r"there are no predictors in this file.*sparse='exact'"):
        Model.load(silu, sparse="predictor")
    with pytest.raises(ModelError, match=r"sparse exact:0-3: the layers of this model are 0 to 2"):
        Model.load(bamboo, sparse="exact:0-3")
    with pytest.raises(ModelError, match=r"topk=161: a layer has 160 neurons"):
        Model.load(bamboo, sparse="topk=161")
    model = Model.load(silu, sparse="exact")
    with pytest.raises(
        ModelError, match=r"llama is silu: use `sparse='off'`.*`hidden_act='relu'` only if"
    ):
        Context(model, n_ctx=32)
    context = Context(model, n_ctx=32, overrides=Overrides(hidden_act="relu"))
    context.decode(Batch([5]))
    dense = Context(Model.load(silu), n_ctx=32, overrides=Overrides(hidden_act="relu"))
    dense.decode(Batch([5]))
    assert np.abs(context.logits - dense.logits).max() < 1e-5


def test_experts(tmp_path: Path) -> None:
    path = dense_file(tmp_path, "mixtral")
    assert Model.load(path).hparams.sparse == ()
    for source in ("signs", "exact"):
        with pytest.raises(ModelError, match="does not support experts whose activation is not"):
            Model.load(path, sparse=source)
