"""``/api/generate``, ``/api/chat``, ``/api/tags``, ``/api/show``: Ollama's format, for editors.

Streams are lines of JSON. The model is the server's own, whatever name a request gives.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from ....engine import TokenLogprob
from ....parameters.generation import names_in
from ...http.sse import JsonResponse, ResponseWriter, dump, read_json, respond
from ...request.errors import ApiError
from ...request.fields import Body, Fields
from ...request.refused_media import refused
from ...worker.choice import Choice, Piece
from ...worker.description import details
from ...worker.lifecycle import Lifecycle
from ...worker.served import ServedModel
from ...worker.stream import Stream
from ..llama_cpp.infill import check_infill, infill_prompt, missing_tokens
from ..openai.chat import Replies, prepare_chat

VERSION = "0.12.0"  # of Ollama's API that is spoken here
_OPTIONS = names_in("ollama")
_NAMES = {"reasoning_effort": "think", "chat_template_kwargs.enable_thinking": "think"}
_MAX_TOP = 20  # of top_logprobs


async def generate(request: Request, served: ServedModel) -> Response:
    """``POST /api/generate``: a text in the chat format, as it is with ``raw``, or one that fits
    between the prompt and a ``suffix``."""
    body = await read_json(request, served.options)
    fields = Fields(body)
    prompt, suffix = fields.get("prompt", "", str), fields.get("suffix", "", str)
    if not (prompt or suffix):  # Ollama loads the model
        return JsonResponse({**_head(served, True), "response": "", "done_reason": "load"})
    _check(fields)

    def prepare() -> Stream:
        converted = _converted(served, fields)
        if suffix:
            check_infill(served)
            options = served.read(Fields(Body(converted, of=body)))
            given = Fields({"input_prefix": prompt, "input_suffix": suffix})
            return served.submit([infill_prompt(served, given, options.n_predict)], options)
        if fields.flag("raw"):
            if fields.has("system"):
                raise ApiError.invalid("raw mode does not support system")
            options = served.read(Fields(Body(converted, of=body)))
            return served.submit(served.prompts(prompt), options)
        messages = [{"role": "user", "content": prompt}]
        system = fields.get("system", "", str)
        if system:
            messages.insert(0, {"role": "system", "content": system})
        converted |= _thinking(fields) | {"messages": messages}
        return served.reply(prepare_chat(served, Body(converted, of=body, names=_NAMES)))

    stream = await served.prepare(prepare)
    turn = stream.options.turn
    replies = None if turn is None else Replies(turn)
    return await respond(request, stream, OllamaWriter(served, replies, "response", fields))


async def chat(request: Request, served: ServedModel) -> Response:
    """``POST /api/chat``."""
    body = await read_json(request, served.options)
    fields = Fields(body)
    messages = fields.get("messages", [], list)
    if not messages:  # Ollama loads the model
        message = {"role": "assistant", "content": ""}
        return JsonResponse({**_head(served, True), "message": message, "done_reason": "load"})

    def prepare() -> Stream:
        converted = _converted(served, fields) | _thinking(fields)
        converted["messages"] = [_message(m) for m in messages]
        if fields.has("tools"):
            converted["tools"] = body["tools"]
        return served.reply(prepare_chat(served, Body(converted, of=body, names=_NAMES)))

    stream = await served.prepare(prepare)
    replies = Replies(stream.options.conversation)
    return await respond(request, stream, OllamaWriter(served, replies, "message", fields))


async def tags(request: Request, served: ServedModel) -> Response:
    """``GET /api/tags``: the one model."""
    return JsonResponse({"models": [_model(served)]})


async def running(request: Request, served: ServedModel) -> Response:
    """``GET /api/ps``: the one model, loaded."""
    found = loaded_model(_model(served))
    if len(served.model.devices) == 1:  # the CPU
        found["size_vram"] = 0
    return JsonResponse({"models": [found]})


async def version(request: Request, life: Lifecycle) -> Response:
    """``GET /api/version``."""
    _ = life.description
    return JsonResponse({"version": VERSION})


async def show(request: Request, served: ServedModel) -> Response:
    """``POST /api/show``: the model's metadata, without its long lists."""
    await read_json(request, served.options)
    metadata = served.model.metadata
    info = {k: v for k, v in metadata.items() if isinstance(v, (str, int, float, bool))}
    info = {k: v for k, v in info.items() if not k.startswith("tokenizer.chat_template")}
    template = served.options.chat_template or metadata.get("tokenizer.chat_template", "")
    can = await served.prepare(lambda: served.chat_format().capabilities)
    capabilities = ["completion", "tools"] if can.tools else ["completion"]
    if not missing_tokens(served):
        capabilities.append("insert")
    return JsonResponse(
        {
            "modelfile": "",
            "parameters": "",
            "template": template,
            "details": details(served.model.desc),
            "model_info": {**info, "general.parameter_count": served.model.n_params},
            "capabilities": capabilities,
            "modified_at": _now(),
        }
    )


def _check(fields: Fields) -> None:
    """Raise ApiError for what would be another text than asked."""
    if fields.get("images", [], list):
        raise _image(fields.body["images"][0])
    if fields.get("template", "", str):
        raise ApiError.invalid("Field 'template': not supported: the server's is used")
    if fields.get("context", [], list):
        raise ApiError.invalid("Field 'context': not supported: send the messages to /api/chat")


def _image(data: Any) -> ApiError:
    """The error for an image, which Ollama's API has in base64."""
    return refused({"type": "image_url", "image_url": {"url": f"data:image/any;base64,{data}"}})


def _converted(served: ServedModel, fields: Fields) -> dict[str, Any]:
    """The fields that both APIs have, with llama.cpp's names."""
    options = fields.inner("options")
    converted = {"stream": fields.flag("stream", True), **to_llama_cpp(fields)}
    if options.whole("num_ctx", served.n_ctx) != served.n_ctx:
        options.leave_out("num_ctx")
    if isinstance(converted.get("n_predict"), int):
        converted["n_predict"] = max(-1, converted["n_predict"])  # -2 fills the context
    if fields.flag("logprobs"):
        n_top = fields.whole("top_logprobs", 0, low=0, high=_MAX_TOP)
        converted["n_probs"] = max(1, n_top)
    format = fields.body.get("format")
    if format == "json":
        converted["json_schema"] = {"type": "object"}
    elif isinstance(format, Mapping):
        converted["json_schema"] = format
    elif format not in (None, ""):
        raise ApiError.invalid("Field 'format': must be \"json\" or a JSON schema")
    return converted


def to_llama_cpp(fields: Fields) -> dict[str, Any]:
    """The values of ``options`` by llama.cpp's names."""
    options = fields.inner("options")
    return {new: options.body[old] for old, new in _OPTIONS.items() if options.has(old)}


def _thinking(fields: Fields) -> dict[str, Any]:
    """The fields of a chat for ``think``."""
    think = fields.body.get("think")
    if isinstance(think, bool):
        return {"chat_template_kwargs": {"enable_thinking": think}}
    if isinstance(think, str):
        return {"reasoning_effort": think}
    if think is not None:
        raise ApiError.invalid("Field 'think': must be true, false or a level such as \"high\"")
    return {}


def _message(message: Any) -> Any:
    """A message with the arguments of its calls as JSON text, and its reasoning renamed."""
    if not isinstance(message, Mapping):
        return message
    if images := Fields(message, "message").get("images", [], list):
        raise _image(images[0])
    converted = {**message, "content": message.get("content", "")}
    if isinstance(thinking := converted.pop("thinking", None), str):
        converted["reasoning_content"] = thinking
    if isinstance(name := converted.pop("tool_name", None), str):
        converted["name"] = name
    calls = message.get("tool_calls")
    if isinstance(calls, list):
        converted["tool_calls"] = [_call(i, call) for i, call in enumerate(calls)]
    return converted


def _call(i: int, call: Any) -> dict[str, Any]:
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping):
        raise ApiError.invalid("a tool call must have a function")
    arguments = json.dumps(function.get("arguments", {}), ensure_ascii=False)
    named = {"name": function.get("name", ""), "arguments": arguments}
    return {"id": f"call{i:05d}", "type": "function", "function": named}


class OllamaWriter(ResponseWriter):
    """Ollama's format.

    Args:
        replies: reads the texts of a chat; None for plain texts.
        field: ``response`` or ``message``.
        fields: of the request.
    """

    media_type = "application/x-ndjson"

    def __init__(
        self, served: ServedModel, replies: Replies | None, field: str, fields: Fields
    ) -> None:
        self._served, self._replies, self._field = served, replies, field
        self._n_top = fields.whole("top_logprobs", 0) if fields.flag("logprobs") else 0

    def piece(self, text: Choice, piece: Piece) -> str:
        content, thinking = piece.text, ""
        if self._replies is not None:
            delta = self._replies.delta(text, piece)
            content, thinking = delta.content, delta.reasoning
        calls = self._calls(text) if piece.is_last else []
        lines = []
        if content or thinking or calls or piece.probs:
            line = {**_head(self._served, False), **self._value(content, thinking, calls)}
            lines.append(line | self._logprobs(text, piece.probs))
        if piece.is_last:
            lines.append(self._final(text, "", "", []))
        return "".join(f"{dump(line)}\n" for line in lines)

    def whole(self, texts: Sequence[Choice]) -> Any:
        text = texts[0]
        probs = self._logprobs(text, text.probs)
        if self._replies is None:
            return self._final(text, text.content, "", []) | probs
        message = self._replies.message(text)
        return self._final(text, message.content, message.reasoning, self._calls(text)) | probs

    def _logprobs(self, text: Choice, probs: Sequence[TokenLogprob]) -> dict[str, Any]:
        """The probabilities of tokens, with those of the likeliest ones if they are wanted."""
        if not probs:
            return {}
        found = text.probabilities([*probs])
        for one in found:
            for token in (one, *one["top_logprobs"]):
                del token["id"]
            if not self._n_top:
                del one["top_logprobs"]
        return {"logprobs": found}

    def _calls(self, text: Choice) -> list[Any]:
        calls = [] if self._replies is None else self._replies.message(text).calls
        return [{"function": {"name": call.name, "arguments": call.parsed()}} for call in calls]

    def _value(self, content: str, thinking: str, calls: list[Any]) -> dict[str, Any]:
        if self._field == "response":
            return {"response": content, **({"thinking": thinking} if thinking else {})}
        message: dict[str, Any] = {"role": "assistant", "content": content}
        if thinking:
            message["thinking"] = thinking
        if calls:
            message["tool_calls"] = calls
        return {"message": message}

    def _final(self, text: Choice, content: str, thinking: str, calls: list[Any]) -> dict[str, Any]:
        prompt_ns, predict_ns = int(1e6 * text.prompt_ms), int(1e6 * text.predict_ms)
        return {
            **_head(self._served, True),
            **self._value(content, thinking, calls),
            "done_reason": "stop" if text.stop_type in ("eos", "word") else "length",
            "total_duration": prompt_ns + predict_ns,
            "load_duration": 0,
            "prompt_eval_count": text.n_prompt,
            "prompt_eval_duration": prompt_ns,
            "eval_count": text.n_generated,
            "eval_duration": predict_ns,
        }


def _head(served: ServedModel, done: bool) -> dict[str, Any]:
    return {"model": served.name, "created_at": _now(), "done": done}


def _model(served: ServedModel) -> dict[str, Any]:
    model = served.model
    return model_json(served.name, model.size_bytes, model.fingerprint, model.desc)


def model_json(name: str, size_bytes: int, digest: str, desc: str) -> dict[str, Any]:
    """A model in the lists; ``desc`` is its family, size and format, such as ``llama 1B Q4_0``."""
    return {
        "name": name,
        "model": name,
        "modified_at": _now(),
        "size": size_bytes,
        "digest": digest,
        "details": details(desc),
    }


def loaded_model(model: dict[str, Any]) -> dict[str, Any]:
    """A model in the list of those that are loaded."""
    return {**model, "expires_at": "2318-01-01T00:00:00Z"}


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
