"""A row's bits depend on the row alone: not on chunks, threads, other rows, address or fusion."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import pyggml as ops
from pyggml.backend.cpu import kernels as kernels  # registers the lowerings
from pyggml.backend.cpu.compile.program import compile_program
from pyggml.backend.cpu.compile.work import WorkStore
from pyggml.backend.cpu.run.pool import get_pool
from pyggml.cgraph import CGraph
from pyggml.context import Context
from pyggml.dtype import GGMLType
from pyggml.ops.op import OPS, Op
from pyggml.tensor import Tensor
from tests.tiers import some

Array = npt.NDArray[Any]
Build = Callable[[Context, Tensor], Tensor]


def _norm(ctx: Context, x: Tensor) -> Tensor:
    w = ctx.from_numpy(np.linspace(0.5, 2, x.ne[0], dtype=np.float32))
    return ops.mul(ctx, ops.rms_norm(ctx, x, 1e-5), w)


def _layer_norm(ctx: Context, x: Tensor) -> Tensor:
    w = ctx.from_numpy(np.linspace(0.5, 2, x.ne[0], dtype=np.float32))
    return ops.add(ctx, ops.mul(ctx, ops.norm(ctx, x, 1e-5), w), w)


def _gated_norm(ctx: Context, x: Tensor) -> Tensor:
    return ops.mul(ctx, _norm(ctx, x), ops.silu(ctx, x))


def _rope(ctx: Context, x: Tensor) -> Tensor:
    heads = ops.reshape_3d(ctx, x, x.ne[0] // 2, 2, x.ne[1])
    pos = ctx.from_numpy(np.full(x.ne[1], 1234, np.int32))
    return ops.reshape_2d(ctx, ops.rope(ctx, heads, pos, 34), x.ne[0], x.ne[1])


def _conv(ctx: Context, x: Tensor) -> Tensor:
    kernel = ctx.from_numpy(np.array([[0.3, -0.7, 0.2]], np.float32))
    return ops.conv_2d_direct(ctx, kernel, x, p0=1)


def _out_prod(ctx: Context, x: Tensor) -> Tensor:
    a = ctx.from_numpy(np.linspace(-1, 1, 1126 * 19, dtype=np.float32).reshape(1126, 19))
    return ops.out_prod(ctx, a, ops.transpose(ctx, x))


def _adapters(ctx: Context, x: Tensor) -> Tensor:
    """Two adapters of all rows."""
    rng, n_rows, k = np.random.default_rng(1), x.ne[1], x.ne[0]
    a = ctx.from_numpy(rng.standard_normal((9, k), np.float32))
    b = ctx.from_numpy(rng.standard_normal(((k + 15) // 16 * 9, 16), np.float32))
    scales = ctx.from_numpy(np.full((n_rows, 2), (0.5, -1), np.float32))
    spans, gains = ctx.from_numpy(np.array([0, 4, 9], np.int32)), ctx.from_numpy(np.ones(2, "f4"))
    return ops.lora(ctx, x, b, scales, spans, gains, a, x)


BUILDS: dict[str, Build] = {
    "norm": _norm,
    "norm with a gate": _gated_norm,
    "norm with a factor": lambda ctx, x: ops.scale(ctx, ops.rms_norm(ctx, x, 1e-5), 0.3),
    "soft_max": lambda ctx, x: ops.soft_max_ext(ctx, x, None, 3.0),
    "sinkhorn": lambda ctx, x: ops.sinkhorn(ctx, ops.reshape_3d(ctx, x, 1126, 1, x.ne[1]), 2, 1e-6),
    "swiglu": lambda ctx, x: ops.swiglu_split(ctx, x, x),
    "gelu": ops.gelu,
    "tanh": ops.tanh,
    "softplus": ops.softplus,
    "scale": lambda ctx, x: ops.scale_bias(ctx, x, 0.3, 0.7),
    "add": lambda ctx, x: ops.add(ctx, x, x),
    "rope": _rope,
    "adapters": _adapters,
    "conv": _conv,
    "pool": lambda ctx, x: ops.pool_1d(ctx, x, "avg", 3, 1, 1),
    "out_prod": _out_prod,
    "bicubic": lambda ctx, x: ops.interpolate(ctx, x, (900, x.ne[1], 1, 1), "bicubic", True),
    "layer norm": ops.norm,
    "layer norm with weight and bias": _layer_norm,
    "l2_norm": ops.l2_norm,
    "sum_rows": ops.sum_rows,
    "cumsum": ops.cumsum,
    "log": ops.log,
    "sin": ops.sin,
    "argsort": ops.argsort,
    "top_k": lambda ctx, x: ops.top_k(ctx, x, 40),
    "clamp": lambda ctx, x: ops.clamp(ctx, x, -0.5, 0.5),
    "repeat": lambda ctx, x: ops.repeat_4d(ctx, x, 3 * x.ne[0], x.ne[1], 1, 1),
    "pad": lambda ctx, x: ops.pad_ext(ctx, x, (3, 0, 0, 0), (5, 0, 0, 0), circular=True),
    "concat": lambda ctx, x: ops.concat(ctx, x, x, 0),
}
ROWS = np.random.default_rng(0).normal(size=(67, 1126)).astype(np.float32)  # not a multiple of 32


def compute(build: Build, x: Tensor, ctx: Context, n_threads: int, fusion: bool = True) -> Array:
    node = build(ctx, x)
    graph = CGraph()
    graph.build_forward_expand(node)
    pool = get_pool()
    program = compile_program(graph, n_threads, pool.error_slot, WorkStore(), fusion=fusion)
    pool.run(program)
    return node.numpy().copy()


@pytest.mark.parametrize("name", BUILDS)
def test_threads_and_other_rows_do_not_matter(name: str) -> None:
    ctx = Context()
    together = compute(BUILDS[name], ctx.from_numpy(ROWS), ctx, 1)
    for n_threads, n_rows, fusion in ((2, 67, True), (7, 67, False), (3, 1, True), (16, 5, True)):
        ctx = Context()
        got = compute(BUILDS[name], ctx.from_numpy(ROWS[:n_rows]), ctx, n_threads, fusion)
        assert got.reshape(n_rows, -1).tobytes() == together[:n_rows].tobytes()


@pytest.mark.parametrize("name", BUILDS)
def test_the_address_does_not_matter(name: str) -> None:
    ctx = Context()
    want = compute(BUILDS[name], ctx.from_numpy(ROWS[:2]), ctx, 1)
    for shift in (1, 3, 6):  # elements
        ctx = Context()
        memory = ctx.from_numpy(np.zeros(ROWS[:2].size + 8, np.float32))
        x = ops.view_2d(ctx, memory, 1126, 2, 1126 * 4, 4 * shift)
        x.numpy()[...] = ROWS[:2]
        assert compute(BUILDS[name], x, ctx, 1).tobytes() == want.tobytes()


@pytest.mark.parametrize("n_threads", [2, 7, 16])
def test_sums_over_all_rows_do_not_depend_on_threads(n_threads: int) -> None:
    def groups(ctx: Context, x: Tensor) -> Tensor:
        return ops.group_norm(ctx, ops.reshape_3d(ctx, x, 1126, 1, 67), 7)

    def doubled(ctx: Context, x: Tensor) -> Tensor:
        return ops.acc(ctx, x, x, x.nb[1:], 0)

    for build in (ops.sum, groups, doubled):
        ctx = Context()
        want = compute(build, ctx.from_numpy(ROWS), ctx, 1)
        got = compute(build, ctx.from_numpy(ROWS), ctx, n_threads)
        assert got.tobytes() == want.tobytes()


@pytest.mark.parametrize("name", ["gelu", "scale", "soft_max", "log", "clamp"])
def test_in_place_is_the_same(name: str) -> None:
    ctx = Context()
    want = compute(BUILDS[name], ctx.from_numpy(ROWS), ctx, 2)

    def in_place(ctx: Context, x: Tensor) -> Tensor:
        node = BUILDS[name](ctx, x)
        node.data = x.data
        return node

    ctx = Context()
    x = ctx.from_numpy(ROWS)
    compute(in_place, x, ctx, 2)
    assert x.numpy().tobytes() == want.tobytes()


RECURRENT = [op for op in OPS.values() if len(op.updates) == 1]


def _run(op: Op, sources: list[Array], pieces: list[int], n_threads: int) -> tuple[bytes, bytes]:
    """Results and states of one run, computed in pieces that follow each other."""
    states_at, results, first = op.src.index(op.updates[0]), b"", 0
    for n in pieces:
        ctx, nodes = Context(), []
        for i, x in enumerate(sources):
            axis = [a for a in range(x.ndim) if x.shape[a] == sum(pieces) and i != states_at]
            nodes.append(ctx.from_numpy(x.take(range(first, first + n), axis[0]) if axis else x))
        nodes.append(ctx.from_numpy(np.array([[0, n, -1 if first == 0 else 1]], np.int32)))
        nodes.append(ctx.from_numpy(np.array([-1] * (n - 1) + [1], np.int32)))
        node = op.build(ctx, *nodes)
        results += compute(lambda ctx, x: x, node, ctx, n_threads).tobytes()
        sources[states_at] = nodes[states_at].numpy().copy()
        first += n
    return results, sources[states_at].tobytes()


@pytest.mark.parametrize("op", some(RECURRENT, 3), ids=lambda op: op.name)
def test_pieces_of_a_run_do_not_matter(op: Op) -> None:
    cases = [case.args for case in op.cases if len(case.args) == len(op.src) and not case.perf]
    args = max(([a for a in args if a] for args in cases), key=lambda args: args[-1].ne[0])
    rng, T = np.random.default_rng(0), args[-1].ne[0]
    sources = [
        np.arange(T, dtype=np.int32)  # positions
        if a.type is GGMLType.I32
        else rng.uniform(a.low, a.high, a.ne[::-1]).astype(np.float32)
        for a in args[:-2]
    ]
    want = _run(op, sources.copy(), [T], 1)
    assert _run(op, sources.copy(), [4, 1, T - 5], 2) == want
    assert _run(op, sources.copy(), [1] * T, 7) == want
