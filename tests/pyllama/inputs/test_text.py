"""Texts of users: byte order marks and line ends."""

from __future__ import annotations

import codecs
from pathlib import Path

import pytest

from pyllama.inputs.text import decode_text, read_text, utf8

TEXT = "é\r\nb\rc\n"
FILES = {
    "utf-8": TEXT.encode(),
    "utf-8 with a mark": codecs.BOM_UTF8 + TEXT.encode(),
    "utf-16-le": codecs.BOM_UTF16_LE + TEXT.encode("utf-16-le"),  # PowerShell's ">"
    "utf-16-be": codecs.BOM_UTF16_BE + TEXT.encode("utf-16-be"),
}


@pytest.mark.parametrize("data", FILES.values(), ids=FILES)
def test_a_mark_is_not_part_of_the_text(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "x").write_bytes(data)
    assert read_text(tmp_path / "x", 100) == "é\nb\nc\n"
    assert decode_text(data) == TEXT and utf8(data) == TEXT.encode()


def test_only_one_mark_at_the_beginning_is_removed() -> None:
    mark = codecs.BOM_UTF8
    assert decode_text(mark + b"a" + mark + b"b") == "a\ufeffb"
    assert decode_text(mark + mark) == "\ufeff"
    assert decode_text(mark) == decode_text(b"") == ""


def test_invalid_bytes(tmp_path: Path) -> None:
    assert decode_text(b"a\xffb") == "a\ufffdb" and utf8(b"a\xffb") == b"a\xffb"
    with pytest.raises(UnicodeDecodeError):
        decode_text(b"a\xffb", "strict")
    (tmp_path / "x").write_bytes(b"x" * 11)
    with pytest.raises(OSError, match="at most 10 are read"):
        read_text(tmp_path / "x", 10)
