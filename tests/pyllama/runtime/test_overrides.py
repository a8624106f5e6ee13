"""Overrides of rope, activation and layers: their effect, and errors for illegal values."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pyggml.dtype import GGMLType
from pyllama import Batch, Context, Model
from pyllama.errors import BatchError, StateError
from pyllama.runtime.overrides import Overrides
from pyllama.runtime.state import dump_state, restore_state

from ..models import Spec, random_weights, write_model

SPEC = Spec(n_ctx=64)
TOKENS = [int(t) for t in np.random.default_rng(5).integers(3, SPEC.n_vocab, 24)]


def model(path: Path, spec: Spec = SPEC, **keys: Any) -> Model:
    metadata = {f"llama.{key.replace('__', '.')}": value for key, value in keys.items()}
    later = tuple(f"blk.{i}." for i in range(spec.n_layer, SPEC.n_layer))
    weights = {k: w for k, w in random_weights(SPEC).items() if not k.startswith(later)}
    return Model.load(write_model(path, spec, weights, metadata=metadata))


def logits(model: Model, **given: Any) -> np.ndarray:
    context = Context(model, type_k=GGMLType.F32, type_v=GGMLType.F32, overrides=Overrides(**given))
    context.decode(Batch(TOKENS))
    return context.logits.copy()


YARN = {"rope__scaling__type": "yarn", "rope__scaling__original_context_length": 16}
SAME: dict[str, tuple[dict[str, Any], Spec, dict[str, Any]]] = {
    "base": ({"rope_freq_base": 500.0}, Spec(n_ctx=64, freq_base=500.0), {}),
    "linear": ({"rope_freq_scale": 0.25}, Spec(n_ctx=64, factor=4.0), {}),
    "none": (
        {"rope_scaling": "none", "rope_freq_scale": 0.5}, SPEC, {"rope__scaling__type": "none"}
    ),
    "yarn": (
        {"rope_scaling": "yarn", "rope_freq_scale": 0.25, "yarn_orig_ctx": 16},
        Spec(n_ctx=64, factor=4.0),
        YARN,
    ),
    "yarn-numbers": (
        {
            "rope_scaling": "yarn", "rope_freq_scale": 0.25, "yarn_orig_ctx": 16,
            "yarn_ext_factor": 0.5, "yarn_attn_factor": 1.5, "yarn_beta_fast": 4.0,
            "yarn_beta_slow": 0.5,
        },
        Spec(n_ctx=64, factor=4.0),
        YARN
        | {
            "rope__scaling__yarn_ext_factor": np.float32(0.5),
            "rope__scaling__yarn_attn_factor": np.float32(1.5),
            "rope__scaling__yarn_beta_fast": np.float32(4),
            "rope__scaling__yarn_beta_slow": np.float32(0.5),
        },
    ),
    "relu": ({"hidden_act": "relu"}, SPEC, {"hidden_act": "relu"}),
    "one layer": ({"n_layer": 1}, dataclasses.replace(SPEC, n_layer=1), {}),
}  # fmt: skip


@pytest.mark.parametrize("case", SAME.values(), ids=SAME)
def test_a_context_does_as_a_file_that_says_so(
    tmp_path: Path, case: tuple[dict[str, Any], Spec, dict[str, Any]]
) -> None:
    given, spec, keys = case
    plain = model(tmp_path / "plain.gguf")
    wanted = logits(model(tmp_path / "wanted.gguf", spec, **keys))
    assert np.array_equal(logits(plain, **given), wanted)
    assert "none" in keys.values() or not np.array_equal(logits(plain), wanted)


BAD = {
    "rope_scaling": "abacus", "hidden_act": "tanh", "rope_freq_base": float("nan"),
    "rope_freq_scale": 0.0, "yarn_attn_factor": -2.0, "yarn_beta_fast": float("inf"),
    "yarn_orig_ctx": 1 << 40, "yarn_ext_factor": float("inf"), "n_layer": 3,
    "sparse_threshold": 0.5,
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_values_that_cannot_be(tmp_path: Path, name: str) -> None:
    with pytest.raises(BatchError, match=name) as error:
        Context(model(tmp_path / "x.gguf"), overrides=Overrides(**{name: BAD[name]}))
    assert "\n" not in str(error.value)


def test_a_context_of_the_first_layers(tmp_path: Path) -> None:
    """It has keys and values of these layers only; all layers are the model itself."""
    loaded = model(tmp_path / "x.gguf")
    assert np.array_equal(logits(loaded, n_layer=SPEC.n_layer), logits(loaded))
    whole, first = (Context(loaded, overrides=Overrides(n_layer=n)) for n in (None, 1))
    assert [cache.layers for cache in first.kv.caches] == [(0,)]
    assert 2 * first.kv.size_bytes == whole.kv.size_bytes
    with pytest.raises(BatchError, match="n_layer is 0, want 1 to 2"):
        Context(loaded, overrides=Overrides(n_layer=0))
    first.decode(Batch(TOKENS[:-1]))
    first.decode_token(TOKENS[-1])
    again = Context(loaded, overrides=Overrides(n_layer=1))
    again.decode(Batch(TOKENS))
    assert np.array_equal(first.logits, again.logits)


def test_yarn_of_base_one(tmp_path: Path) -> None:
    with pytest.raises(BatchError, match=r"rope.freq_base 1\.0: this rope cannot be computed"):
        overrides = Overrides(rope_scaling="yarn", rope_freq_base=1.0)
        Context(model(tmp_path / "x.gguf"), overrides=overrides)


@pytest.mark.parametrize(
    "given",
    [
        {"rope_freq_base": 300.0},
        {"rope_scaling": "yarn", "rope_freq_scale": 0.25, "yarn_orig_ctx": 16},
    ],
    ids=["base", "yarn"],
)
def test_shifted_keys_equal_keys_computed_at_the_new_positions(
    tmp_path: Path, given: dict[str, Any]
) -> None:
    loaded = model(tmp_path / "x.gguf", Spec(n_ctx=64))
    shifted, fresh = (
        Context(loaded, type_k=GGMLType.F32, type_v=GGMLType.F32, overrides=Overrides(**given))
        for _ in range(2)
    )
    shifted.decode(Batch(TOKENS))
    shifted.kv.seq_add(0, 0, -1, 9)
    shifted.apply_pending()
    fresh.decode(Batch(TOKENS, pos=range(9, 9 + len(TOKENS))))
    k, wanted = (c.kv.caches[0].k[0].numpy()[:, : len(TOKENS)] for c in (shifted, fresh))
    assert np.abs(k - wanted).max() < 1e-5  # the first layer's keys depend on nothing before


def test_layers_that_slide_shift_with_their_own_base(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded = model(tmp_path / "x.gguf")
    own = {"n_swa": 32, "swa_period": 2, "rope_freq_base_swa": 300.0}
    monkeypatch.setattr(loaded, "_hparams", dataclasses.replace(loaded.hparams, **own))
    shifted, fresh = (
        Context(loaded, type_k=GGMLType.F32, type_v=GGMLType.F32, swa_full=True) for _ in range(2)
    )
    shifted.decode(Batch(TOKENS))
    shifted.kv.seq_add(0, 0, -1, 9)
    shifted.apply_pending()
    fresh.decode(Batch(TOKENS, pos=range(9, 9 + len(TOKENS))))
    for i in range(2):  # the first slides, the second does not
        k, wanted = (c.kv.of_layer(i).k[i].numpy()[:, : len(TOKENS)] for c in (shifted, fresh))
        assert np.abs(k - wanted).max() < 1e-4


def test_longrope_selects_factors_by_context_size(tmp_path: Path) -> None:
    short, long = np.array([1, 1, 2, 3], np.float32), np.array([1, 2, 4, 8], np.float32)
    keys = {"rope.scaling.type": "longrope", "rope.scaling.original_context_length": 32}
    metadata = {f"llama.{key}": value for key, value in keys.items()}
    weights = random_weights(SPEC)
    both = {"rope_factors_short.weight": short, "rope_factors_long.weight": long}
    path = write_model(tmp_path / "x.gguf", SPEC, weights | both, metadata=metadata)
    loaded = Model.load(path)
    for n_ctx, factors in ((32, short), (33, long)):
        one = weights | {"rope_freqs.weight": factors}
        plain = Model.load(write_model(tmp_path / f"{n_ctx}.gguf", SPEC, one))
        rows = []
        for of in (loaded, plain):
            context = Context(of, n_ctx=n_ctx)
            context.decode(Batch(TOKENS))
            rows.append(context.logits.copy())
        assert np.array_equal(*rows)
    for n_ctx, n_seq_max in ((64, 2), (66, 2)):  # it is a sequence's part that counts
        context = Context(loaded, n_ctx=n_ctx, n_seq_max=n_seq_max, unified=False)
        assert context.hparams.rope_long == (n_ctx == 66)


def test_a_state_of_another_rope_is_refused(tmp_path: Path) -> None:
    loaded = model(tmp_path / "x.gguf")
    plain, other = Context(loaded), Context(loaded, overrides=Overrides(rope_freq_base=500.0))
    other.decode(Batch(TOKENS))
    data = b"".join(part.tobytes() for part in dump_state(other))
    with pytest.raises(StateError, match="other rope"):
        restore_state(plain, data)
    restore_state(Context(loaded, overrides=Overrides(rope_freq_base=500.0)), data)
