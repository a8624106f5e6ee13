"""Formats without a tile of their own: rows become float32 and take the path of F32 weights.

    kind, decoder = tile_kind(w), decoder_of(w)    # in a lowering; 0 where a format has a tile
    if decoder != 0:                               # in a kernel of F32 weights in plain rows
        decode_rows(decoder, table, rows, k, floats)

So every format runs, row-sparse ops too, and sums have the order of F32 weights, whatever the
number of tokens. Weights of these formats meet float32 activations.
Access: rows front to back, a few at a time into thread scratch.
"""

from __future__ import annotations

from collections.abc import Container

from ....dtype import GGMLType
from ....jit import inline
from ....tensor import Tensor
from ..abi import i64_ptr
from ..codec import DECODED
from ..codec.rows import decode_columns, row_decoder
from ..layout import INTERLEAVED, ROWS
from ..simd.element import F32


def is_decoded(w: Tensor, tiled: Container[GGMLType] = INTERLEAVED) -> bool:
    """Whether a weight's rows are decoded before they are multiplied.

    Args:
        tiled: the types that need not be.
    """
    return w.type not in tiled and int(w.type) in DECODED


def tile_kind(w: Tensor, tiled: Container[GGMLType] = INTERLEAVED) -> int:
    """The type of the kernel that multiplies a weight."""
    return F32 if is_decoded(w, tiled) else int(w.type)


def decoder_of(w: Tensor, tiled: Container[GGMLType] = INTERLEAVED) -> int:
    """The address of a weight's decoder, 0 if its kernel needs none."""
    return row_decoder(int(w.type)).address if is_decoded(w, tiled) else 0


def floats_bytes(w: Tensor) -> int:
    """Bytes of scratch for 16 decoded rows."""
    return 4 * w.ne[0] * ROWS if is_decoded(w) else 0


@inline
def decode_rows(decoder, table, rows, n, floats):  # type: ignore[no-untyped-def]
    """Decode up to 16 rows of ``n`` columns to ``floats``, where ``table`` then has them.

    As after ``aim``, the last one fills up the 16.
    """
    addresses = i64_ptr(table)
    for r in range(ROWS):
        place = floats + 4 * n * min(r, rows - 1)
        if r < rows:
            decode_columns(decoder, addresses[r], place, n, 0)
        addresses[r] = place
