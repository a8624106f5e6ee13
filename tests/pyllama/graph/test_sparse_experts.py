"""Experts of ReLU models: only neurons with a positive gate are read, with the dense bits."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pyggml.dtype import GGMLType
from pyggml.gguf import GGUFFile
from pyllama import Batch, Context, Model
from pyllama.convert import ConvertOptions, convert
from pyllama.errors import ModelError
from pyllama.file_types import find_file_type
from pyllama.gguf_tools.validate import validate
from pyllama.quantize.write import QuantizeOptions, quantize_model

from ..arch.checkpoints import recorded, write_checkpoint
from ..models import rows
from ..sparsity.files import read, write

MODELS = ("smallthinker", "turbosparse_mixtral")
models = pytest.mark.parametrize("name", MODELS)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """``made(name, type, transposed)``: the path of a converted checkpoint."""
    folder = tmp_path_factory.mktemp("experts")

    @cache
    def path_of(name: str, type: str, transposed: bool) -> Path:
        source = folder / name
        if not source.exists():
            write_checkpoint(source, name)
        path = folder / f"{name}-{type}-{transposed}.gguf"
        return convert(source, path, type, ConvertOptions(transpose_down=transposed))

    return path_of


def logits(path: Path, tokens: list[int], **options: Any) -> np.ndarray:
    """Of a prompt, of single tokens after it, and of two sequences in one batch."""
    n_threads = options.pop("n_threads", 2)
    ctx = Context(Model.load(path, **options), n_ctx=64, n_seq_max=2, n_threads=n_threads)
    found = [rows(ctx, tokens[:12]), rows(ctx, *([t] for t in tokens[12:20]))]
    ctx.kv.seq_cp(0, 1)
    ctx.decode(Batch(tokens[20:24], seq_id=[0, 1, 0, 1], logits="all"))
    return np.concatenate([*found, ctx.logits.copy()])


def tokens_of(name: str) -> list[int]:
    found: list[int] = recorded(name)["tokens"].tolist()
    return found[:24]


@models
@pytest.mark.parametrize("type", ["f32", "f16", "q8_0"])
def test_bits_are_those_of_all_neurons(made: Any, name: str, type: str) -> None:
    """With transposed matrices, which are sparse by default, and whole ones, transposed or not."""
    tokens = tokens_of(name)
    transposed, plain = made(name, type, True), made(name, type, False)
    model = Model.load(transposed)
    assert set(model.hparams.sparse) == {"exact"} and not Model.load(plain).hparams.sparse
    dense = logits(transposed, tokens, sparse="off")
    for n_threads in (1, 2):
        got = logits(transposed, tokens, n_threads=n_threads)
        assert got.tobytes() == dense.tobytes()
    wanted = logits(plain, tokens)
    got = logits(plain, tokens, sparse="exact")
    if type == "q8_0":  # its down matrices stay whole
        assert got.tobytes() == wanted.tobytes()
    else:
        assert got.tobytes() == dense.tobytes()
        np.testing.assert_allclose(got, wanted, rtol=0, atol=1e-5 if type == "f32" else 1e-2)


@models
def test_rows_that_are_skipped_are_not_read(made: Any, name: str) -> None:
    """Layers in which no gate is positive give the logits of layers without experts."""
    path = made(name, "f16", True)
    model = Model.load(path)
    for key, w in model.weights.items():
        if "ffn_gate_exps" in key:  # repacked: zero bytes are zeros in any order
            w.buffer.set_tensor(w, np.zeros(w.nbytes, np.uint8))  # type: ignore[union-attr]
    ctx = Context(model, n_ctx=64)
    assert np.isfinite(rows(ctx, tokens_of(name)[:3])).all()
    headers = [t for key, t in model.weights.items() if key.endswith("ffn_up_exps.weight")]
    assert headers and all(t.buffer is not None and t.buffer.buft.is_host for t in headers)


@models
def test_a_cache_of_experts(made: Any, name: str) -> None:
    tokens = tokens_of(name)
    path = made(name, "f16", True)
    wanted = logits(path, tokens)
    for sparse in ("auto", "off"):
        got = logits(path, tokens, sparse=sparse, moe_cache_mib=1.0)
        assert got.tobytes() == wanted.tobytes()
    with pytest.raises(ModelError, match="`transpose_down`"):
        Model.load(made(name, "f16", False), sparse="exact", moe_cache_mib=1.0)


def test_a_transposed_file_has_the_names_and_sizes_of_powerinfers(made: Any) -> None:
    path = made("smallthinker", "f16", True)
    with GGUFFile(path) as file:
        assert file.tensors["blk.0.ffn_down_exps.weight"].ne == (64, 96, 8, 1)
    assert not validate(path).faults
    small = path.with_name("q4_0.gguf")
    quantize_model(path, small, find_file_type("Q4_0"), QuantizeOptions())
    with GGUFFile(small) as file:
        assert file.tensors["blk.0.ffn_down_exps.weight"].type is GGMLType.Q4_0
    assert set(Model.load(small).hparams.sparse) == {"exact"}


def test_what_is_refused(made: Any, tmp_path: Path) -> None:
    path = made("smallthinker", "f16", True)
    for source in ("predictor", "svd", "signs", "topk=3"):
        with pytest.raises(ModelError, match="sparse='exact'"):
            Model.load(path, sparse=source)
    silu = write_checkpoint(tmp_path / "silu", "qwen3moe")
    with pytest.raises(ModelError, match="not ReLU"):
        convert(silu, tmp_path / "x.gguf", "f32", ConvertOptions(transpose_down=True))
    plain = convert(silu, tmp_path / "x.gguf", "f32")
    with pytest.raises(ModelError, match="not ReLU"):
        Model.load(plain, sparse="exact")
    predictors = ConvertOptions(predictor=tmp_path)
    with pytest.raises(ModelError, match="no predictors"):
        convert(path.parent / "smallthinker", tmp_path / "y.gguf", "f32", predictors)


def with_head_predictor(path: Path, out: Path, kept: np.ndarray) -> Path:
    """The file with a predictor of the output matrix: the scores are the logit of the first token.

    So the tokens in ``kept`` are selected where that is positive, and no others.
    """
    metadata, weights = read(path)
    n_embd, n_vocab, rank = 64, 512, 32
    first, second = np.zeros((rank, n_embd), np.float32), np.zeros((n_vocab, rank), np.float32)
    first[0] = weights["output.weight"][kept[0]]
    second[kept, 0] = 1
    weights["lm_head_profiler.weight"] = np.concatenate([first.ravel(), second.ravel()])
    return write(out, metadata, weights)


def test_the_output_matrix_of_predicted_tokens(made: Any, tmp_path: Path) -> None:
    """Tokens with a positive score have their logits, others about -1e30; 0 is not positive."""
    kept = np.array([3, 77, 500])
    path = with_head_predictor(made("smallthinker", "f32", False), tmp_path / "x.gguf", kept)
    tokens = tokens_of("smallthinker")
    wanted = logits(path, tokens)
    got = logits(path, tokens, sparse="auto,head")
    selected = wanted[:, kept[0]] > 0  # rows whose score is that token's logit
    assert selected.any() and not selected.all()
    others = np.setdiff1d(np.arange(512), kept)
    assert got[selected][:, kept].tobytes() == wanted[selected][:, kept].tobytes()
    assert (got[selected][:, others] < -1e29).all() and (got[~selected] < -1e29).all()
    plain = made("smallthinker", "f32", False)
    with pytest.raises(ModelError, match="lm_head_profiler"):
        Model.load(plain, sparse="head")
    with pytest.raises(ModelError, match="without a number and layers"):
        Model.load(path, sparse="head:0-1")
    metadata, weights = read(path)
    weights["lm_head_profiler.weight"] = weights["lm_head_profiler.weight"][:-64]
    with pytest.raises(ModelError, match="lm_head_profiler"):
        Model.load(write(tmp_path / "y.gguf", metadata, weights), sparse="head")
