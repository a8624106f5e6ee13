"""The page ``docs/from-llama-cpp.md``: what differs from llama-cpp-python and llama.cpp.

python -m pyllama_cli.differences > docs/from-llama-cpp.md

Made of the tables that refuse and warn: `pyllama.llama.arguments` and `unsupported`.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable

from .unsupported import by_reason, tools

_HEAD = """# Coming from llama-cpp-python or llama.cpp

Made by `python -m pyllama_cli.differences > docs/from-llama-cpp.md`.

## `Llama`: from llama-cpp-python

A script moves over by changing its import: `from pyllama import Llama`. Every argument is obeyed,
or stands in one of these tables. `NotSupported` is a `ValueError`; a warning is one line of
`logging`, of the logger `pyllama.llama.arguments`. Unknown arguments raise `TypeError`.

`swa_full=None`, the default, is `False` here and `True` there: layers with a window keep only what
later tokens can see. The text is the same.
"""
_FLAGS = """## Flags: from llama.cpp

The tools take llama.cpp's flags by their names. These are not supported: a tool that is given one
says so in one line, with the reason below, and exits with code 2.
"""


def page() -> str:
    """The page, in Markdown."""
    from pyllama import Llama
    from pyllama.llama import arguments

    own = {*inspect.signature(Llama).parameters}
    parts = [_HEAD]
    rows = [
        *(
            (name, "`NotSupported`", _values(r.same), r.why)
            for name, r in arguments.REFUSED.items()
        ),
        *(
            (name, "a warning", _values(r.same), r.why)
            for name, r in arguments.WITHOUT_EFFECT.items()
        ),
        *((name, "nothing", "any", why) for name, why in arguments.IGNORED.items()),
    ]
    for title, of_constructor in (("The constructor", True), ("Completions", False)):
        chosen = [(f"`{n}`", *rest) for n, *rest in rows if (n in own) == of_constructor]
        head = ("argument", "effect", "values without it", "why")
        parts += [f"### {title}\n", _table(head, chosen)]
    parts += [_FLAGS, _table(("flags", "why"), _flags(None))]
    for tool in tools():
        parts += [f"Of `{_PROGRAMS[tool]}` alone:\n", _table(("flags", "why"), _flags(tool))]
    return "\n".join(parts).rstrip() + "\n"


_PROGRAMS = {
    "completion": "pyllama-cli",
    "convert": "pyllama-convert",
    "split": "pyllama-gguf split",
    "merge": "pyllama-gguf merge",
}


def _values(values: Iterable[object]) -> str:
    return ", ".join(f"`{value!r}`" for value in values)


def _flags(tool: str | None) -> list[tuple[str, str]]:
    return [
        (" ".join(f"`{flag}`" for flag in flags), reason)
        for reason, flags in by_reason(tool).items()
    ]


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = ["| " + " | ".join(head) + " |", "|---" * len(head) + "|"]
    lines += ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(page(), end="")
