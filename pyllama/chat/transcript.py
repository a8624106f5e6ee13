"""A dialogue without a chat format: a text that user and model continue alternately.

    talk = Transcript(lease, "Bob: Hi!\\nUser:", between=("", "\\nBob:"))
    talk.say(" Who are you?")
    params = SamplingParams(include_stop_str_in_output=True)
    for delta in talk.reply(ReplyOptions(params, stop=("User:",))): ...

Source: llama.cpp, ``llama-completion -i`` with ``--in-prefix``, ``--in-suffix``, ``-r``.
"""

from __future__ import annotations

from collections.abc import Iterator

from ..engine import Lease
from .reader import Delta
from .reply import Reply, ReplyOptions


class Transcript:
    """A growing text, with the methods of `Conversation`.

    Args:
        lease: the sequence.
        prompt: beginning of the text.
        between: prefix and suffix of the user's text.
        bos: add a BOS token before the user's text.
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
        """Add the user's text; without text the model continues."""
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
        """Remove the last turn."""
        if self._turns:
            del self._ids[self._turns.pop() :]
        self._replied = False

    def clear(self) -> None:
        """Remove all but the prompt."""
        self._ids, self._turns, self._replied = list(self._prompt), [], False

    def can_regenerate(self) -> bool:
        """Whether the last turn is a reply."""
        return self._replied

    def reply(self, options: ReplyOptions) -> Iterator[Delta]:
        """Generate the model's reply; adds the first stop string after an end of generation.

        Yields:
            Pieces of text.

        Raises:
            ContextFull: there is no room for a reply.
            BatchError: there is no text to continue.
            Aborted: the decode was stopped.
        """
        reply = Reply(options)
        begin = len(self._ids)
        try:
            said = begin - (self._turns[-1] if self._turns else 0)
            for text in reply.stream(self._lease, self._ids, n_last=said):
                yield Delta(text, drafted=reply.drafted)
            if reply.ended == "eog" and options.stop:
                suffix = self._tokenizer.encode(options.stop[0], False, True)
                reply.tokens += suffix
                reply.ids += suffix
                yield Delta(options.stop[0])
        finally:
            rest = self._tokenizer.encode(reply.rest, False, True)
            if reply.tokens or rest:
                n_removed = begin + len(reply.tokens) - len(reply.ids)
                n_keep = options.n_keep or 0
                self._turns = [max(t - n_removed, n_keep) for t in (*self._turns, begin)]
                self._ids = reply.ids + rest
                self._replied = True
