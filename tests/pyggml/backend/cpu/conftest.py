"""The children of ``test_isa`` compile for minutes: they begin before the first test."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator

import pytest

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
