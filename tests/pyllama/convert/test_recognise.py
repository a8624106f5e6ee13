"""Recognition of pre-tokenizers by their regexes; sections give the words of `tokenizers`."""

from __future__ import annotations

import json
import re
import unicodedata
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as Reference
from tokenizers import models

from pyllama.convert.tokens.recognise import PROBE, recognise
from pyllama.convert.tokens.tokenizer_json import TextSteps
from pyllama.inputs.budget import ReadBudget
from pyllama.tokenizer.pretokenizers import PRE_TOKENIZERS

from ...tiers import some

SPELL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
GPT2 = SPELL | {"use_regex": True}
DIGITS = {"type": "Digits", "individual_digits": True}
LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
BLOOM = r" ?[^(\s|[.,!?…。，、।۔،])]+"


def split(pattern: str, behavior: str = "Isolated", kind: str = "Regex", **more: Any) -> Any:
    section = {"type": "Split", "pattern": {kind: pattern}, "behavior": behavior, "invert": False}
    return section | more


def sequence(*steps: Any) -> Any:
    return {"type": "Sequence", "pretokenizers": [*steps]}


BY_REGEX = {
    name: pre.regexes if pre.originals is None else pre.originals
    for name, pre in PRE_TOKENIZERS.items()
    if pre.byte_level
}
# what llama.cpp writes as lookahead, at a place without width
BY_REGEX["superbpe"] = (r"\p{N}+", r"(?=(\d{3})+(?!\d))")
# bailingmoe's words are qwen2's: "\s*[\r\n]" takes as much as "\s*[\r\n]+"
SAME = {"bailingmoe": "qwen2", "bailingmoe2": "qwen2", "llada-moe": "qwen2"}


@pytest.mark.parametrize("name", sorted(BY_REGEX))
def test_every_pretokenizer_by_its_regexes(name: str) -> None:
    section = sequence(*map(split, BY_REGEX[name]), SPELL)
    pre = PRE_TOKENIZERS[name]
    found = recognise(section, {"type": "NFC"}, ignore_merges=pre.ignore_merges)
    assert found.warning is None
    expected = PRE_TOKENIZERS[SAME.get(name, name)]
    assert PRE_TOKENIZERS[found.name].regexes == expected.regexes
    assert PRE_TOKENIZERS[found.name].ignore_merges == expected.ignore_merges


@pytest.mark.parametrize(
    ("pre_tokenizer", "normalizer", "name"),
    [
        (GPT2, None, "gpt-2"),
        (sequence(DIGITS, GPT2), None, "starcoder"),
        (sequence(split(BLOOM), SPELL), None, "bloom"),
        (sequence(sequence(split(LLAMA3)), SPELL), None, "smaug-bpe"),
        (
            split(" ", "MergedWithPrevious", "String"),
            {"type": "Replace", "pattern": {"String": " "}, "content": "▁"},
            "gemma4",
        ),
        ({"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always"}, None, "mmbert"),
        ({"type": "WhitespaceSplit"}, None, "whitespace"),
    ],
)
def test_forms_of_known_models(pre_tokenizer: Any, normalizer: Any, name: str) -> None:
    found = recognise(pre_tokenizer, normalizer)
    assert (found.name, found.warning) == (name, None)


@pytest.mark.parametrize(
    ("pre_tokenizer", "normalizer", "name", "warning"),
    [
        (split(LLAMA3.replace("1,3", "1,2")), None, "smaug-bpe", "'123' '456' where the model"),
        (GPT2 | {"add_prefix_space": True}, None, "gpt-2", "adds a space before a text"),
        (GPT2, {"type": "Lowercase"}, "gpt-2", "model cuts 'hello'"),
        (
            sequence({"type": "UnicodeScripts"}, GPT2),
            None,
            "gpt-2",
            "unsupported steps: UnicodeScripts",
        ),
        (split("("), None, "default", "unsupported steps: Split"),
    ],
)
def test_differences_are_named_in_the_warning(
    pre_tokenizer: Any, normalizer: Any, name: str, warning: str
) -> None:
    if pre_tokenizer["type"] == "Split":
        pre_tokenizer = sequence(pre_tokenizer, SPELL)
    found = recognise(pre_tokenizer, normalizer)
    assert found.name == name
    assert found.warning is not None
    assert warning in found.warning
    assert "\n" not in found.warning


def test_ignore_merges_is_part_of_the_name() -> None:
    section = sequence(split(LLAMA3), SPELL)
    assert recognise(section, None, ignore_merges=True).name == "glm4"
    found = recognise(GPT2, None, ignore_merges=True)
    assert (found.name, "ignore_merges" in (found.warning or "")) == ("gpt-2", True)


def test_the_page_lists_every_pretokenizer() -> None:
    page = (Path(__file__).parents[3] / "docs" / "tokenizers.md").read_text(encoding="utf-8")
    rows = [line.split("|")[1] for line in page.splitlines() if line.startswith("| `")]
    listed = {name for row in rows for name in re.findall("`([^`]+)`", row)}
    assert set(PRE_TOKENIZERS) - listed == set()


def test_the_probe_is_normalized() -> None:
    assert unicodedata.is_normalized("NFC", PROBE)


SECTIONS = [
    GPT2,
    GPT2 | {"add_prefix_space": True},
    DIGITS,
    {"type": "Digits", "individual_digits": False},
    *({"type": "Punctuation", "behavior": b} for b in ("Isolated", "Contiguous", "Removed")),
    {"type": "Whitespace"},
    {"type": "WhitespaceSplit"},
    {"type": "BertPreTokenizer"},
    {"type": "CharDelimiterSplit", "delimiter": "a"},
    split("a", "MergedWithPrevious", "String"),
    split("a|1", "MergedWithNext"),
    split(r"\p{L}+", "Removed", invert=True),
    split(r"a+|\s", "Contiguous"),
    sequence(split(LLAMA3), split(BLOOM, "MergedWithNext"), DIGITS),
    sequence({"type": "Punctuation", "behavior": "Contiguous"}, GPT2, split("[0-9][0-9][0-9]")),
]


@pytest.mark.parametrize("section", SECTIONS, ids=range(len(SECTIONS)))
def test_sections_are_read_as_tokenizers_reads_them(section: Any) -> None:
    reference = Reference(models.BPE())
    root = json.loads(reference.to_str()) | {"pre_tokenizer": section}
    reference = Reference.from_str(json.dumps(root))

    @given(st.text(st.sampled_from("aB1²٣ \n\té漢,.'s(…\u00a0"), max_size=20))
    @settings(max_examples=60)
    def check(text: str) -> None:
        pieces = reference.pre_tokenizer.pre_tokenize_str(text)
        found = TextSteps(ReadBudget()).words(section, None, text)
        if section.get("add_prefix_space"):
            assert len(found) >= len(pieces) - 1  # `words` leaves that space out
        else:
            assert found == [text[start:end] for _, (start, end) in pieces]

    check()


ODD = [None, 3, "x", [], {}, {"type": 3}, {"type": "Sequence"}, {"type": "Split"}, [[1]]]
ODD += [
    {"type": "Sequence", "pretokenizers": [None, 7, {"type": "Sequence", "pretokenizers": 5}]},
    split("(a+)+$", "No such"),
    split("[", "Isolated"),
    split("(?r)a"),
    {"type": "Metaspace", "replacement": 4},
    {"type": "CharDelimiterSplit", "delimiter": ""},
    {"type": "ByteLevel", "add_prefix_space": []},
]
DOUBLING = {
    "type": "Sequence",
    "normalizers": [{"type": "Replace", "pattern": {"String": "e"}, "content": "ee"}] * 99,
}


@pytest.mark.parametrize("odd", some(ODD, 6), ids=range(len(ODD)))
def test_odd_sections_are_survived(odd: Any) -> None:
    for pre_tokenizer, normalizer in ((odd, None), (GPT2, odd), (odd, DOUBLING)):
        found = recognise(pre_tokenizer, normalizer)
        assert found.name in PRE_TOKENIZERS
        assert "\n" not in (found.warning or "")
