"""Text from generated tokens: whole characters, up to the first stop string.

text = TextAssembler(tokenizer, ("User:",))
for token in tokens:
    show(text.push(token))
    if text.stop is not None: break
show(text.flush())
"""

from __future__ import annotations

from collections.abc import Iterable

from ..tokenizer import TokenStream
from ..tokenizer.detokenize import Pieces
from .stopping import StopStrings


class TextAssembler:
    """Joins the bytes of tokens to characters, and holds back beginnings of stop strings.

    Args:
        tokenizer: gives the bytes of tokens.
        stop: stop strings.
        special: include the text of special tokens: of all, or of these ids.
        include_stop: include the stop string that is found.
        drop_unfinished: drop an incomplete character at the end, instead of U+FFFD.

    Raises:
        SamplingError: a stop string is empty.
    """

    def __init__(
        self,
        tokenizer: Pieces,
        stop: str | Iterable[str] = (),
        *,
        special: bool | frozenset[int] = False,
        include_stop: bool = False,
        drop_unfinished: bool = False,
    ) -> None:
        self._stream = TokenStream(tokenizer, special)
        self._stops = StopStrings(stop)
        self._include_stop, self._drop_unfinished = include_stop, drop_unfinished

    @property
    def stop(self) -> str | None:
        """The stop string found, or None; no text follows it."""
        return self._stops.matched

    @property
    def rest(self) -> str:
        """The text after the stop string in the token that completes it."""
        return self._stops.rest

    @property
    def n_held(self) -> int:
        """Number of characters held back; an incomplete one counts as one."""
        return self._stops.n_held + self._stream.has_partial

    def push(self, token: int) -> str:
        """The text that this token completes."""
        text, stopped = self._stops.push(self._stream.push(token))
        return text + (self.stop or "") if stopped and self._include_stop else text

    def flush(self) -> str:
        """The text held back, at the end of the tokens."""
        rest = self._stream.flush()
        text, _ = self._stops.push("" if self._drop_unfinished else rest)
        return text + self._stops.flush()

    def piece(self, token: int) -> str:
        """The text of one token alone."""
        return self._stream.push(token) + self._stream.flush()
