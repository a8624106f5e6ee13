"""Contexts: sequences, rollback, reuse, errors without side effects."""

from __future__ import annotations

import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pyggml.dtype import GGMLType
from pyggml.errors import AllocError
from pyllama import Batch, Context, Model
from pyllama.errors import BatchError, ContextFull, ModelError
from pyllama.runtime.decode_graph import bucket

from ..conftest import Make
from ..models import rows, state

TOKENS = np.random.default_rng(7).integers(0, 261, 64).tolist()


# --- sequences ------------------------------------------------------------------------------------


@pytest.mark.parametrize("n_ubatch", [1, 5, 64])
def test_interleaved_sequences_have_the_bits_of_separate_runs(make: Make, n_ubatch: int) -> None:
    lengths = (20, 3, 11)
    texts = [TOKENS[10 * s : 10 * s + n] for s, n in enumerate(lengths)]
    alone = [rows(make(), text) for text in texts]
    rng = np.random.default_rng(n_ubatch)
    order = rng.permutation(np.repeat([0, 1, 2], lengths)).tolist()
    at = [order[:i].count(s) for i, s in enumerate(order)]
    wanted = rng.random(len(order)) < 0.5
    context = make(n_seq_max=3, n_ubatch=n_ubatch)
    mixed = [texts[s][i] for s, i in zip(order, at, strict=True)]
    context.decode(Batch(mixed, pos=at, seq_id=order, logits=wanted.tolist()))
    outputs = np.flatnonzero(wanted)
    assert len(context.logits) == len(outputs)
    for row, i in zip(context.logits, outputs, strict=True):
        assert np.array_equal(row, alone[order[i]][at[i]])


def test_a_shared_prefix_and_cells_that_lie_anywhere(make: Make) -> None:
    """Sequence 1 shares a prefix in cells that other sequences had used and freed."""
    context = make(n_seq_max=3, n_ctx=40)
    rows(context, TOKENS[40:50], seq=2)
    rows(context, TOKENS[:12])
    context.kv.seq_rm(2, 0, 4)
    context.kv.seq_rm(2, 7, 9)
    context.kv.seq_cp(0, 1, 0, 8)
    assert context.kv.n_used == 4 + 12 and context.kv.seq_pos_max(1) == 7
    got = rows(context, TOKENS[20:30], TOKENS[30:33], seq=1)
    again = rows(context, TOKENS[12:16])
    assert np.array_equal(got, rows(make(), TOKENS[:8] + TOKENS[20:33])[8:])
    assert np.array_equal(again, rows(make(), TOKENS[:16])[12:])
    context.kv.seq_keep(1)
    assert state(context) == (21, [(0, -1, -1), (21, 0, 20), (0, -1, -1)])
    assert np.array_equal(rows(context, TOKENS[:19]), rows(make(), TOKENS[:19]))  # 40 cells: full


def test_a_fork_to_cells_of_its_own_compiles_nothing(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It did, which was most of a step in which many short texts began."""
    context = make(n_seq_max=3, n_ctx=60, unified=False)
    rows(context, TOKENS[:12])
    for seq in (1, 2):
        context.kv.seq_cp(0, seq, 0, 8)
    rows(context, [TOKENS[8]], seq=1)  # builds the graph of one token
    context.kv.seq_rm(1, 4, -1)
    context.kv.seq_cp(0, 1, 4, 8)
    monkeypatch.setattr(context.sched, "compile", pytest.fail)
    got = [rows(context, [TOKENS[8]], seq=seq) for seq in (1, 2)]
    whole = rows(make(), TOKENS[:9])[8:]
    assert np.array_equal(got[0], whole) and np.array_equal(got[1], whole)


def test_rollback_clear_and_a_start_anywhere(make: Make) -> None:
    context, whole = make(), rows(make(), TOKENS[:20])
    rows(context, TOKENS[:8], TOKENS[50:60])
    context.kv.seq_rm(0, 8)
    assert np.array_equal(rows(context, TOKENS[8:20]), whole[8:])
    context.kv.clear()
    assert np.array_equal(rows(context, TOKENS[:20]), whole)
    context.kv.clear()
    context.decode(Batch(TOKENS[:4], pos=[7, 8, 9, 10]))
    assert (context.kv.seq_pos_min(0), context.kv.seq_pos_max(0)) == (7, 10)
    context.kv.clear()
    context.decode(Batch([5], pos=[(1 << 31) - 1]))
    for more in ([6], [6, 7]):
        with pytest.raises(BatchError, match="the largest is 2147483647"):
            context.decode(Batch(more))


def test_logits_only_for_requested_outputs(make: Make) -> None:
    whole = rows(make(), TOKENS[:20])
    context = make(n_ubatch=6)
    flags = [i in (0, 5, 7) for i in range(20)]  # none in the last ubatches
    context.decode(Batch(TOKENS[:20], logits=flags))
    assert np.array_equal(context.logits, whole[[0, 5, 7]])
    assert np.array_equal(context.logits_ith(-1), whole[7])
    with pytest.raises(BatchError, match=r"logits_ith\(3\): the last decode had 3"):
        context.logits_ith(3)
    context.kv.clear()
    context.decode(Batch(TOKENS[:19], logits="none"))
    assert len(context.logits) == 0
    context.decode(Batch(TOKENS[19:20]))
    assert np.array_equal(context.logits, whole[19:])


@pytest.mark.parametrize("n_ubatch", [64, 7])
def test_embeddings_and_logits_of_one_batch(make: Make, n_ubatch: int) -> None:
    """They have the bits of batches with one kind of result."""
    tokens = TOKENS[:40]
    context = make(n_ubatch=n_ubatch)
    context.decode(Batch(tokens, logits="all"))
    logits = context.logits.copy()
    assert context.embeddings.shape == (0, 32)
    context.kv.clear()
    context.decode(Batch(tokens, logits="none", embeddings="all"))
    embeddings = context.embeddings.copy()
    assert context.logits.shape == (0, logits.shape[1]) and embeddings.shape == (40, 32)
    wanted = np.arange(40) % 3 == 0, np.arange(40) % 5 == 1
    context.kv.clear()
    context.decode(Batch(tokens, logits=wanted[0].tolist(), embeddings=wanted[1].tolist()))
    assert np.array_equal(context.logits, logits[wanted[0]])
    assert np.array_equal(context.embeddings, embeddings[wanted[1]])
    context.decode_token(tokens[0])
    assert context.embeddings.shape == (0, 32)
    with pytest.raises(ModelError, match="no classification head"):
        _ = context.scores


def test_one_token_on_is_a_batch_of_one(make: Make) -> None:
    whole, context = rows(make(), TOKENS[:20]), make()
    context.decode(Batch(TOKENS[:8]))
    for i, token in enumerate(TOKENS[8:20], 8):
        context.decode_token(token)
        assert np.array_equal(context.logits, whole[i : i + 1])
        assert context.argmax_ith(-1) == context.argmax_ith(0) == whole[i].argmax()
    for token, seq in ((-1, 0), (10**6, 0), (1, 1), (1, -1)):
        with pytest.raises(BatchError):
            context.decode_token(token, seq)
    assert np.array_equal(context.logits, whole[19:]) and context.kv.seq_pos_max(0) == 19
    context.kv.seq_rm(0, 5, 9)  # the free cells lie in between
    context.decode_token(TOKENS[20])
    assert context.kv.seq_pos_max(0) == 20
    with pytest.raises(ContextFull):
        for token in TOKENS * 9:
            context.decode_token(token)
    assert context.kv.length(0) == context.n_ctx


def test_one_token_on_without_a_program(make: Make) -> None:
    whole, context = rows(make(), TOKENS[:9]), make()
    context.decode(Batch(TOKENS[:8]))
    context.close()
    context.decode_token(TOKENS[8])
    assert context.kv.length(0) == context.kv.n_used == 9
    assert np.array_equal(context.logits, whole[8:])


def test_where_the_largest_logit_is(make: Make) -> None:
    for options in ({}, {"n_ubatch": 6}):
        context = make(**options)
        for part in (TOKENS[:20], TOKENS[20:23]):
            context.decode(Batch(part, logits="all"))
            best = [context.argmax_ith(i) for i in range(len(part))]
            assert best == context.logits.argmax(axis=1).tolist()
            with pytest.raises(BatchError):
                context.argmax_ith(len(part))


# --- reuse ----------------------------------------------------------------------------------------


def test_programs_are_reused_with_equal_bits(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    parts = [TOKENS[:9], *([t] for t in TOKENS[9:15]), TOKENS[15:32], TOKENS[32:49], TOKENS[49:]]
    context = make()
    reusing = rows(context, *parts)
    # one token with one output is there from the start; 17 tokens are there twice; the last part
    # uses the graph of 17, which is a little larger
    assert context.n_reused == 6 + 1 + 1
    monkeypatch.setenv("PYLLAMA_GRAPH_REUSE", "0")
    rebuilding = make()
    assert np.array_equal(rows(rebuilding, *parts), reusing) and rebuilding.n_reused == 0


def test_reserved_sizes(make: Make) -> None:
    for build in (True, False):
        context, seconds = make(), 0.0
        context.reserve((4, 6), build=build)
        n_built = []
        for n in (3, 4, 5, 6, 2):
            seconds, n_reused = context.build_s, context.n_reused
            context.decode(Batch(TOKENS[:n], logits="all"))
            assert (context.n_reused > n_reused) == (context.build_s == seconds)
            n_built.append(int(context.n_reused == n_reused))
        assert n_built == ([0, 0, 0, 0, 1] if build else [1, 0, 1, 0, 1])


def test_a_few_rows_share_a_graph_before_one_of_a_reserved_size_is_built(make: Make) -> None:
    context = make()
    context.reserve((2, 4), build=False)
    built = []
    for n in (4, *[2] * 6):
        n_reused = context.n_reused
        context.decode(Batch(TOKENS[:n], logits="all"))
        built.append(context.n_reused == n_reused)
    assert built == [True, False, False, False, False, True, False]


def test_buckets_are_never_too_small_and_rarely_too_large() -> None:
    sizes = range(1, 5000)
    assert all(n <= bucket(n) <= max(16, 1.125 * n) for n in sizes)
    assert all(bucket(bucket(n)) == bucket(n) <= bucket(n + 1) for n in sizes)
    assert bucket(0) == 0 and len({bucket(n) for n in range(1, 513)}) <= 56


def test_a_decode_allocates_next_to_nothing(make: Make) -> None:
    context = make()
    for token in TOKENS[:8]:
        context.decode(Batch([token]))
    tracemalloc.start()
    try:
        context.decode(Batch([1]))
        tracemalloc.reset_peak()
        before, _ = tracemalloc.get_traced_memory()
        for token in TOKENS[:20]:
            context.decode(Batch([token]))
        after, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak - before < 8192 and after - before < 4096  # bytes


# --- errors ---------------------------------------------------------------------------------------

BAD_BATCHES = {
    "no-tokens": ([], {}, "a batch of 0 tokens: want 1 to n_batch = 16"),
    "too-many": (TOKENS[:17], {}, "a batch of 17 tokens: want 1 to n_batch = 16"),
    "token-261": ([5, 261], {}, "token id 261 is not in the vocabulary of 0 to 260"),
    "token--1": ([5, -1], {}, "token id -1 is not in"),
    "seq-2": ([5], {"seq_id": 2}, "sequence 2: this context has 0 to 1"),
    "seq--1": ([5, 6], {"seq_id": [0, -1]}, "sequence -1: this context has 0 to 1"),
    "gap": ([5, 6], {"pos": [4, 6]}, "token 1 of the batch: position 6 in sequence 0, want 5"),
    "back": ([5], {"pos": [2]}, "position 2 in sequence 0, want 4"),
    "negative": ([5], {"pos": [-3], "seq_id": 1}, "position -3 in sequence 1, want 0"),
    "huge": (
        [5],
        {"pos": [1 << 40], "seq_id": 1},
        f"position {1 << 40}: the largest is 2147483647",
    ),
    "over-the-end": ([5, 6], {"pos": [(1 << 31) - 1, 1 << 31], "seq_id": 1}, "position 2147483648"),
}


@pytest.mark.parametrize(("tokens", "options", "message"), BAD_BATCHES.values(), ids=BAD_BATCHES)
def test_a_bad_batch_changes_nothing(
    make: Make, tokens: list[int], options: dict[str, Any], message: str
) -> None:
    context = make(n_batch=16, n_seq_max=2)
    first = rows(context, TOKENS[:4])
    before = state(context)
    with pytest.raises(BatchError) as error:
        context.decode(Batch(tokens, **options))
    assert message in str(error.value) and "\n" not in str(error.value)
    assert state(context) == before and np.array_equal(context.logits, first)
    assert np.array_equal(rows(context, TOKENS[4:9]), rows(make(), TOKENS[:9])[4:])


def test_a_full_context_changes_nothing(make: Make) -> None:
    context = make(n_ctx=10, n_ubatch=3)
    first, before = rows(context, TOKENS[:7]), state(context)
    with pytest.raises(ContextFull, match="4 tokens to store, 3 of 10 cells free; use a larger"):
        context.decode(Batch(TOKENS[7:11]))
    assert state(context) == before and np.array_equal(context.logits[-1], first[-1])
    assert np.array_equal(rows(context, TOKENS[7:10]), rows(make(), TOKENS[:10])[7:])
    with pytest.raises(ContextFull, match="1 tokens to store, 0 of 10"):
        context.decode(Batch([1]))


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"n_ctx": -1}, BatchError, "n_ctx is -1, want 0 (as trained) or more"),
        ({"n_batch": 0}, BatchError, "n_batch is 0"),
        ({"n_ubatch": 0}, BatchError, "n_ubatch is 0"),
        ({"n_seq_max": 0}, BatchError, "n_seq_max is 0"),
        ({"n_ctx": 1, "n_seq_max": 2, "unified": False}, BatchError, "n_ctx is 1, want 2 or more"),
        ({"n_seq_max": 257}, BatchError, "n_seq_max is 257, want at most 256"),
        ({"type_k": GGMLType.Q4_K}, BatchError, "type_k is Q4_K, want one of F16, F32"),
        ({"type_v": GGMLType.Q8_0}, BatchError, "type_v is Q8_0, whose blocks are 32 long, but"),
        ({"type_k": GGMLType.Q4_0}, BatchError, "type_k is Q4_0, whose blocks are 32 long, but"),
        ({"n_ctx": 1 << 40}, AllocError, f"{(3 << 46) + (1 << 43)} bytes"),
        ({"n_ctx": 1 << 62}, AllocError, "smaller `n_ctx`"),
    ],
)
def test_sizes_out_of_range(
    model: Model, options: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error) as raised:
        Context(model, **options)
    assert message in str(raised.value) and "\n" not in str(raised.value)


def test_a_closed_model_lives_on_in_its_contexts(model_path: Path) -> None:
    model = Model.load(model_path)
    context, other = (Context(model, n_ctx=64, n_threads=2) for _ in range(2))
    model.close()
    assert np.array_equal(rows(context, TOKENS[:9]), rows(other, TOKENS[:9]))
    for empty in (model, Model.load(model_path, vocab_only=True)):
        with pytest.raises(ModelError, match="vocab_only=True, or closed"):
            Context(empty)


@pytest.mark.parametrize("n", [None, 0, -1])
def test_thread_counts_that_name_none(make: Make, n: int | None) -> None:
    assert make(n_threads=1, n_threads_batch=n).n_threads_batch == 1
    context = make(n_threads_batch=n)
    assert np.array_equal(rows(context, TOKENS[:20]), rows(make(n_threads=n), TOKENS[:20]))


def test_a_cache_larger_than_the_machine_is_refused_before_it_is_touched(
    model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pyllama.kv.cache.available_memory", lambda: 1 << 30)
    with pytest.raises(
        AllocError, match=r"1073741824 tokens .* needs \d+ bytes .* smaller `n_ctx`"
    ):
        Context(model, n_ctx=1 << 30)
