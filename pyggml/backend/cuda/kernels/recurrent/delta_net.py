"""GATED_DELTA_NET, row by row of the states.

A row is decayed, multiplied with the key, changed, and multiplied with the query, all in registers.
Access: a state is read and written once a run.
"""

import math
from functools import cache, partial

from numba import int32, int64

from .....tensor import Tensor
from ...intrin import device, divide, load_f32
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
def delta_net_kernel(shape: RowShape, gates_keys: bool) -> GpuKernel:
    """The kernel with a gate for each head or, of KDA, for each key."""
    per_lane, f = shape.per_lane, row_functions(shape)
    place, load_vector, load_rows, sum_rows = f.place, f.load_vector, f.load_rows, f.sum_rows
    K_AT, Q_AT, V_AT = 0, per_lane, 2 * per_lane
    BETA_AT = V_AT + ROWS
    G_AT = BETA_AT + 1
    size = G_AT + (per_lane if gates_keys else 1)

    @device
    def fetch(inputs, rows, t, x):
        q, q0, q2, k, k0, k2, v, v0, v2, g, g0, g2, beta, beta0, beta2, _ = inputs
        n, _, row, lane = rows
        load_vector(q, q0 + t * q2, lane, n, x, Q_AT)
        load_vector(k, k0 + t * k2, lane, n, x, K_AT)
        load_rows(v, v0 + t * v2, row, n, x, V_AT)
        x[BETA_AT] = load_f32(beta, beta0 + t * beta2)
        if gates_keys:
            load_vector(g, g0 + t * g2, lane, n, x, G_AT)
        else:
            x[G_AT] = load_f32(g, g0 + t * g2)

    @device
    def step(inputs, x, s, y):
        scale = inputs[15]
        for j in range(per_lane if gates_keys else 1):
            x[G_AT + j] = math.exp(x[G_AT + j])
        for r in range(ROWS):
            dot = ZERO
            for j in range(per_lane):
                e = s[r * per_lane + j] * x[G_AT + j if gates_keys else G_AT]
                s[r * per_lane + j] = e
                dot += e * x[K_AT + j]
            y[r] = dot
        sum_rows(y)
        for r in range(ROWS):
            delta, dot = x[BETA_AT] * (x[V_AT + r] - y[r]), ZERO
            for j in range(per_lane):
                e = s[r * per_lane + j] + delta * x[K_AT + j]
                s[r * per_lane + j] = e
                dot += e * x[Q_AT + j]
            y[r] = dot * scale
        sum_rows(y)

    carry = carrier(shape, size, fetch, step)
    name = f"gated_delta_net{'_keys' * gates_keys}{shape.suffix}"

    @kernel(name, threads=THREADS, max_registers=REGISTERS, unroll=True)
    def gated_delta_net(
        q: U8, k: U8, v: U8, g: U8, beta: U8, states: F32, y: U8, runs: U8, slots: U8, n: i32,
        n_head: i32, q_ne1: i32, k_ne1: i32, tiles: i32, n_tokens: i32, n_runs: i32, n_slots: i32,
        q1: i64, q2: i64, k1: i64, k2: i64, v1: i64, v2: i64, g1: i64, g2: i64, beta1: i64,
        beta2: i64, scale: f32, error: U8, code: i32,
    ):  # fmt: skip
        head, row, lane = place(tiles)
        y0, y1 = int64(4) * n * head, int64(4) * n * n_head
        q0 = int32(head - divide(head, q_ne1) * q_ne1) * q1
        k0 = int32(head - divide(head, k_ne1) * k_ne1) * k1
        carry(
            (runs, slots, n_runs, n_tokens, n_slots, error, code),
            (states, int64(n) * n * head, int64(n) * n * n_head), (y, y0, y1), (n, n, row, lane),
            (q, q0, q2, k, k0, k2, v, head * v1, v2, g, head * g1, g2,
             beta, head * beta1, beta2, scale),
        )  # fmt: skip

    return gated_delta_net


@lowers("GATED_DELTA_NET", supports_heads)
def _lower_gated_delta_net(lowering: GpuLowering, node: Tensor) -> None:
    q, k, v, g, beta, states = node.src[:6]
    launch_heads(
        lowering, node, partial(delta_net_kernel, gates_keys=g.ne[0] != 1), q=q, k=k, v=v, g=g,
        beta=beta, states=states, scale=1 / math.sqrt(node.ne[0]),
    )  # fmt: skip
