"""Completions of an encoder with a decoder: texts, slots, and what such a model cannot do."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pyllama import Llama, Model
from pyllama.convert import convert
from pyllama.errors import BatchError

from ..encoders.checkpoints import parts, recorded, write_checkpoint
from ..encoders.texts import TEXTS
from .conftest import Serve


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = write_checkpoint(tmp_path_factory.mktemp("m") / "x", "t5")
    return convert(folder, folder / "x.gguf", "f32")


@pytest.fixture(scope="module")
def model(path: Path) -> Iterator[Model]:
    yield Model.load(path)


def wanted(model: Model, i: int) -> str:
    """The first eight greedy tokens of a text as transformers chooses them."""
    tokenizer, tokens = model.tokenizer, recorded("t5")["greedy"][i, :8].tolist()
    return b"".join(map(tokenizer.token_to_piece, tokens)).decode()


def test_completions_and_slots(serve: Serve, model: Model, tmp_path: Path) -> None:
    client = serve(n_slots=2, slot_save_path=tmp_path, pooling="mean")
    greedy: dict[str, Any] = {"temperature": 0, "n_predict": 8}

    def complete(text: Any, **fields: Any) -> dict[str, Any]:
        body = {"prompt": text, **greedy, **fields}
        found: dict[str, Any] = client.post("/completion", json=body).json()
        return found

    n = len(parts(recorded("t5"), "tokens")[0])
    first = complete(TEXTS[0], id_slot=0)
    assert first["content"] == wanted(model, 0) and first["tokens_evaluated"] == n
    assert complete(TEXTS[1], id_slot=1)["content"] == wanted(model, 1)
    several = {"prompt": [TEXTS[0], TEXTS[3]], "max_tokens": 8, "temperature": 0, "n": 2}
    choices = client.post("/v1/completions", json=several).json()["choices"]
    texts = [wanted(model, 0)] * 2 + [wanted(model, 3)] * 2
    assert [choice["text"] for choice in choices] == texts
    complete(TEXTS[0], id_slot=0)
    for action, slot in (("save", 0), ("restore", 1)):
        done = client.post(f"/slots/{slot}?action={action}", json={"filename": "a.bin"})
        assert done.status_code == 200, done.text
    again = complete(TEXTS[0], id_slot=1)
    assert again["content"] == wanted(model, 0) and again["timings"]["cache_n"] == n
    refused = complete([3] * 600)
    assert refused["error"]["type"] == "exceed_context_size_error"
    line = "request (600 tokens) exceeds the physical batch size (--ubatch-size, 512 tokens)"
    assert refused["error"]["message"] == f"{line}, try increasing it"
    rows = client.post("/v1/embeddings", json={"input": list(TEXTS[:2])}).json()["data"]
    assert len(rows) == 2 and len(rows[0]["embedding"]) == model.hparams.n_embd


def test_llama(path: Path, model: Model) -> None:
    llama = Llama(str(path), n_ctx=256, verbose=False)
    for i in (0, 1, 0):
        made = llama(TEXTS[i], max_tokens=8, temperature=0)
        assert made["choices"][0]["text"] == wanted(model, i)
    with pytest.raises(BatchError, match="an encoded text cannot be continued"):
        next(llama.generate([5], reset=False))
    llama.reset()
    with pytest.raises(BatchError, match="sequence 0 has no encoded text"):
        llama.eval([3, 4])
