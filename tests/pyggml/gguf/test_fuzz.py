"""For any bytes the reader succeeds or raises GGUFError, in little time and memory."""

from __future__ import annotations

import random
import struct
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyggml.gguf import GGUFError, GGUFFile, GGUFStrings
from pyggml.gguf.header import parse_header
from tests.pyggml.gguf.sample import demo_model, write_sample
from tests.tiers import only, tenth

BYTES = pytest.mark.parametrize("step", only([10, 1], [10]))  # every tenth place by default
EXAMPLES = pytest.mark.parametrize("count", tenth(400))
INTERESTING = (
    *(0, 1, 2, 7, 8, 9, 31, 32, 63, 64, 255, 256, 65_536, 2**31, 2**32 - 1, 2**40),
    *(2**61, 2**62, 2**63 - 1, 2**63, 2**64 - 9, 2**64 - 8, 2**64 - 1),
)


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return write_sample(tmp_path_factory.mktemp("fuzz") / "sample.gguf").read_bytes()


def outcome(content: bytes | bytearray) -> str:
    """'legal' or 'refused'; other exceptions propagate. Tensors of a legal header are readable."""
    data = np.frombuffer(content, np.uint8)
    try:
        header = parse_header(data, "x")
    except GGUFError as error:
        assert "\n" not in str(error)
        return "refused"
    end = header.data_offset
    for info in header.tensors.values():
        assert info.offset >= end and info.offset % header.alignment == 0
        assert info.nbytes == 0 or info.offset + info.nbytes <= data.size
        assert data[info.offset : info.offset + info.nbytes].size == info.nbytes
        end = info.offset + info.nbytes
    for value in header.metadata.values():
        if isinstance(value, GGUFStrings):
            assert len(value.tolist()) == len(value)
    return "legal"


def header_size(sample: bytes) -> int:
    return parse_header(np.frombuffer(sample, np.uint8), "x").data_offset


@BYTES
def test_every_byte_of_the_header(sample: bytes, step: int) -> None:
    assert outcome(sample) == "legal"
    content, seen = bytearray(sample), set()
    for at in range(0, header_size(sample), step):
        for value in (0, 1, 0x80, 0xFF, sample[at] ^ 1):
            content[at] = value
            seen.add(outcome(content))
            content[at] = sample[at]
    assert seen == {"legal", "refused"}


@BYTES
def test_every_truncation(sample: bytes, step: int) -> None:
    tensors = parse_header(np.frombuffer(sample, np.uint8), "x").tensors.values()
    data_end = max(info.offset + info.nbytes for info in tensors)
    for size in range(0, len(sample), step):
        assert outcome(sample[:size]) == ("legal" if size >= data_end else "refused")


@EXAMPLES
def test_flips(sample: bytes, count: int) -> None:
    places = st.integers(0, len(sample) - 1)

    @settings(max_examples=count)
    @given(st.lists(st.tuples(places, st.integers(0, 255)), max_size=20))
    def check(flips: list[tuple[int, int]]) -> None:
        content = bytearray(sample)
        for at, value in flips:
            content[at] = value
        outcome(content)

    check()


@EXAMPLES
def test_structured(sample: bytes, count: int) -> None:
    """Hostile lengths, counts and types; pieces removed, duplicated and moved."""

    @settings(max_examples=count)
    @given(st.data())
    def check(data: st.DataObject) -> None:
        content = bytearray(sample)
        places = st.integers(0, header_size(sample))
        for _ in range(data.draw(st.integers(1, 4))):
            at, other = data.draw(places), data.draw(places)
            start, end = min(at, other), max(at, other)
            kind = data.draw(st.sampled_from(["u32", "u64", "cut", "double", "move", "insert"]))
            if kind == "u32":
                content[at : at + 4] = struct.pack(
                    "<I", data.draw(st.sampled_from(INTERESTING)) % 2**32
                )
            elif kind == "u64":
                content[at : at + 8] = struct.pack("<Q", data.draw(st.sampled_from(INTERESTING)))
            elif kind == "cut":
                del content[start:end]
            elif kind == "double":
                content[end:end] = content[start:end]
            elif kind == "move":
                content[at : at + 16] = content[other : other + 16]
            else:
                content[at:at] = data.draw(st.binary(max_size=40))
        outcome(content)

    check()


@EXAMPLES
def test_noise_after_a_legal_start(count: int) -> None:
    @settings(max_examples=count)
    @given(st.binary(max_size=300), st.integers(0, 5), st.integers(0, 5))
    def check(noise: bytes, n_tensors: int, n_kv: int) -> None:
        outcome(b"GGUF" + struct.pack("<IQQ", 3, n_tensors, n_kv) + noise)
        outcome(noise)

    check()


@pytest.mark.parametrize("count", tenth(100))
def test_files_and_memory(sample: bytes, tmp_path: Path, count: int) -> None:
    """Damaged files on disk, mapped and read, with a limit of the peak memory."""
    rng, path = random.Random(1), tmp_path / "x.gguf"
    for round in range(count):
        content = bytearray(sample)
        for _ in range(rng.randrange(1, 4)):
            at = rng.randrange(len(content) - 8)
            content[at : at + 8] = struct.pack("<Q", rng.choice(INTERESTING))
        path.write_bytes(content[: rng.choice((None, rng.randrange(len(content))))])
        tracemalloc.start()
        try:
            with GGUFFile(path, mmap=bool(round % 2)) as f:
                for name in f.tensors:
                    f.tensor_bytes(name).sum()
        except GGUFError as error:
            assert str(error).startswith(str(path))
        finally:
            peak = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
        assert peak < (1 << 20) + 4 * len(content)


def test_densest_string_array_costs_little() -> None:
    """Many empty strings: the worst bytes per object that a header can hold."""
    n = 1 << 17
    content = b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 1) + b"a" + struct.pack("<IIQ", 9, 8, n)
    content += bytes(8 * n)
    tracemalloc.start()
    header = parse_header(np.frombuffer(content, np.uint8), "x")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(header.metadata["a"]) == n  # type: ignore[arg-type]
    assert peak < 3 * len(content)


@pytest.mark.model
@pytest.mark.parametrize("count", tenth(150))
def test_flips_in_the_demo_model(count: int) -> None:
    content, rng = bytearray(demo_model().read_bytes()), random.Random(2)
    seen = set()
    for _ in range(count):
        at, n = rng.choice((rng.randrange(3000), rng.randrange(1_785_000))), rng.choice((1, 8))
        saved = content[at : at + n]
        content[at : at + n] = bytes([rng.randrange(256)]) * n
        seen.add(outcome(content))
        content[at : at + n] = saved
    assert seen == {"legal", "refused"}
