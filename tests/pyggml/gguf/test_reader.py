"""The reader: agreement with gguf.GGUFReader, lazy strings, getters, overrides."""

from __future__ import annotations

import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from pyggml.dtype import GGMLType, row_size
from pyggml.gguf import GGUFError, GGUFFile, GGUFStrings, ValueType, write_gguf
from tests.pyggml.gguf.sample import (
    METADATA,
    demo_model,
    header,
    kv,
    put,
    string,
    tensor,
    write_sample,
)


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_sample(tmp_path_factory.mktemp("gguf") / "sample.gguf")


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
    with GGUFFile(put(tmp_path, data)) as f:
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


@pytest.mark.parametrize(
    "raw",
    [
        [],
        [b""],
        [b"a"],
        [b"a", b"", b"b"],
        [b"", b"a"],
        [b"a\0", b"\0b", b"c"],
        [b"\0" * 7, b"a" * 7],
        [b"a" + b"\0" * 8, b"b", b""],
        [b"\0" * 20],
        [b"x" * 255, b"y"],
        [b"x" * 256, b"y"],
        [b"x" * 70_000, *[b"y"] * 3000],
        [*[b"y"] * 3000, b"\xff"],
        ["\u0120und".encode(), "\U0001f600".encode(), b" "] * 500,
    ],
)
def test_strings_of_any_length(tmp_path: Path, raw: list[bytes]) -> None:
    values = b"".join(map(string, raw))
    body = kv("a", 9, struct.pack("<IQ", 8, len(raw)) + values) + kv("s", 8, string(b"behind"))
    with GGUFFile(put(tmp_path, header(0, 2) + body)) as f:
        tokens = f.get_strings("a")
        assert f.get_str("s") == "behind"
    assert [tokens.raw(i) for i in range(len(tokens))] == raw
    assert [t.encode("utf-8", "surrogateescape") for t in tokens.tolist()] == raw
    assert tokens.tolist() == list(tokens)


# --- typed getters --------------------------------------------------------------------------------


def test_getters(sample: Path) -> None:
    with GGUFFile(sample) as f:
        assert f.get_str("general.architecture") == "llama"
        assert f.get_int("u16") == 65_535
        assert f.get_float("f64") == 1e300
        assert f.get_float("u16") == 65_535.0 and type(f.get_float("u16")) is float
        assert f.get_bool("yes") is True
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
        ("get_numbers", "tokens", "'tokens' is an array of 6 strings, expected an array of num"),
        ("get_strings", "ids.i32", "'ids.i32' is an array of 2 int32, expected an array of str"),
        ("get_int", "none", "metadata key 'none' is missing"),
    ],
)
def test_getters_name_key_got_and_wanted(sample: Path, getter: str, key: str, message: str) -> None:
    with GGUFFile(sample) as f, pytest.raises(GGUFError, match=message):
        getattr(f, getter)(key)


# --- cost -----------------------------------------------------------------------------------------


def test_import_is_light() -> None:
    code = "import sys, pyggml.gguf; print(sorted({'numba', 'gguf', 'tqdm'} & set(sys.modules)))"
    out = subprocess.run(
        [sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True
    )
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
                row = row_size(info.type, info.ne[0])
                rows = [piece.tobytes() for piece in f.chunks(name, 100, unit=row)]
                assert b"".join(rows) == b"".join(pieces)
                assert not any(len(p) % row or len(p) > max(100, row) for p in rows)


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
    ("value", "type"),
    [
        *[(7, "UINT32"), (-7, "INT32"), (1 << 32, "INT64"), (1 << 63, "UINT64")],
        *[(0.1, "FLOAT32"), (1e300, "FLOAT64"), (float("nan"), "FLOAT32"), (True, "BOOL")],
    ],
)
def test_new_keys_have_the_types_that_llama_cpp_reads(
    sample: Path, value: bool | int | float, type: str
) -> None:
    with GGUFFile(sample) as f:
        f.override({"new": value})
        assert f.value_types["new"].name == type


@pytest.mark.parametrize(
    ("key", "value"),
    [
        *[("u8", 256), ("u8", -1), ("i8", 1.0), ("u8", True), ("yes", 1), ("name", 1)],
        *[("new", None), ("tokens", "x"), ("f32", 1e300), ("f32", "x"), ("all.f4", 1.0)],
        *[("new", 1 << 64), ("new", -1 << 70)],
    ],
)
def test_overrides_of_another_type(sample: Path, key: str, value: bool | int | float | str) -> None:
    with GGUFFile(sample) as f, pytest.raises(GGUFError, match=f"'{key}' .*: it cannot be over"):
        f.override({key: value})
