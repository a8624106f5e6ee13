"""Quantized checkpoints: the values of each method from its definition, and damaged files.

A method of ``METHODS`` makes random codes and scales of a weight, in the form of the checkpoint,
and the weight that they mean. The folder must convert to the same file as one of these weights.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pyggml.dtype import GGMLType
from pyggml.gguf import GGUFFile
from pyggml.quants import dequantize
from pyllama import Model
from pyllama.convert import ConvertOptions, convert
from pyllama.convert.files.decoded import PackedBlocks
from pyllama.convert.files.folder import Folder
from pyllama.convert.files.safetensors import read_safetensors
from pyllama.convert.outtype import scaled_or_floats
from pyllama.convert.plan import ConvertedTensor, _scales
from pyllama.convert.quantized.methods import decode_checkpoint
from pyllama.errors import ModelError

from ...tiers import some
from ..arch import llama_cpp
from ..models import hf_folder, hf_weights
from .folders import Bytes, write_safetensors

Stored = dict[str, np.ndarray | Bytes]
# shape, generator -> what a checkpoint has in place of "weight", and the weight
Method = Callable[[tuple[int, ...], np.random.Generator], tuple[Stored, np.ndarray]]

GROUP = 32


def bf16(x: np.ndarray) -> np.ndarray:
    """Numbers that BF16 has."""
    return (x.astype(np.float32).view(np.uint32) & 0xFFFF0000).view(np.float32)


def as_bf16(x: np.ndarray) -> np.ndarray:
    return (x.view(np.uint32) >> 16).astype(np.uint16)


def e4m3(code: int) -> float:
    exponent, mantissa = code >> 3 & 15, code & 7
    x = (8 + mantissa) * 2.0 ** (exponent - 10) if exponent else mantissa * 2.0**-9
    return -x if code & 128 else x


E4M3 = np.array([e4m3(i) for i in range(256)], np.float32)
CODES = np.array([i for i in range(256) if i & 127 != 127], np.uint8)  # no NaN
FP4 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], np.float32)


def scales(shape: tuple[int, ...], rng: np.random.Generator) -> np.ndarray:
    return bf16(rng.uniform(0.001, 0.01, shape))


# --- 8 bits and scales ----------------------------------------------------------------------------


def blocks(shape: tuple[int, ...], rng: np.random.Generator) -> tuple[Stored, np.ndarray]:
    codes = rng.choice(CODES, shape)
    scale = scales((*shape[:-2], -(-shape[-2] // 48), -(-shape[-1] // 40)), rng)
    weight = E4M3[codes]
    for at in np.ndindex(shape):
        weight[at] *= scale[(*at[:-2], at[-2] // 48, at[-1] // 40)]
    return {"weight": Bytes("F8_E4M3", codes), "weight_scale_inv": scale}, weight


def rows(shape: tuple[int, ...], rng: np.random.Generator) -> tuple[Stored, np.ndarray]:
    codes, scale = rng.choice(CODES, shape), scales((*shape[:-1], 1), rng)
    stored: Stored = {"weight": Bytes("F8_E4M3", codes), "weight_scale": as_bf16(scale)}
    return stored, E4M3[codes] * scale


def whole(shape: tuple[int, ...], rng: np.random.Generator) -> tuple[Stored, np.ndarray]:
    codes, scale = (rng.integers(0, 0x7C, shape)).astype(np.uint8), scales((1,), rng)
    stored: Stored = {"weight": Bytes("F8_E5M2", codes), "weight_scale": scale.reshape(())}
    stored["input_scale"] = np.ones(1, np.float32)
    return stored, (codes.astype(np.uint16) << 8).view(np.float16).astype(np.float32) * scale


def ints(shape: tuple[int, ...], rng: np.random.Generator) -> tuple[Stored, np.ndarray]:
    codes, scale = rng.integers(-128, 128, shape).astype(np.int8), scales((shape[0], 1), rng)
    zero = rng.integers(-9, 9, (shape[0], 1)).astype(np.int8)
    stored: Stored = {"weight": codes, "weight_scale": scale, "weight_zero_point": zero}
    return stored, (codes.astype(np.float32) - zero) * scale


# --- ints in words of 32 bits ---------------------------------------------------------------------


def words(codes: np.ndarray, bits: int, order: list[int] | None = None) -> np.ndarray:
    """Pack along the last dimension, each word from its lowest bits; the last may have fewer."""
    n = 32 // bits
    missing = -codes.shape[-1] % n
    padded = np.pad(codes, [(0, 0)] * (codes.ndim - 1) + [(0, missing)])
    out = np.zeros((*codes.shape[:-1], padded.shape[-1] // n), np.uint32)
    for i in range(n):
        out |= padded[..., (order or range(n))[i] :: n].astype(np.uint32) << np.uint32(bits * i)
    return out.view(np.int32)


def swapped(x: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(x.swapaxes(-1, -2))


def groups_of(
    shape: tuple[int, ...], bits: int, rng: np.random.Generator, low: int = 0
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Codes [..., n_out, n_in], zeros and scales [..., n_out, n_groups]."""
    per_group = (*shape[:-1], shape[-1] // GROUP)
    codes, zeros = rng.integers(0, 1 << bits, shape), rng.integers(low, 1 << bits, per_group)
    return codes, zeros, rng.uniform(0.001, 0.01, per_group).astype(np.float16)


def meaning(
    codes: np.ndarray, zeros: np.ndarray, scale: np.ndarray, g_idx: np.ndarray | None = None
) -> np.ndarray:
    g = np.arange(codes.shape[-1]) // GROUP if g_idx is None else g_idx
    numbers = (codes - zeros[..., g]).astype(np.float32)
    return numbers * scale.astype(np.float32)[..., g]


def gptq(bits: int, less: int, in_order: bool = True) -> Method:
    def method(shape: tuple[int, ...], rng: np.random.Generator) -> tuple[Stored, np.ndarray]:
        codes, zeros, scale = groups_of(shape, bits, rng, less)
        g_idx = (np.arange(shape[-1]) // GROUP).astype(np.int32)
        if not in_order:
            g_idx = rng.permutation(g_idx)
        stored: Stored = {
            "qweight": swapped(words(codes, bits)),
            "qzeros": words(swapped(zeros - less), bits),
            "scales": swapped(scale),
            "g_idx": np.broadcast_to(g_idx, (*shape[:-2], shape[-1])),
        }
        return stored, meaning(codes, zeros, scale, g_idx)

    return method


def awq(shape: tuple[int, ...], rng: np.random.Generator) -> tuple[Stored, np.ndarray]:
    order = [0, 2, 4, 6, 1, 3, 5, 7]
    codes, zeros, scale = groups_of(shape, 4, rng)
    stored: Stored = {
        "qweight": words(swapped(codes), 4, order),
        "qzeros": words(swapped(zeros), 4, order),
        "scales": swapped(scale),
    }
    return stored, meaning(codes, zeros, scale)


def packed(bits: int, zero: str = "", ordered: bool = False) -> Method:
    def method(shape: tuple[int, ...], rng: np.random.Generator) -> tuple[Stored, np.ndarray]:
        codes, zeros, scale = groups_of(shape, bits, rng)
        half = 1 << bits - 1
        stored: Stored = {
            "weight_packed": words(codes, bits),
            "weight_scale": scale,
            "weight_shape": np.array(shape, np.int64),
        }
        g_idx = None
        if zero == "packed":
            stored["weight_zero_point"] = swapped(words(swapped(zeros), bits))
        elif zero == "bytes":
            stored["weight_zero_point"] = (zeros - half).astype(np.int8)
        else:
            zeros = np.full_like(zeros, half)
        if ordered:
            g_idx = rng.permutation(np.arange(shape[-1]) // GROUP).astype(np.int32)
            stored["weight_g_idx"] = g_idx
        return stored, meaning(codes, zeros, scale, g_idx)

    return method


def mxfp4(shape: tuple[int, ...], rng: np.random.Generator) -> tuple[Stored, np.ndarray]:
    codes = rng.integers(0, 16, shape)
    scale = rng.integers(115, 122, (*shape[:-1], shape[-1] // 32)).astype(np.uint8)
    pairs = (codes[..., ::2] | codes[..., 1::2] << 4).astype(np.uint8)
    factor = np.repeat(2.0 ** (scale.astype(np.float32) - 127), 32, axis=-1)
    return {"weight_packed": pairs, "weight_scale": scale}, FP4[codes] * factor


def v4_blocks(shape: tuple[int, ...], rng: np.random.Generator) -> tuple[Stored, np.ndarray]:
    codes = rng.choice(CODES, shape)
    per_block = (*shape[:-2], -(-shape[-2] // 48), -(-shape[-1] // 40))
    scale = rng.integers(115, 122, per_block).astype(np.uint8)
    weight = E4M3[codes]
    for at in np.ndindex(shape):
        weight[at] *= 2.0 ** (int(scale[(*at[:-2], at[-2] // 48, at[-1] // 40)]) - 127)
    return {"weight": Bytes("F8_E4M3", codes), "scale": Bytes("F8_E8M0", scale)}, weight


def v4_expert(shape: tuple[int, ...], rng: np.random.Generator) -> tuple[Stored, np.ndarray]:
    stored, weight = mxfp4(shape, rng)
    codes, scale = (np.asarray(stored[f"weight_{part}"]) for part in ("packed", "scale"))
    return {"weight": codes.view(np.int8), "scale": Bytes("F8_E8M0", scale)}, weight


def nvfp4(modelopt: bool) -> Method:
    def method(shape: tuple[int, ...], rng: np.random.Generator) -> tuple[Stored, np.ndarray]:
        codes = rng.integers(0, 16, shape)
        scale = rng.integers(40, 127, (*shape[:-1], shape[-1] // 16)).astype(np.uint8)
        pairs = (codes[..., ::2] | codes[..., 1::2] << 4).astype(np.uint8)
        whole = np.float32(2.0**-9) * rng.integers(3, 20).astype(np.float32)
        weight = FP4[codes] * np.repeat(E4M3[scale], 16, axis=-1)
        stored: Stored = {"weight_scale": Bytes("F8_E4M3", scale)}
        if modelopt:
            stored |= {"weight": pairs, "weight_scale_2": whole.reshape(())}
            stored |= {"input_scale": np.float32([0.25]), "k_scale": np.float32([2])}
        else:
            stored |= {"weight_packed": pairs, "weight_global_scale": (1 / whole).reshape(1)}
            stored |= {"input_global_scale": np.float32([4])}
            whole = np.float32(1) / (np.float32(1) / whole)
        return stored, weight * whole

    return method


# --- all of them ----------------------------------------------------------------------------------


def compressed(kind: str, **weights: Any) -> dict[str, Any]:
    group = {"targets": ["Linear"], "weights": weights}
    return {"quant_method": "compressed-tensors", "format": kind, "config_groups": {"g": group}}


def ct_group(bits: int) -> dict[str, Any]:
    return compressed(
        "pack-quantized", num_bits=bits, type="int", strategy="group", group_size=GROUP
    )


GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": GROUP}
CT_FP8 = compressed("float-quantized", num_bits=8, type="float", strategy="channel")
METHODS: dict[str, tuple[dict[str, Any], Method]] = {
    "fp8-blocks": ({"quant_method": "fp8", "weight_block_size": [48, 40]}, blocks),
    "fp8-rows": ({"quant_method": "fbgemm_fp8"}, rows),
    "fp8-whole": ({"quant_method": "fp8", "weight_block_size": None}, whole),
    "fp8-v4": ({"quant_method": "fp8", "weight_block_size": [48, 40]}, v4_blocks),
    "fp4-v4": ({"quant_method": "fp8", "weight_block_size": [48, 40]}, v4_expert),
    "fp8-modelopt": ({"quant_method": "modelopt", "quant_algo": "FP8"}, whole),
    "ct-fp8-rows": (CT_FP8, rows),
    "ct-fp8-whole": (CT_FP8, whole),
    "ct-int8": (compressed("int-quantized", num_bits=8, type="int", strategy="channel"), ints),
    "gptq-4": (GPTQ, gptq(4, 1)),
    "gptq-8": (GPTQ | {"bits": 8, "checkpoint_format": "gptq"}, gptq(8, 1)),
    "gptq-v2-4": (GPTQ | {"checkpoint_format": "gptq_v2"}, gptq(4, 0)),
    "gptq-v2-8": (GPTQ | {"bits": 8, "checkpoint_format": "gptq_v2"}, gptq(8, 0)),
    "gptq-act-order": (GPTQ | {"desc_act": True}, gptq(4, 1, in_order=False)),
    "awq": ({"quant_method": "awq", "bits": 4, "group_size": GROUP, "version": "gemm"}, awq),
    "ct-4": (ct_group(4), packed(4)),
    "ct-8": (ct_group(8), packed(8)),
    "ct-3": (ct_group(3), packed(3)),
    "ct-4-zeros": (ct_group(4), packed(4, "packed")),
    "ct-8-zeros": (ct_group(8), packed(8, "packed")),
    "ct-5-zeros": (ct_group(5), packed(5, "packed")),
    "ct-4-zeros-in-bytes": (ct_group(4), packed(4, "bytes")),
    "ct-4-act-order": (ct_group(4), packed(4, "packed", ordered=True)),
    "ct-mxfp4": (compressed("mxfp4-pack-quantized", num_bits=4, type="float"), mxfp4),
    "ct-nvfp4": (compressed("nvfp4-pack-quantized", num_bits=4, type="float"), nvfp4(False)),
    "nvfp4": ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, nvfp4(True)),
}


def config(folder: Path, **changes: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def quantize(folder: Path, name: str, which: str = ".1.") -> dict[str, np.ndarray]:
    """Quantize the matrices of layers whose name has ``which``; return what all weights mean."""
    settings, method = METHODS[name]
    rng = np.random.default_rng(0)
    path = folder / "model.safetensors"
    weights, stored = {}, dict[str, np.ndarray | Bytes]()
    for key, tensor in read_safetensors(path).items():
        if not key.endswith("_proj.weight") or which not in key:
            weights[key] = stored[key] = bf16(tensor.read())
            continue
        parts, weights[key] = method(tensor.shape, rng)
        stored |= {key.removesuffix("weight") + end: x for end, x in parts.items()}
    config(folder, quantization_config=settings)
    write_safetensors(path, stored)
    return weights


@pytest.mark.parametrize("name", some(METHODS, 10))
def test_a_folder_converts_as_if_it_had_not_been_quantized(tmp_path: Path, name: str) -> None:
    plain, folder = hf_folder(tmp_path / "plain"), hf_folder(tmp_path / "quantized")
    weights = quantize(folder, name)
    write_safetensors(plain / "model.safetensors", weights)
    read = hf_weights(convert(folder, tmp_path / "x.gguf", "f32"))
    wanted = hf_weights(convert(plain, tmp_path / "y.gguf", "f32"))
    assert list(read) == list(wanted)
    for key, x in wanted.items():
        np.testing.assert_array_equal(read[key], x, err_msg=key)


@pytest.mark.parametrize("name", ["nvfp4", "ct-nvfp4"])
def test_nvfp4_is_kept(tmp_path: Path, name: str) -> None:
    """Blocks and scales of the file mean the weights that the same folder gives in F32."""
    folder = hf_folder(tmp_path / "quantized")
    quantize(folder, name)
    floats = hf_weights(convert(folder, tmp_path / "x.gguf", "f32"))
    if name == "nvfp4":  # the settings may be in ModelOpt's own file
        path = folder / "config.json"
        kept = json.loads(path.read_text())
        settings = kept.pop("quantization_config")
        path.write_text(json.dumps(kept))
        own = {"producer": {"name": "modelopt"}, "quantization": settings}
        (folder / "hf_quant_config.json").write_text(json.dumps(own))
    n_kept = 0
    with GGUFFile(convert(folder, tmp_path / "y.gguf", "f16")) as file:
        assert file.metadata["general.file_type"] == 39
        for key, tensor in file.tensors.items():
            stem = key.removesuffix(".weight")
            if tensor.type is not GGMLType.NVFP4:
                continue
            n_kept += 1
            rows = file.tensor_bytes(key).reshape(tensor.ne[1], -1)
            scale, of_input = (
                file.tensor_bytes(f"{stem}.{end}").view(np.float32)
                for end in ("scale", "input_scale")
            )
            assert scale.shape == (1,) and of_input == 0.25
            np.testing.assert_array_equal(dequantize(rows, tensor.type) * scale, floats[key])
        matrices = [key for key in floats if key.startswith("blk.1.") and floats[key].ndim == 2]
        full = [key for key in matrices if floats[key].shape[-1] % 64 == 0]
        assert n_kept == len(full) > 0


def test_nvfp4_whose_inputs_have_the_scale_0(tmp_path: Path) -> None:
    """Calibration texts never chose this expert; its weights are in the file all the same."""
    settings, method = METHODS["nvfp4"]
    stored, weight = method((48, 64), np.random.default_rng(0))
    stored["input_scale"] = np.float32([0])
    tensors = decode(tmp_path, {f"x.{end}": x for end, x in stored.items()}, settings)
    np.testing.assert_array_equal(tensors["x.weight"].read(), weight)
    blocks = tensors["x.weight"].blocks
    assert blocks is not None and blocks.scales["input_scale"] == 0


def test_transposed_matrices_of_nvfp4_have_no_scales(tmp_path: Path) -> None:
    folder = hf_folder(tmp_path / "x")
    quantize(folder, "nvfp4")
    config(folder, hidden_act="relu")
    options = ConvertOptions(transpose_down=True)
    with GGUFFile(convert(folder, tmp_path / "x.gguf", "f16", options)) as file:
        names = {key.removeprefix("blk.1.") for key in file.tensors if "blk.1.ffn" in key}
        assert "ffn_up.scale" in names and not any("down" in n and "scale" in n for n in names)
    Model.load(tmp_path / "x.gguf")


@pytest.mark.parametrize(
    ("name", "stay"),
    [("blk.3.attn_q", True), ("output", True), ("blk.3.attn_q_a", False), ("token_embd", False)],
)
def test_blocks_stay_where_a_graph_reads_their_scales(name: str, stay: bool) -> None:
    one = ConvertedTensor(
        f"{name}.weight", (2, 64), (), blocks=(lambda: np.empty(0),),
        block_type=GGMLType.NVFP4, scales={"scale": np.ones(1, np.float32)},
    )  # fmt: skip
    assert bool(scaled_or_floats(one).blocks) is stay


def test_nvfp4_of_experts() -> None:
    """A number for each expert; numbers that are all 1 are left out, as by llama.cpp."""
    blocks = [
        PackedBlocks(
            (2, 1), False, lambda: np.empty(0), GGMLType.NVFP4, {"scale": x, "input_scale": o}
        )
        for x, o in ((np.float32([2]), np.float32([1])), (np.float32([3]), np.float32([1])))
    ]
    assert {key: x.tolist() for key, x in _scales(blocks).items()} == {"scale": [2, 3]}
    whole = PackedBlocks((3, 2, 1), False, lambda: np.empty(0), GGMLType.NVFP4, blocks[0].scales)
    assert _scales([whole])["scale"].tolist() == [2, 2, 2]


def test_biases_of_zeros_are_left_out(tmp_path: Path) -> None:
    stored: Stored = {}
    for stem, bias in (("a", 0), ("b", 1)):
        parts, _ = gptq(4, 1)((64, 64), np.random.default_rng(0))
        stored |= {f"{stem}.{end}": x for end, x in parts.items()}
        stored[f"{stem}.bias"] = np.full(64, bias, np.float16)
    assert sorted(decode(tmp_path, stored, GPTQ)) == ["a.weight", "b.bias", "b.weight"]


# llama.cpp refuses or leaves out what the others have
_THEIRS = (
    "fp8-blocks", "fp8-modelopt", "ct-fp8-rows", "gptq-4", "gptq-8", "gptq-v2-4", "gptq-v2-8",
    "gptq-act-order", "ct-4", "ct-8", "ct-4-zeros", "ct-8-zeros",
)  # fmt: skip


@pytest.mark.long
@pytest.mark.skipif("LLAMA_CPP_SOURCES" not in os.environ, reason="needs llama.cpp's converter")
@pytest.mark.parametrize("name", _THEIRS)
def test_llama_cpps_converter_reads_the_same_values(tmp_path: Path, name: str) -> None:
    pytest.importorskip("torch")
    folder = hf_folder(tmp_path / "quantized")
    quantize(folder, name, which="layers")
    (folder / "tokenizer.model").rename(tmp_path / "tokenizer.model")
    theirs = hf_weights(llama_cpp.convert(folder, tmp_path / "theirs.gguf"))
    (tmp_path / "tokenizer.model").rename(folder / "tokenizer.model")
    ours = hf_weights(convert(folder, tmp_path / "ours.gguf", "f32"))
    assert ours.keys() == theirs.keys()
    for key, x in theirs.items():
        np.testing.assert_array_equal(ours[key], x, err_msg=key)


def decode(
    tmp_path: Path, stored: Mapping[str, np.ndarray | Bytes], settings: Any
) -> Mapping[str, Any]:
    tensors = read_safetensors(write_safetensors(tmp_path / "model.safetensors", stored))
    return decode_checkpoint(Folder(tmp_path), tensors, {"quantization_config": settings})


@pytest.mark.parametrize("name", [x for x in METHODS if x not in ("ct-int8", "ct-4-act-order")])
def test_stacks_of_experts(tmp_path: Path, name: str) -> None:
    settings, method = METHODS[name]
    stored, weight = method((3, 64, 96), np.random.default_rng(1))
    tensors = decode(tmp_path, {f"experts.{end}": x for end, x in stored.items()}, settings)
    assert list(tensors) == ["experts.weight"]
    np.testing.assert_array_equal(tensors["experts.weight"].read(), weight)


def test_one_scale_for_an_expert(tmp_path: Path) -> None:
    stored, weight = whole((3, 4, 8), np.random.default_rng(0))
    scale = np.array([1, 2, 3], np.float32)
    for shape in ((3,), (3, 1, 1)):
        stored["weight_scale"] = scale.reshape(shape)
        read = decode(tmp_path, stored, {"quant_method": "fp8"})["weight"].read()
        one, _ = whole((3, 4, 8), np.random.default_rng(0))
        first = np.asarray(one["weight_scale"]).reshape(-1)[0]
        np.testing.assert_allclose(read, weight / first * scale[:, None, None], rtol=1e-6)


def test_channels_and_whole_tensors_of_packed_ints(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    codes = rng.integers(0, 16, (6, 21))
    for strategy, shape in (("channel", (6, 1)), ("tensor", (1,))):
        settings = compressed("pack-quantized", num_bits=4, type="int", strategy=strategy)
        scale = scales(shape, rng)
        stored = {
            "a.weight_packed": words(codes, 4),
            "a.weight_scale": scale,
            "a.weight_shape": np.array([6, 21]),
        }
        read = decode(tmp_path, stored, settings)["a.weight"].read()
        np.testing.assert_array_equal(read, (codes - 8).astype(np.float32) * scale)


def test_one_group_of_all_inputs(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    codes, zeros = rng.integers(0, 16, (16, 40)), rng.integers(1, 16, (16, 1))
    scale = rng.uniform(1, 2, (16, 1)).astype(np.float16)
    stored = {
        "a.qweight": swapped(words(codes, 4)),
        "a.qzeros": words(swapped(zeros - 1), 4),
        "a.scales": swapped(scale),
    }
    read = decode(tmp_path, stored, GPTQ | {"group_size": -1})["a.weight"].read()
    np.testing.assert_array_equal(read, (codes - zeros) * scale.astype(np.float32))


@pytest.mark.parametrize(
    "name", ["fp8-blocks", "gptq-act-order", "awq", "ct-4-zeros", "ct-mxfp4", "nvfp4"]
)
def test_large_tensors_are_decoded_in_pieces(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pyllama.convert.quantized import mxfp4 as mxfp4_module
    from pyllama.convert.quantized import nvfp4 as nvfp4_module
    from pyllama.convert.quantized import packed as packed_module

    monkeypatch.setattr(mxfp4_module, "_CHUNK", 7)
    monkeypatch.setattr(nvfp4_module, "_CHUNK", 7)
    monkeypatch.setattr(packed_module, "_CHUNK", 1000)
    settings, method = METHODS[name]
    stored, weight = method((2, 40, 96), np.random.default_rng(1))
    tensors = decode(tmp_path, {f"a.{end}": x for end, x in stored.items()}, settings)
    np.testing.assert_array_equal(tensors["a.weight"].read(), weight)


# --- damage ---------------------------------------------------------------------------------------


def fault(name: str, message: str, settings: Any = None, **changes: Any) -> tuple[Any, ...]:
    return name, message, settings, changes


WORDS = np.zeros((2, 64), np.int32)
X = WORDS.astype(np.float32)
ONES = np.ones(64, np.float32)
MARLIN = {"checkpoint_format": "marlin"}
SPARSE = {"sparsity_config": {"format": "sparse-24-bitmask"}}
TWO = {"config_groups": {"a": {"weights": {}}, "b": {"weights": {"a": 1}}}}
MARLIN_24 = {"format": "marlin-24"}
TWO_NUMBERS = np.ones(2, np.float32)
FAULTS = [
    fault("fp8-blocks", "x.weight_scale_inv' has the shape .*, must be .1, 2.", weight_scale_inv=X),
    fault("fp8-blocks", "tensor 'x.weight' is F32, must be F8_E4M3 or", weight=X),
    fault("fp8-blocks", "tensor 'x.weight' has no scale", weight_scale_inv=None),
    fault(
        "fp8-blocks",
        "weight_block_size is 128, must be rows and columns",
        {"weight_block_size": 128},
    ),
    fault("fp8-blocks", "weight_block_size is .0, 1., must be", {"weight_block_size": [0, 1]}),
    fault(
        "fp8-rows", "has the shape .64., must be one number, or one for each row", weight_scale=ONES
    ),
    fault("fp8-modelopt", "quant_algo is 'W4A8', supported are FP8", {"quant_algo": "W4A8"}),
    fault("ct-fp8-rows", "format is 'marlin-24', supported are", MARLIN_24),
    fault("nvfp4", "'x.weight' has the shape .48, 31.", weight=np.zeros((48, 31), np.uint8)),
    fault("nvfp4", "'x.weight_scale' is F32, must be F8_E4M3", weight_scale=X),
    fault("nvfp4", "'x.weight_scale_2' has the shape .2.", weight_scale_2=TWO_NUMBERS),
    fault("nvfp4", "'x.input_scale' is not a positive", input_scale=np.float32([np.nan])),
    fault("nvfp4", "'x.input_scale' is not a positive", input_scale=np.float32([-1])),
    *(
        fault(
            "ct-nvfp4",
            "'x.weight_global_scale' has no finite",
            weight_global_scale=np.float32([x]),
        )
        for x in (0, 1e-40)
    ),
    fault("ct-fp8-rows", "config_groups has no group", {"config_groups": {}}),
    fault("ct-fp8-rows", "config_groups has weights that are None", {"config_groups": {"a": 5}}),
    fault("ct-fp8-rows", "groups whose weights differ", TWO),
    fault("ct-fp8-rows", "compressed as sparse: 'sparse-24-bitmask'", SPARSE),
    fault("gptq-4", "bits is 3, supported are 2, 4, 8", {"bits": 3}),
    fault("gptq-4", "bits is None, supported", {"bits": None}),
    fault("gptq-4", "group_size is 0, must be a number of inputs", {"group_size": 0}),
    fault("gptq-4", "checkpoint_format is 'marlin', supported are gptq", MARLIN),
    fault("gptq-4", "differ between layers", {"dynamic": {"-:lm_head": {}}}),
    fault("gptq-4", "tensor 'x.scales' is missing", scales=None),
    fault("gptq-4", "'x.qzeros' has the shape", qzeros=WORDS),
    fault("gptq-4", "'x.g_idx' has the shape .3., must be .64.", g_idx=np.zeros(3, np.int32)),
    fault("gptq-4", "tensor 'x.qweight' has 1 dimensions", qweight=WORDS[0]),
    fault("gptq-4", "tensor 'x.weight' is there twice", weight=X),
    fault("gptq-4", "tensor 'x.scales' is I32, must be F32 or", scales=WORDS),
    fault("awq", "version is 'gemv', supported is gemm", {"version": "gemv"}),
    fault("awq", "bits is 8, supported are 4", {"bits": 8}),
    fault(
        "ct-4",
        "'x.weight_packed' has the shape .48, 8., must be .48, 9.",
        weight_shape=np.array([48, 65]),
    ),
    fault("ct-4", "_shape is .-1, 64., must be sizes", weight_shape=np.array([-1, 64])),
    fault("ct-4", "'x.weight_shape' has the shape .3.", weight_shape=np.array([1, 2, 3])),
    fault("ct-4", "'x.weight_scale' has the shape", weight_scale=np.ones((48, 7), np.float32)),
    fault("ct-4", "'x.weight_zero_point' has the shape", weight_zero_point=WORDS),
    fault("ct-4", "packed weights of type 'float'", compressed("pack-quantized", type="float")),
    fault("ct-4", "num_bits is 9, supported are 1, 2", ct_group(9)),
    fault(
        "ct-mxfp4", "'x.weight_packed' has the shape", weight_packed=np.zeros((48, 31), np.uint8)
    ),
    fault("ct-mxfp4", "must be .*n_rows, n_blocks", weight_scale=np.zeros(48, np.uint8)),
]


@pytest.mark.parametrize(
    ("name", "message", "settings", "changes"), FAULTS, ids=[f"{x[0]}-{x[1][:20]}" for x in FAULTS]
)
def test_damage_is_one_line(
    tmp_path: Path, name: str, message: str, settings: Any, changes: dict[str, Any]
) -> None:
    right, method = METHODS[name]
    stored, _ = method((48, 64), np.random.default_rng(0))
    kept = {f"x.{end}": x for end, x in {**stored, **changes}.items() if x is not None}
    with pytest.raises(ModelError, match=message) as error:
        decode(tmp_path, kept, right | (settings or {}))
    text = str(error.value)
    assert text.startswith(str(tmp_path)) and "\n" not in text
    assert text.endswith(f"(quantized by {right['quant_method']})")


def test_groups_that_are_not_there(tmp_path: Path) -> None:
    parts, _ = gptq(4, 1)((64, 64), np.random.default_rng(0))
    stored = {f"a.{end}": x for end, x in parts.items()}
    for odd in (-1, 2):
        g_idx = np.zeros(64, np.int32)
        g_idx[5] = odd
        tensors = decode(tmp_path, stored | {"a.g_idx": g_idx}, GPTQ)
        with pytest.raises(ModelError, match=f"is of group {odd}, but there are 2"):
            tensors["a.weight"].read()


@pytest.mark.parametrize("settings", [{}, {"quant_method": "exl2"}, {"quant_method": [1]}, "x", 5])
def test_unknown_methods(tmp_path: Path, settings: Any) -> None:
    with pytest.raises(ModelError, match=r"by the method .*, supported are fp8, ") as error:
        decode(tmp_path, {"x": WORDS}, settings)
    assert str(error.value).startswith(f"{tmp_path}: ")
    assert decode(tmp_path, {"x": WORDS}, None)["x"].read().shape == (2, 64)


def test_nothing_is_read_before_it_is_needed(tmp_path: Path) -> None:
    parts, _ = awq((64, 64), np.random.default_rng(0))
    stored = {f"a.{end}": x for end, x in parts.items()}
    tensors = decode(tmp_path, stored, METHODS["awq"][0])
    (tmp_path / "model.safetensors").unlink()
    assert tensors["a.weight"].shape == (64, 64)
    with pytest.raises(ModelError, match="cannot be read"):
        tensors["a.weight"].read()


def test_scales_beyond_float32(tmp_path: Path) -> None:
    stored, _ = whole((2, 4), np.random.default_rng(0))
    stored["weight_scale"] = np.array([3e38], np.float32)
    stored["weight"] = Bytes("F8_E5M2", np.full((2, 4), 0x7B, np.uint8))
    read = decode(tmp_path, stored, {"quant_method": "fp8"})["weight"].read()
    assert np.isinf(read).all()
