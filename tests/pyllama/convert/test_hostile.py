"""Small files that try to hang a conversion or to fill the memory: one error line each."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import shutil
import signal
import struct
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from pyggml.errors import PyggmlError
from pyllama.convert import ConvertOptions, convert
from pyllama.convert.files.folder import Folder
from pyllama.convert.files.torch_files import read_torch
from pyllama.convert.model_card import read_card
from pyllama.errors import ModelError
from pyllama.inputs.budget import LIMITS, ReadBudget, shown

from ..models import HF_LLAMA, hf_folder
from ..tokenizer.vocabularies import DATA
from .folders import header, number, state, storage, tensor, text, write_archive

SECONDS, MEMORY, RESIDENT = 10, 1 << 30, 300 << 20
STATUS, PEAK = Path("/proc/self/status"), Path("/proc/self/clear_refs")


class TooLong(BaseException):
    """An error that no code catches."""


@contextlib.contextmanager
def bounded() -> Iterator[None]:
    """Limit additional memory and CPU time.

    Allocations beyond ``MEMORY`` fail. Code may catch that as a damaged file, after it has used
    much memory; therefore ``RESIDENT``, the limit of the resident size, is lower.
    """
    resource = pytest.importorskip("resource")

    def stop(number: int, frame: FrameType | None) -> None:
        raise TooLong(f"more than {SECONDS} s")

    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    before = signal.signal(signal.SIGPROF, stop)
    PEAK.write_text("5")  # resets the peak
    resident = _peak_bytes()
    try:
        resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + MEMORY, hard))
        signal.setitimer(signal.ITIMER_PROF, SECONDS)
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
    taken = _peak_bytes() - resident
    assert taken <= RESIDENT, f"{taken >> 20} MiB"


def _peak_bytes() -> int:
    (line,) = (x for x in STATUS.read_text().splitlines() if x.startswith("VmHWM:"))
    return int(line.split()[1]) << 10


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return hf_folder(tmp_path / "Tiny-Llama-v2")


def edit(folder: Path, name: str, **changes: Any) -> None:
    path = folder / name
    values = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps(values | changes))


# --- pickles and archives -------------------------------------------------------------------------

_REBUILD = b"ctorch._utils\n_rebuild_tensor_v2\n("
_DOUBLED = b"()q\x00" + b"h\x00h\x00\x86q\x00" * 60 + b"t"  # 2 ** 60 tuples, in 360 bytes
_ENDLESS = b"h\x00"  # a reference to the last of them
ONE = {"0": bytes(24), "big": bytes(1 << 20)}


def shared(n: int) -> bytes:
    return state(**{f"w{i}": tensor("0", 6, 0, (6,), (1,)) for i in range(n)})


PICKLES = {
    "a shape that never ends": (
        state(d=_DOUBLED, w=_REBUILD + storage("0", 6) + number(0) + _ENDLESS + b")tR"),
        "has the shape",
    ),
    "strides that never end": (
        state(d=_DOUBLED, w=_REBUILD + storage("0", 6) + number(0) + b")" + _ENDLESS + b"tR"),
        "and strides",
    ),
    "a storage that never ends": (state(d=_DOUBLED, w=_ENDLESS + b"Q"), "is not a storage"),
    "a key that never ends": (
        b"\x80\x02}" + text("d") + _DOUBLED + b"s" + _ENDLESS + b"Ns.", "tuple as a key"
    ),
    "an argument that never ends": (
        state(d=_DOUBLED, w=_REBUILD + _ENDLESS * 4 + b"tR"), "makes a tensor of tuple"
    ),
    "a name with escapes": (state(w=b"c\\q\\ud800\n\\x\n"), "refers to"),
    "a name that does not end": (b"\x80\x02cx", "is damaged"),
    "a function that never ends": (state(d=_DOUBLED, w=_ENDLESS * 2 + b"R"), "calls tuple"),
    "63 MB of dictionaries": (b"\x80\x02" + b"}" * (63 << 20) + b".", "more than 16777216 bytes"),
    "dictionaries": (b"\x80\x02" + b"}" * (15 << 20) + b".",
                     r"\d+ are left of the limit of 8388608"),
    "dictionaries, remembered": (
        b"\x80\x02" + b"}r\xff\xff\xff\x7f" * (2 << 20) + b".", r"values .* are left of"
    ),
    "numbers that hash alike": (
        b"\x80\x02}("
        + b"".join(
            b"\x8a\x0c" + (k * (2**61 - 1)).to_bytes(12, "little") + b"N" for k in range(10**5)
        )
        + b"u.",
        None,
    ),
    "a small file that becomes a large one": (
        state(**{f"w{i}": tensor("big", 1 << 18, 0, (1 << 18,), (1,)) for i in range(2000)}),
        "bytes of the file: not a checkpoint",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("pickled", "message"), PICKLES.values(), ids=PICKLES)
def test_pickles(tmp_path: Path, pickled: bytes, message: str | None) -> None:
    path = write_archive(tmp_path / "x.bin", pickled, ONE)
    with bounded():
        if message is None:
            assert read_torch(path) == {}
            return
        with pytest.raises(ModelError, match=message) as error:
            read_torch(path)
    assert len(str(error.value)) < 400


def archive(path: Path, n_entries: int) -> Path:
    """An archive with the same entry many times in its central directory."""
    entry = struct.pack("<4s4B4H3L5H2L", b"PK\1\2", *(0,) * 18)
    directory = entry * n_entries
    end = struct.pack("<4s4H2LH", b"PK\5\6", 0, 0, 65535, 65535, len(directory), 0, 0)
    path.write_bytes(directory + end)
    return path


def test_archives(tmp_path: Path) -> None:
    with bounded(), pytest.raises(ModelError, match=r"zip directory has more than 8388608"):
        read_torch(archive(tmp_path / "x.bin", 1 << 18))
    with bounded(), pytest.raises(ModelError, match=r"without data.pkl"):
        read_torch(archive(tmp_path / "y.bin", 1 << 17))
    budget = ReadBudget()
    with pytest.raises(ModelError, match="zip directory has more than"):  # one budget for all files
        for _ in range(2):
            with contextlib.suppress(ModelError):
                read_torch(tmp_path / "y.bin", budget)
        read_torch(tmp_path / "y.bin", budget)
    for offset in (2**63 - 1, 2**64 - 1):  # start of an array
        path = write_archive(tmp_path / "z.bin", shared(1), ONE)
        with zipfile.ZipFile(path, "a") as whole:
            whole.getinfo("x/data/0").header_offset = offset
            whole._didModify = True  # type: ignore[attr-defined]
        with bounded(), pytest.raises(ModelError, match=r"not PyTorch's zip|is incomplete"):
            read_torch(path)


# --- JSON -----------------------------------------------------------------------------------------

TWICE = b"{" + b"".join(b'"k%d":0,' % i for i in range(150_000)) + b'"k149999":1}'
DEEP = b'{"x":' + b"[" * 70 + b"]" * 70 + b"}"
MANY = b'{"x":[' + b"{}," * (6 << 20) + b"0]}"
JSON = {
    "a key twice": (TWICE, "the key 'k149999' occurs twice"),
    "levels": (DEEP, "nested too deeply, in more than 64"),
    "endless levels": (b'{"x":' + b"[" * 10**6, "nested too deeply|not JSON"),
    "values": (
        MANY,
        r"needs \d+ values of tables and settings, \d+ are left of the limit of 8388608",
    ),
}


@pytest.mark.parametrize(("data", "message"), JSON.values(), ids=JSON)
@pytest.mark.parametrize(
    "name",
    [
        "config.json",
        "generation_config.json",
        "modules.json",
        "tokenizer_config.json",
        "model.safetensors",
    ],
)
def test_json(folder: Path, name: str, data: bytes, message: str) -> None:
    (folder / name).write_bytes(header(data) if name == "model.safetensors" else data)
    with bounded(), pytest.raises(ModelError, match=message) as error:
        convert(folder)
    assert str(error.value).startswith(f"{folder / name}: ") and len(str(error.value)) < 400


def test_large_files_are_not_read(folder: Path) -> None:
    for name, size in (("config.json", 65), ("tokenizer.model", 17), ("chat_template.jinja", 100)):
        path = folder / name
        before = path.read_bytes() if path.exists() else None
        path.write_bytes(b"\n")
        os.truncate(path, size << 20)
        with bounded(), pytest.raises(ModelError, match=f"{name}: has {size << 20} bytes, at most"):
            convert(folder)
        path.unlink() if before is None else path.write_bytes(before)
    edit(folder, "tokenizer_config.json", chat_template="x" * (2 << 20))
    with bounded(), pytest.raises(ModelError, match="chat template 'default' has 2097152 charac"):
        convert(folder)


def test_file_names_in_an_index(folder: Path) -> None:
    for name in ("../x", "/etc/passwd", "a/b", "", ".", "..", "\0", "x" * 10**6, 5, None, ["x"]):
        index = {"weight_map": {"w": name}}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index))
        with bounded(), pytest.raises(ModelError, match=r"model.safetensors.index.json") as error:
            convert(folder)
        assert len(str(error.value)) < 1000


# --- YAML -----------------------------------------------------------------------------------------


def levels(n: int, width: int) -> str:
    lines = ["a0: &a0 [x, x]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * width)}]" for i in range(1, n)]
    return "\n".join([*lines, f"base_model: *a{n - 1}", f"tags: *a{n - 1}"])


CARDS = {
    "nine levels of nine": levels(9, 9),
    "forty levels of two": levels(40, 2),
    "a million of a long text": f"x: &x {'y' * 16000}\nz: [{'*x, ' * 60_000}]",
    "an endless text": "x: " + "y" * 10**6,
    "endless levels": "x: " + "[" * 10**5,
    "endless anchors": "\n".join(f"x{i}: &a{i} y" for i in range(10**5)),
    "a number to the base of 60": "x: " + "1:" * 10**5 + "1",
    "an endless number": "x: 0x" + "f" * 10**5,
    "keys of keys": "? " * 10**5 + "x",
    "an alias of itself": "x: &x [*x]",
    "many names": f"base_model: [{'x-1,' * 200_000}]\ndatasets: [{'y,' * 100_000}]",
    "many names, but not too many": f"base_model: [{'x-1,' * 15_000}]",
    "names of many parts": f"base_model: [{', '.join(['-' * 8000 + '-a' * 4000] * 30)}]",
    "no end": "x\n" * 10**6,
    "tags": "!!python/object/apply:os.system [x]",
    "an unknown tag": "x: !y [1]\nlicense: !!binary '!'",
}


@pytest.mark.parametrize("card", CARDS.values(), ids=CARDS)
def test_model_cards(folder: Path, card: str) -> None:
    (folder / "README.md").write_text(f"---\n{card}\n---\n")
    with bounded():
        convert(folder, options=ConvertOptions(dry_run=True))


def test_yaml_aliases_are_counted_at_each_use(tmp_path: Path) -> None:
    def card(text: str) -> dict[str, Any]:
        (tmp_path / "README.md").write_text(f"---\n{text}\n---\n")
        return read_card(Folder(tmp_path))

    assert card("a: &a [x, y]\nb: [*a, *a]") == {"a": ["x", "y"], "b": [["x", "y"]] * 2}
    assert card("a: 1.10\nb: no\nc: ~\nd: 'null'\n? [x]\n: 5") == {
        "a": "1.10", "b": "no", "c": None, "d": "null"
    }  # fmt: skip
    assert card("- x") == {} and card("") == {}
    with pytest.raises(
        ModelError, match="more than 1048576 characters and values, aliases expanded"
    ):
        card(levels(40, 2))
    with pytest.raises(ModelError, match="an alias of 'x', which is not defined"):
        card("x: *x")


# --- tokenizer.json -------------------------------------------------------------------------------


def split(pattern: str) -> dict[str, Any]:
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated"}


def replace(pattern: dict[str, str], content: str) -> dict[str, Any]:
    return {"type": "Replace", "pattern": pattern, "content": content}


SLOW = r"(?:.|\s|\p{{L}}|x{})*\p{{So}}\p{{Nd}}\p{{So}}"  # for any number: a time-out on its own
NESTED = "(?:" * 13 + "a" + "){2}" * 13  # compiled to 1 GB, with 16 levels to 19 GB
STEPS: dict[str, tuple[list[Any], list[Any]]] = {
    "nested repeats": ([split(NESTED)], []),
    "a long repeat": ([split("a{4000000000}")], []),
    "repeats of repeats": ([split("(?:" * 30 + "a" + "){2}" * 30)], []),
    "an endless pattern": ([split("a" * 10**6)], []),
    "endless groups": ([split("(" * 5000 + ")" * 5000)], []),
    "ninety slow steps": ([split(SLOW.format(i)) for i in range(90)], []),
    "slow normalizers": ([], [replace({"Regex": SLOW.format(i)}, "") for i in range(90)]),
    "between all characters": ([], [replace({"String": ""}, "x" * 10**6)]),
    "again and again": ([], [replace({"Regex": "."}, "xx")] * 90),
    "a long space": ([{"type": "Metaspace", "replacement": "x" * 10**6}] * 50, []),
    "a long beginning": ([], [{"type": "Prepend", "prepend": "x" * 10**6}] * 50),
    "expanded": ([], [{"type": "NFKC"}, replace({"Regex": "."}, "\ufdfa")] * 50),
    "a type of many levels": ([{"type": [[[[[{"x": "y" * 10**5}]]]]]}] * 100, []),
    "many steps": ([split(str(i)) for i in range(10**5)], []),
}


@pytest.mark.parametrize(("words", "texts"), STEPS.values(), ids=STEPS)
def test_tokenizer_steps(
    folder: Path, words: list[Any], texts: list[Any], caplog: pytest.LogCaptureFixture
) -> None:
    (folder / "tokenizer.model").unlink()
    tokenizer = json.loads((DATA / "gpt2" / "tokenizer.json").read_text())
    steps = [*words, {"type": "ByteLevel"}]
    tokenizer["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": steps}
    tokenizer["normalizer"] = {"type": "Sequence", "normalizers": texts}
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    with bounded(), caplog.at_level(logging.WARNING):
        convert(folder, options=ConvertOptions(dry_run=True))
    assert all(len(record.getMessage()) < 2000 for record in caplog.records)
    assert len(caplog.records) < 5


def test_added_tokens_without_weights_are_one_line(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (folder / "added_tokens.json").write_text(
        json.dumps({f"x{i}": i for i in range(10**9, 10**9 + 5000)} | {"y" * 10**6: -1})
    )
    with bounded(), caplog.at_level(logging.WARNING):
        convert(folder, options=ConvertOptions(dry_run=True))
    (record,) = caplog.records
    assert "1000000000 'x1000000000' has no weights: skipped, and 5000 more" in record.getMessage()


def test_sentencepiece_pieces(folder: Path) -> None:
    path = folder / "tokenizer.model"
    for data in (b"\n\0" * (8 << 20), b"\n\2\n\0" * (3 << 20), b"\n\3\n\1x" * (2 << 20)):
        path.write_bytes(data)
        with bounded(), pytest.raises(PyggmlError, match=r"pieces, the limit is|is damaged|values"):
            convert(folder)


# --- special files --------------------------------------------------------------------------------

SPECIAL = (
    "config.json", "generation_config.json", "tokenizer.model", "tokenizer_config.json",
    "special_tokens_map.json", "added_tokens.json", "tokenizer.json", "chat_template.jinja",
    "model.safetensors", "model.safetensors.index.json",
)  # fmt: skip


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes with names")
@pytest.mark.parametrize("name", SPECIAL)
def test_only_regular_files_are_opened(folder: Path, name: str) -> None:
    path = folder / name
    kinds: dict[str, Callable[[], Any]] = {
        "a pipe": lambda: os.mkfifo(path),
        "a directory": path.mkdir,
        "a device": lambda: path.symlink_to("/dev/zero"),
    }
    for kind, make in kinds.items():
        with contextlib.suppress(FileNotFoundError):
            path.rmdir() if path.is_dir() else path.unlink()
        make()
        with bounded(), pytest.raises(PyggmlError, match=f"{name}: cannot be read: is {kind}, not"):
            convert(folder)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes with names")
def test_readme_and_metadata_must_be_regular_files(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    os.mkfifo(folder / "README.md")
    os.mkfifo(folder / "given.json")
    with bounded():
        convert(folder, options=ConvertOptions(dry_run=True))
        with pytest.raises(ModelError, match=r"given.json: cannot be read: is a pipe, not a regu"):
            convert(folder, options=ConvertOptions(metadata=folder / "given.json"))
    assert "README.md: ignored, since it cannot be read: cannot be read: is a pipe" in caplog.text


# --- the budget -----------------------------------------------------------------------------------


def test_large_values_are_formatted_quickly() -> None:
    doubled: Any = ()
    for _ in range(60):
        doubled = (doubled, doubled)
    assert len(shown(doubled)) <= 80
    assert shown([1, "a", None, 2.5, True]) == "[1, 'a', None, 2.5, True]"
    assert shown((1,)) == "(1)" and shown({"a": [1]}) == "{'a': [1]}" and shown(set()) == "set"
    assert shown("x" * 100) == "'" + "x" * 76 + "..."
    assert shown(10**5000) == "an integer of 16610 bits"
    assert len(shown([["x" * 50] * 50] * 50, 60)) == 60
    assert shown(b"\0" * 10**6, 12) == "b'\\x00\\x0..."


def test_one_budget_for_all_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(LIMITS, "values", LIMITS["values"] // 100)
    data = header(json.dumps({"__metadata__": {str(i): "" for i in range(10**4)}}).encode())
    for i in range(6):
        (tmp_path / f"model-{i}.safetensors").write_bytes(data)
    shutil.copy(HF_LLAMA / "config.json", tmp_path)
    with bounded(), pytest.raises(ModelError, match=r"model-4.safetensors: needs 2\d+ values"):
        convert(tmp_path)


def test_shards_are_searched_once(tmp_path: Path) -> None:
    for i in range(1, 3000):
        (tmp_path / f"model-{i:05d}-of-09999.safetensors").write_bytes(header(b"{}"))
    shutil.copy(HF_LLAMA / "config.json", tmp_path)
    with bounded(), pytest.raises(ModelError, match=r"model-03000-of-09999.safetensors: no such"):
        convert(tmp_path)


def test_long_text_and_arrays_in_config(folder: Path) -> None:
    """Values of config.json that take long to print or to compare."""
    for changes in (
        {"architectures": ["x" * 10**6] * 10},
        {"architectures": [f"x{i}" for i in range(10**5)]},
        {"hidden_act": "x" * 10**6},
        {"hidden_act": ["x"] * 10**5},
        {"hidden_size": "1" * 10**6},
        {"rope_parameters": {"rope_type": "x" * 10**6}},
        {"rope_parameters": ["x"] * 10**5},
        {"quantization_config": {"quant_method": "x" * 10**6}},
        {"vocab_size": 10**400},
    ):
        before = (folder / "config.json").read_bytes()
        edit(folder, "config.json", **changes)
        with bounded(), pytest.raises(PyggmlError) as error:
            convert(folder)
        assert len(str(error.value)) < 1500
        (folder / "config.json").write_bytes(before)
