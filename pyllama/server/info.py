"""``/health``, ``/props``, ``/models``, ``/metrics`` and ``/lora-adapters``."""

from __future__ import annotations

import time
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from ..errors import TemplateError
from .errors import ApiError
from .served import FINGERPRINT, Served
from .sse import JsonResponse, read_body, read_json


async def health(request: Request, served: Served) -> Response:
    """``GET /health``."""
    return JsonResponse({"status": "ok"})


async def props(request: Request, served: Served) -> Response:
    """``GET /props``. Source: llama.cpp, ``get_res_props``."""
    options, vocab = served.options, served.tokenizer.vocab
    bos, eos = served.tokenizer.bos, served.tokenizer.eos
    metadata = served.model.metadata
    found: dict[str, Any] = {
        "default_generation_settings": {
            "params": served.defaults.settings(whole=False),
            "n_ctx": served.n_ctx,
        },
        "total_slots": len(served.runner.slots),
        "model_alias": served.name,
        "model_ftype": served.model.desc,
        "model_path": options.model_path,
        "modalities": {"vision": False, "video": False, "audio": False},
        "media_marker": "",
        "endpoint_slots": options.endpoint_slots,
        "endpoint_props": options.endpoint_props,
        "endpoint_metrics": options.endpoint_metrics,
        "ui": options.ui,
        "ui_settings": {},
        "chat_template": options.chat_template or metadata.get("tokenizer.chat_template", ""),
        "chat_template_caps": await served.prepare(lambda: _capabilities(served)),
        "bos_token": "" if bos is None else vocab.tokens[bos],
        "eos_token": "" if eos is None else vocab.tokens[eos],
        "build_info": FINGERPRINT,
        "is_sleeping": False,
        "cors_proxy_enabled": options.cors_proxy,
    }
    tool_use = metadata.get("tokenizer.chat_template.tool_use")
    if tool_use:
        found["chat_template_tool_use"] = tool_use
    return JsonResponse(found)


def _capabilities(served: Served) -> dict[str, bool]:
    try:
        can = served.chat_format().capabilities()
    except TemplateError:
        return {}
    return {
        "supports_tools": can.tools,
        "supports_tool_calls": can.calls,
        "supports_object_arguments": can.object_arguments,
        "supports_parallel_tool_calls": can.parallel,
        "supports_tool_responses": can.results,
    }


async def change_props(request: Request, served: Served) -> Response:
    """``POST /props``: nothing can be changed yet, as in llama.cpp."""
    if not served.options.endpoint_props:
        raise ApiError.not_supported(
            "This server does not support changing global properties. Start it with `--props`"
        )
    await read_json(request, served.options)
    return JsonResponse({"success": True})


async def models(request: Request, served: Served) -> Response:
    """``GET /models`` and ``/v1/models``. Source: llama.cpp, ``get_res_models``."""
    name, model = served.name, served.model
    modalities = {"input_modalities": ["text"], "output_modalities": ["text"]}
    own = {
        "id": name,
        "aliases": sorted(served.options.aliases),
        "tags": sorted(served.options.tags),
        "object": "model",
        "architecture": modalities,
        "created": int(time.time()),
        "owned_by": "pyllama",
        "meta": {
            "vocab_type": 2,
            "n_vocab": served.tokenizer.n_vocab,
            "n_ctx": served.n_ctx,
            "n_ctx_train": model.n_ctx_train,
            "n_embd": model.n_embd,
            "n_params": model.n_params,
            "size": model.size_bytes,
            "ftype": model.desc,
        },
    }
    return JsonResponse(
        {
            "models": [
                {
                    "name": name,
                    "model": name,
                    "modified_at": "",
                    "size": "",
                    "digest": "",
                    "type": "model",
                    "description": "",
                    "tags": [""],
                    "capabilities": ["completion"],
                    "parameters": "",
                    "details": {
                        "parent_model": "",
                        "format": "gguf",
                        "family": "",
                        "families": [""],
                        "parameter_size": "",
                        "quantization_level": "",
                    },
                }
            ],
            "object": "list",
            "data": [own],
        }
    )


async def metrics(request: Request, served: Served) -> Response:
    """``GET /metrics``, in Prometheus' text format."""
    if not served.options.endpoint_metrics:
        raise ApiError.not_supported(
            "This server does not support metrics endpoint. Start it with `--metrics`"
        )
    runner, speculation = served.runner, served.engine.speculation
    drafts = None if speculation is None else speculation.stats
    text = runner.counts.write(runner.n_processing, runner.n_deferred, drafts)
    return Response(
        text,
        headers={
            "Process-Start-Time-Unix": str(runner.counts.started_s),
            "Content-Type": "text/plain; version=0.0.4",
        },
    )


async def lora_adapters(request: Request, served: Served) -> Response:
    """``GET /lora-adapters``: none are loaded."""
    return JsonResponse([])


async def change_lora_adapters(request: Request, served: Served) -> Response:
    """``POST /lora-adapters``: there are none to change."""
    data = await read_body(request, served.options)
    if data.strip() not in (b"", b"[]"):
        raise ApiError.invalid("LoRA adapters are not supported: none are loaded")
    return JsonResponse({"success": True})
