"""Vocabularies of folders: ids as of sentencepiece and tokenizers, special tokens, and damage."""

from __future__ import annotations

import io
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import sentencepiece

from pyllama.convert.files.folder import Folder
from pyllama.convert.tokens.vocabulary import read_vocabulary
from pyllama.errors import PyllamaError
from pyllama.tokenizer import load_tokenizer
from pyllama.tokenizer.pretokenizers import PRE_TOKENIZERS

from ..encoders.texts import TEXTS
from ..tokenizer.vocabularies import DATA, cases

CONTROL, USER_DEFINED, UNUSED = 3, 4, 5
P = "tokenizer.ggml."


def vocabulary_of(
    folder: Path, config: dict[str, Any], add_bos: bool | None = None
) -> dict[str, Any]:
    """The keys of the folder in its present state."""
    return read_vocabulary(Folder(folder), config, add_bos)


def put(folder: Path, name: str, value: Any) -> None:
    (folder / name).write_text(value if isinstance(value, str) else json.dumps(value))


def spm(folder: Path) -> Path:
    shutil.copyfile(DATA / "llama" / "tokenizer.model", folder / "tokenizer.model")
    return folder


def bpe(folder: Path, *names: str) -> Path:
    for name in names or ("tokenizer.json",):
        shutil.copyfile(DATA / "gpt2" / name, folder / name)
    return folder


def edited(folder: Path, **parts: Any) -> Path:
    """Write gpt2's tokenizer.json with some parts replaced; return the folder."""
    root = json.loads((bpe(folder) / "tokenizer.json").read_text())
    put(folder, "tokenizer.json", {**root, **parts})
    return folder


def encode(keys: dict[str, Any], text: str, **how: bool) -> list[int]:
    return load_tokenizer(keys).encode(text, **{"add_special": False, "parse_special": False} | how)


def test_sentencepiece(tmp_path: Path) -> None:
    keys = vocabulary_of(spm(tmp_path), {"vocab_size": 512, "bos_token_id": 1})
    for text, ids in cases("llama"):
        assert encode(keys, text) == ids
    assert keys[P + "token_type"][:5] == [2, 3, 3, 6, 6] and keys[P + "scores"][300] == -41
    roles = {role: keys[f"{P}{role}_token_id"] for role in ("bos", "eos", "unknown")}
    assert roles == {"bos": 1, "eos": 2, "unknown": 0} and f"{P}padding_token_id" not in keys
    assert encode(keys, "a", add_special=True)[0] == 1  # the default, not stored in the file


@pytest.fixture(scope="module")
def unigram() -> dict[str, bytes]:
    """Unigram models by file name, trained on the texts of encoders' tests."""
    found = {}
    for name, ids in (
        ("spiece.model", {"pad_id": 0, "eos_id": 1, "unk_id": 2, "bos_id": -1}),
        ("sentencepiece.bpe.model", {"unk_id": 0, "bos_id": 1, "eos_id": 2}),
    ):
        file = io.BytesIO()
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(TEXTS * 4), model_writer=file, vocab_size=220, **ids,
            hard_vocab_limit=False, minloglevel=2, normalization_rule_name="nmt_nfkc",
        )  # fmt: skip
        found[name] = file.getvalue()
    return found


@pytest.mark.parametrize("name", ["spiece.model", "sentencepiece.bpe.model"])
def test_unigram_of_sentencepiece(tmp_path: Path, unigram: dict[str, bytes], name: str) -> None:
    """T5's ids are sentencepiece's, XLM-RoBERTa's those of transformers."""
    (tmp_path / name).write_bytes(unigram[name])
    model = sentencepiece.SentencePieceProcessor(model_proto=unigram[name])
    n = model.GetPieceSize()
    keys = vocabulary_of(tmp_path, {"vocab_size": n + 2})
    first, last = ([], [1]) if name == "spiece.model" else ([0], [2])
    for text in TEXTS:
        ids = model.EncodeAsIds(text)
        if first:
            ids = [{0: 3, 1: 0, 2: 2}.get(i, i + 1) for i in ids]
        assert encode(keys, text) == ids
        assert encode(keys, text, add_special=True) == [*first, *ids, *last]
    assert keys[P + "model"] == "t5" and keys[P + "padding_token_id"] == len(first)
    assert keys[P + "token_type"][n + 1] == (CONTROL if first else UNUSED)
    if first:
        with pytest.raises(PyllamaError, match=f"{name} has another form"):
            vocabulary_of(tmp_path, {"model_type": "camembert"})


def test_sentencepiece_with_fields_that_it_does_not_know(
    tmp_path: Path, unigram: dict[str, bytes]
) -> None:
    """Fields of other types, which SentencePiece skips, do not hide its own."""
    data = unigram["spiece.model"]
    group, number, fixed = b"\xa3\x06\x08\x01\xa4\x06", b"\x10\x05\x18\x05", b"\xad\x06abcd"
    found = []
    for end in (b"", group, number, fixed):
        (tmp_path / "spiece.model").write_bytes(data + end)
        found.append(vocabulary_of(tmp_path, {}))
        assert list(found[-1]) == list(found[0])
        assert encode(found[-1], TEXTS[0]) == encode(found[0], TEXTS[0])


@pytest.mark.parametrize("names", [["tokenizer.json"], ["vocab.json", "merges.txt"]])
def test_bpe(tmp_path: Path, names: list[str]) -> None:
    config = {"vocab_size": 512, "bos_token_id": 2, "eos_token_id": 2, "pad_token_id": 1}
    keys = vocabulary_of(bpe(tmp_path, *names), config)
    for text, ids in cases("gpt2"):
        if "tokenizer.json" in names or "<s>" not in text:  # special only in tokenizer.json
            assert encode(keys, text, parse_special=True) == ids
    assert keys[P + "model"] == "gpt2" and keys[P + "pre"] == "gpt-2"
    assert [keys[P + "token_type"][i] for i in (1, 2, 5)] == [CONTROL, CONTROL, 1]
    assert encode(keys, "a</s>", parse_special=True)[-1] == 2
    assert keys[P + "padding_token_id"] == 1 and f"{P}add_bos_token" not in keys
    assert f"{P}scores" not in keys


def test_merges_as_pairs_as_text_and_with_spaces(tmp_path: Path) -> None:
    root = json.loads((bpe(tmp_path) / "tokenizer.json").read_text())
    pairs = root["model"]["merges"]
    whole = vocabulary_of(tmp_path, {})
    for merges in ([" ".join(pair) for pair in pairs], [*pairs[:-1], ["Ġ x", "y"]]):
        keys = vocabulary_of(edited(tmp_path, model=root["model"] | {"merges": merges}), {})
        assert keys[P + "merges"][:-1] == whole[P + "merges"][:-1]
    assert keys[P + "merges"][-1] == "ĠĠx y"


def test_sentencepiece_model_as_tokenizer_json(tmp_path: Path) -> None:
    keys = vocabulary_of(spm(tmp_path), {})
    vocab = {text: i for i, text in enumerate(keys[P + "tokens"])}
    scores = dict(zip(keys[P + "tokens"], keys[P + "scores"], strict=True))
    pairs = [  # derived as in transformers
        (text[:cut], text[cut:])
        for text in sorted(vocab, key=lambda text: -scores[text])
        for cut in range(1, len(text))
        if text[:cut] in vocab and text[cut:] in vocab
    ]
    root = {
        "added_tokens": [
            {"id": 1, "content": "<s>", "special": True, "normalized": False},
            {"id": 2, "content": "</s>", "special": True, "normalized": False},
        ],
        "normalizer": {
            "type": "Sequence",
            "normalizers": [
                {"type": "Prepend", "prepend": "▁"},
                {"type": "Replace", "pattern": {"String": " "}, "content": "▁"},
            ],
        },
        "decoder": {"type": "Sequence", "decoders": [{"type": "ByteFallback"}]},
        "model": {
            "type": "BPE", "byte_fallback": True, "unk_token": "<unk>", "vocab": vocab,
            "merges": [" ".join(pair) for pair in pairs],
        },
    }  # fmt: skip
    (tmp_path / "tokenizer.model").unlink()
    put(tmp_path, "tokenizer.json", root)
    again = vocabulary_of(tmp_path, {"bos_token_id": 1})
    assert again[P + "model"] == "llama" and again[P + "add_space_prefix"]
    assert again[P + "token_type"] == keys[P + "token_type"]
    for text, ids in cases("llama"):
        assert encode(again, text) == ids
    del root["normalizer"]["normalizers"][0]  # type: ignore[attr-defined]
    put(tmp_path, "tokenizer.json", root)
    assert not vocabulary_of(tmp_path, {})[P + "add_space_prefix"]


def test_added_tokens(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    spm(tmp_path)
    put(tmp_path, "added_tokens.json", {"<a>": 512, "<|b|>": 513, "far": 600})
    decoder = {
        "514": {"content": "▁c", "special": False},
        "515": {"content": "d", "special": True},
        "512": {"content": "<A>", "special": False},
    }
    put(tmp_path, "tokenizer_config.json", {"added_tokens_decoder": decoder})
    keys = vocabulary_of(tmp_path, {"vocab_size": 520})
    assert keys[P + "tokens"][512:517] == ["<A>", "<|b|>", " c", "d", "[PAD516]"]
    wanted = [USER_DEFINED, CONTROL, USER_DEFINED, CONTROL, UNUSED]
    assert keys[P + "token_type"][512:517] == wanted
    assert keys[P + "scores"][512] == -1000 and len(keys[P + "tokens"]) == 520
    assert "600 'far' has no weights" in caplog.text
    assert encode(keys, "x<A>")[-1] == 512


def test_priority_of_special_token_sources(tmp_path: Path) -> None:
    bpe(tmp_path)
    config = {"vocab_size": 512, "bos_token_id": 0, "eos_token_id": [0, 2], "sep_token_id": -1}
    assert vocabulary_of(tmp_path, config)[P + "bos_token_id"] == 0
    put(tmp_path, "special_tokens_map.json", {"bos_token": "<pad>", "unk_token": "<unk>"})
    assert vocabulary_of(tmp_path, config)[P + "bos_token_id"] == 1
    settings: dict[str, Any] = {"bos_token": {"content": "</s>"}, "eos_token": "no such token"}
    put(tmp_path, "tokenizer_config.json", settings)
    put(tmp_path, "generation_config.json", {"eos_token_id": [300, 301], "pad_token_id": 1})
    keys = vocabulary_of(tmp_path, config)
    roles = {key: keys.get(f"{P}{key}_token_id") for key in ("bos", "eos", "eot", "eom")}
    assert roles == {"bos": 2, "eos": 0, "eot": 300, "eom": 301}
    assert keys[P + "unknown_token_id"] == 3 and keys[P + "padding_token_id"] == 1
    assert f"{P}seperator_token_id" not in keys
    tokenizer = load_tokenizer(keys)
    assert all(tokenizer.is_eog(i) for i in (0, 2, 300, 301))  # 2: by its text, </s>


def template(*parts: str) -> dict[str, Any]:
    single = [
        {"Sequence": {"id": "A", "type_id": 0}} if part == "A" else {"SpecialToken": {"id": part}}
        for part in parts
    ]
    return {"type": "Sequence", "processors": [{"type": "TemplateProcessing", "single": single}]}


def test_add_bos_and_add_eos(tmp_path: Path) -> None:
    config = {"vocab_size": 512, "bos_token_id": 2}

    def flags() -> list[bool | None]:
        keys = vocabulary_of(tmp_path, config, add_bos=None)
        return [keys.get(f"{P}add_{role}_token") for role in ("bos", "eos")]

    edited(tmp_path)
    assert flags() == [None, None]
    assert encode(vocabulary_of(tmp_path, config, add_bos=True), "a", add_special=True)[0] == 2
    edited(tmp_path, post_processor=template("</s>", "A"))
    assert flags() == [True, None]
    edited(tmp_path, post_processor=template("</s>", "A", "<pad>"))
    config["eos_token_id"] = 1
    assert flags() == [True, True]
    put(tmp_path, "tokenizer_config.json", {"add_bos_token": False})
    assert flags() == [False, True]
    assert vocabulary_of(tmp_path, config, add_bos=True)[P + "add_bos_token"] is False


def test_chat_templates(tmp_path: Path) -> None:
    bpe(tmp_path)
    put(tmp_path, "chat_template.json", {"chat_template": "json"})
    assert vocabulary_of(tmp_path, {})["tokenizer.chat_template"] == "json"
    put(tmp_path, "chat_template.jinja", "jinja é")
    assert vocabulary_of(tmp_path, {})["tokenizer.chat_template"] == "jinja é"
    put(tmp_path, "tokenizer_config.json", {"chat_template": "config"})
    assert vocabulary_of(tmp_path, {})["tokenizer.chat_template"] == "config"
    several = [{"name": "default", "template": "a"}, {"name": "tool use", "template": "b"}]
    put(tmp_path, "tokenizer_config.json", {"chat_template": several})
    keys = vocabulary_of(tmp_path, {})
    assert keys["tokenizer.chat_template"] == "a"
    assert keys["tokenizer.chat_template.tool_use"] == "b"
    assert keys["tokenizer.chat_templates"] == ["tool_use"]
    by_name = {"default": "a", "rag": "c"}
    put(tmp_path, "tokenizer_config.json", {"chat_template": by_name})
    keys = vocabulary_of(tmp_path, {})
    assert keys["tokenizer.chat_template"] == "a"
    assert keys["tokenizer.chat_template.rag"] == "c"


def test_files_of_additional_chat_templates(tmp_path: Path) -> None:
    """As transformers writes them beside chat_template.jinja."""
    (spm(tmp_path) / "additional_chat_templates").mkdir()
    put(tmp_path, "chat_template.jinja", "main")
    for name, text in {"tool_use": "tools", "a-b": "ab", "default": "no"}.items():
        put(tmp_path, f"additional_chat_templates/{name}.jinja", text)
    put(tmp_path, "additional_chat_templates/README.md", "no template")
    keys = vocabulary_of(tmp_path, {})
    assert {k: v for k, v in keys.items() if "chat_template" in k} == {
        "tokenizer.chat_template": "main",
        "tokenizer.chat_template.a_b": "ab",
        "tokenizer.chat_template.tool_use": "tools",
        "tokenizer.chat_templates": ["a_b", "tool_use"],
    }
    (tmp_path / "additional_chat_templates" / "tool_use.jinja").write_bytes(b"\xff\xfa")
    with pytest.raises(PyllamaError, match=r"tool_use\.jinja: not UTF-8"):
        vocabulary_of(tmp_path, {})


def test_a_byte_order_mark_is_not_part_of_a_text(tmp_path: Path) -> None:
    mark = b"\xef\xbb\xbf"
    bpe(tmp_path, "vocab.json", "merges.txt")
    wanted = vocabulary_of(tmp_path, {})
    for name in ("vocab.json", "merges.txt"):
        (tmp_path / name).write_bytes(mark + (tmp_path / name).read_bytes())
    (tmp_path / "chat_template.jinja").write_bytes(mark + b"x")
    assert vocabulary_of(tmp_path, {}) == wanted | {"tokenizer.chat_template": "x"}


BAD_JSON = {
    "not JSON": ("{", "not JSON"),
    "no object": ([], "JSON list, expected an object"),
    "no model": ({}, "the tokenizer's type is None"),
    "another model": (
        {"model": {"type": "WordLevel"}},
        "type is 'WordLevel'; supported are BPE, SentencePiece, Unigram and WordPiece",
    ),
    "no pieces": ({"model": {"type": "Unigram"}}, "it has no vocabulary"),
    "a piece without a score": (
        {"model": {"type": "Unigram", "vocab": [["a"]]}},
        "token 0 is \\['a'\\], not a text and a score",
    ),
    "a score without end": (
        '{"model": {"type": "Unigram", "vocab": [["a", 1e999]]}}',
        "token 0 is \\['a', inf\\], not a text and a score",
    ),
    "a score of many digits": (
        {"model": {"type": "Unigram", "vocab": [["a", 10**400]]}},
        "not a text and a score",
    ),
    "no words": ({"model": {"type": "WordPiece"}}, "it has no vocabulary"),
    "no vocabulary": ({"model": {"vocab": []}}, "it has no vocabulary"),
    "an id of text": ({"model": {"vocab": {"a": "b"}}}, "token 'a' has the id 'b'"),
    "a huge id": ({"model": {"vocab": {"a": 2**40}}}, "has the id 1099511627776"),
    "the same id": ({"model": {"vocab": {"a": 0, "b": 0}}}, "'a' and 'b' have the id 0"),
    "a merge of one": ({"model": {"vocab": {"a": 0}, "merges": ["a"]}}, "'a' is not two symbols"),
    "no merges": (
        {"model": {"vocab": {"a": 0}, "merges": 5}},
        "this BPE is neither byte-level nor SentencePiece",
    ),
    "a merge of numbers": ({"model": {"vocab": {"a": 0}, "merges": [[1, 2]]}}, "is not two sym"),
    "neither bytes nor pieces": (
        {"model": {"vocab": {"a": 0}}},
        "this BPE is neither byte-level nor SentencePiece",
    ),
}


@pytest.mark.parametrize(("value", "message"), BAD_JSON.values(), ids=BAD_JSON)
def test_invalid_tokenizer_json_is_refused(tmp_path: Path, value: Any, message: str) -> None:
    put(tmp_path, "tokenizer.json", value)
    with pytest.raises(PyllamaError, match=message) as error:
        vocabulary_of(tmp_path, {})
    assert str(error.value).startswith(str(tmp_path)) and "\n" not in str(error.value)


def test_invalid_vocabularies_are_refused(tmp_path: Path) -> None:
    def refused(message: str, **config: Any) -> None:
        with pytest.raises(PyllamaError, match=message):
            vocabulary_of(tmp_path, config)

    refused("there is no vocabulary: no tokenizer.model")
    put(tmp_path, "spiece.model", {})
    refused("; spiece.model has another form, which cannot be converted")
    (tmp_path / "spiece.model").unlink()
    bpe(tmp_path)
    refused("has the token 511, but vocab_size in config.json is 500", vocab_size=500)
    refused("vocab_size is 'x'", vocab_size="x")
    refused("vocab_size is 1099511627776", vocab_size=2**40)
    put(tmp_path, "tokenizer.model", "\nnot a model")
    refused("tokenizer.model: is damaged", vocab_size=512)
    put(tmp_path, "tokenizer.model", "IQ== 0\n")  # tiktoken's; tokenizer.json is used
    assert vocabulary_of(tmp_path, {})[P + "model"] == "gpt2"
    (tmp_path / "tokenizer.json").unlink()
    bpe(tmp_path, "vocab.json", "merges.txt")
    (tmp_path / "merges.txt").write_bytes(b"\xff\xff")
    refused("merges.txt: not UTF-8")


ODD: tuple[Any, ...] = (None, 1, "x", [], [1], [[]], {}, {"x": 1}, {"id": 1, "content": 2})


@pytest.mark.parametrize("odd", ODD, ids=repr)
def test_unexpected_values_in_settings_are_ignored(tmp_path: Path, odd: Any) -> None:
    names = (
        "added_tokens_decoder",
        "bos_token",
        "eos_token_id",
        "add_bos_token",
        "chat_template",
    )
    parts = ("added_tokens", "post_processor", "normalizer", "pre_tokenizer")
    edited(tmp_path, **dict.fromkeys(parts, odd))
    for name in ("tokenizer_config.json", "special_tokens_map.json", "generation_config.json"):
        put(tmp_path, name, dict.fromkeys(names, odd))
    put(tmp_path, "added_tokens.json", {"x": odd})
    keys = vocabulary_of(tmp_path, dict.fromkeys(names, odd))
    assert len(keys[P + "tokens"]) == 512


@pytest.mark.parametrize("odd", [*ODD, [{"Sequence": 1}, 2], [{"SpecialToken": 1}] * 2], ids=repr)
def test_unexpected_values_in_nested_settings_are_ignored(tmp_path: Path, odd: Any) -> None:
    processor = {"type": "TemplateProcessing", "single": odd}
    edited(
        tmp_path,
        post_processor={"processors": [processor, odd]},
        normalizer={"type": odd, "content": odd, "normalizers": odd},
    )
    assert len(vocabulary_of(tmp_path, {})[P + "tokens"]) == 512
    edited(tmp_path, post_processor={"processors": odd}, pre_tokenizer={"pretokenizers": odd})
    assert len(vocabulary_of(tmp_path, {})[P + "tokens"]) == 512


def test_the_pretokenizer_is_recognised(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    digits = {"type": "Digits", "individual_digits": True}
    spelt = {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True}
    smollm = {"type": "Sequence", "pretokenizers": [digits, spelt]}
    keys = vocabulary_of(edited(tmp_path, pre_tokenizer=smollm), {})
    regexes = PRE_TOKENIZERS["smollm"].regexes
    assert PRE_TOKENIZERS[keys[P + "pre"]].regexes == regexes
    assert not caplog.text
    keys = vocabulary_of(edited(tmp_path, pre_tokenizer=smollm | {"type": "Mine"}), {})
    assert "Mine" in caplog.text and keys[P + "pre"] in PRE_TOKENIZERS


def test_rwkv(tmp_path: Path) -> None:
    """Special tokens are those of the vocabulary, whatever config.json says."""
    escaped = [b"\\'\"", b"\xe6\xbc\xa2", b"  a"]
    tokens = [*(bytes([i]) for i in range(256)), b"\n\n", b"ab", b" b", *escaped]
    lines = [
        f"{i} {token!r} {len(token)}" if token != b" b" else f"{i} ' b' 2"
        for i, token in enumerate(tokens, 1)
    ]
    put(tmp_path, "rwkv_vocab_v20230424.txt", "\n".join([*lines, ""]))
    keys = vocabulary_of(tmp_path, {"vocab_size": 264, "bos_token_id": 1, "eos_token_id": 2})
    assert [keys[f"{P}{role}_token_id"] for role in ("bos", "eos", "eot")] == [0, 0, 257]
    assert keys[f"{P}model"] == "rwkv" and keys[f"{P}tokens"][-1] == "[PAD263]"
    assert keys[f"{P}token_type"] == [CONTROL, *[1] * 262, UNUSED]
    assert "Assistant:" in keys["tokenizer.chat_template"]
    text = "ab b  a漢\\'\"é\n\n"
    assert encode(keys, text) == [258, 259, 262, 261, 260, 196, 170, 257]
    assert load_tokenizer(keys).decode(encode(keys, text)) == text
    for damaged in ("2 'a' 1", "1 a 1", "1 'a' 2", "1 ['a'] 1", "1 'a' 1\n2 b'a' 1", "1"):
        put(tmp_path, "rwkv_vocab_v20230424.txt", damaged)
        with pytest.raises(PyllamaError, match=r"line . is .*download the file again"):
            vocabulary_of(tmp_path, {})
