"""llama.cpp (xllamacpp, if installed) computes the same vectors from our files of encoders.

With a decoder too, it generates the same tokens.

Its GELU is always the approximation by tanh, which it reads from a table: argument and result are
F16. Here it is computed in the same way; exact ones, as in transformers, differ by up to 1.5e-4.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import pyggml as ops
from pyggml.dtype import GGMLType
from pyggml.tensor import Tensor
from pyllama import Context, Model
from pyllama.convert import convert
from pyllama.embeddings import embed_many, normalize
from pyllama.engine import Engine, Request
from pyllama.runtime.overrides import Overrides
from pyllama.sampling import SamplingParams

from ..arch.llama_cpp import generate_encoded
from .checkpoints import parts, recorded, write_checkpoint
from .variants import GENERATING, LLAMA_CPP

xllamacpp = pytest.importorskip("xllamacpp")


def halved(ctx: ops.Context, x: Tensor) -> Tensor:
    """``x``, rounded to F16."""
    return ops.cast(ctx, ops.cast(ctx, x, GGMLType.F16), GGMLType.F32)


@pytest.fixture
def gelu_of_llama_cpp(monkeypatch: pytest.MonkeyPatch) -> None:
    """GELU by llama.cpp's table, with and without a gate."""
    unary, glu_split = ops.unary, ops.glu_split

    def table_unary(ctx: ops.Context, x: Tensor, act: str) -> Tensor:
        if act != "gelu":
            return unary(ctx, x, act)
        return halved(ctx, unary(ctx, halved(ctx, x), act))

    def table_glu(ctx: ops.Context, gate: Tensor, up: Tensor, kind: str) -> Tensor:
        if kind != "geglu":
            return glu_split(ctx, gate, up, kind)
        return ops.mul(ctx, table_unary(ctx, gate, "gelu"), up)

    monkeypatch.setattr(ops, "unary", table_unary)
    monkeypatch.setattr(ops, "glu_split", table_glu)


@pytest.mark.long
@pytest.mark.usefixtures("gelu_of_llama_cpp")
@pytest.mark.parametrize("name", LLAMA_CPP)
def test_the_same_vectors(tmp_path: Path, name: str) -> None:
    path = convert(write_checkpoint(tmp_path / name, name), tmp_path / "x.gguf", "f32")
    texts = [x.tolist() for x in parts(recorded(name), "tokens")]
    params = xllamacpp.CommonParams()
    params.model.path, params.embedding, params.warmup = str(path), True, False
    params.n_ctx = params.n_batch = params.n_ubatch = 256
    params.n_parallel = 1
    params.pooling_type = xllamacpp.llama_pooling_type.LLAMA_POOLING_TYPE_MEAN
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
    params.flash_attn_type = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
    reply = xllamacpp.Server(params).handle_embeddings({"input": texts})
    wanted = [np.array(one["embedding"]) for one in reply["data"]]
    model = Model.load(path)
    overrides = (
        Overrides(hidden_act="gelu")
        if name.startswith(("bert", "jina", "nomic-bert-moe"))
        else Overrides()
    )
    got = embed_many(Engine(Context(model, overrides=overrides)), texts, "mean")
    for a, b in zip(got, wanted, strict=True):
        assert np.abs(normalize(a) - b).max() < 1e-4


@pytest.mark.long
@pytest.mark.usefixtures("gelu_of_llama_cpp")
@pytest.mark.parametrize("name", GENERATING)
def test_the_same_greedy_tokens(tmp_path: Path, name: str) -> None:
    path = convert(write_checkpoint(tmp_path / name, name), tmp_path / "x.gguf", "f32")
    texts, n = [x.tolist() for x in parts(recorded(name), "tokens")], 16
    engine, found = Engine(Context(Model.load(path), n_ctx=512)), []
    for text in texts:
        request = Request(text, SamplingParams(temp=0.0), max_tokens=n, stop_at_eog=False)
        found.append([token for event in engine.run(request) for token in event.tokens])
    assert found == generate_encoded(path, texts, n)
