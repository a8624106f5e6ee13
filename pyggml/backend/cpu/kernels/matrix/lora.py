"""LORA_SHRINK and LORA_EXPAND: rows of a batch with the matrices of their adapters.

A unit is a part of a row: every ``parts``-th of its products, or 32 columns and more. Sums are
taken in an order that depends on the adapters of the row alone.
Access: an adapter's rows front to back; nothing of adapters that a row does not have.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

from .....compiler.jit import CpuKernel, inline, kernel
from .....dtype import GGMLType
from .....ops.op import FLOATS
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
    SRC6,
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
from ...compile.lowering import CpuLowering, lowers
from ...simd.element import F32, copy_run
from ...simd.total import add_rows, dot_f32
from ..span import columns

_MACS = 1 << 13  # of a unit, at least


class LoraParts(NamedTuple):
    """The values of LORA_SHRINK and LORA_EXPAND."""

    parts: int  # of each row


@inline
def _matrix(node, low, ids, row):
    """The address of a row's matrix: the only one, or that of its expert; 0: there is none."""
    if data(node, ids) == 0:
        return data(node, low)
    expert = i32_ptr(data(node, ids))[row] + 0
    if expert < 0 or expert >= ne(node, low, 2):
        set_error(node, BAD_INDEX)
        return 0
    return data(node, low) + expert * nb(node, low, 2)


@inline
def _ascend(node, rank):
    """Whether the spans ascend from 0 to ``rank``; else the node has an error."""
    spans, n = i32_ptr(data(node, SRC3)), ne(node, SRC2, 0)
    legal = spans[0] == 0 and spans[n] == rank
    for j in range(n):
        legal = legal and spans[j] <= spans[j + 1]
    if not legal:
        set_error(node, BAD_INDEX)
    return legal


@cache
def shrink_kernel(kind: int) -> CpuKernel:
    """The kernel for matrices of a type."""

    def lora_shrink(node, chunk, n_chunks, scratch):
        k, rank, total = ne(node, SRC0, 0), ne(node, DST, 0), nrows(node, DST)
        n, n_tokens, parts = ne(node, SRC2, 0), ne(node, SRC2, 1), params_of(node, LoraParts).parts
        spans, n_used, n_b = i32_ptr(data(node, SRC3)), ne(node, DST, 1), ne(node, SRC1, 1)
        units = total * parts
        for u in range(first_row(units, chunk, n_chunks), first_row(units, chunk + 1, n_chunks)):
            row = u // parts
            part = u - row * parts
            h = f32_ptr(data(node, DST) + row * nb(node, DST, 1))
            scales = f32_ptr(data(node, SRC2) + 4 * n * (row // (total // n_tokens)))
            a, x_row = _matrix(node, SRC0, SRC4, row), row
            if data(node, SRC4) != 0:
                token = row // n_used
                x_row = token * n_b + (row - token * n_used) % n_b
            x = row_address(node, SRC1, x_row)
            for r in range(part, rank, parts):
                h[r] = 0
            if not _ascend(node, rank):
                a = 0
            for j in range(n if a != 0 else 0):
                if scales[j] != 0:
                    first = spans[j] + 0
                    first += (part - first) % parts
                    for r in range(first, spans[j + 1] + 0, parts):
                        h[r] = dot_f32(kind, a + r * nb(node, SRC0, 1), x, k)

    return kernel(lora_shrink, f"lora_shrink_{GGMLType(kind).name.lower()}")


@cache
def expand_kernel(kind: int) -> CpuKernel:
    """The kernel for matrices of a type. Scratch: addresses and factors of a row's rows of b."""

    def lora_expand(node, chunk, n_chunks, scratch):
        m, total, rank = ne(node, DST, 0), nrows(node, DST), ne(node, SRC1, 1)
        n, n_tokens, parts = ne(node, SRC2, 0), ne(node, SRC2, 1), params_of(node, LoraParts).parts
        spans, gains = i32_ptr(data(node, SRC3)), f32_ptr(data(node, SRC4))
        rows, factors, units = i64_ptr(scratch), f32_ptr(scratch + 8 * rank), total * parts
        for u in range(first_row(units, chunk, n_chunks), first_row(units, chunk + 1, n_chunks)):
            row = u // parts
            begin, end = columns(m, u - row * parts, parts)
            h = f32_ptr(data(node, SRC5) + row * nb(node, SRC5, 1))
            scales = f32_ptr(data(node, SRC2) + 4 * n * (row // (total // n_tokens)))
            b, count = _matrix(node, SRC1, SRC6, row), 0
            if not _ascend(node, rank):
                b = 0
            for j in range(n if b != 0 else 0):
                if scales[j] != 0:
                    factor = scales[j] * gains[j]
                    for r in range(spans[j] + 0, spans[j + 1] + 0):
                        rows[count] = b + r * nb(node, SRC1, 1) + begin * (4 if kind == F32 else 2)
                        factors[count] = factor * h[r] if data(node, SRC5) != 0 else factor
                        count += 1
            x = row_address(node, SRC0, row) + 4 * begin
            y = row_address(node, DST, row) + 4 * begin
            if count > 0:
                add_rows(kind, scratch, scratch + 8 * rank, count, x, y, end - begin)
            elif x != y:
                copy_run(x, y, end - begin)

    return kernel(lora_expand, f"lora_expand_{GGMLType(kind).name.lower()}")


def _parts(lowering: CpuLowering, macs: int, most: int, n_rows: int) -> tuple[int, int]:
    """(parts of each row, chunks) for rows of so many multiply-adds."""
    units = max(1, min(macs * n_rows // _MACS, 8 * lowering.n_threads))
    parts = max(1, min(-(-units // max(n_rows, 1)), most))
    return parts, max(1, min(units, parts * n_rows))


def _supports(node: Tensor) -> bool:
    low = node.src[1 if node.op.name == "LORA_EXPAND" else 0]
    return low.type in FLOATS


@lowers("LORA_SHRINK", _supports)
def _lower_shrink(lowering: CpuLowering, node: Tensor) -> None:
    a = node.src[0]
    parts, chunks = _parts(lowering, a.ne[0] * a.ne[1], a.ne[1], node.nrows)
    made = shrink_kernel(int(a.type))
    lowering.launch(made, node, LoraParts(parts), chunks)


@lowers("LORA_EXPAND", _supports)
def _lower_expand(lowering: CpuLowering, node: Tensor) -> None:
    b = node.src[1]
    parts, chunks = _parts(lowering, b.ne[0] * b.ne[1], max(1, b.ne[0] // 32), node.nrows)
    lowering.launch(
        expand_kernel(int(b.type)), node, LoraParts(parts), chunks, scratch=12 * b.ne[1]
    )
