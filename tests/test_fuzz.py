"""Damaged files of every type, some hundred of each: read or refused, in little time and memory.

``python -m benchmarks.fuzz`` runs as many as one likes, and any of these again by its number.
"""

from __future__ import annotations

import os

import pytest

from benchmarks import fuzz

COUNT = 500


@pytest.mark.skipif(not hasattr(os, "fork"), reason="POSIX signals and limits")
@pytest.mark.parametrize("name", fuzz.types())
def test_damaged_files_are_read_or_refused(name: str) -> None:
    report = fuzz.fuzz(name, 0, COUNT)
    assert not report.findings
    assert sum(report.counts.values()) == COUNT and report.counts["read"]
