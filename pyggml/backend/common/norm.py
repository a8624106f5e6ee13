"""When a kernel may apply a weight and a bias while it writes the rows of a norm."""

from __future__ import annotations

from ...tensor import Tensor
from .lowering import all_f32
from .memory import may_write_over, overlap


def norm_rows(norm: Tensor, *more: Tensor, total: Tensor | None = None) -> list[Tensor] | None:
    """The weight, and the bias if there is one, that a norm's kernel can apply.

    Args:
        more: the MUL, and the ADD, after the norm; the last one's memory is written.
        total: the ADD before it, if the kernel computes that too.

    Returns:
        None if they must be computed one by one.
    """
    dst, rows = more[-1], [w for node in more if (w := node.src[1]) is not None]
    chain = all(node.src[0] is before for before, node in zip((norm, *more), more, strict=False))
    if not chain or not all(all_f32(node) for node in (norm, *more)):
        return None
    sources = norm.src if total is None else total.src
    if not all(may_write_over(dst, x) for x in sources if x is not None):
        return None
    for w in rows:
        if w in (total, norm, *more) or w.ne[0] != norm.ne[0] or overlap(w, dst):
            return None
        if total is not None and overlap(w, total):
            return None
    return rows
