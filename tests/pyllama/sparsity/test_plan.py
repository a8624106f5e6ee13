"""Plans of model files: every byte is counted; files are reused while nothing changes."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from pyggml.dtype import GGMLType, row_size
from pyggml.errors import GGUFError
from pyllama import Context, Model
from pyllama.errors import ModelError
from pyllama.sparsity.activation_files import write_activations
from pyllama.sparsity.collect import collect
from pyllama.sparsity.gpuidx import read_gpuidx, write_gpuidx
from pyllama.sparsity.inventory import ATTENTION, FFN_IO, KV, OUTPUT, SCORES, padded
from pyllama.sparsity.plan import (
    IndexFile,
    MemoryBudget,
    PlacementParams,
    make_plan,
    read_activity,
    read_needs,
)
from pyllama.sparsity.stats import save_stats
from tests.pyggml.sched.fake_device import FakeDevice
from tests.tiers import some

from .files import N_LAYER, VARIANTS, dense_file, sparse_file

TOKENS = np.random.default_rng(1).integers(3, 500, 100).tolist()
BUDGET = MemoryBudget(1 << 30, n_ctx=96)
BLOCKS_OF_8 = PlacementParams(block=8)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("m")


@pytest.fixture
def model(folder: Path, tmp_path: Path) -> Model:
    path = shutil.copy(sparse_file(folder, "bamboo"), tmp_path / "x.gguf")
    return Model.load(path, vocab_only=True)


# --- memory needs ---------------------------------------------------------------------------------


@pytest.mark.parametrize("source", ["predictor", "exact", "signs", "svd=8"])
@pytest.mark.parametrize("name", some(VARIANTS, 2))
def test_every_loaded_tensor_is_counted_once(folder: Path, name: str, source: str) -> None:
    file = sparse_file if source == "predictor" else dense_file
    model = Model.load(file(folder, name), sparse=source)
    needs = read_needs(model, BUDGET)
    listed = [n for item in needs.items for n in item.names if not n.startswith("cache_")]
    by_rows = {n for n in model.weights if n not in listed}
    host = {n for n in by_rows if n.startswith(("token_embd", "position_embd"))}
    tied = "output.weight" not in model.weights
    assert len(listed) == len(set(listed)) and ("token_embd.weight" in listed) == tied
    first = "gate" if "blk.0.ffn_gate.weight" in model.weights else "up"
    split = {"gate", "up"} if source != "exact" else {"gate", "up"} - {first}
    for i in range(N_LAYER):
        names = {f"blk.{i}.ffn_{part}.weight" for part in (*split, "down_t")} & set(model.weights)
        assert names <= by_rows
        by_rows -= names
        one = sum(row_size(model.weights[n].type, model.weights[n].ne[0]) for n in names)
        assert needs.rows.of_one(i) == one
        whole = sum(padded(model.weights[n].nbytes) for n in names)
        assert needs.rows.nbytes(i, needs.rows.n_ff, needs.rows.n_ff) == whole
    assert by_rows == host
    for item in needs.items:
        if item.level != KV:
            sizes = (padded(model.weights[n].nbytes) for n in item.names)
            assert item.nbytes == sum(sizes)
    memory = Context(model, n_ctx=96, type_k=GGMLType.F16).kv
    assert sum(item.nbytes for item in needs.items if item.level == KV) == memory.size_bytes


def test_items_are_ordered_by_level_and_layer(folder: Path) -> None:
    needs = read_needs(Model.load(sparse_file(folder, "opt"), vocab_only=True), BUDGET)
    order = [(item.level, item.layer) for item in needs.items]
    layers = range(N_LAYER)
    levels = (ATTENTION, SCORES, FFN_IO, OUTPUT, KV)
    assert order == [(x, i) for x in levels for i in ([-1] if x == OUTPUT else layers)]
    names = {item.level: item.names for item in needs.items if item.layer in (0, -1)}
    assert "blk.0.attn_norm.bias" in names[ATTENTION] and len(names[ATTENTION]) == 10
    assert names[SCORES] == ("blk.0.fc1.weight", "blk.0.fc2.weight")
    assert "blk.0.ffn_up.bias" in names[FFN_IO] and "blk.0.ffn_norm.weight" in names[FFN_IO]
    assert names[OUTPUT] == ("output_norm.bias", "output_norm.weight", "token_embd.weight")


def test_planned_bytes_equal_the_buffer_size(folder: Path) -> None:
    """The bytes of a plan equal the size of the buffer for its tensors."""

    model = Model.load(sparse_file(folder, "llama_relu"))
    activity = np.random.default_rng(0).random((N_LAYER, model.hparams.n_ff))
    for kib in range(100, 700, 60):
        choice = replace(BLOCKS_OF_8, block=7)
        plan = make_plan(model, replace(BUDGET, nbytes=kib << 10), activity, choice,
                         IndexFile(reset=True))  # fmt: skip
        device = FakeDevice()
        plan.placed.apply(model, device)
        caches = sum(item.nbytes for item in plan.placed.on_gpu if item.level == KV)
        assert sum(device.buft.sizes) == plan.placed.used_bytes - caches <= kib << 10


@pytest.mark.parametrize("sparse", ["off", "topk=3", "exact,off:1"])
def test_a_layer_without_sparsity_is_refused(folder: Path, sparse: str) -> None:
    model = Model.load(dense_file(folder, "bamboo"), vocab_only=True, sparse=sparse)
    layer = 1 if "," in sparse else 0
    with pytest.raises(ModelError, match=f"layer {layer} computes all of its neurons"):
        read_needs(model, BUDGET)


# --- index files ----------------------------------------------------------------------------------


def test_the_cached_file_is_used_until_an_input_changes(model: Model) -> None:
    activity = np.random.default_rng(0).random((N_LAYER, model.hparams.n_ff))
    some = replace(BUDGET, nbytes=500_000)
    path = model.path.with_name("x.gguf.generated.gpuidx")
    first = make_plan(model, some, activity, BLOCKS_OF_8)
    assert first.path == path and not first.found and 0 < first.placed.used_bytes <= 500_000
    again = make_plan(model, some, activity, BLOCKS_OF_8)
    assert again.found and again.placed.ffn_bytes == first.placed.ffn_bytes
    assert read_gpuidx(path).vram_bytes == 500_000
    for changed in (
        (replace(some, nbytes=500_064), activity, BLOCKS_OF_8),
        (replace(some, n_ctx=64), activity, BLOCKS_OF_8),
        (some, activity * 2, BLOCKS_OF_8),
        (some, activity, PlacementParams(block=4)),
        (some, activity, PlacementParams("balance", 2.0, 1.0, 4)),
        (some, activity, PlacementParams("balance", 2.0, 1.5, 4)),
    ):
        assert not make_plan(model, *changed).found and make_plan(model, *changed).found
    assert not make_plan(model, *changed, IndexFile(reset=True)).found
    other = Model.load(model.path, vocab_only=True, sparse="exact")
    assert not make_plan(other, *changed).found


def test_given_invalid_and_foreign_index_files(model: Model, tmp_path: Path) -> None:
    activity = np.random.default_rng(0).random((N_LAYER, model.hparams.n_ff))
    some, out = replace(BUDGET, nbytes=500_000), tmp_path / "y.gpuidx"
    made = make_plan(model, some, activity, BLOCKS_OF_8, IndexFile(path=out))
    assert made.path == out and len([*tmp_path.iterdir()]) == 2
    given = make_plan(model, some, None, None, IndexFile(given=out))
    assert given.placed.ffn_bytes == made.placed.ffn_bytes and given.found
    with pytest.raises(ModelError, match=r"neurons need 0\.. MiB, but 0\.. MiB of the budget"):
        make_plan(model, replace(some, compute_bytes=100_000), None, None, IndexFile(given=out))
    none = make_plan(model, replace(some, nbytes=1000), activity)
    assert none.path is None and none.placed.used_bytes == 0
    assert len([*tmp_path.iterdir()]) == 2  # no file for no neurons
    write_gpuidx(model.path.with_name("x.gguf.generated.gpuidx"), made.placed.split, 1)
    with pytest.raises(ModelError, match="was written by another program"):
        make_plan(model, some, activity)
    assert make_plan(model, some, activity, BLOCKS_OF_8, IndexFile(reset=True)).path
    with pytest.raises(ModelError, match="has 3 layers of 160 neurons, the model has 3 of 256"):
        opt = Model.load(sparse_file(tmp_path, "opt"), vocab_only=True)
        make_plan(opt, BUDGET, None, None, IndexFile(given=out))
    with pytest.raises(GGUFError, match="cannot be written"):
        make_plan(model, some, activity, None, IndexFile(path=tmp_path / "no" / "x"))


# --- statistics -----------------------------------------------------------------------------------


def test_activity_is_read_from_statistics_or_activation_files(
    model: Model, folder: Path, tmp_path: Path
) -> None:
    stats = collect(Model.load(model.path), TOKENS, n_ctx=50)
    save_stats(tmp_path / "s.json", stats)
    read = read_activity(model, tmp_path / "s.json")
    np.testing.assert_array_equal(read.activity, stats.counts / 100)
    np.testing.assert_array_equal(read.computed, stats.computed)
    exact = read_activity(Model.load(model.path, sparse="exact"), tmp_path / "s.json")
    np.testing.assert_array_equal(exact.computed, stats.activity)  # no predictor in exact mode
    with pytest.raises(ModelError, match=r"there is no such folder, or no activation_0.pt in it"):
        read_activity(model)
    write_activations(tmp_path / "activation", stats.counts)
    beside = read_activity(model)
    np.testing.assert_allclose(beside.activity, stats.counts / stats.counts.max())
    write_activations(tmp_path / "a", stats.activity)  # shares are not normalized
    named = read_activity(model, folder=tmp_path / "a")
    np.testing.assert_allclose(named.activity, stats.activity, rtol=1e-6)
    other = Model.load(sparse_file(folder, "opt"), vocab_only=True)
    with pytest.raises(ModelError, match=r"s.json: statistics of another model \(bamboo .*F32\)"):
        read_activity(other, tmp_path / "s.json")
    with pytest.raises(ModelError, match="the statistics have 3 layers of 160 neurons"):
        make_plan(other, BUDGET, read_activity(other, folder=tmp_path / "a").activity)
