"""``pyllama-gguf set|new``, against gguf-py's scripts."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from pyggml.gguf import GGUFFile, write_gguf

from ..tiers import some
from .gguf_tool import run, script, write_tiny

TEMPLATES = [{"name": "default", "template": "a"}, {"name": "tool use", "template": "b"}]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny(tmp_path_factory.mktemp("tiny") / "tiny.gguf")


@pytest.fixture
def copy(tiny: Path, tmp_path: Path) -> Path:
    (tmp_path / "y.gguf").write_bytes(tiny.read_bytes())
    return tmp_path / "y.gguf"


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("llama.context_length", "77"),
        ("llama.rope.freq_base", "0.25"),
        ("llama.rope.freq_base", "-0.25"),
    ],
)
def test_set_matches_the_gguf_package(copy: Path, tmp_path: Path, key: str, value: str) -> None:
    theirs = tmp_path / "theirs.gguf"
    theirs.write_bytes(copy.read_bytes())
    script("gguf_set_metadata", "--force", theirs, key, value)
    out = run("set", "--force", copy, key, value).stdout
    assert f"-> {value}" in out
    assert copy.read_bytes() == theirs.read_bytes()


def test_set_confirmation_and_dry_run(copy: Path) -> None:
    before, key = copy.read_bytes(), "tokenizer.ggml.add_bos_token"
    assert "True -> False" in run("set", "--dry-run", copy, key, "false").stdout
    for answer in ("yes\n", ""):  # the second: no input
        result = run("set", copy, key, "false", input=answer, code=1)
        assert "the answer was not YES; use --force to skip the question" in result.stderr
        assert copy.read_bytes() == before
    assert run("set", copy, key, "true").stdout == f"{key} is True already\n"
    told = run("set", "--verbose", copy, key, "true").stderr
    assert told == "--verbose is ignored: the change is always printed\n"
    run("set", copy, key, "false", input="YES\n")
    after = copy.read_bytes()
    assert len(after) == len(before)
    assert sum(a != b for a, b in zip(after, before, strict=True)) == 1


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("llama.context_length", "x", "'x' is not a number of type UINT32"),
        ("llama.context_length", "4294967296", "does not fit UINT32"),
        ("llama.context_length", "-1", "does not fit UINT32"),
        ("tokenizer.ggml.add_bos_token", "1", "'1' is not true or false"),
        ("general.architecture", "gpt2", "only numbers and bools"),
        ("tokenizer.ggml.tokens", "1", "is of type ARRAY, only numbers"),
        ("no.such.key", "1", "there is no metadata key 'no.such.key'"),
    ],
)
def test_set_refuses_bad_values(copy: Path, key: str, value: str, message: str) -> None:
    before = copy.read_bytes()
    assert message in run("set", "--force", copy, key, value, code=1).stderr
    assert copy.read_bytes() == before


def test_set_refuses_keys_of_the_file_layout(copy: Path, tmp_path: Path) -> None:
    write_gguf(tmp_path / "z.gguf", {"general.alignment": 64}, {})
    result = run("set", "--force", tmp_path / "z.gguf", "general.alignment", "32", code=1)
    assert "describes the layout of the file" in result.stderr
    run("set", "--force", copy, "llama.context_length", "--", "-1", code=1)


@pytest.mark.parametrize(
    "args",
    some(
        [
            ["--general-name", "Mine", "--general-description", "Ours"],
            ["--chat-template", "new"],
            ["--chat-template", json.dumps(TEMPLATES)],
            ["--chat-template-file", "chat.jinja", "--pre-tokenizer", "llama-bpe"],
            ["--chat-template-config", "config.json"],
            ["--remove-metadata", "llama.rope.freq_base"],
            ["--special-token", "eos", "<0x0A>", "--special-token-by-id", "padding", "7"],
        ],
        4,
    ),
    ids=lambda args: args[0][2:],
)
def test_new_matches_the_gguf_package(
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
        (
            ["--set", "split.count=u16:3"],
            "describes the split of a file: use pyllama-gguf split or",
        ),
        (["--set", "general.alignment=u32:2147483648"], "must be a power of two from 8 to 2097152"),
        (["--special-token", "bos", "no such token"], "no token of the vocabulary is"),
        (["--special-token-by-id", "bos", "261"], "there is no token 261, the vocabulary has 261"),
        (["--special-token-by-id", "boss", "1"], "unknown special token 'boss'"),
        (["--chat-template", "[x"], "--chat-template is not JSON"),
        (["--chat-template", '[{"name": "x"}]'], "needs a name and a template"),
        (["--chat-template", "[1]"], "needs a name and a template"),
        (
            ["--chat-template", '[{"name": "x", "template": "\\ud800"}]'],
            "this text cannot be encoded as UTF-8",
        ),
    ],
)
def test_new_refuses_bad_arguments(
    tiny: Path, tmp_path: Path, args: list[str], message: str
) -> None:
    ours = args[0] == "--set" and "alignment" not in args[1]
    code = 2 if ours or "JSON" in message else 1  # a wrong command line is 2
    assert message in run("new", tiny, tmp_path / "out.gguf", *args, code=code).stderr
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("text", "code", "message"),
    [
        (b'{"chat_template": 5}', 1, "a chat template is 5, must be a text or a list"),
        (b'{"chat_template": ["x"]}', 1, "needs a name and a template"),
        (b"\xff", 2, "config.json is not UTF-8"),
    ],
)
def test_new_refuses_bad_configs(
    tiny: Path, tmp_path: Path, text: bytes, code: int, message: str
) -> None:
    (tmp_path / "config.json").write_bytes(text)
    args = ("--chat-template-config", tmp_path / "config.json")
    assert message in run("new", tiny, tmp_path / "out.gguf", *args, code=code).stderr
    assert [p.name for p in tmp_path.iterdir()] == ["config.json"]
