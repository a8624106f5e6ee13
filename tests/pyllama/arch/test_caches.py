"""Caches of chunked attention, and of layers that share keys and values: what contexts do."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
import pytest

from pyggml.dtype import GGMLType
from pyllama import Context, Model
from pyllama.convert import convert
from pyllama.errors import BatchError
from pyllama.runtime.state import load_state, save_state

from ..models import rows
from .checkpoints import write_checkpoint

TOKENS = np.random.default_rng(5).integers(4, 512, 800).tolist()
CHUNKED, SHARED = "llama4_chunks", "gemma3n_shared"


@pytest.fixture(scope="module", params=[CHUNKED, SHARED])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Model:
    folder = tmp_path_factory.mktemp("caches")
    path = convert(write_checkpoint(folder / "x", request.param), folder / "x.gguf", "q8_0")
    return Model.load(path)


def test_evictions_change_no_bits(model: Model) -> None:
    make = partial(Context, model, n_ctx=1024, n_ubatch=64)
    small, whole = make(), make(swa_full=True)
    assert small.kv.size_bytes < whole.kv.size_bytes
    assert np.array_equal(rows(small, TOKENS), rows(whole, TOKENS))
    assert small.kv.seq_pos_min(0) > 0 == whole.kv.seq_pos_min(0)


def test_a_copied_sequence_continues_with_the_same_bits(model: Model) -> None:
    context = Context(model, n_ctx=2048, n_seq_max=3, n_ubatch=64)
    rows(context, TOKENS[:600])
    context.kv.seq_cp(0, 1)
    one, two = (rows(context, TOKENS[600:640], seq=seq) for seq in (0, 1))
    assert np.array_equal(one, two)


def test_a_saved_state_continues_with_the_same_bits(model: Model, tmp_path: Path) -> None:
    context = Context(model, n_ctx=1024, n_ubatch=64)
    rows(context, TOKENS[:600])
    save_state(context, tmp_path / "state", TOKENS[:600])
    other = Context(model, n_ctx=1024, n_ubatch=64)
    assert load_state(other, tmp_path / "state") == TOKENS[:600]
    assert np.array_equal(rows(other, TOKENS[600:640]), rows(context, TOKENS[600:640]))


def test_shifted_keys_are_rotated_once_or_refused(model: Model) -> None:
    f32 = GGMLType.F32
    context = Context(model, n_ctx=128, type_k=f32, type_v=f32)
    rows(context, TOKENS[:40])
    if model.hparams.swa_chunked:
        with pytest.raises(BatchError, match="chunked attention, recurrent layers or an encoder"):
            context.kv.seq_add(0, 0, -1, 5)
        return
    want = rows(context, TOKENS[40:41])
    context.kv.seq_rm(0, 40)
    context.kv.seq_add(0, 0, -1, 5)
    rows(context, TOKENS[:1])  # the shift is done with the next batch
    context.kv.seq_rm(0, 45)
    assert np.abs(rows(context, TOKENS[40:41]) - want).max() < 1e-3  # all positions moved alike
