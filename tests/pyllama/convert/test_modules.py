"""Folders of embedding models and rerankers: pooling, names without prefix, heads."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pyggml.dtype import GGMLType
from pyggml.gguf import GGUFFile
from pyllama import Context, Model
from pyllama.convert import convert
from pyllama.convert.files.folder import Folder
from pyllama.convert.modules import dense_keys, dense_tensors, pooling_keys
from pyllama.embeddings import embed_many
from pyllama.engine import Engine
from pyllama.errors import ModelError

from ..arch.checkpoints import DATA, recorded, shapes_of, variants, weights, write_checkpoint
from ..encoders.checkpoints import write_checkpoint as write_encoder
from .folders import write_safetensors

POOLING = {"path": "1_Pooling", "type": "sentence_transformers.models.Pooling"}
MODULES = [{"path": "", "type": "sentence_transformers.models.Transformer"}, POOLING]


def write(folder: Path, modules: Any, pooling: Any = None) -> Folder:
    (folder / "modules.json").write_text(json.dumps(modules))
    if pooling is not None:
        (folder / "1_Pooling").mkdir()
        (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    return Folder(folder)


@pytest.mark.parametrize(
    ("pooling", "number"),
    [
        ({"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": False}, 1),
        ({"pooling_mode_cls_token": True}, 2),
        ({"pooling_mode_lasttoken": True, "pooling_mode_mean_tokens": False}, 3),
        ({"pooling_mode": "mean"}, 1),
        ({"pooling_mode": "lasttoken"}, 3),
    ],
)
def test_poolings(tmp_path: Path, pooling: dict[str, Any], number: int) -> None:
    assert pooling_keys(write(tmp_path, MODULES, pooling)) == {"pooling_type": number}


def test_folders_without_pooling(tmp_path: Path) -> None:
    assert pooling_keys(Folder(tmp_path)) == {}
    assert pooling_keys(write(tmp_path, MODULES[:1])) == {}


def test_a_model_in_a_folder_of_its_own(tmp_path: Path) -> None:
    """As older versions of sentence-transformers saved it."""
    folder = write_encoder(tmp_path / "one", "bert")
    plain = GGUFFile(convert(folder, tmp_path / "x.gguf", "f32"))
    inner = tmp_path / "two" / "0_Transformer"
    folder.rename(inner.parent)
    inner.mkdir()
    for path in [*inner.parent.iterdir()]:
        if path.name not in ("modules.json", "1_Pooling", "0_Transformer"):
            path.rename(inner / path.name)
    write(inner.parent, [{**MODULES[0], "path": "0_Transformer"}, POOLING])
    made = GGUFFile(convert(inner.parent, outtype="f32"))
    assert Path(made.path).parent == inner.parent
    assert made.metadata.keys() == plain.metadata.keys()
    for key, value in plain.metadata.items():
        assert key == "general.name" or np.array_equal(made.metadata[key], value), key
    for name in plain.tensors:
        assert np.array_equal(made.tensor_bytes(name), plain.tensor_bytes(name))


def write_dense(folder: Path, name: str, shape: tuple[int, ...], activation: str) -> None:
    (folder / name).mkdir()
    config = {"activation_function": f"torch.nn.modules.{activation}"}
    (folder / name / "config.json").write_text(json.dumps(config))
    write_safetensors(folder / name / "model.safetensors", {"linear.weight": np.ones(shape)})


DENSE = [{"path": n, "type": "sentence_transformers.models.Dense"} for n in ("2_Dense", "3_Dense")]


def test_dense_layers(tmp_path: Path) -> None:
    write_dense(tmp_path, "2_Dense", (24, 8), "linear.Identity")
    write_dense(tmp_path, "3_Dense", (6, 24), "linear.Identity")
    found = dense_tensors(write(tmp_path, [*MODULES, *DENSE]))
    assert [one.name for one in found] == ["dense_2.weight", "dense_3.weight"]
    sizes = {"dense_2_feat_in": 8, "dense_2_feat_out": 24}
    assert dense_keys(found) == sizes | {"dense_3_feat_in": 24, "dense_3_feat_out": 6}
    (tmp_path / "3_Dense" / "model.safetensors").write_bytes(b"")
    with pytest.raises(ModelError, match="incomplete"):
        dense_tensors(Folder(tmp_path))


def test_dense_layers_with_an_activation(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write_dense(tmp_path, "2_Dense", (24, 8), "activation.Tanh")
    with caplog.at_level(logging.WARNING):
        assert dense_tensors(write(tmp_path, [*MODULES, DENSE[0]])) == []
    assert "dense layers after the pooling are not converted" in caplog.text


def test_a_module_of_another_kind(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    other = {"path": "2_LayerNorm", "type": "sentence_transformers.models.LayerNorm"}
    assert dense_tensors(write(tmp_path, [*MODULES, other])) == []
    assert "its module 'LayerNorm' is not converted" in caplog.text


@pytest.mark.parametrize(
    ("modules", "pooling", "message"),
    [
        (MODULES, {"pooling_mode_max_tokens": True}, "the pooling is none of mean, cls, lasttoken"),
        (MODULES, {"pooling_mode": ["mean"]}, "the pooling is none of"),
        (
            MODULES,
            {"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": True},
            "the pooling is none of",
        ),
        (MODULES, None, "the pooling is none of"),
        ([{**POOLING, "path": "../secret"}], None, "path '../secret' of the pooling is no folder"),
        ([{**POOLING, "path": ".."}], None, "is no folder's name"),
        ([{**POOLING, "path": 5}], None, "is no folder's name"),
    ],
)
def test_other_poolings_are_refused(
    tmp_path: Path, modules: Any, pooling: Any, message: str
) -> None:
    with pytest.raises(ModelError, match=message):
        pooling_keys(write(tmp_path, modules, pooling))


@pytest.mark.parametrize(
    ("name", "base"), [("qwen3", "Qwen3Model"), ("llama", "LlamaModel"), ("lfm2", "Lfm2Model")]
)
def test_a_base_model_with_pooling(tmp_path: Path, name: str, base: str) -> None:
    folder = write_checkpoint(tmp_path / name, name)
    _, config = variants()[name]
    (folder / "config.json").write_text(json.dumps({**config, "architectures": [base]}))
    record = recorded(name)
    made = weights(config["model_type"], shapes_of(record), float(record["scale"]))
    inner = {n.removeprefix("model."): x for n, x in made.items() if n.startswith("model.")}
    write_safetensors(folder / "model.safetensors", inner)
    write(folder, MODULES, {"pooling_mode_lasttoken": True})
    model = Model.load(convert(folder, tmp_path / "x.gguf", "f32"))
    assert model.pooling == "last"
    f32 = GGMLType.F32
    context = Context(model, n_ctx=64, type_k=f32, type_v=f32)
    (row,) = embed_many(Engine(context), [record["tokens"].tolist()], model.pooling)
    with np.load(DATA / "embeddings" / f"{name}.npz") as wanted:
        assert np.abs(row - wanted["hidden"][-1]).max() < 1e-4


@pytest.mark.parametrize("n_labels", [1, 2])
def test_a_reranker(tmp_path: Path, n_labels: int) -> None:
    """Scores are transformers'; of a head with one output the sigmoid, as sentence-transformers."""
    folder = write_checkpoint(tmp_path / "qwen3", "qwen3")
    _, config = variants()["qwen3"]
    labels = {"1": "bad", "0": "good"} if n_labels == 2 else {"0": "LABEL_0"}
    config |= {"architectures": ["Qwen3ForSequenceClassification"], "id2label": labels}
    (folder / "config.json").write_text(json.dumps(config))
    record = recorded("qwen3")
    made = weights(config["model_type"], shapes_of(record), float(record["scale"]))
    with np.load(DATA / "embeddings" / "qwen3_ranking.npz") as found:
        head, wanted = found["head"], found["scores"]
    made["score.weight"] = head if n_labels == 2 else head[:1] - head[1:]
    del made["lm_head.weight"]
    write_safetensors(folder / "model.safetensors", made)
    model = Model.load(convert(folder, tmp_path / "x.gguf", "f32"))
    assert model.pooling == "rank"
    assert model.classifier_labels == (["good", "bad"] if n_labels == 2 else ["yes", "no"])
    context = Context(model, n_ctx=64, type_k=GGMLType.F32, type_v=GGMLType.F32)
    (scores,) = embed_many(Engine(context), [record["tokens"].tolist()], "rank")
    assert np.abs(scores - wanted).max() < 1e-4
