"""Record transformers' results for tiny encoders, in tests/data/encoders/<variant>.npz.

    LLAMA_CPP_SOURCES=DIR python -m tests.pyllama.encoders.record [NAME...]

Needs torch, transformers and llama.cpp's converter, which the tests do not; models that
transformers lacks are those of ``own_models``. A file has ``shapes`` (JSON), ``lengths`` int32[n]
and ``tokens`` int32 of each text (of each pair, of classifiers) by transformers' tokenizer, and
``gguf`` (JSON): the keys and tensors that llama.cpp's converter makes of the checkpoint, if it can.
In float32 with eager attention, each text alone: ``hidden``
float32[sum of lengths, n_embd], or ``scores`` float32[n, n_labels] of classifiers.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
import transformers
from safetensors import safe_open
from safetensors.torch import load_file

from ..arch import llama_cpp
from ..arch.checkpoints import DATA, Shapes, expand
from .checkpoints import dense_layers, write_files
from .own_models import MODELS
from .texts import PAIRS, TEXTS
from .variants import ENCODERS, SHAPES, VARIANTS

os.environ["HF_HUB_OFFLINE"] = "1"
torch.set_num_threads(1)


class LlamaBidirectionalConfig(transformers.LlamaConfig):  # type: ignore[misc]
    """Of nvidia's llama-embed-nemotron, whose code is in its folder."""

    model_type = "llama_bidirec"


class LlamaBidirectionalModel(transformers.LlamaModel):  # type: ignore[misc]
    """LLaMA without causality, by ``is_causal`` of its configuration."""

    config_class = LlamaBidirectionalConfig


transformers.AutoConfig.register("llama_bidirec", LlamaBidirectionalConfig)
transformers.AutoModel.register(LlamaBidirectionalConfig, LlamaBidirectionalModel)


def _class(config: dict[str, Any]) -> Any:
    ranks = config["architectures"][0].endswith("ForSequenceClassification")
    if ranks:
        return transformers.AutoModelForSequenceClassification
    encoders = ("T5EncoderModel",)  # a class of its own beside that with a decoder
    alone = config["architectures"][0] in encoders
    return transformers.AutoModelForTextEncoding if alone else transformers.AutoModel


def _shapes(config: dict[str, Any], folder: Path) -> Shapes:
    """The shapes by the names of a checkpoint as transformers writes it."""
    rest = {k: v for k, v in config.items() if k != "model_type"}
    parsed = transformers.AutoConfig.for_model(config["model_type"], **rest)
    _class(config).from_config(parsed).float().save_pretrained(folder)
    with safe_open(folder / "model.safetensors", "pt") as file:
        names = list(file.keys())
        return {name: tuple(file.get_slice(name).get_shape()) for name in names}


def _model(config: dict[str, Any], folder: Path) -> Any:
    """The function of transformers' model: of a tokenized text to its hidden states or scores."""
    model, info = _class(config).from_pretrained(
        folder, attn_implementation="eager", dtype=torch.float32, output_loading_info=True
    )
    assert not any(info[part] for part in ("missing_keys", "unexpected_keys")), info
    model.eval()

    def compute(one: Any) -> torch.Tensor:
        out = model(**one)
        return out.logits if hasattr(out, "logits") else out.last_hidden_state[0]

    return compute


def _own_model(name: str, folder: Path) -> Any:
    """The same of a model that transformers lacks."""
    arch = next(arch for arch, variants in VARIANTS.items() if name in variants)
    weights = load_file(folder / "model.safetensors")
    return lambda one: MODELS[arch](ENCODERS[name], weights, one["input_ids"][0])


@torch.no_grad()
def record(name: str, folder: Path) -> None:
    config, own = dict(ENCODERS[name]), name in SHAPES
    shapes = expand(SHAPES[name], config) if own else _shapes(config, folder / "shapes")
    write_files(folder / name, name, shapes)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder / name)
    compute = _own_model(name, folder / name) if own else _model(config, folder / name)
    ranks = config["architectures"][0].endswith("ForSequenceClassification")
    texts: Any = PAIRS if ranks else [(text,) for text in TEXTS]
    encoded = [tokenizer(*text, return_tensors="pt") for text in texts]
    ids = [one["input_ids"][0].numpy() for one in encoded]
    found = []
    for one in encoded:
        rows = compute(one).numpy()
        for _, layer in dense_layers(name):
            rows = rows @ layer["linear.weight"].T + layer.get("linear.bias", 0)
        found.append(rows)
    try:
        described: Any = llama_cpp.described(llama_cpp.convert(folder / name, folder / "x.gguf"))
    except subprocess.CalledProcessError as error:
        print(f"{name}: llama.cpp's converter: {error.stderr.strip().splitlines()[-1]}")
        described = ""
    np.savez_compressed(
        DATA / "encoders" / f"{name}.npz",
        shapes=json.dumps(shapes),
        lengths=np.array([len(tokens) for tokens in ids], np.int32),
        tokens=np.concatenate(ids).astype(np.int32),
        gguf=json.dumps(described),
        **{"scores" if ranks else "hidden": np.concatenate(found)},
    )
    spread = np.concatenate(found).std()
    print(f"{name}: {len(shapes)} tensors, {sum(map(len, ids))} tokens, std {spread:.3f}")


if __name__ == "__main__":
    for name in sys.argv[1:] or ENCODERS:
        with TemporaryDirectory() as directory:
            record(name, Path(directory))
