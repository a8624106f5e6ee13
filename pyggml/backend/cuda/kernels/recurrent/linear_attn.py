"""GATED_LINEAR_ATTN, by columns of heads: as RWKV_WKV6.

Access: a state is read and written once a run.
"""

from functools import cache

from numba import int64

from .....tensor import Tensor
from ...intrin import device
from ...kernel import F32, U8, GpuKernel, f32, i32, i64, kernel
from ...lowering import GpuLowering, lowers
from .runs import (
    REGISTERS,
    ROWS,
    THREADS,
    ZERO,
    RowShape,
    carrier,
    launch_heads,
    row_functions,
    supports_heads,
)


@cache
def linear_attn_kernel(shape: RowShape) -> GpuKernel:
    """The kernel of a shape of columns."""
    per_lane, f = shape.per_lane, row_functions(shape)
    place, load_vector, load_rows, sum_rows = f.place, f.load_vector, f.load_rows, f.sum_rows
    K_AT, Q_AT, G_AT, V_AT = 0, per_lane, 2 * per_lane, 3 * per_lane

    @device
    def fetch(inputs, rows, t, x):
        k, k0, k2, v, v0, v2, q, q0, q2, g, g0, g2, _ = inputs
        n, _, row, lane = rows
        load_vector(k, k0 + t * k2, lane, n, x, K_AT)
        load_vector(q, q0 + t * q2, lane, n, x, Q_AT)
        load_vector(g, g0 + t * g2, lane, n, x, G_AT)
        load_rows(v, v0 + t * v2, row, n, x, V_AT)

    @device
    def step(inputs, x, s, y):
        scale = inputs[12]
        for c in range(ROWS):
            dot = ZERO
            for j in range(per_lane):
                e = s[c * per_lane + j] * x[G_AT + j] + x[K_AT + j] * x[V_AT + c]
                s[c * per_lane + j] = e
                dot += e * x[Q_AT + j]
            y[c] = dot * scale
        sum_rows(y)

    carry = carrier(shape, V_AT + ROWS, fetch, step, by_columns=True)
    name = f"gated_linear_attn{shape.suffix}"

    @kernel(name, threads=THREADS, max_registers=REGISTERS, unroll=True)
    def gated_linear_attn(
        k: U8, v: U8, q: U8, g: U8, states: F32, y: U8, runs: U8, slots: U8, n: i32, n_head: i32,
        tiles: i32, n_tokens: i32, n_runs: i32, n_slots: i32, k1: i64, k2: i64, v1: i64, v2: i64,
        q1: i64, q2: i64, g1: i64, g2: i64, scale: f32, error: U8, code: i32,
    ):  # fmt: skip
        head, row, lane = place(tiles)
        y0, y1 = int64(4) * n * head, int64(4) * n * n_head
        carry(
            (runs, slots, n_runs, n_tokens, n_slots, error, code),
            (states, int64(n) * n * head, int64(n) * n * n_head), (y, y0, y1), (n, n, row, lane),
            (k, head * k1, k2, v, head * v1, v2, q, head * q1, q2, g, head * g1, g2, scale),
        )  # fmt: skip

    return gated_linear_attn


@lowers("GATED_LINEAR_ATTN", supports_heads)
def _lower_gated_linear_attn(lowering: GpuLowering, node: Tensor) -> None:
    k, v, q, g, states = node.src[:5]
    scale = node.op_params["scale"]
    launch_heads(lowering, node, linear_attn_kernel, k=k, v=v, q=q, g=g, states=states, scale=scale)
