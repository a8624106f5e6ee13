"""Models in several files: parts read back as one model, inconsistent parts are refused."""

from __future__ import annotations

import struct
from pathlib import Path

import gguf
import numpy as np
import pytest

from pyggml.gguf import GGUFError, GGUFFile, merge, plan_split, write_gguf, write_split
from pyggml.gguf.parts import SPLIT_KEYS

from .sample import demo_model, write_sample


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_sample(tmp_path_factory.mktemp("sample") / "x.gguf")


@pytest.fixture
def split(sample: Path, tmp_path: Path) -> list[Path]:
    """The sample in parts of five tensors."""
    with GGUFFile(sample) as f:
        plans = plan_split(f, tmp_path / "x", max_tensors=5)
        write_split(f, plans)
    return [plan.path for plan in plans]


def test_parts_have_llama_cpps_names_and_keys(split: list[Path], sample: Path) -> None:
    assert [p.name for p in split] == [f"x-{i:05d}-of-00004.gguf" for i in (1, 2, 3, 4)]
    whole = gguf.GGUFReader(sample)
    names = []
    for i, path in enumerate(split):
        theirs = gguf.GGUFReader(path)
        kinds = [theirs.fields[key].types[0].name for key in SPLIT_KEYS]
        assert kinds == ["UINT16", "UINT16", "INT32"]
        assert [theirs.fields[key].contents() for key in SPLIT_KEYS] == [i, 4, len(whole.tensors)]
        keys = [key for key in theirs.fields if not key.startswith(("GGUF.", "split."))]
        assert bool(keys) == (i == 0)
        names += [t.name for t in theirs.tensors]
    assert names == [t.name for t in whole.tensors]


@pytest.mark.parametrize("mmap", [True, False])
def test_parts_open_as_one(split: list[Path], sample: Path, mmap: bool) -> None:
    with GGUFFile(split[0], mmap=mmap) as f, GGUFFile(sample) as whole:
        assert list(f.tensors) == list(whole.tensors) and len(f.parts) == 4
        assert {info.part for info in f.tensors.values()} == {0, 1, 2, 3}
        for name, info in whole.tensors.items():
            ours = f.tensors[name]
            assert (ours.ne, ours.type, ours.nbytes) == (info.ne, info.type, info.nbytes)
            assert f.tensor_bytes(name).tobytes() == whole.tensor_bytes(name).tobytes()
        assert {k for k in f.metadata if k not in SPLIT_KEYS} == set(whole.metadata)


def test_merged_parts_are_the_file(split: list[Path], sample: Path, tmp_path: Path) -> None:
    with GGUFFile(split[0]) as f:
        merge(f, tmp_path / "whole.gguf")
    assert (tmp_path / "whole.gguf").read_bytes() == sample.read_bytes()


def test_parts_of_the_gguf_package_open(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "y.gguf", "llama", split_max_tensors=2)
    for i in range(5):
        writer.add_tensor(f"t{i}", np.full(4, i, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with GGUFFile(tmp_path / "y-00001-of-00003.gguf") as f:
        got = {name: f.tensor_bytes(name).view(np.float32)[0] for name in f.tensors}
    assert got == {f"t{i}": i for i in range(5)}


def test_parts_keep_the_magic_and_must_share_it(sample: Path, tmp_path: Path) -> None:
    path = tmp_path / "powerinfer.gguf"
    path.write_bytes(b"PWRI" + sample.read_bytes()[4:])
    with GGUFFile(path) as f:
        plans = plan_split(f, tmp_path / "x", max_tensors=9)
        write_split(f, plans)
    with GGUFFile(plans[0].path) as f:
        assert f.magic == b"PWRI"
        merge(f, tmp_path / "whole.gguf")
    assert (tmp_path / "whole.gguf").read_bytes() == path.read_bytes()
    second = plans[1].path
    second.write_bytes(b"GGUF" + second.read_bytes()[4:])
    with pytest.raises(GGUFError, match=r"it starts with b'GGUF', want b'PWRI'; name the first"):
        GGUFFile(plans[0].path)


def test_plans(sample: Path) -> None:
    with GGUFFile(sample) as f:
        n = len(f.tensors)
        plans = plan_split(f, Path("x"), max_tensors=5, tensors_in_first=False)
        assert [len(p.names) for p in plans] == [0, 5, 5, 5, n - 15]
        plans = plan_split(f, Path("x"), max_bytes=600)
        assert sum((p.names for p in plans), ()) == tuple(f.tensors)
        for plan in plans:
            sizes = [-(-f.tensors[name].nbytes // 32) * 32 for name in plan.names]
            assert sum(sizes) <= 600 or len(sizes) == 1
        assert len(plan_split(f, Path("x"), max_bytes=1)) == n
        assert len(plan_split(f, Path("x"), max_bytes=10**9)) == 1


def test_a_split_is_split_again(split: list[Path], sample: Path, tmp_path: Path) -> None:
    with GGUFFile(split[0]) as f:
        plans = plan_split(f, tmp_path / "again", max_tensors=9)
        write_split(f, plans)
    with GGUFFile(plans[0].path) as f:
        merge(f, tmp_path / "whole.gguf")
    assert (tmp_path / "whole.gguf").read_bytes() == sample.read_bytes()


def test_a_failed_split_leaves_no_parts(
    sample: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with GGUFFile(sample) as f:
        plans = plan_split(f, tmp_path / "x", max_tensors=5)
        monkeypatch.setattr(f, "chunks", lambda name: iter([b"short"]))
        with pytest.raises(GGUFError, match="'weight': 5 bytes"):
            write_split(f, plans)
        assert not list(tmp_path.iterdir())
        plans = plan_split(f, tmp_path / "none" / "x")
        with pytest.raises(GGUFError, match="cannot be split: no such directory"):
            write_split(f, plans)


# --- inconsistent parts ---------------------------------------------------------------------------


def patch(path: Path, key: str, kind: str, value: int) -> None:
    """Write a number over the value of a key."""
    data = bytearray(path.read_bytes())
    at = data.index(key.encode()) + len(key) + 4
    data[at : at + struct.calcsize(kind)] = struct.pack(kind, value)
    path.write_bytes(data)


def test_a_missing_part_is_named(split: list[Path]) -> None:
    split[2].unlink()
    with pytest.raises(GGUFError, match=r"part 3 of 4 is missing: .*x-00003-of-00004.gguf"):
        GGUFFile(split[0])


def test_a_later_part_says_to_name_the_first(split: list[Path]) -> None:
    with pytest.raises(GGUFError, match=r"is part 2 of 4; name the first part 'x-00001-of-00004"):
        GGUFFile(split[1])
    with pytest.raises(GGUFError, match="is part 2 of 4; name the first part instead"):
        GGUFFile(split[1].rename(split[1].with_name("y.gguf")))


def test_a_renamed_first_part(split: list[Path]) -> None:
    with pytest.raises(GGUFError, match=r"must end in -00001-of-00004.gguf"):
        GGUFFile(split[0].rename(split[0].with_name("y.gguf")))


@pytest.mark.parametrize(
    ("key", "kind", "value", "message"),
    [
        ("split.no", "<H", 3, "does not belong to .*: split.no is 3, want 1"),
        ("split.count", "<H", 5, "split.count is 5, want 4"),
        ("split.tensors.count", "<i", 1, "split.tensors.count is 1, want 18"),
    ],
)
def test_parts_of_another_model(
    split: list[Path], key: str, kind: str, value: int, message: str
) -> None:
    patch(split[1], key, kind, value)
    with pytest.raises(GGUFError, match=message):
        GGUFFile(split[0])


def test_a_part_that_is_no_part(split: list[Path]) -> None:
    write_gguf(split[1], {}, {}, arch=None)
    with pytest.raises(GGUFError, match=r"split.no is missing, want 1"):
        GGUFFile(split[0])


def test_parts_that_contradict_each_other(split: list[Path]) -> None:
    keys = {"split.no": np.uint16(1), "split.count": np.uint16(4), "split.tensors.count": 18}
    with GGUFFile(split[0]) as f:
        names = [n for n, info in f.tensors.items() if info.part == 1]
        tensors = {
            n: (f.tensor_bytes(n).tobytes(), f.tensors[n].type, f.tensors[n].ne) for n in names
        }
    write_gguf(split[1], {"general.architecture": "llama", **keys}, tensors)
    GGUFFile(split[0]).close()  # an equal duplicate is legal
    write_gguf(split[1], {"general.architecture": "gpt2", **keys}, tensors)
    with pytest.raises(GGUFError, match=r"general.architecture is 'gpt2', there it is 'llama'"):
        GGUFFile(split[0])
    write_gguf(split[1], {"ids.i32": "a text", **keys}, tensors, arch=None)
    with pytest.raises(GGUFError, match=r"ids.i32 is 'a text', there it is array"):
        GGUFFile(split[0])
    double = dict(zip(["weight", *names[1:]], tensors.values(), strict=True))
    write_gguf(split[1], keys, double, arch=None)
    with pytest.raises(GGUFError, match="tensor 'weight' is in an earlier part too"):
        GGUFFile(split[0])
    write_gguf(split[1], keys, dict(list(tensors.items())[:4]), arch=None)
    with pytest.raises(GGUFError, match=r"its 4 parts hold 17 tensors, split.tensors.count is 18"):
        GGUFFile(split[0])


def test_a_count_of_another_type(tmp_path: Path) -> None:
    write_gguf(tmp_path / "x.gguf", {"split.count": "four"}, {})
    with pytest.raises(GGUFError, match=r"'split.count' is STRING, expected an integer"):
        GGUFFile(tmp_path / "x.gguf")


@pytest.mark.model
def test_the_demo_model_in_parts(tmp_path: Path) -> None:
    path = demo_model()
    with GGUFFile(path) as f:
        plans = plan_split(f, tmp_path / "d", max_bytes=30_000_000)
        write_split(f, plans)
    with GGUFFile(plans[0].path) as f:
        merge(f, tmp_path / "whole.gguf")
    with GGUFFile(tmp_path / "whole.gguf") as ours, GGUFFile(path) as theirs:
        assert ours.parts[0].data.tobytes() == theirs.parts[0].data.tobytes()
