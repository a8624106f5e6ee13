"""Block formats in jitted code: a file a format, and the choice by a literal kind.

    encode_block(kind, x, out)                     # block_size float32 at x -> a block at out
    decode_block(kind, block, y)                   # and back; kind is a GGMLType as a literal int

A format's functions are the twins of its NumPy ones in ``quants``: strict float32 in the same order
of operations, so the bytes are ggml's. Only the chosen format's code is compiled into a kernel.
To add a format: its file, and a line of ``CODECS``, or of ``SPLIT`` for one with a codebook.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from numba import types
from numba.extending import intrinsic

from ....dtype import GGMLType
from .codebook import decoder
from .iq1_m import split_iq1_m
from .iq1_s import split_iq1_s
from .iq2_s import split_iq2_s
from .iq2_xs import split_iq2_xs
from .iq2_xxs import split_iq2_xxs
from .iq3_s import split_iq3_s
from .iq3_xxs import split_iq3_xxs
from .iq4_nl import decode_iq4_nl, encode_iq4_nl, encode_iq4_nl_weighted
from .iq4_xs import decode_iq4_xs, encode_iq4_xs, encode_iq4_xs_weighted
from .mxfp4 import decode_mxfp4, encode_mxfp4
from .q2_k import decode_q2_k, encode_q2_k, encode_q2_k_weighted
from .q3_k import decode_q3_k, encode_q3_k, encode_q3_k_weighted
from .q4_0 import decode_q4_0, encode_q4_0, encode_q4_0_weighted
from .q4_1 import decode_q4_1, encode_q4_1, encode_q4_1_weighted
from .q4_k import decode_q4_k, encode_q4_k, encode_q4_k_weighted
from .q5_0 import decode_q5_0, encode_q5_0, encode_q5_0_weighted
from .q5_1 import decode_q5_1, encode_q5_1, encode_q5_1_weighted
from .q5_k import decode_q5_k, encode_q5_k, encode_q5_k_weighted
from .q6_k import decode_q6_k, encode_q6_k, encode_q6_k_weighted
from .q8_0 import decode_q8_0, encode_q8_0
from .q8_k import decode_q8_k, encode_q8_k
from .tq1_0 import decode_tq1_0, encode_tq1_0
from .tq2_0 import decode_tq2_0, encode_tq2_0


@dataclass(frozen=True)
class Codec:
    """A format's jitted functions, all on addresses.

    Args:
        decode: ``decode(block, y)``.
        encode: ``encode(x, out)``; None where a format is only read.
        encode_weighted: ``encode(x, weights, out)``: the search with importance weights, which are
            those that ``quantize_blocks`` takes; None where weights change nothing.
    """

    decode: Any
    encode: Any = None
    encode_weighted: Any = None


CODECS = {
    int(GGMLType.Q8_0): Codec(decode_q8_0, encode_q8_0),
    int(GGMLType.Q4_0): Codec(decode_q4_0, encode_q4_0, encode_q4_0_weighted),
    int(GGMLType.Q4_1): Codec(decode_q4_1, encode_q4_1, encode_q4_1_weighted),
    int(GGMLType.Q5_0): Codec(decode_q5_0, encode_q5_0, encode_q5_0_weighted),
    int(GGMLType.Q5_1): Codec(decode_q5_1, encode_q5_1, encode_q5_1_weighted),
    int(GGMLType.Q4_K): Codec(decode_q4_k, encode_q4_k, encode_q4_k_weighted),
    int(GGMLType.Q5_K): Codec(decode_q5_k, encode_q5_k, encode_q5_k_weighted),
    int(GGMLType.Q2_K): Codec(decode_q2_k, encode_q2_k, encode_q2_k_weighted),
    int(GGMLType.Q3_K): Codec(decode_q3_k, encode_q3_k, encode_q3_k_weighted),
    int(GGMLType.Q6_K): Codec(decode_q6_k, encode_q6_k, encode_q6_k_weighted),
    int(GGMLType.Q8_K): Codec(decode_q8_k, encode_q8_k),
    int(GGMLType.IQ4_NL): Codec(decode_iq4_nl, encode_iq4_nl, encode_iq4_nl_weighted),
    int(GGMLType.IQ4_XS): Codec(decode_iq4_xs, encode_iq4_xs, encode_iq4_xs_weighted),
    int(GGMLType.MXFP4): Codec(decode_mxfp4, encode_mxfp4),
    int(GGMLType.TQ1_0): Codec(decode_tq1_0, encode_tq1_0),
    int(GGMLType.TQ2_0): Codec(decode_tq2_0, encode_tq2_0),
}
SPLIT = {
    GGMLType.IQ2_XXS: split_iq2_xxs,
    GGMLType.IQ2_XS: split_iq2_xs,
    GGMLType.IQ2_S: split_iq2_s,
    GGMLType.IQ3_XXS: split_iq3_xxs,
    GGMLType.IQ3_S: split_iq3_s,
    GGMLType.IQ1_S: split_iq1_s,
    GGMLType.IQ1_M: split_iq1_m,
}
CODECS |= {int(type): Codec(decoder(type, split)) for type, split in SPLIT.items()}
DECODED = tuple(CODECS)
ENCODED = tuple(kind for kind, codec in CODECS.items() if codec.encode is not None)


def _chosen(field: str, kind: Any, n: int) -> Any:
    """Typing and code of a call of a format's function with ``n`` addresses."""
    if not isinstance(kind, types.IntegerLiteral):
        return None
    function = getattr(CODECS[kind.literal_value], field)
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
def decode_block(typingctx: Any, kind: Any, block: Any, y: Any) -> Any:
    """The block at ``block`` as float32 at ``y``."""
    return _chosen("decode", kind, 2)


@intrinsic(prefer_literal=True)
def encode_block(typingctx: Any, kind: Any, x: Any, out: Any) -> Any:
    """float32 at ``x`` as one block at ``out``."""
    return _chosen("encode", kind, 2)


@intrinsic(prefer_literal=True)
def encode_weighted(typingctx: Any, kind: Any, x: Any, weights: Any, out: Any) -> Any:
    """``encode_block`` with importance weights, float32 as many as values."""
    return _chosen("encode_weighted", kind, 3)
