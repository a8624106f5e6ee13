"""What every test of a command puts back."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def no_announcements(monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands say what is compiled; later tests in this process must not."""
    monkeypatch.setattr("pyggml.jit.on_compile", None)
