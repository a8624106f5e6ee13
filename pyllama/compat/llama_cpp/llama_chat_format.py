"""The module ``llama_cpp.llama_chat_format``: chat handlers and formatters."""

from __future__ import annotations

from typing import Any

from ...errors import NotSupported
from ...llama.chat_handlers import (
    ChatFormatter,
    ChatFormatterResponse,
    Jinja2ChatFormatter,
    LlamaChatCompletionHandler,
    LlamaChatCompletionHandlerNotFoundException,
    LlamaChatCompletionHandlerRegistry,
    chat_formatter_to_chat_completion_handler,
    get_chat_completion_handler,
    hf_autotokenizer_to_chat_completion_handler,
    hf_autotokenizer_to_chat_formatter,
    hf_tokenizer_config_to_chat_completion_handler,
    hf_tokenizer_config_to_chat_formatter,
    register_chat_completion_handler,
    register_chat_format,
)

__all__ = [
    "ChatFormatter",
    "ChatFormatterResponse",
    "Jinja2ChatFormatter",
    "LlamaChatCompletionHandler",
    "LlamaChatCompletionHandlerNotFoundException",
    "LlamaChatCompletionHandlerRegistry",
    "chat_formatter_to_chat_completion_handler",
    "format_mistral_instruct",
    "get_chat_completion_handler",
    "hf_autotokenizer_to_chat_completion_handler",
    "hf_autotokenizer_to_chat_formatter",
    "hf_tokenizer_config_to_chat_completion_handler",
    "hf_tokenizer_config_to_chat_formatter",
    "register_chat_completion_handler",
    "register_chat_format",
]


def format_mistral_instruct(messages: Any, **options: Any) -> ChatFormatterResponse:
    """Mistral's prompt: ``[INST] question [/INST]answer</s>``, without BOS."""
    text = ""
    for message in messages:
        content = message.get("content")
        if message["role"] == "user" and isinstance(content, str):
            text += f"[INST] {content}"
        elif message["role"] == "assistant" and content is not None:
            text += f" [/INST]{content}</s>"
    return ChatFormatterResponse(text + " [/INST]", stop="</s>")


def __getattr__(name: str) -> Any:
    if name.endswith(("ChatHandler", "VisionAlpha")) and not name.startswith("_"):

        def refuse(*args: object, **options: object) -> None:
            raise NotSupported(f"{name}: only text models are supported; no images, audio or video")

        refuse.from_pretrained = refuse  # type: ignore[attr-defined]
        return refuse
    raise AttributeError(f"module 'llama_cpp.llama_chat_format' has no attribute {name!r}")
