"""Saved states of contexts and sequences: round trips, sizes that do not fit, damaged files."""

from __future__ import annotations

import json
import zlib
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from pyggml.dtype import GGMLType
from pyllama import Context, Model
from pyllama.errors import BatchError, StateError
from pyllama.kv.table import CHUNK
from pyllama.runtime.state import _HEAD, load_state, save_state

from ...tiers import tenth
from ..conftest import Make
from ..models import Spec, random_weights, rows, write_model

TOKENS = np.random.default_rng(8).integers(0, 261, 1400).tolist()
F16, F32, BF16 = GGMLType.F16, GGMLType.F32, GGMLType.BF16
Q4_0, Q8_0 = GGMLType.Q4_0, GGMLType.Q8_0


@pytest.mark.parametrize("types", [(F16, F16), (F32, BF16), (Q4_0, Q8_0)])
def test_a_saved_state_continues_with_the_same_bits(
    tmp_path: Path, types: tuple[GGMLType, GGMLType]
) -> None:
    spec = Spec(n_layer=3, head_dim=32)
    model = Model.load(write_model(tmp_path / "x.gguf", spec, random_weights(spec)))
    make = partial(Context, model, n_threads=2, type_k=types[0], type_v=types[1])
    context = make(n_ctx=96, n_seq_max=3)
    rows(context, TOKENS[:20])
    rows(context, TOKENS[40:50], seq=2)
    context.kv.seq_cp(0, 1, 0, 12)
    context.kv.seq_rm(0, 3, 5)
    context.kv.seq_add(0, 5, -1, -2)  # still to be done when it is saved
    save_state(context, tmp_path / "whole", TOKENS[:20])
    save_state(context, tmp_path / "one", [1, 2], seq=2)
    want = [rows(context, TOKENS[20:30], seq=s) for s in range(3)]

    other = make(n_ctx=128, n_seq_max=3)
    rows(other, TOKENS[60:70], seq=1)
    assert load_state(other, tmp_path / "whole") == TOKENS[:20]
    assert other.kv.n_used == 18 + 12 - 3 + 10
    got = [rows(other, TOKENS[20:30], seq=s) for s in range(3)]
    assert all(np.array_equal(a, b) for a, b in zip(got, want, strict=True))
    assert load_state(other, tmp_path / "one", seq=1) == [1, 2]
    assert np.array_equal(rows(other, TOKENS[20:30], seq=1), want[2])
    split = make(n_ctx=64, n_seq_max=2, unified=False)
    load_state(split, tmp_path / "one", seq=1)
    assert np.array_equal(rows(split, TOKENS[20:30], seq=1), want[2])


def test_a_saved_window(windowed: Make, tmp_path: Path) -> None:
    context = windowed(n_ubatch=64)
    rows(context, TOKENS[:900])
    save_state(context, tmp_path / "x", TOKENS[:900])
    lost = context.kv.caches[1].evicted(0)
    want = rows(context, TOKENS[900:])
    other = windowed(n_ubatch=64)
    load_state(other, tmp_path / "x")
    assert other.kv.caches[1].evicted(0) == lost > 0
    assert np.array_equal(rows(other, TOKENS[900:]), want)


def test_a_small_window_cache_loads_the_window_of_a_larger_one(
    windowed: Make, tmp_path: Path
) -> None:
    whole = windowed(swa_full=True, n_seq_max=2)
    rows(whole, TOKENS[:900], seq=1)
    rows(whole, TOKENS[50:70])
    save_state(whole, tmp_path / "all")
    save_state(whole, tmp_path / "one", seq=1)
    want = rows(whole, TOKENS[900:920], seq=1)
    small = windowed(n_ubatch=64, n_seq_max=2)
    assert small.kv.caches[1].n_cells < 900
    load_state(small, tmp_path / "all")
    assert small.kv.caches[1].evicted(1) == 3 * CHUNK - 1 == small.kv.seq_pos_min(1) - 1
    assert np.array_equal(rows(small, TOKENS[900:920], seq=1), want)
    rows(small, TOKENS[:600])  # what sequence 0 has behind its window makes room
    load_state(small, tmp_path / "one", seq=1)
    assert np.array_equal(rows(small, TOKENS[900:920], seq=1), want)


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
    with pytest.raises(BatchError, match="sequence 2: this context has 0 to 1"):
        save_state(context, path, seq=2)
    save_state(context, tmp_path / "one", seq=1)
    with pytest.raises(BatchError, match="sequence 2: this context has 0 to 1"):
        load_state(context, tmp_path / "one", seq=2)
    assert context.kv.n_used == 45
    with pytest.raises(FileNotFoundError):
        load_state(context, tmp_path / "none")


@pytest.mark.parametrize("count", tenth(300))
def test_damaged_states(make: Make, tmp_path: Path, count: int) -> None:
    path, context = tmp_path / "x", make()
    rows(context, TOKENS[:10])
    save_state(context, path, TOKENS[:10])
    good = path.read_bytes()
    rng = np.random.default_rng(0)
    for i in range(count):
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
