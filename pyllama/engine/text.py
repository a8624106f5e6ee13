"""The text of tokens as they are chosen: whole characters, up to the first stop text.

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
    """Joins the bytes of tokens to characters, and holds back what may become a stop text.

    Args:
        tokenizer: where the tokens' bytes come from.
        stop: texts that end it; they are not part of it.
        special: spell special tokens out.
        show_stop: the whole token that completes a stop text is part of the text nevertheless.
        drop_unfinished: an unfinished character at the end is left out, else it is U+FFFD.

    Raises:
        SamplingError: an empty stop text.
    """

    def __init__(
        self,
        tokenizer: Pieces,
        stop: str | Iterable[str] = (),
        *,
        special: bool = False,
        show_stop: bool = False,
        drop_unfinished: bool = False,
    ) -> None:
        self._stream = TokenStream(tokenizer, special)
        self._stops = StopStrings(stop)
        self._show_stop, self._drop_unfinished = show_stop, drop_unfinished

    @property
    def stop(self) -> str | None:
        """The stop text that was found; nothing is emitted after it."""
        return self._stops.matched

    @property
    def n_held(self) -> int:
        """Characters that are held back; an unfinished one counts as one."""
        return self._stops.n_held + self._stream.waits

    def push(self, token: int) -> str:
        """The text that can be shown once this token has come."""
        text, stopped = self._stops.push(self._stream.push(token))
        return text + self._stops.rest if stopped and self._show_stop else text

    def flush(self) -> str:
        """The text still held back, where the tokens end without a stop text."""
        rest = self._stream.flush()
        text, _ = self._stops.push("" if self._drop_unfinished else rest)
        return text + self._stops.flush()

    def piece(self, token: int) -> str:
        """The text of one token by itself."""
        return self._stream.push(token) + self._stream.flush()
