"""Tuning values measured on the host: their sources, and that they change no bits."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from pyggml import host, ops
from pyggml.alloc.tallocr import alloc_ctx_tensors
from pyggml.backend.cpu import measure, selftest, tuning
from pyggml.backend.cpu.backend import CpuBackend
from pyggml.backend.cpu.tuning import DEFAULT, Choice, Record, Tuning, using
from pyggml.backend.cpu.weights.buffer import REPACK
from pyggml.cgraph import CGraph
from pyggml.compiler import jit
from pyggml.compiler.code_cache import CodeCache
from pyggml.context import Context
from pyggml.dtype import GGMLType
from pyggml.errors import PyggmlError
from pyggml.quants import quantize
from pyggml.tensor import Tensor

RECORD = Record("some CPU", 0.25, (Choice("one_hint", 3, {2: 10.0, 3: 12.5}, 1.25),), pause_ns=50.0)


@pytest.fixture(autouse=True)
def afresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """No value is set or measured; records are kept in a temporary folder."""
    monkeypatch.delenv("PYGGML_TUNING", raising=False)
    jit.isa()
    cache = CodeCache(tmp_path / "code")
    monkeypatch.setattr(jit, "code_cache", lambda name: cache)
    with using(None):
        yield cache.path


# --- the environment variable ---


@pytest.mark.parametrize(
    ("text", "values", "measured"),
    [
        ("", {}, True),
        ("one_hint=0", {"one_hint": 0}, True),
        ("default", {}, False),
        (" few_bytes = 64 , default,", {"few_bytes": 64}, False),
    ],
)
def test_values_of_the_environment_variable(
    text: str, values: dict[str, int], measured: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYGGML_TUNING", text)
    assert tuning.by_hand() == (values, measured)
    assert tuning.tuning() == replace(DEFAULT, **values)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("one_hint", "NAME=NUMBER"),
        ("one_hint=", "NAME=NUMBER"),
        ("=3", "unknown name ''"),
        ("one_hint=nta", "NAME=NUMBER"),
        ("one_hint=-1", "NAME=NUMBER"),
        ("one_hint=4", "wanted 0 to 3"),
        ("one_hints=2", "unknown name 'one_hints'; known: one_hint, "),
        ("look=0", "wanted 1 to"),
        ("one_bytes=99999999999999999999", "wanted 0 to 65536"),
    ],
)
def test_mistakes_in_the_environment_variable(
    text: str, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYGGML_TUNING", text)
    with pytest.raises(PyggmlError, match="PYGGML_TUNING") as error:
        tuning.tuning()
    assert says in str(error.value) and "\n" not in str(error.value)


# --- records ---


def test_a_record_is_kept_for_this_cpu(afresh: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert tuning.load() is None and tuning.tuning() == DEFAULT
    tuning.save(RECORD)
    want = replace(DEFAULT, one_hint=3, spins=5000, look=4)
    assert tuning.load() == RECORD and tuning.tuning() == want
    tuning.forget()
    assert tuning.tuning() == want
    assert [p.suffix for p in afresh.iterdir()] == [".json"]
    monkeypatch.setenv("PYGGML_TUNING", "spins=7")
    tuning.forget()
    assert tuning.tuning() == replace(want, spins=7)
    monkeypatch.setattr(host, "cpu_identity", lambda: "another CPU of the same name")
    assert tuning.load() is None


def test_a_record_is_used_where_it_cannot_be_written() -> None:
    jit.code_cache(jit.isa()).writable = False
    tuning.save(RECORD)
    assert tuning.tuning().one_hint == 3 and tuning.load() is None


DAMAGE: list[Callable[[dict[str, Any]], Any]] = [
    lambda data: [data],
    lambda data: data | {"choices": 3},
    lambda data: data | {"choices": [data["choices"][0] | {"name": "no such field"}]},
    lambda data: data | {"choices": [data["choices"][0] | {"value": 9}]},
    lambda data: data | {"choices": [data["choices"][0] | {"rates": [1]}]},
    lambda data: {name: value for name, value in data.items() if name != "pause_ns"},
    lambda data: data | {"pause_ns": 1e-300},
    lambda data: data | {"pause_ns": "nan"},
]


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_record_is_ignored(damage: Callable[[dict[str, Any]], Any]) -> None:
    cache = jit.code_cache(jit.isa())
    text = json.dumps(damage(json.loads(RECORD.to_json())))
    cache.write(tuning._entry(), text.encode())
    assert tuning.load() is None and tuning.tuning() == DEFAULT
    for data in (b"", b"{", bytes(100), b"\xff"):
        cache.write(tuning._entry(), data)
        assert tuning.load() is None


SAMPLES = {
    "processor\t: 0\nvendor_id\t: AuthenticAMD\ncpu family\t: 26\nmodel\t\t: 2\nmodel name\t: AMD "
    "EPYC\nstepping\t: 1\n\nprocessor\t: 1\nmodel\t\t: 3\n":
    "AuthenticAMD, family 26, model 2, stepping 1",
    "processor\t: 0\nvendor_id\t: GenuineIntel\ncpu family\t: 6\nmodel\t\t: 143\nstepping\t: 8\n":
    "GenuineIntel, family 6, model 143, stepping 8",
    "processor\t: 0\nCPU implementer\t: 0x41\nCPU architecture: 8\nCPU variant\t: 0x3\n"
    "CPU part\t: 0xd0c\nCPU revision\t: 1\n":
    "CPU implementer 0x41, CPU architecture 8, CPU variant 0x3, CPU part 0xd0c, CPU revision 1",
}  # fmt: skip


@pytest.mark.parametrize("text", SAMPLES)
def test_cpu_identity(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "cpuinfo"
    monkeypatch.setattr(host, "_CPUINFO", path)
    assert host.cpu_identity()  # from the platform module
    path.write_text(text)
    assert host.cpu_identity() == SAMPLES[text]


# --- measuring ---


@pytest.mark.parametrize(
    ("seconds", "value"),
    [
        ({2: 1.0, 0: 1.2, 3: 1.5}, 2),
        ({2: 1.0, 0: 0.95, 3: 1.5}, 2),  # too small a gain
        ({2: 1.0, 0: 0.8, 3: 0.5}, 3),
    ],
)
def test_a_default_is_replaced_only_for_a_clear_gain(
    seconds: dict[int, float], value: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    programs = {v: SimpleNamespace(enqueue=partial(int, v)) for v in seconds}
    monkeypatch.setattr(measure, "_programs", lambda *_: programs)
    monkeypatch.setattr(measure, "_seconds", lambda call: seconds[call()])
    race = measure.Race(CGraph(), 10**9, {})
    choice = measure._choose(CpuBackend(), race, "one_hint", (0, 3), DEFAULT)
    assert choice.value == value
    assert choice.rates == {v: pytest.approx(1 / s) for v, s in seconds.items()}


def test_measurements_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "_MIN_BYTES", 40 << 20)
    monkeypatch.setattr(measure, "_MAX_BYTES", 40 << 20)
    record = measure.measure()
    assert Record.from_json(record.to_json()) == record
    raced = [choice.name for choice in record.choices]
    assert len(set(raced)) == len(raced) >= 1 and set(raced) <= {f.name for f in fields(Tuning)}
    assert record.pause_ns > 0 and not record.problem
    monkeypatch.setattr(measure, "_BUDGET_S", 0.0)
    backend = CpuBackend()
    assert measure.run(backend, measure.prepare(backend)).choices == ()


def test_a_child_that_fails_leaves_the_defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selftest, "__name__", "no_such_module")
    record = selftest.measure_again()
    assert "no_such_module" in record.problem and tuning.load() == record
    assert tuning.tuning() == DEFAULT
    monkeypatch.setattr(selftest.sys, "executable", "/nowhere/python")
    assert "/nowhere/python" in selftest.measure_again().problem


# --- bits ---


def _variants() -> Iterator[Tuning]:
    yield DEFAULT
    for field in fields(Tuning):
        for value in (field.metadata["least"], 3):
            yield replace(DEFAULT, **{field.name: value})


def test_no_value_changes_bits() -> None:
    rng, backend = np.random.default_rng(3), CpuBackend(2)

    def values(*shape: int) -> npt.NDArray[np.float32]:
        return rng.uniform(-1, 1, shape).astype(np.float32)

    packed, ctx, nodes = Context(no_alloc=True), Context(), []
    kinds = (GGMLType.Q4_1, GGMLType.Q4_K, GGMLType.F16)
    weights = [packed.new_tensor_2d(kind, 256, 48) for kind in kinds]
    alloc_ctx_tensors(packed, REPACK)
    for w in weights:
        rows = quantize(values(48, 256), w.type)
        w.set(rows if w.type.is_quantized else rows.view(np.float16))
        nodes += [ops.mul_mat(ctx, w, ctx.from_numpy(values(n, 256))) for n in (1, 3, 7, 20)]
    plain = ctx.from_numpy(values(48, 256).astype(np.float16))
    nodes.append(ops.axpy(ctx, plain, ctx.from_numpy(values(1, 48))))
    q, k = ctx.from_numpy(values(2, 3, 64)), ctx.from_numpy(values(1, 600, 64).astype(np.float16))
    nodes.append(ops.flash_attn_ext(ctx, q, k, k, None, 0.25))
    graph = CGraph()
    for node in nodes:
        graph.build_forward_expand(node)

    def results() -> list[bytes]:
        backend.graph_compute(graph)
        return [_bytes(node) for node in nodes]

    want = None
    for variant in _variants():
        with using(variant):
            found = results()
        want = want or found
        assert found == want, variant


def _bytes(node: Tensor) -> bytes:
    return bytes(node.numpy().tobytes())
