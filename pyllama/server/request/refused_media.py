"""Images, sounds and videos in messages, which are refused: only text models run here.

    raise refused({"type": "image_url", "image_url": {"url": "data:image/png;base64,..."}})

llama-server answers an image with 500 if its model takes only text, and its tests ask for that
status. Here it is the status of data that begins as an image does; anything else gets 400.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping
from typing import Any

from .errors import ApiError

KINDS = {"image_url": "image", "input_audio": "audio", "input_video": "video"}
"""Name of the medium by the type of a message's part."""

_DATA_URL = re.compile(r"data:image/[a-z.+-]{1,20};base64,([A-Za-z0-9+/]{16})")
_BEGINNINGS = (b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff", b"GIF87a", b"GIF89a", b"RIFF", b"BM")


def refused(part: Mapping[str, Any]) -> ApiError:
    """The error for a part of a message whose type is one of `KINDS`: status 400 or 500.

    Source: llama.cpp, ``oaicompat_chat_params_parse``.
    """
    kind = KINDS[part["type"]]
    status = 500 if kind == "image" and _is_image(part.get("image_url")) else 400
    return ApiError(status, f"{kind} input is not supported: only text models are")


def _is_image(given: Any) -> bool:
    """Whether ``image_url`` is a data URL whose first 12 bytes are those of an image."""
    url = given.get("url") if isinstance(given, Mapping) else given
    found = _DATA_URL.match(url) if isinstance(url, str) else None
    return found is not None and base64.b64decode(found[1]).startswith(_BEGINNINGS)
