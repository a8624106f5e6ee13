"""Capacity from measured steps: the formulas of docs/scaling.md; no Ray."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pyllama.cluster.capacity import Load, ReplicaTimes, capacity, plan_table, read_steps
from pyllama.errors import BenchFileError

STEPS = ReplicaTimes({1: 0.02, 8: 0.05}, 0.001)


def test_the_formulas() -> None:
    found = capacity(STEPS, Load(rate=2, n_prompt=500, n_answer=200), 8, 0.7)
    assert found.tokens_per_s == pytest.approx(160)
    assert found.first_token_s == pytest.approx(0.55)
    busy_s = 500 * 0.001 + 200 * 0.05 / 8  # 1.75 s
    assert found.requests_per_s == pytest.approx(1 / busy_s)
    assert found.request_s == pytest.approx(8 * busy_s)
    assert found.n_replicas == 5  # 2 * 1.75 / 0.7


def test_a_file_of_batched_bench(tmp_path: Path) -> None:
    rows = [
        {"pp": 128, "tg": 32, "pl": n, "t_pp": 0.1 * n, "t_tg": 32 * s, "is_pp_shared": 0}
        for n, s in ((1, 0.02), (8, 0.05))
    ]
    path = tmp_path / "bench.jsonl"
    path.write_text("main: header\n" + "".join(json.dumps(row) + "\n" for row in rows))
    steps = read_steps(path)
    assert dict(steps.step_s) == {1: pytest.approx(0.02), 8: pytest.approx(0.05)}
    assert steps.prompt_token_s == pytest.approx(0.1 / 128)
    table = plan_table(steps, Load(1, 500, 200), 0.7)
    assert len(table.splitlines()) == 6 and "busy for 70%" in table


def test_a_file_without_rows(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_text('{"a": 1}\n')
    with pytest.raises(BenchFileError, match="pyllama-batched-bench"):
        read_steps(path)
