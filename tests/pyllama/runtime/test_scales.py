"""Scales of whole matrices, as NVFP4's files have them: equal to matrices times their scales."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pyggml.dtype import GGMLType
from pyggml.gguf import GGUFFile, write_gguf
from pyggml.quants import dequantize, quantize
from pyllama import Context, Model
from pyllama.errors import ModelError

from ..models import Spec, Weights, random_weights, rows, write_model

NVFP4 = GGMLType.NVFP4
SPEC = Spec(n_embd=64, n_ff=128, head_dim=16, bias=True, tied=False)
MATRICES = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")
TOKENS = [1, 70, 71, 72, 80, 99, 3, 5]


def with_experts(weights: Weights, n: int) -> Weights:
    """The weights with ``n`` experts in each layer."""
    rng = np.random.default_rng(2)
    found: Weights = {}
    for name, x in weights.items():
        if ".ffn_" not in name or "norm" in name:
            found[name] = x
        elif name.endswith("weight"):
            every = rng.standard_normal((n, *x.shape)) / np.sqrt(x.shape[1])
            found[name.replace(".weight", "_exps.weight")] = every.astype(np.float32)
    for i in range(SPEC.n_layer):
        gate = rng.standard_normal((n, SPEC.n_embd)).astype(np.float32)
        found[f"blk.{i}.ffn_gate_inp.weight"] = gate
    return found


def write_pair(folder: Path, n_expert: int) -> tuple[Path, Path]:
    """A file with matrices of NVFP4 and their scales, and the same matrices in F32."""
    weights, keys = random_weights(SPEC), {}
    if n_expert:
        weights = with_experts(weights, n_expert)
        keys = {"llama.expert_count": n_expert, "llama.expert_used_count": 2}
    rng, scaled, plain = np.random.default_rng(3), dict[str, Any](), dict[str, Any]()
    for name, x in weights.items():
        prefix = name.removesuffix(".weight")
        part = prefix.split(".")[-1].removesuffix("_exps")
        if not name.endswith(".weight") or part not in (*MATRICES, "output"):
            scaled[name] = plain[name] = x
            continue
        n = len(x) if x.ndim == 3 else 1
        scale = rng.uniform(0.5, 2, n).astype(np.float32)
        blocks = quantize(x, NVFP4)
        scaled[name] = (blocks, NVFP4, x.shape[::-1])
        scaled[f"{prefix}.scale"] = scale
        scaled[f"{prefix}.input_scale"] = np.full(n, 7, np.float32)
        plain[name] = dequantize(blocks, NVFP4) * scale.reshape(-1, *(1,) * (x.ndim - 1))
    base = write_model(folder / "base.gguf", SPEC, random_weights(SPEC), metadata=keys)
    with GGUFFile(base) as file:
        metadata = dict(file.metadata)
    for name, tensors in (("scaled", scaled), ("plain", plain)):
        write_gguf(folder / f"{name}.gguf", metadata, tensors)
    return folder / "scaled.gguf", folder / "plain.gguf"


def logits(path: Path, **options: Any) -> np.ndarray:
    with Model.load(path, **options) as model:
        return rows(Context(model, n_ctx=64, type_k="f32", type_v="f32"), TOKENS)


@pytest.mark.parametrize("n_expert", [0, 4])
def test_products_are_scaled(tmp_path: Path, n_expert: int) -> None:
    scaled, plain = write_pair(tmp_path, n_expert)
    want = logits(plain)
    assert np.abs(logits(scaled) - want).max() < 1e-4 * np.abs(want).max()


def test_a_scale_without_its_matrix_is_refused(tmp_path: Path) -> None:
    weights = random_weights(SPEC)
    weights["token_embd.scale"] = np.ones(1, np.float32)
    path = write_model(tmp_path / "x.gguf", SPEC, weights)
    with pytest.raises(ModelError, match=r"unknown tensors.*token_embd\.scale"):
        Model.load(path)
