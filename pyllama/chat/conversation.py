"""A conversation with a model: turns of a user and of the model, in a chat format.

    talk = Conversation(lease, formats.get(), system="Be brief.")
    talk.say("Hi")
    for text in talk.reply(Settings(params)): print(text, end="")

The context keeps what was said, so each turn evaluates its own tokens only. Not thread-safe.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

from ..engine import Lease
from ..errors import TemplateError
from ..tokenizer.special import CONTROL, USER_DEFINED
from .formats import ChatFormat, ChatPrompt, check_values
from .reply import Reply, Settings


class Conversation:
    """Messages, and the context that has read them.

    Args:
        lease: the sequence that reads them.
        format: how messages are written.
        system: what the model is told first.
        values: more that the template may look at.

    Raises:
        TemplateError: a value by a name that is taken.

    Attributes:
        messages: all that was said, as dictionaries with role and content.
    """

    def __init__(
        self,
        lease: Lease,
        format: ChatFormat,
        *,
        system: str = "",
        values: Mapping[str, Any] | None = None,
    ) -> None:
        self._lease, self._format, self._values = lease, format, dict(values or {})
        check_values(self._values)
        self._system = [{"role": "system", "content": system}] if system else []
        self.messages: list[dict[str, Any]] = list(self._system)
        self._read: tuple[str, list[int]] = ("", [])  # text up to the last reply's end, and tokens

    def opening(self, text: str = "") -> list[int]:
        """Tokens that the prompts begin with: the system's message, and ``text`` of the user's.

        There are none where the template refuses such a beginning.
        """
        messages = [*self._system, *([{"role": "user", "content": text}] if text else [])]
        if not messages:
            return []
        with contextlib.suppress(TemplateError):
            values = {**self._values, "add_generation_prompt": bool(text)}
            return self._format.prompt(messages, **values).tokens
        return []

    def say(self, text: str) -> None:
        """The user's turn."""
        self.messages.append({"role": "user", "content": text})

    def unsay(self) -> None:
        """Take back the last message, where the system's is not the last."""
        if len(self.messages) > len(self._system):
            self.messages.pop()

    def clear(self) -> None:
        """Forget all but the system's message."""
        self.messages = list(self._system)

    def can_regenerate(self) -> bool:
        """Whether the last message is a reply."""
        return bool(self.messages) and self.messages[-1]["role"] == "assistant"

    def reply(self, settings: Settings) -> Iterator[str]:
        """The model's turn. What was made counts as said, also where this is left early.

        Raises:
            TemplateError: the template refuses the messages; ContextFull: they leave no room.
            Aborted: the decode was stopped.
        """
        prompt = self._format.prompt(self.messages, **self._values)
        tokens, reply = self._tokens(prompt), Reply(settings)
        try:
            said = self._n_said(tokens, settings.n_keep)
            yield from reply.stream(self._lease, tokens, prompt.stop, said)
        finally:
            if reply.text or reply.ended:
                self.messages.append(self._said(prompt.text, reply.text))
                # where the text is not the tokens', it is read again
                cut = reply.ended == "stop" or settings.special or bool(reply.rest)
                self._read = ("", []) if cut else (prompt.text + reply.text, reply.ids)

    def _n_said(self, tokens: list[int], n_keep: int | None) -> int:
        """Tokens of the last message behind what a context shift keeps; 0 where there is none."""
        if n_keep is None or len(tokens) <= self._lease.context.n_ctx_seq:
            return 0
        alone, system = self.opening(self.messages[-1]["content"]), self.opening()
        return min(len(alone) - min(n_keep, len(system)), len(tokens))

    def _said(self, prompt: str, text: str) -> dict[str, Any]:
        """The reply as a message. A format may write a space before it that the model wrote too."""
        for content in (text, text.lstrip()):
            message = {"role": "assistant", "content": content}
            with contextlib.suppress(TemplateError):
                messages = [*self.messages, message]
                values = {**self._values, "add_generation_prompt": False}
                if self._format.prompt(messages, **values).text.startswith(prompt + text):
                    return message
        return {"role": "assistant", "content": text}

    def _tokens(self, prompt: ChatPrompt) -> list[int]:
        """The prompt's tokens, for replies those that the model chose.

        Text need not be tokenized as the model chose to spell it. Where the text up to the last
        reply is what it was, and a special token follows, the tokens are kept, and so is the cache.
        """
        text, tokens = self._read
        if not text or not prompt.text.startswith(text):
            return prompt.tokens
        tokenizer = self._lease.context.model.tokenizer
        rest = tokenizer.encode(prompt.text[len(text) :], add_special=False, parse_special=True)
        if rest and tokenizer.vocab.types[rest[0]] in (CONTROL, USER_DEFINED):
            return tokens + rest
        return prompt.tokens
