"""Adapters of every architecture: the logits of a file into which they are merged."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from pyggml.dtype import GGMLType
from pyllama import Batch, Context, Model
from pyllama.convert import convert
from pyllama.runtime.adapters import load_lora

from ..adapters import adaptable, merge, random_terms, write_lora
from .checkpoints import long_but, own_graphs, recorded, write_checkpoint

F32 = GGMLType.F32
NAMES = long_but(own_graphs(), ("gemma3", "llama", "mixtral", "qwen2", "mamba2", "rwkv7"))


def logits(model: Model, tokens: list[int], **adapters: object) -> np.ndarray:
    context = Context(model, n_ctx=64, type_k=F32, type_v=F32)
    context.decode(Batch(tokens, logits="all"))
    return context.logits.copy()


def is_plain(model: Model, name: str) -> bool:
    """Whether a change of a matrix is that of its product: routers jump, scales come before it."""
    return "ffn_gate_inp" not in name and name.replace(".weight", ".scale") not in model.weights


@pytest.mark.parametrize("name", NAMES)
def test_merged_equals_unmerged(tmp_path: Path, name: str) -> None:
    path = convert(write_checkpoint(tmp_path / name, name), tmp_path / "x.gguf", "f32")
    model, tokens = Model.load(path), recorded(name)["tokens"].tolist()[:24]
    n_vocab, arch = model.hparams.n_vocab, model.hparams.arch
    sizes = {n: ne for n, ne in adaptable(model).items() if is_plain(model, n)}
    if "output.weight" not in model.weights:  # tied: merging would change both
        sizes.pop("token_embd.weight")
        if not {"output.weight", "output.weight?"} & model.arch.TENSORS.keys():
            sizes.pop("output.weight")
    if "token_embd.weight" not in model.weights:
        sizes.pop("output.weight")
    terms = [random_terms(sizes, n_vocab, rank, seed=rank) for rank in (4, 3)]
    loras = [
        load_lora(write_lora(tmp_path / f"{i}.gguf", arch, of_one, 8), model)
        for i, of_one in enumerate(terms)
    ]
    merged = merge(tmp_path / "m.gguf", path, [(terms[0], 2 * 0.5), (terms[1], 8 / 3)])
    context = Context(model, n_ctx=64, type_k=F32, type_v=F32, n_seq_max=2)
    context.set_adapters(loras)
    context.decode(Batch(tokens, logits="all"))
    plain = context.logits.copy()
    context.reset()
    scales = context.scales({loras[0]: 0.5, loras[1]: 1.0})
    context.decode(Batch(tokens, logits="all", adapters=scales))
    changed = context.logits.copy()
    wanted = logits(Model.load(merged), tokens)
    assert np.abs(plain - wanted).max() > 0.01
    assert np.abs(changed - wanted).max() < 1e-4
    assert np.array_equal(plain, logits(model, tokens))
    context.reset()  # two sequences in a batch, one of them with adapters
    rows = np.concatenate([np.tile(scales, (24, 1)), np.zeros((24, 2))]).astype(np.float32)
    batch = Batch(tokens * 2, None, [0] * 24 + [1] * 24, "all", adapters=rows)
    context.decode(batch)
    assert context.logits[:24].tobytes() == changed.tobytes()
    assert context.logits[24:].tobytes() == plain.tobytes()
