"""``/v1/stream``: responses that were begun with ``X-Conversation-Id``, read again or stopped.

    GET /v1/stream?conv_id=ID&from=N               # the bytes from N on, until the stream ends
    DELETE /v1/stream?conv_id=ID                   # aborts the text, and forgets the bytes
    POST /v1/streams/lookup                        # {"conversation_ids": [...]}

Ids are secrets of their clients: streams are only found by them, and never listed.

Source: llama.cpp, ``server_stream_make_get_handler`` and its siblings.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from ...http.sse import JsonResponse, read_json
from ...request.errors import ApiError
from ...worker.kept_streams import streams_of
from ...worker.lifecycle import Lifecycle

_MAX_OFFSET = 18  # digits


async def resume(request: Request, life: Lifecycle) -> Response:
    """``GET /v1/stream``."""
    _ = life.description  # raises before the model is loaded
    stream = streams_of(request).get(conversation_asked(request))
    if stream is None:
        raise ApiError(404, "Stream not found or expired")
    given = request.query_params.get("from") or "0"
    if not (given.isascii() and given.isdecimal() and len(given) <= _MAX_OFFSET):
        raise ApiError.invalid("Invalid 'from' offset")
    if int(given) < stream.n_dropped:
        raise ApiError.invalid("Stream offset lost, please restart")
    return StreamingResponse(
        stream.read(int(given)),
        media_type=stream.media_type,
        headers={"Cache-Control": "no-cache"},
    )


async def stop(request: Request, life: Lifecycle) -> Response:
    """``DELETE /v1/stream``."""
    _ = life.description
    streams_of(request).drop(conversation_asked(request))
    return Response(status_code=204)


async def lookup(request: Request, life: Lifecycle) -> Response:
    """``POST /v1/streams/lookup``: the state of the streams of some conversations."""
    _ = life.description
    ids = asked_ids(await read_json(request, life.options))
    return JsonResponse(
        [
            {
                "conversation_id": stream.id,
                "is_done": stream.is_done,
                "total_bytes": stream.n_bytes,
                "started_at": stream.started_s,
                "completed_at": stream.completed_s,
            }
            for stream in streams_of(request).found(ids)
        ]
    )


def conversation_asked(request: Request) -> str:
    """The id in the query. Raises: ApiError."""
    id = request.query_params.get("conv_id", "")
    if not id:
        raise ApiError.invalid("Missing conversation id in path")
    return id


def asked_ids(body: Mapping[str, Any]) -> list[str]:
    """The ids in the body of a lookup, each once."""
    given = body.get("conversation_ids")
    ids = [id for id in given if isinstance(id, str) and id] if isinstance(given, list) else []
    return [*dict.fromkeys(ids)]
