"""The reader: agreement with gguf.GGUFReader, lazy strings, getters, one line for every fault."""

from __future__ import annotations

import os
import re
import struct
import subprocess
import sys
import time
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from pyggml.dtype import GGMLType, row_size
from pyggml.errors import AllocError
from pyggml.gguf import GGUFError, GGUFFile, GGUFStrings, ValueType, limits, mapped, write_gguf
from tests.pyggml.gguf.sample import (
    METADATA,
    demo_model,
    header,
    kv,
    numbers,
    string,
    tensor,
    tensors,
    write_sample,
)


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_sample(tmp_path_factory.mktemp("gguf") / "sample.gguf")


def put(tmp_path: Path, content: bytes) -> Path:
    path = tmp_path / "x.gguf"
    path.write_bytes(content)
    return path


# --- agreement with the gguf package --------------------------------------------------------------


@pytest.mark.parametrize("mmap", [True, False])
def test_agrees_with_the_gguf_package(sample: Path, mmap: bool) -> None:
    import gguf

    oracle = gguf.GGUFReader(sample)
    with GGUFFile(sample, mmap=mmap) as f:
        theirs = {k: v for k, v in oracle.fields.items() if not k.startswith("GGUF.")}
        assert list(f.metadata) == list(theirs)
        for key, field in theirs.items():
            ours = f.metadata[key]
            assert int(f.value_types[key]) == int(field.types[0])
            if isinstance(ours, np.ndarray | GGUFStrings):
                assert ours.tolist() == field.contents(), key
            else:
                assert ours == field.contents() and type(ours) is type(field.contents()), key
        assert list(f.tensors) == [t.name for t in oracle.tensors]
        for t in oracle.tensors:
            info = f.tensors[t.name]
            assert info.ne[: info.n_dims] == tuple(int(n) for n in t.shape)
            assert set(info.ne[info.n_dims :]) <= {1}
            assert info.type == int(t.tensor_type)
            assert (info.offset, info.nbytes) == (t.data_offset, t.n_bytes)
            assert f.tensor_bytes(t.name).tobytes() == t.data.tobytes()
        assert (f.data_offset, f.alignment, f.version) == (oracle.data_offset, 32, 3)
        assert f.parts[0].data.tobytes() == sample.read_bytes()


def test_exact_types_survive_a_copy(sample: Path, tmp_path: Path) -> None:
    with GGUFFile(sample) as f:
        raw = {n: (f.tensor_bytes(n), t.type, t.ne[: t.n_dims]) for n, t in f.tensors.items()}
        write_gguf(tmp_path / "copy.gguf", f.typed_metadata(), raw)
    assert (tmp_path / "copy.gguf").read_bytes() == sample.read_bytes()


def test_version_2_and_alignment(tmp_path: Path) -> None:
    body = kv("general.alignment", 4, struct.pack("<I", 64)) + tensor("t", (3,), 0, 0)
    data = header(1, 1, version=2) + body
    data = data.ljust(-(-len(data) // 64) * 64, b"\0") + np.float32([1, 2, 3]).tobytes()
    with GGUFFile.open(put(tmp_path, data)) as f:
        assert (f.version, f.alignment, f.data_offset % 64) == (2, 64, 0)
        assert f.tensor_bytes("t").view(np.float32).tolist() == [1, 2, 3]


def test_every_tensor_type_with_its_size(tmp_path: Path) -> None:
    content, offset = b"", 0
    for t in GGMLType:
        content += tensor(t.name, (t.block_size, 2), t, offset)
        offset += -(-row_size(t, t.block_size) * 2 // 32) * 32
    content = header(len(GGMLType), 0) + content
    content = content.ljust(-(-len(content) // 32) * 32 + offset, b"\0")
    with GGUFFile(put(tmp_path, content)) as f:
        assert [i.nbytes for i in f.tensors.values()] == [2 * t.type_size for t in GGMLType]


def test_empty_tensors_scalars_and_no_tensors(tmp_path: Path) -> None:
    body = tensor("s", (), 24, 0) + tensor("z", (0, 7), 0, 32) + tensor("y", (32, 0), 2, 32)
    data = header(3, 0) + body
    data = data.ljust(-(-len(data) // 32) * 32, b"\0") + b"\x05"  # ends before the padding
    with GGUFFile(put(tmp_path, data)) as f:
        assert f.tensors["s"].ne == (1, 1, 1, 1) and f.tensors["s"].n_dims == 0
        assert f.tensor_bytes("s").tolist() == [5]
        assert f.tensors["z"].ne == (0, 7, 1, 1) and f.tensor_bytes("z").size == 0
    with GGUFFile(put(tmp_path, header(0, 0)), mmap=False) as f:
        assert not f.metadata and not f.tensors


# --- the object -----------------------------------------------------------------------------------


def test_powerinfers_magic(sample: Path, tmp_path: Path) -> None:
    path = tmp_path / "x.powerinfer.gguf"
    path.write_bytes(b"PWRI" + sample.read_bytes()[4:])
    with GGUFFile(path) as theirs, GGUFFile(sample) as ours:
        assert (theirs.magic, ours.magic) == (b"PWRI", b"GGUF")
        assert theirs.tensors == ours.tensors and theirs.metadata.keys() == ours.metadata.keys()


def test_views_are_read_only_and_outlive_close(sample: Path) -> None:
    f = GGUFFile(sample)
    view, tokens = f.tensor_bytes("weight"), f.get_strings("tokens")
    ids = f.get_numbers("ids.i32")
    assert np.shares_memory(view, f.parts[0].data)
    for array in (view, f.parts[0].data, ids):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 1
    f.close()
    f.close()
    assert view.size == f.tensors["weight"].nbytes and view.sum() >= 0
    assert tokens[0] == "a" and ids.tolist() == [-1, 2]
    with pytest.raises(GGUFError, match="closed"):
        f.tensor_bytes("weight")
    with pytest.raises(TypeError):
        f.metadata["x"] = 1  # type: ignore[index]


def test_unknown_tensor_is_named(sample: Path) -> None:
    with GGUFFile(sample) as f, pytest.raises(GGUFError, match="no tensor 'nope' among its"):
        f.tensor_bytes("nope")
    assert "metadata entries" in repr(f)


def test_strings_are_a_sequence(sample: Path) -> None:
    with GGUFFile(sample) as f:
        tokens = f.get_strings("tokens")
    wanted = METADATA["tokens"]
    assert len(tokens) == len(wanted) and list(tokens) == tokens.tolist() == wanted
    assert (tokens[-1], tokens[1:3], tokens[::-1]) == (wanted[-1], wanted[1:3], wanted[::-1])
    assert tokens.raw(2) == wanted[2].encode() and wanted[2] in tokens
    assert repr(tokens) == f"<GGUFStrings of {len(wanted)}>"
    for index in (len(wanted), -len(wanted) - 1):
        with pytest.raises(IndexError):
            tokens[index]


def test_bytes_that_are_not_utf8_survive(tmp_path: Path) -> None:
    values = string(b"ok") + string(b"\xff\xfe") + string("é".encode()[:1])
    body = kv("s", 8, string(b"\xc3(")) + kv("a", 9, struct.pack("<IQ", 8, 3) + values)
    with GGUFFile(put(tmp_path, header(0, 2) + body)) as f:
        assert f.get_str("s").encode("utf-8", "surrogateescape") == b"\xc3("
        tokens = f.get_strings("a")
    raw = [b"ok", b"\xff\xfe", b"\xc3"]
    assert [t.encode("utf-8", "surrogateescape") for t in tokens.tolist()] == raw
    assert [tokens.raw(i) for i in range(3)] == raw


# --- typed getters --------------------------------------------------------------------------------


def test_getters(sample: Path) -> None:
    with GGUFFile(sample) as f:
        assert f.get_str("general.architecture") == "llama"
        assert f.get_int("u16") == 65_535
        assert f.get_float("f64") == 1e300
        assert f.get_float("u16") == 65_535.0 and type(f.get_float("u16")) is float
        assert f.get_bool("yes") is True
        assert f.get_array("tokens")[0] == "a"
        assert f.get_numbers("ids.i32").dtype == np.int32
        assert f.get_int("none", 7) == 7
        assert f.get_str("none", None) is None
        assert f.get_float("none", None) is None


@pytest.mark.parametrize(
    ("getter", "key", "message"),
    [
        ("get_str", "u16", "'u16' is UINT16 65535, expected a string"),
        ("get_int", "yes", "'yes' is BOOL True, expected an integer"),
        ("get_int", "f64", "'f64' is FLOAT64 1e\\+300, expected an integer"),
        ("get_float", "yes", "'yes' is BOOL True, expected a float"),
        ("get_bool", "u16", "expected a bool"),
        ("get_array", "u16", "expected an array"),
        ("get_numbers", "tokens", "'tokens' is an array of 6 strings, expected an array of num"),
        ("get_strings", "ids.i32", "'ids.i32' is an array of 2 int32, expected an array of str"),
        ("get_int", "none", "metadata key 'none' is missing"),
    ],
)
def test_getters_name_key_got_and_wanted(sample: Path, getter: str, key: str, message: str) -> None:
    with GGUFFile(sample) as f, pytest.raises(GGUFError, match=message):
        getattr(f, getter)(key)


# --- hostile and damaged files --------------------------------------------------------------------

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
    "too many entries": (header(0, 70_000) + bytes(1 << 20), "most this reader takes is 65536"),
    "too many tensors": (header(70_000, 0) + bytes(1 << 21), "most this reader takes is 65536"),
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
    "bool 2": (header(0, 1) + kv("a", 7, b"\2"), "at byte 37: 'a' holds the bool 2"),
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
    "later type": (tensors(tensor("t", (32,), 41, 0)), "type 41, Q1_0, which is not supported yet"),
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
    "PowerInfer cut": (b"PWRI" + header(0, 0)[4:10], "the header"),
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


@pytest.mark.parametrize("case", CASES)
def test_bad_file_ends_in_one_line(tmp_path: Path, case: str) -> None:
    content, message = CASES[case]
    path = put(tmp_path, content)
    tracemalloc.start()
    start = time.perf_counter()
    with pytest.raises(GGUFError) as caught:
        GGUFFile(path)
    seconds, (_, peak) = time.perf_counter() - start, tracemalloc.get_traced_memory()
    tracemalloc.stop()
    line = str(caught.value)
    assert re.search(message, line), line
    assert line.startswith(str(path)) and "\n" not in line and len(line) < len(str(path)) + 400
    assert seconds < 2 and peak < (1 << 20) + 2 * len(content)


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
    with pytest.raises(GGUFError, match="past the first 100 bytes"):
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


def test_failures_of_the_system(sample: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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


# --- promises about cost --------------------------------------------------------------------------


def test_import_is_light() -> None:
    code = "import sys, pyggml.gguf; print(sorted({'numba', 'gguf', 'tqdm'} & set(sys.modules)))"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"


@pytest.mark.model
def test_demo_model() -> None:
    with GGUFFile(demo_model()) as f:
        assert f.get_str("general.architecture") == "llama"
        tokens = f.get_strings("tokenizer.ggml.tokens").tolist()
        assert len(tokens) == 49_152 and tokens[1] == "<|im_start|>"
        assert len(f.get_strings("tokenizer.ggml.merges")) == 48_900
        assert f.get_numbers("tokenizer.ggml.token_type").shape == (49_152,)
        last = list(f.tensors.values())[-1]
        assert last.offset + last.nbytes <= f.parts[0].data.size and len(f.tensors) == 272
        assert f.value_types["llama.block_count"] is ValueType.UINT32


def test_chunks_are_whole_blocks_and_all_of_it(sample: Path) -> None:
    for mmap in (True, False):
        with GGUFFile(sample, mmap=mmap) as f:
            for name, info in f.tensors.items():
                pieces = [piece.tobytes() for piece in f.chunks(name, 100)]
                assert b"".join(pieces) == f.tensor_bytes(name).tobytes()
                assert all(len(p) <= max(100, info.type.type_size) for p in pieces)
                assert not any(len(p) % info.type.type_size for p in pieces)


# --- overrides ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "value"),
    [("u8", 7), ("i8", -1), ("f32", 2), ("f64", 0.5), ("yes", False), ("name", "x"), ("new", 1.5)],
)
def test_overrides(sample: Path, key: str, value: bool | int | float | str) -> None:
    before = sample.read_bytes()
    with GGUFFile(sample) as f:
        f.override({key: value})
        assert f.metadata[key] == value and key in f.value_types
    assert sample.read_bytes() == before


@pytest.mark.parametrize(
    ("key", "value"),
    [
        *[("u8", 256), ("u8", -1), ("i8", 1.0), ("u8", True), ("yes", 1), ("name", 1)],
        *[("new", None), ("tokens", "x"), ("f32", 1e300), ("f32", "x"), ("all.f4", 1.0)],
    ],
)
def test_overrides_of_another_type(sample: Path, key: str, value: bool | int | float | str) -> None:
    with GGUFFile(sample) as f, pytest.raises(GGUFError, match=f"'{key}' .*: it cannot be over"):
        f.override({key: value})
