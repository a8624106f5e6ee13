"""Every encoder against transformers, from text on: converted from a checkpoint, then run.

The cases are those of ``variants/``. Hidden states and scores differ by less than 1e-4 (their
standard deviation is about 1), and have the same bits whatever the other texts and the threads.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pyggml.gguf import GGUFFile, write_gguf
from pyggml.viz import graph_dump_dot
from pyllama import Batch, Context, Model
from pyllama.embeddings import cosine_similarity, embed_many, rerank
from pyllama.engine import Engine
from pyllama.errors import ContextFull, ModelError

from ...tiers import some
from ..arch.checkpoints import conversions
from ..arch.llama_cpp import described
from .checkpoints import parts, recorded, write_checkpoint
from .texts import PAIRS, TEXTS
from .variants import DIFFERENT, ENCODERS

NAMES = sorted(ENCODERS)
EMBEDDING = [name for name in NAMES if "id2label" not in ENCODERS[name]]
RANKING = [name for name in NAMES if name not in EMBEDDING]
ROUNDED = 0.02  # NMSE: weights of 16 or 8 bits, activations of 8


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Makes a variant's checkpoint once, and each conversion of it once."""
    return conversions(tmp_path_factory.mktemp("checkpoints"), write_checkpoint)


def hidden(model: Model, texts: list[list[int]], **options: Any) -> list[np.ndarray]:
    """The rows of all tokens of each text."""
    return embed_many(Engine(Context(model, **options)), texts, "none")


@pytest.mark.parametrize("name", some(EMBEDDING, 15))
def test_hidden_states_of_transformers(folders: Any, name: str) -> None:
    model, record = Model.load(folders(name)), recorded(name)
    ids = [model.tokenizer.encode(text, parse_special=True) for text in TEXTS]
    assert ids == [x.tolist() for x in parts(record, "tokens")]
    wanted = parts(record, "hidden")
    got = hidden(model, ids, n_threads=2)
    for a, b in zip(got, wanted, strict=True):
        assert a.shape == b.shape and np.abs(a - b).max() < 1e-4
    engine = Engine(Context(model))
    for pooling in ("mean", "cls", "last"):
        for vector, rows in zip(embed_many(engine, ids, pooling), wanted, strict=True):
            pooled = {"mean": rows.mean(0), "cls": rows[0], "last": rows[-1]}[pooling]
            assert cosine_similarity(vector, pooled) > 0.999999


def test_a_text_beyond_the_learned_positions(folders: Any) -> None:
    model = Model.load(folders("bert"))
    n = model.hparams.n_ctx_train
    engine = Engine(Context(model, n_ctx=2 * n))
    assert len(embed_many(engine, [[5] * n], "mean")) == 1
    line = f"text 1: the text has {n + 1} tokens, but the model has learned {n} positions"
    with pytest.raises(ContextFull, match=line):
        embed_many(engine, [[5], [5] * (n + 1)], "mean")


@pytest.mark.parametrize("name", some(RANKING, 5))
def test_scores_of_transformers(folders: Any, name: str) -> None:
    model, record = Model.load(folders(name)), recorded(name)
    engine = Engine(Context(model))
    labels = ENCODERS[name]["id2label"]
    assert model.pooling == "rank" and model.classifier_labels == [*labels.values()]
    ids = [x.tolist() for x in parts(record, "tokens")]
    scores = np.stack(embed_many(engine, ids, "rank"))
    assert np.abs(scores - record["scores"]).max() < 1e-4
    ranked = [rerank(engine, query, [document])[0] for query, document in PAIRS]
    assert np.abs(np.array(ranked) - record["scores"][:, 0]).max() < 1e-4


@pytest.mark.parametrize("name", some(NAMES, 20))
def test_keys_and_tensors_of_llama_cpp_s_converter(folders: Any, name: str) -> None:
    wanted, ours = json.loads(str(recorded(name)["gguf"])), described(folders(name))
    if not wanted:
        pytest.skip("llama.cpp does not convert this variant")
    others = {"architecture"} if ours["architecture"] != wanted["architecture"] else set()
    others |= {k for k, v in wanted["keys"].items() if not _same(ours["keys"].get(k), v)}
    both = ours["tensors"].keys() | wanted["tensors"].keys()
    others |= {t for t in both if ours["tensors"].get(t) != wanted["tensors"].get(t)}
    assert others == set(DIFFERENT.get(name, ()))


def _same(a: Any, b: Any) -> bool:
    if isinstance(b, list) and b and isinstance(b[0], str):
        return list(a) == b
    return a == b if isinstance(b, str | bool) else a is not None and np.allclose(a, b, 1e-6, 0)


@pytest.mark.parametrize("name", some(NAMES, 4))
def test_the_same_bits_among_other_texts(folders: Any, name: str) -> None:
    model = Model.load(folders(name, "q8_0"))
    texts = [x.tolist() for x in parts(recorded(name), "tokens")]
    alone = [hidden(model, [text], n_threads=1)[0] for text in texts]
    for options in ({"n_threads": 2}, {"n_ubatch": max(map(len, texts))}, {"n_threads": 1}):
        got = hidden(model, [*texts, *texts[::-1]], **options)
        for a, b in zip(got, [*alone, *alone[::-1]], strict=True):
            assert np.array_equal(a, b)
    context = Context(model, n_seq_max=1)
    seqs = [i for i, text in enumerate(texts) for _ in text]
    tokens = [token for text in texts for token in text]
    if model.hparams.has_encoder:
        context.encode(texts)
    else:
        context.decode(Batch(tokens, seq_id=seqs, logits="none", embeddings="all"))
    assert np.array_equal(context.embeddings, np.concatenate(alone))


@pytest.mark.parametrize("name", some(EMBEDDING, 2))
def test_rounded_weights(folders: Any, name: str) -> None:
    record = recorded(name)
    texts = [x.tolist() for x in parts(record, "tokens")]
    got, wanted = (
        np.concatenate(hidden(Model.load(folders(name, "q8_0")), texts)),
        record["hidden"],
    )
    assert ((got - wanted) ** 2).sum() < ROUNDED * (wanted**2).sum()


@pytest.mark.parametrize("name", some(NAMES, 4))
def test_drawn_and_damaged_files(folders: Any, name: str, tmp_path: Path) -> None:
    model = Model.load(folders(name))
    graph_dump_dot(Context(model).graph(4, 1).graph, tmp_path / "x.dot")
    assert "_out-2" in (tmp_path / "x.dot").read_text()
    file = GGUFFile(folders(name))
    tensors: dict[str, Any] = {
        t: (file.tensor_bytes(t), info.type, info.ne[: info.n_dims])
        for t, info in file.tensors.items()
    }
    lost = next(p for p in model.arch.TENSORS if not p.endswith("?")).replace("{i}", "1")
    write_gguf(tmp_path / "x.gguf", file.metadata, {t: v for t, v in tensors.items() if t != lost})
    with pytest.raises(ModelError, match=f"tensor '{lost}' is missing"):
        Model.load(tmp_path / "x.gguf")
