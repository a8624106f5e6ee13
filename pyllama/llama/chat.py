"""Converts completions to chat completions in OpenAI's format, with reasoning and tool calls.

    results = ChatResults(turn)
    results.completion(llama("..."))               # {"object": "chat.completion", ...}
    for chunk in results.chunks(llama("...", stream=True)): ...

Source: llama-cpp-python, ``_convert_completion_to_chat``; ``reasoning_content`` is llama.cpp's.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..chat.reader import Delta, Reader
from ..chat.turn import Turn

if TYPE_CHECKING:
    from .types import Completion, CompletionChoice, CompletionChunk, CompletionLogprobs


@dataclass
class ChatResults:
    """Makes the results of one turn.

    Args:
        turn: tells how the reply is read.
        old_calls: report the first call as ``function_call`` too.
    """

    turn: Turn
    old_calls: bool = False

    def completion(self, completion: Completion) -> dict[str, Any]:
        """A completion as a ``chat.completion``."""

        def reply(choice: CompletionChoice) -> tuple[dict[str, Any], str | None]:
            reader = self.turn.reader()
            reader.feed(choice["text"])
            reader.close()
            message = reader.message.openai()
            if self.old_calls and reader.message.calls:
                message["function_call"] = message["tool_calls"][0]["function"]
            return message, self._reason(choice["finish_reason"], reader)

        return _whole(completion, reply)

    def chunks(self, chunks: Iterator[CompletionChunk]) -> Generator[dict[str, Any]]:
        """Completion chunks as chat chunks: the role, then what text adds, then the reason.

        Text that is held back, since a tool call may begin with it, comes with a later chunk.
        """
        readers: dict[int, Reader] = {}
        for chunk in chunks:
            for choice in chunk["choices"]:
                i, reason = choice["index"], choice["finish_reason"]
                if i not in readers:
                    readers[i] = self.turn.reader()
                    yield _chunk(chunk, i, {"role": "assistant"}, None, None)
                reader = readers[i]
                delta = self._delta(reader.feed(choice["text"]))
                logprobs = _logprobs(choice["logprobs"])
                if reason is None:
                    if delta or logprobs is not None:
                        yield _chunk(chunk, i, delta, logprobs, None)
                    continue
                rest = self._delta(reader.close())
                if rest:
                    yield _chunk(chunk, i, rest, None, None)
                yield _chunk(chunk, i, {}, logprobs, self._reason(reason, reader))

    def _delta(self, delta: Delta) -> dict[str, Any]:
        given = delta.openai()
        first = [call for call in delta.calls if call.index == 0]
        if self.old_calls and first:
            name = {"name": first[0].name} if first[0].name else {}
            given["function_call"] = {**name, "arguments": first[0].arguments}
        return given

    def _reason(self, reason: str | None, reader: Reader) -> str | None:
        if reason != "stop" or not reader.message.calls:
            return reason
        return "function_call" if self.old_calls else "tool_calls"


def _whole(
    completion: Completion, reply: Callable[[CompletionChoice], tuple[dict[str, Any], str | None]]
) -> dict[str, Any]:
    """A ``chat.completion``; ``reply`` makes the message and the reason of a choice."""
    choices = []
    for choice in completion["choices"]:
        message, reason = reply(choice)
        own = {"index": choice["index"], "message": message}
        choices.append({**own, "logprobs": _logprobs(choice["logprobs"]), "finish_reason": reason})
    head = _head(completion, "chat.completion")
    return {**head, "choices": choices, "usage": completion["usage"]}


def _chunk(
    chunk: CompletionChunk, index: int, delta: dict[str, Any], logprobs: Any, reason: str | None
) -> dict[str, Any]:
    choice = {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": reason}
    return {**_head(chunk, "chat.completion.chunk"), "choices": [choice]}


def _head(completion: CompletionChunk, kind: str) -> dict[str, Any]:
    return {
        "id": "chat" + completion["id"],
        "object": kind,
        "created": completion["created"],
        "model": completion["model"],
    }


def _logprobs(logprobs: CompletionLogprobs | None) -> dict[str, Any] | None:
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


def plain_completion(completion: Completion, tool: str | None = None) -> dict[str, Any]:
    """A completion as a ``chat.completion`` whose content is the text as it is.

    Args:
        tool: name of a function, of which the text is the arguments.
    """

    def reply(choice: CompletionChoice) -> tuple[dict[str, Any], str | None]:
        message: dict[str, Any] = {"role": "assistant", "content": choice["text"]}
        reason: str | None = choice["finish_reason"]
        if tool is not None:
            function = {"name": tool, "arguments": choice["text"]}
            call = {"id": _call_id(tool, completion), "type": "function", "function": function}
            message |= {"content": None, "function_call": function, "tool_calls": [call]}
            reason = "tool_calls" if reason == "stop" else reason
        return message, reason

    return _whole(completion, reply)


def plain_chunks(
    chunks: Iterator[CompletionChunk], tool: str | None = None
) -> Generator[dict[str, Any]]:
    """Completion chunks as chat chunks: the role, then each text, then the reason."""
    begun = set[int]()
    for chunk in chunks:
        for choice in chunk["choices"]:
            i, text = choice["index"], choice["text"]
            reason: str | None = choice["finish_reason"]
            delta: dict[str, Any] = {} if reason is not None else {"content": text}
            if tool is not None and reason is None:
                function = {"name": None if i in begun else tool, "arguments": text}
                call = {"index": 0, "id": _call_id(tool, chunk), "type": "function"}
                delta = {"function_call": function, "tool_calls": [{**call, "function": function}]}
            if i not in begun:
                begun.add(i)
                yield _chunk(chunk, i, {"role": "assistant"}, None, None)
            if tool is not None and reason == "stop":
                reason = "tool_calls"
            yield _chunk(chunk, i, delta, _logprobs(choice["logprobs"]), reason)


def _call_id(tool: str, chunk: CompletionChunk) -> str:
    return f"call__0_{tool}_{chunk['id']}"
