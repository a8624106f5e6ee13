"""Logs of a server: a record for each request, and JSON lines.

    app = RequestLog(app)                          # logs to "pyllama.server", level INFO
    handler.setFormatter(JsonFormatter())          # {"time": ..., "level": ..., "msg": ..., ...}

A record is written when the response has ended. Paths are logged without their queries, and bodies
and keys not at all.
"""

from __future__ import annotations

import json
import logging
import re
import secrets
import time
from collections.abc import Iterable
from typing import Any

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pyggml.visible import visible

from ..request.fields import Body
from ..worker.choice import Choice

TEXTS = "pyllama.texts"
"""Key of a request's texts in its ASGI scope."""
BODY = "pyllama.body"
"""Key of its JSON object there."""
REQUEST_ID = "pyllama.request_id"
"""Key of its id there, if requests are logged."""
_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")
_MAX_PATH = 500  # characters in a record
_MAX_NAMES, _MAX_NAME = 20, 60  # ignored fields, and characters of each
_LEVELS = {"WARNING": "warn", "CRITICAL": "error"}  # llama.cpp's names
_log = logging.getLogger("pyllama.server")


class RequestLog:
    """Logs each request, and gives its id back in ``X-Request-Id``, if the level is INFO or lower.

    Args:
        app: the application.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not _log.isEnabledFor(logging.INFO):
            await self._app(scope, receive, send)
            return
        given = Headers(scope=scope).get("x-request-id", "")
        id = given if _ID.fullmatch(given) else secrets.token_hex(8)
        scope[REQUEST_ID] = id
        begin, status, is_complete = time.perf_counter(), 0, False

        async def observed(message: Message) -> None:
            nonlocal status, is_complete
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message.get("headers", ()), (b"X-Request-Id", id.encode())]
            elif message["type"] == "http.response.body":
                is_complete = not message.get("more_body", False)
            await send(message)

        try:
            await self._app(scope, receive, observed)
        finally:
            fields = {
                "request_id": id,
                "method": scope["method"],
                "path": visible(scope["path"], limit=_MAX_PATH),
                "status": status if is_complete else 499,  # nginx' status: the client went away
                "ms": round(1e3 * (time.perf_counter() - begin), 3),
                **_counts(scope.get(TEXTS, ())),
            }
            message, ignored = "{method} {path} {status}".format(**fields), ignored_fields(scope)
            if ignored:
                fields["ignored"] = ignored
                message += f" (ignored: {', '.join(ignored)})"
            _log.info("%s", message, extra={"fields": fields})


def ignored_fields(scope: Scope) -> list[str]:
    """The fields of a request that change nothing, of which some are left out if there are many."""
    body = scope.get(BODY)
    found = body.ignored if isinstance(body, Body) else []
    return [visible(name, limit=_MAX_NAME) for name in found[:_MAX_NAMES]]


def _counts(texts: Iterable[Choice]) -> dict[str, int]:
    """Numbers of tokens of a request's texts; the choices of a prompt share its tokens."""
    texts = list(texts)
    if not texts:
        return {}
    prompts = {id(text.prompt): text for text in texts}.values()
    return {
        "prompt_tokens": sum(text.n_prompt for text in prompts),
        "cached_tokens": sum(text.n_cached for text in prompts),
        "completion_tokens": sum(text.n_generated for text in texts),
    }


class JsonFormatter(logging.Formatter):
    """One JSON object in a line for each record, with the fields of `RequestLog`."""

    def format(self, record: logging.LogRecord) -> str:
        """The line."""
        level = _LEVELS.get(record.levelname, record.levelname.lower())
        when = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        found: dict[str, Any] = {
            "time": f"{when}.{int(record.msecs):03d}Z",
            "level": level,
            "msg": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            found["exception"] = self.formatException(record.exc_info)
        return json.dumps(found)
