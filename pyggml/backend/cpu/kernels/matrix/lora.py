"""LORA: the changes of rows by their adapters, in two launches or at the end of a matmul's.

The first launch writes a row of factors to work memory for each row of y:

    n | (offset in B, number of columns, offset in this row) for each of n adapters | factors

Offsets are in bytes, factors are ``scale gain (A x)``. The second launch adds the columns of B
times the factors, a panel of 16 rows of B at a time. MUL_MAT does so with each of its tiles, which
have the rows of a panel (``add_changes``), and needs no second launch.

Sums are taken in an order that depends on the adapters of the row alone.
Access: an adapter's rows of A front to back, and its columns of each panel of B, with the next
panel's prefetched. Adapters whose scale is 0 for a row are not read.
"""

from __future__ import annotations

from functools import cache, partial
from typing import NamedTuple

from .....compiler.jit import CpuKernel, inline, kernel, named_kernel
from .....dtype import GGMLType
from .....rounding import ceil_div, round_up
from .....tensor import Tensor
from ...abi import (
    BAD_INDEX,
    DST,
    SRC0,
    SRC1,
    SRC2,
    SRC3,
    SRC4,
    SRC5,
    data,
    f32_ptr,
    first_row,
    i32_ptr,
    i64_ptr,
    nb,
    ne,
    nrows,
    params_of,
    row_address,
    set_error,
)
from ...atomics import call_address
from ...compile.lowering import CpuLowering, lowers
from ...compile.type_traits import TypeTraits, trait
from ...compile.work import WorkRange
from ...simd.plain_rows import TABLE_BYTES, set_row_pointers
from ...simd.total import add_columns
from ...weights.buffer import is_repacked
from ...weights.layout import QUANTIZED, ROWS, activation_bytes
from ..quantize import add_quantize
from .weights import (
    AHEAD_ONE,
    BLOCK_BYTES,
    COLUMNS,
    REG_TILE_1,
    ROW_TILES,
    layout_name,
    reg_tile,
    times_rows,
    weight_traits,
)

_MACS = 1 << 12  # multiplications of a chunk, at least
_WORDS = 3  # 64-bit words of an adapter in a row of factors


class Factors(NamedTuple):
    """The values of ``lora_factors``."""

    out: int  # address of the rows of factors
    stride: int  # bytes of a row of factors
    n_rows: int
    rank: int  # columns of all adapters
    column_bytes: int  # of B, from one adapter's first column to the next one's
    activations: int  # address of the quantized rows of x; 0: SRC4 has float32
    row_bytes: int  # of quantized x
    traits: int  # of A
    plain: int  # whether A has ggml's layout


class Changes(NamedTuple):
    """The values of ``lora_changes``."""

    factors: int
    stride: int
    traits: int  # of B
    parts: int  # of each row


@inline
def _expert(node, ids, row, n_expert):
    """The number of a row's matrix, 0 without ids; -1: there is none, and the node has an error."""
    if data(node, ids) == 0:
        return 0
    expert = i32_ptr(data(node, ids))[row] + 0
    if expert < 0 or expert >= n_expert:
        set_error(node, BAD_INDEX)
        return -1
    return expert


@inline
def _ascend(node, spans, n, rank):
    """Whether the spans ascend from 0 to ``rank``; else the node has an error."""
    legal = spans[0] == 0 and spans[n] == rank
    for j in range(n):
        legal = legal and spans[j] <= spans[j + 1]
    if not legal:
        set_error(node, BAD_INDEX)
    return legal


@kernel
def lora_factors(node, chunk, n_chunks, scratch):
    """A chunk is every ``n_chunks``-th group of 16 rows of A, times a row of x.

    SRC0 to SRC5: scales, spans, gains, A or nothing, x or nothing, ids or nothing.
    Scratch: row pointers, products.
    """
    p = params_of(node, Factors)
    n, per_token, traits = ne(node, SRC0, 0), p.n_rows // ne(node, SRC0, 1), p.traits
    spans, gains = i32_ptr(data(node, SRC1)), f32_ptr(data(node, SRC2))
    groups, values_at = max(1, (p.rank + ROWS - 1) // ROWS), 8 * (1 + _WORDS * n)
    products, k, blocks, group_bytes = f32_ptr(scratch + TABLE_BYTES), ne(node, SRC3, 0), 0, 0
    if traits != 0:
        blocks = k // trait(traits, COLUMNS)
        group_bytes = blocks * trait(traits, BLOCK_BYTES)
    if not _ascend(node, spans, n, p.rank):
        return
    for u in range(chunk, p.n_rows * groups, n_chunks):
        row = u // groups
        begin = (u - row * groups) * ROWS
        out, x, token = p.out + row * p.stride, data(node, SRC4), row // per_token
        head, values = i64_ptr(out), f32_ptr(out + values_at)
        scales = f32_ptr(data(node, SRC0) + 4 * n * token)
        if x != 0:
            x_row = row
            if data(node, SRC5) != 0:
                n_x = ne(node, SRC4, 1)
                x_row = token * n_x + (row - token * per_token) % n_x
            x = row_address(node, SRC4, x_row)
            if p.activations != 0:
                x = p.activations + x_row * p.row_bytes
        a = data(node, SRC3)
        if a != 0:
            expert = _expert(node, SRC5, row, ne(node, SRC3, 2))
            if expert < 0:
                return
            a += expert * (nb(node, SRC3, 2) if p.plain != 0 else groups * group_bytes)
        count, multiplied = 0, False
        for j in range(n):
            first, end = spans[j] + 0, spans[j + 1] + 0
            if scales[j] == 0 or first == end:
                continue
            if begin == 0:
                words = _WORDS * count + 1
                head[words] = first * p.column_bytes
                head[words + 1] = end - first
                head[words + 2] = values_at + 4 * first
                count += 1
            first, end = max(first, begin), min(end, begin + ROWS)
            if first >= end:
                continue
            if a != 0 and not multiplied:
                if p.plain != 0:
                    set_row_pointers(scratch, a, nb(node, SRC3, 1), begin, p.rank)
                    n_rows = min(ROWS, p.rank - begin)
                    times_rows(traits, 1, scratch, n_rows, x, 0, scratch + TABLE_BYTES, 0, k)
                else:
                    ahead, group = trait(traits, AHEAD_ONE), a + begin // ROWS * group_bytes
                    reg_tile(traits, REG_TILE_1, group, x, 0, scratch + TABLE_BYTES, blocks, ahead)
                multiplied = True
            factor = scales[j] * gains[j]
            for r in range(first, end):
                values[r] = factor
                if a != 0:
                    values[r] = factor * products[r - begin]
                elif x != 0:
                    values[r] = factor * f32_ptr(x)[r]
        if begin == 0:
            head[0] = count


@cache
def _adder(kind: int) -> CpuKernel:
    """The function that ``add_changes`` calls, for B of a type."""
    two = 2 * ROWS // GGMLType(kind).block_size * GGMLType(kind).type_size  # bytes of two columns

    def add_changes(b, panel, factors, stride, tokens, tile):
        for t in range(tokens):
            row = factors + t * stride
            head = i64_ptr(row)
            for j in range(1, _WORDS * head[0] + 1, _WORDS):
                rank = head[j + 1] + 0
                columns, ahead = b + head[j] + panel * rank * two // 2, rank * two // 2
                add_columns(kind, columns, row + head[j + 2], rank, tile + 4 * ROWS * t, ahead)

    return named_kernel(add_changes, GGMLType(kind).name)


@cache
def _adder_traits(kind: int) -> TypeTraits:
    return TypeTraits({}, {0: partial(_adder, kind)})


@inline
def add_changes(traits, b, panel, factors, stride, tokens, tile):
    """Add to a tile, the 16 rows of a panel of some tokens, the changes by the adapters of each.

    Args:
        traits: of B, as of ``FactorRows``; ``b``: its address.
        factors: address of the first token's row of factors; ``stride`` bytes to the next.
    """
    call_address(trait(traits, 0), (b, panel, factors, stride, tokens, tile))


@kernel
def lora_changes(node, chunk, n_chunks, scratch):
    """A chunk is a range of parts of rows: some panels each.

    SRC0 to SRC2: y, B, ids or nothing. Scratch: a panel.
    """
    p = params_of(node, Changes)
    m = ne(node, DST, 0)
    panels = (m + ROWS - 1) // ROWS
    units = nrows(node, DST) * p.parts
    for u in range(first_row(units, chunk, n_chunks), first_row(units, chunk + 1, n_chunks)):
        row = u // p.parts
        part = u - row * p.parts
        x, y = row_address(node, SRC0, row), row_address(node, DST, row)
        factors, b = p.factors + row * p.stride, data(node, SRC1)
        expert = _expert(node, SRC2, row, ne(node, SRC1, 2))
        if expert < 0:
            return
        b += expert * nb(node, SRC1, 2)
        for g in range(first_row(panels, part, p.parts), first_row(panels, part + 1, p.parts)):
            n, tile = min(ROWS, m - ROWS * g), f32_ptr(scratch)
            source, target = f32_ptr(x + 4 * ROWS * g), f32_ptr(y + 4 * ROWS * g)
            for i in range(n):
                tile[i] = source[i]
            add_changes(p.traits, b, g, factors, p.stride, 1, scratch)
            for i in range(n):
                target[i] = tile[i]


class FactorRows(NamedTuple):
    """The rows of factors that ``lora_factors`` writes for a node."""

    work: WorkRange
    stride: int
    traits: int  # of B


def factor_rows(lowering: CpuLowering, node: Tensor) -> FactorRows:
    """Launch ``lora_factors`` for a LORA."""
    _, b, scales, spans, gains, a, x, ids = node.src
    panels, n_rows = ceil_div(node.ne[0], ROWS), node.nrows
    rank = b.ne[0] * b.ne[1] // (ROWS * panels)
    stride = round_up(8 * (1 + _WORDS * scales.ne[0]) + 4 * rank, 64)
    act, macs, traits, plain = [], rank * n_rows, 0, True
    if a is not None:
        macs, plain = macs * a.ne[0], not is_repacked(a)
        traits = weight_traits(lowering, a, ROW_TILES + 1 if plain else REG_TILE_1)
        if a.type in QUANTIZED:
            act = [lowering.quantized(x, a.type.block_size, add_quantize)]
    out = lowering.take(n_rows * stride, x)
    params = Factors(
        out=out.address,
        stride=stride,
        n_rows=n_rows,
        rank=rank,
        column_bytes=b.nb[2] // max(1, rank),
        activations=act[0].address if act else 0,
        row_bytes=activation_bytes(a.type, a.ne[0]) if act else 0,
        traits=traits,
        plain=plain,
    )
    lowering.launch(
        lora_factors,
        node,
        params,
        min(n_rows * ceil_div(rank, ROWS), macs // _MACS, min(8, n_rows) * lowering.n_threads),
        src=(scales, spans, gains, a, x, ids),
        work=act,
        writes=out,
        scratch=TABLE_BYTES + 4 * ROWS,
        variant=layout_name(a) if a is not None else "",
    )
    return FactorRows(out, stride, lowering.traits(_adder_traits(int(b.type)), 0))


@lowers("LORA")
def _lower_lora(lowering: CpuLowering, node: Tensor) -> None:
    y, b, ids = node.src[0], node.src[1], node.src[7]
    rows = factor_rows(lowering, node)
    units = max(1, min(b.ne[0] * b.ne[1] * node.nrows // _MACS, 8 * lowering.n_threads))
    parts = max(1, min(ceil_div(units, node.nrows), ceil_div(node.ne[0], ROWS)))
    params = Changes(rows.work.address, rows.stride, rows.traits, parts)
    lowering.launch(
        lora_changes,
        node,
        params,
        min(units, parts * node.nrows),
        src=(y, b, ids),
        work=[rows.work],
        scratch=4 * ROWS,
    )
