"""Files that appear whole or not at all."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pyggml.files import replacing, write_whole


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


@pytest.mark.skipif(os.name == "nt", reason="links are a privilege")
def test_a_link_stays_one(tmp_path: Path) -> None:
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
def test_what_is_no_file_is_not_replaced(tmp_path: Path) -> None:
    """``-o /dev/null``, as root, made a file of the device."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with replacing(pipe) as path:
        assert path == pipe
    assert pipe.is_fifo() and list(tmp_path.iterdir()) == [pipe]
