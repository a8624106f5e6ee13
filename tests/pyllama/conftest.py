"""Contexts of a tiny model, for the tests of what they remember."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest

from pyllama import Context, Model

from .models import Spec, random_weights, write_model

Make = Callable[..., Context]


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    spec = Spec(n_ctx=2048, n_layer=3)
    path = write_model(tmp_path_factory.mktemp("m") / "x.gguf", spec, random_weights(spec))
    return Model.load(path)


@pytest.fixture(scope="session")
def make(model: Model) -> Make:
    return lambda **options: Context(model, **{"n_ctx": 64, "n_threads": 2, **options})


@pytest.fixture
def windowed(model: Model, monkeypatch: pytest.MonkeyPatch) -> Make:
    """Contexts of the same model, where two of three layers see 20 positions."""
    hparams = dataclasses.replace(model.hparams, n_swa=20, swa_period=3)
    monkeypatch.setattr(model, "hparams", hparams)
    return lambda **options: Context(model, **{"n_ctx": 2048, "n_threads": 2, **options})
