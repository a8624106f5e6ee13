"""Learned positions limit the context and cannot shift; without rope, shifts change no keys."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from pyllama import Batch, Context, Model
from pyllama.convert import convert
from pyllama.engine.generate import generate
from pyllama.errors import BatchError
from pyllama.sampling import SamplingParams

from .checkpoints import write_checkpoint

GREEDY = SamplingParams(temp=0.0, ignore_eos=True)
TOKENS = list(range(40, 60))


@pytest.fixture(scope="module")
def gpt2(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return make(tmp_path_factory, "gpt2")


@pytest.fixture(scope="module")
def bloom(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return make(tmp_path_factory, "bloom")


def make(factory: pytest.TempPathFactory, name: str) -> Model:
    folder: Path = write_checkpoint(factory.mktemp(name) / name, name)
    return Model.load(convert(folder, folder / "x.gguf", "f32"))


def test_no_more_cells_than_learned_positions(
    gpt2: Model, caplog: pytest.LogCaptureFixture
) -> None:
    assert Context(gpt2, n_ctx=4096).n_ctx == 256
    assert "n_ctx 4096: this model has learned 256 positions" in caplog.text
    context = Context(gpt2, n_ctx=4096, n_seq_max=2)
    assert context.n_ctx == 512
    context.decode(Batch([5], pos=[255]))
    for batch in (Batch([5]), Batch([5], pos=[256], seq_id=1)):
        with pytest.raises(BatchError, match="position 256: the largest is 255"):
            context.decode(batch)


def test_learned_positions_cannot_shift(gpt2: Model) -> None:
    context = Context(gpt2, n_ctx=32)
    with pytest.raises(BatchError, match="learned positions"):
        list(generate(context, TOKENS, GREEDY, n_predict=40, n_keep=0))
    context.decode(Batch(TOKENS))
    for move in (lambda: context.kv.seq_add(0, 4, -1, -4), lambda: context.kv.seq_div(0, 0, -1, 2)):
        with pytest.raises(BatchError, match="use `n_keep=None`"):
            move()
    assert len(list(generate(context, TOKENS, GREEDY))) == 32 - 20 + 1  # and ends where it is full


def test_keys_without_rotation_stay_as_they_are(bloom: Model) -> None:
    context = Context(bloom, n_ctx=32)
    assert len(list(generate(context, TOKENS, GREEDY, n_predict=60, n_keep=4))) == 60
    context.kv.clear()
    context.decode(Batch(TOKENS))
    cache = context.kv.caches[0]
    keys = {i: k.bytes().copy() for i, k in cache.k.items()}
    context.kv.seq_rm(0, 4, 8)
    context.kv.seq_add(0, 8, -1, -4)
    context.apply_pending()
    assert not cache.pending.any and context.kv.seq_pos_max(0) == 15
    assert all(np.array_equal(k.bytes(), keys[i]) for i, k in cache.k.items())
