"""Streaming: all characters are returned, and only whole ones."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyllama.errors import TokenizerError
from pyllama.tokenizer import TokenStream, load_tokenizer
from pyllama.tokenizer.bpe import CHAR_OF_BYTE

from .vocabularies import bpe, spm

BYTES = load_tokenizer(bpe(special={"<|im_end|>": 3}))


def tokens_of(data: bytes) -> list[int]:
    return [BYTES.vocab.ids[CHAR_OF_BYTE[byte]] for byte in data]


@given(st.binary())
def test_a_stream_equals_decoding_the_whole(data: bytes) -> None:
    stream = TokenStream(BYTES)
    text = "".join(map(stream.push, tokens_of(data))) + stream.flush()
    assert text == data.decode("utf-8", "replace") == BYTES.decode(tokens_of(data))


@given(st.text())
def test_every_push_gives_whole_characters(text: str) -> None:
    stream = TokenStream(BYTES)
    parts = [stream.push(token) for token in tokens_of(text.encode())]
    assert "".join(parts) == text
    assert stream.flush() == ""
    assert all(len(part) <= 1 for part in parts)


def test_bytes_are_held_back_and_given_up() -> None:
    stream = TokenStream(BYTES)
    assert [stream.push(token) for token in tokens_of("é🙂".encode())] == ["", "é", *[""] * 3, "🙂"]
    # 0xE2 0x82 could still become a character, 0xE2 0x41 cannot
    assert [stream.push(token) for token in tokens_of(b"\xe2\x82A\xff")] == ["", "", "�A", "�"]
    stream.push(tokens_of(b"\xf0")[0])
    assert stream.flush() == "�"
    assert stream.flush() == ""
    assert stream.push(tokens_of(b"b")[0]) == "b"


def test_special_tokens_on_request() -> None:
    end = BYTES.text_to_id("<|im_end|>")
    assert TokenStream(BYTES).push(end) == ""
    assert TokenStream(BYTES, special=True).push(end) == "<|im_end|>"
    with pytest.raises(TokenizerError):
        TokenStream(BYTES).push(10_000)


def test_a_stream_keeps_the_first_space() -> None:
    tokenizer = load_tokenizer(spm("▁a"))
    assert TokenStream(tokenizer).push(259) == " a"
    assert tokenizer.decode([259]) == "a"
