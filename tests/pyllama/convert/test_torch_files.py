"""Reading files of torch.save; no file can run code."""

from __future__ import annotations

import contextlib
import os
import pickle
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pyllama.convert.files.torch_files import read_torch
from pyllama.errors import ModelError

from ...tiers import tenth
from .folders import number, numbers, state, storage, tensor, text, write_archive

SAMPLE = Path(__file__).parents[2] / "data" / "torch" / "sample.bin"
ONE = {"0": bytes(4 * 6)}


def test_file_written_by_torch() -> None:
    b = np.arange(24, dtype=np.float32) / 8
    table = b.reshape(4, 6)
    wanted: dict[str, Any] = {
        "f64": b[:4],
        "f32": table,
        "f16": b[:6].reshape(2, 3),
        "bf16": b[:6],
        "i64": [0, 1, 2],
        "i8": [0, 1, 2],
        "bool": [1, 0],
        "transposed": table.T,
        "part": table[1:3, 2:4],
        "column": table[:, 1],
        "scalar": 2.5,
        "parameter": b[:2],
        "empty": np.zeros((0, 3)),
    }
    tensors = read_torch(SAMPLE)
    assert list(tensors) == list(wanted)
    for name, stored in tensors.items():
        values = stored.read()
        assert values.dtype == np.float32 and values.flags.c_contiguous
        np.testing.assert_array_equal(values, np.asarray(wanted[name], np.float32))


def test_tensors_with_a_shared_storage(tmp_path: Path) -> None:
    data = np.arange(6, dtype=np.float32).tobytes()
    pickled = state(a=tensor("0", 6, 0, (2, 3), (3, 1)), b=tensor("0", 6, 4, (2,), (1,)))
    tensors = read_torch(write_archive(tmp_path / "x.bin", pickled, {"0": data}))
    assert tensors["a"].read().tolist() == [[0, 1, 2], [3, 4, 5]]
    assert tensors["b"].read().tolist() == [4, 5]


def test_strides_of_dimensions_of_size_one_or_zero(tmp_path: Path) -> None:
    huge = 2**63 - 1
    pickled = state(
        a=tensor("0", 6, 0, (2, 1, 3), (1, huge, 2)), b=tensor("0", 6, 0, (0, 3), (huge, 2))
    )
    data = np.arange(6, dtype=np.float32).tobytes()
    tensors = read_torch(write_archive(tmp_path / "x.bin", pickled, {"0": data}))
    assert tensors["a"].read().tolist() == [[[0, 2, 4]], [[1, 3, 5]]]
    assert tensors["b"].read().shape == (0, 3)


class Call:
    """Pickles as a call of a function."""

    def __init__(self, function: Any, *args: Any) -> None:
        self.call = function, args

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        return self.call


def dumped(function: Any, *args: Any, protocol: int = 2) -> bytes:
    return pickle.dumps({"w": Call(function, *args)}, protocol)


def called(name: str) -> bytes:
    return state(w=b"c" + name.replace(" ", "\n").encode() + b"\n" + text("x") + b"\x85R")


HUGE = 2**62
PICKLES = {
    "os.system": (dumped(os.system, "touch /tmp/owned"), "posix.system"),
    "eval": (dumped(eval, "1"), "__builtin__.eval"),
    "getattr": (dumped(getattr, "", "join"), "__builtin__.getattr"),
    "protocol 4": (dumped(os.system, "true", protocol=4), "opcode FRAME"),
    "torch.hub.load": (called("torch.hub load"), "'torch.hub.load', which is not part"),
    "torch.load": (called("torch.serialization load"), "not part of a tensor: refused"),
    "a module within a name": (called("torch FloatStorage.__init__"), "refused, since"),
    "a storage is called": (called("torch FloatStorage"), "calls 'torch FloatStorage'"),
    "a tensor is called": (state(w=tensor("0", 6, 0, (6,), (1,)) + b")R"), "calls StorageView"),
    "INST": (b"(ios\nsystem\n.", "opcode INST"),
    "NEWOBJ": (b"\x80\x02ccollections\nOrderedDict\n)\x81.", "opcode NEWOBJ"),
    "EXT1": (b"\x80\x02\x82\x01.", "opcode EXT1"),
    "bytes of any size": (b"\x96" + HUGE.to_bytes(8, "little") + b".", "opcode BYTEARRAY8"),
    "text of any size": (b"\x80\x02X\xff\xff\xff\x7f.", "is damaged"),
    "a memo of any size": (b"\x80\x02}r\xff\xff\xff\xff.", "^ok"),
    "a key that hashes for ever": (b"\x80\x02})" + b"\x85" * 10**5 + b"Ns.", "is damaged"),
    "a shape that prints for ever": (
        state(w=b"ctorch._utils\n_rebuild_tensor_v2\n(" + storage("0", 6) + number(0) + b")"
              + b"\x85" * 10**5 + b")tR"),
        "has the shape",
    ),
    "nothing on the stack": (b"\x80\x02R.", "is damaged"),
    "below a mark": (b"\x80\x02}(NNs.", "is damaged"),
    "no mark": (b"\x80\x02t.", "is damaged"),
    "no memo": (b"\x80\x02h\x05.", "is damaged"),
    "no end": (b"\x80\x02}", "is damaged"),
    "empty": (b"", "is damaged"),
    "a list": (b"\x80\x02].", "contains list, must be a dictionary of tensors"),
    "items of a list": (b"\x80\x02]NNs.", "items for list"),
    "a storage of no kind": (state(w=b"(" + text("storage") + b"NNNNtQ"), "is not a storage"),
    "a negative storage": (state(w=storage("0", -1)), "is not a storage"),
    "a tensor of text": (
        state(w=b"ctorch._utils\n_rebuild_tensor_v2\n(" + text("x") + b"K\0))tR"), "makes a tensor"
    ),
    "too few arguments": (state(w=b"ctorch._utils\n_rebuild_tensor_v2\n(NtR"), "is damaged"),
    "a huge shape": (state(w=tensor("0", 6, 0, (HUGE, HUGE), (1, 1))), "not within its storage"),
    "a huge shape of one number": (state(w=tensor("0", 6, 0, (HUGE,), (0,))), "not within its"),
    "a huge stride": (state(w=tensor("0", 6, 0, (2,), (HUGE,))), "not within its storage"),
    "an offset behind the end": (state(w=tensor("0", 6, 6, (1,), (1,))), "not within its storage"),
    "an offset of nothing": (state(w=tensor("0", 6, 7, (0,), (1,))), "not within its storage"),
    "a negative stride": (state(w=tensor("0", 6, 5, (6,), (-1,))), "the shape"),
    "a negative offset": (state(w=tensor("0", 6, -1, (1,), (1,))), "the shape"),
    "a negative size": (state(w=tensor("0", 6, 0, (-1,), (1,))), "the shape"),
    "other strides than sizes": (state(w=tensor("0", 6, 0, (6,), (1, 1))), "not within its"),
    "nine dimensions": (state(w=tensor("0", 6, 0, (1,) * 9, (1,) * 9)), "the shape"),
    "a storage that is longer": (state(w=tensor("0", 7, 0, (7,), (1,))), "has only 24 bytes"),
    "a storage that is not there": (state(w=tensor("1", 6, 0, (6,), (1,))), "'1' is missing"),
    "a path as a key": (state(w=tensor("../version", 2, 0, (2,), (1,))), "is missing"),
}  # fmt: skip


@pytest.mark.parametrize(("pickled", "message"), PICKLES.values(), ids=PICKLES)
def test_unsafe_and_invalid_pickles_are_refused(
    tmp_path: Path, pickled: bytes, message: str
) -> None:
    path = write_archive(tmp_path / "x.bin", pickled, ONE)
    if message == "^ok":
        assert read_torch(path) == {}
        return
    with pytest.raises(ModelError, match=message) as error:
        read_torch(path)
    assert str(error.value).startswith(f"{path}: ") and "\n" not in str(error.value)


def test_attributes_and_other_entries_are_ignored(tmp_path: Path) -> None:
    inner = b"}(" + text("_metadata") + b"Nub"  # BUILD
    pickled = state(w=tensor("0", 6, 0, (6,), (1,)) + inner, n=b"K\1", d=b"}", t=numbers((1, 2)))
    assert list(read_torch(write_archive(tmp_path / "x.bin", pickled, ONE))) == ["w"]


def test_invalid_archives_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.bin"
    good = state(w=tensor("0", 6, 0, (6,), (1,)))

    def refused(message: str) -> None:
        with pytest.raises(ModelError, match=message):
            read_torch(path)

    write_archive(path, good, ONE, zipfile.ZIP_DEFLATED)
    refused("is compressed")
    whole = write_archive(path, good, ONE).read_bytes()
    path.write_bytes(whole[:-30])
    refused("not PyTorch's zip format")
    path.write_bytes(whole.replace(b"PK\3\4", b"PK\3\5"))
    refused("not PyTorch's zip format|is not whole")
    path.write_bytes(pickle.dumps({"w": 1}, 2))
    refused("before PyTorch 1.6")
    path.write_bytes(b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n")
    refused("git lfs pull")
    path.unlink()
    refused("cannot be read: No such file")
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("x/other", b"")
    refused("without data.pkl")
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("x/byteorder", b"big")
        archive.writestr("x/data.pkl", good)
    refused("big-endian")


@pytest.mark.parametrize("count", tenth(300))
def test_random_damage_raises_only_model_errors(tmp_path: Path, count: int) -> None:
    whole = SAMPLE.read_bytes()
    with zipfile.ZipFile(SAMPLE) as archive:
        pickled = archive.read("sample/data.pkl")
        arrays = {str(i): archive.read(f"sample/data/{i}") for i in range(8)}
    path, rng = tmp_path / "x.bin", np.random.default_rng(0)
    for _ in range(count):
        path.write_bytes(damage(whole, rng))
        read_all(path)
        read_all(write_archive(path, damage(pickled, rng), arrays))


def damage(data: bytes, rng: np.random.Generator) -> bytes:
    """``data`` with one to three bytes changed, and truncated half of the time."""
    damaged = bytearray(data)
    for i in rng.integers(0, len(data), rng.integers(1, 4)):
        damaged[i] = rng.integers(0, 256)
    return bytes(damaged[: rng.integers(1, 2 * len(data))])


def read_all(path: Path) -> None:
    with contextlib.suppress(ModelError):
        for stored in read_torch(path).values():
            stored.read()
