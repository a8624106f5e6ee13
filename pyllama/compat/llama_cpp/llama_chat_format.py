"""The module ``llama_cpp.llama_chat_format``: chat handlers and formatters.

    format_chatml(messages).prompt

Formatters and handlers of the named formats are made when they are read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ...chat.llama_cpp_python_formats import FORMATS
from ...errors import NotSupported
from ...llama import chat_handlers
from ...llama.chat_handlers import *  # noqa: F403
from ...llama.chat_handlers import ChatFormatter, ChatFormatterResponse, get_chat_completion_handler

__all__ = [
    name
    for name, value in vars(chat_handlers).items()
    if getattr(value, "__module__", "") == chat_handlers.__name__ and not name.startswith("_")
]

# Functions whose names are not "format_" and the format's name.
_NAMED = {
    "format": "vicuna",
    "format_llama2": "llama-2",
    "format_llama3": "llama-3",
    "format_baichuan2": "baichuan-2",
}
_HANDLERS = {
    "chatml_function_calling": "chatml-function-calling",
    "functionary_chat_handler": "functionary",
    "functionary_v1_v2_chat_handler": "functionary-v2",
}
_FORMATTERS = {f"format_{name.replace('-', '_')}": name for name in FORMATS} | _NAMED


def _formatter(name: str) -> ChatFormatter:
    """The function that writes a format's prompt."""
    text_format = FORMATS[name]

    def formatter(messages: Sequence[Mapping[str, Any]], **options: Any) -> ChatFormatterResponse:
        return ChatFormatterResponse(
            text_format.render(messages), "".join(text_format.stop) or None
        )

    return formatter


def __getattr__(name: str) -> Any:
    if name in _HANDLERS:
        return get_chat_completion_handler(_HANDLERS[name])
    if name in _FORMATTERS:
        return _formatter(_FORMATTERS[name])
    if name.endswith(("ChatHandler", "VisionAlpha")) and not name.startswith("_"):

        def refuse(*args: object, **options: object) -> None:
            raise NotSupported(f"{name}: only text models are supported; no images, audio or video")

        refuse.from_pretrained = refuse  # type: ignore[attr-defined]
        return refuse
    raise AttributeError(f"module 'llama_cpp.llama_chat_format' has no attribute {name!r}")
