"""One turn of a chat: its prompt, the grammar of the reply, and how the reply is read.

turn = format.turn(messages, TurnOptions(tools=[...], tool_choice="auto"))
turn.prompt.tokens, turn.grammar
reader = turn.reader()
reader.feed("<tool_call>..."); reader.close(); reader.message.openai()
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ..errors import SamplingError, TemplateError
from .reader import Reader, Steps
from .reasoning import Markers, ReasoningFormat, State, read_reasoning
from .tools.call_format import ToolCallFormat
from .tools.definitions import ResponseSchema, Tool
from .tools.grammar import ReplyGrammar

if TYPE_CHECKING:
    from ..tokenizer import Tokenizer


@dataclass(frozen=True)
class ChatPrompt:
    """A conversation as a prompt.

    Attributes:
        text: the formatted messages.
        tokens: tokens of the text, with a single BOS if the model uses one.
        stop: stop strings of the reply, in addition to the end-of-generation tokens.
    """

    text: str
    tokens: list[int]
    stop: tuple[str, ...]


@dataclass(frozen=True)
class TurnOptions:
    """What a request asks of a reply, in OpenAI's terms.

    Attributes:
        tools: definitions of the tools, or None.
        tool_choice: ``none``, ``auto``, ``required``, or a function; None for ``auto``.
        parallel_tool_calls: whether a reply may have several calls; None if the template can
            write several.
        response_format: ``{"type": "text"}``, ``json_object`` or ``json_schema``, or None.
        reasoning_format: where the reasoning is reported, see `reasoning.ReasoningFormat`.
        values: further variables of the template, such as ``enable_thinking``.
        continue_final: whether the last message, the assistant's, is continued.
    """

    tools: Any = None
    tool_choice: Any = None
    parallel_tool_calls: bool | None = None
    response_format: Any = None
    reasoning_format: str = "auto"
    values: Mapping[str, Any] = field(default_factory=dict)
    continue_final: bool = False


@dataclass(frozen=True)
class Turn:
    """The prompt of a reply, and what is known about the reply.

    Attributes:
        prompt: the conversation up to the reply.
        grammar: what the reply must consist of; None for free text.
        thinking: markers of the reasoning and where the reply begins; None if the template knows
            no reasoning.
        shown: control tokens whose text the reader needs.
        only_calls: whether the grammar allows nothing but calls after the reasoning.
        begun: the beginning of the reply that is the end of the prompt.
        prefill: the beginning of the reply that the prompt has, see `TurnOptions.continue_final`.
        generation: the end of the prompt, after the conversation: the beginning of the reply.
    """

    prompt: ChatPrompt
    grammar: ReplyGrammar | None
    thinking: tuple[Markers, State] | None
    shown: frozenset[int]
    call_format: ToolCallFormat
    tools: tuple[Tool, ...]
    reasoning_format: ReasoningFormat
    only_calls: bool = False
    begun: str = ""
    prefill: str = ""
    generation: str = ""

    def budget(self, n_tokens: int, tokenizer: Tokenizer, message: str = "") -> dict[str, Any]:
        """Fields of `SamplingParams` that limit the reasoning.

        Args:
            n_tokens: maximum tokens of the reasoning; -1 for no limit.
            message: text before the end of the reasoning when they are spent.

        Raises:
            SamplingError: ``n_tokens`` is not a whole number of at least -1.
        """
        if not isinstance(n_tokens, int) or n_tokens < -1:
            raise SamplingError(
                f"reasoning_budget: got {n_tokens!r}, want -1 (no limit), 0 (no reasoning) or a "
                "number of tokens"
            )
        if self.thinking is None or n_tokens < 0:
            return {}
        markers, state = self.thinking

        def encode(text: str) -> tuple[int, ...]:
            return tuple(tokenizer.encode(text, add_special=False, parse_special=True))

        return {
            "reasoning_budget_tokens": n_tokens,
            "reasoning_budget_start": encode(markers.start),
            "reasoning_budget_end": (encode(markers.end),),
            "reasoning_budget_forced": encode(message + markers.end),
            "generation_prompt": encode(markers.start) if state == "inside" else (),
        }

    def reader(self) -> Reader:
        """A new reader of a reply; a prefill is read already."""
        reader = Reader(self._read, begun=self.begun)
        if self.prefill:
            reader.feed(self.prefill)
        return reader

    def _read(self, reader: Reader) -> Steps[None]:
        if self.thinking is not None:
            yield from read_reasoning(reader, *self.thinking, self.reasoning_format)
        reader.only_calls = self.only_calls
        yield from self.call_format.read(reader, [tool.name for tool in self.tools])


def response_schema(response_format: Any) -> ResponseSchema | None:
    """The JSON schema of a response format; None for free text.

    A ``json_schema`` is strict if it says so. A ``json_object`` cannot, and is.

    Raises:
        TemplateError: the format is unknown, or has no schema.

    Source: OpenAI's API; ``json_object`` with a ``schema`` is llama-cpp-python's.
    """
    if response_format is None:
        return None
    if not isinstance(response_format, Mapping):
        raise TemplateError("response_format is not a dictionary such as {'type': 'json_object'}")
    kind = response_format.get("type", "text")
    if kind == "text":
        return None
    if kind == "json_object":
        schema = response_format.get("schema")
        return ResponseSchema({"type": "object"} if schema is None else _checked("schema", schema))
    if kind == "json_schema":
        given = response_format.get("json_schema", response_format)
        given = given if isinstance(given, Mapping) else {}
        strict = given.get("strict")
        if not (strict is None or isinstance(strict, bool)):
            raise TemplateError(
                f"response_format.json_schema.strict is {strict!r:.40}, want true or false"
            )
        return ResponseSchema(_checked("json_schema.schema", given.get("schema")), bool(strict))
    raise TemplateError(
        f"response_format.type is {kind!r}; want 'text', 'json_object' or 'json_schema'"
    )


def _checked(where: str, schema: Any) -> Mapping[str, Any] | bool:
    if not isinstance(schema, (Mapping, bool)):
        raise TemplateError(f"response_format.{where} is not a JSON schema")
    return schema


def split_generation(without: str, whole: str) -> str:
    """The generation prompt: what ``whole`` has after its common beginning with ``without``."""
    if whole.startswith(without):
        return whole[len(without) :]
    n = next(
        (i for i, (a, b) in enumerate(zip(without, whole, strict=False)) if a != b),
        min(len(without), len(whole)),
    )
    return whole[n:]


class OldFunctions(list[Any]):
    """Tools that were given as OpenAI's old ``functions``; functionary's prompt shows it."""


def legacy_tools(functions: Any, function_call: Any) -> tuple[Any, Any]:
    """``tools`` and ``tool_choice`` for OpenAI's old ``functions`` and ``function_call``.

    Raises:
        TemplateError: ``functions`` is not a list.
    """
    if functions is not None and (
        not isinstance(functions, Sequence) or isinstance(functions, str)
    ):
        raise TemplateError("functions is not a list of function definitions")
    tools = OldFunctions({"type": "function", "function": f} for f in functions or ()) or None
    if isinstance(function_call, Mapping):
        return tools, {"type": "function", "function": function_call}
    return tools, function_call
