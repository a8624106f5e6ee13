"""Quantized files: llama.cpp's bytes, metadata, split files, pruned layers, and errors."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pyggml.dtype import GGMLType
from pyggml.gguf import GGUFError, GGUFFile, merge, plan_split, write_gguf, write_split
from pyllama import Batch, Context, Model
from pyllama.errors import ModelError
from pyllama.file_types import can_write
from pyllama.quantize import (
    FILE_TYPES,
    QuantizeOptions,
    TypeOverrides,
    find_file_type,
    quantize_model,
)

from ...tiers import some
from ..models import Spec, random_weights, write_model
from ..sparsity.files import sparse_file
from .tiny import SPEC, Weights, digest, importance_of, write_tiny

T = GGMLType
DIGESTS = json.loads(
    (Path(__file__).resolve().parents[2] / "data" / "quantize" / "files.json").read_text()
)
WRITABLE = [f.name for f in FILE_TYPES.values() if f.type is not None and can_write(f.type)]
# NMSE of a random model's logits: errors do not average out as in a trained model.
ROUNDED = {
    **dict.fromkeys(("F32", "F16", "BF16"), 0.01),
    **dict.fromkeys(("Q8_0", "Q6_K"), 0.02),
    **dict.fromkeys(("Q5_0", "Q5_1", "Q5_K_S", "Q5_K_M"), 0.05),
    **dict.fromkeys(("Q3_K_S", "Q3_K_M", "Q3_K_L"), 0.6),
    **dict.fromkeys(("Q2_K", "Q2_K_S", "TQ1_0", "TQ2_0", "Q1_0", "Q2_0"), 2.5),
}


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Weights]:
    return write_tiny(tmp_path_factory.mktemp("tiny") / "tiny.gguf")


def options_for(name: str, weights: Weights) -> QuantizeOptions:
    return QuantizeOptions(importance=importance_of(weights) if name == "Q2_K_S" else None)


def logits(path: Path) -> np.ndarray:
    with Model.load(path) as model:
        context = Context(model, n_ctx=64, n_threads=2)
        context.decode(Batch([1, 70, 71, 72, 80, 99, 3, 5], logits="all"))
        return context.logits.copy()


def quantized(source: Path, out: Path, name: str = "Q8_0", **options: Any) -> GGUFFile:
    quantize_model(source, out, find_file_type(name), QuantizeOptions(**options))
    return GGUFFile(out)


# --- the bytes ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", some(WRITABLE, 12))
def test_data_matches_llama_cpp(tiny: tuple[Path, Weights], tmp_path: Path, name: str) -> None:
    """With and without an importance matrix, in each file type."""
    path, weights = tiny
    for kind in ("plain", "imatrix"):
        wanted = DIGESTS.get(f"{name} {kind}")
        importance = importance_of(weights) if kind == "imatrix" else None
        out = tmp_path / f"{kind}.gguf"
        if wanted is None:  # llama.cpp refuses too
            with pytest.raises(ModelError, match="without an importance matrix"):
                quantize_model(
                    path, out, find_file_type(name), QuantizeOptions(importance=importance)
                )
            assert not list(tmp_path.iterdir())
            continue
        quantize_model(path, out, find_file_type(name), QuantizeOptions(importance=importance))
        assert digest(out) == wanted, kind


@pytest.mark.parametrize("name", some(WRITABLE, 7))
def test_quantized_file_loads_and_computes(
    tiny: tuple[Path, Weights], tmp_path: Path, name: str
) -> None:
    path, weights = tiny
    out = tmp_path / "x.gguf"
    plan = quantize_model(path, out, find_file_type(name), options_for(name, weights))
    assert plan.nbytes <= out.stat().st_size < plan.nbytes + 20_000
    want, got = logits(path), logits(out)
    assert np.mean((want - got) ** 2) / np.mean(want**2) < ROUNDED.get(name, 0.2)


def test_metadata_and_order(tiny: tuple[Path, Weights], tmp_path: Path) -> None:
    path, weights = tiny
    file = quantized(
        path, tmp_path / "x.gguf", "Q4_K_M", importance=importance_of(weights), imatrix_file="i",
        overrides={"general.name": "mine", "llama.context_length": 99},
    )  # fmt: skip
    with GGUFFile(path) as source:
        changed = {
            "general.name": "mine",
            "llama.context_length": 99,
            "general.quantization_version": 2,
            "general.file_type": 15,
            "quantize.imatrix.file": "i",
            "quantize.imatrix.dataset": "text.txt",
            "quantize.imatrix.entries_count": len(weights),
            "quantize.imatrix.chunks_count": 1,
        }
        kept = {k: v for k, v in source.metadata.items() if k not in changed}
        assert file.metadata.keys() == kept.keys() | changed.keys()
        assert {k: file.metadata[k] for k in changed} == changed
        assert list(file.metadata)[: len(kept)] == list(kept)
        assert file.tensors.keys() == source.tensors.keys()
    names = list(file.tensors)
    assert names[:4] == ["output.weight", "output_norm.weight", "token_embd.weight",
                         "blk.0.attn_k.weight"]  # fmt: skip
    assert names[-1] == "blk.1.ffn_up.weight"


def test_copy_keeps_the_order_of_version_and_file_type(tmp_path: Path) -> None:
    """The order is that of llama-quantize; overridden keys come last."""
    numbers = {"general.file_type": np.uint32(7), "general.quantization_version": np.uint32(2)}
    path, _ = write_tiny(tmp_path / "x.gguf", metadata=numbers)
    last = ["general.quantization_version", "general.file_type"]
    with quantized(path, tmp_path / "y.gguf", "COPY") as file:
        assert list(file.metadata)[-2:] == last and file.metadata["general.file_type"] == 7
    overrides = {"general.quantization_version": 3, "split.count": 1}
    with quantized(path, tmp_path / "y.gguf", "COPY", overrides=overrides) as file:
        assert list(file.metadata)[-2:] == last[::-1] and "split.count" not in file.metadata


def test_copy_and_requantization(tmp_path: Path) -> None:
    path, _ = write_tiny(tmp_path / "x.gguf", T.Q4_0)
    with GGUFFile(path) as source, quantized(path, tmp_path / "y.gguf", "COPY") as file:
        for name, t in source.tensors.items():
            assert file.tensors[name].type is t.type
            np.testing.assert_array_equal(file.tensor_bytes(name), source.tensor_bytes(name))
    with pytest.raises(ModelError, match=r"is Q4_0 already.*allow_requantize=True"):
        quantized(path, tmp_path / "z.gguf", "Q8_0")
    with quantized(path, tmp_path / "z.gguf", "Q8_0", allow_requantize=True) as file:
        assert file.tensors["blk.0.ffn_up.weight"].type is T.Q8_0
    pure = TypeOverrides(pure=True)
    with quantized(path, tmp_path / "z.gguf", "Q4_0", type_overrides=pure) as file:
        assert file.tensors["output.weight"].type is T.Q4_0  # not converted, so not refused


def test_short_rows_fall_back(tmp_path: Path) -> None:
    spec = Spec(n_embd=96, n_ff=48, n_head=4, head_dim=24)
    path = write_model(tmp_path / "x.gguf", spec, random_weights(spec))
    plan = quantize_model(path, tmp_path / "y.gguf", find_file_type("Q4_K_S"))
    assert {t.requested for t in plan.fallbacks} == {T.Q4_K, T.Q5_K}
    types = {t.name: t.type for t in plan.tensors}
    assert types["token_embd.weight"] is T.Q8_0
    assert types["blk.0.attn_q.weight"] is T.Q5_0
    assert types["blk.0.ffn_down.weight"] is T.F16
    assert np.isfinite(logits(tmp_path / "y.gguf")).all()


@pytest.mark.parametrize("ne", [(0, 48), (32, 0)])
@pytest.mark.parametrize("name", ["Q8_0", "F16", "Q4_K_M", "TQ1_0"])
def test_empty_rows_and_no_rows(tmp_path: Path, ne: tuple[int, int], name: str) -> None:
    spec = Spec(n_layer=1)
    with GGUFFile(write_model(tmp_path / "x.gguf", spec, random_weights(spec))) as file:
        tensors: dict[str, Any] = {"blk.0.ffn_up.weight": (b"", T.F32, ne)}
        write_gguf(tmp_path / "empty.gguf", file.typed_metadata(), tensors, arch=None)
    quantize_model(tmp_path / "empty.gguf", tmp_path / "y.gguf", find_file_type(name))
    with GGUFFile(tmp_path / "y.gguf") as file:
        assert file.tensors["blk.0.ffn_up.weight"].ne == (*ne, 1, 1)


# --- parts, layers, PowerInfer --------------------------------------------------------------------


def test_split_files_are_merged_or_kept(tiny: tuple[Path, Weights], tmp_path: Path) -> None:
    path, _ = tiny
    with GGUFFile(path) as file:
        write_split(file, plan_split(file, tmp_path / "p", max_tensors=8))
    first = tmp_path / "p-00001-of-00003.gguf"
    whole = quantized(first, tmp_path / "whole.gguf", "Q8_0")
    assert not any(key.startswith("split.") for key in whole.metadata)
    parts = tmp_path / "out"
    parts.mkdir()
    plan = quantize_model(
        first, parts / "q.gguf", find_file_type("Q8_0"), QuantizeOptions(keep_split=True)
    )
    assert [p.name for p in sorted(parts.iterdir())] == [
        f"q-0000{i}-of-00003.gguf" for i in (1, 2, 3)
    ]
    with GGUFFile(parts / "q-00001-of-00003.gguf") as file:
        assert {n: t.part for n, t in file.tensors.items()} == {
            t.name: t.source.part for t in plan.tensors
        }
        for name in whole.tensors:
            np.testing.assert_array_equal(file.tensor_bytes(name), whole.tensor_bytes(name))
        merge(file, tmp_path / "merged.gguf")
    assert np.isfinite(logits(tmp_path / "merged.gguf")).all()


def test_pruned_layers(tmp_path: Path) -> None:
    spec = Spec(n_layer=4, n_embd=64, n_ff=64)
    per_layer = {"llama.feed_forward_length": np.array([64] * 4, np.int32)}
    path = write_model(tmp_path / "x.gguf", spec, random_weights(spec), metadata=per_layer)
    prune = frozenset({1, 2})
    with GGUFFile(path) as source:
        file = quantized(path, tmp_path / "y.gguf", "F32", prune_layers=prune)
        assert file.get_int("llama.block_count") == 2
        assert file.get_numbers("llama.feed_forward_length").tolist() == [64, 64]
        for new, old in ((0, 0), (1, 3)):
            np.testing.assert_array_equal(
                file.tensor_bytes(f"blk.{new}.ffn_up.weight"),
                source.tensor_bytes(f"blk.{old}.ffn_up.weight"),
            )
        assert not any(name.startswith(("blk.2", "blk.3")) for name in file.tensors)
    for layers, message in (({4}, "layer 4 cannot be pruned"), ({0, 1, 2, 3}, "all 4 layers")):
        with pytest.raises(ModelError, match=message):
            quantized(path, tmp_path / "z.gguf", prune_layers=frozenset(layers))


@pytest.mark.parametrize("name", ["bamboo", "opt"])
def test_powerinfer_files_keep_their_format(tmp_path: Path, name: str) -> None:
    path = sparse_file(tmp_path, name)
    with GGUFFile(path) as source, quantized(path, tmp_path / "q.gguf", "Q4_0") as file:
        assert file.magic == source.magic == b"PWRI"
        key = "powerinfer.sparse_threshold"
        assert file.metadata[key] == source.metadata[key]
        assert file.tensors["blk.0.fc2.weight"].type in (T.Q4_0, T.F16)
        assert file.tensors["blk.0.ffn_down_t.weight"].type is T.Q4_0
        assert file.tensors.keys() == source.tensors.keys()
    assert np.isfinite(logits(tmp_path / "q.gguf")).all()


# --- errors ---------------------------------------------------------------------------------------


def test_bad_values_are_refused_and_write_nothing(tmp_path: Path) -> None:
    def made(name: str, value: float) -> Path:
        weights = random_weights(SPEC)
        weights[name].flat[7] = value
        return write_model(tmp_path / "x.gguf", SPEC, weights)

    for name, value, type, message in (
        ("blk.0.ffn_up.weight", np.nan, "Q8_0", "'blk.0.ffn_up.weight'.*NaN"),
        ("blk.1.ffn_down.weight", np.inf, "Q4_0", "'blk.1.ffn_down.weight'.*NaN or infinite"),
        ("blk.0.attn_norm.weight", np.inf, "Q4_0", "'blk.0.attn_norm.weight' has 1 NaN"),
        ("blk.0.ffn_up.weight", np.nan, "BF16", "'blk.0.ffn_up.weight' has 1 NaN"),
        ("blk.0.ffn_up.weight", 1e5, "F16", "up to 1e.05, too large for F16"),
    ):
        path = made(name, value)
        with pytest.raises(ModelError, match=message):
            quantized(path, tmp_path / "y.gguf", type)
        assert [p.name for p in tmp_path.iterdir()] == ["x.gguf"]


def test_wrong_arguments(tiny: tuple[Path, Weights], tmp_path: Path) -> None:
    path, weights = tiny
    with pytest.raises(ModelError, match="is the source; choose another name"):
        quantized(path, path)
    with pytest.raises(ModelError, match="IQ1_S, which can be read here but not written"):
        weighed = importance_of(weights)
        quantized(path, tmp_path / "y.gguf", "IQ1_S", importance=weighed)
    other = importance_of({"blk.0.ffn_up.weight": np.ones(7, np.float32)})
    with pytest.raises(
        ModelError,
        match=r"7 columns for 'blk.0.ffn_up.weight', the tensor 256: it belongs to another model",
    ):
        quantized(path, tmp_path / "y.gguf", "Q4_K_M", importance=other)
    with pytest.raises(GGUFError, match="cannot be overridden"):
        quantized(path, tmp_path / "y.gguf", overrides={"llama.block_count": "two"})
    with pytest.raises(GGUFError, match="no such directory"):
        quantized(path, tmp_path / "none" / "y.gguf")
    with pytest.raises(GGUFError, match=re.escape("not a GGUF file")):
        (tmp_path / "bad.gguf").write_bytes(b"nothing of the kind, but long enough to be read")
        quantized(tmp_path / "bad.gguf", tmp_path / "y.gguf")
    assert not (tmp_path / "y.gguf").exists()


def test_a_dry_run_writes_nothing(tiny: tuple[Path, Weights], tmp_path: Path) -> None:
    plan = quantize_model(tiny[0], None, find_file_type("IQ2_XXS"))
    assert not list(tmp_path.iterdir())
    assert any(t.needs_imatrix for t in plan.tensors)
    assert plan.nbytes < plan.source_nbytes / 5
    assert plan.n_elements * 4 == plan.source_nbytes
