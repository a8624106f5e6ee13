"""Values that depend on a CPU: how they are set, and that they change no bits."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, replace

import numpy as np
import numpy.typing as npt
import pytest

import pyggml as ops
from pyggml.alloc.tallocr import alloc_ctx_tensors
from pyggml.backend.cpu import tuning
from pyggml.backend.cpu.backend import CpuBackend
from pyggml.backend.cpu.tuning import DEFAULT, Tuning, using
from pyggml.backend.cpu.weights.buffer import REPACK
from pyggml.cgraph import CGraph
from pyggml.context import Context
from pyggml.dtype import GGMLType
from pyggml.errors import PyggmlError
from pyggml.quants import quantize
from pyggml.tensor import Tensor


@pytest.fixture(autouse=True)
def afresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No value is set."""
    monkeypatch.delenv("PYGGML_TUNING", raising=False)
    with using(None):
        yield


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("", {}),
        ("one_hint=0", {"one_hint": 0}),
        (" few_bytes = 64 , one_hint=3,", {"few_bytes": 64, "one_hint": 3}),
    ],
)
def test_values_of_the_environment_variable(
    text: str, values: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYGGML_TUNING", text)
    assert tuning.tuning() == replace(DEFAULT, **values)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("one_hint", "NAME=NUMBER"),
        ("default", "NAME=NUMBER"),
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
