"""``/v1/chat/completions``: OpenAI's format with tools, structured output and reasoning.

The other chat APIs convert their requests to this one: `prepare_chat` is their way to a prompt, and
`Replies` reads their texts.
"""

from __future__ import annotations

import json
from codecs import getincrementaldecoder
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from ....chat.formats import ChatFormat
from ....chat.reader import Delta, Message, Reader, ToolCall
from ....chat.turn import Turn, TurnOptions
from ....errors import SchemaError
from ....parameters import INT32_MAX
from ....tokenizer import Tokenizer
from ...http.sse import JsonResponse, data_line, read_json, respond
from ...request.errors import ApiError
from ...request.fields import Body, Fields
from ...request.refused_media import KINDS, refused
from ...request.request_options import CompletionOptions
from ...worker.choice import Choice, Piece
from ...worker.served import ServedModel
from .completion import OpenAIWriter, final_json, usage_json

_CHUNK = "chat.completion.chunk"


async def chat_completion(request: Request, served: ServedModel) -> Response:
    """``POST /v1/chat/completions``."""
    body = await read_json(request, served.options)
    stream = await served.prepare(lambda: served.reply(prepare_chat(served, body)))
    writer = ChatWriter(served, stream.options.conversation)
    stream.id = writer.id
    return await respond(request, stream, writer)


async def control(request: Request, served: ServedModel) -> Response:
    """``POST /v1/chat/completions/control``: ends the reasoning of a running reply.

    Source: llama.cpp, ``server_routes::post_control``.
    """
    fields = Fields(await read_json(request, served.options))
    id = fields.get("id", "", str)
    if not id:
        raise ApiError.invalid("missing completion id")
    if fields.get("action", "", str) != "reasoning_end":
        raise ApiError.invalid("unknown control action")
    stream = served.runner.stream(id)
    slots = [] if stream is None else [text.slot for text in stream.texts if not text.is_done]
    problem = ""
    if stream is None or max(slots, default=-1) < 0:
        problem = "no active completion for this id"
    elif not stream.texts[0].options.reasoning_control:
        problem = "reasoning control not enabled for this completion"
    else:
        numbers = frozenset(stream.numbers)
        await served.runner.call(lambda engine: engine.end_reasoning(numbers))
    return JsonResponse({"success": not problem, **({"message": problem} if problem else {})})


async def count_tokens(
    request: Request, served: ServedModel, convert: Callable[[Body], Body] = lambda body: body
) -> Response:
    """``POST /v1/chat/completions/input_tokens``: the size of a prompt.

    Args:
        convert: makes a chat request of another API's.
    """
    body = await read_json(request, served.options)
    prepared = await served.prepare(lambda: prepare_chat(served, convert(body)))
    n_tokens = len(prepared.conversation.prompt.tokens)
    return JsonResponse({"input_tokens": n_tokens, "object": "response.input_tokens"})


async def apply_template(request: Request, served: ServedModel) -> Response:
    """``POST /apply-template``: the text of a prompt."""
    body = await read_json(request, served.options)
    prepared = await served.prepare(lambda: prepare_chat(served, body))
    return JsonResponse({"prompt": prepared.conversation.prompt.text})


def prepare_chat(served: ServedModel, body: Mapping[str, Any]) -> CompletionOptions:
    """The options of a request of OpenAI's chat API, with its conversation.

    Raises:
        ApiError: a field is wrong.
        TemplateError, GrammarError, SamplingError: a message, tool, schema or parameter is.

    Source: llama.cpp, ``oaicompat_chat_params_parse``.
    """
    fields, options = Fields(body), served.options
    messages = _messages(fields)
    if fields.get("functions", [], list):
        raise ApiError.invalid("'functions' is not supported: use 'tools'")
    tools = fields.get("tools", [], list) or None
    choice = body.get("tool_choice")
    if tools and choice != "none" and fields.has("grammar"):
        raise ApiError.invalid("Cannot use custom grammar constraints with tools.")
    add_prompt = fields.flag("add_generation_prompt", True)
    continues = bool(body.get("continue_final_message"))
    if not continues and options.prefill_assistant and messages[-1:]:
        continues = messages[-1].get("role") == "assistant" and not messages[-1].get("tool_calls")
        add_prompt = add_prompt and not continues
    if continues and add_prompt and fields.has("add_generation_prompt"):
        raise ApiError.invalid(
            "Cannot set both add_generation_prompt and continue_final_message to true."
        )
    format = served.chat_format(tools=bool(tools))
    values = {
        **_usual_values(format, tools),
        **options.template_values,
        **fields.get("chat_template_kwargs", {}, dict),
    }
    if not isinstance(values.get("enable_thinking", True), bool):
        raise ApiError.invalid('invalid type for "enable_thinking" (expected boolean)')
    effort = fields.get("reasoning_effort", "", str)
    if effort == "none":
        values["enable_thinking"] = False
    elif effort:
        values["reasoning_effort"] = effort
    if not (add_prompt or continues):
        values["add_generation_prompt"] = False
    parallel = fields.flag("parallel_tool_calls") if fields.has("parallel_tool_calls") else None
    wished = TurnOptions(
        tools=tools,
        tool_choice=choice if tools else None,
        parallel_tool_calls=parallel,
        response_format=_response_format(fields),
        reasoning_format=fields.get("reasoning_format", options.reasoning_format, str),
        values=values,
        continue_final=continues,
    )
    turn = format.turn(messages, wished)
    _tell_ignored(fields, format, turn)
    budget = fields.whole(
        "reasoning_budget_tokens",
        options.reasoning_budget,
        low=-1,
        also=("thinking_budget_tokens",),
    )
    message = options.reasoning_message
    if budget >= 0:
        message = fields.get("reasoning_budget_message", message, str)
    elif fields.flag("reasoning_control"):
        budget = INT32_MAX  # the sampler is needed, but has no limit
    asked = served.read(fields, turn)
    limits = turn.budget(budget, served.tokenizer, message)
    return replace(asked, params=replace(asked.params, **limits))


def _tell_ignored(fields: Fields, format: ChatFormat, turn: Turn) -> None:
    """Note what template or grammar does not know, and what means nothing without tools."""
    for part in () if turn.grammar is None else turn.grammar.left_out:
        fields.leave_out(part.place)
    source = format.source
    effort = fields.get("reasoning_effort", "", str)
    if effort not in ("", "none") and "reasoning_effort" not in source:
        fields.leave_out("reasoning_effort")
    for name, value in fields.get("chat_template_kwargs", {}, dict).items():
        is_known = name in source or (name == "enable_thinking" and (turn.thinking or not value))
        if not is_known:
            fields.leave_out(f"chat_template_kwargs.{name}")
    if turn.thinking is None:
        for name in ("reasoning_budget_tokens", "thinking_budget_tokens", "reasoning_control"):
            if fields.has(name):
                fields.leave_out(name)
    if not turn.tools and not fields.get("tools", [], list):
        if fields.body.get("tool_choice") not in (None, "none", "auto"):
            fields.leave_out("tool_choice")
        if fields.has("parallel_tool_calls"):
            fields.leave_out("parallel_tool_calls")


def _messages(fields: Fields) -> list[Any]:
    if not fields.has("messages"):
        raise ApiError.invalid("'messages' is required")
    messages = fields.get("messages", [], list)
    found = []
    for i, message in enumerate(messages):
        if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
            raise ApiError.invalid(f"messages[{i}] must be an object with a 'role'")
        role = message["role"]
        if role != "assistant" and "content" not in message:
            raise ApiError.invalid("All non-assistant messages must contain 'content'")
        if role == "assistant" and not ("content" in message or "tool_calls" in message):
            raise ApiError.invalid(
                "Assistant message must contain either 'content' or 'tool_calls'!"
            )
        _check_parts(message.get("content"))
        found.append({**message, "role": "system"} if role == "developer" else message)
    return found


def _usual_values(format: ChatFormat, tools: Any) -> dict[str, Any]:
    """Variables that templates expect beside those of transformers.

    Source: llama.cpp, ``common_chat_extra_context``; ``functions`` is Firefunction's.
    """
    now = datetime.now()
    values = {"datetime": now.strftime("%b %d %Y"), "date_string": now.strftime("%d %b %Y")}
    if "functools[" in format.source:
        values["functions"] = json.dumps(tools or [], ensure_ascii=False)
    return values


def _check_parts(content: Any) -> None:
    """Raise ApiError for contents other than text."""
    if not (content is None or isinstance(content, (str, list))):
        raise ApiError.invalid("Expected 'content' to be a string or an array")
    for part in content if isinstance(content, list) else ():
        kind = part.get("type") if isinstance(part, Mapping) else None
        if isinstance(kind, str) and kind in KINDS:
            raise refused(part)


def _response_format(fields: Fields) -> Any:
    """The response format; ``json_schema`` is llama.cpp's short form of one."""
    given = fields.body.get("response_format")
    schema = fields.body.get("json_schema")
    if schema is not None and fields.get("grammar", "", str):
        raise ApiError.invalid("Cannot use both json_schema and grammar")
    if given is None or (isinstance(given, Mapping) and given.get("type", "text") == "text"):
        if schema is None:
            return given
        if not isinstance(schema, (Mapping, bool)):
            raise SchemaError("json_schema is not a JSON schema")
        given = {"type": "json_object", "schema": schema}
    if isinstance(given, Mapping) and given.get("schema") == {}:
        return {"type": "json_object"}
    return given


class Replies:
    """Reads the texts of one chat request into messages.

    Args:
        turn: tells how a reply is read.
    """

    def __init__(self, turn: Turn) -> None:
        self._turn = turn
        self._readers: dict[int, Reader] = {}
        self._n_reasoning: dict[int, int] = {}

    def delta(self, text: Choice, piece: Piece) -> Delta:
        """What a piece adds to the message of its text."""
        reader = self._readers.get(text.index)
        if reader is None:
            reader = self._readers[text.index] = self._turn.reader()
        delta = reader.feed(piece.text)
        if delta.reasoning:
            n = self._n_reasoning.get(text.index, 0)
            self._n_reasoning[text.index] = n + len(piece.tokens)
        if piece.is_last:
            rest = reader.close()
            delta = Delta(
                delta.content + rest.content,
                delta.reasoning + rest.reasoning,
                [*delta.calls, *rest.calls],
            )
        return delta

    def message(self, text: Choice) -> Message:
        """The message of a text that has ended, without the prefill of its prompt."""
        if text.index in self._readers:
            message = self._readers[text.index].message
        else:
            reader = self._turn.reader()
            given = Message(reader.message.content, reader.message.reasoning)
            reader.feed(text.content)
            reader.close()
            message = reader.message
            if self._turn.prefill:
                message = Message(
                    message.content.removeprefix(given.content),
                    message.reasoning.removeprefix(given.reasoning),
                    message.calls,
                )
        return message

    def n_reasoning(self, text: Choice, tokenizer: Tokenizer) -> int:
        """Number of tokens of the reasoning of a text that has ended."""
        if text.index in self._readers or not self.message(text).reasoning:
            return self._n_reasoning.get(text.index, 0)
        reader, decoder = self._turn.reader(), getincrementaldecoder("utf-8")("replace")
        shown = text.options.shown
        pieces = (tokenizer.token_to_piece(token, token in shown) for token in text.tokens)
        return sum(bool(reader.feed(decoder.decode(piece)).reasoning) for piece in pieces)


def chat_finish_reason(text: Choice, calls: Sequence[ToolCall]) -> str:
    """OpenAI's reason of the end of a reply."""
    if text.stop_type not in ("eos", "word"):
        return "length"
    return "tool_calls" if calls else "stop"


class ChatWriter(OpenAIWriter):
    """OpenAI's format of chat completions.

    Source: llama.cpp, ``server_task_result_cmpl_final::to_json_oaicompat_chat``.
    """

    def __init__(self, served: ServedModel, turn: Turn) -> None:
        super().__init__(served)
        self._replies = Replies(turn)
        self._texts: dict[int, Choice] = {}
        self._begun: set[int] = set()

    def _chunk(self, text: Choice, delta: dict[str, Any], reason: str | None) -> dict[str, Any]:
        choice = {"finish_reason": reason, "index": text.index, "delta": delta}
        return self._head([choice], _CHUNK)

    def piece(self, text: Choice, piece: Piece) -> str:
        chunks: list[dict[str, Any]] = []
        if piece.progress or text.index not in self._begun:
            if piece.progress is None:
                self._begun.add(text.index)
            chunks.append(self._chunk(text, {"role": "assistant", "content": None}, None))
        delta = self._replies.delta(text, piece)
        chunks += [self._chunk(text, part, None) for part in _parts(delta)]
        if chunks:
            last = chunks[-1]
            if piece.probs:
                content = text.probabilities(piece.probs)
                last["choices"][0]["logprobs"] = {"content": content}
            last |= piece.reports
        if piece.is_last:
            chunks += self._end(text)
        return "".join(map(data_line, chunks))

    def _end(self, text: Choice) -> list[dict[str, Any]]:
        self._texts[text.index] = text
        reason = chat_finish_reason(text, self._replies.message(text).calls)
        chunks = [self._chunk(text, {}, reason)]
        if text.options.include_usage and len(self._texts) == text.options.params.n:
            chunks.append(self._head([], _CHUNK))
            chunks[-1]["usage"] = usage_json(list(self._texts.values()))
        chunks[-1]["timings"] = text.timings()
        if text.options.verbose:
            chunks[0]["__verbose"] = final_json(self._served, text)
        return chunks

    def whole(self, texts: Sequence[Choice]) -> Any:
        choices = []
        for text in texts:
            message = self._replies.message(text)
            choice: dict[str, Any] = {
                "finish_reason": chat_finish_reason(text, message.calls),
                "index": text.index,
                "message": message.openai(),
            }
            if text.probs:
                choice["logprobs"] = {"content": text.probabilities(text.probs)}
            choices.append(choice)
        return self._counted(self._head(choices, "chat.completion"), texts)


def _parts(delta: Delta) -> list[dict[str, Any]]:
    """The deltas of chunks: each has reasoning, content or one call."""
    return [
        {name: part}
        for name, value in delta.openai().items()
        for part in ([[call] for call in value] if name == "tool_calls" else [value])
    ]
