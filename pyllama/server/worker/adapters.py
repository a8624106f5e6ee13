"""Adapters of a served model: their list, and the factors that a request or a client asks for.

    described(context, tokenizer)                  # [{"id": 0, "path": "a.gguf", "scale": 1.0}]
    factors(context, [(0, 0.5)])                   # {lora: 0.5}, for a request

Control vectors come after the LoRA adapters; those that are not named keep their factors.
Source: llama.cpp, ``server_task_result_get_lora``, ``construct_lora_list``.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from ...errors import BatchError, ModelError
from ...runtime.adapters import Adapter
from ...runtime.context import Context
from ...tokenizer import Tokenizer
from ..request.errors import ApiError
from ..request.paths import without_folders
from ..request.request_options import Scales


def described(context: Context, tokenizer: Tokenizer) -> list[dict[str, Any]]:
    """The adapters as ``GET /lora-adapters`` lists them."""
    return [
        _described(i, adapter, context.applied.get(adapter, 0.0), tokenizer)
        for i, adapter in enumerate(context.adapters)
    ]


def _described(i: int, adapter: Adapter, scale: float, tokenizer: Tokenizer) -> dict[str, Any]:
    entry: dict[str, Any] = {
        "id": i,
        "path": os.path.basename(adapter.path),
        "scale": scale,
        "task_name": str(adapter.metadata.get("adapter.lora.task_name", "")),
        "prompt_prefix": str(adapter.metadata.get("adapter.lora.prompt_prefix", "")),
    }
    if adapter.is_vector:
        entry["type"] = "control-vector"
    if adapter.invocation:
        pieces = (tokenizer.token_to_piece(token, True) for token in adapter.invocation)
        entry["alora_invocation_string"] = b"".join(pieces).decode("utf-8", "replace")
        entry["alora_invocation_tokens"] = list(adapter.invocation)
    return entry


def factors(context: Context, scales: Scales) -> Mapping[Adapter, float]:
    """The adapters of some numbers with their factors. Raises: ApiError."""
    known = context.adapters
    chosen = {one: x for one, x in context.applied.items() if one.is_vector}
    for i, scale in scales:
        if not 0 <= i < len(known):
            raise ApiError.invalid(f"lora: there is no adapter {i}; {len(known)} are loaded")
        chosen[known[i]] = scale
    try:
        context.scales(chosen)
    except (BatchError, ModelError) as error:
        folders = filter(None, (os.path.dirname(one.path) for one in chosen))
        raise ApiError.invalid(f"lora: {without_folders(str(error), *folders)}") from None
    return chosen


def applied(context: Context) -> list[float]:
    """The factors of all adapters that the context applies, for `apply`."""
    return [context.applied.get(one, 0.0) for one in context.adapters]


def apply(context: Context, scales: Sequence[float]) -> None:
    """Give the same adapters, of a model that was loaded again, the factors of `applied`."""
    context.apply(dict(zip(context.adapters, scales, strict=True)))
