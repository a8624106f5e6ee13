"""Responses that come from a replica, and what clients get when it is lost.

    response = Forwarded(messages)                 # an iterator of ASGI messages
    error = unavailable("the server is shutting down")

A request is sent to one replica only, once. If that ends before its answer begins, the client gets
503 with ``Retry-After``; if it ends within a stream, the client gets an error in the stream's own
format and no end mark. So there is an answer or an error for each request, and never two answers.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator

from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from ..server.http.sse import error_response, stream_error
from ..server.request.errors import ApiError

_log = logging.getLogger("pyllama.cluster")
LOST = "the replica of this request was lost; send the request again"
FULL = "all replicas are busy, and too many requests wait; try again later"
CLOSING = "the server is shutting down"


def unavailable(message: str, retry_s: int = 1) -> ApiError:
    """The error (503) for what another replica, or a later request, may have."""
    return ApiError(503, message, headers={"Retry-After": str(retry_s)})


def error_of_call(error: BaseException) -> ApiError:
    """The error to report when a call of a replica failed, told by the names of Ray's classes.

    Ray raises classes that derive from both its own and the replica's; names need no import of Ray.
    """
    names = {cls.__name__ for cls in type(error).__mro__}
    if "BackPressureError" in names:
        return unavailable(FULL)
    if names & {
        "RayActorError",
        "DeploymentUnavailableError",
        "ObjectLostError",
        "RayChannelError",
    }:
        return unavailable(LOST)
    if names & {"RequestCancelledError", "TaskCancelledError"}:
        return unavailable(CLOSING)
    return ApiError(500, f"internal error: {type(error).__name__}")


class Forwarded(Response):
    """A response whose ASGI messages come from a replica.

    Args:
        messages: of the replica; raises what Ray raises.
    """

    def __init__(self, messages: AsyncIterator[Message]) -> None:
        super().__init__()
        self._messages = messages

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the messages; an error before the first one is a response of its own."""
        media_type: str | None = None
        is_complete = False
        try:
            async for message in self._messages:
                if message["type"] == "http.response.start":
                    lower = [(bytes(name).lower(), value) for name, value in message["headers"]]
                    media_type = Headers(raw=lower).get("content-type", "")
                else:
                    is_complete = not message.get("more_body", False)
                await send(message)
        except Exception as error:
            if is_complete:
                return  # the replica ended after its answer
            failure = error_of_call(error)
            _log.warning("%s: %s", scope["path"], " ".join(str(error).split())[:500])
            if media_type is None:
                await error_response(failure, scope)(scope, receive, send)
                return
            end = stream_error(failure, scope["path"], media_type)
            if not end:  # a body without its end: the connection is closed, which clients notice
                raise
            await send({"type": "http.response.body", "body": end, "more_body": False})
