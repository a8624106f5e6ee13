"""Compiled code on disk: a private directory whose entries are checked before use.

    cache = CodeCache(Path("~/.cache/pyggml/code/0123abcd").expanduser())
    cache.write("add_f32.nbc", data)
    cache.read("add_f32.nbc")                      # the same bytes; None if missing or damaged
    with cache.claim("add_f32.nbc"): ...           # other processes wait for the entry meanwhile

Entries are unpickled and run. So each component of the path is opened by descriptor and checked
(owner: this user or root; not writable by others, unless sticky), and all access is relative to the
last descriptor: nobody can put another directory in its place. An entry begins with a checksum; a
damaged one is deleted, with one line on stderr. The name of an entry includes all that it depends
on; entries not used for a month are deleted when a process writes its first one. A file without
the head of an entry is somebody else's, and is never deleted. If the directory is not safe or
cannot be written, ``read`` finds nothing or ``write`` does nothing, with one line on stderr, and
code is compiled in memory. Errors of the disk are never raised. Thread-safe.

A claim is a lock of one byte of the file ``claims``: it ends with the process that holds it. Where
files cannot be locked, two processes may make the same entry, which wastes time only.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import math
import os
import re
import secrets
import stat
import sys
import time
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

_MAGIC = b"pyggml code 1\n"
_DIGEST_BYTES = hashlib.sha256().digest_size
_TEMPORARY = re.compile(r".+\.[0-9a-f]{16}\.tmp", re.DOTALL)
_KEEP_DAYS = 30  # directories and entries not used for so long are deleted
_DAY_S = 86400
_CLAIMS = "claims"
_CLAIM_S = 60  # a process that is stopped holds up others no longer
_POSIX = hasattr(os, "getuid") and os.open in os.supports_dir_fd
_DIRECTORY = getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_CLOEXEC", 0)
_NO_FOLLOW = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)


class CodeCache:
    """One directory of entries, created if it is missing.

    Attributes:
        path: the directory, for messages.
        readable, writable: whether entries can be read and written.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.readable = self.writable = True
        self._fd: int | None = None
        self._swept = False
        self._claims: int | None = None  # never closed: that would end this process's claims
        try:
            if _POSIX:
                self._fd = _open_private(path)
                os.utime(self._fd)  # marks it as used
            else:
                path.mkdir(parents=True, exist_ok=True)
                os.utime(path)
            self._sweep()
        except OSError as e:
            self.readable = False
            self._keep_nothing(e)

    def read(self, name: str) -> bytes | None:
        """The content of an entry; None if there is none, or it was damaged (and is deleted)."""
        if not self.readable:
            return None
        try:
            with open(self._open(name, os.O_RDONLY), "rb") as f:
                data = f.read()
                if os.fstat(f.fileno()).st_mtime < time.time() - _DAY_S:
                    self._touch(name)
        except OSError:
            return None
        content = data[len(_MAGIC) + _DIGEST_BYTES :]
        if data.startswith(_MAGIC + hashlib.sha256(content).digest()):
            return content
        print(
            f"pyggml: {self.path / name} is damaged; it is deleted and made again", file=sys.stderr
        )
        self.delete(name)
        return None

    def has(self, name: str) -> bool:
        """Whether there is an entry; it may be damaged."""
        try:
            return self.readable and stat.S_ISREG(self._status(name).st_mode)
        except OSError:
            return False

    def _status(self, name: str) -> os.stat_result:
        if self._fd is None:
            return os.lstat(self.path / name)
        return os.stat(name, dir_fd=self._fd, follow_symlinks=False)

    def write(self, name: str, data: bytes) -> None:
        """Write or replace an entry, atomically."""
        if not self.writable:
            return
        temporary = f"{name}.{secrets.token_hex(8)}.tmp"
        try:
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
            with open(self._open(temporary, flags), "wb") as f:
                _lock(f.fileno())
                f.write(_MAGIC + hashlib.sha256(data).digest() + data)
                f.flush()
                self._rename(temporary, name)
        except OSError as e:
            self.delete(temporary)
            self._keep_nothing(e)
        if not self._swept:
            self._swept = True
            _delete_entries(self.path, self._fd, time.time() - _KEEP_DAYS * _DAY_S)

    @contextlib.contextmanager
    def claim(self, name: str) -> Iterator[None]:
        """Wait for another process that makes an entry, then let others wait during the block.

        An entry that was missing before may be there when the block begins.
        """
        end, pause_s = time.monotonic() + _CLAIM_S, 0.001
        while not self._try_claim(name) and time.monotonic() < end:
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, 0.02)
        try:
            yield
        finally:
            self._end_claim(name)

    def is_claimed(self, name: str) -> bool:
        """Whether another process makes an entry now."""
        if not self._try_claim(name):
            return True
        self._end_claim(name)
        return False

    def _try_claim(self, name: str) -> bool:
        """False if another process has the claim."""
        if not (self.writable and _POSIX):
            return True
        import fcntl

        try:
            if self._claims is None:
                self._claims = self._open(_CLAIMS, os.O_RDWR | os.O_CREAT)
                os.pwrite(self._claims, _MAGIC, 0)  # so that it is deleted with the entries
            fcntl.lockf(self._claims, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, _place_of_claim(name))
        except OSError as e:
            return e.errno not in (errno.EACCES, errno.EAGAIN)
        return True

    def _end_claim(self, name: str) -> None:
        if self._claims is not None:
            import fcntl

            with contextlib.suppress(OSError):
                fcntl.lockf(self._claims, fcntl.LOCK_UN, 1, _place_of_claim(name))

    def delete(self, name: str) -> None:
        """Delete an entry if it is there."""
        with contextlib.suppress(OSError):
            os.unlink(_place(self.path, self._fd, name), dir_fd=self._fd)

    def _touch(self, name: str) -> None:
        """Mark an entry as used."""
        place, follow = _place(self.path, self._fd, name), self._fd is None
        with contextlib.suppress(OSError):
            os.utime(place, dir_fd=self._fd, follow_symlinks=follow)

    def _open(self, name: str, flags: int) -> int:
        return _open(self.path, self._fd, name, flags)

    def _rename(self, source: str, target: str) -> None:
        source, target = (str(_place(self.path, self._fd, x)) for x in (source, target))
        os.replace(source, target, src_dir_fd=self._fd, dst_dir_fd=self._fd)

    def _sweep(self) -> None:
        """Delete temporary files of processes that died while writing: their locks are free."""
        for name in os.listdir(self.path if self._fd is None else self._fd):
            if _TEMPORARY.fullmatch(name):
                with (
                    contextlib.suppress(OSError),
                    open(self._open(name, os.O_RDONLY), "rb") as f,
                ):
                    if _lock(f.fileno()):
                        self.delete(name)

    def _keep_nothing(self, error: OSError) -> None:
        self.writable = False
        _say_once(f"pyggml: no code cache in {self.path} ({error}); compiling in memory")


@lru_cache(maxsize=16)
def _say_once(text: str) -> None:
    print(text, file=sys.stderr)


def _open_private(path: Path) -> int:
    """The descriptor of a directory (created if missing) that only this user and root can change.

    Raises:
        OSError: another user owns a component of its path or can write to it, or it cannot be made.
    """
    at = Path(os.path.realpath(path))
    fd = os.open(at.anchor, os.O_RDONLY | _DIRECTORY)
    try:
        done = Path(at.anchor)
        for part in at.parts[1:]:
            _check_component(done, os.fstat(fd))
            done /= part
            try:
                deeper = os.open(part, os.O_RDONLY | _DIRECTORY | _NO_FOLLOW, dir_fd=fd)
            except FileNotFoundError:
                with contextlib.suppress(FileExistsError):  # another process was faster
                    os.mkdir(part, 0o700, dir_fd=fd)
                deeper = os.open(part, os.O_RDONLY | _DIRECTORY | _NO_FOLLOW, dir_fd=fd)
            os.close(fd)
            fd = deeper
        info = os.fstat(fd)
        if info.st_uid != os.getuid():
            raise PermissionError(f"{done} belongs to user {info.st_uid}")
        if stat.S_IMODE(info.st_mode) & 0o022:
            raise PermissionError(f"{done} can be written by others")
    except OSError:
        os.close(fd)
        raise
    return fd


def _check_component(path: Path, info: os.stat_result) -> None:
    if info.st_uid not in (0, os.getuid()):
        raise PermissionError(f"{path} belongs to user {info.st_uid}")
    mode = stat.S_IMODE(info.st_mode)
    if mode & stat.S_ISVTX:
        return
    if mode & 0o002 or (mode & 0o020 and not _is_private_group(info.st_gid)):
        raise PermissionError(f"{path} can be written by others")


def _is_private_group(gid: int) -> bool:
    """Whether a group is root's or the user's private one, which many systems create."""
    import grp
    import pwd

    try:
        group, user = grp.getgrgid(gid), pwd.getpwuid(os.getuid())
    except KeyError:
        return False
    own = gid == 0 or (gid == user.pw_gid and group.gr_name == user.pw_name)
    return own and not set(group.gr_mem) - {user.pw_name, "root"}


def _lock(fd: int) -> bool:
    """Lock a file until it is closed or the process ends; False if another process has the lock."""
    try:
        import fcntl
    except ImportError:  # Windows does not delete files that are open
        return True
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _place_of_claim(name: str) -> int:
    """Which byte of the file of claims stands for an entry; the file stays short."""
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:7], "little")


def _place(path: Path, fd: int | None, name: str) -> str | Path:
    """How a file of a directory is named in calls that are given the directory's descriptor."""
    return path / name if fd is None else name


def _open(path: Path, fd: int | None, name: str, flags: int) -> int:
    return os.open(_place(path, fd, name), flags | _NO_FOLLOW, 0o600, dir_fd=fd)


def prune(base: Path, keep: Path) -> None:
    """Delete caches in ``base``, except ``keep``, that were not used for a month."""
    limit = time.time() - _KEEP_DAYS * _DAY_S
    with contextlib.suppress(OSError):
        for old in base.iterdir():
            if old != keep and old.stat().st_mtime < limit:
                _delete_cache(old, limit)


def clear(base: Path) -> None:
    """Delete all caches in ``base``, and what is empty then; other files stay."""
    with contextlib.suppress(OSError):
        for cache in base.iterdir():
            _delete_cache(cache, math.inf)
        base.rmdir()


def _delete_cache(path: Path, limit: float) -> None:
    """Delete the entries of a directory that were last used before ``limit``, then it if empty."""
    with contextlib.suppress(OSError):  # not a directory, or files of others are in it
        fd = os.open(path, os.O_RDONLY | _DIRECTORY | _NO_FOLLOW) if _POSIX else None
        try:
            _delete_entries(path, fd, limit)
        finally:
            if fd is not None:
                os.close(fd)
        path.rmdir()


def _delete_entries(path: Path, fd: int | None, limit: float) -> None:
    """Delete what ``CodeCache`` wrote and was last used before ``limit``."""
    with contextlib.suppress(OSError), os.scandir(path if fd is None else fd) as files:
        for file in files:
            with contextlib.suppress(OSError):  # another process deleted it
                is_old = file.stat(follow_symlinks=False).st_mtime < limit
                if is_old and file.is_file(follow_symlinks=False) and _wrote(path, fd, file.name):
                    os.unlink(_place(path, fd, file.name), dir_fd=fd)


def _wrote(path: Path, fd: int | None, name: str) -> bool:
    """Whether ``CodeCache`` wrote a file: it has the head of an entry, or a temporary file's name.

    Raises:
        OSError: it cannot be read.
    """
    if _TEMPORARY.fullmatch(name):
        return True
    with open(_open(path, fd, name, os.O_RDONLY), "rb") as f:
        return f.read(len(_MAGIC)) == _MAGIC
