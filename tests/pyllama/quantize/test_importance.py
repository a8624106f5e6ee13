"""Files of importance matrices: both formats, sums of several, and damaged files."""

from __future__ import annotations

import os
import re
import struct
from pathlib import Path

import numpy as np
import pytest

from pyggml.errors import PyggmlError
from pyggml.gguf import GGUFError, GGUFFile, write_gguf
from pyllama.errors import ModelError
from pyllama.eval.saved_logits import SavedLogits
from pyllama.quantize import Importance, read_importance, write_importance
from pyllama.quantize.importance import ImportanceEntry
from pyllama.quantize.statistics import matrix_statistics


def sample() -> Importance:
    rng = np.random.default_rng(0)
    return Importance(
        {
            "blk.0.ffn_up.weight": ImportanceEntry(
                rng.random((1, 8), np.float32), np.array([1024.0])
            ),
            "blk.0.ffn_up_exps.weight": ImportanceEntry(
                rng.random((3, 8), np.float32), np.array([700.0, 0, 324])
            ),
        },
        ["a.txt", "b.txt"],
        n_chunks=2,
        chunk_size=512,
    )


def test_round_trip_and_llama_cpp_names(tmp_path: Path) -> None:
    path, made = tmp_path / "i.gguf", sample()
    write_importance(path, made)
    got = read_importance(path)
    assert (got.datasets, got.n_chunks, got.chunk_size) == (["a.txt", "b.txt"], 2, 512)
    for name, entry in made.entries.items():
        np.testing.assert_array_equal(got.entries[name].sums, entry.sums)
        np.testing.assert_array_equal(got.entries[name].counts, entry.counts)
    with GGUFFile(path) as file:
        assert file.get_str("general.type") == "imatrix"
        assert file.tensors["blk.0.ffn_up_exps.weight.in_sum2"].ne == (8, 3, 1, 1)
        assert file.tensors["blk.0.ffn_up_exps.weight.counts"].ne == (1, 3, 1, 1)
        assert "general.architecture" not in file.metadata
    write_importance(path, Importance(made.entries))
    assert read_importance(path).datasets == []


def test_weights_are_means_or_one_without_data() -> None:
    made = sample()
    entry = made.entries["blk.0.ffn_up_exps.weight"]
    got = made.weights("blk.0.ffn_up_exps.weight")
    assert got is not None and got.shape == (24,) and got.dtype == np.float32
    np.testing.assert_array_equal(got[:8], entry.sums[0] / np.float32(700))
    np.testing.assert_array_equal(got[8:16], 1)
    assert made.weights("output.weight") is None


def dat(entries: dict[str, tuple[int, list[float]]], tail: bytes = b"") -> bytes:
    data = struct.pack("<i", len(entries))
    for name, (calls, values) in entries.items():
        data += (
            struct.pack("<i", len(name)) + name.encode() + struct.pack("<ii", calls, len(values))
        )
        data += np.array(values, "<f4").tobytes()
    return data + tail


def test_dat_format(tmp_path: Path) -> None:
    path = tmp_path / "i.dat"
    tail = struct.pack("<ii", 5, 4) + b"text"
    path.write_bytes(dat({"a.weight": (4, [8.0, 2.0]), "b.weight": (0, [3.0])}, tail))
    got = read_importance(path)
    assert (got.n_chunks, got.datasets, got.chunk_size) == (5, ["text"], 0)
    assert got.weights("a.weight").tolist() == [2.0, 0.5]
    assert got.weights("b.weight").tolist() == [3.0]
    path.write_bytes(dat({"a.weight": (4, [8.0, 2.0])}))
    assert read_importance(path).datasets == []


def test_add(tmp_path: Path) -> None:
    both = Importance()
    both.add(sample())
    both.add(sample())
    assert both.n_chunks == 4 and both.chunk_size == 512
    assert both.datasets == ["a.txt", "b.txt"] * 2
    for name, entry in sample().entries.items():
        np.testing.assert_array_equal(both.entries[name].sums, 2 * entry.sums)
        np.testing.assert_array_equal(both.weights(name), sample().weights(name))
    (tmp_path / "i.dat").write_bytes(dat({"blk.0.ffn_up.weight": (2, [2.0] * 8)}))
    both.add(read_importance(tmp_path / "i.dat"))  # its counts are chunks
    assert both.entries["blk.0.ffn_up.weight"].counts.tolist() == [2048 + 2 * 512]
    with pytest.raises(ModelError, match="8 columns in one and 2 in the other"):
        both.add(
            Importance(
                {"blk.0.ffn_up.weight": ImportanceEntry(np.ones((1, 2), np.float32), np.ones(1))}
            )
        )
    two, three = (ImportanceEntry(np.ones((n, 12 // n), np.float32), np.ones(n)) for n in (2, 3))
    with pytest.raises(ModelError, match="'a' has 2 experts in one and 3 in the other"):
        Importance({"a": two}).add(Importance({"a": three}))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x01",
        struct.pack("<i", 0),
        struct.pack("<i", -3),
        struct.pack("<i", 2**31 - 1),
        struct.pack("<ii", 1, -5),
        struct.pack("<ii", 1, 2**31 - 1) + b"x" * 20,
        dat({"a": (1, [1.0])})[:-2],
        dat({"a": (1, [])}),
        dat({"a": (1, [np.nan])}),
        dat({"a": (1, [-1.0])}),
        dat({"a": (1, [3e38])}),
        dat({"a": (1, [1.0])}, struct.pack("<i", 2**31 - 1)),
        dat({"a": (1, [1.0])}, struct.pack("<ii", 1, 99)),
        b"GGUF" + bytes(3),
    ],
)
def test_damaged_files_are_one_line(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "i.dat"
    path.write_bytes(data)
    with pytest.raises(PyggmlError) as error:
        read_importance(path)
    assert str(path) in str(error.value) and "\n" not in str(error.value)


def test_only_regular_files_are_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")  # opening it would block forever
    for path in (tmp_path, tmp_path / "none", tmp_path / "pipe"):
        with pytest.raises(GGUFError, match=re.escape(str(path))):
            read_importance(path)
        with pytest.raises(GGUFError, match=re.escape(str(path))):
            SavedLogits(path)


def test_damaged_gguf_files(tmp_path: Path) -> None:
    path = tmp_path / "i.gguf"
    keys = {
        "general.type": "imatrix",
        "imatrix.datasets": ["x"],
        "imatrix.chunk_count": 1,
        "imatrix.chunk_size": 4,
    }
    sums, counts = np.ones((1, 4), np.float32), np.ones((1, 1), np.float32)
    cases = {
        "general.type is None": ({"x": 1}, {"a.in_sum2": sums, "a.counts": counts}),
        "'a.counts' is missing": (keys, {"a.in_sum2": sums}),
        "must be F32": (keys, {"a.in_sum2": sums.astype(np.float16), "a.counts": counts}),
        "4 sums and 3 counts": (keys, {"a.in_sum2": sums, "a.counts": np.ones(3, np.float32)}),
        "no importance matrix": (keys, {"other": sums}),
        "has NaN": (keys, {"a.in_sum2": sums * np.nan, "a.counts": counts}),
        # A signalling NaN: arithmetic on it warns.
        "'a.counts' has NaN": (
            keys,
            {"a.in_sum2": sums, "a.counts": np.array([[0x7FA00000]], "<u4").view(np.float32)},
        ),
    }
    for message, (metadata, tensors) in cases.items():
        write_gguf(path, metadata, tensors, arch=None)
        with pytest.raises(ModelError, match=message):
            read_importance(path)


def test_statistics_match_scipy_definitions() -> None:
    row = matrix_statistics(sample())[0]
    assert row.name == "blk.0.ffn_up.weight"
    values = sample().weights(row.name).astype(np.float64)
    z = (values - values.mean()) / values.std()
    assert row.sum == pytest.approx(values.sum())
    assert row.deviation == pytest.approx(values.std())
    assert row.skewness == pytest.approx(np.mean(z**3))
    assert row.kurtosis == pytest.approx(np.mean(z**4) - 3)
    shares = values / values.sum()
    assert row.evenness == pytest.approx(-(shares * np.log2(shares)).sum() / 3)
    flat = Importance({"a": ImportanceEntry(np.full((1, 4), 2, np.float32), np.ones(1))})
    assert matrix_statistics(flat)[0].evenness == pytest.approx(1)
