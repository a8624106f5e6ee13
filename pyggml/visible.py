"""Escapes untrusted text for a terminal, so that it cannot control the terminal or hide text.

    visible("a\\x1b[2Jb")                           # 'a\\\\x1b[2Jb'
    visible(name, limit=80)                        # a long text is shortened in the middle

Control characters, escape sequences, direction marks, invisible characters, lone surrogates and
white space other than the space become escapes, as in ``repr``. Letters of any script are kept.
"""

from __future__ import annotations


def visible(text: str, keep: str = "", limit: int | None = None) -> str:
    """Return ``text`` with all nonprintable characters escaped, except those in ``keep``.

    Args:
        limit: maximum length of the result, at least 8; " ... " replaces the middle.
    """
    if limit is None:
        return _escaped(text, keep)
    if len(text) > 2 * limit:  # first, since the text may have megabytes
        text = text[:limit] + text[-limit:]
    text, tail = _escaped(text, keep), (limit - 5) // 3
    return text if len(text) <= limit else f"{text[: limit - 5 - tail]} ... {text[-tail:]}"


def _escaped(text: str, keep: str) -> str:
    if text.isprintable():
        return text
    return "".join(
        c if c.isprintable() or c in keep else c.encode("unicode_escape").decode() for c in text
    )
