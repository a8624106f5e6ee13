"""Lists of cells with a wrong number, on the CUDA backend: an error that names the node."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

import pyggml as ops
from pyggml.alloc import alloc_ctx_tensors
from pyggml.cgraph import CGraph
from pyggml.context import Context
from pyggml.dtype import GGMLType
from pyggml.errors import ComputeError
from pyggml.ops.attention.attention import FLASH_ATTN_EXT
from pyggml.sched import to_numpy
from tests.pyggml.ops.attention_lists import FAULTS, HARMLESS, attention
from tests.pyggml.ops.harness import nmse

from ....tiers import long

pytest.importorskip("numba_cuda")
pytest.importorskip("greenlet")

from pyggml.backend.cuda.backend import CudaBackend
from pyggml.backend.reference.backend import ReferenceBackend

from .images import ptx_of
from .simulator import simulator_image
from .twin import TwinDriver

ENGINES = {  # and the number of tokens: many are computed by tensor cores
    "simulator": ((7, 0), simulator_image, 3),
    "ptx": ((9, 0), ptx_of, 20),
}
SHORT = ("a cell of a branch", "none")  # by the simulator


def cases(changes: Mapping[str, Any]) -> list[Any]:
    return [
        *(("simulator", name) for name in changes if name in SHORT),
        *(long(("ptx", name)) for name in changes),
    ]


def attended(engine: str, change: Any) -> tuple[CudaBackend, Any, Any, int]:
    cc, compile, n_tokens = ENGINES[engine]
    backend = CudaBackend(TwinDriver(cc=cc), "cuda0", compile=compile)
    return backend, *attention(backend, n_tokens, change), n_tokens


@pytest.mark.parametrize(("engine", "fault"), cases(FAULTS))
def test_faults(engine: str, fault: str) -> None:
    """An access out of bounds would be a fault of the twin, whose message is another one."""
    backend, graph, _, _ = attended(engine, FAULTS[fault])
    with pytest.raises(ComputeError, match="'attended' = FLASH_ATTN_EXT: an index is out of"):
        backend.graph_compute(graph)
    backend.queue.synchronize()


@pytest.mark.parametrize(("engine", "change"), cases(HARMLESS))
def test_numbers_that_nobody_reads(engine: str, change: str) -> None:
    backend, graph, node, n_tokens = attended(engine, HARMLESS[change])
    backend.graph_compute(graph)
    wanted, result = attention(ReferenceBackend(), n_tokens, HARMLESS[change])
    ReferenceBackend().graph_compute(wanted)
    assert nmse(to_numpy(node), to_numpy(result)) <= FLASH_ATTN_EXT.tolerance(node)
    assert np.isfinite(to_numpy(node)).all()


@pytest.mark.parametrize("row", [(-1, 0, 3, 0), (0, -1, 3, 0), (0, 0, 6, 0), (3, 0, 3, 0)])
def test_ranges_outside_of_the_keys_are_refused(row: tuple[int, ...]) -> None:
    backend = CudaBackend(TwinDriver(cc=(7, 0)), "cuda0", compile=simulator_image)
    rng, ctx, graph = np.random.default_rng(0), Context(no_alloc=True), CGraph()
    q, k, v = (ctx.new_tensor_2d(GGMLType.F32, 32, 5) for _ in range(3))
    rows = ctx.new_tensor_2d(GGMLType.I32, 4, 5)
    graph.build_forward_expand(ops.flash_attn_ranges(ctx, q, k, v, rows, 0.2))
    alloc_ctx_tensors(ctx, backend.buffer_type())
    for x in (q, k, v):
        x.set(rng.random((5, 32), np.float32))
    good = [(0, 0, 3, 0), (3, 0, 2, 0), (9, 7, 7, 0), (-1, 5, 2, 0)]  # the last two are padding
    rows.set(np.array([*good, good[0]], np.int32))
    backend.graph_compute(graph)
    rows.set(np.array([row, *good], np.int32))
    with pytest.raises(ComputeError, match="an index is out of"):
        backend.graph_compute(graph)
    backend.queue.synchronize()


@pytest.mark.long
@pytest.mark.parametrize(
    ("cc", "kind", "n_tokens", "n_head", "columns"),
    [
        ((7, 5), "_kept_75", 3, 16, (576, 512)),
        ((9, 0), "_inside", 3, 16, (576, 512)),
        ((9, 0), "_inside", 20, 2, (320, 256)),
    ],
    ids=["heads of a token before 9.0", "heads of a token", "a prompt"],
)
def test_values_inside_of_keys(
    cc: tuple[int, int], kind: str, n_tokens: int, n_head: int, columns: tuple[int, int]
) -> None:
    """As in multi-head latent attention; tensor cores read such rows once, from 9.0 on."""
    sizes: Any = {"n_head": n_head, "columns": columns}
    backend = CudaBackend(TwinDriver(cc=cc), "cuda0", compile=ptx_of)
    graph, node = attention(backend, n_tokens, HARMLESS["none"], **sizes)
    program = backend.compile(graph)
    assert program.launches[0].kernel.name.endswith(kind)
    program.enqueue()
    backend.queue.synchronize()
    wanted, result = attention(ReferenceBackend(), n_tokens, HARMLESS["none"], **sizes)
    ReferenceBackend().graph_compute(wanted)
    assert nmse(to_numpy(node), to_numpy(result)) <= FLASH_ATTN_EXT.tolerance(node)
