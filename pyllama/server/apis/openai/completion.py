"""``/completion(s)``, llama.cpp's own format, and ``/v1/completions``, OpenAI's."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from ...http.sse import ResponseWriter, data_line, read_json, respond
from ...request.errors import ApiError
from ...request.fields import Fields
from ...worker.choice import Choice, Piece
from ...worker.served import FINGERPRINT, ServedModel, random_id
from ...worker.stream import Stream


async def completion(request: Request, served: ServedModel) -> Response:
    """``POST /completion``: llama.cpp's format."""
    body = await read_json(request, served.options)

    def prepare() -> Stream:
        fields = Fields(body)
        if not fields.has("prompt"):
            raise ApiError.invalid('"prompt" is required')
        options = served.read(fields, is_own=True)
        return served.submit(served.prompts(body["prompt"]), options)

    return await respond(request, await served.prepare(prepare), CompletionWriter(served))


async def openai_completion(request: Request, served: ServedModel) -> Response:
    """``POST /v1/completions``: OpenAI's format.

    Source: llama.cpp, ``oaicompat_completion_params_parse``.
    """
    body = await read_json(request, served.options)

    def prepare() -> Stream:
        fields = Fields(body)
        if not fields.has("prompt"):
            raise ApiError.invalid('"prompt" is required')
        if fields.flag("echo"):
            raise ApiError.invalid("Only no echo is supported")
        for name in ("best_of", "suffix"):
            if fields.has(name):
                raise ApiError.invalid(f"Unsupported param: {name}")
        return served.submit(served.prompts(body["prompt"]), served.read(fields))

    return await respond(request, await served.prepare(prepare), OpenAIWriter(served))


class CompletionWriter(ResponseWriter):
    """llama.cpp's format.

    Source: llama.cpp, ``server_task_result_cmpl_final::to_json_non_oaicompat``.
    """

    def __init__(self, served: ServedModel) -> None:
        self._served = served

    def piece(self, text: Choice, piece: Piece) -> str:
        found = ""
        if piece.text or piece.probs or piece.progress or (piece.tokens and not piece.is_last):
            found = data_line(self._partial(text, piece))
        return found + data_line(final_json(self._served, text)) if piece.is_last else found

    def _partial(self, text: Choice, piece: Piece) -> dict[str, Any]:
        found: dict[str, Any] = {
            "index": text.index,
            "content": piece.text,
            "tokens": piece.tokens,
            "stop": False,
            "id_slot": text.slot,
            "tokens_predicted": piece.n_generated,
            "tokens_evaluated": text.n_prompt,
        }
        found |= piece.reports
        if piece.probs:
            found["completion_probabilities"] = text.probabilities(piece.probs)
        return found

    def whole(self, texts: Sequence[Choice]) -> Any:
        found = (final_json(self._served, text) for text in texts)
        return next(found) if len(texts) == 1 else found


def final_json(served: ServedModel, text: Choice) -> dict[str, Any]:
    """The last object of a text in llama.cpp's format, also of ``__verbose``."""
    options = text.options
    found: dict[str, Any] = {
        "index": text.index,
        "content": text.content,
        "tokens": [] if options.stream else text.tokens if options.return_tokens else [],
        "id_slot": text.slot,
        "stop": True,
        "model": served.name,
        "tokens_predicted": text.n_generated,
        "tokens_evaluated": text.n_prompt,
        "generation_settings": options.settings(),
        "prompt": served.detokenize(text.prompt),
        "has_new_line": text.has_new_line,
        "truncated": text.is_truncated,
        "stop_type": text.stop_type,
        "stopping_word": text.stopping_word,
        "tokens_cached": text.n_held if text.n_generated else 0,
        "timings": text.timings(),
    }
    if text.probs:
        found["completion_probabilities"] = text.probabilities(text.probs)
    return _nested(found, options.response_fields) if options.response_fields else found


def _nested(found: dict[str, Any], paths: Sequence[str]) -> dict[str, Any]:
    """The fields that a request asks for; a slash descends into an object."""
    chosen: dict[str, Any] = {}
    for path in paths:
        value: Any = found
        for name in path.split("/"):
            if not isinstance(value, dict) or name not in value:
                break
            value = value[name]
        else:
            chosen[path] = value
    return chosen


def usage_json(texts: Sequence[Choice]) -> dict[str, Any]:
    """The object ``usage`` of OpenAI."""
    n_prompt = sum({id(text.prompt): text.n_prompt for text in texts}.values())
    n_generated = sum(text.n_generated for text in texts)
    n_cached = sum({id(text.prompt): text.n_cached for text in reversed(texts)}.values())
    return {
        "completion_tokens": n_generated,
        "prompt_tokens": n_prompt,
        "total_tokens": n_generated + n_prompt,
        "prompt_tokens_details": {"cached_tokens": n_cached},
    }


class OpenAIWriter(ResponseWriter):
    """OpenAI's format of completions.

    Source: llama.cpp, ``server_task_result_cmpl_final::to_json_oaicompat``.
    """

    end = "data: [DONE]\n\n"

    def __init__(self, served: ServedModel) -> None:
        self._served, self.id, self._created = served, random_id("chatcmpl-"), int(time.time())

    def _head(self, choices: list[Any], kind: str = "text_completion") -> dict[str, Any]:
        return {
            "choices": choices,
            "created": self._created,
            "model": self._served.name,
            "system_fingerprint": FINGERPRINT,
            "object": kind,
            "id": self.id,
        }

    def _counted(self, body: dict[str, Any], texts: Sequence[Choice]) -> dict[str, Any]:
        """Add usage and timings to a body, and the first text in llama.cpp's format if verbose."""
        body |= {"usage": usage_json(texts), "timings": texts[0].timings()}
        if texts[0].options.verbose:
            body["__verbose"] = final_json(self._served, texts[0])
        return body

    def piece(self, text: Choice, piece: Piece) -> str:
        found = ""
        if piece.text or piece.probs or piece.progress or (piece.tokens and not piece.is_last):
            chunk = self._head([_choice(text, piece.text, piece.probs, None)])
            found = data_line(chunk | piece.reports)
        if piece.is_last:
            chunk = self._head([_choice(text, "", (), finish_reason(text))])
            found += data_line(self._counted(chunk, [text]))
        return found

    def whole(self, texts: Sequence[Choice]) -> Any:
        choices = [_choice(text, text.content, text.probs, finish_reason(text)) for text in texts]
        return self._counted(self._head(choices), texts)


def _choice(text: Choice, content: str, probs: Sequence[Any], reason: str | None) -> dict[str, Any]:
    logprobs = {"content": text.probabilities(list(probs))} if probs else None
    return {"text": content, "index": text.index, "logprobs": logprobs, "finish_reason": reason}


def finish_reason(text: Choice) -> str:
    """OpenAI's reason of the end of a text without tool calls."""
    return "stop" if text.stop_type in ("eos", "word") else "length"
