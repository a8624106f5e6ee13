"""The directory of compiled code: checked entries; no other user can change it."""

from __future__ import annotations

import errno
import os
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from pyggml import env
from pyggml.compiler import code_cache
from pyggml.compiler.code_cache import CodeCache

from ...tiers import some

ROOT = Path(__file__).parents[3]
posix = pytest.mark.skipif(not hasattr(os, "getuid"), reason="permission bits are POSIX's")
Capture = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def say_again() -> None:
    """Messages printed once in a process are printed once in each test."""
    code_cache._say_once.cache_clear()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "cache" / "code" / "0123"


def test_entries_are_kept_and_replaced(path: Path, capsys: Capture) -> None:
    ours, theirs = CodeCache(path), CodeCache(path)
    assert ours.read("a") is None
    ours.write("a", b"code of a")
    theirs.write("b", b"code of b")
    assert (ours.read("b"), theirs.read("a")) == (b"code of b", b"code of a")
    theirs.write("a", b"")
    assert ours.read("a") == b"" and sorted(os.listdir(path)) == ["a", "b"]
    assert capsys.readouterr().err == ""
    if hasattr(os, "getuid"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o700
        assert stat.S_IMODE((path / "a").stat().st_mode) == 0o600


def test_an_entry_is_found_without_being_read(path: Path, tmp_path: Path) -> None:
    cache = CodeCache(path)
    cache.write("a", b"code")
    (path / "link").symlink_to(tmp_path / "elsewhere")
    assert [cache.has(name) for name in ("a", "b", "link")] == [True, False, False]


def test_entries_unused_for_a_month_are_deleted(path: Path) -> None:
    cache = CodeCache(path)
    names = ("used", "recent", "old")
    for name, days in zip(names, (40, 20, 40), strict=True):
        cache.write(name, name.encode())
        then = time.time() - days * 86400
        os.utime(path / name, (then, then))
    cache = CodeCache(path)
    assert cache.read("used") == b"used"
    cache.write("new", b"")
    assert sorted(os.listdir(path)) == ["new", "recent", "used"]


def _flip(data: bytes, at: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


DAMAGE = {
    "empty": lambda data: b"",
    "cut": lambda data: data[:-1],
    "cut to the header": lambda data: data[:46],
    "longer": lambda data: data + b"\0",
    "a bit of the content": lambda data: _flip(data, 60),
    "a bit of the checksum": lambda data: _flip(data, 20),
    "a bit of the head": lambda data: _flip(data, 0),
    "a page of zeros": lambda data: bytes(len(data)),
    "another format": lambda data: b"\x80\x05N.",
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_entry_is_deleted_with_one_line(damage: str, path: Path, capsys: Capture) -> None:
    cache = CodeCache(path)
    cache.write("a", b"code of a" * 100)
    place = path / "a"
    place.write_bytes(DAMAGE[damage](place.read_bytes()))
    assert cache.read("a") is None and not place.exists()
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and f"{place} is damaged" in error
    assert cache.read("a") is None and capsys.readouterr().err == ""
    cache.write("a", b"new code")
    assert cache.read("a") == b"new code"


# --- permissions ---


def _refused(path: Path, capsys: Capture, why: str) -> None:
    cache = CodeCache(path)
    cache.write("b", b"ours")
    assert not (cache.readable or cache.writable or (path / "b").exists())
    assert cache.read("a") is None
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and why in error and "compiling in memory" in error


@posix
@pytest.mark.parametrize("mode", [0o777, 0o1777, 0o720, 0o702])
def test_a_directory_that_others_can_write_is_not_used(
    mode: int, path: Path, capsys: Capture
) -> None:
    """Entries are unpickled, so others could run code."""
    CodeCache(path).write("a", b"theirs")
    path.chmod(mode)
    _refused(path, capsys, f"{path} can be written by others")


@posix
@pytest.mark.parametrize("above", [0, 1, 2])
def test_a_directory_that_others_can_replace_is_not_used(
    above: int, path: Path, capsys: Capture
) -> None:
    CodeCache(path).write("a", b"theirs")
    parent = path.parents[above]
    parent.chmod(0o777)
    _refused(path, capsys, f"{parent} can be written by others")
    parent.chmod(0o1777)  # as /tmp: others cannot rename our files
    assert CodeCache(path).read("a") == b"theirs"


@posix
def test_a_parent_writable_by_a_private_group_is_accepted(
    path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    CodeCache(path).write("a", b"ours")
    path.parent.chmod(0o770)
    monkeypatch.setattr(code_cache, "_is_private_group", lambda gid: True)
    assert CodeCache(path).read("a") == b"ours"
    monkeypatch.setattr(code_cache, "_is_private_group", lambda gid: False)
    _refused(path, capsys, f"{path.parent} can be written by others")


@posix
def test_a_directory_of_another_user_is_not_used(
    path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    CodeCache(path)
    monkeypatch.setattr(os, "getuid", lambda: 12345)
    _refused(path, capsys, "belongs to user")


@posix
def test_a_directory_that_replaces_an_open_cache_is_not_read(path: Path, tmp_path: Path) -> None:
    cache = CodeCache(path)
    cache.write("a", b"ours")
    path.rename(tmp_path / "moved")
    CodeCache(path).write("a", b"theirs")
    assert cache.read("a") == b"ours"
    cache.write("b", b"ours")
    assert (tmp_path / "moved" / "b").exists() and not (path / "b").exists()


@posix
def test_links_are_not_followed_inside(path: Path, tmp_path: Path, capsys: Capture) -> None:
    elsewhere = CodeCache(tmp_path / "elsewhere")
    elsewhere.write("a", b"theirs")
    cache = CodeCache(path)
    (path / "a").symlink_to(tmp_path / "elsewhere" / "a")
    assert cache.read("a") is None
    linked = tmp_path / "linked"
    linked.symlink_to(path)
    cache.write("b", b"ours")
    assert CodeCache(linked).read("b") == b"ours"  # a link in the user's own path is fine


# --- disks ---


def test_a_directory_that_cannot_be_made(tmp_path: Path, capsys: Capture) -> None:
    (tmp_path / "file").write_text("a file is where the directory should be")
    _refused(tmp_path / "file" / "code", capsys, str(tmp_path / "file"))


@pytest.mark.parametrize("fails", ["open", "rename"])
def test_a_full_disk_keeps_existing_entries(
    fails: str, path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    cache = CodeCache(path)
    cache.write("a", b"code of a")
    real = cache._open

    def full(*args: Any) -> Any:
        if fails == "open" and args[1] == os.O_RDONLY:
            return real(*args)
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(cache, f"_{fails}", full)
    for _ in range(2):
        cache.write("b", b"code of b")
    assert cache.readable and not cache.writable and cache.read("a") == b"code of a"
    assert os.listdir(path) == ["a"]
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and "No space left" in error and "compiling in memory" in error


KILLED = """
import os, sys
from pathlib import Path
from pyggml.compiler.code_cache import CodeCache
cache = CodeCache(Path(sys.argv[1]))
cache._rename = lambda *names: (print("writing", flush=True), sys.stdin.read())
cache.write("a", b"code of a")
"""


@posix
def test_temporary_files_of_dead_processes_are_deleted(path: Path) -> None:
    command = [sys.executable, "-P", "-c", KILLED, str(path)]
    given = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(
        command, env=given, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None and process.stdout.readline() == "writing\n"
        CodeCache(path)
        assert len(os.listdir(path)) == 1  # the process may still write it
        process.send_signal(signal.SIGKILL)
    CodeCache(path)
    assert os.listdir(path) == []


CLAIMS = """
import sys
from pathlib import Path
from pyggml.compiler.code_cache import CodeCache
cache = CodeCache(Path(sys.argv[1]))
with cache.claim("a"):
    print("claimed", flush=True)
    sys.stdin.readline()
    cache.write("a", b"theirs")
print("ended", flush=True)
sys.stdin.read()
"""


@posix
def test_an_entry_that_another_process_makes_is_waited_for(path: Path) -> None:
    cache = CodeCache(path)
    given = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(
        [sys.executable, "-P", "-c", CLAIMS, str(path)], env=given, text=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    ) as process:  # fmt: skip
        assert process.stdin is not None and process.stdout is not None
        assert process.stdout.readline() == "claimed\n"
        assert cache.is_claimed("a") and not cache.is_claimed("b")
        process.stdin.write("go on\n")
        process.stdin.flush()
        with cache.claim("a"), cache.claim("b"):
            assert cache.read("a") == b"theirs"
        assert process.stdout.readline() == "ended\n" and not cache.is_claimed("a")


@posix
def test_a_claim_ends_with_its_process(path: Path) -> None:
    given = {**os.environ, "PYTHONPATH": str(ROOT)}
    cache = CodeCache(path)
    with subprocess.Popen(
        [sys.executable, "-P", "-c", CLAIMS, str(path)], env=given, text=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    ) as process:  # fmt: skip
        assert process.stdout is not None and process.stdout.readline() == "claimed\n"
        assert cache.is_claimed("a")
        process.send_signal(signal.SIGKILL)
    assert not cache.is_claimed("a")


@posix
def test_no_process_is_waited_for_long(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CodeCache, "_try_claim", lambda self, name: False)
    monkeypatch.setattr(code_cache, "_CLAIM_S", 0)
    with CodeCache(path).claim("a"):
        pass


@posix
@pytest.mark.parametrize("error", [errno.ENOLCK, errno.EOPNOTSUPP, errno.EIO])
def test_files_that_cannot_be_locked(
    error: int, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*args: Any) -> None:
        raise OSError(error, os.strerror(error))

    monkeypatch.setattr("fcntl.lockf", fail)
    cache = CodeCache(path)
    with cache.claim("a"):
        assert not cache.is_claimed("a")


def _make_old(path: Path, days: int) -> None:
    then = time.time() - days * 86400
    os.utime(path, (then, then), follow_symlinks=False)


def test_old_neighbours_are_pruned(path: Path) -> None:
    CodeCache(path)
    for name, days in (("old", 31), ("recent", 29)):
        cache = CodeCache(path.parent / name)
        cache.write("a", b"code of a")
        _make_old(cache.path / "a", days)
        _make_old(cache.path, days)
    code_cache.prune(path.parent, path)
    assert sorted(p.name for p in path.parent.iterdir()) == [path.name, "recent"]


THEIRS = ("thesis.nbc", "notes.tmp", "empty", "folder/inside", "pipe")


def _write_theirs(folder: Path) -> set[Path]:
    """Files that are no entries, all of them old."""
    for name in THEIRS:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        if name == "pipe" and hasattr(os, "mkfifo"):
            os.mkfifo(folder / name)
        else:
            (folder / name).write_bytes(b"" if name == "empty" else b"theirs")
    found = {folder / name for name in (*THEIRS, "folder")}
    for path in (*found, folder):
        _make_old(path, 400)
    return found


def test_files_that_are_no_entries_are_never_deleted(path: Path, tmp_path: Path) -> None:
    """Pruning used to delete every old folder beside the cache, whatever was in it."""
    old = CodeCache(path.parent / "old")
    old.write("a", b"code of a")
    _make_old(old.path / "a", 31)
    theirs = set.union(*map(_write_theirs, (path, old.path, path.parent / "photos")))
    elsewhere = _write_theirs(tmp_path / "elsewhere")
    (path.parent / "link").symlink_to(tmp_path / "elsewhere")
    _make_old(path.parent / "link", 400)
    _make_old(old.path, 31)
    CodeCache(path).write("b", b"code of b")  # deletes old entries and old temporary files
    code_cache.prune(path.parent, path)
    kept = {*path.parent.rglob("*")} - {path, path / "b", path.parent / "link"}
    assert kept == theirs | {old.path, path.parent / "photos"}
    code_cache.clear(path.parent)
    assert {*path.parent.rglob("*")} >= theirs and not (path / "b").exists()
    assert {*(tmp_path / "elsewhere").rglob("*")} == elsewhere


def test_a_cache_is_cleared(path: Path) -> None:
    CodeCache(path).write("a", b"code of a")
    with CodeCache(path).claim("b"):
        pass
    CodeCache(path.parent / "cuda").write("b", b"code of b")
    (path / f"a.{16 * '0'}.tmp").touch()
    code_cache.clear(path.parent)
    assert not path.parent.exists()
    code_cache.clear(path.parent)


@pytest.mark.long
def test_a_given_folder_stays_the_users(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All of a process that compiles a kernel, in a folder of old files."""
    folder = tmp_path / "home"
    theirs = _write_theirs(folder / "cuda") | _write_theirs(folder / "documents")
    assert run(folder) == (COMPILED, "")
    monkeypatch.setenv("PYGGML_CACHE_DIR", str(folder))
    ours = {*folder.rglob("*")} - theirs - {folder / "cuda", folder / "documents"}
    assert all(path.is_relative_to(env.code_dir()) for path in ours)
    assert theirs <= {*folder.rglob("*")}


# --- a program that needs one kernel ---

PROGRAM = """
import sys
from pyggml.compiler import jit
from pyggml.backend.cpu.kernels.elementwise.unary import element_kernel
scale_f32 = element_kernel("scale", 0)
compiled = []
jit.on_compile = compiled.append
assert scale_f32.address
print(compiled)
"""
FULL_DISK = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (99, 99))"
COMPILED, FOUND = "['scale_f32']\n", "[]\n"


def run(cache: Path, before: str = "") -> tuple[str, str]:
    """Output and errors of a process that looks for the kernel in ``cache``."""
    temporary = cache.parent / "tmp"
    temporary.mkdir(exist_ok=True)
    given = {"PYTHONPATH": str(ROOT), "PYGGML_CACHE_DIR": str(cache), "TMPDIR": str(temporary)}
    command = [sys.executable, "-P", "-c", before + PROGRAM]
    done = subprocess.run(command, env={**os.environ, **given}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert not any(temporary.iterdir())  # no code is left in temporary files
    return done.stdout, done.stderr


@pytest.mark.long
def test_damaged_code_is_compiled_again(tmp_path: Path) -> None:
    """A flipped bit could crash in machine code, or have any effect in a pickle."""
    cache = tmp_path / "code"
    assert run(cache) == (COMPILED, "") and run(cache) == (FOUND, "")
    (entry,) = tmp_path.rglob("*.nbc")
    data = entry.read_bytes()
    for place in (len(data) // 6, len(data) - 1):
        entry.write_bytes(_flip(data, place))
        output, error = run(cache)
        assert output == COMPILED and error.count("\n") == 1 and str(entry) in error
    assert run(cache) == (FOUND, "")


@posix
@pytest.mark.parametrize("full", some([False, True], 1))
def test_a_program_runs_without_a_usable_cache(tmp_path: Path, full: bool) -> None:
    """On a full disk, and in a directory where others could replace the code."""
    cache = tmp_path / "above" / "code"
    cache.parent.mkdir()
    before, why = FULL_DISK, "File too large"
    if not full:
        assert run(cache) == (COMPILED, "")
        before, why = "", f"{cache.parent} can be written by others"
        cache.parent.chmod(0o777)
    output, error = run(cache, before)
    assert output == COMPILED
    assert error.count("\n") == 1 and why in error and "compiling in memory" in error
