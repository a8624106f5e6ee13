"""Reading safetensors files and folders; damaged ones are refused."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pyggml.quants.reference import bf16_from_float
from pyllama.convert.files.checkpoint import read_checkpoint
from pyllama.convert.files.folder import Folder
from pyllama.convert.files.safetensors import read_safetensors
from pyllama.errors import ModelError

from ...tiers import tenth
from .folders import header, write_safetensors, write_torch

X = np.arange(6, dtype=np.float32).reshape(2, 3) - 2.5


def test_every_type_becomes_float32(tmp_path: Path) -> None:
    written = {
        "f32": X,
        "f64": X.astype(np.float64) * 1e300,
        "f16": X.astype(np.float16),
        "bf16": bf16_from_float(X),
        "i64": np.arange(4),
        "scalar": np.float32(3).reshape(()),
        "empty": np.zeros((0, 3), np.float32),
    }
    tensors = read_safetensors(write_safetensors(tmp_path / "x.safetensors", written))
    read = {name: stored.read() for name, stored in tensors.items()}
    for name in ("f32", "f16", "bf16"):
        np.testing.assert_array_equal(read[name], X)
    assert np.isinf(read["f64"]).all() and read["i64"].tolist() == [0, 1, 2, 3]
    assert read["scalar"].tolist() == 3 and read["empty"].shape == (0, 3)
    assert {values.dtype for values in read.values()} == {np.dtype(np.float32)}


def test_a_large_tensor_is_read_in_pieces(tmp_path: Path) -> None:
    x = np.random.default_rng(0).standard_normal((3, 700_001)).astype(np.float16)
    stored = read_safetensors(write_safetensors(tmp_path / "x.safetensors", {"x": x}))["x"]
    np.testing.assert_array_equal(stored.read(), x.astype(np.float32))


def entry(dtype: Any = "F32", shape: Any = (2,), places: Any = (0, 8)) -> dict[str, Any]:
    return {"w": {"dtype": dtype, "shape": shape, "data_offsets": places}}


HUGE = 2**62
FILES = {
    "empty": (b"", "has 0 bytes, its header 0"),
    "a short length": (b"\1\0", "has 2 bytes, its header 1"),
    "a long header": (HUGE.to_bytes(8, "little"), f"its header {HUGE}"),
    "no JSON": (header(b"{w"), "not JSON"),
    "no UTF-8": (header(b'{"\xff": 1}'), "not JSON"),
    "a list": (header(b"[]"), "JSON list, expected an object"),
    "deep JSON": (header(b'{"w":' + b"[" * 200_000), "nested too deeply|not JSON"),
    "a number of any length": (header(b'{"w":' + b"1" * 5000 + b"}"), "not JSON"),
    "twice the same": (header(b'{"w": 1, "w": 2}'), "'w' occurs twice"),
    "no object": (header({"w": 1}), "described by 1"),
    "no type": (header({"w": {}}), "tensor 'w' is None"),
    "an unknown type": (header(entry("F4")), "tensor 'w' is 'F4', known types are"),
    "a type that is a list": (header(entry([])), r"tensor 'w' is \[\]"),
    "a negative size": (header(entry(shape=[-2])), "has the shape"),
    "a size that is true": (header(entry(shape=[True])), "has the shape"),
    "a fraction": (header(entry(shape=[2.0])), "has the shape"),
    "no shape": (header(entry(shape=None)), "has the shape None"),
    "nine dimensions": (header(entry(shape=[1] * 9)), "has the shape"),
    "too many elements": (header(entry(shape=[HUGE, HUGE])), "has 8 bytes, F32 of the shape"),
    "one place": (header(entry(places=[0])), "data_offsets"),
    "places in turn": (header(entry(places=[8, 0])), "data_offsets"),
    "other places than the shape": (header(entry(places=[0, 4])), "has 4 bytes"),
    "behind the end": (header(entry(), bytes(7)), "1 bytes are missing"),
    "far behind the end": (header(entry(places=[HUGE, HUGE + 8]), bytes(8)), "are missing"),
    "overlap": (header(entry() | {"v": entry(places=[4, 12])["w"]}, bytes(12)), "overlap"),
    "git-lfs": (b"version https://git-lfs.github.com/spec/v1\noid", "git lfs pull"),
}


@pytest.mark.parametrize(("data", "message"), FILES.values(), ids=FILES)
def test_invalid_files_are_refused(tmp_path: Path, data: bytes, message: str) -> None:
    path = tmp_path / "x.safetensors"
    path.write_bytes(data)
    with pytest.raises(ModelError, match=message) as error:
        read_safetensors(path)
    assert str(error.value).startswith(f"{path}: ") and "\n" not in str(error.value)


@pytest.mark.parametrize("count", tenth(300))
def test_random_damage_raises_only_model_errors(tmp_path: Path, count: int) -> None:
    path, rng = tmp_path / "x.safetensors", np.random.default_rng(0)
    whole = write_safetensors(path, {"a": X, "b": X[0]}).read_bytes()
    for _ in range(count):
        damaged = bytearray(whole)
        for i in rng.integers(0, len(whole), 2):
            damaged[i] = rng.integers(0, 256)
        path.write_bytes(damaged[: rng.integers(1, 2 * len(whole))])
        with contextlib.suppress(ModelError):
            for stored in read_safetensors(path).values():
                stored.read()


def test_a_file_truncated_after_opening(tmp_path: Path) -> None:
    path = write_safetensors(tmp_path / "x.safetensors", {"x": X})
    stored = read_safetensors(path)["x"]
    path.write_bytes(path.read_bytes()[:-4])
    with pytest.raises(ModelError, match="was truncated while reading"):
        stored.read()
    path.unlink()
    with pytest.raises(ModelError, match="cannot be read: No such file"):
        stored.read()


def eight_bits(code: int, n_exponent: int, bias: int, sign: bool) -> float:
    """A float of 8 bits, from the definition of its parts."""
    n_mantissa = 8 - n_exponent - sign
    mantissa = code % (1 << n_mantissa) / (1 << n_mantissa)
    exponent = code >> n_mantissa & (1 << n_exponent) - 1
    value = (1 + mantissa) * 2.0 ** (exponent - bias) if exponent else mantissa * 2.0 ** (1 - bias)
    return -value if sign and code >> 7 else value


@pytest.mark.parametrize(
    ("dtype", "n_exponent", "bias", "special"),
    [
        ("F8_E4M3", 4, 7, {0x7F: np.nan, 0xFF: np.nan}),
        (
            "F8_E5M2", 5, 15,
            {0x7C: np.inf, 0xFC: -np.inf}
            | dict.fromkeys((0x7D, 0x7E, 0x7F, 0xFD, 0xFE, 0xFF), np.nan),
        ),
        ("F8_E8M0", 8, 127, {0: 2.0**-127, 255: np.nan}),
    ],
)  # fmt: skip
def test_floats_of_eight_bits(
    tmp_path: Path, dtype: str, n_exponent: int, bias: int, special: dict[int, float]
) -> None:
    path = tmp_path / "x.safetensors"
    path.write_bytes(header(entry(dtype, [2, 128], [0, 256]), bytes(range(256))))
    stored = read_safetensors(path)["w"]
    sign = dtype != "F8_E8M0"
    wanted = [special.get(i, eight_bits(i, n_exponent, bias, sign)) for i in range(256)]
    np.testing.assert_array_equal(stored.read().reshape(-1), np.array(wanted, np.float32))
    assert stored.raw().reshape(-1).tolist() == list(range(256))


# --- folders --------------------------------------------------------------------------------------


def index(folder: Path, weight_map: Any, name: str = "model.safetensors.index.json") -> None:
    (folder / name).write_text(json.dumps({"weight_map": weight_map}))


@pytest.mark.parametrize("indexed", [True, False])
def test_shards(tmp_path: Path, indexed: bool) -> None:
    first, second = (f"model-0000{i}-of-00002.safetensors" for i in (1, 2))
    write_safetensors(tmp_path / first, {"a": X})
    write_safetensors(tmp_path / second, {"b": X + 1})
    if indexed:
        index(tmp_path, {"a": first, "b": second})
    tensors = read_checkpoint(Folder(tmp_path))
    np.testing.assert_array_equal(tensors["b"].read(), X + 1)
    assert list(tensors) == ["a", "b"]
    (tmp_path / second).unlink()
    with pytest.raises(ModelError, match=r"model-00002-of-00002.safetensors: no such file"):
        read_checkpoint(Folder(tmp_path))


def test_pytorch_files(tmp_path: Path) -> None:
    write_torch(tmp_path / "model.pt", {"p": X})
    assert list(read_checkpoint(Folder(tmp_path))) == ["p"]
    write_torch(tmp_path / "pytorch_model-00001-of-00002.bin", {"a": X})
    write_torch(tmp_path / "pytorch_model-00002-of-00002.bin", {"b": X})
    assert list(read_checkpoint(Folder(tmp_path))) == ["a", "b"]
    names = {x: f"pytorch_model-0000{i}-of-00002.bin" for i, x in ((1, "a"), (2, "b"))}
    index(tmp_path, names, "pytorch_model.bin.index.json")
    np.testing.assert_array_equal(read_checkpoint(Folder(tmp_path))["b"].read(), X)
    write_safetensors(tmp_path / "model.safetensors", {"s": X})
    assert list(read_checkpoint(Folder(tmp_path))) == ["s"]  # preferred, since it cannot hold code


@pytest.mark.parametrize(
    ("weight_map", "message"),
    [
        (None, "no weight_map"),
        ([], "no weight_map"),
        ({"a": "../model.safetensors"}, "is not the name of a file in the folder"),
        ({"a": "/etc/passwd"}, "is not the name of a file in the folder"),
        ({"a": "none.safetensors"}, "none.safetensors: no such file"),
        ({"a": "model.safetensors", "b": "model.safetensors"}, "tensor 'b' is missing"),
    ],
)
def test_invalid_index(tmp_path: Path, weight_map: Any, message: str) -> None:
    write_safetensors(tmp_path / "model.safetensors", {"a": X})
    index(tmp_path, weight_map)
    with pytest.raises(ModelError, match=message):
        read_checkpoint(Folder(tmp_path))


def test_folders_without_weights_or_with_duplicates(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="there are no weights: no file matches model"):
        read_checkpoint(Folder(tmp_path))
    write_safetensors(tmp_path / "model.safetensors", {"a": X})
    write_safetensors(tmp_path / "model-00001-of-00001.safetensors", {"a": X})
    with pytest.raises(ModelError, match=r"tensor 'a' is also in model-00001-of-00001.safetensors"):
        read_checkpoint(Folder(tmp_path))
