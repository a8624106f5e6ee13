"""Data points and their labels, in an order that depends on seed and epoch alone.

    train, held_out = Dataset(images, digits).split(0.2)
    indices = train.order(epoch=3)                 # a permutation, the same in every run

Arrays may be memory-mapped (``np.load(path, mmap_mode="r")``): batches are read when they are
needed. Only ``split`` copies all data.
"""

from __future__ import annotations

from hashlib import sha256
from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import ShapeError

Array = npt.NDArray[Any]
_CHUNK_BYTES = 1 << 24  # of data that are read at once for a digest


class Dataset:
    """Data points, the first axis of an array, and a label for each.

    Args:
        data: [n, ...]; a data point has the elements of one in ``OptContext.inputs``.
        labels: [n, ...]: integers are numbers of classes, floats are values or probabilities; None
            for losses that have no labels.
        seed: of the order in which epochs visit the data.

    Raises:
        ShapeError: there are no data, or not as many labels.
    """

    def __init__(self, data: npt.ArrayLike, labels: npt.ArrayLike | None = None, seed: int = 0):
        self.data: Array = np.asarray(data)
        self.labels: Array | None = None if labels is None else np.asarray(labels)
        self.seed = seed
        if self.data.ndim == 0 or len(self.data) == 0:
            raise ShapeError("the data set is empty: there is nothing to train on")
        if self.labels is not None and len(self.labels) != len(self.data):
            raise ShapeError(f"{len(self.data)} data points have {len(self.labels)} labels")

    def __len__(self) -> int:
        return len(self.data)

    def order(self, epoch: int) -> npt.NDArray[np.int64]:
        """The indices of all data points in the order of an epoch."""
        return np.random.default_rng([self.seed, epoch]).permutation(len(self))

    def digest(self) -> str:
        """Twelve hexadecimal digits that identify data, labels and seed."""
        digest = sha256(str(self.seed).encode())
        for array in (self.data, self.labels):
            if array is None:
                continue
            digest.update(f"{array.dtype} {array.shape}".encode())
            rows = max(1, _CHUNK_BYTES // max(1, array[:1].nbytes))
            for at in range(0, len(array), rows):
                digest.update(array[at : at + rows].tobytes())
        return digest.hexdigest()[:12]

    def split(self, fraction: float) -> tuple[Dataset, Dataset]:
        """Two data sets of randomly chosen points, the second with a fraction of them.

        Raises:
            ShapeError: one of them would be empty.
        """
        places = np.random.default_rng(self.seed).permutation(len(self))
        n = len(self) - round(fraction * len(self))
        return self._at(places[:n]), self._at(places[n:])

    def _at(self, places: Array) -> Dataset:
        labels = None if self.labels is None else self.labels[places]
        return Dataset(self.data[places], labels, self.seed)
