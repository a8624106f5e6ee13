"""A context's memory: bits with trees, separate streams, windows and shifted positions."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pyggml.dtype import GGMLType
from pyllama import Batch, Context, Model
from pyllama.errors import BatchError, ContextFull
from pyllama.kv.memory import Memory, window_cells
from pyllama.kv.table import CHUNK

from ...tiers import only
from ..conftest import Make
from ..models import Spec, random_weights, rows, write_model

TOKENS = np.random.default_rng(8).integers(0, 261, 1400).tolist()
F16, F32, BF16, Q8_0 = GGMLType.F16, GGMLType.F32, GGMLType.BF16, GGMLType.Q8_0
Q4_0, Q5_1 = GGMLType.Q4_0, GGMLType.Q5_1


# --- trees ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("n_ubatch", [1, 3, 64])
def test_a_tree_in_one_batch_has_the_bits_of_its_branches(make: Make, n_ubatch: int) -> None:
    r"""0 1 2 - 3 - 4     sequences 0, 1
    \     \ 5    1
     6 - 7       2
    """
    alone = [
        rows(make(), [TOKENS[i] for i in path])
        for path in ([0, 1, 2, 3, 4], [0, 1, 2, 3, 5], [0, 1, 2, 6, 7])
    ]
    context = make(n_seq_max=3, n_ubatch=n_ubatch)
    every = (0, 1, 2)
    context.decode(
        Batch(
            TOKENS[:8],
            pos=[0, 1, 2, 3, 4, 4, 3, 4],
            seq_id=[every, every, every, (0, 1), 0, 1, 2, [2]],
            logits="all",
        )
    )
    assert np.array_equal(context.logits[:5], alone[0])
    assert np.array_equal(context.logits[5], alone[1][4])
    assert np.array_equal(context.logits[6:], alone[2][3:])
    assert context.kv.n_used == 8 and [context.kv.length(s) for s in every] == [5, 5, 5]
    context.kv.seq_keep(1)
    assert context.kv.n_used == 5


def test_tokens_of_several_sequences_that_do_not_fit(make: Make) -> None:
    context = make(n_seq_max=3)
    context.decode(Batch(TOKENS[:3], seq_id=1))
    bad = [
        (Batch([5], seq_id=[(0, 1)]), r"token 0 of the batch: position 3 in sequence 0|want 0"),
        (Batch([5], pos=[4], seq_id=[(1, 2)]), r"position 4 in sequence 1, want 3"),
        (Batch([5], seq_id=[(0, 3)]), "sequence 3: this context has 0 to 2"),
        (Batch([5], seq_id=[()]), "want at least one and no duplicates"),
        (Batch([5], seq_id=[(1, 1)]), "want at least one and no duplicates"),
    ]
    for batch, text in bad[1:]:
        with pytest.raises(BatchError, match=text):
            context.decode(batch)
    assert context.kv.n_used == 3
    context.decode(Batch([5], seq_id=[(0, 1)]))  # sequence 0 starts where 1 goes on
    assert context.kv.seq_pos_min(0) == 3


# --- streams, windows -----------------------------------------------------------------------------


def test_streams_have_the_bits_of_one_cache(make: Make) -> None:
    alone = rows(make(), TOKENS[:16])
    context = make(n_seq_max=4, unified=False)
    assert context.n_ctx_seq == 16
    rows(context, TOKENS[100:110], seq=1)
    assert np.array_equal(rows(context, TOKENS[:10], seq=2), alone[:10])
    context.kv.seq_cp(2, 3)  # copies keys and values
    context.kv.seq_rm(2)
    rows(context, TOKENS[200:216], seq=2)
    assert np.array_equal(rows(context, TOKENS[10:16], seq=3), alone[10:])
    with pytest.raises(ContextFull, match="1 tokens to store, 0 of 16 cells free"):
        context.decode(Batch([1], seq_id=3))


@pytest.mark.parametrize("n_ubatch", [1, 7, 64])
def test_a_small_cache_for_a_window_has_the_bits_of_a_full_one(
    windowed: Make, n_ubatch: int
) -> None:
    tokens = TOKENS[:400] if n_ubatch == 1 else TOKENS
    full = rows(windowed(n_ubatch=512, swa_full=True), tokens)
    context = windowed(n_ubatch=n_ubatch, n_seq_max=2)
    base, small = context.kv.caches
    assert (base.window, small.window, small.layers) == (0, 20, (0, 1))
    assert small.n_cells == window_cells(20, 2, n_ubatch, True) < base.n_cells
    half = len(tokens) // 2
    got = [rows(context, tokens[:half])]
    context.kv.seq_cp(0, 1)
    rows(context, TOKENS[30:90], seq=1)
    got.append(rows(context, tokens[half:]))
    assert np.array_equal(np.concatenate(got), full)
    if n_ubatch > 1:
        assert small.evicted(0) > CHUNK


def test_a_window_hides_earlier_tokens(windowed: Make) -> None:
    """A far token has an effect through the layer of full attention, and none without it."""
    context = windowed(swa_full=True)
    assert not np.array_equal(
        rows(context, TOKENS[:80])[-1], rows(windowed(), [7, *TOKENS[1:80]])[-1]
    )


def test_rewinding_before_evicted_positions(windowed: Make) -> None:
    context = windowed(n_ubatch=64)
    whole = rows(context, TOKENS)
    assert context.kv.rewind(0, 1390) == 1390 == context.kv.length(0)
    assert np.array_equal(rows(context, TOKENS[1390:]), whole[1390:])
    context.kv.seq_rm(0, 300)
    with pytest.raises(BatchError, match="clear the sequence, or use `swa_full=True`"):
        context.decode(Batch(TOKENS[300:301]))
    assert context.kv.length(0) == 300
    assert context.kv.rewind(0, 300) == 0 == context.kv.n_used
    assert np.array_equal(rows(context, TOKENS), whole)


# --- what a token sees ----------------------------------------------------------------------------


def test_without_causality_the_first_token_attends_to_the_last(
    model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model, "_hparams", dataclasses.replace(model.hparams, causal=False))
    got = {n: rows(Context(model, n_ctx=64, n_threads=n), TOKENS[:30]) for n in (1, 2)}
    assert np.array_equal(got[1], got[2])
    other = rows(Context(model, n_ctx=64), [*TOKENS[:29], 7])
    assert np.abs(other[0] - got[1][0]).max() > 0
    same = Context(model, n_ctx=64, n_seq_max=2)  # beside another sequence
    same.decode(Batch(TOKENS[:30] + TOKENS[50:60], seq_id=[0] * 30 + [1] * 10, logits=[True] * 40))
    assert np.array_equal(same.logits[:30], got[1])
    with pytest.raises(BatchError, match="want 1 to n_ubatch = 8"):
        rows(Context(model, n_ctx=64, n_ubatch=8), TOKENS[:9])


@pytest.mark.parametrize("head_dim", only([32, 64, 100, 128], [64, 100]))
def test_types_of_the_cache_keep_bits_and_most_of_the_value(tmp_path: Path, head_dim: int) -> None:
    spec = Spec(head_dim=head_dim, n_embd=64, n_ctx=512)
    model = Model.load(write_model(tmp_path / "x.gguf", spec, random_weights(spec)))
    exact = rows(Context(model, n_ctx=320, type_k=F32, type_v=F32), TOKENS[:300])
    scale = np.abs(exact).max()
    for k, v, error in (
        (F16, F16, 1e-3),
        (BF16, BF16, 1e-2),
        (Q8_0, Q8_0, 2e-2),
        (Q8_0, F16, 2e-2),
        (Q4_0, Q4_0, 3e-1),
        (Q8_0, Q4_0, 3e-1),
        (Q5_1, F16, 1.5e-1),
    ):
        options: dict[str, Any] = {"n_ctx": 320, "type_k": k, "type_v": v}
        if head_dim % k.block_size:
            with pytest.raises(BatchError, match="blocks are 32 long, but heads"):
                Context(model, **options)
            continue
        got = rows(Context(model, **options), TOKENS[:300])
        assert 0 < np.abs(got - exact).max() < error * scale
        for other in ({"n_ubatch": 1, "n_threads": 1}, {"n_ubatch": 7}, {"n_batch": 64}):
            assert np.array_equal(rows(Context(model, **options, **other), TOKENS[:300]), got)
        moved = Context(model, **options)
        moved.decode(Batch(TOKENS[:20], pos=list(range(9, 29))))
        moved.kv.seq_add(0, 0, -1, -9)
        again = rows(moved, TOKENS[20:40])
        assert np.abs(again - exact[20:40]).max() < 2 * error * scale


def test_rotated_heads_lose_less_to_outliers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = Spec(head_dim=64, n_embd=64, n_ctx=512)
    weights = random_weights(spec)
    for part, factor in (("k", 30.0), ("v", 30.0), ("q", 1 / 30)):
        for i in range(spec.n_layer):
            weights[f"blk.{i}.attn_{part}.weight"][5::64] *= factor
    model = Model.load(write_model(tmp_path / "x.gguf", spec, weights))
    exact = rows(Context(model, n_ctx=320, type_k=F32, type_v=F32), TOKENS[:300])

    def error() -> float:
        context = Context(model, n_ctx=320, type_k=Q4_0, type_v=Q4_0)
        got = rows(context, TOKENS[:300])
        names = {node.op.name for node in context.graph().graph.nodes if node.op}
        assert ("HADAMARD" in names) == bool(context.kv.caches[0].rotate_k)
        return float(np.square(got - exact).mean())

    turned = error()
    monkeypatch.setattr("pyllama.kv.cache._rotation_size", lambda *args: 0)
    assert turned < 0.5 * error()


@pytest.mark.parametrize("change", [{"max_alibi_bias": 8.0}, {"attn_logit_softcap": 0.5}])
def test_attention_of_other_models_is_invariant_too(
    model: Model, monkeypatch: pytest.MonkeyPatch, change: dict[str, float]
) -> None:
    plain = rows(Context(model, n_ctx=512), TOKENS[:300])
    monkeypatch.setattr(model, "_hparams", dataclasses.replace(model.hparams, **change))
    whole = rows(Context(model, n_ctx=512), TOKENS[:300])
    assert not np.array_equal(whole, plain)
    for options in ({"n_ubatch": 1}, {"n_ubatch": 7, "n_threads": 1}, {"n_batch": 1}):
        assert np.array_equal(rows(Context(model, n_ctx=512, **options), TOKENS[:300]), whole)


# --- moved positions ------------------------------------------------------------------------------


def test_seq_add_keys_equal_keys_computed_at_the_new_positions(make: Make) -> None:
    """A sequence shifted from 5... to 0... has the logits of one that began there, up to F16."""
    exact = {"type_k": F32, "type_v": F32}
    whole = rows(make(**exact), TOKENS[:30])
    for delta, at in ((-5, 5), (9, 0), (-20, 20)):
        context = make(n_seq_max=2, **exact)
        context.decode(Batch(TOKENS[:20], pos=list(range(at, at + 20))))
        context.kv.seq_cp(0, 1)
        context.kv.seq_add(0, 0, -1, delta)
        got = rows(context, TOKENS[20:30])
        assert context.kv.seq_pos_min(0) == at + delta
        assert np.abs(got - whole[20:]).max() < 1e-4 * np.abs(whole).max()
        same = make(n_seq_max=2, type_k=F32, type_v=F32)  # sequence 1 has not moved
        same.decode(Batch(TOKENS[:20], pos=list(range(at, at + 20)), seq_id=1))
        assert np.array_equal(rows(context, TOKENS[20:30], seq=1), rows(same, TOKENS[20:30], seq=1))


def test_context_shift_forgets_the_middle(make: Make) -> None:
    context = make(type_k=F32, type_v=F32)
    rows(context, TOKENS[:60])
    context.kv.seq_rm(0, 4, 32)
    context.kv.seq_add(0, 32, -1, -28)
    assert context.kv.seq_pos_max(0) == 31 and context.kv.length(0) == 32
    rows(context, TOKENS[60:80])
    assert context.kv.length(0) == 52


def test_divided_positions(make: Make) -> None:
    context = make(n_seq_max=2)
    rows(context, TOKENS[:20])
    context.kv.seq_div(0, 0, 12, 2)
    with pytest.raises(BatchError, match="cannot become"):
        context.kv.seq_add(0, 12, -1, -10)
    context.kv.seq_add(0, 12, -1, -6)
    positions = context.kv.caches[0].entries(0)[:, 1].tolist()
    assert positions == [*np.repeat(range(6), 2), *range(6, 14)]
    rows(context, TOKENS[20:24])


def test_operations_on_all_caches_or_none(windowed: Make) -> None:
    memory: Memory = windowed(n_ctx=2048).kv
    for cache in memory.caches:
        cache.place([0] * 4, [0, 1, 2, 3])
    memory.caches[1].place([0], [9])
    with pytest.raises(BatchError, match="cannot become"):
        memory.seq_add(0, 0, 9, 9)
    assert memory.caches[0].entries(0)[:, 1].tolist() == [0, 1, 2, 3]
    assert not memory.caches[0].pending.any
