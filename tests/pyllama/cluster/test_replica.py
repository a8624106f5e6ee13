"""A loaded model answers like the server, and aborts what nobody reads; no Ray."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("starlette")
pytest.importorskip("uvicorn")

from starlette.testclient import TestClient

from pyllama import Context, Model
from pyllama.cluster.options import ReplicaOptions
from pyllama.cluster.replica import LoadedModel, ReplicaCall
from pyllama.engine import Engine
from pyllama.errors import ClusterError
from pyllama.server.app import make_app
from pyllama.server.request.options import ServerOptions
from pyllama.server.worker.served import ServedModel

ASK = {"prompt": "a b", "max_tokens": 12, "temperature": 0, "ignore_eos": True}


@pytest.fixture
def options(model_path: Path) -> ReplicaOptions:
    context = {"n_ctx": 1024, "n_threads": 1, "n_seq_max": 2, "unified": True}
    return ReplicaOptions({"m": str(model_path)}, context=context)


def call(body: Any, path: str = "/v1/completions") -> ReplicaCall:
    return ReplicaCall.post(path, json.dumps(body).encode(), "m", {})


def test_answers_are_those_of_the_server(options: ReplicaOptions, model: Model) -> None:
    async def answers() -> list[Any]:
        loaded = LoadedModel(options, "m")
        await loaded.start()
        await loaded.start()
        await loaded.check()
        found = await asyncio.gather(
            loaded.answer(call(ASK)), loaded.answer(call({**ASK, "prompt": 5}))
        )
        await loaded.close()
        with pytest.raises(ClusterError, match="has ended"):
            await loaded.check()
        return found

    good, bad = asyncio.run(answers())
    context = Context(model, n_ctx=1024, n_threads=1, n_seq_max=2)
    app = make_app(ServedModel(Engine(context), ServerOptions()))
    with TestClient(app, base_url="http://localhost") as client:
        expected = client.post("/v1/completions", json=ASK)
        assert (good.status, bad.status) == (200, 400)
        assert json.loads(good.body)["choices"] == expected.json()["choices"]
        assert json.loads(good.body)["model"] == "m"


def test_a_stream_that_nobody_reads_is_aborted(options: ReplicaOptions) -> None:
    async def run() -> None:
        loaded = LoadedModel(options, "m")
        await loaded.start()
        stream = loaded.respond(call({**ASK, "max_tokens": 900, "stream": True}))
        assert (await anext(stream))["status"] == 200
        await anext(stream)
        assert loaded.n_running == 1 and not loaded.served.runner.is_idle
        await stream.aclose()  # type: ignore[attr-defined]
        assert not loaded.n_running and loaded.served.runner.is_idle
        await loaded.close()

    asyncio.run(run())


def test_unknown_models(options: ReplicaOptions) -> None:
    with pytest.raises(ClusterError, match="no model 'x'; there are m"):
        LoadedModel(options, "x")
