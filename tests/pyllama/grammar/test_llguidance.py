"""Masks over the demo model's whole vocabulary agree with llguidance's."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pyggml.gguf import GGUFFile
from pyllama.grammar import Grammar
from pyllama.grammar.regex import regex_to_gbnf
from pyllama.tokenizer import Tokenizer, load_tokenizer

from ...tiers import some
from .slow_matcher import SlowMatcher

llguidance = pytest.importorskip("llguidance")
pytestmark = pytest.mark.model

JSON_GBNF = r"""
root ::= value
value ::= object | array | string | number | "true" | "false" | "null"
object ::= "{" ws ( pair ("," ws pair)* )? "}" ws
pair ::= string ws ":" ws value ws
array ::= "[" ws ( value ws ("," ws value ws)* )? "]"
string ::= "\"" ( [^"\\\x00-\x1F] | "\\" (["\\/bfnrt] | "u" [0-9a-fA-F]{4}) )* "\""
number ::= "-"? ("0" | [1-9] [0-9]*) ("." [0-9]+)? ([eE] [-+]? [0-9]+)?
ws ::= [ \t\n]{0,4}
"""
JSON_LARK = r"""
start: value
value: object | array | STRING | NUMBER | "true" | "false" | "null"
object: "{" WS ( pair ("," WS pair)* )? "}" WS
pair: STRING WS ":" WS value WS
array: "[" WS ( value WS ("," WS value WS)* )? "]"
STRING: /"([^"\\\x00-\x1F]|\\(["\\\/bfnrt]|u[0-9a-fA-F]{4}))*"/
NUMBER: /-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][-+]?[0-9]+)?/
WS: /[ \t\n]{0,4}/
"""
# the same language for both
PAIRS = [
    (JSON_GBNF, JSON_LARK),
    (
        'root ::= [a-zA-Z_] [a-zA-Z0-9_]{0,15} (", " root)?',
        'start: /[a-zA-Z_][a-zA-Z0-9_]{0,15}/ (", " start)?',
    ),
    ('root ::= "\\"" [^"\\\\\\x00-\\x1F]{0,12} "\\""', 'start: /"[^"\\\\\\x00-\\x1F]{0,12}"/'),
    ("root ::= (. | [\\n])*", "start: /(.|\\n)*/"),
    (
        "root ::= [^a-z]{3} | [é-ü€😀]+ | [一-鿿ぁ-ん]{2,}",
        "start: /[^a-z]{3}/ | /[é-ü€😀]+/ | /[一-鿿ぁ-ん]{2,}/",
    ),
    ('root ::= ("a" | "b")* "abb" | "(" root ")"', 'start: /[ab]*abb/ | "(" start ")"'),
    (
        'root ::= "- " [^\\n\\r]+ "\\n" ("- " [^\\n\\r]+ "\\n")*',
        'start: "- " /[^\\n\\r]+/ "\\n" ("- " /[^\\n\\r]+/ "\\n")*',
    ),
    (
        regex_to_gbnf(r"(?!\.)(?!.*\.\.)[a-z.]+@(?=.*[0-9])[a-z0-9]{2,9}"),
        "start: MAIL\nMAIL: /[a-z.]+@[a-z0-9]{2,9}/ & ~/.*\\.\\..*/ & ~/\\..*/ & /.*@.*[0-9].*/",
    ),
    (regex_to_gbnf("(?i)(no|Ärger) [^a-e0-9]"), "start: /(?i:nO|Ärger) [^A-Ea-e0-9]/"),
    (regex_to_gbnf(r"\p{Nd}{2}[\p{Sc}]"), r"start: /\p{Nd}{2}\p{Sc}/"),
]


@pytest.fixture(scope="module")
def tokenizer(demo_model: Path) -> Tokenizer:
    return load_tokenizer(GGUFFile(demo_model).metadata)


@pytest.fixture(scope="module")
def peer(tokenizer: Tokenizer) -> Any:
    """llguidance's view of the same tokens; control tokens are marked as special."""
    eos = min(tokenizer.eog)

    class Words:
        eos_token_id = eos
        bos_token_id = None
        special_token_ids = sorted(
            token for token in range(tokenizer.n_vocab) if not tokenizer.token_to_piece(token)
        )
        tokens = tuple(tokenizer.token_to_piece(t, special=True) for t in range(tokenizer.n_vocab))

        def __call__(self, text: bytes | str) -> list[int]:
            data = text if isinstance(text, bytes) else text.encode()
            return [next(i for i, t in enumerate(self.tokens) if t == bytes([b])) for b in data]

    return llguidance.LLTokenizer(llguidance.TokenizerWrapper(Words()))


@pytest.mark.parametrize(("gbnf", "lark"), some(PAIRS, 5), ids=range(len(PAIRS)))
def test_masks_on_random_texts(gbnf: str, lark: str, tokenizer: Tokenizer, peer: Any) -> None:
    grammar = Grammar(gbnf)
    rng = random.Random(lark)
    special = np.zeros(tokenizer.n_vocab, np.bool_)
    special[[t for t in range(tokenizer.n_vocab) if not tokenizer.token_to_piece(t)]] = True
    for _ in range(3):
        ours = grammar.matcher(tokenizer)
        theirs = llguidance.LLMatcher(peer, llguidance.LLMatcher.grammar_from_lark(lark))
        for _ in range(25):
            bits = np.unpackbits(ours.mask().view(np.uint8), bitorder="little")
            mask = bits[: tokenizer.n_vocab].astype(np.bool_)
            theirs_mask = np.frombuffer(theirs.compute_bitmask(), np.uint8)
            their_bits = np.unpackbits(theirs_mask, bitorder="little")[: tokenizer.n_vocab]
            assert not theirs.is_error(), theirs.get_error()
            differing = np.flatnonzero((mask != their_bits) & ~special)
            shown = [tokenizer.token_to_piece(t) for t in differing[:10].tolist()]
            assert not shown
            assert ours.is_accepting == theirs.is_accepting()
            candidates = np.flatnonzero(mask & ~special)
            if not candidates.size:
                break
            # short tokens too, so that texts end
            token = int(
                rng.choice(candidates[:200].tolist() + rng.choices(candidates.tolist(), k=60))
            )
            ours.accept(token)
            theirs.consume_token(token)


@pytest.mark.long
def test_masks_match_the_slow_matcher(tokenizer: Tokenizer) -> None:
    """Every bit for every token of the vocabulary, also of parts of characters."""
    rules = {
        "root": ("rep", ("or", ("chars", ((0x20, 0x7A), (0xE9, 0x2028))), ("ref", "x")), 0, 9),
        "x": ("seq", ("text", '"'), ("rep", ("chars", ((0x41, 0x10FFFF),)), 0, 2), ("text", "x")),
    }
    gbnf = 'root ::= ([ -zé-\\u2028] | x){0,9}\nx ::= "\\"" [A-\\U0010FFFF]{0,2} "x"'
    matcher, slow = Grammar(gbnf).matcher(tokenizer), SlowMatcher(rules, "root")
    stacks, pending = slow.start(), b""
    rng = random.Random(0)
    for _ in range(2):
        after = {}
        for token in range(tokenizer.n_vocab):
            text = tokenizer.token_to_piece(token)
            stepped = slow.advance(stacks, pending, text) if text else (set(), b"")
            if stepped[0]:
                after[token] = stepped
        bits = np.unpackbits(matcher.mask().view(np.uint8), bitorder="little")
        expected = set(after) | (tokenizer.eog if None in stacks and not pending else set())
        assert set(np.flatnonzero(bits).tolist()) == expected
        partial = [token for token in sorted(after) if after[token][1]]
        token = rng.choice(partial or sorted(after))
        matcher.accept(token)
        stacks, pending = after[token]
