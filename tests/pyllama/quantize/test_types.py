"""The choice of tensor types: llama.cpp's rules, and overrides."""

from __future__ import annotations

import gzip
import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from pyggml.dtype import GGMLType
from pyllama.errors import ModelError
from pyllama.quantize import FILE_TYPES, TypeOverrides, find_file_type, find_tensor_type
from pyllama.quantize.rules import choose_types

from ...tiers import some
from .shapes import MODELS, Shape, letter

DATA = Path(__file__).resolve().parents[2] / "data" / "quantize" / "types.json.gz"
RECORDED: dict[str, str] = json.loads(gzip.decompress(DATA.read_bytes()))


def chosen(
    shape: Shape, file_type: str, type_overrides: TypeOverrides | None = None
) -> dict[str, GGMLType]:
    """Types by name, of all tensors."""
    tensors = shape.tensors()
    found = choose_types(
        tensors, find_file_type(file_type), shape.sizes, type_overrides or TypeOverrides()
    )
    return {t.name: found[t.name].type if t.name in found else t.type for t in tensors}


@pytest.mark.parametrize("model", some(MODELS, 4))
def test_types_match_llama_cpp(model: str) -> None:
    """Every tensor in every file type, with and without an importance matrix."""
    cases = [key.split(" ") for key in RECORDED if key.split(" ")[0] == model]
    assert len(cases) == 2 * (len(FILE_TYPES) - 1)
    for _, file_type, kind in cases:
        got = chosen(MODELS[model], file_type, TypeOverrides(imatrix=kind == "imatrix"))
        want = RECORDED[f"{model} {file_type} {kind}"]
        if not want:  # llama.cpp refuses rows that do not fill blocks of 128: it has no replacement
            assert file_type == "Q1_0"
            continue
        wrong = [(n, t.name) for (n, t), w in zip(got.items(), want, strict=True) if letter(t) != w]
        assert not wrong, (file_type, kind)


def test_type_overrides_take_priority() -> None:
    shape = MODELS["llama"]
    type_overrides = TypeOverrides(
        output_type=GGMLType.F16,
        token_embedding_type=GGMLType.Q5_1,
        tensor_types=(
            (re.compile(r"blk\.0\.ffn_down"), GGMLType.BF16),
            (re.compile("ffn_down|attn_v"), GGMLType.Q8_0),
            (re.compile("norm|embd"), GGMLType.Q4_1),
        ),
    )
    got = chosen(shape, "Q4_K_M", type_overrides)
    assert got["output.weight"] is GGMLType.F16
    assert got["token_embd.weight"] is GGMLType.Q5_1
    assert got["blk.0.ffn_down.weight"] is GGMLType.BF16
    assert got["blk.1.ffn_down.weight"] is got["blk.9.attn_v.weight"] is GGMLType.Q8_0
    assert got["blk.1.ffn_up.weight"] is GGMLType.Q4_K
    assert got["output_norm.weight"] is GGMLType.F32


def test_pure_and_leave_output() -> None:
    got = chosen(MODELS["llama"], "Q4_K_M", TypeOverrides(pure=True, leave_output=True))
    matrices = {t for n, t in got.items() if "norm" not in n and n != "output.weight"}
    assert matrices == {GGMLType.Q4_K}
    assert got["output.weight"] is GGMLType.F32


def test_powerinfer_rules() -> None:
    """Predictors are Q4_0 in Q4_0 files, else Q5_0; transposed ffn_down has the plain type."""
    shape = MODELS["llama-grouped-tied"]
    renamed = [
        replace(t, name=t.name.replace("ffn_down", "ffn_down_t")) for t in shape.tensors()
    ] + [replace(shape.tensors()[-1], name=f"blk.0.fc{i}.weight") for i in (1, 2)]
    wanted = {"Q4_0": ("Q4_0", "Q4_0"), "Q8_0": ("Q5_0", "Q8_0"), "Q4_K_M": ("Q5_0", "Q4_K")}
    for name, (predictor, matrix) in wanted.items():
        type_overrides = TypeOverrides(powerinfer=True)
        got = choose_types(renamed, find_file_type(name), shape.sizes, type_overrides)
        types = {n: c.type.name for n, c in got.items()}
        assert types["blk.0.fc1.weight"] == types["blk.0.fc2.weight"] == predictor
        assert types["blk.0.ffn_down_t.weight"] == types["token_embd.weight"] == matrix
        pure = choose_types(
            renamed, find_file_type(name), shape.sizes, replace(type_overrides, pure=True)
        )
        assert {c.type.name for c in pure.values()} == {matrix}


def test_find_file_type_and_tensor_type() -> None:
    assert find_file_type("q4_k").name == find_file_type("15").name == "Q4_K_M"
    assert find_file_type("0").name == "F32"
    for text in ("Q4", "99", "-1", "", "Q4_0 "):
        with pytest.raises(ModelError, match="unknown file type"):
            find_file_type(text)
    assert find_tensor_type("q8_0") is GGMLType.Q8_0
    for text in ("i32", "q9", ""):
        with pytest.raises(ModelError, match="cannot be quantized to"):
            find_tensor_type(text)
