"""Images, sounds and videos in messages: text models take none.

    raise refused({"type": "image_url", "image_url": {"url": "data:image/png;base64,..."}})

llama-server reports an image that a text model cannot take as a 500, and its tests ask for that. So
does this one if the image is complete; what is no image is the client's mistake, and a 400.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Mapping
from typing import Any

from .errors import ApiError

KINDS = {"image_url": "image", "input_audio": "audio", "input_video": "video"}
"""What the parts of a message that are no text have, by their type."""

_DATA_URL = re.compile(r"data:image/[a-z.+-]{1,20};base64,([A-Za-z0-9+/]{16})")
_BEGINNINGS = (b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff", b"GIF87a", b"GIF89a", b"RIFF", b"BM")


def refused(part: Mapping[str, Any]) -> ApiError:
    """The error for a part of a message, whose type is one of `KINDS`."""
    kind = KINDS[part["type"]]
    status = 500 if kind == "image" and _is_image(part.get("image_url")) else 400
    return ApiError(status, f"{kind} input is not supported: only text models are")


def _is_image(given: Any) -> bool:
    """Whether this is a data URL whose bytes begin as those of an image."""
    url = given.get("url") if isinstance(given, Mapping) else given
    found = _DATA_URL.match(url) if isinstance(url, str) else None
    if found is None:
        return False
    try:
        return base64.b64decode(found[1]).startswith(_BEGINNINGS)
    except binascii.Error:
        return False
