"""Opening files that strangers made, and writing files so that nobody ever sees half of one.

with open_regular("x.gguf") as file:           # a pipe, device or folder is an OSError at once
    head = file.read(8)
data = read_regular("config.json", max_bytes=1 << 20)

with replacing("x.bin") as temporary:          # a path beside it
    temporary.write_bytes(data)                # renamed at the end, deleted on an error

Everything in pyggml and pyllama that opens a file by its name to read it does so here.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import stat
from collections.abc import Iterator
from io import FileIO
from pathlib import Path

# A pipe without a writer would block `open`; Windows has neither that nor the flag.
_READ = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
_UPDATE = os.O_RDWR | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
_KINDS = (
    (stat.S_ISDIR, "a directory"),
    (stat.S_ISFIFO, "a pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)


class NotRegular(OSError):
    """What a name stands for is no regular file: it has no size, or reading it may never end."""


def open_regular(path: str | os.PathLike[str], *, update: bool = False) -> FileIO:
    """A file, unbuffered, to be read; blocks neither now nor when it is read.

    Args:
        update: written to in place, too.

    Raises:
        NotRegular: it is a directory, a pipe, a socket or a device.
        OSError: it cannot be opened; ``strerror`` says why.
    """
    try:
        fd = os.open(path, (_UPDATE if update else _READ) | getattr(os, "O_CLOEXEC", 0))
    except ValueError as error:  # a NUL in the path
        raise OSError(errno.EINVAL, str(error), str(path)) from None
    except OSError as error:
        if error.errno in (errno.ENXIO, errno.EISDIR, errno.EACCES):  # a socket; folders, by system
            _check_regular(path, os.stat(path).st_mode)
        raise
    try:
        _check_regular(path, os.fstat(fd).st_mode)
        return FileIO(fd, "r+b" if update else "rb")
    except BaseException:
        os.close(fd)
        raise


def _check_regular(path: str | os.PathLike[str], mode: int) -> None:
    if not stat.S_ISREG(mode):
        kind = next((name for test, name in _KINDS if test(mode)), "of no known kind")
        raise NotRegular(errno.EINVAL, f"is {kind}, not a regular file", str(path))


def read_regular(path: str | os.PathLike[str], max_bytes: int | None = None) -> bytes:
    """A whole file.

    Args:
        max_bytes: of a larger one nothing is read.

    Raises:
        NotRegular: it is a directory, a pipe, a socket or a device.
        OSError: it cannot be read, or is larger.
    """
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        if max_bytes is not None and size > max_bytes:
            what = f"has {size} bytes, at most {max_bytes} are read"
            raise OSError(errno.EFBIG, what, str(path))
        # a file of the system's, as in /proc, has more bytes than its size; one may grow meanwhile
        return file.readall() if max_bytes is None else _read_at_most(file, max_bytes)


def _read_at_most(file: FileIO, n: int) -> bytes:
    pieces, left = [], n
    while left and (piece := file.read(min(left, 1 << 24))):
        pieces.append(piece)
        left -= len(piece)
    return b"".join(pieces)


@contextlib.contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[Path]:
    """A path to write to; what is there takes the place of ``path`` when all went well.

    Of a symbolic link it is what the link names. A device or a pipe, such as /dev/null, has no
    place to take: it is written to as it is.

    Raises:
        OSError: there is no such directory, or it cannot be renamed.
    """
    path = Path(path)
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, "cannot replace a directory", str(path))
    if path.exists() and not path.is_file():
        yield path
        return
    if path.is_symlink():
        path = path.resolve()
    if not path.parent.is_dir():
        raise FileNotFoundError(errno.ENOENT, "no such directory to write to", str(path.parent))
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(6)}.tmp")
    try:
        yield temporary
        os.replace(temporary, path)
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink()


def write_whole(path: str | os.PathLike[str], data: bytes) -> None:
    """Write a file that appears whole or not at all. Raises: OSError."""
    with replacing(path) as temporary:
        temporary.write_bytes(data)
