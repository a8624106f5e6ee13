"""The dictionaries of OpenAI's interface, with llama-cpp-python's names.

def reply(messages: list[ChatCompletionRequestMessage]) -> ChatCompletion: ...

Results of `Llama` have more keys than these where it has more to tell, such as
``reasoning_content``.
"""

# Annotations are evaluated: pydantic reads them.
import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING or sys.version_info >= (3, 12):
    from typing import NotRequired, TypedDict
else:  # pydantic refuses typing's TypedDict of 3.11, and comes with the package of this one
    try:
        _typing = import_module("typing_extensions")
    except ImportError:
        _typing = import_module("typing")
    NotRequired, TypedDict = _typing.NotRequired, _typing.TypedDict

JsonType = None | int | str | bool | list[Any] | dict[str, Any]


class EmbeddingUsage(TypedDict):
    """Tokens of an embedding request."""

    prompt_tokens: int
    total_tokens: int


class Embedding(TypedDict):
    """One embedding; a list for each token if they are not pooled."""

    index: int
    object: str
    embedding: list[float] | list[list[float]]


class CreateEmbeddingResponse(TypedDict):
    """Embeddings of some texts."""

    object: Literal["list"]
    model: str
    data: list[Embedding]
    usage: EmbeddingUsage


class CompletionLogprobs(TypedDict):
    """Log-probabilities of a text's tokens."""

    text_offset: list[int]
    token_logprobs: list[float | None]
    tokens: list[str]
    top_logprobs: list[dict[str, float] | None]


class CompletionChoice(TypedDict):
    """One text."""

    text: str
    index: int
    logprobs: CompletionLogprobs | None
    finish_reason: Literal["stop", "length"] | None


class CompletionUsage(TypedDict):
    """Token counts."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class CreateCompletionResponse(TypedDict):
    """A completion, or a chunk of one."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: NotRequired[CompletionUsage]


class ChatCompletionResponseFunctionCall(TypedDict):
    """A call of a function, as OpenAI's old interface has it."""

    name: str
    arguments: str


class ChatCompletionMessageToolCall(TypedDict):
    """A call of a tool."""

    id: str
    type: Literal["function"]
    function: ChatCompletionResponseFunctionCall


ChatCompletionMessageToolCalls = list[ChatCompletionMessageToolCall]


class ChatCompletionResponseMessage(TypedDict):
    """The reply."""

    content: str | None
    tool_calls: NotRequired[ChatCompletionMessageToolCalls]
    role: Literal["assistant", "function"]
    function_call: NotRequired[ChatCompletionResponseFunctionCall]


class ChatCompletionFunction(TypedDict):
    """A function that the model may call."""

    name: str
    description: NotRequired[str]
    parameters: dict[str, JsonType]


class ChatCompletionTopLogprobToken(TypedDict):
    """A token and its log-probability."""

    token: str
    logprob: float
    bytes: list[int] | None


class ChatCompletionLogprobToken(ChatCompletionTopLogprobToken):
    """A token, and the likeliest in its place."""

    top_logprobs: list[ChatCompletionTopLogprobToken]


class ChatCompletionLogprobs(TypedDict):
    """Log-probabilities of a reply's tokens."""

    content: list[ChatCompletionLogprobToken] | None
    refusal: list[ChatCompletionLogprobToken] | None


class ChatCompletionResponseChoice(TypedDict):
    """One reply."""

    index: int
    message: ChatCompletionResponseMessage
    logprobs: ChatCompletionLogprobs | None
    finish_reason: str | None


class CreateChatCompletionResponse(TypedDict):
    """A chat completion."""

    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    choices: list[ChatCompletionResponseChoice]
    usage: CompletionUsage


class ChatCompletionMessageToolCallChunkFunction(TypedDict):
    """What a chunk adds to a call."""

    name: str | None
    arguments: str


class ChatCompletionMessageToolCallChunk(TypedDict):
    """A part of a call of a tool."""

    index: int
    id: NotRequired[str]
    type: Literal["function"]
    function: ChatCompletionMessageToolCallChunkFunction


class ChatCompletionStreamResponseDeltaEmpty(TypedDict):
    """Nothing: the delta of the last chunk."""


class ChatCompletionStreamResponseDelta(TypedDict):
    """What a chunk adds to the reply."""

    content: NotRequired[str | None]
    function_call: NotRequired[ChatCompletionResponseFunctionCall | None]
    tool_calls: NotRequired[list[ChatCompletionMessageToolCallChunk] | None]
    role: NotRequired[Literal["system", "user", "assistant", "tool"] | None]


class ChatCompletionStreamResponseChoice(TypedDict):
    """A part of one reply."""

    index: int
    delta: ChatCompletionStreamResponseDelta | ChatCompletionStreamResponseDeltaEmpty
    finish_reason: Literal["stop", "length", "tool_calls", "function_call"] | None
    logprobs: NotRequired[ChatCompletionLogprobs | None]


class CreateChatCompletionStreamResponse(TypedDict):
    """A chunk of a chat completion."""

    id: str
    model: str
    object: Literal["chat.completion.chunk"]
    created: int
    choices: list[ChatCompletionStreamResponseChoice]


class ChatCompletionFunctionCallOption(TypedDict):
    """The function that must be called."""

    name: str


class ChatCompletionRequestResponseFormat(TypedDict):
    """What the reply must be."""

    type: Literal["text", "json_object"]
    schema: NotRequired[JsonType]


class ChatCompletionRequestMessageContentPartText(TypedDict):
    """A text as a part of a message."""

    type: Literal["text"]
    text: str


class ChatCompletionRequestMessageContentPartImageImageUrl(TypedDict):
    """The address of an image."""

    url: str
    detail: NotRequired[Literal["auto", "low", "high"]]


class ChatCompletionRequestMessageContentPartImage(TypedDict):
    """An image as a part of a message."""

    type: Literal["image_url"]
    image_url: str | ChatCompletionRequestMessageContentPartImageImageUrl


ChatCompletionRequestMessageContentPart = (
    ChatCompletionRequestMessageContentPartText | ChatCompletionRequestMessageContentPartImage
)


class ChatCompletionRequestSystemMessage(TypedDict):
    """A message of the system."""

    role: Literal["system"]
    content: str | None


class ChatCompletionRequestUserMessage(TypedDict):
    """A message of the user."""

    role: Literal["user"]
    content: str | list[ChatCompletionRequestMessageContentPart] | None


class ChatCompletionRequestAssistantMessage(TypedDict):
    """An earlier reply."""

    role: Literal["assistant"]
    content: NotRequired[str]
    tool_calls: NotRequired[ChatCompletionMessageToolCalls]
    function_call: NotRequired[ChatCompletionResponseFunctionCall]


class ChatCompletionRequestToolMessage(TypedDict):
    """The result of a tool."""

    role: Literal["tool"]
    content: str | None
    tool_call_id: str


class ChatCompletionRequestFunctionMessage(TypedDict):
    """The result of a function, in OpenAI's old interface."""

    role: Literal["function"]
    content: str | None
    name: str


ChatCompletionRequestMessage = (
    ChatCompletionRequestSystemMessage
    | ChatCompletionRequestUserMessage
    | ChatCompletionRequestAssistantMessage
    | ChatCompletionRequestToolMessage
    | ChatCompletionRequestFunctionMessage
)


ChatCompletionRequestFunctionCall = Literal["none", "auto"] | ChatCompletionFunctionCallOption

ChatCompletionFunctionParameters = dict[str, JsonType]


class ChatCompletionTool(TypedDict):
    """A tool that the model may call."""

    type: Literal["function"]
    function: ChatCompletionFunction


class ChatCompletionNamedToolChoice(TypedDict):
    """The tool that must be called."""

    type: Literal["function"]
    function: ChatCompletionFunctionCallOption


ChatCompletionToolChoiceOption = Literal["none", "auto", "required"] | ChatCompletionNamedToolChoice

# other names, of older versions or of dictionaries with the same keys
EmbeddingData = Embedding
CompletionChunk = CreateCompletionResponse
Completion = CreateCompletionResponse
CreateCompletionStreamResponse = CreateCompletionResponse
ChatCompletionMessage = ChatCompletionResponseMessage
ChatCompletionChoice = ChatCompletionResponseChoice
ChatCompletion = CreateChatCompletionResponse
ChatCompletionChunkDeltaEmpty = ChatCompletionStreamResponseDeltaEmpty
ChatCompletionChunkChoice = ChatCompletionStreamResponseChoice
ChatCompletionChunkDelta = ChatCompletionStreamResponseDelta
ChatCompletionChunk = CreateChatCompletionStreamResponse
ChatCompletionStreamResponse = CreateChatCompletionStreamResponse
ChatCompletionResponseFunction = ChatCompletionFunction
ChatCompletionFunctionCall = ChatCompletionResponseFunctionCall
ChatCompletionMessageToolCallFunction = ChatCompletionResponseFunctionCall
ChatCompletionStreamResponseDeltaFunctionCall = ChatCompletionResponseFunctionCall
ChatCompletionRequestAssistantMessageFunctionCall = ChatCompletionResponseFunctionCall
ChatCompletionFunctions = ChatCompletionFunction
ChatCompletionToolFunction = ChatCompletionFunction
ChatCompletionRequestFunctionCallOption = ChatCompletionFunctionCallOption
ChatCompletionNamedToolChoiceFunction = ChatCompletionFunctionCallOption

__all__ = [name for name in globals() if name.startswith(("C", "E", "J"))]
