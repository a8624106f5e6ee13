"""Reads of a file that leave nothing in the system's page cache.

    file = DirectFile(Path("x.gguf"))
    buffer = page_aligned(1 << 20)                 # one for each thread that reads
    file.read(4711, 1 << 19, buffer)               # uint8, a view of the buffer

The kernel copies from the disk into the buffer (O_DIRECT). Where a file system does not support
that, pages are read through the cache and dropped at once (POSIX_FADV_DONTNEED). Any thread may
read; the GIL is released meanwhile.
"""

from __future__ import annotations

import mmap
import os
import weakref
from pathlib import Path

import numpy as np
import numpy.typing as npt

from ..errors import GGUFError
from ..rounding import round_up
from .cursor import INCOMPLETE

_PAGE = mmap.PAGESIZE
Bytes = npt.NDArray[np.uint8]


def page_aligned(n_bytes: int) -> Bytes:
    """A buffer for `DirectFile.read` of so many bytes at any place."""
    return np.frombuffer(mmap.mmap(-1, round_up(n_bytes, _PAGE) + _PAGE), np.uint8)


class DirectFile:
    """A file that is read past the page cache. Raises: GGUFError: it cannot be opened."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._fd, self.is_direct = _open(path)
        except OSError as error:
            raise GGUFError(f"{path}: cannot be opened for reading experts: {error}") from None
        weakref.finalize(self, os.close, self._fd)

    def read(self, start: int, n_bytes: int, buffer: Bytes) -> Bytes:
        """Bytes of the file, in a buffer of `page_aligned`.

        Raises:
            GGUFError: the disk does not read them, or the file has become shorter.
        """
        first = start % _PAGE  # direct reads begin and end at pages
        size, got, why = round_up(first + n_bytes, _PAGE), 0, "no more bytes"
        try:
            while got < first + n_bytes:
                n = os.preadv(self._fd, [buffer.data[got:size]], start - first + got)
                if n == 0:
                    break
                got += n
            if not self.is_direct and hasattr(os, "posix_fadvise"):
                os.posix_fadvise(self._fd, start - first, size, os.POSIX_FADV_DONTNEED)
        except OSError as error:
            why = str(error)
        if got >= first + n_bytes:
            return buffer[first : first + n_bytes]
        if os.fstat(self._fd).st_size < start + n_bytes:
            raise GGUFError(f"{self.path}: ends within a tensor; {INCOMPLETE}")
        raise GGUFError(f"{self.path}: cannot be read ({why}); check the disk")


def _open(path: Path) -> tuple[int, bool]:
    """A descriptor, and whether its reads are direct. Raises: OSError."""
    flags = os.O_RDONLY | getattr(os, "O_CLOEXEC", 0)
    if hasattr(os, "O_DIRECT"):
        fd = -1
        try:
            fd = os.open(path, flags | os.O_DIRECT)
            os.preadv(fd, [page_aligned(0).data], 0)
            return fd, True
        except OSError:  # not on this file system
            if fd >= 0:
                os.close(fd)
    return os.open(path, flags), False
