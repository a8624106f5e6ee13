"""Special tokens: roles, ends of generation, cutting text, BOS and EOS."""

from __future__ import annotations

import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyllama.errors import TokenizerError
from pyllama.tokenizer import load_tokenizer
from pyllama.tokenizer.special import _KEYS, CONTROL, NORMAL, USER_DEFINED

from .vocabularies import bpe, spm

CHAT = {"<|im_start|>": CONTROL, "<|im_end|>": CONTROL, "<tool>": USER_DEFINED}


def eog_texts(special: dict[str, int], **more: object) -> set[str]:
    tokenizer = load_tokenizer(bpe("a b", special=special, **more))
    return {tokenizer.vocab.tokens[i] for i in tokenizer.eog}


@pytest.mark.parametrize(
    ("special", "ends"),
    [
        ({}, set()),
        ({"<|endoftext|>": 3, "<|im_end|>": 3}, {"<|endoftext|>", "<|im_end|>"}),
        ({"<|end|>": 3, "<|return|>": 3}, {"<|end|>", "<|return|>"}),
        ({"<|end|>": 3, "<|return|>": 3, "<|call|>": 3}, {"<|return|>", "<|call|>"}),
        ({"<|end|>": 3, "<|flush|>": 3, "<|calls|>": 3}, {"<|flush|>", "<|calls|>"}),
        ({"</s>": 1, "<eos>": 3}, {"</s>", "<eos>"}),
        ({"</s>": 1, "<|tool_response>": 3}, {"<|tool_response>"}),
        ({"<fim_pad>": 3, "<reponame>": 3, "<|file_sep|>": 3, "<fim_prefix>": 3}, None),
        ({"<|fim_repo|>": 3, "<reponame>": 3}, {"<|fim_repo|>"}),
    ],
)
def test_ends_of_generation(special: dict[str, int], ends: set[str] | None) -> None:
    assert eog_texts(special) == ({*special} - {"<fim_prefix>"} if ends is None else ends)


def test_named_ids_end_a_generation_too() -> None:
    special = {"<stop>": 3, "<turn>": 3, "<other>": 3}
    ids = {"eos_token_id": 257, "eot_token_id": 258}
    assert eog_texts(special, **ids) == {"<stop>", "<turn>"}


KEYS = [key for names in _KEYS.values() for key in names]
ROLE_OF = {key: role for role, names in _KEYS.items() for key in names}


@pytest.mark.parametrize("value", [0xFFFFFFFF, -1, 1 << 40])
@pytest.mark.parametrize("key", KEYS)
def test_an_id_out_of_range_is_no_token(
    key: str, value: int, caplog: pytest.LogCaptureFixture
) -> None:
    for metadata in (spm("▁a", "a", **{key: value}), bpe("a b", **{key: value})):
        caplog.clear()
        tokenizer = load_tokenizer(metadata)
        assert ROLE_OF[key] not in tokenizer.vocab.roles
        text = caplog.records[0].getMessage()
        assert f"tokenizer.ggml.{key} is {value}, but the vocabulary has" in text
        assert tokenizer.decode(tokenizer.encode("a")) == "a"


def test_an_id_out_of_range_beside_a_legal_one() -> None:
    for ids in ({"prefix_token_id": 5}, {"fim_pre_token_id": 5}):
        given = {"prefix_token_id": -1, "fim_pre_token_id": -1} | ids
        assert load_tokenizer(bpe("a b", **given)).vocab.roles["fim_pre"] == 5


def test_roles_by_key_and_by_text() -> None:
    special = {"<|fim_prefix|>": 4, "<PRE>": 3, "<|im_end|>": 1, "<|eot_id|>": 1}
    tokenizer = load_tokenizer(bpe("a b", special=special, prefix_token_id=5, bos_token_id=7))
    assert tokenizer.vocab.roles["fim_pre"] == 5
    assert tokenizer.vocab.types[tokenizer.text_to_id("<|fim_prefix|>")] == USER_DEFINED
    assert tokenizer.bos == 7
    assert tokenizer.eos is None
    assert tokenizer.eot == tokenizer.text_to_id("<|eot_id|>")
    assert tokenizer.is_eog(tokenizer.eot)
    assert tokenizer.vocab.types[tokenizer.eot] == CONTROL  # whatever the file says


def test_types_that_the_text_overrides() -> None:
    special = {"<|end|>": 3, "<|return|>": 3, "<|call|>": 3, "<|channel|>": 3, "<fim_suffix>": 1}
    tokenizer = load_tokenizer(bpe("a b", special=special))
    kinds = {tokenizer.vocab.tokens[i]: tokenizer.vocab.types[i] for i in range(257, 262)}
    assert kinds["<|end|>"] == kinds["<|channel|>"] == USER_DEFINED
    assert kinds["<fim_suffix>"] == CONTROL
    tokenizer = load_tokenizer(bpe("a b", special={"</s>": 3, "<|tool_response>": 3}))
    assert tokenizer.vocab.types[tokenizer.text_to_id("</s>")] == NORMAL


def test_defaults_of_spm_and_bpe() -> None:
    tokenizer = load_tokenizer(spm("a"))
    assert (tokenizer.bos, tokenizer.eos, tokenizer.eot) == (1, 2, None)
    assert (tokenizer.add_bos, tokenizer.add_eos) == (True, False)
    assert tokenizer.n_vocab == 260
    assert tokenizer.chat_template is None
    assert not load_tokenizer(bpe("a b")).add_bos
    assert load_tokenizer(bpe("a b", pre="llama-bpe", bos_token_id=3)).add_bos


def test_control_tokens_are_text_unless_parsed() -> None:
    tokenizer = load_tokenizer(bpe("a b", special=CHAT))
    start, end, tool = map(tokenizer.text_to_id, CHAT)
    text = "<|im_start|>ab<tool>\n<|im_end|>"
    parsed = tokenizer.encode(text, parse_special=True)
    assert parsed == [start, 256, tool, tokenizer.text_to_id("Ċ"), end]
    plain = tokenizer.encode(text)
    assert tool in plain
    assert not {start, end} & {*plain}
    assert tokenizer.decode(plain) == tokenizer.decode(parsed, special=True) == text
    assert tokenizer.decode(parsed) == "ab<tool>\n"


@given(st.lists(st.sampled_from(["ab", "bcd", "b", "aa", "aaa", " ", "x"])).map("".join))
def test_the_longest_special_token_goes_first(text: str) -> None:
    special = {"ab": 4, "bcd": 4, "aa": 4, "aaa": 4}
    tokenizer = load_tokenizer(bpe(special=special))
    pieces: list[str | int] = [text]
    for token in ("bcd", "aaa", "ab", "aa"):
        cut: list[str | int] = []
        for piece in pieces:
            while isinstance(piece, str) and token in piece:
                left, _, piece = piece.partition(token)
                cut += [left, tokenizer.text_to_id(token)]
            cut.append(piece)
        pieces = cut
    wanted = [piece for piece in pieces if piece != ""]
    assert tokenizer._cutter.cut(text, parse_special=False) == wanted


def test_space_swallowers() -> None:
    phi = spm("<|user|>", "<|end|>", "▁", "a")
    phi["tokenizer.ggml.token_type"][259:261] = [3, 3]
    phi["general.name"] = "Phi-3-mini"
    tokenizer = load_tokenizer(phi)
    cut = tokenizer._cutter.cut("<s> a<|user|>\n a <|end|> \n", parse_special=True)
    assert cut == [1, " a", 259, "a ", 260]
    jina = bpe("a b", special={"<mask>": 3}, pre="jina-v2-de")
    assert load_tokenizer(jina)._cutter.cut("x <mask> y", parse_special=True) == ["x", 257, " y"]


def test_spm_prefixes_a_space_after_special_tokens() -> None:
    tokenizer = load_tokenizer(spm("▁a", "a", "▁"))
    word, bare, _ = range(259, 262)
    assert tokenizer.encode("a</s>a", parse_special=True) == [1, word, 2, word]
    assert tokenizer.encode("") == [1]
    off = load_tokenizer(spm("▁a", "a", "▁", add_space_prefix=False))
    assert off.encode("a") == [1, bare]
    assert off.decode([word]) == " a"


def test_no_second_bos(caplog: pytest.LogCaptureFixture) -> None:
    tokenizer = load_tokenizer(spm("▁a", "a", "▁"))
    with caplog.at_level(logging.WARNING):
        assert tokenizer.encode("<s>a", parse_special=True) == [1, 259]
    assert len(caplog.records) == 1
    assert tokenizer.encode("<s>a", add_special=False, parse_special=True) == [1, 259]


def test_eos_is_added_if_the_model_uses_it(caplog: pytest.LogCaptureFixture) -> None:
    assert load_tokenizer(spm("▁a", add_eos_token=True)).encode("a")[-1] == 2
    with caplog.at_level(logging.WARNING):
        tokenizer = load_tokenizer(bpe("a b", add_bos_token=True, add_eos_token=True))
    assert not tokenizer.add_bos
    assert not tokenizer.add_eos
    assert len(caplog.records) == 2


def test_suppressed_tokens_and_template() -> None:
    metadata = spm("a", suppress_tokens=[3, -1, 9999])
    metadata["tokenizer.chat_template"] = "{{ messages }}"
    tokenizer = load_tokenizer(metadata)
    assert tokenizer.vocab.suppress == {3}
    assert tokenizer.chat_template == "{{ messages }}"


def test_pieces() -> None:
    tokenizer = load_tokenizer(spm("▁a", "caf\udcc3"))
    assert tokenizer.token_to_piece(259) == b" a"
    assert tokenizer.token_to_piece(260) == b"caf\xc3"
    assert tokenizer.token_to_piece(3 + 0xE9) == b"\xe9"
    assert tokenizer.token_to_piece(1) == b""
    assert tokenizer.token_to_piece(1, special=True) == b"<s>"
    for token in (-1, 261):
        with pytest.raises(TokenizerError, match="261 tokens"):
            tokenizer.token_to_piece(token)


def test_pieces_of_odd_tokens() -> None:
    metadata = spm("a", "b")
    metadata["tokenizer.ggml.tokens"][3] = "<0xZZ>"
    metadata["tokenizer.ggml.token_type"][259:] = [5, 77]
    tokenizer = load_tokenizer(metadata)
    assert tokenizer.token_to_piece(3) == b"<0xZZ>"
    assert tokenizer.token_to_piece(259) == tokenizer.token_to_piece(260) == b""
    odd = load_tokenizer(bpe("a b", special={"漢": 1}))
    assert odd.token_to_piece(257) == "漢".encode()
