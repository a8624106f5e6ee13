"""``pyllama-gguf dump|split|merge|hash|validate|diff``, against gguf-py's scripts."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from pyggml.dtype import GGMLType
from pyggml.gguf import GGUFFile, write_gguf

from ..pyggml.gguf.sample import write_sample
from ..pyllama.adapters import write_lora, write_vector
from ..pyllama.models import random_weights, write_model
from .gguf_tool import SPEC, run, script, write_tiny


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_sample(tmp_path_factory.mktemp("sample") / "x.gguf")


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny(tmp_path_factory.mktemp("tiny") / "tiny.gguf")


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


def test_dump_of_a_sparse_model(tmp_path: Path) -> None:
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


def test_powerinfer_magic_is_kept(tiny: Path, tmp_path: Path) -> None:
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


def test_split_refuses_bad_arguments(tiny: Path, tmp_path: Path) -> None:
    for size in ("5", "0M", "-1M", "1K", "1.5G"):
        result = run("split", "--split-max-size", size, tiny, tmp_path / "x", code=2)
        assert "is not a size in M" in result.stderr
    assert "not a prefix of file names" in run("split", tiny, ".", code=1).stderr
    both = ["--split-max-size", "1M", "--split-max-tensors", "3"]
    assert "not both" in run("split", *both, tiny, tmp_path / "x", code=2).stderr


# --- hash -----------------------------------------------------------------------------------------


def test_hashes_match_the_gguf_package(sample: Path) -> None:
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
    assert "cannot be read as a manifest" in gone.stderr


def test_split_files_have_the_hash_of_the_whole(tiny: Path, tmp_path: Path) -> None:
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
    for args, counted in (((), True), (("--no-values",), False)):
        assert ("4 tensors are equal" in run("diff", *args, tiny, other, code=1).stdout) is counted
        assert "0 tensors" not in run("diff", *args, tiny, other, code=1).stdout


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


def test_dump_says_what_an_adapter_changes(tmp_path: Path) -> None:
    terms = {
        "blk.0.attn_q.weight": (np.ones((4, 32), np.float32), np.ones((32, 4), np.float32)),
        "blk.1.ffn_up.weight": (np.ones((8, 32), np.float32), np.ones((48, 8), np.float32)),
    }
    tokens = {"adapter__alora__invocation_tokens": np.array([5, 7], np.uint32)}
    lora = write_lora(tmp_path / "a.gguf", "llama", terms, 16, **tokens)
    said = (
        "LoRA of llama models: alpha 16; rank 4 (blk.0.attn_q.weight), rank 8 "
        "(blk.1.ffn_up.weight); aLoRA, invoked by the tokens 5, 7"
    )
    assert f"* {said}\n" in run("dump", lora).stdout
    assert f"\n{said}\n" in run("dump", "--markdown", lora).stdout
    assert json.loads(run("dump", "--json", lora).stdout)["adapter"] == {
        "kind": "LoRA",
        "architecture": "llama",
        "alpha": 16.0,
        "ranks": {"blk.0.attn_q.weight": 4, "blk.1.ffn_up.weight": 8},
        "invocation_tokens": [5, 7],
    }
    vector = write_vector(tmp_path / "v.gguf", 32, 5)
    assert (
        "* control vector of llama models: directions of layers 1-4\n" in run("dump", vector).stdout
    )
