"""Sparse attention: an indexer chooses 12 of up to 40 keys; the variants test its choice."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from pyggml.dtype import GGMLType
from pyllama import Batch, Context, Model
from pyllama.errors import PyllamaError
from pyllama.kv.cache import KVCache
from pyllama.runtime.state import load_state, save_state

from .checkpoints import conversions, recorded, write_checkpoint

F16, F32, Q8_0 = GGMLType.F16, GGMLType.F32, GGMLType.Q8_0
CHOSEN = (
    "deepseek32_chosen", "glm-dsa_chosen", "hy_v4_chosen", "minimax-m3_chosen", "dots3note_chosen",
)  # fmt: skip
POOLED = ("glm5-next_chosen", "qwen4exp_chosen")
FEW = 20


@pytest.fixture(scope="module")
def model_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Model]:
    converted = conversions(tmp_path_factory.mktemp("indexer"), write_checkpoint)
    return lambda name: Model.load(converted(name))


def rows(context: Context, tokens: list[int], **options: object) -> np.ndarray:
    context.decode(Batch(tokens, logits="all", **options))
    return context.logits.copy()


@pytest.mark.parametrize("name", CHOSEN)
def test_the_same_bits_anyhow(model_of: Callable[[str], Model], name: str, tmp_path: Path) -> None:
    tokens, model = recorded(name)["tokens"].tolist(), model_of(name)
    make = partial(Context, model, n_ctx=128, n_seq_max=2)
    whole = rows(make(n_threads=1), tokens)
    context = make(n_threads=2, n_ubatch=7)
    parts = [rows(context, [token]) for token in tokens[:FEW]]
    assert np.array_equal(np.concatenate([*parts, rows(context, tokens[FEW:])]), whole)
    context.kv.seq_rm(0, FEW)
    context.kv.seq_cp(0, 1)
    assert np.array_equal(rows(context, tokens[FEW:], seq_id=1), whole[FEW:])
    save_state(context, tmp_path / "x", tokens[:FEW], seq=0)
    other = make()
    assert load_state(other, tmp_path / "x", seq=1) == tokens[:FEW]
    assert np.array_equal(rows(other, tokens[FEW:], seq_id=1), whole[FEW:])


@pytest.mark.parametrize("name", CHOSEN)
def test_shifts_rotate_the_indexers_keys_too(model_of: Callable[[str], Model], name: str) -> None:
    tokens = recorded(name)["tokens"].tolist()
    make = partial(Context, model_of(name), n_ctx=64, type_k=F32, type_v=F32)
    shifted = make()
    rows(shifted, tokens[:FEW], pos=list(range(8, 8 + FEW)))
    shifted.kv.seq_add(0, 0, -1, -8)  # whole blocks of MiniMax-M3
    assert np.abs(rows(shifted, tokens[FEW:]) - rows(make(), tokens)[FEW:]).max() < 1e-4


@pytest.mark.parametrize("name", POOLED)
def test_groups_of_keys_anyhow(model_of: Callable[[str], Model], name: str, tmp_path: Path) -> None:
    tokens, model = recorded(name)["tokens"].tolist(), model_of(name)
    make = partial(Context, model, n_ctx=128, n_seq_max=2)
    whole = rows(make(n_threads=1), tokens)
    context = make(n_threads=2, n_ubatch=7)
    parts = [rows(context, [token]) for token in tokens[:FEW]]
    context.kv.seq_cp(0, 1)
    save_state(context, tmp_path / "x", tokens[:FEW], seq=0)
    assert np.array_equal(np.concatenate([*parts, rows(context, tokens[FEW:])]), whole)
    assert np.array_equal(rows(context, tokens[FEW:], seq_id=1), whole[FEW:])
    other = make()
    assert load_state(other, tmp_path / "x", seq=1) == tokens[:FEW]
    assert np.array_equal(rows(other, tokens[FEW:], seq_id=1), whole[FEW:])


def test_only_long_contexts_choose(model_of: Callable[[str], Model], tmp_path: Path) -> None:
    """Up to the number of chosen keys there is no cache for the indexer, and equal logits."""
    name = CHOSEN[1]
    tokens, model = recorded(name)["tokens"].tolist()[:12], model_of(name)
    short, long = (Context(model, n_ctx=n, type_k=F32, type_v=F32) for n in (12, 64))
    assert np.array_equal(rows(short, tokens), rows(long, tokens))
    assert not short.kv.caches[0].indexer_keys
    assert list(long.kv.caches[0].indexer_keys) == [0, 2]  # the second layer takes the first's
    save_state(short, tmp_path / "x", tokens, seq=0)
    with pytest.raises(PyllamaError, match="keys of an indexer"):
        load_state(long, tmp_path / "x", seq=0)


@pytest.mark.parametrize("type", [F16, F32, Q8_0])
def test_the_indexers_keys_are_floats(model_of: Callable[[str], Model], type: GGMLType) -> None:
    hparams = replace(model_of(CHOSEN[0]).hparams, head_dim_arr=(96,) * 3)  # whole blocks
    cache = KVCache(hparams, 64, type_k=type)
    assert {k.type for k in cache.indexer_keys.values()} == {F16 if type is Q8_0 else type}
    assert cache.size_bytes == sum(t.nbytes for t in cache.stored)
