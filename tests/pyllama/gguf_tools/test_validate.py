"""Validation: every injected fault is named, and a valid file has none."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from pyggml.dtype import GGMLType
from pyggml.gguf import GGUFFile, write_gguf
from pyllama.gguf_tools.validate import validate

from ..models import Spec, Weights, random_weights, write_model

SPEC = Spec(n_ff=64)
Change = Callable[[Weights], Weights]


def good(path: Path, weights: Weights | None = None, **metadata: Any) -> Path:
    keys = {key.replace("__", "."): value for key, value in metadata.items()}
    return write_model(path, SPEC, weights or random_weights(SPEC), GGMLType.Q4_0, keys)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "x.gguf"


def spoil(path: Path, name: str, at: int, value: bytes) -> None:
    """Overwrite bytes of a tensor."""
    with GGUFFile(path) as f:
        start = f.tensors[name].offset + at
    data = bytearray(path.read_bytes())
    data[start : start + len(value)] = value
    path.write_bytes(data)


def test_a_valid_file_has_no_faults(path: Path) -> None:
    done: list[float] = []
    report = validate(good(path), done.append)
    assert (report.faults, report.notes, report.n_tensors) == ([], [], 20)
    assert done == sorted(done) and done[-1] == 1


def test_all_bad_weights_are_found(path: Path) -> None:
    good(path)
    spoil(path, "blk.0.attn_norm.weight", 8, np.float32(np.nan).tobytes())
    spoil(path, "blk.1.ffn_up.weight", 18 * 5, np.float16(-np.inf).tobytes())
    spoil(path, "blk.1.ffn_up.weight", 18 * 9, np.float16(np.nan).tobytes())
    assert validate(path).faults == [
        "tensor 'blk.0.attn_norm.weight' (F32): 1 of 32 NaN or infinite, the first at 2",
        "tensor 'blk.1.ffn_up.weight' (Q4_0): 2 of 64 blocks with an illegal scale, the first at 5",
    ]


def test_all_wrong_shapes_are_found(path: Path) -> None:
    weights = random_weights(SPEC)
    weights["blk.0.attn_q.weight"] = np.ones((64, 32), np.float32)
    weights["odd.weight"] = weights.pop("blk.1.ffn_down.weight")
    faults = "\n".join(validate(good(path, weights)).faults)
    for text in ("'blk.0.attn_q.weight' has sizes", "'blk.1.ffn_down.weight' is missing", "odd"):
        assert text in faults


def test_sparse_layers(path: Path) -> None:
    weights = random_weights(SPEC)
    for i in range(SPEC.n_layer):
        down = weights.pop(f"blk.{i}.ffn_down.weight")
        weights[f"blk.{i}.ffn_down_t.weight"] = np.ascontiguousarray(down.T)
        weights[f"blk.{i}.fc1.weight"] = np.ones((32, SPEC.n_embd), np.float32)
        weights[f"blk.{i}.fc2.weight"] = np.ones((SPEC.n_ff, 32), np.float32)
    assert not validate(good(path, weights)).faults
    weights["blk.1.fc1.weight"] = np.ones((64, SPEC.n_embd), np.float32)
    (fault,) = validate(good(path, weights)).faults
    assert "'blk.1.fc2.weight' has sizes [32, 64, 1, 1], must have rows of 64" in fault
    del weights["blk.0.fc2.weight"]
    weights["blk.1.ffn_down_t.weight"] = weights["blk.1.ffn_down_t.weight"].T.copy()
    faults = "\n".join(validate(good(path, weights)).faults)
    assert "'blk.0.fc2.weight' is missing" in faults
    assert "'blk.1.ffn_down_t.weight' has sizes [64, 32, 1, 1], want [32, 64, 1, 1]" in faults


@pytest.mark.parametrize(
    ("metadata", "fault"),
    [
        ({"tokenizer__ggml__bos_token_id": "<s>"}, "bos_token_id is '<s>', want a token id"),
        ({"tokenizer__ggml__scores": np.zeros(3, np.float32)}, "scores has 3 entries for 261"),
        ({"tokenizer__ggml__token_type": "x"}, "token_type' is STRING"),
        ({"llama__attention__head_count": 0}, "attention.head_count = 0"),
    ],
)
def test_metadata(path: Path, metadata: dict[str, Any], fault: str) -> None:
    assert any(fault in line for line in validate(good(path, **metadata)).faults)


def test_a_special_token_that_is_none_is_no_fault(path: Path) -> None:
    report = validate(good(path, tokenizer__ggml__padding_token_id=np.uint32(0xFFFFFFFF)))
    assert not report.faults
    assert any("padding_token_id is 4294967295" in note for note in report.notes)


def test_shapes_of_a_model_without_a_vocabulary(path: Path) -> None:
    keys = {"tokenizer.ggml.model": "none", "tokenizer.ggml.tokens": None, "llama.vocab_size": 261}
    wrong = random_weights(SPEC)
    write_model(path, SPEC, wrong, metadata=keys)
    assert not validate(path).faults
    write_model(path, SPEC, wrong, metadata=keys | {"llama.vocab_size": 260})
    assert any("'token_embd.weight' has sizes" in line for line in validate(path).faults)


def test_unknown_models_are_checked_without_shapes(path: Path) -> None:
    values = np.array([1, np.inf], np.float32)
    for metadata, note in (
        ({"general.architecture": "clip"}, "clip"),
        ({"general.architecture": "llama"}, "there is no tokenizer.ggml.tokens"),
    ):
        write_gguf(path, metadata, {"w": values})
        report = validate(path)
        assert len(report.faults) == 1 and "NaN or infinite" in report.faults[0]
        assert note in report.notes[0]
    write_gguf(path, {}, {})
    report = validate(path)
    assert not report.faults and "there are no tensors" in report.notes[0]


def test_a_k_quantized_matrix_is_not_a_fault(path: Path) -> None:
    """A K-quantized matrix is valid if its rows are multiples of 256."""
    spec = Spec(n_embd=256, n_ff=256)
    weights = random_weights(spec)
    name = "blk.0.ffn_up.weight"
    with GGUFFile(write_model(path, spec, weights, GGMLType.F16)) as f:
        tensors: dict[str, Any] = {
            n: (f.tensor_bytes(n).tobytes(), t.type, t.ne[: t.n_dims]) for n, t in f.tensors.items()
        }
        metadata = f.typed_metadata()
    kind = gguf.GGMLQuantizationType.Q4_K
    n_bytes = gguf.quant_shape_to_byte_shape((256, 256), kind)
    tensors[name] = (np.zeros(n_bytes, np.uint8), GGMLType.Q4_K, (256, 256))
    write_gguf(path, metadata, tensors)
    assert not validate(path).faults
