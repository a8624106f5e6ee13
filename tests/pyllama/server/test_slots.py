"""``/slots``: what it tells, and files of slots."""

from __future__ import annotations

import socket
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from pyllama import Model
from pyllama.server.request.errors import ApiError

from ...waiting import WAIT_S, until
from .conftest import Serve, held, listening, make_served

ASK = {"prompt": "Once upon a time there was", "n_predict": 4, "id_slot": 1, "ignore_eos": True}


def test_slots_tell_their_state(serve: Serve) -> None:
    client = serve(n_ctx=512, unified=False)
    slots = client.get("/slots").json()
    assert [s["id"] for s in slots] == [0, 1] and "params" not in slots[0]
    assert slots[0]["n_ctx"] == 256
    found = client.post("/completion", json=ASK).json()
    slot = client.get("/slots").json()[1]
    assert not slot["is_processing"] and slot["n_prompt_tokens"] == found["tokens_cached"]
    assert slot["next_token"][0]["n_remain"] == -1
    assert serve(endpoint_slots=False).get("/slots").status_code == 501


def test_a_slot_is_saved_restored_and_erased(serve: Serve, tmp_path: Path) -> None:
    client = serve(slot_save_path=tmp_path)

    def act(action: str, slot: int = 1, **body: Any) -> Any:
        response = client.post(f"/slots/{slot}?action={action}", json=body)
        assert response.status_code == 200, response.text
        return response.json()

    first = client.post("/completion", json=ASK).json()
    saved = act("save", filename="a.bin")
    assert saved["n_saved"] == first["tokens_evaluated"] + 3
    assert saved["n_written"] == (tmp_path / "a.bin").stat().st_size
    assert act("erase")["n_erased"] == saved["n_saved"]
    assert client.post("/completion", json=ASK).json()["timings"]["cache_n"] == 0
    act("erase")
    assert act("restore", slot=0, filename="a.bin")["n_restored"] == saved["n_saved"]
    again = client.post("/completion", json={**ASK, "id_slot": 0}).json()
    assert again["timings"]["cache_n"] == first["tokens_evaluated"] - 1
    assert again["content"] == first["content"]


def test_a_restored_slot_takes_the_cells_of_idle_ones(serve: Serve, tmp_path: Path) -> None:
    client = serve(slot_save_path=tmp_path, n_ctx=128)
    ask = {"prompt": [5] * 80, "n_predict": 2, "cache_prompt": False}
    client.post("/completion", json={**ask, "id_slot": 0})
    client.post("/slots/0?action=save", json={"filename": "a"})
    client.post("/slots/0?action=erase", json={})
    client.post("/completion", json={**ask, "id_slot": 1})
    response = client.post("/slots/0?action=restore", json={"filename": "a"})
    assert response.status_code == 200 and response.json()["n_restored"] == 81
    assert client.post("/slots/1?action=erase", json={}).json()["n_erased"] == 0
    # with cells of its own, the other slot's are no use
    client = serve(slot_save_path=tmp_path, n_ctx=128, unified=False)
    client.post("/completion", json={**ask, "prompt": [5] * 40, "id_slot": 1})
    response = client.post("/slots/0?action=restore", json={"filename": "a"})
    assert response.status_code == 400 and "do not fit" in response.text
    assert client.post("/slots/1?action=erase", json={}).json()["n_erased"] == 41


def test_a_busy_slot_is_changed_after_its_text(serve: Serve, tmp_path: Path) -> None:
    """As llama-server defers the task. Other slots do not wait."""
    client = serve(slot_save_path=tmp_path)
    ended: list[str] = []

    def ask() -> None:
        body = {**ASK, "n_predict": 200, "stream": True}
        assert client.post("/completion", json=body).is_success
        ended.append("text")

    def act(slot: int, action: str, name: str) -> Any:
        path = f"/slots/{slot}?action={action}"
        found = client.post(path, json={"filename": name}).json()
        ended.append(name)
        return found

    with ThreadPoolExecutor(3) as threads:
        with held(client.served):  # type: ignore[attr-defined]
            asked = threads.submit(ask)
            until(lambda: client.get("/slots").json()[1]["is_processing"])
            saved = threads.submit(act, 1, "save", "busy")
            assert act(0, "erase", "other")["n_erased"] == 0
        asked.result()
        assert saved.result()["n_saved"] >= 200
    assert ended.index("other") < ended.index("text") and "busy" in ended


def test_a_change_that_waits_ends_with_the_server(serve: Serve) -> None:
    client = serve()
    runner = client.served.runner  # type: ignore[attr-defined]

    async def wait() -> int:
        return await runner.call(lambda engine: 0, lambda engine: False)

    waits = client.portal.start_task_soon(wait)
    client.portal.call(runner.close, 0.0)
    for one in (waits, client.portal.start_task_soon(wait)):
        with pytest.raises(ApiError, match="shutting down"):
            one.result(WAIT_S)


def test_a_change_that_waits_ends_with_its_client(
    model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    served = make_served(model, slot_save_path=tmp_path)
    waiting: list[Any] = []
    call, sequence = served.runner.call, served.engine.sequences[1]

    def called(*args: Any) -> Any:
        waiting.append(call(*args))
        return waiting[-1]

    monkeypatch.setattr(served.runner, "call", called)
    with listening(served) as port:
        sequence.leased = True  # as while a text runs in it
        for action in ("erase", "save"):
            head = f"POST /slots/1?action={action} HTTP/1.1\r\nHost: localhost\r\n"
            body = b'{"filename": "a"}'
            with socket.create_connection(("127.0.0.1", port)) as connection:
                connection.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
                until(lambda: waiting)
            until(waiting.pop().cancelled)
        sequence.leased = False
        with socket.create_connection(("127.0.0.1", port)) as connection:  # one that still waits
            connection.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
            assert connection.recv(1000).startswith(b"HTTP/1.1 200")
        assert len(waiting) == 1 and not served.runner._calls.has_new


@pytest.mark.parametrize("name", ["", ".", "..", "../a", "/etc/x", "a/b", "a\\b", "a\0", "-x", "é"])
def test_names_that_lead_elsewhere(serve: Serve, tmp_path: Path, name: str) -> None:
    client = serve(slot_save_path=tmp_path)
    for action in ("save", "restore"):
        response = client.post(f"/slots/0?action={action}", json={"filename": name})
        assert response.status_code == 400
    assert not [*tmp_path.iterdir()]


def test_a_slot_that_cannot_be_saved(serve: Serve, tmp_path: Path) -> None:
    client = serve(slot_save_path=tmp_path)
    (tmp_path / "folder").mkdir()
    response = client.post("/slots/0?action=save", json={"filename": "folder"})
    assert response.status_code == 500
    message = response.json()["error"]["message"]
    assert message == "Unable to save slot: cannot replace a directory"


def test_files_that_are_no_slots(serve: Serve, tmp_path: Path) -> None:
    client = serve(slot_save_path=tmp_path)
    (tmp_path / "bad").write_bytes(b"PYLS" + bytes(100))
    (tmp_path / "link").symlink_to("/etc/passwd")
    for name in ("missing", "bad", "link"):
        response = client.post("/slots/0?action=restore", json={"filename": name})
        assert response.status_code == 400
    for slot in ("7", "x", "-1"):
        assert client.post(f"/slots/{slot}?action=erase", json={}).status_code == 400
    assert client.post("/slots/0?action=burn", json={}).status_code == 400
    assert serve().post("/slots/0?action=erase", json={}).status_code == 501
