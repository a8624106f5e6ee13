"""Blocks in jitted code: decoders derived from declarations, and encoders.

    row_decoder(Q4_K).address                      # a row of blocks as float32; see ``rows``
    row_encoder(Q4_K).address                      # and back; see ``encoders``

Decoders exist for all formats. ``encoders`` registers its own here, so that kernels, which call
them by address, do not depend on their sources: a new encoder outdates no other code.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ....compiler.jit import CpuKernel
from ....quants import BLOCK_TYPES

DECODED = tuple(int(type) for type in BLOCK_TYPES)
# Of each format with an encoder: the function that makes it, without or with importance weights.
ENCODED: dict[int, Callable[[bool], CpuKernel | None]] = {}


def row_encoder(kind: int, weighted: bool = False) -> Any:
    """The encoder of a format of ``ENCODED``: (x, row, n, 0), see ``rows.encode_row``.

    With importance weights: (x, row, n, weights of the values), or None if they change nothing.
    """
    return ENCODED[kind](weighted)
