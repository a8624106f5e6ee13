"""The server on Ray Serve: replicas of the model, and a process that forwards requests to them.

    serve run pyllama.cluster.app:build model=x.gguf replicas=2

    from ray import serve
    serve.run(build({"model": "x.gguf", "replicas": 2}))

    client -> Ray's proxy -> Ingress -> Ray's request router -> EngineReplica (the whole server)

The ingress reads the body, so that a replica can be chosen by its prompt; Ray's proxy sees headers
only. All paths of the server work; `/slots`, `/metrics` and the like tell of one replica, whose
number is in the header ``X-Replica``. Ray is imported when `build` is called.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from ..server.http.security import Guard
from ..server.http.sse import JsonResponse, error_response, read_body
from ..server.request.errors import ApiError
from ..server.worker.threads import Workers
from .forward import CLOSING, Forwarded, error_of_call, unavailable
from .loopback import keep_on_loopback
from .options import ClusterOptions, ReplicaOptions
from .replica import LoadedModel, ReplicaCall
from .routing import read_target

if TYPE_CHECKING:
    from ray.serve import Application
    from ray.serve.handle import DeploymentHandle

_MODEL_PATHS = ("/models", "/v1/models")
_UNLOAD_S = 600.0


class EngineReplica:
    """A replica: the models of one process. Ray makes and calls it.

    Args:
        options: of the replica; the default model is loaded at once.
        n_models: models held at the same time; Ray unloads the one that was not used for longest.
    """

    def __init__(self, options: ReplicaOptions, n_models: int) -> None:
        from ray import serve

        keep_on_loopback()
        self._options, self._loaded = options, dict[str, LoadedModel]()
        self._first: LoadedModel | None = LoadedModel(options, options.default)
        self._n_served, self._loading = 0, Workers(1, "load")
        self._id = serve.get_replica_context().replica_id.unique_id

        async def cached(name: str) -> LoadedHandle:
            return LoadedHandle(await self._load(name), self._loaded)

        self._cached = serve.multiplexed(max_num_models_per_replica=n_models)(cached)

    async def respond(self, call: ReplicaCall) -> AsyncIterator[Message]:
        """Yield the ASGI messages of the answer to a request."""
        self._n_served += 1
        model = await self._model(call.model)
        async for message in model.respond(call):
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], (b"X-Replica", self._id.encode())]
            yield message

    async def check_health(self) -> None:
        """Ray calls it every few seconds, and replaces the replica if it raises or takes long."""
        if self._first is not None:
            await self._model(self._first.name)  # before the first request: Ray's cache gets it
        for model in [*self._loaded.values()]:
            await model.check()

    async def status(self) -> dict[str, Any]:
        """Id, process, load, number of requests and models of the replica."""
        running = sum(model.n_running for model in self._loaded.values())
        return {
            "replica": self._id,
            "pid": os.getpid(),
            "running": running,
            "served": self._n_served,
            "models": [*self._loaded],
        }

    async def _model(self, name: str) -> LoadedModel:
        if len(self._options.models) == 1:
            return self._loaded.get(name) or await self._load(name)
        handle: LoadedHandle = await self._cached(name)
        return handle.model

    async def _load(self, name: str) -> LoadedModel:
        first, self._first = self._first, None
        if first is None or first.name != name:
            first = await self._loading.run(partial(LoadedModel, self._options, name))
        self._loaded[name] = first
        await first.start()
        return first


class LoadedHandle:
    """A model in Ray's cache, which closes it when another one takes its place.

    Args:
        model: the model.
        loaded: all models of the replica by name; it leaves them.
    """

    def __init__(self, model: LoadedModel, loaded: dict[str, LoadedModel]) -> None:
        self.model, self._loaded = model, loaded
        # Ray awaits this name; Python's own finalizer would be an attribute of the class
        vars(self)["__del__"] = self.close

    async def close(self) -> None:
        """Wait for the model's requests and free it. Raises: TimeoutError."""
        self._loaded.pop(self.model.name, None)
        await asyncio.wait_for(asyncio.shield(self.model.close()), _UNLOAD_S)


class Ingress:
    """Reads requests, and forwards each to a replica. Ray makes and calls it.

    Args:
        options: of the cluster.
        engine: Ray's handle of the replicas.
    """

    def __init__(self, options: ClusterOptions, engine: DeploymentHandle) -> None:
        keep_on_loopback()
        self._options, self._engine = options, engine.options(stream=True)
        self._is_draining = False
        self._names = Guard(_model_list(options), options.replica.server, frozenset())

    async def drain(self) -> None:
        """Refuse new requests; running ones continue."""
        self._is_draining = True

    async def __call__(self, request: Request) -> Response:
        """Return the response to a request."""
        if self._is_draining:
            return error_response(unavailable(CLOSING, retry_s=5), request.scope)
        options, replica = self._options, self._options.replica
        if len(replica.models) > 1 and request.scope["path"] in _MODEL_PATHS:
            return _Application(self._names)
        try:
            body = await read_body(request, replica.server)
        except ApiError as error:
            return error_response(error, request.scope)
        except ClientDisconnect:
            return Response(status_code=499)
        target = read_target(body, request.headers, replica.models, options.prefix_chars)
        if target.model is None:
            names = ", ".join(replica.models)
            message = f"there is no model {target.asked[:200]!r}; there are {names}"
            return error_response(ApiError(404, message), request.scope)
        handle = self._engine
        if target.key:
            handle = handle.options(session_id=target.key)
        if len(replica.models) > 1:
            handle = handle.options(multiplexed_model_id=target.model)
        try:
            call = ReplicaCall.of(request.scope, body, target.model)
            return Forwarded(aiter(handle.respond.remote(call)))
        except Exception as error:
            return error_response(error_of_call(error), request.scope)


class _Application(Response):
    """A response that an ASGI application sends."""

    def __init__(self, app: Guard) -> None:
        super().__init__()
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._app(scope, receive, send)


def _model_list(options: ClusterOptions) -> Response:
    """OpenAI's list of models."""
    data = [
        {"id": name, "object": "model", "owned_by": "pyllama"} for name in options.replica.models
    ]
    return JsonResponse({"object": "list", "data": data})


def engines(options: ClusterOptions) -> Application:
    """Ray Serve's application of the replicas alone."""
    from ray import serve
    from ray.serve.config import RequestRouterConfig

    config = options.engine_config()
    if options.router is not None:
        config["request_router_config"] = RequestRouterConfig(request_router_class=options.router)
    deployment = serve.deployment(**config)(EngineReplica)
    application: Application = deployment.bind(options.replica, options.models_per_replica)
    return application


def ingress(options: ClusterOptions, engine: Any) -> Application:
    """Ray Serve's application of the processes that forward.

    Args:
        engine: `engines`, or the handle of these.
    """
    from ray import serve

    deployment = serve.deployment(**options.ingress_config())(Ingress)
    application: Application = deployment.bind(options, engine)
    return application


def build(arguments: Mapping[str, Any]) -> Application:
    """Ray Serve's application of the whole server, for ``serve run`` and YAML files.

    Args:
        arguments: see `ClusterOptions.from_arguments`.

    Raises:
        ClusterError: an argument is unknown or illegal.
    """
    options = ClusterOptions.from_arguments(arguments)
    return ingress(options, engines(options))
