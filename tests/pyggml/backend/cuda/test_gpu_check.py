"""The processes of benchmarks/gpu_check.py: a crash costs one case; see test_bindings.py, too."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("numba_cuda")

from benchmarks import gpu_check


def ends(log: Path, crashes: dict[int, int], n: int = 10) -> Any:
    """In place of ``subprocess.run``: cases that end their process with a code."""

    def run(command: list[str], **options: Any) -> SimpleNamespace:
        first = int(command[command.index("--first-case") + 1])
        with open(log, "a") as file:
            for i in range(first, n):
                file.write(json.dumps({"case": i}) + "\n")
                if i in crashes:
                    return SimpleNamespace(returncode=crashes[i])
            file.write(json.dumps({"what": "cases", "op": "ADD"}) + "\n")
        return SimpleNamespace(returncode=0)

    return run


def test_cases_go_on_after_a_crash(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = tmp_path / "log"
    monkeypatch.setattr(subprocess, "run", ends(log, {3: -11, 4: 3, 9: 3}))
    failures = gpu_check.run_apart("cases", ["--quick"], log, 60)
    assert failures == [
        "cases ended with code -11 in case 3",
        "cases ended with code 3 in case 4",
        "cases ended with code 3 in case 9",
    ]
    assert [line for line in gpu_check._lines(log) if "what" in line]


def test_other_parts_end_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = tmp_path / "log"

    def late(*args: Any, **options: Any) -> None:
        raise subprocess.TimeoutExpired("x", 60)

    monkeypatch.setattr(subprocess, "run", late)
    (failure,) = gpu_check.run_apart("speed", [], log, 60)
    assert failure == "speed took more than 60 s and was ended"
    monkeypatch.setattr(subprocess, "run", lambda *a, **k: SimpleNamespace(returncode=-6))
    assert gpu_check.run_apart("gemm", [], log, 60) == ["gemm ended with code -6"]


def test_all_kernels_of_cases_are_compiled_in_shares(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    monkeypatch.setattr(gpu_check, "compiled", lambda kernel, cc: seen.append(kernel.name))
    for share in range(3):
        gpu_check.compile_kernels(share, 3, (9, 0), gpu_check.TINY)
    assert len(seen) == len(set(seen)) > 50


def test_results_are_a_page_and_lines(tmp_path: Path) -> None:
    lines = [{"what": "copies", "way": "in", "us": 1.5}, {"what": "copies", "way": "out", "us": 2}]
    gpu_check.write_results(tmp_path, "Some GPU", True, lines, ["one fault"])
    page = (tmp_path / "gpu.md").read_text()
    assert "# Some GPU\n\n1 failures.\n\n- one fault" in page and "| in | 1.5 |" in page
    written = [json.loads(line) for line in (tmp_path / "gpu.jsonl").read_text().splitlines()]
    assert [line["way"] for line in written] == ["in", "out"] and written[0]["gpu"] == "Some GPU"
