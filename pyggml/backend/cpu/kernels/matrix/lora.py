"""LORA: the changes of rows by their adapters, in two launches or at the end of a matmul's.

The first launch writes a row of factors to work memory for each row of y:

    n | (first column of B, number of columns, offset in this row) for each of n adapters | factors

Factors are ``scale gain (A x)``. For a B of Q8_0 there are three words for each piece of 32 >> s
columns, the second of which is s, and its factors are a block of int8. One launch is for all
matrices that multiply the same x. The second launch adds the columns of B times the factors, a
panel of 16 rows of B at a time. MUL_MAT does so with each of its tiles, which have the rows of a
panel (``add_changes``), and needs no second launch.

Sums are taken in an order that depends on the adapters of the row alone.
Access: an adapter's rows of A front to back, and its columns of some panels of B, with those of the
next panels prefetched. Adapters whose scale is 0 for a row are not read.
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
    TENSOR_WORDS,
    TENSORS,
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
from ...compile.lowering import ANY_CHUNKS, CpuLowering, lowers
from ...compile.type_traits import TypeTraits, trait
from ...compile.work import WorkRange
from ...simd.plain_rows import TABLE_BYTES, packed_block, prefetch_run, set_row_pointers
from ...simd.tile import add_lines
from ...simd.total import add_columns
from ...simd.vector import LINE
from ...weights.buffer import is_repacked
from ...weights.layout import QUANTIZED, ROWS, activation_bytes
from ..quantize import add_quantize, quantize_row
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
_WORDS = 3  # 64-bit words of an adapter, or of a piece of it, in a row of factors
_BLOCK = GGMLType.Q8_0.block_size
_RECORD_BYTES = 8 * (TENSORS + 9 * TENSOR_WORDS)  # of three matrices


class Factors(NamedTuple):
    """The values of ``lora_factors``."""

    out: int  # address of the rows of factors, those of one matrix after the other
    stride: int  # bytes of a row of factors
    n_rows: int  # of a matrix
    matrices: int
    rank: int  # columns of all adapters
    values: int  # where in a row the factors begin
    fewest: int  # columns of the smallest piece of B that its panels allow; 0: B has floats
    activations: int  # address of the quantized rows of x; 0: SRC3 has float32
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
def _ascend(node, spans, n, rank, fewest):
    """Whether the spans ascend from 0 to ``rank``; else the node has an error.

    Args:
        fewest: ranks are its multiples, unless it is 0.
    """
    legal = spans[0] == 0 and spans[n] == rank
    for j in range(n):
        legal = legal and spans[j] <= spans[j + 1]
        if fewest != 0:
            legal = legal and (spans[j + 1] - spans[j]) % fewest == 0
    if not legal:
        set_error(node, BAD_INDEX)
    return legal


@inline
def _multiply_group(node, a, group, x, scratch, products):
    """Store the products of a group of 16 rows of A with a row of x."""
    p = params_of(node, Factors)
    traits, k = p.traits, ne(node, SRC5, 0)
    if p.plain != 0:
        set_row_pointers(scratch, a, nb(node, SRC5, 1), ROWS * group, p.rank)
        n_rows = min(ROWS, p.rank - ROWS * group)
        times_rows(traits, 1, scratch, n_rows, x, 0, products, 0, k)
    else:
        blocks = k // trait(traits, COLUMNS)
        w = a + group * blocks * trait(traits, BLOCK_BYTES)
        reg_tile(traits, REG_TILE_1, w, x, 0, products, blocks, trait(traits, AHEAD_ONE))


@inline
def _write_factors(node, matrix, row, scratch):
    """Store a row of factors."""
    p = params_of(node, Factors)
    n, token = ne(node, SRC0, 0), row // (p.n_rows // ne(node, SRC0, 1))
    spans, gains = i32_ptr(data(node, SRC1)), f32_ptr(data(node, SRC2))
    products, block = scratch + TABLE_BYTES, scratch + TABLE_BYTES + 4 * ROWS
    values, group = f32_ptr(block + 4 * _BLOCK), f32_ptr(products)
    out, x, a = p.out + (matrix * p.n_rows + row) * p.stride, data(node, SRC3), 0
    head, place, count = i64_ptr(out), p.values, 0
    scales = f32_ptr(data(node, SRC0) + 4 * n * token)
    if x != 0:
        x = _row_of_x(node, row)
        a = data(node, SRC5 + TENSOR_WORDS * matrix)
    if a != 0:
        expert = _expert(node, SRC4, row, ne(node, SRC5, 2))
        if expert < 0:
            head[0] = 0
            return
        a += expert * _a_bytes(node)
    for j in range(n):
        first, end = spans[j] + 0, spans[j + 1] + 0
        if scales[j] == 0 or first == end:
            continue
        factor = scales[j] * gains[j]
        if a != 0:
            for g in range(first // ROWS, (end + ROWS - 1) // ROWS):
                _multiply_group(node, a, g, x, scratch, products)
                for r in range(max(first, ROWS * g), min(end, ROWS * g + ROWS)):
                    values[r - first] = factor * group[r - ROWS * g]
        elif x != 0:
            for r in range(first, end):
                values[r - first] = factor * f32_ptr(x)[r]
        else:
            for r in range(first, end):
                values[r - first] = factor
        if p.fewest == 0:
            _note(head, count, first, end - first, place)
            for r in range(end - first):
                f32_ptr(out + place)[r] = values[r]
            place += 4 * (end - first)
            count += 1
            continue
        done, size, shift = 0, _BLOCK, 0
        while done < end - first:
            while size > end - first - done:
                size, shift = size // 2, shift + 1
            for r in range(_BLOCK):
                f32_ptr(block)[r] = values[done + r] if r < size else 0
            _note(head, count, first + done, shift, place)
            quantize_row(block, out + place, _BLOCK)
            done, place, count = done + size, place + LINE, count + 1
    head[0] = count


@inline
def _row_of_x(node, row):
    """Address of the row of x, quantized or not, of a row of y."""
    p, x_row = params_of(node, Factors), row
    if data(node, SRC4) != 0:
        per_token, n_x = p.n_rows // ne(node, SRC0, 1), ne(node, SRC3, 1)
        token = row // per_token
        x_row = token * n_x + (row - token * per_token) % n_x
    if p.activations != 0:
        return p.activations + x_row * p.row_bytes
    return row_address(node, SRC3, x_row)


@inline
def _a_bytes(node):
    """Bytes of an expert's A."""
    p = params_of(node, Factors)
    if p.plain != 0:
        return nb(node, SRC5, 2)
    blocks = ne(node, SRC5, 0) // trait(p.traits, COLUMNS)
    return (p.rank + ROWS - 1) // ROWS * blocks * trait(p.traits, BLOCK_BYTES)


@kernel
def lora_factors(node, chunk, n_chunks, scratch):
    """A chunk is a range of rows of y of all matrices.

    SRC0 to SRC4: scales, spans, gains, x or nothing, ids or nothing. From SRC5: A of each matrix,
    or nothing. Scratch: row pointers, products of a group, a block of factors, factors.
    """
    prefetch_run(node, _RECORD_BYTES)
    p = params_of(node, Factors)
    rows = p.matrices * p.n_rows
    legal = _ascend(node, i32_ptr(data(node, SRC1)), ne(node, SRC0, 0), p.rank, p.fewest)
    for i in range(first_row(rows, chunk, n_chunks), first_row(rows, chunk + 1, n_chunks)):
        if legal:
            matrix = i // p.n_rows
            _write_factors(node, matrix, i - matrix * p.n_rows, scratch)
        else:
            i64_ptr(p.out + i * p.stride)[0] = 0


@inline
def _note(head, count, column, size, place):
    """Store where a part of B and its factors begin."""
    words = _WORDS * count + 1
    head[words], head[words + 1], head[words + 2] = column, size, place


@cache
def _adder(kind: int, plain: bool) -> CpuKernel:
    """The function that ``add_changes`` calls, for B of a type and layout."""
    size = ROWS * GGMLType(kind).type_size  # bytes of a column, or of a block of 16 rows
    column = size // GGMLType(kind).block_size  # of a panel

    def add_changes(b, panel, n, panels, factors, stride, tokens, tile):
        for t in range(tokens):
            row = factors + t * stride
            head = i64_ptr(row)
            for j in range(1, _WORDS * head[0] + 1, _WORDS):
                n_columns = head[j + 1] + 0
                columns = b + (head[j] * panels + panel * n_columns) * size
                for i in range(n):
                    y, ahead = tile + 4 * ROWS * (i * tokens + t), n_columns * size
                    add_columns(kind, columns, row + head[j + 2], n_columns, y, ahead)
                    columns += ahead

    def add_blocks(b, panel, n, panels, factors, stride, tokens, tile):
        for t in range(tokens):
            row = factors + t * stride
            head = i64_ptr(row)
            for j in range(1, _WORDS * head[0] + 1, _WORDS):
                shift, act = head[j + 1] + 0, row + head[j + 2]
                piece, ahead = b + head[j] * panels * column, max(1, n >> shift) * size
                for i in range(n):
                    y, place = tile + 4 * ROWS * (i * tokens + t), panel + i
                    block = piece + (place >> shift) * size
                    if plain:
                        block = packed_block(kind, block)
                    start = (place & ((1 << shift) - 1)) * (8 * LINE >> shift)
                    if shift == 1:
                        add_lines(kind, 4, block, start, act, y, ahead)
                    elif shift == 0:
                        add_lines(kind, 8, block, start, act, y, ahead)
                    elif shift == 2:
                        add_lines(kind, 2, block, start, act, y, ahead)
                    else:
                        add_lines(kind, 1, block, start, act, y, ahead)

    if kind not in QUANTIZED:
        return named_kernel(add_changes, GGMLType(kind).name)
    return named_kernel(add_blocks, GGMLType(kind).name, "plain" if plain else "x16")


@cache
def _adder_traits(kind: int, plain: bool) -> TypeTraits:
    return TypeTraits({}, {0: partial(_adder, kind, plain)})


@inline
def add_changes(traits, b, panel, n, panels, factors, stride, tokens, tile):
    """Add to tiles, the 16 rows of a panel of some tokens each, the changes by their adapters.

    Args:
        traits: of B, as of ``FactorRows``; ``b``: its address.
        panel, n: the first panel, and how many there are; ``panels``: of B.
        factors: address of the first token's row of factors; ``stride`` bytes to the next.
    """
    call_address(trait(traits, 0), (b, panel, n, panels, factors, stride, tokens, tile))


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
            add_changes(p.traits, b, g, 1, panels, factors, p.stride, 1, scratch)
            for i in range(n):
                target[i] = tile[i]


class FactorRows(NamedTuple):
    """The rows of factors that ``lora_factors`` writes for a node.

    Attributes:
        work: the memory that has them, with those of other nodes.
    """

    work: WorkRange
    address: int
    stride: int
    traits: int  # of B


def _fewest(panels: int) -> int:
    """The smallest piece of a B of Q8_0 with so many panels, see ``ops.matrix.lora.pieces``."""
    return next(size for size in (4, 8, 16, 32) if panels % (_BLOCK // size) == 0)


def _alike(lowering: CpuLowering, node: Tensor) -> list[Tensor]:
    """The nodes whose products with A are computed in one launch with those of a LORA."""
    a, x, ids = node.src[5:8]
    if a is None or x is None or ids is not None or a.op is not None:
        return [node]

    def kind(lora: Tensor) -> object:
        a, b = lora.src[5], lora.src[1]
        assert b is not None
        a_kind = None if a is None or a.op is not None else (a.type, a.ne, is_repacked(a))
        return lora.op, *lora.src[2:5], *lora.src[6:], a_kind, b.type.is_quantized

    wanted = kind(node)
    return [n for n in lowering.readers(x) if n.op is node.op and kind(n) == wanted]


def factor_rows(lowering: CpuLowering, node: Tensor) -> FactorRows:
    """Launch ``lora_factors`` for a LORA and those like it, unless that is done."""
    _, b, scales, spans, gains, _, x, ids = node.src
    assert b is not None and scales is not None
    alike, n_rows, in_blocks = _alike(lowering, node), node.nrows, b.type.is_quantized
    panels = [ceil_div(n.ne[0], ROWS) for n in alike]
    rank = b.ne[0] * b.ne[1] // (ROWS * ceil_div(node.ne[0], ROWS))
    fewest = [_fewest(n) if in_blocks else 0 for n in panels]
    parts = scales.ne[0]
    if in_blocks:
        parts = min(3 * scales.ne[0] + rank // _BLOCK, rank // min(fewest))
    values = 8 * (1 + _WORDS * parts)
    values = round_up(values, LINE) if in_blocks else values
    stride = round_up(values + (LINE * parts if in_blocks else 4 * rank), LINE)
    key = (lora_factors, *alike)
    out = lowering.known(key, scales, spans, gains, x, ids)
    if out is None:
        out = _launch_factors(lowering, alike, node, rank, max(fewest), values, stride)
        lowering.remember(key, out)
    traits = lowering.traits(_adder_traits(int(b.type), not is_repacked(b)), 0)
    return FactorRows(out, out.address + alike.index(node) * n_rows * stride, stride, traits)


def _launch_factors(
    lowering: CpuLowering, alike: list[Tensor], node: Tensor, rank: int, fewest: int, values: int,
    stride: int,
) -> WorkRange:  # fmt: skip
    """Launch ``lora_factors`` for some nodes, of which ``node`` is the first to be lowered."""
    _, _, scales, spans, gains, a, x, ids = node.src
    act, macs, traits, plain = [], rank * node.nrows, 0, True
    if a is not None:
        macs, plain = macs * a.ne[0] * len(alike), not is_repacked(a)
        traits = weight_traits(lowering, a, ROW_TILES + 1 if plain else REG_TILE_1)
        if a.type in QUANTIZED:
            act = [lowering.quantized(x, a.type.block_size, add_quantize)]
    rows = len(alike) * node.nrows
    out = lowering.take(rows * stride, x)
    params = Factors(
        out=out.address,
        stride=stride,
        n_rows=node.nrows,
        matrices=len(alike),
        rank=rank,
        values=values,
        fewest=fewest,
        activations=act[0].address if act else 0,
        row_bytes=activation_bytes(a.type, a.ne[0]) if act else 0,
        traits=traits,
        plain=plain,
    )
    matrices = [n.src[5] for n in alike]
    lowering.launch(
        lora_factors,
        node,
        params,
        1 if node.nrows == 1 else min(rows, macs // _MACS, 8 * lowering.n_threads),
        src=(scales, spans, gains, x, ids, *matrices),
        reads=(scales, spans, gains, None if act else x, ids, *matrices),
        work=act,
        writes=out,
        scratch=TABLE_BYTES + 4 * (ROWS + _BLOCK + rank),
        replicate=ANY_CHUNKS,
        variant=layout_name(a) if a is not None else "",
    )
    return out


def _supports(node: Tensor) -> bool:
    """All but a B of floats that is interleaved: its panels are read as they are stored."""
    b = node.src[1]
    return b is not None and (b.type in QUANTIZED or not is_repacked(b))


@lowers("LORA", _supports)
def _lower_lora(lowering: CpuLowering, node: Tensor) -> None:
    y, b, ids = node.src[0], node.src[1], node.src[7]
    rows = factor_rows(lowering, node)
    units = max(1, min(b.ne[0] * b.ne[1] * node.nrows // _MACS, 8 * lowering.n_threads))
    parts = max(1, min(ceil_div(units, node.nrows), ceil_div(node.ne[0], ROWS)))
    params = Changes(rows.address, rows.stride, rows.traits, parts)
    lowering.launch(
        lora_changes,
        node,
        params,
        min(units, parts * node.nrows),
        src=(y, b, ids),
        work=[rows.work],
        scratch=4 * ROWS,
    )
