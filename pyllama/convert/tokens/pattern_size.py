r"""Estimates the compiled size of a regular expression, without compiling it.

    compiled_size(r"\p{N}{1,3}")                   # 2: an atom, and a copy for the repeat
    compiled_size("(?:" * 30 + "a" + "{2})" * 30)  # over MAX_SIZE: 2 ** 30
    compiled_size("(?R)")                          # None: not a construct of tokenizers

The ``regex`` package copies the operand of a repeat as often as its minimum count, so nested
repeats take memory exponential in their depth. Only constructs used by tokenizers are supported;
others, such as recursion and fuzzy matching, are refused.
"""

from __future__ import annotations

import re

MAX_CHARS = 1 << 14  # the longest pattern of llama.cpp has 1019
MAX_SIZE = 1 << 16  # compiles in 0.1 s and 50 MB
_MAX_NESTING = 100  # of groups and sets: the package recurses into each

_TOKEN = re.compile(
    r"""
    (?P<atom> \\[pP]\{[\^\w\s=:&-]*\} | \\x\{[0-9a-fA-F]+\} | \\[^gkGKLQNXRmMZAk0-9] | \\[0-9]{1,3}
            | \[ | [^\\()\[{*+?|] )
  | (?P<open> \( (?: \?: | \?= | \?! | \?<= | \?<! | \?> | \?[ims-]{1,4}: | (?!\?|\*) ) )
  | (?P<flags> \(\?[ims-]{1,4}\) )
  | (?P<close> \) )
  | (?P<or> \| )
  | (?P<repeat> [*+?] | \{ (?P<least> [0-9]{0,5} ) (?: , [0-9]{0,5} )? \} )
    """,
    re.VERBOSE | re.DOTALL,
)
_IN_SET = re.compile(r"\[:\^?\w+:\]|\\[pP]\{[^}]*\}|\\x\{[^}]*\}|\\.|\[\^?\]?|\]|.", re.DOTALL)


def compiled_size(pattern: str) -> int | None:
    """An upper bound of the compiled atoms of a pattern; None for unsupported constructs.

    Counting stops above `MAX_SIZE`.
    """
    if len(pattern) > MAX_CHARS:
        return None
    sums, last = [0], 0  # sizes of the open groups; size of the operand of a following repeat
    at = 0
    while at < len(pattern):
        match = _TOKEN.match(pattern, at)
        if match is None:
            return None
        at, kind = match.end(), match.lastgroup
        if kind == "atom":
            last = 1
            if match[0] == "[":
                end = _end_of_set(pattern, match.start())
                if end is None:
                    return None
                last, at = end - at + 2, end
            sums[-1] += last
        elif kind == "open":
            if len(sums) > _MAX_NESTING:
                return None
            sums.append(1)
            last = 0
        elif kind == "close":
            if len(sums) == 1:
                return None
            last = sums.pop()
            sums[-1] += last
        elif kind in ("repeat", "least"):
            least = int(match["least"] or 0) if match["least"] is not None else match[0] == "+"
            more = last * int(least)
            sums[-1] += more
            last += more
        else:
            last = 0
        if sums[-1] > MAX_SIZE:
            break
    return sum(sums)


def _end_of_set(pattern: str, start: int) -> int | None:
    """The end of a character set, which may contain nested sets; None if it has none."""
    depth, at = 0, start
    while at < len(pattern):
        match = _IN_SET.match(pattern, at)
        assert match is not None
        at = match.end()
        if match[0][0] == "[" and not match[0].startswith("[:"):
            depth += 1
        elif match[0] == "]":
            depth -= 1
        if depth > _MAX_NESTING:
            return None
        if not depth:
            return at
    return None
