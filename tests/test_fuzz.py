"""Damaged files of every untrusted type are read or refused, in bounded time and memory."""

from __future__ import annotations

import sys

import pytest

from benchmarks import fuzz

from .tiers import only, some

FIRST, OTHERS = range(20), range(20, 200)  # numbers of mutations


@pytest.mark.skipif(sys.platform != "linux", reason="limits on memory are the system's")
@pytest.mark.parametrize("numbers", only([FIRST, OTHERS], [FIRST]), ids=str)
@pytest.mark.parametrize("name", some(fuzz.types(), 6))
def test_damaged_files(name: str, numbers: range) -> None:
    report = fuzz.fuzz(name, numbers.start, len(numbers))
    assert report.findings == []
    assert sum(report.counts.values()) == len(numbers)
    assert report.seconds < fuzz.MAX_SECONDS and report.peak_bytes < fuzz.MAX_BYTES


def test_damage_is_determined_by_its_number() -> None:
    type = fuzz.types()["torch"]
    seeds = type.seeds()
    assert fuzz.damaged(type, seeds, 7) == fuzz.damaged(type, seeds, 7)
    assert fuzz.damaged(type, seeds, 7) != fuzz.damaged(type, seeds, 8)


def test_only_unexpected_outcomes_are_findings(tmp_path: object) -> None:
    report = fuzz.Report()
    for number, what in enumerate(("read", "refused", "KeyError: 1", "crash, exit code -11: ")):
        fuzz._note(report, number, {"what": what, "seconds": number, "peak": 10 * number})
    assert report.counts == {"read": 1, "refused": 1} and report.seconds == 3
    assert [number for number, _ in report.findings] == [2, 3] and report.peak_bytes == 30
