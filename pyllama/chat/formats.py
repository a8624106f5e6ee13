"""Selects the chat format of a model, and tokenizes conversations in it.

    formats = ChatFormats(model)
    prompt = formats.get(None).prompt([{"role": "user", "content": "Hi"}])
    prompt.tokens, prompt.stop

Without a name, the model's own template is used. Formats are created at first use.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..errors import TemplateError
from ..tokenizer import Tokenizer
from .builtin import ALIASES, FORMATS, NamedFormat
from .template import JinjaTemplate, Messages

if TYPE_CHECKING:
    from ..core.model import Model

DEFAULT = "chat_template.default"
"""llama-cpp-python's name for a model's own template."""

_KEY = "tokenizer.chat_template"
_RESERVED = {"messages": "it holds the conversation", "self": "in Jinja it is the template itself"}
_PROBE = "\u241f probe \u241f"


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


class ChatFormat:
    """A template or named format, with the tokenizer of a model.

    Attributes:
        name: name of the format, ``chat_template.*``, or ``jinja``.
    """

    def __init__(
        self, name: str, writer: JinjaTemplate | NamedFormat, tokenizer: Tokenizer
    ) -> None:
        self.name, self._writer, self._tokenizer = name, writer, tokenizer
        self._knows_system: bool | None = None

    def prompt(self, messages: Messages, /, **values: Any) -> ChatPrompt:
        """Format and tokenize messages.

        Args:
            messages: dictionaries in OpenAI's format; contents are text or lists of text parts.
            values: variables of the template, such as ``add_generation_prompt`` and ``tools``.

        Raises:
            TemplateError: an invalid message, a variable with a reserved name, or an error of the
                template (see `JinjaTemplate`).
        """
        check_values(values)
        checked = [_checked(i, message) for i, message in enumerate(messages)]
        if any(m["role"] == "system" for m in checked) and not self._takes_system():
            checked = _system_into_user(checked)
        text = self._writer.render(checked, **values)
        return ChatPrompt(text, self._encode(text), self._stop())

    def _takes_system(self) -> bool:
        """Whether the template writes system messages; some reject or silently drop them."""
        if isinstance(self._writer, NamedFormat):
            return True
        if self._knows_system is None:
            probe = [{"role": "system", "content": _PROBE}, {"role": "user", "content": "x"}]
            try:
                self._knows_system = _PROBE in self._writer.render(probe)
            except TemplateError:
                self._knows_system = False
        return self._knows_system

    def _encode(self, text: str) -> list[int]:
        """Tokens of a prompt, with BOS added unless the template has written it."""
        tokenizer = self._tokenizer
        tokens = tokenizer.encode(text, add_special=False, parse_special=True)
        bos = tokenizer.bos
        if tokenizer.add_bos and bos is not None and tokens[:1] != [bos]:
            tokens.insert(0, bos)
        return tokens

    def _stop(self) -> tuple[str, ...]:
        """Stop strings that are not end-of-generation tokens."""
        tokenizer = self._tokenizer
        if isinstance(self._writer, NamedFormat):
            ids = {stop: tokenizer.text_to_id(stop) for stop in self._writer.stop}
            return tuple(
                s for s, token in ids.items() if token is None or token not in tokenizer.eog
            )
        return ()


class ChatFormats:
    """The chat formats of one model.

    Args:
        model: provides tokenizer and metadata.
    """

    def __init__(self, model: Model) -> None:
        self._tokenizer, self._made = model.tokenizer, dict[str, ChatFormat]()
        self._sources = _sources(model.metadata)

    @property
    def has_own(self) -> bool:
        """Whether the model has a chat template."""
        return DEFAULT in self._sources

    def check(self, name: str) -> None:
        """Raise TemplateError unless there is a format of this name."""
        if name not in FORMATS and name not in ALIASES and name not in self._sources:
            known = [*FORMATS, *ALIASES, *self._sources]
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {near[0]}?" if near else f"there are: {', '.join(known)}"
            raise TemplateError(f"there is no chat format {name!r}; {hint}")

    def get(self, name: str | None = None, fallback: str = "chatml") -> ChatFormat:
        """A format by name or Jinja source.

        Args:
            name: name or source; None for the model's own template.
            fallback: name to use if the model has no template.

        Raises:
            TemplateError: no such format, or invalid Jinja.
        """
        if name is None:
            name = DEFAULT if self.has_own else fallback
        if name not in self._made:
            self._made[name] = self._make(name)
        return self._made[name]

    def _make(self, name: str) -> ChatFormat:
        source = self._sources.get(name, name)
        if name in self._sources or "{{" in source or "{%" in source:
            label = name if name in self._sources else "jinja"
            template = JinjaTemplate(source, _token_texts(self._tokenizer))
            return ChatFormat(label, template, self._tokenizer)
        self.check(name)
        return ChatFormat(name, FORMATS[ALIASES.get(name, name)], self._tokenizer)


def check_values(values: Mapping[str, Any]) -> None:
    """Raise TemplateError for a template variable with a reserved name."""
    for name in _RESERVED.keys() & values.keys():
        raise TemplateError(
            f"a chat template cannot have a variable named {name!r}: {_RESERVED[name]}; "
            "use another name"
        )


def _sources(metadata: Mapping[str, Any]) -> dict[str, str]:
    found = {}
    for key, value in metadata.items():
        if key.startswith(_KEY) and isinstance(value, str):
            found[key.removeprefix("tokenizer.") if key != _KEY else DEFAULT] = value
    return found


def _token_texts(tokenizer: Tokenizer) -> dict[str, str]:
    vocab = tokenizer.vocab
    roles = ("bos", "eos", "unk", "pad", "sep", "eot")
    return {f"{r}_token": vocab.tokens[vocab.roles[r]] if r in vocab.roles else "" for r in roles}


def _checked(i: int, message: Any) -> dict[str, Any]:
    if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
        raise TemplateError(f"messages[{i}] is not a dictionary with a role and a content")
    return {**message, "content": _text(i, message.get("content"))}


def _text(i: int, content: Any) -> str:
    """The content of a message as text; parts are joined as in llama.cpp."""
    if content is None or isinstance(content, str):
        return content or ""
    if not isinstance(content, Sequence):
        raise TemplateError(f"messages[{i}].content is neither text nor a list of parts")
    texts = []
    for part in content:
        kind = part.get("type") if isinstance(part, Mapping) else type(part).__name__
        if kind != "text" or not isinstance(part.get("text"), str):
            raise TemplateError(
                f"messages[{i}].content has a part of type {kind}; only text is supported"
            )
        texts.append(part["text"])
    return "\n".join(texts)


def _system_into_user(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Messages with each system message merged into the next user message.

    Source: llama.cpp, ``common_chat_templates_apply_jinja``.
    """
    merged: list[dict[str, Any]] = []
    waiting: list[str] = []
    for message in messages:
        if message["role"] == "system":
            waiting.append(message["content"])
        elif waiting and message["role"] == "user":
            merged.append({**message, "content": "\n".join([*waiting, message["content"]])})
            waiting = []
        else:
            merged.append(message)
    return merged
