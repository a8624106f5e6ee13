"""Backends by name, and plugins of other packages."""

from __future__ import annotations

import logging
import sys
from importlib.metadata import EntryPoint
from types import ModuleType

import pytest

from pyggml.backend import registry
from pyggml.backend.reference.backend import ReferenceBackend
from pyggml.errors import BackendError


@pytest.fixture(autouse=True)
def clean_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_factories", dict(registry._factories))
    monkeypatch.setattr(registry, "_discovered", False)
    monkeypatch.setattr(registry, "_missing", {})
    monkeypatch.setattr(registry, "_FAMILIES", ())


def plug(monkeypatch: pytest.MonkeyPatch, **entries: str) -> None:
    points = [EntryPoint(n, v, registry.GROUP) for n, v in entries.items()]
    monkeypatch.setattr(registry, "entry_points", lambda group: points)


def test_names() -> None:
    assert {"reference", "cpu"} <= set(registry.available())
    assert registry.init_backend("reference", n_threads=2).name == "reference"
    with pytest.raises(BackendError, match=r"'nope'; there are reference, cpu"):
        registry.init_backend("nope")


def test_register() -> None:
    registry.register_backend("mine", ReferenceBackend)
    assert "mine" in registry.available()
    registry.init_backend("mine").close()
    with pytest.raises(BackendError, match="already"):
        registry.register_backend("mine", ReferenceBackend)


def test_a_plugin_is_found_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    plug(monkeypatch, other="pyggml.backend.reference.backend:ReferenceBackend")
    assert registry.init_backend("other").name == "reference"
    assert "other" in registry.available()


def family(monkeypatch: pytest.MonkeyPatch, *names: str, why: str = "") -> None:
    module = ModuleType("pyggml.backend.toy.discovery")
    vars(module).update(
        devices=lambda: names, factory=lambda name: ReferenceBackend, why_none=lambda: why
    )
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr(registry, "_FAMILIES", ("toy",))


def test_devices_of_a_family_are_found_at_run_time(monkeypatch: pytest.MonkeyPatch) -> None:
    family(monkeypatch, "toy0", "toy1")
    assert registry.available()[:4] == ("reference", "cpu", "toy0", "toy1")
    assert registry.init_backend("toy1").name == "reference" and registry.missing() == {}


def test_a_family_says_why_it_has_no_device(monkeypatch: pytest.MonkeyPatch) -> None:
    family(monkeypatch, why="no toy is plugged in")
    assert registry.missing() == {"toy": "no toy is plugged in"}
    monkeypatch.setattr(registry, "_discovered", False)
    monkeypatch.setattr(registry, "_FAMILIES", ("absent",))
    assert "pyggml.backend.absent" in registry.missing()["absent"]


def test_a_broken_plugin_is_one_warning(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    plug(monkeypatch, broken="no_such_module:X", cpu="pyggml.errors:BackendError")
    with caplog.at_level(logging.WARNING, "pyggml"):
        names = registry.available()
        registry.available()
    assert "broken" not in names
    assert len(caplog.records) == 2
    assert "no_such_module" in caplog.messages[0] and "already" in caplog.messages[1]


def test_built_in_backends_do_not_look_for_plugins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "entry_points", None)
    assert registry.init_backend("reference").device.kind == "cpu"
