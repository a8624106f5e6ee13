"""The ASGI application: its routes, and how errors become responses.

app = make_app(ServedModel(engine, options))        # or a `Lifecycle`, which loads the model later
uvicorn.run(app)                               # the command uses `listener.serve`
"""

from __future__ import annotations

import asyncio
import logging
import mimetypes
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from pathlib import Path
from urllib.parse import quote

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from pyggml.files import read_regular

from ..errors import PyllamaError
from .apis.anthropic import messages as anthropic
from .apis.llama_cpp import graph, infill, info, kept_streams, rerank, slots, tokens
from .apis.ollama import embed, ollama
from .apis.openai import chat, completion, embedding, responses
from .http import proxy
from .http.logs import BODY, RequestLog, ignored_fields
from .http.missing import MISSING
from .http.security import Guard
from .http.sse import PREFIX, error_response
from .page.files import page_addresses, page_file
from .request.errors import ApiError, error_of
from .request.fields import Body
from .request.options import ServerOptions
from .worker.kept_streams import KeptStreams
from .worker.lifecycle import Lifecycle
from .worker.served import ServedModel
from .worker.threads import Workers

Endpoint = Callable[[Request], Awaitable[Response]]
Handler = Callable[[Request, ServedModel], Awaitable[Response]]
SleepingHandler = Callable[[Request, Lifecycle], Awaitable[Response]]
_N_THREADS = 8
_IN_HEADER = ", !#$&'()*+-./:;<=>?@[]^_`{|}~"
_log = logging.getLogger("pyllama.server")

ROUTES: tuple[tuple[str, tuple[str, ...], Handler], ...] = (
    ("POST", ("/props",), info.change_props),
    ("GET", ("/lora-adapters",), info.lora_adapters),
    ("POST", ("/lora-adapters",), info.change_lora_adapters),
    ("GET", ("/slots",), slots.slots),
    ("POST", ("/slots/{id_slot}",), slots.change_slot),
    ("POST", ("/tokenize",), tokens.tokenize),
    ("POST", ("/detokenize",), tokens.detokenize),
    ("POST", ("/completion", "/completions"), completion.completion),
    ("POST", ("/v1/completions",), completion.openai_completion),
    ("POST", ("/chat/completions", "/v1/chat/completions"), chat.chat_completion),
    (
        "POST",
        ("/chat/completions/input_tokens", "/v1/chat/completions/input_tokens"),
        chat.count_tokens,
    ),
    ("POST", ("/v1/chat/completions/control",), chat.control),
    ("POST", ("/apply-template",), chat.apply_template),
    ("POST", ("/embedding", "/embeddings"), embedding.embeddings),
    ("POST", ("/v1/embeddings",), embedding.openai_embeddings),
    ("POST", ("/rerank", "/reranking", "/v1/rerank", "/v1/reranking"), rerank.rerank),
    ("POST", ("/responses", "/v1/responses"), responses.responses),
    (
        "POST",
        ("/responses/input_tokens", "/v1/responses/input_tokens"),
        partial(chat.count_tokens, convert=responses.to_chat),
    ),
    ("POST", ("/v1/messages",), anthropic.messages),
    ("POST", ("/v1/messages/count_tokens",), anthropic.count_tokens),
    ("POST", ("/infill",), infill.infill),
    ("GET", ("/cors-proxy",), proxy.cors_proxy),
    ("POST", ("/cors-proxy",), proxy.cors_proxy),
    ("POST", ("/api/generate",), ollama.generate),
    ("POST", ("/api/chat",), ollama.chat),
    ("POST", ("/api/embed",), embed.embed),
    ("POST", ("/api/embeddings",), embed.embeddings),
    ("POST", ("/api/show",), ollama.show),
    ("GET", ("/api/tags",), ollama.tags),
    ("GET", ("/api/ps",), ollama.running),
    ("GET", ("/graph.json",), graph.data),
    ("GET", ("/graph.html",), graph.drawing),
)
"""Methods, paths and handlers."""

SLEEPING_ROUTES: tuple[tuple[str, tuple[str, ...], SleepingHandler], ...] = (
    ("GET", ("/health", "/v1/health"), info.health),
    ("GET", ("/metrics",), info.metrics),
    ("GET", ("/props",), info.props),
    ("GET", ("/models", "/v1/models"), info.models),
    ("GET", ("/v1/models/{id:path}",), info.model),
    ("GET", ("/api/version",), ollama.version),
    ("GET", ("/v1/stream",), kept_streams.resume),
    ("DELETE", ("/v1/stream",), kept_streams.stop),
    ("POST", ("/v1/streams/lookup",), kept_streams.lookup),
)
"""Those that do not need the model, do not wake it, and do not keep it awake."""


def make_app(model: ServedModel | Lifecycle) -> ASGIApp:
    """The application that serves a model; its lifespan loads it and runs the engine's thread.

    While the model is being loaded, all paths but those of the page answer with 503.
    """
    life = Lifecycle.of(model) if isinstance(model, ServedModel) else model
    options = life.options
    awake = [(method, paths, _awake(handler)) for method, paths, handler in ROUTES]
    routes = [
        Route(options.api_prefix + path, _with(life, handler), methods=[method])
        for method, paths, handler in (*SLEEPING_ROUTES, *awake)
        for path in paths
    ]
    kept = KeptStreams()
    page = page_endpoints(options)
    for path, endpoint in page.items():
        routes.append(Route(options.api_prefix + path, endpoint, methods=["GET"]))

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        life.begin()
        app.state.kept_streams = kept
        watch = asyncio.create_task(kept.watch())
        try:
            yield
        finally:
            watch.cancel()
            kept.close()
            app.state.workers.close()
            await life.end()

    return guarded(routes, lifespan, options, page)


def guarded(
    routes: Sequence[Route],
    lifespan: Callable[[Starlette], AbstractAsyncContextManager[None]],
    options: ServerOptions,
    open_paths: Iterable[str],
) -> ASGIApp:
    """The application of some routes, behind the checks of keys and hosts, with logs.

    Its state has ``workers`` for calls that block, which ``lifespan`` closes.

    Args:
        open_paths: those that need no key, without the prefix.
    """
    prefix = options.api_prefix
    missing = [
        Route(prefix + path, _missing(sentence), methods=methods)
        for methods, paths, sentence in MISSING
        for path in paths
    ]
    app = Starlette(
        routes=[*routes, *missing],
        lifespan=lifespan,
        exception_handlers={HTTPException: _http_error},
    )
    app.state.workers = Workers(_N_THREADS, "request")
    app.router.redirect_slashes = False  # a path that does not exist is a 404, not a 307
    inner = RequestLog(Guard(app, options, frozenset(prefix + path for path in open_paths)))

    async def with_prefix(scope: Scope, receive: Receive, send: Send) -> None:
        scope[PREFIX] = prefix
        await inner(scope, receive, send)

    return with_prefix


def page_endpoints(options: ServerOptions) -> dict[str, Endpoint]:
    """The endpoints of the web page by path: those of a folder of the user, or ours."""
    if not options.ui:
        return {}
    if options.path is None:
        return {f"/{address}": _own_file_endpoint(address) for address in page_addresses()}
    folder = options.path.resolve()
    return {path: _file_endpoint(file, folder) for path, file in folder_files(folder).items()}


def folder_files(folder: Path) -> dict[str, Path]:
    """The files of a folder by their path in a URL; ``index.html`` also as ``/``.

    Links that lead out of the folder are left out.
    """
    found = {}
    for file in sorted(folder.rglob("*")):
        inside = file.relative_to(folder)
        if any(part.startswith(".") for part in inside.parts):
            continue
        if file.is_file() and _is_inside(file, folder):
            found["/" + inside.as_posix()] = file
    if "/index.html" in found:
        found["/"] = found["/index.html"]
    return found


def _awake(handler: Handler) -> SleepingHandler:
    """The handler with the model of a lifecycle, which is loaded if necessary."""

    async def with_model(request: Request, life: Lifecycle) -> Response:
        async with life.use() as served:
            response = await handler(request, served)
            body = request.scope.get(BODY)
            if isinstance(body, Body) and served.has_name(body.peek("model")):
                _ = body["model"]  # any other name is ignored
            return response

    return with_model


def _with(life: Lifecycle, handler: SleepingHandler) -> Endpoint:
    return reporting_errors(lambda request: handler(request, life))


def reporting_errors(handler: Endpoint) -> Endpoint:
    """The handler, with responses for what it raises, and a header for what it did not read."""

    async def endpoint(request: Request) -> Response:
        try:
            response = await handler(request)
        except ApiError as error:
            return error_response(error, request.scope)
        except PyllamaError as error:
            return error_response(error_of(error), request.scope)
        except ClientDisconnect:
            return Response(status_code=499)  # nobody reads it
        except Exception as error:
            _log.exception("%s %s failed", request.method, request.url.path)
            return error_response(error_of(error), request.scope)
        ignored = ignored_fields(request.scope)
        if ignored:
            response.headers["X-Ignored-Fields"] = quote(", ".join(ignored), safe=_IN_HEADER)
        return response

    return endpoint


def _missing(sentence: str) -> Endpoint:
    async def endpoint(request: Request) -> Response:
        return error_response(ApiError.not_supported(sentence), request.scope)

    return endpoint


def _own_file_endpoint(address: str) -> Endpoint:
    file = page_file(address)
    assert file is not None

    async def endpoint(request: Request) -> Response:
        if request.headers.get("If-None-Match") == file.headers["ETag"]:
            return Response(status_code=304, headers=file.headers)
        return Response(file.body, media_type=file.media_type, headers=file.headers)

    return endpoint


def _is_inside(file: Path, folder: Path) -> bool:
    """Whether a file is in a folder, which is resolved, when all links are followed."""
    real = file.resolve()
    inside = real.relative_to(folder) if real.is_relative_to(folder) else None
    return inside is not None and not any(part.startswith(".") for part in inside.parts)


def _file_endpoint(file: Path, folder: Path) -> Endpoint:
    kind = mimetypes.guess_type(file.name)[0] or "application/octet-stream"

    def read() -> bytes:
        if not _is_inside(file, folder):  # it has become a link since the start
            raise HTTPException(404)
        try:
            return read_regular(file)
        except OSError:  # it is gone, or has become a pipe
            raise HTTPException(404) from None

    async def endpoint(request: Request) -> Response:
        data = await request.app.state.workers.run(read)
        return Response(data, media_type=kind, headers={"Cache-Control": "no-cache"})

    return endpoint


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    message = "File Not Found" if error.status_code == 404 else error.detail
    api_error = ApiError(error.status_code, message, headers=dict(error.headers or {}))
    return error_response(api_error, request.scope)
