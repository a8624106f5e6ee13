from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given

import pyggml as ops
from pyggml.alloc import GraphAllocator, Plan, alloc_ctx_tensors
from pyggml.buffer import HOST, HostBufferType
from pyggml.cgraph import CGraph
from pyggml.context import Context
from pyggml.dtype import GGMLType
from pyggml.errors import AllocError
from pyggml.tensor import Buffer, Flag, Tensor

from .llama import llama_graph
from .strategies import Recipe, build, recipes, run

F32 = GGMLType.F32
NEVER = 1 << 60


class CountingType(HostBufferType):
    """Counts buffers and fills them with NaN bytes, so that reads before writes are seen."""

    def __init__(self, limit: int = NEVER) -> None:
        self.sizes: list[int] = []
        self.limit = limit

    def alloc_buffer(self, size: int) -> Buffer:
        if size > self.limit:
            raise AllocError(f"cannot allocate {size} bytes")
        self.sizes.append(size)
        buffer = super().alloc_buffer(size)
        buffer.mem[:] = 0xFF
        return buffer


def graph_of(*results: Tensor) -> CGraph:
    graph = CGraph()
    for result in results:
        graph.build_forward_expand(result)
    return graph


def chain(n: int, ne: int = 256) -> tuple[Tensor, CGraph]:
    """An input and n nodes in a row that cannot work in place."""
    ctx = Context(no_alloc=True)
    x = first = ctx.new_tensor_1d(F32, ne).set_input()
    for _ in range(n):
        x = ops.cont(ctx, x)
    return first, graph_of(x)


# Naive check of a plan without its blocks: lifetimes, all pairs of tensors


def root(tensor: Tensor) -> Tensor:
    return tensor.view_src or tensor


def lifetimes(graph: CGraph) -> dict[Tensor, tuple[int, int]]:
    """First and last step at which no other tensor may use the bytes of each root."""
    lives: dict[Tensor, tuple[int, int]] = {root(t): (-1, NEVER) for t in graph.leafs}
    for i, node in enumerate(graph.nodes):
        family = [t for t in graph.nodes if root(t) is root(node)]
        readers = [j for j, n in enumerate(graph.nodes) if any(s in family for s in n.src)]
        kept = any(t.flags or not graph.use_count(t) for t in family)
        lives.setdefault(root(node), (i, NEVER if kept else max(readers)))
    return lives


def check_plan(graph: CGraph, plan: Plan) -> None:
    lives = {t: life for t, life in lifetimes(graph).items() if t in plan.offsets}
    assert set(lives) == set(plan.offsets)
    spans = [(t, *life, plan.offsets[t], plan.offsets[t] + t.nbytes) for t, life in lives.items()]
    for i, (t, t_birth, t_death, t_start, t_end) in enumerate(spans):
        assert t_start % HOST.alignment == 0 and 0 <= t_start <= t_end <= plan.size
        for u, u_birth, u_death, u_start, u_end in spans[i + 1 :]:
            if t_birth <= u_death and u_birth <= t_death and t_start < u_end and u_start < t_end:
                assert in_place(t, u, lives) or in_place(u, t, lives), (t, u)
    steps = range(len(graph.nodes))
    live = [sum(t.nbytes for t, a, b, *_ in spans if a <= i <= b) for i in steps]
    in_place_bytes = [
        sum(t.nbytes for t, _, b, *_ in spans for u in lives if b == i and in_place(t, u, lives))
        for i in steps
    ]
    needed = max((a - b for a, b in zip(live, in_place_bytes, strict=True)), default=0)
    assert needed <= plan.peak_live_bytes <= plan.size


def in_place(old: Tensor, new: Tensor, lives: dict[Tensor, tuple[int, int]]) -> bool:
    """Whether ``new`` may reuse the memory of its first source ``old`` at its last step."""
    return (
        new.op is not None
        and new.op.inplace_ok
        and new.src[0] is not None
        and root(new.src[0]) is old
        and all(root(s) is not old for s in new.src[1:] if s is not None)
        and (new.src[0].nb, new.src[0].view_offs) == (new.nb, 0)
        and lives[old][1] == lives[new][0]
    )


@given(recipes())
def test_live_tensors_do_not_overlap(recipe: Recipe) -> None:
    graph = build(recipe).graph
    check_plan(graph, GraphAllocator(HOST).plan(graph))


@given(recipes())
def test_planned_memory_gives_the_same_results(recipe: Recipe) -> None:
    planned, apart = build(recipe), build(recipe)
    GraphAllocator(CountingType()).alloc_graph(planned.graph)
    alloc_ctx_tensors(apart.ctx, HOST)
    for random in (apart, planned):
        random.fill()
        run(random.graph)
    want = apart.values()
    for a, b in zip(want, planned.values(), strict=True):
        np.testing.assert_array_equal(a, b)
    run(planned.graph)  # the inputs were not overwritten
    for a, b in zip(want, planned.values(), strict=True):
        np.testing.assert_array_equal(a, b)


@given(recipes())
def test_equal_graphs_have_equal_plans(recipe: Recipe) -> None:
    galloc = GraphAllocator(HOST)
    graph = build(recipe).graph
    plan = galloc.plan(graph)
    again, equal = galloc.plan(graph), galloc.plan(build(recipe).graph)
    assert plan.offsets == again.offsets and plan.size == again.size
    assert list(plan.offsets.values()) == list(equal.offsets.values())


@given(recipes())
def test_alloc_follows_plan(recipe: Recipe) -> None:
    graph = build(recipe).graph
    galloc = GraphAllocator(HOST)
    plan = galloc.plan(graph)
    assert not any(t.data for t in plan.offsets)
    assert galloc.alloc_graph(graph).offsets == plan.offsets
    assert galloc.plan(graph).offsets == plan.offsets  # memory of this allocator is planned again
    assert galloc.buffer is not None and galloc.buffer_size == plan.size
    for tensor, offset in plan.offsets.items():
        assert (tensor.buffer, tensor.data) == (galloc.buffer, galloc.buffer.base + offset)
    for tensor in graph.nodes:
        assert tensor.data == root(tensor).data + tensor.view_offs
        assert tensor.buffer is root(tensor).buffer


# Single rules


def test_freed_memory_is_reused() -> None:
    first, graph = chain(10)
    plan = GraphAllocator(HOST).plan(graph)
    assert plan.size == plan.peak_live_bytes == 3 * first.nbytes  # the input and a pair


def test_in_place() -> None:
    ctx = Context(no_alloc=True)
    x = ctx.new_tensor_1d(F32, 256).set_input()
    a = ops.cont(ctx, x)
    b = ops.scale(ctx, a, 2.0)
    c = ops.scale(ctx, ops.reshape_2d(ctx, b, 64, 4), 2.0)
    d = ops.rms_norm(ctx, c)
    plan = GraphAllocator(HOST).plan(graph_of(d))
    assert len({plan.offsets[t] for t in (a, b, c, d)}) == 1
    assert [block.tensors for block in plan.blocks] == [[x], [a, b, c, d]]


def test_not_in_place() -> None:
    ctx = Context(no_alloc=True)
    x = ctx.new_tensor_2d(F32, 16, 16).set_input()
    of_input = ops.scale(ctx, x, 2.0)
    output = ops.cont(ctx, x).set_output()
    of_output = ops.scale(ctx, output, 2.0)
    twice = ops.cont(ctx, x)
    of_twice = ops.add(ctx, twice, ops.view_2d(ctx, twice, 16, 16, 64, 0))
    later = ops.cont(ctx, x)
    of_later = ops.scale(ctx, later, 2.0)
    reader = ops.add(ctx, of_later, ops.reshape(ctx, later, later))
    part = ops.cont(ctx, x)
    of_part = ops.scale(ctx, ops.view_2d(ctx, part, 16, 4, 64, 0), 2.0)
    inner = ops.cont(ctx, ctx.new_tensor_1d(F32, 30).set_input())
    of_inner = ops.scale(ctx, ops.view_1d(ctx, inner, 26, 16), 2.0)  # both take two cache lines
    turned = ops.cont_3d(ctx, x, 16, 4, 4)
    of_turned = ops.rms_norm(ctx, ops.permute(ctx, turned, 0, 2, 1, 3))
    graph = graph_of(of_input, of_output, of_twice, of_later, reader, of_part, of_inner, of_turned)
    plan = GraphAllocator(HOST).plan(graph)
    assert plan.offsets[reader] == plan.offsets[of_later]
    pairs = ((x, of_input), (output, of_output), (twice, of_twice), (later, of_later))
    for source, result in (*pairs, (part, of_part), (inner, of_inner), (turned, of_turned)):
        assert plan.offsets[source] != plan.offsets[result]


def test_view_keeps_its_root_alive() -> None:
    ctx = Context(no_alloc=True)
    x = ctx.new_tensor_1d(F32, 256).set_input()
    a = ops.cont(ctx, x)
    view = ops.view_2d(ctx, a, 64, 1, 256, 256)
    b = ops.cont(ctx, ops.cont(ctx, ops.cont(ctx, x)))
    last = ops.cont(ctx, view)
    plan = GraphAllocator(HOST).plan(graph_of(view, b, last))
    others = [t for t in plan.offsets if t is not a]
    assert all(plan.offsets[a] != plan.offsets[t] for t in others)


def test_inputs_outputs_and_unread_results_stay() -> None:
    ctx = Context(no_alloc=True)
    x = ctx.new_tensor_1d(F32, 64).set_input()
    given = ctx.new_tensor_1d(F32, 64)  # a leaf without the flag also belongs to the caller
    unread = ops.add(ctx, ops.cont(ctx, x), given)
    output = ops.cont(ctx, x).set_output()
    y = ops.cont(ctx, output)
    for _ in range(4):
        y = ops.cont(ctx, y)
    plan = GraphAllocator(HOST).plan(graph_of(unread, y))
    kept = {plan.offsets[t] for t in (x, given, unread, output)}
    assert len(kept) == 4
    assert plan.size == 6 * x.nbytes


def test_parameters_and_written_nodes_are_kept_from_the_start() -> None:
    ctx = Context(no_alloc=True)
    weight = ctx.new_tensor_1d(F32, 64)
    weight.flags |= Flag.PARAM
    graph = graph_of(ops.cont(ctx, ops.scale(ctx, weight, 2.0)))
    block = GraphAllocator(HOST).plan(graph).blocks[0]
    assert block.tensors == [weight] and block.start < 0 and block.end > len(graph)


def test_tensors_with_memory_are_not_moved() -> None:
    weights, ctx = Context(), Context(no_alloc=True)
    cache = weights.new_tensor_2d(F32, 64, 8)
    view = ctx.new_view(cache, (64, 2, 1, 1), cache.nb, 256)
    x = ctx.new_tensor_2d(F32, 64, 2).set_input()
    write = ops.cpy(ctx, x, view)
    result = ops.scale(ctx, cache, 2.0)
    where = cache.data, view.data
    plan = GraphAllocator(HOST).alloc_graph(graph_of(write, result))
    assert set(plan.offsets) == {x, result}
    assert (cache.data, view.data) == where and write.data == view.data


def test_leaf_view_of_a_tensor_outside_the_graph() -> None:
    ctx = Context(no_alloc=True)
    outside = ctx.new_tensor_1d(F32, 64)
    view = ctx.new_view(outside, (4, 1, 1, 1), outside.nb, 16)
    plan = GraphAllocator(HOST).alloc_graph(graph_of(ops.cont(ctx, view)))
    assert outside in plan.offsets and view.data == outside.data + 16


def test_cache_placed_after_its_view() -> None:
    weights, ctx = Context(no_alloc=True), Context(no_alloc=True)
    cache = weights.new_tensor_1d(F32, 64)
    view = ctx.new_view(cache, (4, 1, 1, 1), cache.nb, 16)
    GraphAllocator(HOST).alloc_graph(graph_of(cache))
    GraphAllocator(HOST).alloc_graph(graph_of(ops.cont(ctx, view)))
    assert view.data == cache.data + 16 and view.buffer is cache.buffer


def test_empty_tensors_and_graphs() -> None:
    galloc = GraphAllocator(HOST)
    assert galloc.alloc_graph(CGraph()).size == 0
    ctx = Context(no_alloc=True)
    nothing = ops.cont(ctx, ctx.new_tensor_1d(F32, 0).set_input())
    galloc.alloc_graph(graph_of(nothing))
    assert nothing.data and nothing.numpy().size == 0


def test_plan_uses_the_sizes_of_the_buffer_type() -> None:
    class Paged(HostBufferType):
        alignment = 4096

        def alloc_size(self, tensor: Tensor) -> int:
            return tensor.nbytes + 1

    _, graph = chain(2, ne=1024)
    plan = GraphAllocator(Paged()).plan(graph)
    assert [block.size for block in plan.blocks] == [8192] * 3
    assert sorted(plan.offsets.values()) == [0, 8192, 16384]


# The buffer


def test_reserve_once_then_never_again() -> None:
    buft = CountingType()
    galloc = GraphAllocator(buft)
    _, worst = chain(5, ne=4096)
    assert galloc.buffer_size == 0 and galloc.generation == 0
    assert galloc.reserve(worst) == 3 * 16384 == galloc.buffer_size
    buffer = galloc.buffer
    for n in (1, 100, 1000, 4096):
        galloc.alloc_graph(chain(5, ne=n)[1])
    assert galloc.reserve(chain(2)[1]) == 3 * 16384
    assert galloc.buffer is buffer and galloc.generation == 1
    assert buft.sizes == [3 * 16384]


def test_growing_increments_generation_and_keeps_old_graphs_usable() -> None:
    galloc = GraphAllocator(HOST)
    x, small = chain(2)
    galloc.alloc_graph(small)
    old = galloc.buffer
    x.set(np.arange(256))
    galloc.alloc_graph(chain(2, ne=1000)[1])
    assert galloc.generation == 2 and galloc.buffer is not old
    run(small)
    assert small.nodes[-1].numpy().tolist() == list(range(256))
    galloc.alloc_graph(small)  # moves to the new buffer
    assert {t.buffer for t in (*small.leafs, *small.nodes)} == {galloc.buffer}
    assert galloc.generation == 2


def test_failed_allocation_changes_nothing() -> None:
    galloc = GraphAllocator(CountingType(limit=4096))
    _, small = chain(2)
    galloc.alloc_graph(small)
    before = galloc.buffer, galloc.generation, [t.data for t in small]
    x, large = chain(2, ne=1000)
    message = r"compute buffer of 12096 bytes \(it has 3072\): cannot allocate 12096 bytes; use"
    for attempt in (galloc.alloc_graph, galloc.reserve):
        with pytest.raises(AllocError, match=message):
            attempt(large)
    assert before == (galloc.buffer, galloc.generation, [t.data for t in small])
    assert x.data == 0


# A LLaMA graph: the memory it needs, and the time that planning takes


@pytest.mark.parametrize(
    ("n_tokens", "n_outputs"), [(512, 1), (512, 512), (64, 64), (16, 16), (1, 1)]
)
def test_llama_plan_is_tight(n_tokens: int, n_outputs: int) -> None:
    plan = GraphAllocator(HOST).plan(llama_graph(30, n_tokens, n_outputs))
    assert plan.size <= 1.02 * plan.peak_live_bytes


def test_llama_reuse_across_layers() -> None:
    size = [GraphAllocator(HOST).plan(llama_graph(n, 512, 1)).size for n in (2, 30)]
    assert size[0] == size[1] < 512 * 4 * (3 * 576 + 3 * 1536)


def test_worst_case_holds_smaller_batches() -> None:
    galloc = GraphAllocator(HOST)
    worst = galloc.plan(llama_graph(3, 512, 512)).size
    for n in (1, 2, 15, 16, 33, 64, 128, 511):
        assert galloc.plan(llama_graph(3, n, n)).size <= worst
        assert galloc.plan(llama_graph(3, n, 1)).size <= worst


def test_planning_time_grows_with_the_graph() -> None:
    """A plan of 4 times the layers examines 4 times the blocks, not 16 times."""

    def rivals(n_layer: int) -> int:
        plan = GraphAllocator(HOST).plan(llama_graph(n_layer, 512, 1))
        inner = [b for b in plan.blocks if b.end < NEVER]
        return sum(a.start <= b.end and b.start <= a.end for a in inner for b in inner)

    assert rivals(16) < 4.5 * rivals(4)
