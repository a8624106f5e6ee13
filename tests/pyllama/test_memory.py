"""A context's memory: trees, streams, windows, moved positions and saved states, bit by bit."""

from __future__ import annotations

import dataclasses
import json
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from pyggml.dtype import GGMLType
from pyllama import Batch, Context, Model
from pyllama.errors import BatchError, ContextFull, StateError
from pyllama.kv_cells import CHUNK
from pyllama.memory import Memory, window_cells
from pyllama.state import _HEAD, load_state, save_state

from .models import Spec, random_weights, write_model

TOKENS = np.random.default_rng(8).integers(0, 261, 1400).tolist()
Make = Callable[..., Context]
F16, F32, BF16, Q8_0 = GGMLType.F16, GGMLType.F32, GGMLType.BF16, GGMLType.Q8_0


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    spec = Spec(n_ctx=2048, n_layer=3)
    path = write_model(tmp_path_factory.mktemp("m") / "x.gguf", spec, random_weights(spec))
    return Model.load(path)


@pytest.fixture(scope="module")
def make(model: Model) -> Make:
    return lambda **options: Context(model, **{"n_ctx": 64, "n_threads": 2, **options})


@pytest.fixture
def windowed(model: Model, monkeypatch: pytest.MonkeyPatch) -> Make:
    """Contexts of the same model, where two of three layers see 20 positions."""
    hparams = dataclasses.replace(model.hparams, n_swa=20, swa_period=3)
    monkeypatch.setattr(model, "hparams", hparams)
    return lambda **options: Context(model, **{"n_ctx": 2048, "n_threads": 2, **options})


def rows(context: Context, tokens: list[int], seq: int = 0, **batch: object) -> np.ndarray:
    """The logits of all tokens, decoded ``n_batch`` at a time."""
    out = []
    for i in range(0, len(tokens), context.n_batch):
        context.decode(Batch(tokens[i : i + context.n_batch], seq_id=seq, logits="all"))
        out.append(context.logits.copy())
    return np.concatenate(out)


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
        (Batch([5], seq_id=[()]), "want each once, and one"),
        (Batch([5], seq_id=[(1, 1)]), "want each once, and one"),
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
    with pytest.raises(ContextFull, match="1 tokens wanted, 0 of 16 cells free"):
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
        assert small.lost(0) > CHUNK


def test_a_window_hides_what_is_behind_it(windowed: Make) -> None:
    """One layer sees everything, so a far token still counts; with windows only it does not."""
    context = windowed(swa_full=True)
    assert not np.array_equal(
        rows(context, TOKENS[:80])[-1], rows(windowed(), [7, *TOKENS[1:80]])[-1]
    )


def test_going_back_behind_a_window(windowed: Make) -> None:
    context = windowed(n_ubatch=64)
    whole = rows(context, TOKENS)
    assert context.kv.rewind(0, 1390) == 1390 == context.kv.length(0)
    assert np.array_equal(rows(context, TOKENS[1390:]), whole[1390:])
    context.kv.seq_rm(0, 300)
    with pytest.raises(BatchError, match="start the sequence again, or use --swa-full"):
        context.decode(Batch(TOKENS[300:301]))
    assert context.kv.length(0) == 300
    assert context.kv.rewind(0, 300) == 0 == context.kv.n_used
    assert np.array_equal(rows(context, TOKENS), whole)


# --- what a token sees ----------------------------------------------------------------------------


def test_without_causality_the_first_token_sees_the_last(
    model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model, "hparams", dataclasses.replace(model.hparams, causal=False))
    got = {n: rows(Context(model, n_ctx=64, n_threads=n), TOKENS[:30]) for n in (1, 2)}
    assert np.array_equal(got[1], got[2])
    other = rows(Context(model, n_ctx=64), [*TOKENS[:29], 7])
    assert np.abs(other[0] - got[1][0]).max() > 0
    same = Context(model, n_ctx=64, n_seq_max=2)  # beside another sequence
    same.decode(Batch(TOKENS[:30] + TOKENS[50:60], seq_id=[0] * 30 + [1] * 10, logits=[True] * 40))
    assert np.array_equal(same.logits[:30], got[1])
    with pytest.raises(BatchError, match="want 1 to n_ubatch = 8"):
        rows(Context(model, n_ctx=64, n_ubatch=8), TOKENS[:9])


def test_types_of_the_cache_keep_bits_and_most_of_the_value(
    tmp_path: Path,
) -> None:
    spec = Spec(head_dim=32, n_embd=64, n_ctx=512)  # Q8_0's blocks are 32 long
    model = Model.load(write_model(tmp_path / "x.gguf", spec, random_weights(spec)))
    exact = rows(Context(model, n_ctx=320, type_k=F32, type_v=F32), TOKENS[:300])
    scale = np.abs(exact).max()
    for k, v, error in (
        (F16, F16, 1e-3),
        (BF16, BF16, 1e-2),
        (Q8_0, Q8_0, 2e-2),
        (Q8_0, F16, 2e-2),
    ):
        options = {"n_ctx": 320, "type_k": k, "type_v": v}
        got = rows(Context(model, **options), TOKENS[:300])
        assert 0 < np.abs(got - exact).max() < error * scale
        for other in ({"n_ubatch": 1, "n_threads": 1}, {"n_ubatch": 7}, {"n_batch": 64}):
            assert np.array_equal(rows(Context(model, **options, **other), TOKENS[:300]), got)
        moved = Context(model, **options)
        moved.decode(Batch(TOKENS[:20], pos=list(range(9, 29))))
        moved.kv.seq_add(0, 0, -1, -9)
        again = rows(moved, TOKENS[20:40])
        assert np.abs(again - exact[20:40]).max() < 2 * error * scale


@pytest.mark.parametrize("change", [{"max_alibi_bias": 8.0}, {"attn_logit_softcap": 0.5}])
def test_attention_of_other_models_is_invariant_too(
    model: Model, monkeypatch: pytest.MonkeyPatch, change: dict[str, float]
) -> None:
    plain = rows(Context(model, n_ctx=512), TOKENS[:300])
    monkeypatch.setattr(model, "hparams", dataclasses.replace(model.hparams, **change))
    whole = rows(Context(model, n_ctx=512), TOKENS[:300])
    assert not np.array_equal(whole, plain)
    for options in ({"n_ubatch": 1}, {"n_ubatch": 7, "n_threads": 1}, {"n_batch": 1}):
        assert np.array_equal(rows(Context(model, n_ctx=512, **options), TOKENS[:300]), whole)


# --- moved positions ------------------------------------------------------------------------------


def test_moved_keys_are_those_of_the_new_positions(make: Make) -> None:
    """A sequence at 5... moved to 0... has the logits of one that began there, up to F16."""
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
        assert np.array_equal(rows(context, TOKENS[20:30], 1), rows(same, TOKENS[20:30], 1))


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


# --- saved states ---------------------------------------------------------------------------------


@pytest.mark.parametrize("types", [(F16, F16), (F32, BF16)])
def test_a_saved_state_goes_on_with_the_same_bits(
    make: Make, tmp_path: Path, types: tuple[GGMLType, GGMLType]
) -> None:
    context = make(n_ctx=96, n_seq_max=3, type_k=types[0], type_v=types[1])
    rows(context, TOKENS[:20])
    rows(context, TOKENS[40:50], seq=2)
    context.kv.seq_cp(0, 1, 0, 12)
    context.kv.seq_rm(0, 3, 5)
    context.kv.seq_add(0, 5, -1, -2)  # still to be done when it is saved
    save_state(context, tmp_path / "whole", TOKENS[:20])
    save_state(context, tmp_path / "one", [1, 2], seq=2)
    want = [rows(context, TOKENS[20:30], seq=s) for s in range(3)]

    other = make(n_ctx=128, n_seq_max=3, type_k=types[0], type_v=types[1])
    rows(other, TOKENS[60:70], seq=1)
    assert load_state(other, tmp_path / "whole") == TOKENS[:20]
    assert other.kv.n_used == 18 + 12 - 3 + 10
    got = [rows(other, TOKENS[20:30], seq=s) for s in range(3)]
    assert all(np.array_equal(a, b) for a, b in zip(got, want, strict=True))
    assert load_state(other, tmp_path / "one", seq=1) == [1, 2]
    assert np.array_equal(rows(other, TOKENS[20:30], seq=1), want[2])
    split = make(n_seq_max=2, unified=False, type_k=types[0], type_v=types[1])
    load_state(split, tmp_path / "one", seq=1)
    assert np.array_equal(rows(split, TOKENS[20:30], seq=1), want[2])


def test_a_saved_window(windowed: Make, tmp_path: Path) -> None:
    context = windowed(n_ubatch=64)
    rows(context, TOKENS[:900])
    save_state(context, tmp_path / "x", TOKENS[:900])
    lost = context.kv.caches[1].lost(0)
    want = rows(context, TOKENS[900:])
    other = windowed(n_ubatch=64)
    load_state(other, tmp_path / "x")
    assert other.kv.caches[1].lost(0) == lost > 0
    assert np.array_equal(rows(other, TOKENS[900:]), want)


def test_states_that_do_not_fit(make: Make, model: Model, tmp_path: Path) -> None:
    path, context = tmp_path / "x", make(n_seq_max=2)
    rows(context, TOKENS[:40])
    rows(context, TOKENS[:5], seq=1)
    save_state(context, path)
    before = [context.kv.caches[0].entries(s).tolist() for s in (0, 1)]
    small = make(n_ctx=32, n_seq_max=2)
    rows(small, TOKENS[:3])
    cases = [
        (small, None, "45 tokens do not fit"),
        (make(n_seq_max=1), None, "2 sequences, this context has 1"),
        (context, 0, "2 sequences, this context has 1"),
        (
            make(n_seq_max=2, type_k=F32, type_v=F32),
            None,
            "from a F16/F16 cache, this one is F32/F32",
        ),
    ]
    for target, seq, text in cases:
        with pytest.raises(StateError, match=text):
            load_state(target, path, seq=seq)
    assert small.kv.n_used == 3
    assert [context.kv.caches[0].entries(s).tolist() for s in (0, 1)] == before
    other = random_weights(Spec(n_ctx=2048, n_layer=3))
    other["output_norm.weight"] = other["output_norm.weight"] * 2
    write_model(tmp_path / "y.gguf", Spec(n_ctx=2048, n_layer=3), other)
    with pytest.raises(StateError, match="saved with another model"):
        load_state(Context(Model.load(tmp_path / "y.gguf"), n_ctx=64, n_seq_max=2), path)
    with pytest.raises(FileNotFoundError):
        load_state(context, tmp_path / "none")


def test_damaged_states(make: Make, tmp_path: Path) -> None:
    path, context = tmp_path / "x", make()
    rows(context, TOKENS[:10])
    save_state(context, path, TOKENS[:10])
    good = path.read_bytes()
    rng = np.random.default_rng(0)
    for i in range(300):
        data = bytearray(good)
        if i % 3 == 0:
            del data[int(rng.integers(len(data))) :]
        else:
            end = len(data) if i % 3 == 1 else 400
            data[int(rng.integers(end))] ^= 1 << int(rng.integers(8))
        path.write_bytes(data)
        try:
            load_state(context, path)
        except StateError as e:
            assert str(path) in str(e) and "\n" not in str(e)
        else:
            pytest.fail(f"{i}: a damaged file was loaded")
        assert context.kv.length(0) == 10
    size, text = _HEAD.unpack(good[: _HEAD.size])[2], good[_HEAD.size :]
    for key, value in (("cells", 1 << 30), ("cells", -5), ("lengths", 3), ("window", "x")):
        header = json.loads(text[:size])
        header["caches"][0][key] = value
        behind = json.dumps(header).encode() + text[size:]  # with the right checksum
        head = _HEAD.pack(b"PYLS", 1, len(behind) - len(text[size:]), zlib.crc32(behind))
        path.write_bytes(head + behind)
        with pytest.raises(StateError):
            load_state(context, path)


def test_operations_on_all_caches_or_none(windowed: Make) -> None:
    memory: Memory = windowed(n_ctx=2048).kv
    for cache in memory.caches:
        cache.place([0] * 4, [0, 1, 2, 3])
    memory.caches[1].place([0], [9])
    with pytest.raises(BatchError, match="cannot become"):
        memory.seq_add(0, 0, 9, 9)
    assert memory.caches[0].entries(0)[:, 1].tolist() == [0, 1, 2, 3]
    assert not memory.caches[0].pending.any
