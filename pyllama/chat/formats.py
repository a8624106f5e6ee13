"""Which chat format a model gets, and the tokens of a conversation in it.

    formats = ChatFormats(model)
    prompt = formats.get(None).prompt([{"role": "user", "content": "Hi"}])
    prompt.tokens, prompt.stop

Without a name the model's own template is taken. Formats are made when they are first asked for.
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
_TAKEN = {"messages": "it has the conversation's", "self": "Jinja has the template itself there"}
_PROBE = "\u241f probe \u241f"


@dataclass(frozen=True)
class ChatPrompt:
    """A conversation, ready for the model.

    Attributes:
        text: as the format wrote it.
        tokens: its tokens; BOS once, where the model wants it.
        stop: texts that end the reply, beside the end-of-generation tokens.
    """

    text: str
    tokens: list[int]
    stop: tuple[str, ...]


class ChatFormat:
    """A template or named format with the tokenizer that it is for.

    Attributes:
        name: of the format, or ``chat_template.*``, or ``jinja``.
    """

    def __init__(
        self, name: str, writer: JinjaTemplate | NamedFormat, tokenizer: Tokenizer
    ) -> None:
        self.name, self._writer, self._tokenizer = name, writer, tokenizer
        self._knows_system: bool | None = None

    def prompt(self, messages: Messages, /, **values: Any) -> ChatPrompt:
        """Write messages down.

        Args:
            messages: dictionaries as OpenAI's; contents are text, or lists of parts of text.
            values: ``add_generation_prompt``, ``tools``, and whatever else the template takes.

        Raises:
            TemplateError: a message that is none, a value by a name that is taken, or the
                template's; see `JinjaTemplate`.
        """
        check_values(values)
        checked = [_checked(i, message) for i, message in enumerate(messages)]
        if any(m["role"] == "system" for m in checked) and not self._takes_system():
            checked = _system_into_user(checked)
        text = self._writer.render(checked, **values)
        return ChatPrompt(text, self._encode(text), self._stop())

    def _takes_system(self) -> bool:
        """Some templates refuse a system message, or leave it out without a word."""
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
        """Tokens: a BOS that the template writes and one that the model wants are the same one."""
        tokenizer = self._tokenizer
        tokens = tokenizer.encode(text, add_special=False, parse_special=True)
        bos = tokenizer.bos
        if tokenizer.add_bos and bos is not None and tokens[:1] != [bos]:
            tokens.insert(0, bos)
        return tokens

    def _stop(self) -> tuple[str, ...]:
        """Ends that are tokens end a reply by themselves."""
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
        model: its tokenizer and metadata are read.
    """

    def __init__(self, model: Model) -> None:
        self._tokenizer, self._made = model.tokenizer, dict[str, ChatFormat]()
        self._sources = _sources(model.metadata)

    @property
    def has_own(self) -> bool:
        """Whether the model brings a template."""
        return DEFAULT in self._sources

    def check(self, name: str) -> None:
        """Raise TemplateError unless a format has this name."""
        if name not in FORMATS and name not in ALIASES and name not in self._sources:
            known = [*FORMATS, *ALIASES, *self._sources]
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {near[0]}?" if near else f"there are: {', '.join(known)}"
            raise TemplateError(f"there is no chat format {name!r}; {hint}")

    def get(self, name: str | None = None, fallback: str = "chatml") -> ChatFormat:
        """A format by name or Jinja source.

        Args:
            name: None for the model's own.
            fallback: for a model that has none.

        Raises:
            TemplateError: no such format, or Jinja that is wrong.
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
    """Raise TemplateError for a value by a name that templates have for something else."""
    for name in _TAKEN.keys() & values.keys():
        raise TemplateError(
            f"a chat template cannot be given a value called {name!r}: {_TAKEN[name]}; "
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
    """Contents as text; parts of text are joined as llama.cpp joins them."""
    if content is None or isinstance(content, str):
        return content or ""
    if not isinstance(content, Sequence):
        raise TemplateError(f"messages[{i}].content is neither text nor a list of parts")
    texts = []
    for part in content:
        kind = part.get("type") if isinstance(part, Mapping) else type(part).__name__
        if kind != "text" or not isinstance(part.get("text"), str):
            raise TemplateError(
                f"messages[{i}].content has a part of type {kind}; only text is read"
            )
        texts.append(part["text"])
    return "\n".join(texts)


def _system_into_user(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The system's text in front of the user message that follows it.

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
