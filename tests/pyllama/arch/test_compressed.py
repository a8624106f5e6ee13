"""Compressed rows of DeepSeek-V4: windows that evict tokens, sequences, checkpoints, limits."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from pyggml.dtype import GGMLType
from pyllama import Batch, Context, Model
from pyllama.convert import convert
from pyllama.errors import BatchError, ContextFull
from pyllama.runtime.state import load_state, save_state

from ..models import rows
from .checkpoints import write_checkpoint

TOKENS = np.random.default_rng(5).integers(4, 512, 700).tolist()
CHECKPOINT = 100


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    folder = tmp_path_factory.mktemp("compressed")
    write_checkpoint(folder / "x", "deepseek4_short_rows")
    return Model.load(convert(folder / "x", folder / "x.gguf", "q8_0"))


def context(model: Model, **options: object) -> Context:
    return Context(model, **{"n_ctx": 1024, "n_seq_max": 2, "n_ubatch": 64, **options})


@pytest.fixture(scope="module")
def whole(model: Model) -> np.ndarray:
    return rows(context(model, swa_full=True, n_ubatch=256), TOKENS)


def test_the_same_bits_after_evictions_and_in_any_ubatches(model: Model, whole: np.ndarray) -> None:
    for n_ubatch in (7, 64):
        ctx = context(model, n_seq_max=1, n_ubatch=n_ubatch)
        assert np.array_equal(rows(ctx, TOKENS), whole)
        assert ctx.kv.seq_pos_min(0) > 0
    lengths = {ratio: cache.length(0) for ratio, cache in ctx.kv.compressed.items()}
    assert lengths == {4: 700 // 4, 10: 700 // 10}


def test_the_same_bits_without_an_indexer_where_it_would_choose_all(
    model: Model, whole: np.ndarray
) -> None:
    ctx, longer = context(model, n_ctx=256), context(model)
    assert not ctx.kv.compressed[4].indexer_keys and longer.kv.compressed[4].indexer_keys
    assert np.array_equal(rows(ctx, TOKENS[:250]), whole[:250])


def test_a_sequence_goes_back_to_a_checkpoint(model: Model, whole: np.ndarray) -> None:
    """Its group has begun, so the state at the checkpoint has some tokens of it."""
    ctx = context(model, n_checkpoints=2, swa_full=True)
    ctx.decode(Batch(TOKENS[:200], checkpoints=[CHECKPOINT]))
    with pytest.raises(BatchError, match="its newest recurrent state up to there is of position"):
        ctx.kv.seq_rm(0, 150)
    assert ctx.kv.rewind(0, 150) == CHECKPOINT + 1
    assert ctx.kv.compressed[4].seq_pos_max(0) == (CHECKPOINT + 1) // 4 * 4 - 1
    assert np.array_equal(rows(ctx, TOKENS[CHECKPOINT + 1 :]), whole[CHECKPOINT + 1 :])


def test_copies_and_saved_states(model: Model, whole: np.ndarray, tmp_path: Path) -> None:
    ctx = context(model)
    rows(ctx, TOKENS[:125])
    ctx.kv.seq_cp(0, 1)
    save_state(ctx, tmp_path / "x", seq=0)
    both = [rows(ctx, TOKENS[125:130], seq=seq) for seq in (0, 1)]
    other = context(model)
    load_state(other, tmp_path / "x", seq=1)
    for got in (*both, rows(other, TOKENS[125:130], seq=1)):
        assert np.array_equal(got, whole[125:130])
    apart = context(model, unified=False, n_ctx=512)
    rows(apart, TOKENS[:125])
    apart.kv.seq_cp(0, 1)
    ctx.kv.seq_rm(0)
    assert np.array_equal(rows(apart, TOKENS[125:130], seq=1), whole[125:130])


def test_rows_of_rounded_caches_are_transformed_as_keys(model: Model) -> None:
    types = {"type_k": GGMLType.Q8_0, "type_v": GGMLType.Q8_0}
    exact = rows(context(model, type_k=GGMLType.F32, type_v=GGMLType.F32), TOKENS[:100])
    rounded = rows(context(model, **types), TOKENS[:100])
    errors = ((rounded - exact) ** 2).sum(1) / (exact**2).sum(1)
    assert np.median(errors) < 0.02


def test_a_full_context(model: Model) -> None:
    ctx = Context(model, n_ctx=64)
    assert ctx.kv.n_used == 0
    ctx.decode(Batch(TOKENS[:64]))
    with pytest.raises(ContextFull, match="the context is full"):
        for token in TOKENS[:12]:
            ctx.decode(Batch([token]))
