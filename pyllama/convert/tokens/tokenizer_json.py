r"""Cuts text into words as the normalizer and pre_tokenizer sections of a ``tokenizer.json`` do.

    reader = Steps(Budget())
    reader.words({"type": "Digits", "individual_digits": True}, None, "in 2026")
    # ['in ', '2', '0', '2', '6']
    reader.unread               # names of unsupported steps: []

For texts of a few hundred characters. The file is untrusted: the total time of all regular
expressions and the compiled size of each are limited, and unsupported or invalid steps are listed
in `TextSteps.unread` instead of raising.

Source: the ``tokenizers`` library, ``pre_tokenizers`` and ``SplitDelimiterBehavior``.
"""

from __future__ import annotations

import time
import unicodedata
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from ...inputs.budget import ReadBudget, shown
from ...tokenizer.boundaries import SPACE
from .pattern_size import MAX_SIZE, compiled_size

Section = Mapping[str, Any]
# The pieces of a text in order, and whether the pattern matched each.
Marked = list[tuple[str, bool]]

_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_PUNCTUATION = r"[!-/:-@\[-`{-~\p{P}]"
_MAX_STEPS = 100
_MAX_CHARS = 2000


class _Unsupported(Exception):
    """A section that is invalid or not supported."""


class TextSteps:
    """Applies the steps of the sections to a text.

    Args:
        budget: limits the time of regular expressions.

    Attributes:
        byte_level: whether a step maps bytes to GPT-2's alphabet.
        prefixes_space: whether a step adds a space before a text; `words` does not.
        unread: types of unsupported or invalid steps.
    """

    def __init__(self, budget: ReadBudget) -> None:
        self.budget = budget
        self.byte_level = False
        self.prefixes_space = False
        self.unread: list[str] = []

    def words(self, pre_tokenizer: Any, normalizer: Any, text: str) -> list[str]:
        """The words of a text, as characters also for byte-level models."""
        with self.budget.pattern_time() as seconds:
            return self._words(pre_tokenizer, normalizer, text, _Matcher(seconds))

    def _words(self, pre_tokenizer: Any, normalizer: Any, text: str, m: _Matcher) -> list[str]:
        for section in self._flat(normalizer, "normalizers"):
            normalized = self._follow(_NORMALIZERS, section, text, text, m)
            if len(normalized) > _MAX_CHARS:
                self._note(section.get("type"))
            else:
                text = normalized
        words = [text]
        for section in self._flat(pre_tokenizer, "pretokenizers"):
            if section.get("type") == "ByteLevel":
                self.byte_level = True
                self.prefixes_space |= bool(section.get("add_prefix_space", True))
            words = [
                piece
                for word in words
                for piece in self._follow(_PRE_TOKENIZERS, section, word, [word], m)
                if piece
            ]
        return words

    def _flat(self, section: Any, inner: str) -> Iterable[Section]:
        """The steps of a section, with nested sequences flattened."""
        waiting, n_steps = [section], 0
        while waiting and n_steps < _MAX_STEPS:
            section, n_steps = waiting.pop(0), n_steps + 1
            if isinstance(section, Mapping) and section.get("type") == "Sequence":
                steps = section.get(inner)
                waiting[:0] = steps if isinstance(steps, list) else [steps]
            elif isinstance(section, Mapping):
                yield section
            elif section is not None:
                self._note(type(section).__name__)

    def _follow(
        self, steps: Mapping[str, Any], section: Section, text: str, otherwise: Any, m: _Matcher
    ) -> Any:
        kind = section.get("type")
        try:
            if not isinstance(kind, str) or kind not in steps or m.seconds_left <= 0:
                raise _Unsupported
            return steps[kind](section, text, m)
        except _Unsupported:
            self._note(kind)
            return otherwise

    def _note(self, kind: Any) -> None:
        name = kind[:40] if isinstance(kind, str) else shown(kind, 40)
        if name not in self.unread:
            self.unread.append(name)


class _Matcher:
    """Matches regular expressions within a time limit.

    Args:
        seconds: total time.
    """

    def __init__(self, seconds: float) -> None:
        self._end = time.monotonic() + seconds
        self._compiled: dict[str, Any] = {}  # None: refused

    @property
    def seconds_left(self) -> float:
        """Time left; 0 or less if the limit is reached."""
        return self._end - time.monotonic()

    def mark(self, pattern: str, text: str) -> Marked:
        """Matches and the gaps between them; an empty match is a cut."""
        if pattern not in self._compiled:
            self._compiled[pattern] = _compile(pattern)
        compiled, seconds = self._compiled[pattern], self.seconds_left
        if compiled is None or seconds <= 0:
            raise _Unsupported
        marked: Marked = []
        end = 0
        try:
            for match in compiled.finditer(text, timeout=seconds):
                marked += [(text[end : match.start()], False), (match.group(), True)]
                end = match.end()
        except (TimeoutError, RecursionError, OverflowError, MemoryError):
            raise _Unsupported from None
        return [*marked, (text[end:], False)]


def _compile(pattern: str) -> Any:
    """The compiled regular expression, or None if it is invalid or too large."""
    import regex

    size = compiled_size(pattern)
    if size is None or size > MAX_SIZE:
        return None
    try:
        # V1 syntax has nested sets and intersections, as Oniguruma
        return regex.compile(pattern, regex.V1)
    except (regex.error, RecursionError, OverflowError, MemoryError, ValueError, LookupError):
        return None


def _joined(marked: Marked, joins: Callable[[bool, bool | None], bool]) -> list[str]:
    """The pieces, with those joined to the one before for which ``joins(matched, before)``."""
    pieces: list[str] = []
    before = None
    for piece, matched in marked:
        if pieces and joins(matched, before):
            pieces[-1] += piece
        else:
            pieces.append(piece)
        before = matched
    return pieces


def _merged_with_previous(marked: Marked) -> list[str]:
    return _joined(marked, lambda matched, before: matched and not before)


def _merged_with_next(marked: Marked) -> list[str]:
    mirrored = [(piece[::-1], matched) for piece, matched in reversed(marked)]
    return [piece[::-1] for piece in reversed(_merged_with_previous(mirrored))]


_BEHAVIORS: dict[str, Callable[[Marked], list[str]]] = {
    "Isolated": lambda marked: [piece for piece, _ in marked],
    "Removed": lambda marked: [piece for piece, matched in marked if not matched],
    "Contiguous": lambda marked: _joined(marked, lambda matched, before: matched == before),
    "MergedWithPrevious": _merged_with_previous,
    "MergedWithNext": _merged_with_next,
}


def _cut(m: _Matcher, pattern: str, behavior: Any, text: str, invert: bool = False) -> list[str]:
    if not isinstance(behavior, str) or behavior not in _BEHAVIORS:
        raise _Unsupported
    return _BEHAVIORS[behavior](
        [(piece, matched != invert) for piece, matched in m.mark(pattern, text) if piece]
    )


def _pattern(section: Section) -> str:
    import regex

    pattern = section.get("pattern")
    if isinstance(pattern, Mapping):
        if isinstance(text := pattern.get("Regex"), str):
            return text
        if isinstance(text := pattern.get("String"), str):
            return str(regex.escape(text))
    raise _Unsupported


def _text(section: Section, key: str, default: str | None = None) -> str:
    value = section.get(key, default)
    if not isinstance(value, str):
        raise _Unsupported
    return value


def _split_at_character(section: Section, text: str, m: _Matcher) -> list[str]:
    delimiter = _text(section, "delimiter")
    if len(delimiter) != 1:
        raise _Unsupported
    return text.split(delimiter)


def _metaspace(section: Section, text: str, m: _Matcher) -> list[str]:
    import regex

    space = _text(section, "replacement", SPACE)
    if len(space) != 1:
        raise _Unsupported
    text = text.replace(" ", space)
    scheme = section.get("prepend_scheme", "always")
    if section.get("add_prefix_space", True) and scheme != "never" and not text.startswith(space):
        text = space + text
    if not section.get("split", True):
        return [text]
    return _cut(m, regex.escape(space), "MergedWithNext", text)


def _replace(section: Section, text: str, m: _Matcher) -> str:
    content = _text(section, "content")
    marked = m.mark(_pattern(section), text)
    if sum(len(content) if matched else len(piece) for piece, matched in marked) > _MAX_CHARS:
        raise _Unsupported
    return "".join(content if matched else piece for piece, matched in marked)


def _prepend(section: Section, text: str, m: _Matcher) -> str:
    before = _text(section, "prepend")
    if len(before) > _MAX_CHARS:
        raise _Unsupported
    return before + text if text else text


def _strip(section: Section, text: str, m: _Matcher) -> str:
    text = text.lstrip() if section.get("strip_left", True) else text
    return text.rstrip() if section.get("strip_right", True) else text


_PRE_TOKENIZERS: dict[str, Callable[[Section, str, _Matcher], list[str]]] = {
    "Split": lambda s, text, m: _cut(
        m, _pattern(s), s.get("behavior"), text, invert=bool(s.get("invert", False))
    ),
    "ByteLevel": lambda s, text, m: (
        _cut(m, _GPT2, "Isolated", text) if s.get("use_regex", True) else [text]
    ),
    "Digits": lambda s, text, m: _cut(
        m, r"\p{N}", "Isolated" if s.get("individual_digits", False) else "Contiguous", text
    ),
    "Punctuation": lambda s, text, m: _cut(m, _PUNCTUATION, s.get("behavior", "Isolated"), text),
    "Whitespace": lambda s, text, m: _cut(m, r"\w+|[^\w\s]+", "Removed", text, invert=True),
    "WhitespaceSplit": lambda s, text, m: _cut(m, r"\s", "Removed", text),
    "BertPreTokenizer": lambda s, text, m: [
        piece
        for word in _cut(m, r"\s", "Removed", text)
        for piece in _cut(m, _PUNCTUATION, "Isolated", word)
    ],
    "CharDelimiterSplit": _split_at_character,
    "Metaspace": _metaspace,
}

_NORMALIZERS: dict[str, Callable[[Section, str, _Matcher], str]] = {
    "NFC": lambda s, text, m: unicodedata.normalize("NFC", text),
    "NFD": lambda s, text, m: unicodedata.normalize("NFD", text),
    "NFKC": lambda s, text, m: unicodedata.normalize("NFKC", text),
    "NFKD": lambda s, text, m: unicodedata.normalize("NFKD", text),
    "Lowercase": lambda s, text, m: text.lower(),
    "Prepend": _prepend,
    "Replace": _replace,
    "Strip": _strip,
    "StripAccents": lambda s, text, m: "".join(
        char for char in text if unicodedata.category(char) != "Mn"
    ),
}
