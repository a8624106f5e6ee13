"""The adapters of jina-embeddings-v3's tasks: each is a file, and changes vectors as if merged."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from pyllama import Context, Model
from pyllama.convert import convert
from pyllama.convert.files.safetensors import read_safetensors
from pyllama.embeddings import embed_many
from pyllama.engine import Engine
from pyllama.errors import ModelError
from pyllama.runtime.adapters import load_lora

from ..arch.checkpoints import write_safetensors
from .checkpoints import parts, recorded, write_checkpoint
from .variants import ENCODERS

NAME = "jina-bert-v3_adapters"
PART = ".parametrizations.weight.0.lora_"


def _merged(weights: dict[str, np.ndarray], task: int) -> dict[str, np.ndarray]:
    """The weights with a task's adapter, but that of token types, which is not applied."""
    made = dict(weights)
    for name in weights:
        if name.endswith(f"{PART}A") and "token_type" not in name:
            a, b = weights[name][task], weights[f"{name[:-1]}B"][task]
            of_embeddings, rank = "word_embeddings" in name, min(a.shape)
            original = name.replace("0.lora_A", "original")
            made[original] = made[original] + (a @ b if of_embeddings else b @ a) / rank
    return made


@pytest.mark.parametrize("task", [0, 1])
def test_vectors_of_a_task(tmp_path: Path, task: int) -> None:
    folder = write_checkpoint(tmp_path / "checkpoint", NAME)
    model = Model.load(convert(folder, tmp_path / "x.gguf", "f32"))
    texts = [x.tolist() for x in parts(recorded(NAME), "tokens")]
    name = ENCODERS[NAME]["lora_adaptations"][task]
    lora = load_lora(tmp_path / f"lora-{name}-x.gguf", model)
    assert lora.metadata["adapter.lora.task_name"] == name
    prompt = ENCODERS[NAME]["task_instructions"][name]
    assert lora.metadata["adapter.lora.prompt_prefix"] == prompt
    context = Context(model)
    context.set_adapters([lora], {lora: 1.0})
    got = embed_many(Engine(context), texts, "none")
    stored = read_safetensors(folder / "model.safetensors")
    weights = _merged({name: one.read() for name, one in stored.items()}, task)
    write_safetensors(folder / "model.safetensors", weights)
    merged = Model.load(convert(folder, tmp_path / "merged.gguf", "f32"))
    plain = embed_many(Engine(Context(model)), texts, "none")
    for a, b, without in zip(
        got, embed_many(Engine(Context(merged)), texts, "none"), plain, strict=True
    ):
        assert np.abs(a - b).max() < 1e-4 < np.abs(a - without).max()


def test_a_task_that_is_no_file_s_name(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path / "checkpoint", NAME)
    config = {**ENCODERS[NAME], "lora_adaptations": ["../x", "y"]}
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelError, match=r"lora_adaptations has '\.\./x', no file's name"):
        convert(folder, tmp_path / "x.gguf", "f32")
    assert not (tmp_path / "x.gguf").exists()
