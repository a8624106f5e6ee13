"""Fixtures of the tests of instruction sets."""

from __future__ import annotations

import sys
from collections.abc import Callable

import pytest

from pyggml.backend.cpu.simd.vector import Generic


@pytest.fixture
def emit_for(monkeypatch: pytest.MonkeyPatch) -> Callable[[type[Generic]], None]:
    """Emit all code for an instruction set, in every module that emits code."""

    def emit(vectors: type[Generic]) -> None:
        for name, module in list(sys.modules.items()):
            if name.startswith("pyggml.backend.cpu.simd.") and hasattr(module, "vectors"):
                monkeypatch.setattr(module, "vectors", vectors)

    return emit
