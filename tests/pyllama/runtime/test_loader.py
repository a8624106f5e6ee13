"""Loading: all options give the file's bytes; bad files give errors of one line."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pyggml.backend.cpu.weights.buffer import is_repacked
from pyggml.dtype import GGMLType
from pyggml.errors import AllocError, GGUFError
from pyggml.gguf import GGUFFile, plan_split, write_gguf, write_split
from pyggml.quants import dequantize, quantize
from pyllama import Batch, Context, Llama, Model
from pyllama.errors import ModelError, TokenizerError
from pyllama.gguf_tools.validate import validate
from pyllama.inspect.graph_export import model_graph
from tests.pyggml.ops.harness import stored

from ..models import Spec, Weights, random_weights, tokenizer, write_model

SPEC = Spec(n_embd=64, n_ff=96)
Q4_0 = GGMLType.Q4_0


def drop(name: str) -> Callable[[Weights], Weights]:
    return lambda w: {k: v for k, v in w.items() if k != name}


def put(name: str, *shape: int) -> Callable[[Weights], Weights]:
    return lambda w: {**w, name: np.ones(shape, np.float32)}


BAD = {
    "no-embedding": (drop("token_embd.weight"), "'token_embd.weight' is missing"),
    "no-norm": (drop("output_norm.weight"), "'output_norm.weight' is missing"),
    "layer-cut": (drop("blk.1.ffn_down.weight"), "'blk.1.ffn_down.weight' is missing"),
    "a-layer-more": (put("blk.2.attn_q.weight", 32, 64), "'blk.2.attn_q.weight'"),
    "experts": (put("blk.0.ffn_gate_inp.weight", 8, 64), "'blk.0.ffn_gate_inp.weight'"),
    "longrope": (put("rope_factors_long.weight", 5), "want [4, 1, 1, 1]"),
    "not-of-this-architecture": (put("blk.0.attn_qkv.weight", 96, 64), "'blk.0.attn_qkv.weight'"),
    "short": (put("blk.0.attn_q.weight", 32, 63), "has sizes [63, 32, 1, 1], want [64, 32, 1, 1]"),
    "transposed": (put("token_embd.weight", 64, 261), "want [64, 261, 1, 1]"),
    "other-vocabulary": (put("token_embd.weight", 262, 64), "has sizes [64, 262, 1, 1]"),
    "three-dims": (put("blk.0.attn_k.weight", 2, 16, 64), "want [64, 16, 1, 1]"),
    "bias": (put("blk.1.attn_v.bias", 15), "want [16, 1, 1, 1]"),
    "freqs": (put("rope_freqs.weight", 5), "want [4, 1, 1, 1]"),
}


@pytest.mark.parametrize(("change", "message"), BAD.values(), ids=BAD)
def test_a_tensor_that_does_not_fit(
    tmp_path: Path, change: Callable[[Weights], Weights], message: str
) -> None:
    path = write_model(tmp_path / "x.gguf", SPEC, change(random_weights(SPEC)))
    with pytest.raises(ModelError) as error:
        Model.load(path)
    assert message in str(error.value) and "\n" not in str(error.value)
    assert str(error.value).startswith(str(path))


@pytest.mark.parametrize(
    ("name", "type", "message"),
    [
        (
            "blk.0.attn_q.weight",
            GGMLType.F64,
            "is F64, which has no kernels yet; supported types: F32",
        ),
        ("output_norm.weight", GGMLType.F16, "is F16, want F32 for a vector"),
        ("blk.1.ffn_norm.weight", Q4_0, "is Q4_0, want F32 for a vector"),
    ],
)
def test_a_type_without_kernels_is_refused(
    tmp_path: Path, name: str, type: GGMLType, message: str
) -> None:
    path, weights = tmp_path / "x.gguf", random_weights(SPEC)
    file = GGUFFile(write_model(path, SPEC, weights))
    w = weights[name]
    data = w.astype(np.float64) if type is GGMLType.F64 else quantize(w, type)
    tensors = {**weights, name: (data, type, w.shape[::-1])}
    write_gguf(path, file.typed_metadata(), tensors)
    with pytest.raises(ModelError, match=message):
        Model.load(path)


def test_layers_that_draft_tokens_are_skipped(tmp_path: Path) -> None:
    weights = random_weights(SPEC)
    more = {"blk.2.nextn.enorm.weight": np.ones(64, np.float32)}
    keys = {"llama.block_count": 3, "llama.nextn_predict_layers": 1}
    model = Model.load(write_model(tmp_path / "x.gguf", SPEC, weights | more, metadata=keys))
    assert model.hparams.n_layer == SPEC.n_layer == 2 and model.weights.keys() == weights.keys()
    with pytest.raises(ModelError, match=r"'blk\.2\.attn_norm\.weight' is missing"):
        keys = {"llama.block_count": 3}
        Model.load(write_model(tmp_path / "y.gguf", SPEC, weights | more, metadata=keys))


def test_a_file_without_weights(tmp_path: Path) -> None:
    write_gguf(tmp_path / "x.gguf", Spec(n_vocab=512).metadata() | tokenizer(), {})
    model = Model.load(tmp_path / "x.gguf", vocab_only=True)
    assert model.weights == {} and model.hparams.n_vocab == 512 and model.desc == "llama 0 vocab"
    with pytest.raises(ModelError, match="the file has no weights"):
        Model.load(tmp_path / "x.gguf")


@pytest.mark.parametrize(
    ("changes", "sizes", "fault"),
    [
        ({"general.architecture": "mamba9"}, (0, 0), "'mamba9' is not supported"),
        (
            {
                "general.architecture": "phi9",
                "phi9.context_length": 64,
                "phi9.embedding_length": 32,
            },
            (64, 32),
            "'phi9' is not supported",
        ),
        ({"llama.block_count": None}, (256, 64), "'llama.block_count' is missing"),
        ({"llama.expert_count": 8}, (256, 64), "0 of 8 experts used"),
        ({"llama.block_count": None, "llama.embedding_length": "wide"}, (256, 0), "embedding"),
    ],
    ids=("no-sizes", "sizes", "missing", "experts", "two-faults"),
)
def test_vocabularies_of_models_that_cannot_be_run(
    tmp_path: Path, changes: dict[str, Any], sizes: tuple[int, int], fault: str
) -> None:
    path = write_model(tmp_path / "x.gguf", SPEC, random_weights(SPEC), metadata=changes)
    model, whole = Model.load(path, vocab_only=True), write_model(tmp_path / "y.gguf", SPEC, {})
    assert model.tokenizer.encode("hi") == Model.load(whole, vocab_only=True).tokenizer.encode("hi")
    assert (model.n_ctx_train, model.n_embd) == sizes
    assert model.desc.startswith(f"{changes.get('general.architecture', 'llama')} ")
    for attribute in ("hparams", "arch"):
        with pytest.raises((ModelError, GGUFError), match=fault):
            getattr(model, attribute)
    with pytest.raises((ModelError, GGUFError), match=fault):
        Model.load(path)
    llama = Llama(path, vocab_only=True, verbose=False, n_ctx=0)
    assert llama.tokenize(b"hi") == model.tokenizer.encode("hi")
    assert (llama.n_ctx(), llama.n_embd()) == sizes and llama.n_vocab() == SPEC.n_vocab
    with pytest.raises(ModelError, match="vocab_only=True"):
        llama("hi")


def test_a_vocabulary_that_cannot_be_used(tmp_path: Path) -> None:
    for changes in ({"tokenizer.ggml.tokens": None}, {"tokenizer.ggml.model": "abacus"}):
        path = write_model(tmp_path / "x.gguf", SPEC, random_weights(SPEC), metadata=changes)
        for load in (Model.load, model_graph):
            with pytest.raises(TokenizerError) as error:
                load(path)
            assert str(error.value).startswith(f"{path}: tokenizer.ggml.")


def test_files_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(GGUFError, match="no such file"):
        Model.load(tmp_path / "none.gguf")
    path = write_model(tmp_path / "x.gguf", SPEC, random_weights(SPEC))
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(GGUFError) as error:
        Model.load(path)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("type", [GGMLType.F32, GGMLType.F16, GGMLType.Q8_0, Q4_0, GGMLType.Q4_1])
def test_every_way_to_load_has_the_files_bytes(tmp_path: Path, type: GGMLType) -> None:
    weights = random_weights(SPEC)
    path = write_model(tmp_path / "x.gguf", SPEC, weights, type)
    file = GGUFFile(path)
    done: list[float] = []
    models = [
        Model.load(path, progress=done.append, n_threads=2),
        Model.load(path, use_mmap=False),
        Model.load(path, repack=False),
        Model.load(path, repack=False, use_mmap=False, use_mlock=True),
    ]
    assert done == sorted(done) and done[-1] == 1.0
    for model in models:
        assert model.weights.keys() == weights.keys()
        for name, tensor in model.weights.items():
            assert np.array_equal(tensor.bytes(), file.tensor_bytes(name))
    size = sum(v.size for v in weights.values())
    assert models[0].n_params == size and models[0].desc == f"llama {size / 1e3:.0f}K {type.name}"
    assert models[0].size_bytes == sum(t.nbytes for t in file.tensors.values())


@pytest.mark.parametrize(
    ("number", "name"),
    [
        (15, "Q4_K_M"),
        (15 | 1024, "Q4_K_M"),
        (3, "Q4_1"),
        (999, "F32"),
        (None, "F32"),
        ("x", "F32"),
    ],
)
def test_the_file_type_is_the_files(tmp_path: Path, number: object, name: str) -> None:
    """As in llama.cpp; without a known number, the most frequent type of matrices."""
    path = write_model(
        tmp_path / "x.gguf", SPEC, random_weights(SPEC), metadata={"general.file_type": number}
    )
    model = Model.load(path)
    assert model.file_type == name and model.desc.endswith(f"K {name}")


def test_types_may_be_mixed(tmp_path: Path) -> None:
    """A file as quantizers write it: embedding in Q8_0, a few matrices in larger types."""
    path, weights = tmp_path / "x.gguf", random_weights(SPEC)
    file = GGUFFile(write_model(path, SPEC, weights))
    types = {"token_embd": GGMLType.Q8_0, "ffn_down": GGMLType.F16, "attn_v": GGMLType.Q4_1}
    tensors = {
        name: w
        if w.ndim == 1
        else (
            quantize(w, t := next((types[k] for k in types if k in name), Q4_0)),
            t,
            w.shape[::-1],
        )
        for name, w in weights.items()
    }
    write_gguf(path, file.typed_metadata(), tensors)
    rows = []
    for repack in (True, False):
        context = Context(Model.load(path, repack=repack), n_ctx=16)
        context.decode(Batch(list(range(16)), logits="all"))
        rows.append(context.logits.copy())
    assert np.isfinite(rows[0]).all() and np.array_equal(*rows)


def test_formats_with_codebooks(tmp_path: Path) -> None:
    """Repacked weights have the file's bytes, and their logits are close to those of F32."""
    spec = Spec(n_embd=256, n_ff=256, n_head=4, head_dim=64)
    types = {"embd": "IQ2_S", "attn_q": "IQ2_XXS", "attn_k": "IQ3_S", "up": "IQ3_XXS"}
    types["down"] = "IQ1_M"
    weights = random_weights(spec)
    path, plain = tmp_path / "x.gguf", tmp_path / "f32.gguf"
    file = GGUFFile(write_model(plain, spec, weights))
    tensors: dict[str, Any] = {**weights}
    for name, w in weights.items():
        for part, type in types.items():
            if part in name:
                data = stored(w, GGMLType[type])
                tensors[name] = data, GGMLType[type], w.shape[::-1]
                weights[name] = dequantize(data, type)
    write_gguf(path, file.typed_metadata(), tensors)
    write_model(plain, spec, weights)
    model, name = Model.load(path), "blk.1.ffn_up.weight"
    assert np.array_equal(model.weights[name].bytes(), GGUFFile(path).tensor_bytes(name))
    assert validate(path).faults == []
    rows = []
    for each in (model, Model.load(path, repack=False), Model.load(plain)):
        context = Context(each, n_ctx=16)
        context.decode(Batch(list(range(16)), logits="all"))
        rows.append(context.logits.copy())
    assert np.isfinite(rows[0]).all() and np.array_equal(rows[0], rows[1])
    assert np.sum((rows[0] - rows[2]) ** 2) < 1e-3 * np.sum(rows[2] ** 2)


def test_large_layouts_are_dropped_if_memory_is_short(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    spec = Spec(n_embd=256, n_ff=256, n_head=4, head_dim=64)
    weights = random_weights(spec)
    tensors: dict[str, Any] = {**weights}
    for name in (n for n in weights if "ffn_" in n and "norm" not in n):
        data = stored(weights[name], GGMLType.IQ2_XXS)
        tensors[name] = data, GGMLType.IQ2_XXS, weights[name].shape[::-1]
    file = GGUFFile(write_model(tmp_path / "f32.gguf", spec, weights))
    path = tmp_path / "x.gguf"
    write_gguf(path, file.typed_metadata(), tensors)
    matrices = [t for t in GGUFFile(path).tensors.values() if t.n_dims == 2]
    free = sum(t.nbytes for t in matrices)  # what all of them take in the file
    monkeypatch.setattr("pyggml.host.available_memory", lambda: free)
    model = Model.load(path)
    layouts = {name: is_repacked(w) for name, w in model.weights.items()}
    assert not layouts["blk.0.ffn_up.weight"] and layouts["blk.0.attn_q.weight"]
    assert "stay in the file's layout" in caplog.text


def test_a_copy_that_does_not_fit_into_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_model(tmp_path / "x.gguf", SPEC, random_weights(SPEC))
    monkeypatch.setattr("pyggml.host.available_memory", lambda: 1000)
    with pytest.raises(AllocError, match="repack=False"):
        Model.load(path)
    Model.load(path, repack=False)


def test_weights_outlive_the_model(tmp_path: Path) -> None:
    with Model.load(write_model(tmp_path / "x.gguf", SPEC, random_weights(SPEC))) as model:
        tensor = model.weights["token_embd.weight"]
    assert model.weights == {} and np.isfinite(tensor.bytes().view(np.float32)).all()


# --- parts, overrides, checked weights ------------------------------------------------------------


def logits(model: Model) -> np.ndarray:
    context = Context(model, n_ctx=64, n_threads=1)
    context.decode(Batch([5, 6, 7], logits=[False, False, True]))
    return context.logits.copy()


@pytest.mark.parametrize("repack", [True, False])
def test_a_model_in_parts(tmp_path: Path, repack: bool) -> None:
    path = write_model(tmp_path / "x.gguf", SPEC, random_weights(SPEC), Q4_0)
    with GGUFFile(path) as f:
        plans = plan_split(f, tmp_path / "x", max_tensors=7)
        write_split(f, plans)
    whole, parts = (Model.load(p, repack=repack) for p in (path, plans[0].path))
    assert parts.n_params == whole.n_params and parts.size_bytes == whole.size_bytes
    np.testing.assert_array_equal(logits(parts), logits(whole))
    plans[1].path.unlink()
    with pytest.raises(GGUFError, match="part 2 of 3 is missing"):
        Model.load(plans[0].path)


def test_overrides_equal_the_same_values_in_the_file(tmp_path: Path) -> None:
    weights = random_weights(SPEC)
    path = write_model(tmp_path / "x.gguf", SPEC, weights)
    other = write_model(tmp_path / "y.gguf", replace(SPEC, freq_base=100.0, n_ctx=99), weights)
    overrides = {"llama.rope.freq_base": 100.0, "llama.context_length": 99}
    model = Model.load(path, kv_overrides=overrides)
    assert model.hparams == Model.load(other).hparams
    np.testing.assert_array_equal(logits(model), logits(Model.load(other)))
    assert not np.array_equal(logits(model), logits(Model.load(path)))
    llama = Llama(path, kv_overrides=overrides, verbose=False)
    assert llama.metadata["llama.context_length"] == "99" and llama.model.hparams == model.hparams
    vocabulary = Model.load(path, vocab_only=True, kv_overrides={"tokenizer.chat_template": "x"})
    assert vocabulary.metadata["tokenizer.chat_template"] == "x"
    with pytest.raises(GGUFError, match=r"'llama.context_length' is UINT32 256: it cannot be over"):
        Model.load(path, kv_overrides={"llama.context_length": "long"})


def test_weights_are_checked_on_demand(tmp_path: Path) -> None:
    weights = random_weights(SPEC)
    weights["blk.1.ffn_norm.weight"][3] = np.inf
    path = write_model(tmp_path / "x.gguf", SPEC, weights, Q4_0)
    Model.load(path)
    with pytest.raises(ModelError, match=r"'blk.1.ffn_norm.weight' \(F32\): 1 of 64 NaN"):
        Model.load(path, check_tensors=True)


TRUNCATED = """
import os, sys
from pyggml.errors import GGUFError
from pyllama import Batch, Context, Model
from pyllama.gguf_tools.digest import digests
from pyggml.gguf import GGUFFile

path = sys.argv[1]
file = GGUFFile(path)
options = {"repack": False}, {"repack": False, "use_mmap": False}, {}
contexts = [Context(Model.load(path, **o), n_ctx=32) for o in options]
for context in contexts:
    context.decode(Batch([3, 4]))
os.truncate(path, 4096)
for context in contexts:
    for step in (lambda: context.decode(Batch([5, 6])), lambda: context.decode_token(7)):
        try:
            step()
            print("ran")
        except GGUFError as error:
            print(error)
try:
    list(digests(file, ["sha256"]))
except GGUFError as error:
    print(error)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="a mapped file cannot be truncated")
def test_a_mapped_file_that_is_truncated(tmp_path: Path) -> None:
    """Touching the lost pages would be a SIGBUS; repacked weights do not need them."""
    spec = Spec(n_layer=1)
    path = write_model(tmp_path / "x.gguf", spec, random_weights(spec))
    size = path.stat().st_size
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])}
    command = [sys.executable, "-P", "-c", TRUNCATED, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, env=env)
    lines = done.stdout.splitlines()
    assert (done.returncode, len(lines), lines[2:6]) == (0, 7, ["ran"] * 4), done.stderr
    for line in (*lines[:2], lines[6]):
        assert line.startswith(f"{path}: was cut to 4096 of {size} bytes while it was in use; ")
