"""Hostile and damaged files: a one-line error for every fault, in little time and memory."""

from __future__ import annotations

import os
import re
import struct
import tracemalloc
from pathlib import Path

import pytest

from pyggml.errors import AllocError
from pyggml.gguf import GGUFError, GGUFFile, limits, mapped
from tests.pyggml.gguf.sample import header, kv, numbers, put, string, tensor, tensors

T = tensor("t", (4,), 0, 0)
HUGE = struct.pack("<Q", 2**63)
CASES: dict[str, tuple[bytes, str]] = {
    "empty": (b"", r"empty \(0 bytes\)"),
    "two bytes": (b"GG", "the header takes 24 bytes and 2 are left"),
    "header cut": (header(0, 0)[:20], "takes 24 bytes and 20 are left"),
    "version 0": (header(0, 0, version=0), "at byte 4: GGUF version 0 is not supported"),
    "version 1": (header(0, 0, version=1), "version 1 is not .* convert"),
    "version 4": (header(0, 0, version=4), "version 4 is not .*newer"),
    "big endian": (header(0, 0, version=3 << 24), "big endian"),
    "many tensors": (header(2**60, 0), r"claims \d+ tensors, which take at least"),
    "many entries": (header(0, 2**63), r"claims \d+ metadata entries, which take at least"),
    "too many entries": (header(0, 70_000) + bytes(1 << 20), "the limit is 65536"),
    "too many tensors": (header(70_000, 0) + bytes(1 << 21), "the limit is 65536"),
    "key length": (header(0, 1) + HUGE + bytes(9), "at byte 24: the key of metadata entry 0 is 9"),
    "key cut": (header(0, 1) + struct.pack("<Q", 50) + b"abcdef", "takes 50 bytes and 6 are left"),
    "key empty": (header(0, 1) + string(b"") + bytes(12), "is 0 bytes long"),
    "key not UTF-8": (header(0, 1) + kv(b"\xff", 0, b"\0"), "not UTF-8"),
    "key with NUL": (header(0, 1) + kv("a\0b", 0, b"\0"), "NUL"),
    "key twice": (
        header(0, 2) + kv("a", 0, b"\0") * 2,
        "at byte 38: metadata key 'a' occurs twice",
    ),
    "value type": (header(0, 1) + kv("a", 13, bytes(8)), "'a' has unknown value type 13"),
    "value cut": (header(0, 1) + kv("a", 10, b"123"), "the value of 'a' takes 8 bytes and 3 are"),
    "string length": (
        header(0, 1) + kv("a", 8, HUGE),
        "the value of 'a' takes 9223372036854775808",
    ),
    "bool 2": (header(0, 1) + kv("a", 7, b"\2"), "at byte 37: 'a' has the bool 2"),
    "bool array": (header(0, 1) + kv("a", 9, numbers(7, b"\0\1\3\1")), "byte 51: .* the bool 3"),
    "array of arrays": (header(0, 1) + kv("a", 9, numbers(9, b"\0" * 24)), "array of arrays"),
    "element type": (header(0, 1) + kv("a", 9, numbers(99, b"\0")), "unknown element type 99"),
    "array length": (
        header(0, 1) + kv("a", 9, struct.pack("<IQ", 5, 2**62)),
        "takes 18446744073709551616 bytes and 0 are left",
    ),
    "strings count": (
        header(0, 1) + kv("a", 9, struct.pack("<IQ", 8, 2**61)),
        "claims 2305843009213693952 strings in 'a'",
    ),
    "alignment type": (
        header(0, 1) + kv("general.alignment", 5, struct.pack("<I", 32)),
        "is INT32, must be UINT32",
    ),
    **{
        f"alignment {n}": (
            header(0, 1) + kv("general.alignment", 4, struct.pack("<I", n)),
            f"is {n}, must be a power of two from 8",
        )
        for n in (0, 4, 48, 2**32 - 1)
    },
    "tensor name long": (
        header(1, 0) + tensor("n" * 64, (4,), 0, 0),
        "is 64 bytes long, legal are",
    ),
    "tensor name empty": (header(1, 0) + tensor("", (4,), 0, 0), "name of tensor 0 is 0 bytes"),
    "tensor twice": (tensors(T, tensor("t", (4,), 0, 32)), "tensor name 't' occurs twice"),
    "5 dimensions": (tensors(tensor("t", (1,) * 5, 0, 0)), "has 5 dimensions, at most 4"),
    "dims cut": (header(1, 0) + string(b"t") + struct.pack("<I", 4) + bytes(29), "takes 32 bytes"),
    "negative size": (
        tensors(tensor("t", (4, -1), 0, 0)),
        r"sizes \(4, -1\), none may be negative",
    ),
    "overflow": (tensors(tensor("t", (2**32, 2**31), 0, 0)), r"more than 2\*\*63 - 1 elements"),
    "hidden overflow": (tensors(tensor("t", (0, 2**62, 4), 0, 0)), r"more than 2\*\*63 - 1"),
    "removed type": (tensors(tensor("t", (32,), 31, 0)), "type 31, Q4_0_4_4, which ggml removed"),
    "unknown type": (tensors(tensor("t", (32,), 99, 0)), "type 99, which does not exist"),
    "part of a block": (tensors(tensor("t", (33,), 2, 0)), "rows of 33 elements.* multiple of 32"),
    "scalar block": (tensors(tensor("t", (), 2, 0)), "rows of 1 elements"),
    "first offset": (tensors(tensor("t", (4,), 0, 32)), "has offset 32 in the data, expected 0"),
    "gap": (tensors(T, tensor("u", (4,), 0, 64)), "has offset 64 in the data, expected 32"),
    "overlap": (tensors(T, tensor("u", (4,), 0, 16)), "has offset 16 in the data, expected 32"),
    "data cut": (
        tensors(tensor("t", (1000,), 0, 0)),
        r"has \d+ bytes, its 1 tensors end at byte \d+ .*'t'.*download is probably incomplete",
    ),
    "huge tensor": (tensors(tensor("t", (2**60,), 0, 0)), "bytes are missing"),
    "PowerInfer, cut": (b"PWRI" + header(0, 0)[4:20], "takes 24 bytes and 20 are left"),
    "PowerInfer, two bytes": (b"PW", "the header takes 24 bytes and 2 are left"),
    "old ggml": (b"lmgg" + bytes(40), "older than GGUF"),
    "ggjt": (b"tjgg" + bytes(40), "older than GGUF"),
    "accidental ggml": (b"GGML" + bytes(40), "older than GGUF"),
    "zip": (b"PK\x03\x04" + bytes(40), "zip archive or PyTorch"),
    "pickle": (b"\x80\x02}q" + bytes(40), "pickle"),
    "safetensors": (struct.pack("<Q", 90) + b'{"__metadata__"', "safetensors"),
    "text": (b"hello\n" * 100, "a text file"),
    "LFS": (b"version https://git-lfs.github.com/spec/v1\n", "git lfs pull"),
    "web page": (b"<!DOCTYPE html><html>", "web page"),
    "zeros": (bytes(4096), "all zeros"),
    "noise": (bytes(range(128, 192)), "some other kind of file"),
}


@pytest.mark.timeout(60)
@pytest.mark.parametrize("case", CASES)
def test_bad_file_ends_in_one_line(tmp_path: Path, case: str) -> None:
    content, message = CASES[case]
    path = put(tmp_path, content)
    tracemalloc.start()
    with pytest.raises(GGUFError) as caught:
        GGUFFile(path)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    line = str(caught.value)
    assert re.search(message, line), line
    assert line.startswith(str(path)) and "\n" not in line and len(line) < len(str(path)) + 400
    assert peak < (1 << 20) + 2 * len(content)


@pytest.mark.parametrize("n", [1, 2, 5])
@pytest.mark.parametrize("length", [2**64 - 1, 2**63 - 1, 2**40, 60, 9, 8, 5, 3])
def test_bad_string_in_an_array_is_named(tmp_path: Path, n: int, length: int) -> None:
    for i in range(n):
        values = [string(b"ab")] * n
        values[i] = struct.pack("<Q", length) + b"ab"
        body = header(0, 1) + kv("a", 9, struct.pack("<IQ", 8, n) + b"".join(values))
        with pytest.raises(GGUFError, match=rf"string \d of {n} in 'a' takes") as caught:
            GGUFFile(put(tmp_path, body))
        if length > 10 * n:
            assert f"string {i} of {n}" in str(caught.value)


def test_header_beyond_the_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MAX_HEADER_BYTES", 100)
    body = header(0, 1) + kv("a", 8, string(b"x" * 200)) + bytes(99)
    with pytest.raises(GGUFError, match="after the first 100 bytes"):
        GGUFFile(put(tmp_path, body))


def test_missing_directory_and_special_files(tmp_path: Path) -> None:
    for path, message in (
        (tmp_path / "no.gguf", "no such file"),
        (tmp_path, "is a directory"),
        ("a\0b", "cannot be opened"),
        (tmp_path / ("x" * 300), "cannot be opened"),
    ):
        with pytest.raises(GGUFError, match=message):
            GGUFFile(path)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes here")
def test_a_pipe_does_not_block(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(GGUFError, match="not a regular file"):
        GGUFFile(tmp_path / "pipe")


def test_failures_of_the_system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sample = put(tmp_path, header(0, 0))

    def fail_with(error: BaseException) -> None:
        def fail(*_: object, **__: object) -> None:
            raise error

        patch.setattr(mapped, "MemoryMap", fail)
        patch.setattr(mapped.np, "empty", fail)

    with monkeypatch.context() as patch:
        fail_with(OSError(19, "No such device"))
        with pytest.raises(GGUFError, match=r"No such device; .*mmap=False"):
            GGUFFile(sample)
        fail_with(MemoryError())
        with pytest.raises(AllocError, match=r"no memory for the file's \d+ bytes"):
            GGUFFile(sample, mmap=False)
        fail_with(PermissionError(13, "Permission denied"))
        with pytest.raises(GGUFError, match="no permission"):
            GGUFFile(sample)
