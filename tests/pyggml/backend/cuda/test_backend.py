"""What the CUDA backend does besides computing: memory, layouts, replays, errors, events."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator

import numpy as np
import pytest

import pyggml as ops
from pyggml.alloc import alloc_ctx_tensors
from pyggml.backend.cpu.backend import CpuBackend
from pyggml.buffer import AddressBuffer
from pyggml.cgraph import CGraph
from pyggml.context import Context
from pyggml.dtype import GGMLType
from pyggml.errors import Aborted, AllocError, ComputeError, UnsupportedOp
from pyggml.quants import quantize
from pyggml.sched import Sched, to_numpy
from pyggml.tensor import Tensor

pytest.importorskip("numba_cuda")
pytest.importorskip("greenlet")

from pyggml.backend.cuda.backend import CudaBackend
from pyggml.backend.cuda.kernels.matrix import repack
from pyggml.backend.cuda.planes import PlanesType, planes_of
from pyggml.backend.cuda.stream import WORK_BYTES
from pyggml.backend.interface import StopToken, WeightUse

from ....tiers import only, some
from .simulator import simulator_image
from .twin import TwinDriver

F32, I32 = GGMLType.F32, GGMLType.I32
PLANES = [t for t in GGMLType if planes_of(t) is not None]


@pytest.fixture
def cuda() -> Iterator[CudaBackend]:
    backend = CudaBackend(TwinDriver(), "cuda0", compile=simulator_image)
    yield backend
    backend.close()


def driver(backend: CudaBackend) -> TwinDriver:
    assert isinstance(backend.driver, TwinDriver)
    return backend.driver


def rows_graph(backend: CudaBackend) -> tuple[CGraph, Tensor, Tensor, Tensor]:
    """Rows 0, 1, .. of a table, by ids that a test sets."""
    ctx = Context(no_alloc=True)
    table = ctx.new_tensor_2d(F32, 4, 8)
    ids = ctx.new_tensor_1d(I32, 2)
    rows = ops.get_rows(ctx, table, ids).set_name("rows")
    alloc_ctx_tensors(ctx, backend.buffer_type())
    table.set(np.arange(32, dtype=np.float32).reshape(8, 4))
    graph = CGraph()
    graph.build_forward_expand(rows)
    return graph, table, ids, rows


def test_replays_read_what_inputs_hold_then(cuda: CudaBackend) -> None:
    graph, table, ids, rows = rows_graph(cuda)
    program = cuda.compile(graph)
    for run in range(4):
        ids.set(np.array([run, 7 - run], np.int32))
        program.enqueue()
        cuda.queue.synchronize()
        want = to_numpy(table)[0, 0][[run, 7 - run]]
        assert np.array_equal(to_numpy(rows)[0, 0], want)
    assert driver(cuda).counts.graphs == 3


def test_without_replays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYGGML_CUDA_GRAPHS", "0")
    backend = CudaBackend(TwinDriver(), "cuda0", compile=simulator_image)
    graph, _, ids, _ = rows_graph(backend)
    ids.set(np.zeros(2, np.int32))
    program = backend.compile(graph)
    for _ in range(3):
        program.enqueue()
    backend.queue.synchronize()
    assert driver(backend).counts.graphs == 0


def test_index_out_of_range_names_the_node(cuda: CudaBackend) -> None:
    graph, _, ids, _ = rows_graph(cuda)
    program = cuda.compile(graph)
    later, _, later_ids, out = rows_graph(cuda)
    out.name = "later"
    later_ids.set(np.zeros(2, np.int32))
    ids.set(np.array([0, 8], np.int32))
    program.enqueue()
    cuda.compile(later).enqueue()
    with pytest.raises(ComputeError, match="'rows' = GET_ROWS: an index is out of range"):
        cuda.queue.synchronize()
    ids.set(np.array([0, 7], np.int32))
    program.enqueue()
    cuda.queue.synchronize()


@pytest.mark.parametrize(
    ("name", "values"),
    [("spans", [0, 3]), ("spans", [1, 2]), ("ids", [0, 2, 1]), ("ids", [0, -1, 1])],
)
def test_lora_with_wrong_spans_or_experts(cuda: CudaBackend, name: str, values: list[int]) -> None:
    """An adapter of rank 2, of one of two experts for each of three tokens."""
    ctx = Context(no_alloc=True)
    ne = {"y": (5, 1, 3), "b": (16, 2, 2), "scales": (1, 3), "gains": (1,), "a": (4, 2, 2)}
    t = {key: ctx.new_tensor(F32, sizes) for key, sizes in (*ne.items(), ("x", (4, 1, 3)))}
    t |= {key: ctx.new_tensor(I32, sizes) for key, sizes in (("spans", (2,)), ("ids", (1, 3)))}
    order = ("y", "b", "scales", "spans", "gains", "a", "x", "ids")
    out = ops.lora(ctx, *(t[key] for key in order)).set_name("changed")
    alloc_ctx_tensors(ctx, cuda.buffer_type())
    for key, tensor in t.items():
        tensor.set(np.ones(tensor.nelements, np.int32 if key in ("spans", "ids") else np.float32))
    graph = CGraph()
    graph.build_forward_expand(out)
    program = cuda.compile(graph)
    legal = {"spans": [0, 2], "ids": [0, 1, 1]}
    for given in ({name: values}, {}):
        for key, numbers in (legal | given).items():
            t[key].set(np.array(numbers, np.int32))
        program.enqueue()
        if given:
            with pytest.raises(ComputeError, match="'changed' = LORA: an index is out of range"):
                cuda.queue.synchronize()
    cuda.queue.synchronize()
    assert np.array_equal(to_numpy(out), np.full((1, 3, 1, 5), 1 + 2 * 4, np.float32))


@pytest.mark.parametrize("op", ["MUL_MAT_ID_SPARSE", "AXPY_ID"])
@pytest.mark.parametrize("fault", ["an expert", "a score"])
def test_sparse_experts_with_a_wrong_number(cuda: CudaBackend, op: str, fault: str) -> None:
    """Two of three experts for each of two tokens, with five neurons."""
    ctx = Context(no_alloc=True)
    dot = op == "MUL_MAT_ID_SPARSE"
    a, ids = ctx.new_tensor(F32, (8, 5, 3)), ctx.new_tensor(I32, (2, 2))
    b = ctx.new_tensor(F32, (8, 1, 2) if dot else (5, 2, 2))
    scores = ctx.new_tensor(F32, (5, 2, 2))
    made = ops.mul_mat_id_sparse(ctx, a, b, ids, scores, 0.5) if dot else None
    out = (made or ops.axpy_id(ctx, a, b, ids)).set_name("chosen")
    alloc_ctx_tensors(ctx, cuda.buffer_type())
    for tensor in (a, b, scores):
        tensor.set(np.ones(tensor.nelements, np.float32))
    values, chosen = np.ones(20, np.float32), np.array([[0, 2], [1, 0]], np.int32)
    graph = CGraph()
    graph.build_forward_expand(out)
    program = cuda.compile(graph)
    if fault == "an expert":
        ids.set(np.array([[0, 2], [3, 0]], np.int32))
    else:
        ids.set(chosen)
        values[7] = np.nan
        (scores if dot else b).set(values)
    program.enqueue()
    if fault == "an expert":
        with pytest.raises(ComputeError, match=f"'chosen' = {op}: an index is out of range"):
            cuda.queue.synchronize()
    elif dot:
        with pytest.raises(ComputeError, match=f"'chosen' = {op}"):
            cuda.queue.synchronize()
    else:
        cuda.queue.synchronize()
        assert np.isnan(to_numpy(out)[0, 0, 1]).all()
    for tensor, numbers in ((scores, np.ones(20, np.float32)), (ids, chosen)):
        tensor.set(numbers)
    b.set(np.ones(b.nelements, np.float32))
    program.enqueue()
    cuda.queue.synchronize()
    assert (to_numpy(out) == (8 if dot else 5)).all()


def test_abort(cuda: CudaBackend) -> None:
    graph, _, ids, _ = rows_graph(cuda)
    ids.set(np.zeros(2, np.int32))
    sched = Sched([cuda, CpuBackend(1)])
    schedule = sched.compile(graph)
    for _ in range(2):
        sched.abort()  # nothing runs: it used to end the next run
        schedule.run()
        schedule.enqueue()
        sched.abort()
        with pytest.raises(Aborted):
            sched.synchronize()
    stop = StopToken()
    stop.stop()
    with pytest.raises(Aborted):
        cuda.compile(graph).enqueue(stop)


def test_trace_has_each_launch(cuda: CudaBackend) -> None:
    graph, _, ids, rows = rows_graph(cuda)
    ids.set(np.zeros(2, np.int32))
    (run,) = cuda.compile(graph).trace()
    assert [launch.launch.node for launch in run.launches] == [rows]
    assert run.wall_ns > 0


@pytest.mark.parametrize("type", some(PLANES, 4), ids=lambda t: t.name)
def test_planes_give_the_bytes_back(cuda: CudaBackend, type: GGMLType) -> None:
    use = WeightUse(type, (512, 6, 1, 1), frozenset(("MUL_MAT",)))
    layout = cuda.layouts(use)[0]
    assert isinstance(layout.buft, PlanesType)
    tensor = Tensor(type, use.ne)
    tensor.buffer = layout.buft.alloc_buffer(layout.nbytes)
    tensor.data = tensor.buffer.base
    x = np.random.default_rng(0).standard_normal((6, 512)).astype(np.float32)
    data = quantize(x, type).reshape(-1)
    assert list(cuda.set_weights([(tensor, data)])) == [data.nbytes]
    assert np.array_equal(tensor.bytes(), data)


def _mul_mat(ctx: Context, w: Tensor) -> Tensor:
    return ops.mul_mat(ctx, w, ctx.new_tensor_2d(F32, 64, 3))


def _mul_mat_id(ctx: Context, w: Tensor) -> Tensor:
    return ops.mul_mat_id(
        ctx, w, ctx.new_tensor_3d(F32, 64, 1, 3), ctx.new_tensor_2d(I32, 2, 3).set_name("ids")
    )


def _mul_mat_sparse(ctx: Context, w: Tensor) -> Tensor:
    return ops.mul_mat_sparse(
        ctx, w, ctx.new_tensor_2d(F32, 64, 1), ctx.new_tensor_2d(F32, w.ne[1], 1)
    )


def _axpy(ctx: Context, w: Tensor) -> Tensor:
    return ops.axpy(ctx, w, *(ctx.new_tensor_2d(F32, w.ne[1], 1) for _ in range(2)))


@pytest.mark.parametrize("build", [_mul_mat, _mul_mat_id, _mul_mat_sparse, _axpy])
@pytest.mark.parametrize(
    "type", only([GGMLType.Q4_0, GGMLType.Q5_1], [GGMLType.Q5_1]), ids=lambda t: t.name
)
def test_planes_give_the_bits_of_plain_weights(
    cuda: CudaBackend, type: GGMLType, build: Callable[[Context, Tensor], Tensor]
) -> None:
    ne = (64, 6, 4, 1) if build is _mul_mat_id else (64, 6, 1, 1)
    rng = np.random.default_rng(0)
    data = quantize(rng.standard_normal((ne[2] * 6, 64)).astype(np.float32), type).reshape(-1)
    values = rng.standard_normal(200).astype(np.float32)
    results = []
    for layout in cuda.layouts(WeightUse(type, ne, frozenset((build.__name__[1:].upper(),)))):
        ctx, weights = Context(no_alloc=True), Context(no_alloc=True)
        w = weights.new_tensor(type, ne)
        alloc_ctx_tensors(weights, layout.buft)
        list(cuda.set_weights([(w, data)]))
        y = build(ctx, w)
        alloc_ctx_tensors(ctx, cuda.buffer_type())
        for source in filter(None, y.src[1:]):
            n = source.nelements
            ids = np.arange(n, dtype=np.int32) % 4
            given = ids if source.type is I32 else values[:n]
            source.set(given.reshape(source.ne[::-1]))
        graph = CGraph()
        graph.build_forward_expand(y)
        cuda.compile(graph).enqueue()
        cuda.queue.synchronize()
        results.append(to_numpy(y).tobytes())
    assert len(results) == 2 and results[0] == results[1]


def test_a_weight_that_other_ops_read_is_not_in_planes(cuda: CudaBackend) -> None:
    use = WeightUse(GGMLType.Q4_0, (512, 6, 1, 1), frozenset(("MUL_MAT", "CPY")))
    assert [layout.buft for layout in cuda.layouts(use)] == [cuda.buffer_type()]


def test_out_of_memory_says_how_much_is_free() -> None:
    backend = CudaBackend(TwinDriver(limit=1 << 20), "cuda0", compile=simulator_image)
    with pytest.raises(AllocError, match=r"cannot allocate 2.0 MiB: 1.0 of 1.0 MiB are free"):
        backend.buffer_type().alloc_buffer(2 << 20)


def test_memory_is_freed_with_its_tensors(cuda: CudaBackend) -> None:
    free, total = cuda.memory() or (0, 0)
    buffer = cuda.buffer_type().alloc_buffer(1 << 20)
    assert cuda.memory() == (free - (1 << 20), total)
    del buffer
    assert cuda.memory() == (free, total)


def test_work_waits_for_another_devices_event(cuda: CudaBackend) -> None:
    other = CudaBackend(TwinDriver(name="other"), "cuda1", compile=simulator_image)
    graph, _, ids, rows = rows_graph(cuda)
    ids.set(np.array([3, 1], np.int32))
    there = Tensor(F32, rows.ne)
    there.buffer = other.buffer_type().alloc_buffer(there.nbytes)
    there.data = there.buffer.base
    cuda.compile(graph).enqueue()
    other.queue.wait(cuda.queue.record())
    other.queue.copy(rows, there)
    other.queue.synchronize()
    assert np.array_equal(to_numpy(there)[0, 0, :, 0], [12, 4])


@pytest.mark.parametrize("n", only((64, 65, 2048), (65,)))
@pytest.mark.parametrize(("before", "more"), ((0, ""), (0, "MUL"), (0, "MUL ADD"), (1, "MUL ADD")))
@pytest.mark.parametrize("norm", (ops.rms_norm, ops.norm))
def test_fused_norms(norm: Callable[..., Tensor], before: int, more: str, n: int) -> None:
    results, launches = [], []
    for fusion in (False, True):
        backend = CudaBackend(TwinDriver(), "cuda0", compile=simulator_image, fusion=fusion)
        rng = np.random.default_rng(n)
        ctx = Context(no_alloc=True)
        x, r, w, b = (ctx.new_tensor_2d(F32, n, rows) for rows in (3, 3, 1, 1))
        total = ops.add(ctx, x, r) if before else x
        y = norm(ctx, total, 1e-5)
        y = ops.mul(ctx, y, w) if "MUL" in more else y
        y = ops.add(ctx, y, b) if "ADD" in more else y
        y = ops.concat(ctx, y, total, 1)  # so that the sum has another reader
        alloc_ctx_tensors(ctx, backend.buffer_type())
        for tensor in (x, r, w, b):
            tensor.set(rng.standard_normal(tensor.ne[1::-1]).astype(np.float32))
        graph = CGraph()
        graph.build_forward_expand(y)
        backend.graph_compute(graph)
        results.append(to_numpy(y))
        launches.append(sum(driver(backend).counts.launches.values()))
    biased = norm is ops.norm and "ADD" in more  # a bias after RMS_NORM is a launch of its own
    assert launches[0] - launches[1] == before + ("MUL" in more) + biased
    np.testing.assert_allclose(*results, rtol=1e-6, atol=1e-6)


def test_attention_replays_at_any_length(cuda: CudaBackend) -> None:
    n_list, hd = 48, 64
    rng = np.random.default_rng(0)
    ctx = Context(no_alloc=True)
    q = ctx.new_tensor_3d(F32, hd, 1, 2)
    k, v = (ctx.new_tensor_3d(F32, hd, 64, 1) for _ in range(2))
    cells, rows = ctx.new_tensor_3d(I32, 2, n_list, 1), ctx.new_tensor_2d(I32, 4, 1)
    y = ops.flash_attn_cells(ctx, q, k, v, cells, rows, 0.125)
    alloc_ctx_tensors(ctx, cuda.buffer_type())
    for tensor in (q, k, v):
        tensor.set(rng.standard_normal(tensor.ne[2::-1]).astype(np.float32))
    cells.set(np.stack([rng.permutation(64)[:n_list], np.arange(n_list)], -1).astype(np.int32))
    graph = CGraph()
    graph.build_forward_expand(y)
    program = cuda.compile(graph)
    for begin, end in ((0, 1), (0, 48), (37, 41), (5, 5), (20, 48)):
        rows.set(np.array([[0, begin, end, end - 1]], np.int32))
        program.enqueue()
        cuda.queue.synchronize()
        sources = [None if s is None else to_numpy(s) for s in y.src]
        want = y.op.reference(*sources, **y.op_params)
        np.testing.assert_allclose(to_numpy(y), want, rtol=1e-5, atol=1e-6)
    assert driver(cuda).counts.graphs == 4


def test_weights_become_planes_piece_by_piece(
    cuda: CudaBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the work memory is needed for it; pieces end between blocks."""
    monkeypatch.setattr(repack, "WORK_BYTES", (1000, 64))
    use = WeightUse(GGMLType.Q6_K, (512, 6, 1, 1), frozenset(("MUL_MAT",)))
    layout = cuda.layouts(use)[0]
    tensor = Tensor(use.type, use.ne)
    tensor.buffer = layout.buft.alloc_buffer(layout.nbytes)
    tensor.data = tensor.buffer.base
    x = np.random.default_rng(0).standard_normal((6, 512)).astype(np.float32)
    data = quantize(x, use.type).reshape(-1)
    assert list(cuda.set_weights([(tensor, data)])) == [data.nbytes]
    assert driver(cuda).counts.copies_in == 3
    assert driver(cuda).spaces.peak == layout.nbytes + WORK_BYTES[0]
    assert np.array_equal(tensor.bytes(), data)


def test_programs_follow_work_memory_that_grows(cuda: CudaBackend) -> None:
    """The old memory is freed at once; a program that was captured is captured again."""
    rng = np.random.default_rng(0)
    ctx, weights = Context(no_alloc=True), Context(no_alloc=True)
    w = weights.new_tensor_2d(GGMLType.Q8_0, 64, 6)  # not in planes: they are made in work memory
    x = ctx.new_tensor_2d(F32, 64, 2)
    y = ops.mul_mat(ctx, w, x)
    for made in (weights, ctx):
        alloc_ctx_tensors(made, cuda.buffer_type())
    values = rng.standard_normal((6, 64)).astype(np.float32)
    list(cuda.set_weights([(w, quantize(values, GGMLType.Q8_0).reshape(-1))]))
    x.set(rng.standard_normal((2, 64)).astype(np.float32))
    graph = CGraph()
    graph.build_forward_expand(y)
    program, results = cuda.compile(graph), []
    before = driver(cuda).spaces.used
    for run in range(5):
        if run == 2:
            cuda.queue.work(0, 2 * WORK_BYTES[0])
            assert driver(cuda).spaces.used == before + WORK_BYTES[0]
        program.enqueue()
        cuda.queue.synchronize()
        results.append(to_numpy(y).tobytes())
    assert len(set(results)) == 1
    assert driver(cuda).counts.graphs == 4


def test_arrays_outlive_their_pinned_buffer(cuda: CudaBackend) -> None:
    """Results of the CPU are in pinned memory; it used to be freed with the buffer's object."""
    ctx = Context(no_alloc=True)
    x = ctx.new_tensor_2d(F32, 8, 8)
    alloc_ctx_tensors(ctx, cuda.staging_type())
    x.numpy()[...] = 7
    address, spaces = x.data, driver(cuda).spaces
    view = x.numpy()[2:].reshape(-1)[::2]
    del ctx, x
    gc.collect()
    assert spaces.lookup(address) is not None and (view == 7).all()
    del view
    gc.collect()
    assert spaces.lookup(address) is None


@pytest.mark.parametrize("closed", [False, True])
def test_a_backend_frees_all_that_it_took(closed: bool) -> None:
    twin = TwinDriver()
    backend = CudaBackend(twin, "cuda0", compile=simulator_image)
    graph, table, ids, rows = rows_graph(backend)
    ids.set(np.zeros(2, np.int32))
    of_tensors, program = twin.spaces.used, backend.compile(graph)
    for _ in range(3):
        program.enqueue()
        if closed:
            backend.close()
            assert not backend.queue._functions and twin.spaces.used == of_tensors
    backend.queue.synchronize()
    del backend, graph, table, ids, rows, program
    gc.collect()
    assert twin.spaces.used == 0 and twin.spaces.n_pinned == 0 and not twin.streams


def test_sizes_that_a_kernel_cannot_count(cuda: CudaBackend) -> None:
    """Numbers used to be cut to 32 bits."""
    ctx = Context(no_alloc=True)
    x = ctx.new_tensor_3d(F32, 1 << 16, 1 << 12, 32)
    assert not cuda.supports_op(ops.group_norm(ctx, x, 2, 1e-5))  # 2^32 elements in a group
    assert cuda.supports_op(ops.group_norm(ctx, x, 32, 1e-5))
    wide = ctx.new_tensor(GGMLType.F16, (32, 1, 1 << 9, 1 << 7))
    many = ops.mul_mat(ctx, ctx.new_tensor(GGMLType.F16, (32, 4)), wide)
    assert not cuda.supports_op(many)
    graph = CGraph()
    graph.build_forward_expand(ops.rms_norm(ctx, ctx.new_tensor_2d(F32, 1, 1 << 31)).set_name("y"))
    for tensor in ctx:
        tensor.buffer = AddressBuffer(tensor.nbytes, cuda.buffer_type())
        tensor.data = tensor.buffer.base
    with pytest.raises(UnsupportedOp, match=r"'y' .* too large for its kernel: rows of kernel"):
        cuda.compile(graph)


def test_more_uses_of_experts_than_a_grid_has_rows(cuda: CudaBackend) -> None:
    """65,536 of them used to be left to the CPU."""
    ctx = Context(no_alloc=True)
    w = ctx.new_tensor_3d(GGMLType.F16, 64, 6, 4)
    x, ids = ctx.new_tensor_3d(F32, 64, 1, 1 << 15), ctx.new_tensor_2d(I32, 2, 1 << 15)
    assert cuda.supports_op(ops.mul_mat_id(ctx, w, x, ids))
