"""Tiles of 16 rows times 16 tokens, multiplied by Intel's matrix unit (AMX).

    use_tiles(Q4_1, 1)                             # in jitted code: before a chunk, on its thread
    tiles(Q4_1, hint, weights, acts, stride, out, n_blocks, tokens, ahead, panel)
    use_tiles(Q4_1, 0)
    split_row(F32, x, n, out)                      # activations for weights of F16 and BF16

``out`` gets 16 floats a token, ``panel`` is scratch of ``panel_bytes``, aligned to a line.

*Quantized weights*, a multiple of 16 tokens: ``q_tile`` with its bits. Integer sums of 32 columns
are exact in either unit, and the float32 operations are the same in the same order.

    weights of a group       panel (int8, L1 or L2)
    4 bytes of 16 rows,  ->  8 lines for 32 columns  ->  tile B: 8 x 64 bytes  \\
    packed in 1 to 8 bits                                                      sums: 16 x 16 int32
    rows of activations, as they lie: 32 codes of 16 tokens  ->  A: 16 x 32    /

A line (4 columns of 16 rows) is a row of tile B, so weights keep their layout: they are unpacked
once for the tokens of a chunk, at most 64, with about 35 instructions for 32 columns; a tile's
products and floats are 110. Activations are not repacked: tile A is loaded from 16 rows with their
stride, and scales are read from the lines that the tile has just loaded. Panels of 16 tokens would
cost each chunk as much as the products of a few groups.

Three stages overlap, also between tiles: the product of 32 columns s + 2, the store of product
s + 1, the floats of s. Four of the eight tile registers are used: CPUs rename tiles, and have so
few of them that with eight in use a load waits for the one before (``docs/decisions/0021``). One
port executes both multiplications and conversions, two execute additions; so integers become floats
by two additions, which are exact.
Access: weights once, front to back; then for each tile the panel and 16 rows of activations side by
side. Each tile prefetches half a group of weights, from the next group on.

*F16 and BF16*, any number of tokens: products of bfloat16. An activation is exactly the sum of
three parts of 8 bits, x = x1 + x2 + x3, and a weight of F16 of two, w = hi + lo (BF16: one). The
parts of a token are three rows of tile A, so 16 tokens are three tiles, and one token takes one
product for each part of the weights:

    32 columns of 16 rows  ->  words of the parts: 16 x 64 bytes  ->  B (hi), then B (lo)  \\
    x1, x2, x3 of tokens, 32 columns each  ->  A: 16 x 64                                  sums
                                                                                            /
    a token: sums of x1 + (sums of x2 + sums of x3)

A word has columns i and i + 16 of 32, so nothing moves between lanes. The order of a sum does not
depend on the number of tokens, so a token has the same bits alone. They are not the bits of
``float_tile``. The error is smaller, since fewer additions follow each other. An activation that
is infinite gives NaN, one below 2^-126 counts as 0.
Access: weights once, front to back, unpacked 32 columns before they are multiplied by the first 16
tokens; other tokens read the panel.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir

from ....compiler.jit import intrinsic_from_ir
from ....dtype import GGMLType
from ....quants import BLOCK_TYPES
from ....rounding import ceil_div
from ..tuning import tuning
from ..weights.layout import (
    ACTIVATION_BYTES,
    K_TYPES,
    QUANTIZED,
    ROWS,
    STEPS,
    block_bytes,
    layout_k,
)
from .block_dot import CODES_32, CODES_256, SCALE, SUM, GroupBlock, GroupKBlock, KDot, signed_codes
from .isa import fma, load_floats, vectors
from .vector import (
    BF16,
    F16,
    LINE,
    at,
    broadcast,
    broadcast_f32,
    const,
    counted_loop,
    f32,
    for_range,
    i8,
    i16,
    i32,
    item_at,
    load,
    pointer,
    prefetch,
    prefetch_lines,
    splat,
    stack_memory,
    store,
    times,
    vec,
    when,
)

Value = Any
is_switched = True
TOKENS = 16  # of a tile
_COLUMNS = 32  # of a product
_RING = 2  # products under way: each has a tile of sums and memory for them; see above
_PARTS = STEPS // _RING  # of a block of 256 columns, by products under way
_SUMS_BYTES = TOKENS * LINE
_CODES_BYTES = 8 * LINE  # of a product's weights
# (rows, bytes of a row) of the tiles: sums, activations (A) and weights (B)
SHAPES = ((TOKENS, LINE),) * _RING + ((TOKENS, _COLUMNS), (8, LINE))
_A, _B = _RING, _RING + 1
_MAGIC, _MAGIC_BITS = 1.5 * 2.0**23, 0x4B400000  # float and bits: integers below 2^22 are its ulps


# Floats: sums, activations and both parts of the weights; sums and activations of a single token
FLOAT_SHAPES = ((16, LINE),) * 6 + ((3, LINE),) * 2
_FLOAT_SUMS, _FLOAT_A, _FLOAT_B = (0, 1, 2), 3, 4
_ONE_SUMS, _ONE_A = 6, 7
_ROWS = 3  # of a token
_TILE_BYTES = 16 * LINE
_PARTS_OF = {F16: 2, BF16: 1}  # of weights
_AHEAD = 4  # steps of 32 columns for which a single pass has memory
SPARE_TOKENS = 5  # after the last token: the tiles of floats read the memory of so many


def splits(type: GGMLType, many: bool) -> bool:
    """Whether any number of tokens is multiplied, by activations of ``split_row``.

    Only those of ops that say they have ``many``: a weight of F16 becomes two, so a single token
    takes longer than with ``float_tile``, and sparse products have that one's bits.
    """
    return many and type in _PARTS_OF


def step(type: GGMLType) -> int:
    """The number of tokens of which ``tiles`` takes multiples."""
    return 1 if type in _PARTS_OF else TOKENS


def least_tokens(type: GGMLType, many: bool) -> int:
    """The fewest tokens for which a format's matmuls use tiles; 0 if they never do."""
    if splits(type, many):
        return 1
    if type not in QUANTIZED:
        return 0
    if type not in K_TYPES:
        return tuning().amx_tokens
    # Sub-blocks of 16 columns (Q2_K, Q3_K, Q6_K, some IQ) would use a quarter of the unit.
    return 0 if layout_k(type).sub < _COLUMNS else tuning().amx_tokens_256


def configuration(shapes: tuple[tuple[int, int], ...]) -> bytes:
    """The 64 bytes that give tiles their shapes, each (rows, bytes of a row)."""
    config = bytearray(LINE)
    config[0] = 1  # the palette
    for i, (rows, row_bytes) in enumerate(shapes):
        config[16 + 2 * i], config[48 + i] = row_bytes, rows
    return bytes(config)


def _unit_bytes(kind: int) -> int:
    """Bytes of 32 columns in a panel: codes, then scales and minima (float), or sub-scales."""
    if kind in K_TYPES:
        return _CODES_BYTES + (LINE if layout_k(kind).scale_lines else 0)
    return _CODES_BYTES + (2 * LINE if _has_minima(kind) else LINE)


def _has_minima(kind: int) -> bool:
    return bool(BLOCK_TYPES[GGMLType(kind)].low)


def panel_bytes(kind: int, n_columns: int) -> int:
    """Bytes of an unpacked group."""
    if kind in _PARTS_OF:
        return (ceil_div(n_columns, _COLUMNS) + 1) * _PARTS_OF[kind] * _TILE_BYTES
    return n_columns // _COLUMNS * _unit_bytes(kind)


@intrinsic_from_ir(literals=1)
def use_tiles(b: Value, kind: int, on: Value) -> None:
    """Configure this thread's tiles for a format, or release them (0)."""
    v: Any = vectors()
    with b.if_else(b.icmp_signed("!=", on, const(0))) as (configure, release):
        with configure:
            v.configure_tiles(b, configuration(FLOAT_SHAPES if kind in _PARTS_OF else SHAPES))
        with release:
            v.release_tiles(b)


def tiles(
    b: Value, kind: int, hint: int, w: Value, x: Value, stride: Value, out: Value, n_blocks: Value,
    tokens: Value, ahead: Value, panel: Value,
) -> None:  # fmt: skip
    """Multiply a group of interleaved rows by the activations of some tokens.

    Args:
        hint, ahead: of prefetches, as of ``float_tile``; quantized weights prefetch the next group.
    """
    if kind in _PARTS_OF:
        _FloatTiles(b, kind, hint, w, x, stride, out, n_blocks, ahead, panel).emit(tokens)
        return
    _unpack(b, kind, w, n_blocks, panel)
    pipeline = _KTiles if kind in K_TYPES else _BlockTiles
    n_tiles = b.lshr(tokens, const(4))
    pipeline(b, kind, w, x, stride, out, n_blocks, n_tiles, panel).emit()


def _line(b: Value, address: Value, type: ir.Type) -> Value:
    return load(b, address, type, LINE)


def _unpack(b: Value, kind: int, w: Value, n_blocks: Value, panel: Value) -> None:
    """Unpack a group's blocks to units of 32 columns."""
    with for_range(b, n_blocks) as i:
        block = item_at(b, w, i, block_bytes(kind))
        if kind in K_TYPES:
            group = GroupKBlock(kind, block)
            with for_range(b, const(STEPS)) as j:
                unit = item_at(b, panel, b.add(times(b, i, STEPS), j), _unit_bytes(kind))
                _unpack_step(b, group, j, pointer(b, unit))
        else:
            unit = pointer(b, item_at(b, panel, i, _unit_bytes(kind)))
            _unpack_block(b, GroupBlock(kind, pointer(b, block)), unit)


def _unpack_block(b: Value, block: GroupBlock, unit: Value) -> None:
    """Unpack a block of 32 columns."""
    for k, line in enumerate(signed_codes(b, block)):
        store(b, line, at(b, unit, LINE * k), LINE)
    store(b, block.scale(b, 0), at(b, unit, _CODES_BYTES), LINE)
    if block.layout.f.low:
        store(b, block.minimum(b, 0), at(b, unit, _CODES_BYTES + LINE), LINE)


def _unpack_step(b: Value, block: GroupKBlock, j: Value, unit: Value) -> None:
    """Unpack columns 32 j to 32 j + 31 of a block of 256."""
    layout, codes = block.layout, block.slices(b, j)
    for k in range(8):
        line = codes(k, 0)
        if layout.values:
            line = vectors().look_up(b, layout.values, line)
        elif layout.zero:
            line = b.sub(line, splat(i8, LINE, layout.zero))
        store(b, line, at(b, unit, LINE * k), LINE)
    if layout.scale_lines:
        store(b, block.sub_scale(b, j, 0), at(b, unit, _CODES_BYTES), LINE)


class _Pipeline:
    """The products of all tiles, in order: tile by tile, and within a tile unit by unit.

    A product's place is the address of its unit in the panel and the address of its activations in
    the row of the tile's first token. Products are computed 2 ahead of floats, so after the last
    place the first ones are computed again and not used.
    """

    def __init__(
        self, b: Value, kind: int, w: Value, x: Value, stride: Value, out: Value, n_blocks: Value,
        n_tiles: Value, panel: Value,
    ) -> None:  # fmt: skip
        columns = GGMLType(kind).block_size
        self.b, self.kind, self.w, self.stride, self.out = b, kind, w, stride, out
        self.n_blocks, self.n_tiles, self.panel = n_blocks, n_tiles, panel
        self.act_bytes, self.unit_bytes = ACTIVATION_BYTES[columns], _unit_bytes(kind)
        self.units = times(b, n_blocks, columns // _COLUMNS)
        self.panel_end = item_at(b, panel, self.units, self.unit_bytes)
        self.x, row_bytes = x, times(b, n_blocks, self.act_bytes)
        self.tile_stride = times(b, stride, TOKENS)
        self.x_end = item_at(b, x, self.tile_stride, n_tiles)
        self.to_next_tile = b.sub(self.tile_stride, row_bytes)  # from the end of a tile's first row
        # Prefetched for each product: half of its weights' lines
        self.lines = ceil_div(block_bytes(kind), 2 * (LINE * columns // _COLUMNS))
        self.ahead = item_at(b, w, n_blocks, block_bytes(kind))
        self.ring = pointer(b, stack_memory(b, _RING * _SUMS_BYTES))

    def emit(self) -> None:
        """Emit the code, for a panel that ``_unpack`` has filled."""
        raise NotImplementedError

    def tokens(self, address: Value) -> list[Value]:
        """The rows of a tile's 16 tokens: two bases and 8 multiples, few enough for registers."""
        b, s = self.b, self.stride
        bases = [address, item_at(b, address, s, 8)]
        return [item_at(b, base, s, t) for base in bases for t in range(8)]

    def wrap(self, unit: Value, a: Value) -> tuple[Value, Value, Value]:
        """A place, or at the end of a row the start of the next tile; and whether it is the end."""
        b = self.b
        ended = b.icmp_signed("==", unit, self.panel_end)
        zero = const(0)
        a = b.add(a, b.select(ended, self.to_next_tile, zero))
        a = b.select(b.icmp_signed("==", a, self.x_end), self.x, a)
        return b.select(ended, self.panel, unit), a, ended

    def multiply(self, r: int, unit: Value, codes: Value, fetched: Value) -> None:
        """Compute the product of a unit and codes of 16 tokens in tile ``r``."""
        b, v = self.b, vectors()
        v.load_tile(b, _A, b.inttoptr(codes, i8.as_pointer()), self.stride)
        v.load_tile(b, _B, b.inttoptr(unit, i8.as_pointer()), const(LINE))
        v.zero_tile(b, r)
        v.multiply_tiles(b, r, _A, _B)
        prefetch_lines(b, fetched, self.lines)

    def put(self, r: int) -> None:
        """Store the sums of a tile in memory, from where vectors are loaded."""
        vectors().store_tile(self.b, r, at(self.b, self.ring, _SUMS_BYTES * r), const(LINE))

    def sums(self, r: int, t: int) -> Value:
        """The sums of a token with 16 rows, <16 x i32>."""
        return _line(self.b, at(self.b, self.ring, _SUMS_BYTES * r + LINE * t), vec(i32, 16))

    def fetch(self, fetched: Value) -> Value:
        return at(self.b, fetched, LINE * self.lines)


class _BlockTiles(_Pipeline):
    """Formats with blocks of 32 columns: sums of a tile stay in 16 registers."""

    def emit(self) -> None:
        b = self.b
        unit, a, fetched = self.panel, self.x, self.ahead
        for r in range(_RING):
            unit, a, fetched = self._product(r, unit, a, fetched)
        self.put(0)
        zeros = [splat(f32, 16, 0.0)] * TOKENS

        def pair(_: Value, carried: list[Value]) -> list[Value]:
            p_unit, p_a, fetched, f_unit, f_a, out, *accs = carried
            for r in range(_RING):
                p_unit, p_a, fetched = self._product(r, p_unit, p_a, fetched)
                self.put((r + 1) % _RING)
                accs = self._floats(r, f_unit, f_a, accs)
                f_unit, f_a, ended = self._next(f_unit, f_a)
                out, accs = self._flush(ended, out, accs)
            return [p_unit, p_a, fetched, f_unit, f_a, out, *accs]

        total = b.mul(self.units, self.n_tiles)  # maybe one more is computed, not stored
        pairs = b.lshr(b.add(total, const(1)), const(1))
        counted_loop(b, pairs, [unit, a, fetched, self.panel, self.x, self.out, *zeros], pair)

    def _next(self, unit: Value, a: Value) -> tuple[Value, Value, Value]:
        return self.wrap(at(self.b, unit, self.unit_bytes), at(self.b, a, self.act_bytes))

    def _product(self, r: int, unit: Value, a: Value, fetched: Value) -> tuple[Value, ...]:
        self.multiply(r, unit, at(self.b, a, CODES_32), fetched)
        unit, a, _ = self._next(unit, a)
        return unit, a, self.fetch(fetched)

    def _floats(self, r: int, unit: Value, a: Value, accs: list[Value]) -> list[Value]:
        """Add a block with the operations of ``BlockDot``."""
        b = self.b
        head = at(b, pointer(b, unit), _CODES_BYTES)
        scale = _line(b, head, vec(f32, 16))
        minimum = _line(b, at(b, head, LINE), vec(f32, 16)) if _has_minima(self.kind) else None
        after = []
        for t, (row, acc) in enumerate(zip(self.tokens(a), accs, strict=True)):
            acts = pointer(b, row)
            bits = b.add(self.sums(r, t), splat(i32, 16, _MAGIC_BITS))
            x = b.fsub(b.bitcast(bits, vec(f32, 16)), splat(f32, 16, _MAGIC))
            d = broadcast_f32(b, at(b, acts, SCALE), 16)
            acc = fma(b, b.fmul(scale, d), x, acc)
            if minimum is not None:
                acc = fma(b, minimum, broadcast_f32(b, at(b, acts, SUM), 16), acc)
            after.append(acc)
        return after

    def _flush(self, ended: Value, out: Value, accs: list[Value]) -> tuple[Value, list[Value]]:
        """At the end of a tile store its sums and set them to zero."""
        b = self.b
        end = item_at(b, self.out, self.n_tiles, _SUMS_BYTES)
        whole = b.and_(ended, b.icmp_signed("!=", out, end))

        def close(carried: list[Value]) -> list[Value]:
            start = pointer(b, out)
            for t, acc in enumerate(accs):
                store(b, acc, at(b, start, LINE * t))
            return [at(b, out, _SUMS_BYTES), *[splat(f32, 16, 0.0)] * len(accs)]

        out, *accs = when(b, whole, [out, *accs], close)
        return out, accs


class _StoredDot(KDot):
    """A block whose integer sums, [token], have been computed."""

    def __init__(self, b: Value, kind: int, w: Value, acts: list[Value], sums: list[Value]) -> None:
        self._ready = [[x] for x in sums]
        super().__init__(b, GroupKBlock(kind, w), acts, lambda step: None)

    def _products(self, b: Value, prefetch_step: Any) -> list[list[Value]]:
        return self._ready


class _KTiles(_Pipeline):
    """Formats with blocks of 256 columns: integer sums stay in 16 registers, floats in ``out``.

    A product is a sub-block, or an eighth of a block that has none; two are a part of a block.
    """

    def emit(self) -> None:
        b = self.b
        ahead = [self.panel, self.x, self.ahead]
        for r in range(_RING):
            ahead = self._product(r, ahead)
        ahead = self._next(ahead, const(_PARTS - 1))
        self.put(0)

        def tile(i: Value, ahead: list[Value]) -> list[Value]:
            rows = b.add(self.x, b.mul(self.tile_stride, i))
            out = pointer(b, item_at(b, self.out, i, _SUMS_BYTES))

            def block(j: Value, ahead: list[Value]) -> list[Value]:
                units = item_at(b, self.panel, j, STEPS * self.unit_bytes)

                def part(k: Value, carried: list[Value]) -> list[Value]:
                    unit = pointer(b, item_at(b, units, k, _RING * self.unit_bytes))
                    ahead, sums = carried[:3], carried[3:]
                    for r in range(_RING):
                        ahead = self._product(r, ahead)
                        self.put((r + 1) % _RING)
                        sums = self._scaled(r, at(b, unit, self.unit_bytes * r), sums)
                    return [*self._next(ahead, k), *sums]

                zeros = [splat(i32, 16, 0)] * TOKENS
                carried = counted_loop(b, const(_PARTS), [*ahead, *zeros], part)
                self._floats(j, rows, out, carried[3:])
                return carried[:3]

            return counted_loop(b, self.n_blocks, ahead, block)

        counted_loop(b, self.n_tiles, ahead, tile)

    def _product(self, r: int, ahead: list[Value]) -> list[Value]:
        """Compute one of the products of a part of a block; its place is that of the part."""
        b, (unit, a, fetched) = self.b, ahead
        codes = at(b, a, CODES_256 + _COLUMNS * r)
        self.multiply(r, at(b, unit, self.unit_bytes * r), codes, fetched)
        return [unit, a, self.fetch(fetched)]

    def _next(self, ahead: list[Value], part: Value) -> list[Value]:
        """The place of the next part; floats are in part ``part``, products in the next."""
        b, (unit, a, fetched) = self.b, ahead
        inside = _RING * _COLUMNS
        last = b.icmp_signed("==", part, const(_PARTS - 2))
        after = self.act_bytes - inside * (_PARTS - 1)
        a = b.add(a, b.select(last, const(after), const(inside)))
        unit, a, _ = self.wrap(at(b, unit, _RING * self.unit_bytes), a)
        return [unit, a, fetched]

    def _scaled(self, r: int, unit: Value, sums: list[Value]) -> list[Value]:
        b = self.b
        products = [self.sums(r, t) for t in range(TOKENS)]
        if layout_k(self.kind).scale_lines:
            scale = _line(b, at(b, unit, _CODES_BYTES), vec(i32, 16))
            products = [b.mul(x, scale) for x in products]
        return [b.add(x, y) for x, y in zip(sums, products, strict=True)]

    def _floats(self, j: Value, rows: Value, out: Value, sums: list[Value]) -> None:
        """Add block ``j`` with the operations of ``KDot``, a few tokens at a time."""
        b, few = self.b, 4
        block = item_at(b, self.w, j, block_bytes(self.kind))
        acts = self.tokens(item_at(b, rows, j, self.act_bytes))
        # All bits but for the first block: a select would be a branch for each token
        mask = broadcast(b, b.sext(b.icmp_signed("!=", j, const(0)), i32), 16)
        for first in range(0, TOKENS, few):
            some = slice(first, first + few)
            dot = _StoredDot(b, self.kind, block, acts[some], sums[some])
            for t in range(few):
                place = at(b, out, LINE * (first + t))
                acc = b.bitcast(b.and_(load(b, place, mask.type), mask), vec(f32, 16))
                store(b, dot.accumulate(b, acc, t, 0), place)


# --- F16 and BF16 ---


def split_row_bytes(n: int) -> int:
    """Bytes of ``n`` activations of a token: three rows of parts, an odd number of lines each.

    So rows are no multiple of 4 KB apart, of which L1 holds few.
    """
    return _ROWS * LINE * (ceil_div(n, _COLUMNS) | 1)


def _steps(b: Value, n: Value) -> Value:
    return b.lshr(b.add(n, const(_COLUMNS - 1)), const(5))


def _part_bytes(b: Value, n: Value) -> Value:
    return times(b, b.or_(_steps(b, n), const(1)), LINE)


def _rest(b: Value, x: Value) -> Value:
    """Floats without the value of their high halves, which is a bfloat16; exact."""
    cut = b.and_(b.bitcast(x, vec(i32, 16)), splat(i32, 16, -1 << 16))
    return b.fsub(x, b.bitcast(cut, x.type))


def _padded(b: Value, source: Value, n: Value, size: int) -> Value:
    """The address of ``_COLUMNS`` items, of which the first ``n`` are copied, the others zero."""
    memory = stack_memory(b, _COLUMNS * size)
    for line in range(0, _COLUMNS * size, LINE):
        store(b, splat(i8, LINE, 0), at(b, memory, line))
    with for_range(b, n) as i:
        item = load(b, item_at(b, source, i, size), vec(i8, size))
        store(b, item, item_at(b, memory, i, size))
    return memory


@intrinsic_from_ir(literals=1)
def split_row(b: Value, kind: int, x: Value, n: Value, out: Value) -> None:
    """Store the parts of ``n`` floats at ``x``, in ``split_row_bytes``."""
    v: Any = vectors()
    size, part_bytes, mask = GGMLType(kind).type_size, _part_bytes(b, n), v.low_halves(b)

    def split(source: Value, target: Value) -> None:
        pair = [load_floats(b, kind, at(b, source, size * half), 16) for half in (0, 16)]
        for k in range(_ROWS):  # of normal numbers nothing is left
            store(b, v.high_halves(b, *pair, mask), item_at(b, target, k, part_bytes))
            pair = [_rest(b, x) for x in pair]

    whole = b.lshr(n, const(5))
    with for_range(b, whole) as s:
        split(item_at(b, x, s, _COLUMNS * size), item_at(b, out, s, LINE))
    left = b.and_(n, const(_COLUMNS - 1))
    with b.if_then(b.icmp_signed("!=", left, const(0))):
        last = _padded(b, item_at(b, x, whole, _COLUMNS * size), left, size)
        split(last, item_at(b, out, whole, LINE))


class _FloatTiles:
    """A group of F16 or BF16 times tokens; a step is 32 columns.

    Args:
        the arguments of ``tiles``; ``stride`` is of a token, a third of it of a part.
    """

    def __init__(
        self, b: Value, kind: int, hint: int, w: Value, x: Value, stride: Value, out: Value,
        n: Value, ahead: Value, panel: Value,
    ) -> None:  # fmt: skip
        v: Any = vectors()
        self.b, self.kind, self.hint, self.parts = b, kind, hint, _PARTS_OF[kind]
        self.w, self.x, self.stride, self.out = w, x, stride, out
        self.panel, self.ahead = panel, ahead
        self.steps, self.whole = _steps(b, n), b.lshr(n, const(5))
        self.part_bytes = _part_bytes(b, n)
        column = ROWS * GGMLType(kind).type_size
        left = b.and_(n, const(_COLUMNS - 1))
        self.last = _padded(b, item_at(b, w, self.whole, _TILE_BYTES), left, column)
        self.sums = stack_memory(b, len(_FLOAT_SUMS) * _TILE_BYTES)
        self.low_halves: Value = v.low_halves(b) if kind == F16 else None
        self.mask = const(-1)

    def emit(self, tokens: Value) -> None:
        b = self.b
        n_tiles = b.lshr(b.add(times(b, tokens, _ROWS), const(15)), const(4))
        passes = b.udiv(n_tiles, const(len(_FLOAT_SUMS)))  # of three whole tiles: 16 tokens
        left = b.sub(n_tiles, times(b, passes, len(_FLOAT_SUMS)))
        done = times(b, passes, TOKENS)
        # If there is one pass only, a panel of a few steps is enough, and stays in L1
        single = b.icmp_signed("<=", tokens, const(TOKENS))
        self.mask = b.select(single, const(_AHEAD - 1), const(-1))
        with b.if_else(b.icmp_signed("==", tokens, const(1))) as (one, more):
            with one:
                self._pass((_ONE_SUMS,), _ONE_A, const(0), const(1))
            with more:
                with for_range(b, passes) as i:
                    first = times(b, i, TOKENS)
                    n = b.sub(tokens, first)
                    n = b.select(b.icmp_signed("<", n, const(TOKENS)), n, const(TOKENS))
                    self._pass(_FLOAT_SUMS, _FLOAT_A, first, n)
                for n_sums in range(1, len(_FLOAT_SUMS)):
                    with b.if_then(b.icmp_signed("==", left, const(n_sums))):
                        self._pass(_FLOAT_SUMS[:n_sums], _FLOAT_A, done, b.sub(tokens, done))

    def _pass(self, sums: tuple[int, ...], a: int, first: Value, n: Value) -> None:
        """Multiply ``n`` tokens from ``first`` on; the first pass unpacks the weights."""
        b, v = self.b, vectors()
        unpacks = b.icmp_signed("==", first, const(0))
        rows = item_at(b, self.x, first, self.stride)
        for r in sums:
            v.zero_tile(b, r)
        with b.if_then(unpacks):
            self._unpack(const(0))
        with for_range(b, self.steps) as s:
            with b.if_then(unpacks):
                self._unpack(b.add(s, const(1)))
            for k in range(self.parts):
                self._load(_FLOAT_B + k, at(b, self._place(s), _TILE_BYTES * k), const(LINE))
            step = b.add(rows, times(b, s, LINE))
            for k in range(_ROWS if a == _ONE_A else 0):
                prefetch(b, at(b, item_at(b, step, k, self.part_bytes), 8 * LINE), 3)
            for j, r in enumerate(sums):
                place = item_at(b, step, 16 * j, self.part_bytes)
                self._load(a, place, self.part_bytes)
                for k in range(self.parts):
                    v.multiply_float_tiles(b, r, a, _FLOAT_B + k)
        for j, r in enumerate(sums):
            place = b.inttoptr(at(b, self.sums, _TILE_BYTES * j), i8.as_pointer())
            v.store_tile(b, r, place, const(LINE))
        with for_range(b, n) as t:
            start = item_at(b, self.sums, t, _ROWS * LINE)
            x1, x2, x3 = (load(b, at(b, start, LINE * k), vec(f32, 16)) for k in range(_ROWS))
            total = b.fadd(x1, b.fadd(x2, x3))
            store(b, total, item_at(b, self.out, b.add(first, t), LINE))

    def _load(self, tile: int, address: Value, stride: Value) -> None:
        vectors().load_tile(self.b, tile, self.b.inttoptr(address, i8.as_pointer()), stride)

    def _place(self, s: Value) -> Value:
        return item_at(self.b, self.panel, self.b.and_(s, self.mask), self.parts * _TILE_BYTES)

    def _unpack(self, s: Value) -> None:
        """Store the words of a step in the panel; of the step after the last one, anything."""
        b = self.b
        step = item_at(b, self.w, s, _TILE_BYTES)
        fetched, target = b.add(step, self.ahead), self._place(s)
        source = b.select(b.icmp_signed("<", s, self.whole), step, self.last)
        column = ROWS * GGMLType(self.kind).type_size
        for i in range(16):
            pair = [at(b, source, column * c) for c in (i, i + 16)]
            for k, words in enumerate(self._unpacked(*pair)):
                store(b, words, at(b, target, _TILE_BYTES * k + LINE * i), LINE)
            prefetch(b, at(b, fetched, LINE * i), self.hint)

    def _unpacked(self, low: Value, high: Value) -> list[Value]:
        """The words of the parts of two columns."""
        b = self.b
        if self.kind == BF16:
            x, y = (b.zext(load(b, place, vec(i16, 16)), vec(i32, 16)) for place in (low, high))
            return [b.or_(x, b.shl(y, splat(i32, 16, 16)))]
        v: Any = vectors()
        floats = [load_floats(b, F16, place, 16) for place in (low, high)]
        rests = [_rest(b, x) for x in floats]
        return [v.high_halves(b, *pair, self.low_halves) for pair in (floats, rests)]
