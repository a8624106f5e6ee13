"""PowerInfer files: each byte against NumPy, and logits against torch."""

from __future__ import annotations

import json
import struct
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from pyggml.dtype import GGMLType
from pyggml.gguf import GGUFFile
from pyggml.quants import quantize
from pyllama import Batch, Context, Model
from pyllama.convert import ConvertOptions, convert
from pyllama.convert.files.safetensors import read_safetensors
from pyllama.gguf_tools.validate import validate

from ...tiers import some
from ..arch.checkpoints import write_checkpoint
from ..models import HF_LLAMA, hf_folder, hf_weights
from ..sparsity.files import VARIANTS, predictors, recorded
from .folders import write_safetensors, write_torch

F32, F16, BF16, Q8_0 = GGMLType.F32, GGMLType.F16, GGMLType.BF16, GGMLType.Q8_0
MODELS = ("relu_llama", "bamboo")
N_LAYER, RANK = 3, 48  # of both checkpoints; the other sizes are those of relu_llama
N_EMBD, N_FF = 64, 256


@pytest.fixture(params=MODELS)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return hf_folder(tmp_path / "model", "hf_relu_llama")


def source(name: str) -> tuple[Path, Path]:
    """The folder of a checkpoint without tokenizer, and the folder of its predictors."""
    return HF_LLAMA.with_name(f"hf_{name}"), HF_LLAMA.with_name(f"hf_{name}_predictor")


def converted(tmp_path: Path, name: str, outtype: str = "f32", **options: Any) -> Path:
    folder = hf_folder(tmp_path / name, f"hf_{name}")
    wanted = ConvertOptions(predictor=source(name)[1], **options)
    return convert(folder, tmp_path / f"{name}.gguf", outtype, wanted)


def expected(name: str) -> dict[str, np.ndarray]:
    """The tensors of a PowerInfer file, computed by NumPy alone."""
    folder, predictor = source(name)
    config = json.loads((folder / "config.json").read_text())
    heads = {"q": config["num_attention_heads"], "k": config["num_key_value_heads"]}
    theirs = {n: s.read() for n, s in read_safetensors(folder / "model.safetensors").items()}
    ours = {
        "token_embd.weight": theirs["model.embed_tokens.weight"],
        "output_norm.weight": theirs["model.norm.weight"],
        "output.weight": theirs["lm_head.weight"],
    }
    for i in range(N_LAYER):
        for part in "qkvo":
            x = theirs[f"model.layers.{i}.self_attn.{part}_proj.weight"]
            if part in heads:  # rope rotates adjacent pairs: rows 0, 8, 1, 9 ... of a head of 16
                x = np.concatenate([h[[0, 8, 1, 9, 2, 10, 3, 11, 4, 12, 5, 13, 6, 14, 7, 15]]
                                    for h in np.split(x, heads[part])])  # fmt: skip
            ours[f"blk.{i}.attn_{'output' if part == 'o' else part}.weight"] = x
        for part in ("gate", "up"):
            ours[f"blk.{i}.ffn_{part}.weight"] = theirs[f"model.layers.{i}.mlp.{part}_proj.weight"]
        ours[f"blk.{i}.ffn_down_t.weight"] = theirs[f"model.layers.{i}.mlp.down_proj.weight"].T
        for part, norm in (("attn", "input"), ("ffn", "post_attention")):
            ours[f"blk.{i}.{part}_norm.weight"] = theirs[
                f"model.layers.{i}.{norm}_layernorm.weight"
            ]
        with zipfile.ZipFile(predictor / f"model_{i}.pt") as archive:
            first, second = (archive.read(f"model_{i}/data/{n}") for n in (0, 1))
        ours[f"blk.{i}.fc1.weight"] = np.frombuffer(first, "<f4").reshape(RANK, -1)
        ours[f"blk.{i}.fc2.weight"] = np.frombuffer(second, "<f4").reshape(-1, RANK)
    return ours


# --- what is written ------------------------------------------------------------------------------


def test_every_tensor_matches_numpy(tmp_path: Path, name: str) -> None:
    wanted = expected(name)
    with GGUFFile(converted(tmp_path, name)) as file:
        assert (file.magic, file.version, file.alignment) == (b"PWRI", 3, 32)
        assert file.tensors.keys() == wanted.keys()
        for tensor, x in wanted.items():
            info = file.tensors[tensor]
            assert info.type is F32 and info.ne[: info.n_dims] == x.shape[::-1]
            assert file.tensor_bytes(tensor).tobytes() == np.ascontiguousarray(x).tobytes()
        assert file.get_float("powerinfer.sparse_threshold") == 0.25
        assert file.value_types["powerinfer.sparse_threshold"].name == "FLOAT32"


def test_file_matches_the_gguf_package_except_for_its_magic(tmp_path: Path, name: str) -> None:
    """PowerInfer writes an ordinary GGUF file, then replaces its first four bytes."""
    data = converted(tmp_path, name).read_bytes()
    plain, again = tmp_path / "plain.gguf", tmp_path / "again.gguf"
    plain.write_bytes(b"GGUF" + data[4:])
    reader = gguf.GGUFReader(plain)
    fields = [f for key, f in reader.fields.items() if not key.startswith("GGUF.")]
    writer = gguf.GGUFWriter(again, fields[0].contents())
    assert fields[0].name == "general.architecture"
    for field in fields[1:]:
        writer.add_key_value(field.name, field.contents(), field.types[0], field.types[-1])
    for tensor in reader.tensors:
        writer.add_tensor(tensor.name, np.array(tensor.data))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    assert data[:24] == b"PWRI" + struct.pack("<IQQ", 3, len(reader.tensors), len(fields))
    assert data[4:] == again.read_bytes()[4:]


@pytest.mark.parametrize(
    ("outtype", "type"), some([("f16", F16), ("bf16", BF16), ("q8_0", Q8_0), ("auto", BF16)], 2)
)
def test_types(tmp_path: Path, name: str, outtype: str, type: GGMLType) -> None:
    with GGUFFile(converted(tmp_path, name, outtype)) as file:
        for tensor, x in expected(name).items():
            wanted = F32 if x.ndim == 1 else F16 if x.shape[1] % type.block_size else type
            assert file.tensors[tensor].type is wanted, tensor  # rows of 48: F16
            assert file.tensor_bytes(tensor).tobytes() == quantize(x, wanted).tobytes()


def test_without_predictors(tmp_path: Path, name: str) -> None:
    folder = hf_folder(tmp_path / name, f"hf_{name}")
    path = convert(folder, outtype="f32", options=ConvertOptions(transpose_down=True))
    assert path.name.endswith("-F32.transposed.gguf")
    dense = convert(folder, tmp_path / "dense.gguf", "f32")
    with GGUFFile(path) as file, GGUFFile(dense) as plain:
        assert file.magic == b"GGUF" and dict(file.metadata).keys() == plain.metadata.keys()
        assert len(file.tensors) == len(plain.tensors)
        for tensor, x in expected(name).items():
            if ".fc" not in tensor:
                assert file.tensor_bytes(tensor).tobytes() == np.ascontiguousarray(x).tobytes()
            if "ffn_down" not in tensor and ".fc" not in tensor:
                assert np.array_equal(file.tensor_bytes(tensor), plain.tensor_bytes(tensor))


def test_names_split_files_progress_and_dry_runs(folder: Path) -> None:
    predictor = source("relu_llama")[1]
    before = set(folder.iterdir())
    dry = convert(folder, options=ConvertOptions(predictor=predictor, dry_run=True))
    assert set(folder.iterdir()) == before
    whole = convert(folder, options=ConvertOptions(predictor=predictor))
    assert whole == dry and whole.name.endswith("-BF16.powerinfer.gguf")
    shares: list[float] = []
    options = ConvertOptions(predictor=predictor, split_max_bytes=100_000)
    first = convert(folder, options=options, progress=shares.append)
    assert "-BF16.powerinfer-00001-of-0000" in first.name and shares[-1] == 1
    assert shares == sorted(shares)
    with GGUFFile(first) as parts, GGUFFile(whole) as file:
        assert len(parts.parts) > 2 and {bytes(p.data[:4]) for p in parts.parts} == {b"PWRI"}
        assert parts.tensors.keys() == file.tensors.keys()
        for tensor in file.tensors:
            assert np.array_equal(parts.tensor_bytes(tensor), file.tensor_bytes(tensor))
    vocabulary = convert(folder, options=ConvertOptions(predictor=predictor, vocab_only=True))
    with GGUFFile(vocabulary) as file:
        assert file.magic == b"GGUF" and not file.tensors
        assert "powerinfer.sparse_threshold" not in file.metadata


def test_an_interrupted_conversion_leaves_nothing(folder: Path) -> None:
    def stop(_: float) -> None:
        raise KeyboardInterrupt

    before = set(folder.iterdir())
    with pytest.raises(KeyboardInterrupt):
        convert(folder, options=ConvertOptions(predictor=source("relu_llama")[1]), progress=stop)
    assert set(folder.iterdir()) == before


def test_safetensors_predictors_with_mixed_ranks_and_no_threshold(
    folder: Path, tmp_path: Path
) -> None:
    predictor, wanted = tmp_path / "mine", {}
    predictor.mkdir()
    (predictor / "README.md").write_text("# Predictors\n")
    rng = np.random.default_rng(0)
    for i, rank in enumerate((8, 32, 5)):
        fc1 = rng.standard_normal((rank, N_EMBD)).astype(np.float16)
        fc2 = rng.standard_normal((N_FF, rank)).astype(np.float16)
        tensors = {"fc2.weight": fc2, "fc1.weight": fc1}
        if i == 1:
            write_torch(predictor / f"model_{i}.pt", tensors)
        else:
            write_safetensors(predictor / f"model_{i}.safetensors", tensors)
        wanted |= {f"blk.{i}.{name}": x for name, x in tensors.items()}
    path = convert(folder, tmp_path / "x.gguf", "f16", ConvertOptions(predictor=predictor))
    with GGUFFile(path) as file:
        assert "powerinfer.sparse_threshold" not in file.metadata
        for name, x in wanted.items():
            assert file.tensor_bytes(name).tobytes() == x.tobytes()
    assert Model.load(path).hparams.sparse_threshold == 0


# --- what it computes -----------------------------------------------------------------------------


def logits(path: Path, tokens: np.ndarray, **options: Any) -> np.ndarray:
    context = Context(Model.load(path, **options), n_ctx=64, type_k=F32, type_v=F32)
    context.decode(Batch(tokens.tolist(), logits="all"))
    return context.logits.copy()


def test_logits_match_torch(tmp_path: Path, name: str) -> None:
    with np.load(source(name)[0] / "recorded.npz") as file:
        recorded: Mapping[str, np.ndarray] = dict(file)
    path, tokens = converted(tmp_path, name), recorded["tokens"]
    assert np.abs(logits(path, tokens) - recorded["logits_sparse"]).max() < 2e-3
    assert np.abs(logits(path, tokens, sparse="off") - recorded["logits_dense"]).max() < 2e-3
    exact = convert(
        tmp_path / name, tmp_path / "t.gguf", "f32", ConvertOptions(transpose_down=True)
    )
    assert set(Model.load(exact).hparams.sparse) == {"exact"}
    assert np.abs(logits(exact, tokens) - recorded["logits_dense"]).max() < 2e-3
    assert not validate(path).faults and not validate(exact).faults


@pytest.mark.parametrize("variant", VARIANTS)
def test_other_architectures(tmp_path: Path, variant: str) -> None:
    """Tensors equal those of the dense file, some transposed; logits match torch."""
    folder = write_checkpoint(tmp_path / variant, variant)
    dense = hf_weights(convert(folder, tmp_path / "dense.gguf", "f32"))
    record = recorded(variant)
    predictor, wanted = tmp_path / "predictor", predictors(*dense["blk.0.ffn_down.weight"].shape)
    predictor.mkdir()
    for i in range(N_LAYER):
        parts = {f"fc{n}.weight": wanted[f"blk.{i}.fc{n}.weight"] for n in (1, 2)}
        write_torch(predictor / f"model_{i}.pt", parts)
    (predictor / "config.json").write_text(f'{{"sparse_threshold": {record["threshold"]}}}')
    path = convert(folder, tmp_path / "x.gguf", "f32", ConvertOptions(predictor=predictor))
    for name, x in dense.items():
        wanted[name.replace("ffn_down.", "ffn_down_t.")] = x.T if "ffn_down" in name else x
    sparse = hf_weights(path)
    assert sparse.keys() == wanted.keys()
    assert all(np.array_equal(sparse[name], x) for name, x in wanted.items())
    assert not validate(path).faults
    assert np.abs(logits(path, record["tokens"]) - record["logits"]).max() < 2e-3


def test_biases(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path / "model", "llama_biases")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"hidden_act": "relu"}))
    dense = convert(folder, tmp_path / "dense.gguf", "f32")
    path = convert(folder, tmp_path / "x.gguf", "f32", ConvertOptions(transpose_down=True))
    assert "blk.2.ffn_down_t.bias" in hf_weights(path)
    tokens = np.arange(3, 30)
    assert np.abs(logits(path, tokens) - logits(dense, tokens)).max() < 1e-4
    assert not validate(path).faults
