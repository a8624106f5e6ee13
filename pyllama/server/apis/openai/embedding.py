"""``/embedding(s)``, llama.cpp's format, and ``/v1/embeddings``, OpenAI's."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from starlette.requests import Request
from starlette.responses import Response

from ....embeddings import normalize
from ....engine import Event
from ....engine import Request as EngineRequest
from ....runtime.adapters import Adapter
from ...http.sse import finished, long_response, read_json
from ...request.errors import ApiError
from ...request.fields import Fields
from ...request.request_options import default_options, read_lora
from ...worker.adapters import factors
from ...worker.choice import Choice, Piece
from ...worker.served import ServedModel, check_number
from ...worker.stream import Stream

Vector = npt.NDArray[np.float32]


class Embedded(Choice):
    """A text of which an embedding is computed.

    Attributes:
        vector: the embedding; empty before the end.
    """

    vector: Vector = np.empty(0, np.float32)

    def _take(self, event: Event, now: float) -> Piece | None:
        if event.embedding is not None:
            self.vector, self.n_evaluated, self._last_s = event.embedding, self.n_prompt, now
            return None
        return super()._take(event, now)


async def embeddings(request: Request, served: ServedModel) -> Response:
    """``POST /embeddings``: a list with the rows of each text."""
    return await _embedded(request, served, openai=False)


async def openai_embeddings(request: Request, served: ServedModel) -> Response:
    """``POST /v1/embeddings``."""
    return await _embedded(request, served, openai=True)


def embedding_pooling(served: ServedModel) -> str:
    """How the server pools. Raises: ApiError: it computes no embeddings."""
    if served.options.pooling is None:
        raise ApiError.not_supported(
            "This server does not support embeddings. Start it with `--embeddings`"
        )
    return served.options.pooling


def _openai(served: ServedModel, fields: Fields, texts: Sequence[Embedded]) -> dict[str, Any]:
    """OpenAI's format: a vector of each text, as numbers or in base64."""
    p, n = fields.whole("embd_normalize", 2, low=-1), _dimensions(served, fields)
    as_base64 = fields.body.get("encoding_format") == "base64"
    data: list[dict[str, Any]] = []
    for text in texts:
        vector = normalize(text.vector[:n], p)
        one: dict[str, Any] = {"embedding": vector.tolist(), "index": text.index}
        if as_base64:
            one["embedding"] = base64.b64encode(vector.astype("<f4").tobytes()).decode()
            one["encoding_format"] = "base64"
        data.append({**one, "object": "embedding"})
    return {
        "model": fields.get("model", served.name, str),
        "object": "list",
        "usage": usage(texts),
        "data": data,
    }


async def _embedded(request: Request, served: ServedModel, *, openai: bool) -> Response:
    """The response with the embeddings of a request's texts.

    Raises:
        ApiError: a field is wrong, or the server computes no embeddings.
    """
    pooling = embedding_pooling(served)
    if openai and pooling == "none":
        raise ApiError.invalid(
            "Pooling type 'none' is not OAI compatible. Please use a different pooling type"
        )
    fields = Fields(await read_json(request, served.options))
    openai = openai and fields.has("input")  # "content" is llama.cpp's own

    def prepare() -> tuple[Stream, list[Embedded]]:
        if openai:
            _dimensions(served, fields)  # a wrong number is found now
        lora = read_lora(fields)
        adapters = None if lora is None else factors(served.engine.context, lora)
        return submit(served, _inputs(served, fields), pooling, adapters)

    stream, texts = await served.prepare(prepare)
    write = _openai if openai else _plain
    await finished(request, stream)
    return await long_response(lambda: write(served, fields, texts))


def _dimensions(served: ServedModel, fields: Fields) -> int:
    """The length of vectors that a request asks for; they are cut, and then normalized."""
    n = served.model.hparams.n_embedding
    return fields.whole("dimensions", n, low=1, high=n)


def _plain(served: ServedModel, fields: Fields, texts: Sequence[Embedded]) -> list[Any]:
    """llama.cpp's format: rows of each text; those of all tokens are not normalized."""
    p = fields.whole("embd_normalize", 2, low=-1)
    rows = [np.atleast_2d(text.vector) for text in texts]
    if served.options.pooling != "none":
        rows = [normalize(one, p) for one in rows]
    return [{"index": i, "embedding": one.tolist()} for i, one in enumerate(rows)]


def _inputs(served: ServedModel, fields: Fields) -> list[list[int]]:
    """The tokens of each text of ``input`` or ``content``. Source: llama.cpp's server."""
    value = fields.body.get("input", fields.body.get("content"))
    if value is None:
        raise ApiError.invalid('"input" or "content" must be provided')
    if fields.body.get("encoding_format", "float") not in ("float", "base64"):
        raise ApiError.invalid(
            "The format to return the embeddings in. Can be either float or base64"
        )
    several = isinstance(value, list) and not any(isinstance(v, (int, float)) for v in value)
    entries = value if several else [value]
    check_number("input", len(entries))
    if not entries:
        raise ApiError.invalid('"input" must not be empty')
    found = [served.prompts(_entry(entry))[0] for entry in entries]
    if not all(found):
        raise ApiError.invalid("Input content cannot be empty")
    return found


def _entry(entry: Any) -> Any:
    """A text for an object with OpenAI's content parts; other entries as they are."""
    if not isinstance(entry, Mapping) or "content" not in entry:
        return entry
    parts = entry["content"]
    if not isinstance(parts, list):
        raise ApiError.invalid("'content' must be an array of parts")
    for part in parts:
        if not isinstance(part, Mapping) or part.get("type") != "text":
            raise ApiError.invalid("a part of 'content' must be text: only text models are served")
        if not isinstance(part.get("text"), str):
            raise ApiError.invalid("a part of 'content' must have a text")
    return "".join(part["text"] for part in parts)


def submit(
    served: ServedModel,
    prompts: Sequence[list[int]],
    pooling: str,
    adapters: Mapping[Adapter, float] | None = None,
) -> tuple[Stream, list[Embedded]]:
    """Queue the embeddings of some texts.

    Args:
        adapters: the factor of each adapter; None: the context's own (``Context.applied``).

    Raises:
        ApiError: a text is too long, or not made of tokens of the model.
        PyllamaError: as ``Engine.submit``.
    """
    options = default_options(served.options)
    texts = [Embedded(options, served.tokenizer, i, p) for i, p in enumerate(prompts)]
    for prompt in prompts:
        served.check(prompt)
    deadline = served.options.deadline_s
    requests = [
        EngineRequest(
            prompt, pooling=pooling, progress=True, deadline_s=deadline, adapters=adapters
        )
        for prompt in prompts
    ]
    return served.runner.submit(requests, texts), texts


def usage(texts: Sequence[Choice]) -> dict[str, int]:
    """The object ``usage`` of texts without replies."""
    n = sum(text.n_prompt for text in texts)
    return {"prompt_tokens": n, "total_tokens": n}
