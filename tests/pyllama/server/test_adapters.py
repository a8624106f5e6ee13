"""Adapters over HTTP: their list, factors for all requests and for one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pyllama import Model
from pyllama.runtime.adapters import load_control_vector, load_lora

from ..adapters import adaptable, random_terms, write_lora, write_vector
from .conftest import Serve, TestClient

PROMPT = "The quick brown fox"


@pytest.fixture
def adapted(serve: Serve, model: Model, tmp_path: Path) -> TestClient:
    """A server with a LoRA adapter that is applied, another, and a control vector."""
    client, loaded = serve(slot_save_path=tmp_path, pooling="mean"), []
    context, hp = client.served.engine.context, model.hparams  # type: ignore[attr-defined]
    for i in range(2):
        terms = random_terms(adaptable(model), hp.n_vocab, rank=4, seed=i, size=2.0)
        path = write_lora(tmp_path / f"{i}.gguf", hp.arch, terms, 8)
        loaded.append(load_lora(path, model))
    path = write_vector(tmp_path / "v.gguf", hp.n_embd, hp.n_layer, seed=7)
    loaded.append(load_control_vector(path, model))
    context.set_adapters(loaded, {loaded[0]: 1.0})
    return client


def text(client: TestClient, lora: Any = None) -> str:
    body = {"prompt": PROMPT, "n_predict": 12, "temperature": 0, "ignore_eos": True}
    reply = client.post("/completion", json=body | ({} if lora is None else {"lora": lora}))
    assert reply.status_code == 200, reply.text
    assert reply.json()["generation_settings"]["lora"] == (lora or [])
    found: str = reply.json()["content"]
    return found


def test_factors_of_all_and_of_one_request(adapted: TestClient) -> None:
    listed = adapted.get("/lora-adapters").json()
    assert [x["path"] for x in listed] == ["0.gguf", "1.gguf", "v.gguf"]
    assert [(x["id"], x["scale"], x.get("type")) for x in listed] == [
        (0, 1.0, None), (1, 0.0, None), (2, 0.0, "control-vector"),
    ]  # fmt: skip
    applied, plain = text(adapted), text(adapted, [{"id": 0, "scale": 0}])
    other, half = (text(adapted, [{"id": i, "scale": x}]) for i, x in ((1, 1), (0, 0.5)))
    steered = text(adapted, [{"id": 2, "scale": 30.0}])
    assert len({applied, plain, other, half, steered}) == 5
    assert text(adapted, [{"id": 0, "scale": 1.0}]) == applied
    assert adapted.post("/lora-adapters", json=[{"id": 1, "scale": 1}]).json() == {"success": True}
    assert [x["scale"] for x in adapted.get("/lora-adapters").json()] == [0.0, 1.0, 0.0]
    assert text(adapted) == other
    assert adapted.post("/lora-adapters", json=[]).json() == {"success": True}
    assert text(adapted) == plain


@pytest.mark.parametrize(
    "lora", [3, [1], [{"id": 9, "scale": 1}], [{"id": 0}], [{"id": "0", "scale": 1}],
             [{"id": 0, "scale": 1e30}], [{"id": -1, "scale": 1}], [{"id": 0, "scale": True}]],
)  # fmt: skip
def test_wrong_factors_change_nothing(adapted: TestClient, lora: Any) -> None:
    before = adapted.get("/lora-adapters").json()
    for path, body in (("/completion", {"prompt": PROMPT, "lora": lora}), ("/lora-adapters", lora)):
        reply = adapted.post(path, json=body)
        assert reply.status_code == 400 and "\n" not in reply.json()["error"]["message"]
        assert "/" not in reply.json()["error"]["message"]  # no folder
    assert adapted.get("/lora-adapters").json() == before


def test_embeddings_with_adapters(adapted: TestClient) -> None:
    def vector(**more: Any) -> list[float]:
        reply = adapted.post("/v1/embeddings", json={"input": PROMPT, **more})
        assert reply.status_code == 200, reply.text
        found: list[float] = reply.json()["data"][0]["embedding"]
        return found

    applied, plain = vector(), vector(lora=[{"id": 0, "scale": 0}])
    other = vector(lora=[{"id": 1, "scale": 1.0}])
    assert applied != plain != other and vector(lora=[{"id": 0, "scale": 1}]) == applied
    reply = adapted.post("/v1/embeddings", json={"input": PROMPT, "lora": [{"id": 9, "scale": 1}]})
    assert reply.status_code == 400 and "no adapter 9" in reply.json()["error"]["message"]


def test_a_slot_file_belongs_to_its_adapters(adapted: TestClient) -> None:
    def act(action: str, status: int = 200) -> str:
        reply = adapted.post(f"/slots/0?action={action}", json={"filename": "a.bin"})
        assert reply.status_code == status, reply.text
        return reply.text

    def ask(**more: Any) -> int:
        body = {"prompt": PROMPT, "n_predict": 3, "id_slot": 0, "ignore_eos": True, **more}
        cached: int = adapted.post("/completion", json=body).json()["timings"]["cache_n"]
        return cached

    ask()
    act("save")
    act("erase")
    act("restore")
    assert ask() > 0
    ask(lora=[{"id": 1, "scale": 1.0}])
    act("save")
    assert "other adapters" in act("restore", 400)
    act("erase")
    assert ask() == 0
    act("save")
    adapted.post("/lora-adapters", json=[{"id": 1, "scale": 1.0}])
    assert "other adapters" in act("restore", 400)
