"""``pyllama-gguf``: what its sub-commands print, write and refuse, against gguf-py's scripts."""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from click.testing import CliRunner, Result

from pyggml.dtype import GGMLType
from pyggml.gguf import GGUFFile, write_gguf
from pyllama_cli.commands.gguf import command

from ..pyggml.gguf.sample import write_sample
from ..pyllama.models import Spec, random_weights, write_model

SPEC = Spec(n_ff=64)
TEMPLATES = [{"name": "default", "template": "a"}, {"name": "tool use", "template": "b"}]


def run(*args: str | Path, code: int = 0, input: str | None = None) -> Result:
    result = CliRunner().invoke(command, [str(arg) for arg in args], input=input)
    assert result.exit_code == code, result.output
    return result


def script(name: str, *args: str | Path) -> str:
    """What one of gguf-py's programs prints."""
    line = [sys.executable, "-m", f"gguf.scripts.{name}", *map(str, args)]
    return subprocess.run(line, capture_output=True, text=True, check=True).stdout


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_sample(tmp_path_factory.mktemp("sample") / "x.gguf")


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tiny") / "tiny.gguf"
    more = {"tokenizer.chat_template": "old", "tokenizer.ggml.add_bos_token": True}
    return write_model(path, SPEC, random_weights(SPEC), GGMLType.Q4_0, more)


@pytest.fixture
def copy(tiny: Path, tmp_path: Path) -> Path:
    (tmp_path / "y.gguf").write_bytes(tiny.read_bytes())
    return tmp_path / "y.gguf"


# --- dump -----------------------------------------------------------------------------------------


def test_dump_as_json_agrees_with_the_gguf_package(sample: Path) -> None:
    ours = json.loads(run("dump", "--json", "--json-array", sample).stdout)
    theirs = json.loads(script("gguf_dump", "--json", "--json-array", sample))
    for key, entry in ours["metadata"].items():
        other = theirs["metadata"][key]
        assert entry["type"] == other["type"]
        assert entry["value"] == other["value"]
        assert entry.get("array_types") == other.get("array_types")
    oracle = {t.name: t for t in gguf.GGUFReader(sample).tensors}
    assert list(ours["tensors"]) == list(oracle)
    for name, t in ours["tensors"].items():
        assert {t["type"]} == {theirs["tensors"][name]["type"]}
        assert t["shape"] == theirs["tensors"][name]["shape"]
        assert (t["offset"], t["bytes"]) == (oracle[name].data_offset, oracle[name].n_bytes)
    assert sum(total["bytes"] for total in ours["types"].values()) == sum(
        int(t.n_bytes) for t in oracle.values()
    )


def test_dump_as_text(sample: Path) -> None:
    out = run("dump", sample).stdout
    assert "all.u1 = [0, 1, 2]" in out and re.search(r"Q4_K +\| +256, +2 +\| +\d+", out)
    assert f"tokens = ['a', '', 'Ġthe', '{'x' * 57}...', '日本', '\\n']" in out
    assert re.search(r"^  all +18 \|", out, re.MULTILINE)
    assert "x" * 300 in run("dump", "--arrays", "--no-tensors", sample).stdout
    assert "q.Q4_K" not in run("dump", "--no-tensors", sample).stdout
    with GGUFFile(sample) as f:
        assert run("dump", "--data-offset", sample).stdout == f"{f.data_offset}\n"
    assert run("dump", "--data-alignment", sample).stdout == "32\n"


def test_dump_of_what_is_sparse(tmp_path: Path) -> None:
    matrix, tensors = np.zeros((4, 8), np.float32), {}
    for i, rank in enumerate((3, 3, 5, 3)):
        tensors[f"blk.{i}.fc1.weight"] = np.zeros((rank, 8), np.float32)
        tensors[f"blk.{i}.ffn_down_t.weight" if i else f"blk.{i}.ffn_down.weight"] = matrix
    keys = {"powerinfer.sparse_threshold": np.float32(0.3)}
    write_gguf(tmp_path / "x.gguf", keys, tensors, magic=b"PWRI")
    wanted = (
        "sparse: threshold 0.3; ffn_down_t in layers 1-3; "
        "predictor ranks 3 (layers 0-1, 3), 5 (layers 2)\n"
    )
    for args in ([], ["--markdown"]):
        out = run("dump", *args, tmp_path / "x.gguf").stdout
        assert wanted in out and "x.gguf: PWRI version 3," in out
    found = json.loads(run("dump", "--json", tmp_path / "x.gguf").stdout)
    assert found["magic"] == "PWRI"
    assert found["sparse"]["predictor_ranks"] == {"0": 3, "1": 3, "2": 5, "3": 3}
    write_gguf(tmp_path / "x.gguf", {"powerinfer.sparse_threshold": ["x"]}, {})
    assert "threshold none; ffn_down_t in layers none" in run("dump", tmp_path / "x.gguf").stdout


def test_dump_as_markdown(sample: Path) -> None:
    out = run("dump", "--markdown", sample).stdout
    tables = [block for block in out.split("\n\n") if block.startswith("|")]
    assert len(tables) == 3
    for table in tables:
        columns = {len(re.findall(r"(?<!\\)\|", line)) for line in table.strip().splitlines()}
        assert len(columns) == 1


def test_a_json_dump_without_arrays_is_short(sample: Path) -> None:
    found = json.loads(run("dump", "--json", "--no-tensors", sample).stdout)
    assert found["metadata"]["tokens"] == {
        "index": list(found["metadata"]).index("tokens"),
        "type": "ARRAY",
        "array_types": ["STRING"],
        "length": 6,
    }
    assert "tensors" not in found


# --- set and new ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "value"),
    [("llama.context_length", "77"), ("llama.rope.freq_base", "0.25")],
)
def test_set_changes_what_the_gguf_package_changes(
    copy: Path, tmp_path: Path, key: str, value: str
) -> None:
    theirs = tmp_path / "theirs.gguf"
    theirs.write_bytes(copy.read_bytes())
    script("gguf_set_metadata", "--force", theirs, key, value)
    out = run("set", "--force", copy, key, value).stdout
    assert f"-> {value}" in out
    assert copy.read_bytes() == theirs.read_bytes()


def test_set_asks_and_can_be_tried(copy: Path) -> None:
    before, key = copy.read_bytes(), "tokenizer.ggml.add_bos_token"
    assert "True -> False" in run("set", "--dry-run", copy, key, "false").stdout
    run("set", copy, key, "false", input="yes\n", code=1)
    assert copy.read_bytes() == before
    assert run("set", copy, key, "true").stdout == f"{key} is True already\n"
    run("set", copy, key, "false", input="YES\n")
    after = copy.read_bytes()
    assert len(after) == len(before)
    assert sum(a != b for a, b in zip(after, before, strict=True)) == 1


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("llama.context_length", "x", "'x' is not a number of type UINT32"),
        ("llama.context_length", "4294967296", "does not fit UINT32"),
        ("tokenizer.ggml.add_bos_token", "1", "'1' is not true or false"),
        ("general.architecture", "gpt2", "only numbers and bools"),
        ("tokenizer.ggml.tokens", "1", "is of type ARRAY, only numbers"),
        ("no.such.key", "1", "there is no metadata key 'no.such.key'"),
    ],
)
def test_what_set_refuses(copy: Path, key: str, value: str, message: str) -> None:
    before = copy.read_bytes()
    assert message in run("set", "--force", copy, key, value, code=1).stderr
    assert copy.read_bytes() == before


def test_set_knows_what_would_break_the_file(copy: Path, tmp_path: Path) -> None:
    write_gguf(tmp_path / "z.gguf", {"general.alignment": 64}, {})
    result = run("set", "--force", tmp_path / "z.gguf", "general.alignment", "32", code=1)
    assert "how the file is laid out" in result.stderr
    run("set", "--force", copy, "llama.context_length", "--", "-1", code=1)


@pytest.mark.parametrize(
    "args",
    [
        ["--general-name", "Mine", "--general-description", "Ours"],
        ["--chat-template", "new"],
        ["--chat-template", json.dumps(TEMPLATES)],
        ["--chat-template-file", "chat.jinja", "--pre-tokenizer", "llama-bpe"],
        ["--chat-template-config", "config.json"],
        ["--remove-metadata", "llama.rope.freq_base"],
        ["--special-token", "eos", "<0x0A>", "--special-token-by-id", "padding", "7"],
    ],
    ids=lambda args: args[0][2:],
)
def test_new_writes_what_the_gguf_package_writes(
    tiny: Path, tmp_path: Path, args: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("chat.jinja").write_text("{{ x }}\n")
    Path("config.json").write_text(json.dumps({"chat_template": "from config"}))
    script("gguf_new_metadata", "--force", *args, tiny, "theirs.gguf")
    run("new", "--force", tiny, "ours.gguf", *args)
    with GGUFFile("ours.gguf") as ours, GGUFFile("theirs.gguf") as theirs:
        assert dict(ours.value_types) == dict(theirs.value_types)
        for key, value in ours.metadata.items():
            assert str(value) == str(theirs.metadata[key])
        assert ours.parts[0].data[ours.data_offset :].tobytes() == (
            theirs.parts[0].data[theirs.data_offset :].tobytes()
        )


def test_new_with_any_key(tiny: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.gguf"
    settings = [
        "a=u8:255", "b=i64:-3", "c=f32:0.5", "d=bool:true", "e=str:x=y:z", "f=[i32]:[1, -2]",
        "g=[str]:[\"p\", \"q\"]", "h=[f64]:[]", "llama.context_length=u32:9",
    ]  # fmt: skip
    result = run("new", tiny, out, "--verbose", *(a for s in settings for a in ("--set", s)))
    assert "added a = " in result.stderr and "changed llama.context_length" in result.stderr
    with GGUFFile(out) as f:
        assert [f.metadata[key] for key in "abcde"] == [255, -3, 0.5, True, "x=y:z"]
        assert [f.value_types[key].name for key in "abc"] == ["UINT8", "INT64", "FLOAT32"]
        assert f.get_numbers("f").tolist() == [1, -2] and list(f.get_strings("g")) == ["p", "q"]
        assert f.get_numbers("h").dtype == np.float64 and f.get_int("llama.context_length") == 9
    before = out.read_bytes()
    run("new", tiny, out, input="no\n", code=1)
    assert out.read_bytes() == before
    run("new", tiny, out, input="YES\n")
    assert out.read_bytes() == tiny.read_bytes()
    aligned = run("new", tiny, out, "--force", "--set", "general.alignment=u32:4096")
    with GGUFFile(out) as f, GGUFFile(tiny) as old:
        assert f.alignment == 4096 and not aligned.stderr
        assert f.tensor_bytes("output_norm.weight").tobytes() == (
            old.tensor_bytes("output_norm.weight").tobytes()
        )


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--set", "k=u8:256"], "256 does not fit UINT8"),
        (["--set", "k=u7:1"], "is not KEY=TYPE:VALUE"),
        (["--set", "k=[u8:1"], "is not KEY=TYPE:VALUE"),
        (["--set", "k=[u8]:1"], "is not a JSON array"),
        (["--set", "k=[str]:[1]"], "not all items are strings"),
        (["--set", "split.count=u16:3"], "says how a file is cut into parts: use `split` or"),
        (["--set", "general.alignment=u32:2147483648"], "must be a power of two from 8 to 2097152"),
        (["--special-token", "bos", "no such token"], "no token of the vocabulary is"),
        (["--special-token-by-id", "bos", "261"], "token 261 is not among the 261"),
        (["--special-token-by-id", "boss", "1"], "no special token is called 'boss'"),
        (["--chat-template", "[x"], "--chat-template is not JSON"),
        (["--chat-template", '[{"name": "x"}]'], "needs a name and a template"),
        (["--chat-template", "[1]"], "needs a name and a template"),
        (["--chat-template", '[{"name": "x", "template": "\\ud800"}]'], "this text has no UTF-8"),
    ],
)
def test_what_new_refuses(tiny: Path, tmp_path: Path, args: list[str], message: str) -> None:
    ours = args[0] == "--set" and "alignment" not in args[1]
    code = 2 if ours or "JSON" in message else 1  # a wrong command line is 2
    assert message in run("new", tiny, tmp_path / "out.gguf", *args, code=code).stderr
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("text", "code", "message"),
    [
        (b'{"chat_template": 5}', 1, "a chat template is 5, want a text or a list"),
        (b'{"chat_template": ["x"]}', 1, "needs a name and a template"),
        (b"\xff", 2, "config.json is not UTF-8"),
    ],
)
def test_configs_that_new_refuses(
    tiny: Path, tmp_path: Path, text: bytes, code: int, message: str
) -> None:
    (tmp_path / "config.json").write_bytes(text)
    args = ("--chat-template-config", tmp_path / "config.json")
    assert message in run("new", tiny, tmp_path / "out.gguf", *args, code=code).stderr
    assert [p.name for p in tmp_path.iterdir()] == ["config.json"]


# --- split and merge ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [["--split-max-tensors", "5"], ["--split-max-size", "1M"], ["--no-tensor-first-split"]],
    ids=lambda options: options[0],
)
def test_split_and_merge(tiny: Path, tmp_path: Path, options: list[str]) -> None:
    plan = run("split", "--dry-run", *options, tiny, tmp_path / "x").stdout
    assert not list(tmp_path.iterdir())
    assert run("split", *options, tiny, tmp_path / "x").stdout == plan
    files = sorted(tmp_path.iterdir())
    assert plan.startswith(f"n_split: {len(files)}\n") and str(files[-1]) in plan
    assert f"{len(files)} parts" in run("merge", "--dry-run", files[0], tmp_path / "y").stdout
    run("merge", files[0], tmp_path / "y")
    assert (tmp_path / "y").read_bytes() == tiny.read_bytes()
    exists = run("merge", files[0], tmp_path / "y", code=1)
    assert "exists: remove it" in exists.stderr


def test_powerinfers_magic_is_kept(tiny: Path, tmp_path: Path) -> None:
    path, first = tmp_path / "p.gguf", tmp_path / "x-00001-of-00004.gguf"
    path.write_bytes(b"PWRI" + tiny.read_bytes()[4:])
    run("set", "--force", path, "llama.context_length", "99")
    run("new", path, tmp_path / "new.gguf", "--general-name", "Mine")
    run("split", "--split-max-tensors", "5", path, tmp_path / "x")
    run("merge", first, tmp_path / "merged.gguf")
    for name in ("p.gguf", "new.gguf", "merged.gguf", first.name, "x-00004-of-00004.gguf"):
        assert (tmp_path / name).read_bytes()[:4] == b"PWRI"
    assert (tmp_path / "merged.gguf").read_bytes() == path.read_bytes()
    assert run("validate", path).stdout == f"{path}: no faults in 20 tensors\n"
    hashes = [run("hash", "--no-layer", p).stdout.split()[1] for p in (tiny, path, first)]
    assert len(set(hashes)) == 1


def test_what_split_refuses(tiny: Path, tmp_path: Path) -> None:
    for size in ("5", "0M", "-1M", "1K", "1.5G"):
        result = run("split", "--split-max-size", size, tiny, tmp_path / "x", code=2)
        assert "is not a number of M" in result.stderr
    assert "no beginning of a file name" in run("split", tiny, ".", code=1).stderr
    both = ["--split-max-size", "1M", "--split-max-tensors", "3"]
    assert "not both" in run("split", *both, tiny, tmp_path / "x", code=2).stderr


# --- hash -----------------------------------------------------------------------------------------


def test_hashes_are_those_of_the_gguf_package(sample: Path) -> None:
    ours = run("hash", "--sha1", "--sha256", "--uuid", sample).stdout.splitlines()
    theirs = script("gguf_hash", sample).splitlines()
    assert [line.split() for line in ours] == [line.split() for line in theirs]
    last = run("hash", "--no-layer", sample).stdout
    assert last == ours[-2] + "\n" and last.startswith("sha256    ")


def test_a_list_of_hashes_is_checked(copy: Path, tmp_path: Path) -> None:
    manifest = tmp_path / "list"
    manifest.write_text(run("hash", "--all", copy).stdout)
    out = run("hash", "--check", manifest, copy).stdout
    assert all(re.fullmatch(r"sha256 .*  -  Ok", line) for line in out.splitlines())
    run("hash", "--xxh64", "--check", manifest, copy)
    data = bytearray(copy.read_bytes())
    data[-100] ^= 1
    copy.write_bytes(data)
    result = run("hash", "--check", manifest, copy, code=1)
    assert result.stdout.count("Mismatch") == 2 and "2 hashes differ" in result.stderr
    manifest.write_text("nothing\n")
    refused = run("hash", "--check", manifest, copy, code=1)
    assert "hash of a file named y.gguf" in refused.stderr
    gone = run("hash", "--check", tmp_path / "none", copy, code=1)
    assert "cannot be read as a list of hashes" in gone.stderr


def test_parts_have_the_hash_of_the_whole(tiny: Path, tmp_path: Path) -> None:
    run("split", "--split-max-tensors", "4", tiny, tmp_path / "x")
    part = min(tmp_path.iterdir())
    one, other = (run("hash", "--no-layer", path).stdout.split()[1] for path in (tiny, part))
    with GGUFFile(tiny) as f:
        data = b"".join(f.tensor_bytes(name).tobytes() for name in f.tensors)
    assert one == other == hashlib.sha256(data).hexdigest()


# --- validate and diff ----------------------------------------------------------------------------


def test_validate(copy: Path, sample: Path, tmp_path: Path) -> None:
    assert run("validate", copy).stdout == f"{copy}: no faults in 20 tensors\n"
    data = copy.read_bytes()
    copy.write_bytes(data[:-40])
    assert "40 bytes are missing" in run("validate", copy, code=1).stdout
    result = run("validate", sample, code=1)  # random blocks, and no model
    assert "note: shapes are not checked" in result.stderr
    assert "tensor 'q.Q4_K'" not in result.stdout or "illegal scale" in result.stdout
    big = b"GGUF\0\0\0\3" + bytes(40)
    (tmp_path / "big.gguf").write_bytes(big)
    assert "big endian" in run("validate", tmp_path / "big.gguf", code=1).stdout


def test_diff(tiny: Path, tmp_path: Path) -> None:
    assert run("diff", tiny, tiny).stdout == "no difference\n"
    run("split", "--split-max-tensors", "4", tiny, tmp_path / "x")
    assert run("diff", tiny, min(tmp_path.iterdir())).stdout == "no difference\n"
    other = tmp_path / "other.gguf"
    weights = random_weights(SPEC)
    weights["blk.0.ffn_up.weight"] = weights["blk.0.ffn_up.weight"] * 2
    del weights["blk.1.ffn_norm.weight"]
    weights["more.weight"] = np.ones(3, np.float32)
    write_model(other, replace(SPEC, n_ctx=9), weights, GGMLType.Q8_0, {"k": "v"})
    out = run("diff", tiny, other, code=1).stdout
    assert "~ llama.context_length: 256 -> 9\n" in out and "+ k = 'v'\n" in out
    assert "- tokenizer.chat_template = 'old'\n" in out and "+ tensor more.weight: F32 [3]\n" in out
    assert "- tensor blk.1.ffn_norm.weight: F32 [32]\n" in out
    assert re.search(r"~ tensor blk.0.attn_q.weight: Q4_0 \[32, 32\] -> Q8_0 .* NMSE 0.00", out)
    found: dict[str, Any] = json.loads(run("diff", "--json", tiny, other, code=1).stdout)
    assert not found["same"] and found["metadata"]["changed"]["llama.context_length"] == [256, 9]
    assert 0.9 < found["values"]["blk.0.ffn_up.weight"]["nmse"] < 1.1
    assert found["tensors"]["equal"] == 4
    quick = json.loads(run("diff", "--json", "--no-values", tiny, other, code=1).stdout)
    assert not quick["values"] and quick["tensors"]["changed"] == found["tensors"]["changed"]


def test_diff_of_types_and_of_the_magic(tmp_path: Path) -> None:
    keys: list[dict[str, Any]] = [{"k": 5, "l": [1], "m": 1}, {"k": np.int8(5), "l": ["1"], "m": 2}]
    for name, metadata, magic in zip("ab", keys, (b"GGUF", b"PWRI"), strict=True):
        write_gguf(tmp_path / name, metadata, {}, magic=magic)
    out = run("diff", tmp_path / "a", tmp_path / "b", code=1).stdout.splitlines()
    assert out[:2] == ["~ magic: GGUF -> PWRI", "~ k: UINT32 5 -> INT8 5"] and "~ m: 1 -> 2" in out
    found = json.loads(run("diff", "--json", tmp_path / "a", tmp_path / "b", code=1).stdout)
    assert found["magic"] == ["GGUF", "PWRI"]
    assert found["metadata"]["types"] == {"k": ["UINT32", "INT8"], "l": ["[INT32]", "[STRING]"]}
    assert found["metadata"]["changed"]["m"] == [1, 2]


def test_bad_files_are_one_line(tmp_path: Path) -> None:
    for args in (["dump"], ["validate"], ["hash"], ["split", "--dry-run"], ["merge", "--dry-run"]):
        more = [tmp_path / "y"] if len(args) > 1 else []
        result = run(*args, tmp_path / "none.gguf", *more, code=1)
        text = result.stdout if args == ["validate"] else result.stderr
        assert "no such file" in text and len(text.strip().splitlines()) == 1
