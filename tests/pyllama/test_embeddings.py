"""Embeddings against transformers' hidden states and llama.cpp's; normalization; rerankers.

``record_embeddings.py`` recorded the hidden states. Embeddings may differ by 1e-4.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pyggml.dtype import GGMLType
from pyggml.gguf import GGUFFile, write_gguf
from pyllama import Context, Model
from pyllama.convert import convert
from pyllama.embeddings import (
    cosine_similarity,
    embed_many,
    normalize,
    rerank,
    rerank_tokens,
)
from pyllama.engine import Engine
from pyllama.errors import BatchError, ContextFull, ModelError
from pyllama.runtime.overrides import Overrides

from ..tiers import some
from .arch.checkpoints import DATA, recorded, write_checkpoint

NAMES = ("gemma3", "gpt2", "llama", "opt", "qwen3")
F32 = GGMLType.F32
POOL: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "none": lambda rows: rows,
    "mean": lambda rows: rows.mean(axis=0, dtype=np.float64),
    "cls": lambda rows: rows[0],
    "last": lambda rows: rows[-1],
}


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Converts a variant's checkpoint once."""
    root = tmp_path_factory.mktemp("checkpoints")

    def converted(name: str) -> Path:
        path = root / f"{name}.gguf"
        if not path.exists():
            convert(write_checkpoint(root / name, name), path, "f32")
        return path

    return converted


def hidden(name: str) -> dict[str, np.ndarray]:
    with np.load(DATA / "embeddings" / f"{name}.npz") as found:
        return dict(found)


def tokens_of(name: str) -> list[int]:
    tokens: list[int] = recorded(name)["tokens"].tolist()
    return tokens


def engine(model: Model, **options: Any) -> Engine:
    return Engine(Context(model, **{"n_ctx": 64, "type_k": F32, "type_v": F32, **options}))


@pytest.fixture(scope="module")
def reranker(file: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Qwen3 with a recorded classification head of two outputs."""
    path = tmp_path_factory.mktemp("reranker") / "reranker.gguf"
    with GGUFFile(file("qwen3")) as source:
        tensors: dict[str, Any] = {
            name: (source.tensor_bytes(name), info.type, info.ne[: info.n_dims])
            for name, info in source.tensors.items()
        }
        tensors["cls.output.weight"] = hidden("qwen3_ranking")["head"]
        metadata = dict(source.metadata) | {
            "qwen3.pooling_type": np.uint32(4),
            "qwen3.classifier.output_labels": ["yes", "no"],
            "tokenizer.chat_template.rerank": "Q: {query} D: {document} A:",
        }
        write_gguf(path, metadata, tensors)
    return path


@pytest.mark.parametrize("pooling", POOL)
@pytest.mark.parametrize("name", some(NAMES, 2))
def test_transformers_hidden_states(file: Callable[[str], Path], name: str, pooling: str) -> None:
    (got,) = embed_many(engine(Model.load(file(name))), [tokens_of(name)], pooling)
    wanted = POOL[pooling](hidden(name)["hidden"])
    assert got.dtype == np.float32 and got.shape == wanted.shape
    assert np.abs(got - wanted).max() < 1e-4


@pytest.mark.parametrize("pooling", POOL)
def test_non_causal_attention(file: Callable[[str], Path], pooling: str, tmp_path: Path) -> None:
    wanted = POOL[pooling](hidden("llama_non_causal")["hidden"])
    with GGUFFile(file("llama")) as source:
        metadata = {**source.metadata, "llama.attention.causal": False}
        tensors = {n: (source.tensor_bytes(n), t.type, t.ne) for n, t in source.tensors.items()}
        write_gguf(tmp_path / "x.gguf", metadata, tensors)
    for model, overrides in (
        (Model.load(file("llama")), Overrides(causal=False)),
        (Model.load(tmp_path / "x.gguf"), Overrides()),
    ):
        (got,) = embed_many(engine(model, overrides=overrides), [tokens_of("llama")], pooling)
        assert np.abs(got - wanted).max() < 1e-4


def test_the_scores_of_a_reranker(reranker: Path) -> None:
    model = Model.load(reranker)
    assert model.pooling == "rank" and model.classifier_labels == ["yes", "no"]
    tokens, wanted = tokens_of("qwen3"), hidden("qwen3_ranking")["scores"]
    assert np.ptp(wanted) > 0.1
    for options in ({}, {"n_ubatch": 7}):
        (got,) = embed_many(engine(model, **options), [tokens], "rank")
        assert got.shape == (2,) and np.abs(got - wanted).max() < 1e-4
    (row,) = embed_many(engine(model), [tokens], "last")
    assert np.abs(row - hidden("qwen3")["hidden"][-1]).max() < 1e-4


def test_documents_are_ranked_with_one_evaluation_of_the_query(reranker: Path) -> None:
    model = Model.load(reranker)
    documents = ["the cat", "a dog that barks", "the cat"]
    of_engine = engine(model, n_ctx=512, n_seq_max=4)
    scores = rerank(of_engine, "which animal? " * 6, documents)
    assert scores[0] == scores[2] != scores[1]
    n_tokens = [len(rerank_tokens(model, "which animal? " * 6, d)) for d in documents]
    assert of_engine.timings.n_prompt_eval + of_engine.timings.n_eval < sum(n_tokens) - 40
    for document, score in zip(documents, scores, strict=True):
        assert rerank(engine(model, n_ctx=512), "which animal? " * 6, [document]) == [score]


def test_the_tokens_of_a_query_and_a_document(reranker: Path, file: Callable[[str], Path]) -> None:
    model = Model.load(reranker, vocab_only=True)
    encode = model.tokenizer.encode
    given = rerank_tokens(model, "a {document}", "b {query}")
    assert given == encode("Q: a {document} D: b {query} A:", add_special=False)
    overrides: dict[str, Any] = {"tokenizer.ggml.add_eos_token": True}
    plain = Model.load(file("llama"), vocab_only=True, kv_overrides=overrides)
    tokenizer = plain.tokenizer
    a, b = (tokenizer.encode(text, add_special=False) for text in ("one", "two"))
    bos, eos = tokenizer.bos, tokenizer.eos
    assert rerank_tokens(plain, "one", "two") == [bos, *a, eos, *b, eos]


def test_bad_texts_and_models(file: Callable[[str], Path]) -> None:
    model = Model.load(file("llama"))
    causal = engine(model, n_seq_max=2)
    whole = engine(model, n_ubatch=16, overrides=Overrides(causal=False))
    for of_engine, texts, pooling, error, message in (
        (causal, [[5], []], "mean", BatchError, "text 1: .* the text is empty"),
        (causal, [[5] * 65], "mean", ContextFull, "text 0: the prompt has 65 tokens"),
        (causal, [[512]], "mean", BatchError, "token id 512"),
        (causal, [[5]], "rank", ModelError, "no classification head"),
        (causal, [[5]], "max", BatchError, "pooling is 'max', want one of none, mean"),
        (
            whole,
            [[5] * 17],
            "mean",
            BatchError,
            "must fit into one ubatch of 16; use `n_ubatch=17`",
        ),
    ):
        with pytest.raises(error, match=message):
            embed_many(of_engine, texts, pooling)
    assert embed_many(causal, [], "mean") == []
    assert len(embed_many(causal, [[5]], "mean")) == 1


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("llama.pooling_type", np.uint32(9), "pooling_type = 9, want 0 to 4"),
        ("llama.classifier.pooling_type", np.uint32(1), "classifier.pooling_type = 1"),
    ],
)
def test_unknown_kinds_of_pooling_are_refused(
    file: Callable[[str], Path], key: str, value: Any, message: str
) -> None:
    with pytest.raises(ModelError, match=message):
        Model.load(file("llama"), kv_overrides={key: int(value)})


@pytest.mark.parametrize(
    ("p", "wanted"),
    [
        (-1, [3.0, -4.0, 0.0]),
        (0, [24570.0, -32760.0, 0.0]),
        (1, [3 / 7, -4 / 7, 0.0]),
        (2, [0.6, -0.8, 0.0]),
        (3, [3 / 91 ** (1 / 3), -4 / 91 ** (1 / 3), 0.0]),
        (400, [0.75, -1.0, 0.0]),
    ],
)
def test_normalization(p: int, wanted: list[float]) -> None:
    x = np.array([3, -4, 0], np.float32)
    rows = normalize(np.array([x, 0 * x]), p)
    assert np.allclose(rows, [wanted, [0, 0, 0]], rtol=1e-6)
    assert np.array_equal(normalize(x, p), rows[0])


def test_normalization_below_minus_one_is_refused() -> None:
    with pytest.raises(BatchError, match="p = -2"):
        normalize(np.ones(2, np.float32), -2)


def test_cosine_similarity() -> None:
    x, zero = np.array([3, 4], np.float32), np.zeros(2, np.float32)
    assert cosine_similarity(x, 2 * x) == pytest.approx(1)
    assert cosine_similarity(x, np.array([-4, 3], np.float32)) == pytest.approx(0)
    assert cosine_similarity(zero, zero) == 1 and cosine_similarity(x, zero) == 0


def llama_cpp_server(path: Path, pooling: str) -> Any:
    """llama.cpp's server in this process; its fused attention would round to F16."""
    xllamacpp = pytest.importorskip("xllamacpp")
    params = xllamacpp.CommonParams()
    params.model.path = str(path)
    params.n_ctx, params.n_parallel, params.warmup, params.embedding = 256, 1, False, True
    kinds, attention = xllamacpp.llama_pooling_type, xllamacpp.llama_flash_attn_type
    params.pooling_type = getattr(kinds, f"LLAMA_POOLING_TYPE_{pooling.upper()}")
    params.flash_attn_type = attention.LLAMA_FLASH_ATTN_TYPE_DISABLED
    params.cache_type_k = params.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_F32
    return xllamacpp.Server(params)


@pytest.mark.long
@pytest.mark.parametrize("name", ["llama", "qwen2", "qwen3"])  # GELU is an F16 table there
@pytest.mark.parametrize("pooling", ["mean", "cls", "last"])
def test_embeddings_of_llama_cpp(file: Callable[[str], Path], name: str, pooling: str) -> None:
    server = llama_cpp_server(file(name), pooling)
    reply = server.handle_embeddings({"input": tokens_of(name)})
    (got,) = embed_many(engine(Model.load(file(name))), [tokens_of(name)], pooling)
    assert np.abs(normalize(got) - reply["data"][0]["embedding"]).max() < 1e-5


@pytest.mark.long
def test_scores_of_llama_cpp(reranker: Path) -> None:
    documents = ["the cat", "a dog that barks", "Paris"]
    server = llama_cpp_server(reranker, "rank")
    reply = server.handle_rerank({"query": "an animal?", "documents": documents})
    wanted = {one["index"]: one["relevance_score"] for one in reply["results"]}
    got = rerank(engine(Model.load(reranker), n_ctx=256), "an animal?", documents)
    assert np.abs(np.array(got) - [wanted[i] for i in range(3)]).max() < 1e-5
