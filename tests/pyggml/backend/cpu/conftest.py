"""What tests of instruction sets share; children compile for minutes: they begin first."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest

from pyggml.backend.cpu.simd.vector import Generic

_children: dict[str, subprocess.Popen[str]] = {}


def pytest_collection_finish(session: pytest.Session) -> None:
    wants = [item for item in session.items if "children" in getattr(item, "fixturenames", ())]
    if wants and not session.config.option.collectonly:
        _children.update(wants[0].module.start_children())


@pytest.fixture(scope="session")
def children() -> Iterator[dict[str, subprocess.Popen[str]]]:
    yield _children
    for process in _children.values():
        process.kill()
        process.communicate()


@pytest.fixture
def emit_for(monkeypatch: pytest.MonkeyPatch) -> Callable[[type[Generic]], None]:
    """Make all code of an instruction set, in whatever module it is emitted."""

    def emit(vectors: type[Generic]) -> None:
        for name, module in list(sys.modules.items()):
            if name.startswith("pyggml.backend.cpu.simd.") and hasattr(module, "vectors"):
                monkeypatch.setattr(module, "vectors", vectors)

    return emit
