"""Reduced sequences: which tokens stay, what is refused, and that all else has the same bits."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from pyggml.dtype import GGMLType
from pyllama import Batch, Context, Model
from pyllama.engine import Engine, Policy, Request
from pyllama.engine.prefix_store import PrefixStore
from pyllama.errors import BatchError, StateError
from pyllama.kv.cache import KVCache
from pyllama.kv.memory import HiddenReads
from pyllama.kv.reduction import N_QUERIES, N_SINKS, choose
from pyllama.runtime.state import dump_state
from pyllama.sampling import SamplingParams
from pyllama.speculative import PromptLookup, Speculation

from ..conftest import Make
from ..models import Spec, random_weights, rows, write_model

TOKENS = np.random.default_rng(3).integers(0, 261, 400).tolist()
SIZES = {"kv_keep": 40, "kv_window": 8}
LIMIT = 50
F32, F16, Q8_0 = GGMLType.F32, GGMLType.F16, GGMLType.Q8_0


@pytest.fixture(scope="module")
def one_head(tmp_path_factory: pytest.TempPathFactory) -> Model:
    """A model of one layer, with one head of keys and values."""
    spec = Spec(n_layer=1, n_head=2, n_head_kv=1, head_dim=32, n_ctx=512)
    path = tmp_path_factory.mktemp("one") / "x.gguf"
    return Model.load(write_model(path, spec, random_weights(spec)))


def probabilities(model: Model, n: int, type_k: GGMLType) -> np.ndarray:
    """What the last queries of ``n`` tokens attend to, of another context: float64[1, n]."""
    context = Context(model, n_ctx=512, type_k=type_k, type_v=type_k)
    queries: list[np.ndarray] = []

    def keep(node: Any, ask: bool) -> bool:
        if not ask and node.name == "Qcur-0 (roped)":
            queries.append(node.numpy(squeeze=False)[0].astype(np.float64))  # [T, n_head, n]
        return node.name == "Qcur-0 (roped)" if ask else True

    with context.watched(keep):
        context.decode(Batch(TOKENS[:n]))
    cache = context.kv.caches[0]
    cells = cache.entries(0)[:, 0]
    raw = cache.read_cells(cache.k[0], cells)[0].reshape(n, -1)
    keys = raw.view(np.float32 if type_k is F32 else np.float16).astype(np.float64)
    votes = np.zeros(n)
    for t in range(n - min(N_QUERIES, SIZES["kv_window"]), n):
        scores = queries[0][t] @ keys[: t + 1].T / np.sqrt(keys.shape[1])
        exp = np.exp(scores - scores.max(axis=1, keepdims=True))
        votes[: t + 1] += (exp / exp.sum(axis=1, keepdims=True)).sum(axis=0)
    return votes[None]


def test_a_text_after_a_shared_prefix_is_that_of_the_text_alone(make: Make) -> None:
    """The queries that vote are those of its own tokens, whatever the cache has."""

    def run(engine: Engine, n: int, max_tokens: int) -> tuple[list[int], int]:
        request = Request(
            TOKENS[:n], SamplingParams(temp=0), max_tokens=max_tokens, stop_at_eog=False
        )
        events = list(engine.run(request))
        assert events[-1].usage is not None
        return [token for event in events for token in event.tokens], events[-1].usage.n_cached

    engine = Engine(make(n_ctx=512, **SIZES))
    run(engine, 49, 1)
    after, n_cached = run(engine, 54, 30)
    alone, _ = run(Engine(make(n_ctx=512, **SIZES)), 54, 30)
    assert n_cached == 54 - SIZES["kv_window"] and after == alone


@pytest.mark.parametrize("type", [F32, F16])
def test_what_stays_is_what_the_last_queries_attend_to(one_head: Model, type: GGMLType) -> None:
    """With one head a reduced sequence has the bits of one whose other tokens were removed."""
    n = 120
    kept = choose(probabilities(one_head, n, type).astype(np.float32), *SIZES.values())[0]
    assert kept[:N_SINKS].tolist() == [0, 1, 2, 3] and kept[-8:].tolist() == [*range(112, 120)]
    assert kept.tolist() != [0, 1, 2, 3, *range(n - 36, n)]
    types = {"type_k": type, "type_v": type, "n_ctx": 512}
    reduced, removed = Context(one_head, **types, **SIZES), Context(one_head, **types)
    for context in (reduced, removed):
        context.decode(Batch(TOKENS[:n]))
    for position in sorted({*range(n)} - {*kept.tolist()}):
        removed.kv.seq_rm(0, position, position + 1)
    for token in TOKENS[n : n + 10]:
        for context in (reduced, removed):
            context.decode_token(token)
        assert np.array_equal(reduced.logits, removed.logits)
        assert reduced.kv.length(0) == removed.kv.length(0) == reduced.kv.n_used
        assert reduced.kv.seq_pos_max(0) == removed.kv.seq_pos_max(0)


def test_each_head_keeps_its_own_tokens(make: Make) -> None:
    context = make(n_ctx=512, **SIZES)
    context.decode(Batch(np.random.default_rng(4).permutation(261)[:100].tolist()))
    cache = context.kv.caches[0]
    cells = cache.entries(0)[:, 0].copy()
    before = {t.name: cache.read_cells(t, cells) for t in cache.stored}
    context.decode_token(5)
    new = cache.entries(0)[:40, 0]
    chosen = {}
    for tensor in cache.stored:
        for head, after in enumerate(cache.read_cells(tensor, new)):
            was = {row.tobytes(): i for i, row in enumerate(before[tensor.name][head])}
            kept = [was[row.tobytes()] for row in after]
            assert kept == sorted(kept) and kept[:N_SINKS] == [0, 1, 2, 3]
            assert kept[-8:] == [*range(92, 100)]
            chosen[tensor.name, head] = kept
    assert all(chosen[f"cache_k_l{i}", h] == chosen[f"cache_v_l{i}", h]
               for i in range(3) for h in range(2))  # fmt: skip
    assert len({tuple(kept) for kept in chosen.values()}) == 6  # of 3 layers with 2 heads


def test_a_sequence_is_reduced_after_its_prompt_and_when_it_has_grown(make: Make) -> None:
    context, full = make(n_ctx=512, **SIZES), make(n_ctx=512)
    for i in range(0, 120, 30):
        context.decode(Batch(TOKENS[i : i + 30], logits="last" if i == 90 else "none"))
    assert np.array_equal(context.logits, rows(full, TOKENS[:120])[-1:])  # not before its end
    assert context.kv.length(0) == 120
    lengths = []
    for token in TOKENS[120:200]:
        context.decode_token(token)
        lengths.append(context.kv.length(0))
    assert lengths[:12] == [*range(41, 52), 41] and max(lengths) == LIMIT + 1
    assert context.kv.seq_pos_max(0) == 199 and context.kv.n_used == lengths[-1]


@pytest.mark.parametrize(
    "options",
    [{"n_ubatch": 7}, {"n_threads": 1}, {"n_seq_max": 3, "unified": False}, {"n_batch": 16}],
    ids=lambda options: next(iter(options)),
)
def test_the_bits_do_not_depend_on_how_tokens_are_cut(make: Make, options: dict[str, Any]) -> None:
    def run(**options: Any) -> np.ndarray:
        context, out = make(**{"n_ctx": 600, **SIZES, **options}), []
        step = min(context.n_batch, 150)
        for i in range(0, 150, step):
            last = i + step >= 150
            context.decode(Batch(TOKENS[i : min(i + step, 150)], logits="last" if last else "none"))
        for token in TOKENS[150:190]:
            context.decode_token(token)
            out.append(context.logits.copy())
        return np.concatenate(out)

    whole = run()
    assert np.array_equal(run(**options), whole)


def test_tokens_in_batches_and_one_by_one(make: Make) -> None:
    one, batch = make(n_ctx=512, **SIZES), make(n_ctx=512, n_seq_max=2, **SIZES)
    batch.decode(Batch(TOKENS[300:320], seq_id=1))  # its cells lie before those of sequence 0
    for context in (one, batch):
        context.decode(Batch(TOKENS[:100]))
    for token in TOKENS[100:140]:
        one.decode_token(token)
        batch.decode(Batch([token, token], seq_id=[1, 0], logits="all"))
        assert np.array_equal(one.logits[0], batch.logits[1])


def test_cells_of_other_sequences_do_not_change(make: Make) -> None:
    """A copy keeps all tokens while the original is reduced, which then needs free cells."""
    context, full = make(n_ctx=300, n_seq_max=3, **SIZES), make(n_ctx=300)
    context.decode(Batch(TOKENS[:100], logits="none"))
    context.kv.seq_cp(0, 1)
    context.kv.seq_cp(0, 2)
    context.decode(Batch(TOKENS[100:120], logits="last"))
    context.decode(Batch(TOKENS[120:130], logits="none"))  # reduced before these
    assert context.kv.length(0) == 50 and context.kv.length(1) == context.kv.length(2) == 100
    assert context.kv.n_used == 100 + 50
    got = rows(context, TOKENS[200:204], seq=1)  # a copy reads keys that no reduction has moved
    assert np.array_equal(got, rows(full, TOKENS[:100] + TOKENS[200:204])[100:])
    context.kv.seq_rm(1)
    context.kv.seq_rm(2)
    assert context.kv.n_used == 50


def test_too_few_free_cells_for_a_reduction(make: Make) -> None:
    context = make(n_ctx=130, n_seq_max=2, **SIZES)
    context.decode(Batch(TOKENS[:100], logits="none"))
    context.kv.seq_cp(0, 1)
    context.decode(Batch(TOKENS[100:104], logits="last"))  # 4 cells of its own, 26 are free
    context.decode(Batch(TOKENS[104:106], logits="none"))
    assert context.kv.length(0) == 106 and context.kv.n_used == 106


def test_a_copy_of_a_reduced_sequence(make: Make) -> None:
    context = make(n_ctx=512, n_seq_max=2, **SIZES)
    rows(context, TOKENS[:100])
    rows(context, TOKENS[100:105])
    context.kv.seq_cp(0, 1)
    assert context.kv.reduced(1) == context.kv.reduced(0) == 100
    assert np.array_equal(rows(context, TOKENS[105:112], seq=1), rows(context, TOKENS[105:112]))
    with pytest.raises(BatchError, match="cannot be copied alone"):
        context.kv.seq_cp(0, 1, 0, 50)


def test_what_a_reduced_sequence_cannot_do(make: Make) -> None:
    context = make(n_ctx=512, n_seq_max=2, **SIZES)
    rows(context, TOKENS[:100])
    rows(context, TOKENS[100:105])
    kv = context.kv
    for p0, p1 in ((10, -1), (99, -1), (10, 20), (0, 50)):
        with pytest.raises(BatchError, match="reduced at position 100"):
            kv.seq_rm(0, p0, p1)
    assert kv.resume(0, 105) == 105 and kv.resume(0, 101) == 101 and kv.resume(0, 99) == 0
    kv.seq_rm(0, 103)
    assert kv.seq_pos_max(0) == 102 and kv.length(0) == 43
    with pytest.raises(StateError, match="sequence 0 was reduced to 40 tokens"):
        dump_state(context)
    dump_state(context, seq=1)
    with pytest.raises(BatchError, match="`kv_keep` is set"):
        kv.seq_add(0, 0, -1, -1)
    with pytest.raises(BatchError, match="cannot be drafted"):
        context.decode(Batch([1, 2], parent=[-1, -1]))
    with pytest.raises(BatchError, match="cannot be drafted"):
        context.keep_hidden(HiddenReads(("l_out-0",)))
    with pytest.raises(BatchError, match="cannot be drafted"):
        Engine(context, speculation=Speculation(PromptLookup()))
    assert kv.rewind(0, 60) == 0 and kv.n_used == 0 and kv.reduced(0) == 0
    assert np.array_equal(rows(context, TOKENS[:40]), rows(make(), TOKENS[:40]))


def test_stored_queries_of_removed_tokens_do_not_vote(make: Make) -> None:
    """A sequence that went back has the bits of one that never was there."""
    back, plain = make(n_ctx=512, **SIZES), make(n_ctx=512, **SIZES)
    back.decode(Batch(TOKENS[:90] + TOKENS[300:330], logits="none"))
    back.kv.rewind(0, 90)
    plain.decode(Batch(TOKENS[:90], logits="none"))
    for context in (back, plain):
        context.decode(Batch(TOKENS[90:110], logits="last"))
        context.decode_token(7)
    assert np.array_equal(back.logits, plain.logits)
    back.kv.clear()
    back.decode(Batch(TOKENS[:90], logits="last"))
    back.kv.rewind(0, 80)  # it is not due any more
    back.decode(Batch(TOKENS[80:82], logits="none"))
    back.decode(Batch(TOKENS[82:84], logits="none"))
    assert back.kv.length(0) == 84


def test_a_reduction_that_fails_removes_its_sequence(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    context = make(n_ctx=512, n_seq_max=2, **SIZES)
    rows(context, TOKENS[:20], seq=1)
    rows(context, TOKENS[:100])

    def stop(*args: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(KVCache, "move_heads", stop)
    with pytest.raises(KeyboardInterrupt):
        context.decode_token(5)
    monkeypatch.undo()
    assert context.kv.length(0) == 0 and context.kv.n_used == context.kv.length(1) == 20
    assert np.array_equal(rows(context, TOKENS[:50]), rows(make(), TOKENS[:50]))


def test_prompts_of_the_engine(make: Make) -> None:
    """A text goes on after its own reduced tokens; others evaluate their whole prompts."""
    store = PrefixStore(1 << 30)
    engine = Engine(make(n_ctx=512, **SIZES), prefixes=store)

    def run(tokens: list[int]) -> tuple[list[int], int]:
        greedy = SamplingParams(temp=0)
        request = Request(tokens, greedy, max_tokens=20, stop_at_eog=False)
        out, usage = list[int](), None
        for event in engine.run(request):
            out += event.tokens
            usage = event.usage
        assert usage is not None
        return out, usage.n_cached

    first, n_cached = run(TOKENS[:100])
    assert n_cached == 0 and len(first) == 20
    assert engine.context.kv.length(0) <= LIMIT + 1
    again, n_cached = run(TOKENS[:100])
    assert again == first and n_cached == 0
    _, n_cached = run([*TOKENS[:100], *first, *TOKENS[200:210]])
    assert n_cached == 119
    _, n_cached = run(TOKENS[:50] + TOKENS[300:340])
    assert n_cached == 0 and len(store) == 0


def test_cells_that_a_reduction_frees_admit_texts(make: Make) -> None:
    engine = Engine(make(n_ctx=420, n_seq_max=3, **SIZES), policy=Policy(n_reserve=30))

    def begin(n: int) -> None:
        greedy = SamplingParams(temp=0)
        engine.submit(Request(TOKENS[-n:], greedy, max_tokens=150, stop_at_eog=False))

    begin(100)
    for _ in range(130):
        engine.step()
    for n, n_running in ((200, 2), (160, 2)):  # the last one waits until another is reduced
        begin(n)
        engine.step()
        assert len(engine.scheduler.running) == n_running
    for _ in range(3):
        engine.step()
    assert len(engine.scheduler.running) == 3 and not engine.scheduler.waiting


def test_memory_for_the_votes_on_a_whole_prompt_is_planned(make: Make) -> None:
    context = make(n_ctx=512, n_ubatch=8, **SIZES)
    size = context.sched.buffer_size(context.sched.backends[-1])
    context.decode(Batch([*TOKENS, *TOKENS[:100]]))
    context.decode_token(5)
    assert context.kv.length(0) == 41
    assert context.sched.buffer_size(context.sched.backends[-1]) == size


@pytest.mark.parametrize("type", [Q8_0, GGMLType.Q4_0])
def test_quantized_rows_are_copied_as_they_are(one_head: Model, type: GGMLType) -> None:
    context = Context(one_head, n_ctx=512, type_k=type, type_v=type, **SIZES)
    context.decode(Batch(TOKENS[:100]))
    cache = context.kv.caches[0]
    cells = cache.entries(0)[:, 0].copy()
    before = [{r.tobytes() for r in cache.read_cells(t, cells)[0]} for t in cache.stored]
    context.decode_token(5)
    for tensor, known in zip(cache.stored, before, strict=True):
        after = cache.read_cells(tensor, cache.entries(0)[:40, 0])[0]
        assert {row.tobytes() for row in after} <= known


def test_scores_with_a_soft_cap_vote(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        model, "_hparams", dataclasses.replace(model.hparams, attn_logit_softcap=0.5)
    )
    context = Context(model, n_ctx=512, **SIZES)
    rows(context, TOKENS[:100])
    rows(context, TOKENS[100:101])
    assert context.kv.length(0) == 41 and np.isfinite(context.logits).all()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"max_alibi_bias": 8.0}, "ALiBi"),
        ({"n_swa": 20, "swa_period": 3}, "sliding windows"),
        ({"states": ({"s": (4,)},) * 3}, "recurrent states"),
        ({"n_sparse_keys": 64}, "chosen keys only"),
        ({"causal": False}, "later tokens"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_models_whose_sequences_cannot_be_reduced(
    model: Model, monkeypatch: pytest.MonkeyPatch, change: dict[str, Any], message: str
) -> None:
    monkeypatch.setattr(model, "_hparams", dataclasses.replace(model.hparams, **change))
    with pytest.raises(BatchError, match=message):
        Context(model, n_ctx=64, **SIZES)


@pytest.mark.parametrize(("keep", "window"), [(12, 8), (5, 1), (40, 0), (-1, 8)])
def test_sizes_that_leave_no_important_token(make: Make, keep: int, window: int) -> None:
    with pytest.raises(BatchError, match=f"kv_keep is {keep} and kv_window {window}"):
        make(kv_keep=keep, kv_window=window)


def test_a_limit_that_no_sequence_reaches(make: Make) -> None:
    with pytest.raises(BatchError, match=r"kv_keep is 64: .* 80, but it may have 80 cells"):
        make(n_ctx=80, kv_keep=64, kv_window=8)


def test_without_the_flag_graphs_store_no_queries(make: Make) -> None:
    def inputs(context: Context) -> set[str]:
        return {leaf.name for leaf in context.graph().graph.leafs}

    assert "inp_query_rows" in inputs(make(n_ctx=64, **SIZES))
    assert "inp_query_rows" not in inputs(make(n_ctx=64))


def test_neighbours_of_an_important_token_stay() -> None:
    votes = np.zeros((2, 64), np.float32)
    votes[0, 20], votes[1, 40], votes[1, 45] = 1, 2, 1
    kept = choose(votes, 4 + 7 + 8, 8)
    assert kept[0].tolist() == [0, 1, 2, 3, *range(17, 24), *range(56, 64)]
    assert kept[1].tolist() == [0, 1, 2, 3, *range(37, 44), *range(56, 64)]
