"""Writes the tables of ``docs/from-llama-cpp.md``: what differs from the two libraries.

    python -m pyllama_cli.differences docs/from-llama-cpp.md

Sources are the tables in `pyllama.llama.arguments` and `unsupported`.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterable
from pathlib import Path

from .unsupported import by_reason, tools

_PROGRAMS = {
    "completion": "pyllama-cli",
    "convert": "pyllama-convert",
    "split": "pyllama-gguf split",
    "merge": "pyllama-gguf merge",
}


def with_tables(page: str) -> str:
    """Replace the generated tables of the page; each is between two HTML comments."""
    for name, table in {"arguments": _arguments(), "flags": _all_flags()}.items():
        before, begin, rest = page.partition(f"<!-- generated: {name} -->\n")
        page = before + begin + table + rest[rest.index("<!-- end -->") :]
    return page


def _arguments() -> str:
    from pyllama import Llama
    from pyllama.llama import arguments

    own = {*inspect.signature(Llama).parameters}
    rows = [
        *((n, "a warning", _values(r.same), r.why) for n, r in arguments.WITHOUT_EFFECT.items()),
        *((name, "nothing", "any", why) for name, why in arguments.IGNORED.items()),
    ]
    parts = []
    for title, of_constructor in (("The constructor", True), ("Completions", False)):
        chosen = [(f"`{n}`", *rest) for n, *rest in rows if (n in own) == of_constructor]
        head = ("argument", "effect", "accepted values", "reason")
        parts.append(f"### {title}\n\n{_table(head, chosen)}")
    return "\n".join(parts)


def _values(values: Iterable[object]) -> str:
    return ", ".join(f"`{value!r}`" for value in values)


def _all_flags() -> str:
    parts = [_flags(None)]
    parts += [f"Only `{_PROGRAMS[tool]}`:\n\n{_flags(tool)}" for tool in tools()]
    return "\n".join(parts)


def _flags(tool: str | None) -> str:
    shown = {reason: " ".join(f"`{f}`" for f in flags) for reason, flags in by_reason(tool).items()}
    return _table(("flags", "reason"), [(flags, reason) for reason, flags in shown.items()])


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = ["| " + " | ".join(head) + " |", "|---" * len(head) + "|"]
    lines += ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    path = Path(sys.argv[1])
    path.write_text(with_tables(path.read_text(encoding="utf-8")), encoding="utf-8")
