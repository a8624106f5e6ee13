"""Lists of cells with a wrong number are an error before anything is read by them."""

from __future__ import annotations

import numpy as np
import pytest

import pyggml as ops
from pyggml.alloc import alloc_ctx_tensors
from pyggml.backend.cpu.backend import CpuBackend
from pyggml.backend.interface import Backend
from pyggml.backend.reference.backend import ReferenceBackend
from pyggml.buffer import HOST
from pyggml.cgraph import CGraph
from pyggml.context import Context
from pyggml.dtype import GGMLType
from pyggml.errors import ComputeError
from pyggml.ops.attention.attention import FLASH_ATTN_EXT

from ...tiers import some
from .attention_lists import FAULTS, HARMLESS, attention
from .harness import nmse, stored

BACKENDS = {"cpu": lambda: CpuBackend(2), "reference": ReferenceBackend}
SIZES = [(3, 1), (3, 6), (20, 2), (140, 1)]  # tokens and heads: split, direct, packed, blocks


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> Backend:
    return BACKENDS[request.param]()


@pytest.mark.parametrize(("n_tokens", "n_head"), SIZES)
@pytest.mark.parametrize("fault", FAULTS)
def test_faults(fault: str, n_tokens: int, n_head: int, backend: Backend) -> None:
    graph, node = attention(backend, n_tokens, FAULTS[fault], n_head=n_head)
    node.numpy()[...] = 7
    with pytest.raises(ComputeError, match=f"'{node.name}' = FLASH_ATTN_EXT"):
        backend.graph_compute(graph)
    assert (node.numpy() == 7).all()


@pytest.mark.parametrize(("n_tokens", "n_head"), SIZES)
@pytest.mark.parametrize("change", HARMLESS)
def test_numbers_that_nobody_reads(change: str, n_tokens: int, n_head: int) -> None:
    results = []
    for backend in (CpuBackend(2), CpuBackend(1), ReferenceBackend()):
        graph, node = attention(backend, n_tokens, HARMLESS[change], n_head=n_head)
        backend.graph_compute(graph)
        results.append(node.numpy())
    assert np.array_equal(results[0], results[1])
    assert nmse(results[0], results[2]) <= FLASH_ATTN_EXT.tolerance(node)


def test_windows_that_do_not_meet() -> None:
    """A token that begins far after another one of its sequence and block."""

    def far(cells: np.ndarray, rows: np.ndarray, branches: np.ndarray) -> None:
        rows[:3] = [(0, 0, 20, 19, 0, 0), (0, 280, 300, 299, 0, 0), (0, 0, 0, 0, 0, 0)]

    results = []
    for backend in (CpuBackend(1), ReferenceBackend()):
        graph, node = attention(backend, 3, far, n_head=6)
        backend.graph_compute(graph)
        results.append(node.numpy())
    assert nmse(*results) <= FLASH_ATTN_EXT.tolerance(node)


def test_lists_are_checked_once_for_all_layers() -> None:
    backend, ctx = CpuBackend(2), Context(no_alloc=True)
    graph, first = attention(backend, 3, HARMLESS["none"])
    q, k, v, _, _, cells, rows, branches, *_ = first.src
    for _ in range(3):
        w = ctx.new_tensor_2d(GGMLType.Q8_0, 32, 32)  # its input is quantized in work memory
        graph.build_forward_expand(ops.mul_mat(ctx, w, ops.cont(ctx, q)))
        graph.build_forward_expand(
            ops.flash_attn_cells(ctx, q, k, v, cells, rows, 0.3, branches=branches)
        )
    alloc_ctx_tensors(ctx, HOST)
    names = [launch.name for launch in backend.compile(graph).program.launches]
    assert names.count("check_lists") == 1


@pytest.mark.parametrize(("n_tokens", "n_head"), [(1, 16), (1, 128), (9, 16)])
@pytest.mark.parametrize("type", some([GGMLType.F16, GGMLType.Q8_0], 1))
def test_values_that_are_columns_of_the_keys(type: GGMLType, n_tokens: int, n_head: int) -> None:
    """Latent attention: the same bits as with a copy of the values."""
    rng, results = np.random.default_rng(0), []
    keys = rng.uniform(-1, 1, (1, 300, 576)).astype(np.float32)
    queries = rng.uniform(-1, 1, (n_head, n_tokens, 576)).astype(np.float32)
    for copied in (True, False):
        ctx = Context(no_alloc=True)
        k = ctx.new_tensor_3d(type, 576, 300, 1)
        v = ctx.new_tensor_3d(type, 512, 300, 1)
        q = ctx.new_tensor_3d(GGMLType.F32, 576, n_tokens, n_head)
        first = ops.view_3d(ctx, k, (512, 300, 1), k.nb[1:3], 0)
        node = ops.flash_attn_ext(ctx, q, k, v if copied else first, None, 0.05)
        alloc_ctx_tensors(ctx, HOST)
        for tensor, values in ((k, keys), (v, keys[..., :512]), (q, queries)):
            tensor.set(stored(values, tensor.type))
        graph = CGraph()
        graph.build_forward_expand(node)
        CpuBackend(2).graph_compute(graph)
        results.append(node.numpy())
    assert np.array_equal(*results)


@pytest.mark.parametrize(
    "row", [(-1, 0, 3, 0), (0, -1, 3, 0), (0, 0, 6, 0), (3, 0, 3, 0), ((1 << 31) - 1, 0, 3, 0)]
)
def test_ranges_outside_of_the_keys_are_refused(row: tuple[int, ...]) -> None:
    rng, ctx = np.random.default_rng(0), Context()
    q, k, v = (ctx.from_numpy(rng.random((2, 5, 32), np.float32)) for _ in range(3))
    good = [(0, 0, 3, 0), (3, 0, 2, 0), (9, 7, 7, 0), (-1, 5, 2, 0)]  # the last two are padding
    for rows, ok in ((good, True), ([row, *good[:3]], False)):
        to = ctx.from_numpy(np.array([*rows, good[0]], np.int32))
        graph = CGraph()
        graph.build_forward_expand(ops.flash_attn_ranges(ctx, q, k, v, to, 0.2))
        for backend in (CpuBackend(1), ReferenceBackend()):
            if ok:
                backend.graph_compute(graph)
            else:
                with pytest.raises((ComputeError, IndexError)):
                    backend.graph_compute(graph)
