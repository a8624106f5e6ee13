"""Benchmarks: the decoded batches, the times, and the fields of a row."""

from __future__ import annotations

import json

import pytest

from pyggml.dtype import GGMLType
from pyllama.bench import bench
from pyllama.bench.bench import BenchCase, run_bench
from pyllama.errors import BatchError

from ..fake_context import BOS, FakeContext, FakeModel


@pytest.fixture
def contexts(monkeypatch: pytest.MonkeyPatch) -> list[FakeContext]:
    made: list[FakeContext] = []

    class Recorded(FakeContext):
        def __init__(self, *args: object, **options: object) -> None:
            super().__init__(*args, **options)  # type: ignore[arg-type]
            made.append(self)

    monkeypatch.setattr(bench, "Context", Recorded)
    return made


@pytest.mark.parametrize(
    ("case", "decoded"),
    [
        (BenchCase(n_prompt=7, n_batch=4), [4, *[4, 3] * 2]),
        (BenchCase(n_gen=3), [1, *[1, 1, 1] * 2]),
        (BenchCase(n_prompt=2, n_gen=1, n_depth=5, n_batch=4), [2, 1, 4, 1, *[2, 1] * 2]),
    ],
)
def test_decoded_batches(contexts: list[FakeContext], case: BenchCase, decoded: list[int]) -> None:
    row = run_bench(FakeModel(), case, repetitions=2)
    (context,) = contexts
    assert context.decoded == decoded
    assert context.closed
    assert context.n_ctx == len(context.kv.tokens) == case.n_prompt + case.n_gen + case.n_depth
    assert context.kv.tokens[0] == BOS
    assert len(row["samples_ns"]) == len(row["samples_ts"]) == 2


def test_a_row_has_the_fields_of_llama_bench(contexts: list[FakeContext]) -> None:
    case = BenchCase(n_prompt=8, n_threads=3, type_k=GGMLType.Q8_0)
    row = json.loads(json.dumps(run_bench(FakeModel(), case, repetitions=3, warmup=False)))
    assert row["model_type"] == "fake 1K F32" and row["model_n_params"] == 1000
    assert (row["n_prompt"], row["n_gen"], row["n_depth"], row["n_threads"]) == (8, 0, 0, 3)
    assert (row["type_k"], row["type_v"], row["flash_attn"]) == ("q8_0", "f16", 1)
    assert list(row)[-5:-2] == ["stddev_ns", "avg_ts", "stddev_ts"] and len(row) == 44
    assert row["avg_ns"] == pytest.approx(sum(row["samples_ns"]) / 3, abs=1)
    assert row["samples_ts"][0] == pytest.approx(8e9 / row["samples_ns"][0])
    assert row["stddev_ts"] >= 0 and row["test_time"].endswith("Z")


def test_one_repetition_has_no_deviation(contexts: list[FakeContext]) -> None:
    row = run_bench(FakeModel(), BenchCase(n_gen=1), repetitions=1)
    assert row["stddev_ns"] == row["stddev_ts"] == 0


@pytest.mark.parametrize("numbers", [{}, {"n_prompt": -1, "n_gen": 2}, {"n_depth": 5}])
def test_invalid_cases_are_refused(numbers: dict[str, int]) -> None:
    with pytest.raises(BatchError):
        BenchCase(**numbers)
    with pytest.raises(BatchError):
        run_bench(FakeModel(), BenchCase(n_gen=1), repetitions=0)
