"""Random graphs for property tests of code that plans, orders or runs a graph.

    @given(recipes())
    def test_something(recipe):
        a, b = build(recipe), build(recipe)        # two equal graphs, headers only
        for random in (a, b):
            GraphAllocator(HOST).alloc_graph(random.graph)
            random.fill()                          # the same inputs for both
        run(a.graph)                               # a tiny interpreter on the ops' references
        backend.graph_compute(b.graph)
        assert_array_equal(a.values(), b.values())

A recipe is plain data, so it shrinks well and builds the same graph any number of times.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from hypothesis import strategies as st

import pyggml as ops
from pyggml.cgraph import CGraph
from pyggml.context import Context
from pyggml.dtype import GGMLType
from pyggml.tensor import Flag, Tensor

F32 = GGMLType.F32


class Step(NamedTuple):
    """One node; its numbers select an existing tensor, modulo the number of tensors."""

    kind: str
    a: int
    b: int
    output: bool = False
    result: bool = False  # expand it into the graph even without a reader


class Recipe(NamedTuple):
    sizes: tuple[tuple[int, int], ...]  # ne of the inputs
    steps: tuple[Step, ...]


@dataclass
class RandomGraph:
    """A graph over headers without memory; weights have theirs."""

    ctx: Context
    weights: Context
    graph: CGraph
    inputs: list[Tensor]

    @property
    def results(self) -> list[Tensor]:
        """What the caller may read after a compute: outputs, and nodes without readers."""
        nodes = self.graph.nodes
        return [t for t in nodes if t.flags & Flag.OUTPUT or not self.graph.use_count(t)]

    def fill(self, seed: int = 0) -> None:
        """Write the inputs that are part of the graph; they must have memory."""
        rng = np.random.default_rng(seed)
        for tensor in self.inputs:
            values = rng.standard_normal(tensor.shape, np.float32)
            if tensor.data:
                tensor.set(values)

    def values(self) -> list[npt.NDArray[Any]]:
        """Copies of the results."""
        return [t.numpy().copy() for t in self.results]


KINDS = (
    "add", "mul", "scale", "silu", "rms_norm", "soft_max", "cont", "mul_mat", "swiglu",
    "rows", "columns", "reshape", "transpose", "cpy", "set_rows",
)  # fmt: skip


def recipes(max_steps: int = 24, kinds: tuple[str, ...] = KINDS) -> st.SearchStrategy[Recipe]:
    """Graphs with several readers, views of views, in-place candidates, inputs and outputs."""
    number = st.integers(0, 63)
    rare = st.sampled_from((False, False, False, True))
    steps = st.lists(
        st.builds(Step, st.sampled_from(kinds), number, number, rare, rare),
        min_size=1, max_size=max_steps,
    )  # fmt: skip
    size = st.sampled_from(((1, 1), (8, 4), (32, 4), (32, 16), (33, 3), (100, 9)))
    sizes = st.lists(size, min_size=1, max_size=3)
    return st.builds(lambda n, s: Recipe(tuple(n), tuple(s)), sizes, steps)


def build(recipe: Recipe) -> RandomGraph:
    """The recipe's graph; every call gives an equal one."""
    ctx, weights = Context(no_alloc=True), Context()
    inputs = [ctx.new_tensor(F32, ne).set_input() for ne in recipe.sizes]
    tensors = list(inputs)
    graph = CGraph()
    for step in recipe.steps:
        # recent tensors are likelier sources; old ones have long lifetimes
        x = tensors[-1 - step.a % min(len(tensors), 4 if step.a < 48 else 64)]
        node = _node(ctx, weights, step, x, tensors)
        if step.output:
            node.set_output()
        if step.output or step.result or step.kind in ("cpy", "set_rows"):
            graph.build_forward_expand(node)
        tensors.append(node)
    graph.build_forward_expand(tensors[-1])
    return RandomGraph(ctx, weights, graph, inputs)


def _node(ctx: Context, weights: Context, step: Step, x: Tensor, tensors: list[Tensor]) -> Tensor:
    n, n_rows = x.ne[:2]
    alike = [t for t in tensors if t.ne == x.ne and t.is_contiguous_rows()] or [x]
    other = alike[step.b % len(alike)]
    writable = _root(other).op is not None and _root(other) is not _root(x)  # inputs stay
    match step.kind:
        case "transpose":
            return ops.transpose(ctx, x)
        case "cpy" if writable:
            return ops.cpy(ctx, x, other)
        case _ if not x.is_contiguous_rows():
            return ops.cont(ctx, x)
        case "add":
            return ops.add(ctx, x, other)
        case "mul":
            return ops.mul(ctx, x, other)
        case "scale":
            return ops.scale(ctx, x, 0.5 + step.b / 64)
        case "silu":
            return ops.silu(ctx, x)
        case "rms_norm":
            return ops.rms_norm(ctx, x)
        case "soft_max" if x.is_contiguous():
            return ops.soft_max(ctx, x)
        case "swiglu":
            return ops.swiglu_split(ctx, x, other)
        case "mul_mat":
            values = np.random.default_rng(step.b).standard_normal((1 + step.b, n)) / n**0.5
            return ops.mul_mat(ctx, weights.from_numpy(values.astype(np.float32)), x)
        case "rows":
            first = step.b % n_rows
            return ops.view_2d(ctx, x, n, n_rows - first, x.nb[1], first * x.nb[1])
        case "columns":
            first = step.b % n
            return ops.view_2d(ctx, x, n - first, n_rows, x.nb[1], first * x.nb[0])
        case "reshape" if x.is_contiguous():
            return ops.reshape_2d(ctx, x, *((n * n_rows, 1) if step.b % 2 else (1, n * n_rows)))
        case "set_rows" if writable:
            ids = np.roll(np.arange(n_rows), step.b)
            return ops.set_rows(ctx, other, x, weights.from_numpy(ids))
        case _:
            return ops.cont(ctx, x)


def _root(tensor: Tensor) -> Tensor:
    return tensor.view_src or tensor


def run(graph: CGraph) -> None:
    """Run a graph whose tensors have host memory, one node after the other."""
    with np.errstate(all="ignore"):
        for node in graph.nodes:
            if node.op is not None and node.op.reference is not None:
                sources = (None if s is None else s.numpy(squeeze=False) for s in node.src)
                result = node.op.reference(*sources, **node.op_params)
                node.numpy(squeeze=False)[...] = result
