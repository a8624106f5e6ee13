"""Place the tensors of a ``no_alloc`` context one after the other in a buffer.

    ctx = Context(no_alloc=True)
    w = ctx.new_tensor_2d(GGMLType.F32, 576, 1536)
    buffer = alloc_ctx_tensors(ctx, HOST)          # one buffer for all of them; w.data is set

This is for weights and caches, which live as long as their buffer; ``gallocr`` plans the memory of
a graph's intermediate results. Nothing is ever freed or moved. Not thread-safe.
Source: ggml, ``ggml_tallocr``, ``ggml_backend_alloc_ctx_tensors_from_buft``.
"""

from __future__ import annotations

from ..context import Context, place_view
from ..errors import AllocError
from ..rounding import round_up
from ..tensor import Buffer, BufferType, Tensor


class TensorAllocator:
    """Allocates tensors in one buffer, from its start.

    Attributes:
        buffer: the buffer.
        used: bytes allocated so far, with gaps of alignment.
    """

    def __init__(self, buffer: Buffer) -> None:
        self.buffer = buffer
        self.used = 0

    def alloc(self, tensor: Tensor) -> Tensor:
        """Give ``tensor`` the next free bytes and return it.

        Raises:
            AllocError: the buffer is full, or the tensor is a view or has memory already.
        """
        if tensor.view_src is not None:
            raise AllocError(
                f"'{tensor.name}' {tensor.ne} looks into '{tensor.view_src.name}': allocate that "
                "tensor, then place_view() this one"
            )
        if tensor.data:
            raise AllocError(f"'{tensor.name}' {tensor.ne} has memory already")
        buffer = self.buffer
        size = buffer.buft.alloc_size(tensor)
        start = self.used
        if size:  # an empty tensor fits into a full buffer
            start = round_up(buffer.base + start, buffer.buft.alignment) - buffer.base
        if start + size > buffer.size:
            raise AllocError(
                f"{buffer.buft.name} buffer is full: '{tensor.name}' {tensor.ne} wants {size} "
                f"bytes, {max(buffer.size - start, 0)} of {buffer.size} left; make the buffer "
                "larger, or let alloc_ctx_tensors() choose its size"
            )
        tensor.buffer = buffer
        tensor.data = buffer.base + start
        self.used = start + size
        return tensor


def alloc_ctx_tensors(ctx: Context, buft: BufferType) -> Buffer:
    """A new buffer that holds every tensor of ``ctx`` that has no memory yet.

    Views get the memory of their roots. A context that needs nothing gives an empty buffer.

    Raises:
        AllocError: the buffer type cannot give that many bytes; no tensor was changed.
    """
    tensors = [t for t in ctx if t.view_src is None and not t.data]
    size = sum(round_up(buft.alloc_size(t), buft.alignment) for t in tensors)
    try:
        allocator = TensorAllocator(buft.alloc_buffer(size))
    except AllocError as e:
        raise AllocError(f"{len(tensors)} tensors in a {buft.name} buffer: {e}") from e
    for tensor in tensors:
        allocator.alloc(tensor)
    for tensor in ctx:
        place_view(tensor)
    return allocator.buffer
