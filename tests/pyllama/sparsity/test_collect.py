"""Counts of active neurons, against NumPy on the observed nodes, and against torch."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pyggml.dtype import GGMLType
from pyggml.gguf import GGUFFile
from pyllama import Batch, Context, Model
from pyllama.errors import BatchError, ModelError
from pyllama.inspect.observe import observe
from pyllama.sparsity.collect import collect
from pyllama.sparsity.fingerprint import content_key, model_fingerprint
from pyllama.sparsity.stats import Statistics, load_stats, save_stats

from ...tiers import some
from .files import N_LAYER, VARIANTS, dense_file, recorded, sparse_file

TOKENS = np.random.default_rng(1).integers(3, 500, 150).tolist()
N_CTX = 64  # chunks of 64, 64 and 22 tokens


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("m")


def chunks(model: Model) -> list[list[int]]:
    parts = [TOKENS[i : i + N_CTX] for i in range(0, len(TOKENS), N_CTX)]
    if model.tokenizer.add_bos:
        parts = [[model.tokenizer.bos, *part[1:]] for part in parts]
    return parts


def gates(model: Model, name: str) -> list[list[np.ndarray]]:
    """The input of each layer's ReLU for each chunk, [T, n_ff], from a dense run."""
    node = "ffn_up-{}_b" if name in ("opt", "falcon_relu") else "ffn_gate-{}"
    found: list[list[np.ndarray]] = [[] for _ in range(N_LAYER)]
    for part in chunks(model):
        states = observe(Context(model, n_ctx=N_CTX), part, ["ffn_*"])
        for i in range(N_LAYER):
            found[i].append(states[node.format(i)])
    return found


@pytest.mark.parametrize("name", some(VARIANTS, 2))
def test_counts_and_unions_of_a_dense_model(folder: Path, name: str) -> None:
    model = Model.load(dense_file(folder, name))
    stats = collect(model, TOKENS, n_ctx=N_CTX)
    assert (stats.n_tokens, stats.source, stats.batch_sizes) == (150, "", (1, 2, 4, 8, 16, 32, 64))
    assert math.isnan(stats.threshold) and np.isnan(stats.recall).all()
    for i, parts in enumerate(gates(model, name)):
        active = np.concatenate(parts) > 0
        np.testing.assert_array_equal(stats.counts[i], active.sum(axis=0))
        assert stats.density[i] == pytest.approx(active.mean())
        for k, size in enumerate(stats.batch_sizes):
            unions = [
                (part[j : j + size] > 0).any(axis=0).mean()
                for part in parts
                for j in range(0, len(part) // size * size, size)
            ]
            assert stats.union[i, k] == pytest.approx(np.mean(unions))
        hot = np.sort(stats.counts[i])[::-1]
        n = round(0.2 * hot.size)
        assert stats.coverage(0.2)[i] == pytest.approx(hot[:n].sum() / hot.sum())
    assert stats.coverage(1.0) == pytest.approx(np.ones(N_LAYER))


@pytest.mark.parametrize("name", some(VARIANTS, 2))
def test_predictor_accuracy_is_measured_against_a_dense_run(folder: Path, name: str) -> None:
    model = Model.load(sparse_file(folder, name))
    stats = collect(model, TOKENS, n_ctx=N_CTX)
    dense = collect(Model.load(dense_file(folder, name)), TOKENS, n_ctx=N_CTX)
    assert stats.source == "predictor" and stats.threshold == model.hparams.sparse_threshold
    assert np.abs(stats.counts - dense.counts).max() <= 2  # another order of sums
    assert stats.fingerprint == dense.fingerprint
    whole = Model.load(sparse_file(folder, name), sparse_threshold=-math.inf)
    for i, parts in enumerate(gates(Model.load(dense_file(folder, name)), name)):
        scores = [
            observe(Context(whole, n_ctx=N_CTX), part, [f"mlp_pre_out-{i}"])[f"mlp_pre_out-{i}"]
            for part in chunks(whole)
        ]
        above = np.concatenate(scores) >= stats.threshold
        active = np.concatenate(parts) > 0
        both = (above & active).sum()
        assert stats.predicted[i] == pytest.approx(above.mean(), abs=1e-3)
        assert stats.recall[i] == pytest.approx(both / active.sum(), abs=1e-3)
        assert stats.precision[i] == pytest.approx(both / above.sum(), abs=1e-3)
    scaled = stats.computed.mean(axis=1)
    assert (np.abs(scaled - stats.predicted) < 0.05).all()  # clipped at 1 for some neurons


@pytest.mark.parametrize("name", VARIANTS)
def test_predicted_share_matches_torch(folder: Path, name: str) -> None:
    """torch's earlier layers are sparse too; ``collect`` computes scores in a dense run."""
    record = recorded(name)
    model = Model.load(sparse_file(folder, name))
    context = Context(model, n_ctx=64, type_k=GGMLType.F32, type_v=GGMLType.F32)
    tokens = record["tokens"].tolist()
    scores = observe(context, tokens, ["mlp_pre_out-*"])
    above = [(values >= model.hparams.sparse_threshold).mean() for values in scores.values()]
    assert np.mean(above) == pytest.approx(float(record["active"]), abs=1e-6)
    first = collect(model, tokens, n_ctx=64).predicted[0]  # layer 0 has no sparse layer before it
    begun = [model.tokenizer.bos, *tokens[1:]] if model.tokenizer.add_bos else tokens
    again = observe(Context(model, n_ctx=64), begun, ["mlp_pre_out-0"])["mlp_pre_out-0"]
    assert first == pytest.approx((again >= model.hparams.sparse_threshold).mean(), abs=1e-6)


@pytest.mark.parametrize("sparse", ["exact", "topk=30", "signs", "svd=16", "exact,signs:1"])
def test_counts_do_not_depend_on_the_source(folder: Path, sparse: str) -> None:
    path = dense_file(folder, "llama_relu")
    want = collect(Model.load(path), TOKENS, n_ctx=N_CTX)
    got = collect(Model.load(path, sparse=sparse), TOKENS, n_ctx=N_CTX)
    if not sparse.startswith("topk"):  # topk skips some active neurons
        assert np.abs(got.counts - want.counts).max() <= 2
    predicted_layers = [kind in sparse and "exact," not in sparse for kind in ("signs", "svd")]
    assert np.isfinite(got.recall).tolist() == (
        [False, True, False] if "exact," in sparse else [any(predicted_layers)] * N_LAYER
    )
    if "svd" in sparse:
        assert got.recall.min() > 0.6  # far better than chance


def test_chunks_of_a_text(folder: Path) -> None:
    model = Model.load(dense_file(folder, "bamboo"))
    seen: list[float] = []
    one = collect(model, TOKENS, n_ctx=N_CTX, n_chunks=1, progress=seen.append)
    assert one.n_tokens == 64 and seen[-1] == 1.0 and seen == sorted(seen)
    short = collect(model, TOKENS[:5], n_ctx=N_CTX)
    assert short.n_tokens == 5 and short.batch_sizes == (1, 2, 4)
    context = Context(model, n_ctx=N_CTX)  # the model is unchanged
    context.decode(Batch(TOKENS[:4]))
    for tokens, n_chunks in (([], None), (TOKENS, 0)):
        with pytest.raises(BatchError, match="there are no tokens to evaluate"):
            collect(model, tokens, n_ctx=N_CTX, n_chunks=n_chunks)


def test_a_model_without_relu(folder: Path) -> None:
    model = Model.load(dense_file(folder, "llama"))
    with pytest.raises(ModelError, match="layer 0 of this llama has no ReLU"):
        collect(model, TOKENS)


# --- files ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def stats(folder: Path) -> Statistics:
    return collect(Model.load(sparse_file(folder, "bamboo")), TOKENS, n_ctx=N_CTX)


def test_file_round_trip(tmp_path: Path, stats: Statistics, folder: Path) -> None:
    save_stats(tmp_path / "s.json", stats)
    read = load_stats(tmp_path / "s.json")
    for name, value in vars(stats).items():
        np.testing.assert_array_equal(getattr(read, name), value)
    plain = collect(Model.load(dense_file(folder, "bamboo")), TOKENS[:9], n_ctx=N_CTX)
    save_stats(tmp_path / "s.json", plain)
    assert np.isnan(load_stats(tmp_path / "s.json").recall).all()


def test_invalid_files_are_refused(tmp_path: Path, stats: Statistics) -> None:
    path = tmp_path / "s.json"
    save_stats(path, stats)
    good = path.read_text()
    bad: dict[str, Any] = {
        "empty": "",
        "cut": good[:-5],
        "no statistics": '{"layers": []}',
        "a list": "[]",
        "another format": good.replace("statistics 1", "statistics 2"),
        "no layers": good[: good.index('"layers"')] + '"layers": []}',
        "deep": "[" * 100_000,
        "more than tokens": good.replace('"n_tokens": 150', '"n_tokens": 3'),
        "rows of two lengths": good.replace('"counts": [', '"counts": [1, ', 1),
        "huge counts": good.replace('"counts": [', f'"counts": [{10**40}, ', 1),
        "huge tokens": good.replace('"n_tokens": 150', f'"n_tokens": {10**400}'),
        "infinite tokens": good.replace('"n_tokens": 150', '"n_tokens": 1e999'),
        "a share above 1": good.replace('"union": {"1": ', '"union": {"1": 7'),
    }
    for text in bad.values():
        path.write_text(text)
        with pytest.raises(ModelError, match="not a file of pyllama-powerinfer stats") as error:
            load_stats(path)
        assert "\n" not in str(error.value) and str(path) in str(error.value)


def test_fingerprints_differ_by_model_and_not_by_format(folder: Path) -> None:
    paths = [dense_file(folder, "bamboo"), sparse_file(folder, "bamboo"), dense_file(folder, "opt")]
    prints, keys = [], []
    for path in paths:
        with GGUFFile(path) as file:
            prints.append(model_fingerprint(file))
            keys += [content_key(file, 1), content_key(file, 2)]
    assert prints[0] == prints[1] != prints[2]
    assert len(set(keys)) == 6
