"""The application of a router: which requests go to which model, and the list of models.

    app = make_router(pool, options, find_entries, autoload=True)

A POST is routed by the ``model`` of its body, a GET by that of its query. ``/health``, ``/models``,
``/props`` without a model and the list of Ollama's API are answered here.

Source: llama.cpp, ``server_models_routes``.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp

from ...errors import ModelError
from ..apis.llama_cpp.info import no_model
from ..apis.llama_cpp.kept_streams import asked_ids, conversation_asked
from ..apis.ollama import ollama
from ..app import ROUTES, SLEEPING_ROUTES, Endpoint, guarded, page_endpoints, reporting_errors
from ..http.proxy import forward_for_page
from ..http.sse import JsonResponse, data_line, parse_body, read_body, read_json
from ..request.errors import ApiError
from ..request.options import ServerOptions
from ..request.paths import without_folders
from ..worker.kept_streams import conversation_of
from ..worker.served import FINGERPRINT
from ..worker.threads import Workers
from .catalog import CatalogEntry, family_of
from .conversations import Conversations
from .forward import Forwarder
from .pool import Instance, Pool

T = TypeVar("T")
_PROGRAM = "pyllama-server"
_TRUE = ("true", "1")


def make_router(
    pool: Pool,
    options: ServerOptions,
    find_entries: Callable[[], Iterable[CatalogEntry]],
    *,
    autoload: bool = True,
) -> ASGIApp:
    """The application of a router; its lifespan ends the pool.

    Args:
        pool: the models.
        options: of the router itself: keys, page, limits.
        find_entries: looks for the models again; called in a thread.
        autoload: whether a request loads its model, unless it says otherwise itself.
    """
    router = _Router(pool, options, find_entries, autoload)
    prefix = options.api_prefix
    own = router.own_handlers()
    routes = [
        Route(prefix + path, reporting_errors(handler), methods=[method])
        for (method, path), handler in own.items()
    ]
    for method, paths, _ in (*SLEEPING_ROUTES, *ROUTES):
        for path in paths:
            if (method, path) not in own:
                handler = router.get if method == "GET" else router.post
                routes.append(Route(prefix + path, reporting_errors(handler), methods=[method]))
    page = page_endpoints(options)
    routes += [Route(prefix + path, endpoint, methods=["GET"]) for path, endpoint in page.items()]

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        pool.begin()
        try:
            yield
        finally:
            app.state.workers.close()
            await pool.close()
            await router.forwarder.close()

    return guarded(routes, lifespan, options, page)


class _Router:
    """The handlers of a router."""

    def __init__(
        self,
        pool: Pool,
        options: ServerOptions,
        find_entries: Callable[[], Iterable[CatalogEntry]],
        autoload: bool,
    ) -> None:
        self._pool, self._options, self._autoload = pool, options, autoload
        self._find_entries = find_entries
        self._reloading = asyncio.Lock()
        self.forwarder = Forwarder(pool, options.api_prefix)
        self._conversations = Conversations()

    def own_handlers(self) -> dict[tuple[str, str], Endpoint]:
        """What is not forwarded, by method and path."""
        return {
            ("GET", "/health"): self.health,
            ("GET", "/v1/health"): self.health,
            ("GET", "/props"): self.props,
            ("GET", "/models"): self.models,
            ("GET", "/v1/models"): self.models,
            ("GET", "/v1/models/{id:path}"): self.model,
            ("POST", "/models"): self.not_supported,
            ("DELETE", "/models"): self.not_supported,
            ("POST", "/models/load"): self.load,
            ("POST", "/models/unload"): self.unload,
            ("GET", "/models/sse"): self.events,
            ("GET", "/v1/stream"): self.resume_stream,
            ("DELETE", "/v1/stream"): self.stop_stream,
            ("POST", "/v1/streams/lookup"): self.find_streams,
            ("GET", "/api/tags"): self.tags,
            ("GET", "/api/ps"): self.running,
            ("GET", "/api/version"): self.version,
            ("GET", "/cors-proxy"): self.cors_proxy,
            ("POST", "/cors-proxy"): self.cors_proxy,
        }

    # --- requests for a model -------------------------------------------------------------------

    async def get(self, request: Request) -> Response:
        """A GET for the model of its query."""
        instance = self._named(request.query_params.get("model", ""), request)
        autoload = self._loads(request)
        return self.forwarder.response(request, None, instance, autoload=autoload)

    async def post(self, request: Request) -> Response:
        """A POST for the model of its body."""
        data = await read_body(request, self._options)
        body = await parse_body(data)
        name = body.get("model")
        if name is None and request.url.path.endswith("/api/show"):
            name = body.get("name")  # of older clients of Ollama's
        instance = self._named(name, request)
        id = conversation_of(request) if body.get("stream") else ""
        conversation = self._conversations.begin(id, instance) if id else None
        autoload = self._loads(request)
        return self.forwarder.response(
            request, data, instance, autoload=autoload, conversation=conversation
        )

    def _named(self, name: Any, request: Request) -> Instance:
        """The model of a name. Raises: ApiError."""
        if not isinstance(name, str) or not name:
            raise ApiError.invalid("model name is missing from the request")
        found = self._pool.find(name)
        if found is None and "/api/" in request.url.path:
            found = self._pool.find(name.removesuffix(":latest"))  # Ollama's clients add it
        if found is None:
            raise ApiError.invalid(f"model '{name:.200}' not found")
        return found

    def _loads(self, request: Request) -> bool:
        given = request.query_params.get("autoload", "")
        return given in _TRUE if given else self._autoload

    # --- the router itself ----------------------------------------------------------------------

    async def health(self, request: Request) -> Response:
        """``GET /health``."""
        return JsonResponse({"status": "ok"})

    async def props(self, request: Request) -> Response:
        """``GET /props``: the router's, or those of the model of the query."""
        if request.query_params.get("model"):
            return await self.get(request)
        return JsonResponse(
            {
                "role": "router",
                "max_instances": self._pool.max_models,
                "models_autoload": self._autoload,
                "model_alias": _PROGRAM,
                "model_path": "none",
                "default_generation_settings": {"params": None, "n_ctx": 0},
                "ui_settings": {},
                "build_info": FINGERPRINT,
                "cors_proxy_enabled": self._options.cors_proxy,
            }
        )

    async def models(self, request: Request) -> Response:
        """``GET /models``; with ``reload`` the list is made again first."""
        if request.query_params.get("reload"):
            async with self._reloading:
                try:
                    entries = await _in_thread(request, lambda: list(self._find_entries()))
                    await self._pool.reload(entries)
                except (ModelError, OSError) as error:
                    message = f"the list of models is as it was: {without_folders(str(error))}"
                    raise ApiError(500, message) from None
        data = [_described(instance) for instance in self._pool.instances]
        return JsonResponse({"data": data, "object": "list"})

    async def model(self, request: Request) -> Response:
        """``GET /v1/models/{id}``: one model, by its name or an alias."""
        name = request.path_params["id"]
        instance = self._pool.find(name)
        if instance is None:
            raise no_model(name)
        return JsonResponse(_described(instance))

    async def load(self, request: Request) -> Response:
        """``POST /models/load``: returns when the loading has begun."""
        body = await read_json(request, self._options)
        instance = self._pool.find(str(body.get("model", "")))
        if instance is None:
            raise ApiError(404, "model is not found")
        await self._pool.load(instance)
        return JsonResponse({"success": True})

    async def unload(self, request: Request) -> Response:
        """``POST /models/unload``: returns when the unloading has begun."""
        body = await read_json(request, self._options)
        instance = self._pool.find(str(body.get("model", "")))
        if instance is None:
            raise ApiError.invalid("model is not found")
        if not instance.is_running:
            raise ApiError.invalid("model is not running")
        self._pool.stop(instance)
        return JsonResponse({"success": True})

    async def events(self, request: Request) -> Response:
        """``GET /models/sse``: what happens to the models, until the client goes away."""

        ping_s = self._options.sse_ping_s if self._options.sse_ping_s > 0 else None

        async def lines() -> AsyncIterator[str]:
            with self._pool.subscribed() as events:
                yield ":\n\n"  # the headers are sent now, not with the first event
                while True:
                    try:
                        async with asyncio.timeout(ping_s):
                            event = await events.get()
                    except TimeoutError:
                        yield ":\n\n"
                        continue
                    if event is None:
                        return
                    yield data_line(event)

        headers = {"Cache-Control": "no-cache"}
        return StreamingResponse(lines(), media_type="text/event-stream", headers=headers)

    async def not_supported(self, request: Request) -> Response:
        """``POST`` and ``DELETE /models``: llama.cpp downloads and deletes models."""
        raise ApiError.not_supported(
            "models are not downloaded or deleted by requests: change the router's folder or file "
            "of presets, and ask for /models?reload=1"
        )

    async def cors_proxy(self, request: Request) -> Response:
        """``/cors-proxy``: forwards requests of the page to other servers."""
        return await forward_for_page(request, self._options)

    # --- streams that their model's process keeps -----------------------------------------------

    async def resume_stream(self, request: Request) -> Response:
        """``GET /v1/stream``."""
        one = self._conversations.get(conversation_asked(request))
        if one is not None and one.instance.is_ready:
            return self.forwarder.response(request, None, one.instance, autoload=False)
        if one is not None and one.instance.is_running:
            message = "Stream owner model is loading, retry later"
            raise ApiError(503, message, headers={"Retry-After": "1"})
        raise ApiError(404, "Stream not found or expired")

    async def stop_stream(self, request: Request) -> Response:
        """``DELETE /v1/stream``."""
        one = self._conversations.drop(conversation_asked(request))
        if one is not None and one.instance.is_ready:
            return self.forwarder.response(request, None, one.instance, autoload=False)
        return Response(status_code=204)

    async def find_streams(self, request: Request) -> Response:
        """``POST /v1/streams/lookup``: asks the models that may have streams of these ids."""
        ids = asked_ids(await read_json(request, self._options))
        owners = [one for one in self._conversations.owners(ids) if one.is_ready]
        body = {"conversation_ids": ids}
        asked = [self.forwarder.fetch(one, "/v1/streams/lookup", body) for one in owners]
        found = await asyncio.gather(*asked)
        return JsonResponse([stream for streams in found for stream in streams or ()])

    # --- Ollama's API ---------------------------------------------------------------------------

    async def tags(self, request: Request) -> Response:
        """``GET /api/tags``: all models."""
        described = map(_ollama_model, self._pool.instances)
        return JsonResponse({"models": await _in_thread(request, lambda: list(described))})

    async def running(self, request: Request) -> Response:
        """``GET /api/ps``: the models that are loaded."""
        ready = [one for one in self._pool.instances if one.is_ready]
        described = await _in_thread(request, lambda: [*map(_ollama_model, ready)])
        return JsonResponse({"models": [ollama.loaded_model(one) for one in described]})

    async def version(self, request: Request) -> Response:
        """``GET /api/version``."""
        return JsonResponse({"version": ollama.VERSION})


async def _in_thread(request: Request, work: Callable[[], T]) -> T:
    workers: Workers = request.app.state.workers
    return await workers.run(work)


def _described(instance: Instance) -> dict[str, Any]:
    """A model of ``/models``; what its process tells fills in what the router does not know."""
    entry = instance.entry
    status: dict[str, Any] = {"value": instance.status, "args": [_PROGRAM, *entry.shown_args]}
    if entry.preset:
        status["preset"] = entry.preset
    if not instance.is_running and instance.exit_code:
        status |= {"exit_code": instance.exit_code, "failed": True}
    text = ["text"]
    own = {
        "id": entry.name,
        "aliases": sorted(entry.aliases),
        "tags": sorted(entry.tags),
        "object": "model",
        "owned_by": "pyllama",
        "created": int(time.time()),
        "status": status,
        "architecture": {"input_modalities": text, "output_modalities": text},
        "source": entry.source,
        "can_remove": False,
    }
    info = instance.info if instance.is_running else {}
    return own | {key: value for key, value in info.items() if key not in own}


def _ollama_model(instance: Instance) -> dict[str, Any]:
    """A model of Ollama's lists, of which files may be read; not in the event loop."""
    file, info = instance.entry.file, instance.info.get("meta", {})
    try:
        size = info.get("size") or (file.stat().st_size if file else 0)
    except OSError:
        size = 0
    desc = info.get("desc") or (family_of(file) if file else "")
    return ollama.model_json(instance.name, size, "", desc)
