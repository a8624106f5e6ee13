"""What the children of the self-test run: small computations, compared with NumPy.

    begin(pipe); families()                        # one case of each kernel family
    begin(pipe); layer()                           # a layer of a model for one token

A mistake in a kernel may kill the process, so nothing but ``selftest``'s children calls these.
"""

from __future__ import annotations

import os
import threading
from typing import Any

import numpy as np
import numpy.typing as npt

from ...alloc import GraphAllocator, alloc_ctx_tensors
from ...buffer import HOST
from ...cgraph import CGraph
from ...compiler import jit
from ...compiler.progress import progress
from ...context import Context
from ...dtype import GGMLType, numpy_dtype
from ...ops.attention.attention import flash_attn_cells, flash_attn_ext
from ...ops.attention.rope import rope_ext
from ...ops.elementwise.binary import add, mul
from ...ops.elementwise.glu import swiglu_split
from ...ops.matrix.matmul import mul_mat
from ...ops.matrix.sparse import axpy
from ...ops.movement.rows import get_rows, set_rows
from ...ops.movement.view import permute, reshape_2d, reshape_3d
from ...ops.rows.norm import rms_norm
from ...ops.rows.reduce import argmax
from ...quants import reference_dequantize as dequantize
from ...quants import reference_quantize as quantize
from ...tensor import Tensor
from .backend import CpuBackend
from .selftest import COMPILED
from .weights.buffer import REPACK

Array = npt.NDArray[Any]


def begin(pipe: int) -> None:
    """Set up this child process: report compiled kernels; exit when the parent closes the pipe.

    Args:
        pipe: -1 for none.
    """

    def watch() -> None:
        os.read(pipe, 1)
        os._exit(1)

    def compiled(name: str) -> None:
        n, of = progress.counts()
        print(COMPILED, n, of, "".join(name.split()), flush=True)

    jit.on_compile = compiled
    if pipe >= 0:
        threading.Thread(target=watch, daemon=True).start()


# Sizes that cover every path: full and partial groups, one token and several, and with a matrix
# unit two of its tiles plus five tokens.
_MATMUL_TYPES = {"Q4_1": 64, "Q8_0": 64, "Q4_K": 256, "Q6_K": 256, "BF16": 80, "F16": 64}  # columns


def families() -> None:
    """The first child: one case per kernel family. Raises if a result is wrong."""
    rng = np.random.default_rng(0)
    backend = CpuBackend(1)
    ctx = Context()

    def values(*shape: int) -> np.ndarray:
        return rng.uniform(-1, 1, shape).astype(np.float32)

    cases: list[tuple[Tensor, CGraph, Array, float]] = []

    def check(node: Tensor, want: Array, tolerance: float) -> None:
        graph = CGraph()
        graph.build_forward_expand(node)
        cases.append((node, graph, want, tolerance))

    for name, n in _MATMUL_TYPES.items():
        kind = GGMLType[name]
        w = ctx.new_tensor_2d(kind, n, 33)
        rows = quantize(values(33, n), kind)
        w.set(rows if kind.is_quantized else rows.view(numpy_dtype(kind) or np.uint8))
        for x_of in (ctx.from_numpy(values(37, n)), ctx.from_numpy(values(1, n))):
            node = mul_mat(ctx, w, x_of, many=kind is GGMLType.BF16)
            check(node, x_of.numpy() @ dequantize(rows, kind).T, 5e-4)
    y = ctx.from_numpy(values(1, 33))
    check(axpy(ctx, w, y), y.numpy() @ dequantize(rows, kind), 1e-7)  # of the last type
    x = ctx.from_numpy(values(5, 64))
    norm = rms_norm(ctx, x, 1e-5)
    want = x.numpy() / np.sqrt(np.mean(x.numpy() ** 2, -1, keepdims=True) + 1e-5)
    check(mul(ctx, norm, ctx.from_numpy(np.ones(64, np.float32))), want, 1e-7)
    silu = x.numpy() / (1 + np.exp(-x.numpy()))
    check(swiglu_split(ctx, x, x), silu * x.numpy(), 1e-7)
    for n_head, columns in ((2, 16), (16, 64)):  # few heads, and a tile of them
        q = ctx.from_numpy(values(n_head, 3, columns))
        k = ctx.from_numpy(values(1, 40, columns).astype(np.float16))
        scores = q.numpy() @ k.numpy().astype(np.float32).T * 0.25
        p = np.exp(scores - scores.max(-1, keepdims=True))
        want = (p / p.sum(-1, keepdims=True)) @ k.numpy().astype(np.float32)  # [head, token, n]
        check(flash_attn_ext(ctx, q, k, k, None, 0.25), want.swapaxes(0, 1), 1e-5)
    jit.compile_all([one for _, graph, _, _ in cases for one in backend.kernels(graph)])
    for node, graph, want, tolerance in cases:
        backend.graph_compute(graph)
        _compare(node, want, tolerance)


def layer() -> None:
    """The second child: a layer of a model for the first token. Raises if a result is wrong.

    At position 0 rope is the identity, and attention returns the token's own values.
    """
    rng, n, n_cells, token = np.random.default_rng(0), 64, 512, 7
    backend = CpuBackend(1)
    sizes = {"embd": 48, "q": n, "k": n, "v": n, "out": n, "gate": n, "up": n, "down": n}
    packed, weights, sources, want = Context(no_alloc=True), {}, [], {}
    for name, n_rows in sizes.items():
        kind = GGMLType.Q8_0 if name == "embd" else GGMLType.Q4_1
        data = quantize(rng.uniform(-0.3, 0.3, (n_rows, n)).astype(np.float32), kind)
        weights[name] = packed.new_tensor_2d(kind, n, n_rows)
        want[name] = dequantize(data, kind)
        sources.append((weights[name], data.reshape(-1)))
    alloc_ctx_tensors(packed, REPACK)
    for _ in backend.set_weights(sources):
        pass

    kept = Context()
    ones = kept.from_numpy(np.ones(n, np.float32))
    k_cache, v_cache = (kept.new_tensor_3d(GGMLType.F16, n // 2, n_cells, 2) for _ in range(2))
    cells = kept.from_numpy(np.zeros((1, n_cells, 2), np.int32))
    ctx, graph = Context(no_alloc=True), CGraph()
    ids, index = ctx.new_tensor_1d(GGMLType.I32, 1), ctx.new_tensor_1d(GGMLType.I64, 1)
    rows, position = ctx.new_tensor_2d(GGMLType.I32, 4, 1), ctx.new_tensor_1d(GGMLType.I32, 1)

    def norm(x: Tensor) -> Tensor:
        return mul(ctx, rms_norm(ctx, x, 1e-5), ones)

    def heads(name: str, x: Tensor) -> Tensor:
        return reshape_3d(ctx, mul_mat(ctx, weights[name], x), n // 2, 2, 1)

    x = get_rows(ctx, weights["embd"], ids.set_input())
    h = norm(x)
    q, k = (rope_ext(ctx, heads(name, h), position.set_input(), n_dims=32) for name in "qk")
    for cache, new in ((k_cache, k), (v_cache, heads("v", h))):
        new = permute(ctx, new, 0, 2, 1, 3)
        graph.build_forward_expand(set_rows(ctx, cache, new, index.set_input()))
    q = permute(ctx, q, 0, 2, 1, 3)
    y = flash_attn_cells(ctx, q, k_cache, v_cache, cells, rows.set_input(), 0.2)
    y = mul_mat(ctx, weights["out"], reshape_2d(ctx, y, n, 1))
    x = add(ctx, y, x)
    h = norm(x)
    h = swiglu_split(ctx, mul_mat(ctx, weights["gate"], h), mul_mat(ctx, weights["up"], h))
    x = add(ctx, mul_mat(ctx, weights["down"], h), x)
    logits = mul_mat(ctx, weights["embd"], norm(x)).set_output()
    best = argmax(ctx, logits).set_output()
    graph.build_forward_expand(best)
    GraphAllocator(HOST).alloc_graph(graph)
    for tensor, value in ((ids, token), (index, 0), (position, 0), (rows, (0, 0, 1, 0))):
        tensor.numpy(squeeze=False)[...] = value
    backend.graph_compute(graph)

    def normed(x: Array) -> Array:
        y: Array = x / np.sqrt(np.mean(x * x) + 1e-5)
        return y

    x0 = want["embd"][token].astype(np.float64)
    x0 = x0 + want["out"] @ (want["v"] @ normed(x0))
    gate, up = (want[name] @ normed(x0) for name in ("gate", "up"))
    x0 = x0 + want["down"] @ (gate / (1 + np.exp(-gate)) * up)
    _compare(logits, want["embd"] @ normed(x0), 2e-3)
    if best.numpy().item() != logits.numpy().argmax():
        raise SystemExit(f"ARGMAX gives {best.numpy()}")


def _compare(node: Tensor, want: Array, tolerance: float) -> None:
    """Raise if a result's normalised squared error exceeds its bound or is NaN."""
    error = float(np.sum((node.numpy() - want) ** 2) / np.sum(want**2))
    if not error <= tolerance:
        raise SystemExit(f"{node}: error {error:.1e}, allowed {tolerance:.0e}")
