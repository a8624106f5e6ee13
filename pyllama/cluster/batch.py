"""Answers to the rows of a file, by engines in several processes (Ray Data).

    for part, lines in run_parts(parts, options, n_workers=2): ...

Each process has one engine with continuous batching; a part of the rows is in it at a time. A
process that is lost is replaced, and its part computed again. Rows become requests of the server
(`pyllama.cluster.replica`), so that all of its fields work and its errors are the rows' errors.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..server.http.sse import dump
from .batch_files import IDS, Part, read_part
from .options import ReplicaOptions
from .replica import Answer, LoadedModel, ReplicaCall

URLS = ("/v1/completions", "/v1/chat/completions", "/v1/responses", "/v1/embeddings")
_DEFAULT_URL = {"prompt": "/v1/completions", "messages": "/v1/chat/completions"}


@dataclass(frozen=True)
class RowRequest:
    """The request of a row.

    Attributes:
        id: of the row.
        url: path of the server; empty if the row cannot be asked.
        body: of the request.
        is_openai: whether the row has the format of OpenAI's batches.
        error: why it cannot be asked.
    """

    id: Any
    url: str = ""
    body: Mapping[str, Any] | None = None
    is_openai: bool = False
    error: str = ""


def row_request(row: Mapping[str, Any], index: int, seed: int | None) -> RowRequest:
    """The request of a row.

    Args:
        index: of the row; its id if it has none.
        seed: of the row's text; None for a random one.
    """
    id = next((row[name] for name in IDS if row.get(name) is not None), index)
    if row.get("body") is not None:
        return _openai_request(row, id)
    for name, url in _DEFAULT_URL.items():
        if row.get(name) is not None:
            body = {name: row[name], **({} if seed is None else {"seed": seed})}
            return RowRequest(id, url, body)
    return RowRequest(id, error=f"the row has no {', '.join(_DEFAULT_URL)} or body")


def _openai_request(row: Mapping[str, Any], id: Any) -> RowRequest:
    body, url = row["body"], row.get("url") or ""
    if isinstance(body, str):  # a column of a parquet file
        try:
            body = json.loads(body)
        except ValueError:
            body = None
    if not isinstance(body, dict):
        return RowRequest(id, is_openai=True, error='"body" is not a JSON object')
    if not url:
        url = next((u for name, u in _DEFAULT_URL.items() if name in body), "")
    if url not in URLS or row.get("method", "POST") != "POST":
        urls = ", ".join(URLS)
        return RowRequest(id, is_openai=True, error=f"{url!r} cannot be asked; POST one of {urls}")
    return RowRequest(id, url, {**body, "stream": False}, is_openai=True)


def output_line(request: RowRequest, answer: Answer) -> str:
    """The line of the output for a row, as JSON."""
    try:
        body = json.loads(answer.body) if answer.body else {}
    except ValueError:
        body = {}
    error = request.error
    if not error and answer.status != 200:
        error = body.get("error", {}).get("message") or f"status {answer.status}"
    if request.is_openai:
        return dump(_openai_result(request, answer, body, error))
    if error:
        return dump({"id": request.id, "error": error})
    choice, usage = body["choices"][0], body["usage"]
    text = choice["text"] if "text" in choice else choice["message"]["content"] or ""
    return dump(
        {
            "id": request.id,
            "text": text,
            "finish_reason": choice["finish_reason"],
            "prompt_tokens": usage["prompt_tokens"],
            "completion_tokens": usage["completion_tokens"],
        }
    )


def _openai_result(request: RowRequest, answer: Answer, body: Any, error: str) -> dict[str, Any]:
    response = None
    if answer.status:
        response = {"status_code": answer.status, "request_id": "", "body": body}
    failure = {"code": str(answer.status or 400), "message": error} if error else None
    id = f"batch_req_{request.id}"
    return {"id": id, "custom_id": request.id, "response": response, "error": failure}


class BatchWorker:
    """A process with an engine. Ray makes and calls it.

    Args:
        options: of the model.
        path: the input file, which this process can read.
        seed: of row 0, increased for each row; None for random ones.
    """

    def __init__(self, options: ReplicaOptions, path: str, seed: int | None) -> None:
        self._options, self._path, self._seed = options, path, seed
        self._model = LoadedModel(options, options.default)
        self._loop = asyncio.new_event_loop()

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        """The lines of a part, for a batch of one: ``{"part": [...]}`` to ``{"lines": [...]}``."""
        parts = [Part(*map(int, part)) for part in batch["part"]]
        lines = [self._loop.run_until_complete(self._answers(part)) for part in parts]
        return {"part": batch["part"], "lines": [json.dumps(one) for one in lines]}

    async def _answers(self, part: Part) -> list[str]:
        await self._model.start()
        rows = read_part(self._path, part)
        free = asyncio.Semaphore(2 * self._options.n_slots)  # the engine's queue stays filled

        async def line(i: int, row: Mapping[str, Any]) -> str:
            index = part.first + i
            seed = None if self._seed is None else (self._seed + index) % (1 << 32)
            request = row_request(row, index, seed)
            if request.error:
                return output_line(request, Answer())
            async with free:
                return output_line(request, await self._model.answer(self._call(request)))

        return await asyncio.gather(*(line(i, row) for i, row in enumerate(rows)))

    def _call(self, request: RowRequest) -> ReplicaCall:
        keys = self._options.server.api_keys
        headers = {"x-api-key": keys[0]} if keys else {}
        body = dump(request.body).encode("utf-8", "replace")
        return ReplicaCall.post(request.url, body, self._options.default, headers)


def run_parts(
    parts: Sequence[Part], path: str, options: ReplicaOptions, n_workers: int, seed: int | None
) -> Iterator[tuple[Part, list[str]]]:
    """Yield the lines of each part, in the order in which they are complete.

    Args:
        parts: of the input file.
        path: of the input file, on every machine.
        n_workers: number of processes.
        seed: of row 0, increased for each row; None for random ones.

    Raises:
        ClusterError: Ray gave up.
    """
    import ray.data
    from ray.exceptions import RayError

    from ..errors import ClusterError

    logging.getLogger("ray.data").setLevel(logging.WARNING)
    ray.data.DataContext.get_current().enable_progress_bars = False
    numbers = [[p.number, p.first, p.n_rows, p.offset] for p in parts]
    items = [{"part": part} for part in numbers]
    dataset = ray.data.from_items(items, override_num_blocks=len(items)).map_batches(
        BatchWorker,
        fn_constructor_args=(options, path, seed),
        batch_size=1,
        compute=ray.data.ActorPoolStrategy(size=min(n_workers, len(items))),
        num_cpus=float(options.context.get("n_threads") or 1),
    )
    try:
        for row in dataset.iter_rows():
            yield Part(*map(int, row["part"])), json.loads(row["lines"])
    except RayError as error:
        text = " ".join(str(error).split())[-500:]
        raise ClusterError(f"the batch has stopped: {text}") from None
