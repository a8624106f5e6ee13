"""A dialogue without a chat format: one text that the user and the model write in turns.

    talk = Transcript(lease, "Bob: Hi!\\nUser:", between=("", "\\nBob:"))
    talk.say(" Who are you?")
    for text in talk.reply(Settings(params, stop=("User:",), show_stop=True)): ...

Source: llama.cpp, ``llama-completion -i`` with ``--in-prefix``, ``--in-suffix``, ``-r``.
"""

from __future__ import annotations

from collections.abc import Iterator

from ..engine import Lease
from .reply import Reply, Settings


class Transcript:
    """A text that grows; the same methods as `Conversation`'s.

    Args:
        lease: the sequence that reads them.
        prompt: how the text begins.
        between: what comes before and after what the user says.
        bos: put a BOS token before what the user says.
    """

    def __init__(
        self,
        lease: Lease,
        prompt: str,
        *,
        between: tuple[str, str] = ("", ""),
        bos: bool = False,
    ) -> None:
        self._lease, self._tokenizer = lease, lease.context.model.tokenizer
        self._between, self._bos = between, bos
        self._prompt = self._tokenizer.encode(prompt, add_special=True, parse_special=True)
        self._ids = list(self._prompt)
        self._turns: list[int] = []  # where each turn begins in the tokens
        self._replied = False

    def opening(self, text: str = "") -> list[int]:
        """Tokens of the prompt."""
        return list(self._prompt)

    def say(self, text: str) -> None:
        """The user's turn; no text lets the model go on where it is."""
        self._turns.append(len(self._ids))
        self._replied = False
        if not text:
            return
        if self._bos and self._tokenizer.bos is not None:
            self._ids.append(self._tokenizer.bos)
        for part, special in zip(
            (self._between[0], text, self._between[1]), (1, 0, 1), strict=True
        ):
            self._ids += self._tokenizer.encode(part, False, bool(special))

    def unsay(self) -> None:
        """Take back the last turn."""
        if self._turns:
            del self._ids[self._turns.pop() :]
        self._replied = False

    def clear(self) -> None:
        """Forget all but the prompt."""
        self._ids, self._turns, self._replied = list(self._prompt), [], False

    def can_regenerate(self) -> bool:
        """Whether the last turn is the model's."""
        return self._replied

    def reply(self, settings: Settings) -> Iterator[str]:
        """The model's turn. Where its text just ends, the first stop text is put behind it.

        Raises:
            ContextFull, BatchError: there is no room, or no text to continue; Aborted: stopped.
        """
        reply = Reply(settings)
        begin = len(self._ids)
        try:
            said = begin - (self._turns[-1] if self._turns else 0)
            yield from reply.stream(self._lease, self._ids, n_last=said)
            if reply.ended == "eog" and settings.stop:
                behind = self._tokenizer.encode(settings.stop[0], False, True)
                reply.tokens += behind
                reply.ids += behind
                yield settings.stop[0]
        finally:
            rest = self._tokenizer.encode(reply.rest, False, True)
            if reply.tokens or rest:
                forgotten = begin + len(reply.tokens) - len(reply.ids)
                least = settings.n_keep or 0
                self._turns = [max(t - forgotten, least) for t in (*self._turns, begin)]
                self._ids = reply.ids + rest
                self._replied = True
