"""Chameleon with tokens of images, which it must not choose."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from pyggml.dtype import GGMLType
from pyllama import Batch, Context, Model
from pyllama.convert import convert

from .checkpoints import recorded, shapes_of, weights, write_files
from .llama_cpp import generate, plain_words, serve
from .variants.chameleon import BASE

N_VOCAB, F32 = 8320, GGMLType.F32
IMAGES = np.arange(N_VOCAB)[4:8196]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    shapes = {
        name: tuple(N_VOCAB if n == 512 else n for n in shape)
        for name, shape in shapes_of(recorded("chameleon")).items()
    }
    folder = tmp_path_factory.mktemp("chameleon")
    config = {**BASE, "vocab_size": N_VOCAB}
    write_files(folder / "checkpoint", config, weights("chameleon", shapes, 1.0))
    return convert(folder / "checkpoint", folder / "x.gguf", "f32")


def test_logits_of_image_tokens(path: Path) -> None:
    context = Context(Model.load(path), n_ctx=64)
    context.decode(Batch([5, 1000, 8200], logits="all"))
    assert (context.logits[:, IMAGES] == -1e30).all()
    text = np.delete(context.logits, IMAGES, axis=1)
    assert text.shape == (3, 128) and np.abs(text).max() < 100 and text.std() > 0.1


@pytest.mark.long
def test_llama_cpp_s_tokens(path: Path) -> None:
    pytest.importorskip("xllamacpp")
    context, tokens = Context(Model.load(path), n_ctx=64, type_k=F32, type_v=F32), [5, 1000, 8200]
    greedy, rest = [], tokens
    for _ in range(16):
        context.decode(Batch(rest))
        rest = [int(context.logits_ith(-1).argmax())]
        greedy += rest
    server = serve(plain_words(path), n_ubatch=64)  # its graph of a token without logits is broken
    assert generate(server, tokens, 16, N_VOCAB)[0] == greedy
