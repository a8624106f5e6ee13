"""Conversion of a folder to a complete file that loads and computes the same, or one error line."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pyggml.dtype import GGMLType
from pyggml.errors import PyggmlError
from pyggml.gguf import GGUFFile
from pyggml.quants import dequantize, quantize
from pyllama import Model
from pyllama.convert import ConvertOptions, convert
from pyllama.convert.files.safetensors import read_safetensors
from pyllama.convert.outtype import tensor_chunks, tensor_type
from pyllama.convert.plan import ConvertedTensor
from pyllama.errors import ModelError

from ...tiers import some
from ..models import hf_folder
from .folders import header, write_safetensors, write_torch

F32, F16, BF16, Q8_0 = GGMLType.F32, GGMLType.F16, GGMLType.BF16, GGMLType.Q8_0


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return hf_folder(tmp_path / "Tiny-Llama-v2")


def weights(folder: Path) -> dict[str, np.ndarray]:
    return {n: s.read() for n, s in read_safetensors(folder / "model.safetensors").items()}


def config(folder: Path, **changes: Any) -> None:
    path = folder / "config.json"
    values = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({k: v for k, v in values.items() if v is not None}))


@pytest.mark.parametrize("name", ["model.safetensors", "config.json", "tokenizer.model"])
def test_a_file_of_the_checkpoint_is_not_replaced(folder: Path, name: str) -> None:
    before = (folder / name).read_bytes()
    with pytest.raises(ModelError, match="is a file of the checkpoint; choose another name"):
        convert(folder, folder / name)
    assert (folder / name).read_bytes() == before
    assert convert(convert(folder, folder / "x.gguf").parent, folder / "x.gguf").is_file()


@pytest.mark.parametrize(
    ("outtype", "type", "file_type"),
    [("f32", F32, 0), ("f16", F16, 1), ("bf16", BF16, 32), ("q8_0", Q8_0, 7), ("auto", BF16, 32)],
)
def test_types_and_values(folder: Path, outtype: str, type: GGMLType, file_type: int) -> None:
    shares: list[float] = []
    path = convert(folder, folder / "x.gguf", outtype, progress=shares.append)
    assert path == folder / "x.gguf" and shares == sorted(shares) and shares[-1] == 1
    whole = weights(folder)
    with GGUFFile(path) as file:
        assert file.get_int("general.file_type") == file_type
        assert file.get_int("general.quantization_version") == 2
        for ours, theirs in (
            ("blk.1.ffn_down.weight", "model.layers.1.mlp.down_proj.weight"),
            ("token_embd.weight", "model.embed_tokens.weight"),
            ("blk.1.attn_norm.weight", "model.layers.1.input_layernorm.weight"),
        ):
            wanted = F32 if "norm" in ours else type
            assert file.tensors[ours].type is wanted
            assert file.tensor_bytes(ours).tobytes() == quantize(whole[theirs], wanted).tobytes()
        assert {t.type for t in file.tensors.values()} == {F32, type}
    assert Model.load(path).n_params == sum(x.size for x in whole.values())


# Matrices that llama.cpp's converter keeps in F32: routers, convolutions, mixing, small ones.
KEPT = (
    "ffn_gate_inp", "ffn_gate_inp_shexp", "attn_rel_b", "altup_correct_coef",
    "altup_predict_coef", "indexer.proj", "ssm_conv1d", "ssm_conv1d_q", "ssm_conv1d_k",
    "ssm_conv1d_v", "shortconv.conv", "time_mix_first", "time_mix_w1", "time_mix_w2",
    "time_mix_lerp_fused", "time_mix_decay_w1", "time_mix_decay_w2",
)  # fmt: skip


@pytest.mark.parametrize(
    ("name", "shape", "wanted"),
    [
        ("blk.0.ffn_up.weight", (4, 64), Q8_0),
        ("blk.0.ffn_up_exps.weight", (2, 4, 64), Q8_0),
        ("blk.0.ffn_up.weight", (4, 48), F16),
        ("blk.0.ffn_up.bias", (64,), F32),
        ("blk.0.ffn_up_exps.bias", (2, 64), F32),
        ("blk.0.attn_q_norm.weight", (4, 64), F32),
        *((f"blk.0.{name}.weight", (4, 64), F32) for name in KEPT),
        ("position_embd.weight", (4, 64), F32),
        ("token_types.weight", (4, 64), F32),
    ],
)
def test_tensors_kept_in_more_bits(name: str, shape: tuple[int, ...], wanted: GGMLType) -> None:
    assert tensor_type(ConvertedTensor(name, shape, ()), Q8_0) is wanted


@pytest.mark.parametrize("shape", [(3, 2**21 + 32), (0, 32), (2, 5, 32), (32,)])
def test_chunks_add_up_to_the_whole_tensor(shape: tuple[int, ...]) -> None:
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    planned = ConvertedTensor("w.weight", (2, *shape), (lambda: x, lambda: x + 1))
    data = b"".join(piece.tobytes() for piece in tensor_chunks(planned, Q8_0))
    wanted = [quantize(y, Q8_0) for y in (x, x + 1)] if x.size else [np.zeros(0, np.uint8)]
    assert data == b"".join(y.tobytes() for y in wanted)


def test_values_outside_the_range_of_the_type(folder: Path) -> None:
    tensors = weights(folder)
    tensors["lm_head.weight"] = tensors["lm_head.weight"] * 0 + 1e6
    write_safetensors(folder / "model.safetensors", tensors)
    with pytest.raises(
        ModelError, match=r"'output.weight' has values up to 1e\+06.*outtype='bf16'"
    ):
        convert(folder, folder / "x.gguf", "f16")
    tensors["lm_head.weight"][0, 0] = np.nan
    write_safetensors(folder / "model.safetensors", tensors)
    with pytest.raises(ModelError, match=r"'output.weight': .* NaN or infinite"):
        convert(folder, folder / "x.gguf", "q8_0")
    convert(folder, folder / "x.gguf", "f32")


@pytest.mark.parametrize("half", [True, False])
def test_auto_keeps_the_checkpoint_type(folder: Path, half: bool) -> None:
    tensors = {n: x.astype(np.float16) for n, x in weights(folder).items()}
    if not half:
        name = "lm_head.weight"
        tensors[name] = tensors[name].astype(np.float32)
    write_safetensors(folder / "model.safetensors", tensors)
    assert convert(folder).name.endswith("-F16.gguf" if half else "-BF16.gguf")


def test_pytorch_files_give_the_same_output(folder: Path) -> None:
    first = convert(folder, folder / "a.gguf").read_bytes()
    write_torch(folder / "pytorch_model.bin", weights(folder))
    (folder / "model.safetensors").unlink()
    assert convert(folder, folder / "b.gguf").read_bytes() == first


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("x-{ftype}.gguf", "x-q8_0.gguf"),
        ("x-{FTYPE}-{outtype}.gguf", "x-Q8_0-q8_0.gguf"),
        ("{}-{0}-{OUTTYPE}", "q8_0-q8_0-Q8_0"),
        ("x{other}{.gguf", "x{other}{.gguf"),
    ],
)
def test_the_type_in_the_name_of_the_file(
    folder: Path, tmp_path: Path, name: str, wanted: str
) -> None:
    (tmp_path / "{ftype}").mkdir()
    path = convert(folder, tmp_path / "{ftype}" / name, "q8_0", ConvertOptions(dry_run=True))
    assert path == tmp_path / "{ftype}" / wanted


def test_a_snapshot_of_the_hubs_cache_has_the_repositorys_name(
    folder: Path, tmp_path: Path
) -> None:
    snapshot = tmp_path / "models--someone--Nice-Model-1B" / "snapshots" / ("0123abcd" * 5)
    snapshot.parent.mkdir(parents=True)
    folder.rename(snapshot)
    (snapshot / "README.md").unlink(missing_ok=True)
    path = convert(snapshot, tmp_path, "f16")
    assert "0123abcd" not in path.name and path.name.startswith("Nice-Model")
    with GGUFFile(path) as file:
        texts = [str(x) for k, x in file.metadata.items() if k.startswith("general.")]
        assert file.get_str("general.name").startswith("Nice Model")
        assert not any("0123abcd" in text.lower() for text in texts)


def test_file_and_model_names(folder: Path, tmp_path: Path) -> None:
    assert convert(folder).name == "Tiny-Llama-195K-v2-BF16.gguf"
    named = convert(folder, tmp_path, "q8_0", ConvertOptions(model_name="My model"))
    (folder / "README.md").write_text("---\nlicense: mit\nlanguage: [en, no]\n---\n# Hello\n")
    given = tmp_path / "given.json"
    given.write_text('{"general.author": "Ann", "general.name": "X", "general.version": "v3"}')
    path = convert(folder, tmp_path / "x.gguf", options=ConvertOptions(metadata=given))
    with GGUFFile(path) as file, GGUFFile(named) as other:
        assert other.get_str("general.name") == "My model" and named.parent == tmp_path
        keys = ("name", "author", "version", "license", "type", "architecture", "size_label")
        values = [file.get_str(f"general.{key}") for key in keys]
        assert values == ["X", "Ann", "v3", "mit", "model", "llama", "195K"]
        assert list(file.get_strings("general.languages")) == ["en", "no"]


def test_invalid_characters_in_a_model_name(folder: Path) -> None:
    config(folder, _name_or_path="ab\0cd")
    assert "b-c" in convert(folder.rename(folder.parent / "m")).name.lower()


@pytest.mark.parametrize("text", ["---\na: [\n---\n", "\xff", "---\nbase_model: 5\n---\n"])
def test_an_unreadable_readme_is_ignored(
    folder: Path, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    (folder / "README.md").write_text(text, encoding="latin-1")
    with GGUFFile(convert(folder)) as file:
        assert file.get_str("general.name") == "Tiny Llama v2" or "left out" in caplog.text


def test_split_output(folder: Path) -> None:
    whole = convert(folder, folder / "whole.gguf")
    for options in (ConvertOptions(split_max_bytes=100_000), ConvertOptions(split_max_tensors=10)):
        dry = ConvertOptions(**{**vars(options), "dry_run": True})
        path = convert(folder, folder / "parts.gguf", options=dry)
        assert not path.exists()
        assert convert(folder, folder / "parts.gguf", options=options) == path
        assert path.name.startswith("parts-00001-of-")
        with GGUFFile(path) as parts, GGUFFile(whole) as file:
            assert len(parts.parts) > 2 and list(parts.tensors) == list(file.tensors)
            for name in file.tensors:
                assert np.array_equal(parts.tensor_bytes(name), file.tensor_bytes(name))
        assert Model.load(path).n_params == Model.load(whole).n_params
    large = ConvertOptions(split_max_bytes=10**9)
    assert convert(folder, folder / "parts.gguf", options=large) == folder / "parts.gguf"


def test_vocabulary_only_and_dry_run(folder: Path) -> None:
    before = set(folder.iterdir())
    path = convert(folder, options=ConvertOptions(dry_run=True))
    assert set(folder.iterdir()) == before and path.parent == folder
    (folder / "model.safetensors").unlink()
    path = convert(folder, options=ConvertOptions(vocab_only=True))
    assert path.name == "Tiny-Llama-v2-vocab.gguf"
    model = Model.load(path, vocab_only=True)
    assert model.tokenizer.n_vocab == 512 and model.hparams.n_layer == 3
    assert "general.file_type" not in model.metadata


def edit(change: Callable[[dict[str, np.ndarray]], Any]) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        tensors = weights(folder)
        change(tensors)
        write_safetensors(folder / "model.safetensors", tensors)

    return damage


def cut(name: str) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        path = folder / name
        path.write_bytes(path.read_bytes()[:-100])

    return damage


def nothing_in_torchs(folder: Path) -> None:
    write_torch(folder / "pytorch_model.bin", {})
    (folder / "model.safetensors").unlink()


def bytes_without_merges(folder: Path) -> None:
    model = {"vocab": {"a": 0, "b": 1}, "merges": []}
    tokenizer = {"model": model, "pre_tokenizer": {"type": "ByteLevel"}}
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    (folder / "tokenizer.model").unlink()


UP = "model.layers.1.mlp.up_proj.weight"
Q = "model.layers.1.self_attn.q_proj.weight"
TENSOR = np.zeros((160, 64), np.float32)
ENDLESS = {Q: {"dtype": "F32", "shape": [2**62, 0, 2**62], "data_offsets": [0, 0]}}
FAULTS: dict[str, tuple[Callable[[Path], Any], str]] = {
    "no config": (lambda f: (f / "config.json").unlink(), "there is no config.json"),
    "config cut": (cut("config.json"), "config.json: not JSON"),
    "unknown": (
        lambda f: config(f, architectures=["NoSuchModel"]),
        r"\['NoSuchModel'\], which is not supported; docs/architectures.md.*docs/add-a-model",
    ),
    "no sizes": (lambda f: config(f, num_hidden_layers=None), "'llama.block_count' is missing"),
    "an odd rope": (lambda f: config(f, rope_parameters=5), "the RoPE parameters are 5"),
    "a rope without factors": (
        lambda f: config(f, rope_parameters={"rope_type": "longrope", "factor": 2.0}),
        "RoPE's long_factor has 1 values, must have 8",
    ),
    "a scalar": (
        edit(lambda t: t.update({"model.norm.weight": np.float32(1).reshape(())})),
        r"'output_norm.weight' has sizes \[1, 1, 1, 1\]",
    ),
    "text sizes": (lambda f: config(f, num_hidden_layers="x"), "config.json: invalid literal"),
    "quantized in an unknown way": (
        lambda f: config(f, quantization_config={"quant_method": "bitsandbytes"}),
        "quantized by the method 'bitsandbytes', supported are fp8, .*convert the original",
    ),
    "no weights": (lambda f: (f / "model.safetensors").unlink(), "there are no weights"),
    "weights cut": (cut("model.safetensors"), "100 bytes are missing; the file is incomplete"),
    "no tokenizer": (lambda f: (f / "tokenizer.model").unlink(), "there is no vocabulary"),
    "a tensor too few": (edit(lambda t: t.pop(UP)), f"from '{UP}'.* is missing"),
    "a tensor too many": (
        edit(lambda t: t.update({"model.layers.1.mlp.gate.weight": TENSOR})),
        "tensor 'model.layers.1.mlp.gate.weight' is unknown in a",
    ),
    "a layer too many": (
        edit(lambda t: t.update({UP.replace("1", "7"): TENSOR})),
        "'blk.7.ffn_up.weight'",
    ),
    "a wrong shape": (edit(lambda t: t.update({UP: TENSOR.T})), r"'blk.1.ffn_up.weight' has sizes"),
    "heads that do not divide": (edit(lambda t: t.update({Q: TENSOR[:7]})), f"'{Q}' of shape"),
    "twice": (
        lambda f: (f / "model-1.safetensors").write_bytes((f / "model.safetensors").read_bytes()),
        "is also in model-1.safetensors",
    ),
    "another vocabulary": (
        lambda f: config(f, vocab_size=600),
        r"has sizes \[64, 512, 1, 1\], want \[64, 600",
    ),
    "no tensors": (edit(lambda t: t.clear()), "it contains no named tensors"),
    "a state of training": (
        nothing_in_torchs,
        "pytorch_model.bin: it contains no named tensors",
    ),
    "five dimensions": (
        edit(lambda t: t.update({UP: TENSOR.reshape(1, 1, 1, 160, 64)})),
        "cannot be converted to GGUF: .* 5 dimensions",
    ),
    "a shape beyond NumPy": (
        lambda f: (f / "model.safetensors").write_bytes(header(ENDLESS)),
        f"'{Q}' of shape",
    ),
    "an endless name": (
        lambda f: (f / "model.safetensors.index.json").write_text(
            json.dumps({"weight_map": {Q: "x" * 5000}})
        ),
        "no such file, but model.safetensors.index.json lists it",
    ),
    "half a character": (
        lambda f: (f / "tokenizer_config.json").write_text(r'{"chat_template": "\ud800"}'),
        "'tokenizer.chat_template': .* is not a character: this text cannot be encoded",
    ),
    "a number beyond 64 bits": (
        lambda f: config(f, intermediate_size=10**30),
        "'llama.feed_forward_length': an integer does not fit 64 bits",
    ),
    "an endless head": (
        lambda f: config(f, head_dim=10**11, rope_parameters={"rope_type": "llama3"}),
        "RoPE rotates 50000000000 pairs of a head, must be 1 to 8192",
    ),
    "no merges": (bytes_without_merges, "tokenizer.ggml.merges is missing"),
    "a zero": (lambda f: config(f, num_attention_heads=0), "config.json|head"),
}


@pytest.mark.parametrize(("damage", "message"), some(FAULTS.values(), 12), ids=FAULTS)
def test_bad_checkpoints_are_one_line_and_write_nothing(
    folder: Path, damage: Callable[[Path], Any], message: str
) -> None:
    damage(folder)
    before = set(folder.iterdir())
    with pytest.raises(PyggmlError, match=message) as error:
        convert(folder, folder / "x.gguf")
    assert str(folder) in str(error.value) and "\n" not in str(error.value)
    assert set(folder.iterdir()) == before


def test_wrong_arguments(folder: Path, tmp_path: Path) -> None:
    def refused(message: str, *args: Any, **options: Any) -> None:
        with pytest.raises(PyggmlError, match=message):
            convert(*args, options=ConvertOptions(**options))

    refused("no such folder", tmp_path / "none")
    refused("is a file: give the folder", folder / "config.json")
    refused("outtype is 'q5_0', must be one of f32", folder, None, "q5_0")
    refused("no such directory to write to", folder, tmp_path / "none" / "x.gguf")
    refused("cannot be read", folder, metadata=tmp_path / "none.json")
    (folder / "m.json").write_text('{"llama.block_count": 1}')
    refused("'llama.block_count' is not a general", folder, metadata=folder / "m.json")
    (folder / "m.json").write_text('{"general.tags": 5}')
    refused("m.json: a general", folder, metadata=folder / "m.json")
    (folder / "generation_config.json").write_text('{"temperature": "hot"}')
    refused("a general.. key has an invalid value: could not convert", folder)
    assert not list(folder.glob("*.gguf")) and not list(folder.glob(".*"))


def test_an_interrupted_write_keeps_the_old_file(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = convert(folder, folder / "x.gguf")
    before = old.read_bytes()

    def fail(_: float) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        convert(folder, old, "f32", progress=fail)
    assert old.read_bytes() == before and not list(folder.glob(".*"))


def test_quantized_weights_are_close_to_the_checkpoint(folder: Path) -> None:
    path, name = convert(folder, folder / "x.gguf", "q8_0"), "output.weight"
    x = weights(folder)["lm_head.weight"]
    with GGUFFile(path) as file:
        y = dequantize(file.tensor_bytes(name).reshape(len(x), -1), Q8_0)
    assert np.abs(x - y).max() < np.abs(x).max() / 200
