"""Labels of boxes and the legend, escaped for DOT.

    node_label(node, 12, [])                       # "{ffn_up-3|{12|X*Y|f32 [1536]}}"

Any name is safe: quotes, backslashes, record characters and control characters are escaped.
"""

from __future__ import annotations

import html
from collections import Counter
from collections.abc import Iterable, Sequence
from enum import Enum
from typing import Any

from ..tensor import Flag, Tensor
from .style import Look, shape, symbol

_ESCAPES = str.maketrans({c: f"\\{c}" for c in '\\"{}|'} | {"<": "&lt;", ">": "&gt;", "&": "&amp;"})
_BREAK = "\\n"  # line break in DOT
_COLUMNS = 6  # columns of the legend


def printable(text: str) -> str:
    """Return a name with control characters escaped, so that it is one line."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def escape(text: str) -> str:
    """Return text escaped for a quoted DOT label, record field or tooltip."""
    return printable(text).translate(_ESCAPES)


def leaf_label(tensor: Tensor, tag: str = "") -> str:
    """Return a label of lines: name, type and sizes, meaning of the colour."""
    lines = [tensor.name, shape(tensor), *([tag] * bool(tag))]
    return _BREAK.join(map(escape, lines))


def node_label(node: Tensor, number: int, weights: Sequence[Tensor], tag: str = "") -> str:
    """Return a record: name; index, symbol, type and sizes; weights without a box; colour."""
    rows = [escape(node.name), f"{{{number}|{escape(symbol(node))}|{escape(shape(node))}}}"]
    rows += [escape(f"{w.name} {shape(w)}") for w in weights]
    rows += [escape(tag)] * bool(tag)
    return f"{{{'|'.join(rows)}}}"


def tooltip(tensor: Tensor) -> str:
    """Return the tooltip of a tensor, escaped; see ``details``."""
    return _BREAK.join(map(escape, details(tensor)))


def details(tensor: Tensor) -> list[str]:
    """Return lines with name, op and its parameters that are not False, sizes, memory, flags."""
    lines = [tensor.name]
    if tensor.op is not None:
        given = {name: x for name, x in tensor.op_params.items() if x is not False}
        params = (f"{name}={plain(value)}" for name, value in given.items())
        lines.append(f"{tensor.op.name} {', '.join(params)}".rstrip())
    lines.append(f"{shape(tensor)}, {tensor.nbytes} bytes")
    if not tensor.is_contiguous():
        lines.append(f"strides {list(tensor.nb)}")
    if tensor.view_src is not None:
        lines.append(f"memory of {tensor.view_src.name} at {tensor.view_offs} bytes")
    root = tensor.view_src or tensor
    if root.buffer is not None:
        lines.append(f"buffer {root.buffer.buft.name}")
    if tensor.flags:
        lines.append("|".join(str(flag.name).lower() for flag in Flag if flag & tensor.flags))
    return lines


def legend(title: str, looks: Iterable[Look]) -> str:
    """Return the heading: title, and a swatch for each look with its number of tensors."""
    counts = Counter(looks)
    cells = [
        f'<td bgcolor="{look.paint.fill}" color="{look.paint.line}" border="1">'
        f'<font point-size="10">{html.escape(printable(look.name))} {n}</font></td>'
        for look, n in sorted(counts.items())
    ]
    rows = [cells[i : i + _COLUMNS] for i in range(0, len(cells), _COLUMNS)]
    top = (
        f'<tr><td colspan="{_COLUMNS}"><font point-size="16"><b>'
        f"{html.escape(printable(title))}</b></font></td></tr>"
        if title
        else ""
    )
    body = "".join(f"\n    <tr>{''.join(row)}</tr>" for row in rows)
    if not top and not body:  # Graphviz does not allow tables without rows
        return ""
    return f'<table border="0" cellspacing="4" cellpadding="4">{top}{body}</table>'


def plain(value: Any) -> str:
    """Return a parameter as text without addresses: objects are shown by name."""
    if isinstance(value, Enum):
        return value.name
    if isinstance(value, float):
        return f"{value:g}"
    if value is None or isinstance(value, (bool, int, str)):
        return str(value)
    if isinstance(value, (tuple, list)):
        return f"[{', '.join(map(plain, value))}]"
    return str(getattr(value, "__name__", type(value).__name__))
