"""Checkpoints in MXFP4: the same blocks in GGUF, or floats where rows do not stay whole."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from pyggml.dtype import GGMLType
from pyggml.gguf import GGUFFile
from pyllama import Model
from pyllama.arch import Arch, get_arch
from pyllama.convert import convert
from pyllama.convert.files.folder import Folder
from pyllama.convert.files.safetensors import read_safetensors
from pyllama.convert.outtype import tensor_chunks, tensor_type
from pyllama.convert.plan import ConvertedTensor, plan_tensors
from pyllama.convert.quantized.methods import decode_checkpoint
from pyllama.mapping.rules import Array, Config, Convert, Tensors

from ..arch import llama_cpp
from ..arch.checkpoints import write_checkpoint
from ..models import hf_folder
from .folders import write_safetensors
from .test_quantized import FP4, METHODS, config

N_EXPERT, N_OUT, N_IN = 3, 10, 64
like_gpt_oss = get_arch("gpt-oss").CONVERT.change
MXFP4, BF16, F32 = GGMLType.MXFP4, GGMLType.BF16, GGMLType.F32


def random_blocks(*rows: int) -> tuple[np.ndarray, np.ndarray]:
    """All codes, [..., n, 32], and exponents [..., n], also at the ends of their range."""
    rng = np.random.default_rng(len(rows))
    codes = rng.integers(0, 16, (*rows, N_IN // 32, 32))
    codes[..., 0, :] %= 4  # a block with small codes only has other bytes if it is quantized anew
    exponents = rng.integers(110, 130, codes.shape[:-1])
    exponents.reshape(-1)[:4] = (0, 1, 2, 251)
    return codes, exponents


def stored_blocks(codes: np.ndarray) -> np.ndarray:
    """gpt-oss': value 2j is in the lower half of byte j."""
    return (codes[..., ::2] | codes[..., 1::2] << 4).astype(np.uint8)


def gguf_blocks(codes: np.ndarray, exponents: np.ndarray) -> bytes:
    """GGUF's: the exponent, and value j in the lower half of byte j."""
    half = codes[..., :16] | codes[..., 16:] << 4
    return np.concatenate((exponents[..., None], half), axis=-1).astype(np.uint8).tobytes()


def values(codes: np.ndarray, exponents: np.ndarray) -> np.ndarray:
    x = FP4[codes].astype(np.float64) * 2.0 ** (exponents[..., None] - 127.0)
    return x.reshape(*codes.shape[:-2], -1).astype(np.float32)


def plan(
    folder: Path, codes: np.ndarray, exponents: np.ndarray, change: Callable[..., Tensors]
) -> dict[str, ConvertedTensor]:
    tensors = {
        f"layers.0.{part}_{end}": x
        for part in ("gate_up", "down")
        for end, x in (("blocks", stored_blocks(codes)), ("scales", exponents.astype(np.uint8)))
    }
    path = write_safetensors(folder / "model.safetensors", tensors)
    settings = {"quantization_config": {"quant_method": "mxfp4"}}
    decoded = decode_checkpoint(Folder(folder), read_safetensors(path), settings)
    names = {
        "layers.{i}.gate_up": "blk.{i}.ffn_gate_up_exps.weight",
        "layers.{i}.down": "blk.{i}.ffn_down_exps.weight",
    }
    rules = Convert(("Mine",), names, lambda config: {}, change, extra=lambda config: {})
    arch = cast(Arch, SimpleNamespace(TENSORS={}, CONVERT=rules))
    return {one.name: one for one in plan_tensors(folder, decoded, {}, arch)}


def written(one: ConvertedTensor, type: GGMLType) -> bytes:
    return b"".join(piece.tobytes() for piece in tensor_chunks(one, type))


def test_blocks_are_kept(tmp_path: Path) -> None:
    codes, exponents = random_blocks(N_EXPERT, N_OUT)
    planned = plan(tmp_path, codes, exponents, like_gpt_oss)
    for part, rows in (
        ("gate", slice(0, None, 2)),
        ("up", slice(1, None, 2)),
        ("down", slice(None)),
    ):
        one = planned[f"blk.0.ffn_{part}_exps.weight"]
        assert one.shape == (N_EXPERT, N_OUT // (2 if part != "down" else 1), N_IN)
        assert tensor_type(one, BF16) is MXFP4
        assert written(one, MXFP4) == gguf_blocks(codes[:, rows], exponents[:, rows])
        assert tensor_type(one, F32) is F32
        wanted = values(codes[:, rows], exponents[:, rows])
        assert np.array_equal(np.frombuffer(written(one, F32), np.float32), wanted.reshape(-1))


def computes(name: str, x: Array, config: Config) -> Tensors:
    return {name: x.swapaxes(-1, -2) * 2}


def copies(name: str, x: Array, config: Config) -> Tensors:
    return {name: np.concatenate((x.swapaxes(-1, -2)[:, 1:], x.swapaxes(-1, -2)[:, :1]), axis=1)}


def stays_transposed(name: str, x: Array, config: Config) -> Tensors:
    return {name: x}


def takes_some_columns(name: str, x: Array, config: Config) -> Tensors:
    return {name: x.swapaxes(-1, -2)[..., 1:33]}


def test_copied_rows_stay_blocks(tmp_path: Path) -> None:
    codes, exponents = random_blocks(N_EXPERT, N_OUT)
    (one, _) = plan(tmp_path, codes, exponents, copies).values()
    assert tensor_type(one, BF16) is MXFP4
    assert written(one, MXFP4) == gguf_blocks(np.roll(codes, -1, 1), np.roll(exponents, -1, 1))


@pytest.mark.parametrize("change", [computes, stays_transposed, takes_some_columns])
def test_rows_that_do_not_stay_whole_become_floats(
    tmp_path: Path, change: Callable[..., Tensors]
) -> None:
    codes, exponents = random_blocks(N_EXPERT, N_OUT)
    (one, _) = plan(tmp_path, codes, exponents, change).values()
    assert tensor_type(one, BF16) is (BF16 if one.shape[-1] != 1 else F32) and not one.blocks
    x = values(codes, exponents).swapaxes(-1, -2)
    (wanted,) = change(one.name, x, {}).values()
    assert np.array_equal(np.frombuffer(written(one, F32), np.float32), wanted.reshape(-1))


@pytest.mark.parametrize(
    ("outtype", "number", "name"),
    [
        ("auto", 38, "MXFP4_MOE"),
        ("bf16", 38, "MXFP4_MOE"),
        ("q8_0", 7, "Q8_0"),
        ("f32", 0, "F32"),
    ],
)
def test_a_whole_model(tmp_path: Path, outtype: str, number: int, name: str) -> None:
    settings, method = METHODS["ct-mxfp4"]
    folder = hf_folder(tmp_path / "Tiny")
    stored: dict[str, Any] = {}
    for key, tensor in read_safetensors(folder / "model.safetensors").items():
        parts = {"weight": (tensor.read().view(np.uint32) >> 16).astype(np.uint16)}
        if "_proj" in key:
            parts = cast(Any, method(tensor.shape, np.random.default_rng(0))[0])
        stored |= {key.removesuffix("weight") + end: x for end, x in parts.items()}
    write_safetensors(folder / "model.safetensors", stored)
    config(folder, quantization_config=settings)
    path = convert(folder, tmp_path / "x-{FTYPE}.gguf", outtype)
    assert path.name == f"x-{name}.gguf"
    kept = outtype != "f32"
    with GGUFFile(path) as file:
        assert file.get_int("general.file_type") == number
        kinds = {t.type for n, t in file.tensors.items() if "ffn_up" in n or "attn_v" in n}
        assert kinds == {MXFP4 if kept else F32}
        if kept:
            scale = stored["model.layers.0.mlp.up_proj.weight_scale"]
            blocks = file.tensor_bytes("blk.0.ffn_up.weight").reshape(-1, 17)
            assert blocks[:, 0].tolist() == scale.reshape(-1).tolist()
    assert Model.load(path).n_params > 0


def gpt_oss(tmp_path: Path) -> tuple[Path, dict[str, tuple[np.ndarray, np.ndarray]]]:
    """A checkpoint with its experts in MXFP4, and their codes and exponents."""
    folder = write_checkpoint(tmp_path / "gpt-oss", "gpt-oss")
    stored: dict[str, np.ndarray] = {}
    experts = {}
    for key, tensor in read_safetensors(folder / "model.safetensors").items():
        if "experts" not in key or key.endswith("bias"):
            stored[key] = tensor.read()
            continue
        n_expert, n_in, n_out = tensor.shape  # blocks are those of the transposed matrix
        rng = np.random.default_rng(len(key))
        codes = rng.integers(0, 16, (n_expert, n_out, n_in // 32, 32))
        experts[key] = codes, rng.integers(118, 122, codes.shape[:-1])
        stored[f"{key}_blocks"] = stored_blocks(codes)
        stored[f"{key}_scales"] = experts[key][1].astype(np.uint8)
    write_safetensors(folder / "model.safetensors", stored)
    config(folder, quantization_config={"quant_method": "mxfp4"})
    return folder, experts


def test_gpt_oss(tmp_path: Path) -> None:
    folder, experts = gpt_oss(tmp_path)
    kept, floats = (convert(folder, tmp_path / f"{type}.gguf", type) for type in ("bf16", "f32"))
    with GGUFFile(kept) as file, GGUFFile(floats) as decoded:
        assert file.get_int("general.file_type") == 38
        for i in range(4):
            codes, exponents = experts[f"model.layers.{i}.mlp.experts.gate_up_proj"]
            parts = {
                "gate": (codes[:, ::2], exponents[:, ::2]),
                "up": (codes[:, 1::2], exponents[:, 1::2]),
                "down": experts[f"model.layers.{i}.mlp.experts.down_proj"],
            }
            for part, blocks in parts.items():
                name = f"blk.{i}.ffn_{part}_exps.weight"
                assert file.tensors[name].type is MXFP4
                assert file.tensor_bytes(name).tobytes() == gguf_blocks(*blocks)
                numbers = decoded.tensor_bytes(name).view(np.float32)
                np.testing.assert_array_equal(numbers, values(*blocks).reshape(-1))
    assert Model.load(kept).n_params == Model.load(floats).n_params


@pytest.mark.long
@pytest.mark.skipif("LLAMA_CPP_SOURCES" not in os.environ, reason="needs llama.cpp's converter")
def test_llama_cpps_converter_writes_the_same_blocks(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    folder, _ = gpt_oss(tmp_path)
    ours = convert(folder, tmp_path / "ours.gguf", "bf16")
    theirs = llama_cpp.convert(folder, tmp_path / "theirs.gguf")
    with GGUFFile(ours) as a, GGUFFile(theirs) as b:
        assert a.tensors.keys() == b.tensors.keys()
        assert a.get_int("general.file_type") == b.get_int("general.file_type")
        names = [name for name, tensor in b.tensors.items() if tensor.type is MXFP4]
        assert len(names) == 12
        for name in names:
            assert a.tensor_bytes(name).tobytes() == b.tensor_bytes(name).tobytes()
