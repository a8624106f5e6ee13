"""Chat handlers and formatters of one's own, by name, as in llama-cpp-python.

    @register_chat_format("shout")
    def shout(messages, **options):
        return ChatFormatterResponse(prompt=messages[-1]["content"].upper() + "!", stop="?")

    Llama("x.gguf", chat_format="shout").create_chat_completion(messages)

A formatter writes the prompt; a handler (`register_chat_completion_handler`) makes the whole
completion. Both get all options of `Llama.create_chat_completion`. Names of one's own come before
those of `pyllama.chat.formats`.

Source: llama-cpp-python, ``llama_chat_format.py``.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Protocol

from ..chat.template import JinjaTemplate
from ..chat.tools.definitions import parse_tools
from ..chat.tools.grammar import call_grammar, content_grammar
from ..chat.turn import legacy_tools, response_schema
from ..errors import TemplateError
from ..grammar import Grammar
from .chat import plain_chunks, plain_completion

Handler = Callable[..., Any]


class LlamaChatCompletionHandler(Protocol):
    """Makes the completion of a conversation."""

    def __call__(self, *, llama: Any, messages: Sequence[Mapping[str, Any]], **options: Any) -> Any:
        """A ``chat.completion``, or with ``stream=True`` an iterator of its chunks."""


class LlamaChatCompletionHandlerNotFoundException(TemplateError):
    """There is no chat handler of this name."""


@dataclass
class ChatFormatterResponse:
    """A conversation as a prompt.

    Args:
        prompt: the text.
        stop: stop strings of the reply.
        stopping_criteria: of the reply, see `Llama.create_completion`.
        added_special: whether the text has BOS already.
    """

    prompt: str
    stop: str | list[str] | None = None
    stopping_criteria: Any = None
    added_special: bool = False


class ChatFormatter(Protocol):
    """Writes a conversation as a prompt."""

    def __call__(
        self, *, messages: Sequence[Mapping[str, Any]], **options: Any
    ) -> ChatFormatterResponse:
        """The prompt of a reply."""


class LlamaChatCompletionHandlerRegistry:
    """The handlers by name; all objects share them."""

    _handlers: dict[str, Handler] = {}  # noqa: RUF012

    def register_chat_completion_handler(
        self, name: str, chat_handler: Handler, overwrite: bool = False
    ) -> None:
        """Add a handler.

        Raises:
            TemplateError: there is one of this name.
        """
        if name in self._handlers and not overwrite:
            raise TemplateError(f"chat handler {name!r} exists already; overwrite=True replaces it")
        self._handlers[name] = chat_handler

    def unregister_chat_handler(self, name: str) -> None:
        """Remove a handler.

        Raises:
            TemplateError: there is none of this name.
        """
        if self._handlers.pop(name, None) is None:
            raise TemplateError(f"there is no chat handler {name!r}")

    def get_chat_completion_handler_by_name(self, name: str) -> Handler:
        """The handler of a name; for a name of a chat format one that replies in it."""
        return self._handlers.get(name) or FormatHandler(name)


@dataclass(frozen=True)
class FormatHandler:
    """A handler that replies in a chat format, see `pyllama.chat.formats.ChatFormats`.

    Args:
        name: of the format.
    """

    name: str

    def __call__(self, *, llama: Any, **options: Any) -> Any:
        """The reply; options that do not exist are variables of the template.

        Raises:
            LlamaChatCompletionHandlerNotFoundException: there is no such format.
        """
        try:
            llama._chat_formats.check(self.name)
        except TemplateError as error:
            raise LlamaChatCompletionHandlerNotFoundException(str(error)) from None
        return llama._reply_in(self.name, options)


def find_handler(name: str | None) -> Handler | None:
    """The registered handler of a name, or None."""
    return None if name is None else LlamaChatCompletionHandlerRegistry._handlers.get(name)


def get_chat_completion_handler(name: str) -> Handler:
    """See `LlamaChatCompletionHandlerRegistry.get_chat_completion_handler_by_name`."""
    return LlamaChatCompletionHandlerRegistry().get_chat_completion_handler_by_name(name)


def register_chat_completion_handler(name: str) -> Callable[[Handler], Handler]:
    """Decorates a handler, to register it."""

    def register(handler: Handler) -> Handler:
        LlamaChatCompletionHandlerRegistry().register_chat_completion_handler(name, handler)
        return handler

    return register


def register_chat_format(name: str) -> Callable[[ChatFormatter], ChatFormatter]:
    """Decorates a formatter, to register its handler."""

    def register(formatter: ChatFormatter) -> ChatFormatter:
        register_chat_completion_handler(name)(chat_formatter_to_chat_completion_handler(formatter))
        return formatter

    return register


def chat_formatter_to_chat_completion_handler(chat_formatter: ChatFormatter) -> Handler:
    """A handler that replies to the prompts of a formatter."""

    def handler(
        *,
        llama: Any,
        messages: Sequence[Mapping[str, Any]],
        functions: Any = None,
        function_call: Any = None,
        tools: Any = None,
        tool_choice: Any = None,
        response_format: Any = None,
        stop: str | Sequence[str] | None = (),
        logprobs: bool | None = None,
        top_logprobs: int | None = None,
        grammar: Grammar | None = None,
        stream: bool = False,
        **options: Any,
    ) -> Any:
        chat = {"functions": functions, "function_call": function_call}
        chat |= {"tools": tools, "tool_choice": tool_choice}
        completion = {k: options.pop(k) for k in _COMPLETION_OPTIONS if k in options}
        formatted = chat_formatter(messages=messages, **chat, **options)
        if functions is not None or function_call is not None:
            tools, tool_choice = legacy_tools(functions, function_call)
        tool = _named_tool(tools, tool_choice)
        schema = response_schema(response_format)
        if tool is not None:
            (checked,) = parse_tools([{"type": "function", "function": tool}])
            grammar = call_grammar(checked)
        elif schema is not None:
            grammar = content_grammar(schema)
        result = llama.create_completion(
            prompt=llama.tokenize(
                formatted.prompt.encode(), add_bos=not formatted.added_special, special=True
            ),
            stop=[*_texts(stop), *_texts(formatted.stop)],
            logprobs=top_logprobs if logprobs else None,
            stopping_criteria=formatted.stopping_criteria,
            grammar=grammar,
            stream=stream,
            **{"temperature": 0.2, "max_tokens": None, "repeat_penalty": 1.1, **completion},
        )
        name = None if tool is None else tool["name"]
        return plain_chunks(result, name) if stream else plain_completion(result, name)

    return handler


_COMPLETION_OPTIONS = (
    "temperature", "top_p", "top_k", "min_p", "typical_p", "seed", "max_tokens",
    "presence_penalty", "frequency_penalty", "repeat_penalty", "tfs_z", "mirostat_mode",
    "mirostat_tau", "mirostat_eta", "model", "logits_processor", "logit_bias", "sampling",
)  # fmt: skip


def _named_tool(tools: Any, choice: Any) -> Mapping[str, Any] | None:
    """The definition of the function that must be called, None if there is none."""
    if tools is None or not isinstance(choice, Mapping):
        return None
    name = choice["function"]["name"]
    for tool in tools:
        if tool["function"]["name"] == name:
            definition: Mapping[str, Any] = tool["function"]
            return definition
    raise TemplateError(f"tool_choice names the function {name!r}, which is not in tools")


def _texts(given: str | Sequence[str] | None) -> list[str]:
    return [given] if isinstance(given, str) else list(given or ())


class Jinja2ChatFormatter:
    """A formatter with a Jinja template, which runs in `pyllama.chat.template`'s sandbox.

    Args:
        template: the source.
        eos_token, bos_token: texts of these tokens.
        add_generation_prompt: end with the beginning of the reply.
        stop_token_ids: tokens that end the reply.
    """

    def __init__(
        self,
        template: str,
        eos_token: str,
        bos_token: str,
        add_generation_prompt: bool = True,
        stop_token_ids: Sequence[int] | None = None,
    ) -> None:
        self.template, self.eos_token, self.bos_token = template, eos_token, bos_token
        self.add_generation_prompt = add_generation_prompt
        self.stop_token_ids = None if stop_token_ids is None else set(stop_token_ids)
        self._template = JinjaTemplate(template, {"eos_token": eos_token, "bos_token": bos_token})

    def __call__(
        self, *, messages: Sequence[Mapping[str, Any]], **options: Any
    ) -> ChatFormatterResponse:
        """The prompt of a reply.

        Raises:
            TemplateError: see `JinjaTemplate.render`.
        """
        options = {"add_generation_prompt": self.add_generation_prompt, **options}
        prompt = self._template.render(messages, **options)
        stops, criteria = self.stop_token_ids, None
        if stops is not None:
            criteria = [lambda ids, logits: int(ids[-1]) in stops]
        return ChatFormatterResponse(prompt, [self.eos_token], criteria, added_special=True)

    def to_chat_handler(self) -> Handler:
        """The handler of this formatter."""
        return chat_formatter_to_chat_completion_handler(self)


def hf_tokenizer_config_to_chat_formatter(
    tokenizer_config: Mapping[str, Any], add_generation_prompt: bool = True
) -> ChatFormatter:
    """A formatter with the template of a ``tokenizer_config.json``.

    Args:
        add_generation_prompt: add an empty message of the assistant, which the template writes.
    """
    bos, eos = (tokenizer_config[f"{role}_token"] for role in ("bos", "eos"))
    template = JinjaTemplate(
        tokenizer_config["chat_template"], {"bos_token": bos, "eos_token": eos}
    )

    def formatter(
        *, messages: Sequence[Mapping[str, Any]], **options: Any
    ) -> ChatFormatterResponse:
        last = [{"role": "assistant", "content": ""}] if add_generation_prompt else []
        options = {"add_generation_prompt": False, **options}
        prompt = template.render([*messages, *last], **options)
        return ChatFormatterResponse(prompt, [eos, bos], added_special=True)

    return formatter


def hf_tokenizer_config_to_chat_completion_handler(
    tokenizer_config: Mapping[str, Any], add_generation_prompt: bool = True
) -> Handler:
    """The handler of `hf_tokenizer_config_to_chat_formatter`."""
    return chat_formatter_to_chat_completion_handler(
        hf_tokenizer_config_to_chat_formatter(tokenizer_config, add_generation_prompt)
    )


def hf_autotokenizer_to_chat_formatter(
    pretrained_model_name_or_path: str | os.PathLike[str],
) -> ChatFormatter:
    """A formatter with the template of a tokenizer of the package transformers."""
    transformers = import_module("transformers")
    tokenizer = transformers.AutoTokenizer.from_pretrained(pretrained_model_name_or_path)

    def formatter(
        *, messages: Sequence[Mapping[str, Any]], **options: Any
    ) -> ChatFormatterResponse:
        prompt = tokenizer.apply_chat_template(messages, tokenize=False, **options)
        return ChatFormatterResponse(prompt, tokenizer.eos_token, added_special=True)

    return formatter


def hf_autotokenizer_to_chat_completion_handler(
    pretrained_model_name_or_path: str | os.PathLike[str],
) -> Handler:
    """The handler of `hf_autotokenizer_to_chat_formatter`."""
    return chat_formatter_to_chat_completion_handler(
        hf_autotokenizer_to_chat_formatter(pretrained_model_name_or_path)
    )
