"""LORA at the end of matmuls: bits of separate launches, of tokens alone, of those without it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import pyggml as ops
from pyggml.alloc.tallocr import alloc_ctx_tensors
from pyggml.backend.cpu import kernels as kernels  # registers the lowerings
from pyggml.backend.cpu.backend import CpuBackend
from pyggml.backend.cpu.compile.program import compile_program
from pyggml.backend.cpu.compile.work import WorkStore
from pyggml.backend.cpu.run.pool import get_pool
from pyggml.backend.cpu.weights.buffer import REPACK
from pyggml.buffer import HOST
from pyggml.cgraph import CGraph
from pyggml.context import Context
from pyggml.dtype import GGMLType
from pyggml.ops.matrix.lora import PANEL
from pyggml.quants import quantize
from pyggml.tensor import Tensor
from tests.pyggml.ops.harness import encoded

Array = npt.NDArray[Any]
N, N_FF, SPANS = 128, 256, np.array([0, 16, 28, 28, 64], np.int32)
RNG = np.random.default_rng(0)
X = RNG.standard_normal((9, N)).astype(np.float32)
SCALES = np.where(RNG.random((9, 4)) < 0.5, RNG.uniform(0.5, 2, (9, 4)), 0).astype(np.float32)
SCALES[[2, 5]] = 0
SCALES[6:] = [0, 1, 0, 0.5]
KINDS = [(GGMLType.F32, HOST), (GGMLType.Q4_1, REPACK), (GGMLType.Q4_1, HOST)]
kinds = pytest.mark.parametrize(("kind", "buft"), KINDS, ids=lambda x: x.name)


class Layer:
    """A feed-forward part whose three matrices have adapters, or those of some names.

    Args:
        floats: the name of a matrix whose adapters are F32.
    """

    def __init__(
        self, kind: GGMLType, buft: Any, adapted: str = "gate up down", floats: str = ""
    ) -> None:
        rng, self.ctx = np.random.default_rng(1), Context(no_alloc=True)
        sizes = {"gate": (N, N_FF), "up": (N, N_FF), "down": (N_FF, N)}
        self.w = {name: self.ctx.new_tensor_2d(kind, *ne) for name, ne in sizes.items()}
        buffer = alloc_ctx_tensors(self.ctx, buft)
        for t in self.w.values():
            values = rng.standard_normal((t.ne[1], t.ne[0])).astype(np.float32) / 10
            data = encoded(values, kind) if kind.is_quantized else values.view(np.uint8)
            buffer.set_tensor(t, data.reshape(-1))
        self.bias = rng.standard_normal(N).astype(np.float32)
        self.low, rank = dict[str, tuple[Tensor, Tensor]](), int(SPANS[-1])
        for name in adapted.split():
            (k, m), in_blocks = sizes[name], kind.is_quantized and name != floats
            low, width = (GGMLType.Q8_0, 2 * PANEL) if in_blocks else (GGMLType.F32, PANEL)
            made = Context(no_alloc=True)
            ne = (k, rank), (width, m * rank // width)
            self.low[name] = made.new_tensor(low, ne[0]), made.new_tensor(low, ne[1])
            buffer = alloc_ctx_tensors(made, buft if in_blocks else HOST)
            for t in self.low[name]:
                values = rng.standard_normal((t.ne[1], t.ne[0])).astype(np.float32)
                buffer.set_tensor(t, quantize(values, t.type).reshape(-1).view(np.uint8))

    def linear(self, ctx: Context, scales: Array) -> Callable[[str, Tensor], Tensor]:
        """A function that multiplies with a matrix, and adds the changes by adapters."""
        given = ctx.from_numpy(scales), ctx.from_numpy(SPANS)
        gains = ctx.from_numpy(np.array([1, 0.5, 1, 2], np.float32))

        def linear(name: str, x: Tensor) -> Tensor:
            y = ops.mul_mat(ctx, self.w[name], x)
            if name not in self.low:
                return y
            a, b = self.low[name]
            return ops.lora(ctx, y, b, *given, gains, a, x)

        return linear

    def run(
        self, x: Array, scales: Array, n_threads: int = 1, fusion: bool = True
    ) -> tuple[Array, list[str]]:
        """The result, and the names of the kernels."""
        ctx = Context()
        linear, inp = self.linear(ctx, scales), ctx.from_numpy(x)
        gate, up = linear("gate", inp), linear("up", inp)
        down = linear("down", ops.swiglu_split(ctx, gate, up))
        node = ops.add(ctx, ops.add(ctx, down, ctx.from_numpy(self.bias)), inp)
        graph = CGraph()
        graph.build_forward_expand(node)
        program = compile_program(
            graph, n_threads, get_pool().error_slot, WorkStore(), fusion=fusion
        )
        get_pool().run(program)
        return node.numpy().reshape(x.shape).copy(), [one.name for one in program.launches]


@kinds
def test_bits_of_each_token_alone(kind: GGMLType, buft: Any) -> None:
    layer = Layer(kind, buft)
    whole, names = layer.run(X, SCALES)
    assert "lora_changes" not in names  # all are at the end of matmuls
    if buft is REPACK:
        assert [n for n in names if "mul_mat" in n] == ["mul_mat_glu_silu_q4_1_x16",
                                                        "mul_mat_q4_1_x16"]  # fmt: skip
    for i in range(len(X)):
        assert layer.run(X[i : i + 1], SCALES[i : i + 1], 2)[0].tobytes() == whole[i].tobytes()
    for n, n_threads, fusion in ((9, 2, False), (9, 7, True), (5, 3, True), (8, 1, False)):
        got, _ = layer.run(X[:n], SCALES[:n], n_threads, fusion)
        assert got.tobytes() == whole[:n].tobytes(), (n, n_threads, fusion)


@kinds
@pytest.mark.parametrize("adapted", ["gate", "up", "down", "gate down"])
def test_tokens_without_adapters_keep_their_bits(kind: GGMLType, buft: Any, adapted: str) -> None:
    plain, _ = Layer(kind, buft, "").run(X, SCALES, 2)
    layer = Layer(kind, buft, adapted)
    changed, _ = layer.run(X, SCALES, 2)
    same = [a.tobytes() == b.tobytes() for a, b in zip(plain, changed, strict=True)]
    assert same == [not row.any() for row in SCALES[:, [0, 1, 3]]]  # adapter 2 has no columns
    assert layer.run(X, SCALES, 1, False)[0].tobytes() == changed.tobytes()


@pytest.mark.parametrize("floats", ["gate", "up"])
def test_adapters_of_gate_and_up_have_types_of_their_own(floats: str) -> None:
    layer = Layer(GGMLType.Q4_1, REPACK, floats=floats)
    fused, names = layer.run(X, SCALES)
    assert "mul_mat_glu_silu_q4_1_x16" in names
    assert fused.tobytes() == layer.run(X, SCALES, fusion=False)[0].tobytes()


def test_bits_of_both_layouts() -> None:
    plain, interleaved = (Layer(GGMLType.Q4_1, buft).run(X, SCALES)[0] for buft in (HOST, REPACK))
    assert plain.tobytes() == interleaved.tobytes()


@kinds
@pytest.mark.parametrize("n", [1, 4])
def test_matrices_that_read_one_source_run_at_the_same_time(
    kind: GGMLType, buft: Any, n: int
) -> None:
    """As queries, keys and values do: a phase for the products with A, one for the matrices.

    The products with A of one token are computed by each thread.
    """
    ctx = Context()
    linear = Layer(kind, buft).linear(ctx, SCALES[:n])
    x = ops.rms_norm(ctx, ctx.from_numpy(X[:n]), 1e-6)
    made = [linear(name, x) for name in ("gate", "up", "gate")]
    made += [ops.scale(ctx, y, 2.0) for y in made]
    graph = CGraph()
    for node in made:
        graph.build_forward_expand(node)
    found = []
    for options in ({}, {"sequential": True}, {"fusion": False}):
        for n_threads in (1, 2, 3):
            args = graph, n_threads, get_pool().error_slot, WorkStore()
            program = compile_program(*args, **options)
            for node in made:
                node.numpy()[...] = 0
            get_pool().run(program)
            found.append([node.numpy().tobytes() for node in made])
            names = [launch.kernel.name for launch in program.launches if launch.kernel]
            assert names.count("lora_factors") == 1
            if not options:
                phases = [{launch.kernel.name for launch in p.launches} for p in program.phases]
                before = [] if n == 1 else [{"lora_factors"}]
                found_phases = [x for x in phases if x & {"lora_factors", "mul_mat"}]
                assert found_phases == [*before, {"mul_mat"}]
    assert all(one == found[0] for one in found)


def test_an_interleaved_b_of_floats_is_not_supported() -> None:
    ctx = Context(no_alloc=True)
    b = ctx.new_tensor_2d(GGMLType.F16, PANEL, 64)
    keep = alloc_ctx_tensors(ctx, REPACK)
    y, x, a = (ctx.new_tensor_2d(GGMLType.F32, *ne) for ne in ((64, 3), (64, 3), (64, 16)))
    scales, gains = ctx.new_tensor_2d(GGMLType.F32, 1, 3), ctx.new_tensor_1d(GGMLType.F32, 1)
    node = ops.lora(ctx, y, b, scales, ctx.new_tensor_1d(GGMLType.I32, 2), gains, a, x)
    assert keep is not None and not CpuBackend(1).supports_op(node)
