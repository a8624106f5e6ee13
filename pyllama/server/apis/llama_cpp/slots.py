"""``/slots``: what the sequences do, and files of their tokens and cache."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from ....engine import Engine
from ....engine.prefix_store import drop_oldest
from ....engine.sequence import UNKNOWN, CacheSequence
from ....errors import StateError, StateFull
from ....runtime.adapters import key_of, uses_of
from ....runtime.state import load_state, save_state
from ...http.sse import JsonResponse, read_json
from ...request.errors import ApiError
from ...request.fields import Fields
from ...request.paths import without_folders
from ...worker.preparing import while_connected
from ...worker.runner import Slot
from ...worker.served import ServedModel

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_. +@=,()\[\]-]{0,199}")


async def slots(request: Request, served: ServedModel) -> Response:
    """``GET /slots``. Source: llama.cpp, ``server_slot::to_json``."""
    if not served.options.endpoint_slots:
        raise ApiError.not_supported(
            "This server does not support slots endpoint. Start it with `--slots`"
        )
    found = served.runner.slots
    if request.query_params.get("fail_on_no_slot") and all(s.is_processing for s in found):
        raise ApiError(503, "no slot available")
    return JsonResponse([_slot_json(served, slot) for slot in found])


def _slot_json(served: ServedModel, slot: Slot) -> dict[str, Any]:
    found: dict[str, Any] = {
        "id": slot.id,
        "n_ctx": served.n_ctx,
        "speculative": served.engine.speculation is not None,
        "is_processing": slot.is_processing,
    }
    text = slot.text
    if text is None:
        return found
    running, limit = slot.is_processing, text.options.n_predict
    found |= {
        "id_task": slot.task_id,
        "n_prompt_tokens": text.n_held,
        "n_prompt_tokens_processed": text.n_prompt_evaluated if running else 0,
        "n_prompt_tokens_cache": text.n_cached if running else 0,
        "params": text.options.settings(whole=False),
        "next_token": [
            {
                "has_next_token": running,
                "has_new_line": text.has_new_line,
                "n_remain": max(0, limit - text.n_generated) if running and limit >= 0 else -1,
                "n_decoded": text.n_generated if running else 0,
            }
        ],
    }
    return found


async def change_slot(request: Request, served: ServedModel) -> Response:
    """``POST /slots/{id}?action=save|restore|erase``; waits for a text that runs in the slot."""
    folder = served.options.slot_save_path
    if folder is None:
        raise ApiError.not_supported(
            "This server does not support slots action. Start it with `--slot-save-path`"
        )
    number = request.path_params["id_slot"]
    if not (number.isdecimal() and len(number) < 10 and int(number) < len(served.runner.slots)):
        raise ApiError.invalid("Invalid slot ID")
    id, action = int(number), request.query_params.get("action")
    if action == "erase":
        n, _ = await _when_idle(request, served, id, _erase)
        return JsonResponse({"id_slot": id, "n_erased": n})
    actions = {
        "save": (_save, "n_saved", "n_written"),
        "restore": (_restore, "n_restored", "n_read"),
    }
    if action not in actions:
        raise ApiError.invalid("Invalid action")
    name = Fields(await read_json(request, served.options)).get("filename", "", str)
    path = _file(folder, name)
    change, n_name, size_name = actions[action]
    n, ms = await _when_idle(request, served, id, change, path)
    done = {"id_slot": id, "filename": name, n_name: n, size_name: path.stat().st_size}
    return JsonResponse({**done, "timings": {f"{action}_ms": ms}})


def _file(folder: Path, name: str) -> Path:
    """A file of the folder. Raises: ApiError, for a name that might lead elsewhere."""
    path = folder / name
    if not _NAME.fullmatch(name) or ".." in name or path.parent != folder or path.is_symlink():
        raise ApiError.invalid("Invalid filename")
    return path


async def _when_idle(
    request: Request, served: ServedModel, id: int, change: Callable[..., int], *args: Any
) -> tuple[int, float]:
    """Call ``change(engine, sequence, *args)`` as soon as no text runs in a slot.

    Nothing changes if the client goes away before that. Returns the result of ``change``, and the
    milliseconds that it took.
    """
    sequence = next(s for s in served.engine.sequences if s.seq_id == id)

    def job(engine: Engine) -> tuple[int, float]:
        begin = time.perf_counter()
        n = change(engine, sequence, *args)
        return n, 1e3 * (time.perf_counter() - begin)

    def is_idle(engine: Engine) -> bool:
        return sequence.owner is None and not sequence.leased

    return await while_connected(request, served.runner.call(job, is_idle))


def _erase(engine: Engine, sequence: CacheSequence) -> int:
    n = sequence.n_tokens
    sequence.clear()
    return n


def _save(engine: Engine, sequence: CacheSequence, path: Path) -> int:
    tokens, id = sequence.tokens(), sequence.seq_id
    if sequence.n_unshifted < sequence.n_tokens or (tokens == UNKNOWN).any():
        raise ApiError.invalid(f"slot {id} cannot be saved: its context was shifted")
    key = key_of(sequence.adapters)
    try:
        save_state(engine.context, path, tokens.tolist(), seq=id, adapters=key)
    except OSError as error:
        raise ApiError(500, f"Unable to save slot: {error.strerror}") from None
    return len(tokens)


def _load(engine: Engine, path: Path, id: int) -> list[int]:
    """``load_state``, for whose cells idle slots lose their tokens if cells are shared."""
    scheduler, shared = engine.scheduler, engine.context.kv.unified
    while True:
        try:
            return load_state(engine.context, path, seq=id)
        except StateFull:
            idle = [other for other in scheduler.free() if other.seq_id != id]
            if not (shared and drop_oldest(idle, scheduler.prefixes)):
                raise


def _restore(engine: Engine, sequence: CacheSequence, path: Path) -> int:
    id = sequence.seq_id
    try:
        if not os.path.exists(path):
            raise ApiError.invalid(f"Unable to restore slot: there is no file {path.name}")
        tokens = _load(engine, path, id)
    except StateError as error:
        message = without_folders(str(error), path.parent)
        raise ApiError.invalid(f"Unable to restore slot: {message}") from None
    except OSError as error:
        raise ApiError.invalid(f"Unable to restore slot: {error.strerror}") from None
    if len(tokens) != engine.context.kv.seq_pos_max(id) + 1:
        sequence.adopt(())
        sequence.truncate(0)
        raise ApiError.invalid("Unable to restore slot: the file has no tokens")
    sequence.adopt(tokens)
    sequence.n_forgotten, sequence.adapters = 0, uses_of(engine.context.applied, ())
    return len(tokens)
