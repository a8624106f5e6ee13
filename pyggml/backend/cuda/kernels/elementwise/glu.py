"""GLU: ``activation(gate) * up``, packed or split. See ``span`` for how threads take elements."""

from functools import cache

from numba import cuda, int32, int64

from .....dtype import GGMLType
from .....ops.elementwise.formulas import LIMITED
from .....ops.elementwise.glu import ACTIVATIONS, limits
from .....tensor import Tensor
from ...codec import FLOAT_TYPES, element_loader, element_storer, quad_loader, quad_storer
from ...intrin import device, divide
from ...kernel import U8, GpuKernel, f32, i32, i64, kernel
from ...lowering import GpuLowering, lowers
from ..span import THREADS, Span, in_range, row_at, span_of
from .elementwise import FUNCTIONS, ZERO


@cache
def gated(kind: str):
    """A device function: (gate, up, alpha, limit, shift) -> an element of the result."""
    if kind in ACTIVATIONS:
        activation = FUNCTIONS[ACTIVATIONS[kind]]

        @device
        def plain(g, u, alpha, limit, shift):
            return activation(g, ZERO, ZERO, ZERO, ZERO) * u

        return plain
    return FUNCTIONS[LIMITED]


@cache
def glu_kernel(kind: str, type: GGMLType, flat: bool, quads: bool) -> GpuKernel:
    """The kernel of a kind for a type."""
    function, size = gated(kind), type.type_size
    load, store = element_loader(type), element_storer(type)
    load4, store4 = quad_loader(type), quad_storer(type)
    width = 4 if quads else 1
    suffix = Span(flat, quads, 0, 0).suffix

    @kernel(f"{kind}_{type.name.lower()}{suffix}", threads=THREADS)
    def glu(
        g: U8, up: U8, y: U8, units: i64, per_row: i32, ne1: i32, ne2: i32, g_at: i64,
        up_at: i64, g1: i64, g2: i64, g3: i64, up1: i64, up2: i64, up3: i64, y1: i64, y2: i64,
        y3: i64, alpha: f32, limit: f32, shift: f32,
    ):  # fmt: skip
        u = int64(cuda.blockIdx.x) * cuda.blockDim.x + cuda.threadIdx.x
        if u >= units:
            return
        g_row, up_row, y_row, j = g_at, up_at, int64(0), u * width
        if not flat:
            row = divide(u, per_row)
            j = int64(int32(u) - row * per_row) * width
            g_row += row_at(row, ne1, ne2, g1, g2, g3)
            up_row += row_at(row, ne1, ne2, up1, up2, up3)
            y_row = row_at(row, ne1, ne2, y1, y2, y3)
        if quads:
            a0, a1, a2, a3 = load4(g, g_row + j * size)
            b0, b1, b2, b3 = load4(up, up_row + j * size)
            store4(
                y, y_row + j * size, function(a0, b0, alpha, limit, shift),
                function(a1, b1, alpha, limit, shift), function(a2, b2, alpha, limit, shift),
                function(a3, b3, alpha, limit, shift),
            )  # fmt: skip
        else:
            v = function(load(g, g_row, j), load(up, up_row, j), alpha, limit, shift)
            store(y, y_row, j, v)

    return glu


def _supports(node: Tensor) -> bool:
    return in_range(node) and all(
        x.type in FLOAT_TYPES and x.is_contiguous_rows() for x in node.src[:2] if x is not None
    )


@lowers("GLU", _supports)
def _lower_glu(lowering: GpuLowering, node: Tensor) -> None:
    gate, up = node.src[:2]
    p, gate_at, up_at = node.op_params, 0, 0
    if up is None:
        up, half = gate, node.ne[0] * node.type.type_size
        gate_at, up_at = (half, 0) if p["swapped"] else (0, half)
        span = span_of(node, by_rows=True, more=(gate,))
    else:
        span = span_of(node, gate, up)
    alpha, limit, shift = limits(p["kind"], p["alpha"], p["limit"])
    call = glu_kernel(p["kind"], node.type, span.flat, span.quads)(
        g=gate, up=up, y=node, units=span.units, per_row=span.per_row, ne1=node.ne[1],
        ne2=node.ne[2], g_at=gate_at, up_at=up_at,
        alpha=alpha, limit=limit, shift=shift,
    )  # fmt: skip
    lowering.launch(call, span.grid)
