"""A model's own chat template: messages in, the text of the prompt out.

    template = JinjaTemplate(source, {"bos_token": "<s>", "eos_token": "</s>"})
    template.render([{"role": "user", "content": "Hi"}])

Templates come with models that strangers made: they cannot reach files, modules or the messages
themselves, and one that is wrong, that refuses the messages, that does not end or that makes too
much raises `TemplateError` in one line. Thread-safe; rendering takes about a millisecond.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NoReturn

from ..errors import TemplateError
from .limits import Limits

Messages = Sequence[Mapping[str, Any]]
_LONGEST_ERROR = 300


class JinjaTemplate:
    """A compiled template.

    Args:
        source: Jinja as Hugging Face's models have it.
        tokens: text of special tokens by name: ``bos_token``, ``eos_token``, ...
        limits: on time and size.

    Raises:
        TemplateError: it is not a template, or too long.

    Source: transformers, ``render_jinja_template``.
    """

    def __init__(
        self, source: str, tokens: Mapping[str, str] | None = None, limits: Limits | None = None
    ) -> None:
        from .sandbox import ChatEnvironment

        self.source, self._tokens, self._limits = source, dict(tokens or {}), limits or Limits()
        if len(source) > self._limits.source:
            raise TemplateError(
                f"the chat template has {len(source)} characters; {self._limits.source} are allowed"
            )
        self._environment = ChatEnvironment(
            {"raise_exception": _raise_exception, "strftime_now": _strftime_now}
        )
        try:
            self._template = self._environment.prepare(source)
        except Exception as error:
            raise _described(error) from None

    def render(
        self, messages: Messages, /, *, add_generation_prompt: bool = True, **values: Any
    ) -> str:
        """The prompt.

        Args:
            messages: dictionaries with ``role`` and ``content``, as OpenAI's.
            add_generation_prompt: end with the beginning of the assistant's reply.
            values: what else the template may look at, such as ``tools``.

        Raises:
            TemplateError: it refuses these messages, exceeds the limits, or is wrong.
        """
        given = {"tools": None, **self._tokens, **values}
        given |= {"messages": list(messages), "add_generation_prompt": add_generation_prompt}
        try:
            return self._environment.render(self._template, given, self._limits)
        except Exception as error:
            raise _described(error) from None


class _Refused(Exception):
    """The template called ``raise_exception``."""


def _raise_exception(message: object = "") -> NoReturn:
    raise _Refused(str(message))


def _strftime_now(format: str) -> str:
    if re.search(r"%[^%A-Za-z]*\d{3}", format):  # the C library takes a width, whatever it is
        raise TemplateError(f"the date format {format[:40]!r} has a width that is too much")
    return datetime.now().strftime(format)


def _described(error: Exception) -> TemplateError:
    kind, line = type(error).__name__, getattr(error, "lineno", None)
    at = f" (line {line})" if isinstance(line, int) else ""
    text = " ".join(str(error).split())[:_LONGEST_ERROR]
    if isinstance(error, _Refused):
        return TemplateError(f"the chat template refuses these messages: {text}")
    if isinstance(error, TemplateError):
        return TemplateError(f"the chat template was stopped: {text}")
    if isinstance(error, RecursionError):
        return TemplateError("the chat template was stopped: it calls itself without end")
    if isinstance(error, MemoryError):
        return TemplateError("the chat template was stopped: out of memory")
    return TemplateError(
        f"the chat template is wrong{at}: {text or kind}; "
        "try another, such as `chat_format='chatml'`"
    )
