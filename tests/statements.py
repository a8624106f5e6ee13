"""The statements of a module, which is much less than all nodes of its tree.

for node in statements(path.read_text("utf-8")): ...  # also in functions and classes
"""

from __future__ import annotations

import ast
from collections.abc import Iterator


def statements(code: str) -> Iterator[ast.AST]:
    """Yield every statement of some source text, in its order."""
    left: list[ast.AST] = [ast.parse(code)]
    while left:
        node = left.pop()
        yield node
        parts = ("body", "handlers", "orelse", "finalbody", "cases")
        left += [one for part in parts for one in getattr(node, part, ())][::-1]
