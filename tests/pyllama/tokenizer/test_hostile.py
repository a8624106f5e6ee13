"""Damaged vocabularies: one line of TokenizerError, or a tokenizer that works."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyllama.errors import TokenizerError
from pyllama.tokenizer import TokenStream, load_tokenizer

from ...tiers import some, tenth
from .vocabularies import bpe, charsmap, keys, spm, ugm, wordpiece

JUNK: list[Any] = [
    None,
    -1,
    3,
    2**63,
    1.5,
    float("nan"),
    True,
    "",
    "llama",
    "gpt2",
    b"bytes",
    [],
    [1, 2],
    ["a"],
    ["a", 1],
    ["a b", "\udcff b", "\ud800"],
    [[1], [1, 2]],
    [2**70] * 300,
    np.int32(7),
    np.zeros((300, 2), np.int32),
    np.full(300, np.nan, np.float32),
    np.full(300, -1, np.int32),
    np.array(["a b"] * 300),
    {},
    object(),
]
BASES = {
    "spm": spm("▁a", "a", "aa", bos_token_id=1, add_bos_token=True),
    "bpe": bpe("a b", "Ġ a", special={"<|im_end|>": 3, "<t>": 4}, eos_token_id=3),
    "wordpiece": wordpiece("▁a", "a", "b", **{"normalizer.lowercase": True}),
    "ugm": ugm(
        {"▁a": -1.0, "a": -2.0, "▁": -3.0},
        precompiled_charsmap=list(charsmap({"A": "a"})),
        remove_extra_whitespaces=True,
    ),
    "rwkv": keys(model="rwkv", tokens=["a", r"\xe2", "ab"], unknown_token_id=0),
    "plamo2": spm("ab", "b") | keys(model="plamo2"),
}
EXTRA = [
    "add_eos_token",
    "add_space_prefix",
    "suppress_tokens",
    "eot_token_id",
    "fim_pad_token_id",
    "prefix_token_id",
]


def use(metadata: dict[str, Any]) -> None:
    """Load and use a tokenizer; only a TokenizerError of one line may be raised."""
    try:
        tokenizer = load_tokenizer(metadata)
        for parse_special in (False, True):
            ids = tokenizer.encode(" aab é🙂\n<|im_end|><s> <t>", parse_special=parse_special)
            assert all(0 <= token < tokenizer.n_vocab for token in ids)
            tokenizer.decode(ids)
        stream = TokenStream(tokenizer, special=True)
        for token in range(tokenizer.n_vocab):
            stream.push(token)
        stream.flush()
    except TokenizerError as error:
        assert "\n" not in str(error)
        assert str(error)


@pytest.mark.parametrize(
    ("base", "junk"), some([(base, junk) for base in BASES for junk in range(len(JUNK))], 15)
)
def test_any_value_under_any_key(base: str, junk: int) -> None:
    names = [*BASES[base], *keys(**dict.fromkeys(EXTRA)), "general.name", "tokenizer.chat_template"]
    for name in names:
        use({**BASES[base], name: JUNK[junk]})


@pytest.mark.parametrize("count", tenth(60))
def test_flipped_items(count: int) -> None:
    @settings(max_examples=count)
    @given(st.sampled_from(sorted(BASES)), st.data())
    def check(base: str, data: st.DataObject) -> None:
        metadata = dict(BASES[base])
        for _ in range(3):
            lists = [key for key, value in metadata.items() if isinstance(value, list)]
            name = data.draw(st.sampled_from(lists))
            items = list(metadata[name])
            index = data.draw(st.integers(0, len(items) - 1))
            if isinstance(items[index], str):
                texts = st.one_of(st.text(), st.sampled_from(["▁", "a", "\udcff"]))
                items[index] = data.draw(texts)
            else:
                items[index] = data.draw(st.integers(-(2**31), 2**31))
            metadata[name] = items
        use(metadata)

    check()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model": None}, "model is missing"),
        ({"model": "t7"}, "'t7', which is not supported"),
        ({"model": "none"}, "model is 'none': .*vocab_size, the number of tokens, is missing"),
        ({"model": 3}, "model is not a string"),
        ({"tokens": None}, "tokens is missing"),
        ({"tokens": []}, "tokens is empty"),
        ({"tokens": 7}, "tokens is not an array of strings"),
        ({"tokens": ["a", 1]}, "got list of int, str"),
        ({"tokens": ["\ud800"] * 300}, "is not UTF-8"),
        ({"token_type": [1]}, "token_type has 1 entries for 262 tokens"),
        ({"scores": [1.0]}, "scores has 1 entries for 262 tokens"),
        ({"scores": ["a"] * 262}, "scores is not an array of numbers"),
        ({"eos_token_id": "2"}, "eos_token_id is not a token id"),
        ({"add_bos_token": 1}, "add_bos_token is not a boolean"),
    ],
)
def test_messages(change: dict[str, Any], message: str) -> None:
    with pytest.raises(TokenizerError, match=message):
        load_tokenizer(BASES["spm"] | keys(**change))


@pytest.mark.parametrize(
    ("size", "message"),
    [
        (0, "is 0, must be 1 to 16777216"),
        (-1, "is -1, must"),
        (1 << 32, "is 4294967296, must"),
        ("9", "vocab_size is not an integer"),
        (True, "vocab_size is not an integer"),
    ],
)
def test_a_model_without_a_vocabulary_of_an_illegal_size(size: object, message: str) -> None:
    metadata = keys(model="no_vocab") | {"general.architecture": "llama", "llama.vocab_size": size}
    with pytest.raises(TokenizerError, match=message) as error:
        load_tokenizer(metadata)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("merges", "message"),
    [(None, "merges is missing"), (["a b", "ab"], r"merges\[1\] is 'ab'"), (3, "array of strings")],
)
def test_messages_about_merges(merges: object, message: str) -> None:
    with pytest.raises(TokenizerError, match=message):
        load_tokenizer(BASES["bpe"] | keys(merges=merges))


def test_spm_that_cannot_spell_a_character() -> None:
    metadata = keys(model="llama", tokens=["a", "▁"])
    tokenizer = load_tokenizer(metadata)
    assert tokenizer.vocab.roles == {"bos": 1, "unk": 0}
    tokenizer.vocab.roles.pop("unk")
    with pytest.raises(TokenizerError, match="'é' cannot be encoded"):
        tokenizer.encode("é")


def test_numpy_values_are_taken() -> None:
    metadata = BASES["spm"] | keys(bos_token_id=np.uint32(1), add_bos_token=np.bool_(True))
    for key in ("scores", "token_type"):
        full = f"tokenizer.ggml.{key}"
        metadata[full] = np.array(metadata[full])
    assert load_tokenizer(metadata).encode("a") == load_tokenizer(BASES["spm"]).encode("a")


def test_empty_and_repeated_tokens() -> None:
    metadata = BASES["spm"] | keys(token_type=[4] * 262)
    tokens = list(metadata["tokenizer.ggml.tokens"])
    tokens[50] = tokens[60] = ""
    tokens[70] = "a"
    use(metadata | keys(tokens=tokens))
