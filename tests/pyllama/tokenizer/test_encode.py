"""Encoding and decoding against sentencepiece, tokenizers and simple references."""

from __future__ import annotations

import logging
import random

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pyllama.tokenizer import load_tokenizer
from pyllama.tokenizer.merge import SHORT, merge
from pyllama.tokenizer.pretokenizers import PRE_TOKENIZERS
from pyllama.tokenizer.words import KEPT_WORDS, Memo

from .vocabularies import DATA, bpe, cases, gpt2_metadata, spm, spm_metadata

TEXTS = st.text(
    alphabet=st.one_of(st.characters(codec="utf-8"), st.sampled_from(" \n\ta1'é\u2581"))
)
GPT2 = load_tokenizer(gpt2_metadata(DATA / "gpt2"))


@pytest.mark.parametrize(("text", "ids"), cases("gpt2"))
def test_bpe_agrees_with_tokenizers(text: str, ids: list[int]) -> None:
    # that library always takes special tokens in a text for what they are
    assert GPT2.encode(text, parse_special=True) == ids
    assert GPT2.decode(ids, special=True) == text


@pytest.fixture(scope="module")
def llama():
    return load_tokenizer(spm_metadata(DATA / "llama" / "tokenizer.model"))


@pytest.mark.parametrize(("text", "ids"), cases("llama"))
def test_spm_agrees_with_sentencepiece(llama, text: str, ids: list[int]) -> None:
    assert llama.encode(text, add_special=False) == ids
    assert llama.encode(text) == [llama.bos, *ids]
    assert llama.decode(ids) == text == llama.decode([llama.bos, *ids])


@given(TEXTS)
@example("\u2581")
def test_bpe_round_trip(text: str) -> None:
    assert GPT2.decode(GPT2.encode(text)) == text


@pytest.mark.parametrize("pre", sorted(name for name, p in PRE_TOKENIZERS.items() if p.byte_level))
def test_every_pretokenizer_keeps_every_byte(pre: str) -> None:
    tokenizer = load_tokenizer(bpe("h e", "l l", pre=pre))
    text = "Hello 1234567 DON'T don't\tüber\r\n\n  x 漢字。한글 🙂\u200d!? <a> \u00a0IGNORE `q`"
    assert tokenizer.decode(tokenizer.encode(text)) == text


@given(TEXTS)
def test_spm_round_trip(text: str) -> None:
    tokenizer = load_tokenizer(spm("▁a", "a", "1", "aa", "▁"))
    assert tokenizer.decode(tokenizer.encode(text)) == text.replace("\u2581", " ")


@given(TEXTS, st.sampled_from(["a▁b", "b▁"]))
def test_spm_words_and_whole_text_agree(text: str, spanning: str) -> None:
    text = text.replace("b", "c")  # so that the spanning token itself cannot occur
    pieces = ("▁a", "a", "1", "aa", "▁", "▁▁", "a1")
    by_word = load_tokenizer(spm(*pieces))
    whole = load_tokenizer(spm(*pieces, spanning))
    assert by_word.encode(text) == whole.encode(text)


def test_spm_tokens_may_span_words() -> None:
    tokenizer = load_tokenizer(spm("a▁b", "a▁", "▁"))
    assert tokenizer.text_to_id("a▁b") in tokenizer.encode("xa by")
    assert tokenizer.decode(tokenizer.encode("xa by")) == "xa by"


@given(st.text(alphabet="abc ", min_size=0, max_size=3 * SHORT), st.randoms(), st.booleans())
def test_merge_equals_its_slow_twin(text: str, chance: random.Random, is_bpe: bool) -> None:
    glue = "|" if is_bpe else ""
    parts = ["a", "b", "c", "ab", "bc", "aa", "aab", "cc", "cab", "  "]
    pairs = [left + glue + right for left in parts for right in parts]
    ranks = {pair: chance.randrange(12) for pair in chance.sample(pairs, 40)}

    slow = list(text)
    while len(slow) > 1:
        found = [(ranks.get(slow[i] + glue + slow[i + 1], 99), i) for i in range(len(slow) - 1)]
        rank, i = min(found)
        if rank == 99:
            break
        slow[i : i + 2] = [slow[i] + slow[i + 1]]
    assert merge(list(text), ranks, glue) == slow


def test_ignore_merges_takes_whole_words() -> None:
    merges = ("a b", "c d", "ab cd")
    plain = load_tokenizer(bpe(*merges[:2], pre="gpt-2", special={"abcd": 1}))
    whole = load_tokenizer(bpe(*merges[:2], pre="glm4", special={"abcd": 1}))
    assert len(plain.encode("abcd")) == 2
    assert whole.encode("abcd") == [whole.text_to_id("abcd")]


def test_of_equal_merges_the_first_counts() -> None:
    tokenizer = load_tokenizer(bpe("a b", "b c", "a b"))
    assert [tokenizer.token_to_piece(i) for i in tokenizer.encode("abc")] == [b"ab", b"c"]


def test_symbols_without_a_token_fall_to_bytes_or_out() -> None:
    metadata = bpe("a b")
    tokens = metadata["tokenizer.ggml.tokens"]
    tokens[tokens.index("ab")] = "zz"
    tokens[tokens.index("q")] = "qq"
    tokenizer = load_tokenizer(metadata)
    assert tokenizer.decode(tokenizer.encode("xabqx")) == "xabx"


def test_gemma_style_bpe() -> None:
    tokens = [f"<0x{b:02X}>" for b in range(256)] + ["▁", "a", "▁a", "\n", "\n\n", "é"]
    metadata = bpe(
        pre=None, model="gemma4", tokens=tokens, token_type=[6] * 256 + [1] * 6, merges=["▁ a"]
    )
    tokenizer = load_tokenizer(metadata)
    text = "a a\n\n a é 漢"
    assert tokenizer.decode(tokenizer.encode(text)) == text
    ids = [tokenizer.text_to_id(piece) for piece in ("a", "▁a", "\n\n")]
    assert tokenizer.encode("a a\n\n") == ids


@pytest.mark.parametrize(
    ("pre", "newlines"),
    [("gemma4", ["\n\n"]), ("granite-embed-multi-311m", ["\n\n"]), ("sarvam-moe", ["\n", "\n"])],
)
def test_names_of_gemma_style_bpe(pre: str, newlines: list[str]) -> None:
    """Whole lines are words, spaces are letters; only some have tokens of several newlines."""
    tokens = [f"<0x{b:02X}>" for b in range(256)] + ["▁", "a", "▁a", "\n", "\n\n", "1", "."]
    more = {"tokens": tokens, "token_type": [6] * 256 + [1] * 7, "add_bos_token": False}
    tokenizer = load_tokenizer(bpe("▁ a", pre=pre, **more))
    ids = tokenizer.encode("a  a1.\n\n a", add_special=False)
    pieces = ["a", "▁", "▁a", "1", ".", *newlines, "▁a"]
    assert ids == [tokenizer.text_to_id(piece) for piece in pieces]


def test_spm_without_byte_tokens_uses_unknown() -> None:
    metadata = spm("a", "▁")
    metadata["tokenizer.ggml.tokens"] = ["<unk>", "<s>", "</s>", "a", "▁"]
    for key in ("scores", "token_type"):
        metadata[f"tokenizer.ggml.{key}"] = [1] * 5
    assert load_tokenizer(metadata).encode("aé") == [1, 4, 3, 0]
    metadata["tokenizer.ggml.tokens"] = ["a", "▁"]
    metadata["tokenizer.ggml.scores"] = metadata["tokenizer.ggml.token_type"] = [1, 1]
    del metadata["tokenizer.ggml.token_type"]
    tokenizer = load_tokenizer(metadata | {"tokenizer.ggml.unknown_token_id": 0})
    assert tokenizer.encode("é", add_special=False) == [1, 0]


def test_lone_surrogates_count_as_replacement_characters() -> None:
    assert GPT2.decode(GPT2.encode("a\udc80b\ud83d\ude42")) == "a\ufffdb🙂"


@pytest.mark.timeout(60)  # each takes about 0.5 s; quadratic would take minutes
@pytest.mark.parametrize("text", ["a" * 100_000, " " * 100_000 + "x", "\n" * 99_999, "ab" * 50_000])
def test_time_of_long_words_is_not_quadratic(llama, text: str) -> None:
    for tokenizer in (GPT2, llama):
        ids = tokenizer.encode(text)
        assert tokenizer.decode(ids) == text


def test_caches_are_bounded() -> None:
    memo = Memo(len)
    for i in range(KEPT_WORDS + 5):
        assert memo[f"{i:x}"] == len(f"{i:x}")
    assert len(memo) == 5
    assert memo["z" * 1000] == 1000
    assert "z" * 1000 not in memo


def test_missing_and_unknown_pretokenizers_warn(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        tokenizer = load_tokenizer(bpe("a b", pre="none-such"))
        load_tokenizer(bpe("a b", pre=None))
    assert [record.levelname for record in caplog.records] == ["WARNING", "WARNING"]
    assert "none-such" in caplog.text
    assert tokenizer.vocab.pre is PRE_TOKENIZERS["default"]
