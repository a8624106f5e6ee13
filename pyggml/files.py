"""Writing files so that nobody ever sees half of one.

with replacing("x.bin") as temporary:          # a path beside it
    temporary.write_bytes(data)                # renamed at the end, deleted on an error
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
from collections.abc import Iterator
from pathlib import Path


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
