"""WordPiece, UGM, RWKV, PLaMo 2 and rare kinds of BPE: examples, and simple references."""

from __future__ import annotations

import contextlib
import itertools
import random
from functools import cache

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pyllama.errors import TokenizerError
from pyllama.tokenizer import Tokenizer, load_tokenizer
from pyllama.tokenizer.boundaries import Joints

from ...tiers import tenth
from .vocabularies import bpe, charsmap, keys, spm, ugm, wordpiece

LETTERS = st.text(st.sampled_from("abc é"), max_size=12)
WORDPIECE = load_tokenizer(
    wordpiece("▁hello", "▁world", "s", "▁'", "▁s", "▁,", "▁!", "▁cafe", "▁漢", "▁wor", "ld")
)


def texts(tokenizer: Tokenizer, ids: list[int]) -> list[str]:
    return [tokenizer.vocab.tokens[i] for i in ids]


@pytest.mark.parametrize(
    ("text", "tokens", "decoded"),
    [
        ("Hello,  WORLD!", ["▁hello", "▁,", "▁world", "▁!"], "hello, world!"),
        ("Café\u0301 \0x\u200d", ["▁cafe", "[UNK]"], "cafe"),
        ("world's", ["▁world", "▁'", "▁s"], "world's"),
        ("worlds hello漢\x1f", ["▁world", "s", "▁hello", "▁漢"], "worlds hello 漢"),
        ("hellox", ["[UNK]"], ""),
        (" \n\t", [], ""),
    ],
)
def test_wordpiece(text: str, tokens: list[str], decoded: str) -> None:
    ids = WORDPIECE.encode(text, add_special=False)
    assert texts(WORDPIECE, ids) == tokens
    assert WORDPIECE.decode(ids) == decoded
    assert texts(WORDPIECE, WORDPIECE.encode(text)) == ["[CLS]", *tokens, "[SEP]"]


def test_wordpiece_that_minds_case_and_accents() -> None:
    tokenizer = load_tokenizer(wordpiece("▁É", "▁e", **{"normalizer.lowercase": False}))
    assert texts(tokenizer, tokenizer.encode("É É e", add_special=False)) == ["▁É", "▁É", "▁e"]
    tokenizer = load_tokenizer(wordpiece("▁e"))
    tokenizer.vocab.roles.pop("unk")
    with pytest.raises(TokenizerError, match="'▁x' cannot be encoded"):
        tokenizer.encode("x")


def test_decoding_cleans_spaces_only_if_asked() -> None:
    tokenizer = load_tokenizer(bpe("a b"))
    text = "a , b ' c 's d 're 't . . !"
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text
    assert tokenizer.decode(ids, clean_spaces=True) == "a, b'c's d're 't..!"  # as llama.cpp
    ids = WORDPIECE.encode("Hello, world!", add_special=False)
    assert WORDPIECE.decode(ids, clean_spaces=False) == "hello , world !"


def all_ways(text: str, pieces: dict[str, float]) -> float:
    """Best score of all tokenizations of a text, with a penalty for unknown characters."""
    unknown = min(pieces.values()) - 10

    @cache
    def best(start: int) -> float:
        if start == len(text):
            return 0.0
        found = [
            pieces[text[start:end]] + best(end)
            for end in range(start + 1, len(text) + 1)
            if text[start:end] in pieces
        ]
        if text[start] not in pieces:
            found.append(unknown + best(start + 1))
        return max(found)

    return best(0)


@given(LETTERS, st.randoms(use_true_random=False), st.booleans())
def test_ugm_equals_its_slow_twin(text: str, chance: random.Random, spanning: bool) -> None:
    some = ["".join(p) for n in (1, 2, 3) for p in itertools.product("abc▁", repeat=n)]
    usable = [piece for piece in some if spanning or "▁" not in piece[1:]]
    pieces = {piece: -chance.randint(1, 20) / 2 for piece in chance.sample(usable, 20)}
    tokenizer = load_tokenizer(ugm(pieces))
    ids = tokenizer.encode(text, add_special=False)
    spelt = "▁" * bool(text.strip(" ")) + text.replace(" ", "▁")
    if 2 not in ids:
        score = sum(pieces[token] for token in texts(tokenizer, ids))
        assert score == pytest.approx(all_ways(spelt, pieces))
        assert tokenizer.decode(ids) == (text if text.strip(" ") else text.removeprefix(" "))
    assert (2, 2) not in itertools.pairwise(ids)


def test_ugm_normalizes_and_merges_spaces() -> None:
    pieces = {"▁a": -1.0, "▁": -2.0, "b": -2.0, "!": -3.0}
    packed = np.frombuffer(charsmap({"A": "a", "?": "!!", "#": ""}), np.uint8)
    metadata = ugm(pieces, precompiled_charsmap=packed, remove_extra_whitespaces=True)
    tokenizer = load_tokenizer(metadata)
    assert texts(tokenizer, tokenizer.encode("  A  b#?")) == ["▁a", "▁", "b", "!", "!", "</s>"]
    assert tokenizer.decode(tokenizer.encode("  A  b#?")) == "a b!!"
    plain = load_tokenizer(metadata | keys(remove_extra_whitespaces=False))
    assert texts(plain, plain.encode("a  ", add_special=False)) == ["▁a", "▁", "▁"]
    metadata["tokenizer.ggml.token_type"][3 + 3] = 4  # user-defined: cut out, never normalized
    assert texts(tokenizer, load_tokenizer(metadata).encode("A!"))[:2] == ["▁a", "!"]


PACKED = charsmap({"A": "a", "?": "!!"})


def normalize_all(packed: bytes) -> None:
    values = np.frombuffer(packed, np.uint8)
    load_tokenizer(ugm({"▁a": -1.0}, precompiled_charsmap=values)).encode(
        "A?\u00a0é" + "".join(map(chr, range(1, 256)))
    )


@pytest.mark.parametrize("n_bytes", [1, 4, 7, 100, 2051, 2052, 2053])
def test_charsmaps_that_are_cut_short(n_bytes: int) -> None:
    with pytest.raises(TokenizerError, match="precompiled_charsmap is damaged"):
        normalize_all(PACKED[:n_bytes])


@pytest.mark.parametrize("count", tenth(100))
def test_charsmaps_with_wrong_bytes(count: int) -> None:
    @settings(max_examples=count)
    @given(st.integers(0, len(PACKED) - 1), st.binary(min_size=1, max_size=40))
    def check(at: int, junk: bytes) -> None:
        packed = PACKED[:at] + junk + PACKED[at + len(junk) :]
        with contextlib.suppress(TokenizerError):
            normalize_all(packed)

    check()


@given(st.text())
def test_rwkv_round_trip(text: str) -> None:
    escaped = [rf"\x{byte:02x}" for byte in range(256)]
    tokens = ["<s>", *escaped, "ab", r"\t\n", r"a\'b", r"\xe6\xbc\xa2", r"\xe6\xbc"]
    tokenizer = load_tokenizer(keys(model="rwkv", tokens=tokens))
    assert tokenizer.decode(tokenizer.encode(text)) == text
    assert texts(tokenizer, tokenizer.encode("ab\t\na'b漢")) == ["ab", *tokens[258:261]]
    damaged = load_tokenizer(keys(model="rwkv", tokens=["a"]))
    with pytest.raises(TokenizerError, match="byte 0x62 cannot be encoded"):
        damaged.encode("ab")


@given(st.text())
@example("a<s>b<unk>")
def test_plamo2_round_trip(text: str) -> None:
    text = text.removeprefix("\ufeff")
    metadata = spm("ab", "abc", "c", "漢字", "d") | keys(model="plamo2")
    metadata["tokenizer.ggml.scores"][259:] = [-1.0, -4.0, -2.0, -1.0, -5000.0]
    tokenizer = load_tokenizer(metadata)
    assert tokenizer.decode(tokenizer.encode(text)) == text
    assert texts(tokenizer, tokenizer.encode("\ufeffabcd")) == ["ab", "c", "<0x64>"]
    metadata["tokenizer.ggml.tokens"][9] = "gone"
    with pytest.raises(TokenizerError, match="no token <0x06>"):
        load_tokenizer(metadata).encode("a")


def test_metaspace_and_white_space_bpe() -> None:
    more = {"model": "gpt2", "tokens": ["▁", "a", "b", "▁a", "\n", "\n\n", "ab"]}
    metadata = bpe("▁ a", "a b", **more, pre="mmbert", token_type=[1] * 7)
    tokenizer = load_tokenizer(metadata)
    assert texts(tokenizer, tokenizer.encode("a  b\n\na")) == ["▁a", "▁", "▁", "b", "\n\n", "▁a"]
    metadata |= keys(model="whitespace", pre="whitespace", **{"normalizer.lowercase": True})
    tokenizer = load_tokenizer(metadata)
    assert texts(tokenizer, tokenizer.encode(" aB\n\u3000a")) == ["ab", "a"]


@given(st.lists(st.text("abc", min_size=1, max_size=4)), st.text("abc", min_size=1))
def test_no_token_reaches_out_of_a_piece(tokens: list[str], word: str) -> None:
    pieces = Joints(tokens).cut(word)
    assert "".join(pieces) == word
    cuts = set(itertools.accumulate(map(len, pieces)))
    for start, end in itertools.combinations(range(len(word) + 1), 2):
        if word[start:end] in tokens:
            assert not cuts & set(range(start + 1, end))


def test_no_second_eos(caplog: pytest.LogCaptureFixture) -> None:
    tokenizer = load_tokenizer(spm("▁a", add_eos_token=True))
    assert tokenizer.encode("a</s>", parse_special=True)[-2:] == [259, 2]
    assert tokenizer.encode("</s>", parse_special=True) == [1, 2]
    assert "already ends with the EOS token" in caplog.text


@pytest.mark.parametrize("base", ["spm", "ugm", "wordpiece", "rwkv"])
def test_gigantic_tokens(base: str) -> None:
    giant = "a" * 300_000
    metadata = {
        "spm": lambda: spm("a", giant),
        "ugm": lambda: ugm({"▁": -1.0, "a": -2.0, giant: -3.0}),
        "wordpiece": lambda: wordpiece("▁a", "a", giant),
        "rwkv": lambda: keys(model="rwkv", tokens=["a", giant]),
    }[base]()
    tokenizer = load_tokenizer(metadata)
    text = "a " * 1000 if base == "wordpiece" else "a" * 1000  # a word has up to 100 characters
    assert len(tokenizer.encode(text, add_special=False)) >= 1000
