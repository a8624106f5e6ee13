"""Fine-tuning of tiny models: losses fall, files do what was trained, bits are the same again."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pyggml.dtype import GGMLType
from pyggml.errors import AllocError, ComputeError, GGUFError
from pyggml.gguf import GGUFFile, plan_split, write_split
from pyggml.opt import Dataset
from pyllama import Batch, Context, Model
from pyllama.errors import ModelError
from pyllama.runtime.adapters import load_lora
from pyllama.training import Finetuner, LoraParams, TuneParams, text_windows

from ..models import Spec, random_weights, write_model

SPEC = Spec(n_layer=2, n_ff=64)
N_CTX = 24
WORDS = np.random.default_rng(5).integers(3, 259, (12, 6))
TOKENS = WORDS[np.random.default_rng(6).integers(0, 12, 60)].reshape(-1).tolist()
LORA = LoraParams(rank=4)
Make = Callable[..., tuple[Finetuner, Dataset]]


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tune") / "base.gguf"
    return write_model(path, SPEC, random_weights(SPEC))


@pytest.fixture
def make(base: Path) -> Make:
    def tuner(path: Path = base, **params: Any) -> tuple[Finetuner, Dataset]:
        given = {"n_batch": 2 * N_CTX, "epochs": 3, "lr": 3e-3, "n_threads": 1, **params}
        train, held_out = text_windows(TOKENS, N_CTX, 0.2)
        assert held_out is not None
        return Finetuner(Model.load(path, repack=False), train, TuneParams(**given)), held_out

    return tuner


def trained_bits(tuner: Finetuner) -> bytes:
    return b"".join(w.bytes().tobytes() for w in tuner.trainer.params.values())


def logits(model: Model, adapter: Path | None = None) -> np.ndarray:
    context = Context(model, n_ctx=64, type_k=GGMLType.F32, type_v=GGMLType.F32, n_threads=1)
    scales = None
    if adapter is not None:
        lora = load_lora(adapter, model)
        context.set_adapters([lora])
        scales = context.scales({lora: 1.0})
    context.decode(Batch(TOKENS[:N_CTX], logits="all", adapters=scales))
    return context.logits.copy()


def training_logits(tuner: Finetuner) -> np.ndarray:
    window = np.array([[TOKENS[:N_CTX], range(N_CTX)]], np.int32)
    tuner.trainer.set_inputs(window)
    tuner.trainer.eval(train=False)
    return tuner.trainer.outputs.numpy().copy()


@pytest.mark.parametrize("recompute", [False, True])
def test_an_adapter_lowers_the_loss_and_its_file_gives_the_logits_of_training(
    make: Make, base: Path, tmp_path: Path, recompute: bool
) -> None:
    tuner, held_out = make(lora=LORA, recompute=recompute)
    model = Model.load(base)
    np.testing.assert_allclose(training_logits(tuner), logits(model), atol=1e-5)
    before = tuner.evaluate(held_out).loss
    assert tuner.n_params == sum(
        4 * (w.ne[0] + w.ne[1]) for name, w in model.weights.items()
        if name.startswith("blk.") and w.n_dims == 2
    )  # fmt: skip
    results = tuner.fit(held_out, callback=None)
    after = results[-1][1]
    assert after is not None and after.loss < before - 0.5
    tuner.save(tmp_path / "a.gguf")
    changed = logits(model, tmp_path / "a.gguf")
    assert np.abs(changed - logits(model)).max() > 0.1
    np.testing.assert_allclose(training_logits(tuner), changed, atol=1e-5)


def test_all_weights_are_saved_with_the_metadata(make: Make, base: Path, tmp_path: Path) -> None:
    tuner, held_out = make()
    before = tuner.evaluate(held_out).loss
    assert tuner.n_params == tuner.model.n_params
    after = tuner.fit(held_out, callback=None)[-1][1]
    assert after is not None and after.loss < before - 0.5
    tuner.save(tmp_path / "t.gguf")
    np.testing.assert_allclose(
        training_logits(tuner), logits(Model.load(tmp_path / "t.gguf")), atol=1e-5
    )
    with GGUFFile(base) as old, GGUFFile(tmp_path / "t.gguf") as new:
        assert repr(old.typed_metadata()) == repr(new.typed_metadata())
        assert list(old.tensors) == list(new.tensors)
        same = [old.tensor_bytes(n).tobytes() == new.tensor_bytes(n).tobytes() for n in old.tensors]
        assert not any(same)


def test_a_model_in_parts_is_saved_as_one_file(make: Make, base: Path, tmp_path: Path) -> None:
    with GGUFFile(base) as file:
        plans = plan_split(file, tmp_path / "x", max_tensors=9)
        write_split(file, plans)
        names = list(file.tensors)
    assert len(plans) > 1
    tuner, _ = make(plans[0].path, epochs=1)
    tuner.save(tmp_path / "t.gguf")
    with GGUFFile(tmp_path / "t.gguf") as file:
        assert list(file.tensors) == names and len(file.parts) == 1
        for name, w in tuner.trainer.params.items():
            assert file.tensor_bytes(name).tobytes() == w.bytes().tobytes()


@pytest.mark.parametrize("kind", [GGMLType.Q8_0, GGMLType.Q4_1, GGMLType.F16, GGMLType.BF16])
def test_a_base_of_any_format(make: Make, tmp_path: Path, kind: GGMLType) -> None:
    spec = Spec(n_layer=2, n_ff=64, n_head=4, head_dim=8)
    path = write_model(tmp_path / "q.gguf", spec, random_weights(spec), kind)
    tuner, held_out = make(path, lora=LORA, epochs=4)
    before = tuner.evaluate(held_out).loss
    after = tuner.fit(held_out, callback=None)[-1][1]
    assert after is not None and after.loss < before - 0.65
    tuner.save(tmp_path / "a.gguf")
    model = Model.load(path)
    error = training_logits(tuner) - logits(model, tmp_path / "a.gguf")
    change = logits(model, tmp_path / "a.gguf") - logits(model)
    assert np.square(error).mean() < 1e-3 * np.square(change).mean()
    with pytest.raises(
        ModelError, match=r"is (Q8_0|Q4_1|F16|BF16), and only F32 .* pyllama-quantize"
    ):
        make(path)


def test_bits_do_not_depend_on_threads_or_on_what_is_recomputed(make: Make) -> None:
    found = []
    for changes in ({}, {"n_threads": 2}, {"recompute": True}):
        tuner, _ = make(lora=LORA, epochs=1, **changes)
        tuner.fit(None, callback=None)
        found.append(trained_bits(tuner))
    assert found[0] == found[1] == found[2]


def test_micro_batches_add_up_to_the_step_of_a_batch(make: Make) -> None:
    """One step on two windows has the mean of the gradients of each."""
    steps = []
    for n_batch in (N_CTX, 2 * N_CTX):
        tuner, _ = make(optimizer="sgd", lr=1.0, n_batch=n_batch)
        start = {name: w.numpy().copy() for name, w in tuner.trainer.params.items()}
        data = tuner.trainer
        changes = []
        for i in range(2):
            for name, w in data.params.items():
                if n_batch == N_CTX or i == 0:
                    w.set(start[name])
            window = tuner.windows.data[i : i + 1]
            assert data.labels is not None and tuner.windows.labels is not None
            data.set_inputs(window)
            data.labels.set(tuner.windows.labels[i])
            data.eval(train=True)
            changes.append({n: start[n] - w.numpy() for n, w in data.params.items()})
        steps.append(changes)
    for name, whole in steps[1][1].items():
        mean = (steps[0][0][name] + steps[0][1][name]) / 2
        assert np.abs(whole - mean).max() < 1e-5 * np.abs(mean).max() + 1e-6


def test_a_killed_run_goes_on_with_the_same_bits(make: Make, tmp_path: Path) -> None:
    whole, _ = make(lora=LORA, lr_min=1e-4)
    whole.fit(None, callback=None)
    path = tmp_path / "run.gguf"

    class Killed(Exception):
        pass

    def kill(train: bool, result: Any, done: int, of: int, seconds: float) -> None:
        if path.exists() and done == 2:
            raise Killed

    first, _ = make(lora=LORA, lr_min=1e-4)
    with pytest.raises(Killed):
        first.fit(None, callback=kill, checkpoint=path)
    again, _ = make(lora=LORA, lr_min=1e-4)
    assert len(again.fit(None, callback=None, checkpoint=path)) == 2
    assert trained_bits(again) == trained_bits(whole)


def test_a_run_with_other_settings_is_refused(make: Make, base: Path, tmp_path: Path) -> None:
    path = tmp_path / "run.gguf"

    def fit(**changes: Any) -> None:
        make(**{"lora": LORA, "epochs": 1, **changes})[0].fit(callback=None, checkpoint=path)

    fit()
    other = LoraParams(rank=4, alpha=3.0, target=("attn",))
    weights = random_weights(SPEC)
    weights["blk.1.ffn_up.weight"][0, 0] += 1
    cases: list[tuple[dict[str, Any], str]] = [
        ({"lr": 1e-3}, r"lr 0.003, now 0.001"),
        ({"lr": 1e-3, "seed": 2}, r"lr 0.003, now 0.001; seed 0, now 2"),
        ({"n_batch": N_CTX}, rf"n_batch {2 * N_CTX}, now {N_CTX}"),
        ({"lora": other}, r"lora_alpha 8.0, now 3.0; lora_target attn,ffn, now attn"),
        ({"lr_min": 1e-4, "decay_epochs": 2}, r"lr_min 0.0, now 0.0001; decay_epochs 0.0, now 2"),
        ({"path": write_model(tmp_path / "x.gguf", SPEC, weights)}, r"base \w{12}, now \w{12}"),
        ({"lora": None}, r"lora_rank 4, now 0; .*"),
    ]
    for changes, message in cases:
        with pytest.raises(GGUFError, match=rf"other settings: {message}\. Resume"):
            fit(**changes)
    with pytest.raises(GGUFError, match="optimizer is adamw, not sgd"):
        fit(optimizer="sgd")
    fit(epochs=2, recompute=True, n_threads=2)  # these may change


def test_recomputed_layers_need_less_memory(base: Path) -> None:
    spec = Spec(n_layer=6, n_ff=64)
    path = write_model(base.parent / "deep.gguf", spec, random_weights(spec))
    sizes = []
    for recompute in (False, True):
        train, _ = text_windows(TOKENS, 64, 0)
        params = TuneParams(lora=LORA, recompute=recompute, n_threads=1)
        sizes.append(Finetuner(Model.load(path, repack=False), train, params).trainer.size_bytes)
    assert sizes[1] < 0.5 * sizes[0]


def test_rates_are_those_of_llama_finetune() -> None:
    params = TuneParams(lr=1e-3, lr_min=1e-4, epochs=4)
    assert [params.rate_at(i) for i in (0, 2, 4)] == pytest.approx([1e-3, 10**-3.5, 1e-4])
    early = TuneParams(lr=1e-3, lr_min=1e-4, epochs=4, decay_epochs=2)
    assert [early.rate_at(i) for i in (0, 1, 2, 3)] == pytest.approx([1e-3, 10**-3.5, 1e-4, 1e-4])
    always = TuneParams(lr=1e-3, lr_min=1e-4, epochs=4, decay_epochs=-1)  # llama.cpp's default
    assert [always.rate_at(i) for i in (0, 2, 4)] == pytest.approx([1e-3, 10**-3.5, 1e-4])
    assert TuneParams(lr=1e-3, lr_min=-1).rate_at(1) == 1e-3
    assert TuneParams().rate_at(1) == 1e-5 and TuneParams(lora=LORA).rate_at(1) == 2e-4


def test_what_cannot_be_trained_is_said(
    make: Make, monkeypatch: pytest.MonkeyPatch, base: Path
) -> None:
    with pytest.raises(ModelError, match=r"no matrix .* is called 'mlp'; there are: attn_k, "):
        make(lora=LoraParams(target=("mlp",)))
    for empty in (LoraParams(rank=0), LoraParams(target=())):
        with pytest.raises(ModelError, match="rank of at least 1 and names"):
            make(lora=empty)
    with pytest.raises(ModelError, match="optimizer"):
        make(optimizer="lion")
    tuner, held_out = make(lora=LORA, lr=1e30)
    with pytest.raises(ComputeError, match=r"loss is (nan|inf)"):
        tuner.fit(held_out, callback=None)
    monkeypatch.setattr("pyggml.backend.cpu.backend.CpuBackend.memory", lambda self: (1 << 16, 1))
    with pytest.raises(AllocError, match=r"training needs .* smaller"):
        make(lora=LORA)
