"""Integer division that rounds up, for counts of blocks and for alignment.

>>> ceil_div(33, 32), round_up(33, 32)
(2, 64)
"""

from __future__ import annotations

from typing import Any


def ceil_div(n: Any, unit: Any) -> Any:
    """``n / unit`` rounded up; of integers or arrays of them."""
    return -(-n // unit)


def round_up(n: int, unit: int) -> int:
    """The least multiple of ``unit`` that is at least ``n``."""
    return -(-n // unit) * unit
