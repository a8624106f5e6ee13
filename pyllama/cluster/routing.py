"""What in a request chooses its replica: the model's name, and the beginning of the prompt.

    target = read_target(body, headers, models, 512)  # Target(model="x.gguf", key="9f0c...")

Requests with equal keys go to the same replica, whose cache holds the beginning of the prompt.
The key is a hash, so that prompts do not appear in Ray's metadata. Pure functions.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ..inputs.bounded_json import parse_json

MODEL_HEADER = "serve_multiplexed_model_id"
"""Ray Serve's header for the name of the model."""
_MAX_VALUES = 1 << 18  # as of the server
_FIELDS = ("system", "instructions", "messages", "prompt", "input", "input_prefix", "query")
# in the order in which templates write them; instructions and input are those of /v1/responses
_TEXTS = ("role", "content", "text", "prompt_string")


@dataclass(frozen=True)
class Target:
    """Where a request goes.

    Attributes:
        model: name of the model; None if the request names one that does not exist.
        key: of the prompt's beginning; empty without a prompt.
        asked: the name that the request has.
    """

    model: str | None
    key: str
    asked: str = ""


def read_target(
    body: bytes, headers: Mapping[str, str], models: Collection[str], prefix_chars: int
) -> Target:
    """The target of a request.

    A server of one model serves every name, as llama.cpp's does. A body that is not JSON has no
    key: the replica answers with the error.

    Args:
        headers: of the request, with names in lower case.
        models: names of the models, the default first.
        prefix_chars: characters of the prompt that the key depends on.
    """
    fields = _json_object(body)
    asked = headers.get(MODEL_HEADER, "")
    if not asked and isinstance(fields.get("model"), str):
        asked = fields["model"]
    default = next(iter(models))
    known = asked if asked in models else None
    model = default if not asked or len(models) == 1 else known
    return Target(model, prefix_key(fields, prefix_chars), asked)


def prefix_key(fields: Mapping[str, Any], prefix_chars: int) -> str:
    """A hash of the first characters of the prompt of a request's body; empty without a prompt."""
    begin = ""
    for text in (text for name in _FIELDS for text in _texts(fields.get(name))):
        begin += text[: prefix_chars - len(begin)] + "\0"
        if len(begin) >= prefix_chars:
            break
    if not begin.strip("\0"):
        return ""
    data = begin[:prefix_chars].encode("utf-8", "replace")
    return hashlib.blake2b(data, digest_size=12).hexdigest()


def _texts(value: Any) -> Iterator[str]:
    """The texts of a prompt or of messages, in their order; token ids as decimal numbers."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, bool):
        return
    elif isinstance(value, int):
        yield str(value)
    elif isinstance(value, list):
        for item in value:
            yield from _texts(item)
    elif isinstance(value, dict):
        for name in _TEXTS:
            yield from _texts(value.get(name))


def _json_object(body: bytes) -> dict[str, Any]:
    if not body.lstrip().startswith(b"{"):
        return {}
    try:
        found = parse_json(body, _MAX_VALUES)
    except (ValueError, MemoryError):
        return {}
    return found if isinstance(found, dict) else {}
