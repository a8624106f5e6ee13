"""A tensor of a checkpoint whose values are computed from several stored ones.

    decoded = DecodedTensor((4096, 4096), (weight, scale), partial(scaled, weight, scale))
    decoded.read()                                 # float32 [4096, 4096]

It has the attributes of ``StoredTensor`` that planning uses. Each ``read`` reads the sources again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from pyggml.dtype import GGMLType

from .stored import Floats, StoredTensor

# Blocks of a GGUF format: an element of 17 bytes for 32 values (MXFP4), of 36 for 64 (NVFP4)
Blocks = npt.NDArray[Any]


@dataclass(frozen=True)
class PackedBlocks:
    """The blocks of MXFP4 or NVFP4 that hold a tensor's values.

    Attributes:
        shape: rows and blocks in the file, [..., n_rows, n_blocks].
        transposed: whether the tensor is [..., values of all blocks, n_rows].
        load: returns the blocks in the file's shape. Raises: ModelError.
        type: of the blocks.
        scales: what the products with the matrix are multiplied by, and what their inputs were
            (``scale`` and ``input_scale`` of GGUF); one number, or one for each expert.
    """

    shape: tuple[int, ...]
    transposed: bool
    load: Callable[[], Blocks]
    type: GGMLType = GGMLType.MXFP4
    scales: Mapping[str, Floats] = field(default_factory=dict)

    def read(self) -> Blocks:
        """Return the blocks in the tensor's order of dimensions. Raises: ModelError."""
        return self._arranged(self.load())

    def unread(self) -> Blocks:
        """Return an array like that of ``read``, of one byte a block, whose values are undefined.

        Only an operation that copies or reads it makes the system give it memory.
        """
        return self._arranged(np.empty(self.shape, "V1"))

    def numbered(self) -> Blocks:
        """Return an array like that of ``unread``: of each block its place in its row, mod 256."""
        places = np.arange(self.shape[-1], dtype=np.uint8).view("V1")
        return self._arranged(np.broadcast_to(places, self.shape).copy())

    def _arranged(self, blocks: Blocks) -> Blocks:
        return blocks.swapaxes(-1, -2) if self.transposed else blocks


@dataclass(frozen=True)
class DecodedTensor:
    """A tensor computed from stored ones.

    Attributes:
        shape: NumPy order.
        sources: the stored tensors; the first one gives its place in messages.
        decode: returns the values as float32. Raises: ModelError.
        blocks: the same values as blocks of MXFP4 or NVFP4, if the checkpoint stores them so.
    """

    shape: tuple[int, ...]
    sources: tuple[StoredTensor, ...]
    decode: Callable[[], Floats]
    blocks: PackedBlocks | None = None

    def read(self) -> Floats:
        """Return the values as float32. Raises: ModelError."""
        with np.errstate(over="ignore", invalid="ignore"):  # beyond float32 they are infinite
            return self.decode()

    @property
    def path(self) -> Path:
        """The file of the first source."""
        return self.sources[0].path

    @property
    def offset(self) -> int:
        """The byte offset of the first source."""
        return self.sources[0].offset

    @property
    def dtypes(self) -> frozenset[str]:
        """The types of all sources."""
        return frozenset(source.dtype for source in self.sources)


CheckpointTensor = StoredTensor | DecodedTensor
