"""Fill repacked buffers from mapped files, on all threads, in steps of a few megabytes.

    for done_bytes in repack(backend, [(tensor, ggml_bytes), ...]):
        ...                                        # show progress

Each step is one program whose launches interleave whole tensors; mapped pages are let go behind.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import numpy.typing as npt

from ...cgraph import CGraph
from ...dtype import row_size
from ...jit import kernel
from ...tensor import Tensor
from . import osapi
from .abi import DST, data, first_row, int_param
from .backend import CpuBackend
from .layout import ROWS, block_bytes
from .lowering import Lowering
from .pool import get_pool
from .program import Program
from .simd.interleave import pack_group
from .work import WorkMemory, WorkStore

_STEP_BYTES = 16 << 20
KIND, SOURCE, ROW_BYTES, N_ROWS, N_COLUMNS, GROUP_BYTES, MATRICES = range(7)


@kernel
def repack_groups(node, chunk, n_chunks, scratch):  # type: ignore[no-untyped-def]
    """A range of groups; reads rows front to back, writes with a stride of 16 values."""
    n_rows, row_bytes = int_param(node, N_ROWS), int_param(node, ROW_BYTES)
    kind, group_bytes = int_param(node, KIND), int_param(node, GROUP_BYTES)
    groups = (n_rows + ROWS - 1) // ROWS
    total = groups * int_param(node, MATRICES)
    for g in range(first_row(total, chunk, n_chunks), first_row(total, chunk + 1, n_chunks)):
        matrix, row = g // groups, g % groups * ROWS
        source = int_param(node, SOURCE) + (matrix * n_rows + row) * row_bytes
        pack_group(
            kind, source, row_bytes, min(ROWS, n_rows - row), int_param(node, N_COLUMNS),
            data(node, DST) + g * group_bytes,
        )  # fmt: skip


def repack(
    backend: CpuBackend, tensors: Iterable[tuple[Tensor, npt.NDArray[np.uint8]]]
) -> Iterator[int]:
    """Interleave tensors that are allocated in a repacked buffer.

    Yields:
        The bytes that are done, after each step.
    """
    step: list[tuple[Tensor, npt.NDArray[np.uint8]]] = []
    done = size = 0
    for tensor, source in tensors:
        step.append((tensor, source))
        size += source.nbytes
        if size >= _STEP_BYTES:
            _run(backend, step)
            done += size
            yield done
            step, size = [], 0
    if step:
        _run(backend, step)
        yield done + size


def _run(backend: CpuBackend, step: list[tuple[Tensor, npt.NDArray[np.uint8]]]) -> None:
    low = Lowering(CGraph(), backend.n_threads, WorkMemory(WorkStore()))
    for tensor, source in step:
        n = tensor.ne[0]
        matrices = tensor.ne[2] * tensor.ne[3]
        group_bytes = n // tensor.type.block_size * block_bytes(tensor.type)
        params = [
            int(tensor.type), int(source.ctypes.data), row_size(tensor.type, n), tensor.ne[1], n,
            group_bytes, matrices,
        ]  # fmt: skip
        groups = -(-tensor.ne[1] // ROWS) * matrices
        low.launch(repack_groups, tensor, params, min(groups, 256), src=())
    backend.run(Program(low, get_pool().error_slot))
    for _, source in step:
        osapi.drop_pages(source)
