"""Which requests are let through: host names, origins of browsers, API keys.

    guard = Guard(app, options, open_paths)        # an ASGI application around another

Pages of other sites are refused unless ``cors_origins`` allows their origin; the server's own page,
and programs, which send no ``Origin``, are let through.

Source: llama.cpp, ``server_http_context::init_listener``, for keys and the names of headers.
"""

from __future__ import annotations

import ipaddress
import re
import secrets

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ..request.errors import ApiError
from ..request.options import ServerOptions
from .sse import error_response

_LOCAL = ("localhost", "127.0.0.1", "::1")
_OPEN = ("/health", "/v1/health")
_CORS = ("Access-Control-Allow-Origin", "Access-Control-Allow-Credentials")
_UVICORNS = (b"connection", b"content-length", b"transfer-encoding")
_HOST = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(?::([0-9]{1,5}))?")
_MAX_PORT = 65535


class Guard:
    """Checks ``Host``, the origin and the API key, and adds CORS headers.

    Args:
        app: the application.
        options: of the server.
        open_paths: those of the page's files, which need no key.
    """

    def __init__(self, app: ASGIApp, options: ServerOptions, open_paths: frozenset[str]) -> None:
        self._app, self._options = app, options
        prefix = options.api_prefix
        health = _OPEN if options.open_health else ()
        self._open = open_paths | {prefix + path for path in health}
        self._keys = [key.encode() for key in options.api_keys]
        given = (origin.strip() for origin in options.cors_origins.split(","))
        self._origins = frozenset(origin.rstrip("/").lower() for origin in given if origin)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        cors = self._cors(headers.get("origin", ""))

        async def send_with_cors(message: Message) -> None:
            if message["type"] == "http.response.start":
                found = MutableHeaders(scope=message)
                found["Server"] = "pyllama"
                for name in _CORS:  # also those of a server that a request was forwarded to
                    del found[name]
                found.update(cors)
                if self._origins:
                    found.add_vary_header("Origin")
                message["headers"] = [(_spelled(k), v) for k, v in message["headers"]]
            await send(message)

        response: ASGIApp
        try:
            self._check(scope, headers, is_allowed=bool(cors))
            response = self._preflight() if scope["method"] == "OPTIONS" else self._app
        except ApiError as error:
            response = error_response(error, scope)
        await response(scope, receive, send_with_cors)

    def _check(self, scope: Scope, headers: Headers, *, is_allowed: bool) -> None:
        """Raise ApiError for a request that is not let through."""
        method, path = scope["method"], scope["path"]
        if len(headers.getlist("host")) > 1:
            raise ApiError.invalid("there are several Host headers")
        if not self._knows_host(headers.get("host", "")):
            raise ApiError(
                403, "the Host header names another host; see pyllama-server --allowed-hosts"
            )
        if method == "OPTIONS":
            return
        is_open = method in ("GET", "HEAD") and path in self._open
        if not (is_allowed or is_open) and _is_of_another_site(headers):
            raise ApiError(
                403,
                "a page of another site may not use this server; see pyllama-server --cors-origins",
            )
        if self._keys and path not in self._open and not self._has_key(headers):
            raise ApiError(401, "Invalid API Key")

    def _preflight(self) -> Response:
        options = self._options
        allowed = {
            "Access-Control-Allow-Methods": options.cors_methods,
            "Access-Control-Allow-Headers": options.cors_headers,
        }
        return Response(headers=allowed, media_type="text/html")

    def _has_key(self, headers: Headers) -> bool:
        given = headers.get("authorization", "") or headers.get("x-api-key", "")
        key = given.removeprefix("Bearer ").encode("utf-8", "replace")
        # all are compared, each in constant time
        return bool(sum(secrets.compare_digest(key, one) for one in self._keys))

    def _cors(self, origin: str) -> dict[str, str]:
        """The headers that let pages of an origin read a response; none for an origin that may not.

        Any origin never means credentials, which ``*`` would hand to every site.
        """
        if "*" in self._origins:
            return {"Access-Control-Allow-Origin": "*"}
        is_local = "localhost" in self._origins and _host_of(origin) in _LOCAL
        if not origin or not (is_local or origin.lower() in self._origins):
            return {}
        found = {"Access-Control-Allow-Origin": origin}
        if self._options.cors_credentials:
            found["Access-Control-Allow-Credentials"] = "true"
        return found

    def _knows_host(self, host: str) -> bool:
        """Whether ``Host`` is an address or an allowed name: a page of another name that resolves
        to this machine must not read its responses."""
        allowed = self._options.allowed_hosts
        if allowed is None:
            return True
        name = _name_of(host)
        if name in (*_LOCAL, *allowed):
            return True
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return False
        return True


def _is_of_another_site(headers: Headers) -> bool:
    """Whether a browser sends the request for a page that is not this server's.

    ``Sec-Fetch-Site`` comes with every request to an address that the browser trusts, also where
    ``Origin`` does not, and a proxy may have changed ``Host``. Programs send neither.
    """
    site = headers.get("sec-fetch-site")
    if site is not None:
        return site not in ("same-origin", "none")
    origin = headers.get("origin")
    return (
        origin is not None and origin.lower().partition("://")[2] != headers.get("host", "").lower()
    )


class _HeaderName(bytes):
    """The name of a header, which uvicorn writes as it is."""

    def lower(self) -> bytes:
        """The name itself: uvicorn writes ``name.lower()``."""
        return self


def _spelled(name: bytes) -> bytes:
    """A header's name as llama.cpp writes it: some clients look for ``Access-Control-...``.

    uvicorn compares names with those that it needs itself, which stay in lower case.
    """
    return name if name in _UVICORNS else _HeaderName(name.title())


def _name_of(host: str) -> str:
    """The name in a ``Host`` header, in lower case; empty if it is malformed."""
    match = _HOST.fullmatch(host)
    if match is None or int(match[2] or 0) > _MAX_PORT:
        return ""
    return match[1].strip("[]").lower()


def _host_of(origin: str) -> str:
    """The host of a page's origin; empty if it has none."""
    scheme, _, host = origin.partition("://")
    return _name_of(host) if scheme in ("http", "https") else ""
