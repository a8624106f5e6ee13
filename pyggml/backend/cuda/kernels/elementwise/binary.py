"""ADD, SUB, MUL, DIV, ADD1: element by element, the second source repeating over the first; ADD_ID.

The second source's rows are as long as the first's (bias, residual, gate), one number, or shorter
rows that repeat. See ``span`` for how threads take elements. ADD_ID: the rows of the second source
are chosen by ids; an id without a row writes nothing and reports an error.
"""

from functools import cache

from numba import cuda, int32, int64

from .....dtype import GGMLType
from .....tensor import Tensor
from ...codec import FLOAT_TYPES, element_loader, element_storer, quad_loader, quad_storer
from ...intrin import divide, load_f32, load_i32, store_f32
from ...kernel import I32, U8, GpuKernel, i32, i64, kernel
from ...lowering import GpuLowering, blocks, lowers
from ..span import THREADS, Span, in_range, indices_of, repeated_at, span_of
from .elementwise import FORMULAS

FULL, ONE, REPEATED = range(3)  # how long the second source's rows are


@cache
def binary_kernel(
    op: str, types: tuple[GGMLType, GGMLType, GGMLType], columns: int, flat: bool, quads: bool
) -> GpuKernel:
    """The kernel of an op for the types of a, b and the result.

    Args:
        columns: FULL, ONE or REPEATED.
    """
    combine = FORMULAS[op]
    a_type, b_type, y_type = types
    load_a, load_b, store = element_loader(a_type), element_loader(b_type), element_storer(y_type)
    load_a4, load_b4, store4 = quad_loader(a_type), quad_loader(b_type), quad_storer(y_type)
    size_a, size_b, size_y = (t.type_size for t in types)
    width = 4 if quads else 1
    names = "_".join(t.name.lower() for t in types)
    form = ("", "_one", "_repeated")[columns] + Span(flat, quads, 0, 0).suffix

    @kernel(f"{op}_{names}{form}", threads=THREADS)
    def binary(
        a: U8, b: U8, y: U8, units: i64, per_row: i32, ne1: i32, ne2: i32, a1: i64, a2: i64,
        a3: i64, b_ne0: i32, b_ne1: i32, b_ne2: i32, b_ne3: i32, b1: i64, b2: i64, b3: i64,
        y1: i64, y2: i64, y3: i64,
    ):  # fmt: skip
        u = int64(cuda.blockIdx.x) * cuda.blockDim.x + cuda.threadIdx.x
        if u >= units:
            return
        a_row, b_row, y_row, j = int64(0), int64(0), int64(0), u * width
        if not flat:
            row = divide(u, per_row)
            j = int64(int32(u) - row * per_row) * width
            i1, i2, i3 = indices_of(row, ne1, ne2)
            a_row = i1 * a1 + i2 * a2 + i3 * a3
            y_row = i1 * y1 + i2 * y2 + i3 * y3
            b_row = repeated_at(i1, i2, i3, b_ne1, b_ne2, b_ne3, b1, b2, b3)
        if quads:
            v0, v1, v2, v3 = load_a4(a, a_row + j * size_a)
            if columns == ONE:
                w0 = load_b(b, b_row, 0)
                w1, w2, w3 = w0, w0, w0
            else:
                w0, w1, w2, w3 = load_b4(b, b_row + j * size_b)
            store4(
                y, y_row + j * size_y, combine(v0, w0), combine(v1, w1), combine(v2, w2),
                combine(v3, w3),
            )  # fmt: skip
        else:
            k = j
            if columns == ONE:
                k = int64(0)
            elif columns == REPEATED:
                k = int64(int32(j) - divide(j, b_ne0) * b_ne0)
            store(y, y_row, j, combine(load_a(a, a_row, j), load_b(b, b_row, k)))

    return binary


def _supports(node: Tensor) -> bool:
    a, b = node.src[:2]
    return all(t.type in FLOAT_TYPES and t.is_contiguous_rows() for t in (node, a, b)) and in_range(
        node
    )


@lowers("ADD", _supports)
@lowers("SUB", _supports)
@lowers("MUL", _supports)
@lowers("DIV", _supports)
@lowers("ADD1", _supports)
def _lower_binary(lowering: GpuLowering, node: Tensor) -> None:
    a, b = node.src[:2]
    columns = FULL if b.ne[0] == a.ne[0] else ONE if b.ne[0] == 1 else REPEATED
    if b.ne == a.ne:
        span = span_of(node, a, b)
    elif columns == FULL:
        span = span_of(node, a, by_rows=True, more=(b,))
    elif columns == ONE:
        span = span_of(node, a, by_rows=b.nelements > 1)
    else:
        span = Span(False, False, node.nelements, node.ne[0])
    op = node.op.name.lower().removesuffix("1")
    call = binary_kernel(op, (a.type, b.type, node.type), columns, span.flat, span.quads)(
        a=a, b=b, y=node, units=span.units, per_row=span.per_row, ne1=node.ne[1], ne2=node.ne[2],
    )  # fmt: skip
    lowering.launch(call, span.grid)


@kernel(threads=THREADS)
def add_id_f32(
    a: U8, b: U8, ids: U8, y: U8, units: i64, n: i32, ne1: i32, n_rows: i32, a1: i64, a2: i64,
    b1: i64, ids0: i64, ids1: i64, y1: i64, y2: i64, error: I32, code: i32,
):  # fmt: skip
    """``a`` plus the rows of ``b`` that ``ids`` name."""
    u = int64(cuda.blockIdx.x) * cuda.blockDim.x + cuda.threadIdx.x
    if u >= units:
        return
    row = divide(u, n)
    j = int32(int32(u) - row * n)
    i2 = divide(row, ne1)
    i1 = int32(row - i2 * ne1)
    id = load_i32(ids, i1 * ids0 + i2 * ids1)
    if id < 0 or id >= n_rows:
        error[0] = code
        return
    v = load_f32(a, i1 * a1 + i2 * a2 + j * 4) + load_f32(b, id * b1 + j * 4)
    store_f32(y, i1 * y1 + i2 * y2 + j * 4, v)


def _supports_add_id(node: Tensor) -> bool:
    a, b, _ = node.src[:3]
    return a.is_contiguous_rows() and b.is_contiguous_rows() and in_range(node)


@lowers("ADD_ID", _supports_add_id)
def _lower_add_id(lowering: GpuLowering, node: Tensor) -> None:
    a, b, ids = node.src[:3]
    call = add_id_f32(
        a=a, b=b, ids=ids, y=node, units=node.nelements, n=a.ne[0], ne1=a.ne[1], n_rows=b.ne[1],
        error=lowering.error, code=lowering.error_code(node),
    )  # fmt: skip
    lowering.launch(call, blocks(node.nelements, THREADS))
