"""Renders the chat template of a model: messages in, prompt text out.

    template = JinjaTemplate(source, {"bos_token": "<s>", "eos_token": "</s>"})
    template.render([{"role": "user", "content": "Hi"}])

Templates are untrusted: they cannot access files or modules, or change the messages. A template
that is invalid, rejects the messages or exceeds its limits raises `TemplateError` with one line.
Thread-safe; rendering takes about a millisecond.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NoReturn

from ..errors import TemplateError
from .limits import Limits

Messages = Sequence[Mapping[str, Any]]
_MAX_ERROR_CHARS = 300


class JinjaTemplate:
    """A compiled template.

    Args:
        source: Jinja source as in Hugging Face's models.
        tokens: text of special tokens by name: ``bos_token``, ``eos_token``, ...
        limits: limits on time and size.

    Raises:
        TemplateError: the source is invalid or too long.

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
        """The text of the prompt.

        Args:
            messages: dictionaries with ``role`` and ``content``, in OpenAI's format.
            add_generation_prompt: end with the beginning of the assistant's reply.
            values: further variables of the template, such as ``tools``.

        Raises:
            TemplateError: the template rejects the messages, exceeds the limits, or is invalid.
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
    if re.search(r"%[^%A-Za-z]*\d{3}", format):  # C's strftime accepts any width
        raise TemplateError(f"the date format {format[:40]!r} has a width that is too large")
    return datetime.now().strftime(format)


def _described(error: Exception) -> TemplateError:
    kind, line = type(error).__name__, getattr(error, "lineno", None)
    at = f" (line {line})" if isinstance(line, int) else ""
    text = " ".join(str(error).split())[:_MAX_ERROR_CHARS]
    if isinstance(error, _Refused):
        return TemplateError(f"the chat template rejects these messages: {text}")
    if isinstance(error, TemplateError):
        return TemplateError(f"the chat template was stopped: {text}")
    if isinstance(error, RecursionError):
        return TemplateError("the chat template was stopped: infinite recursion")
    if isinstance(error, MemoryError):
        return TemplateError("the chat template was stopped: out of memory")
    return TemplateError(
        f"the chat template is invalid{at}: {text or kind}; "
        "try another, such as `chat_format='chatml'`"
    )
