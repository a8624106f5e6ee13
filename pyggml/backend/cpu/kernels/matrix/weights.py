"""Traits of a weight's format: a few numbers, and functions that kernels call by address.

    traits = weight_traits(lowering, w, REG_TILE_4) # in a lowering: a value of the node
    blocks = k // trait(traits, COLUMNS)           # in a kernel
    reg_tile(traits, TILE_4, weights, x, stride, out, blocks, ahead)

So a matmul is compiled once and not for each format, and the inner loops of a format are compiled
once for all kernels.

Formats without a tile of their own have a decoder: their rows become float32 and are multiplied
like F32 weights, with float32 activations. So every format runs, in row-sparse ops too, and its
sums have the order of F32 weights for any number of tokens.
Access: see ``simd/tile``, ``simd/plain_rows`` and ``simd/axpy``; rows are decoded front to back, a
few at a time, into thread scratch.
"""

from __future__ import annotations

from collections.abc import Container
from functools import cache, partial

from .....compiler.jit import CpuKernel, inline, named_kernel
from .....dtype import GGMLType
from .....rounding import round_up
from .....tensor import Tensor
from ...abi import i64_ptr
from ...atomics import call_address
from ...codec import DECODED
from ...codec.rows import decode_columns, row_decoder, row_unpacker
from ...compile.lowering import CpuLowering
from ...compile.type_traits import TypeTraits, trait
from ...compile.work import WorkRange
from ...simd import axpy
from ...simd.element import F32
from ...simd.matrix_unit import MatrixUnit, matrix_unit
from ...simd.matrix_unit import tiles as unit_tiles
from ...simd.matrix_unit import use_tiles as use_unit_tiles
from ...simd.plain_rows import pack_rows, row_tiles
from ...simd.tile import float_tile, q_tile, widest_tile
from ...simd.vector import LINE
from ...tuning import Tuning, tuning
from ...weights.buffer import is_repacked
from ...weights.layout import (
    ACTIVATION_BYTES,
    INTERLEAVED,
    QUANTIZED,
    ROWS,
    UNPACKED,
    UNPACKED_BYTES,
    activation_bytes,
    block_bytes,
)
from ...weights.layout import group_bytes as interleaved_bytes
from ..quantize import add_quantize, split, widened

# Places of the traits. Of a block: columns, bytes interleaved, bytes of activations, bytes when
# decoded or unpacked; the address of the function that decodes a row, 0 if there is none; tokens of
# the widest tile; how many bytes ahead one token and a few tokens prefetch. A function: plain rows
# packed as a group.
COLUMNS, BLOCK_BYTES, ACT_BYTES, DECODED_BYTES, DECODER, WIDE, AHEAD_ONE, AHEAD_FEW = range(8)
PACK = 8
# Of AXPY: columns and bytes of a group of columns, whether its sums are in the order of quantized
# formats, the decoder or 0. A function: a row's groups as float32.
AXPY_COLUMNS, AXPY_BYTES, AXPY_ORDER, AXPY_DECODER, AXPY_UNPACK = range(9, 14)
# Of the matrix unit: functions that multiply a group by many tokens and that switch it on and off
# (0: it is not switched); a number, of which the tokens are a multiple.
MATRIX_UNIT, UNIT_SWITCH, UNIT_STEP = range(14, 17)
REG_TILE = 16  # in the places ``REG_TILE + n``: the tiles of n = 1 to 8 tokens
REG_TILE_1, REG_TILE_4 = REG_TILE + 1, REG_TILE + 4
ROW_TILES = 24  # in the places ``ROW_TILES + n``: plain rows times n = 1 to 4 tokens
AXPY_ROWS = 28  # in the places ``AXPY_ROWS + n``: rows added to the sums of n = 1 to 4 tokens
_L2 = 2  # the prefetch hint for the second-level cache
ROW_TOKENS = 4  # that plain rows are multiplied with, or added for, at a time
MAX_TOKENS = 64  # of a chunk: they are all multiplied with a group of rows, then with the next
# Float32 results of a group, padded so that two of them are not a multiple of 4 KB apart
RESULTS_BYTES = 4 * ROWS * (MAX_TOKENS + 8)


@cache
def _tile(tokens: int, kind: int, hint: int) -> CpuKernel:
    column = block_bytes(kind)

    def tile_q(w, x, stride, out, n_blocks, ahead):
        q_tile(kind, tokens, hint, w, x, stride, out, n_blocks, ahead)

    def tile_f(w, x, stride, out, n_blocks, ahead):
        float_tile(kind, tokens, hint, w, column, x, stride, out, 4 * ROWS, n_blocks, ahead)

    return named_kernel(tile_q if kind in QUANTIZED else tile_f, tokens, GGMLType(kind).name)


@cache
def _unit(kind: int, hint: int) -> CpuKernel:
    def tiles_of(w, x, stride, out, n_blocks, tokens, ahead, panel):
        unit_tiles(kind, hint, w, x, stride, out, n_blocks, tokens, ahead, panel)

    return named_kernel(tiles_of, GGMLType(kind).name)


@cache
def _unit_switch(kind: int) -> CpuKernel:
    def switch_unit(on):
        use_unit_tiles(kind, on)

    return named_kernel(switch_unit, GGMLType(kind).name)


@cache
def _row_tiles(tokens: int, kind: int) -> CpuKernel:
    def times_rows(table, n_rows, x, x_stride, out, out_stride, n):
        row_tiles(kind, tokens, table, n_rows, x, x_stride, out, out_stride, n)

    return named_kernel(times_rows, tokens, GGMLType(kind).name)


@cache
def _pack(kind: int) -> CpuKernel:
    def pack_group(table, n, out):
        pack_rows(kind, table, n, out)

    return named_kernel(pack_group, GGMLType(kind).name)


@cache
def _axpy_rows(tokens: int, kind: int, hint: int) -> CpuKernel:
    def add_rows(table, n_rows, values, sums, stride, n_groups):
        axpy.axpy_rows(kind, hint, tokens, table, n_rows, values, sums, stride, n_groups)

    return named_kernel(add_rows, tokens, GGMLType(kind).name)


@cache
def _axpy_unpack(kind: int) -> CpuKernel:
    def unpack(row, panel, stride, n_groups):
        axpy.decode_row(kind, row, panel, stride, n_groups)

    return named_kernel(unpack, GGMLType(kind).name)


def _decoded_bytes(type: GGMLType) -> int:
    """Bytes of a block after decoding or unpacking; 0 for formats that need neither."""
    if type in UNPACKED:
        return UNPACKED_BYTES
    return 4 if is_decoded(type) else 0


@cache
def _traits(type: GGMLType, tuned: Tuning, one_pass: bool) -> TypeTraits:
    kind, summed = tile_kind(type), tile_kind(type, axpy.TYPES)
    columns = GGMLType(kind).block_size
    quantized, unit = kind in QUANTIZED, matrix_unit()
    one, several = tuned.float_hint, tuned.float_hint
    ahead_one = ahead_few = tuned.float_bytes
    if quantized:
        one, several = tuned.one_hint, tuned.few_hint if one_pass else _L2
        ahead_one, ahead_few = tuned.one_bytes, tuned.few_bytes
    numbers = {
        COLUMNS: columns,
        BLOCK_BYTES: block_bytes(kind),
        ACT_BYTES: ACTIVATION_BYTES[columns] if quantized else 4,
        DECODED_BYTES: _decoded_bytes(type),
        WIDE: widest_tile(kind),
        AHEAD_ONE: ahead_one,
        AHEAD_FEW: ahead_few,
        UNIT_STEP: unit.step(GGMLType(kind)) if unit else 1,
        AXPY_COLUMNS: axpy.group_columns(),
        AXPY_BYTES: axpy.group_bytes(summed),
        AXPY_ORDER: int(axpy.is_ordered(summed)),
    }
    functions = {
        **{REG_TILE + n: partial(_tile, n, kind, one if n == 1 else several) for n in range(1, 9)},
        **{ROW_TILES + n: partial(_row_tiles, n, kind) for n in range(1, ROW_TOKENS + 1)},
        PACK: partial(_pack, kind),
        MATRIX_UNIT: partial(_unit, kind, several),
        UNIT_SWITCH: partial(_unit_switch, kind),
        **{
            AXPY_ROWS + n: partial(_axpy_rows, n, summed, tuned.axpy_hint)
            for n in range(1, ROW_TOKENS + 1)
        },
        AXPY_UNPACK: partial(_axpy_unpack, summed),
    }
    for place, tiled in ((DECODER, INTERLEAVED), (AXPY_DECODER, axpy.TYPES)):
        if is_decoded(type, tiled):
            functions[place] = partial(row_decoder, int(type))
    if type in UNPACKED:
        functions[DECODER] = partial(row_unpacker, int(type))
    return TypeTraits(numbers, functions)


def weight_traits(lowering: CpuLowering, w: Tensor, *functions: int, one_pass: bool = False) -> int:
    """The address of the traits of a weight's format, for a program that needs these functions.

    The decoder that they need, if any, is compiled too.

    Args:
        one_pass: all tokens are multiplied with a group at once. In several passes, the first one
            prefetches the next group, which L1 may be too small for.
    """
    is_axpy = functions[0] == AXPY_UNPACK or functions[0] > AXPY_ROWS
    decoder = AXPY_DECODER if is_axpy else DECODER
    return lowering.traits(_traits(w.type, tuning(), one_pass), decoder, *functions)


def activations(
    lowering: CpuLowering, w: Tensor, x: Tensor, many: bool = False
) -> tuple[WorkRange | None, int]:
    """The form of ``x`` by which a weight is multiplied, made once; None: ``x`` itself.

    Args:
        many: the parameter of MUL_MAT.

    Returns:
        The memory, and the bytes of a row.
    """
    n, unit = x.ne[0], matrix_unit()
    if w.type in QUANTIZED:
        work = lowering.quantized(x, w.type.block_size, add_quantize)
        return work, activation_bytes(w.type, n)
    if unit is not None and unit.splits(w.type, many):
        return split(lowering, x)
    return None if x.type is GGMLType.F32 else widened(lowering, x), 4 * n


def tiles_for(w: Tensor, n_tokens: int, many: bool = False) -> tuple[int, ...]:
    """The tiles by which ``tile_size`` multiplies a weight with so many tokens, or with more.

    None if a matrix unit multiplies all of them.
    """
    unit, wide = unit_for(w, n_tokens, many), widest_tile(tile_kind(w.type))
    if unit is not None and unit.splits(w.type, many):
        return ()
    if n_tokens <= wide:
        return (REG_TILE + n_tokens,)
    fewest, most = (wide + 1) // 2, wide
    if unit is not None:  # it leaves less than its step
        fewest, most = 1, min(wide, unit.step(w.type) - 1)
    return tuple(REG_TILE + n for n in range(fewest, most + 1))


def unit_for(w: Tensor, n_tokens: int, many: bool = False) -> MatrixUnit | None:
    """The matrix unit that multiplies a weight with so many tokens; None if none does.

    Args:
        many: the parameter of MUL_MAT.
    """
    unit = matrix_unit()
    used = unit is not None and 0 < unit.least_tokens(w.type, many) <= n_tokens
    return unit if used else None


def room_for_unit(
    w: Tensor, n_tokens: int, scratch: int, many: bool = False
) -> tuple[tuple[int, ...], int, int]:
    """(functions, place in scratch, bytes of scratch) of a matmul, for its matrix unit.

    The place is 0 where the unit is not used.

    Args:
        scratch: bytes that the matmul needs besides.
        many: the parameter of MUL_MAT.
    """
    unit, place = unit_for(w, n_tokens, many), round_up(scratch, LINE)
    if unit is None:
        return (), 0, scratch
    functions = (MATRIX_UNIT, UNIT_SWITCH) if unit.is_switched else (MATRIX_UNIT,)
    return functions, place, place + unit.panel_bytes(int(w.type), w.ne[0])


def is_decoded(type: GGMLType, tiled: Container[GGMLType] = INTERLEAVED) -> bool:
    """Whether the rows of a format are decoded before they are multiplied.

    Args:
        tiled: the types whose blocks are multiplied as they are.
    """
    return type not in tiled and int(type) in DECODED


def tile_kind(type: GGMLType, tiled: Container[GGMLType] = INTERLEAVED) -> int:
    """The format that the inner loops multiply: F32 for formats that are decoded."""
    return F32 if is_decoded(type, tiled) else int(type)


def decoder_of(type: GGMLType, tiled: Container[GGMLType] = INTERLEAVED) -> int:
    """The address of a format's decoder, 0 if none is needed."""
    return row_decoder(int(type)).address if is_decoded(type, tiled) else 0


def packed_bytes(w: Tensor) -> int:
    """Bytes of scratch for a group of a weight's rows, packed and (if needed) decoded."""
    kind = GGMLType(tile_kind(w.type))
    decoded = ROWS * (w.ne[0] // kind.block_size) * _decoded_bytes(w.type)
    return interleaved_bytes(kind, w.ne[0]) + decoded


def layout_name(w: Tensor) -> str:
    """A weight's format and layout, for profiles: ``q4_1_x16``."""
    return w.type.name.lower() + ("_x16" if is_repacked(w) else "_plain")


@inline
def prefetch_ahead(traits, passed, left, blocks):
    """How many bytes ahead a pass over a group of blocks prefetches.

    If a group is passed several times, only the first pass reads memory, and prefetches the next
    group. A single pass prefetches its own weights, the tuned distance ahead.
    """
    if passed != 0:
        return 0
    if left == 1:
        return trait(traits, AHEAD_ONE)
    if left <= trait(traits, WIDE):
        return trait(traits, AHEAD_FEW)
    return blocks * trait(traits, BLOCK_BYTES)


@inline
def tile_size(traits, left):
    """(tokens, function) of the next pass over a group: as few passes as possible, about equal."""
    wide, tokens = trait(traits, WIDE), left
    if left > wide:
        passes = (left + wide - 1) // wide
        tokens = (left + passes - 1) // passes
    return tokens, REG_TILE + tokens


@inline
def reg_tile(traits, which, w, x, stride, out, n_blocks, ahead):
    """A group of interleaved rows times some tokens (``which``); see ``simd/tile``."""
    call_address(trait(traits, which), (w, x, stride, out, n_blocks, ahead))


@inline
def start_unit(traits, panel, tokens):
    """Switch on this thread's matrix unit if it is used (``panel`` is not 0) for so many tokens.

    Returns how many it multiplies: the first ones, in ``multiply``; for ``stop_unit``.
    """
    by_unit = whole_units(traits, tokens) if panel != 0 else 0
    if by_unit != 0 and trait(traits, UNIT_SWITCH) != 0:
        call_address(trait(traits, UNIT_SWITCH), (1,))
    return by_unit


@inline
def stop_unit(traits, by_unit):
    """Switch off what ``start_unit`` switched on."""
    if by_unit != 0 and trait(traits, UNIT_SWITCH) != 0:
        call_address(trait(traits, UNIT_SWITCH), (0,))


@inline
def whole_units(traits, tokens):
    """Of so many tokens, how many the matrix unit can multiply."""
    return tokens // trait(traits, UNIT_STEP) * trait(traits, UNIT_STEP)


@inline
def unit_or(passed, by_unit, tile):
    """(tokens, function) of the next pass: the matrix unit's for its tokens, else ``tile``."""
    return (by_unit - passed, MATRIX_UNIT) if passed < by_unit else tile


@inline
def multiply(traits, which, w, x, stride, out, n_blocks, tokens, ahead, panel):
    """A group of interleaved rows times some tokens, by the unit or the tile that ``which`` names.

    Args:
        ahead: bytes that the first pass prefetches ahead.
        panel: scratch of the matrix unit.
    """
    if which == MATRIX_UNIT:
        arguments = (w, x, stride, out, n_blocks, tokens, ahead, panel)
        call_address(trait(traits, MATRIX_UNIT), arguments)
    else:
        reg_tile(traits, which, w, x, stride, out, n_blocks, ahead)


@inline
def times_rows(traits, tokens, table, n_rows, x, x_stride, out, out_stride, n):
    """Plain rows times up to ``ROW_TOKENS`` tokens; see ``row_tiles``."""
    function = trait(traits, ROW_TILES + tokens)
    call_address(function, (table, n_rows, x, x_stride, out, out_stride, n))


@inline
def pack_group(traits, table, n, out):
    """16 plain rows as an interleaved group; see ``pack_rows``."""
    call_address(trait(traits, PACK), (table, n, out))


@inline
def decode_to_scratch(traits, table, rows, n, floats):
    """Decode up to 16 rows of ``n`` columns to ``floats``, and point ``table`` at them.

    The last row is repeated up to 16 pointers, as by ``set_row_pointers``. Rows of formats with a
    codebook are unpacked instead. Nothing is done for other formats that have a tile.
    """
    decoder = trait(traits, DECODER)
    if decoder == 0:
        return
    addresses = i64_ptr(table)
    row_bytes = n // trait(traits, COLUMNS) * trait(traits, DECODED_BYTES)
    for r in range(ROWS):
        place = floats + row_bytes * min(r, rows - 1)
        if r < rows:
            decode_columns(decoder, addresses[r] + 0, place, n, 0)
        addresses[r] = place
