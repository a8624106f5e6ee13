"""The bytes of a file, memory-mapped or read.

    part = read_bytes(Path("x.gguf"), mmap=True)
    part.data[:4]                                  # uint8, read-only
    part.release(0, 1 << 20)                       # these pages may be evicted

Errors of the operating system become one-line GGUFErrors.
"""

from __future__ import annotations

import mmap as pages
import os
from dataclasses import dataclass
from mmap import mmap as MemoryMap
from pathlib import Path

import numpy as np
import numpy.typing as npt

from ..errors import AllocError, GGUFError
from ..files import NotRegular, open_regular
from .cursor import INCOMPLETE


@dataclass(frozen=True, slots=True, eq=False)
class Mapped:
    """A file's bytes.

    Attributes:
        data: all bytes, read-only.
        map: the mapping that ``data`` is a view of; None if the file was read into memory.
    """

    path: Path
    data: npt.NDArray[np.uint8]
    map: MemoryMap | None = None

    def check(self) -> None:
        """Raise GGUFError if the mapped file was truncated: accessing lost pages gives SIGBUS."""
        if self.map is not None and self.map.size() < self.data.size:
            raise GGUFError(
                f"{self.path}: was cut to {self.map.size()} of {self.data.size} bytes while it was "
                "in use; fetch it again; `mmap=False` reads it into memory instead"
            )

    def release(self, start: int, stop: int) -> None:
        """Allow the system to evict these pages; on the next access they are read again."""
        if self.map is not None and hasattr(pages, "MADV_DONTNEED"):
            start -= start % pages.PAGESIZE
            self.map.madvise(pages.MADV_DONTNEED, start, stop - start)


def read_bytes(path: Path, *, mmap: bool) -> Mapped:
    """Return the bytes of a file.

    Raises:
        GGUFError: it cannot be opened.
        AllocError: it does not fit into memory (``mmap=False``).
    """
    try:
        with open_regular(path) as file:
            size = os.fstat(file.fileno()).st_size
            if mmap and size:
                map = MemoryMap(file.fileno(), size, access=pages.ACCESS_READ)
                return Mapped(path, np.frombuffer(map, np.uint8), map)
            data = np.empty(size, np.uint8)
            got = 0
            while got < size and (n := file.readinto(data.data[got:])):  # 2 GiB at most at a time
                got += n
    except NotRegular as error:
        raise GGUFError(f"{path}: {error.strerror}; name a .gguf file") from None
    except FileNotFoundError:
        raise GGUFError(f"{path}: no such file; check the path") from None
    except PermissionError:
        raise GGUFError(
            f"{path}: no permission to read the file; check its owner and mode"
        ) from None
    except MemoryError:
        raise AllocError(f"{path}: no memory for the file's {size} bytes; map it instead") from None
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        if isinstance(error, GGUFError):
            raise
        hint = "read it instead of mapping it (mmap=False)" if mmap else "check the disk"
        raise GGUFError(f"{str(path)!r}: cannot be opened: {error}; {hint}") from error
    if got != size:
        raise GGUFError(f"{path}: read {got} of {size} bytes; {INCOMPLETE}")
    data.flags.writeable = False
    return Mapped(path, data)
