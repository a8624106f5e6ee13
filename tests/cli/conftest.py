"""State that is restored after every test of a command."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def no_announcements(monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands announce compiled kernels; later tests in this process must not."""
    monkeypatch.setattr("pyggml.compiler.jit.on_compile", None)
