"""``/health``, ``/props``, ``/models``, ``/metrics``, and ``/lora-adapters``.

The first four answer while the model sleeps, and do not wake it.
"""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from ...http.sse import JsonResponse, parse_value, read_body, read_json
from ...request.errors import ApiError
from ...request.request_options import read_scales
from ...worker.adapters import described, factors
from ...worker.lifecycle import Lifecycle
from ...worker.served import ServedModel
from ...worker.warm_up import progress_fields


async def health(request: Request, life: Lifecycle) -> Response:
    """``GET /health``."""
    _ = life.description  # raises before the model is loaded
    if life.served is not None:
        life.served.runner.check()
    return JsonResponse({"status": "ok", **progress_fields()})


async def props(request: Request, life: Lifecycle) -> Response:
    """``GET /props``."""
    return JsonResponse({**life.description.props, "is_sleeping": life.is_sleeping})


async def change_props(request: Request, served: ServedModel) -> Response:
    """``POST /props``: nothing can be changed yet, as in llama.cpp."""
    if not served.options.endpoint_props:
        raise ApiError.not_supported(
            "This server does not support changing global properties. Start it with `--props`"
        )
    await read_json(request, served.options)
    return JsonResponse({"success": True})


async def models(request: Request, life: Lifecycle) -> Response:
    """``GET /models`` and ``/v1/models``."""
    return JsonResponse(life.description.models)


async def model(request: Request, life: Lifecycle) -> Response:
    """``GET /v1/models/{id}``: one model, by its name or an alias."""
    (own,) = life.description.models["data"]
    name = request.path_params["id"]
    if name != own["id"] and name not in own["aliases"]:
        raise no_model(name)
    return JsonResponse(own)


def no_model(name: str) -> ApiError:
    """The error (404) for a name that no model has."""
    return ApiError(404, f"The model '{name:.200}' does not exist")


async def metrics(request: Request, life: Lifecycle) -> Response:
    """``GET /metrics``, in Prometheus' text format."""
    _ = life.description
    if not life.options.endpoint_metrics:
        raise ApiError.not_supported(
            "This server does not support metrics endpoint. Start it with `--metrics`"
        )
    counts, served = life.counts, life.served
    if served is None:
        text = counts.write(0, 0)
    else:
        runner, speculation = served.runner, served.engine.speculation
        drafts = None if speculation is None else speculation.stats
        experts = served.engine.context.expert_stats
        text = counts.write(runner.n_processing, runner.n_deferred, drafts, experts)
    return Response(
        text,
        headers={
            "Process-Start-Time-Unix": str(counts.started_s),
            "Content-Type": "text/plain; version=0.0.4",
        },
    )


async def lora_adapters(request: Request, served: ServedModel) -> Response:
    """``GET /lora-adapters``."""
    return JsonResponse(described(served.engine.context, served.tokenizer))


async def change_lora_adapters(request: Request, served: ServedModel) -> Response:
    """``POST /lora-adapters``: the factors of requests from now on that name none."""
    data = await read_body(request, served.options)
    scales = read_scales(await parse_value(data) if data.strip() else [], "the body")
    chosen = factors(served.engine.context, scales)
    await served.runner.call(lambda engine: engine.context.apply(chosen))
    return JsonResponse({"success": True})
