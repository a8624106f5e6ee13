"""UNARY, SQR, SQRT, LOG, SIN, COS, LEAKY_RELU, CLAMP and SCALE: a function of every element.

There is a kernel for each function and type; see ``span`` for how threads take elements.
"""

from functools import cache

from numba import cuda, int32, int64

from .....dtype import GGMLType
from .....ops.elementwise.formulas import PARAMETERS
from .....tensor import Tensor
from ...codec import FLOAT_TYPES, element_loader, element_storer, quad_loader, quad_storer
from ...intrin import divide
from ...kernel import U8, GpuKernel, f32, i32, i64, kernel
from ...lowering import GpuLowering, lowers
from ..span import THREADS, Span, in_range, row_at, span_of
from .elementwise import FUNCTIONS


@cache
def element_kernel(name: str, type: GGMLType, flat: bool, quads: bool) -> GpuKernel:
    """The kernel of a function for a type."""
    function, size = FUNCTIONS[name], type.type_size
    load, store = element_loader(type), element_storer(type)
    load4, store4 = quad_loader(type), quad_storer(type)
    width = 4 if quads else 1
    suffix = Span(flat, quads, 0, 0).suffix

    @kernel(f"{name}_{type.name.lower()}{suffix}", threads=THREADS)
    def element(
        x: U8, y: U8, units: i64, per_row: i32, ne1: i32, ne2: i32, x1: i64, x2: i64, x3: i64,
        y1: i64, y2: i64, y3: i64, a: f32, b: f32, c: f32, d: f32,
    ):  # fmt: skip
        u = int64(cuda.blockIdx.x) * cuda.blockDim.x + cuda.threadIdx.x
        if u >= units:
            return
        x_row, y_row, j = int64(0), int64(0), u * width
        if not flat:
            row = divide(u, per_row)
            j = int64(int32(u) - row * per_row) * width
            x_row = row_at(row, ne1, ne2, x1, x2, x3)
            y_row = row_at(row, ne1, ne2, y1, y2, y3)
        if quads:
            v0, v1, v2, v3 = load4(x, x_row + j * size)
            store4(
                y, y_row + j * size, function(v0, a, b, c, d), function(v1, a, b, c, d),
                function(v2, a, b, c, d), function(v3, a, b, c, d),
            )  # fmt: skip
        else:
            store(y, y_row, j, function(load(x, x_row, j), a, b, c, d))

    return element


def _supports(node: Tensor) -> bool:
    x = node.src[0]
    return x.type in FLOAT_TYPES and x.is_contiguous_rows() and in_range(node)


def _lower_element(lowering: GpuLowering, node: Tensor) -> None:
    x, p = node.src[0], node.op_params
    name = p["kind"] if node.op.name == "UNARY" else node.op.name.lower()
    span = span_of(node, x)
    numbers = [float(p[key]) for key in PARAMETERS.get(name, ())] + [0.0] * 4
    call = element_kernel(name, node.type, span.flat, span.quads)(
        x=x, y=node, units=span.units, per_row=span.per_row, ne1=node.ne[1], ne2=node.ne[2],
        a=numbers[0], b=numbers[1], c=numbers[2], d=numbers[3],
    )  # fmt: skip
    lowering.launch(call, span.grid)


for _op in ("UNARY", "SQR", "SQRT", "LOG", "SIN", "COS", "LEAKY_RELU", "CLAMP", "SCALE"):
    lowers(_op, _supports)(_lower_element)
