"""Weights derived at load, and the layout of each weight."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from pyggml.backend.cpu.weights.buffer import is_repacked
from pyggml.dtype import GGMLType
from pyggml.errors import AllocError
from pyggml.ops.matrix.sparse import pack_signs
from pyggml.quants import dequantize, quantize, to_float
from pyllama import Model
from pyllama.graph.sparse.svd import low_rank

from ...tiers import some
from ..models import Spec, random_weights, write_model

SPEC = Spec(n_embd=64, n_ff=288)
F32, F16, BF16, Q4_0 = GGMLType.F32, GGMLType.F16, GGMLType.BF16, GGMLType.Q4_0


def plain_file(folder: Path, type: GGMLType) -> tuple[Path, dict[str, np.ndarray]]:
    """Write a model in one format; return its path and its rounded weights."""
    weights = random_weights(SPEC)
    path = write_model(folder / "x.gguf", SPEC, weights, type)
    return path, {
        n: w if w.ndim == 1 else dequantize(quantize(w, type), type) for n, w in weights.items()
    }


@pytest.mark.parametrize("type", [F32, F16, BF16, Q4_0, GGMLType.Q5_1, GGMLType.Q8_0])
def test_derived_weights(tmp_path: Path, type: GGMLType) -> None:
    path, weights = plain_file(tmp_path, type)
    done: list[float] = []
    model = Model.load(path, sparse="signs,svd=16:1", progress=done.append)
    assert done == sorted(done) and done[-1] == 1.0 and len(done) > 4
    gate, down = (weights[f"blk.1.ffn_{part}.weight"] for part in ("gate", "down"))
    made = model.weights["blk.1.ffn_down_t.weight"]
    kept = F16 if type.is_quantized else type
    assert made.type is kept and made.ne == (64, 288, 1, 1)
    wanted = dequantize(quantize(down.T, kept), kept)
    assert np.array_equal(to_float(made)[0, 0], wanted)
    assert np.abs(wanted - down.T).max() <= np.abs(down).max() * 2**-11
    signs = model.weights["blk.0.ffn_gate_signs"]
    assert signs.type is GGMLType.I32 and signs.ne == (2, 288, 1, 1)
    assert np.array_equal(signs.numpy(), pack_signs(weights["blk.0.ffn_gate.weight"]))
    first, second = (model.weights[f"blk.1.ffn_gate_svd_{k}.weight"] for k in (1, 2))
    assert first.ne == (64, 16, 1, 1) and second.ne == (16, 288, 1, 1)
    near = to_float(second)[0, 0] @ to_float(first)[0, 0]
    u, s, vt = np.linalg.svd(gate, full_matrices=False)
    best = (u[:, :16] * s[:16]) @ vt[:16]
    assert ((near - gate) ** 2).sum() < 1.1 * ((best - gate) ** 2).sum()  # the spectrum is flat
    gone = {"blk.0.ffn_down.weight", "blk.0.ffn_gate_svd_1.weight", "blk.1.ffn_gate_signs"}
    assert not gone & model.weights.keys()


LAYOUTS = {  # source: parts of layer 0 that are repacked, and parts that are stored by rows
    "predictor": ("attn_q fc1 fc2", "ffn_gate ffn_up ffn_down_t"),
    "exact": ("attn_q ffn_gate", "ffn_up ffn_down_t"),
    "signs": ("attn_q", "ffn_gate ffn_up ffn_down_t"),
    "svd": ("attn_q ffn_gate_svd_1 ffn_gate_svd_2", "ffn_gate ffn_up ffn_down_t"),
    "topk=9": ("attn_q ffn_gate ffn_up", "ffn_down_t"),
    "off": ("attn_q ffn_gate ffn_up", "ffn_down_t"),
}


@pytest.mark.parametrize("source", some(LAYOUTS, 2))
def test_repacked_and_row_layouts(tmp_path: Path, source: str) -> None:
    from ..sparsity.files import sparse_file

    path = sparse_file(tmp_path, "bamboo")
    repacked, rows = LAYOUTS[source]
    model, in_place = (Model.load(path, sparse=source, repack=r) for r in (True, False))
    for part in f"{repacked} {rows}".split():
        name = f"blk.0.{part}.weight"
        assert is_repacked(model.weights[name]) == (part in repacked.split())
        assert not is_repacked(in_place.weights[name])
    assert (source == "predictor") == ("blk.0.fc1.weight" in model.weights)


def test_out_of_memory_for_derived_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, _ = plain_file(tmp_path, Q4_0)
    monkeypatch.setattr("pyggml.host.available_memory", lambda: 1000)
    Model.load(path, repack=False)
    with pytest.raises(AllocError, match="and deriving those of sparse layers, needs"):
        Model.load(path, repack=False, sparse="exact")


def test_low_rank_is_exact_at_full_rank_and_deterministic() -> None:
    rng = np.random.default_rng(0)
    thin = rng.standard_normal((300, 20)) @ rng.standard_normal((20, 90))
    w = thin.astype(np.float32)
    for rank in (20, 90, 500):
        first, second = low_rank(w, rank, seed=3)
        assert np.abs(second @ first - w).max() < 1e-4
    again = low_rank(w, 20, seed=3)
    assert all(np.array_equal(x, y) for x, y in zip(low_rank(w, 20, seed=3), again, strict=True))
