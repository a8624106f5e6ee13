"""MUL_MAT: weights times one or many tokens, with the adapters, residual or GLU after it.

A chunk is a range of 16-row groups times a range of up to 64 tokens; the weights of a group stay in
L1 for all tokens of the chunk. Quantized weights are multiplied by int8 activations, made once per
source tensor; F16, BF16 and F32 weights by float32, to which half-float activations are converted
first, or in a matrix unit by parts of bfloat16.

Weights in ggml's plain layout are transposed in registers for one token; for several tokens, a
group at a time is packed into thread scratch and multiplied by the same tile as interleaved
weights. With a matrix unit (``simd/amx``, ``simd/unpacked``), the largest multiple of its tile's
tokens in a chunk is its part, and chunks begin at multiples of 16. All of these give the same bits.
Of BF16 weights, and of F16 in ops with ``many`` rows, AMX multiplies any number of tokens, with
bits of its own.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

from .....compiler.jit import CpuKernel, inline, inline_strict, kernel, named_kernel
from .....dtype import GGMLType
from .....ops.elementwise.glu import ACTIVATIONS as GLU_ACTIVATIONS
from .....rounding import ceil_div
from .....tensor import Tensor
from ....common.memory import overlap
from ...abi import (
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
    nb,
    ne,
    params_of,
)
from ...compile.lowering import CpuLowering, fuses, lowers
from ...compile.type_traits import trait
from ...simd.element import F32, load_elem, store_elem
from ...simd.matrix_unit import TOKENS as UNIT_TOKENS
from ...simd.plain_rows import TABLE_BYTES, set_row_pointers
from ...tuning import tuning
from ...weights.buffer import is_repacked
from ...weights.layout import INTERLEAVED, Q8_BLOCK, QUANTIZED, ROWS, group_bytes
from ..elementwise.elementwise import IDS, function
from ..quantize import quantize_blocks
from .lora import add_changes, factor_rows
from .weights import (
    BLOCK_BYTES,
    COLUMNS,
    MAX_TOKENS,
    PACK,
    REG_TILE_1,
    RESULTS_BYTES,
    ROW_TILES,
    WIDE,
    activations,
    decode_to_scratch,
    is_decoded,
    layout_name,
    multiply,
    pack_group,
    packed_bytes,
    prefetch_ahead,
    room_for_unit,
    start_unit,
    stop_unit,
    tile_size,
    tiles_for,
    times_rows,
    unit_or,
    weight_traits,
)

_CHUNK_MACS = 1 << 21  # work of a chunk for many tokens
_LEAST_MACS = 1 << 17  # work of a thread's only chunk for a few tokens, at least
_TILES = 8  # of groups and tokens, that get their changes by adapters in one call
_FEW_MACS = 1 << 20  # work of a chunk if a thread has several: some microseconds
_ACTIVATIONS = (GGMLType.F32, GGMLType.F16, GGMLType.BF16)
_FACTORS = (
    ("factors", "factor_bytes", "adapter_traits"),
    ("up_factors", "up_factor_bytes", "up_adapter_traits"),
)


class MulMat(NamedTuple):
    """The values of ``mul_mat`` and ``mul_mat_glu``."""

    row_chunks: int
    token_chunks: int
    activations: int  # address of the activations in another form, 0: SRC1 is read
    row_bytes: int  # of a token's activations
    add: int  # how many of SRC2 (a bias or residual) and SRC3 (a residual) are added
    quantize: int  # address of the quantized result of ``mul_mat_glu``, or 0
    traits: int
    plain: int  # whether the weights have ggml's layout
    panel: int  # where in scratch the matrix unit works; 0: it is not used
    factors: int = 0  # address of the rows of factors of LORA with B in SRC4; 0: no LORA
    factor_bytes: int = 0  # of a row
    adapter_traits: int = 0  # of B
    up_factors: int = 0  # of the product with ``up``, B in SRC5
    up_factor_bytes: int = 0
    up_adapter_traits: int = 0


@inline
def first_token(n, chunk, n_chunks, panel):
    """First token of a chunk; a multiple of the matrix unit's tile if there is a ``panel``."""
    unit = 1 if panel == 0 else UNIT_TOKENS
    return min(n, first_row((n + unit - 1) // unit, chunk, n_chunks) * unit)


@inline_strict
def add_in_order(x, y, z):
    """``(x + y) + z``, as by two nodes."""
    return x + y + z


@inline
def emit_tile(node, tile, tokens, t, row, rows, out, stride):
    """Copy a tile to the result, adding bias and residual if there are any."""
    p = params_of(node, MulMat)
    for k in range(tokens):
        y = f32_ptr(out + (t + k) * stride + 4 * row)
        x = f32_ptr(tile + 4 * ROWS * k)
        if p.add != 0:
            broadcast = 0 if ne(node, SRC2, 1) == 1 else nb(node, SRC2, 1)
            z = f32_ptr(data(node, SRC2) + (t + k) * broadcast + 4 * row)
            if p.add == 2:
                u = f32_ptr(data(node, SRC3) + (t + k) * nb(node, SRC3, 1) + 4 * row)
                for r in range(rows):
                    y[r] = add_in_order(x[r], z[r], u[r])
            else:
                for r in range(rows):
                    y[r] = x[r] + z[r]
        else:
            for r in range(rows):
                y[r] = x[r]


@inline
def _add_changes(node, g, n, t, tokens, tiles):
    """Add the changes of groups g, g + 1, .. by the adapters of tokens t, t + 1, .. to tiles."""
    p = params_of(node, MulMat)
    if p.factors != 0:
        b, panels = data(node, SRC4), (ne(node, DST, 0) + ROWS - 1) // ROWS
        rows = p.factors + t * p.factor_bytes
        add_changes(p.adapter_traits, b, g, n, panels, rows, p.factor_bytes, tokens, tiles)


@inline
def _add_changes_of_up(node, g, n, t, tokens, tiles):
    """As ``_add_changes``, of the product with ``up``."""
    p = params_of(node, MulMat)
    if p.up_factors != 0:
        b, panels = data(node, SRC5), (ne(node, DST, 0) + ROWS - 1) // ROWS
        rows = p.up_factors + t * p.up_factor_bytes
        add_changes(p.up_adapter_traits, b, g, n, panels, rows, p.up_factor_bytes, tokens, tiles)


@inline
def _groups_at_once(node, tokens):
    """How many groups get their changes in one call: several, of a few tokens in one pass."""
    p = params_of(node, MulMat)
    changed = p.factors | p.up_factors
    return max(1, _TILES // tokens) if changed != 0 and tokens <= trait(p.traits, WIDE) else 1


@kernel
def mul_mat(node, chunk, n_chunks, scratch):
    """Weights of any format, in the plain or the interleaved layout."""
    p = params_of(node, MulMat)
    row_chunks, token_chunks, traits, plain = p.row_chunks, p.token_chunks, p.traits, p.plain
    m, n, k = ne(node, DST, 0), ne(node, DST, 1), ne(node, SRC0, 0)
    place, t0, t1, batch, i2, i3, w2, w3 = chunk, 0, n, 0, 0, 0, 0, 0
    if n_chunks != row_chunks:  # one token takes no divisions: memory would idle during each
        place, rest = chunk % row_chunks, chunk // row_chunks
        batch = rest // token_chunks
        i2, i3 = batch % ne(node, DST, 2), batch // ne(node, DST, 2)
        w2 = i2 // (ne(node, DST, 2) // ne(node, SRC0, 2))
        w3 = i3 // (ne(node, DST, 3) // ne(node, SRC0, 3))
        t0 = first_token(n, rest % token_chunks, token_chunks, p.panel)
        t1 = first_token(n, rest % token_chunks + 1, token_chunks, p.panel)
    groups, blocks = (m + ROWS - 1) // ROWS, k // trait(traits, COLUMNS)
    group = blocks * trait(traits, BLOCK_BYTES)
    if plain != 0:
        weights = data(node, SRC0) + w2 * nb(node, SRC0, 2) + w3 * nb(node, SRC0, 3)
    else:
        weights = data(node, SRC0) + (w3 * ne(node, SRC0, 2) + w2) * groups * group
    if p.activations != 0:
        stride = p.row_bytes
        x = p.activations + batch * n * stride
    else:
        stride = nb(node, SRC1, 1)
        x = data(node, SRC1) + i2 * nb(node, SRC1, 2) + i3 * nb(node, SRC1, 3)
    out = data(node, DST) + i2 * nb(node, DST, 2) + i3 * nb(node, DST, 3)
    out_stride = nb(node, DST, 1)
    g0 = first_row(groups, place, row_chunks)
    g1 = first_row(groups, place + 1, row_chunks)
    table = scratch + RESULTS_BYTES
    packed = table + TABLE_BYTES
    panel, by_unit = scratch + p.panel, start_unit(traits, p.panel, t1 - t0)
    at_once = _groups_at_once(node, t1 - t0) if plain == 0 and by_unit == 0 else 1
    for g in range(g0, g1, at_once):
        row, w, n_groups = g * ROWS, weights + g * group, min(at_once, g1 - g)
        rows = min(ROWS, m - row)
        if plain != 0:
            w = packed
            set_row_pointers(table, weights, nb(node, SRC0, 1), row, m)
            decode_to_scratch(traits, table, rows, k, packed + group)
            if t1 - t0 == 1 and by_unit == 0:
                times_rows(traits, 1, table, rows, x + t0 * stride, 0, scratch, 0, k)
                _add_changes(node, g, 1, t0, 1, scratch)
                emit_tile(node, scratch, t1 - t0, t0, row, rows, out, out_stride)
                continue
            pack_group(traits, table, k, packed)
        t = t0
        while t < t1:
            y = x + t * stride
            tokens, which = unit_or(t - t0, by_unit, tile_size(traits, t1 - t))
            ahead = prefetch_ahead(traits, t - t0, t1 - t, blocks)
            tile_bytes = 4 * ROWS * tokens
            for i in range(n_groups):
                v, tile = w + i * group, scratch + i * tile_bytes
                multiply(traits, which, v, y, stride, tile, blocks, tokens, ahead, panel)
            _add_changes(node, g, n_groups, t, tokens, scratch)
            for i in range(n_groups):
                r, tile = row + ROWS * i, scratch + i * tile_bytes
                emit_tile(node, tile, tokens, t, r, min(ROWS, m - r), out, out_stride)
            t += tokens
    stop_unit(traits, by_unit)


@cache
def mul_mat_glu_kernel(activation: int) -> CpuKernel:
    """Gate and up matmuls of interleaved quantized weights (SRC0, SRC2), and the GLU of the two.

    Chunks are multiples of 32 rows: a block of the quantized result, which is written if
    ``MulMat.quantize`` has an address.
    """

    def mul_mat_glu(node, chunk, n_chunks, scratch):
        p = params_of(node, MulMat)
        row_chunks, token_chunks, traits, n = (
            p.row_chunks,
            p.token_chunks,
            p.traits,
            ne(node, DST, 1),
        )
        units, blocks = ne(node, DST, 0) // 32, ne(node, SRC0, 0) // trait(traits, COLUMNS)
        group = blocks * trait(traits, BLOCK_BYTES)
        stride, out_stride = p.row_bytes, nb(node, DST, 1)
        acts, quantized = p.activations, p.quantize
        place, t0, t1 = chunk, 0, n
        if token_chunks != 1:
            place = chunk % row_chunks
            t0 = first_token(n, chunk // row_chunks, token_chunks, p.panel)
            t1 = first_token(n, chunk // row_chunks + 1, token_chunks, p.panel)
        u0 = first_row(units, place, row_chunks)
        u1 = first_row(units, place + 1, row_chunks)
        rows = min(ROWS, ne(node, DST, 0))  # 16; a constant would make LLVM unroll to scalars
        panel, by_unit = scratch + p.panel, start_unit(traits, p.panel, t1 - t0)
        up = scratch + RESULTS_BYTES
        at_once = _groups_at_once(node, t1 - t0) if by_unit == 0 else 1
        n_units = max(1, at_once // 2)
        for u in range(u0, u1, n_units):
            t, g_end = t0, 2 * min(u + n_units, u1)
            while t < t1:
                tokens, which = unit_or(t - t0, by_unit, tile_size(traits, t1 - t))
                x, tile_bytes = acts + t * stride, 4 * ROWS * tokens
                ahead = prefetch_ahead(traits, t - t0, t1 - t, blocks)
                for g in range(2 * u, g_end, at_once):
                    n_groups = min(at_once, g_end - g)
                    for i in range(n_groups):
                        gate_w = data(node, SRC0) + (g + i) * group
                        up_w, a = data(node, SRC2) + (g + i) * group, scratch + i * tile_bytes
                        b = up + i * tile_bytes
                        multiply(traits, which, gate_w, x, stride, a, blocks, tokens, ahead, panel)
                        multiply(traits, which, up_w, x, stride, b, blocks, tokens, ahead, panel)
                    _add_changes(node, g, n_groups, t, tokens, scratch)
                    _add_changes_of_up(node, g, n_groups, t, tokens, up)
                    for i in range(n_groups * tokens):
                        a, b = scratch + 4 * ROWS * i, up + 4 * ROWS * i
                        k = i // tokens
                        y = data(node, DST) + (t + i - k * tokens) * out_stride
                        y += 4 * ROWS * (g + k)
                        for r in range(rows):
                            v = function(activation, load_elem(F32, a, r)) * load_elem(F32, b, r)
                            store_elem(F32, y, r, v)
                if quantized != 0:
                    for i in range(u, g_end // 2):
                        y = data(node, DST) + t * out_stride + 128 * i
                        row = quantized + (t * units + i) * Q8_BLOCK
                        quantize_blocks(y, out_stride, row, units * Q8_BLOCK, tokens)
                t += tokens
        stop_unit(traits, by_unit)

    return named_kernel(mul_mat_glu, [*IDS][activation])


def supports_mul_mat(node: Tensor) -> bool:
    """Weights of a known format with gap-free rows, float activations."""
    w, x = node.src[0], node.src[1]
    return (
        (w.type in INTERLEAVED or is_decoded(w.type))
        and (w.is_contiguous_rows() or is_repacked(w))
        and x.type in _ACTIVATIONS
        and x.is_contiguous_rows()
        and node.type is GGMLType.F32
    )


def _chunks(lowering: CpuLowering, w: Tensor, n: int, batch: int, rows: int) -> tuple[int, int]:
    """Row chunks and token chunks of one matmul."""
    groups = ceil_div(w.ne[1], rows)
    if n == 1:
        n_bytes = group_bytes(w.type, w.ne[0]) * groups
        rounds = max(1, n_bytes // tuning().chunk_bytes // lowering.n_threads)
        wanted = rounds * lowering.n_threads
        return max(1, min(groups, wanted if batch < 4 * lowering.n_threads else 1)), 1
    token_chunks = math.ceil(n / MAX_TOKENS)
    macs = w.ne[0] * w.ne[1] * math.ceil(n / token_chunks)
    few = 0
    if token_chunks * batch == 1:
        each = min(8, macs // _FEW_MACS // lowering.n_threads)  # the same number for all threads
        few = max(each * lowering.n_threads, min(lowering.n_threads, macs // _LEAST_MACS))
    return max(1, min(groups, max(few, macs // _CHUNK_MACS))), token_chunks


def _launch(
    lowering: CpuLowering, node: Tensor, dst: Tensor, *add: Tensor, glu: CpuKernel | None = None,
    changed: Sequence[Tensor | None] = (),
) -> None:  # fmt: skip
    """Launch a MUL_MAT with the nodes after it.

    Args:
        dst: the last of these.
        add: what is added; of GLU, the weights of ``up``.
        glu: the kernel of MUL_MAT, MUL_MAT and GLU.
        changed: LORA of the product, and LORA of the product with ``up``.
    """
    w, x = node.src[0], node.src[1]
    plain = not is_repacked(w)
    many = node.op_params["many"]
    act, row_bytes = activations(lowering, w, x, many)
    rows = [change and factor_rows(lowering, change) for change in changed]
    batch = node.ne[2] * node.ne[3]
    row_chunks, token_chunks = _chunks(lowering, w, node.ne[1], batch, 32 if glu else ROWS)
    functions = tiles_for(w, node.ne[1], many)
    one_pass = len(functions) == 1
    if plain:
        by_rows = functions == (REG_TILE_1,)
        functions = (ROW_TILES + 1,) if by_rows else (PACK, *functions)
    scratch = (2 if glu else 1) * RESULTS_BYTES + (TABLE_BYTES + packed_bytes(w) if plain else 0)
    more, panel, scratch = room_for_unit(w, node.ne[1], scratch, many)
    params = MulMat(
        row_chunks=row_chunks,
        token_chunks=token_chunks,
        activations=act.address if act else 0,
        row_bytes=row_bytes,
        add=0 if glu else len(add),
        quantize=0,
        traits=weight_traits(lowering, w, *functions, *more, one_pass=one_pass),
        plain=plain,
        panel=panel,
    )
    for one, names in zip(rows, _FACTORS, strict=False):
        if one is not None:
            values = one.address, one.stride, one.traits
            params = params._replace(**dict(zip(names, values, strict=True)))
    none = (None,) * (2 - len(add))
    src = (w, x, *add, *none, *(change and change.src[1] for change in changed))
    lowering.launch(
        glu or mul_mat,
        dst,
        params,
        row_chunks * token_chunks * batch,
        src=src,
        work=[one for one in (act, *(one and one.work for one in rows)) if one is not None],
        scratch=scratch,
        quantizes=glu is not None,
        streams=w,
        variant=layout_name(w),
    )


@lowers("MUL_MAT", supports_mul_mat)
def _lower_mul_mat(lowering: CpuLowering, node: Tensor) -> None:
    _launch(lowering, node, node)


def _added(node: Tensor, total: Tensor) -> Tensor | None:
    """The tensor that ``total`` adds to ``node`` if MUL_MAT can add it: one row or all rows."""
    other = total.src[1] if total.src[0] is node else total.src[0]
    if other is None or other.type is not GGMLType.F32 or other.nb[0] != 4 or total.nb != node.nb:
        return None
    bias = other.ne == (node.ne[0], 1, 1, 1) and total.src[1] is other
    return other if bias or other.ne == node.ne else None


def _may_add(node: Tensor, total: Tensor) -> bool:
    """Whether ``total`` may be written while other chunks read weights and activations."""
    w, x = node.src[0], node.src[1]
    if w is None or x is None or not supports_mul_mat(node) or node.ne[2] * node.ne[3] != 1:
        return False
    return not any(overlap(total, t) for t in ([w] if w.type in QUANTIZED else [w, x]))


def _may_change(product: Tensor, lora: Tensor, dst: Tensor) -> bool:
    """Whether MUL_MAT can add the changes of a LORA to its product, and store ``dst``."""
    b, ids = lora.src[1], lora.src[7]
    is_plain = ids is None and product.ne[2] * product.ne[3] == 1
    return lora.src[0] is product and is_plain and b is not None and not overlap(dst, b)


@fuses("MUL_MAT", "LORA", "MUL_MAT", "LORA", "GLU")
def _lower_mul_mat_lora_glu(
    lowering: CpuLowering, gate: Tensor, changed: Tensor, up: Tensor, up_changed: Tensor,
    glu: Tensor,
) -> bool:  # fmt: skip
    return _lower_glu(lowering, (gate, up), (changed, up_changed), glu)


@fuses("MUL_MAT", "LORA", "MUL_MAT", "GLU")
def _lower_mul_mat_gate_lora_glu(
    lowering: CpuLowering, gate: Tensor, changed: Tensor, up: Tensor, glu: Tensor
) -> bool:
    return _lower_glu(lowering, (gate, up), (changed, None), glu)


@fuses("MUL_MAT", "MUL_MAT", "LORA", "GLU")
def _lower_mul_mat_up_lora_glu(
    lowering: CpuLowering, gate: Tensor, up: Tensor, changed: Tensor, glu: Tensor
) -> bool:
    return _lower_glu(lowering, (gate, up), (None, changed), glu)


@fuses("MUL_MAT", "MUL_MAT", "GLU")
def _lower_mul_mat_glu(lowering: CpuLowering, gate: Tensor, up: Tensor, glu: Tensor) -> bool:
    return _lower_glu(lowering, (gate, up), (None, None), glu)


def _lower_glu(
    lowering: CpuLowering, products: tuple[Tensor, Tensor],
    changed: tuple[Tensor | None, Tensor | None], glu: Tensor,
) -> bool:  # fmt: skip
    """Gate and up matmuls in one launch, which stores only the GLU of both."""
    gate, up = products
    gate_w, x = gate.src[0], gate.src[1]
    up_w = up.src[0]
    if gate_w is None or up_w is None or x is None or up.src[1] is not x:
        return False
    pairs = zip(products, changed, strict=True)
    if any(lora is not None and not _may_change(y, lora, glu) for y, lora in pairs):
        return False
    sources = tuple(c or y for y, c in zip(products, changed, strict=True))
    if glu.src[:2] != sources or glu.op_params["swapped"]:
        return False
    if glu.op_params["kind"] not in GLU_ACTIVATIONS:
        return False
    if gate_w.type not in QUANTIZED or up_w.type is not gate_w.type:
        return False
    if not (is_repacked(gate_w) and is_repacked(up_w) and supports_mul_mat(gate)):
        return False
    if glu.ne[0] % 32 or glu.nrows != glu.ne[1] or glu.type is not GGMLType.F32:
        return False
    kernel = mul_mat_glu_kernel(IDS[GLU_ACTIVATIONS[glu.op_params["kind"]]])
    _launch(lowering, gate, glu, up_w, glu=kernel, changed=changed)
    return True


def _lower_sum(
    lowering: CpuLowering, product: Tensor, changed: Tensor | None, *sums: Tensor
) -> bool:
    """MUL_MAT with the nodes after it: perhaps LORA, then up to two ADD (bias, residual)."""
    if changed is not None and not _may_change(product, changed, sums[-1] if sums else changed):
        return False
    before, added = changed or product, []
    for total in sums:
        other = _added(before, total)
        if other is None:
            return False
        added.append(other)
        before = total
    if not _may_add(product, before):
        return False
    if len(added) == 2:
        bias, residual = added
        if bias.nrows != 1 or residual.ne != product.ne or overlap(bias, before):
            return False
    _launch(lowering, product, before, *added, changed=() if changed is None else (changed,))
    return True


@fuses("MUL_MAT", "ADD")
@fuses("MUL_MAT", "ADD", "ADD")  # registered first, so tried first
def _lower_mul_mat_add(lowering: CpuLowering, node: Tensor, *sums: Tensor) -> bool:
    return _lower_sum(lowering, node, None, *sums)


@fuses("MUL_MAT", "LORA")
@fuses("MUL_MAT", "LORA", "ADD")
@fuses("MUL_MAT", "LORA", "ADD", "ADD")
def _lower_mul_mat_lora(
    lowering: CpuLowering, node: Tensor, changed: Tensor, *sums: Tensor
) -> bool:
    return _lower_sum(lowering, node, changed, *sums)
