"""Files are written completely or not at all; pipes and devices."""

from __future__ import annotations

import ast
import contextlib
import errno
import os
import re
import select
import socket
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from pathlib import Path

import pytest

from pyggml.files import (
    NotRegular,
    open_regular,
    read_input,
    read_regular,
    replacing,
    working_folder,
    write_whole,
)
from tests.waiting import until


def test_a_file_is_replaced_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "x"
    write_whole(path, b"first")
    with pytest.raises(ZeroDivisionError), replacing(path) as temporary:
        temporary.write_bytes(b"half")
        raise ZeroDivisionError
    assert path.read_bytes() == b"first"
    write_whole(path, b"second")
    assert path.read_bytes() == b"second"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.skipif(os.name == "nt", reason="folders are not cleaned up")
def test_only_abandoned_working_folders_are_deleted(tmp_path: Path) -> None:
    """All folders of the prefix used to be deleted, in /tmp too."""
    theirs = tmp_path / "fetch-of-yesterday"
    theirs.mkdir()
    with working_folder(tmp_path, "fetch-") as used:
        ending = used.name.removeprefix("fetch-")
        abandoned = tmp_path / f"fetch-{'0' * 12}{ending[12:]}"
        abandoned.mkdir()
        other = tmp_path / f"sources-{ending}"
        other.mkdir()
        with working_folder(tmp_path, "fetch-") as second:
            assert {*tmp_path.iterdir()} == {theirs, used, other, second}
    assert {*tmp_path.iterdir()} == {theirs, other}


@pytest.mark.skipif(os.name == "nt", reason="links are a privilege")
def test_a_link_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    link, target = tmp_path / "link", tmp_path / "there" / "x"
    link.symlink_to(target)
    for data in (b"new", b"newer"):
        write_whole(link, data)
        assert link.is_symlink() and target.read_bytes() == data
    target.unlink()
    target.parent.rmdir()
    with pytest.raises(FileNotFoundError, match=r"no such directory to write to: '.*there'"):
        write_whole(link, b"x")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes with names")
def test_pipes_and_devices_are_not_replaced(tmp_path: Path) -> None:
    """``-o /dev/null``, run as root, used to replace the device by a file."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(OSError, match="is a pipe that nobody reads"), replacing(pipe):
        pass
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    with replacing(pipe) as path:
        assert path == pipe
        path.write_bytes(b"x")
    assert os.read(reader, 9) == b"x" and os.read(reader, 9) == b""
    os.close(reader)
    assert pipe.is_fifo() and list(tmp_path.iterdir()) == [pipe]
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    with pytest.raises(OSError, match=os.strerror(errno.ELOOP)), replacing(loop):
        pass


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes with names")
@pytest.mark.timeout(60)
def test_an_input_may_be_a_pipe(tmp_path: Path) -> None:
    pipe, data = tmp_path / "pipe", bytes(1 << 20)
    os.mkfifo(pipe)
    with pytest.raises(NotRegular, match="is a pipe that nobody writes to"):
        read_input(pipe, 1 << 20)
    for limit in (len(data), len(data) - 1):
        # a reader, so that opening the writer does not block
        held = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
        with ThreadPoolExecutor(1) as pool, open(pipe, "wb", buffering=0) as end:
            reads = pool.submit(read_input, pipe, limit)
            end.write(data[: 1 << 10])
            until(lambda fd=held: not select.select([fd], [], [], 0)[0])  # it waits for more
            os.close(held)
            with contextlib.suppress(BrokenPipeError):
                end.write(data[1 << 10 :])
            end.close()
            if limit == len(data):
                assert reads.result() == data
            else:
                with pytest.raises(OSError, match=f"is a pipe of more than {limit} bytes"):
                    reads.result()
    (tmp_path / "x").write_bytes(data)
    assert read_input(tmp_path / "x", 1 << 20) == data
    for name in ("/dev/zero", tmp_path):
        with pytest.raises(NotRegular):
            read_input(name, 1 << 20)


def test_a_regular_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(b"0123456789")
    assert read_regular(path) == read_regular(path, 10) == b"0123456789"
    with pytest.raises(OSError, match="has 10 bytes, at most 9 are read"):
        read_regular(path, 9)
    with open_regular(path, update=True) as file:
        file.seek(3)
        file.write(b"x")
    with open_regular(path) as file:
        assert file.read(5) == b"012x4"
    with pytest.raises(FileNotFoundError):
        open_regular(tmp_path / "none")
    with pytest.raises(OSError, match="null"):
        open_regular("a\0b")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes with names")
@pytest.mark.timeout(60)
def test_special_files_are_not_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # the path of a socket must be short
    os.mkfifo("pipe")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("socket")
        os.symlink("pipe", "link")
        kinds = {
            "pipe": "a pipe", "link": "a pipe", "socket": "a socket", ".": "a directory",
            "/dev/zero": "a device",
        }  # fmt: skip
        for name, kind in kinds.items():
            for read in (open_regular, read_regular):
                with pytest.raises(NotRegular, match=f"is {kind}, not a regular file"):
                    read(name)
    with pytest.raises(NotRegular):
        open_regular("pipe", update=True)


# modules that open files directly: to write, to read files of the program or the system, or again
# (direct.py, a model that GGUFFile has opened)
OPENED = {
    "pyggml/files.py", "pyggml/compiler/jit.py", "pyggml/host.py", "pyggml/cgroup.py",
    "pyggml/compiler/code_cache.py", "pyggml/compiler/sources.py", "pyggml/viz/html.py",
    "pyllama/bench/bench.py", "pyggml/gguf/direct.py",
    "cli/output.py", "cli/tool.py", "cli/differences.py", "pyllama/server/page/files.py",
    "pyllama/cluster/batch_files.py",
}  # fmt: skip
WRITES = ("wb", "w+b")


def test_readers_open_files_in_one_place() -> None:
    root = Path(__file__).parents[2]
    found = set()
    for path in chain.from_iterable((root / x).rglob("*.py") for x in ("pyggml", "pyllama", "cli")):
        text = path.read_text(encoding="utf-8")
        if not re.search(r"\bopen\(|np\.load\(|np\.memmap\(|\.read_text\(|\.read_bytes\(", text):
            continue
        for node in ast.walk(ast.parse(text)):
            if not isinstance(node, ast.Call):
                continue
            name = ast.unparse(node.func)
            writes = any(
                isinstance(x, ast.Constant) and x.value in ("wb", "w+b") for x in node.args
            )
            in_memory = bool(node.args) and ast.unparse(node.args[0]).startswith("BytesIO(")
            by_name = name in ("open", "io.open", "os.open", "np.load", "np.memmap")
            if (by_name and not writes and not in_memory) or name.endswith(
                (".read_text", ".read_bytes")
            ):
                found.add(path.relative_to(root).as_posix())
    assert found <= OPENED
