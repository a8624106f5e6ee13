"""``/cors-proxy``: forwards requests of the page to servers that browsers may not reach.

Off unless the server is started with ``--ui-mcp-proxy``: it reaches whatever this machine reaches.
Only headers that a client names with a prefix are forwarded, never its keys and cookies.
"""

from __future__ import annotations

import urllib.error
import urllib.request
from urllib.parse import urlsplit

from starlette.requests import Request
from starlette.responses import Response

from ..request.errors import ApiError
from ..request.options import ServerOptions
from ..worker.served import ServedModel
from ..worker.threads import Workers
from .sse import read_body

PREFIX = "x-llama-server-proxy-header-"
_TIMEOUT_S = 600
_MAX_BYTES = 64 << 20
_DROPPED = {"connection", "content-length", "transfer-encoding", "content-encoding", "server"}


async def cors_proxy(request: Request, served: ServedModel) -> Response:
    """``GET`` and ``POST /cors-proxy?url=...``."""
    return await forward_for_page(request, served.options)


async def forward_for_page(request: Request, options: ServerOptions) -> Response:
    """The response of the server that ``url`` names. Source: llama.cpp, ``proxy_request``."""
    if not options.cors_proxy:
        raise ApiError(403, "this feature is disabled. Start the server with `--ui-mcp-proxy`")
    url = request.query_params.get("url", "")
    try:
        parts = urlsplit(url)
        host, password = parts.hostname, parts.password
    except ValueError:
        raise ApiError.invalid("invalid target URL") from None
    if parts.scheme not in ("http", "https"):
        raise ApiError.invalid(f"unsupported URL scheme in target URL: {parts.scheme}")
    if not host:
        raise ApiError.invalid("invalid target URL: missing host")
    if password:
        raise ApiError.invalid("authentication in target URL is not supported")
    headers = {
        name.removeprefix(PREFIX): value
        for name, value in request.headers.items()
        if name.startswith(PREFIX) and name != PREFIX
    }
    body = await read_body(request, options) if request.method == "POST" else None
    workers: Workers = request.app.state.workers
    return await workers.run(lambda: _forward(request.method, url, headers, body))


def _forward(method: str, url: str, headers: dict[str, str], body: bytes | None) -> Response:
    try:
        upstream_request = urllib.request.Request(url, data=body, headers=headers, method=method)
        opener = urllib.request.build_opener(_NoRedirects)
        with opener.open(upstream_request, timeout=_TIMEOUT_S) as found:
            data, status, given = found.read(_MAX_BYTES + 1), found.status, found.headers
    except urllib.error.HTTPError as error:
        data, status, given = error.read(_MAX_BYTES), error.code, error.headers
    except (OSError, ValueError) as error:
        raise ApiError(502, f"the target did not answer: {error!s:.200}") from None
    if len(data) > _MAX_BYTES:
        raise ApiError(502, f"the target's response has more than {_MAX_BYTES} bytes")
    kept = {name: value for name, value in given.items() if name.lower() not in _DROPPED}
    return Response(data, status, headers=kept)


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Gives redirects to the client."""

    def redirect_request(self, *args: object, **kwargs: object) -> None:
        return None
