"""Text of unknown origin for a terminal: nothing in it moves the cursor or hides what is written.

    visible("a\\x1b[2Jb")                           # 'a\\\\x1b[2Jb', eight characters for one
    visible(name, limit=80)                        # the middle of a long one is left out

Control characters, escape sequences, marks that change the direction of writing, invisible
characters, lone surrogates and all blanks but the space become Python's escapes, as ``repr`` writes
them. Letters of any script stay.
"""

from __future__ import annotations


def visible(text: str, keep: str = "", limit: int | None = None) -> str:
    """``text`` with escapes for everything that is not printed, but the characters to ``keep``.

    Args:
        limit: characters of the result at most, at least 8; " ... " stands for the middle.
    """
    if limit is None:
        return _escaped(text, keep)
    if len(text) > 2 * limit:  # before the work: it may be megabytes
        text = text[:limit] + text[-limit:]
    text, tail = _escaped(text, keep), (limit - 5) // 3
    return text if len(text) <= limit else f"{text[: limit - 5 - tail]} ... {text[-tail:]}"


def _escaped(text: str, keep: str) -> str:
    if text.isprintable():
        return text
    return "".join(
        c if c.isprintable() or c in keep else c.encode("unicode_escape").decode() for c in text
    )
