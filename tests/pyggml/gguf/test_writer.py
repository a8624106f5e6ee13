"""The writer: its files read back the same, by our reader and by the gguf package's."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from pyggml.dtype import GGMLType
from pyggml.errors import PyggmlError, TypeMismatch
from pyggml.gguf import GGUFError, GGUFFile, GGUFStrings, ValueType, copy_gguf, write_gguf

from .sample import write_sample


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "x.gguf"


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (True, ValueType.BOOL),
        (3, ValueType.UINT32),
        (-3, ValueType.INT32),
        (2**40, ValueType.INT64),
        (2**64 - 1, ValueType.UINT64),
        (0.5, ValueType.FLOAT32),
        (float("inf"), ValueType.FLOAT32),
        (1e300, ValueType.FLOAT64),
        ("text é", ValueType.STRING),
        ("", ValueType.STRING),
        ("\udcff", ValueType.STRING),
        (np.uint16(7), ValueType.UINT16),
        (np.array(7, np.int8), ValueType.INT8),
    ],
)
def test_scalars(path: Path, value: object, kind: ValueType) -> None:
    write_gguf(path, {"k": value}, {})
    with GGUFFile(path) as f:
        assert f.value_types["k"] is kind and f.metadata["k"] == value
        assert f.get_str("general.architecture") == "llama"


@pytest.mark.parametrize(
    ("value", "dtype"),
    [
        ([1, -2], np.int32),
        ((1, 2**31), np.int64),
        ([2**64 - 1], np.uint64),
        ([0.5, float("nan")], np.float32),
        ([True, False], np.bool_),
        (np.arange(3, dtype=np.uint16), np.uint16),
        (np.arange(3, dtype=">i4"), np.int32),
    ],
)
def test_arrays(path: Path, value: object, dtype: type) -> None:
    write_gguf(path, {"k": value}, {})
    with GGUFFile(path) as f:
        got = f.get_numbers("k")
    assert got.dtype == dtype
    np.testing.assert_array_equal(got, np.array(value, dtype))


def test_strings_of_a_file_can_be_written_again(path: Path) -> None:
    tokens = ["a", b"\xff", "日", ""]
    for _ in range(2):
        write_gguf(path, {"k": tokens}, {})
        with GGUFFile(path) as f:
            tokens = f.get_strings("k")  # type: ignore[assignment]
    assert list(tokens) == ["a", "\udcff", "日", ""]


def test_tensors(path: Path) -> None:
    rng = np.random.default_rng(0)
    a = rng.normal(size=(4, 3, 2)).astype(np.float32)
    raw = rng.integers(0, 256, 2 * 34 * 3, np.uint8)
    newest = bytes(range(36))
    write_gguf(
        path,
        {"general.alignment": 64, "general.architecture": "mine"},
        {
            "a": a,
            "a.T": a.T,
            "q": (raw, GGMLType.Q8_0, (64, 3)),
            "b": (b"\1\2\3\4", GGMLType.BF16, (2,)),
            "n": (newest, GGMLType.NVFP4, (64,)),
            "s": np.array(3, np.int8),
            "z": np.zeros((2, 0), np.float16),
        },
    )
    with GGUFFile(path) as f:
        assert f.alignment == 64 and f.get_str("general.architecture") == "mine"
        assert f.tensors["a"].ne == (2, 3, 4, 1) and f.tensors["q"].ne == (64, 3, 1, 1)
        assert f.tensors["b"].type is GGMLType.BF16 and f.tensors["z"].ne == (0, 2, 1, 1)
        assert f.tensors["s"].n_dims == 0 and f.tensor_bytes("s").tolist() == [3]
        np.testing.assert_array_equal(f.tensor_bytes("a").view(np.float32).reshape(4, 3, 2), a)
        np.testing.assert_array_equal(f.tensor_bytes("a.T").view(np.float32).reshape(2, 3, 4), a.T)
        assert f.tensor_bytes("q").tobytes() == raw.tobytes()
        assert f.tensor_bytes("n").tobytes() == newest


def test_the_gguf_package_reads_it(path: Path) -> None:
    import gguf

    blocks = gguf.quantize(np.ones((2, 64), np.float32), gguf.GGMLQuantizationType.Q4_1)
    write_gguf(
        path, {"n": 3, "t": ["a"]}, {"q": (blocks.tobytes(), GGMLType.Q4_1, (64, 2))}, arch="x"
    )
    theirs = gguf.GGUFReader(path)
    assert theirs.fields["general.architecture"].contents() == "x"
    assert theirs.tensors[0].data.tobytes() == blocks.tobytes()


def test_it_writes_the_bytes_that_the_gguf_package_writes(path: Path, tmp_path: Path) -> None:
    theirs = write_sample(tmp_path / "theirs.gguf")
    with GGUFFile(theirs) as f:
        tensors = {n: (f.chunks(n, 50), t.type, t.ne[: t.n_dims]) for n, t in f.tensors.items()}
        write_gguf(path, f.typed_metadata(), tensors)
    assert path.read_bytes() == theirs.read_bytes()


def test_a_powerinfer_file_differs_in_its_magic_alone(path: Path) -> None:
    tensors = {"t": np.arange(3, dtype=np.float32)}
    write_gguf(path, {"k": 1}, tensors)
    plain = path.read_bytes()
    write_gguf(path, {"k": 1}, tensors, magic=b"PWRI")
    assert path.read_bytes() == b"PWRI" + plain[4:]
    with GGUFFile(path) as f:
        assert (f.magic, f.version, f.alignment) == (b"PWRI", 3, 32)
        assert f.tensor_bytes("t").view(np.float32).tolist() == [0, 1, 2]
        copy_gguf(f, path, f.typed_metadata())
    assert path.read_bytes() == b"PWRI" + plain[4:]
    with pytest.raises(GGUFError, match="the magic is b'GGML', must be one of b'GGUF', b'PWRI'"):
        write_gguf(path, {}, {}, magic=b"GGML")


def test_empty_arrays_with_a_type(path: Path) -> None:
    for _ in range(2):
        empty = np.zeros(0, np.int16)
        write_gguf(path, {"k": empty, "s": GGUFStrings(b"", array("q", [0]))}, {}, arch=None)
        with GGUFFile(path) as f:
            assert f.get_numbers("k").dtype == np.int16 and len(f.get_strings("s")) == 0
            assert list(f.metadata) == ["k", "s"]


def test_data_in_pieces(path: Path) -> None:
    done: list[float] = []
    values = np.arange(10, dtype=np.float32)
    pieces = (values[:3], values[3:8].tobytes(), values[8:])
    write_gguf(path, {}, {"t": (iter(pieces), GGMLType.F32, (10,))}, progress=done.append)
    assert done == [0.3, 0.8, 1.0]
    with GGUFFile(path) as f:
        assert f.tensor_bytes("t").tobytes() == values.tobytes()
    with pytest.raises(GGUFError, match=r"'t': 12 bytes, F32 of ne .* takes 40"):
        write_gguf(path, {}, {"t": (iter(pieces[:1]), GGMLType.F32, (10,))})


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        ({"k": []}, "'k' is an empty array"),
        ({"k": [1, "a"]}, "no array of int, str"),
        ({"k": [None]}, "no array of NoneType"),
        ({"k": None}, "no type for NoneType"),
        ({"k": "\ud800"}, "this text cannot be encoded as UTF-8"),
        ({"general.alignment": "x"}, "general.alignment is 'x', must be an integer"),
        ({"k": 2**64}, "does not fit 64 bits"),
        ({"k": np.zeros((2, 2))}, "float64 with 2 dimensions"),
        ({"k": np.complex64(1)}, "no type for complex64"),
        ({"": 1}, "a metadata key of 0 bytes"),
        ({"general.alignment": 12}, "general.alignment is 12"),
        ({"general.alignment": 2**31}, "2147483648, must be a power of two from 8 to 2097152 by"),
    ],
)
def test_metadata_that_gguf_cannot_hold(path: Path, metadata: dict, message: str) -> None:
    with pytest.raises(GGUFError, match=message):
        write_gguf(path, metadata, {})
    assert not list(path.parent.iterdir())


@pytest.mark.parametrize(
    ("tensors", "error", "message"),
    [
        ({"n" * 64: np.zeros(1, np.float32)}, GGUFError, "64 bytes, 1 to 63 are legal"),
        ({"t": np.zeros(1, np.complex64)}, TypeMismatch, "no type for NumPy's complex64"),
        ({"t": np.zeros((1,) * 5, np.float32)}, GGUFError, "5 dimensions"),
        ({"t": (b"123", GGMLType.Q8_0, (32,))}, GGUFError, "3 bytes, Q8_0 of ne .* takes 34"),
        ({"t": (b"123", GGMLType.Q8_0, (33,))}, PyggmlError, "multiple of 32"),
    ],
)
def test_tensors_that_gguf_cannot_hold(
    path: Path, tensors: dict, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        write_gguf(path, {}, tensors)


def test_a_failed_write_leaves_the_old_file(path: Path) -> None:
    write_gguf(path, {"k": 1}, {})
    before = path.read_bytes()

    def full() -> Iterator[bytes]:
        yield bytes(8)
        raise OSError(28, "No space left on device")

    with pytest.raises(GGUFError, match="cannot be written: No space left on device"):
        write_gguf(path, {"k": 2}, {"t": (full(), GGMLType.F32, (4,))})
    assert path.read_bytes() == before and list(path.parent.iterdir()) == [path]
    with pytest.raises(GGUFError, match="cannot be written"):
        write_gguf(path.parent / "none" / "x.gguf", {}, {})
