"""Fixtures: contexts of a tiny model, and a `Llama` that recites a text."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pyllama import Context, Llama, Model
from pyllama.llama import llama as llama_module
from pyllama.runtime.model import LoadOptions

from .fake_context import TEXT, FakeContext, FakeModel
from .models import Spec, random_weights, write_model

Make = Callable[..., Context]


@pytest.fixture(scope="session")
def model_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    spec = Spec(n_ctx=2048, n_layer=3)
    return write_model(tmp_path_factory.mktemp("m") / "x.gguf", spec, random_weights(spec))


@pytest.fixture(scope="session")
def model(model_path: Path) -> Model:
    return Model.load(model_path)


@pytest.fixture(scope="session")
def make(model: Model) -> Make:
    return lambda **options: Context(model, **{"n_ctx": 64, "n_threads": 2, **options})


@pytest.fixture
def windowed(model: Model, monkeypatch: pytest.MonkeyPatch) -> Make:
    """Contexts of the same model with windows of 20 positions in two of three layers."""
    hparams = dataclasses.replace(model.hparams, n_swa=20, swa_period=3)
    monkeypatch.setattr(model, "_hparams", hparams)
    return lambda **options: Context(model, **{"n_ctx": 2048, "n_threads": 2, **options})


@pytest.fixture
def reciting(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., Llama]:
    """A function that makes a `Llama` on a fake context, that recites a text."""
    path = tmp_path / "fake.gguf"
    path.touch()

    def llama(text: str = TEXT, **options: Any) -> Llama:
        model = FakeModel(text)

        def load(path: Path, options: LoadOptions) -> FakeModel:
            model.given = options
            return model

        loader = type("Model", (), {"load": staticmethod(load)})
        monkeypatch.setattr(llama_module, "Model", loader)
        monkeypatch.setattr(llama_module, "Context", FakeContext)
        return Llama(path, **{"n_ctx": 64, "verbose": False, **options})

    return llama
