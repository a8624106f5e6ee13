"""Concurrent texts equal single runs; context shift; the batched benchmark."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from pyllama import Context, Model
from pyllama.bench.batched import batched_bench, required_cells
from pyllama.engine import Engine, Lease, Request
from pyllama.engine.generate import generate, generate_many
from pyllama.engine.prompt_file import PromptFile
from pyllama.errors import BatchError, ContextFull
from pyllama.llama.state import Scores
from pyllama.sampling import SamplingParams

from ...tiers import only
from ..models import Spec, random_weights, write_model

TOKENS = np.random.default_rng(9).integers(3, 259, 400).tolist()
Make = Callable[..., Context]


@pytest.fixture(scope="module")
def make(tmp_path_factory: pytest.TempPathFactory) -> Make:
    spec = Spec()
    path = write_model(tmp_path_factory.mktemp("m") / "x.gguf", spec, random_weights(spec))
    model = Model.load(path)
    return lambda **options: Context(model, **{"n_ctx": 128, "n_threads": 2, **options})


def gathered(
    context: Context, prompts: list[list[int]], *args: object, **kw: int
) -> list[list[int]]:
    made: list[list[int]] = [[] for _ in prompts]
    for i, token in generate_many(context, prompts, *args, **kw):  # type: ignore[arg-type]
        made[i].append(token)
    return made


@pytest.mark.parametrize("n_seq", only([1, 2, 5], [5]))
@pytest.mark.parametrize("n_batch", [5, 128])
@pytest.mark.parametrize("shared", [0, 9])
def test_concurrent_texts_equal_single_runs(
    make: Make, n_seq: int, n_batch: int, shared: int
) -> None:
    lengths = (3, 17, 8, 1, 30, 12, 5)
    prompts = [TOKENS[:shared] + TOKENS[40 * i : 40 * i + n] for i, n in enumerate(lengths)]
    params = [SamplingParams(seed=i, temp=0.0 if i % 2 else 1.0) for i in range(len(prompts))]
    alone = [
        list(generate(make(), prompt, p, n_predict=9))
        for prompt, p in zip(prompts, params, strict=True)
    ]
    context = make(n_seq_max=n_seq, n_batch=n_batch)
    assert gathered(context, prompts, params, n_predict=9) == alone
    assert gathered(context, prompts, params, n_predict=9) == alone  # the same context again


def test_prompts_wait_for_room_and_one_that_never_fits_is_refused(make: Make) -> None:
    prompts = [TOKENS[i : i + 40] for i in range(6)]
    greedy = SamplingParams(temp=0.0)
    alone = [list(generate(make(n_ctx=64), p, greedy, n_predict=20)) for p in prompts]
    assert gathered(make(n_ctx=64, n_seq_max=6), prompts, greedy, n_predict=20) == alone
    with pytest.raises(ContextFull, match="prompt 1 has 64 tokens, a context of 64 takes 63"):
        gathered(make(n_ctx=64, n_seq_max=2), [[1], TOKENS[:64]], greedy)
    with pytest.raises(BatchError, match="prompt 1 is empty"):
        gathered(make(n_seq_max=2), [[1], []], greedy)
    with pytest.raises(BatchError, match="2 sampling parameters for 1 prompts"):
        gathered(make(), [[1]], [greedy, greedy])
    assert gathered(make(), [], greedy) == [] and gathered(make(), [[1]], n_predict=0) == [[]]


def test_sequences_with_separate_cells_end_when_these_are_full(make: Make) -> None:
    split = {"n_ctx": 64, "n_seq_max": 2, "unified": False}
    greedy = SamplingParams(temp=0.0, ignore_eos=True)
    alone = [list(generate(make(n_ctx=32), TOKENS[i : i + 9], greedy)) for i in range(5)]
    assert list(generate(make(**split), TOKENS[:9], greedy)) == alone[0] and len(alone[0]) == 24
    assert list(generate(make(**split), TOKENS[:9], greedy, n_predict=-2)) == alone[0]
    shifted = list(generate(make(**split), TOKENS[:9], greedy, n_predict=40, n_keep=4))
    assert len(shifted) == 40 and shifted[:24] == alone[0]
    with pytest.raises(ContextFull, match="29 tokens, a context of 32 takes 28"):
        generate(make(**split), TOKENS[:29], greedy)
    prompts = [TOKENS[i : i + 9] for i in range(5)]
    assert gathered(make(**split), prompts, greedy, n_predict=99) == [text[:23] for text in alone]
    with pytest.raises(ContextFull, match="prompt 0 has 32 tokens, a context of 32 takes 31"):
        gathered(make(**split), [TOKENS[:32]], greedy)
    scores = Scores(Lease(Engine(make(**split))), logits_all=True)
    with pytest.raises(ContextFull, match="33 tokens after 0 do not fit into a context of 32"):
        scores.lease.evaluate(TOKENS[:33])
    scores.lease.evaluate(TOKENS[:32])
    assert scores.rows.shape[0] == len(scores.lease.ids) == 32


def test_a_shared_prefix_that_a_window_lost_is_evaluated_again(windowed: Make) -> None:
    shared, most = TOKENS[:200], 480
    prompts = [shared + TOKENS[200 + i : 210 + i] for i in range(4)]
    greedy = SamplingParams(temp=0.0, ignore_eos=True)
    sizes = {"n_ctx": 200 + 2 * (10 + most), "n_seq_max": 2, "n_ubatch": 8}
    got = gathered(windowed(**sizes), prompts, greedy, n_predict=most)
    assert [len(text) for text in got] == [most] * 4
    last = list(generate(windowed(n_ctx=1024, n_ubatch=8), prompts[3], greedy, n_predict=most))
    assert got[3] == last


def test_context_shift_continues_without_limit(make: Make) -> None:
    greedy = SamplingParams(temp=0.0, ignore_eos=True)
    context = make(n_ctx=32)
    assert len(list(generate(context, TOKENS[:10], greedy, n_predict=100))) == 23
    long = list(generate(make(n_ctx=256), TOKENS[:10], greedy, n_predict=100))
    got = list(generate(context, TOKENS[:10], greedy, n_predict=100, n_keep=4))
    assert len(got) == 100 and got[:23] == long[:23]
    assert context.kv.seq_pos_max(0) == context.kv.length(0) - 1 < 32
    with pytest.raises(ContextFull, match="all 31 tokens to keep"):
        list(generate(make(n_ctx=32), TOKENS[:10], greedy, n_predict=100, n_keep=31))
    assert len(list(generate(context, TOKENS[:10], greedy, n_predict=-2, n_keep=4))) == 23


def test_room_is_made_in_the_tokens_that_a_context_holds(make: Make) -> None:
    state = Lease(Engine(make(n_ctx=64)))
    state.evaluate(TOKENS[:44])
    ids = TOKENS[:74]
    state.make_room(ids, 4)
    assert ids == [*TOKENS[:4], *TOKENS[24:74]] and state.n_forgotten == 20
    assert state.tokens == ids[:24] and state.context.kv.length(0) == 24
    assert state.context.kv.seq_pos_max(0) == 23
    timings = state.engine.timings
    before = timings.n_prompt_eval
    state.catch_up(ids)
    assert timings.n_prompt_eval - before == 30  # what it held is not read again
    other = [*TOKENS[:3], *TOKENS[100:190]]  # of another text it holds too little
    state.make_room(other, 3)
    assert other == [*TOKENS[:3], *TOKENS[145:190]] and state.n_tokens == 3
    with pytest.raises(ContextFull, match="all 64 tokens to keep fill the context of 64"):
        state.make_room(TOKENS[:70], 64)


def test_room_where_windows_have_lost_the_first_tokens(windowed: Make) -> None:
    tokens = (TOKENS * 12)[:700]
    state = Lease(Engine(windowed(n_ctx=640, n_ubatch=8)))
    for start in range(0, 640, 8):
        state.evaluate(tokens[start : start + 8])
    assert state.context.kv.seq_pos_min(0) > 0
    ids = tokens[:641]
    state.make_room(ids, 4)
    assert ids == [*tokens[:4], *tokens[322:641]] and state.tokens == ids[:322]
    assert state.context.kv.seq_pos_max(0) == 321
    state.catch_up(ids)
    assert state.n_tokens == 323


def test_a_prompt_cache_saves_evaluation_and_changes_nothing(make: Make, tmp_path: Path) -> None:
    file, request = PromptFile(tmp_path / "x"), partial(Request, sampling=SamplingParams(temp=0.0))
    lease = Lease(Engine(make()))
    file.load(lease)
    assert lease.keep(TOKENS[:20]) == 0
    first = next(lease.run(request(TOKENS[:20]))).tokens
    file.save(lease)
    for tokens, n in ((TOKENS[:20], 19), ([*TOKENS[:12], 5, 6], 12), (TOKENS[:30], 20)):
        other = Lease(Engine(make()))
        PromptFile(tmp_path / "x").load(other)
        assert other.keep(tokens) == n == other.context.kv.length(0)
        token = next(other.run(request(tokens))).tokens
        assert token == next(Engine(make()).run(request(tokens))).tokens
        assert n != 19 or token == first


def test_batched_bench_measures_sizes_that_fit(make: Make) -> None:
    context = make(n_seq_max=4, n_ctx=100)
    rows = list(batched_bench(context, [8, 16], [4], [1, 4, 2]))
    assert [(r["pp"], r["tg"], r["pl"], r["n_kv"]) for r in rows] == [
        (8, 4, 1, 12), (8, 4, 4, 48), (8, 4, 2, 24), (16, 4, 1, 20), (16, 4, 4, 80), (16, 4, 2, 40),
    ]  # fmt: skip
    for r in rows:
        assert r["speed_tg"] == pytest.approx(r["tg"] * r["pl"] / r["t_tg"])
        assert r["speed"] == pytest.approx((r["pp"] + r["tg"]) * r["pl"] / r["t"])
    (row,) = batched_bench(context, [60], [4], [4], shared=True)
    assert row["n_kv"] == required_cells(60, 4, 4, True) == 76
    assert row["speed_pp"] == pytest.approx(60 / row["t_pp"])
    assert not list(batched_bench(context, [60], [4], [4]))
    with pytest.raises(BatchError, match="5 parallel sequences: this context has 4"):
        next(batched_bench(context, [8], [4], [5]))
    with pytest.raises(BatchError, match=r"4 parallel sequences .* n_batch is 3"):
        next(batched_bench(make(n_seq_max=4, n_batch=3), [8], [4], [4]))
    assert len(list(batched_bench(make(n_seq_max=4, n_batch=3), [8], [0], [4]))) == 1


def test_batched_bench_makes_no_graph_while_the_clock_runs(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    context = make(n_seq_max=2, n_batch=16, n_ubatch=16)
    built: list[int] = []
    times: list[int] = []

    def build(*sizes: int) -> object:
        built.append(sizes[0])
        return make_graph(*sizes)

    def clock() -> float:
        times.append(len(built))
        return float(len(times))

    make_graph = context._build
    monkeypatch.setattr(context, "_build", build)
    monkeypatch.setattr("pyllama.bench.batched.time", SimpleNamespace(perf_counter=clock))
    rows = list(batched_bench(context, [21, 9], [3], [1, 2]))
    assert len(rows) == 4 and len(times) == 16
    assert all(len({*times[i : i + 4]}) == 1 for i in range(0, 16, 4)), (built, times)
