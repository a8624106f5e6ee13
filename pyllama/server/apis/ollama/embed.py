"""``/api/embed`` and, of older clients, ``/api/embeddings``: Ollama's format.

Source: Ollama, ``EmbedHandler`` and ``EmbeddingsHandler`` of server/routes.go.
"""

from __future__ import annotations

import time
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from ....embeddings import normalize
from ...http.sse import finished, long_response, read_json
from ...request.errors import ApiError
from ...request.fields import Fields
from ...worker.served import ServedModel, check_number
from ...worker.stream import Stream
from ..openai.embedding import Embedded, embedding_pooling, submit


async def embed(request: Request, served: ServedModel) -> Response:
    """``POST /api/embed``: normalized vectors of ``input``, a text or several.

    Longer texts than the context are cut, but with ``truncate`` false.
    """
    start = time.perf_counter_ns()
    fields = Fields(await read_json(request, served.options))
    value = fields.body.get("input", [])
    texts = [value] if isinstance(value, str) and value else value or []
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise ApiError.invalid("invalid input type: 'input' must be a text or a list of texts")
    n = fields.whole("dimensions", 0, low=0, high=served.model.hparams.n_embedding) or None
    made = await _embedded(request, served, fields, texts)

    def body() -> dict[str, Any]:
        return {
            "model": fields.get("model", served.name, str),
            "embeddings": [normalize(text.vector[:n]).tolist() for text in made],
            "total_duration": time.perf_counter_ns() - start,
            "load_duration": 0,
            "prompt_eval_count": sum(text.n_prompt for text in made),
        }

    return await long_response(body)


async def embeddings(request: Request, served: ServedModel) -> Response:
    """``POST /api/embeddings``: the vector of ``prompt`` as the model computes it."""
    fields = Fields(await read_json(request, served.options))
    prompt = fields.get("prompt", "", str)
    made = await _embedded(request, served, fields, [prompt] if prompt else [])
    return await long_response(lambda: {"embedding": made[0].vector.tolist() if made else []})


async def _embedded(
    request: Request, served: ServedModel, fields: Fields, texts: list[str]
) -> list[Embedded]:
    """The texts with their embeddings. Raises: ApiError."""
    pooling = embedding_pooling(served)
    if pooling == "none":
        raise ApiError.invalid("Pooling type 'none' gives no vector of a text: use /embeddings")
    check_number("input", len(texts))
    cut = fields.flag("truncate", True)
    if not texts:
        return []

    def prepare() -> tuple[Stream, list[Embedded]]:
        read = served.cut_prompt if cut else lambda text: served.prompts(text)[0]
        return submit(served, [read(text) for text in texts], pooling)

    stream, made = await served.prepare(prepare)
    await finished(request, stream)
    return made
