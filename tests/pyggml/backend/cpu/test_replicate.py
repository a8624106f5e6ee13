"""Launches replicated on every thread, and the assignment of chunks to threads."""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import pyggml as ops
from pyggml.backend.cpu import kernels as kernels  # registers the lowerings
from pyggml.backend.cpu.abi import DST, data, f32_ptr
from pyggml.backend.cpu.atomics import atomic_add, atomic_load, pause
from pyggml.backend.cpu.compile.loop import SLOTS
from pyggml.backend.cpu.compile.program import PhaseTable, compile_program, shares
from pyggml.backend.cpu.compile.work import WorkStore
from pyggml.backend.cpu.run.pool import get_pool
from pyggml.backend.cpu.run.trace import trace
from pyggml.cgraph import CGraph
from pyggml.context import Context
from pyggml.dtype import GGMLType
from pyggml.quants import quantize
from pyggml.tensor import Tensor
from pyggml.viz.times import node_times
from pyggml.viz.trace import trace_json

RNG = np.random.default_rng(3)
X = RNG.standard_normal((1, 256)).astype(np.float32)


def weight(ctx: Context, kind: GGMLType, n_out: int = 96) -> Tensor:
    w = ctx.new_tensor(kind, (256, n_out))
    rows = RNG.standard_normal((n_out, 256)).astype(np.float32)
    return w.set(quantize(rows, kind).reshape(-1) if kind.is_quantized else rows)


def program_of(*results: Tensor, n_threads: int = 3, **options: bool) -> PhaseTable:
    graph = CGraph()
    for tensor in results:
        graph.build_forward_expand(tensor)
    return compile_program(graph, n_threads, get_pool().error_slot, WorkStore(), **options)


def replica_names(program: PhaseTable) -> list[str]:
    return [la.name for phase in program.phases for la in phase.replicas]


def values(program: PhaseTable, *results: Tensor) -> list[bytes]:
    for tensor in results:
        tensor.numpy()[...] = 0
    get_pool().run(program)
    return [tensor.numpy().tobytes() for tensor in results]


@pytest.mark.parametrize("kinds", [("Q4_0", "Q4_0"), ("Q8_0", "F32"), ("F32", "Q4_K")])
def test_a_norm_read_by_matmuls_is_run_by_every_thread(kinds: tuple[str, str]) -> None:
    ctx = Context()
    normed = ops.rms_norm(ctx, ctx.from_numpy(X), 1e-6)
    made = [ops.mul_mat(ctx, weight(ctx, GGMLType[k]), normed) for k in kinds]
    made.append(ops.scale(ctx, made[0], 2.0))
    want = values(program_of(*made, sequential=True, fusion=False), *made)
    for n_threads in (1, 2, 5):
        program = program_of(*made, n_threads=n_threads)
        own = ["quantize_256_f32"] if "Q4_K" in kinds else []  # a launch after the norm
        assert replica_names(program) == ["rms_norm_f32", *own]
        assert len(program.phases) == 2
        for _ in range(20):
            assert values(program, *made) == want


def test_a_replica_that_writes_over_what_it_reads() -> None:
    """As allocators give a result the memory of a source that nothing else reads."""
    ctx = Context()
    first = ops.rms_norm(ctx, ctx.from_numpy(X), 1e-6)
    second = ops.norm(ctx, first, 1e-6)
    second.data, second.buffer = first.data, first.buffer
    made = ops.scale(ctx, ops.mul_mat(ctx, weight(ctx, GGMLType.F32), second), 2.0)
    want = values(program_of(made, sequential=True, fusion=False), made)
    program = program_of(made)
    assert replica_names(program) == ["norm_f32"]
    assert values(program, made) == want


def test_a_replicated_norm_is_recomputed_in_every_run() -> None:
    ctx = Context()
    x = ctx.from_numpy(X)
    product = ops.mul_mat(ctx, weight(ctx, GGMLType.Q8_0), ops.rms_norm(ctx, x, 1e-6))
    end = ops.scale(ctx, product, 2.0)
    plain, program = program_of(end, sequential=True, fusion=False), program_of(end, n_threads=2)
    assert replica_names(program) == ["rms_norm_f32"]
    inputs = [RNG.standard_normal(X.shape).astype(np.float32) for _ in range(20)]
    wanted = [values(plain, end) for value in inputs if x.set(value) is x]
    for value, want in zip(inputs, wanted, strict=True):
        x.set(value)
        assert values(program, end) == want


def test_a_replica_reads_others() -> None:
    """A norm, and the launch that quantizes it, each in a slot of its own, for two matmuls."""
    ctx = Context()
    x = ctx.from_numpy(X)
    normed = ops.rms_norm(ctx, x, 1e-6)
    made = [ops.mul_mat(ctx, weight(ctx, k), normed) for k in (GGMLType.Q4_K, GGMLType.F32)]
    made.append(ops.scale(ctx, made[0], 2.0))
    plain = program_of(*made, sequential=True, fusion=False)
    for n_threads in (1, 2, 5):
        program = program_of(*made, n_threads=n_threads)
        assert replica_names(program) == ["rms_norm_f32", "quantize_256_f32"]
        assert len(program.phases) == 2
        for value in (X, 3 * X, X[:, ::-1]):
            x.set(value)
            want = values(plain, *made)
            assert values(program, *made) == want


def test_a_replica_that_no_slot_is_left_for_has_a_phase() -> None:
    ctx = Context()
    changed = ctx.from_numpy(X)
    for _ in range(SLOTS + 1):
        changed = ops.rms_norm(ctx, changed, 1e-6)
    product = ops.mul_mat(ctx, weight(ctx, GGMLType.Q8_0), changed)
    end = ops.scale(ctx, product, 2.0)
    want = values(program_of(end, sequential=True, fusion=False), end)
    program = program_of(end)
    assert replica_names(program) == ["rms_norm_f32"] * SLOTS and len(program.phases) == 3
    assert values(program, end) == want


def test_the_source_of_a_replica_that_another_reads_stays() -> None:
    """The norm's source changes after the first matmul, which reads the norm through a replica."""
    ctx = Context()
    x = ctx.from_numpy(X)
    normed = ops.rms_norm(ctx, x, 1e-6)
    early, late = (ops.mul_mat(ctx, weight(ctx, GGMLType.Q4_K), normed) for _ in range(2))
    change = ops.cpy(ctx, ctx.from_numpy(3 * X + 1), x)
    made = early, change, late, ops.scale(ctx, late, 2.0)

    def run(**options: bool) -> tuple[list[bytes], list[str]]:
        x.set(X)
        program = program_of(*made, **options)
        get_pool().run(program)
        return [tensor.numpy().tobytes() for tensor in made], replica_names(program)

    got, names = run()
    assert names == ["quantize_256_f32"] and got == run(sequential=True, fusion=False)[0]


def test_a_launch_with_other_readers_is_not_replicated() -> None:
    ctx = Context()
    normed = ops.rms_norm(ctx, ctx.from_numpy(X), 1e-6)
    product = ops.mul_mat(ctx, weight(ctx, GGMLType.Q8_0), normed)
    assert replica_names(program_of(product)) == []  # an eval callback may read its sources
    product = ops.scale(ctx, product, 2.0)
    assert replica_names(program_of(product)) == ["rms_norm_f32"]
    assert replica_names(program_of(product, sequential=True)) == []
    assert replica_names(program_of(product, fusion=False)) == []
    assert replica_names(program_of(ops.reshape_1d(ctx, normed, 256), product)) == []  # a result
    graph = CGraph()
    for tensor in (product, ops.silu(ctx, normed)):
        graph.build_forward_expand(tensor)
    part = graph.part(graph.nodes[:-1])  # the other reader belongs to another split
    made = compile_program(part, 2, get_pool().error_slot, WorkStore())
    assert replica_names(made) == []

    def look(dst: Any, x: Any) -> None:
        dst[...] = x

    seen = ops.map_custom(ctx, look, normed)
    program = program_of(product, seen)
    assert replica_names(program) == []
    assert values(program, seen)[0] == normed.numpy().tobytes()
    normed.set_output()
    assert replica_names(program_of(product)) == []


def test_a_launch_is_not_replicated_if_its_source_is_overwritten() -> None:
    ctx = Context()
    x = ctx.from_numpy(X)
    normed = ops.rms_norm(ctx, x, 1e-6)
    early = ops.mul_mat(ctx, weight(ctx, GGMLType.Q8_0), normed)
    other = ops.cpy(ctx, ctx.from_numpy(3 * X + 1), x)  # x changes before the second matmul
    late = ops.mul_mat(ctx, weight(ctx, GGMLType.Q4_0), normed)
    made = early, other, late, ops.scale(ctx, late, 2.0)

    def run(**options: bool) -> list[bytes]:
        x.set(X)
        program = program_of(*made, **options)
        assert replica_names(program) == []
        get_pool().run(program)
        return [tensor.numpy().tobytes() for tensor in made]

    assert run() == run(sequential=True, fusion=False)


def test_reused_work_memory_is_not_taken_for_its_earlier_content() -> None:
    """The second matmul's activations reuse the memory of the norm's; ADD still reads the norm."""
    ctx = Context()
    normed = ops.rms_norm(ctx, ctx.from_numpy(X), 1e-6)
    inner = ops.silu(ctx, ops.mul_mat(ctx, weight(ctx, GGMLType.Q8_0, 256), normed))
    total = ops.add(ctx, ops.mul_mat(ctx, weight(ctx, GGMLType.Q8_0, 256), inner), normed)
    end = ops.scale(ctx, total, 2.0)
    want = values(program_of(end, sequential=True, fusion=False), total)
    program = program_of(end)
    first, second = (la for la in program.launches if la.name.startswith("mul_mat"))
    assert first.params.activations == second.params.activations and set(
        replica_names(program)
    ) == {"rms_norm_f32"}
    assert values(program, total) == want


@pytest.mark.parametrize("kinds", [("Q4_0", "Q8_0"), ("Q4_K", "Q6_K"), ("Q8_0", "Q4_K")])
def test_a_row_is_quantized_by_every_thread(kinds: tuple[str, str]) -> None:
    ctx = Context()
    x = ctx.from_numpy(X)
    early, late = (ops.mul_mat(ctx, weight(ctx, GGMLType[k]), x) for k in kinds)
    change = ops.cpy(ctx, ctx.from_numpy(3 * X + 1), x)  # after the first matmul
    made = early, change, late

    def run(**options: bool) -> list[bytes]:
        x.set(X)
        program = program_of(*made, **options)
        columns = [32 if k == "Q8_0" or k == "Q4_0" else 256 for k in kinds]
        names = [f"quantize_{n}_f32" for n in columns] if options.get("fusion", True) else []
        assert replica_names(program) == names
        get_pool().run(program)
        return [tensor.numpy().tobytes() for tensor in made]

    want = run(sequential=True, fusion=False)
    assert want[0] != want[2] and run() == want and run() == want
    several = ops.mul_mat(ctx, weight(ctx, GGMLType.Q8_0), ctx.from_numpy(np.repeat(X, 64, 0)))
    assert replica_names(program_of(several)) == []  # of several chunks


def test_keys_are_rotated_where_they_are_stored() -> None:
    ctx = Context()
    heads = ctx.from_numpy(RNG.standard_normal((1, 3, 64)).astype(np.float32))
    position, index = (ctx.from_numpy(np.array([n], np.int32)) for n in (7, 2))
    table = ctx.new_tensor_2d(GGMLType.F16, 192, 4)
    rotated = ops.reshape_2d(ctx, ops.rope(ctx, ops.scale(ctx, heads, 2.0), position, 64), 192, 1)
    stored = ops.set_rows(ctx, table, rotated, index)
    after = ops.scale(ctx, heads, 3.0)
    want = values(program_of(stored, after, sequential=True, fusion=False), table)
    program = program_of(stored, after)
    assert replica_names(program) == ["rope_normal_f32"]
    assert values(program, table) == want and np.any(table.numpy())
    wide = ops.rope(ctx, ops.scale(ctx, ctx.from_numpy(X.reshape(1, 4, 64)), 2.0), position, 64)
    rows = ops.reshape_2d(ctx, wide, 256, 1)
    product = ops.mul_mat(ctx, weight(ctx, GGMLType.F32), rows)
    program = program_of(ops.scale(ctx, product, 2.0))
    assert "rope_normal_f32" not in replica_names(program)  # of several chunks


def test_a_replicated_norm_has_its_own_time() -> None:
    ctx = Context()
    normed = ops.rms_norm(ctx, ctx.from_numpy(X), 1e-6).set_name("normed")
    product = ops.scale(ctx, ops.mul_mat(ctx, weight(ctx, GGMLType.Q8_0, 4000), normed), 2.0)
    runs = trace(program_of(product, n_threads=2), repeats=3)
    first, second, _ = runs[0].launches
    assert (first.launch.chunks, first.phase, second.phase) == (2, 0, 0)
    assert max(run.thread[first.first : first.first + 2].max() for run in runs) >= 0
    times = node_times(runs)
    assert next(iter(times)) is normed and times[normed].ns > 0
    assert '"name": "normed"' in trace_json(runs[0])


@given(
    st.lists(st.lists(st.integers(1, 40), min_size=1, max_size=5), min_size=1), st.integers(1, 9)
)
def test_every_chunk_is_assigned_to_one_thread(phases: list[list[int]], n: int) -> None:
    chunks = np.array([c for phase in phases for c in phase])
    sizes = np.array([len(phase) for phase in phases])
    first = np.cumsum(sizes) - sizes
    begins = shares(chunks, first, n)
    assert (begins[:, 0] == 0).all() and (begins[:, -1] == chunks).all()
    each = np.diff(begins, axis=1)
    assert (each >= 0).all()
    many = chunks >= n
    assert (np.ptp(each[many], axis=1) <= 1).all()
    few = np.add.reduceat(np.where(many[:, None], 0, each), first)
    assert (np.ptp(few, axis=1) <= 1).all()  # distributed together


def test_chunks_of_a_thread_that_is_busy_are_taken_by_others() -> None:
    """The first chunk waits for all others to end."""

    @numba.njit
    def wait_for_all(node, chunk, n_chunks, scratch):  # type: ignore[no-untyped-def]
        count = data(node, DST)
        if chunk == 0:
            while atomic_load(count) < n_chunks - 1:
                pause()
            f32_ptr(count)[2] = n_chunks
        else:
            atomic_add(count, 1)

    ctx = Context()
    node = ops.map_custom(ctx, wait_for_all, ctx.from_numpy(np.zeros((64, 1024), np.float32)))
    program = program_of(node, n_threads=2)
    assert program.phases[0].chunks >= 4
    for _ in range(5):
        node.numpy()[...] = 0
        get_pool().run(program)
        assert node.numpy().reshape(-1)[2] == program.phases[0].chunks


def test_python_callables_cut_between_replicas_and_never_inside() -> None:
    ctx = Context()

    def plus_one(dst: Any, x: Any) -> None:
        dst[...] = x + 1

    def layer(x: Tensor) -> tuple[Tensor, Tensor]:
        normed = ops.rms_norm(ctx, x, 1e-6)
        return normed, ops.mul_mat(ctx, weight(ctx, GGMLType.Q8_0, 256), normed)

    _, first = layer(ctx.from_numpy(X))
    seen, second = layer(ops.map_custom(ctx, plus_one, first))  # a callable reads this norm
    both = ops.add(ctx, ops.map_custom(ctx, plus_one, seen), second)
    split, _ = layer(both)  # read on both sides of a cut
    before = ops.mul_mat(ctx, weight(ctx, GGMLType.Q8_0, 256), split)
    after = ops.mul_mat(ctx, weight(ctx, GGMLType.Q8_0, 256), split)
    end = ops.add(ctx, ops.map_custom(ctx, plus_one, before), after)
    want = values(program_of(end, sequential=True, fusion=False), end)
    program = program_of(end, n_threads=2)
    assert replica_names(program) == ["rms_norm_f32"]
    for _ in range(20):
        assert values(program, end) == want
