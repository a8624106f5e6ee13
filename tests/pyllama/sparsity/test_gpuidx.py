"""``.gpuidx`` files: reading and writing PowerInfer's and Q-Infer's formats; one-line errors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyggml.errors import GGUFError
from pyggml.gguf import GGUFFile, write_gguf
from pyllama.errors import ModelError
from pyllama.sparsity.gpuidx import (
    ARCHITECTURE,
    cached_split,
    check_split,
    read_gpuidx,
    write_gpuidx,
)
from pyllama.sparsity.placement import NeuronSplit

N_FF = 24


def split_of(*up: list[int], down: list[list[int]] | None = None) -> NeuronSplit:
    def arrays(lists: Any) -> tuple[np.ndarray, ...]:
        return tuple(np.array(x, np.int32) for x in lists)

    return NeuronSplit(N_FF, arrays(up), arrays(up if down is None else down))


def theirs(path: Path, split: NeuronSplit, budget: int, *, suffixes: tuple[str, ...]) -> Path:
    """Write a file like ``export_split.py``: with the package gguf, then with another magic."""
    out = gguf.GGUFWriter(path, ARCHITECTURE)
    for i, ids in enumerate(zip(split.up, split.down, strict=True)):
        for suffix, bucket in zip(suffixes, ids, strict=False):
            marks = np.zeros(split.n_ff, np.int32)
            marks[bucket] = 1
            for name, x in ((f"gpu_idx{suffix}", marks), (f"gpu_bucket{suffix}", bucket)):
                out.add_tensor(
                    f"blk.{i}.{name}", x, raw_shape=x.shape, raw_dtype=gguf.GGMLQuantizationType.I32
                )
    out.add_block_count(len(split.up))
    out.add_uint64("split.vram_capacity", budget)
    out.write_header_to_file()
    out.write_kv_data_to_file()
    out.write_tensors_to_file()
    out.close()
    path.write_bytes(b"PWRI" + path.read_bytes()[4:])
    return path


def same(a: NeuronSplit, b: NeuronSplit) -> bool:
    pairs = zip((*a.up, *a.down), (*b.up, *b.down), strict=True)
    return a.n_ff == b.n_ff and all(np.array_equal(x, y) for x, y in pairs)


@pytest.mark.parametrize("joint", [True, False], ids=["PowerInfer", "Q-Infer"])
def test_powerinfer_and_qinfer_formats_round_trip(tmp_path: Path, joint: bool) -> None:
    split = split_of([1, 5, 23], [], [*range(N_FF)], down=None if joint else [[0], [2, 3], []])
    suffixes = ("",) if joint else ("", "_down")
    path = theirs(tmp_path / "theirs.gpuidx", split, 5 << 30, suffixes=suffixes)
    index = read_gpuidx(path)
    assert same(index.split, split) and (index.vram_bytes, index.key) == (5 << 30, "")
    assert index.split.joint == joint
    write_gpuidx(tmp_path / "ours.gpuidx", split, 5 << 30)
    with GGUFFile(path) as want, GGUFFile(tmp_path / "ours.gpuidx") as got:
        assert got.magic == want.magic == b"PWRI" and got.version == 3
        assert [(t.name, t.ne, t.type) for t in got.tensors.values()] == [  # the order matters
            (t.name, t.ne, t.type) for t in want.tensors.values()
        ]
        assert dict(got.metadata) == dict(want.metadata) and got.value_types == want.value_types
        for name in want.tensors:
            np.testing.assert_array_equal(got.tensor_bytes(name), want.tensor_bytes(name))


@given(st.lists(st.tuples(*[st.sets(st.integers(0, N_FF - 1))] * 2), min_size=1, max_size=12))
def test_round_trip_of_any_split(tmp_path_factory: pytest.TempPathFactory, sets: list[Any]) -> None:
    split = split_of(*(sorted(u) for u, _ in sets), down=[sorted(d) for _, d in sets])
    path = tmp_path_factory.mktemp("g") / "x.gpuidx"
    write_gpuidx(path, split, 1 << 40, "k")
    index = read_gpuidx(path)
    assert same(index.split, split) and (index.vram_bytes, index.key) == (1 << 40, "k")


def test_invalid_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.gpuidx"

    def written(changes: dict[str, Any], n_layer: int = 2, arch: Any = ARCHITECTURE) -> None:
        tensors: dict[str, Any] = {}
        for i in range(2):
            tensors[f"blk.{i}.gpu_idx"] = (np.arange(N_FF) < 3).astype(np.int32)
            tensors[f"blk.{i}.gpu_bucket"] = np.arange(3, dtype=np.int32)
        keys = {
            "general.architecture": arch,
            f"{ARCHITECTURE}.block_count": np.uint32(n_layer),
            "split.vram_capacity": np.uint64(1),
        }
        tensors = {k: v for k, v in (tensors | changes).items() if v is not None}
        write_gguf(path, keys, tensors, magic=b"PWRI")

    def refused(message: str, kind: type[Exception] = ModelError) -> None:
        with pytest.raises(kind, match=message) as error:
            read_gpuidx(path)
        assert str(path) in str(error.value) and "\n" not in str(error.value)

    written({})
    assert read_gpuidx(path).split.up[1].tolist() == [0, 1, 2]
    for i, wrong in enumerate(([0, 1, N_FF], [-1, 0, 1])):
        written({"blk.1.gpu_bucket": np.array(wrong, np.int32)})
        refused(rf"has neurons {('0 to 24', '-1 to 1')[i]}, must be in 0 to 23; recreate it")
    for wrong in ([0, 1], [0, 1, 3], [0, 1, 1]):
        written({"blk.1.gpu_bucket": np.array(wrong, np.int32)})
        refused("gpu_bucket' lists . neurons, 'blk.1.gpu_idx' marks 3, and they differ")
    written({"blk.1.gpu_idx": np.full(N_FF, 2, np.int32)})
    refused("and they differ")
    written({"blk.1.gpu_idx": np.zeros(N_FF + 1, np.int32)})
    refused("has 25 neurons, layer 0 has 24")
    written({"blk.1.gpu_idx": np.zeros((2, N_FF), np.int32)})
    refused(r"is I32 \[24, 2, 1, 1\], must be I32 \[n\]")
    written({"blk.1.gpu_idx": np.zeros(N_FF, np.float32)})
    refused("is F32")
    written({"blk.1.gpu_bucket": None, "other": np.zeros(3, np.int32)})
    refused("'blk.1.gpu_bucket' is missing")
    written({}, arch=np.zeros(3, np.int32))
    refused("'general.architecture' is an array of 3 int32, expected a string", GGUFError)
    written({}, n_layer=3)
    refused("4 tensors, 3 layers have 6")
    written({}, n_layer=1 << 31)
    refused("4 tensors, 2147483648 layers")
    written({}, arch="llama")
    refused("is a model, not a .gpuidx file")
    path.write_bytes(path.read_bytes()[:40])
    refused("x.gpuidx: ", GGUFError)
    path.unlink()
    refused("x.gpuidx: ", GGUFError)


def test_file_of_another_model(tmp_path: Path) -> None:
    write_gpuidx(tmp_path / "x", split_of([1], [2]), 1)
    index = read_gpuidx(tmp_path / "x")
    assert check_split(index, 2, N_FF) is index.split
    for sizes in ((3, N_FF), (2, 2 * N_FF)):
        with pytest.raises(
            ModelError,
            match=r"has 2 layers of 24 neurons, the model has \d of \d+: it belongs to another",
        ):
            check_split(index, *sizes)


def test_the_cache_is_keyed(tmp_path: Path) -> None:
    path, made = tmp_path / "m.gguf.generated.gpuidx", []

    def make() -> NeuronSplit:
        made.append(split_of([len(made)]))
        return made[-1]

    def cached(key: str, **options: bool) -> int:
        split, found = cached_split(path, key, 7, make, **options)
        assert found == (len(made) == before)
        return int(split.up[0][0])

    for key, options, want in (("a", {}, 0), ("a", {}, 0), ("b", {}, 1), ("b", {"reset": True}, 2)):
        before = len(made)
        assert cached(key, **options) == want
    write_gpuidx(path, split_of([9]), 5 << 29)
    with pytest.raises(ModelError, match=r"another program, for 2.50 GiB: .*reset=True"):
        cached_split(path, "b", 7, make)
    before = len(made)
    assert cached("b", reset=True) == 3
