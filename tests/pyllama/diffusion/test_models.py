"""Diffusion language models against transformers and llama.cpp: converted, then run."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from pyllama import Batch, Context, Model
from pyllama.bench.bench import BenchCase, run_bench
from pyllama.diffusion import unmask
from pyllama.engine import Engine, Request
from pyllama.errors import BatchError, ModelError, PerplexityError
from pyllama.eval.perplexity import perplexity
from pyllama.parameters.diffusion import DiffusionParams
from pyllama.runtime.overrides import Overrides
from pyllama.sampling import SamplingParams
from tests.pyggml.sched.fake_device import FakeDevice

from ...tiers import some
from ..arch.checkpoints import EVERY, conversions
from ..arch.llama_cpp import described, plain_words, text_logits
from .checkpoints import ARCH, recorded, write_checkpoint
from .reference import unmask as unmask_by_numpy
from .variants import MASK

NAMES = sorted(ARCH)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Makes a variant's checkpoint once, and each conversion of it once."""
    return conversions(tmp_path_factory.mktemp("checkpoints"), write_checkpoint)


def logits(model: Model, texts: list[list[int]], **options: Any) -> np.ndarray:
    """The logits of all tokens of texts in one batch."""
    context = Context(model, **{"n_ubatch": 64, **options})
    seqs = [i for i, text in enumerate(texts) for _ in text]
    context.decode(Batch([t for text in texts for t in text], seq_id=seqs, logits="all"))
    return context.logits.copy()


@pytest.mark.parametrize("name", some(NAMES, 4))
def test_the_reference_s_logits(folders: Any, name: str) -> None:
    model, record = Model.load(folders(name)), recorded(name)
    assert model.tokenizer.vocab.roles["mask"] == MASK
    assert model.hparams.diffusion and model.hparams.shift_logits == (name in ("dream", "rnd1"))
    got = logits(model, [record["tokens"].tolist()])
    assert np.abs(got[::EVERY] - record["logits"]).max() < 1e-4


@pytest.mark.parametrize("name", some(NAMES, 4))
def test_keys_and_tensors_of_llama_cpp_s_converter(folders: Any, name: str) -> None:
    wanted, ours = json.loads(str(recorded(name)["gguf"])), described(folders(name))
    assert ours["architecture"] == wanted["architecture"] == ARCH[name]
    assert ours["tensors"] == wanted["tensors"]
    others = {k for k, v in wanted["keys"].items() if not _same(ours["keys"].get(k), v)}
    assert not others


def _same(a: Any, b: Any) -> bool:
    return a == b if isinstance(b, str | bool) else a is not None and np.allclose(a, b, 1e-6, 0)


@pytest.mark.parametrize("name", some(NAMES, 2))
def test_the_same_bits_among_other_texts(folders: Any, name: str) -> None:
    model, tokens = Model.load(folders(name, "q8_0")), recorded(name)["tokens"].tolist()
    alone = logits(model, [tokens], n_threads=1)
    assert np.array_equal(logits(model, [tokens], n_threads=2), alone)
    among = logits(model, [tokens[:9], tokens, tokens[5:]], n_ubatch=100, n_threads=2)
    assert np.array_equal(among[9 : 9 + len(tokens)], alone)
    context = Context(model, n_ubatch=64)  # logits of a few tokens
    flags = [i % 3 == 1 for i in range(len(tokens))]
    context.decode(Batch(tokens, logits=flags))
    assert np.array_equal(context.logits, alone[flags])


@pytest.mark.parametrize("name", some(NAMES, 1))
def test_embeddings_but_nothing_token_by_token(folders: Any, name: str) -> None:
    model = Model.load(folders(name))
    context = Context(model, n_ubatch=64)
    context.decode(Batch([5, 6, 7], logits="none", embeddings="all"))
    assert np.isfinite(context.embeddings).all()
    with pytest.raises(BatchError, match=r"no texts; use pyllama-diffusion") as error:
        Engine(context).submit(Request([5, 6, 7]))
    assert "\n" not in str(error.value)
    with pytest.raises(PerplexityError, match="attend to later ones"):
        perplexity(context, [5] * 200, 64)
    with pytest.raises(BatchError, match="it generates none; use `n_gen=0`"):
        run_bench(model, BenchCase(n_gen=4))
    with pytest.raises(BatchError, match="its attention cannot be causal"):
        Context(model, overrides=Overrides(causal=True))


@pytest.mark.parametrize("name", some(NAMES, 1))
@pytest.mark.parametrize("n_layers", [2, -1])
def test_layers_on_a_device(folders: Any, name: str, n_layers: int) -> None:
    here, tokens = Model.load(folders(name)), recorded(name)["tokens"].tolist()
    there = Model.load(folders(name), devices=[FakeDevice()], n_gpu_layers=n_layers)
    assert np.abs(logits(there, [tokens]) - logits(here, [tokens])).max() < 1e-4


def test_a_missing_mask_token(folders: Any) -> None:
    model = Model.load(folders("dream"))
    model.tokenizer.vocab.roles.pop("mask")
    with pytest.raises(ModelError, match="no mask token"):
        unmask(Context(model, n_ubatch=64), [5])


@pytest.mark.long
@pytest.mark.parametrize("name", NAMES)
def test_llama_cpp_s_logits_and_text(folders: Any, name: str) -> None:
    pytest.importorskip("xllamacpp")
    path, tokens = folders(name), recorded(name)["tokens"].tolist()
    theirs, model = text_logits(plain_words(path)), Model.load(path)
    assert np.abs(logits(model, [tokens]) - theirs(tokens)).max() < 2e-3
    params = DiffusionParams(steps=8, eps=0.001)
    steps = [*unmask(Context(model, n_ubatch=40), tokens[:9], params, SamplingParams(temp=0.0))]
    shifted = name in ("dream", "rnd1")
    assert steps[-1].tokens == unmask_by_numpy(theirs, tokens[:9], 40, params, shifted)[-1]
