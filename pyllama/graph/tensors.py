"""Tables of the tensors of architectures.

    TENSORS = tensors({"blk.{i}.attn_q.*?": ("n_embd", "n_embd_q")})

A star stands for the weight and its bias, as in ``CONVERT``; ``.*?`` for a bias that variants may
lack. A matrix's bias has the sizes of its rows' outputs, a norm's those of its weight.
"""

from __future__ import annotations

from collections.abc import Mapping

Sizes = tuple[str, ...]


def tensors(table: Mapping[str, Sizes]) -> dict[str, Sizes]:
    """The table with a name for each tensor, in the same order."""
    named: dict[str, Sizes] = {}
    for pattern, sizes in table.items():
        stem, star, optional = pattern.partition(".*")
        if star:
            named[f"{stem}.weight"] = sizes
            named[f"{stem}.bias{optional}"] = sizes[1:] or sizes
        else:
            named[pattern] = sizes
    return named
