"""Fill repacked buffers from mapped files, on all threads, in steps of a few megabytes.

    for done_bytes in repack(backend.run_launches, n_threads, [(tensor, ggml_bytes), ...]):
        ...                                        # show progress
    write = matrix_writer(experts)
    write(3, ggml_bytes)                           # one of several matrices, on the caller's thread

Each step is one program whose launches interleave whole tensors; then their mapped pages are
dropped.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ... import host
from ...buffer import zeroed
from ...cgraph import CGraph
from ...compiler.jit import kernel
from ...dtype import row_size
from ...rounding import ceil_div
from ...tensor import Tensor
from .abi import DST, data, first_row, i64_ptr, params_of, record
from .compile.lowering import CpuLowering
from .compile.work import WorkMemory, WorkStore
from .kernels.matrix.weights import PACK, decode_to_scratch, pack_group, packed_bytes, weight_traits
from .simd.element import zero_run
from .simd.plain_rows import TABLE_BYTES, set_row_pointers
from .weights.layout import ROWS, group_bytes

_STEP_BYTES = 16 << 20


class Repack(NamedTuple):
    """The values of ``repack_groups``."""

    source: int  # address of the rows
    row_bytes: int
    n_rows: int  # of a matrix
    n_columns: int
    group_bytes: int
    matrices: int
    traits: int


@kernel
def repack_groups(node, chunk, n_chunks, scratch):  # type: ignore[no-untyped-def]
    """A range of groups, rows front to back."""
    p = params_of(node, Repack)
    n_rows, row_bytes = p.n_rows, p.row_bytes
    groups = (n_rows + ROWS - 1) // ROWS
    total = groups * p.matrices
    padding = scratch + TABLE_BYTES  # a row of zeros
    zero_run(padding, (row_bytes + 3) // 4)
    for g in range(first_row(total, chunk, n_chunks), first_row(total, chunk + 1, n_chunks)):
        matrix, row = g // groups, g % groups * ROWS
        source = p.source + matrix * n_rows * row_bytes
        set_row_pointers(scratch, source, row_bytes, row, n_rows)
        for r in range(n_rows - row, ROWS):
            i64_ptr(scratch)[r] = padding
        traits, n = p.traits, p.n_columns
        decode_to_scratch(traits, scratch, ROWS, n, padding + row_bytes + 4)
        pack_group(traits, scratch, n, data(node, DST) + g * p.group_bytes)


def repack(
    run: Callable[[CpuLowering], None],
    n_threads: int,
    tensors: Iterable[tuple[Tensor, npt.NDArray[np.uint8]]],
) -> Iterator[int]:
    """Interleave tensors that are allocated in a repacked buffer.

    Args:
        run: runs the launches of a lowering.

    Yields:
        The number of bytes converted so far, after each step.
    """
    step: list[tuple[Tensor, npt.NDArray[np.uint8]]] = []
    done = size = 0
    for tensor, source in tensors:
        step.append((tensor, source))
        size += source.nbytes
        if size >= _STEP_BYTES:
            _run(run, step, n_threads)
            done += size
            yield done
            step, size = [], 0
    if step:
        _run(run, step, n_threads)
        yield done + size


def _run(
    run: Callable[[CpuLowering], None],
    step: list[tuple[Tensor, npt.NDArray[np.uint8]]],
    n_threads: int,
) -> None:
    lowering = CpuLowering(CGraph(), n_threads, WorkMemory(WorkStore()))
    for tensor, source in step:
        _add(lowering, tensor, int(source.ctypes.data))
    run(lowering)
    for _, source in step:
        host.drop_pages(source)


def _add(lowering: CpuLowering, tensor: Tensor, source: int) -> None:
    """Add the launch that interleaves a tensor; ``source`` is the address of its ggml bytes."""
    n, matrices = tensor.ne[0], tensor.ne[2] * tensor.ne[3]
    row_bytes, bytes_of_16 = row_size(tensor.type, n), group_bytes(tensor.type, n)
    traits = weight_traits(lowering, tensor, PACK)
    params = Repack(source, row_bytes, tensor.ne[1], n, bytes_of_16, matrices, traits)
    groups = ceil_div(tensor.ne[1], ROWS) * matrices
    scratch = TABLE_BYTES + row_bytes + 4 + packed_bytes(tensor)
    lowering.launch(repack_groups, tensor, params, min(groups, 256), src=(), scratch=scratch)


def matrix_writer(weight: Tensor) -> Callable[[int, npt.NDArray[np.uint8]], None]:
    """A function that interleaves one matrix of a repacked weight with several.

    It runs on the calling thread, without the GIL and without the pool: threads may call it while
    a program runs, for different matrices.
    """
    lowering = CpuLowering(CGraph(), 1, WorkMemory(WorkStore()))
    ne = (*weight.ne[:2], 1, 1)
    one = Tensor(weight.type, ne)
    one.buffer = weight.buffer
    _add(lowering, one, 0)
    lowering.compile()
    (launch,), scratch_bytes = lowering.launches, lowering.scratch_bytes
    params, rows = launch.params, ceil_div(weight.ne[1], ROWS)
    call = ctypes.CFUNCTYPE(None, *4 * [ctypes.c_int64])(repack_groups.address)

    def write(matrix: int, data: npt.NDArray[np.uint8]) -> None:
        target = Tensor(weight.type, ne)
        target.data = weight.data + matrix * rows * params.group_bytes  # type: ignore[attr-defined]
        source = params._replace(source=int(data.ctypes.data))
        words, scratch = record(0, source, target, ()), zeroed(scratch_bytes)
        call(int(words.ctypes.data), 0, 1, int(scratch.ctypes.data))

    return write
