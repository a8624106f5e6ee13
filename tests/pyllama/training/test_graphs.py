"""The training graph of each architecture: logits are those of inference, gradients torch's."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pyggml.dtype import GGMLType
from pyggml.gguf import GGUFFile
from pyllama import Batch, Context, Model
from pyllama.convert import convert
from pyllama.errors import ModelError
from pyllama.training import Finetuner, LoraParams, TuneParams, text_windows

from ..arch.checkpoints import long_but, recorded, shapes_of, write_checkpoint, write_files

F32 = GGMLType.F32
TRAINED = (
    "bloom", "deepseek2_lite", "gemma2", "gemma3", "gpt2", "granite_swa", "llama", "llama4",
    "mixtral", "olmo2", "phi3", "qwen2", "qwen3",
)  # fmt: skip
NAMES = long_but(TRAINED, ("gemma2", "gpt2", "granite_swa", "llama", "phi3_longrope"))
N = 24


def tune(model: Model, tokens: list[int], **params: Any) -> Finetuner:
    train, _ = text_windows([*tokens, 0], len(tokens), val_split=0)
    return Finetuner(model, train, TuneParams(**params))


@pytest.mark.parametrize("name", NAMES)
def test_logits_are_those_of_inference(tmp_path: Path, name: str) -> None:
    path = convert(write_checkpoint(tmp_path / name, name), tmp_path / "x.gguf", "f32")
    model, tokens = Model.load(path, repack=False), recorded(name)["tokens"].tolist()[:N]
    tuner = tune(model, tokens, lora=LoraParams(4, target=("attn",)))
    tuner.trainer.set_inputs(tuner.windows.data)
    tuner.trainer.eval(train=False)
    context = Context(model, n_ctx=64, type_k=F32, type_v=F32)
    context.decode(Batch(tokens, logits="all"))
    got, want = tuner.trainer.outputs.numpy(), context.logits
    assert np.abs(got - want).max() < 1e-4 * np.abs(want).max()


def test_sinks_of_attention_are_trained_with_all_weights(tmp_path: Path) -> None:
    """Attention in parts has the logits of attention as one op, and sinks have gradients."""
    path = convert(write_checkpoint(tmp_path / "g", "granite_swa"), tmp_path / "x.gguf", "f32")
    model, tokens = Model.load(path, repack=False), recorded("granite_swa")["tokens"].tolist()[:N]
    found = []
    one_op: dict[str, Any] = {"lora": LoraParams(4, target=("attn",))}
    in_parts: dict[str, Any] = {"optimizer": "sgd", "lr": 0.1}
    for params in (one_op, in_parts):
        tuner = tune(model, tokens, **params)
        tuner.trainer.set_inputs(tuner.windows.data)
        tuner.trainer.eval(train=False)
        found.append(tuner.trainer.outputs.numpy().copy())
    np.testing.assert_allclose(found[0], found[1], atol=1e-5 * np.abs(found[0]).max())
    sinks = [w for name, w in tuner.trainer.params.items() if name.endswith("attn_sinks.weight")]
    before = [w.numpy().copy() for w in sinks]
    tuner.fit(callback=None)
    assert sinks and all((w.numpy() != old).all() for w, old in zip(sinks, before, strict=True))


def test_models_without_gradients_are_refused_by_name(tmp_path: Path) -> None:
    for name, target, message in (
        ("mamba2", "ssm", "they have recurrent layers"),
        ("apertus", "attn", "UNARY: xielu has no gradient"),
    ):
        path = convert(write_checkpoint(tmp_path / name, name), tmp_path / f"{name}.gguf", "f32")
        model, tokens = Model.load(path, repack=False), recorded(name)["tokens"].tolist()[:N]
        with pytest.raises(ModelError, match=f"{name} models cannot be trained here: {message}"):
            tune(model, tokens, lora=LoraParams(4, target=(target,)))


def test_windows_longer_than_the_positions_of_a_model_are_refused(tmp_path: Path) -> None:
    path = convert(write_checkpoint(tmp_path / "gpt2", "gpt2"), tmp_path / "x.gguf", "f32")
    model = Model.load(path, repack=False)
    n = model.hparams.n_positions
    with pytest.raises(ModelError, match=f"longer than the {n} positions .* smaller `n_ctx`"):
        tune(model, [5] * (n + 1), lora=LoraParams(4, target=("attn",)))


@pytest.mark.long
@pytest.mark.parametrize("name", ["llama", "qwen2", "gpt2"])
def test_gradients_are_torchs(tmp_path: Path, name: str) -> None:
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    folder = write_checkpoint(tmp_path / name, name)
    tokens = recorded(name)["tokens"].tolist()[: N + 1]
    model = transformers.AutoModelForCausalLM.from_pretrained(
        folder, attn_implementation="eager", dtype=torch.float32
    )
    logits = model(torch.tensor([tokens[:N]])).logits[0]
    torch.nn.functional.cross_entropy(logits, torch.tensor(tokens[1:])).backward()
    config = json.loads((folder / "config.json").read_text())
    grads = {n: p.grad.numpy() for n, p in model.named_parameters() if p.grad is not None}
    for buffer, x in model.named_buffers():  # GPT-2's masks
        if buffer in shapes_of(recorded(name)):
            grads[buffer] = x.numpy()
    want = convert(write_files(tmp_path / "g", config, grads), tmp_path / "g.gguf", "f32")
    path = convert(folder, tmp_path / "x.gguf", "f32")
    train, _ = text_windows(tokens, N, val_split=0)
    tuner = Finetuner(
        Model.load(path, repack=False), train, TuneParams(optimizer="sgd", lr=1.0, n_threads=2)
    )
    before = {n: w.numpy().copy() for n, w in tuner.trainer.params.items()}
    assert train.labels is not None and tuner.trainer.labels is not None
    tuner.trainer.set_inputs(train.data)
    tuner.trainer.labels.set(train.labels)
    tuner.trainer.eval(train=True)
    with GGUFFile(want) as file:
        for n, w in tuner.trainer.params.items():
            got = before[n] - w.numpy()
            exact = file.tensor_bytes(n).view(np.float32).reshape(got.shape)
            assert np.abs(got - exact).max() < 1e-4 * np.abs(exact).max() + 2e-7, n
