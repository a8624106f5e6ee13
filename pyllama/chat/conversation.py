"""A conversation in a chat format: messages of the user and replies of the model.

    talk = Conversation(lease, formats.get(), system="Be brief.")
    talk.say("Hi")
    for delta in talk.reply(ReplyOptions(params)): print(delta.content, end="")

The cache keeps earlier messages, so each turn evaluates only new tokens. Not thread-safe.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from ..engine import Lease
from ..errors import TemplateError
from ..tokenizer.special import CONTROL, USER_DEFINED
from .formats import ChatFormat, check_values
from .reader import Delta, Message
from .reply import Reply, ReplyOptions
from .turn import ChatPrompt, TurnOptions


class Conversation:
    """The messages of a conversation and the sequence that evaluates them.

    Args:
        lease: the sequence.
        format: the chat format.
        system: the system message; empty for none.
        values: further variables of the template.
        reasoning_format: where the reasoning is reported, see `reasoning.ReasoningFormat`.
        reasoning_budget: maximum tokens of the reasoning; -1 for no limit.
        budget_message: text that ends the reasoning when its budget is spent.

    Raises:
        TemplateError: a variable has a reserved name.

    Attributes:
        messages: all messages, as dictionaries with role and content.
    """

    def __init__(
        self,
        lease: Lease,
        format: ChatFormat,
        *,
        system: str = "",
        values: Mapping[str, Any] | None = None,
        reasoning_format: str = "auto",
        reasoning_budget: int = -1,
        budget_message: str = "",
    ) -> None:
        self._lease, self._format = lease, format
        self._values = {"enable_thinking": True, **(values or {})}
        self._reasoning_format, self._budget = reasoning_format, reasoning_budget
        self._budget_message = budget_message
        check_values(self._values)
        self._system = [{"role": "system", "content": system}] if system else []
        self.messages: list[dict[str, Any]] = list(self._system)
        self._read: tuple[str, list[int]] = ("", [])  # text and tokens up to the last reply

    def opening(self, text: str = "") -> list[int]:
        """Tokens of the system message, followed by the user message ``text`` if not empty.

        An empty list if the template rejects such messages.
        """
        messages = [*self._system, *([{"role": "user", "content": text}] if text else [])]
        if not messages:
            return []
        with contextlib.suppress(TemplateError):
            values = {**self._values, "add_generation_prompt": bool(text)}
            return self._format.prompt(messages, **values).tokens
        return []

    def say(self, text: str) -> None:
        """Add a message of the user."""
        self.messages.append({"role": "user", "content": text})

    def unsay(self) -> None:
        """Remove the last message, but not the system message."""
        if len(self.messages) > len(self._system):
            self.messages.pop()

    def clear(self) -> None:
        """Remove all messages but the system message."""
        self.messages = list(self._system)

    def can_regenerate(self) -> bool:
        """Whether the last message is a reply."""
        return bool(self.messages) and self.messages[-1]["role"] == "assistant"

    def reply(self, options: ReplyOptions) -> Iterator[Delta]:
        """Generate the model's reply; a partial reply is added to the messages too.

        Yields:
            Pieces of reasoning and content.

        Raises:
            TemplateError: the template rejects the messages.
            ContextFull: the messages leave no room for a reply.
            Aborted: the decode was stopped.
        """
        turn = self._format.turn(
            self.messages,
            TurnOptions(reasoning_format=self._reasoning_format, values=self._values),
        )
        tokenizer = self._lease.context.model.tokenizer
        limits = turn.budget(self._budget, tokenizer, self._budget_message)
        if limits:
            options = replace(options, params=replace(options.params, **limits))
        prompt, reader = turn.prompt, turn.reader()
        tokens, reply = self._tokens(prompt), Reply(options)
        try:
            said = self._n_said(tokens, options.n_keep)
            for text in reply.stream(self._lease, tokens, prompt.stop, said, turn.shown):
                if delta := reader.feed(text):
                    delta.drafted = reply.drafted
                    yield delta
            if delta := reader.close():
                yield delta
        finally:
            reader.close()
            if reply.text or reply.ended:
                self.messages.append(self._said(prompt.text, reply.text, reader.message))
                # if text and tokens differ, the text is tokenized again
                cut = reply.ended == "stop" or options.special or bool(reply.rest)
                self._read = ("", []) if cut else (prompt.text + reply.text, reply.ids)

    def _n_said(self, tokens: list[int], n_keep: int | None) -> int:
        """Tokens of the last message that a context shift must keep; 0 without a shift."""
        if n_keep is None or len(tokens) <= self._lease.context.n_ctx_seq:
            return 0
        alone, system = self.opening(self.messages[-1]["content"]), self.opening()
        return min(len(alone) - min(n_keep, len(system)), len(tokens))

    def _said(self, prompt: str, text: str, reply: Message) -> dict[str, Any]:
        """The reply as a message, so that the format writes it as the model did.

        Some formats add the leading space that the model generated too; it is removed then.
        """
        whole = reply.openai()
        for content in (reply.content, reply.content.lstrip()):
            message = {**whole, "content": content}
            with contextlib.suppress(TemplateError):
                messages = [*self.messages, message]
                values = {**self._values, "add_generation_prompt": False}
                if self._format.prompt(messages, **values).text.startswith(prompt + text):
                    return message
        return whole

    def _tokens(self, prompt: ChatPrompt) -> list[int]:
        """The tokens of the prompt, with the generated tokens for replies.

        Tokenizing a reply may give other tokens than those generated. If the text up to the last
        reply is unchanged and a special token follows, its tokens are reused, and so is the cache.
        """
        text, tokens = self._read
        if not text or not prompt.text.startswith(text):
            return prompt.tokens
        tokenizer = self._lease.context.model.tokenizer
        rest = tokenizer.encode(prompt.text[len(text) :], add_special=False, parse_special=True)
        if rest and tokenizer.vocab.types[rest[0]] in (CONTROL, USER_DEFINED):
            return tokens + rest
        return prompt.tokens
