"""Every declared gradient against central differences of the op's reference in float64.

Add a case to the op, or to ``VIEWS`` for an op that only makes views.
"""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import pytest

import pyggml as ggml
from pyggml.backend.interface import Backend
from pyggml.backend.registry import init_backend
from pyggml.cgraph import CGraph
from pyggml.context import Context
from pyggml.dtype import GGMLType
from pyggml.errors import UnsupportedOp
from pyggml.ops.movement.view import PERMUTE
from pyggml.ops.op import OPS, Arg, Case, Op, arg, case
from pyggml.tensor import Tensor

from ..float64 import Array, evaluate
from .harness import by_default, random_values
from .op_table import case_node

F32, I32 = GGMLType.F32, GGMLType.I32
# Ops of which some kinds or sizes have no gradient
PARTIAL = ("UNARY", "GLU", "POOL_1D", "UPSCALE", "GROUP_NORM", "FLASH_ATTN_EXT")
# Error of a gradient of 0: 1e-7, but more for sums that cancel (of attention to one key)
ROUNDING = {"FLASH_ATTN_EXT": 1e-6}
MAX_ELEMENTS = 7000  # of a source
VIEWS = [
    (OPS["RESHAPE"], case(arg(12, 5), ne=(3, 4, 5, 1))),
    (OPS["VIEW"], case(arg(17, 5, 3), ne=(17, 5, 3, 1), nb=(4, 68, 340, 1020))),
    (OPS["VIEW"], case(arg(17, 5, 3), ne=(4, 3, 2, 1), nb=(4, 68, 340, 1020), offset=68 + 8)),
    (OPS["PERMUTE"], case(arg(7, 5, 3, 2), axes=(0, 2, 1, 3))),
    (OPS["PERMUTE"], case(arg(7, 5, 3, 2), axes=(2, 0, 3, 1))),
    (OPS["TRANSPOSE"], case(arg(7, 5, 3))),
]


def _is_small(c: Case) -> bool:
    """Whether a case has F32 data, for which differences can be computed."""
    args = [a for a in c.args if a is not None]
    return (
        all(a.type in (F32, I32) and 0 < prod(a.ne) <= MAX_ELEMENTS for a in args)
        and any(a.type is F32 for a in args)
        and c.params.get("type", F32) in (F32, None)
    )


def _cases() -> Iterator[Any]:
    """The small cases of ops with gradients; all are long but the first two of an op and kind."""
    counts = Counter[tuple[str, str]]()
    some = [(op, c) for op in OPS.values() if op.gradients for c in op.cases if _is_small(c)]
    for op, c in VIEWS + some:
        key = op.name, str(c.params.get("kind"))
        counts[key] += 1
        is_long = counts[key] > 2 or not by_default(op, c)
        yield pytest.param(op, c, marks=[pytest.mark.long] if is_long else [])


@pytest.fixture(scope="module")
def backend() -> Iterator[Backend]:
    started = init_backend("cpu", n_threads=2)
    yield started
    started.close()


@dataclass
class Loss:
    """The loss ``sum(op(sources) * weights)``, and the values that it is computed from."""

    op: Op
    case: Case

    def __post_init__(self) -> None:
        self.rng = np.random.default_rng(zlib.crc32(f"{self.op.name} {self.case.id}".encode()))
        self.ctx = ctx = Context()
        self.given: dict[Tensor, Array] = {}
        sources = []
        for a in self.case.args:
            if a is None:
                sources.append(None)
                continue
            leaf = ctx.new_tensor(a.type, a.ne)
            values = np.asarray(random_values(a, self.rng)).reshape(leaf.ne[::-1])
            self.given[leaf] = values
            leaf.set(values)
            sources.append(leaf if a.permute is None else PERMUTE.build(ctx, leaf, axes=a.permute))
        self.params = [
            s.root
            for s, name in zip(sources, self.op.src, strict=False)
            if s is not None and s.type is F32 and name.removesuffix("?") in self.op.gradients
        ]
        y = self.op.build(ctx, *sources, **self.case.params)
        if y.type is not F32:
            pytest.skip(f"the result is {y.type.name}")
        weights = ctx.new_tensor(F32, y.ne)
        self.given[weights] = self.rng.uniform(-1, 1, y.ne[::-1]).astype(np.float32)
        weights.set(self.given[weights])
        self.loss = ggml.sum(ctx, ggml.mul(ctx, ggml.cont(ctx, y), weights)).set_loss()
        for leaf in self.params:
            leaf.set_param()
        self.forward, self.graph = CGraph(), CGraph()
        for graph in (self.forward, self.graph):
            graph.build_forward_expand(self.loss)

    def at(self, param: Tensor, change: Array) -> float:
        """The loss where a parameter is changed."""
        given = {**self.given, param: self.given[param].astype(np.float64) + change}
        return float(evaluate(self.forward, given)[self.loss].item())

    def slope(self, param: Tensor, direction: Array) -> float:
        sizes = np.abs(self.given[param])
        h = 1e-6 * max(1.0, 1e-3 * float(sizes[np.isfinite(sizes)].max()))
        return (self.at(param, h * direction) - self.at(param, -h * direction)) / (2 * h)


@pytest.mark.parametrize(
    ("op", "case"), [*_cases()], ids=lambda v: getattr(v, "name", None) or v.id
)
def test_gradient(op: Op, case: Case, backend: Backend) -> None:
    loss = Loss(op, case)
    if not loss.params:
        pytest.skip("no source is F32")
    with np.errstate(invalid="ignore"):
        value = loss.at(loss.params[0], np.zeros(loss.params[0].ne[::-1]))
    if not abs(value) < 1e30:
        pytest.skip("the result has infinities, as DIAG_MASK_INF's")
    try:
        ggml.build_backward_expand(loss.ctx, loss.graph)
    except UnsupportedOp as error:
        assert op.name in PARTIAL or case.params["inplace"]
        pytest.skip(str(error))
    backend.graph_compute(loss.graph)
    for param in loss.params:
        grad = loss.graph.get_grad(param)
        if grad is None:  # zero everywhere
            assert loss.slope(param, np.ones(param.ne[::-1])) == 0
            continue
        assert grad.ne == param.ne
        got = grad.numpy(squeeze=False).astype(np.float64)
        for direction in _directions(loss.rng, got.shape):
            want = loss.slope(param, direction)
            length = np.linalg.norm(got[direction != 0]) * np.linalg.norm(direction)
            assert np.sum(got * direction) == pytest.approx(
                want, rel=2e-4, abs=2e-5 * length + ROUNDING.get(op.name, 1e-7)
            )


def _directions(rng: np.random.Generator, shape: tuple[int, ...]) -> Iterator[Array]:
    """Two random directions, and some single elements."""
    for _ in range(2):
        yield rng.uniform(-1, 1, shape)
    for _ in range(4):
        one = np.zeros(shape)
        one.flat[rng.integers(one.size)] = 1
        yield one


# Float sources without a gradient. Of the others some kinds and sizes have none: see PARTIAL.
# Gradients of gradients, steps of optimizers, labels and angles:
_OF_TRAINING = (
    "CROSS_ENTROPY_LOSS[labels] CROSS_ENTROPY_LOSS_BACK[dy,a,labels] "
    "FLASH_ATTN_BACK[q,k,v,y,dy,mask,sinks,distances] GELU_BACK[dy,x] GELU_ERF_BACK[dy,x] "
    "GELU_QUICK_BACK[dy,x] GET_ROWS_BACK[dy] IM2COL_BACK[dy,a] MUL_MAT_ID_BACK[dy,b] "
    "NORM_BACK[dy,x] OPT_STEP_ADAMW[a,grad,m,v,params] OPT_STEP_SGD[a,grad,params] "
    "POOL_2D_BACK[dy,x] RMS_NORM_BACK[dy,x] ROPE[freqs] ROPE_BACK[freqs] SILU_BACK[dy,x] "
    "SOFT_MAX_BACK[dy,y]"
)
# Masks and biases of attention, recurrent layers, sparse inference, adapters that run, caches:
_OF_INFERENCE = (
    "FLASH_ATTN_EXT[mask,sinks,distances] SOFT_MAX[mask] GATED_DELTA_NET[q,k,v,g,beta,state] "
    "GATED_LINEAR_ATTN[k,v,q,g,state] RWKV_WKV6[k,v,r,tf,td,state] "
    "RWKV_WKV7[r,w,k,v,a,b,state] SSM_CONV[sx,c,states] SSM_SCAN[s,x,dt,A,B,C] "
    "TOKEN_SHIFT[x,states] SOLVE_TRI[a,b] MUL_MAT_SPARSE[a,b,idx] AXPY[a,b,idx] "
    "MUL_MAT_ID_SPARSE[as,b,idx] AXPY_ID[as,b] "
    "MUL_MAT_SIGNS[x] LORA[y,b,scales,gains,a,x] SET_ROWS[b,a] PAD_REFLECT_1D[a] "
    "TIMESTEP_EMBEDDING[t] MAP_CUSTOM[x0,x1] GATED_POOL[x,score,bias,states] SINKHORN[x]"
)
WITHOUT_GRADIENT = {*_OF_TRAINING.split(), *_OF_INFERENCE.split()}


def _gradient_error(op: Op, c: Case, source: int) -> str | None:
    """The error of the backward part for a parameter as this source; None: it has a gradient."""
    ctx = Context(no_alloc=True)
    leafs = [None if a is None else ctx.new_tensor(a.type, a.ne) for a in c.args]
    sources = [
        leaf if leaf is None or a is None or a.permute is None
        else PERMUTE.build(ctx, leaf, axes=a.permute)
        for leaf, a in zip(leafs, c.args, strict=True)
    ]  # fmt: skip
    leaf = leafs[source]
    assert leaf is not None
    leaf.set_param()
    graph = CGraph()
    graph.build_forward_expand(op.build(ctx, *sources, **c.params))
    y = graph.nodes[-1]
    graph.build_forward_expand(ggml.sum(ctx, ggml.cont(ctx, y)).set_loss())
    try:
        ggml.build_backward_expand(ctx, graph)
    except UnsupportedOp as error:
        return str(error)
    return None


def test_every_op_has_a_gradient_or_an_error_that_names_it() -> None:
    """The list of float sources without one is pinned: a new op adds a gradient or a name."""
    found = set()
    for op in OPS.values():
        missing = []
        for i, name in enumerate(op.src):
            cases = [c for c in op.cases if i < len(c.args) and _is_data(c.args[i])]
            errors = [
                _gradient_error(op, c, i) for c in cases
                if not c.perf and case_node(op, c).type is F32
            ]  # fmt: skip
            assert all(e is None or ("\n" not in e and op.name in e) for e in errors), errors
            if errors and None not in errors:
                missing.append(name.removesuffix("?"))
        if missing:
            found.add(f"{op.name}[{','.join(missing)}]")
    assert found == WITHOUT_GRADIENT


def _is_data(a: Arg | None) -> bool:
    return a is not None and a.type is F32 and prod(a.ne) > 0
