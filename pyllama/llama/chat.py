"""Converts completions to chat completions in OpenAI's format.

    chat_completion(llama("..."))                  # {"object": "chat.completion", ...}
    for chunk in chat_chunks(llama("...", stream=True)): ...

Source: llama-cpp-python, ``_convert_completion_to_chat``.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping
from typing import Any

from ..errors import NotSupported
from .completion import Completion, CompletionChunk, Logprobs


def check_free_text(response_format: Any, *choices: Any) -> None:
    """Raise NotSupported for requests that need a grammar."""
    kind = (response_format or {}).get("type", "text")
    if kind != "text":
        raise NotSupported(
            f"create_chat_completion: response_format of type {kind!r} is not supported yet; "
            "ask for the format in the messages and leave it out"
        )
    for choice in choices:
        if isinstance(choice, Mapping) or choice == "required":
            raise NotSupported(
                f"create_chat_completion: a required tool call ({choice!r}) is not supported yet; "
                "leave the choice to the model"
            )


def chat_completion(completion: Completion) -> dict[str, Any]:
    """A completion as a ``chat.completion``."""
    choice = completion["choices"][0]
    return {
        **_head(completion, "chat.completion"),
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": choice["text"]},
                "logprobs": _logprobs(choice["logprobs"]),
                "finish_reason": choice["finish_reason"],
            }
        ],
        "usage": completion["usage"],
    }


def chat_chunks(chunks: Iterator[CompletionChunk]) -> Generator[dict[str, Any]]:
    """Completion chunks as chat chunks: the role, then text, then the finish reason."""
    for i, chunk in enumerate(chunks):
        if i == 0:
            yield _chunk(chunk, {"role": "assistant"}, None, None)
        choice = chunk["choices"][0]
        reason = choice["finish_reason"]
        delta = {"content": choice["text"]} if reason is None else {}
        yield _chunk(chunk, delta, _logprobs(choice["logprobs"]), reason)


def _chunk(
    chunk: CompletionChunk, delta: dict[str, str], logprobs: Any, reason: str | None
) -> dict[str, Any]:
    choice = {"index": 0, "delta": delta, "logprobs": logprobs, "finish_reason": reason}
    return {**_head(chunk, "chat.completion.chunk"), "choices": [choice]}


def _head(completion: CompletionChunk, kind: str) -> dict[str, Any]:
    return {
        "id": "chat" + completion["id"],
        "object": kind,
        "created": completion["created"],
        "model": completion["model"],
    }


def _logprobs(logprobs: Logprobs | None) -> dict[str, Any] | None:
    if logprobs is None:
        return None
    rows = zip(
        logprobs["tokens"], logprobs["token_logprobs"], logprobs["top_logprobs"], strict=True
    )
    content = [
        {
            "token": token,
            "bytes": None,
            "logprob": logprob,
            "top_logprobs": [
                {"token": text, "bytes": None, "logprob": value}
                for text, value in (top or {}).items()
            ],
        }
        for token, logprob, top in rows
    ]
    return {"content": content, "refusal": None}
