"""Conversion of quantized weights from ggml's blocks into planes, on the device.

    write_planes(queue, tensor, data)              # ggml's bytes into a tensor stored as planes

Access: one thread a group of 32 columns; it reads the block's bytes one by one.
"""

from functools import cache
from typing import Any

import numpy as np
from numba import cuda, int32, int64, uint8, uint16, uint32

from .....dtype import GGMLType
from .....tensor import Tensor
from ...codec import field_reader
from ...intrin import store_u8, store_u16, store_u32, u32
from ...kernel import U8, Call, GpuKernel, i64, kernel
from ...lowering import blocks
from ...planes import Offsets, known_planes
from ...stream import WORK_BYTES, StreamQueue


@cache
def to_planes(type: GGMLType) -> GpuKernel:
    """The kernel of a format: ``n_groups`` groups of 32 columns of blocks at ``x`` into planes."""
    planes = known_planes(type)
    f = planes.format
    columns, n_bytes, wide = f.columns, f.block_bytes, planes.code_bytes == 32
    high_bytes, step_bytes, n_steps = planes.high_bytes, planes.step_bytes, planes.n_steps
    has_low = bool(f.low)
    code, scale = field_reader(f.planes), field_reader(f.d)
    step = field_reader(f.steps) if f.steps else scale
    minimum = field_reader(f.minima) if f.minima else scale
    low = field_reader(f.low) if f.low else scale
    group_in_block = columns // 32

    @kernel(f"to_planes_{type.name.lower()}", max_registers=168)
    def convert(x: U8, y: U8, n_groups: i64, high: i64, steps: i64, scales: i64):
        g = int64(cuda.blockIdx.x) * cuda.blockDim.x + cuda.threadIdx.x
        if g >= n_groups:
            return
        block, k = (g // group_in_block) * n_bytes, int32(g % group_in_block)
        h0, h1 = uint32(0), uint32(0)
        if wide:
            for j in range(32):
                store_u8(y, g * 32 + j, uint8(code(x, block, 32 * k + j)))
        else:
            for j in range(16):
                a, b = code(x, block, 32 * k + j), code(x, block, 32 * k + j + 16)
                store_u8(y, g * 16 + j, uint8((a & uint32(15)) | ((b & uint32(15)) << uint32(4))))
                lane, word = j % 4, j // 4
                if high_bytes == 4:
                    h0 = u32(h0 | ((a >> uint32(4)) << uint32(8 * lane + word)))
                    h0 = u32(h0 | ((b >> uint32(4)) << uint32(8 * lane + word + 4)))
                elif high_bytes == 8:
                    h0 = u32(h0 | ((a >> uint32(4)) << uint32(8 * lane + 2 * word)))
                    h1 = u32(h1 | ((b >> uint32(4)) << uint32(8 * lane + 2 * word)))
        if high_bytes > 0:
            store_u32(y, high + g * high_bytes, h0)
        if high_bytes == 8:
            store_u32(y, high + g * high_bytes + 4, h1)
        for s in range(n_steps):
            store_u8(y, steps + g * step_bytes + s, uint8(step(x, block, n_steps * k + s)))
        for s in range(step_bytes - n_steps):
            store_u8(
                y, steps + g * step_bytes + n_steps + s, uint8(minimum(x, block, n_steps * k + s))
            )
        if k == 0:
            at = g // group_in_block
            if has_low:
                store_u16(y, scales + 4 * at, uint16(scale(x, block, 0)))
                store_u16(y, scales + 4 * at + 2, uint16(low(x, block, 0)))
            else:
                store_u16(y, scales + 2 * at, uint16(scale(x, block, 0)))

    return convert


def conversion(type: GGMLType, ne: tuple[int, ...], x: Any, y: Any) -> tuple[Call, Any]:
    """The call that converts a matrix, and its grid; ``x`` and ``y`` are addresses or memory."""
    n, rows = ne[0], ne[1] * ne[2] * ne[3]
    return _of_groups(type, x, y, rows * (n // 32), known_planes(type).offsets(n, rows))


def _of_groups(type: GGMLType, x: Any, y: Any, groups: int, at: Offsets) -> tuple[Call, Any]:
    call = to_planes(type)(
        x=x, y=y, n_groups=groups, high=at.high, steps=at.steps, scales=at.scales
    )
    return call, blocks(groups)


def write_planes(queue: StreamQueue, tensor: Tensor, data: Any) -> None:
    """Convert ggml's bytes into a tensor that is stored as planes; done on return.

    They pass through the queue's work memory, a few megabytes at a time.

    Raises:
        AllocError: no memory for them on the device.
    """
    planes, driver, stream = known_planes(tensor.type), queue.driver, queue.stream
    data = np.ascontiguousarray(data).reshape(-1)
    raw, block = queue.work(0, WORK_BYTES[0]), planes.format.block_bytes
    piece, at = WORK_BYTES[0] // block * block, planes.offsets(tensor.ne[0], tensor.nrows)
    for start in range(0, data.nbytes, piece):
        part = data[start : start + piece]
        driver.copy_in(raw, int(part.ctypes.data), part.nbytes, stream)
        first = start // block * (planes.columns // 32)  # the piece's first group
        y = tensor.data + first * planes.code_bytes
        offsets = Offsets(
            at.high + first * planes.high_bytes + tensor.data - y,
            at.steps + first * planes.step_bytes + tensor.data - y,
            at.scales + start // block * planes.scale_bytes + tensor.data - y,
            at.end,
        )
        groups = part.nbytes // block * (planes.columns // 32)
        call, grid = _of_groups(tensor.type, raw, y, groups, offsets)
        function = queue.function(call.kernel)
        packed = driver.pack(function, grid, threads=call.kernel.threads, arguments=call.values)
        driver.launch([packed], stream)
    queue.synchronize()
