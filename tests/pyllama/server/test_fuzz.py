"""Malformed requests get a 4xx, or 501 for what is switched off, and the server goes on.

`python -m benchmarks.soak_serve --malformed` sends more of the same requests, and slow senders.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import logging
import random
import time
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from benchmarks.malformed import (
    FIELDS,
    KINDS,
    MAX_BODY_MIB,
    SEEDS,
    http,
    malformed,
    mutated,
    text_of,
    wrong_fields,
)
from benchmarks.soak_serve import Run, answer, huge, largest_requests, slow, verdict
from pyllama import Model
from pyllama.parameters.serving import MIB
from pyllama.server.app import ROUTES
from pyllama.server.worker.served import ServedModel
from pyllama.tokenizer import Tokenizer

from ...tiers import some
from .conftest import Serve, listening, make_served

ALLOWED = {200, 400, 404, 405, 413, 429, 501}
_MAX_WARM_STEP_S = 0.1  # of a processor, once kernels are compiled
_MAX_STEP_S = 5.0  # of a processor; benchmarks.soak_serve --largest measures it on an idle one


def _with_infill(served: ServedModel) -> None:
    """Give a model the tokens of an infill prompt."""
    vocab = served.tokenizer.vocab
    special = {"fim_pre": 3, "fim_suf": 4, "fim_mid": 5}
    served.tokenizer = Tokenizer(dataclasses.replace(vocab, roles={**vocab.roles, **special}))


def test_changed_bodies(client: TestClient) -> None:
    rng = random.Random(1)
    for path, body in SEEDS.items():
        for _ in range(15):
            value = mutated(body, rng)
            data = json.dumps(value).encode()
            response = client.post(path, content=data)
            assert response.status_code in ALLOWED, (path, value, response.text)
    assert client.post("/completion", json=SEEDS["/completion"]).status_code == 200


def test_changed_bytes(client: TestClient) -> None:
    rng = random.Random(2)
    for path, body in SEEDS.items():
        whole = json.dumps(body).encode()
        for _ in range(20):
            data = bytearray(whole)
            for _ in range(rng.randrange(1, 4)):
                data[rng.randrange(len(data))] = rng.randrange(256)
            data = data[: rng.randrange(1, len(data) + 1)]
            response = client.post(path, content=bytes(data))
            assert response.status_code in ALLOWED, (path, bytes(data), response.text)


def test_every_route_takes_garbage(client: TestClient) -> None:
    for method, paths, _ in ROUTES:
        for path in paths:
            url = path.replace("{id_slot}", "x%00")
            for data in (b"", b"\xff\xfe", b"nul", b"[1]", b'{"a":' * 70, b"9" * 5000):
                response = client.request(method, url, content=data)
                assert response.status_code in ALLOWED | {403}, (url, data, response.text)


@pytest.mark.parametrize("path", some(FIELDS, 2))
def test_wrong_values_of_every_field(serve: Serve, path: str) -> None:
    client = serve(pooling="last" if "rerank" in path else "mean", reranking="rerank" in path)
    _with_infill(client.served)  # type: ignore[attr-defined]
    assert client.post(path, json=FIELDS[path]).status_code == 200
    for body in wrong_fields(path):
        response = client.post(path, content=text_of(body))
        assert response.status_code in ALLOWED - {501}, (body, response.text)
    assert client.post(path, json=FIELDS[path]).status_code == 200


@pytest.mark.long
def test_the_largest_values_beside_a_stream(
    model: Model, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    n_ctx, run, steps, n_steps = 128, Run(), [], []
    requests = largest_requests(n_ctx)
    served = make_served(model, n_slots=4, n_ctx=4 * n_ctx, unified=False, pooling="mean")
    _with_infill(served)
    step = served.engine.step

    def timed() -> Any:
        begin = time.thread_time()
        found = step()
        steps.append(time.thread_time() - begin)
        return found

    monkeypatch.setattr(served.engine, "step", timed)
    ask = {"prompt": "a", "n_predict": 100, "stream": True, "ignore_eos": True}

    async def stream(client: Any, is_done: asyncio.Event) -> None:
        while not is_done.is_set():
            status, data = await client("/completion", ask)
            if status == 429:  # another request's texts fill the queue
                await asyncio.sleep(0.01)
            else:
                assert b'"stop":true' in data and b"error" not in data

    with listening(served, body_s=60.0) as port:

        async def client(path: str, body: dict[str, Any]) -> tuple[int, bytes]:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(http(path, text_of(body)))
            data = await reader.read(-1)
            writer.close()
            return int(data[9:12]), data

        async def all_values() -> None:
            is_done = asyncio.Event()
            running = asyncio.ensure_future(stream(client, is_done))
            for one in requests.items():
                await huge(port, *one, run)
            n_steps.append(len(steps))
            await asyncio.gather(*(huge(port, *one, run) for one in requests.items()))
            is_done.set()
            await running

        asyncio.run(all_values())
    assert not run.findings, run.findings
    assert max(steps) < _MAX_STEP_S
    assert max(steps[n_steps[0] :]) < _MAX_WARM_STEP_S
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


@pytest.mark.parametrize("kind", some(KINDS, 6))
def test_malformed_requests_at_a_socket(
    model: Model, kind: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    options: dict[str, Any] = {
        "slot_save_path": tmp_path, "pooling": "mean", "endpoint_props": True,
        "max_body_bytes": MAX_BODY_MIB * MIB,
    }  # fmt: skip
    served = make_served(model, **options)
    with listening(served, header_s=0.3, body_s=0.3) as port:

        async def all_answers() -> list[list[int]]:
            return [await answer(port, one) for one in requests]

        requests = [malformed(number, kind) for number in range(25)]
        for one, codes in zip(requests, asyncio.run(all_answers()), strict=True):
            if codes == [501] and b"/infill" in one.data:
                continue  # this model has no tokens for it
            assert "finding" not in verdict(one, codes), (one.number, one.data[:2000], codes)
        assert not served.runner.n_processing and served.runner.is_idle
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


def test_malformed_requests_are_seldom_right_and_always_the_same() -> None:
    assert [malformed(i) for i in range(50)] == [malformed(i) for i in range(50)]
    assert {malformed(i).kind for i in range(300)} == set(KINDS)


def test_slow_senders(model: Model) -> None:
    with listening(make_served(model), header_s=1.0, body_s=1.0) as port:

        async def all_slow() -> list[str]:
            return list(await asyncio.gather(*(slow(port, number) for number in range(12))))

        assert {*asyncio.run(all_slow())} <= {"408", "finding: 408, but late"}  # if it is busy
