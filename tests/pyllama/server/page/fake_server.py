"""A server of canned answers for the tests of the pages: llama-server's API, no model.

    with running(FakeServer()) as url: ...

The last user message chooses the answer; see ``FakeServer.answer``.
"""

from __future__ import annotations

import asyncio
import json
import math
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from pyllama.server.page.files import page_file

from ....waiting import WAIT_S, until

MARKDOWN = """\
Here is **bold**, *emphasis*, `code` and ~~nothing~~.

1. First
2. Second
   - nested, with a [link](https://example.org/a?b=1&c=2)

| Layer | Time |
|-------|-----:|
| 0     | 12 µs |
| 1     | 15 µs |

```python
def mean(values: list[float]) -> float:
    # the empty list has no mean
    return sum(values) / len(values)
```

> A quoted line.

1 &lt; 2 && 3 > 2
"""

HOSTILE = """\
<script>window.pwned = 1</script>

<img src="x" onerror="window.pwned = 2">

[click](javascript:window.pwned=3) and [data](data:text/html,<script>window.pwned=4</script>)

![picture](https://example.org/track.png)

<svg onload="window.pwned=5"></svg> text <iframe srcdoc="<script>parent.pwned=6</script>"></iframe>

[x]: javascript:window.pwned=7

[x] and <a href="javascript:window.pwned=8">y</a>

| a |
|---|
| <img src=x onerror=window.pwned=9> |
"""

PARAMS = {
    "seed": 4294967295, "temperature": 0.800000011920929, "dynatemp_range": 0.0, "top_k": 40,
    "top_p": 0.949999988079071, "min_p": 0.05000000074505806, "typical_p": 1.0,
    "repeat_last_n": 64, "repeat_penalty": 1.0, "max_tokens": -1, "n_predict": -1, "mirostat": 0,
    "samplers": ["penalties", "top_k", "top_p", "min_p", "temperature"],
}  # fmt: skip

METRICS = """\
# HELP llamacpp:prompt_tokens_total Number of prompt tokens processed
# TYPE llamacpp:prompt_tokens_total counter
llamacpp:prompt_tokens_total 12000
llamacpp:prompt_tokens_cached_total 36000
llamacpp:tokens_predicted_total 4321
llamacpp:prompt_seconds_total 15
llamacpp:tokens_predicted_seconds_total 30.01
llamacpp:requests_processing 1
llamacpp:requests_deferred 2
llamacpp:n_busy_slots_per_decode 1.5
"""


def graph(times: bool) -> dict[str, Any]:
    """Three layers of two nodes, and one outside; slower from layer to layer."""
    nodes = [
        {
            "i": 2 * layer + k, "name": f"{label}-{layer}", "label": label, "layer": layer,
            "symbol": "X*Y", "family": ("matmul", "attention")[k], "type": "f32", "ne": [576],
            "bytes": 207360 * (1 - k), "us": 10.0 * (layer + 1) + k if times else None,
            "kernels": ["mul_mat"] if times else [], "fused": [], "fused_into": None,
        }
        for layer in range(3)
        for k, label in enumerate(("ffn_up", "kqv"))
    ]  # fmt: skip
    nodes.append(
        {**nodes[0], "i": 6, "name": "result_output", "label": "result_output", "layer": None,
         "bytes": 30081024, "us": 200.0 if times else None}
    )  # fmt: skip
    return {
        "title": "fake.gguf, 1 token", "tokens": 1, "threads": 2 if times else None,
        "total_us": 323.0 if times else None, "n_nodes": 7, "compute_bytes": 4096,
        "nodes": nodes,
    }  # fmt: skip


class FakeServer:
    """Answers as llama-server does.

    Attributes:
        bodies: the requests for answers so far.
        key: the API key that requests must have; None for none.
        n_aborted: streams that the client closed early.
        loading: whether the model is not there yet.
        names: of the models of a router; empty for a server of one.
        loaded: those of them that are loaded.
        pause_s: between two tokens.
        may_end: streams wait for it before they end.
        graph: the answer of ``/graph.json``; None for a small one.
        drawing: the page of ``/graph.html``.
    """

    def __init__(self) -> None:
        self.bodies: list[dict[str, Any]] = []
        self.key: str | None = None
        self.n_aborted = 0
        self.pause_s, self.may_end = 0.002, threading.Event()
        self.may_end.set()
        self.drawing = "<!DOCTYPE html><title>drawing</title><p id=drawn>drawn</p>"
        self.n_running = 0
        self.n_failures = 0
        self.loading = False
        self.names: list[str] = []
        self.loaded: set[str] = set()
        self.graph_models: list[str | None] = []
        self.graph: dict[str, Any] | None = None
        self.url = ""
        api: dict[str, Callable[[Request], Any]] = {
            "/props": self.props,
            "/v1/models": self.models,
            "/slots": self.slots,
            "/metrics": lambda request: PlainTextResponse(METRICS),
            "/graph.json": self.graph_data,
            "/graph.html": lambda request: Response(self.drawing, media_type="text/html"),
        }
        routes = [Route(path, self.checked(function)) for path, function in api.items()]
        routes.append(Route("/v1/chat/completions", self.checked(self.chat), methods=["POST"]))
        routes.append(Route("/{path:path}", self.file))
        self.app = Starlette(routes=routes)

    def checked(self, function: Callable[[Request], Any]) -> Callable[[Request], Any]:
        async def endpoint(request: Request) -> Response:
            given = request.headers.get("Authorization")
            if self.key is not None and given != f"Bearer {self.key}":
                error = {"code": 401, "message": "Invalid API Key", "type": "authentication_error"}
                return JSONResponse({"error": error}, 401)
            answer = function(request)
            return await answer if asyncio.iscoroutine(answer) else answer

        return endpoint

    async def file(self, request: Request) -> Response:
        found = page_file(request.path_params["path"])
        if found is None:
            return PlainTextResponse("not found", 404)
        return Response(found.body, media_type=found.media_type, headers=found.headers)

    def props(self, request: Request) -> Response:
        if self.loading:
            error = {"code": 503, "message": "Loading model", "type": "unavailable_error"}
            return JSONResponse({"error": error}, 503)
        settings = {"params": PARAMS, "n_ctx": 4096}
        found = {"default_generation_settings": settings, "total_slots": 2}
        name = request.query_params.get("model")
        if self.names and name is None:
            settings = {"params": None, "n_ctx": 0}
            return JSONResponse({"role": "router", "default_generation_settings": settings})
        return self.not_loaded(request) or JSONResponse({**found, "model_alias": name or "fake-1b"})

    def not_loaded(self, request: Request) -> Response | None:
        """The refusal of a router, if the request does not name a loaded model."""
        if not self.names or request.query_params.get("model") in self.loaded:
            return None
        return JSONResponse({"error": {"code": 400, "message": "model is not loaded"}}, 400)

    def graph_data(self, request: Request) -> Response:
        self.graph_models.append(request.query_params.get("model"))
        return JSONResponse(self.graph or graph(request.query_params.get("times") == "1"))

    def models(self, request: Request) -> Response:
        if self.names:
            return JSONResponse({"data": [{"id": name} for name in self.names]})
        meta = {"n_params": 134515008, "size": 96576768, "n_vocab": 49152, "n_ctx_train": 8192}
        return JSONResponse({"data": [{"id": "fake-1b", "meta": {**meta, "ftype": "Q4_1"}}]})

    def slots(self, request: Request) -> Response:
        busy = {
            "id_task": 7, "n_prompt_tokens": 1000, "n_prompt_tokens_processed": 200,
            "n_prompt_tokens_cache": 800, "next_token": [{"n_decoded": 24}],
        }  # fmt: skip
        idle = {"speculative": False, "n_ctx": 4096, "is_processing": False}
        running = self.n_running > 0
        first = {**idle, "id": 0, **busy, "is_processing": running}
        return JSONResponse([first, {**idle, "id": 1}])

    async def chat(self, request: Request) -> Response:
        body = await request.json()
        self.bodies.append(body)
        self.loaded.add(body.get("model"))
        last = body["messages"][-1]
        if "full" in last["content"]:
            error = {"code": 429, "message": "All slots are busy.", "type": "unavailable_error"}
            return JSONResponse({"error": error}, 429, {"Retry-After": "3"})
        if "fail once" in last["content"] and self.n_failures == 0:
            self.n_failures += 1
            return JSONResponse({"error": {"code": 500, "message": "The model fell over."}}, 500)
        return StreamingResponse(self.stream(body), media_type="text/event-stream")

    async def stream(self, body: dict[str, Any]) -> AsyncIterator[str]:
        self.n_running += 1
        done = False
        try:
            for chunk in self.chunks(body):
                while chunk["choices"][0]["finish_reason"] and not self.may_end.is_set():
                    await asyncio.sleep(0.005)
                yield f"data: {json.dumps(chunk)}\n\n"
                await asyncio.sleep(self.pause_s)
            yield "data: [DONE]\n\n"
            done = True
        finally:
            self.n_running -= 1
            self.n_aborted += not done

    def chunks(self, body: dict[str, Any]) -> Iterator[dict[str, Any]]:
        reasoning, text, call = self.answer(body)
        n_prompt, n = 40 + 10 * len(body["messages"]), 0

        def chunk(delta: dict[str, Any], finish: str | None = None, **more: Any) -> dict[str, Any]:
            rate = {"cache_n": 12, "prompt_n": n_prompt, "prompt_per_second": 812.5}
            rate |= {"predicted_n": n, "predicted_per_second": 142.4 if n else 0.0}
            choice = {"index": 0, "delta": delta, "finish_reason": finish, **more}
            return {"choices": [choice], "model": "fake-1b", "timings": rate}

        for done in (0, n_prompt // 2, n_prompt):
            progress = {"total": n_prompt, "cache": 0, "processed": done, "time_ms": 5}
            yield chunk({"role": "assistant", "content": None}) | {"prompt_progress": progress}
        for piece in pieces(reasoning):
            n += 1
            yield chunk({"reasoning_content": piece})
        for piece in pieces(text):
            n += 1
            more = {"logprobs": {"content": [logprob(piece, n)]}} if body.get("logprobs") else {}
            yield chunk({"content": piece}, **more)
        for i, piece in enumerate(pieces(call)):
            named = {"id": "call_1", "type": "function"} if i == 0 else {}
            function = {"name": "get_weather", "arguments": piece} if i == 0 else {}
            function = function or {"arguments": piece}
            yield chunk({"tool_calls": [{"index": 0, **named, "function": function}]})
        yield chunk({}, "tool_calls" if call else "stop")

    def answer(self, body: dict[str, Any]) -> tuple[str, str, str]:
        """Reasoning, text and arguments of a call for a request."""
        last = body["messages"][-1]
        content = last["content"]
        if last["role"] == "tool":
            return "", f"The tool says: {content}.", ""
        if last["role"] == "assistant":
            return "", " And more.", ""
        if "markdown" in content:
            return "", MARKDOWN, ""
        if "hostile" in content:
            return "", HOSTILE, ""
        if "think" in content:
            return "First I look at the **question**.", "The answer is 42.", ""
        if "weather" in content:
            return "", "", '{"city": "Berlin"}'
        if "long" in content:
            return "", "word " * 4000, ""
        return "", f"You said: {content}. This is answer {len(self.bodies)}.", ""


def pieces(text: str) -> list[str]:
    return [text[i : i + 6] for i in range(0, len(text), 6)]


def logprob(token: str, n: int) -> dict[str, Any]:
    p = (0.9, 0.5, 0.2)[n % 3]
    other = {"token": " other", "logprob": math.log((1 - p) * 0.8)}
    own = {"token": token, "logprob": math.log(p)}
    return {**own, "top_logprobs": sorted([own, other], key=lambda entry: -entry["logprob"])}


@contextmanager
def running(server: FakeServer) -> Iterator[str]:
    """Serve from a thread; yields the address."""
    config = uvicorn.Config(server.app, port=0, log_level="warning", lifespan="off")
    service = uvicorn.Server(config)
    thread = threading.Thread(target=service.run, daemon=True)
    thread.start()
    until(lambda: service.started or not thread.is_alive())
    port = service.servers[0].sockets[0].getsockname()[1]
    try:
        yield f"http://127.0.0.1:{port}/"
    finally:
        service.should_exit = True
        service.force_exit = True
        thread.join(WAIT_S)
