"""Opens untrusted files safely, and writes files atomically.

with open_regular("x.gguf") as file:           # OSError for a pipe, device or folder
    head = file.read(8)
data = read_regular("config.json", max_bytes=1 << 20)
prompt = read_input("/dev/stdin", 1 << 20)     # also reads pipes

with replacing("x.bin") as temporary:          # a path in the same folder
    temporary.write_bytes(data)                # renamed at the end, deleted on an error
with working_folder(cache, "fetch-") as folder:    # deleted at the end with its content
    ...

All code of pyggml and pyllama that opens files by name for reading uses these functions.

A temporary file or folder is locked (``flock``) while it is in use; the lock ends with its process.
So an unlocked one was left by a killed process, and the next write to the same folder deletes it.
On Windows open files cannot be deleted, which has the same effect; folders are not cleaned up.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import secrets
import shutil
import stat
import sys
from collections.abc import Iterator
from io import FileIO
from pathlib import Path

if sys.platform != "win32":
    import fcntl

_SUFFIX = ".pyggml.tmp"
_TEMPORARY = re.compile(r"\..*\.[0-9a-f]{12}" + re.escape(_SUFFIX), re.DOTALL)
_MAX_NAME = 255  # bytes of a file name
_CLOSED = -1  # in place of a descriptor
_FLAGS = sum(getattr(os, name, 0) for name in ("O_CLOEXEC", "O_NOFOLLOW", "O_NONBLOCK", "O_BINARY"))
# O_NONBLOCK: otherwise `open` blocks for a pipe without a writer. Windows does not have the flag.
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
    """The path is not a regular file, so it may have no size, or reading it may never end."""


def open_regular(path: str | os.PathLike[str], *, update: bool = False) -> FileIO:
    """Open a regular file for reading, unbuffered; never blocks.

    Args:
        update: also open it for writing in place.

    Raises:
        NotRegular: it is a directory, a pipe, a socket or a device.
        OSError: it cannot be opened; ``strerror`` says why.
    """
    try:
        fd = os.open(path, (_UPDATE if update else _READ) | getattr(os, "O_CLOEXEC", 0))
    except ValueError as error:  # a NUL in the path
        raise OSError(errno.EINVAL, str(error), str(path)) from None
    except OSError as error:
        if error.errno in (errno.ENXIO, errno.EISDIR, errno.EACCES):  # sockets, folders
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
    """Return the content of a regular file.

    Args:
        max_bytes: maximum size; a larger file is not read.

    Raises:
        NotRegular: it is a directory, a pipe, a socket or a device.
        OSError: it cannot be read, or is too large.
    """
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        if max_bytes is not None and size > max_bytes:
            what = f"has {size} bytes, at most {max_bytes} are read"
            raise OSError(errno.EFBIG, what, str(path))
        # files in /proc have a size of 0, and a file may grow meanwhile
        return file.readall() if max_bytes is None else _read_at_most(file, max_bytes)


def read_input(path: str | os.PathLike[str], max_bytes: int) -> bytes:
    """Return the content of a regular file or a pipe, such as ``<(command)`` or /dev/stdin.

    Raises:
        NotRegular: it is a directory, a socket, a device, or a pipe without a writer.
        OSError: it cannot be read, or is too large.
    """
    try:
        return read_regular(path, max_bytes)
    except NotRegular:
        if not stat.S_ISFIFO(os.stat(path).st_mode):
            raise
    with FileIO(os.open(path, _READ | getattr(os, "O_CLOEXEC", 0))) as file:
        os.set_blocking(file.fileno(), True)
        data = _read_at_most(file, max_bytes + 1)
    if not data:
        raise NotRegular(errno.EINVAL, "is a pipe that nobody writes to", str(path))
    if len(data) > max_bytes:
        what = f"is a pipe of more than {max_bytes} bytes, which are the most that are read"
        raise OSError(errno.EFBIG, what, str(path))
    return data


def _read_at_most(file: FileIO, n: int) -> bytes:
    pieces, left = [], n
    while left and (piece := file.read(min(left, 1 << 24))):
        pieces.append(piece)
        left -= len(piece)
    return b"".join(pieces)


@contextlib.contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield a temporary path; the file written there replaces ``path`` unless an error occurs.

    The target of a symbolic link is replaced. Devices and pipes, such as /dev/null, are written
    directly. The data is synced to disk before the file is renamed.

    Raises:
        OSError: there is no such directory, renaming fails, or it is a pipe without a reader.
    """
    path = Path(path)
    if _TEMPORARY.fullmatch(path.name):  # nested call: the outer ``replacing`` locks the file
        yield path
        return
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, "cannot replace a directory", str(path))
    if path.exists() and not path.is_file():
        with _has_reader(path):
            yield path
        return
    if path.is_symlink():
        path = Path(os.path.realpath(path))
        if path.is_symlink():
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path))
    if not path.parent.is_dir():
        raise FileNotFoundError(errno.ENOENT, "no such directory to write to", str(path.parent))
    _delete_abandoned(path.parent)
    temporary, held = _locked_file(path)
    try:
        yield temporary
        sync(held)
        if sys.platform == "win32":  # an open file cannot be renamed
            os.close(held)
            held = _CLOSED
        os.replace(temporary, path)
    finally:
        if held != _CLOSED:
            os.close(held)
        with contextlib.suppress(OSError):
            temporary.unlink()


@contextlib.contextmanager
def _has_reader(path: Path) -> Iterator[None]:
    """Check that a pipe has a reader, since opening it would block. Raises: OSError: it has not."""
    if not path.is_fifo():
        yield
        return
    try:
        held = os.open(path, os.O_WRONLY | os.O_NONBLOCK)
    except OSError as error:
        if error.errno != errno.ENXIO:
            raise
        raise OSError(errno.ENXIO, "is a pipe that nobody reads", str(path)) from None
    try:
        yield
    finally:
        os.close(held)


def write_whole(path: str | os.PathLike[str], data: bytes) -> None:
    """Write a file atomically. Raises: OSError."""
    with replacing(path) as temporary:
        temporary.write_bytes(data)


def written(text: str, path: str | os.PathLike[str] | None) -> str:
    """The text, after writing it to a file if there is a path. Raises: OSError."""
    if path is not None:
        write_whole(path, text.encode("utf-8"))
    return text


@contextlib.contextmanager
def working_folder(parent: Path, prefix: str) -> Iterator[Path]:
    """Yield a new folder in ``parent``; it is deleted at the end with its files.

    Folders of this prefix that killed processes left are deleted first.

    Raises:
        OSError: the folder cannot be created.
    """
    _delete_abandoned(parent, prefix)
    held = None
    while held is None:  # another process may delete it before it is locked
        folder = parent / f"{prefix}{secrets.token_hex(6)}{_SUFFIX}"
        folder.mkdir(mode=0o700)
        with contextlib.suppress(FileNotFoundError):
            held = _CLOSED if sys.platform == "win32" else _locked(folder, os.O_RDONLY)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        if held != _CLOSED:
            os.close(held)


def sync(descriptor: int) -> None:
    """Sync an open file to disk, if it is on a disk. Raises: OSError."""
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise


def _locked_file(path: Path) -> tuple[Path, int]:
    """Create a temporary file in the folder of ``path``; return it and its locked descriptor."""
    while True:
        ending = f".{secrets.token_hex(6)}{_SUFFIX}"
        name = os.fsencode(path.name)[: _MAX_NAME - len(ending) - 1]
        temporary = path.with_name(f".{os.fsdecode(name)}{ending}")
        held = _locked(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL)
        if held is not None:
            return temporary, held


def _locked(path: Path, flags: int) -> int | None:
    """Lock ``path`` and return the descriptor that holds the lock.

    Returns None if another process has locked or deleted it. A file system without locks counts as
    success.

    Raises:
        OSError: it cannot be opened.
    """
    held = os.open(path, flags | _FLAGS, 0o666)
    try:
        if sys.platform != "win32":
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.path.samestat(os.stat(path, follow_symlinks=False), os.fstat(held)):
            return held
    except (BlockingIOError, FileNotFoundError):
        pass
    except OSError:
        return held
    os.close(held)
    return None


def _delete_abandoned(folder: Path, prefix: str | None = None) -> None:
    """Delete temporary files of ended processes; with ``prefix`` also such folders."""
    working = None if prefix is None else re.compile(_working_name(prefix))
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            is_folder = working is not None and working.fullmatch(entry.name) is not None
            if is_folder or _TEMPORARY.fullmatch(entry.name):
                with contextlib.suppress(OSError):  # another user's, or already deleted
                    _delete_if_abandoned(Path(entry.path), is_folder)


def _working_name(prefix: str) -> str:
    return f"{re.escape(prefix)}[0-9a-f]{{12}}{re.escape(_SUFFIX)}"


def _delete_if_abandoned(path: Path, is_folder: bool) -> None:
    found = os.stat(path, follow_symlinks=False)
    if stat.S_IFMT(found.st_mode) != (stat.S_IFDIR if is_folder else stat.S_IFREG):
        return
    if sys.platform == "win32":
        if not is_folder:
            path.unlink()
        return
    held = os.open(path, os.O_RDONLY | _FLAGS)
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if found.st_uid == os.geteuid():
            shutil.rmtree(path) if is_folder else path.unlink()
    finally:
        os.close(held)
