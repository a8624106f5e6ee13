"""Blocks in jitted code: decoders are derived from declarations, encoders made for them.

    decode_block(kind, block, y)                   # a block as block_size float32; see ``blocks``
    encode_block(kind, x, out)                     # and back; kind is a GGMLType as a literal int

Encoders are the twins of the NumPy ones that declarations name (``quants``): strict float32 in the
same order of operations, so the bytes are ggml's. A format whose declaration names one of these has
its twin; one with a search of its own adds a line to ``_TWINS``. Only the chosen format's code is
compiled into a kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import cache
from typing import Any

from numba import types
from numba.extending import intrinsic

from ....dtype import GGMLType
from ....quants.block import BLOCK_TYPES, BlockType
from ....quants.blocks_32 import encode_centred, encode_from_minimum, encode_rounded
from ....quants.iq4 import encode_nl, encode_xs
from ....quants.k_quants import ScaleMin, encode_q3_k, encode_q6_k, encode_q8_k
from ....quants.mxfp4 import encode_exponents
from ....quants.ternary import encode_ternary
from .blocks_32 import centred, from_minimum, rounded
from .iq4 import eight_scales, one_scale
from .k_quants import q3_k, q6_k, q8_k, scale_min_encoders
from .mxfp4 import exponents
from .ternary import ternary

# What makes ``encode(x, out)``, and ``encode(x, weights, out)`` with importance weights, or None
# where these change nothing; by the encoder of the declaration, or its class.
Twin = Callable[[BlockType], tuple[Any, Any]]
_TWINS: dict[Hashable, Twin] = {
    encode_centred: centred,
    encode_from_minimum: from_minimum,
    encode_rounded: rounded,
    ScaleMin: scale_min_encoders,
    encode_q3_k: q3_k,
    encode_q6_k: q6_k,
    encode_q8_k: q8_k,
    encode_nl: one_scale,
    encode_xs: eight_scales,
    encode_exponents: exponents,
    encode_ternary: ternary,
}


def _twin(f: BlockType) -> Twin | None:
    return _TWINS.get(type(f.encode)) or _TWINS.get(f.encode)


DECODED = tuple(int(type) for type in BLOCK_TYPES)
ENCODED = tuple(int(type) for type, f in BLOCK_TYPES.items() if _twin(f))


@cache
def encoders(kind: int) -> tuple[Any, Any]:
    """The jitted encoders of a type of ``ENCODED``: without and with importance weights."""
    f = BLOCK_TYPES[GGMLType(kind)]
    make = _twin(f)
    assert make is not None
    return make(f)


def _encoder(which: int, kind: Any, n: int) -> Any:
    """Typing and code of a call of a format's encoder with ``n`` addresses."""
    if not isinstance(kind, types.IntegerLiteral):
        return None
    function = encoders(kind.literal_value)[which]
    addresses = (types.int64,) * n

    def codegen(context: Any, b: Any, sig: Any, args: Any) -> Any:
        callee = context.typing_context.resolve_value_type(function)
        call = callee.get_call_type(context.typing_context, addresses, {})
        emit = context.get_function(callee, call)
        context.add_linking_libs(getattr(emit, "libs", ()))
        emit(b, args[1:])
        return context.get_dummy_value()

    return types.void(kind, *addresses), codegen


@intrinsic(prefer_literal=True)
def encode_block(typingctx: Any, kind: Any, x: Any, out: Any) -> Any:
    """float32 at ``x`` as one block at ``out``."""
    return _encoder(0, kind, 2)


@intrinsic(prefer_literal=True)
def encode_weighted(typingctx: Any, kind: Any, x: Any, weights: Any, out: Any) -> Any:
    """``encode_block`` with importance weights, float32 as many as values."""
    return _encoder(1, kind, 3)
