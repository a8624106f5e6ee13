"""Parallel launches, fusion and shared memory do not change a program's results.

Tests do not rely on real races: an adversary runs the chunks of each phase one by one in random
order, with garbage in the scratch memory, so a missing dependency is seen in a single thread.
"""

from __future__ import annotations

import ctypes
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import pyggml as ops
from pyggml.alloc.gallocr import GraphAllocator
from pyggml.alloc.tallocr import alloc_ctx_tensors
from pyggml.backend.cpu import kernels as kernels  # registers the lowerings
from pyggml.backend.cpu.compile import lowering
from pyggml.backend.cpu.compile.loop import L_CHUNKS, LAUNCH_WORDS, PHASE_WORDS
from pyggml.backend.cpu.compile.lowering import CpuLowering
from pyggml.backend.cpu.compile.program import PhaseTable, compile_program
from pyggml.backend.cpu.compile.work import WorkMemory, WorkRange, WorkStore
from pyggml.backend.cpu.kernels.matrix import matmul
from pyggml.backend.cpu.run.pool import get_pool
from pyggml.backend.cpu.run.trace import trace
from pyggml.backend.cpu.tuning import Tuning, using
from pyggml.backend.cpu.weights.buffer import REPACK
from pyggml.buffer import HOST, zeroed
from pyggml.cgraph import CGraph
from pyggml.context import Context
from pyggml.dtype import GGMLType
from pyggml.errors import AllocError
from pyggml.quants import quantize
from pyggml.tensor import Tensor
from tests.pyggml.alloc.strategies import RandomGraph, Recipe, build, recipes

Arrays = list[npt.NDArray[Any]]
CALL = ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * 4)
RNG = np.random.default_rng(7)


@pytest.fixture(scope="module", autouse=True)
def many_small_chunks() -> Iterator[None]:
    """Small tensors are cut like large ones."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lowering, "GRAIN", 16)
        patch.setattr(matmul, "_CHUNK_MACS", 64, raising=False)
        patch.setattr(matmul, "_TOKENS", 3, raising=False)
        with using(Tuning(chunk_bytes=64)):
            yield


def lower(graph: CGraph, n_threads: int = 4, **options: bool) -> PhaseTable:
    return compile_program(graph, n_threads, get_pool().error_slot, WorkStore(), **options)


def words(address: int, n: int) -> list[int]:
    return list((ctypes.c_int64 * n).from_address(address))


def run_in_disorder(program: PhaseTable, order: random.Random) -> None:
    """Every phase's chunks one by one in any order, each by any thread."""
    scratch = zeroed(program.scratch_bytes)

    def call(launch: int, thread: int, chunk: int, chunks: int) -> None:
        address, node, _, stride, *_ = words(launch, LAUNCH_WORDS)
        scratch[:] = 0xFF
        CALL(address)(node + thread * stride, chunk, chunks, int(scratch.ctypes.data))

    for python, _, header in program.parts:
        if python is not None:
            python()
            continue
        phases, n_phases, launches = words(header, 3)
        for p in range(n_phases):
            first, n_launches, n_chunks = words(phases + 8 * PHASE_WORDS * p, PHASE_WORDS)
            calls = []
            for i in range(first, first + n_launches):
                launch = launches + 8 * LAUNCH_WORDS * i
                calls += [(launch, chunk) for chunk in range(words(launch, LAUNCH_WORDS)[L_CHUNKS])]
            assert len(calls) == n_chunks
            order.shuffle(calls)
            for launch, chunk in calls:
                thread = order.randrange(program.n_threads)
                _, _, chunks, _, *replicas = words(launch, LAUNCH_WORDS)
                for replica in filter(None, replicas):
                    call(launches + 8 * LAUNCH_WORDS * replica, thread, 0, 1)
                call(launch, thread, chunk, chunks)


def prepared(recipe: Recipe) -> tuple[RandomGraph, GraphAllocator]:
    """A random graph with memory, some of its weights quantized."""
    graph = build(recipe)
    for i, node in enumerate(graph.graph.nodes):
        if node.op is ops.OPS["MUL_MAT"] and i % 4:
            w, x = node.src
            assert w is not None
            if w.op is None and w.ne[0] % 32 == 0:
                kind = (GGMLType.Q8_0, GGMLType.Q4_1, GGMLType.F16)[i % 3]
                small = graph.weights.new_tensor(kind, w.ne)
                rows = quantize(w.numpy(squeeze=False), kind)
                small.set(rows.reshape(-1) if kind.is_quantized else rows.view(np.float16))
                node.src = (small, x)
    allocator = GraphAllocator(HOST)
    allocator.alloc_graph(graph.graph)
    return graph, allocator


def compute(
    graph: RandomGraph,
    allocator: GraphAllocator,
    program: PhaseTable,
    order: random.Random | None = None,
) -> Arrays:
    assert allocator.buffer is not None and allocator.buffer.mem is not None
    allocator.buffer.mem[:] = 0xFF
    graph.fill()
    if order is not None:
        run_in_disorder(program, order)
    else:
        get_pool().run(program)
    return graph.values()


def assert_same_bits(got: Arrays, want: Arrays, where: str) -> None:
    for a, b in zip(got, want, strict=True):
        same = (a == b) & (np.signbit(a) == np.signbit(b)) | np.isnan(a) & np.isnan(b)
        assert same.all(), where


@given(recipes(), st.integers(0, 1 << 20))
@settings(max_examples=60)
def test_dropped_barriers_and_fusion_keep_the_bits(recipe: Recipe, seed: int) -> None:
    graph, allocator = prepared(recipe)
    simple = lower(graph.graph, 1, sequential=True, fusion=False)
    assert all(len(phase.launches) == 1 for phase in simple.phases)
    want = compute(graph, allocator, simple)
    for fusion in (True, False):
        program = lower(graph.graph, fusion=fusion)
        assert len(program.phases) <= len(simple.phases)
        for trial in range(2):
            order = random.Random(seed + trial)
            assert_same_bits(compute(graph, allocator, program, order), want, "in disorder")
            assert_same_bits(compute(graph, allocator, program), want, "4 threads")


# --- a layer with the patterns that are fused and share work memory ---


def layer(n_tokens: int, buft: Any = REPACK) -> tuple[CGraph, Tensor, Tensor]:
    """Two distant readers of a norm, as in GPT-NeoX; gated FFN; residuals; biases; layer norm."""
    n, n_ff = 64, 96
    weights, data, ctx = Context(no_alloc=True), Context(), Context(no_alloc=True)
    kinds = (GGMLType.Q4_1, GGMLType.Q8_0, GGMLType.Q4_0, GGMLType.F16)
    rng = np.random.default_rng(3)

    def matrix(n_in: int, n_out: int, kind: GGMLType) -> Tensor:
        return weights.new_tensor_2d(kind, n_in, n_out)

    gate, up = (matrix(n, n_ff, GGMLType.Q4_1) for _ in range(2))
    down = matrix(n_ff, n, GGMLType.Q8_0)
    q, k, v, o = (matrix(n, n, kind) for kind in kinds)
    alloc_ctx_tensors(weights, buft)
    for w in weights:
        values = rng.standard_normal((w.ne[1], w.ne[0])).astype(np.float32) / 8
        w.set(quantize(values, w.type) if w.type.is_quantized else values.astype(np.float16))
    x = ctx.new_tensor_2d(GGMLType.F32, n, n_tokens).set_input()
    scale = data.from_numpy(rng.uniform(0.5, 2, n).astype(np.float32))
    bias = data.from_numpy(rng.standard_normal(n).astype(np.float32))
    y = ops.mul(ctx, ops.rms_norm(ctx, x), scale)
    parts = [ops.add(ctx, ops.mul_mat(ctx, w, y), bias) for w in (q, k, v)]
    mixed = ops.mul_mat(ctx, o, ops.mul(ctx, ops.add(ctx, parts[0], parts[1]), parts[2]))
    biased = ops.add(ctx, ops.mul_mat(ctx, q, ops.silu(ctx, mixed)), bias)
    out = ops.add(ctx, biased, x)
    hidden = ops.swiglu_split(ctx, ops.mul_mat(ctx, gate, y), ops.mul_mat(ctx, up, y))
    out = ops.add(ctx, ops.mul_mat(ctx, down, hidden), out)
    out = ops.add(ctx, ops.mul(ctx, ops.norm(ctx, out), scale), bias)
    graph = CGraph()
    graph.build_forward_expand(out)
    GraphAllocator(HOST).alloc_graph(graph)
    x.set(rng.standard_normal((n_tokens, n)).astype(np.float32))
    return graph, x, out


@pytest.mark.parametrize("n_tokens", [1, 5, 7])
def test_a_layer_has_the_same_bits_for_any_threads_fusion_and_order(n_tokens: int) -> None:
    graph, _, out = layer(n_tokens)
    get_pool().run(lower(graph, 1, sequential=True, fusion=False))
    want = out.numpy().tobytes()
    plain_graph, _, plain_out = layer(n_tokens, HOST)
    get_pool().run(lower(plain_graph, 1))
    assert plain_out.numpy().tobytes() == want
    for n_threads, fusion in ((1, True), (2, True), (3, False), (4, True)):
        program = lower(graph, n_threads, fusion=fusion)
        for seed in range(3):
            get_pool().run(program)
            assert out.numpy().tobytes() == want
            run_in_disorder(program, random.Random(seed))
            assert out.numpy().tobytes() == want


def test_independent_nodes_share_a_phase_and_fusion_makes_fewer_launches() -> None:
    graph, _, _ = layer(5)
    fused, single = lower(graph), lower(graph, fusion=False)
    assert any(len(phase.launches) >= 3 for phase in fused.phases)  # q, k, v
    assert sum(len(p.launches) for p in fused.phases) < sum(len(p.launches) for p in single.phases)
    assert len(lower(graph, sequential=True).phases) > len(fused.phases)


# --- cases that random graphs do not cover ---


def run(*results: Tensor) -> None:
    graph = CGraph()
    for tensor in results:
        graph.build_forward_expand(tensor)
    get_pool().run(lower(graph))


def weight(ctx: Context, n: int = 64) -> Tensor:
    rows = quantize(RNG.standard_normal((n, 64)).astype(np.float32), GGMLType.Q8_0)
    return ctx.new_tensor_2d(GGMLType.Q8_0, 64, n).set(rows)


def test_quantized_activations_are_kept_until_their_last_reader() -> None:
    """Work memory of a source with a later reader must not be reused before that reader."""
    ctx = Context()
    x = ctx.from_numpy(RNG.standard_normal((2, 64)).astype(np.float32))
    w = [weight(ctx) for _ in range(3)]
    alone = ops.mul_mat(ctx, w[2], x)
    run(alone)
    between = ops.mul_mat(ctx, w[1], ops.silu(ctx, ops.mul_mat(ctx, w[0], x)))
    again = ops.mul_mat(ctx, w[2], x)
    run(between, again)
    assert again.numpy().tobytes() == alone.numpy().tobytes()


def test_a_source_that_was_written_is_quantized_again() -> None:
    ctx = Context()
    x = ctx.from_numpy(RNG.standard_normal((2, 64)).astype(np.float32))
    w = weight(ctx)
    before = ops.mul_mat(ctx, w, x)
    written = ops.cpy(ctx, ops.scale(ctx, before, 0.5), x)
    after = ops.mul_mat(ctx, w, x)
    run(before, written, after)
    alone = ops.mul_mat(ctx, w, x)
    run(alone)
    assert after.numpy().tobytes() == alone.numpy().tobytes() != before.numpy().tobytes()


def test_a_fused_sum_does_not_overwrite_the_weight_that_it_reads() -> None:
    """The allocator may put ADD's result in the memory of MUL_MAT's sources; fusion must not."""
    ctx, data = Context(no_alloc=True), Context()
    n = 192
    source = data.from_numpy(RNG.standard_normal((n, n)).astype(np.float32))
    other = data.from_numpy(RNG.standard_normal((n, n)).astype(np.float32))
    computed = ops.scale(ctx, source, 2.0)  # a weight with no reader after the matmul
    total = ops.add(ctx, other, ops.mul_mat(ctx, computed, source))
    graph = CGraph()
    graph.build_forward_expand(total)
    GraphAllocator(HOST).alloc_graph(graph)
    want = other.numpy() + source.numpy() @ (2 * source.numpy()).T
    for program in (lower(graph, fusion=False), lower(graph)):
        for seed in range(3):
            run_in_disorder(program, random.Random(seed))
            np.testing.assert_allclose(total.numpy(), want, rtol=1e-4, atol=1e-3)


def test_an_empty_source_adds_no_dependency() -> None:
    ctx = Context()
    empty = ctx.new_tensor_2d(GGMLType.F32, 0, 4)
    x = ctx.new_tensor_2d(GGMLType.F32, 0, 3)
    node = ops.mul_mat(ctx, empty, x)
    run(node)
    np.testing.assert_array_equal(node.numpy(), np.zeros((3, 4), np.float32))


# --- work memory ---


def test_work_memory_is_not_reused_while_its_node_is_lowered() -> None:
    """Launches of one node between a result and its reader get other memory."""
    ctx, graph = Context(), CGraph()
    first, second = (ops.silu(ctx, ctx.from_numpy(RNG.random(64, np.float32))) for _ in range(2))
    for node in (first, second):
        graph.build_forward_expand(node)
    kept: list[WorkRange] = []

    def lower_first(lowering: CpuLowering, node: Tensor) -> None:
        values = lowering.take(5000)
        lowering.launch(matmul.mul_mat, node, writes=values)
        for _ in range(20):
            other = lowering.take(5000)
            assert other.address != values.address
            lowering.launch(matmul.mul_mat, node, writes=other)
        lowering.launch(matmul.mul_mat, node, work=[values])
        kept.append(values)

    def lower_second(lowering: CpuLowering, node: Tensor) -> None:
        (values,) = kept
        ranges = [lowering.take(5000) for _ in range(21)]
        assert values.address in {r.address for r in ranges} and not values.intact
        count = len(lowering.launches)
        for use in ({"work": [values]}, {"writes": values}):
            with pytest.raises(AllocError, match="given to another launch"):
                lowering.launch(matmul.mul_mat, node, **use)  # type: ignore[arg-type]
        assert len(lowering.launches) == count

    def lower_silu(lowering: CpuLowering, node: Tensor) -> None:
        (lower_first if node is first else lower_second)(lowering, node)

    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(lowering.LOWERINGS.lower, "UNARY", lower_silu)
        CpuLowering(graph, 2, WorkMemory(WorkStore())).run()
    assert kept


@pytest.mark.parametrize(("max_chunks", "max_phases"), [(1, 1000), (5, 1000), (1 << 20, 1), (7, 3)])
def test_any_number_of_chunks_and_phases(
    max_chunks: int, max_phases: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Large phases and launches are cut, and long programs are several parts."""
    graph, x, y = layer(5)
    data = RNG.standard_normal(x.nelements).astype(np.float32)

    def result(**limits: int) -> tuple[PhaseTable, bytes]:
        for name, limit in limits.items():
            monkeypatch.setattr(f"pyggml.backend.cpu.compile.program.{name}", limit)
        made = lower(graph, 3)
        x.numpy().reshape(-1)[:] = data
        get_pool().run(made)
        return made, y.numpy().tobytes()

    whole, want = result()
    cut, got = result(_MAX_CHUNKS=max_chunks, _MAX_PHASES=max_phases)
    assert got == want and max(phase.chunks for phase in cut.phases) <= max_chunks
    assert max(len(phases) for _, phases, _ in cut.parts) <= max_phases
    assert len(cut.phases) + len(cut.parts) > len(whole.phases) + len(whole.parts)
    (traced,) = trace(cut)
    replicas = {launch for phase in cut.phases for launch in phase.replicas}
    for one in traced.launches:  # each chunk has its own time
        ran = traced.thread[one.first : one.first + one.launch.chunks] >= 0
        assert one.launch in replicas or ran.all()
    assert y.numpy().tobytes() == want
