"""Drafters with another vocabulary: tokens are compared or translated by their text.

    reason = mismatch(target, draft)        # None: the same ids, llama.cpp's rule
    drafter = Translated(inner, target, draft)      # proposes tokens of the target

`Translated` gives its inner drafter texts in the draft's vocabulary, and translates what it
proposes: as point masses, since no distribution over the target's tokens is known. The tokens are
always verified, so a translation that is not exact costs speed and nothing else. The last tokens of
the texts that the inner drafter sees may change, because a word may be cut otherwise once it is
complete.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

from ..errors import TokenizerError
from ..tokenizer import Tokenizer
from .draft import Costs, Draft, Drafter, DraftView

MAX_SIZE_DIFFERENCE = 128
FIRST_COMPARED = 5  # the ids before are special tokens, whose texts differ

_KEPT, _TAIL = 32, 128  # bytes: a longer tail is cut before a space, and so much of it is kept
_CONTEXT = 12  # tokens of the target that are encoded again with a proposal


def mismatch(target: Tokenizer, draft: Tokenizer) -> str | None:
    """Why ids of one vocabulary are not those of the other; None if they are.

    Source: llama.cpp, ``common_speculative_are_compatible``.
    """
    a, b = target.vocab, draft.vocab
    if a.model != b.model:
        return f"the vocabularies' types differ: {a.model} and {b.model}"
    if a.begin != b.begin:
        return f"the first tokens of a text differ: {a.begin} and {b.begin}"
    if a.end != b.end:
        return f"the last tokens of a text differ: {a.end} and {b.end}"
    if abs(target.n_vocab - draft.n_vocab) > MAX_SIZE_DIFFERENCE:
        return f"the vocabularies have {target.n_vocab} and {draft.n_vocab} tokens"
    pairs = zip(a.tokens[FIRST_COMPARED:], b.tokens[FIRST_COMPARED:], strict=False)
    for i, (one, other) in enumerate(pairs, FIRST_COMPARED):
        if one != other:
            return f"token {i} is {one!r} in one vocabulary and {other!r} in the other"
    return None


def special_ids(source: Tokenizer, other: Tokenizer) -> dict[int, int]:
    """The tokens with a role, such as the end of a text or turn, and those of the same role."""
    ids: dict[int, int] = {}
    for role, token in source.vocab.roles.items():
        same = other.vocab.roles.get(role)
        if same is None and token in source.eog:
            same = other.eos if other.eot is None else other.eot
        if same is not None:
            ids.setdefault(token, same)
    return ids


def translated_bias(
    bias: Mapping[int, float], target: Tokenizer, draft: Tokenizer
) -> dict[int, float]:
    """A logit bias of the target's tokens for those of a draft; without what the draft lacks."""
    if mismatch(target, draft) is None:
        n = min(target.n_vocab, draft.n_vocab)
        return {token: value for token, value in bias.items() if token < n}
    special, found = special_ids(target, draft), dict[int, float]()
    for token, value in bias.items():
        piece = target.token_to_piece(token) if token < target.n_vocab else b""
        same = [one for one, _ in encoded(draft, piece) or ()] if piece else [special.get(token)]
        if len(same) == 1 and same[0] is not None:
            found[same[0]] = value
    return found


class TextInVocabulary:
    """A growing text of one vocabulary in the tokens of another.

    Args:
        source: the vocabulary of the tokens that are appended.
        other: the vocabulary of ``tokens()``.
    """

    def __init__(self, source: Tokenizer, other: Tokenizer) -> None:
        self._source, self._other = source, other
        self._special = special_ids(source, other)
        self._done: list[int] = []  # tokens that do not change any more
        self._tail = b""  # the text after them
        self._begins = True
        self.n_read = 0
        self.last = -1  # the last token that was appended
        begin = other.vocab.begin
        if begin is not None:
            self._done.append(begin)

    def append(self, token: int) -> None:
        """Add a token of the source."""
        self.n_read, self.last = self.n_read + 1, token
        piece = self._source.token_to_piece(token)
        if piece:
            if self._begins and self._source.vocab.add_space_prefix:
                piece = piece.removeprefix(b" ")  # not of the text
            self._tail, self._begins = self._tail + piece, False
        elif token in self._special or self._same_text(token) is not None:
            self._done += self._encoded(self._tail)
            self._tail = b""
            same = self._special.get(token, self._same_text(token))
            if same is not None and self._done[-1:] != [same]:  # BOS is there already
                self._done.append(same)
        if len(self._tail) > _TAIL:
            cut = self._tail.rfind(b" ", 1, len(self._tail) - _KEPT)
            cut = cut if cut > 0 else len(_whole(self._tail))
            self._done += self._encoded(self._tail[:cut])
            self._tail = self._tail[cut:]

    def tokens(self) -> tuple[list[int], bytes]:
        """The text up to its last whole character, and the bytes of an incomplete one."""
        whole = _whole(self._tail)
        return self._done + self._encoded(whole), self._tail[len(whole) :]

    def _same_text(self, token: int) -> int | None:
        return self._other.text_to_id(self._source.vocab.tokens[token])

    def _encoded(self, text: bytes) -> list[int]:
        found = encoded(self._other, text)
        if found is not None:
            return [token for token, _ in found]
        try:  # the nearest that the vocabulary can say
            return self._other.encode(text.decode("utf-8", "replace"), add_special=False)
        except TokenizerError:
            return []


def _whole(text: bytes) -> bytes:
    """The text without an incomplete last character."""
    for n in range(1, min(4, len(text)) + 1):
        byte = text[-n]
        if byte & 0xC0 != 0x80:  # not a continuation: the last character begins here
            size = 1 if byte < 0xC0 else 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
            return text[:-n] if n < size else text
    return text


def encoded(tokenizer: Tokenizer, text: bytes) -> list[tuple[int, int]] | None:
    """Tokens of a part of a text, each with the position of its end in the text.

    The space that some tokenizers add before a text is the text's own first space if it has one,
    and is not counted in the positions.

    Returns:
        None if the tokens do not have this text.
    """
    for part in (text, text[1:]) if text[:1] == b" " else (text,):
        try:
            tokens = tokenizer.encode(part.decode("utf-8", "replace"), add_special=False)
        except TokenizerError:
            return None
        pieces = [tokenizer.token_to_piece(token) for token in tokens]
        joined, ends = b"".join(pieces), list(accumulate(map(len, pieces)))
        if joined == text:
            return list(zip(tokens, ends, strict=True))
        if joined == b" " + text and text[:1] != b" ":
            pairs = [(token, end - 1) for token, end in zip(tokens, ends, strict=True)]
            return pairs if pieces[0] != b" " else pairs[1:]
    return None


@dataclass(slots=True)
class _InnerView:
    id: int
    tokens: list[int]
    matcher: None = None  # the grammar is one of the target's tokens
    sequence_id: int | None = None


@dataclass
class Translated:
    """A drafter for a target with another vocabulary.

    Args:
        inner: proposes tokens of ``draft``.
        target: the vocabulary of the texts.
        draft: the vocabulary of the inner drafter.
    """

    inner: Drafter
    target: Tokenizer
    draft: Tokenizer
    _texts: dict[int, TextInVocabulary] = field(default_factory=dict, init=False, repr=False)

    @property
    def costs(self) -> Costs | None:
        """Those of the inner drafter."""
        return getattr(self.inner, "costs", None)

    def propose(self, views: Sequence[DraftView], max_nodes: Sequence[int]) -> list[Draft | None]:
        found = [self._text(view).tokens() for view in views]
        inner = [
            _InnerView(view.id, tokens) for view, (tokens, _) in zip(views, found, strict=True)
        ]
        drafts = self.inner.propose(inner, max_nodes)
        return [
            self._translated(view, draft, partial, n)
            for view, draft, (_, partial), n in zip(views, drafts, found, max_nodes, strict=True)
        ]

    def accepted(self, view: DraftView, path: Sequence[int]) -> None:
        """See `Drafter.accepted`; the inner drafter sees the tokens in its next text."""

    def release(self, view: DraftView) -> None:
        tokens, _ = self._text(view).tokens()
        del self._texts[view.id]
        self.inner.release(_InnerView(view.id, tokens))

    def _text(self, view: DraftView) -> TextInVocabulary:
        text = self._texts.get(view.id)
        n = 0 if text is None else text.n_read
        if text is None or n > len(view.tokens) or (n and view.tokens[n - 1] != text.last):
            text = self._texts[view.id] = TextInVocabulary(self.target, self.draft)
        for token in view.tokens[text.n_read :]:
            text.append(token)
        return text

    def _translated(
        self, view: DraftView, draft: Draft | None, partial: bytes, n: int
    ) -> Draft | None:
        if draft is None or not len(draft):
            return None
        children, node, text = draft.children(), 0, b""
        ending: list[int] = []
        special = special_ids(self.draft, self.target)
        while True:  # the first path of a tree
            token = draft.tokens[node]
            piece = self.draft.token_to_piece(token)
            if not piece:
                same = special.get(token)
                ending = [same] if same is not None else []
                break
            text += piece
            if not children[node + 1]:
                break
            node = children[node + 1][0]
        if not text.startswith(partial):
            return None
        tokens = (self._in_target(view.tokens, text[len(partial) :]) + ending)[:n]
        return Draft.chain(tokens) if tokens else None

    def _in_target(self, before: Sequence[int], text: bytes) -> list[int]:
        """The target's tokens of a text that follows others; [] if they are not whole tokens."""
        pieces = [self.target.token_to_piece(token) for token in before[-_CONTEXT:]]
        for i in range(len(pieces) - 1, -1, -1):
            if not pieces[i]:  # a special token: the text begins after it
                pieces = pieces[i + 1 :]
                break
        while pieces and pieces[0][0] & 0xC0 == 0x80:  # the middle of a character
            del pieces[0]
        context = b"".join(pieces)
        found = encoded(self.target, _whole(context + text))
        if found is None:
            return []
        ends = [0, *(end for _, end in found)]
        if len(context) not in ends:
            return []
        return [token for token, end in found if end > len(context)]
