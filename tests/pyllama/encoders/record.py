"""Record transformers' results for tiny encoders, in tests/data/encoders/<variant>.npz.

    LLAMA_CPP_SOURCES=DIR python -m tests.pyllama.encoders.record [NAME...]

Needs torch, transformers and llama.cpp's converter, which the tests do not; models that
transformers lacks are those of ``own_models``. A file has ``shapes`` (JSON), ``lengths`` int32[n]
and ``tokens`` int32 of each text (of each pair, of classifiers) by transformers' tokenizer, and
``gguf`` (JSON): the keys and tensors that llama.cpp's converter makes of the checkpoint, if it can.
In float32 with eager attention, each text alone: ``hidden``
float32[sum of lengths, n_embd], or ``scores`` float32[n, n_labels] of classifiers. Of models with a
decoder too, ``greedy`` int32[n, 16] of each text, and of the first ones ``logits``
float32[N_LOGITS, 16 / EVERY, 512].
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
import transformers
from safetensors import safe_open
from safetensors.torch import load_file

from ..arch import llama_cpp
from ..arch.checkpoints import DATA, EVERY, Shapes, expand
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


N_GREEDY, N_LOGITS, GAP = 16, 4, 4e-4  # the gap: of the standard deviation


def _class(config: dict[str, Any]) -> Any:
    if config["architectures"][0].endswith("ForConditionalGeneration"):
        return transformers.AutoModelForSeq2SeqLM
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
        shapes = {name: tuple(file.get_slice(name).get_shape()) for name in names}
    if "d_model" in config and config.get("tie_word_embeddings") is False:  # not saved
        shapes["lm_head.weight"] = (config["vocab_size"], config["d_model"])
    return shapes


def _generated(model: Any, one: Any) -> tuple[list[int], np.ndarray]:
    """The greedy tokens of a decoder, and the logits that every fourth was chosen from."""
    tokens, rows, gap = [model.config.decoder_start_token_id], [], np.inf
    for _ in range(N_GREEDY):
        out = model(**one, decoder_input_ids=torch.tensor([tokens]), use_cache=False)
        rows.append(out.logits[0, -1].numpy())
        second, first = np.sort(rows[-1])[-2:]
        gap = min(gap, float(first - second))
        tokens.append(int(rows[-1].argmax()))
    assert gap > GAP * np.std(rows), gap
    return tokens[1:], np.stack(rows[::EVERY])


def _model(config: dict[str, Any], folder: Path) -> Any:
    """Transformers' model."""
    model, info = _class(config).from_pretrained(
        folder, attn_implementation="eager", dtype=torch.float32, output_loading_info=True
    )
    assert not any(info[part] for part in ("missing_keys", "unexpected_keys")), info
    return model.eval()


def _rows(model: Any, one: Any) -> torch.Tensor:
    """Hidden states or scores of a tokenized text."""
    out = (model.get_encoder() if model.config.is_encoder_decoder else model)(**one)
    return out.logits if hasattr(out, "logits") else out.last_hidden_state[0]


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
    model = None if own else _model(config, folder / name)
    compute = _own_model(name, folder / name) if own else partial(_rows, model)
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
    more: dict[str, Any] = {}
    if model is not None and hasattr(model, "lm_head"):
        greedy, logits = zip(*(_generated(model, one) for one in encoded), strict=True)
        more = {"greedy": np.array(greedy, np.int32), "logits": np.stack(logits[:N_LOGITS])}
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
        **more,
    )
    spread = np.concatenate(found).std()
    print(f"{name}: {len(shapes)} tensors, {sum(map(len, ids))} tokens, std {spread:.3f}")


if __name__ == "__main__":
    for name in sys.argv[1:] or ENCODERS:
        with TemporaryDirectory() as directory:
            record(name, Path(directory))
