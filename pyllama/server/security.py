"""Which requests are let through: host names, API keys, origins of browsers.

    guard = Guard(app, options)                    # an ASGI application around another

Source: llama.cpp, ``server_http_context::init_listener``, for keys and CORS headers.
"""

from __future__ import annotations

import ipaddress
import secrets
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .errors import ApiError
from .options import ServerOptions
from .sse import error_response

_LOCAL = ("localhost", "127.0.0.1", "::1")
_OPEN = ("/health", "/v1/health")
_UVICORNS = (b"connection", b"content-length", b"transfer-encoding")


class Guard:
    """Checks ``Host`` and API key, and adds CORS headers.

    Args:
        app: the application.
        options: of the server.
        is_page: whether a path is a file of the page, which needs no key.
    """

    def __init__(self, app: ASGIApp, options: ServerOptions, open_paths: frozenset[str]) -> None:
        self._app, self._options = app, options
        prefix = options.api_prefix
        health = _OPEN if options.open_health else ()
        self._open = open_paths | {prefix + path for path in health}
        self._keys = [key.encode() for key in options.api_keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        origin = self._allowed_origin(headers.get("origin", ""))

        async def send_with_origin(message: Message) -> None:
            if message["type"] == "http.response.start":
                found = MutableHeaders(scope=message)
                found["Server"] = "pyllama"
                if origin:
                    found["Access-Control-Allow-Origin"] = origin
                message["headers"] = [(_spelled(k), v) for k, v in message["headers"]]
            await send(message)

        response = self._refusal(scope, headers)
        await (response or self._app)(scope, receive, send_with_origin)

    def _refusal(self, scope: Scope, headers: Headers) -> Response | None:
        if len(headers.getlist("host")) > 1:
            return error_response(ApiError.invalid("there are several Host headers"), scope)
        if not self._knows_host(headers.get("host", "")):
            return error_response(
                ApiError(403, "the Host header names another host; see --allowed-hosts"), scope
            )
        if scope["method"] == "OPTIONS":
            options = self._options
            allowed = {
                "Access-Control-Allow-Credentials": str(options.cors_credentials).lower(),
                "Access-Control-Allow-Methods": options.cors_methods,
                "Access-Control-Allow-Headers": options.cors_headers,
            }
            return Response(headers=allowed, media_type="text/html")
        if self._keys and scope["path"] not in self._open and not self._has_key(headers):
            return error_response(ApiError(401, "Invalid API Key"), scope)
        return None

    def _has_key(self, headers: Headers) -> bool:
        given = headers.get("authorization", "") or headers.get("x-api-key", "")
        key = given.removeprefix("Bearer ").encode("utf-8", "replace")
        # all are compared, each in constant time
        return bool(sum(secrets.compare_digest(key, one) for one in self._keys))

    def _allowed_origin(self, origin: str) -> str:
        allowed = self._options.cors_origins
        if allowed == "*" and self._options.cors_credentials:
            return origin
        if allowed == "localhost":
            return origin if _host(origin) in _LOCAL else ""
        return allowed

    def _knows_host(self, host: str) -> bool:
        """Whether ``Host`` is an address or an allowed name: a page of another name that resolves
        to this machine must not read its responses."""
        allowed = self._options.allowed_hosts
        if allowed is None:
            return True
        name = _host(f"//{host}")
        if name in (*_LOCAL, *allowed):
            return True
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return False
        return True


class _Name(bytes):
    """The name of a header, which uvicorn writes as it is."""

    def lower(self) -> bytes:
        """The name itself: uvicorn writes ``name.lower()``."""
        return self


def _spelled(name: bytes) -> bytes:
    """A header's name as llama.cpp writes it: some clients look for ``Access-Control-...``.

    uvicorn compares names with those that it needs itself, which stay in lower case.
    """
    return name if name in _UVICORNS else _Name(name.title())


def _host(url: str) -> str:
    """The host of a URL; empty if it has none, or a wrong port."""
    try:
        parts = urlsplit(url)
        _ = parts.port
        return parts.hostname or ""
    except ValueError:
        return ""
