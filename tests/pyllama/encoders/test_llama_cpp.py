"""llama.cpp (xllamacpp, if installed) computes the same vectors from our files of encoders.

Its GELU is always the approximation by tanh, so BERT's is that here too. It is read from a table
of F16, which adds errors of up to 2e-4 to the vectors of models with experts or gates.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from pyllama import Context, Model
from pyllama.convert import convert
from pyllama.embeddings import embed_many, normalize
from pyllama.engine import Engine
from pyllama.runtime.overrides import Overrides

from .checkpoints import parts, recorded, write_checkpoint
from .variants import LLAMA_CPP

TABLE = ("gemma-embedding", "nomic-bert-moe", "nomic-bert-moe_every_3")

xllamacpp = pytest.importorskip("xllamacpp")


@pytest.mark.long
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
    overrides = Overrides(hidden_act="gelu") if name.startswith("bert") else Overrides()
    got = embed_many(Engine(Context(model, overrides=overrides)), texts, "mean")
    for a, b in zip(got, wanted, strict=True):
        assert np.abs(normalize(a) - b).max() < (2e-4 if name in TABLE else 1e-4)
