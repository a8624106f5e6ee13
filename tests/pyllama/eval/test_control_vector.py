"""Control vectors of pairs of prompts, against llama.cpp's algorithm in NumPy."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from pyggml.gguf import GGUFFile
from pyllama import Batch, Context, Model
from pyllama.errors import ModelError
from pyllama.eval.control_vector import (
    differences,
    layer_outputs,
    mean_direction,
    principal_direction,
    tokenize_pairs,
    write_control_vector,
)
from pyllama.runtime.adapters import load_control_vector

from ..models import Spec, random_weights, write_model

SPEC = Spec(n_layer=4)
POSITIVE, NEGATIVE = ["I am happy", "a fine day", "so good!"], ["I am sad", "a bad day", "ill"]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    path = tmp_path_factory.mktemp("base") / "x.gguf"
    return Model.load(write_model(path, SPEC, random_weights(SPEC)))


def power_iteration(rows: np.ndarray, n: int) -> np.ndarray:
    """llama.cpp's: of the square matrix, from a random start, without an early end."""
    square = rows.T.astype(np.float64) @ rows
    x = np.random.default_rng(7).uniform(0, 1, len(square))
    for _ in range(n):
        x = square @ x
        x /= np.linalg.norm(x)
    return x


def test_against_llama_cpps_algorithm(tmp_path: Path, model: Model) -> None:
    context = Context(model, n_ctx=64)
    pairs = tokenize_pairs(model.tokenizer, POSITIVE, NEGATIVE)
    assert all(len(a) == len(b) for a, b in pairs)
    found = [np.concatenate(x) for x in zip(*differences(context, pairs), strict=True)]
    assert len(found) == SPEC.n_layer - 1
    for i, rows in enumerate(found):
        wanted = []
        for pair in pairs:
            a, b = (layer_outputs(context, tokens)[i] for tokens in pair)
            wanted += [x for x in a - b if (x > 1e-6).any()]
        np.testing.assert_array_equal(rows, np.array(wanted))
        mean = np.mean(wanted, axis=0)
        np.testing.assert_allclose(mean_direction(rows), mean / np.linalg.norm(mean), atol=1e-6)
        direction, want = principal_direction(rows), power_iteration(rows, 1000)
        np.testing.assert_allclose(direction, want * np.sign(want @ direction), atol=1e-5)
        values, vectors = np.linalg.eigh(rows.T.astype(np.float64) @ rows)
        assert abs(vectors[:, -1] @ direction) > 1 - 1e-6 and values[-1] > 0
        assert (rows @ direction).sum() > 0
        many = np.tile(rows, (20, 1))  # more rows than columns: by the square matrix
        np.testing.assert_allclose(principal_direction(many), direction, atol=1e-5)
    path = tmp_path / "v.gguf"
    write_control_vector(path, "llama", [principal_direction(rows) for rows in found])
    file = GGUFFile(path)
    assert dict(file.metadata) == {
        "general.architecture": "controlvector",
        "controlvector.model_hint": "llama",
        "controlvector.layer_count": 3,
    }
    assert [(n, t.ne[0], t.type.name) for n, t in file.tensors.items()] == [
        (f"direction.{i}", SPEC.n_embd, "F32") for i in (1, 2, 3)
    ]
    vector = load_control_vector(path, model)
    context.kv.clear()
    context.set_adapters([vector], {vector: 4.0})
    context.decode(Batch(pairs[0][0]))
    assert np.isfinite(context.logits).all()


def test_layer_outputs_in_several_batches(model: Model) -> None:
    tokens = list(range(70, 110))
    whole = layer_outputs(Context(model, n_ctx=64), tokens)
    parts = layer_outputs(Context(model, n_ctx=64, n_batch=16, n_ubatch=8), tokens)
    for a, b in zip(whole, parts, strict=True):
        assert a.shape == (40, SPEC.n_embd) and np.array_equal(a, b)


def test_faults_are_named(model: Model) -> None:
    with pytest.raises(ModelError, match="1 positive and 2 negative"):
        tokenize_pairs(model.tokenizer, ["a"], ["b", "c"])
    with pytest.raises(ModelError, match="0 positive"):
        tokenize_pairs(model.tokenizer, [], [])
    same = tokenize_pairs(model.tokenizer, ["a", "b"], ["c", "b"])
    with pytest.raises(ModelError, match="pair 2 do not differ"):
        list(differences(Context(model, n_ctx=64), same))
    rows = np.ones((3, 8), np.float32)
    with pytest.raises(ModelError, match="add up to 0"):
        mean_direction(np.concatenate([rows, -rows]))
