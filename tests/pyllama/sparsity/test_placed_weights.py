"""Neurons on two devices: any placement gives the results of the CPU."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyggml.dtype import GGMLType
from pyggml.gguf import GGUFFile
from pyllama import Batch, Context, Model
from pyllama.errors import ModelError
from pyllama.graph.sparse.weights import normalize_powerinfer_metadata
from pyllama.runtime.devices import Offload
from pyllama.runtime.offload import Planner
from pyllama.runtime.params import ContextParams
from pyllama.sparsity.division import Placements
from pyllama.sparsity.placement import NeuronSplit, Placement, choose_neurons, place
from pyllama.sparsity.plan import (
    IndexFile,
    MemoryBudget,
    PlacementParams,
    plan_on_devices,
    read_needs,
)
from tests.pyggml.sched.fake_device import DeferredDevice, FakeDevice, HostOnly, Log

from ...tiers import long, only, some
from .files import N_LAYER, VARIANTS, dense_file, sparse_file

TOKENS = np.random.default_rng(3).integers(0, 500, 19).tolist()


def placed(*up: list[int], down: Any = None, n_ff: int) -> Placement:
    def arrays(lists: Any) -> tuple[np.ndarray, ...]:
        return tuple(np.array(x, np.int32) for x in lists)

    split = NeuronSplit(n_ff, arrays(up), arrays(up if down is None else down))
    return Placement(0, 0, (), (), split, (0,) * len(up))


def decoded(context: Context) -> np.ndarray:
    """Logits of a prompt, of the token after it, and of the rest."""
    rows = []
    for part in (TOKENS[:12], TOKENS[12:13], TOKENS[13:]):
        context.decode(Batch(part, logits="all"))
        rows.append(context.logits.copy())
    return np.concatenate(rows)


def new(model: Model) -> Context:
    exact = GGMLType.F32  # rounding in the cache would amplify a last-bit difference to about 1e-3
    return Context(model, n_ctx=64, n_threads=1, type_k=exact, type_v=exact)


def on_two_devices(model: Model, device: FakeDevice) -> np.ndarray:
    model.devices = (device, HostOnly())
    return decoded(new(model))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    yield tmp_path_factory.mktemp("m")


CASES = [(name, "predictor", "F32") for name in VARIANTS]
CASES += [("bamboo", "exact", "F32"), ("opt", "exact", "F32"), ("llama_relu", "predictor", "Q8_0")]
CASES += [("llama_relu", "svd=16", "F32"), ("opt", "signs", "F32"), ("opt", "cross", "F32")]


@pytest.fixture(scope="module", params=CASES, ids=lambda case: "-".join(case))
def model(request: Any, folder: Path) -> Model:
    name, source, type = request.param
    if source in ("predictor", "cross", "exact"):
        return Model.load(sparse_file(folder, name, GGMLType[type]), sparse=source)
    return Model.load(dense_file(folder, name), sparse=source, sparse_threshold=0.0)


def ids_of(rng: np.random.Generator, n_ff: int, kind: str) -> list[int]:
    """Neurons: none, one, some, all but one, or all."""
    n = {"none": 0, "one": 1, "some": int(rng.integers(2, n_ff - 1)), "most": n_ff - 1}
    return sorted(rng.permutation(n_ff)[: n.get(kind, n_ff)].tolist())


KINDS = st.lists(
    st.sampled_from(["none", "one", "some", "some", "most", "all"]),
    min_size=2 * N_LAYER,
    max_size=2 * N_LAYER,
)


@given(KINDS, st.booleans(), st.booleans(), st.integers(0, 1 << 30))
@settings(max_examples=3)
def test_any_placement_matches_the_cpu(
    model: Model, kinds: list[str], joint: bool, deferred: bool, seed: int
) -> None:
    rng, n_ff = np.random.default_rng(seed), model.hparams.n_ff
    ids = [ids_of(rng, n_ff, kind) for kind in kinds]
    up, down = ids[:N_LAYER], ids[:N_LAYER] if joint else ids[N_LAYER:]
    device = (DeferredDevice if deferred else FakeDevice)()
    there = placed(*up, down=down, n_ff=n_ff).apply(model, device)
    got = on_two_devices(there, device)
    quantized = model.weights["blk.0.ffn_up.weight"].type.is_quantized  # so are activations
    np.testing.assert_allclose(got, wanted(model), rtol=0, atol=0.05 if quantized else 2e-5)
    there_ops = [op for ops in device.compiled for op in ops]
    if any(map(len, down)):
        assert "AXPY" in there_ops
    if any(map(len, up)) and not (model.hparams.source(0) == "exact" and is_gateless(model)):
        assert "MUL_MAT_SPARSE" in there_ops


def is_gateless(model: Model) -> bool:
    return "blk.0.ffn_gate.weight" not in model.weights


@cache  # also keeps the model alive, so that its id is not reused
def wanted(model: Model) -> np.ndarray:
    """The result of the CPU alone."""
    return decoded(new(model))


@pytest.mark.parametrize("name", VARIANTS)
@pytest.mark.parametrize("dense", [False, True])
def test_both_devices_compute_a_layers_neurons_at_the_same_time(
    folder: Path, name: str, dense: bool
) -> None:
    """Also if the device has attention and predictors; the partial results are added once."""
    model = Model.load(sparse_file(folder, name))
    log: Log = []
    device, n_ff = DeferredDevice(log=log), model.hparams.n_ff
    needs = read_needs(model, MemoryBudget(1 << 30, n_ctx=64))
    items = tuple(item for item in needs.items if dense)
    ids = np.arange(0, n_ff, 3, dtype=np.int32)
    split = NeuronSplit(n_ff, (ids,) * N_LAYER, (ids,) * N_LAYER)
    there = Placement(1 << 30, 0, items, (), split, (0,) * N_LAYER).apply(model, device)
    there.devices = (device, HostOnly(log=log))
    context = new(there)
    context.decode(Batch(TOKENS[:12], logits="all"))
    log.clear()
    context.decode_token(TOKENS[12])
    on_cpu = [i for i, e in enumerate(log) if e[:2] == ("run", "cpu") and "AXPY" in e[2]]
    assert len(on_cpu) == N_LAYER
    for layer, i in enumerate(on_cpu):
        for what, n in (("enqueue", layer + 1), ("run", layer)):
            assert [e[:2] for e in log[:i] if "AXPY" in e[-1]].count((what, device.name)) == n
    assert [e[0] for e in log[: on_cpu[-1]]].count("synchronize") == 0
    merges = [node for node in context.last_graph.builder.graph.nodes if "_merged" in node.name]
    assert len(merges) == N_LAYER


def test_whole_layers_on_one_device_match_the_cpu_bits(folder: Path) -> None:
    """If each layer is on one device as a whole, the result has the same bits as the CPU's."""
    model = Model.load(sparse_file(folder, "llama_relu"))
    n_ff, device = model.hparams.n_ff, FakeDevice()
    there = placed([*range(n_ff)], [], [*range(n_ff)], n_ff=n_ff).apply(model, device)
    np.testing.assert_array_equal(on_two_devices(there, device), wanted(model))
    assert not any(name.endswith("gpu_bucket") for name in there.weights)


@pytest.mark.parametrize("name", ["bamboo", "opt"])
@pytest.mark.parametrize("kib", some([150, 260, 420, 520, 5000], 2))
def test_a_whole_plan_runs(folder: Path, name: str, kib: int) -> None:
    """Dense tensors are moved too while the budget lasts; a tied embedding is copied."""
    model = Model.load(sparse_file(folder, name))
    needs = read_needs(model, MemoryBudget(kib << 10, n_ctx=64))
    activity = np.random.default_rng(0).random((N_LAYER, model.hparams.n_ff))
    plan = place(needs, kib << 10, partial(choose_neurons, activity, block=8))
    device = DeferredDevice()
    there = plan.apply(model, device)
    moved = {n for n, w in there.weights.items() if w.buffer.buft is device.buffer_type()}
    assert any(n.endswith(".attn_q.weight") for n in moved)
    assert ("output.weight" in moved) == (kib > 450) or name == "bamboo"
    assert "token_embd.weight" not in moved and set(model.weights) <= set(there.weights)
    np.testing.assert_allclose(on_two_devices(there, device), wanted(model), rtol=0, atol=2e-5)


@pytest.mark.parametrize("name", some(VARIANTS, 2))
@pytest.mark.parametrize("share", only([0.0, 0.3, 0.6, 0.7, 0.85, 1.0], [0.3, 0.7]))
def test_a_plan_on_a_device_is_exact(folder: Path, name: str, share: float) -> None:
    """From the CPU alone to all on the device: the bytes are the planned ones, logits the CPU's."""
    path, exact = sparse_file(folder, name), GGMLType.F32
    header = Model.load(path, vocab_only=True)
    params = ContextParams(n_ctx=64, type_k=exact, type_v=exact)
    devices = DeferredDevice(), HostOnly()
    with GGUFFile(path) as file:
        normalize_powerinfer_metadata(file)
        planner = Planner(file, header.arch, header.hparams, devices, params)
        whole = planner.plan(Offload()).devices[0].used
        budget = int(share * whole)
        activity = np.random.default_rng(0).random((N_LAYER, header.hparams.n_ff))
        offload, choice = Offload(vram_budget=(budget,)), PlacementParams(block=8)
        use, (plan,) = plan_on_devices(planner, header, offload, activity, choice, write=False)
    there = Model.load(path, devices=devices, placement=plan.placed)
    context = new(there)
    assert sum(devices[0].buft.sizes) == use.devices[0].used <= budget
    np.testing.assert_allclose(decoded(context), wanted(Model.load(path)), rtol=0, atol=2e-5)
    counts = [len(ids) for ids in plan.placed.split.up]
    if share == 0.85:
        assert 0 < sum(counts) < N_LAYER * header.hparams.n_ff
    assert bool(devices[0].compiled) == (share > 0)


@pytest.mark.parametrize("name", some(VARIANTS, 2))
@pytest.mark.parametrize("share", only([0.3, 0.7, 0.9, 1.0], [0.7]))
@pytest.mark.parametrize("split", [long(((),)), (1.0, 2.0), (0.0, 1.0)], ids=str)
def test_neurons_on_two_gpus(
    tmp_path: Path, name: str, share: float, split: tuple[float, ...]
) -> None:
    """Each has its layers; the bytes are the planned ones, logits the CPU's; one index file."""
    path, exact = sparse_file(tmp_path, name), GGMLType.F32
    header = Model.load(path, vocab_only=True)
    params = ContextParams(n_ctx=64, type_k=exact, type_v=exact)
    gpus = DeferredDevice(name="a"), DeferredDevice(name="b")
    devices = *gpus, HostOnly()
    with GGUFFile(path) as file:
        normalize_powerinfer_metadata(file)
        planner = Planner(file, header.arch, header.hparams, devices, params)
        offload = Offload(tensor_split=split)
        whole = [use.used for use in planner.plan(offload).devices[:-1]]
        budget = tuple(int(share * n) for n in whole)
        offload = replace(offload, vram_budget=budget)
        activity = np.random.default_rng(0).random((N_LAYER, header.hparams.n_ff))
        options: Any = (planner, header, offload, activity, PlacementParams(block=8))
        use, plans = plan_on_devices(*options)
        again, cached = plan_on_devices(*options)
        placement = Placements(tuple(plan.placed for plan in plans))
        if plans[0].path is not None:  # the file says which neurons, the layers which GPU
            shares = split or tuple(map(float, budget))  # without a split those of the budget
            room = Offload(tensor_split=shares, vram_budget=(1 << 30,))
            given = IndexFile(given=plans[0].path)
            _, listed = plan_on_devices(planner, header, room, None, None, given)
            for one, other in zip(plans, listed, strict=True):
                assert [*map(len, one.placed.split.up)] == [*map(len, other.placed.split.up)]
    assert again.devices == use.devices
    assert all(plan.found for plan in cached) == (plans[0].path is not None)
    there = Model.load(path, devices=devices, placement=placement)
    context = new(there)
    for device, planned, limit in zip(gpus, use.devices, budget, strict=False):
        assert sum(device.buft.sizes) == planned.used <= limit
    np.testing.assert_allclose(decoded(context), wanted(Model.load(path)), rtol=0, atol=2e-5)
    if split == (0.0, 1.0):
        assert not gpus[0].compiled
    elif share > 0.5:
        assert gpus[0].compiled and gpus[1].compiled
    for i in range(N_LAYER):
        assert sum(bool(len(plan.placed.split.up[i])) for plan in plans) <= 1


def test_placements_for_another_model_are_refused(folder: Path) -> None:
    model = Model.load(sparse_file(folder, "bamboo"))
    for wrong in (placed([0], [1], n_ff=160), placed([0], [1], [], n_ff=161)):
        with pytest.raises(
            ModelError,
            match=r"the placement has \d layers of \d+ neurons, the model 3 of 160: it belongs",
        ):
            wrong.apply(model, FakeDevice())
    dense = Model.load(sparse_file(folder, "bamboo"), sparse="exact,off:1")
    some = placed([], [1], [], n_ff=160)
    with pytest.raises(ModelError, match=r"layer 1 computes all of its neurons \(`sparse='off'`"):
        some.apply(dense, FakeDevice())
    nothing_there = placed([], [], [], n_ff=160).apply(dense, FakeDevice())
    assert nothing_there.weights == dense.weights
